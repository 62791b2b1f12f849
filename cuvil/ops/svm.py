"""Support vector machines, of the domain ``ai.onnx.ml``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Stmt, Store, While
from cuvil.ir.primitives import Value
from cuvil.ops.characters import Local, each
from cuvil.ops.contraction import matmul_value
from cuvil.ops.ml import (
    DOMAIN,
    Array,
    added,
    class_count,
    labelled,
    linear,
    matrix,
    rows,
    table,
    top_class,
    transform_of,
    transformed,
    two_scores,
)  # fmt: skip
from cuvil.ops.registry import Context, lowering

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def kernel_values(c: Context, x: Value, vectors: Array) -> Value:
    """The kernel of each sample [N, F] with each support vector [V, F], as [N, V].

    LINEAR x.v; POLY (gamma x.v + coef0)^degree; RBF exp(-gamma |x - v|^2); SIGMOID tanh(gamma x.v + coef0).

    Raises:
        ModelError: there is no such kernel, or its parameters are missing.
    """
    b, kind = c.b, c.attr("kernel_type", "LINEAR")
    parameters = list(c.attr("kernel_params") or [0.0, 0.0, 0.0])
    if kind not in KERNELS:
        raise c.error(f"kernel_type is {kind!r}, it must be one of {', '.join(KERNELS)}")
    if len(parameters) != 3:
        raise c.error(f"kernel_params has {len(parameters)} entries, gamma, coef0 and degree are needed")
    gamma, coef0, degree = parameters
    if kind == "RBF":
        known = b.constant(vectors)

        def square(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            difference = x[i[0], r[0]] - known[i[1], r[0]]
            return difference * difference

        distance = b.reduce("sum", [x.shape[0], len(vectors)], [vectors.shape[1]], square)
        return b.elementwise(lambda d: E.unary("exp", d * -gamma), distance)
    product = matmul_value(b, x, b.constant(np.ascontiguousarray(vectors.T)))
    if kind == "POLY":
        return b.elementwise(lambda p: _power(p * gamma + coef0, degree), product)
    if kind == "SIGMOID":
        return b.elementwise(lambda p: E.unary("tanh", p * gamma + coef0), product)
    return product


def _power(base: Expr, degree: float) -> Expr:
    if degree not in (1, 2, 3, 4):
        return E.binary("pow", base, degree)
    square = base * base
    return {1: base, 2: square, 3: square * base, 4: square * square}[int(degree)]


@lowering("SVMRegressor", domain=DOMAIN)
def svm_regressor(c: Context) -> Value:
    """A weighted sum of kernels plus rho, or its sign where the machine has one class; a linear model
    where it has no support vectors."""
    b, x, count = c.b, rows(c), c.attr("n_supports", 0)
    rho = _rho(c, 1)
    if count > 0:
        kernels = kernel_values(c, x, matrix(c, "support_vectors", count, x.shape[1]))
        score = linear(b, kernels, matrix(c, "coefficients", 1, E.const(count)), rho)
    else:
        score = linear(b, x, matrix(c, "coefficients", 1, x.shape[1]), rho)
    if c.attr("one_class", 0):
        one = E.const(1, "float32")
        return b.elementwise(lambda s: E.select(E.lt(0, s), one, -one), score)
    return transformed(b, score, transform_of(c))


def _rho(c: Context, count: int) -> Array:
    """The first `count` entries of the attribute rho."""
    rho = table(c, "rho")
    if rho.size < count:
        raise c.error(f"rho has {rho.size} entries, {count} are needed")
    return rho[:count]


@lowering("SVMClassifier", domain=DOMAIN)
def svm_classifier(c: Context) -> list[Value]:
    """The class that wins most of the duels between two classes, and the scores: probabilities where
    prob_a is given, else those of the duels; two classes have two scores.  Without support vectors, a
    linear score per class.  Scores are transformed."""
    b, x, transform = c.b, rows(c), transform_of(c)
    classes = class_count(c, "classlabels_ints")
    per_class = table(c, "vectors_per_class", classes, "int64")
    count = int(per_class.sum())
    if not count:
        scores = linear(b, x, matrix(c, "coefficients", classes, x.shape[1]), _rho(c, 1))
        index = top_class(b, scores)
        return [labelled(c, index, "classlabels_ints"), transformed(b, scores, transform)]
    if classes < 2 or (per_class < 0).any():
        raise c.error("a machine with support vectors has at least two classes, none with fewer than 0")
    first, second = (p.astype(np.int32) for p in np.triu_indices(classes, 1))
    kernels = kernel_values(c, x, matrix(c, "support_vectors", count, x.shape[1]))
    weights = matrix(c, "coefficients", classes - 1, E.const(count))
    duels = added(b, _duels(b, kernels, weights, per_class, first, second), _rho(c, len(first)))
    index = top_class(b, _votes(b, duels, first, second))
    label = labelled(c, index, "classlabels_ints")
    if c.attr("prob_a"):
        return [label, transformed(b, _probabilities(c, duels, classes), transform)]
    if classes == 2:
        return [label, two_scores(b, duels, transform, False)]
    return [label, transformed(b, duels, transform)]


def _duels(
    b: Builder, kernels: Value, weights: Array, per_class: Array, first: Array, second: Array
) -> Value:
    """The score of class i against class j for each pair i < j, as [N, pairs].

    Row j - 1 of `weights` [classes - 1, V] holds the weights of the vectors of class i in this duel, row
    i those of the vectors of class j; a vector takes part in the duels of its own class only.
    """
    if len(per_class) == 2:
        return matmul_value(b, kernels, b.constant(np.ascontiguousarray(weights.T)))
    n, classes = kernels.shape[0], len(per_class)
    factors = b.constant(weights)
    starts = b.constant(np.concatenate([[0], np.cumsum(per_class)]).astype(np.int32))

    shape = [n, E.const(classes - 1), E.const(classes)]

    def body(sums: Value) -> Sequence[Stmt]:
        def total(i: Expr, row: Expr, owner: Expr) -> Sequence[Stmt]:
            start, end = (E.cast(E.load(starts, (o,)), E.INDEX) for o in (owner, owner + 1))
            v = E.var(end - start)
            term = E.load(factors, (row, start + v)) * E.load(kernels, (i, start + v))
            add = Accumulate(sums, (i, row, owner), "sum", term)
            return [Store(sums, (i, row, owner), E.const(0, "float32")), For(v, v.args[0], (add,))]

        return each(shape, total)

    (sums,) = b.opaque([kernels, factors, starts], [("float32", shape)], body)
    left, right = b.constant(first), b.constant(second)

    def score(k: Expr, pair: Expr) -> Expr:
        i, j = E.cast(left[pair], E.INDEX), E.cast(right[pair], E.INDEX)
        return sums[k, j - 1, i] + sums[k, i, j]

    return b.map([n, len(first)], score)


def _votes(b: Builder, duels: Value, first: Array, second: Array) -> Value:
    """How many duels each class wins, as [N, classes]."""
    left, right = b.constant(first), b.constant(second)

    def won(at: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        winner = E.select(E.lt(0, duels[at[0], r[0]]), left[r[0]], right[r[0]])
        return E.cast(E.eq(E.cast(winner, E.INDEX), at[1]), "int32")

    return b.reduce("sum", [duels.shape[0], int(second[-1]) + 1], [len(first)], won)


def _probabilities(c: Context, duels: Value, classes: int) -> Value:
    """The classes' probabilities [N, classes] from the duels', by the second method of Wu, Lin and Weng,
    "Probability estimates for multi-class classification by pairwise coupling" (2004): the p that makes
    sum over i, j of (r_ji p_i - r_ij p_j)^2 least, r_ij being the probability that i wins against j.
    """
    b, n, pairs = c.b, duels.shape[0], classes * (classes - 1) // 2
    a, shift = (table(c, name, pairs) for name in ("prob_a", "prob_b"))
    if shift.size != a.size:
        raise c.error(f"prob_a has {a.size} entries and prob_b {shift.size}, both need {pairs}")
    slopes, shifts = b.constant(a), b.constant(shift)
    numbers = np.zeros((classes, classes), np.int32)
    numbers[np.triu_indices(classes, 1)] = np.arange(pairs)
    number = b.constant(numbers + numbers.T)

    def wins(k: Expr, pair: Expr) -> Expr:
        r = E.unary("sigmoid", -(duels[k, pair] * slopes[pair] + shifts[pair]))
        return E.minimum(E.maximum(r, 1e-7), 1 - 1e-7)

    above = b.map([n, pairs], wins)

    def against(k: Expr, i: Expr, j: Expr) -> Expr:
        r = above[k, E.cast(number[i, j], E.INDEX)]
        return E.select(E.eq(i, j), E.const(0, "float32"), E.select(E.lt(i, j), r, 1 - r))

    square = [n, E.const(classes), E.const(classes)]
    r = b.map(square, against)

    def squared(i: tuple[Expr, ...], s: tuple[Expr, ...]) -> Expr:
        lost = r[i[0], s[0], i[1]]
        return lost * lost

    diagonal = b.reduce("sum", [n, classes], [classes], squared)
    q = b.map(square, lambda k, i, j: E.select(E.eq(i, j), diagonal[k, i], -(r[k, j, i] * r[k, i, j])))
    shape = [n, E.const(classes)]
    p, _ = b.opaque([q], [("float32", shape), ("float32", shape)], lambda p, w: _minimise(q, p, w, classes))
    return p


def _minimise(q: Value, p: Value, work: Value, classes: int) -> Sequence[Stmt]:
    """For each sample the p of sum 1 that makes p' Q p least, by cyclic steps from the uniform one until
    all of Q p is within 0.005 / classes of p' Q p, at most 100 of them; `work` holds Q p."""
    count = Local("count")
    total, error, step = (Value(name, "float32", ()) for name in ("total", "error", "step"))
    least, far, d = (E.load(v, ()) for v in (total, error, step))
    zero, over = E.const(0, "float32"), [E.const(classes)]

    def sample(k: Expr) -> Sequence[Stmt]:
        def at(value: Value, *index: Expr) -> Expr:
            return E.load(value, (k, *index))

        def product(i: Expr) -> Sequence[Stmt]:
            terms = each(over, lambda j: [Accumulate(work, (k, i), "sum", at(q, i, j) * at(p, j))])
            return [Store(work, (k, i), zero), *terms, Accumulate(total, (), "sum", at(p, i) * at(work, i))]

        def move(i: Expr) -> Sequence[Stmt]:
            def rescale(j: Expr) -> Sequence[Stmt]:
                return [
                    Store(work, (k, j), (at(work, j) + d * at(q, i, j)) / (1 + d)),
                    Store(p, (k, j), at(p, j) / (1 + d)),
                ]

            return [
                Store(step, (), (least - at(work, i)) / at(q, i, i)),
                Store(p, (k, i), at(p, i) + d),
                Store(total, (), (least + d * (d * at(q, i, i) + at(work, i) * 2)) / (1 + d) / (1 + d)),
                *each(over, rescale),
            ]

        def measure(i: Expr) -> Sequence[Stmt]:
            return [Accumulate(error, (), "max", E.unary("abs", at(work, i) - least))]

        cycle = (
            Store(total, (), zero),
            *each(over, product),
            Store(error, (), zero),
            *each(over, measure),
            count.set(count.now + 1),
            If(E.lt(far, 0.005 / classes), (count.set(100),), each(over, move)),
        )
        start = each(over, lambda i: [Store(p, (k, i), E.const(1 / classes, "float32"))])
        return [*start, count.set(0), While(E.lt(count.now, 100), cycle)]

    declared = (count.declaration, *map(Declare, (total, error, step)))
    return [*declared, *each([q.shape[0]], sample)]
