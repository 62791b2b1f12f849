"""Ensembles of decision trees, of the domain ``ai.onnx.ml``: tables, and one loop that walks them.

Every test of a node, whatever its mode, is brought to one form: ``x <= split``, or x is no number and the
node is told to take that for true (`_tests`).  A step of the walk is then a load of the next node from
``children[node, test]``, and what is left of a forest is its tables, among the weights.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, Stmt, Store, While
from cuvil.ir.primitives import Value, identity, static
from cuvil.ops.characters import each
from cuvil.ops.ml import (
    DOMAIN,
    Array,
    added,
    class_count,
    labelled,
    rows,
    table,
    top_class,
    transform_of,
    transformed,
    two_scores,
)  # fmt: skip
from cuvil.ops.registry import Context, lowering

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""Tests of nodes, in the order in which TreeEnsemble numbers them."""

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""What is made of the trees' results, in the order in which TreeEnsemble numbers them."""


@dataclass(frozen=True)
class Branch:
    """A node with two children; a child is the number of another branch, or ``-1 - leaf``.

    Attributes:
        values: the threshold; the members of a set where the mode is BRANCH_MEMBER.
        missing: whether the test holds for a NaN.
    """

    mode: str
    feature: int
    values: tuple[float, ...]
    missing: bool
    true: int
    false: int


@dataclass(frozen=True)
class Forest:
    """Trees: their roots, numbered like children, and for each leaf its weights by target."""

    roots: list[int]
    branches: list[Branch]
    leaves: list[list[tuple[int, float]]]


# --- reading attributes -----------------------------------------------------------------------------


def _column(c: Context, name: str, length: int) -> list[int]:
    """A list of `length` integers; zeros where the attribute is omitted."""
    given = c.attr(name)
    if given is None or not len(given):
        return [0] * length
    if len(given) != length:
        raise c.error(f"{name} has {len(given)} entries, the ensemble needs {length}")
    return [int(n) for n in given]


def _numbers(c: Context, name: str) -> Array:
    """A list of floats, or the tensor that may be given in its place."""
    tensor = c.attr(f"{name}_as_tensor")
    return table(c, name) if tensor is None else np.asarray(tensor).reshape(-1)


def _by_id(c: Context, weights: str) -> tuple[Forest, Array, Array]:
    """The forest of an operator that numbers nodes by tree and node, its thresholds and its weights;
    `weights` begins the names of the leaves' attributes.  A tree's root is its first node."""
    modes = [m.decode() if isinstance(m, bytes) else m for m in c.attr("nodes_modes", [])]
    count, splits = len(modes), _numbers(c, "nodes_values")
    trees, ids, features, missing, true, false = (
        _column(c, f"nodes_{name}", count)
        for name in (
            "treeids", "nodeids", "featureids", "missing_value_tracks_true", "truenodeids", "falsenodeids",
        )
    )  # fmt: skip
    if not count or splits.size != count:
        raise c.error(f"there are {count} nodes_modes and {splits.size} nodes_values, at least one is needed")
    of_node: dict[tuple[int, int], int] = {}
    roots: dict[int, int] = {}
    counts = [0, 0]
    for n, mode in enumerate(modes):
        if mode != "LEAF" and mode not in MODES[:6]:
            raise c.error(f"nodes_modes has {mode!r}, it must be LEAF or one of {', '.join(MODES[:6])}")
        leaf = mode == "LEAF"
        key = (trees[n], ids[n])
        if key in of_node:
            raise c.error(f"node {ids[n]} of tree {trees[n]} is listed twice")
        of_node[key] = -1 - counts[1] if leaf else counts[0]
        counts[leaf] += 1
        roots.setdefault(trees[n], of_node[key])

    def child(n: int, node: int) -> int:
        if (trees[n], node) not in of_node:
            raise c.error(f"tree {trees[n]} has no node {node}, a child of node {ids[n]}")
        return of_node[trees[n], node]

    branches = [
        Branch(m, features[n], (float(splits[n]),), missing[n] == 1, child(n, true[n]), child(n, false[n]))
        for n, m in enumerate(modes)
        if m != "LEAF"
    ]
    leaves: list[list[tuple[int, float]]] = [[] for _ in range(counts[1])]
    values = _numbers(c, f"{weights}_weights")
    owners, at, targets = (_column(c, f"{weights}_{s}", values.size) for s in ("treeids", "nodeids", "ids"))
    for owner, node, target, value in zip(owners, at, targets, values):
        found = of_node.get((owner, node))
        if found is None:
            raise c.error(f"tree {owner} has no node {node}, for which there is a weight")
        if found < 0:  # weights of inner nodes have no meaning, old converters write them
            leaves[-1 - found].append((target, float(value)))
    return Forest(list(roots.values()), branches, leaves), splits, values


def _by_position(c: Context) -> tuple[Forest, Array, Array]:
    """The forest of TreeEnsemble, its thresholds and its weights."""
    modes, splits = (np.asarray(c.attr(f"nodes_{n}", [])).reshape(-1) for n in ("modes", "splits"))
    weights, members = (np.asarray(c.attr(n, [])).reshape(-1) for n in ("leaf_weights", "membership_values"))
    count, targets = len(modes), _column(c, "leaf_targetids", len(weights))
    if not count or splits.size != count:
        raise c.error(f"there are {count} nodes_modes and {splits.size} nodes_splits, at least one is needed")
    features, missing, true, false, true_leaf, false_leaf = (
        _column(c, f"nodes_{name}", count)
        for name in (
            "featureids", "missing_value_tracks_true", "truenodeids", "falsenodeids", "trueleafs",
            "falseleafs",
        )
    )  # fmt: skip
    sets = np.split(members, np.flatnonzero(np.isnan(members.astype(np.float64))) + 1)

    def child(node: int, leaf: int) -> int:
        if not 0 <= node < (len(weights) if leaf else count):
            raise c.error(f"there is no {'leaf' if leaf else 'node'} {node}, the child of a node")
        return -1 - node if leaf else node

    branches = []
    used = 0
    for n, code in enumerate(modes.tolist()):
        if not 0 <= code < len(MODES):
            raise c.error(f"nodes_modes has {code}, it must be one of 0 to {len(MODES) - 1}")
        values: tuple[float, ...] = (float(splits[n]),)
        if MODES[code] == "BRANCH_MEMBER":
            if used >= len(sets) or not sets[used].size:
                raise c.error("membership_values has fewer sets than there are nodes of mode BRANCH_MEMBER")
            values = tuple(float(v) for v in sets[used] if v == v)
            used += 1
        ends = child(true[n], true_leaf[n]), child(false[n], false_leaf[n])
        branches.append(Branch(MODES[code], features[n], values, missing[n] == 1, *ends))
    roots = [child(int(root), 0) for root in c.attr("tree_roots", [])]
    leaves = [[(target, float(weight))] for target, weight in zip(targets, weights)]
    return Forest(roots, branches, leaves), splits, weights


# --- tables -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """A node of the walk: to `true` where x <= split, or where x is a NaN and `missing` is set."""

    feature: int
    split: float
    missing: bool
    true: int
    false: int


def _tests(branches: Sequence[Branch], dtype: str) -> tuple[list[Test], list[int]]:
    """The branches as tests, and the number of each branch's first test.

    ``x < t`` is ``x <= t'``, t' being the number before t; > and >= are these with the children
    exchanged; equality takes two tests, and a set two for each member.
    """
    sizes = [1 if b.mode in MODES[:4] else max(1, 2 * len(b.values)) for b in branches]
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
    tests: list[Test] = []
    for b in branches:
        true, false = (starts[n] if n >= 0 else n for n in (b.true, b.false))
        if b.mode in MODES[:4]:
            split = b.values[0] if b.mode in ("BRANCH_LEQ", "BRANCH_GT") else _before(b.values[0], dtype)
            if b.mode in MODES[:2]:
                tests.append(Test(b.feature, split, b.missing, true, false))
            else:
                tests.append(Test(b.feature, split, not b.missing, false, true))
            continue
        missing = b.missing
        if b.mode == "BRANCH_NEQ":  # a NaN differs from every number
            true, false, missing = false, true, False
        if not b.values:
            tests.append(Test(b.feature, np.nan, missing, true, false))
        last = len(tests) + 2 * len(b.values)
        for value in b.values:
            here = len(tests)
            other = false if here + 2 == last else here + 2
            tests.append(Test(b.feature, value, missing, here + 1, other))
            tests.append(Test(b.feature, _before(value, dtype), False, other, true))
    return tests, starts


def _before(value: float, dtype: str) -> float:
    """The largest number of `dtype` that is below `value`, or NaN, which nothing is below."""
    kind = np.dtype(dtype).type
    return np.nan if value == -np.inf else float(np.nextafter(kind(value), kind(-np.inf)))


def _small(numbers: Sequence[int]) -> Array:
    """Integers in the smallest type that holds them."""
    array = np.asarray(numbers, np.int64)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    return array.astype(np.result_type(np.min_scalar_type(low), np.min_scalar_type(high)))


def _check(c: Context, forest: Forest, targets: int, features: int) -> None:
    """Raises ModelError where a walk could leave the tables or not end."""
    wrong = {f for b in forest.branches if not 0 <= (f := b.feature) < features}
    if wrong:
        raise c.error(f"nodes_featureids has {min(wrong)}, the input has {features} features")
    wrong = {t for leaf in forest.leaves for t, _ in leaf if not 0 <= t < targets}
    if wrong:
        raise c.error(f"a weight is for target or class {min(wrong)}, there are {targets}")
    children = {n: [k for k in (b.true, b.false) if k >= 0] for n, b in enumerate(forest.branches)}
    try:
        graphlib.TopologicalSorter(children).prepare()
    except graphlib.CycleError as error:
        raise c.error(f"nodes are children of each other: {error.args[1][:8]}") from None


# --- the walk ---------------------------------------------------------------------------------------


def _walk(b: Builder, forest: Forest, x: Value, kind: str, targets: int, op: str) -> Value:
    """For each sample of `x` [N, F] and each target, the weights at the leaves that it reaches, brought
    together by the reduction `op`, as [N, targets] of type `kind`; the reduction's identity for a target
    that no such leaf has a weight for.

    A walk through a tree takes as many steps as it is deep at most.
    """
    tests, starts = _tests(forest.branches, kind)
    feature = b.constant(_small([t.feature for t in tests]))
    split = b.constant(np.array([t.split for t in tests], kind))
    flags = np.array([t.missing for t in tests], np.bool_)
    missing = b.constant(flags)
    children = b.constant(_small([n for t in tests for n in (t.false, t.true)]).reshape(-1, 2))
    roots = b.constant(_small([starts[r] if r >= 0 else r for r in forest.roots]))
    counts = [len(leaf) for leaf in forest.leaves]
    begins = b.constant(_small([0, *itertools.accumulate(counts)]))
    target = b.constant(_small([t for leaf in forest.leaves for t, _ in leaf]))
    dense = all([t for t, _ in leaf] == list(range(targets)) for leaf in forest.leaves)
    weight = b.constant(np.array([w for leaf in forest.leaves for _, w in leaf], kind))

    def body(scores: Value) -> Sequence[Stmt]:
        place = Value("at", "int32", ())
        at = E.cast(E.load(place, ()), E.INDEX)

        def clear(n: Expr, t: Expr) -> Sequence[Stmt]:
            return [Store(scores, (n, t), identity(op, kind))]

        def visit(n: Expr, tree: Expr) -> Sequence[Stmt]:
            v = E.cast(x[n, E.cast(feature[at], E.INDEX)], kind)
            odd = missing[at] if len({*flags.tolist()}) > 1 else E.const(bool(flags.any()), "bool")
            holds = E.le(v, split[at]) | (E.unary("isnan", v) & odd)
            step = Store(place, (), E.cast(children[at, E.cast(holds, E.INDEX)], "int32"))
            leaf = -1 - at
            begin, many = leaf * counts[0], E.const(counts[0])
            if len(set(counts)) > 1:
                begin = E.cast(begins[leaf], E.INDEX)
                many = E.cast(begins[leaf + 1], E.INDEX) - begin

            def collect(k: Expr) -> Sequence[Stmt]:
                owner = k if dense else E.cast(target[begin + k], E.INDEX)
                return [Accumulate(scores, (n, owner), op, weight[begin + k])]

            walk = [While(E.le(0, E.load(place, ())), (step,))] if tests else []
            return [Store(place, (), E.cast(roots[tree], "int32")), *walk, *each([many], collect)]

        trees = E.const(len(forest.roots))
        return [Declare(place), *each(scores.shape, clear), *each([x.shape[0], trees], visit)]

    inputs = [x, feature, split, missing, children, roots, begins, target, weight]
    (scores,) = b.opaque(inputs, [(kind, [x.shape[0], E.const(targets)])], body)
    return scores


def _aggregated(
    c: Context, forest: Forest, splits: Array, weights: Array, targets: int, aggregate: str
) -> Value:
    """The sum, mean, least or largest weight by target, as [N, targets] of float32, or float64 where the
    input, the thresholds or the weights are; 0 for a target that no leaf reached has a weight for."""
    x = rows(c, c.x.dtype)
    features = static(x.shape[1])
    if features is None:
        raise c.unsupported("the number of features must be known at compile time; give the input's shape")
    if aggregate not in AGGREGATES:
        raise c.error(f"aggregate_function is {aggregate!r}, it must be one of {', '.join(AGGREGATES)}")
    _check(c, forest, targets, features)
    wide = "float64" in (x.dtype, str(splits.dtype), str(weights.dtype))
    op = {"MIN": "min", "MAX": "max"}.get(aggregate, "sum")
    scores = _walk(c.b, forest, x, "float64" if wide else "float32", targets, op)
    if aggregate == "AVERAGE":
        return c.b.elementwise(lambda s: s / max(len(forest.roots), 1), scores)
    if op == "sum":
        return scores
    none = identity(op, scores.dtype)
    return c.b.elementwise(lambda s: E.select(E.eq(s, none), 0, s), scores)


# --- operators --------------------------------------------------------------------------------------


@lowering("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(c: Context) -> Value:
    """The trees' results by target, aggregated, plus base values, transformed."""
    targets, base = c.attr("n_targets", 0), _numbers(c, "base_values")
    if base.size not in (0, targets):
        raise c.error(f"base_values has {base.size} entries for {targets} targets")
    aggregate = c.attr("aggregate_function", "SUM")
    scores = _aggregated(c, *_by_id(c, "target"), targets, aggregate)
    return transformed(c.b, c.b.cast(added(c.b, scores, base), "float32"), transform_of(c))


@lowering("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(c: Context) -> Value:
    """The trees' results by target, aggregated and transformed, in the input's type."""
    code = c.attr("aggregate_function", 1)
    aggregate = AGGREGATES[code] if 0 <= code < len(AGGREGATES) else str(code)
    scores = _aggregated(c, *_by_position(c), c.attr("n_targets", 0), aggregate)
    return c.b.cast(transformed(c.b, scores, transform_of(c)), c.x.dtype)


@lowering("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(c: Context) -> list[Value]:
    """The class with the largest score, and the transformed scores: the sums of the weights plus base
    values.

    If of two classes only one has weights, these are the score of the second class, which wins above 0.5
    where no weight is negative, else above 0.  (Base values for both classes say otherwise.)
    """
    b, transform = c.b, transform_of(c)
    classes, base = class_count(c, "classlabels_int64s"), _numbers(c, "base_values")
    forest, splits, weights = _by_id(c, "class")
    used = {t for leaf in forest.leaves for t, _ in leaf}
    single = classes <= 2 and len(used) == 1 and base.size < 2
    if base.size not in (0, classes) and not (single and used == {0}):
        raise c.error(f"base_values has {base.size} entries for {classes} classes")
    one = classes == 1 or (single and used == {0})
    scores = _aggregated(c, forest, splits, weights, 1 if one else classes, "SUM")
    scores = b.cast(added(b, scores, base), "float32")
    if single:
        positive = classes == 2 and not (weights < 0).any()
        last = scores.shape[1] - 1
        index = b.map(
            [scores.shape[0]], lambda n: E.cast(E.lt(0.5 if positive else 0.0, scores[n, last]), E.INDEX)
        )
    else:
        index = top_class(b, scores)
    if one and classes == 2:
        z = two_scores(b, scores, transform, positive)
    else:
        z = transformed(b, scores, transform)
    return [index if classes == 1 else labelled(c, index, "classlabels_int64s"), z]
