"""Tree ensembles against onnxruntime, and against the specification where the two differ."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from classic import MODES, Case, Weights, case, forest, same, samples
from onnx import helper, numpy_helper
from single import Array

from cuvil.codegen.program import Part, render
from cuvil.errors import ModelError, UnsupportedError


def one(rng: np.random.Generator) -> list[tuple[int, float]]:
    return [(0, float(rng.standard_normal()))]


def share(rng: np.random.Generator) -> list[tuple[int, float]]:
    return [(0, float(rng.random()))]


def second(rng: np.random.Generator) -> list[tuple[int, float]]:
    return [(1, float(rng.random()))]


def three(rng: np.random.Generator) -> list[tuple[int, float]]:
    return [(k, float(rng.standard_normal())) for k in range(3)]


def some(rng: np.random.Generator) -> list[tuple[int, float]]:
    """Weights for some of three targets, in any order."""
    order = rng.permutation(3)[: rng.integers(1, 4)]
    return [(int(k), float(rng.standard_normal())) for k in order]


X = samples(1)

WHOLE = np.trunc(X)
"""onnxruntime takes 0.3 for a member of {0}."""


def regressor(seed: int, weights: Weights, x: Array = X, **attributes: Any) -> Case:
    shape = {k: attributes.pop(k) for k in ("modes", "trees", "depth", "missing") if k in attributes}
    base = {"n_targets": 1 if weights is one else 3, **attributes}
    return case("TreeEnsembleRegressor", {"x": x}, **forest(seed, "target", weights, **shape), **base)


def classifier(seed: int, weights: Weights, labels: list[int], x: Array = X, **attributes: Any) -> Case:
    made = forest(seed, "class", weights, trees=attributes.pop("trees", 4))
    return case(
        "TreeEnsembleClassifier", {"x": x}, "label scores", classlabels_int64s=labels, **made, **attributes
    )


def ensemble(seed: int, x: Array, **attributes: Any) -> Case:
    """A random forest as TreeEnsemble has it, with tests of membership in a set."""
    rng = np.random.default_rng(seed)
    dtype = x.dtype
    nodes: list[list[int]] = []
    leaves: list[tuple[int, float]] = []
    splits: list[float] = []
    members: dict[int, list[float]] = {}

    def grow(left: int) -> tuple[int, int]:
        if left == 0:
            leaves.append((int(rng.integers(2)), float(rng.standard_normal())))
            return len(leaves) - 1, 1
        here = len(nodes)
        nodes.append([])
        splits.append(float(rng.choice([-1, 0, 1])))
        mode = int(rng.integers(7))
        if mode == 6:
            members[here] = [float(v) for v in rng.choice([-2, -1, 0, 1, 2], 3, replace=False)]
        true, false = grow(left - 1), grow(left - 1)
        nodes[here] = [mode, int(rng.integers(4)), *true, *false, int(rng.integers(2))]
        return here, 0

    roots = [grow(3)[0] for _ in range(4)]
    sets = [v for n in sorted(members) for v in (*members[n], np.nan)]
    names = ("modes", "featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs",
             "missing_value_tracks_true")  # fmt: skip
    columns: dict[str, Any] = {f"nodes_{n}": [row[k] for row in nodes] for k, n in enumerate(names)}
    columns["nodes_modes"] = numpy_helper.from_array(np.array(columns["nodes_modes"], np.uint8), "m")
    numbers = {"nodes_splits": splits, "leaf_weights": [w for _, w in leaves], "membership_values": sets}
    columns |= {n: numpy_helper.from_array(np.array(v, dtype), n) for n, v in numbers.items()}
    targets = [t for t, _ in leaves]
    return case(
        "TreeEnsemble", {"x": x}, version=5, n_targets=2, tree_roots=roots, leaf_targetids=targets,
        **columns, **attributes,
    )  # fmt: skip


def members(x: Array) -> Case:
    """A tree that gives 1 to members of {0, 1.5, 2} and 10 to others."""
    one = {f"nodes_{n}": [0] for n in ("featureids", "truenodeids")}
    one |= {f"nodes_{n}": [1] for n in ("falsenodeids", "trueleafs", "falseleafs")}
    numbers = {"nodes_splits": [0], "leaf_weights": [1, 10], "membership_values": [0, 1.5, 2, np.nan]}
    floats = {n: numpy_helper.from_array(np.array(v, np.float32), n) for n, v in numbers.items()}
    modes = numpy_helper.from_array(np.array([6], np.uint8), "m")
    return case(
        "TreeEnsemble", {"x": x}, version=5, n_targets=1, tree_roots=[0], leaf_targetids=[0, 0],
        nodes_modes=modes, **one, **floats,
    )  # fmt: skip


def tensors(c: Case) -> Case:
    """A regressor's lists of floats as tensors of doubles."""
    (node,) = c[0].graph.node
    for attribute in list(node.attribute):
        if attribute.name in ("nodes_values", "target_weights", "base_values"):
            array = np.array(attribute.floats, np.float64)
            node.attribute.remove(attribute)
            name = f"{attribute.name}_as_tensor"
            node.attribute.append(helper.make_attribute(name, numpy_helper.from_array(array, name)))
    return c


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for n, aggregate in enumerate(("SUM", "AVERAGE", "MIN", "MAX")):
        found[f"one target {aggregate}"] = regressor(n, one, aggregate_function=aggregate, base_values=[0.5])
        found[f"targets {aggregate}"] = regressor(10 + n, some, aggregate_function=aggregate)
        found[f"set {aggregate}"] = ensemble(20 + n, WHOLE, aggregate_function=n if n > 1 else 1 - n)
    for n, mode in enumerate(MODES):
        found[mode] = regressor(30 + n, one, modes=[mode])
        found[f"{mode}, NaN is false"] = regressor(40 + n, one, modes=[mode], missing=False)
    found["targets dense"] = regressor(50, three, base_values=[0.5, -1.0, 2.0])
    found["leaves alone"] = regressor(51, some, depth=0)
    found["deep"] = regressor(52, one, depth=9, trees=2)
    found["one sample"] = regressor(53, some, X[3:4])
    found["doubles"] = regressor(54, one, X.astype(np.float64) + 1e-12)
    found["tensors of doubles"] = tensors(regressor(55, one, X.astype(np.float64) + 1e-12, base_values=[0.1]))
    found["probit"] = regressor(56, share, X, n_targets=1, trees=1, post_transform="PROBIT")
    found["set of doubles"] = ensemble(57, WHOLE.astype(np.float64))
    for n, transform in enumerate(("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")):
        found[f"classes {transform}"] = classifier(60 + n, three, [7, 3, 5], post_transform=transform)
    for transform in ("NONE", "LOGISTIC"):
        found[f"two classes {transform}"] = classifier(70, one, [7, 3], post_transform=transform)
        found[f"two classes, base {transform}"] = classifier(
            71, one, [0, 1], base_values=[-0.2], post_transform=transform
        )
        found[f"a share {transform}"] = classifier(72, share, [7, 3], trees=1, post_transform=transform)
        found[f"second class {transform}"] = classifier(73, second, [7, 3], trees=1, post_transform=transform)
    found["classes, base"] = classifier(74, three, [0, 1, 2], base_values=[0.5, 0.25, -3.0])
    found["one class"] = classifier(75, one, [1])
    return found


CASES = cases()


def spec_cases() -> dict[str, Case]:
    """Where onnxruntime has another answer than the specification, or none."""
    found = {f"both {t}": classifier(80, both, [7, 3], post_transform=t) for t in ("NONE", "LOGISTIC")}
    found["both, base"] = classifier(80, both, [7, 3], base_values=[0.5, -0.25])
    found["single SOFTMAX"] = classifier(81, one, [7, 3], post_transform="SOFTMAX")
    found["single NONE"] = classifier(81, one, [7, 3])
    whole = np.nan_to_num(X).clip(-2, 2).astype(np.int64)
    found["integers"] = regressor(82, one, whole)
    found["integers as floats"] = regressor(82, one, whole.astype(np.float32))
    found["halves"] = ensemble(83, X.astype(np.float16))
    found["halves as floats"] = ensemble(83, X)
    for code, transform in enumerate(("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")):
        found[f"set {transform}"] = ensemble(64, WHOLE, post_transform=code)
    found["fractions"] = members(np.float32([[0.3], [0], [1.5], [2], [-1], [np.nan]]))
    found["logistic"] = regressor(84, one, post_transform="LOGISTIC")
    found["not logistic"] = regressor(84, one)
    attributes = forest(85, "target", some)
    dims = {"x": ["n", 4]}
    found["symbolic"] = case("TreeEnsembleRegressor", {"x": X}, dims=dims, n_targets=3, **attributes)
    found["not symbolic"] = case("TreeEnsembleRegressor", {"x": X}, n_targets=3, **attributes)
    words = {"classlabels_int64s": None, "classlabels_strings": ["no", "yes", "perhaps"]}
    found["words"] = case(
        "TreeEnsembleClassifier", {"x": X}, "label scores", **forest(60, "class", three), **words
    )
    return found


def both(rng: np.random.Generator) -> list[tuple[int, float]]:
    return [(0, float(rng.standard_normal())), (1, float(rng.standard_normal()))]


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**CASES, **spec_cases()})


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    same(CASES, name, results[name], 4e-6)


def test_two_weighted_classes(results: dict[str, list[Array]]) -> None:
    """The label is that of the larger score; onnxruntime returns 0 or 1."""
    label, scores = results["both NONE"]
    assert set(label) == {7, 3}
    np.testing.assert_array_equal(label, np.where(scores[:, 1] > scores[:, 0], 3, 7))
    np.testing.assert_allclose(results["both LOGISTIC"][1], 1 / (1 + np.exp(-scores)), rtol=1e-6)
    moved = scores + np.array([0.5, -0.25])
    np.testing.assert_allclose(results["both, base"][1], moved, rtol=1e-6, atol=1e-6)


def test_transform_of_a_single_score(results: dict[str, list[Array]]) -> None:
    label, scores = results["single NONE"]
    powers = np.exp(scores)
    np.testing.assert_array_equal(results["single SOFTMAX"][0], label)
    np.testing.assert_allclose(results["single SOFTMAX"][1], powers / powers.sum(1, keepdims=True), rtol=2e-6)
    plain = results["not logistic"][0]
    np.testing.assert_allclose(results["logistic"][0], 1 / (1 + np.exp(-plain)), rtol=2e-6)


def test_numbers_of_transforms(results: dict[str, list[Array]]) -> None:
    """1 is SOFTMAX and 2 is LOGISTIC; onnxruntime has them the other way round."""
    plain = results["set NONE"][0]
    powers = np.exp(plain)
    np.testing.assert_allclose(results["set SOFTMAX"][0], powers / powers.sum(1, keepdims=True), rtol=4e-6)
    np.testing.assert_allclose(results["set LOGISTIC"][0], 1 / (1 + 1 / powers), rtol=4e-6)
    assert ((plain == 0) == (results["set SOFTMAX_ZERO"][0] == 0)).all() and (plain == 0).any()


def test_members_are_compared_exactly(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["fractions"][0][:, 0], [10, 1, 1, 1, 10, 10])


def test_types_of_samples(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["integers"][0], results["integers as floats"][0])
    assert results["halves"][0].dtype == np.float16
    np.testing.assert_allclose(results["halves"][0], results["halves as floats"][0], rtol=2e-3, atol=2e-3)


def test_symbolic_count(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["symbolic"][0], results["not symbolic"][0])


def test_labels_are_strings(results: dict[str, list[Array]]) -> None:
    numbers = dict(zip((7, 3, 5), (b"no", b"yes", b"perhaps")))
    words = results["words"][0]
    got = [bytes(row).rstrip(b"\0") for row in words] if words.dtype == np.uint8 else list(words)
    wanted = [numbers[k] for k in results["classes NONE"][0]]
    assert [w.encode() if isinstance(w, str) else w for w in got] == wanted


def test_code_does_not_grow_with_the_forest() -> None:
    def code(trees: int) -> int:
        plan = native.prepare(regressor(90, one, trees=trees, depth=6)[0])
        return len(render([Part(plan, "m")], "m").source)

    assert abs(code(3) - code(40)) < 200


def broken(**changes: Any) -> Case:
    made = forest(91, "target", one, depth=2, trees=1)
    return case("TreeEnsembleRegressor", {"x": X}, **{**made, "n_targets": 1, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_featureids": [9] * 7}, "the input has 4 features"),
        ({"nodes_truenodeids": [0] * 7}, "children of each other"),
        ({"nodes_truenodeids": [77] * 7}, "no node 77"),
        ({"nodes_modes": ["BRANCH_UP"] * 7}, "BRANCH_UP"),
        ({"nodes_values": [0.0]}, "7 nodes_modes and 1 nodes_values"),
        ({"nodes_falsenodeids": [1]}, "nodes_falsenodeids has 1"),
        ({"target_ids": [5] * 4}, "target or class 5"),
        ({"aggregate_function": "MEDIAN"}, "MEDIAN"),
        ({"base_values": [0.0, 1.0]}, "2 entries for 1 targets"),
        ({"post_transform": "TANH"}, "TANH"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    assert len(forest(91, "target", one, depth=2, trees=1)["nodes_modes"]) == 7
    with pytest.raises(ModelError, match=message):
        native.prepare(broken(**changes)[0])


def test_unknown_count_of_features() -> None:
    made = forest(92, "target", one)
    m, _ = case("TreeEnsembleRegressor", {"x": X}, dims={"x": ["n", "f"]}, n_targets=1, **made)
    with pytest.raises(UnsupportedError, match="number of features"):
        native.prepare(m)
