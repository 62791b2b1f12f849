"""Random numbers: the generator's published values, the distributions' moments, masks and determinism."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import native
import numpy as np
import onnx
import pytest
from single import Array, model, node

from cuvil.errors import ModelError

SIZE = 20000
F16, F64, BF16 = onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16
X = np.random.default_rng(3).standard_normal((100, 200)).astype(np.float32)
PROBABILITIES = np.repeat(np.float32([0, 0.1, 0.5, 0.9, 1]), 4000).reshape(5, 4000)
NONE = -np.inf
LOGITS = np.float32([[*np.log([1, 2, 3, 4])], [np.log(8), NONE, 0, 0], [-20, NONE, NONE, NONE]])
KEPT = np.bool_([True])


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator in plain integers."""
    mask, found = (1 << 64) - 1, []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        found.append(z ^ (z >> 31))
    return found


def made(op: str, inputs: dict[str, Array], outputs: str = "y", constants: Any = None, **attrs: Any) -> Any:
    names = " ".join([*inputs, *(constants or {})])
    return model([node(op, names, outputs, **attrs)], inputs, outputs.split(), constants, None, 22), inputs


def drop(ratio: float | None, training: bool, x: Array = X, at_run_time: bool = False, **attrs: Any) -> Any:
    flags = {"r": np.array(0.5 if ratio is None else ratio, x.dtype), "t": np.array(training)}
    given = {"x": x, **(flags if at_run_time else {})}
    return made("Dropout", given, "y m", None if at_run_time else flags, **attrs)


def twins() -> Any:
    """Three nodes, two of them with equal seeds, and one that depends on an input's shape."""
    nodes = [
        node("RandomUniform", "", "a", shape=[SIZE], name="a"),
        node("RandomUniform", "", "b", shape=[SIZE], name="b"),
        node("RandomUniform", "", "s", shape=[SIZE], seed=2.0, name="s"),
        node("RandomUniformLike", "x", "t", seed=2.0, name="t"),
    ]
    feeds = {"x": X.reshape(-1)}
    return model(nodes, feeds, ["a", "b", "s", "t"], None, {"x": ["n"]}), feeds


CASES: dict[str, Any] = {
    "uniform": made("RandomUniform", {}, shape=[SIZE], seed=1.0),
    "uniform, double": made("RandomUniform", {}, shape=[10, SIZE // 10], seed=1.0, dtype=F64),
    "uniform, half": made("RandomUniform", {}, shape=[SIZE], dtype=F16, low=-2.0, high=6.0),
    "uniform like": made(
        "RandomUniformLike", {"x": X.astype(np.int32)}, dtype=BF16, seed=1.0, low=-3.0, high=-1.0),
    "normal": made("RandomNormal", {}, shape=[4, SIZE // 4], mean=3.0, scale=2.0),
    "normal, double": made("RandomNormal", {}, shape=[SIZE], mean=-1.0, scale=0.5, dtype=F64),
    "normal like": made("RandomNormalLike", {"x": X.astype(np.float16)}, seed=0.5),
    "bernoulli": made("Bernoulli", {"x": PROBABILITIES}),
    "bernoulli of doubles": made("Bernoulli", {"x": PROBABILITIES.astype(np.float64)}, dtype=9, seed=5.0),
    "multinomial": made("Multinomial", {"x": LOGITS}, sample_size=8000),
    "multinomial of halves": made("Multinomial", {"x": LOGITS.astype(np.float16)}, sample_size=8000, dtype=7),
    "twins": twins(),
    "drop": drop(0.25, True),
    "drop by default": (
        model([node("Dropout", "x - t", "y m")], {"x": X}, ["y", "m"], {"t": np.array(True)}), {"x": X}),
    "drop at run time": drop(0.75, True, at_run_time=True, seed=9),
    "not now": drop(0.75, False, at_run_time=True),
    "drop nothing": drop(0.0, True),
    "drop halves": drop(0.25, True, X.astype(ml_dtypes.bfloat16)),
    "not training": drop(0.9, False),
}  # fmt: skip


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs(CASES)


def test_numbers_are_those_of_the_published_generator(results: dict[str, list[Array]]) -> None:
    assert splitmix64(1234567, 2) == [6457827717110365317, 3203168211198807973]
    bits = splitmix64(int(np.float32(1).view(np.uint32)), SIZE)
    np.testing.assert_array_equal(results["uniform"][0], np.float32([b >> 40 for b in bits]) * 2.0**-24)
    small = results["uniform like"][0].reshape(-1)
    np.testing.assert_array_equal(small, (results["uniform"][0] * 2 - 3).astype(ml_dtypes.bfloat16))
    doubles = np.float64([b >> 11 for b in bits]) * 2.0**-53
    np.testing.assert_array_equal(results["uniform, double"][0].reshape(-1), doubles)


@pytest.mark.parametrize(
    ("name", "dtype", "low", "high"),
    [("uniform", "float32", 0, 1), ("uniform, double", "float64", 0, 1), ("uniform, half", "float16", -2, 6)],
)  # fmt: skip
def test_uniform(name: str, dtype: str, low: float, high: float, results: dict[str, list[Array]]) -> None:
    (y,) = results[name]
    assert str(y.dtype) == dtype
    y = y.astype(np.float64).reshape(-1)
    assert y.min() >= low and y.max() <= high
    counts, _ = np.histogram(y, 20, (low, high))
    assert ((counts - SIZE / 20) ** 2 / (SIZE / 20)).sum() < 45  # chi square, 19 degrees: p = 0.0007
    assert abs(np.corrcoef(y[:-1], y[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("name", "mean", "scale"), [("normal", 3, 2), ("normal, double", -1, 0.5), ("normal like", 0, 1)]
)
def test_normal(name: str, mean: float, scale: float, results: dict[str, list[Array]]) -> None:
    z = (results[name][0].astype(np.float64).reshape(-1) - mean) / scale
    assert abs(z.mean()) < 0.03 and abs(z.std() - 1) < 0.02
    for edge, share in ((-1, 0.158655), (0, 0.5), (1, 0.841345), (2, 0.977250)):
        assert abs((z < edge).mean() - share) < 0.012
    assert abs(np.corrcoef(z[::2], z[1::2])[0, 1]) < 0.04


@pytest.mark.parametrize("name", ["bernoulli", "bernoulli of doubles"])
def test_bernoulli(name: str, results: dict[str, list[Array]]) -> None:
    (y,) = results[name]
    assert y.dtype == (np.float32 if name == "bernoulli" else bool)
    shares = y.astype(np.float64).mean(1)
    assert shares[0] == 0 and shares[4] == 1
    np.testing.assert_allclose(shares[1:4], PROBABILITIES[1:4, 0], atol=0.025)


@pytest.mark.parametrize("name", ["multinomial", "multinomial of halves"])
def test_multinomial(name: str, results: dict[str, list[Array]]) -> None:
    (y,) = results[name]
    assert y.shape == (3, 8000) and y.dtype == (np.int32 if name == "multinomial" else np.int64)
    shares = np.stack([np.bincount(row, minlength=4) / 8000 for row in y])
    wanted = np.float64([[0.1, 0.2, 0.3, 0.4], [0.8, 0, 0.1, 0.1], [1, 0, 0, 0]])
    np.testing.assert_allclose(shares, wanted, atol=0.02)
    assert (shares[wanted == 0] == 0).all()


def test_streams_differ_unless_their_seeds_are_equal(results: dict[str, list[Array]]) -> None:
    a, b, s, t = results["twins"]
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03 and abs(np.corrcoef(a, s)[0, 1]) < 0.03
    np.testing.assert_array_equal(s, t)


def test_a_build_is_reproducible(results: dict[str, list[Array]]) -> None:
    again = native.outputs({"again": CASES["twins"]}, opt_level="2")["again"]
    for got, before in zip(again, results["twins"]):
        np.testing.assert_array_equal(got, before)


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("drop", 0.25), ("drop by default", 0.5), ("drop at run time", 0.75), ("drop halves", 0.25)],
)
def test_dropout_while_training(name: str, ratio: float, results: dict[str, list[Array]]) -> None:
    y, mask = results[name]
    x = X.astype(y.dtype).astype(np.float32)
    assert mask.dtype == bool and abs(mask.mean() - (1 - ratio)) < 0.02
    wanted = np.where(mask, x * np.float32(1 / (1 - ratio)), 0).astype(y.dtype)
    np.testing.assert_allclose(y.astype(np.float32), wanted.astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("name", ["drop nothing", "not training", "not now"])
def test_dropout_that_drops_nothing_is_exact(name: str, results: dict[str, list[Array]]) -> None:
    y, mask = results[name]
    np.testing.assert_array_equal(y, X)
    assert mask.all()


def test_integers_are_refused() -> None:
    with pytest.raises(ModelError):
        native.prepare(made("RandomNormalLike", {"x": X.astype(np.int32)})[0])
