"""The contiguous optimum of the throughput objective: dynamic programming over ideals.

An ideal is a set of nodes that holds every predecessor of its members.  A contiguous placement is a
chain of ideals, each step the part of one device, and its objective is the largest load of a step
(Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020,
section 5).  The inner loop runs over all supersets of an ideal at once, in numpy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cuvil.partition.problem import Floats, Placement, Problem

MAX_IDEALS = 20_000
"""Ideals up to which the enumeration is complete; the running time grows with the square."""


@dataclass(frozen=True)
class Ideals:
    """Some ideals of a graph, as bit sets over its nodes, smallest first.

    Attributes:
        sets: the empty one first, that of all nodes last.
        complete: these are all there are.
    """

    sets: list[int]
    complete: bool


def enumerate_ideals(problem: Problem, limit: int = MAX_IDEALS) -> Ideals:
    """All ideals, or if there are more than `limit`, about as many of those with the least traffic.

    The beam keeps for each number of nodes the ideals whose crossing tensors cost least to move:
    where devices meet, little should travel.
    """
    before = [0] * problem.nodes
    after: list[list[int]] = [[] for _ in range(problem.nodes)]
    for a, b in problem.edges():
        before[b] |= 1 << a
        after[a].append(b)
    full = (1 << problem.nodes) - 1
    level = [0]
    found = [0]
    while level[0] != full:
        level = _extended(level, before, after, problem.nodes)
        found += level
        if len(found) > limit:
            return Ideals(_beam(problem, before, after, limit), False)
    return Ideals(found, True)


def _extended(level: list[int], before: list[int], after: list[list[int]], nodes: int) -> list[int]:
    """The ideals of one node more."""
    made: dict[int, None] = {}
    for ideal in level:
        for v in range(nodes):
            if not ideal >> v & 1 and before[v] & ideal == before[v]:
                made[ideal | 1 << v] = None
    return list(made)


def _beam(problem: Problem, before: list[int], after: list[list[int]], limit: int) -> list[int]:
    width = max(limit // max(problem.nodes, 1), 4)
    weights = [float(t.leave.max() + t.enter.max()) for t in problem.tensors]
    made_by: list[list[int]] = [[] for _ in range(problem.nodes)]
    for k, t in enumerate(problem.tensors):
        made_by[t.producer].append(k)
    read_by: list[list[int]] = [[] for _ in range(problem.nodes)]
    readers = []
    for k, t in enumerate(problem.tensors):
        readers.append(sum(1 << c for c in t.consumers))
        for c in t.consumers:
            read_by[c].append(k)
    level = {0: 0.0}
    found = [0]
    for _ in range(problem.nodes):
        made: dict[int, float] = {}
        for ideal, traffic in level.items():
            for v in range(problem.nodes):
                if ideal >> v & 1 or before[v] & ideal != before[v]:
                    continue
                larger = ideal | 1 << v
                if larger in made:
                    continue
                done = sum(weights[k] for k in read_by[v] if readers[k] & larger == readers[k])
                made[larger] = traffic + sum(weights[k] for k in made_by[v]) - done
        level = dict(sorted(made.items(), key=lambda item: (item[1], item[0]))[:width])
        found += level
    return found


def contiguous(problem: Problem, ideals: Ideals, bound: float = np.inf) -> tuple[float, Placement] | None:
    """The best contiguous placement whose device boundaries are among `ideals`.

    Args:
        bound: only placements of a smaller objective are looked for.

    Returns:
        (objective, placement), or None where there is none below `bound`.  Where the cost of entering
        a device depends on the source, the dearest source is taken.
    """
    return _Dynamic(problem, ideals, bound).run()


class _Dynamic:
    """Attributes: by class of devices c, ideal i, tensor t, node v:

    inside: [v, i] membership; seen: [t, i] consumers of t in i; work, bytes: [c, i] sums over i;
    leaving: [c, i] cost of tensors made in i that are read outside it.
    """

    def __init__(self, problem: Problem, ideals: Ideals, bound: float) -> None:
        self.problem, self.bound = problem, bound
        n, count = problem.nodes, len(ideals.sets)
        width = -(-n // 8)
        packed = np.frombuffer(b"".join(s.to_bytes(width, "little") for s in ideals.sets), np.uint8)
        bits = np.unpackbits(packed.reshape(count, width), axis=1, count=n, bitorder="little")
        self.inside: npt.NDArray[np.bool_] = np.ascontiguousarray(bits.T).astype(bool)
        classes = sorted(set(problem.alike))
        self.members = [[d for d, c in enumerate(problem.alike) if c == k] for k in classes]
        first = [m[0] for m in self.members]
        finite = np.where(np.isfinite(problem.cost), problem.cost, 0.0)
        self.work = finite[:, first].T @ self.inside
        self.banned = (~np.isfinite(problem.cost[:, first])).T.astype(float) @ self.inside
        self.bytes = problem.size[:, first].T @ self.inside
        self.room = [problem.capacity[problem.memory_of[d]] for d in first]
        costly = [t for t in problem.tensors if t.leave.any() or t.enter.any()]
        self.degree = np.array([len(t.consumers) for t in costly], int)
        self.seen = np.zeros((len(costly), count), np.int16)
        for k, t in enumerate(costly):
            self.seen[k] = self.inside[list(t.consumers)].sum(axis=0)
        self.made = self.inside[[t.producer for t in costly]] if costly else np.zeros((0, count), bool)
        self.open = self.made & (self.seen < self.degree[:, None])
        self.leave = np.array([[t.leave[d] for t in costly] for d in first])
        self.enter = np.array([[_dearest(t.enter, d) for t in costly] for d in first])
        self.leaving = self.leave @ self.open
        after: list[list[int]] = [[] for _ in range(n)]
        for a, b in problem.edges():
            after[a].append(b)
        self.after = [np.array(a, int) for a in after]
        self.sizes = self.inside.sum(axis=0)

    def run(self) -> tuple[float, Placement] | None:
        counts = [len(m) for m in self.members]
        states = list(itertools.product(*(range(k + 1) for k in counts)))
        number = {s: k for k, s in enumerate(states)}
        total = self.inside.shape[1]
        best = np.full((len(states), total), np.inf)
        came = np.full((len(states), total, 2), -1, np.int32)
        best[number[(0,) * len(counts)], 0] = 0.0
        steps = [
            [(number[s], number[_plus(s, c)]) for s in states if s[c] < counts[c]] for c in range(len(counts))
        ]
        for i in range(total):
            for c, moves in enumerate(steps):  # a device that gets nothing
                for old, new in moves:
                    if best[old, i] < best[new, i]:
                        best[new, i] = best[old, i]
                        came[new, i] = (i, c)
            if not np.isfinite(best[:, i]).any():
                continue
            stop = self.bound
            for c, moves in enumerate(steps):
                live = [(old, new) for old, new in moves if best[old, i] < stop]
                if not live:
                    continue
                at, load = self.supersets(i, c, stop)
                for old, new in live:
                    value = np.maximum(load, best[old, i])
                    better = value < best[new, at]
                    where = at[better]
                    best[new, where] = value[better]
                    came[new, where] = (i, c)
            self.bound = min(self.bound, float(best[-1, -1]) if np.isfinite(best[-1, -1]) else np.inf)
        if not np.isfinite(best[-1, -1]):
            return None
        return float(best[-1, -1]), self._placement(came, states, number)

    def supersets(self, i: int, c: int, stop: float) -> tuple[npt.NDArray[np.int64], Floats]:
        """The ideals around ideal `i` and the load of what they add on a device of class `c`, as far
        as that load is below `stop`."""
        later = slice(i + 1, None)
        fine = self.work[c, later] - self.work[c, i] < stop
        fine &= self.banned[c, later] == self.banned[c, i]
        fine &= self.bytes[c, later] - self.bytes[c, i] <= self.room[c]
        at = np.flatnonzero(fine) + (i + 1)
        for v in self._maximal(i):
            at = at[self.inside[v, at]]
        load = self.work[c, at] - self.work[c, i] + self.leaving[c, at]
        for t in np.flatnonzero(self.open[:, i]):
            seen = self.seen[t, at]
            load += np.where(seen > self.seen[t, i], self.enter[c, t], 0.0)
            load -= np.where(seen < self.degree[t], self.leave[c, t], 0.0)
        keep = load < stop
        return at[keep], load[keep]

    def _maximal(self, i: int) -> Iterator[int]:
        """Members of an ideal that no other member depends on."""
        member = self.inside[:, i]
        for v in np.flatnonzero(member):
            if not member[self.after[v]].any():
                yield int(v)

    def _placement(
        self, came: npt.NDArray[np.int32], states: list[tuple[int, ...]], number: dict[tuple[int, ...], int]
    ) -> Placement:
        placement = [0] * self.problem.nodes
        state, ideal = states[-1], self.inside.shape[1] - 1
        while any(state):
            earlier, c = (int(x) for x in came[number[state], ideal])
            device = self.members[c][state[c] - 1]
            for v in np.flatnonzero(self.inside[:, ideal] & ~self.inside[:, earlier]):
                placement[int(v)] = device
            state = tuple(n - (k == c) for k, n in enumerate(state))
            ideal = earlier
        return placement


def _plus(state: tuple[int, ...], c: int) -> tuple[int, ...]:
    return tuple(n + (k == c) for k, n in enumerate(state))


def _dearest(enter: Floats, device: int) -> float:
    others = [enter[d, device] for d in range(len(enter)) if d != device]
    return float(max(others, default=0.0))
