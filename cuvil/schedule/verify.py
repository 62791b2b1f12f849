"""Invariants of schedules: layouts, placements, kernels and the memory plan.

A violation is a bug of the compiler (`cuvil.ir.verify.InternalError`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from cuvil.ir import expr as E
from cuvil.ir import verify
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, Micro, Store, expressions, walk
from cuvil.ir.primitives import Constant, Input, Value, static
from cuvil.ir.verify import check
from cuvil.schedule.memory import aligned
from cuvil.schedule.plan import Schedule, capacity, roots_of
from cuvil.schedule.storage import Layout, Storage

SIZES = (0, 1, 5)
"""Values of the symbolic sizes at which the memory plan is checked."""


def schedule(s: Schedule) -> None:
    """All invariants of a schedule.

    Raises:
        InternalError: the first that does not hold.
    """
    verify.program(s.program)
    storage(s.storage, s.program.values)
    known = [E.sym(name) for name in s.program.symbols]
    for step, k in enumerate(s.kernels):
        verify.kernel(k, [*known, *(symbol for symbol, made in s.known.items() if made < step)])
    order(s)
    memory(s)
    for target, source in s.aliases.items():
        alias(s, target, source)


def storage(st: Storage, values: Sequence[Value]) -> None:
    """Layouts cover their values, each element once; placements end, and stay inside of their hosts."""
    known = set(values)
    for v, layout in st.layouts.items():
        _layout(v, layout)
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
        check(digits[0][1] == 0, v, f"the highest part of axis {axis} is bounded")
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


def memory(s: Schedule) -> None:
    """Roots that are alive in the same kernel lie apart, unless one replaces the other in place."""
    outputs = {s.storage.root(v) for v in s.program.outputs}
    uses: dict[Value, list[int]] = {}
    for step, k in enumerate(s.kernels):
        for root in roots_of(k, s.storage):
            if root not in outputs and not isinstance(root.definition, (Input, Constant)):
                uses.setdefault(root, []).append(step)
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
        size = number(capacity(s.storage, v)) * E.numpy_dtype(v.dtype).itemsize
        check(start >= 0 and start == aligned(start), v, f"lies at byte {start}, which is not aligned")
        check(start + size <= total, v, f"ends at byte {start + size} of {total}")
        places.append((steps[0], steps[-1], start, start + size, v))
    places.sort(key=lambda p: p[:3])
    for n, (_, last, start, stop, v) in enumerate(places):
        for first, _, low, high, w in places[n + 1 :]:
            if first > last:
                break
            if low < stop and start < high:
                shared = s.aliases.get(w) is v and first == last
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
