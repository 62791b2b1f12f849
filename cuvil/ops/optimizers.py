"""Steps of optimizers, for models that train: Adagrad, Adam, Momentum.

Each takes a learning rate R, an update count T, then as many tensors of each kind (parameters, their
gradients, states) as are optimised, and returns the new ones in that order.
"""

from __future__ import annotations

from collections.abc import Callable

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value
from cuvil.ops.registry import Context, lowering

DOMAIN = "ai.onnx.preview.training"


def _each(c: Context, kinds: int, step: Callable[[list[Value]], list[Value]]) -> list[Value]:
    """`step` on the tensors of each parameter, the results grouped by kind; R and T come before them."""
    tensors = [c[k] for k in range(2, len(c.inputs))]
    count, rest = divmod(len(tensors), kinds)
    if rest:
        raise c.error(f"{len(tensors)} tensors after R and T are no multiple of {kinds}")
    made = [step(tensors[k::count]) for k in range(count)]
    return [value for kind in zip(*made) for value in kind]


def _scalar(v: Value, dtype: str) -> Expr:
    """The one element of a tensor, as a number of type `dtype`."""
    return E.cast(v[(E.const(0),) * v.rank], dtype)


@lowering("Adagrad", domain=DOMAIN)
def adagrad(c: Context) -> list[Value]:
    """Steps along the gradient, divided by the root of the sum of its squares so far."""
    decay, epsilon = c.attr("decay_factor", 0.0), c.attr("epsilon", 1e-6)
    norm: float = c.attr("norm_coefficient", 0.0)

    def step(tensors: list[Value]) -> list[Value]:
        x, gradient, squares = tensors
        kind = x.dtype
        rate = _scalar(c[0], kind) / (1 + _scalar(c[1], kind) * decay)
        g = c.b.elementwise(lambda v, d: v * norm + d, x, gradient)
        h = c.b.elementwise(lambda s, d: s + d * d, squares, g)
        new = c.b.elementwise(lambda v, d, s: v - rate * d / (E.unary("sqrt", s) + epsilon), x, g, h)
        return [new, h]

    return _each(c, 3, step)


@lowering("Adam", domain=DOMAIN)
def adam(c: Context) -> list[Value]:
    """Steps along the running mean of the gradient, divided by the root of that of its squares; from
    the first update on the rate is corrected for means that started at 0."""
    alpha, beta = c.attr("alpha", 0.9), c.attr("beta", 0.999)
    norm: float = c.attr("norm_coefficient", 0.0)
    norm_post: float = c.attr("norm_coefficient_post", 0.0)
    epsilon: float = c.attr("epsilon", 1e-6)

    def step(tensors: list[Value]) -> list[Value]:
        x, gradient, mean, square = tensors
        kind = x.dtype

        def corrected() -> Expr:
            rate, t = _scalar(c[0], kind), _scalar(c[1], kind)
            left = [1 - E.binary("pow", E.const(decay, kind), t) for decay in (alpha, beta)]
            return E.select(E.lt(0, t), rate * E.unary("sqrt", left[1]) / left[0], rate)

        rate = c.b.map([], corrected)
        g = c.b.elementwise(lambda v, d: v * norm + d, x, gradient)
        m = c.b.elementwise(lambda v, d: v * alpha + d * (1 - alpha), mean, g)
        s = c.b.elementwise(lambda v, d: v * beta + d * d * (1 - beta), square, g)

        def moved(v: Expr, a: Expr, q: Expr) -> Expr:
            return (v - rate[()] * a / (E.unary("sqrt", q) + epsilon)) * (1 - norm_post)

        return [c.b.elementwise(moved, x, m, s), m, s]

    return _each(c, 4, step)


@lowering("Momentum", domain=DOMAIN)
def momentum(c: Context) -> list[Value]:
    """Steps along a decaying sum of gradients, or with Nesterov's look ahead along that sum's next value."""
    alpha, beta, norm = c.attr("alpha"), c.attr("beta"), c.attr("norm_coefficient")
    mode = c.attr("mode")
    if mode not in ("standard", "nesterov"):
        raise c.error(f"mode '{mode}' is neither 'standard' nor 'nesterov'")

    def step(tensors: list[Value]) -> list[Value]:
        x, gradient, velocity = tensors
        kind = x.dtype
        rate = _scalar(c[0], kind)
        share = E.select(E.lt(0, _scalar(c[1], kind)), E.const(beta, kind), E.const(1, kind))
        g = c.b.elementwise(lambda v, d: v * norm + d, x, gradient)
        new = c.b.elementwise(lambda v, d: v * alpha + share * d, velocity, g)
        if mode == "standard":
            return [c.b.elementwise(lambda v, w: v - rate * w, x, new), new]
        return [c.b.elementwise(lambda v, d, w: v - rate * (d + w * alpha), x, g, new), new]

    return _each(c, 3, step)
