"""Attention, low-bit products and embeddings of onnxruntime's domain against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import native
import numpy as np
import pytest
from onnx import TensorProto, helper
from single import Array, model, node, reference

from cuvil.codegen.program import Part, render
from cuvil.errors import ModelError, UnsupportedError

RNG = np.random.default_rng(41)
MS = "com.microsoft"


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*entries: Any, kind: type = np.int32) -> Array:
    return np.array(entries, kind)


def u8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def case(
    op: str, inputs: str, values: Mapping[str, Array], outputs: str = "y", fixed: str = "",
    dims: Mapping[str, Sequence[int | str]] | None = None, **attributes: Any,
) -> native.Case:  # fmt: skip
    """A node's model; the inputs named in `fixed` are constants."""
    used = {n: values[n] for n in inputs.split() if n != "-"}
    constants = {n: used.pop(n) for n in fixed.split()}
    names = [n for n in outputs.split() if n != "-"]
    return model([node(op, inputs, outputs, MS, **attributes)], used, names, constants, dims), used


def self_attention() -> dict[str, native.Case]:
    """Two entries of 5 positions of 6 numbers, as 3 heads of 4."""
    v = {
        "x": normal(2, 5, 6), "w": normal(6, 36), "b": normal(36), "past": normal(2, 2, 3, 4, 4),
        "ends": ints(3, 5), "both": ints(4, 5, 1, 2), "sums": ints(3, 5, 0, 3, 8, 0, 5, 10),
        "raw": ints([0, 1, 1, 0, 1], [1, 1, 0, 0, 0]), "raw9": RNG.integers(0, 2, (2, 9)).astype(np.int32),
        "cube": RNG.integers(0, 2, (2, 5, 5)).astype(np.int32), "none": np.zeros((2, 5), np.int32),
        "ab": normal(1, 3, 5, 5), "w2": normal(6, 32), "b2": normal(32),
    }  # fmt: skip
    made = {}
    forms: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("x w b", {}), "no bias": ("x w", {}), "scale": ("x w b", {"scale": 0.3}),
        "causal": ("x w b", {"unidirectional": 1}), "ends": ("x w b ends", {}),
        "both": ("x w b both", {}), "sums": ("x w b sums", {}), "raw": ("x w b raw", {}),
        "cube": ("x w b cube", {}), "all hidden": ("x w b none", {}),
        "raw causal": ("x w b raw", {"unidirectional": 1}),
        "cube causal": ("x w b cube", {"unidirectional": 1}),
        "filter": ("x w b raw", {"mask_filter_value": -1.5}),
        "past": ("x w b - past", {}), "past causal": ("x w b - past", {"unidirectional": 1}),
        "past raw": ("x w b raw9 past", {"unidirectional": 1}), "added": ("x w b - - ab", {}),
        "added raw": ("x w b raw - ab", {}),
        "sizes": ("x w2 b2", {"qkv_hidden_sizes": [12, 12, 8], "num_heads": 2}),
    }  # fmt: skip
    for name, (inputs, attributes) in forms.items():
        outputs = "y p" if "past" in inputs else "y"
        made[f"Attention {name}"] = case("Attention", inputs, v, outputs, **{"num_heads": 3, **attributes})
    symbolic = {"x": ["n", "s", 6], "raw": ["n", "s"], "past": [2, "n", 3, "p", 4], "raw9": ["n", "t"]}
    for name, inputs in (("raw", "x w b raw"), ("past", "x w b raw9 past")):
        dims = {n: symbolic[n] for n in inputs.split() if n in symbolic}
        made[f"Attention symbolic {name}"] = case(
            "Attention", inputs, v, "y p", "w b", dims, num_heads=3, unidirectional=1
        )
    return made


def multi_head() -> dict[str, native.Case]:
    """Two entries of 4 queries and 5 keys, 2 heads of 4, values of 3."""
    v = {
        "q": normal(2, 4, 8), "k": normal(2, 5, 8), "v": normal(2, 5, 6), "b": normal(22),
        "k4": normal(2, 2, 5, 4), "v4": normal(2, 2, 5, 4), "ends": ints(3, 5),
        "raw": ints([0, 1, 1, 0, 1], [1, 1, 0, 0, 0]), "cube": RNG.integers(0, 2, (2, 4, 5)).astype(np.int32),
        "ab": normal(2, 2, 4, 5), "ab1": normal(1, 1, 5, 8), "pk": normal(2, 2, 3, 4),
        "pv": normal(2, 2, 3, 4), "v8": normal(2, 5, 8), "b24": normal(24), "q5": normal(2, 5, 8),
        "raw8": RNG.integers(0, 2, (2, 8)).astype(np.int32),
    }  # fmt: skip
    forms: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("q k v", {}), "bias": ("q k v b", {}), "scale": ("q k v b", {"scale": 0.7}),
        "raw": ("q k v b raw", {}), "cube": ("q k v b cube", {}), "added": ("q k v b - ab", {}),
        "ends": ("q k v - ends", {}),
        "added raw": ("q k v b raw ab", {}), "causal": ("k k v b", {"unidirectional": 1}),
        "cross": ("q k4 v4", {}), "past": ("q k v8 b24 - - pk pv", {}),
        "past causal": ("q5 k v8 - raw8 ab1 pk pv", {"unidirectional": 1}),
    }  # fmt: skip
    made = {
        f"MultiHeadAttention {name}": case(
            "MultiHeadAttention", inputs, v, "y k2 v2" if "pk" in inputs else "y", num_heads=2, **attributes
        )
        for name, (inputs, attributes) in forms.items()
    }
    shown = case("MultiHeadAttention", "q k v b raw ab", v, "y - - qk", num_heads=2)
    scores = helper.make_tensor_value_info("qk", TensorProto.FLOAT, [2, 2, 4, 5])
    shown[0].graph.output[1].CopyFrom(scores)
    dims = {"q": ["n", "s", 8], "k": ["n", "t", 8], "v": ["n", "t", 6], "ends": ["n"]}
    open_ = case("MultiHeadAttention", "q k v - ends", v, "y k2 v2", "", dims, num_heads=2)
    return {**made, "MultiHeadAttention scores": shown, "MultiHeadAttention symbolic": open_}


def grouped() -> dict[str, native.Case]:
    """Two entries, 4 heads of 16 for queries and 2 for keys: a prompt of 6, and one more step."""
    base = {
        "q": normal(2, 6, 64), "k": normal(2, 6, 32), "v": normal(2, 6, 32), "packed": normal(2, 6, 128),
        "wide": normal(2, 6, 256),
        "cos": normal(16, 8), "sin": normal(16, 8), "pk": normal(2, 2, 9, 16), "pv": normal(2, 2, 9, 16),
       
    }  # fmt: skip
    prompt = {**base, "n": ints(5, 5), "t": ints(6)}
    uneven = {**base, "n": ints(3, 5), "t": ints(6)}
    step = {
        **base, "q": normal(2, 1, 64), "k": normal(2, 1, 32), "v": normal(2, 1, 32), "n": ints(9, 6),
        "t": ints(10), "at": ints([2], [7], kind=np.int64), "ab": normal(2, 1, 1, 10),
    }  # fmt: skip
    room = {**step, "n": ints(7, 4), "t": ints(8)}
    forms: dict[str, tuple[dict[str, Array], str, dict[str, Any]]] = {
        "prompt": (prompt, "q k v - - n t", {}),
        "uneven prompt": (uneven, "q k v - - n t", {}),
        "packed": (prompt, "packed - - - - n t", {}),
        "rotary prompt": (prompt, "q k v - - n t cos sin", {"do_rotary": 1}),
        "interleaved": (prompt, "packed - - - - n t cos sin", {"do_rotary": 1, "rotary_interleaved": 1}),
        "half rotary": (prompt, "wide - - - - n t cos sin", {"do_rotary": 1}),
        "window": (prompt, "q k v - - n t", {"local_window_size": 3}),
        "capped": (prompt, "q k v - - n t", {"softcap": 5.0, "scale": 0.3}),
        "step": (step, "q k v pk pv n t", {}),
        "rotary step": (step, "q k v pk pv n t cos sin", {"do_rotary": 1}),
        "placed step": (step, "q k v pk pv n t cos sin at", {"do_rotary": 1}),
        "added step": (step, "q k v pk pv n t - - - ab", {}),
        "step with room": (room, "q k v pk pv n t cos sin", {"do_rotary": 1, "local_window_size": 4}),
    }
    made = {}
    for name, (values, inputs, attributes) in forms.items():
        for fixed in ("t", ""):
            made[f"GroupQueryAttention {name}{' of known length' * bool(fixed)}"] = case(
                "GroupQueryAttention", inputs, values, "y pk2 pv2", fixed,
                num_heads=4, kv_num_heads=2, **attributes,
            )  # fmt: skip
    for name, (values, inputs) in {
        "prompt": (prompt, "q k v - - n t"),
        "step": (step, "q k v pk pv n t"),
    }.items():
        dims = {x: ["n", "s", values[x].shape[2]] for x in "qkv"}
        dims |= {x: ["n", 2, "p", 16] for x in ("pk", "pv") if x in inputs}
        made[f"GroupQueryAttention symbolic {name}"] = case(
            "GroupQueryAttention", inputs, values, "y pk2 pv2", "", dims, num_heads=4, kv_num_heads=2
        )
    return made


def low_bits() -> dict[str, native.Case]:
    made = {}
    for bits in (2, 4, 8):
        for k, block in ((64, 32), (48, 16), (40, 16)):
            blocks = -(-k // block)
            v = {
                "a": normal(2, 3, k), "w": u8(5, blocks, block * bits // 8), "s": normal(5, blocks),
                "z": u8(5, -(-blocks * bits // 8)), "fz": normal(5, blocks), "b": normal(5),
            }  # fmt: skip
            size = {"K": k, "N": 5, "bits": bits, "block_size": block}
            for name, inputs in (("", "a w s"), ("zeros", "a w s z"), ("bias", "a w s z - b")):
                key = f"MatMulNBits {bits} {k} {block} {name}"
                if name == "bias":
                    v |= {n: v[n].reshape(-1) for n in "sz"}
                made[key] = case("MatMulNBits", inputs, v, "y", "w s" + " z" * ("z" in inputs), **size)
            if bits == 4:
                made[f"MatMulNBits {k} float zeros"] = case(
                    "MatMulNBits", "a w s fz", v, "y", "w s fz", **size
                )
    v = {"a": normal(2, 3, 64), "w": u8(5, 2, 16), "s": normal(5, 2)}
    size = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    made["MatMulNBits symbolic"] = case("MatMulNBits", "a w s", v, "y", "w s", {"a": ["n", "s", 64]}, **size)
    made["MatMulNBits of inputs"] = case("MatMulNBits", "a w s", v, **size)
    for bits in (4, 8):
        v = {
            "d": u8(9, 64 * bits // 8),
            "i": ints([1, 8], [0, 3]),
            "s": normal(9, 4),
            "z": u8(9, 4 * bits // 8),
        }
        for inputs in ("d i s", "d i s z"):
            made[f"GatherBlockQuantized {bits} {inputs}"] = case(
                "GatherBlockQuantized", inputs, v, bits=bits, block_size=16
            )
    return made


def embeddings() -> dict[str, native.Case]:
    v = {
        "i": ints([1, 4, 2], [0, 8, 3]), "g": ints([0, 1, 1], [0, 0, 1]), "w": normal(9, 8),
        "p": normal(5, 8),
        "t": normal(2, 8), "gamma": normal(8), "beta": normal(8), "m": ints([1, 1, 0], [1, 0, 0]),
        "at": ints([2, 0, 4]),
    }  # fmt: skip
    q = {n: u8(*v[n].shape) for n in ("w", "p", "t", "gamma", "beta")}
    q |= {n: v[n] for n in ("i", "g", "m")}
    q |= {f"{n}s": np.array(s, np.float32) for n, s in zip("wptgb", (0.03, 0.02, 0.01, 0.05, 0.04))}
    q |= {f"{n}z": np.array(z, np.uint8) for n, z in zip("wptgb", (120, 130, 7, 90, 128))}
    q_inputs = "i g w p t gamma beta m ws ps ts gs bs wz pz tz gz bz"
    return {
        "EmbedLayerNormalization": case("EmbedLayerNormalization", "i g w p t gamma beta m", v, "y n sum"),
        "EmbedLayerNormalization bare": case("EmbedLayerNormalization", "i - w p - gamma beta", v, "y n"),
        "EmbedLayerNormalization placed": case(
            "EmbedLayerNormalization", "i - w p - gamma beta - at", v, "y n", epsilon=0.1
        ),
        "QEmbedLayerNormalization": case("QEmbedLayerNormalization", q_inputs, q, "y n"),
    }


def quantized() -> dict[str, native.Case]:
    v = {
        "x": u8(2, 5, 6), "w": RNG.integers(-128, 128, (6, 24)).astype(np.int8), "b": normal(24),
        "xs": np.array(0.02, np.float32), "ws": np.array(0.01, np.float32), "xz": np.array(117, np.uint8),
        "each": (RNG.random(24) * 0.02).astype(np.float32), "wz": np.array(3, np.int8),
        "raw": ints([0, 1, 1, 0, 1], [1, 1, 0, 0, 0]), "past": normal(2, 2, 2, 3, 4),
    }  # fmt: skip
    return {
        "QAttention": case("QAttention", "x w b xs ws raw xz wz", v, num_heads=2),
        "QAttention columns": case("QAttention", "x w b xs each - xz", v, num_heads=2, unidirectional=1),
        "QAttention past": case("QAttention", "x w b xs ws - xz wz past", v, "y p", num_heads=2),
    }


CASES = {**self_attention(), **multi_head(), **grouped(), **low_bits(), **embeddings(), **quantized()}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**CASES, **FORMULAS})


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    for got, want in zip(results[name], reference(*CASES[name]), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=3e-5)


# --- forms that onnxruntime's CPU provider does not run -------------------------------------------

X, BIAS, SKIP = normal(2, 3, 8), normal(8), normal(2, 3, 8)
QKV = normal(2, 5, 2, 3, 4)
FORMULAS = {
    "packed": case("MultiHeadAttention", "qkv", {"qkv": QKV}, num_heads=2),
    "keys packed": case(
        "MultiHeadAttention",
        "q kv",
        {"q": QKV[:, :, :, 0].reshape(2, 5, 8), "kv": QKV[:, :, :, 1:]},
        num_heads=2,
    ),
    "BiasAdd": case("BiasAdd", "x b s", {"x": X, "b": BIAS, "s": SKIP}),
    "BiasSplitGelu": case("BiasSplitGelu", "x b", {"x": X, "b": BIAS}),
    "GemmFastGelu": case("GemmFastGelu", "x w b", {"x": X, "w": np.eye(8, dtype=np.float32), "b": BIAS}),
}


@pytest.mark.parametrize("name", ["packed", "keys packed"])
def test_packed_projections_are_those_apart(name: str, results: dict[str, list[Array]]) -> None:
    q, k, v = (QKV[:, :, :, n].transpose(0, 2, 1, 3) for n in range(3))
    powers = np.exp(q @ k.transpose(0, 1, 3, 2) / 2)
    y = powers / powers.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(
        results[name][0], y.transpose(0, 2, 1, 3).reshape(2, 5, 8), rtol=1e-5, atol=1e-6
    )


def gelu_by_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_biases(results: dict[str, list[Array]]) -> None:
    np.testing.assert_allclose(results["BiasAdd"][0], X + BIAS + SKIP, rtol=1e-6, atol=1e-6)
    want = gelu_by_tanh(X + BIAS)
    np.testing.assert_allclose(results["GemmFastGelu"][0], want, rtol=1e-5, atol=1e-6)
    split = (X + BIAS)[..., :4] * want[..., 4:]
    np.testing.assert_allclose(results["BiasSplitGelu"][0], split, rtol=1e-2, atol=2e-3)


# --- what is refused, and memory ------------------------------------------------------------------


def test_packed_weights_are_what_is_stored() -> None:
    """A constant of 4 bits per weight stays one."""
    v = {"a": normal(1, 1024), "w": u8(256, 32, 16), "s": normal(256, 32)}
    m, _ = case("MatMulNBits", "a w s", v, "y", "w s", K=1024, N=256, bits=4, block_size=32)
    stored = len(render([Part(native.prepare(m), "case")], "case").weights)
    assert 256 * 32 * (16 + 4) <= stored < 256 * 32 * (16 + 4) + 1024


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (case("Attention", "x w", {"x": X, "w": normal(8, 24)}, num_heads=2, do_rotary=1), "do_rotary"),
        (
            case("Attention", "x w - m", {"x": X, "w": normal(8, 24), "m": np.ones((2, 1, 3, 3), np.int32)},
                 num_heads=2),
            "mask of rank 4",
        ),
        (
            case("Attention", "x w - m", {"x": X, "w": normal(8, 24), "m": ints(1, 2, 3)}, num_heads=2),
            "2 B or 3 B",
        ),
        (case("MatMulNBits", "a w s", {"a": X, "w": u8(5, 1, 6), "s": normal(5, 1)},
              K=8, N=5, bits=3, block_size=16), "3 bits"),
        (case("MatMulNBits", "a w s", {"a": X, "w": u8(5, 1, 7), "s": normal(5, 1)},
              K=8, N=5, bits=4, block_size=16), "B must have shape"),
        (case("MultiHeadAttention", "x", {"x": X}, num_heads=2), "key and value are missing"),
        (case("MultiHeadAttention", "x x x b", {"x": X, "b": normal(20)}, num_heads=2), "'bias'"),
        (case("Attention", "x w", {"x": X, "w": normal(8, 24)}, num_heads=3), "multiple of 3 heads"),
        (case("Attention", "x w", {"x": X, "w": normal(8, 20)}, num_heads=2, qkv_hidden_sizes=[8, 8, 8]),
         "20\\), not \\(2, 3, 24"),
        (
            case("GroupQueryAttention", "x k k - - n t",
                 {"x": X, "k": X[:, :, :4], "n": ints(2), "t": ints(3)}, num_heads=2, kv_num_heads=1),
            "'seqlens_k'",
        ),
        (
            case("EmbedLayerNormalization", "i - w w - g g",
                 {"i": ints([1], [0]), "w": normal(2, 8), "g": normal(4)}),
            "'gamma'",
        ),
    ],
)  # fmt: skip
def test_refused(refused: native.Case, message: str) -> None:
    with pytest.raises((UnsupportedError, ModelError), match=message):
        native.prepare(refused[0])
