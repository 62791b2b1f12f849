"""Features and linear models of ``ai.onnx.ml`` against onnxruntime, and the specification elsewhere."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from classic import Case, case, same
from single import Array

from cuvil.errors import ModelError

RNG = np.random.default_rng(21)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def floats(count: int) -> list[float]:
    return [float(v) for v in normal(count)]


X = normal(6, 4)
ROW = np.array([1.0, np.nan, 3.0, 0.5], np.float32)
HOLES = np.where(RNG.random((6, 4)) < 0.3, np.nan, X).astype(np.float32)
WHOLE = RNG.integers(-3, 4, (6, 4))


def features() -> dict[str, Case]:
    indices = np.array([[3, 0, 3]])
    found = {
        "picked": case("ArrayFeatureExtractor", {"x": X, "i": indices}),
        "picked of a vector": case("ArrayFeatureExtractor", {"x": X[0], "i": indices[0]}),
        "picked of a cube": case("ArrayFeatureExtractor", {"x": normal(2, 3, 4), "i": np.array([1])}),
        "picked integers": case("ArrayFeatureExtractor", {"x": WHOLE, "i": indices}),
        "above": case("Binarizer", {"x": X}, threshold=0.25),
        "above zero": case("Binarizer", {"x": np.float32([0, -0.0, 1e-30, -1])}),
        "scaled": case("Scaler", {"x": X}, offset=floats(4), scale=floats(4)),
        "scaled alike": case("Scaler", {"x": normal(2, 3, 4)}, offset=[0.5], scale=[3.0]),
        "scaled integers": case("Scaler", {"x": WHOLE}, offset=floats(4), scale=floats(4)),
        "scaled doubles": case("Scaler", {"x": X.astype(np.float64)}, offset=floats(4), scale=floats(4)),
        "scaled vector": case("Scaler", {"x": X[1]}, offset=floats(4), scale=floats(4)),
        "imputed": case(
            "Imputer", {"x": HOLES}, imputed_value_floats=floats(4), replaced_value_float=float("nan")
        ),
        "imputed alike": case(
            "Imputer", {"x": ROW}, imputed_value_floats=[7.5], replaced_value_float=float("nan")
        ),
        "imputed number": case("Imputer", {"x": ROW}, imputed_value_floats=[7.5], replaced_value_float=3.0),
        "imputed integers": case(
            "Imputer", {"x": WHOLE}, imputed_value_int64s=[9, 8, 7, 6], replaced_value_int64=-1
        ),
        "side by side": case(
            "FeatureVectorizer", {"a": X, "b": normal(6, 2), "c": normal(6, 3)}, inputdimensions=[4, 3, 1]
        ),
        "side by side, vectors": case("FeatureVectorizer", {"a": X[0], "b": X[1]}, inputdimensions=[4, 2]),
        "side by side, integers": case("FeatureVectorizer", {"a": WHOLE}, inputdimensions=[4]),
    }
    rows = np.float32([[1, -5, 2], [0, 0, 0], [-1, -2, -3], [0, 0, 4]])
    for norm in ("MAX", "L1", "L2"):
        found[f"norm {norm}"] = case("Normalizer", {"x": rows}, norm=norm)
        found[f"norm {norm} of integers"] = case("Normalizer", {"x": WHOLE}, norm=norm)
    found["norm of a vector"] = case("Normalizer", {"x": X[2]}, norm="L2")
    return found


WEIGHTS, SHIFTS = floats(12), floats(3)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def regressor(targets: int, x: Array = X, **attributes: Any) -> Case:
    base = {"coefficients": WEIGHTS[: 4 * targets], "intercepts": SHIFTS[:targets], "targets": targets}
    return case("LinearRegressor", {"x": x}, **{**base, **attributes})


def classifier(count: int, labels: list[int], x: Array = X, **attributes: Any) -> Case:
    base = {"coefficients": WEIGHTS[: 4 * count], "intercepts": SHIFTS[:count], "classlabels_ints": labels}
    return case("LinearClassifier", {"x": x}, "label scores", **{**base, **attributes})


def models() -> dict[str, Case]:
    found = {
        "regression": regressor(1),
        "regression of targets": regressor(3),
        "regression without intercepts": regressor(2, intercepts=None),
        "regression of a vector": regressor(2, X[0]),
        "one score": classifier(1, [7, 4]),
        "two rows LOGISTIC": classifier(2, [7, 4], post_transform="LOGISTIC"),
        "integers": classifier(3, [5, 2, 9], WHOLE),
        "doubles": classifier(3, [5, 2, 9], X.astype(np.float64)),
    }
    inside = {"coefficients": [0.01 * w for w in WEIGHTS], "intercepts": [0.2, 0.5, 0.8]}
    for transform in TRANSFORMS:
        found[f"classes {transform}"] = classifier(3, [5, 2, 9], post_transform=transform, **inside)
        found[f"targets {transform}"] = regressor(3, post_transform=transform, **inside)
    return found


CASES = {**features(), **models()}


def spec_cases() -> dict[str, Case]:
    """Where onnxruntime has another answer than the specification, or none."""
    found = {f"one score {t}": classifier(1, [7, 4], post_transform=t) for t in ("LOGISTIC", "SOFTMAX")}
    found["zeros"] = classifier(
        3, [0, 1, 2], post_transform="SOFTMAX_ZERO", coefficients=[0.0] * 12, intercepts=[0.0] * 3
    )
    found["without intercepts"] = classifier(3, [0, 1, 2], intercepts=None)
    found["regression of doubles"] = regressor(1, X.astype(np.float64))
    found["one target LOGISTIC"] = regressor(1, post_transform="LOGISTIC")
    found["imputed doubles"] = case(
        "Imputer", {"x": HOLES.astype(np.float64)}, imputed_value_floats=[0.5],
        replaced_value_float=float("nan"),
    )  # fmt: skip
    found["above, integers"] = case("Binarizer", {"x": WHOLE}, threshold=0.5)
    found["symbolic"] = case("Normalizer", {"x": X}, dims={"x": ["n", "f"]}, norm="L1")
    return found


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**CASES, **spec_cases()})


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    same(CASES, name, results[name], 1e-5)


def scores(count: int) -> Array:
    return X @ np.reshape(WEIGHTS[: 4 * count], (count, 4)).T.astype(np.float32) + SHIFTS[:count]


def test_one_score_is_transformed(results: dict[str, list[Array]]) -> None:
    s = scores(1)[:, 0]
    for transform, wide in (("LOGISTIC", 1.0), ("SOFTMAX", 2.0)):
        label, z = results[f"one score {transform}"]
        np.testing.assert_array_equal(label, np.where(s > 0, 4, 7))
        np.testing.assert_allclose(z[:, 1], 1 / (1 + np.exp(-wide * s)), rtol=1e-5)
        np.testing.assert_allclose(z.sum(1), 1, rtol=1e-6)
    plain = results["regression"][0]
    np.testing.assert_allclose(results["one target LOGISTIC"][0], 1 / (1 + np.exp(-plain)), rtol=1e-5)


def test_zeros_are_halves(results: dict[str, list[Array]]) -> None:
    label, z = results["zeros"]
    assert (z == 0.5).all() and (label == 0).all()


def test_intercepts_may_be_omitted(results: dict[str, list[Array]]) -> None:
    label, z = results["without intercepts"]
    wanted = scores(3) - SHIFTS
    np.testing.assert_allclose(z, wanted, atol=1e-5)
    np.testing.assert_array_equal(label, wanted.argmax(1))


def test_types(results: dict[str, list[Array]]) -> None:
    (doubles,) = results["regression of doubles"]
    assert doubles.dtype == np.float32
    np.testing.assert_allclose(doubles, results["regression"][0], rtol=1e-6)
    np.testing.assert_array_equal(
        results["imputed doubles"][0], np.nan_to_num(HOLES, nan=0.5).astype(np.float64)
    )
    np.testing.assert_array_equal(results["above, integers"][0], (WHOLE > 0.5).astype(np.int64))
    np.testing.assert_allclose(results["symbolic"][0], X / np.abs(X).sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (regressor(1, coefficients=floats(5)), "5 entries, 1 rows of 4 need 4"),
        (regressor(3, coefficients=floats(5)), "do not make 3 rows"),
        (regressor(2, intercepts=[1.0, 2.0, 3.0]), "intercepts has 3 entries, 2 are needed"),
        (classifier(3, [1, 2]), "3 rows of coefficients do not fit 2 classes"),
        (classifier(1, [1]), "1 rows of coefficients do not fit 1 classes"),
        (classifier(2, [1, 2], classlabels_strings=["a", "b"]), "exactly one of classlabels_ints"),
        (regressor(1, normal(1, 2, 4)), "rank 3"),
        (regressor(1, post_transform="TANH"), "TANH"),
        (case("Scaler", {"x": X}, offset=[1.0, 2.0], scale=[1.0]), "offset has 2 entries, 1 or 4"),
        (case("Normalizer", {"x": X}, norm="L3"), "L3"),
        (case("Imputer", {"x": X}), "exactly one of imputed_value_floats"),
        (case("FeatureVectorizer", {"x": X}, inputdimensions=[4, 4]), "2 entries for 1 inputs"),
    ],
)
def test_refusals(made: Case, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        native.prepare(made[0])
