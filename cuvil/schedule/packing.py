"""Packing of buffers with fixed lifetimes into one address range: dynamic storage allocation.

A plan is a packing of rectangles that may only move up and down: time runs to the right, addresses
upward.  No plan is lower than the largest sum of sizes alive at once, the *load*.  `pack` tries first
fit in a few orders and, where none reaches the load, searches for a plan below a given height.

The search builds bottom-justified plans (every buffer lies at 0 or upon another) from the lowest
addresses up:

* Of the points in time only those matter at which a maximal set of buffers is alive (the maximal
  cliques of the interval graph, in order); a buffer is a range of these.
* Each open buffer has a *release*, the lowest offset still allowed.  At a point in time, its open buffers are
  jobs on one machine: in order of release, ``end = max(end, release) + size`` is a lower bound of the
  height (J. R. Jackson, 1955).  Where it exceeds the height asked for, the search turns back.
* The lowest release at a point is its floor.  Buffers whose release is the floor of a *niche*, a run
  of points of equal floor between higher ones, can be put there without a hole under them.
* A decision takes a point in a niche and a buffer that may lie on its floor, and puts it there or,
  when that has failed, postpones it: its release becomes the lowest top that another open buffer
  it meets can have.  The point is the one with the fewest such buffers per weight, where weights count
  failures (F. Boussemart et al., "Boosting systematic search by weighting constraints", ECAI 2004).
* A run ends after some failures and another begins with the weights learnt and other preferences.

Work is counted in visits to a buffer at a point in time, never in seconds, so that a plan is the same on
every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

BUDGET = 6_000_000
"""Visits that the search may spend by default, some 0.1 us each."""

FAILURES, GROWTH = 100, 1.05
"""Failures after which the first run ends, and the factor from run to run."""

DECAY = 0.98
"""What remains of a weight from run to run."""

_CLOSED = 1 << 62
"""The release of a buffer that has its place; beyond every address."""

WINDOW = 256
"""Points in time that are searched for a niche at once."""

ROUNDS = 6
"""Heights that are tried; the first with half of the budget, the others with equal shares of the rest."""


@dataclass(frozen=True)
class Interval:
    """A buffer of `size` >= 0 units that is alive from `first` to `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Packing:
    """Offsets in the order of the buffers, the height (their largest top), and the load, which no
    packing can beat."""

    offsets: tuple[int, ...]
    height: int
    load: int


@dataclass(frozen=True)
class _Problem:
    """Buffers as sizes and ranges [low, high) of maximal cliques, in order of `low`; the members of each
    clique; and how many buffers begin before each."""

    size: list[int]
    low: list[int]
    high: list[int]
    members: list[list[int]]
    before: list[int]

    @property
    def load(self) -> int:
        return max(sum(self.size[b] for b in clique) for clique in self.members)

    def area(self, b: int) -> int:
        return (self.high[b] - self.low[b]) * self.size[b]

    @property
    def pairs(self) -> int:
        """The total length of `meets` over all buffers."""
        return sum(
            len(self.members[low]) + self.before[high] - self.before[low + 1]
            for low, high in zip(self.low, self.high)
        )

    def meets(self, b: int) -> list[int]:
        """The buffers alive together with `b`, `b` among them."""
        low = self.low[b]
        return [*self.members[low], *range(self.before[low + 1], self.before[self.high[b]])]


def pack(buffers: Sequence[Interval], enough: int = 0, budget: int = BUDGET) -> Packing:
    """A low packing of `buffers`.

    Args:
        enough: a height that will do; a lower packing than that, or than the load, is not looked for.
        budget: visits that the search may spend.  It is left out where more pairs of buffers than that
            are alive together.
    """
    offsets = [0] * len(buffers)
    height = 0
    parts = [(part, _problem([buffers[b] for b in part])) for part in _components(buffers)]
    load = max((problem.load for _, problem in parts), default=0)
    goal = max(load, enough)
    hard = []
    for part, problem in parts:
        found = _greedy(problem, goal)
        for b, offset in zip(part, found):
            offsets[b] = offset
        top = _top(problem, found)
        if top > goal and problem.pairs <= budget:
            hard.append((top, part, problem))
        height = max(height, top)
    if hard:
        improved = _improve([problem for _, _, problem in hard], [top for top, _, _ in hard], goal, budget)
        for (_, part, _), lower in zip(hard, improved):
            for b, offset in zip(part, lower or ()):
                offsets[b] = offset
        height = max((buffers[b].size + offset for b, offset in enumerate(offsets)), default=0)
    return Packing(tuple(offsets), height, load)


def _components(buffers: Sequence[Interval]) -> list[list[int]]:
    """Indices of the buffers with a size, grouped so that no lives of two groups meet."""
    order = sorted((b for b, x in enumerate(buffers) if x.size > 0), key=lambda b: (buffers[b].first, b))
    parts: list[list[int]] = []
    end = -math.inf
    for b in order:
        if buffers[b].first > end:
            parts.append([])
        parts[-1].append(b)
        end = max(end, buffers[b].last)
    return parts


def _problem(buffers: Sequence[Interval]) -> _Problem:
    """The problem of buffers in order of `first`.

    A clique is maximal where a buffer dies and one has been born since the clique before it.
    """
    births = [x.first for x in buffers]
    deaths = sorted({x.last for x in buffers})
    points: list[int] = []
    n = 0
    for death in deaths:
        seen = n
        while n < len(births) and births[n] <= death:
            n += 1
        if n > seen:
            points.append(death)
    low = np.searchsorted(points, births).tolist()
    high = np.searchsorted(points, [x.last for x in buffers], side="right").tolist()
    members: list[list[int]] = [[] for _ in points]
    for b in range(len(buffers)):
        for p in range(low[b], high[b]):
            members[p].append(b)
    before = np.searchsorted(low, range(len(points) + 1)).tolist()
    return _Problem([x.size for x in buffers], low, high, members, before)


def _top(problem: _Problem, offsets: Sequence[int]) -> int:
    return max(offset + size for offset, size in zip(offsets, problem.size))


def _greedy(problem: _Problem, goal: int) -> list[int]:
    """First fit in the best of some orders; the first that reaches `goal`."""
    size, low, high = problem.size, problem.low, problem.high
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda b: (-size[b], b),
        lambda b: (low[b] - high[b], -size[b], b),
        lambda b: (-problem.area(b), b),
        lambda b: (low[b], -size[b], b),
    )
    best, least = [0] * len(size), sum(size) + 1
    for key in orders:
        found = _first_fit(problem, sorted(range(len(size)), key=key))
        top = _top(problem, found)
        if top < least:
            best, least = found, top
        if top <= goal:
            break
    return best


def _first_fit(problem: _Problem, order: Sequence[int]) -> list[int]:
    """Each buffer in turn at the lowest offset that is free over its whole life."""
    size = problem.size
    offsets = [-1] * len(size)
    for b in order:
        at = 0
        for start, d in sorted((offsets[d], d) for d in problem.meets(b) if offsets[d] >= 0):
            if start - at >= size[b]:
                break
            at = max(at, start + size[d])
        offsets[b] = at
    return offsets


def _improve(
    problems: Sequence[_Problem], tops: Sequence[int], goal: int, budget: int
) -> list[list[int] | None]:
    """Packings of problems that share the address range, lower than `tops`; None: none was found.

    `goal` is tried first, then heights halfway between the highest that was not reached and the lowest
    that was.
    """
    found: list[list[int] | None] = [None] * len(problems)
    unit = math.gcd(*(size for problem in problems for size in problem.size))
    searches = [_Search(problem) for problem in problems]
    best = list(tops)
    target = goal // unit * unit
    missed = target - unit
    for attempt in range(ROUNDS):
        work = budget // 2 if attempt == 0 else budget // (2 * (ROUNDS - 1))
        for k, search in enumerate(searches):
            if best[k] > target:
                offsets = search.run(target, work)
                work -= search.work
                if offsets is None:
                    missed = target
                    break
                found[k], best[k] = offsets, _top(problems[k], offsets)
        target = (missed + max(best)) // 2 // unit * unit
        if target <= missed or max(best) <= goal:
            break
    return found


class _Search:
    """The search described above, on one problem."""

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        self.work = 0
        self.weight = [1.0] * len(problem.members)
        self.meets = [[d for d in problem.meets(b) if d != b] for b in range(len(problem.size))]

    def run(self, height: int, budget: int) -> list[int] | None:
        """Offsets of a packing of at most `height`; None: none within `budget` visits, or none at all.

        `work` tells how many visits it took.
        """
        self.work = 0
        limit = float(FAILURES)
        attempt = 0
        while self.work < budget:
            run = _Run(self.problem, self.meets, self.weight, self._preferences(attempt), height)
            offsets = run.search(int(limit), budget - self.work)
            self.work += run.work
            if offsets is not None or run.exhausted:
                return offsets
            self.weight = [1.0 + DECAY * (w - 1.0) for w in self.weight]
            limit *= GROWTH
            attempt += 1
        return None

    def _preferences(self, attempt: int) -> list[int]:
        """Which buffers to put down first: long lives, then large sizes; in every fourth run large sizes
        alone; blurred from the fifth run on."""
        p = self.problem
        large = 1 + max(p.size)
        if attempt % 4 == 3:
            key = list(p.size)
        else:
            key = [(high - low) * large + size for size, low, high in zip(p.size, p.low, p.high)]
        if attempt < 4:
            return key
        chance = random.Random(attempt)
        return [k * (800 + int(400 * chance.random())) for k in key]


class _Run:
    """One run: depth first until it has failed `limit` times."""

    def __init__(
        self,
        problem: _Problem,
        meets: list[list[int]],
        weight: list[float],
        preference: list[int],
        height: int,
    ) -> None:
        self.size, self.low, self.high = problem.size, problem.low, problem.high
        self.members = [list(clique) for clique in problem.members]
        self.meets, self.weight, self.preference, self.height = meets, weight, preference, height
        points = len(self.members)
        self.release = [0] * len(self.size)
        self.floor = [0] * points
        self.choices = [len(clique) for clique in self.members]
        self.released: list[tuple[int, int]] = []
        self.settled: list[tuple[int, int, int]] = []
        self.near = 0
        self.work = 0
        self.exhausted = False

    def search(self, limit: int, budget: int) -> list[int] | None:
        """Offsets, or None where `limit` failures or `budget` visits are spent or nothing is left to try."""
        offsets = [0] * len(self.size)
        placed: list[tuple[int, int, int]] = []
        failures = 0
        feasible = self._settle(0, len(self.floor))
        while self.work < budget:
            if not feasible:
                failures += 1
                if failures > limit:
                    return None
                if not placed:
                    self.exhausted = True
                    return None
                b, released, settled = placed.pop()
                self._undo(released, settled)
                feasible = self._postpone(b)
                continue
            if len(placed) == len(offsets):
                return offsets
            b = self._choose()
            offsets[b] = self.release[b]
            placed.append((b, len(self.released), len(self.settled)))
            feasible = self._place(b)
        return None

    def _choose(self) -> int:
        """The preferred buffer at the most constrained point of a niche, near the last one where possible."""
        points = len(self.floor)
        point = -1
        while point < 0:
            point = self._most_constrained(self.near, min(self.near + WINDOW, points))
            if point < 0:
                self.near = self.near + WINDOW if self.near + WINDOW < points else 0
        level, release = self.floor[point], self.release
        return max(
            (b for b in self.members[point] if release[b] == level), key=lambda b: (self.preference[b], -b)
        )

    def _most_constrained(self, begin: int, end: int) -> int:
        """The point of [begin, end) that is in a niche and has the fewest choices per weight; -1: none is."""
        floor, choices, weight, points = self.floor, self.choices, self.weight, len(self.floor)
        while begin and floor[begin - 1] == floor[begin]:
            begin -= 1
        before = floor[begin - 1] if begin else _CLOSED
        least, point, p = math.inf, -1, begin
        while p < end:
            level, start = floor[p], p
            p += 1
            while p < points and floor[p] == level:
                p += 1
            if level < before and (p == points or floor[p] > level):
                for q in range(start, min(p, end)):
                    cost = (choices[q] - 0.9) / weight[q]
                    if cost < least:
                        least, point = cost, q
            before = level
        self.work += (p - begin) // 4
        return point

    def _place(self, b: int) -> bool:
        """Fix `b` at its release; False: the height is then exceeded."""
        release, low, high = self.release, self.low, self.high
        top = release[b] + self.size[b]
        begin, end = low[b], high[b]
        self.released.append((b, release[b]))
        release[b] = _CLOSED
        for d in self.meets[b]:
            if release[d] < top:
                self.released.append((d, release[d]))
                release[d] = top
                begin, end = min(begin, low[d]), max(end, high[d])
        return self._settle(begin, end)

    def _postpone(self, b: int) -> bool:
        """Exclude `b` from its release; False: the height is then exceeded."""
        release, size = self.release, self.size
        top = min((release[d] + size[d] for d in self.meets[b]), default=_CLOSED)
        if top >= _CLOSED:
            return False
        self.released.append((b, release[b]))
        release[b] = top
        self.near = self.low[b] // WINDOW * WINDOW
        return self._settle(self.low[b], self.high[b])

    def _settle(self, begin: int, end: int) -> bool:
        """Find floors and choices of the points [begin, end) anew; False: a bound exceeds the height."""
        release, size, height = self.release, self.size, self.height
        order = release.__getitem__
        for p in range(begin, end):
            members = self.members[p]
            members.sort(key=order)
            self.work += len(members)
            floor = release[members[0]]
            bound, choices = floor, 0
            for b in members:
                at = release[b]
                if at > bound:
                    if at == _CLOSED:
                        break
                    bound = at
                if at == floor:
                    choices += 1
                bound += size[b]
            if floor != _CLOSED and bound > height:
                self.weight[p] += 1.0
                return False
            self.settled.append((p, self.floor[p], self.choices[p]))
            self.floor[p], self.choices[p] = floor, choices
        return True

    def _undo(self, released: int, settled: int) -> None:
        """Back to the state in which the trails had these lengths."""
        while len(self.released) > released:
            b, at = self.released.pop()
            self.release[b] = at
        while len(self.settled) > settled:
            p, self.floor[p], self.choices[p] = self.settled.pop()
