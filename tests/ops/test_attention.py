"""Attention of symbolic lengths against a plain formula, and steps against the whole."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from single import Array, model, node

RNG = np.random.default_rng(13)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def plain(q: Array, k: Array, v: Array, seen: Array, scale: float | None = None) -> Array:
    """softmax(q k^T scale) v over the keys `seen`, [B, H, S, D]."""
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * (scale or q.shape[3] ** -0.5)
    scores = np.where(seen, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


Q, K, V = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 6)
PAST_K, PAST_V = normal(2, 2, 3, 8), normal(2, 2, 3, 6)
MASK = RNG.integers(0, 2, (5, 7)).astype(bool) | np.eye(5, 7, dtype=bool)
DIMS = {
    "q": ["n", 4, "s", 8], "k": ["n", 2, "t", 8], "v": ["n", 2, "t", 6], "m": ["s", "t"],
    "pk": ["n", 2, "p", 8], "pv": ["n", 2, "p", 6],
}  # fmt: skip
ROWS, COLUMNS = np.arange(5)[:, None], np.arange(10)


def joined(a: Array, b: Array) -> Array:
    return np.concatenate([a, b], 2)


CASES: dict[str, tuple[str, dict[str, Any], Array]] = {
    "cross": ("q k v", {}, plain(Q, K, V, np.ones((5, 7), bool))),
    "scaled": ("q k v", {"scale": 0.3}, plain(Q, K, V, np.ones((5, 7), bool), 0.3)),
    "causal": ("q k v", {"is_causal": 1}, plain(Q, K, V, COLUMNS[:7] <= ROWS)),
    "masked": ("q k v m", {}, plain(Q, K, V, MASK)),
    "cached": ("q k v - pk pv", {}, plain(Q, joined(PAST_K, K), joined(PAST_V, V), np.ones((5, 10), bool))),
    "cached, causal": (
        "q k v - pk pv", {"is_causal": 1}, plain(Q, joined(PAST_K, K), joined(PAST_V, V), COLUMNS <= ROWS + 3)
    ),
}  # fmt: skip
VALUES = {"q": Q, "k": K, "v": V, "m": MASK, "pk": PAST_K, "pv": PAST_V}


def case(name: str, symbolic: bool) -> native.Case:
    inputs, attributes, _ = CASES[name]
    feeds = {n: VALUES[n] for n in inputs.split() if n != "-"}
    outputs = "y kk vv" if "cached" in name else "y"
    dims = {n: DIMS[n] for n in feeds} if symbolic else None
    m = model([node("Attention", inputs, outputs, **attributes)], feeds, outputs.split(), {}, dims, 24)
    return m, feeds


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({f"{n} {s}": case(n, s) for n in CASES for s in (False, True)})


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, symbolic: bool, results: dict[str, list[Array]]) -> None:
    got = results[f"{name} {symbolic}"]
    np.testing.assert_allclose(got[0], CASES[name][2], rtol=1e-5, atol=1e-6)
    if "cached" in name:
        np.testing.assert_array_equal(got[1], joined(PAST_K, K))
        np.testing.assert_array_equal(got[2], joined(PAST_V, V))
