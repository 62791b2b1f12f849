"""Operators of onnxruntime's domain against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import native
import numpy as np
import onnx
import pytest
from single import Array, model, node, reference

Case = tuple[onnx.ModelProto, dict[str, Array]]

RNG = np.random.default_rng(6)
MS = "com.microsoft"


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def f(x: float) -> Array:
    return np.array(x, np.float32)


def z8(x: int, kind: type = np.uint8) -> Array:
    return np.array(x, kind)


def case(
    op: str, inputs: str, feeds: Mapping[str, Array], outputs: str = "y", domain: str = MS,
    constants: Mapping[str, Array] | None = None, **attributes: Any,
) -> Case:  # fmt: skip
    names = [n for n in outputs.split() if n != "-"]
    m = model([node(op, inputs, outputs, domain=domain, **attributes)], feeds, names, constants)
    return m, dict(feeds)


def qlinear(x: Array, kind: type = np.uint8) -> dict[str, Array]:
    """A quantized tensor with scale and zero point, and those of the output."""
    return {"x": x, "xs": f(0.0311), "xz": z8(7, kind), "ys": f(0.0517), "yz": z8(100, kind)}


def floats() -> dict[str, Case]:
    x = normal(2, 5, 8)
    row = {"g": normal(8), "b": normal(8), "bias": normal(8)}
    skip = {"x": x, "s": normal(2, 5, 8)}
    conv = {"x": normal(1, 3, 6, 6), "w": normal(4, 3, 3, 3), "b": normal(4)}
    found = {
        "Gelu": case("Gelu", "x", {"x": x}),
        "FastGelu": case("FastGelu", "x", {"x": x}),
        "FastGelu with a bias": case("FastGelu", "x b", {"x": x, "b": row["b"]}),
        "BiasGelu": case("BiasGelu", "x b", {"x": x, "b": row["b"]}),
        "QuickGelu": case("QuickGelu", "x", {"x": x}, alpha=1.5),
        "FusedMatMul": case(
            "FusedMatMul", "a b", {"a": normal(2, 4, 3), "b": normal(2, 4, 5)}, transA=1, alpha=0.5
        ),
        "FusedMatMul B": case("FusedMatMul", "a b", {"a": normal(2, 3, 4), "b": normal(5, 4)}, transB=1),
        "FusedMatMul batch": case(
            "FusedMatMul", "a b", {"a": normal(3, 2, 4), "b": normal(2, 4, 5)}, transBatchA=1
        ),
        "FusedConv Relu": case("FusedConv", "x w b", conv, activation="Relu"),
        "FusedConv sum Clip": case(
            "FusedConv",
            "x w b z",
            {**conv, "z": normal(1, 4, 6, 6)},
            activation="Clip",
            activation_params=[-0.5, 0.7],
            pads=[1, 1, 1, 1],
        ),
        "FusedConv LeakyRelu": case(
            "FusedConv", "x w", {k: conv[k] for k in "xw"}, activation="LeakyRelu", activation_params=[0.3]
        ),
        "FusedGemm": case(
            "FusedGemm",
            "a b c",
            {"a": normal(3, 4), "b": normal(4, 5), "c": normal(5)},
            activation="LeakyRelu",
            activation_alpha=0.2,
        ),
        "SkipLayerNormalization": case(
            "SkipLayerNormalization", "x s g b bias", {**skip, **row}, "y - - sum", epsilon=1e-4
        ),
        "SkipLayerNormalization plain": case("SkipLayerNormalization", "x s g", {**skip, "g": row["g"]}),
        "SkipSimplified": case(
            "SkipSimplifiedLayerNormalization",
            "x s g bias",
            {**skip, "g": row["g"], "bias": row["bias"]},
            "y - - sum",
        ),
        "RotaryEmbedding": case(
            "RotaryEmbedding",
            "x p c s",
            {
                "x": normal(2, 4, 16),
                "p": np.array([[0, 1, 2, 3], [2, 3, 4, 5]]),
                "c": normal(8, 4),
                "s": normal(8, 4),
            },
        ),
        "RotaryEmbedding interleaved": case(
            "RotaryEmbedding",
            "x p c s",
            {"x": normal(2, 2, 4, 8), "p": np.array([3]), "c": normal(8, 4), "s": normal(8, 4)},
            interleaved=1,
        ),
    }
    product = {"a": u8(3, 6), "b": i8(6, 4), "as": f(0.02), "bs": normal(4) ** 2}
    zeros = {"az": z8(120), "bz": np.array([1, -2, 3, 0], np.int8), "bias": normal(4)}
    found["MatMulIntegerToFloat"] = case("MatMulIntegerToFloat", "a b as bs az bz bias", {**product, **zeros})
    found["MatMulIntegerToFloat plain"] = case(
        "MatMulIntegerToFloat", "a b as bs", {**product, "bs": f(0.01)}
    )
    dynamic = {"a": normal(3, 6), "b": u8(6, 4), "bs": f(0.02), "bz": z8(128), "bias": normal(4)}
    found["DynamicQuantizeMatMul"] = case("DynamicQuantizeMatMul", "a b bs bz bias", dynamic)
    gemm = {"a": u8(3, 6), "as": f(0.02), "az": z8(3), "b": i8(4, 6), "bs": f(0.01), "bz": z8(-4, np.int8)}
    gemm["c"] = RNG.integers(-900, 900, 4).astype(np.int32)
    found["QGemm float"] = case("QGemm", "a as az b bs bz c", gemm, transB=1, alpha=1.5)
    return found


def eight_bit() -> dict[str, Case]:
    found: dict[str, Case] = {}
    two = {"a": u8(2, 1, 5), "as": f(0.0213), "az": z8(3), "b": u8(3, 5), "bs": f(0.0117), "bz": z8(90)}
    two |= {"ys": f(0.0187), "yz": z8(5)}
    for op in ("QLinearAdd", "QLinearMul"):
        found[op] = case(op, "a as az b bs bz ys yz", two)
    signed = {**two, "a": i8(2, 3, 5), "b": i8(2, 3, 5)}
    signed |= {"az": z8(3, np.int8), "bz": z8(-9, np.int8), "yz": z8(-5, np.int8)}
    found["QLinearAdd int8"] = case("QLinearAdd", "a as az b bs bz ys yz", signed)
    unary = "x xs xz ys yz"
    for kind, make in ((np.uint8, u8), (np.int8, i8)):
        values = qlinear(make(2, 3, 6, 4), kind)
        scales = {k: values[k] for k in ("xs", "xz", "ys", "yz")}
        fixed = {"constants": scales}
        name = np.dtype(kind).name
        data = {"x": values["x"]}
        found[f"QLinearLeakyRelu {name}"] = case("QLinearLeakyRelu", unary, data, alpha=0.2, **fixed)
        sigmoid = {**scales, "ys": f(1 / 256), "yz": z8(0 if kind is np.uint8 else -128, kind)}
        found[f"QLinearSigmoid {name}"] = case("QLinearSigmoid", unary, data, constants=sigmoid)
        found[f"QLinearSoftmax {name}"] = case(
            "QLinearSoftmax", unary, data, constants=sigmoid, axis=2, opset=13
        )
        found[f"QLinearGlobalAveragePool {name}"] = case("QLinearGlobalAveragePool", unary, data, **fixed)
        found[f"QLinearAveragePool {name}"] = case(
            "QLinearAveragePool", unary, data, kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 0, 1], **fixed
        )
    old = {"xs": f(0.03), "xz": z8(7), "ys": f(1 / 256), "yz": z8(0)}
    found["QLinearSoftmax old"] = case(
        "QLinearSoftmax", unary, {"x": u8(3, 2, 4)}, constants=old, axis=1, opset=9
    )
    last = qlinear(u8(2, 4, 5, 3))
    found["QLinearGlobalAveragePool last"] = case("QLinearGlobalAveragePool", unary, last, channels_last=1)
    parts = {
        "ys": f(0.03),
        "yz": z8(7),
        "a": u8(2, 3),
        "as": f(0.03),
        "az": z8(7),
        "b": u8(2, 4),
        "bs": f(0.05),
        "bz": z8(90),
    }
    scales = {k: parts[k] for k in parts if k not in "ab"}
    found["QLinearConcat"] = case(
        "QLinearConcat", "ys yz a as az b bs bz", {k: parts[k] for k in "ab"}, constants=scales, axis=1
    )
    gemm = {"a": u8(3, 6), "as": f(0.02), "az": z8(3), "b": i8(6, 4), "bs": f(0.01), "bz": z8(-4, np.int8)}
    gemm |= {"c": RNG.integers(-900, 900, 4).astype(np.int32), "ys": f(0.02), "yz": z8(110)}
    found["QGemm"] = case("QGemm", "a as az b bs bz c ys yz", gemm)
    wide = {"x": normal(3, 4) * 100, "s": f(0.01), "z": z8(3, np.int16)}
    found["QuantizeLinear int16"] = case("QuantizeLinear", "x s z", wide)
    return found


EXACT = eight_bit()
CLOSE = floats()


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**EXACT, **CLOSE})


@pytest.mark.parametrize("name", CLOSE)
def test_floats_agree(name: str, results: dict[str, list[Array]]) -> None:
    for got, want in zip(results[name], reference(*CLOSE[name]), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_integers_agree(name: str, results: dict[str, list[Array]]) -> None:
    """Equal but for results that lie, to rounding, half way between two integers."""
    (wanted,) = reference(*EXACT[name])
    (got,) = results[name]
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    off = np.abs(got.astype(int) - wanted.astype(int))
    assert off.max() <= 1 and (off != 0).mean() <= 0.02
