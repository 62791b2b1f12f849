"""Loop nests: a group of values as statements.

Loops run in the order of the result's memory.  A reduction either keeps one accumulator and runs
its own loops innermost, or keeps a row of accumulators ("lanes") along the result's innermost
axis, whichever reads memory in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuvil import limits
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Kernel, Stmt, Store
from cuvil.ir.primitives import Map, Opaque, Reduce, Scatter, Value, elements, operands, static
from cuvil.schedule.blocks import block_rows
from cuvil.schedule.group import Group
from cuvil.schedule.lanes import cut, lanes_inside, partial_block
from cuvil.schedule.reduction import reduce_loops
from cuvil.schedule.storage import Storage, row_major, split
from cuvil.schedule.stray import stray_is_safe
from cuvil.schedule.vector import merge_lanes, unswitch

LANES = 32
"""Accumulators of a reduction that is vectorised along the result."""

MIN_PARALLEL = 64
"""Outer iterations that are worth having for threads to share."""


@dataclass
class Nest:
    """Context of one kernel's construction.

    Attributes:
        storage: where values live.
        internal: members that need no memory beyond the kernel.
        locals: the local that stands for an internal member, with how many leading axes it drops.
    """

    storage: Storage
    internal: set[Value]
    locals: dict[Value, tuple[Value, int]]

    def rewrite(self, e: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
        """A member's expression at a point of the loops, reading locals for members."""
        moved = E.substitute(e, mapping)

        def local(node: Expr) -> Expr | None:
            if node.op != "load" or node.attr not in self.locals:
                return None
            target, dropped = self.locals[node.attr]
            return E.load(target, _squeeze(node.args[dropped:], node.attr.shape[dropped:], target))

        return E.transform(moved, local)


def _squeeze(indices: Sequence[Expr], shape: Sequence[Expr], target: Value) -> tuple[Expr, ...]:
    kept = tuple(i for i, s in zip(indices, shape) if static(s) != 1)
    return kept if len(kept) == target.rank else tuple(indices)


Member = Callable[[Value, Expr, "Nest"], "list[Stmt] | None"]
"""Makes the statements of a recurrence's member at a step, or declines."""


def build(
    group: Group, storage: Storage, internal: set[Value], name: str, member: Member = lambda v, t, nest: None
) -> Kernel:
    """The plain kernel of a group: correct for every group, tuned for none (but for what `member`
    makes of single members of a recurrence)."""
    nest = Nest(storage, internal, {})
    anchor = group.anchor
    parallel: tuple[Expr, ...] = ()
    if isinstance(anchor.definition, Scatter):
        body = _scatter(nest, anchor, anchor.definition)
    elif isinstance(anchor.definition, Opaque):
        body = list(anchor.definition.body)
    elif group.serial:
        parallel, body = _recurrences(nest, group, member)
    elif group.is_pointwise:
        parallel, body = _pointwise(nest, group)
    else:
        parallel, body = _rows(nest, group)
    writes = tuple(v for v in group.members if v not in internal)
    return finish(name, parallel, tuple(body), group, writes, storage)


def finish(
    name: str,
    parallel: Sequence[Expr],
    body: tuple[Stmt, ...],
    group: Group,
    writes: tuple[Value, ...],
    storage: Storage,
    tag: str = "",
) -> Kernel:
    """A kernel of the given statements, with what it reads, sorted into a kind of work; its vector
    loops are made fit for a compiler."""
    inside = set(group.members)
    reads: dict[Value, None] = {}
    for v in group.members:
        for source in operands(v):
            if source not in inside or v.scan is not None:
                reads[source] = None
    origin = tuple(dict.fromkeys(o for v in group.members for o in v.origin))
    if not tag:
        kinds = [v.definition for v in group.members]
        tag = "map"
        if group.contraction is not None:
            tag = "contraction"
        elif group.serial:
            tag = "scan"
        elif any(isinstance(k, Reduce) for k in kinds):
            tag = "reduce" if group.is_pointwise else "rows"
        elif isinstance(kinds[-1], (Scatter, Opaque)):
            tag = "opaque"
    seen = [v for v in reads if v not in inside or v not in writes]
    body = unswitch(cut(body, storage))
    return Kernel(name, tuple(parallel), body, tuple(seen), writes, origin, tag, tuple(group.members))


# --- element-wise groups, and reductions with an epilogue ----------------------------------------


def _pointwise(nest: Nest, group: Group) -> tuple[tuple[Expr, ...], list[Stmt]]:
    anchor = group.anchor
    variables, indices, inside = iteration(nest.storage, anchor)
    if not inside.is_const and stray_is_safe(nest.storage, group.members, nest.internal, anchor):
        inside = E.const(True, "bool")
    reductions = [v for v in group.members if isinstance(v.definition, Reduce)]
    if not reductions:
        variables, indices, inside = _coalesce(nest, group, variables, indices, inside)
        body = _maps(nest, group.members, indices)
        if not inside.is_const:
            body = [If(inside, tuple(body))]
        return _wrap(variables, body, "simd")
    lane = variables[-1] if variables else None
    if lane is not None and _prefer_lanes(nest, reductions, indices, lane):
        return _wrap(variables[:-1], _blocks(nest, group.members, indices, lane, inside), "serial")
    body = []
    for v in group.members:
        body.extend(_scalar_member(nest, v, indices))
    if not inside.is_const:
        body = [If(inside, tuple(body))]
    return _wrap(variables, body, "serial")


def iteration(storage: Storage, anchor: Value) -> tuple[list[Expr], list[Expr], Expr]:
    """Loop variables, indices and guard that visit `anchor` in the order of its memory."""
    layout = storage.layout(storage.root(anchor))
    if storage.root(anchor) is not anchor and (layout.is_row_major or len(layout.dims) != anchor.rank + 1):
        layout = row_major(anchor.rank)
    return split(layout, anchor.shape)


def _maps(nest: Nest, members: Sequence[Value], indices: Sequence[Expr]) -> list[Stmt]:
    """Stores of element-wise members at one point; internal ones become scalars."""
    body: list[Stmt] = []
    for v in members:
        d = v.definition
        assert isinstance(d, Map)
        value = nest.rewrite(d.body, dict(zip(d.axes, indices)))
        if v in nest.internal:
            scalar = Value(v.name, v.dtype, ())
            nest.locals[v] = (scalar, v.rank)
            body += [Declare(scalar), Store(scalar, (), value)]
        else:
            body.append(Store(v, tuple(indices), value))
            nest.locals.pop(v, None)
    return body


def _coalesce(
    nest: Nest, group: Group, variables: list[Expr], indices: list[Expr], inside: Expr
) -> tuple[list[Expr], list[Expr], Expr]:
    """Join the innermost two loops into one while every address stays free of divisions."""
    addresses: list[Expr] = []
    for v in group.members:
        d = v.definition
        assert isinstance(d, Map)
        body = E.substitute(d.body, dict(zip(d.axes, indices)))
        if any(
            e.op not in ("load", "const") and e.dtype == E.INDEX for e in E.walk(body) if e.op == "select"
        ):
            return variables, indices, inside
        stray = {e for e in _free_indices(body)}
        for e in E.loads(body):
            addresses.append(nest.storage.address(e.attr, e.args)[1])
        addresses.extend(stray)
        if v not in nest.internal:
            addresses.append(nest.storage.address(v, indices)[1])
    before = sum(_divisions(a) for a in addresses)
    while len(variables) >= 2 and inside.is_const:
        outer, inner = variables[-2], variables[-1]
        both = E.var(outer.args[0] * inner.args[0], "f")
        mapping = {outer: E.floordiv(both, inner.args[0]), inner: E.mod(both, inner.args[0])}
        joined = [E.substitute(a, mapping) for a in addresses]
        if sum(_divisions(a) for a in joined) > before:
            break
        addresses = joined
        indices = [E.substitute(i, mapping) for i in indices]
        variables = [*variables[:-2], both]
    return variables, indices, inside


def _free_indices(body: Expr) -> list[Expr]:
    """Index expressions that are used as data or in conditions, not as addresses."""
    found: list[Expr] = []
    for e in E.walk(body):
        if e.op in ("cast", "lt", "le", "eq", "select") and e.op != "load":
            found.extend(a for a in e.args if a.dtype == E.INDEX)
    return found


def _divisions(e: Expr) -> int:
    return sum(1 for n in E.walk(e) if n.op in ("floordiv", "mod"))


def _prefer_lanes(nest: Nest, reductions: Sequence[Value], indices: Sequence[Expr], lane: Expr) -> bool:
    """Vectorise along the result rather than along the reduction."""
    for v in reductions:
        d = v.definition
        assert isinstance(d, Reduce)
        live = [r for r in d.reduced if static(r.args[0]) != 1]
        body = E.substitute(d.body, dict(zip(d.axes, indices)))
        along_lane, along_reduction = [], []
        for e in E.loads(body):
            along_lane.append(nest.storage.stride(e.attr, e.args, lane))
            along_reduction.append(nest.storage.stride(e.attr, e.args, live[-1]) if live else None)
        extent = static(lane.args[0])
        if extent is not None and extent < 4 and along_reduction:
            return False
        if all(s in (0, 1) for s in along_lane) and 1 in along_lane:
            return True
        if all(s in (0, 1) for s in along_reduction):
            return False
    return True


def _blocks(
    nest: Nest, members: Sequence[Value], indices: Sequence[Expr], lane: Expr, inside: Expr
) -> list[Stmt]:
    """Members over the innermost axis; the last of its blocks apart where only that is not full."""
    rest, size = lanes_inside(inside, lane), static(lane.args[0])
    last = partial_block(rest, size) if rest is not None and size is not None else 0
    if not last or rest is None or size is None:
        return _with_lanes(nest, members, indices, lane, inside)
    always = E.const(True, "bool")
    few = E.var(last, "l")
    whole = _with_lanes(nest, members, indices, lane, always)
    partial = _with_lanes(nest, members, [E.substitute(i, {lane: few}) for i in indices], few, always)
    return [If(E.lt(size - 1, rest), tuple(whole), tuple(partial))]


def _with_lanes(
    nest: Nest, members: Sequence[Value], indices: Sequence[Expr], lane: Expr, inside: Expr
) -> list[Stmt]:
    """Members over a strip of the innermost axis: reductions keep a row of accumulators."""
    extent = lane.args[0]
    size = static(extent)
    width = size if size is not None and size <= 2 * LANES else LANES
    if size is not None and size > width:
        width = next((w for w in (48, 32, 28, 24, 16) if size % w == 0), LANES)
    strips: Expr = E.const(0)
    stop: Expr = E.const(width)
    if size != width:
        strips = E.var(E.floordiv(extent + (width - 1), width), "s")
        rest = extent - strips * width
        if size is None or size % width:
            stop = E.minimum(rest, width)
    body: list[Stmt] = []

    def lanes(make: object) -> For:
        j = E.var(stop, "l")
        at = [E.substitute(i, {lane: strips * width + j}) for i in indices]
        guard = E.substitute(inside, {lane: strips * width + j})
        inner = tuple(make(j, at))  # type: ignore[operator]
        return For(j, stop, inner if guard.is_const else (If(guard, inner),), "simd")

    for v in members:
        d = v.definition
        needs_row = isinstance(d, Reduce) or v in nest.internal
        row = (
            Value(v.name, d.body.dtype if isinstance(d, Reduce) else v.dtype, (E.const(width),))
            if needs_row
            else None
        )
        if row is not None:
            body.append(Declare(row))
        if isinstance(d, Reduce):
            assert row is not None
            start = d.identity
            body.append(lanes(lambda j, at, row=row, start=start: [Store(row, (j,), start)]))

            def step(j: Expr, at: list[Expr], d: Reduce = d, row: Value = row) -> list[Stmt]:
                return [Accumulate(row, (j,), d.op, _lane_read(nest, d.body, dict(zip(d.axes, at)), j))]

            body.append(reduce_loops(d, lanes(step), d.identity))
        else:
            assert isinstance(d, Map)

            def put(j: Expr, at: list[Expr], d: Map = d, row: Value | None = row, v: Value = v) -> list[Stmt]:
                value = _lane_read(nest, d.body, dict(zip(d.axes, at)), j)
                return [Store(row, (j,), value) if row is not None else Store(v, tuple(at), value)]

            body.append(lanes(put))
        if row is not None:
            nest.locals[v] = (row, -1)
            if isinstance(d, Reduce) and v not in nest.internal:
                body.append(
                    lanes(lambda j, at, row=row, v=v: [Store(v, tuple(at), _cast(E.load(row, (j,)), v))])
                )
    body = merge_lanes(body)
    return body if strips.is_const else [For(strips, strips.args[0], tuple(body))]


def _cast(e: Expr, v: Value) -> Expr:
    return E.cast(e, v.dtype)


def _lane_read(nest: Nest, body: Expr, mapping: Mapping[Expr, Expr], lane: Expr) -> Expr:
    """A member's expression where members are rows indexed by the lane."""

    def local(node: Expr) -> Expr | None:
        if node.op == "load" and node.attr in nest.locals:
            return E.load(nest.locals[node.attr][0], (lane,))
        return None

    return E.transform(E.substitute(body, mapping), local)


def _scalar_member(nest: Nest, v: Value, indices: Sequence[Expr]) -> list[Stmt]:
    """One element of a member: a reduction keeps one accumulator."""
    d = v.definition
    if isinstance(d, Map):
        return _maps(nest, [v], indices)
    assert isinstance(d, Reduce)
    scalar = Value(v.name, d.body.dtype, ())
    body: list[Stmt] = [Declare(scalar), Store(scalar, (), d.identity)]
    value = nest.rewrite(d.body, dict(zip(d.axes, indices)))
    body.extend(_accumulate(d, scalar, value))
    nest.locals[v] = (scalar, v.rank)
    if v not in nest.internal:
        body.append(Store(v, tuple(indices), _cast(E.load(scalar, ()), v)))
    return body


def _accumulate(d: Reduce, scalar: Value, value: Expr) -> list[Stmt]:
    """``scalar op= value`` over the reduced axes, the innermost loop vectorised."""
    step: Stmt = Accumulate(scalar, (), d.op, value)
    loops = [r for r in d.reduced if static(r.args[0]) != 1 or r in E.variables(value)]
    if not loops:
        return [step]
    body: Stmt = For(loops[-1], loops[-1].args[0], (step,), "simd", reduction=((d.op, scalar),))
    for r in reversed(loops[:-1]):
        body = For(r, r.args[0], (body,))
    return [body]


def _wrap(
    variables: Sequence[Expr], body: Sequence[Stmt], innermost: str
) -> tuple[tuple[Expr, ...], list[Stmt]]:
    """Loops over `variables` around a body: the outermost ones parallel, the rest in the kernel."""
    count = 1
    cut = 0
    limit = len(variables) - 1 if innermost == "simd" else len(variables)
    while cut < limit and count < MIN_PARALLEL:
        count *= static(variables[cut].args[0]) or 1
        cut += 1
    inner = list(body)
    kind = innermost
    for v in reversed(variables[cut:]):
        inner = [For(v, v.args[0], tuple(inner), kind)]
        kind = "serial"
    return tuple(variables[:cut]), inner


# --- groups that share rows ---------------------------------------------------------------------


def _rows(nest: Nest, group: Group) -> tuple[tuple[Expr, ...], list[Stmt]]:
    blocks = block_rows(nest.storage, nest.internal, group)
    if blocks is not None:
        return _wrap(*blocks, "serial")
    anchor = group.anchor
    outer = [E.const(0) if static(s) == 1 else E.var(s) for s in anchor.shape[: group.shared]]
    body: list[Stmt] = []
    budget = limits.MAX_STACK_SCRATCH_BYTES
    for v in group.members:
        local, size = _row_local(nest, v, group.shared, budget)
        budget -= size
        body.extend(_slice(nest, v, outer, local))
    return _wrap([v for v in outer if v.op == "var"], body, "serial")


def _row_local(nest: Nest, v: Value, dropped: int, budget: int) -> tuple[Value | None, int]:
    """A local for the slice of an internal member, if it is small enough for the stack."""
    if v not in nest.internal:
        return None, 0
    size = static(elements(v.shape[dropped:]))
    width = E.numpy_dtype(v.dtype).itemsize
    if size is None or size * width > budget:
        nest.internal.discard(v)
        return None, 0
    shape = tuple(s for s in v.shape[dropped:] if static(s) != 1)
    return Value(v.name, v.dtype, shape), size * width


def _slice(nest: Nest, v: Value, outer: Sequence[Expr], local: Value | None) -> list[Stmt]:
    """One member's slice at a point of the shared axes."""
    d = v.definition
    assert isinstance(d, (Map, Reduce))
    inner = [E.const(0) if static(s) == 1 else E.var(s) for s in v.shape[len(outer) :]]
    indices = [*outer, *inner]
    variables = [i for i in inner if i.op == "var"]

    def put(value: Expr, at: Sequence[Expr]) -> Stmt:
        if local is not None:
            return Store(
                local,
                tuple(i for i in at[len(outer) :] if i.op != "const" or local.rank == len(inner)),
                value,
            )
        return Store(v, tuple(at), value)

    body: list[Stmt]
    declare: list[Stmt] = [Declare(local)] if local is not None else []
    if isinstance(d, Map):
        value = nest.rewrite(d.body, dict(zip(d.axes, indices)))
        body = [put(value, indices)]
        kind = "simd"
        for i in reversed(variables):
            body = [For(i, i.args[0], tuple(body), kind)]
            kind = "serial"
    elif variables and _prefer_lanes(nest, [v], indices, variables[-1]):
        saved = dict(nest.locals)
        v.definition = Reduce(d.axes, d.reduced, d.op, nest.rewrite(d.body, {}))
        nest.locals = {}
        nest.internal.discard(v)
        body = _with_lanes(nest, [v], indices, variables[-1], E.const(True, "bool"))
        if local is not None:
            body = [_redirect(s, v, local, len(outer)) for s in body]
            nest.internal.add(v)
        v.definition, nest.locals = d, saved
        for i in reversed(variables[:-1]):
            body = [For(i, i.args[0], tuple(body))]
    else:
        scalar = Value(v.name, d.body.dtype, ())
        body = [Declare(scalar), Store(scalar, (), d.identity)]
        body.extend(_accumulate(d, scalar, nest.rewrite(d.body, dict(zip(d.axes, indices)))))
        body.append(put(_cast(E.load(scalar, ()), v), indices))
        for i in reversed(variables):
            body = [For(i, i.args[0], tuple(body))]
    if local is not None:
        nest.locals[v] = (local, len(outer))
    return declare + body


def _redirect(statement: Stmt, v: Value, local: Value, dropped: int) -> Stmt:
    """Stores to `v` turned into stores to its slice's local."""
    if isinstance(statement, For):
        inner = tuple(_redirect(s, v, local, dropped) for s in statement.body)
        return For(statement.var, statement.stop, inner, statement.kind, statement.start, statement.reduction)
    if isinstance(statement, If):
        then, otherwise = (
            tuple(_redirect(s, v, local, dropped) for s in b) for b in (statement.then, statement.otherwise)
        )
        return If(statement.condition, then, otherwise)
    if isinstance(statement, Store) and statement.target is v:
        at = _squeeze(statement.indices[dropped:], v.shape[dropped:], local)
        return Store(local, at, statement.value)
    return statement


# --- recurrences, scatters, borders -----------------------------------------------------------------


def _recurrences(nest: Nest, group: Group, member: Member) -> tuple[tuple[Expr, ...], list[Stmt]]:
    """The steps of a recurrence, or of several side by side."""
    if not group.beside:
        return (), _recurrence(nest, group, member)
    which = E.var(len(group.beside), "scan")
    bodies = [_recurrence(nest, part, member) for part in group.beside]
    return (which,), [If(E.eq(which, i), tuple(body)) for i, body in enumerate(bodies)]


def _recurrence(nest: Nest, group: Group, member: Member) -> list[Stmt]:
    nest.internal.clear()
    step = E.var(group.anchor.shape[0], "step")
    body: list[Stmt] = []
    for v in group.members:
        body.extend(member(v, step, nest) or _slice(nest, v, [step], None))
    return [For(step, step.args[0], tuple(body))]


def _scatter(nest: Nest, v: Value, d: Scatter) -> list[Stmt]:
    body: list[Stmt] = []
    variables, indices, _ = iteration(nest.storage, v)
    copy: list[Stmt] = [Store(v, tuple(indices), E.load(d.base, indices))]
    kind = "simd"
    for i in reversed(variables):
        copy = [For(i, i.args[0], tuple(copy), kind)]
        kind = "serial"
    body.extend(copy)
    update: list[Stmt] = [
        Store(v, d.indices, d.update) if d.combine == "set" else Accumulate(v, d.indices, d.combine, d.update)
    ]
    for i in reversed(d.domain):
        update = [For(i, i.args[0], tuple(update))]
    return body + update


def border(
    host: Value, source: Value, low: Sequence[Expr], fill: Expr, storage: Storage, name: str
) -> Kernel:
    """The kernel that fills the border of a padded value whose inside is written elsewhere."""
    body: list[Stmt] = []
    group = Group([host], host.rank)
    fixed: list[tuple[Expr, Expr]] = [(E.const(0), s) for s in host.shape]
    for axis in range(host.rank):
        size = source.shape[axis]
        for start, stop in ((E.const(0), low[axis]), (low[axis] + size, host.shape[axis])):
            if E.upper_bound(stop - start) <= 0:
                continue
            region = list(fixed)
            region[axis] = (start, stop)
            body.append(_fill(host, region, fill, storage))
        fixed[axis] = (low[axis], low[axis] + size)
    return Kernel(name, (), tuple(body), (), (host,), host.origin, "border", tuple(group.members))


def border_by_rows(
    host: Value, source: Value, low: Sequence[Expr], fill: Expr, axis: int, storage: Storage, name: str,
    window: bool = True,
) -> Kernel:  # fmt: skip
    """`border`, one row of `axis` at a time; of a `window` that holds one sample, or one sample and one block
    of channels at a time."""
    row = E.var(host.shape[axis])
    whole: list[tuple[Expr, Expr]] = [(E.const(0), s) for s in host.shape]
    whole[axis] = (row, row + 1)
    parallel = [row]
    if window:
        whole[0] = (E.const(0), E.const(1))
    else:
        layout = storage.layout(host)
        block = layout.block if layout.blocked_axis == 1 else 1
        sample, channel = E.var(host.shape[0]), E.var(E.floordiv(host.shape[1] + (block - 1), block))
        whole[0] = (sample, sample + 1)
        whole[1] = (channel * block, channel * block + block)
        parallel = [v for v in (sample, channel, row) if v.op == "var"]
    ends: list[Stmt] = []
    fixed = list(whole)
    for k in (k for k in range(1 if window else 2, host.rank) if k != axis):
        size = source.shape[k]
        for start, stop in ((E.const(0), low[k]), (low[k] + size, host.shape[k])):
            if E.upper_bound(stop - start) > 0:
                ends.append(_fill(host, [*fixed[:k], (start, stop), *fixed[k + 1 :]], fill, storage))
        fixed[k] = (low[k], low[k] + size)
    inside = E.logical("and", E.le(low[axis], row), E.lt(row, low[axis] + source.shape[axis]))
    body = If(inside, tuple(ends), (_fill(host, whole, fill, storage),))
    return Kernel(name, tuple(parallel), (body,), (), (host,), host.origin, "border", (host,))


def _fill(host: Value, region: Sequence[tuple[Expr, Expr]], fill: Expr, storage: Storage) -> Stmt:
    """``host[region] = fill``, looping in the order of memory."""
    shape = [stop - start for start, stop in region]
    layout = storage.layout(host)
    variables, indices, inside = split(layout, shape)
    at = tuple(i + start for i, (start, _) in zip(indices, region))
    body: Stmt = Store(host, at, fill)
    if not inside.is_const:
        body = If(inside, (body,))
    kind = "simd"
    for v in reversed(variables):
        body = For(v, v.args[0], (body,), kind)
        kind = "serial"
    return body


def copy_part(host: Value, part: Value, axis: int, start: Expr, storage: Storage, name: str) -> Kernel:
    """The kernel that copies one part of a concatenation that lives elsewhere."""
    variables, indices, inside = iteration(storage, part)
    at = tuple(i + start if k == axis else i for k, i in enumerate(indices))
    body: list[Stmt] = [Store(host, at, E.load(part, indices))]
    if not inside.is_const:
        body = [If(inside, tuple(body))]
    parallel, body = _wrap(variables, body, "simd")
    body = list(cut(body, storage))
    return Kernel(name, parallel, tuple(body), (part,), (host,), host.origin, "copy", (host,))
