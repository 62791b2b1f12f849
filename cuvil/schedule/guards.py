"""Kernels that run only where a condition on the inputs asks for what they compute.

Both branches of an `If` are part of the program, and what follows selects.  Where the condition can be told
from the inputs alone, a kernel whose results are read in one branch only is skipped in the other: what it
would have written is then never used, only selected against.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, If, Kernel, Micro, Stmt, Store, children, expressions, walk
from cuvil.ir.primitives import Input, Value
from cuvil.schedule.storage import Storage

Guard = frozenset[Expr]
"""Conditions that all hold."""


def guard(kernels: list[Kernel], storage: Storage, always: set[Value]) -> list[Kernel]:
    """The kernels, each under the conditions that all its readers are under.

    Args:
        kernels: in order of execution.
        storage: where values live.
        always: root values that are needed whatever the conditions: the outputs, and sizes.
    """
    needed: dict[Value, Guard] = dict.fromkeys(always, frozenset())
    result: list[Kernel] = []
    for kernel in reversed(kernels):
        written = _written(kernel, storage)
        asked = [needed[root] for root in written if root in needed]
        own: Guard = frozenset.intersection(*asked) if len(asked) == len(written) and asked else frozenset()
        for root, under in _reads(kernel, own, storage).items():
            if root not in written:
                needed[root] = needed[root] & under if root in needed else under
        result.append(_under(kernel, own))
    return result[::-1]


def _under(kernel: Kernel, conditions: Guard) -> Kernel:
    """A kernel that does nothing where one of the conditions does not hold."""
    if not conditions:
        return kernel
    body = kernel.body
    read: dict[Value, None] = dict.fromkeys(kernel.reads)
    for condition in sorted(conditions, key=lambda c: c.serial):
        body = (If(condition, body),)
        read |= dict.fromkeys(e.attr for e in E.loads(condition))
    return replace(kernel, body=body, reads=tuple(read))


def _locals(kernel: Kernel) -> set[Value]:
    return {s.target for s in walk(kernel.body) if isinstance(s, Declare)}


def _target(s: Stmt) -> Value | None:
    """The value that a statement writes."""
    if isinstance(s, Micro):
        return s.writes[0]
    return s.target if isinstance(s, (Store, Accumulate)) else None


def _written(kernel: Kernel, storage: Storage) -> set[Value]:
    """The root values in memory that a kernel writes."""
    targets = {v for v in map(_target, walk(kernel.body)) if v is not None}
    return {storage.root(v) for v in targets - _locals(kernel)}


def _reads(kernel: Kernel, own: Guard, storage: Storage) -> dict[Value, Guard]:
    """Each root value in memory that a kernel reads, with the conditions under which what is read counts:
    those at each place, and those of the locals that it goes into."""
    inside = _locals(kernel)
    touched = list(_touched(kernel.body, own))
    local: dict[Value, Guard] = {}
    while True:
        found: dict[Value, Guard] = {}
        for target, value, under in touched:
            if target in inside and target not in local:
                continue  # nothing that counts reads it, as far as is known
            if target is not None and target in inside:
                under = under | local[target]
            key = value if value in inside else storage.root(value)
            found[key] = found[key] & under if key in found else under
        before, local = local, {v: under for v, under in found.items() if v in inside}
        if local == before:
            return {v: under for v, under in found.items() if v not in inside}


def _touched(body: tuple[Stmt, ...], under: Guard) -> Iterator[tuple[Value | None, Value, Guard]]:
    """(value written, value read, conditions that hold there) of each read of the statements."""
    for s in body:
        for e in expressions(s):
            for value, conditions in _loads(e, under):
                yield _target(s), value, conditions
        if isinstance(s, Micro):
            for value, _ in s.reads:
                yield _target(s), value, under
        if isinstance(s, If) and _is_uniform(s.condition):
            yield from _touched(s.then, under | {s.condition})
            yield from _touched(s.otherwise, under | {E.unary("not", s.condition)})
        else:
            yield from _touched(children(s), under)


def _loads(e: Expr, under: Guard) -> Iterator[tuple[Value, Guard]]:
    """Each value that an expression reads, with the conditions that hold there."""
    stack, seen = [(e, under)], {(e, under)}
    while stack:
        e, under = stack.pop()
        if e.op == "load":
            yield e.attr, under
        parts = [(a, under) for a in e.args]
        if e.op == "select" and _is_uniform(e.args[0]):
            condition, yes, no = e.args
            parts = [(yes, under | {condition}), (no, under | {E.unary("not", condition)})]
            parts.append((condition, under))
        fresh = [part for part in parts if part not in seen and e.op not in E.LEAVES]
        seen.update(fresh)
        stack += fresh


def _is_uniform(condition: Expr) -> bool:
    """The condition is known from the inputs and their sizes before the first kernel runs."""
    if E.variables(condition) or any(e.op == "sym" and e.args for e in E.walk(condition)):
        return False
    return all(isinstance(e.attr.definition, Input) for e in E.loads(condition))
