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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from cuvil.ir import expr as E
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
class Prepared(Constant):
    """A constant that a library does not hold but computes at the start of its first run.

    Attributes:
        source: the constant that it is computed from.
        kernel: the micro-kernel that does it (`cuvil.ir.loops.Micro`), called with the addresses of `source`
            and of the result, and `count`.
    """

    source: Value
    kernel: Any
    count: int


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
