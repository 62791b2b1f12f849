"""Invariants of programs and kernels; a violation is a bug of the compiler, never of a model.

Every pass may call `program` on what it made; tests call it on every model.
"""

from __future__ import annotations

from collections.abc import Iterable

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import (
    Accumulate,
    Declare,
    For,
    If,
    Kernel,
    Let,
    Micro,
    Stmt,
    Store,
    While,
    expressions,
    walk,
)  # fmt: skip
from cuvil.ir.primitives import (
    REDUCTIONS,
    Constant,
    Input,
    Map,
    Opaque,
    Prepared,
    Program,
    Reduce,
    Scatter,
    Value,
    definition_loads,
    static,
)  # fmt: skip

MAX_LOCAL_BYTES = 32 << 10
"""Largest local array of a kernel."""


class InternalError(AssertionError):
    """An invariant of the intermediate representation does not hold.

    Args:
        where: the value, kernel or pass.
        message: the invariant.
    """

    def __init__(self, where: object, message: str) -> None:
        super().__init__(f"{where}: {message}")


def check(condition: bool, where: object, message: str) -> None:
    """Raises InternalError unless `condition`."""
    if not condition:
        raise InternalError(where, message)


# --- programs ---------------------------------------------------------------------------------------


def program(p: Program) -> None:
    """Values are defined before they are read (or one step back in their recurrence), names are unique,
    and every definition agrees with its value in type, rank and sizes.

    Raises:
        InternalError: what does not hold.
    """
    position = {v: n for n, v in enumerate(p.values)}
    check(len(position) == len(p.values), p.name, "a value is listed twice")
    names = [v.name for v in p.values]
    check(len(set(names)) == len(names), p.name, "two values have one name")
    symbols = {*(E.sym(name) for name in p.symbols), *p.derived}
    for v in p.inputs:
        check(v in position and isinstance(v.definition, Input), v, "an input that is not defined as one")
    for v in p.outputs:
        check(v in position, v, "an output that is not among the values")
        check(
            not isinstance(v.definition, (Input, Constant)), v, "an output in memory of its own is computed"
        )
    check(len({*p.outputs}) == len(p.outputs), p.name, "a value is two outputs")
    for v in p.values:
        _sizes(v, symbols)
        _definition(v, position, symbols)


def _sizes(v: Value, symbols: set[Expr]) -> None:
    for n in v.shape:
        check(n.dtype == E.INDEX, v, f"size {n} is no index")
        check(not E.loads(n) and not E.variables(n), v, f"size {n} depends on more than symbols")
        free = {e for e in E.walk(n) if e.op == "sym"}
        check(free <= symbols, v, f"size {n} has unknown symbols")


def _definition(v: Value, position: dict[Value, int], symbols: set[Expr]) -> None:
    d = v.definition
    if isinstance(d, Input):
        return
    if isinstance(d, Constant):
        check(tuple(map(static, v.shape)) == d.array.shape, v, f"has data of shape {d.array.shape}")
        check(
            d.array.dtype == E.numpy_dtype(v.dtype) or v.dtype == "string", v, f"has data of {d.array.dtype}"
        )
        if isinstance(d, Prepared):
            held = isinstance(d.source.definition, Constant) and not isinstance(d.source.definition, Prepared)
            check(held, v, f"is prepared from {d.source}, which the library does not hold")
        return
    check(d is not None, v, "has no definition")
    for e in definition_loads(v):
        _load(v, e, position)
    if isinstance(d, (Map, Reduce)):
        _axes(v, d.axes, v.shape)
        inner = d.reduced if isinstance(d, Reduce) else ()
        check(all(r.op == "var" for r in inner), v, "reduces over what is no variable")
        check(not isinstance(d, Reduce) or d.op in REDUCTIONS, v, "has an unknown reduction")
        check(d.body.dtype == v.dtype, v, f"is computed as {d.body.dtype}")
        _closed(v, (d.body,), (*d.axes, *inner), symbols)
    elif isinstance(d, Scatter):
        check(d.base in position and position[d.base] < position[v], v, "updates what comes later")
        check(d.base.dtype == v.dtype and d.base.shape == v.shape, v, f"is based on {d.base}")
        check(len(d.indices) == v.rank and d.update.dtype == v.dtype, v, "has updates of another kind")
        check(d.combine == "set" or d.combine in REDUCTIONS, v, "has an unknown combination")
        _closed(v, (*d.indices, d.update), d.domain, symbols)
    elif isinstance(d, Opaque):
        check(v in d.outputs, v, "is no output of its definition")
        for source in d.inputs:
            check(
                source in position and position[source] < position[v], v, f"reads {source} before it is there"
            )
        _statements(d.body, v, {*d.inputs, *d.outputs}, {*d.outputs}, symbols)


def _axes(v: Value, axes: tuple[Expr, ...], shape: tuple[Expr, ...]) -> None:
    check(len(axes) == len(shape), v, f"has {len(axes)} axes and rank {len(shape)}")
    for axis, size in zip(axes, shape):
        check(axis.op == "var" and axis.args[0] is size, v, f"axis {axis} does not run over {size}")
    check(len(set(axes)) == len(axes), v, "has one variable on two axes")


def _closed(v: Value, roots: tuple[Expr, ...], bound: Iterable[Expr], symbols: set[Expr]) -> None:
    known = set(bound)
    for e in E.walk(*roots):
        check(e.op != "var" or e in known, v, f"has the free variable {e}")
        check(e.op != "sym" or e in symbols, v, f"has the unknown symbol {e}")


def _load(v: Value, e: Expr, position: dict[Value, int]) -> None:
    source: Value = e.attr
    check(source in position, v, f"reads {source}, which is not in the program")
    check(len(e.args) == source.rank and e.dtype == source.dtype, v, f"reads {source} as {e}")
    check(all(i.dtype == E.INDEX for i in e.args), v, f"reads {source} at what is no index")
    if v.scan is None or source.scan is not v.scan:
        check(position[source] < position[v], v, f"reads {source} before it is there")
        return
    d = v.definition
    assert isinstance(d, (Map, Reduce))
    behind = E.upper_bound(e.args[0] - d.axes[0])
    allowed = 0 if v.scan.members.index(source) < v.scan.members.index(v) else -1
    check(behind <= allowed, v, f"reads {source} at step {e.args[0]}, which is not computed yet")


# --- kernels ----------------------------------------------------------------------------------------


def kernel(k: Kernel, symbols: Iterable[Expr]) -> None:
    """Variables and locals are declared before they are used, ranks and types agree, memory that is
    touched is listed, and all that is listed as written is stored to.

    Raises:
        InternalError: what does not hold.
    """
    known = set(symbols)
    check(all(v.op == "var" for v in k.parallel), k.name, "is parallel over what is no variable")
    writes = {*k.writes}
    outer = [*k.parallel, *([k.slot] if k.slot is not None else [])]
    _statements(k.body, k.name, {*k.reads, *writes}, writes, known, outer)
    stored = {s.target for s in walk(k.body) if isinstance(s, (Store, Accumulate))}
    stored |= {s.writes[0] for s in walk(k.body) if isinstance(s, Micro)}
    for v in writes:
        check(v in stored, k.name, f"never stores {v}")


def _statements(
    body: tuple[Stmt, ...],
    where: object,
    readable: set[Value],
    writable: set[Value],
    symbols: set[Expr],
    variables: Iterable[Expr] = (),
) -> None:
    scope = {*variables}
    local: set[Value] = set()

    def use(e: Expr) -> None:
        for node in E.walk(e):
            if node.op == "var":
                check(node in scope, where, f"variable {node} of {e} is not declared")
            elif node.op == "sym":
                check(node in symbols, where, f"symbol {node} is unknown")
            elif node.op == "load":
                check(
                    node.attr in local or node.attr in readable,
                    where,
                    f"reads {node.attr}, which is not listed",
                )

    def touch(v: Value, indices: tuple[Expr, ...], dtype: str) -> None:
        check(v in local or v in writable, where, f"writes {v}, which is not listed")
        check(len(indices) == v.rank, where, f"writes {v} at {len(indices)} indices")
        check(dtype == v.dtype, where, f"writes {dtype} to {v}")

    def block(statements: tuple[Stmt, ...]) -> None:
        declared: list[Expr] = []
        inside: list[Value] = []
        for s in statements:
            for e in expressions(s):
                use(e)
            if isinstance(s, For):
                check(s.kind in ("serial", "simd"), where, f"has a loop of kind {s.kind}")
                check(s.var not in scope, where, f"variable {s.var} is declared twice")
                scope.add(s.var)
                block(s.body)
                scope.discard(s.var)
            elif isinstance(s, Let):
                scope.add(s.var)
                declared.append(s.var)
            elif isinstance(s, Declare):
                _local(s.target, where)
                local.add(s.target)
                inside.append(s.target)
            elif isinstance(s, (Store, Accumulate)):
                touch(s.target, s.indices, s.value.dtype)
            elif isinstance(s, Micro):
                for v, at in (*s.reads, s.writes):
                    check(v in local or v in readable, where, f"reads {v}, which is not listed")
                    check(len(at) == v.rank, where, f"touches {v} at {len(at)} indices")
                touch(*s.writes, s.writes[0].dtype)
            elif isinstance(s, If):
                check(s.condition.dtype == "bool", where, f"condition {s.condition} is no bool")
                block(s.then)
                block(s.otherwise)
            elif isinstance(s, While):
                block(s.body)
        scope.difference_update(declared)
        local.difference_update(inside)

    block(body)


def _local(v: Value, where: object) -> None:
    count = 1
    for n in v.shape:
        size = static(n)
        check(size is not None, where, f"local {v} has no known size")
        count *= size or 0
    check(
        count * E.numpy_dtype(v.dtype).itemsize <= MAX_LOCAL_BYTES,
        where,
        f"local {v} is too large for the stack",
    )
