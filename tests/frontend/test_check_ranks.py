"""Ranks and sizes of inputs that no result's shape depends on, and nonsense of every operator."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_models import F32, model, one, save
from onnx import defs, helper, numpy_helper

from cuvil.errors import CuvilError, ModelError
from cuvil.frontend import catalogue
from cuvil.frontend.importer import canonicalize, import_model
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.schedule.lower import lower

I64, I8 = "int64", "int8"

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "axes in two dimensions": (
        "ReduceSum", {"x": (F32, [2, 3]), "a": (I64, [1, 1])}, {}, "input 1 has rank 2, 0 to 1 is allowed"
    ),
    "index of a number": ("ArgMax", {"x": (F32, [])}, {}, "input 0 has rank 0, 1 or more is allowed"),
    "two axes": ("CumSum", {"x": (F32, [2]), "a": (I64, [2])}, {}, "input 1 has 2 elements, one is allowed"),
    "no k": ("TopK", {"x": (F32, [2, 3]), "k": (I64, [0])}, {}, "input 1 has 0 elements, one is allowed"),
    "no channels": (
        "InstanceNormalization", {"x": (F32, [4]), "s": (F32, [4]), "b": (F32, [4])}, {},
        "input 0 has rank 1, 2 or more is allowed",
    ),
    "scale by channel and place": (
        "InstanceNormalization", {"x": (F32, [1, 4, 2]), "s": (F32, [4, 2]), "b": (F32, [4])}, {},
        "input 1 has rank 2, 1 is allowed",
    ),
    "scale that is too short": (
        "LayerNormalization", {"x": (F32, [2, 3]), "s": (F32, [2])}, {},
        "input 1 of shape [2] does not broadcast to [2, 3]",
    ),
    "slope of more axes": (
        "PRelu", {"x": (F32, [3]), "s": (F32, [2, 3])}, {},
        "input 1 of shape [2, 3] does not broadcast to [3]",
    ),
    "repeats": ("Tile", {"x": (F32, [2]), "r": (I64, [3])}, {}, "the number of repeats is 3, it must be 1"),
    "crop": (
        "CenterCropPad", {"x": (F32, [2, 3]), "s": (I64, [2])}, {"axes": [1]},
        "the number of sizes is 2, it must be 1",
    ),
    "indices beyond the data": (
        "GatherElements", {"x": (F32, [2, 3]), "i": (I64, [4, 5])}, {"axis": 1},
        "the indices have size 4 at axis 0, the data has only 2",
    ),
    "updates": (
        "ScatterElements", {"x": (F32, [2, 3]), "i": (I64, [2, 2]), "u": (F32, [2, 1])}, {"axis": 1},
        "the updates have shape [2, 1], the indices [2, 2]",
    ),
    "slices": (
        "ScatterND", {"x": (F32, [4, 3]), "i": (I64, [5, 1]), "u": (F32, [5, 2])}, {},
        "the updates have shape [5, 2], [5, 3] is expected",
    ),
    "labels": (
        "SoftmaxCrossEntropyLoss", {"x": (F32, [2, 3, 4]), "t": (I64, [2, 3])}, {},
        "the labels have shape [2, 3], [2, 4] is expected",
    ),
    "weights of classes": (
        "NegativeLogLikelihoodLoss", {"x": (F32, [2, 3]), "t": (I64, [2]), "w": (F32, [2])}, {},
        "the number of weights is 2, it must be 3",
    ),
    "zero point by row": (
        "MatMulInteger", {"a": (I8, [2, 3]), "b": (I8, [3, 4]), "z": (I8, [3])}, {},
        "input 2 of shape [3] does not fit input 0 of [2, 3]",
    ),
    "axes of a normalization": (
        "MeanVarianceNormalization", {"x": (F32, [2, 3])}, {}, "axis 2 is out of range for rank 2"
    ),
    "hidden state": (
        "RNN", {"x": (F32, [2, 1, 3]), "w": (F32, [4, 3]), "r": (F32, [1, 4, 4])}, {"hidden_size": 4},
        "input 1 has rank 2, 3 is allowed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_faulty_input(case: str, tmp_path: Path) -> None:
    op, inputs, attrs, expected = CASES[case]
    outputs = {
        "ArgMax": {"y": (I64, None)}, "TopK": {"y": (F32, None), "i": (I64, None)},
        "MatMulInteger": {"y": ("int32", None)}, "RNN": {"y": (F32, None)},
    }.get(op, {"y": (F32, None)})  # fmt: skip
    with pytest.raises(ModelError) as caught:
        import_model(save(tmp_path, one(op, inputs, outputs=outputs, **attrs)))
    assert str(caught.value) == f"node 'n' ({op}): {expected}"


def test_parameters_by_row_and_matrix_pass(tmp_path: Path) -> None:
    inputs = {"a": (I8, [5, 2, 3]), "b": (I8, [5, 3, 4])}
    for zero in ([], [1], [2], [5, 2, 1]):
        proto = one("MatMulInteger", {**inputs, "z": (I8, zero)}, outputs={"y": ("int32", None)})
        assert import_model(save(tmp_path, proto)).types["y"].shape == (5, 2, 4)


# --- nonsense -----------------------------------------------------------------------------------------

SHAPES: tuple[list[int], ...] = ([], [1], [4], [0], [2, 3], [2, 2], [2, 0, 3], [1, 4, 4, 4], [1] * 6)

VALUES: dict[str, Any] = {
    "INT": 1, "INTS": [1], "FLOAT": 1.0, "FLOATS": [1.0], "STRING": "linear", "STRINGS": ["a"],
}  # fmt: skip

TRIALS = 6
"""Models of each operator."""


def element_type(schema: Any, parameter: Any, rng: random.Random) -> str:
    """One of the types that an input may have."""
    types = catalogue.types_of(schema).get(parameter.type_str)
    if types is None:
        literal = re.fullmatch(r"tensor\((\w+)\)", parameter.type_str)
        return {"float": F32, "double": "float64"}.get(literal[1], literal[1]) if literal else F32
    plain = [t for t in types if t not in ("sequences", "optionals", "string")]
    return next((t for t in (F32, I64, "bool") if t in plain), None) or rng.choice(plain or [F32])


def nonsense(schema: Any, rng: random.Random) -> onnx.ModelProto:
    """One node with inputs of arbitrary ranks, some of them constant, and some attributes."""
    option = defs.OpSchema.FormalParameterOption
    inputs: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    shape = rng.choice(SHAPES)
    for k, parameter in enumerate(schema.inputs):
        if parameter.option == option.Optional and rng.random() < 0.5:
            break
        dtype = element_type(schema, parameter, rng)
        own = shape if rng.random() < 0.5 else rng.choice(SHAPES)
        if dtype in (I64, "int32") and len(own) < 2 and rng.random() < 0.5:
            numbers = [rng.randint(-2, 3) for _ in range(int(np.prod(own)))]
            constants[f"i{k}"] = np.array(numbers, dtype).reshape(own)
        else:
            inputs[f"i{k}"] = (dtype, own)
    attrs = {
        a.name: VALUES[a.type.name]
        for a in schema.attributes.values()
        if a.type.name in VALUES and (a.required or rng.random() < 0.2)
    }
    names = [f"i{k}" for k in range(len(inputs) + len(constants))]
    outputs = [f"o{k}" for k, o in enumerate(schema.outputs) if o.option == option.Single] or ["o0"]
    node = helper.make_node(schema.name, names, outputs, name="n", domain=schema.domain, **attrs)
    opsets = [helper.make_opsetid(schema.domain, 1)] if schema.domain else []
    proto = model([node], inputs, {}, opset=defs.onnx_opset_version(), opsets=opsets)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in constants.items())
    return proto


@pytest.mark.parametrize("trial", range(TRIALS))
def test_nonsense_is_refused_or_means_something(trial: int) -> None:
    """Of every operator: what is not refused by an error of the user's is lowered."""
    rng = random.Random(trial)
    found = {}
    for entry in catalogue.supported():
        schema = catalogue.schema(entry.domain, entry.name)
        if (
            schema is None
            or schema.deprecated
            or any(a.type.name == "GRAPH" for a in schema.attributes.values())
        ):
            continue
        try:
            graph = graph_from_proto(nonsense(schema, rng))
            canonicalize(graph)
            lower(graph)
        except CuvilError as error:
            assert "\n" not in str(error)
        except Exception as error:
            found[entry.name] = repr(error)
    assert not found


def test_an_empty_constant_is_an_operand() -> None:
    """x[0] + a constant of no elements, which has no element to be folded."""
    graph = graph_from_proto(one("Add", {"x": (F32, [0])}, {"c": np.zeros(0, np.float32)}))
    canonicalize(graph)
    (result,) = lower(graph).outputs
    assert [int(d.attr) for d in result.shape] == [0]
