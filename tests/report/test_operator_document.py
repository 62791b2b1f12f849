"""docs/operators.md: generated, complete, and true of what is lowered."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import defs, helper

from cuvil import cli
from cuvil.codegen.program import Part, render
from cuvil.errors import CuvilError
from cuvil.frontend import catalogue
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.opset_rules import RULES
from cuvil.frontend.tensors import dtype_code
from cuvil.ops.left_out import LEFT_OUT
from cuvil.report.operators import markdown
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import schedule

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def standard() -> set[tuple[str, str]]:
    return {(s.domain, s.name) for s in defs.get_all_schemas_with_history()}


def test_every_operator_of_the_standard_is_in_one_table() -> None:
    supported = {(e.domain, e.name) for e in catalogue.supported()}
    assert catalogue.missing() == []
    assert supported.isdisjoint(LEFT_OUT)
    assert supported | set(LEFT_OUT) >= standard() >= set(LEFT_OUT)


def test_document_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    if f"for onnx {onnx.__version__} " not in text:
        pytest.skip("the document was made with another onnx")
    assert cli.main(["operators"]) == 0
    assert text == capsys.readouterr().out, "run: cuvil operators > docs/operators.md"


def test_json_has_what_the_document_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["operators", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"domain": "", "name": "ImageDecoder", "reason": LEFT_OUT["", "ImageDecoder"]} in found["left_out"]
    relu = next(e for e in found["operators"] if (e["domain"], e["name"]) == ("", "Relu"))
    assert relu["versions"] == [1, 6, 13, 14] and "int8" in relu["types"]["T"]
    assert found["opset"] == defs.onnx_opset_version()


def entry(name: str) -> catalogue.Entry:
    return next(e for e in catalogue.supported() if (e.domain, e.name) == ("", name))


def test_entries() -> None:
    softmax = entry("Softmax")
    assert softmax.versions == (1, 11, 13) and softmax.types == {
        "T": ("float16", "float32", "float64", "bfloat16")
    }
    assert entry("Upsample").versions == (1, 7, 9) and entry("Upsample").notes == ("becomes Resize",)
    assert entry("HannWindow").notes == ("expanded to its definition in the standard",)
    assert entry("LRN").types["T"] == softmax.types["T"]
    assert "before opset 2: p must be a whole number" in entry("GlobalLpPool").notes
    assert "complex64" in str(catalogue.schema("", "Transpose").type_constraints[0].allowed_type_strs)
    assert not any("complex" in t for e in catalogue.supported() for t in str(e.types).split())


def test_limits_are_those_of_the_rules() -> None:
    refusing = {key for key, rule in RULES.items() if "context.unsupported(" in inspect.getsource(rule)}
    assert set(catalogue.LIMITS) == refusing


def test_replaced_operators_have_rules() -> None:
    history: dict[str, Any] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version >= history.get(schema.name, (0,))[0]:
            history[schema.name] = (schema.since_version, schema.deprecated)
    gone = {name: version for name, (version, deprecated) in history.items() if deprecated}
    assert {name for name, version in gone.items() if (name, version) in RULES} == set(catalogue.RENAMED)


def test_grouped_types_and_escaped_cells() -> None:
    page = markdown(
        {
            "onnx": "1", "opset": 2, "canonical": 3, "left_out": [],
            "missing": [{"domain": "d", "name": "B"}],
            "operators": [
                {"domain": "", "name": "A", "versions": (1, 2), "notes": ["a | b", "c"], "types": {
                    "T": ("bool", "int2", "uint2"), "I": ("int64",)}},
                {"domain": "m", "name": "C", "versions": (), "notes": ["d"], "types": {}},
            ],
        }
    )  # fmt: skip
    assert "| `A` | 1, 2 | T: 2-bit, bool; I: int64 | a \\| b; c |" in page
    assert "## m: 1 operators\n\n| operator | notes |\n| --- | --- |\n| `C` | d |" in page
    assert page.endswith("## Not yet\n\n`d.B`")


SHAPE = [2, 4, 4]


def accepts(schema: Any, names: list[str], dtype: str) -> bool:
    """Whether a node whose inputs have that type is lowered and printed."""
    inputs = [helper.make_tensor_value_info(name, dtype_code(dtype), SHAPE) for name in names]
    node = helper.make_node(schema.name, names, ["y"])
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    opset = helper.make_opsetid("", defs.onnx_opset_version())
    try:
        imported = graph_from_proto(helper.make_model(graph, opset_imports=[opset]))
        canonicalize(imported)
        render([Part(schedule(lower(imported)), "m")], "m")
    except CuvilError:
        return False
    return True


LIKE = ("RandomNormalLike", "RandomUniformLike")
"""Their result has the type of the input, which must be a float type, unless an attribute names one."""


def plain_operators() -> dict[str, tuple[Any, list[str], str]]:
    """Operators of one result that need no attribute and whose inputs all have one type parameter."""
    option, found = defs.OpSchema.FormalParameterOption, {}
    for e in catalogue.supported():
        schema = None if e.domain else catalogue.schema("", e.name)
        if schema is None or schema.deprecated or any(a.required for a in schema.attributes.values()):
            continue
        if e.name in LIKE:
            continue
        needed = [p for p in schema.inputs if p.option == option.Single] or list(schema.inputs)[:1]
        parameters = {p.type_str for p in needed}
        if len(parameters) == 1 and parameters <= set(e.types):
            found[e.name] = schema, [f"i{k}" for k in range(len(needed))], parameters.pop()
    return found


def test_types_are_those_that_are_lowered() -> None:
    """For every operator that takes float32, or its first type, of some shape here: exactly those types."""
    wrong, tried = {}, 0
    for name, (schema, names, parameter) in plain_operators().items():
        claimed = [t for t in entry(name).types[parameter] if t not in ("string", "sequences", "optionals")]
        possible = [t for t in claimed if accepts(schema, names, t)]
        refused = catalogue.NARROWER.get(("", name), frozenset())
        if possible and (possible != claimed or any(accepts(schema, names, t) for t in refused)):
            wrong[name] = sorted(set(claimed) - set(possible)) or sorted(refused)
        tried += bool(possible)
    assert not wrong
    assert tried > 70


def test_the_error_of_what_is_left_out_says_why() -> None:
    node = helper.make_node("ImageDecoder", ["x"], ["y"], name="n")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [9])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, [2, 2, 3])
    graph = helper.make_graph([node], "g", [x], [y])
    imported = graph_from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    canonicalize(imported)
    with pytest.raises(CuvilError) as caught:
        lower(imported)
    reason = "an image codec; decode before inference"
    assert str(caught.value) == f"node 'n' (ImageDecoder): operator ImageDecoder is not supported: {reason}"
