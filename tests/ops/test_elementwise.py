"""Numbers at the edges: NaN, infinities, integers that overflow, division by zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import native
import numpy as np
import onnx
import pytest
from single import Array, model, node

NAN, INF = np.nan, np.inf
ODD = np.float32([NAN, -INF, -2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, INF])
PLAIN = np.float32([1, NAN, 2, 3, NAN, 0, -1, INF, -INF, 7, 7])
I32 = np.array([-(2**31), 2**31 - 1, -7, 7, 0, 5], np.int32)
J32 = np.array([-1, 1, 2, -2, 0, 0], np.int32)
I8 = np.array([-128, 127, -100, 100, 1, 0], np.int8)
U64 = np.array([2**64 - 1, 2**63, 10, 0], np.uint64)
V64 = np.array([10, 3, 2**63, 7], np.uint64)

CASES: dict[str, tuple[str, list[Array], dict[str, Any], Callable[..., Array]]] = {
    "Max": ("Max", [ODD, PLAIN], {}, np.maximum),
    "Min": ("Min", [ODD, PLAIN], {}, np.minimum),
    "Relu": ("Relu", [ODD], {}, lambda x: np.where(np.isnan(x), x, np.maximum(x, 0))),
    "Clip": ("Clip", [ODD, np.float32(-1), np.float32(1)], {}, lambda x, a, b: np.clip(x, a, b)),
    "Round": ("Round", [ODD], {}, np.rint),
    "Floor": ("Floor", [ODD], {}, np.floor),
    "Ceil": ("Ceil", [ODD], {}, np.ceil),
    "Sign": ("Sign", [ODD], {}, np.sign),
    "Abs": ("Abs", [ODD], {}, np.abs),
    "Exp": ("Exp", [ODD], {}, np.exp),
    "Log": ("Log", [ODD], {}, np.log),
    "Sqrt": ("Sqrt", [ODD], {}, np.sqrt),
    "Tanh": ("Tanh", [ODD], {}, np.tanh),
    "Sigmoid": ("Sigmoid", [ODD], {}, lambda x: 1 / (1 + np.exp(-x))),
    "Softplus": ("Softplus", [PLAIN], {}, lambda x: np.logaddexp(x, 0)),
    "IsInf": ("IsInf", [ODD], {}, np.isinf),
    "IsInf negative": ("IsInf", [ODD], {"detect_positive": 0}, np.isneginf),
    "IsNaN": ("IsNaN", [ODD], {}, np.isnan),
    "Less": ("Less", [ODD, PLAIN], {}, np.less),
    "GreaterOrEqual": ("GreaterOrEqual", [ODD, PLAIN], {}, np.greater_equal),
    "Equal": ("Equal", [ODD, ODD], {}, np.equal),
    "Mod of floats": ("Mod", [ODD, PLAIN], {"fmod": 1}, np.fmod),
    "Add wraps": ("Add", [I32, I32], {}, np.add),
    "Mul wraps": ("Mul", [I32, I32], {}, np.multiply),
    "Sub of bytes wraps": ("Sub", [I8, I8[::-1].copy()], {}, np.subtract),
    "Neg of the least": ("Neg", [I32], {}, np.negative),
    "Abs of the least": ("Abs", [I8], {}, np.abs),
    "Mod": ("Mod", [I32[:4], J32[:4]], {}, np.mod),
    "Div truncates": ("Div", [I32[1:4], J32[1:4]], {}, lambda a, b: np.trunc(a / b).astype(np.int32)),
    "Div of large": ("Div", [U64, V64], {}, np.floor_divide),
    "Mod of large": ("Mod", [U64, V64], {}, np.mod),
    "Pow of integers": ("Pow", [np.array([2, 3, -2]), np.array([10, 0, 3])], {}, np.power),
    "Shift": ("BitShift", [V64, np.array([1, 70, 63, 64], np.uint64)], {"direction": "RIGHT"},
              lambda a, b: np.array([5, 0, 1, 0], np.uint64)),
    "And": ("And", [np.array([True, False]), np.array([True, True])], {}, np.logical_and),
    "Xor": ("Xor", [np.array([True, False]), np.array([True, True])], {}, np.logical_xor),
    "BitwiseNot": ("BitwiseNot", [I8], {}, np.invert),
}  # fmt: skip

CASTS: dict[str, tuple[Array, type]] = {
    "float to int": (np.float32([-2.7, 2.7, 0.5, -0.5]), np.int32),
    "int to narrow": (I32, np.int8),
    "int to unsigned": (np.array([-1, 300, 7]), np.uint8),
    "float to bool": (np.float32([0, -0.0, NAN, 0.3]), np.bool_),
    "bool to float": (np.array([True, False]), np.float32),
    "to half": (np.float32([65519, 65520, 1e-8, 1.0009766, INF]), np.float16),
    "from half": (np.float16([6e-8, 65504, -0.0, NAN]), np.float32),
    "int64 to float": (np.array([2**53 + 1, -(2**24) - 1]), np.float32),
}


def case(name: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    if name in CASTS:
        x, kind = CASTS[name]
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return model([node("Cast", "x", to=to)], {"x": x}, ["y"]), {"x": x}
    op, inputs, attributes, _ = CASES[name]
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(inputs)}
    return model([node(op, " ".join(feeds), **attributes)], feeds, ["y"], opset=28), feeds


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    models = {name: case(name) for name in (*CASES, *CASTS)}
    for op in ("Div", "Mod"):
        feeds = {"a": I32, "b": J32}
        models[f"{op} by zero"] = model([node(op, "a b")], feeds, ["y"]), feeds
    return native.outputs(models)


@pytest.mark.parametrize("name", CASES)
def test_follows_numpy(name: str, results: dict[str, list[Array]]) -> None:
    _, inputs, _, f = CASES[name]
    with np.errstate(all="ignore"):
        wanted = np.asarray(f(*inputs))
    (got,) = results[name]
    assert got.dtype == wanted.dtype
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, wanted, rtol=5e-7, atol=0)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", CASTS)
def test_cast(name: str, results: dict[str, list[Array]]) -> None:
    x, kind = CASTS[name]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(results[name][0], x.astype(kind))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_by_zero_do_not_trap(op: str, results: dict[str, list[Array]]) -> None:
    """Also the least integer by -1, which traps on some processors; what comes out is 0 by zero."""
    (y,) = results[f"{op} by zero"]
    np.testing.assert_array_equal(y[4:], [0, 0])
    assert y[0] == (-(2**31) if op == "Div" else 0)


def trained(shape: tuple[int, ...], dtype: type = np.float32, statistics: type = np.float32) -> Any:
    rng = np.random.default_rng(len(shape))
    x = (rng.standard_normal(shape) * 3 + 100).astype(dtype)
    feeds = {"x": x}
    for name in "sbmv":
        feeds[name] = rng.uniform(0.5, 2, shape[1]).astype(dtype if name in "sb" else statistics)
    n = node("BatchNormalization", "x s b m v", "y rm rv", training_mode=1, momentum=0.75, epsilon=2.0**-6)
    return model([n], feeds, ["y", "rm", "rv"], {}, {"x": ["n", *shape[1:]]}), feeds


TRAINED = {
    "image": trained((3, 4, 5, 6)),
    "rows": trained((40, 7)),
    "double": trained((3, 4, 9), np.float64, np.float64),
    "half": trained((4, 2, 8, 8), np.float16),
}


@pytest.fixture(scope="module")
def trainings() -> dict[str, list[Array]]:
    return native.outputs(TRAINED)


@pytest.mark.parametrize("name", TRAINED)
def test_batch_normalization_while_training(name: str, trainings: dict[str, list[Array]]) -> None:
    x, s, b, m, v = (a.astype(np.float64) for a in TRAINED[name][1].values())
    axes = (0, *range(2, x.ndim))
    mean, variance = x.mean(axes), x.var(axes)
    column = (-1, *[1] * (x.ndim - 2))
    y = (x - mean.reshape(column)) / np.sqrt(variance.reshape(column) + 2.0**-6)
    y = y * s.reshape(column) + b.reshape(column)
    for got, want in zip(trainings[name], (y, 0.75 * m + 0.25 * mean, 0.75 * v + 0.25 * variance)):
        exact = 1e-10 if name == "double" else 1e-4
        tolerance = 2e-3 if got.dtype == np.float16 else exact
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_large_constants_of_uint32_wrap_within_an_expression() -> None:
    """C makes a plain literal of 2**31 and above a wider, signed type."""
    x, c = np.uint32([1, 4000000000, 7]), np.array(3432918353, np.uint32)
    nodes = [
        node("Mul", "x c", "p", name="p"),
        node("Add", "p c", "q", name="q"),
        node("BitShift", "q s", direction="RIGHT"),
    ]
    m = model(nodes, {"x": x}, ["y"], {"c": c, "s": np.array(16, np.uint32)})
    np.testing.assert_array_equal(native.outputs({"u": (m, {"x": x})})["u"][0], (x * c + c) >> np.uint32(16))
