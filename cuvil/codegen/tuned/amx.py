"""Contractions of float32 on AMX tiles (`amxtile`): matrix products and convolutions over blocked channels.

A kernel works on strips of positions: it stages the strip, then goes through the columns 32 at a time, and
through the positions 32 at a time, with the rest of the group on each such tile.  The positions of a
convolution are those of its padded input, line by line, so that a tap is an offset; where its stride is 2,
the input is staged in as many classes as there are remainders, and a tap is an offset in its class.
Positions that are none of the output are computed and dropped.

Sums over long k are cut into chunks of right operand that stay in the second cache, and strips are so short
that they stay there as well; a left operand too long for that is staged chunk by chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cuvil.codegen.tuned import contract
from cuvil.codegen.tuned.amxtile import (
    COLUMNS,
    CONVERT,
    ENTRY,
    PAIR,
    POSITIONS,
    SPLIT,
    STEP,
    STEP_BYTES,
    TILE,
    UNITS,
    Convert,
    Product,
    Release,
    Stage,
)
from cuvil.codegen.tuned.contract import Rows
from cuvil.codegen.tuned.isa import BLOCK, Tiles
from cuvil.codegen.tuned.pack import Contraction, step
from cuvil.codegen.tuned.positions import Area, Axis
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Declare, For, If, Kernel, Micro, Stmt
from cuvil.ir.primitives import Value, static
from cuvil.schedule.group import Group
from cuvil.schedule.nest import Nest, finish
from cuvil.schedule.storage import Storage

CHUNK = 24
"""Steps of a chunk of the right operand, where that is whole pairs."""

LONG, LONGEST = 128, 512
"""Positions that a strip has at least, where there are so many, and at most."""

MOST_UNITS = 4
"""Strips per thread that positions are cut into so that threads share them."""

MIN_POSITIONS = 24
"""Positions below which most of a tile would be idle."""

MIN_GAIN = 1.1
"""Times faster than vectors that is worth it."""

# processor cycles, as measured
_VECTOR = 1.2
"""Of two multiply-adds of vectors."""

_SHARED, _REMOTE, _MEMORY = 25e3, 0.2, 0.1
"""Of a kernel that is too short for threads to share; of a byte that another core wrote; of a byte of the
right operand from beyond the second cache."""


@dataclass(frozen=True, eq=False)
class _Tile(Rows):
    """A tile of positions of a window.

    Attributes:
        first: number of its first position in the strip.
        width: positions from line to line.
        places: of the output in a line.
    """

    first: Expr | None = None
    places: int = 0

    def indices(self, row: Expr) -> dict[Expr, Expr]:
        line, place = self._at(row)
        at = {self.last: place} if self.last is not None else {}
        return at if self.second is None else {**at, self.second: self.at[self.second] + line}

    def inside(self, row: Expr) -> Expr | None:
        return None if self.places == self.width else E.lt(self._at(row)[1], self.places)

    def _at(self, row: Expr) -> tuple[Expr, Expr]:
        assert self.first is not None
        position = self.first + row
        return E.floordiv(position, self.width), E.mod(position, self.width)


def build(
    c: Contraction,
    group: Group,
    storage: Storage,
    internal: set[Value],
    name: str,
    tiles: Tiles,
    threads: int,
    cache: int,
) -> Kernel | None:
    """The kernel of a group whose contraction is `c`, None where it does not fit or pay."""
    if group.anchor.shape != c.value.shape or group.members[0] is not c.value or c.pitch != BLOCK:
        return None
    if (c.a.dtype, c.w.dtype, c.value.dtype) != ("float32",) * 3 or c.lanewise or c.dot:
        return None
    if not c.panel.is_constant or c.column in E.variables(*c.a.args):
        return None
    nest = Nest(storage, internal, {})
    builder = _Builder(replace(c, vectors=COLUMNS // tiles.width), group, nest, tiles, threads, cache)
    if not builder.fits():
        return None
    few = contract.Builder(c, group, nest, tiles).run() if builder.open else None
    return builder.kernel(name, few)


class _Builder(contract.Builder):
    """Builds the loops of one kernel."""

    def __init__(
        self, c: Contraction, group: Group, nest: Nest, tiles: Tiles, threads: int, cache: int
    ) -> None:
        super().__init__(c, group, nest, tiles)
        self.threads, self.cache = threads, cache

    # --- what it is ---

    def fits(self) -> bool:
        """Whether the contraction has a form that tiles compute, and that pays; fills the attributes."""
        c = self.c
        self.columns = static(c.column.args[0]) or 0
        sizes = [static(r.args[0]) for r in c.k]
        if not self.columns or None in sizes:
            return False
        size = sizes[-1] or 0
        if c.block == BLOCK:
            self.half, self.taps, self.inner = self._block_stride(c.k[-1], BLOCK) or 0, c.k[:-1], c.k[-1:]
            if size > BLOCK and not self.half:
                return False
        else:  # k in a row: a matrix, or the positions of a line that share what their taps read
            self.half, self.taps, self.inner = BLOCK, [], c.k
            size = 1
            for r in reversed(c.k):
                if static(step(self.storage, c.a, r) or 0) != size:
                    return False
                size *= static(r.args[0]) or 0
            if size % BLOCK:
                return False
        blocks = -(-size // BLOCK)
        self.pairs, self.odd, self.rest = -(-blocks // 2), blocks % 2, size - (blocks - 1) * BLOCK
        rows = self._joined(list(c.rows))
        if not rows:
            return False
        axes = self._axes(rows)
        areas: list[Area] = []
        shared: list[Area] = []
        if axes is not None:
            areas, self.outer = self._windows(axes), [r for r in rows if all(r is not a.row for a in axes)]
            shared = areas
        elif not self.taps and self.row_step(rows[-1]) is not None:
            self.outer, self.run_row = rows[:-1], rows[-1]
            areas, shared = self._runs(1), self._runs(self.threads)
        if not areas:
            return False
        alone, self.area = min(((self._time(a, 1, 1), a) for a in areas), key=lambda choice: choice[0])
        self.cuts = 1
        k = math.prod(static(r.args[0]) or 1 for r in c.k)
        vectors = self._positions(self.area) * -(-self.columns // BLOCK) * k / 2 * _VECTOR
        if alone * MIN_GAIN >= vectors:
            return False  # the same for any number of threads, as results must be
        most = min(self.threads, self._items())
        if self.open:
            self.cuts = most
        elif self.threads > 1 and alone > _SHARED:
            ways = [(a, cuts) for a in shared for cuts in range(1, most + 1)]
            self.area, self.cuts = min(ways, key=lambda way: self._time(way[0], way[1], self.threads))
        return True

    def _axes(self, rows: list[Expr]) -> tuple[Axis, Axis] | None:
        """The lines and the places of a window; None where there is no window."""
        a = self.c.a
        found: list[Axis] = []
        for index, at in enumerate(E.substitute(i, self.mapping) for i in a.args):
            terms = E.linear(at)[1]
            row = next((r for r in rows[-2:] if r in terms), None)
            tap = next((t for t in self.taps if t in terms), None)
            if self.inner[-1] in terms or (row is None and tap is None):
                continue
            if set(terms) != {v for v in (row, tap) if v is not None}:
                return None
            size = static(row.args[0]) if row is not None else 1
            stride, dilation = (terms[v] if v is not None else 1 for v in (row, tap))
            if size is None or min(stride, dilation) < 1 or (tap and static(tap.args[0]) is None):
                return None
            found.append(Axis(index, row, size, stride, tap, dilation))
        used = [axis.tap for axis in found if axis.tap is not None]
        if len(used) != len(self.taps) or len(found) > 2 or not found:
            return None
        if len(found) == 1:
            if not self.taps:
                return None
            found.insert(0, Axis(-1, None, 1, 1, None, 1))
        lines, places = found
        if places.row is not rows[-1] or static(self.row_step(rows[-1])) is None:
            return None
        if lines.row is not None and (len(rows) < 2 or lines.row is not rows[-2]):
            return None
        return lines, places

    def _windows(self, axes: tuple[Axis, Axis]) -> list[Area]:
        """The strips of a window: of any number of lines whose strips stay in the cache."""
        lines, places = axes
        if lines.size * places.size < MIN_POSITIONS:
            return []
        pitch = places.size + max(offset for _, offset in places.places())
        down, along = lines.places(), places.places()
        found: list[Area] = []
        for count in range(1, (1 if self._is_round(lines.row) else lines.size) + 1):
            count = -(-lines.size // -(-lines.size // count))
            if found and found[-1].lines == count:
                continue
            classes = tuple(
                (
                    (i, j),
                    count + max(o for k, o in down if k == i),
                    places.size + max(o for k, o in along if k == j),
                )
                for i in sorted({k for k, _ in down})
                for j in sorted({k for k, _ in along})
            )
            area = Area(axes, places.size, pitch, count, classes)
            large = self._bytes(area, self.pairs) > self.cache // 2
            if found and (large or area.blocks * POSITIONS > LONGEST):
                break
            found.append(area)
        return found

    def _is_round(self, row: Expr | None) -> bool:
        """The lines of what is read or written are stored round."""
        if row is None:
            return False
        values = (v for v in self.group.members if v not in self.nest.internal)
        written = (step(self.storage, E.load(v, self.d.axes), row) for v in values)
        return self._line_step(row) is None or None in written

    def _runs(self, threads: int) -> list[Area]:
        """The strips of a run of rows: as long as the cache allows, and for threads any shorter ones."""
        count, part = static(self.run_row.args[0]), 8 if threads == 1 else 2
        most = max(min(self.cache // part // (self.pairs * 3 * 64), LONGEST), LONG)
        if count is None:
            most = -(-most // POSITIONS) * POSITIONS
            return [Area(None, most, most)]
        if count < MIN_POSITIONS:
            return []
        fewest = -(-count // most)
        more = max(MOST_UNITS * threads, fewest) if threads > 1 else fewest
        sizes = (-(-count // n // POSITIONS) * POSITIONS for n in range(fewest, more + 1))
        return [Area(None, size, size) for size in dict.fromkeys(sizes)]

    def _bytes(self, area: Area, pairs: int) -> int:
        return area.plane() * 3 * 64 * pairs

    def _items(self) -> int:
        return -(-self.columns // COLUMNS)

    def _steps(self) -> int:
        return self.pairs * self._steps_of_pair()

    def _steps_of_pair(self) -> int:
        """One for each tap."""
        return math.prod(static(t.args[0]) or 1 for t in self.taps)

    def _positions(self, area: Area) -> int:
        """Of one image, or of a run."""
        if area.axes is None:
            return static(self.run_row.args[0]) or area.width
        return area.axes[0].size * area.axes[1].size

    def _time(self, area: Area, cuts: int, threads: int) -> float:
        """Cycles until the last of so many threads is through, where the columns are cut as well."""
        if area.axes is not None:
            strips, staged = area.axes[0].size / area.lines, sum(n * m for _, n, m in area.classes)
        else:
            strips, staged = self._positions(area) / area.width, area.width
        steps = self._steps() * (area.blocks * STEP + CONVERT)
        items = -(-self._items() // cuts)
        each = staged * self.pairs * SPLIT + items * (steps + area.blocks * TILE) + ENTRY
        if threads == 1:
            return strips * each
        runs = math.prod(static(r.args[0]) or 1 for r in (*self.c.batch, *self.outer))
        units = runs * math.ceil(strips) * cuts
        others = 1 - 1 / threads
        staged_bytes = math.ceil(strips) * staged * self.pairs * PAIR * 4
        packed = self._steps() * self._items() * PAIR * COLUMNS * 4
        written = self._positions(area) * self.columns * 4 / threads  # whose reader takes rows
        moved = packed * _MEMORY if packed > self.cache // 8 else 0.0
        if cuts > 1:
            moved = (staged_bytes + written) * _REMOTE
        return -(-units // threads) * each + others * moved

    # --- the kernel ---

    @property
    def open(self) -> bool:
        """How many rows there are is known at run time only."""
        return self.area.axes is None and static(self.run_row.args[0]) is None

    def kernel(self, name: str, few: tuple[tuple[Expr, ...], list[Stmt]] | None = None) -> Kernel:
        """The kernel; `few` are the variables and statements that compute all rows where there are few."""
        c, area = self.c, self.area
        items = self._items()
        run = area.axes is None
        lines = area.axes[0] if area.axes is not None else None
        total: Expr = self.run_row.args[0] if run else E.const(lines.size if lines is not None else 1)
        share = area.width if run else area.lines
        strips = E.floordiv(total + (share - 1), share)
        self.strip = E.const(0) if static(strips) == 1 else E.var(strips, "s")
        if lines is not None and lines.row is not None and share == 1:
            self.strip = lines.row
        self.share = -(-items // self.cuts)
        self.part = E.const(0) if self.share == items else E.var(-(-items // self.share), "c")
        self.left = E.minimum(total - self.strip * share, share)
        if static(total) is not None and (static(total) or 0) % share == 0:
            self.left = E.const(share)
        self.count = E.const(self.share)
        if items % self.share:
            self.count = E.minimum(items - self.part * self.share, self.share)
        self.parts = self._chunks()
        slots = E.const(self.threads)
        self.slot = E.var(slots, "slot")
        pairs = max(p for p, _ in self.parts)
        steps = max(s for _, chunks in self.parts for s in chunks)
        self.longest = 3 * steps
        more = sum(len(chunks) for _, chunks in self.parts) > 1
        kept = self.share if len(self.parts) > 1 else 1
        shapes = [
            ("staged", "uint16", (pairs * 3 * area.plane(), PAIR)),
            ("tiles", "uint16", (2 * self.longest, STEP_BYTES // 6)),
            *([("sums", "float32", (kept * area.blocks, POSITIONS * COLUMNS))] if more else []),
        ]
        self.scratch = [
            Value(f"{c.value.name}.{what}", dtype, (slots, *map(E.const, shape)))
            for what, dtype, shape in shapes
        ]
        body: list[Stmt] = []
        done = 0
        for i, (pairs, _) in enumerate(self.parts):
            body += [*self._stage(done, pairs), self._first(i, done), *self._items_loop(i, done)]
            done += pairs
        nothing = (self.slot, E.const(0), E.const(0))
        body.append(Micro(Release(), (), (self.scratch[0], nothing), touches=(0,), cycles=E.const(ENTRY)))
        numbers = [v for v in (self.strip, self.part) if v.op == "var"]
        parallel = list(dict.fromkeys([*c.batch, *self.outer, *numbers]))
        if few is not None:
            variables, statements = few
            alone = [v for v in variables if v not in parallel]
            cut = max(alone, key=lambda v: static(v.args[0]) or 0, default=None)
            for v in reversed(alone):
                start, stop = E.const(0), v.args[0]
                if v is cut and self.part.op == "var":
                    each = E.floordiv(stop + (self.cuts - 1), self.cuts)
                    start, stop = self.part * each, E.minimum((self.part + 1) * each, stop)
                statements = [For(v, stop, tuple(statements), start=start)]
            if self.part.op == "var" and cut is None:
                statements = [If(E.lt(self.part, 1), tuple(statements))]
            body = [If(E.lt(total, MIN_POSITIONS), tuple(statements), tuple(body))]
        writes = (*(v for v in self.group.members if v not in self.nest.internal), *self.scratch)
        tag = "conv" if c.spatial else "gemm"
        kernel = finish(name, parallel, tuple(body), self.group, writes, self.storage, tag)
        return replace(kernel, reads=(*kernel.reads, c.panel), slot=self.slot)

    def _chunks(self) -> list[tuple[int, list[int]]]:
        """Parts of k that are staged at once: pairs, and the steps of each chunk of the right operand."""
        taps = self._steps_of_pair()
        room = max(self.cache // 2 // self._bytes(self.area, 1), 1)
        parts = -(-self.pairs // min(room, self.pairs))
        each = max(CHUNK // taps, 1)
        result = []
        for n in _even(self.pairs, -(-self.pairs // parts)):
            result.append((n, [m * taps for m in _even(n, each)]))
        return result

    def _at(self, index: Expr) -> Expr:
        """An index of the left operand at the strip's first position."""
        if self.area.axes is None:
            start = {self.run_row: self.strip * self.area.width}
        else:
            rows = [axis.row for axis in self.area.axes]
            firsts = (self.strip * self.area.lines, E.const(0))
            start = {row: first for row, first in zip(rows, firsts) if row is not None}
        return self._logical(index, start)

    def _stage(self, done: int, pairs: int) -> Iterator[Stmt]:
        """The positions of a strip, for pairs from number `done` on."""
        c, area = self.c, self.area
        k, begin = done * PAIR, {}
        for r in reversed(self.inner[1:]):
            k, place = divmod(k, static(r.args[0]) or 1)
            begin[r] = E.const(place)
        begin[self.inner[0]] = E.const(k)
        args = [self._at(E.substitute(i, begin)) for i in c.a.args]
        last = done + pairs == self.pairs
        bare = pairs - 1 if last and self.odd else pairs
        rest = self.rest if last else BLOCK
        follow = 2 * self.half

        def micro(at: list[Expr], to: Expr, n: Expr, row: Expr, lines: Expr, across: Expr, read: int) -> Stmt:
            sizes = (area.pitch, pairs, self.half, follow, area.plane(), bare, rest)
            arguments = (n, row, lines, across, *map(E.const, sizes))
            read *= pairs * PAIR
            source, place = (c.a.attr, tuple(at)), (self.scratch[0], (self.slot, to, E.const(0)))
            cycles = n * lines * (pairs * SPLIT)
            return Micro(Stage(), (source,), place, arguments, touches=(read, 3 * read), cycles=cycles)

        zero, one = E.const(0), E.const(1)
        if area.axes is None:
            yield micro(args, zero, self.left, self.row_step(self.run_row), one, zero, area.width)
            return
        down, along = area.axes
        assert along.row is not None
        row = self.row_step(along.row)
        for ((i, j), lines, places), start in zip(area.classes, area.starts().values()):
            number, n, to = self.left + (lines - area.lines), E.const(places), E.const(start)
            line = zero if lines == 1 else E.var(number, "l")
            at = list(args)
            if down.index >= 0:
                at[down.index] = at[down.index] + line * down.stride + i
            at[along.index] = at[along.index] + j
            across = step(self.storage, E.load(c.a.attr, at), line) if lines > 1 else zero
            if across is None:  # lines that are stored round
                one_line = micro(at, line * area.pitch + start, n, row, one, zero, places)
                yield For(line, line.args[0], (one_line,))
                continue
            if places == area.pitch and across is row * places:
                n, number = number * places, one
            first = [E.substitute(a, {line: zero}) for a in at]
            yield micro(first, to, n, row, number, across, lines * places)

    def _column(self, item: Expr) -> Expr:
        return (self.part * self.share + item) * COLUMNS

    def _w(self, item: Expr) -> tuple[Value, tuple[Expr, ...]]:
        """The right operand at an item's first column."""
        c = self.c
        at = {c.column: self._column(item), **dict.fromkeys(c.k, E.const(0))}
        return c.panel, tuple(self._logical(i, at) for i in c.w.args)

    def _second(self, item: Expr) -> Expr:
        """Elements from there to the column 16 further, or 0 where there is none."""
        panels = -(-self.columns // self.c.lanes) * self.c.lanes // BLOCK
        if panels % 2 == 0:
            return E.const(self._apart())
        left = E.const(panels - 1) - (self.part * self.share + item) * (COLUMNS // BLOCK)
        return E.minimum(left, 1) * self._apart()

    def _source(self, i: int, j: int, done: int) -> tuple[int, int, int]:
        """Of chunk j of part i, whose pairs start at number `done`: the element where its k starts, its
        units, and its first step without a second block."""
        taps = self._steps_of_pair()
        chunks = self.parts[i][1]
        first = done + sum(chunks[:j]) // taps
        steps = chunks[j]
        last = first + steps // taps == self.pairs
        bare = steps - taps if last and self.odd else steps
        return first * 2 * taps * 256, steps * UNITS, bare

    def _first(self, i: int, done: int) -> Stmt:
        """The right operand of the first item and chunk of a part."""
        start, units, bare = self._source(i, 0, done)
        taps = self._steps_of_pair()
        zero = E.const(0)
        arguments = (self._second(zero), *map(E.const, (start, taps, units, bare)))
        steps = units // UNITS
        to = (self.scratch[1], (self.slot, zero, zero))
        touches = (steps * PAIR * COLUMNS, STEP_BYTES // 2 * steps)
        cycles = E.const(steps * CONVERT)
        return Micro(Convert(), (self._w(zero),), to, arguments, touches=touches, cycles=cycles)

    def _items_loop(self, i: int, done: int) -> list[Stmt]:
        """The sums of a part of k, for all items of columns."""
        item = E.const(0) if self.share == 1 else E.var(self.count, "q")
        chunks = self.parts[i][1]
        body: list[Stmt] = []
        for j in range(len(chunks)):
            body += self._blocks(item, i, j, done)
        return [For(item, item.args[0], tuple(body))] if item.op == "var" else body

    def _blocks(self, item: Expr, i: int, j: int, done: int) -> list[Stmt]:
        """The sums of a chunk, for all tiles of positions; after the last one, the rest of the group."""
        area, zero = self.area, E.const(0)
        chunks = self.parts[i][1]
        steps, taps = chunks[j], self._steps_of_pair()
        first, last = i == j == 0, i == len(self.parts) - 1 and j == len(chunks) - 1
        used = self.left if area.axes is None else (self.left - 1) * area.pitch + area.width
        number = E.floordiv(used + (POSITIONS - 1), POSITIONS)
        block = zero if area.blocks == 1 else E.var(number, "m")
        turn = item * len(chunks) + j
        here, there = E.mod(turn, 2), E.mod(turn + 1, 2)
        if j + 1 < len(chunks):
            start, count, bare = self._source(i, j + 1, done)
            following, units = item, E.const(count)
            converted = units
        else:
            start, count, bare = self._source(i, 0, done)
            following = E.minimum(item + 1, self.count - 1)
            units = E.minimum(self.count - 1 - item, 1) * count
            converted = E.floordiv(count * (self.count - 1), self.count)  # on average
        kernel = Product(self._places())
        staged = sum(chunks[:j]) // taps * 3 * area.plane()
        plane = area.plane()
        kept = item if len(self.parts) > 1 else zero
        acc = Value("acc", "float32", (E.const(POSITIONS), E.const(COLUMNS)))
        # the first chunk adds to nothing; its call is given an address that it does not read
        before = (
            (self.scratch[2], (self.slot, kept * area.blocks + block, zero))
            if not first
            else self._w(following)
        )
        reads = (
            self._w(following),
            (self.scratch[0], (self.slot, block * POSITIONS + staged, zero)),
            (self.scratch[1], (self.slot, here * self.longest, zero)),
            (self.scratch[1], (self.slot, there * self.longest, zero)),
            before,
        )
        writes = (
            (acc, (zero, zero)) if last else (self.scratch[2], (self.slot, kept * area.blocks + block, zero))
        )
        arguments = (
            E.const(steps), E.const(plane), E.const(0 if first else 1), self._second(following),
            E.const(start), units, E.const(bare), block, number if block.op == "var" else E.const(1),
        )  # fmt: skip
        share = max(count // UNITS // area.blocks, 1)
        touches = (
            share * PAIR * COLUMNS, steps * 3 * 1024, steps * STEP_BYTES // 2, share * STEP_BYTES // 2,
            0 if first else 1024, 1024,
        )  # fmt: skip
        cycles = E.const(steps * STEP + TILE) + E.floordiv(converted * (CONVERT // UNITS), number)
        micro = Micro(kernel, reads, writes, arguments, touches=touches, cycles=cycles)
        body: list[Stmt] = [micro]
        if last:
            panel = self.part * self.share + item
            body = [Declare(acc), micro, *self._epilogue(acc, panel, self._rows(block, used), 1)]
        return [For(block, block.args[0], tuple(body))] if block.op == "var" else body

    def _places(self) -> tuple[int, ...]:
        """Where the positions of each tap start."""
        area = self.area
        if area.axes is None:
            return (0,)
        starts, result = area.starts(), []
        for point in itertools.product(*(range(static(t.args[0]) or 1) for t in self.taps)):
            at = dict(zip(self.taps, point))
            (i, down), (j, along) = (a.place(at[a.tap] if a.tap is not None else 0) for a in area.axes)
            result.append(starts[i, j] + down * area.pitch + along)
        return tuple(result)

    def _rows(self, block: Expr, used: Expr) -> Rows:
        """A tile's positions."""
        area = self.area
        offsets = (0,) * POSITIONS
        count: Expr | None = E.minimum(used - block * POSITIONS, POSITIONS)
        known = static(used)
        if known is not None and known % POSITIONS == 0:
            count = None
        if area.axes is None:
            start = self.strip * area.width + block * POSITIONS
            return Rows(block, {self.run_row: start}, offsets, self.run_row, count=count)
        down, along = area.axes
        if area.lines == 1 and along.row is not None:
            at = {along.row: block * POSITIONS} | ({down.row: self.strip} if down.row is not None else {})
            return Rows(block, at, offsets, along.row, count=count)
        at = {down.row: self.strip * area.lines} if down.row is not None else {}
        return _Tile(
            block, at, offsets, along.row, down.row, area.pitch, count,
            first=block * POSITIONS, places=area.width,
        )  # fmt: skip


def _even(total: int, most: int) -> list[int]:
    """`total` in pieces of nearly equal size, none larger than `most`."""
    count = -(-total // most)
    return [total // count + (n < total % count) for n in range(count)]
