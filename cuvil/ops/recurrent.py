"""Recurrent layers: RNN, GRU and LSTM.

The projection of the whole input is one contraction outside of the recurrence; what is left for
one step is the product with the previous state and the gates.  A direction is one recurrence over
the steps in the order in which it takes them; its results are turned back when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Scan, Value
from cuvil.ops.elementwise import softplus
from cuvil.ops.movement import concat
from cuvil.ops.quantization import dynamically_quantized, saturate
from cuvil.ops.registry import Context, lowering

Activation = Callable[[Expr], Expr]


_ACTIVATIONS: dict[str, tuple[Callable[[Expr, float, float], Expr], tuple[float, ...]]] = {
    "affine": (lambda x, a, b: x * a + b, (1.0, 0.0)),
    "elu": (lambda x, a, b: E.select(x < 0, (E.unary("exp", x) - 1) * a, x), (1.0,)),
    "hardsigmoid": (lambda x, a, b: E.minimum(E.maximum(x * a + b, 0), 1), (0.2, 0.5)),
    "leakyrelu": (lambda x, a, b: E.select(x < 0, x * a, x), (0.01,)),
    "relu": (lambda x, a, b: E.maximum(x, 0), ()),
    "scaledtanh": (lambda x, a, b: E.unary("tanh", x * b) * a, (1.0, 1.0)),
    "sigmoid": (lambda x, a, b: E.unary("sigmoid", x), ()),
    "softplus": (lambda x, a, b: softplus(x), ()),
    "softsign": (lambda x, a, b: x / (1 + E.unary("abs", x)), ()),
    "tanh": (lambda x, a, b: E.unary("tanh", x), ()),
    "thresholdedrelu": (lambda x, a, b: E.select(x > a, x, E.const(0, x.dtype)), (1.0,)),
}
"""Per function its formula of (x, alpha, beta) and the defaults of the arguments that it uses."""


def _activations(c: Context, names: list[str]) -> list[Activation]:
    """The node's activation functions with their arguments, `names` where it gives none; alphas and
    betas are consumed in order by the functions that use them."""
    given = c.attr("activations") or names
    if len(given) != len(names):
        raise c.error(f"{len(given)} activations are given, {len(names)} are needed")
    alphas, betas = (iter(c.attr(f"activation_{name}") or []) for name in ("alpha", "beta"))
    return [_activation(c, name if isinstance(name, str) else name.decode(), alphas, betas) for name in given]


def _activation(c: Context, name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    """One function with its arguments bound."""
    if name.lower() not in _ACTIVATIONS:
        raise c.error(f"activation '{name}' is none of ONNX's")
    formula, defaults = _ACTIVATIONS[name.lower()]
    alpha = next(alphas, defaults[0]) if defaults else 0.0
    beta = next(betas, defaults[1]) if len(defaults) > 1 else 0.0
    return lambda x: formula(x, alpha, beta)


@dataclass
class Layer:
    """One direction of a recurrent layer.

    Shapes: X [T, B, I], W [directions, gates * H, I], R [directions, gates * H, H],
    bias [directions, 2 * gates * H], lengths [B], states [directions, B, H].

    Attributes:
        c: the node.
        index: of the direction in W, R and the states.
        reverse: it goes from the last step to the first.
        scan: the recurrence.
        gates: how many there are.
    """

    c: Context
    index: int
    reverse: bool
    gates: int
    activations: list[Activation]

    def __post_init__(self) -> None:
        c = self.c
        self.b: Builder = c.b
        self.x, self.w, self.r = c[0], c[1], c[2]
        self.bias, self.lengths = c.optional(3), c.optional(4)
        self.batch_first = bool(c.attr("layout", 0))
        steps, batch = self.x.shape[:2] if not self.batch_first else (self.x.shape[1], self.x.shape[0])
        self.steps, self.batch, self.hidden = steps, batch, self._hidden()
        self.scan: Scan = self.b.scan(steps)
        self.projected = self._project()

    def _hidden(self) -> Expr:
        return self.r.shape[-1]

    def _project(self) -> Value:
        """X W^T, [T, B, gates * H]."""

        def body(i: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
            t, n, o = i
            at = (n, t, k[0]) if self.batch_first else (t, n, k[0])
            return self.x[at] * self.w[(E.const(self.index), o, k[0])]

        shape = [self.steps, self.batch, self.hidden * self.gates]
        return self.b.reduce("sum", shape, [self.x.shape[2]], body)

    def input(self, t: Expr, n: Expr, gate: int, h: Expr) -> Expr:
        """What step t gets from the input for a gate: the projection plus the input bias."""
        o = h + self.hidden * gate
        term = self.projected[(self._source(t, n), n, o)]
        return term if self.bias is None else term + self.bias[(E.const(self.index), o)]

    def _source(self, t: Expr, n: Expr) -> Expr:
        """The step of X that step t of the recurrence takes; the padding is left where it is."""
        if not self.reverse:
            return t
        if self.lengths is None:
            return self.steps - 1 - t
        length = self._length(n)
        return E.select(E.lt(t, length), E.maximum(length - 1 - t, 0), t)

    def _length(self, n: Expr) -> Expr:
        assert self.lengths is not None
        return E.minimum(E.cast(self.lengths[n], E.INDEX), self.steps)

    def clipped(self, x: Expr) -> Expr:
        """The sum that goes into a gate, limited to [-clip, clip] where the node says so.  The cell that
        goes into LSTM's last activation is not clipped, as in onnxruntime and OpenVINO."""
        clip = self.c.attr("clip")
        return x if clip is None else E.minimum(E.maximum(x, -clip), clip)

    def recurrent(self, product: Value, column: int, gate: int, t: Expr, n: Expr, h: Expr) -> Expr:
        """What step t gets from the state for a gate: block `column` of `product` plus the recurrent
        bias."""
        term = E.load(product, (t, n, h + self.hidden * column))
        if self.bias is None:
            return term
        return term + self.bias[(E.const(self.index), h + self.hidden * (self.gates + gate))]

    def initial(self, state: Value | None, n: Expr, h: Expr) -> Expr:
        """An entry of an initial state, 0 where it is omitted."""
        if state is None:
            return E.const(0, self.x.dtype)
        d = E.const(self.index)
        return state[(n, d, h) if self.batch_first else (d, n, h)]

    def member(self) -> Value:
        """A value [T, B, H] of the recurrence."""
        return self.b.member(self.scan, self.x.dtype, [self.batch, self.hidden])

    def back(self, member: Value, state: Value | None, t: Expr, n: Expr, h: Expr) -> Expr:
        """The entry of `member` one step back, that of its initial state at the first step."""
        return E.select(E.eq(t, 0), self.initial(state, n, h), E.load(member, (t - 1, n, h)))

    def previous(self, member: Value, state: Value | None) -> Value:
        """`back` of all entries as a member, for products to read."""
        result = self.member()
        self.b.define(result, lambda t, n, h: self.back(member, state, t, n, h))
        return result

    def product(self, source: Value, first: int, count: int) -> Value:
        """`source` [T, B, H] times the recurrent weights of `count` gates from `first` on."""
        result = self.b.member(self.scan, self.x.dtype, [self.batch, self.hidden * count])

        def body(i: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
            t, n, o = i
            return E.load(source, (t, n, k[0])) * self.r[(E.const(self.index), o + self.hidden * first, k[0])]

        self.b.define(result, body, "sum", [self.hidden])
        return result

    def define(self, state: Value, initial: Value | None, body: Callable[[Expr, Expr, Expr], Expr]) -> None:
        """Define a state of the recurrence; beyond a sequence's length it stays as it was."""

        def held(t: Expr, n: Expr, h: Expr) -> Expr:
            if self.lengths is None:
                return body(t, n, h)
            return E.select(E.lt(t, self._length(n)), body(t, n, h), self.back(state, initial, t, n, h))

        self.b.define(state, held)

    def sequence(self, state: Value) -> Value:
        """A state at all steps in the order of X, [T, 1, B, H], 0 beyond a sequence's length."""

        def body(t: Expr, d: Expr, n: Expr, h: Expr) -> Expr:
            here = E.load(state, (self._source(t, n), n, h))
            if self.lengths is None:
                return here
            return E.select(E.lt(t, self._length(n)), here, E.const(0, self.x.dtype))

        return self.b.map([self.steps, 1, self.batch, self.hidden], body)

    def final(self, state: Value, initial: Value | None) -> Value:
        """A state after the last step, [1, B, H]."""

        def body(d: Expr, n: Expr, h: Expr) -> Expr:
            none = E.eq(self.steps, 0)
            return E.select(none, self.initial(initial, n, h), E.load(state, (self.steps - 1, n, h)))

        return self.b.map([1, self.batch, self.hidden], body)


class QuantizedLayer(Layer):
    """A direction of DynamicQuantizeLSTM: W [directions, I, gates * H] and R [directions, H, gates * H] in
    8 bits with scales and zero points [directions] or [directions, gates * H]; all of X, and the state
    at every step, are quantized to uint8 by their own range."""

    def _hidden(self) -> Expr:
        return self.r.shape[1]

    def _weight(self, w: Value, first: int, k: Expr, o: Expr) -> Expr:
        """An entry of W or R, whose scale is input `first` and zero point the one after it, as int32."""
        zero = self.c.optional(first + 1)
        entry = E.cast(w[(E.const(self.index), k, o)], "int32")
        return entry if zero is None else entry - E.cast(self._parameter(zero, o), "int32")

    def _parameter(self, p: Value, o: Expr) -> Expr:
        return p[(E.const(self.index), o)[: p.rank]]

    def _project(self) -> Value:
        x, scale, zero = dynamically_quantized(self.b, self.x)

        def body(i: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
            t, n, o = i
            number = E.cast(x[(t, n, k[0])], "int32") - E.cast(zero[()], "int32")
            return number * self._weight(self.w, 8, k[0], o)

        shape = [self.steps, self.batch, self.hidden * self.gates]
        total = self.b.reduce("sum", shape, [self.x.shape[2]], body)

        def real(t: Expr, n: Expr, o: Expr) -> Expr:
            return E.cast(total[(t, n, o)], self.x.dtype) * (scale[()] * self._parameter(self.c[8], o))

        return self.b.map(shape, real)

    def product(self, source: Value, first: int, count: int) -> Value:
        b, size = self.b, [self.batch, self.hidden]
        low, high, scale = (b.member(self.scan, self.x.dtype, [1]) for _ in range(3))
        zero, state = b.member(self.scan, "uint8", [1]), b.member(self.scan, "uint8", size)
        for op, end in (("min", low), ("max", high)):
            b.define(end, lambda i, k: E.load(source, (i[0], *k)), op, size)
        none = E.const(0)

        def step(t: Expr, _: Expr) -> Expr:
            width = E.maximum(E.load(high, (t, none)), 0) - E.minimum(E.load(low, (t, none)), 0)
            return E.select(E.eq(width, 0), E.const(1, self.x.dtype), width / 255)

        def origin(t: Expr, _: Expr) -> Expr:
            least = E.minimum(E.load(low, (t, none)), 0)
            return saturate(-least / E.load(scale, (t, none)), None, "uint8")

        def quantized(t: Expr, n: Expr, h: Expr) -> Expr:
            ratio = E.load(source, (t, n, h)) / E.load(scale, (t, none))
            return saturate(ratio, E.load(zero, (t, none)), "uint8")

        def body(i: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
            t, n, o = i
            number = E.cast(E.load(state, (t, n, k[0])), "int32") - E.cast(E.load(zero, (t, none)), "int32")
            return number * self._weight(self.r, 10, k[0], o + self.hidden * first)

        columns = [self.batch, self.hidden * count]
        total, result = b.member(self.scan, "int32", columns), b.member(self.scan, self.x.dtype, columns)

        def real(t: Expr, n: Expr, o: Expr) -> Expr:
            factor = E.load(scale, (t, none)) * self._parameter(self.c[10], o + self.hidden * first)
            return E.cast(E.load(total, (t, n, o)), self.x.dtype) * factor

        b.define(scale, step)
        b.define(zero, origin)
        b.define(state, quantized)
        b.define(total, body, "sum", [self.hidden])
        b.define(result, real)
        return result


def _layers(c: Context, gates: int, default: list[str], kind: type[Layer] = Layer) -> list[Layer]:
    """The node's one or two directions."""
    direction = c.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise c.error(f"direction '{direction}' is none of forward, reverse and bidirectional")
    count = 2 if direction == "bidirectional" else 1
    functions = _activations(c, default * count)
    per = len(default)
    return [
        kind(c, i, direction == "reverse" or i == 1, gates, functions[i * per : (i + 1) * per])
        for i in range(count)
    ]


def _outputs(c: Context, directions: list[list[Value]]) -> list[Value]:
    """Y and the final states: the directions side by side, with the batch first where the layout asks
    for it."""
    results = []
    for number, parts in enumerate(zip(*directions)):
        joined = parts[0] if len(parts) == 1 else concat(c.b, parts, 1 if number == 0 else 0)
        if c.attr("layout", 0):
            joined = c.b.transpose(joined, [2, 0, 1, 3] if number == 0 else [1, 0, 2])
        results.append(joined)
    return results


@lowering("RNN")
def rnn(c: Context) -> list[Value]:
    """H' = f(X W^T + H R^T + biases)."""
    return _outputs(c, [_rnn(layer, c.optional(5)) for layer in _layers(c, 1, ["Tanh"])])


def _rnn(layer: Layer, initial: Value | None) -> list[Value]:
    (f,) = layer.activations
    state = layer.member()
    product = layer.product(layer.previous(state, initial), 0, 1)

    def body(t: Expr, n: Expr, h: Expr) -> Expr:
        return f(layer.clipped(layer.input(t, n, 0, h) + layer.recurrent(product, 0, 0, t, n, h)))

    layer.define(state, initial, body)
    return [layer.sequence(state), layer.final(state, initial)]


@lowering("GRU")
def gru(c: Context) -> list[Value]:
    """Gates z (update) and r (reset): H' = (1 - z) h + z H, with the candidate h = g(X Wh^T + (r H) Rh^T),
    or with linear_before_reset g(X Wh^T + r (H Rh^T + bias))."""
    linear = bool(c.attr("linear_before_reset", 0))
    return _outputs(c, [_gru(layer, c.optional(5), linear) for layer in _layers(c, 3, ["Sigmoid", "Tanh"])])


def _gru(layer: Layer, initial: Value | None, linear: bool) -> list[Value]:
    f, g = layer.activations
    state = layer.member()
    previous = layer.previous(state, initial)
    product = layer.product(previous, 0, 3 if linear else 2)

    def gate(which: int, t: Expr, n: Expr, h: Expr) -> Expr:
        return f(layer.clipped(layer.input(t, n, which, h) + layer.recurrent(product, which, which, t, n, h)))

    kept = product
    if not linear:
        kept = layer.member()
        layer.b.define(kept, lambda t, n, h: gate(1, t, n, h) * E.load(previous, (t, n, h)))
        kept = layer.product(kept, 2, 1)

    def body(t: Expr, n: Expr, h: Expr) -> Expr:
        inner = layer.recurrent(kept, 2 if linear else 0, 2, t, n, h)
        if linear:
            inner = gate(1, t, n, h) * inner
        new = g(layer.clipped(layer.input(t, n, 2, h) + inner))
        update = gate(0, t, n, h)
        return (1 - update) * new + update * E.load(previous, (t, n, h))

    layer.define(state, initial, body)
    return [layer.sequence(state), layer.final(state, initial)]


@lowering("LSTM")
def lstm(c: Context) -> list[Value]:
    """Gates i, o, f and the candidate c: C' = f C + i g(c), H' = o h(C'); peepholes add P C to i and f,
    and P C' to o; input_forget makes f = 1 - i."""
    return _outputs(c, [_lstm(layer) for layer in _layers(c, 4, ["Sigmoid", "Tanh", "Tanh"])])


@lowering("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(c: Context) -> list[Value]:
    """LSTM with weights in 8 bits."""
    return _outputs(c, [_lstm(layer) for layer in _layers(c, 4, ["Sigmoid", "Tanh", "Tanh"], QuantizedLayer)])


def _lstm(layer: Layer) -> list[Value]:
    c, (f, g, out) = layer.c, layer.activations
    initial, cell_initial, peephole = c.optional(5), c.optional(6), c.optional(7)
    state, cell = layer.member(), layer.member()
    product = layer.product(layer.previous(state, initial), 0, 4)

    def total(gate: int, peep: int | None, t: Expr, n: Expr, h: Expr, seen: Expr) -> Expr:
        """What goes into a gate; `peep` is its place in P (i, o, f), `seen` the cell it sees there."""
        result = layer.input(t, n, gate, h) + layer.recurrent(product, gate, gate, t, n, h)
        if peephole is not None and peep is not None:
            result = result + peephole[(E.const(layer.index), h + layer.hidden * peep)] * seen
        return layer.clipped(result)

    def new_cell(t: Expr, n: Expr, h: Expr) -> Expr:
        old = layer.back(cell, cell_initial, t, n, h)
        enter = f(total(0, 0, t, n, h, old))
        forget = 1 - enter if c.attr("input_forget", 0) else f(total(2, 2, t, n, h, old))
        return forget * old + enter * g(total(3, None, t, n, h, old))

    def new_state(t: Expr, n: Expr, h: Expr) -> Expr:
        now = E.load(cell, (t, n, h))
        return f(total(1, 1, t, n, h, now)) * out(now)

    layer.define(cell, cell_initial, new_cell)
    layer.define(state, initial, new_state)
    return [layer.sequence(state), layer.final(state, initial), layer.final(cell, cell_initial)]
