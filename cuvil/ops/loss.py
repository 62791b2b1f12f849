"""Losses of classification, as ONNX keeps them for training graphs."""

from __future__ import annotations

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value
from cuvil.ops.movement import wrap_index
from cuvil.ops.reduction import log_softmax
from cuvil.ops.registry import Context, lowering


@lowering("NegativeLogLikelihoodLoss")
def nll_loss(c: Context) -> Value:
    """Minus the entry of each target class, weighted; the mean divides by the weights' sum."""
    return _loss(c, c[0], c[1], c.optional(2))


@lowering("SoftmaxCrossEntropyLoss")
def cross_entropy(c: Context) -> list[Value]:
    """The likelihood loss of log softmax over the classes, and that logarithm."""
    logarithms = log_softmax(c.b, c[0], 1)
    return [_loss(c, logarithms, c[1], c.optional(2)), logarithms]


def _loss(c: Context, x: Value, target: Value, weight: Value | None) -> Value:
    b, ignored, kind = c.b, c.attr("ignore_index"), c.attr("reduction", "mean")

    def weigh(*i: Expr) -> Expr:
        w = E.const(1, x.dtype) if weight is None else weight[wrap_index(target[i], x.shape[1])]
        return w if ignored is None else E.select(E.eq(target[i], ignored), E.const(0, x.dtype), w)

    weights = b.map(target.shape, weigh)

    def lose(*i: Expr) -> Expr:
        w = weights[i]
        entry = x[(i[0], wrap_index(target[i], x.shape[1]), *i[1:])]
        return E.select(E.eq(w, 0), E.const(0, x.dtype), -entry * w)

    losses = b.map(target.shape, lose)
    if kind == "none":
        return losses
    axes = list(range(target.rank))
    total = b.reduce_axes("sum", losses, axes, False)
    if kind == "sum":
        return total
    return b.elementwise(lambda t, w: t / w, total, b.reduce_axes("sum", weights, axes, False))
