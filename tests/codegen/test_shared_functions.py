"""Kernels with equal code share one C function, whatever runs them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from zoo.net import Net

import cuvil
from cuvil.codegen.functions import Distinct, Function
from cuvil.ir import expr as E
from cuvil.ir.loops import Kernel


def function(name: str, statement: str, comment: str = "x") -> Function:
    text = f"/* {comment} */\nstatic void {name}(float *b0) {{ {statement} }}\n"
    return Function(Kernel(name, (), (), (), ()), name, text, [], [], E.const(1), [("float *", "b0")])


def test_equal_code_is_found_whatever_its_name_and_comment() -> None:
    distinct = Distinct()
    first = distinct(function("k1", "b0[0] = 1;"))
    again, other = distinct(function("k20", "b0[0] = 1;", "y")), distinct(function("k3", "b0[0] = 2;"))
    assert (first.same, again.same, other.same) == ("", "k1", "")
    assert (again.callee, again.text, again.name) == ("k1", "", "k20")
    assert "struct k1_arguments" in again.thunk and "k20" not in again.thunk


@pytest.mark.parametrize("threads", [1, 2])
def test_layers_that_repeat_run_one_function(tmp_path: Path, threads: int) -> None:
    net = Net("repeated", 5)
    x = net.input("x", [256, 96])
    for _ in range(4):
        x = net.op("Tanh", net.linear(x, 96, 96))
    net.output(x, "y", [256, 96])
    onnx.save(net.model(), tmp_path / "repeated.onnx")
    session = cuvil.compile(tmp_path / "repeated.onnx", threads=threads, output=tmp_path / "out")
    source = next((tmp_path / "out" / "codegen").glob("repeated_cpu0.c")).read_text()
    written = re.findall(r"^static CV_NOINLINE void (k\d+_Tanh_\d+)\(", source, re.MULTILINE)
    ran = re.findall(r'CV_TICK\("(k\d+_Tanh_\d+)"\)', source)
    assert len(ran) == 4 and 1 <= len(written) < 4
    assert set(re.findall(r"void (k\d+_Tanh_\d+)_task\(", source)) == set(written if threads > 1 else [])
    feeds = {"x": np.random.default_rng(1).standard_normal((256, 96), np.float32)}
    plain = cuvil.compile(tmp_path / "repeated.onnx", tuned=False)
    assert np.allclose(session.run(None, feeds)[0], plain.run(None, feeds)[0], atol=1e-5)
