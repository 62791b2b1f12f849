"""Invariants of schedules: layouts, placements, kernels and the memory plan.

A violation is a bug of the compiler (`cuvil.ir.verify.InternalError`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from cuvil.ir import expr as E
from cuvil.ir import verify
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, Kernel, Micro, Store, expressions, walk
from cuvil.ir.primitives import Constant, Input, Value, static
from cuvil.ir.verify import check
from cuvil.schedule.memory import aligned
from cuvil.schedule.plan import Schedule, roots_of
from cuvil.schedule.storage import Layout, Storage
from cuvil.schedule.strips import ROW, Stage, Strips

SIZES = (0, 1, 5)
"""Values of the symbolic sizes at which the memory plan is checked."""


def schedule(s: Schedule) -> None:
    """All invariants of a schedule.

    Raises:
        InternalError: the first that does not hold.
    """
    verify.program(s.program)
    storage(s.storage, s.program.values, {v for chain in s.strips for v in chain.windows})
    known = [E.sym(name) for name in s.program.symbols]
    for step, k in enumerate(s.kernels):
        verify.kernel(k, [*known, *(symbol for symbol, made in s.known.items() if made < step)])
    order(s)
    strips(s)
    memory(s)
    for target, source in s.aliases.items():
        alias(s, target, source)


def storage(st: Storage, values: Sequence[Value], windows: Collection[Value] = ()) -> None:
    """Layouts cover their values, each element once, but for those in `windows`; placements end, and stay
    inside of their hosts."""
    known = set(values)
    for v, layout in st.layouts.items():
        check(v in windows or layout == layout.straight, v, "is stored round, but no chain's")
        _layout(v, layout.straight)
    for v, p in st.placements.items():
        seen = {v}
        host = v
        while host in st.placements:
            host = st.placements[host].host
            check(host not in seen, v, "is placed in a circle")
            seen.add(host)
        check(p.host in known or v not in known, v, f"is placed in {p.host}, which is not in the program")
        check(
            not isinstance(host.definition, (Input, Constant)),
            v,
            f"is placed in {host}, which is not computed",
        )
        check(v.dtype == p.host.dtype, v, f"is placed in {p.host}")
        check(
            len(p.axes) == v.rank and len(p.indices) == p.host.rank,
            v,
            f"has a placement of another rank in {p.host}",
        )
        for i, size in zip(p.indices, p.host.shape):
            unit = static(size) == 1 and i.is_const
            check(unit or i.lo >= 0, v, f"is placed before its host, at {i}")
            empty = any(static(n) == 0 for n in v.shape)
            check(
                unit or empty or E.upper_bound(i - size) < 0 or i.hi == math.inf,
                v,
                f"is placed beyond its host, at {i}",
            )


def _layout(v: Value, layout: Layout) -> None:
    """The dimensions of each axis are its digits in a mixed radix, from the highest down to units."""
    for axis in range(v.rank):
        digits = sorted(((d, m) for a, d, m in layout.dims if a == axis), reverse=True)
        check(bool(digits), v, f"axis {axis} has no place in its layout")
        check(digits[-1][0] == 1, v, f"axis {axis} has no units")
        for (above, _), (divisor, modulus) in itertools.pairwise(digits):
            check(divisor * modulus == above, v, f"parts of axis {axis} overlap or leave gaps")
    check(all(0 <= a < v.rank for a, _, _ in layout.dims), v, "its layout has an axis that it has not")


def order(s: Schedule) -> None:
    """Kernels read what inputs, constants or earlier kernels wrote (a recurrence also what it writes)."""
    written = {v for v in s.program.values if isinstance(v.definition, (Input, Constant))}
    written |= {s.storage.root(v) for v in written}
    whole = {s.storage.root(v) for v in s.program.outputs}
    for k in s.kernels:
        made = {s.storage.root(v) for v in k.writes}
        for v in k.reads:
            root = s.storage.root(v)
            check(root in written or root in made, k.name, f"reads {v} before it is written")
        written |= made
    for v in whole:
        check(v in written, v, "an output that no kernel writes")


def strips(s: Schedule) -> None:
    """Chains lie apart, nothing else touches their windows, and whatever is read of a window is still there,
    for every piece of the result, each row of which is computed once."""
    after = 0
    for chain in s.strips:
        check(after <= chain.first and chain.last < len(s.kernels), s.program.name, "chains overlap")
        after = chain.last + 1
        for step, k in enumerate(s.kernels):
            inside = chain.first <= step <= chain.last
            check(inside or not {*chain.windows} & {*roots_of(k, s.storage)}, k.name, "touches a window")
            check(not inside or not {*s.aliases} & {*k.writes}, k.name, "replaces what its chain still reads")
        kernels = s.kernels[chain.first : after]
        for k, stage in zip(kernels, chain.stages):
            total = E.product(v.args[0] for v in k.parallel)
            samples = E.const(1) if stage.each else chain.batch
            points = stage.outer * stage.rows * stage.points
            check(total is samples * points, k.name, "has another number of points")
        computed = [row for piece in range(chain.pieces) for row in _piece(s, chain, kernels, piece)]
        check(computed == [*range(chain.stages[-1].rows)], kernels[-1].name, "does not compute each row once")


def _piece(s: Schedule, chain: Strips, kernels: Sequence[Kernel], piece: int) -> list[int]:
    """The rows of a chain's result that a piece computes; checks what it finds in the windows."""
    reads = [_window_rows(s, chain, k, stage, written=False) for k, stage in zip(kernels, chain.stages)]
    writes = [_window_rows(s, chain, k, stage, written=True) for k, stage in zip(kernels, chain.stages)]
    held: dict[tuple[int, Value], dict[int, int]] = {}
    result: list[int] = []
    for turn in chain.turns(piece):
        for i, rows in enumerate(turn):
            for row in rows:
                for root, scale, first, last in reads[i]:
                    for wanted in range(scale * row + first, scale * row + last + 1):
                        for writer, written in enumerate(writes):
                            for to, _, offset, _ in written:
                                if to is root and 0 <= wanted - offset < chain.stages[writer].rows:
                                    size = _window(s, root)
                                    found = held.get((writer, root), {}).get(wanted % size)
                                    check(found == wanted, kernels[i].name,
                                          f"row {row} finds row {found} of {root}, not {wanted}")  # fmt: skip
                for root, _, offset, _ in writes[i]:
                    held.setdefault((i, root), {})[(row + offset) % _window(s, root)] = row + offset
        result += turn[-1]
    return result


def _window(s: Schedule, root: Value) -> int:
    return next(m for axis, _, m in s.storage.layout(root).dims if axis == ROW)


def _window_rows(
    s: Schedule, chain: Strips, k: Kernel, stage: Stage, written: bool
) -> list[tuple[Value, int, int, int]]:
    """(window, scale, first, last): row ``r`` of a kernel writes or reads rows ``scale * r + first`` to
    ``scale * r + last`` of a window."""
    row = k.parallel[stage.axis]
    found: dict[tuple[Value, int, int, int], None] = {}
    for x in walk(k.body):
        touched = [(x.target, x.indices)] if written and isinstance(x, Store) else []
        if not written:
            touched += [*x.reads] if isinstance(x, Micro) else []
            touched += [(e.attr, e.args) for part in expressions(x) for e in E.loads(part)]
        for v, at in touched:
            root = s.storage.root(v)
            if root in chain.windows:
                index = s.storage.resolve(v, at)[1][ROW]
                scale = E.linear(index)[1].get(row, 0)
                rest = index - row * scale
                check(scale > 0 and row not in E.variables(rest), k.name, f"goes through {root} by {index}")
                found[root, scale, int(rest.lo), int(E.upper_bound(rest))] = None
    return [*found]


def memory(s: Schedule) -> None:
    """Roots that are alive in the same kernel lie apart, unless one replaces the other in place."""
    outputs = {s.storage.root(v) for v in s.program.outputs}
    uses: dict[Value, list[int]] = {}
    for step, k in enumerate(s.kernels):
        for root in roots_of(k, s.storage):
            if root not in outputs and not isinstance(root.definition, (Input, Constant)):
                uses.setdefault(root, []).extend(s.together(step))
    check(uses.keys() == s.arena.keys(), s.program.name, "the arena does not hold what the kernels use")
    for n in SIZES:
        bound = dict.fromkeys(s.program.symbols, n)
        _apart(s, uses, bound)


def _apart(s: Schedule, uses: Mapping[Value, list[int]], bound: Mapping[str, int]) -> None:
    def number(e: Expr) -> int:
        return E.evaluate(e, bound)

    total = number(s.arena_bytes)
    places = []
    for v, steps in uses.items():
        start = number(s.arena[v])
        size = number(s.size(v))
        check(start >= 0 and start == aligned(start), v, f"lies at byte {start}, which is not aligned")
        check(start + size <= total, v, f"ends at byte {start + size} of {total}")
        places.append((min(steps), max(steps), start, start + size, v))
    places.sort(key=lambda p: p[:3])
    for n, (_, last, start, stop, v) in enumerate(places):
        for first, _, low, high, w in places[n + 1 :]:
            if first > last:
                break
            if low < stop and start < high:
                scratch = v.definition is w.definition is None and (start, stop) == (low, high)
                shared = scratch or (s.aliases.get(w) is v and first == last)
                check(shared, v, f"shares bytes {low} to {min(stop, high)} with {w} in kernel {first}")


def alias(s: Schedule, target: Value, source: Value) -> None:
    """The kernel that writes `target` over `source` reads an element of it only to replace that same one."""
    steps = [n for n, k in enumerate(s.kernels) if target in roots_of(k, s.storage)]
    k = s.kernels[steps[0]]
    stores = [x for x in walk(k.body) if isinstance(x, Store) and s.storage.root(x.target) is target]
    others = [x for x in walk(k.body) if isinstance(x, (Accumulate, Micro))]
    check(len(stores) == 1, k.name, f"writes {target} over {source} in {len(stores)} statements")
    (store,) = stores
    at = s.storage.address(store.target, store.indices)[1]
    local = {x.target for x in walk(k.body) if isinstance(x, Declare)}
    for x in walk(k.body):
        for e in expressions(x):
            for load in E.loads(e):
                if load.attr not in local and s.storage.root(load.attr) is source:
                    same = x is store and s.storage.address(load.attr, load.args)[1] is at
                    check(same, k.name, f"reads {source} after writing {target} over it")
    for x in others:
        touched = [x.target] if isinstance(x, Accumulate) else [v for v, _ in (*x.reads, x.writes)]
        check(all(v in local or s.storage.root(v) not in (source, target) for v in touched), k.name,
              f"reads {source} beside writing {target} over it")  # fmt: skip
    widths = [E.numpy_dtype(v.dtype).itemsize for v in (target, source)]
    check(widths[0] == widths[1], target, f"replaces {source} of another width")
    check(
        s.storage.elements(target) is s.storage.elements(source), target, f"replaces {source} of another size"
    )
