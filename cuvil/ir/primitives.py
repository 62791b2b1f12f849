"""Primitives: what every operator is lowered to.

A `Value` is a tensor together with the definition of its elements.  There are few kinds of
definition: `Map` (an expression per element: element-wise work, views, gathers), `Reduce` (an
associative operator over extra axes: sums, pooling, every contraction), `Scatter` (a copy with
some elements updated) and `Opaque` (loops written out, for sorting and the like).  A recurrence
is a set of Map and Reduce values that share a `Scan`: they may read each other one step back on
their first axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

import numpy as np

from cuvil import limits
from cuvil.errors import ModelError
from cuvil.ir import expr as E
from cuvil.ir import text
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.expr import depends_on_data as depends_on_data

if TYPE_CHECKING:
    from cuvil.ir.loops import Stmt

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all")


@dataclass(frozen=True, eq=False)
class Input:
    """An argument of the program."""


@dataclass(frozen=True, eq=False)
class Constant:
    """Known at compile time."""

    array: np.ndarray


@dataclass(frozen=True, eq=False)
class Map:
    """``value[axes] = body``."""

    axes: tuple[Expr, ...]
    body: Expr


@dataclass(frozen=True, eq=False)
class Reduce:
    """``value[axes] = op over reduced of body``; the accumulator has the body's type."""

    axes: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    op: str
    body: Expr

    @property
    def identity(self) -> Expr:
        return identity(self.op, self.body.dtype)


@dataclass(frozen=True, eq=False)
class Scatter:
    """``value = base``, then at every point of `domain` ``v[indices] = combine(v[indices], update)``.

    `combine` is ``set`` or one of the `REDUCTIONS`; the domain is visited in order.
    """

    base: Value
    domain: tuple[Expr, ...]
    indices: tuple[Expr, ...]
    update: Expr
    combine: str


@dataclass(frozen=True, eq=False)
class Opaque:
    """Statements that fill `outputs` (this value among them) from `inputs`."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    body: tuple[Stmt, ...]


@dataclass(eq=False)
class Scan:
    """A recurrence: `members` in the order in which one step computes them, `extent` steps."""

    extent: Expr
    members: list[Value] = field(default_factory=list)


Definition = Union[Input, Constant, Map, Reduce, Scatter, Opaque, None]


@dataclass(eq=False)
class Value:
    """A tensor of the lowered program.

    Attributes:
        name: for people; unique in a `Program`, never an identifier in generated code.
        definition: how its elements come about; None for a local of a kernel.
        scan: the recurrence it belongs to, if any.
        origin: the graph nodes it came from, for reports.
        text: it is a string tensor; its last axis, of known size, holds an element's bytes (`cuvil.ir.text`).
        capacity: the most elements it can have, where its data-dependent sizes have a smaller product
            than their bounds.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    definition: Definition = None
    scan: Scan | None = None
    origin: tuple[str, ...] = ()
    capacity: Expr | None = None
    text: bool = False

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Expr:
        """The element at `indices`: a known constant where it can be, else a load."""
        return element(self, indices if isinstance(indices, tuple) else (indices,))

    def __repr__(self) -> str:
        from cuvil.ir.printer import show_shape

        kind = type(self.definition).__name__ if self.definition else "Local"
        return f"<{self.name}: {self.dtype}{show_shape(self.shape)} {kind}>"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_constant(self) -> bool:
        return isinstance(self.definition, Constant)

    @property
    def array(self) -> np.ndarray:
        """The data of a constant."""
        assert isinstance(self.definition, Constant)
        return self.definition.array


def identity(op: str, dtype: str) -> Expr:
    """The neutral element of a reduction."""
    if op in ("sum", "any"):
        return E.const(0, dtype)
    if op in ("prod", "all"):
        return E.const(1, dtype)
    sign = -1 if op == "max" else 1
    if E.is_float(dtype):
        return E.const(sign * math.inf, dtype)
    if dtype == "bool":
        return E.const(sign > 0, "bool")
    info = np.iinfo(E.numpy_dtype(dtype))
    return E.const(int(info.min if op == "max" else info.max), dtype)


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """One step of a reduction."""
    if op == "any":
        return E.logical("or", a, b)
    if op == "all":
        return E.logical("and", a, b)
    return E.binary({"sum": "add", "prod": "mul"}.get(op, op), a, b)


def static(size: Operand) -> int | None:
    """The number a size is known to be, or None."""
    if isinstance(size, int):
        return size
    assert isinstance(size, Expr)
    return int(size.attr) if size.is_const else None


def elements(shape: Iterable[Expr]) -> Expr:
    """Number of elements of a shape."""
    return E.product(shape)


_MAX_UNROLLED = 64


def element(value: Value, indices: Sequence[Operand]) -> Expr:
    """The element of `value` at `indices`, evaluated at compile time where that is possible.

    Constants give their number; small integer tensors (shapes and what is computed from them) are
    followed through their definitions, which is what makes ``Shape -> Gather -> Concat ->
    Reshape`` chains symbolic arithmetic instead of code.
    """
    args = tuple(E.wrap(i, E.INDEX) for i in indices)
    args = tuple(E.const(0) if static(size) == 1 else a for a, size in zip(args, value.shape))
    d = value.definition
    if isinstance(d, Constant):
        if not d.array.size:  # nothing reads it
            return E.const(0, value.dtype)
        if all(a.is_const for a in args):
            return E.const(d.array[tuple(int(a.attr) for a in args)].item(), value.dtype)
        if d.array.size <= 4096 and _uniform(d.array):
            return E.const(d.array.flat[0].item(), value.dtype)
    small = value.dtype in ("int64", "int32", "bool") and all(a.is_const for a in args)
    if small and value.scan is None and isinstance(d, (Map, Reduce)):
        return _follow(value, d, args)
    return E.load(value, args)


def _uniform(array: np.ndarray) -> bool:
    first = array.flat[0]
    return bool(first == first and (array == first).all())


def _follow(value: Value, d: Map | Reduce, args: tuple[Expr, ...]) -> Expr:
    mapping = dict(zip(d.axes, args))
    known = lambda e: element(e.attr, e.args) if e.op == "load" else None  # noqa: E731
    if isinstance(d, Map):
        result = E.transform(E.substitute(d.body, mapping), known)
        return result if not E.loads(result) else E.load(value, args)
    extents = [static(r.args[0]) for r in d.reduced]
    if any(n is None for n in extents) or math.prod(n for n in extents if n is not None) > _MAX_UNROLLED:
        return E.load(value, args)
    total = d.identity
    for point in itertools.product(*(range(n) for n in extents if n is not None)):
        at = {**mapping, **{r: E.const(i) for r, i in zip(d.reduced, point)}}
        total = combine(d.op, total, E.transform(E.substitute(d.body, at), known))
    return total if not E.loads(total) else E.load(value, args)


@dataclass
class Program:
    """A lowered graph.

    Attributes:
        symbols: names of the symbolic sizes, in order of appearance among the inputs.
        values: every value, producers before consumers.
        derived: the symbols that the data decide (`Builder.derived`), in the order in which they become
            known.
    """

    name: str
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    derived: list[Expr] = field(default_factory=list)

    @property
    def pinned(self) -> set[Value]:
        """The values that must be in memory as they are: outputs, and what the run-time symbols read."""
        return {*self.outputs, *(e.attr for s in self.derived for e in E.loads(s.args[0]))}


def definition_loads(value: Value) -> list[Expr]:
    """The loads in a value's definition, also those one step back in a recurrence."""
    d = value.definition
    if isinstance(d, (Map, Reduce)):
        return E.loads(d.body)
    if isinstance(d, Scatter):
        return E.loads(*d.indices, d.update)
    return []


def operands(value: Value) -> list[Value]:
    """The values a definition reads, each once, in order; last those that its data-dependent sizes read."""
    d = value.definition
    sizes = dict.fromkeys(e.attr for e in E.size_loads(*value.shape, *_bodies(d)))
    if isinstance(d, Opaque):
        return list(dict.fromkeys([*d.inputs, *sizes]))
    found = dict.fromkeys([*(e.attr for e in definition_loads(value)), *sizes])
    return ([d.base] if isinstance(d, Scatter) and d.base not in found else []) + list(found)


def _bodies(d: Definition) -> list[Expr]:
    """The expressions in which a definition may use sizes."""
    if isinstance(d, Map):
        return [d.body]
    if isinstance(d, Reduce):
        return [d.body, *d.reduced]
    if isinstance(d, Scatter):
        return [*d.domain, *d.indices, d.update]
    if isinstance(d, Opaque):
        from cuvil.ir.loops import expressions, walk

        return [e for statement in walk(d.body) for e in expressions(statement)]
    return []


class Builder:
    """Makes values.  What operators are written with.

    Args:
        program: the program that is extended.

    Attributes:
        guard: the condition under which what is being made counts, where it does not always: numbers from
            the data are not checked where it does not hold, but 0, or the smallest allowed.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.origin: tuple[str, ...] = ()
        self._names: dict[str, int] = {}
        self._by_name: dict[str, Value] = {}
        self._derived: dict[tuple[Expr, Expr, int], Expr] = {}
        self.guard: Expr | None = None

    def _add(self, name: str, dtype: str, shape: Sequence[Expr], definition: Definition) -> Value:
        bytes_ = math.prod(n for n in map(static, shape) if n is not None)
        if bytes_ > limits.MAX_TENSOR_ELEMENTS:
            raise ModelError(f"tensor '{name}' has {bytes_} elements, at most {limits.MAX_TENSOR_ELEMENTS}")
        count = self._names.get(name, 0)
        while (unique := f"{name}.{count}" if count else name) in self._by_name:
            count += 1
        self._names[name] = count + 1
        value = Value(unique, dtype, tuple(shape), definition, origin=self.origin)
        self._by_name[unique] = value
        self.program.values.append(value)
        return value

    def rename(self, value: Value, name: str) -> None:
        """Call a value `name`; one that is called so already gets the other's name."""
        other = self._by_name.pop(name, None)
        if other is not None:
            other.name = value.name
            self._by_name[other.name] = other
        else:
            self._by_name.pop(value.name, None)
        value.name = name
        self._by_name[name] = value

    @property
    def _hint(self) -> str:
        return self.origin[0] if self.origin else "t"

    def input(self, name: str, dtype: str, shape: Sequence[Expr]) -> Value:
        value = self._add(name, dtype, shape, Input())
        self.program.inputs.append(value)
        return value

    def text_input(self, name: str, shape: Sequence[Expr]) -> Value:
        """A string input of `shape`."""
        value = self.input(name, "uint8", [*shape, E.const(limits.STRING_BYTES)])
        value.text = True
        return value

    def constant(self, array: np.ndarray, name: str = "") -> Value:
        """A value known at compile time; strings (an array of objects) as their bytes."""
        array = np.asarray(array)
        if array.dtype == object:
            value = self.constant(text.encode(array, f"constant '{name}'"), name)
            value.text = True
            return value
        shape = [E.const(n) for n in array.shape]
        return self._add(name or f"{self._hint}:c", str(array.dtype), shape, Constant(array))

    def map(self, shape: Sequence[Operand], body: Callable[..., Expr], name: str = "") -> Value:
        """``value[i...] = body(*i)`` over `shape`; a constant where nothing is read but constants
        of one element."""
        sizes = [E.wrap(s, E.INDEX) for s in shape]
        axes = tuple(E.var(s) for s in sizes)
        at = tuple(E.const(0) if static(s) == 1 else a for s, a in zip(sizes, axes))
        result = body(*at)
        return self._add(name or self._hint, result.dtype, sizes, Map(axes, result))

    def reduce(
        self, op: str, shape: Sequence[Operand], reduced: Sequence[Operand], body: Callable[..., Expr]
    ) -> Value:
        """``value[i...] = op over r of body(i, r)``; `body` gets the two index tuples."""
        sizes = [E.wrap(s, E.INDEX) for s in shape]
        axes = tuple(E.var(s) for s in sizes)
        inner = tuple(E.var(s, "r") for s in reduced)
        at = tuple(E.const(0) if static(s) == 1 else a for s, a in zip(sizes, axes))
        result = body(at, tuple(E.const(0) if static(r.args[0]) == 1 else r for r in inner))
        return self._add(self._hint, result.dtype, sizes, Reduce(axes, inner, op, result))

    def derived(self, definition: Expr, bound: Operand, low: int = 0) -> Expr:
        """A size, or any other index, that the data decide: its value at run time is that of `definition`,
        which may load from values made before.  It may be used in shapes.

        Args:
            bound: the largest value, a number or an expression of sizes; the run ends with an error code
                where the value lies outside [low, bound].
        """
        most = E.wrap(bound, E.INDEX)
        if not depends_on_data(definition):
            return definition
        if self.guard is not None and (definition, most, low) not in self._derived:
            definition = E.select(self.guard, definition, max(low, 0))
        known = self._derived.get((definition, most, low))
        if known is not None:
            return known
        number = self.map([], lambda: E.cast(definition, E.INDEX), f"{self._hint}:size")
        symbol = E.derived(number.name, E.load(number, ()), low, most)
        self.program.derived.append(symbol)
        result = most if most.is_const and most.attr == low else symbol
        self._derived[definition, most, low] = result
        return result

    @contextmanager
    def given(self, condition: Expr) -> Iterator[None]:
        """What is made in the block counts only where `condition` holds too."""
        outer = self.guard
        self.guard = condition if outer is None else outer & condition
        try:
            yield
        finally:
            self.guard = outer

    def attempt(self) -> Callable[[], None]:
        """A function that takes back all that is made from now on."""
        made, numbers, known = len(self.program.values), len(self.program.derived), dict(self._derived)

        def undo() -> None:
            del self.program.values[made:], self.program.derived[numbers:]
            self._derived = known

        return undo

    def require(self, holds: Expr) -> None:
        """The run ends with an error code where `holds`, which may load from values made before, is false."""
        self.derived(E.select(holds, 0, E.const(1)), 0)

    def broadcast(self, *shapes: Sequence[Expr]) -> tuple[Expr, ...]:
        """`broadcast_shapes`; the run ends with an error code where sizes that the data decide do not fit."""
        result = broadcast_shapes(*shapes)
        for shape in shapes:
            for size, whole in zip(reversed(shape), reversed(result)):
                if size is not whole and depends_on_data(size, whole):
                    self.require(E.eq(size, whole) | E.eq(size, 1))
        return result

    def require_equal(self, a: Expr, b: Expr) -> None:
        """The run ends with an error code where two sizes differ, of which the data decide at least one."""
        if depends_on_data(a, b):
            self.require(E.eq(a, b))

    def settle(self, value: Value, shape: Sequence[int | None]) -> None:
        """Say that the data-dependent sizes of `value` are the given ones (None leaves one as it is); the
        run ends with an error code where they are not."""
        pairs = list(zip(value.shape, shape))
        sizes = [E.const(n) if n is not None and depends_on_data(s) else s for s, n in pairs]
        if sizes == list(value.shape) or self.guard is not None:
            return
        values = self.program.values
        before = len(values)
        for size, wanted in zip(value.shape, sizes):
            if size is not wanted:
                self.derived(size, wanted.attr, wanted.attr)
        d = value.definition
        if not isinstance(d, (Map, Reduce)) or value.scan is not None:
            return
        at = values.index(value)
        values[at:] = [*values[before:], *values[at:before]]
        axes = tuple(a if s is a.args[0] else E.var(s) for a, s in zip(d.axes, sizes))
        mapping = {a: E.const(0) if static(b.args[0]) == 1 else b for a, b in zip(d.axes, axes) if a is not b}
        body = E.substitute(d.body, mapping)
        again = Map(axes, body) if isinstance(d, Map) else Reduce(axes, d.reduced, d.op, body)
        value.shape, value.definition = tuple(sizes), again

    def scatter(
        self,
        base: Value,
        domain: Sequence[Operand],
        at: Callable[..., tuple[Sequence[Operand], Expr]],
        combine: str = "set",
    ) -> Value:
        """`base` with updates; ``at(*domain)`` gives (indices, update)."""
        axes = tuple(E.var(s) for s in domain)
        indices, update = at(*axes)
        where = tuple(E.wrap(i, E.INDEX) for i in indices)
        return self._add(self._hint, base.dtype, base.shape, Scatter(base, axes, where, update, combine))

    def opaque(
        self,
        inputs: Sequence[Value],
        outputs: Sequence[tuple[str, Sequence[Expr]]],
        body: Callable[..., Sequence[Stmt]],
    ) -> list[Value]:
        """Values of the given (dtype, shape), filled by the statements ``body(*outputs)``."""
        made = [self._add(self._hint, dtype, shape, None) for dtype, shape in outputs]
        shared = Opaque(tuple(inputs), tuple(made), tuple(body(*made)))
        for value in made:
            value.definition = shared
        return made

    def scan(self, extent: Operand) -> Scan:
        """A new recurrence of `extent` steps; pass it to `member`."""
        return Scan(E.wrap(extent, E.INDEX))

    def member(self, scan: Scan, dtype: str, shape: Sequence[Operand]) -> Value:
        """A value of a recurrence whose definition comes later (by `define`); the first axis, the
        step, is added in front of `shape`."""
        value = self._add(self._hint, dtype, [scan.extent, *(E.wrap(s, E.INDEX) for s in shape)], None)
        value.scan = scan
        return value

    def define(
        self, value: Value, body: Callable[..., Expr], op: str = "", reduced: Sequence[Operand] = ()
    ) -> None:
        """Define a member of a recurrence, as `map` does, or with `op` as `reduce` does; members
        are computed in the order in which they are defined."""
        assert value.scan is not None and value.definition is None
        axes = tuple(E.var(s) for s in value.shape)
        at = tuple(
            E.const(0) if static(s) == 1 and n else a for n, (s, a) in enumerate(zip(value.shape, axes))
        )
        if op:
            inner = tuple(E.var(s, "r") for s in reduced)
            value.definition = Reduce(axes, inner, op, body(at, inner))
        else:
            value.definition = Map(axes, body(*at))
        value.scan.members.append(value)
        self.program.values.remove(value)
        self.program.values.append(value)

    # --- conveniences made of the above ---

    def elementwise(self, f: Callable[..., Expr], *values: Value) -> Value:
        """`f` on corresponding elements of values broadcast against each other (numpy's rules)."""
        shape = self.broadcast(*(v.shape for v in values))
        return self.map(shape, lambda *i: f(*(broadcast_load(v, i) for v in values)))

    def reduce_axes(
        self,
        op: str,
        x: Value,
        axes: Sequence[int],
        keepdims: bool = True,
        f: Callable[[Expr], Expr] = lambda e: e,
    ) -> Value:
        """``op`` over `axes` (non-negative) of ``f(x)``."""
        kept = [i for i in range(x.rank) if i not in axes]
        out = [E.const(1) if i in axes else s for i, s in enumerate(x.shape)]
        shape = out if keepdims else [x.shape[i] for i in kept]

        def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            at: list[Expr] = [E.const(0)] * x.rank
            for position, axis in enumerate(kept):
                at[axis] = i[axis] if keepdims else i[position]
            for position, axis in enumerate(sorted(axes)):
                at[axis] = r[position]
            return f(x[tuple(at)])

        return self.reduce(op, shape, [x.shape[i] for i in sorted(axes)], body)

    def reshape(self, x: Value, shape: Sequence[Operand]) -> Value:
        """The same elements in row-major order under another shape."""
        sizes = [E.wrap(s, E.INDEX) for s in shape]
        return self.map(sizes, lambda *i: x[unflatten(flatten(i, sizes), x.shape)])

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """``y.shape[k] == x.shape[perm[k]]``."""
        inverse = {axis: k for k, axis in enumerate(perm)}
        return self.map([x.shape[p] for p in perm], lambda *i: x[tuple(i[inverse[a]] for a in range(x.rank))])

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.dtype == dtype else self.elementwise(lambda e: E.cast(e, dtype), x)

    def vector(self, entries: Sequence[Operand]) -> Value:
        """An int64 vector of index expressions."""
        sizes = [E.wrap(s, E.INDEX) for s in entries]

        def body(i: Expr) -> Expr:
            result = sizes[-1] if sizes else E.const(0)
            for k in range(len(sizes) - 2, -1, -1):
                result = E.select(E.eq(i, k), sizes[k], result)
            return result

        return self.map([len(sizes)], body)


def flatten(indices: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The row-major position of `indices` in `shape`."""
    flat: Expr = E.const(0)
    for i, size in zip(indices, shape):
        flat = flat * size + i
    return flat


def unflatten(flat: Expr, shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices of a row-major position, the inverse of `flatten`."""
    result: list[Expr] = []
    for axis in range(len(shape)):
        below = E.product(shape[axis + 1 :])
        if axis == 0:
            result.append(E.floordiv(flat, below))
        else:
            result.append(E.floordiv(E.mod(flat, below * shape[axis]), below))
    return tuple(result)


def broadcast_shapes(*shapes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The shape numpy's broadcasting gives.  A symbolic size wins over 1; two different symbolic
    sizes are taken to be equal or 1 at run time.

    Raises:
        ModelError: two known sizes that differ and are not 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Expr] = []
    for axis in range(rank):
        size: Expr = E.const(1)
        for s in shapes:
            position = axis - rank + len(s)
            if position < 0 or static(s[position]) == 1 or s[position] is size:
                continue
            other = s[position]
            if static(size) == 1:
                size = other
            elif static(size) is None and static(other) is None:
                size = E.maximum(size, other)
            elif static(size) is None:
                size = other
            elif static(other) is not None:
                raise ModelError(f"cannot broadcast size {static(size)} with {static(other)} on axis {axis}")
        result.append(size)
    return tuple(result)


def broadcast_load(value: Value, indices: Sequence[Expr]) -> Expr:
    """The element of `value` that broadcasting pairs with position `indices` of the result."""
    tail = indices[len(indices) - value.rank :] if value.rank else ()
    at: list[Expr] = []
    for i, size in zip(tail, value.shape):
        in_range = i.is_const or (E.upper_bound(i - size) < 0)
        at.append(i if in_range or static(size) == 1 else E.minimum(i, size - 1))
    return value[tuple(at)]
