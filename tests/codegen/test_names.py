"""Text of a model never reaches the C except as part of a unique identifier or, cleaned, of a comment."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cuvil
from cuvil.codegen.names import Namer, comment, identifier, model_name
from cuvil.codegen.program import Part, render
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import schedule
from cuvil.toolchain import symbols

NASTY = [
    "a*/ int evil(void){return 1;} /*", "a.b", "a_b", "a b", "A_B", "int", "free", "\U0001f600", "\U0001f601",
    "", "x" * 10_000, "x" * 9_999 + "y", "../../etc/x", "9lives", "line\nbreak\\\n#define evil 1", "??/",
    "%s%n", '"; evil(); "', "workspace", "next", "need", "arena", "m0", "n_N", "N", "size_t", "int64_t",
    "NULL", "linux", "class", "typeof", "shape", "most", "total", "lo", "hi", "point", "b0", "in0", "out0",
    "base", "cv_idx", "CUVIL_OK", "\x00", "a\x1b[31m", "main", "infer", "uint8_t", "restrict",
]  # fmt: skip


def test_identifiers_are_c_identifiers_of_bounded_length() -> None:
    for text in NASTY:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,60}", identifier(text)), text


def test_namer_never_repeats() -> None:
    namer = Namer()
    given = [namer.unique(text) for text in [*NASTY, *NASTY, "a_b_2", "a_b_2"]]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("text", NASTY)
def test_comments_stay_comments(text: str) -> None:
    clean = comment(text)
    assert "*/" not in f"/* {clean} */"[:-2]
    assert clean.isascii() and "\n" not in clean and "\\" not in clean and len(clean) <= 120


@pytest.mark.parametrize(
    "text", ["../../x", "/etc/passwd", "..", "a/b", "", "\U0001f600", "C:\\x", "x" * 300, "int"]
)
def test_model_names_hold_no_path(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,60}", model_name(text))


def nasty_model(names: list[str]) -> onnx.ModelProto:
    """One input, node and output per name; every input has a symbolic size of its own, also a nasty one."""
    inputs, nodes, outputs = [], [], []
    for n, text in enumerate(names):
        name = text or "empty"
        kind = helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{text}" or "?", 3])
        inputs.append(kind)
        nodes.append(helper.make_node("Relu", [name], [f"{name}'"], name=text))
        outputs.append(helper.make_tensor_value_info(f"{name}'", TensorProto.FLOAT, [f"{text}" or "?", 3]))
        del n
    graph = helper.make_graph(nodes, "*/ evil /*", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def without_comments(source: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL)


def assert_no_trace(folder: Path) -> None:
    """No file's name and no line of code outside comments has text of `NASTY` that could do harm."""
    for path in sorted(folder.iterdir()):
        assert re.fullmatch(r"[A-Za-z0-9_.]+", path.name)
        if path.suffix in (".c", ".h"):
            code = without_comments(path.read_text(encoding="ascii"))
            assert re.search(r"\bevil\s*\(|define evil", code) is None
            assert "\\\n" not in code


def test_nasty_names_compile_run_and_leave_no_trace(tmp_path: Path) -> None:
    names = [n for n in NASTY if n.isprintable()]  # others are refused when the model is read
    onnx.save(nasty_model(names), tmp_path / "evil (1).onnx")
    session = cuvil.compile(tmp_path / "evil (1).onnx", output=tmp_path / "out")
    rng = np.random.default_rng(0)
    feeds = {}
    for k, text in enumerate(names):
        feeds[text or "empty"] = rng.standard_normal((k % 4 + 1, 3)).astype(np.float32)
    assert [i.name for i in session.get_inputs()] == list(feeds)
    for got, fed in zip(session.run(None, feeds), feeds.values()):
        np.testing.assert_array_equal(got, np.maximum(fed, 0))
    assert_no_trace(tmp_path / "out" / "codegen")
    exported = {
        s.name
        for image in symbols.read(session.library)
        for s in image.symbols
        if s.defined and s.binding == "global"
    }
    assert exported == {f"evil_1_{end}" for end in ("run", "workspace_bytes", "output_shapes")} | {"infer"}


def test_nasty_names_inside_branches(tmp_path: Path) -> None:
    """A chain of nodes with such names in one branch, as names of values and of nodes."""
    names = [n for n in NASTY if n.isprintable()]
    chain = ["x", *(f"{name or 'empty'} {k}" for k, name in enumerate(names))]
    nodes = [helper.make_node("Neg", [a], [b], name=n) for a, b, n in zip(chain, chain[1:], names)]
    yes = helper.make_graph(nodes, "*/ evil() /*", [], [onnx.ValueInfoProto(name=chain[-1])])
    no = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])], '"; evil(); "', [], [onnx.ValueInfoProto(name="r")]
    )
    choice = helper.make_node("If", ["c"], ["*/ y /*"], name="*/ evil() /*", then_branch=yes, else_branch=no)
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
    ]
    result = helper.make_tensor_value_info("*/ y /*", TensorProto.FLOAT, [3])
    graph = helper.make_graph([choice], "g", inputs, [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "m.onnx")  # fmt: skip
    session = cuvil.compile(tmp_path / "m.onnx", output=tmp_path / "out")
    x = np.array([1.0, -2.0, 3.0], np.float32)
    sign = (-1) ** len(names)
    assert session.run(None, {"c": np.array(True), "x": x})[0].tolist() == (sign * x).tolist()
    assert session.run(None, {"c": np.array(False), "x": x})[0].tolist() == [1, 0, 3]
    assert_no_trace(tmp_path / "out" / "codegen")


def test_texts_of_a_model_are_numbers_in_the_code(tmp_path: Path) -> None:
    """String constants, which the code compares with an input."""
    texts = [n for n in NASTY if n.isprintable() and len(n) < 100]
    nodes = [
        helper.make_node("StringConcat", ["x", "c"], ["t"]),
        helper.make_node("Equal", ["t", "c"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.STRING, [len(texts)])
    y = helper.make_tensor_value_info("y", TensorProto.BOOL, [len(texts)])
    constant = helper.make_tensor("c", TensorProto.STRING, [len(texts)], [t.encode() for t in texts])
    graph = helper.make_graph(nodes, "g", [x], [y], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    imported = graph_from_proto(model)
    canonicalize(imported)
    source = render([Part(schedule(lower(imported)), "m")], "m").source
    assert source.isascii()
    for text in ("evil", "9lives", "../etc"):
        assert any(text in t for t in texts) and text not in source


def test_header_is_valid_c_and_cpp(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    names = [n for n in NASTY if n.isprintable()]  # others are refused when the model is read
    onnx.save(nasty_model(names), tmp_path / "m.onnx")
    cuvil.compile(tmp_path / "m.onnx", output=tmp_path / "out")
    for language, standard in (("c", "c99"), ("c++", "c++11")):
        flags = ["-x", language, f"-std={standard}", "-fsyntax-only", "-Wall", "-Werror", "-pedantic"]
        subprocess.run([compiler, *flags, str(tmp_path / "out" / "codegen" / "m.h")], check=True)
