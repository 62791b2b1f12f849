"""Loops: statements over values, and the kernels made of them.

This is what a renderer prints.  Arrays are `Value`s throughout: tensors that live in memory and
locals of a kernel alike; where each lives is the business of a `Storage` map, so the same loops
can be printed over any layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Union

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value


@dataclass(frozen=True, eq=False)
class For:
    """``for var in range(start, stop)``, kinds: ``serial``, ``simd`` (iterations are independent but
    for the accumulators in `reduction`, and the compiler is told so)."""

    var: Expr
    stop: Expr
    body: tuple[Stmt, ...]
    kind: str = "serial"
    start: Expr = field(default_factory=lambda: E.const(0))
    reduction: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, eq=False)
class Store:
    """``target[indices] = value``."""

    target: Value
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, eq=False)
class Accumulate:
    """``target[indices] = op(target[indices], value)``, `op` as in a `Reduce`."""

    target: Value
    indices: tuple[Expr, ...]
    op: str
    value: Expr


@dataclass(frozen=True, eq=False)
class Declare:
    """A local array (a scalar where the shape is empty), uninitialised, of static shape."""

    target: Value


@dataclass(frozen=True, eq=False)
class If:
    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, eq=False)
class While:
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Let:
    """A name for an index that the statements after it use."""

    var: Expr
    value: Expr


@dataclass(frozen=True, eq=False)
class Micro:
    """A tuned micro-kernel: ``acc += a (x) b`` on one tile.

    `kernel` is the description that the renderer's table of micro-kernels understands (hashable:
    equal descriptions share one function); `arguments` are (value, indices) whose addresses are
    passed, then plain index arguments.  What it touches follows from its tile of sums, the last two axes of
    the value written, unless `touches` says how many elements of each value read and of the one written.
    What a call takes follows from `flops`, unless `cycles` says how many processor cycles.
    """

    kernel: Any
    reads: tuple[tuple[Value, tuple[Expr, ...]], ...]
    writes: tuple[Value, tuple[Expr, ...]]
    arguments: tuple[Expr, ...] = ()
    flops: Expr = field(default_factory=lambda: E.const(0))
    touches: tuple[int, ...] = ()
    cycles: Expr | None = None


Stmt = Union[For, Store, Accumulate, Declare, If, While, Let, Micro]


@dataclass(eq=False)
class Kernel:
    """A unit that is placed, costed, printed and called.

    Attributes:
        parallel: variables of the outer loops whose iterations are independent; the body runs once
            for each point of their domain, in the order of the variables.
        reads, writes: values in memory, not locals.
        origin: names of the graph nodes that it came from.
        tag: what kind of work it is (``conv``, ``gemm``, ``rows``, ...), a class for the cost model.
        slot: a variable whose value is the number of the thread that runs a point, below its extent: where
            in a scratch value in memory the point works.
    """

    name: str
    parallel: tuple[Expr, ...]
    body: tuple[Stmt, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    origin: tuple[str, ...] = ()
    tag: str = "map"
    values: tuple[Value, ...] = field(default_factory=tuple)
    slot: Expr | None = None


def children(statement: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside one."""
    if isinstance(statement, (For, While)):
        return statement.body
    if isinstance(statement, If):
        return statement.then + statement.otherwise
    return ()


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    for statement in body:
        yield statement
        yield from walk(children(statement))


def expressions(statement: Stmt) -> tuple[Expr, ...]:
    """The expressions a statement evaluates itself, not those of statements inside it."""
    if isinstance(statement, For):
        return (statement.start, statement.stop)
    if isinstance(statement, (Store, Accumulate)):
        return (*statement.indices, statement.value)
    if isinstance(statement, (If, While)):
        return (statement.condition,)
    if isinstance(statement, Let):
        return (statement.value,)
    if isinstance(statement, Micro):
        indices = [i for _, at in (*statement.reads, statement.writes) for i in at]
        return (*indices, *statement.arguments)
    return ()
