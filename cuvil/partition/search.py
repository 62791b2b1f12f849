"""Local search over placements that need not be contiguous, with exact incremental loads."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from cuvil.partition.problem import Placement, Problem

Objective = Callable[[Sequence[float]], float]
"""From the devices' loads to what is minimised."""


def throughput(loads: Sequence[float]) -> float:
    """The largest load of a device: the time between two results of a full pipeline."""
    return max(loads)


def latency(loads: Sequence[float]) -> float:
    """The sum of all loads: end-to-end time where one device runs at a time."""
    return sum(loads)


OBJECTIVES: dict[str, Objective] = {"throughput": throughput, "latency": latency}


HEATS = (1e-2, 3e-3, 1e-1)
"""Temperatures at which the annealing starts, relative to the objective, by seed: the steps of the
objective are small in a large network and large in a small one."""

COLD = 3e-4
"""The highest temperature at which it ends."""


class State:
    """A placement with its loads and memories, kept up to date under moves.

    Attributes:
        placement: device of each node.
        loads: cost that each device bears.
        used: bytes in each memory.
    """

    def __init__(self, problem: Problem, placement: Sequence[int]) -> None:
        self.problem = problem
        self.placement: Placement = list(placement)
        self.loads = [float(x) for x in problem.loads(placement)]
        self.used = [float(x) for x in problem.used(placement)]
        self._cost = problem.cost.tolist()
        self._size = problem.size.tolist()
        self._capacity = problem.capacity.tolist()
        self._leave = [t.leave.tolist() for t in problem.tensors]
        self._enter = [t.enter.tolist() for t in problem.tensors]
        self._made: list[list[int]] = [[] for _ in range(problem.nodes)]
        self._read: list[list[int]] = [[] for _ in range(problem.nodes)]
        self._count = [[0] * problem.devices for _ in problem.tensors]
        for k, t in enumerate(problem.tensors):
            if not (t.leave.any() or t.enter.any()):
                continue
            self._made[t.producer].append(k)
            for c in t.consumers:
                self._read[c].append(k)
                self._count[k][placement[c]] += 1
        self.neighbours: list[list[int]] = [[] for _ in range(problem.nodes)]
        for a, b in problem.edges():
            self.neighbours[a].append(b)
            self.neighbours[b].append(a)

    def allows(self, node: int, device: int) -> bool:
        """`node` can run on `device` and its memory has room."""
        if self._cost[node][device] == math.inf:
            return False
        memory = self.problem.memory_of[device]
        old = self.placement[node]
        more = self._size[node][device]
        if self.problem.memory_of[old] == memory:
            more -= self._size[node][old]
        return bool(more <= 0 or self.used[memory] + more <= self._capacity[memory])

    def move(self, node: int, device: int) -> None:
        """Place `node` on `device`."""
        old = self.placement[node]
        if old == device:
            return
        loads, memory_of = self.loads, self.problem.memory_of
        loads[old] -= self._cost[node][old]
        loads[device] += self._cost[node][device]
        self.used[memory_of[old]] -= self._size[node][old]
        self.used[memory_of[device]] += self._size[node][device]
        for k in self._made[node]:
            self._add(k, -1.0)
        for k in self._read[node]:
            source = self.placement[self.problem.tensors[k].producer]
            count = self._count[k]
            apart = sum(count) - count[source]
            enter = self._enter[k][source]
            if old != source and count[old] == 1:
                loads[old] -= enter[old]
            if device != source and count[device] == 0:
                loads[device] += enter[device]
            count[old] -= 1
            count[device] += 1
            if (apart > 0) != (sum(count) - count[source] > 0):
                loads[source] += self._leave[k][source] * (-1 if apart > 0 else 1)
        self.placement[node] = device
        for k in self._made[node]:
            self._add(k, 1.0)

    def _add(self, k: int, sign: float) -> None:
        """Add or take away what tensor `k` costs."""
        source = self.placement[self.problem.tensors[k].producer]
        count, enter = self._count[k], self._enter[k][source]
        apart = False
        for device, number in enumerate(count):
            if number and device != source:
                apart = True
                self.loads[device] += sign * enter[device]
        if apart:
            self.loads[source] += sign * self._leave[k][source]


def improve(
    problem: Problem, placement: Sequence[int], objective: str, moves: int = 20_000, seed: int = 1
) -> Placement:
    """A placement at least as good: simulated annealing from `placement`, then descent.

    Args:
        placement: a start that fits the memories.
        moves: how many are tried; the same for the same arguments each time.
    """
    if problem.devices < 2 or problem.nodes < 1:
        return list(placement)
    value = OBJECTIVES[objective]
    state = State(problem, placement)
    best, best_value = list(placement), value(state.loads)
    if best_value <= 0:
        return best
    generator = random.Random(seed)
    energy = _smooth if objective == "throughput" else latency
    current = energy(state.loads)
    heat = HEATS[seed % len(HEATS)]
    start, end = heat * best_value, min(heat / 10, COLD) * best_value
    for step in range(moves):
        temperature = start * (end / start) ** (step / moves)
        changes = _proposal(state, generator)
        if not changes:
            continue
        undo = [(v, state.placement[v]) for v, _ in changes]
        for v, device in changes:
            state.move(v, device)
        new = energy(state.loads)
        over = any(u > c for u, c in zip(state.used, state._capacity))
        if over or (new > current and generator.random() >= math.exp((current - new) / temperature)):
            for v, device in reversed(undo):
                state.move(v, device)
            continue
        current = new
        found = value(state.loads)
        if found < best_value * (1 - 1e-12):
            best, best_value = list(state.placement), found
    return descend(problem, best, objective)


def _smooth(loads: Sequence[float]) -> float:
    """A norm close to the maximum that also rewards relief of the devices just below it."""
    top = max(loads)
    return top * sum((x / top) ** 24 for x in loads if x > 0) ** (1 / 24) if top > 0 else 0.0


def _proposal(state: State, generator: random.Random) -> list[tuple[int, int]]:
    """One node to another device, or two nodes that change places; often across a cut."""
    problem = state.problem
    v = int(generator.random() * problem.nodes)
    near = state.neighbours[v]
    if near and generator.random() < 0.7:
        device = state.placement[near[int(generator.random() * len(near))]]
    else:
        device = int(generator.random() * problem.devices)
    if device == state.placement[v] or state._cost[v][device] == math.inf:
        return []
    if generator.random() < 0.3:
        w = int(generator.random() * problem.nodes)
        if state.placement[w] == device and state._cost[w][state.placement[v]] != math.inf:
            return [(v, device), (w, state.placement[v])]
    return [(v, device)] if state.allows(v, device) else []


def descend(problem: Problem, placement: Sequence[int], objective: str) -> Placement:
    """Single moves as long as one of them lowers the objective."""
    value = OBJECTIVES[objective]
    state = State(problem, placement)
    best = value(state.loads)
    improved = True
    while improved:
        improved = False
        for v in range(problem.nodes):
            home = state.placement[v]
            for device in range(problem.devices):
                if device == state.placement[v] or not state.allows(v, device):
                    continue
                state.move(v, device)
                found = value(state.loads)
                if found < best * (1 - 1e-12):
                    best, home, improved = found, device, True
                else:
                    state.move(v, home)
    return state.placement
