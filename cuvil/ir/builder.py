"""The builder of programs: what operators are written with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from cuvil import limits
from cuvil.errors import ModelError
from cuvil.ir import expr as E
from cuvil.ir import text
from cuvil.ir.expr import Expr, Operand, depends_on_data
from cuvil.ir.primitives import (
    Constant,
    Definition,
    Input,
    Map,
    Opaque,
    Program,
    Reduce,
    Scan,
    Scatter,
    Value,
    static,
)

if TYPE_CHECKING:
    from cuvil.ir.loops import Stmt


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
