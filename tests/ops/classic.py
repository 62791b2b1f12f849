"""Models of one operator of ``ai.onnx.ml``, and random forests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from single import Array, model, node

DOMAIN = "ai.onnx.ml"

Case = tuple[onnx.ModelProto, dict[str, Array]]
Weights = Callable[[np.random.Generator], list[tuple[int, float]]]


def case(
    op: str, feeds: Mapping[str, Array], outputs: str = "y", version: int = 3,
    dims: Mapping[str, Sequence[int | str]] | None = None, **attributes: Any,
) -> Case:  # fmt: skip
    """A model of the node, at a version of the domain; attributes that are None are left out."""
    given = {name: value for name, value in attributes.items() if value is not None}
    made = model(
        [node(op, " ".join(feeds), outputs, domain=DOMAIN, **given)], feeds, outputs.split(), dims=dims
    )
    made.opset_import.add(domain=DOMAIN, version=version)
    return made, dict(feeds)


def same(cases: Mapping[str, Case], name: str, got: list[Array], tolerance: float = 2e-6) -> None:
    """The outputs of a case are onnxruntime's."""
    from single import reference

    for ours, theirs in zip(got, reference(*cases[name]), strict=True):
        assert ours.dtype == theirs.dtype
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
SPLITS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Few thresholds, so that samples drawn from the same numbers often lie on one."""


def forest(
    seed: int, kind: str, weights: Weights, modes: Sequence[str] = MODES, trees: int = 4, depth: int = 4,
    features: int = 4, missing: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Attributes of a random forest; `kind` is ``target`` or ``class``, `weights` draws those of a leaf."""
    rng = np.random.default_rng(seed)
    nodes: list[tuple[Any, ...]] = []
    votes: list[tuple[int, int, int, float]] = []

    def grow(tree: int, start: int, left: int) -> int:
        here = len(nodes)
        if left == 0 or (left < depth and rng.random() < 0.2):
            nodes.append((tree, here - start, "LEAF", 0, 0.0, 0, 0, 0))
            votes.extend((tree, here - start, k, w) for k, w in weights(rng))
            return here - start
        nodes.append(())
        true, false = grow(tree, start, left - 1), grow(tree, start, left - 1)
        test = (str(rng.choice(modes)), int(rng.integers(features)), float(rng.choice(SPLITS)))
        nodes[here] = (tree, here - start, *test, true, false, int(rng.integers(2)))
        return here - start

    for tree in range(trees):
        grow(tree, len(nodes), depth)
    names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids",
             "missing_value_tracks_true")  # fmt: skip
    made = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*nodes))}
    columns = list(zip(*votes)) or [()] * 4
    made |= {f"{kind}_{n}": list(c) for n, c in zip(("treeids", "nodeids", "ids", "weights"), columns)}
    if not missing:
        del made["nodes_missing_value_tracks_true"]
    return made


def samples(seed: int, count: int = 60, features: int = 4) -> Array:
    """Samples on, between and outside of `SPLITS`, some of them NaN."""
    rng = np.random.default_rng(seed)
    return rng.choice([*SPLITS, -2.0, 0.3, 2.0, np.nan, np.inf], (count, features)).astype(np.float32)
