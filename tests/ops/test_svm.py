"""Support vector machines against onnxruntime, and the specification where they differ."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from classic import Case, case, same
from single import Array

from cuvil.errors import ModelError

RNG = np.random.default_rng(31)
KERNELS = {
    "LINEAR": [0.0, 0.0, 0.0],
    "POLY": [0.5, 0.25, 3.0],
    "RBF": [0.4, 0.0, 0.0],
    "SIGMOID": [0.3, -0.2, 0.0],
}


def floats(count: int) -> list[float]:
    return [float(v) for v in RNG.standard_normal(count).astype(np.float32)]


X = RNG.standard_normal((20, 3)).astype(np.float32)


def regressor(kernel: str, count: int = 5, x: Array = X, **attributes: Any) -> Case:
    base = {
        "kernel_type": kernel, "kernel_params": KERNELS[kernel], "n_supports": count,
        "support_vectors": floats(3 * count), "coefficients": floats(count or 3), "rho": [0.3],
    }  # fmt: skip
    return case("SVMRegressor", {"x": x}, **{**base, **attributes})


def classifier(kernel: str, per_class: list[int], x: Array = X, **attributes: Any) -> Case:
    classes, count = len(per_class), sum(per_class)
    pairs = classes * (classes - 1) // 2
    base = {
        "kernel_type": kernel, "kernel_params": KERNELS[kernel], "vectors_per_class": per_class,
        "support_vectors": floats(3 * count), "coefficients": floats(count * (classes - 1)),
        "rho": floats(pairs), "classlabels_ints": [11, 5, 7, 2][:classes],
    }  # fmt: skip
    return case("SVMClassifier", {"x": x}, "label scores", **{**base, **attributes})


def with_probabilities(pairs: int) -> dict[str, list[float]]:
    return {"prob_a": [-1.0 - abs(v) for v in floats(pairs)], "prob_b": floats(pairs)}


def cases() -> dict[str, Case]:
    found = {}
    for kernel in KERNELS:
        found[f"regression {kernel}"] = regressor(kernel)
        found[f"classes {kernel}"] = classifier(kernel, [2, 3, 1])
    found["regression POLY 2.5"] = regressor(
        "POLY", kernel_params=[0.5, 9.0, 2.5], support_vectors=[abs(v) for v in floats(15)], x=np.abs(X)
    )
    found["linear regression"] = regressor("LINEAR", 0, support_vectors=None)
    found["one class"] = regressor("RBF", 6, one_class=1)
    found["two classes"] = classifier("RBF", [3, 2])
    found["four classes"] = classifier("POLY", [2, 0, 3, 1])
    found["integers"] = classifier("RBF", [2, 2, 2], RNG.integers(-2, 3, (20, 3)))
    found["vector"] = classifier("RBF", [2, 2, 2], X[0])
    for classes in (2, 3, 4):
        extra = with_probabilities(classes * (classes - 1) // 2)
        found[f"probabilities of {classes}"] = classifier("RBF", [3] * classes, **extra)
    found["probabilities SOFTMAX"] = classifier(
        "RBF", [2, 2, 2], post_transform="SOFTMAX", **with_probabilities(3)
    )
    found["duels LOGISTIC"] = classifier("RBF", [2, 2, 2], post_transform="LOGISTIC")
    linear = {"support_vectors": None, "vectors_per_class": None, "coefficients": floats(9), "rho": [0.2]}
    found["linear classes"] = classifier("LINEAR", [1, 1, 1], **linear)
    return found


CASES = cases()


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    two = classifier("RBF", [3, 2])
    logistic = (type(two[0]).FromString(two[0].SerializeToString()), two[1])
    logistic[0].graph.node[0].attribute.add(name="post_transform", type=3, s=b"LOGISTIC")
    return native.outputs({**CASES, "two": two, "two LOGISTIC": logistic})


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    same(CASES, name, results[name], 2e-5)


def test_two_classes_are_transformed(results: dict[str, list[Array]]) -> None:
    """onnxruntime leaves the transform out."""
    plain = results["two"][1]
    np.testing.assert_array_equal(plain[:, 0], -plain[:, 1])
    np.testing.assert_allclose(results["two LOGISTIC"][1], 1 / (1 + np.exp(-plain)), rtol=1e-5)
    np.testing.assert_array_equal(results["two"][0], np.where(plain[:, 1] > 0, 11, 5))


def test_probabilities_sum_to_one(results: dict[str, list[Array]]) -> None:
    for classes in (2, 3, 4):
        np.testing.assert_allclose(results[f"probabilities of {classes}"][1].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (regressor("RBF", kernel_type="COSINE"), "COSINE"),
        (regressor("RBF", kernel_params=[1.0]), "kernel_params has 1 entries"),
        (regressor("RBF", rho=None), "rho has 0 entries, 1 are needed"),
        (classifier("RBF", [2, 3], coefficients=floats(4)), "4 entries, 1 rows of 5 need 5"),
        (classifier("RBF", [2, 3], vectors_per_class=[5]), "vectors_per_class has 1 entries, 2 are needed"),
        (classifier("RBF", [2, 2], prob_a=[1.0]), "prob_a has 1 entries and prob_b 0"),
    ],
)
def test_refusals(made: Case, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        native.prepare(made[0])
