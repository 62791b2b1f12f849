"""Contractions of bytes: exact on every instruction set, claimed, and their loops taken apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from codegen.sandbox import ADDRESS, Array, Case, Program, isa, schedule_of
from onnx import TensorProto, helper, numpy_helper

from cuvil.schedule.plan import Schedule

ISAS = ["plain", "x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni"]

KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}

EXTREMES = np.array([0, 1, 127, 128, 129, 254, 255], np.uint8)
"""Bytes whose products are the largest of either sign, as signed and unsigned ones."""


def values(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random bytes, and many extreme ones."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 256, shape).astype(np.uint8)
    return np.where(rng.random(shape) < 0.5, rng.choice(EXTREMES, shape), drawn).astype(np.uint8).view(dtype)


def product(a: str, b: str, left: tuple[int, ...], right: tuple[int, ...], constant: bool) -> onnx.ModelProto:
    """The integer product of two matrices, or batches of them."""
    inputs = [helper.make_tensor_value_info("a", KINDS[a], left)]
    weights = []
    if constant:
        weights = [numpy_helper.from_array(values(b, right, 1), "b")]
    else:
        inputs.append(helper.make_tensor_value_info("b", KINDS[b], right))
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [*left[:-1], right[-1]])
    return model([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], inputs, [y], weights)


def convolution(
    shape: tuple[int, ...], weights: tuple[int, ...], group: int, stride: int, planar: bool
) -> onnx.ModelProto:
    """Requantized convolutions: `planar`, one straight on the quantized image, else a second behind a first
    that gives it `weights[0]` channels."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    constants = {
        "scale": np.float32(1 / 40), "zero": np.uint8(120), "unit": np.float32(0.01), "step": np.float32(30),
        "first": values("int8", (weights[0], shape[1], 1, 1), 2), "w": values("int8", weights, 3),
        "mid": np.uint8(9),
    }  # fmt: skip
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])]
    source = "q"
    if not planar:
        nodes += [
            helper.make_node("ConvInteger", ["q", "first"], ["s"]),
            helper.make_node("Cast", ["s"], ["f"], to=1),
            helper.make_node("QuantizeLinear", ["f", "step", "mid"], ["p"]),
        ]
        source = "p"
    pads = [weights[-1] // 2] * 4
    nodes += [
        helper.make_node("ConvInteger", [source, "w"], ["t"], group=group, pads=pads, strides=[stride] * 2),
        helper.make_node("Cast", ["t"], ["g"], to=1),
        helper.make_node("Mul", ["g", "unit"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "step", "mid"], ["y"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.UINT8, None)
    return model(nodes, [x], [y], [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])


def model(nodes: list, inputs: list, outputs: list, constants: list) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "bytes", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


PRODUCTS = {
    f"{a} {b} {kind}": product(a, b, *shapes)
    for a in KINDS
    for b in KINDS
    for kind, shapes in {
        "packed": ((7, 64), (64, 50), True),
        "row": ((1, 36), (36, 19), True),
        "batched": ((2, 9, 32), (2, 32, 40), False),
        "ragged": ((5, 30), (30, 33), False),
    }.items()
}
CONVOLUTIONS = {
    "image": convolution((1, 3, 13, 14), (20, 3, 3, 3), 1, 2, True),
    "six planes": convolution((1, 6, 9, 9), (16, 6, 3, 3), 1, 1, True),
    "many planes": convolution((1, 20, 7, 9), (16, 20, 3, 3), 1, 1, True),
    "depthwise": convolution((1, 8, 9, 11), (40, 1, 3, 3), 40, 1, False),
    "depthwise by twos": convolution((1, 8, 10, 9), (19, 1, 5, 5), 19, 2, False),
}
MODELS = {**PRODUCTS, **CONVOLUTIONS}


def feeds(name: str) -> dict[str, Array]:
    result: dict[str, Array] = {}
    for seed, info in enumerate(MODELS[name].graph.input):
        shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        kind = next((k for k, t in KINDS.items() if t == info.type.tensor_type.elem_type), "")
        floats = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        result[info.name] = values(kind, shape, seed) if kind else floats
    return result


def scheduled(name: str, chosen: str) -> Schedule:
    return schedule_of(MODELS[name], isa(chosen))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    return results("plain", tmp_path_factory.mktemp("plain"))


def results(chosen: str, folder: Path) -> dict[str, Array]:
    cases = [Case(name, scheduled(name, chosen), feeds(name)) for name in MODELS]
    program = Program(cases, folder, isa(chosen), ADDRESS)
    return {name: program.run(number)[0] for number, name in enumerate(MODELS)}


@pytest.mark.parametrize("chosen", ISAS[1:])
def test_results_are_those_of_plain_loops(chosen: str, plain: dict[str, Array], tmp_path: Path) -> None:
    for name, got in results(chosen, tmp_path).items():
        np.testing.assert_array_equal(got, plain[name], err_msg=name)


def test_products_are_exact(plain: dict[str, Array]) -> None:
    for name, m in PRODUCTS.items():
        given = feeds(name)
        b = given["b"] if "b" in given else numpy_helper.to_array(m.graph.initializer[0])
        wanted = given["a"].astype(np.int32) @ b.astype(np.int32)
        np.testing.assert_array_equal(plain[name], wanted, err_msg=name)


@pytest.mark.parametrize("name", [n for n in MODELS if "ragged" not in n])
@pytest.mark.parametrize("chosen", ISAS[1:])
def test_claimed(name: str, chosen: str) -> None:
    kernels = [k for k in scheduled(name, chosen).kernels if k.tag not in ("border", "map")]
    assert {k.tag for k in kernels} <= {"conv", "gemm"}


def test_lanes_of_a_partial_panel_stay_inside() -> None:
    """An operand that is packed, and read by others too, is stored once, guarded at its ragged end."""
    s = scheduled("uint8 uint8 batched", "x86-64-v4-vnni")
    packed = [v for v, layout in s.storage.layouts.items() if len({a for a, _, n in layout.dims if n}) == 2]
    assert len(packed) == 1
