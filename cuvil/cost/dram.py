"""Bytes that a kernel moves, from the footprints of its accesses and what the caches still hold.

Two effects are kept apart:

* *inside a kernel*, the layer condition: loops whose combined footprint fits the cache read each
  element once, the loops outside them read it again (`Footprints`);
* *between kernels*, the reuse distance ``d``, the cache lines touched since a tensor's last use:
  ``P(DRAM) = 1 - alpha ** (d / lines)``.  The function is often quoted as ``alpha ** (d / lines)``
  with ``alpha`` 0.85 and called the probability of a DRAM access; but that falls with the distance,
  while an access the further back its last use lies the more likely misses.  It is the probability
  of a hit, and the miss that is wanted here is the complement.

Weights are read from DRAM in each inference unless they fit in the cache with everything else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cuvil.cost.nests import Level, Nest, Sizes, nest
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Micro, Store, expressions
from cuvil.ir.primitives import Constant, Value
from cuvil.schedule.plan import Schedule
from cuvil.schedule.storage import Storage

ALPHA = 0.85
"""Hit probability of a reuse distance that equals the cache."""


def miss_probability(distance: float, capacity: float, alpha: float = ALPHA) -> float:
    """``1 - alpha ** (distance / capacity)``, both in bytes (or both in lines); 0 with no distance,
    1 with no cache."""
    if distance <= 0:
        return 0.0
    return 1.0 - float(alpha ** (distance / capacity)) if capacity > 0 else 1.0


def matmul_bound(m: float, n: float, k: float, words: float) -> float:
    """Words that a product of [m, k] by [k, n] moves at least with a cache of `words`:
    ``max(|A| + |B| + |C|, 2 m n k / sqrt(S) - 2 S)`` (Smith et al. 2019)."""
    return max(m * k + k * n + m * n, 2 * m * n * k / math.sqrt(words) - 2 * words)


def convolution_bound(
    image: float, weights: float, result: float, macs: float, reuse: float, words: float
) -> float:
    """Words that a convolution moves at least with a cache of `words`:
    ``max(|I| + |W| + |O|, 2 MACs / sqrt(R S))``, ``R = kh * kw / stride ** 2`` (Chen et al. 2020)."""
    return max(image + weights + result, 2 * macs / math.sqrt(reuse * words))


@dataclass(frozen=True, eq=False)
class Access:
    """Loads or stores of a root value whose addresses differ by constants alone.

    Attributes:
        strides: coefficients of the loops' variables in the address.
        irregular: the variables that it depends on in another way.
        elements: what it touches at one point of the loops: 1, or what a tile needs.
        offsets: the constants, ascending.
        size, item: bytes of the root value, and of one element.
    """

    root: Value
    size: float
    item: int
    strides: dict[Expr, int]
    irregular: frozenset[Expr]
    writes: bool
    elements: float = 1.0
    offsets: tuple[int, ...] = (0,)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for accesses that differ by constants alone."""
        strides = tuple(sorted((v.serial, c) for v, c in self.strides.items()))
        return self.root, self.writes, strides, self.irregular, self.elements


@dataclass(frozen=True)
class Footprint:
    """Bytes of a root value that a kernel touches, and that it moves past a cache."""

    read: float = 0.0
    written: float = 0.0
    touched: float = 0.0

    @property
    def again(self) -> float:
        """Bytes that are read more than once because the cache does not hold them."""
        return max(self.read - self.touched, 0.0)


class Footprints:
    """What one kernel touches, ready to be asked about caches of any size.

    Args:
        loops: the kernel's nest.
        size_of: bytes of a root value.
        line: of the cache, bytes.
    """

    def __init__(
        self, loops: Nest, storage: Storage, sizes: Sizes, size_of: Callable[[Value], float], line: int
    ) -> None:
        self.loops, self.storage, self.sizes, self.line = loops, storage, sizes, line
        self.size_of = size_of
        self.bodies: list[tuple[tuple[Level, ...], list[Access]]] = []
        for levels, sites in itertools.groupby(loops.sites, lambda site: tuple(site.levels)):
            accesses = [a for site in sites for a in self._accesses(site.statement)]
            self.bodies.append((levels, _joined(accesses)))

    def _accesses(self, s: Store | Accumulate | Micro) -> list[Access]:
        found: list[Access] = []
        if isinstance(s, Micro):
            return self._tile(s)
        for e in E.loads(*expressions(s)):
            if e.attr not in self.loops.locals:
                found.append(self._access(e.attr, e.args, False))
        if s.target not in self.loops.locals:
            found.append(self._access(s.target, s.indices, True))
            if isinstance(s, Accumulate):
                found.append(self._access(s.target, s.indices, False))
        return found

    def _tile(self, s: Micro) -> list[Access]:
        """What a tuned tile reads: for rows x lanes sums over k, rows x k of one operand and
        k x lanes of the other; its sums stay in registers.  Other micro-kernels say what they touch."""
        if s.touches:
            return [
                self._made(root, {}, E.variables(offset), n == len(s.reads), float(s.touches[n]))
                for n, (value, indices) in enumerate((*s.reads, s.writes))
                if value not in self.loops.locals
                for root, offset in [self.storage.address(value, indices)]
            ]
        rows, lanes = (self.sizes(n) for n in s.writes[0].shape)
        k = self.sizes(s.flops) / max(2 * rows * lanes, 1.0)
        found = []
        for (value, indices), width in zip(s.reads, (rows, lanes)):
            root, offset = self.storage.address(value, indices)
            found.append(self._made(root, {}, E.variables(offset), False, width * k))
        return found

    def _access(self, value: Value, indices: Sequence[Expr], writes: bool) -> Access:
        root, offset = self.storage.address(value, indices)
        constant, terms = E.linear(offset)
        strides: dict[Expr, int] = {}
        irregular: set[Expr] = set()
        for term, c in terms.items():
            if term.op == "var":
                strides[term] = abs(c)
            else:
                irregular |= E.variables(term)
        return self._made(root, strides, irregular, writes, 1.0, constant)

    def _made(
        self,
        root: Value,
        strides: dict[Expr, int],
        irregular: set[Expr],
        writes: bool,
        elements: float,
        offset: int = 0,
    ) -> Access:
        item = E.numpy_dtype(root.dtype).itemsize
        return Access(
            root, self.size_of(root), item, strides, frozenset(irregular), writes, elements, (offset,)
        )

    def extent(self, access: Access, levels: Sequence[Level]) -> float:
        """Bytes that the access touches while the loops of `levels` run."""
        trips = {level.var: level.trips for level in levels if level.var is not None}
        steps = [(c, trips[v]) for v, c in access.strides.items() if v in trips]
        steps += _progressions(access.offsets)
        groups: list[list[float]] = []  # [stride, count], ascending
        for stride, count in sorted(steps):
            last = groups[-1] if groups else None
            if last is not None and last[1] % 1:  # strips of a row, the last of them partly filled
                last[1] *= count
            elif last is not None and (stride == last[0] or stride < last[0] * last[1]):
                last[1] += stride / last[0] * (count - 1)
            elif count > 1:
                groups.append([stride, count])
        elements = access.elements * math.prod(g[1] for g in groups)
        elements *= math.prod(trips[v] for v in access.irregular if v in trips)
        waste = min(self.line / access.item, groups[0][0]) if groups and groups[0][1] > 1 else 1.0
        return min(elements * max(waste, 1.0) * access.item, access.size)

    def past(self, capacity: float) -> dict[Value, Footprint]:
        """What the kernel moves past a cold cache of `capacity` bytes, by root value."""
        read: dict[Value, list[float]] = {}
        written: dict[Value, list[float]] = {}
        touched: dict[Value, list[float]] = {}
        for levels, accesses in self.bodies:
            inner = self._fitting(levels, accesses, capacity)
            outside = math.prod(level.trips for level in levels[: max(inner - 1, 0)])
            for a in accesses:
                once = self.extent(a, levels)
                moved = self.extent(a, levels[max(inner - 1, 0) :]) * outside
                (written if a.writes else read).setdefault(a.root, []).append(max(once, moved))
                touched.setdefault(a.root, []).append(once)
        result = {}
        for root, sizes in touched.items():
            size = self.size_of(root)
            result[root] = Footprint(
                _union(read.get(root, []), size), _union(written.get(root, []), size), _union(sizes, size)
            )
        return result

    def _fitting(self, levels: Sequence[Level], accesses: Sequence[Access], capacity: float) -> int:
        """The outermost level from which on the loops' footprint fits the cache; one more than there are
        where not even that of the statements does."""
        for start in range(len(levels) + 1):
            if sum(self.extent(a, levels[start:]) for a in accesses) <= capacity:
                return start
        return len(levels) + 1


def _progressions(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """(stride, count) of the nested loops that would run over ascending offsets: those of equal distance
    together, then the first of each such run, and so on."""
    found = []
    while len(offsets) > 1:
        stride = min(b - a for a, b in itertools.pairwise(offsets))
        starts = [offsets[0], *(b for a, b in itertools.pairwise(offsets) if b - a > stride)]
        found.append((stride, -(-len(offsets) // len(starts))))
        offsets = starts
    return found


def _joined(accesses: Sequence[Access]) -> list[Access]:
    """Accesses that differ by constants alone as one."""
    grouped: dict[tuple[object, ...], list[Access]] = {}
    for a in accesses:
        grouped.setdefault(a.key, []).append(a)
    return [replace(g[0], offsets=tuple(sorted({n for a in g for n in a.offsets}))) for g in grouped.values()]


def _union(parts: Sequence[float], size: float) -> float:
    """Bytes of several accesses to one value: the sum, but no more than the value unless one of them
    alone moves more."""
    return min(sum(parts), max(size, max(parts, default=0.0)))


@dataclass(frozen=True)
class Traffic:
    """Bytes that a kernel moves past a cache: to and from what lies behind it."""

    read: float
    written: float

    @property
    def total(self) -> float:
        return self.read + self.written


class Movement:
    """What the kernels of a schedule touch.

    Args:
        nests: of the kernels; made here where None.
        line: of the caches, bytes.
    """

    def __init__(
        self, schedule: Schedule, sizes: Sizes, nests: Sequence[Nest] | None = None, line: int = 64
    ) -> None:
        self.schedule, self.sizes = schedule, sizes
        self._bytes: dict[Value, float] = {}
        found = [nest(k, sizes) for k in schedule.kernels] if nests is None else nests
        self.kernels = [Footprints(n, schedule.storage, sizes, self.size_of, line) for n in found]

    def size_of(self, root: Value) -> float:
        """Bytes of a root value."""
        size = self._bytes.get(root)
        if size is None:
            count = self.sizes(self.schedule.storage.elements(root))
            size = self._bytes[root] = count * E.numpy_dtype(root.dtype).itemsize
        return size

    def cold(self, capacity: float) -> float:
        """Bytes that all kernels move past a cache of `capacity` bytes that is cold before each."""
        return sum(f.read + f.written for k in self.kernels for f in k.past(capacity).values())

    def traffic(self, capacity: float, alpha: float = ALPHA) -> list[Traffic]:
        """What each kernel moves past a cache of `capacity` bytes, in a steady state of one inference
        after the other."""
        kernels = [k.past(capacity) for k in self.kernels]
        everything = self._everything(kernels)
        outputs = {self.schedule.storage.root(v) for v in self.schedule.program.outputs}
        next_use = _next_uses(kernels)
        elapsed = 0.0
        last: dict[Value, float] = {}
        result = []
        for k, used in enumerate(kernels):
            read = written = 0.0
            for root, f in used.items():
                if f.read:
                    if isinstance(root.definition, Constant):
                        missing = 0.0 if everything <= capacity else 1.0
                    else:
                        distance = elapsed - last[root] + f.touched if root in last else everything
                        missing = miss_probability(min(distance, everything), capacity, alpha)
                    read += missing * min(f.read, f.touched) + f.again
                if f.written:
                    later = next_use.get((k, root))
                    distance = everything if later is None or root in outputs else later
                    missing = miss_probability(min(distance, everything), capacity, alpha)
                    written += missing * min(f.written, f.touched) + max(f.written - f.touched, 0.0)
            elapsed += sum(f.touched for f in used.values())
            last.update(dict.fromkeys(used, elapsed))
            result.append(Traffic(read, written))
        return result

    def _everything(self, kernels: Sequence[Mapping[Value, Footprint]]) -> float:
        """Bytes of all that an inference touches: workspace, weights, inputs and outputs."""
        roots: dict[Value, float] = {}
        for used in kernels:
            for root, f in used.items():
                roots[root] = max(roots.get(root, 0.0), f.touched)
        arena = self.schedule.arena
        outside = sum(size for root, size in roots.items() if root not in arena)
        inside = sum(size for root, size in roots.items() if root in arena)
        return outside + min(inside, self.sizes(self.schedule.arena_bytes))


def _next_uses(kernels: Sequence[Mapping[Value, Footprint]]) -> dict[tuple[int, Value], float]:
    """(kernel, root) -> bytes touched between an element's use in it and in the next kernel that uses the
    root: what lies between the kernels, and the root itself."""
    starts, position = [], 0.0
    for used in kernels:
        starts.append(position)
        position += sum(f.touched for f in used.values())
    starts.append(position)
    found: dict[tuple[int, Value], float] = {}
    following: dict[Value, int] = {}
    for k in range(len(kernels) - 1, -1, -1):
        for root in kernels[k]:
            if root in following:
                found[k, root] = starts[following[root]] - starts[k + 1] + kernels[k][root].touched
            following[root] = k
    return found
