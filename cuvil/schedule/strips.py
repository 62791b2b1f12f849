"""Chains of kernels that run together, a strip of rows at a time.

Where a tensor between two kernels does not fit in the cache, it goes to memory and back.  Kernels that
each need only some rows of the one before can take turns instead: for each strip of rows of the last
one's result, every kernel computes the rows that the strip needs and that are not there yet.  What
passes between them then lives in a window of a few rows, stored round (row ``r`` at ``r % window``), so
that it stays in the cache and takes little of the arena.  Threads take strips with windows of their own and
compute the rows at the edge of neighbouring pieces again, so every element is the same for any number of
threads.

Cost rule: kernels are chained where the tensor between them exceeds a part (`LARGE`) of the cache; the
strip is the highest whose windows take `SHARE` of it (at least `MIN_ROWS`, where these fit beside the
weights).  Of the ways to cut a long run of kernels into chains, the one that keeps most bytes in windows is
taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Kernel, Micro, Store, walk
from cuvil.ir.primitives import Map, Reduce, Value, definition_loads, elements, operands, static
from cuvil.schedule.group import Group
from cuvil.schedule.place import Placer
from cuvil.schedule.storage import Layout, Storage

LARGE = 0.75
"""Parts of the second-level cache beyond which a tensor between two kernels is worth a window."""

SMALL = 0.25
"""The same where memory matters more than time."""

SHARE = 0.25
"""Part of that cache that the windows of a chain take; a kernel's other operands want room too."""

MIN_ROWS = 2
"""Rows of a strip below which kernels are called too often."""

MAX_LINKS = 8
"""Windows of a chain: the rows at the edges of pieces grow with them."""

PIECES_PER_THREAD = 2
"""Runs of strips that threads claim, to even out what they do."""

MAX_AGAIN = 0.1
"""Part of a piece's rows that may be computed again at its edge; else each thread gets one piece."""

ROW = 2
"""The axis of rows, in tensors [batch, channels, rows, columns]."""


@dataclass(frozen=True)
class Budget:
    """What a device has for strips: bytes of a core's second-level cache, threads, and the part of the cache
    that a tensor must exceed."""

    cache: int
    threads: int = 1
    large: float = LARGE


@dataclass(frozen=True)
class Span:
    """The rows ``[scale * y + low, scale * z + high)`` that rows ``[y, z)`` of a chain's result need;
    what lies outside of the tensor is not there to be computed."""

    scale: int = 1
    low: int = 0
    high: int = 0

    def read(self, scale: int, first: int, last: int) -> Span:
        """The rows that these rows read, each ``r`` from ``scale * r + first`` to ``scale * r + last``."""
        low, high = scale * self.low + first, scale * (self.high - 1) + last + 1
        return Span(scale * self.scale, low, high)

    def moved(self, by: int) -> Span:
        """The same rows where they are counted from row `by` on."""
        return Span(self.scale, self.low - by, self.high - by)

    def rows(self, height: int) -> int:
        """The number of rows for `height` rows of the result."""
        return self.scale * height + self.high - self.low


@dataclass(frozen=True)
class Stage:
    """One kernel of a chain.

    Attributes:
        rows: that it has, of which a strip needs `span`.
        axis: number of its parallel variable that counts the rows.
        outer: points of the variables before that (without the batch, which comes first).
        points: points of those after it.
        each: it does the same for any sample; else the points of all samples are there one after the other.
    """

    rows: int
    span: Span
    axis: int
    outer: int
    points: int
    each: bool = False

    def inside(self, row: int) -> int:
        """`row`, kept among those that there are."""
        return max(min(row, self.rows), 0)


@dataclass(frozen=True, eq=False)
class Strips:
    """A chain of kernels that run strip by strip.

    Attributes:
        first: number of the first kernel; one stage for each kernel from there on.
        windows: the root values that live in a window of rows, of which each thread has one.
        rows: of the result; `height` of a strip.
        batch: how often all of it is done, for one sample at a time.
        pieces: runs of strips that threads share.
    """

    first: int
    stages: tuple[Stage, ...]
    windows: tuple[Value, ...]
    rows: int
    height: int
    batch: Expr
    threads: int
    pieces: int

    @property
    def last(self) -> int:
        """Number of the last kernel."""
        return self.first + len(self.stages) - 1

    @property
    def count(self) -> int:
        """Number of strips."""
        return -(-self.rows // self.height)

    def turns(self, piece: int) -> Iterator[list[range]]:
        """For each strip of a piece, the rows that each kernel computes, as the generated code does."""
        start, end = (self.count * p // self.pieces * self.height for p in (piece, piece + 1))
        done = [0] * len(self.stages)
        for y in range(start, min(end, self.rows), self.height):
            z = min(y + self.height, end, self.rows)
            turn = []
            for i, stage in enumerate(self.stages):
                scale = stage.span.scale
                first = max(done[i], stage.inside(scale * y + stage.span.low))
                done[i] = max(first, stage.inside(scale * z + stage.span.high))
                turn.append(range(first, done[i]))
            yield turn


@dataclass(frozen=True, eq=False)
class Link:
    """A tensor between two groups: the value that the first writes, the root value that holds it (itself, or
    itself with a border from row `offset` on), and the rows of the root that row ``r`` of the second reads,
    ``scale * r + first`` to ``scale * r + last``."""

    value: Value
    root: Value
    offset: int
    scale: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class Chain:
    """Groups that are to run in strips, and the links between them."""

    groups: tuple[Group, ...]
    links: tuple[Link, ...]
    height: int

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return static(self.groups[-1].anchor.shape[ROW]) or 0

    def spans(self) -> list[Span]:
        """The rows of each link's root that a strip needs."""
        return _spans(self.links)

    def window(self, storage: Storage, number: int) -> Layout:
        """The layout of a link's root: one sample, and as many rows as a strip needs."""
        rows = self.spans()[number].rows(self.height)
        layout = storage.layout(self.links[number].root)
        return Layout(
            tuple((a, d, {0: 1, ROW: rows}[a]) if a in (0, ROW) else (a, d, m) for a, d, m in layout.dims)
        )


def _spans(links: Sequence[Link]) -> list[Span]:
    found: list[Span] = []
    span = Span()
    for link in reversed(links):
        of_root = span.read(link.scale, link.first, link.last)
        found.append(of_root)
        span = of_root.moved(link.offset)
    return found[::-1]


def find(
    groups: Sequence[Group],
    readers: Mapping[Value, Sequence[Value]],
    outputs: set[Value],
    storage: Storage,
    placer: Placer,
    budget: Budget,
) -> Iterator[Chain]:
    """The chains worth running in strips, in order; no group is in two."""
    run: list[tuple[Group, Group, Link]] = []
    for before, group in itertools.pairwise(groups):
        link = _link(before, group, readers, outputs, storage, placer)
        if link is not None and _bytes(storage, link.root) > budget.large * budget.cache:
            run.append((before, group, link))
        else:
            yield from _cut(run, storage, budget)
            run = []
    yield from _cut(run, storage, budget)


def _cut(run: Sequence[tuple[Group, Group, Link]], storage: Storage, budget: Budget) -> list[Chain]:
    """A run of groups, each linked to the next, cut into chains so that most bytes are in windows."""
    best: list[tuple[float, list[Chain]]] = [(0.0, [])]
    for stop in range(1, len(run) + 1):
        found = best[-1]  # link stop - 1 stays whole
        kept = 0.0
        for start in range(stop - 1, max(stop - MAX_LINKS, 0) - 1, -1):
            links = [link for _, _, link in run[start:stop]]
            kept += _bytes(storage, links[0].root)
            groups = (run[start][0], *(group for _, group, _ in run[start:stop]))
            height = _height(links, groups, storage, budget.cache)
            before, chains = best[max(start - 1, 0)]  # the link before the chain stays whole
            if height and before + kept > found[0]:
                found = before + kept, [*chains, Chain(groups, tuple(links), height)]
        best.append(found)
    return best[-1][1]


def _bytes(storage: Storage, root: Value) -> float:
    """Bytes of one sample of a root value."""
    n = static(elements(storage.layout(root).extents(root.shape)[1:]))
    return n * E.numpy_dtype(root.dtype).itemsize if n is not None else 0.0


def _height(links: Sequence[Link], groups: Sequence[Group], storage: Storage, cache: int) -> int:
    """The rows of a strip, strips being equal as far as can be; 0 where the windows do not fit in the cache
    beside the constants, which each strip reads again."""
    rows = static(groups[-1].anchor.shape[ROW]) or 0
    each = [_bytes(storage, k.root) / (static(k.root.shape[ROW]) or 1) for k in links]
    spans = _spans(links)
    constants = {v for g in groups for m in g.members for v in operands(m) if v.is_constant}
    room = cache - sum(v.array.nbytes for v in constants)

    def windows(height: int) -> float:
        return sum(n * s.rows(height) for n, s in zip(each, spans))

    most = MIN_ROWS if rows >= 2 * MIN_ROWS and windows(MIN_ROWS) <= room else 0
    while most and most < rows // 2 and windows(most + 1) <= min(SHARE * cache, room):
        most += 1
    return -(-rows // -(-rows // most)) if most else 0


def _link(
    before: Group,
    group: Group,
    readers: Mapping[Value, Sequence[Value]],
    outputs: set[Value],
    storage: Storage,
    placer: Placer,
) -> Link | None:
    """What passes between two groups, where it is one tensor of rows that nothing else reads."""
    value = before.anchor
    written = [v for v in before.members if v in outputs or any(r not in before.members for r in readers[v])]
    if written != [value] or value in outputs or not (before.is_pointwise and group.is_pointwise):
        return None
    root, offset = value, 0
    if value in storage.placements:
        root = storage.placements[value].host
        low = static(placer.borders[root][1][ROW]) if root in placer.borders and root.rank == 4 else None
        if low is None or root in storage.placements or placer.borders[root][0] is not value:
            return None
        offset = low
    if root in placer.joins or root in outputs or not _is_image(root) or not _is_image(group.anchor):
        return None
    if root.shape[0] is not group.anchor.shape[0] or (static(group.anchor.shape[ROW]) or 0) < 2 * MIN_ROWS:
        return None
    inside = {root, *group.members}
    if any(r not in inside for v in {value, root} for r in readers[v]):
        return None
    found = [rows for v in group.members for rows in _rows_read(v, root, storage)]
    read = [rows for rows in found if rows is not None]
    if not read or len(read) < len(found) or any(scale != read[0][0] for scale, _, _ in read):
        return None
    first, last = min(low for _, low, _ in read), max(high for *_, high in read)
    return Link(value, root, offset, read[0][0], first, last)


def _rows_read(v: Value, root: Value, storage: Storage) -> Iterator[tuple[int, int, int] | None]:
    """For each load of `root`, (scale, first, last) where row ``r`` of `v` reads rows ``scale * r + first``
    to ``scale * r + last`` of it, in the sample of its own; None where that is not so."""
    d = v.definition
    for e in definition_loads(v):
        if storage.root(e.attr) is not root:
            continue
        if not isinstance(d, (Map, Reduce)) or v.rank != 4:
            yield None
            continue
        at = storage.resolve(e.attr, e.args)[1]
        first, terms = E.linear(at[ROW])
        scale, last = terms.pop(d.axes[ROW], 0), first
        taps = set(d.reduced) if isinstance(d, Reduce) else set()
        for tap, step in terms.items():
            reach = step * ((static(tap.args[0]) or 0) - 1) if tap in taps else None
            if reach is None:
                scale = 0
                break
            first, last = first + min(reach, 0), last + max(reach, 0)
        own = at[0] is d.axes[0] or (static(v.shape[0]) == 1 and at[0].is_const)
        dense = first < last and any(tap in E.variables(at[1]) for tap in taps)  # its tiles read across rows
        yield (scale, first, last) if scale > 0 and own and not dense else None


def _is_image(value: Value) -> bool:
    return value.rank == 4 and all(static(n) is not None for n in value.shape[1:])


def by_rows(kernel: Kernel, span: Span, rows: int) -> Stage | None:
    """What a kernel is in a chain that needs the rows of `span` of the `rows` that it writes; None where a
    point is not part of one row."""
    row: Expr | None = None
    batch: Expr | None = None
    written = results(kernel)
    stores = [s for s in walk(kernel.body) if isinstance(s, Store) and s.target in written]
    for s in stores:
        row = s.indices[ROW] if row is None else row
        batch = s.indices[0] if s.indices[0].op == "var" else batch
        if s.indices[ROW] is not row or row not in kernel.parallel or static(row.args[0]) != rows:
            return None
    micros = [s for s in walk(kernel.body) if isinstance(s, Micro) and s.writes[0] in written]
    if row is None or micros:
        return None
    if batch is not None and batch is not kernel.parallel[0]:
        return None
    axis, first = kernel.parallel.index(row), 0 if batch is None else 1
    outer = static(E.product(v.args[0] for v in kernel.parallel[first:axis]))
    points = static(E.product(v.args[0] for v in kernel.parallel[axis + 1 :]))
    if outer is None or points is None:
        return None
    return Stage(rows, span, axis, outer, points, batch is None)


def is_framed(host: Value, source: Value) -> bool:
    """A tensor of images has `source` within a border of rows and columns alone."""
    return host.rank == 4 and static(host.shape[ROW]) is not None and host.shape[:2] == source.shape[:2]


def results(kernel: Kernel) -> tuple[Value, ...]:
    """What a kernel writes but for scratch memory, which nothing defines."""
    return tuple(v for v in kernel.writes if v.definition is not None)


Remake = Callable[[Kernel], Kernel]
"""Builds a kernel anew, where the layout of what it reads or writes has changed."""


def build(
    chain: Chain, plain: Sequence[Kernel], first: int, remake: Remake, storage: Storage, budget: Budget
) -> tuple[list[Kernel], Strips] | None:
    """The kernels of a chain, and how they take turns.

    Args:
        plain: the kernels that run one after the other, the first of which has the number `first`.

    Returns:
        None where some kernel does not go row by row; nothing is changed then.
    """
    spans = chain.spans()
    targets: list[tuple[Value, Span]] = []
    for number, link in enumerate(chain.links):
        targets.append((link.value, spans[number].moved(link.offset)))
        if link.root is not link.value:
            targets.append((link.root, spans[number]))
    targets.append((chain.groups[-1].anchor, Span()))
    if [results(k) for k in plain] != [(v,) for v, _ in targets]:
        return None
    before = {k.root: storage.layouts.get(k.root) for k in chain.links}
    for number, link in enumerate(chain.links):
        storage.layouts[link.root] = chain.window(storage, number)
    kernels: list[Kernel] = []
    stages: list[Stage] = []
    for old, (value, span) in zip(plain, targets):
        rows = static(value.shape[ROW]) or 0
        kernel = remake(old)
        stage = by_rows(kernel, span, rows)
        if stage is None or _is_tuned(kernel) != _is_tuned(old):
            break
        kernels.append(kernel)
        stages.append(stage)
    if len(kernels) < len(plain):
        for root, layout in before.items():
            del storage.layouts[root]
            storage.layouts.update({} if layout is None else {root: layout})
        return None
    batch, threads = chain.groups[-1].anchor.shape[0], budget.threads
    again = max(s.rows(0) / s.scale for s in spans) * threads * PIECES_PER_THREAD / chain.rows
    pieces = threads * (PIECES_PER_THREAD if again <= MAX_AGAIN else 1) if threads > 1 else 1
    pieces = min(pieces, -(-chain.rows // chain.height))
    roots = tuple(k.root for k in chain.links)
    return kernels, Strips(first, tuple(stages), roots, chain.rows, chain.height, batch, threads, pieces)


def _is_tuned(kernel: Kernel) -> bool:
    return any(isinstance(s, Micro) for s in walk(kernel.body))
