"""Branches: the kernels of the one that is not taken do not run, and results stay right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from codegen.sandbox import ADDRESS, Array, Case, Program, isa, relative_error, schedule_of
from onnx import TensorProto, helper, numpy_helper

from cuvil.ir.loops import If
from cuvil.ir.printer import show
from cuvil.schedule.plan import Schedule

RNG = np.random.default_rng(3)
FIRST, SECOND = (RNG.standard_normal((16, 16)).astype(np.float32) for _ in range(2))


def branches(condition: str) -> onnx.ModelProto:
    """``y = If(condition, relu(x a) a, x b) + x``: the condition is an input, or computed from `x`."""

    def branch(name: str, steps: list[tuple[str, list[str]]]) -> onnx.GraphProto:
        made = [helper.make_node(op, inputs, [f"{name}{i}"]) for i, (op, inputs) in enumerate(steps)]
        last = helper.make_tensor_value_info(made[-1].output[0], TensorProto.FLOAT, [5, 16])
        return helper.make_graph(made, name, [], [last])

    yes = branch("yes", [("MatMul", ["x", "a"]), ("Relu", ["yes0"]), ("MatMul", ["yes1", "a"])])
    no = branch("no", [("MatMul", ["x", "b"])])
    nodes = [
        helper.make_node("If", ["c"], ["z"], then_branch=yes, else_branch=no),
        helper.make_node("Add", ["z", "x"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 16])]
    constants = [numpy_helper.from_array(FIRST, "a"), numpy_helper.from_array(SECOND, "b")]
    if condition == "input":
        inputs.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
        constants.append(numpy_helper.from_array(np.array(16000), "fast"))
        nodes.insert(0, helper.make_node("Equal", ["rate", "fast"], ["c"]))
    else:
        constants.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
        nodes[:0] = [
            helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
            helper.make_node("Less", ["zero", "total"], ["c"]),
        ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 16])
    graph = helper.make_graph(nodes, "branches", inputs, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def wanted(x: Array, taken: bool) -> Array:
    return (np.maximum(x @ FIRST, 0) @ FIRST if taken else x @ SECOND) + x


def conditions(s: Schedule) -> list[str]:
    """The condition that each kernel is under as a whole."""
    found = []
    for k in s.kernels:
        (*_, last) = k.body
        found.append(show(last.condition) if len(k.body) == 1 and isinstance(last, If) else "")
    return found


@pytest.mark.parametrize("chosen", ["plain", "x86-64-v3"])
def test_one_branch_runs(chosen: str, tmp_path: Path) -> None:
    s = schedule_of(branches("input"), isa(chosen))
    under = conditions(s)
    assert [c == "" for c in under] == [False] * (len(under) - 1) + [True]
    assert len({*under} - {""}) == 2
    x = RNG.standard_normal((5, 16)).astype(np.float32)
    rates = (16000, 8000)
    program = Program(
        [Case(str(r), s, {"x": x, "rate": np.array(r)}) for r in rates], tmp_path, isa(chosen), ADDRESS
    )
    for number, rate in enumerate(rates):
        assert relative_error(program.run(number)[0], wanted(x, rate == 16000)) < 1e-5


def test_a_computed_condition_guards_nothing(tmp_path: Path) -> None:
    s = schedule_of(branches("computed"), isa("plain"))
    assert not any(conditions(s)[:-1])
    x = np.abs(RNG.standard_normal((5, 16))).astype(np.float32)
    program = Program([Case("a", s, {"x": x}), Case("b", s, {"x": -x})], tmp_path, isa("plain"), ADDRESS)
    assert relative_error(program.run(0)[0], wanted(x, True)) < 1e-5
    assert relative_error(program.run(1)[0], wanted(-x, False)) < 1e-5
