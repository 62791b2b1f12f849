"""Col2Im, DeformConv and Det against onnxruntime, ONNX's reference evaluator and numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import native
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from single import Array, model, node, reference

from cuvil.errors import ModelError

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


# --- Col2Im ---


def blocks(
    image: list[int], block: list[int], dtype: str = "float32", symbolic: bool = False, **attrs: Any
) -> Any:
    rank = len(image)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    counts = [
        (image[a] + pads[a] + pads[a + rank] - (block[a] - 1) * dilations[a] - 1) // strides[a] + 1
        for a in range(rank)
    ]
    x = RNG.integers(-9, 9, (2, 3 * int(np.prod(block)), int(np.prod(counts)))).astype(dtype)
    feeds, sizes = {"x": x}, {"i": np.int64(image), "b": np.int64(block)}
    dims = {"x": ["n", *x.shape[1:]]} if symbolic else None
    return model([node("Col2Im", "x i b", **attrs)], feeds, ["y"], sizes, dims), feeds


COL2IM = {
    "plain": blocks([5, 6], [2, 3]),
    "strided": blocks([7, 9], [3, 2], strides=[2, 3]),
    "all": blocks([8, 7], [3, 2], strides=[2, 3], dilations=[2, 3], pads=[1, 2, 3, 0], symbolic=True),
    "holes": blocks([9, 9], [2, 2], strides=[4, 3]),
    "three axes": blocks([4, 5, 6], [2, 3, 2], strides=[1, 2, 2], pads=[1, 0, 1, 0, 1, 1]),
    "one axis": blocks([11], [3], strides=[2], dilations=[2]),
    "double": blocks([5, 6], [2, 3], "float64"),
    "int8 wraps": blocks([5, 6], [5, 3], "int8", pads=[2, 1, 2, 1]),
    "half": blocks([5, 6], [2, 3], "float16"),
}

# --- DeformConv ---


def deformed(
    size: list[int], kernel: list[int], group: int = 1, offset_group: int = 1, mask: bool = True,
    bias: bool = True, dtype: Any = np.float32, scale: float = 2.0, symbolic: bool = False, **attrs: Any,
) -> Any:  # fmt: skip
    rank = len(size)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    out = [
        (size[a] + pads[a] + pads[a + rank] - (kernel[a] - 1) * dilations[a] - 1) // strides[a] + 1
        for a in range(rank)
    ]
    taps = int(np.prod(kernel))
    feeds = {
        "x": normal(2, 4, *size).astype(dtype),
        "w": normal(6, 4 // group, *kernel).astype(dtype),
        "o": (normal(2, offset_group * taps * rank, *out) * scale).astype(dtype),
    }
    if bias:
        feeds["b"] = normal(6).astype(dtype)
    if mask:
        feeds["m"] = RNG.uniform(0, 2, (2, offset_group * taps, *out)).astype(dtype)
    names = f"x w o {'b' if bias else '-'}" + (" m" if mask else "")
    dims = {k: ["n", *a.shape[1:]] for k, a in feeds.items() if k in "xom"} if symbolic else None
    n = node("DeformConv", names, group=group, offset_group=offset_group, kernel_shape=kernel, **attrs)
    return model([n], feeds, ["y"], {}, dims, 22), feeds


DEFORM = {
    "plain": deformed([6, 7], [3, 2], mask=False, bias=False),
    "masked": deformed([6, 7], [3, 2], pads=[1, 0, 2, 1], symbolic=True),
    "strided": deformed([9, 8], [2, 3], strides=[2, 3], dilations=[2, 1], pads=[1, 1, 0, 2]),
    "groups": deformed([5, 6], [2, 2], group=2, offset_group=4, scale=0.5),
    "one group of offsets": deformed([5, 6], [2, 2], group=2),
    "double": deformed([5, 6], [2, 2], dtype=np.float64),
}
HALF = {n: deformed([5, 6], [2, 2], dtype=t) for n, t in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16))}
STRAIGHT = {
    f"no offsets, {len(size)} axes": deformed(
        size, [2] * len(size), mask=False, scale=0, strides=[2] * len(size), pads=[1] * 2 * len(size)
    )
    for size in ([9], [4, 5, 6])
}


def wide(case: Any) -> Any:
    """A case of 16-bit floats in float64."""
    proto, feeds = case
    (n,) = proto.graph.node
    exact = {name: a.astype(np.float64) for name, a in feeds.items()}
    return model([n], exact, ["y"], {}, None, 22), exact


# --- Det ---

SINGULAR = np.float32([[1, 2, 3], [2, 4, 6], [0, 1, 1]])
MATRICES: dict[str, tuple[Array, Any]] = {
    "2x2": (normal(2, 2), None),
    "batch": (normal(3, 2, 5, 5), ["n", 2, 5, 5]),
    "any size": (normal(3, 6, 6), [3, "m", "m"]),
    "1x1": (normal(4, 1, 1), None),
    "0x0": (np.zeros((2, 0, 0), np.float32), None),
    "none": (np.zeros((0, 3, 3), np.float32), None),
    "double": (RNG.standard_normal((2, 12, 12)), None),
    "half": (RNG.standard_normal((2, 4, 4)).astype(np.float16), None),
    "exchanges": (np.eye(5, dtype=np.float32)[[3, 0, 4, 1, 2]], None),
    "two exchanges": (np.eye(4, dtype=np.float32)[[1, 0, 3, 2]], None),
    "singular": (SINGULAR, None),
    "zero": (np.zeros((3, 3), np.float32), None),
    "small pivot": (np.float32([[1e-6, 1], [1, 1]]), None),
    "not a number": (np.float32([[1, 2], [np.nan, 4]]), None),
}


def matrices(x: Array, dims: Any) -> Any:
    return model([node("Det", "x")], {"x": x}, ["y"], {}, {"x": dims} if dims else None), {"x": x}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    dets = {f"det {n}": matrices(*case) for n, case in MATRICES.items()}
    sums = {f"blocks {n}": case for n, case in COL2IM.items()}
    return native.outputs({**sums, **DEFORM, **HALF, **STRAIGHT, **dets, "far": FAR})


@pytest.mark.parametrize("name", COL2IM)
def test_col2im(name: str, results: dict[str, list[Array]]) -> None:
    """Sums of small integers are exact in every type."""
    proto, feeds = COL2IM[name]
    exact = onnx.ModelProto()
    exact.CopyFrom(proto)
    exact.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    wanted = ReferenceEvaluator(exact).run(None, {"x": feeds["x"].astype(np.float64)})[0]
    got = results[f"blocks {name}"][0]
    np.testing.assert_array_equal(got, wanted.astype(np.int64).astype(feeds["x"].dtype))


@pytest.mark.parametrize("name", DEFORM)
def test_deform_conv(name: str, results: dict[str, list[Array]]) -> None:
    proto, feeds = DEFORM[name]
    wanted = ReferenceEvaluator(proto).run(None, feeds)[0]
    np.testing.assert_allclose(results[name][0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", HALF)
def test_deform_conv_of_16_bit_floats_rounds_once(name: str, results: dict[str, list[Array]]) -> None:
    proto, feeds = wide(HALF[name])
    wanted = ReferenceEvaluator(proto).run(None, feeds)[0]
    eps = float(ml_dtypes.finfo(HALF[name][1]["x"].dtype).eps)
    np.testing.assert_allclose(results[name][0].astype(np.float64), wanted, rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize("name", STRAIGHT)
def test_deform_conv_without_offsets_is_a_convolution(name: str, results: dict[str, list[Array]]) -> None:
    _, feeds = STRAIGHT[name]
    rank = feeds["x"].ndim - 2
    plain = node("Conv", "x w b", strides=[2] * rank, pads=[1] * 2 * rank)
    wanted = reference(model([plain], {k: feeds[k] for k in "xwb"}, ["y"]), {k: feeds[k] for k in "xwb"})
    np.testing.assert_allclose(results[name][0], wanted[0], rtol=1e-4, atol=1e-5)


def far() -> Any:
    proto, feeds = deformed([5, 5], [2, 2], mask=False)
    wild = np.float32([1e30, -1e30, np.inf, -np.inf, 3e9, -7, 9, np.nan])
    feeds["o"][:] = wild[None, :, None, None]
    return proto, feeds


FAR = far()


def test_offsets_far_outside_read_zeros(results: dict[str, list[Array]]) -> None:
    bias = np.broadcast_to(FAR[1]["b"][None, :, None, None], (2, 6, 4, 4))
    np.testing.assert_array_equal(results["far"][0], bias)


@pytest.mark.parametrize("name", MATRICES)
def test_det(name: str, results: dict[str, list[Array]]) -> None:
    x = MATRICES[name][0]
    eps = float(np.finfo(x.dtype).eps)
    with np.errstate(invalid="ignore"):
        wanted = np.linalg.det(x.astype(np.float64))
    got = results[f"det {name}"][0]
    assert got.dtype == x.dtype and got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=100 * eps, atol=100 * eps)


def test_matrices_that_are_not_square_are_refused() -> None:
    with pytest.raises(ModelError):
        native.prepare(matrices(normal(2, 3), None)[0])


def test_blocks_that_do_not_fit_are_refused() -> None:
    proto, _ = blocks([5, 6], [2, 3])
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 7
    with pytest.raises(ModelError):
        native.prepare(proto)


@pytest.mark.parametrize("name", ["w", "o", "m"])
def test_arguments_of_deform_conv_that_do_not_fit_are_refused(name: str) -> None:
    proto, _ = deformed([5, 6], [2, 2])
    (argument,) = (v for v in proto.graph.input if v.name == name)
    argument.type.tensor_type.shape.dim[1].dim_value += 1
    with pytest.raises(ModelError):
        native.prepare(proto)
