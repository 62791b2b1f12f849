"""Solving a placement problem: the methods in order, and how far from the best their result can be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil.errors import CuvilError
from cuvil.partition import ideals, mincut, search
from cuvil.partition.problem import Floats, Placement, Problem

IDEALS = 3000
"""Ideals that a compile looks at; complete up to there, a beam beyond."""

MOVES = 20_000
"""Moves of one run of the local search."""

MOVES_PER_NODE = 600
"""Moves that a small problem is given at most, by its size."""

RUNS = 3
"""Runs of the local search, each with its own seed."""

_PRICES = 24
"""Steps of the search for the price of a byte."""


@dataclass(frozen=True)
class Solution:
    """A placement.

    Attributes:
        value: its objective.
        lower_bound: no placement has a smaller one.
        method: what found it.
        contiguous: objective of the best contiguous placement that was found (throughput only).
        chain: that placement.
        complete: all ideals were looked at, so that `contiguous` is the contiguous optimum.
    """

    placement: Placement
    value: float
    lower_bound: float
    method: str
    contiguous: float = math.nan
    chain: Placement | None = None
    complete: bool = False

    @property
    def gap(self) -> float:
        """How far above the lower bound the value is, relative to the value."""
        return (self.value - self.lower_bound) / self.value if self.value > 0 else 0.0


def solve(
    problem: Problem, objective: str, limit: int = IDEALS, moves: int = MOVES, runs: int = RUNS
) -> Solution:
    """Place every node.

    Args:
        objective: ``latency`` (the sum of all loads) or ``throughput`` (the largest).
        limit: of ideals, for throughput.
        moves, runs: of the local search.

    Raises:
        CuvilError: nothing fits the memories.
    """
    if problem.devices == 1 or problem.nodes == 0:
        return _single(problem)
    if objective == "latency":
        return _latency(problem, moves, runs)
    return _throughput(problem, limit, moves, runs)


def _single(problem: Problem) -> Solution:
    placement = [0] * problem.nodes
    if not problem.fits(placement):
        raise _does_not_fit(problem)
    value = float(problem.loads(placement).sum())
    return Solution(placement, value, value, "single device", value, placement, True)


def _does_not_fit(problem: Problem) -> CuvilError:
    need = problem.size.min(axis=1).sum()
    have = problem.capacity.clip(min=0).sum()
    return CuvilError(
        f"needs {need:.0f} bytes of weights, the memories have room for {have:.0f} beside the activations"
        f"{' but not for every node' if need <= have else ''}",
        "partition",
    )


# --- latency --------------------------------------------------------------------------------------


def _latency(problem: Problem, moves: int, runs: int) -> Solution:
    bound = float(problem.cost.min(axis=1).sum())
    if problem.devices == 2:
        start = [int(d) for d in np.where(np.isfinite(problem.cost[:, 0]), 0, 1)]
        cut = mincut.swap(problem, start, 0, 1)
        value = float(problem.loads(cut).sum())
        if problem.fits(cut):
            return Solution(cut, value, value, "minimum cut")
        bound = max(bound, value)
    found = [p for p in _starts(problem) if problem.fits(p)]
    if problem.devices == 2:
        bound, priced = _priced(problem, start, bound)
        found += [priced] if priced else []
    if not found:
        raise _does_not_fit(problem)
    best = min(found, key=lambda p: float(problem.loads(p).sum()))
    if problem.devices > 2:
        best = mincut.swaps(problem, best)
    best = _searched(problem, best, "latency", moves, runs)
    value = float(problem.loads(best).sum())
    return Solution(best, value, min(bound, value), "cuts and local search")


def _priced(problem: Problem, start: Placement, bound: float) -> tuple[float, Placement | None]:
    """Minimum cuts with a price on the bytes of the memory that overflows, the price found by
    bisection: the largest Lagrangian bound, and the best placement seen that fits."""
    best: Placement | None = None
    free = mincut.swap(problem, start, 0, 1)
    over = int(np.argmax(problem.used(free) - problem.capacity))
    scale = float(problem.cost[np.isfinite(problem.cost)].sum() / max(problem.size.max(), 1.0))
    low, high = 0.0, scale
    for _ in range(_PRICES):
        price = [0.0] * len(problem.capacity)
        price[over] = (low + high) / 2
        cut = mincut.swap(problem, start, 0, 1, price)
        used = problem.used(cut)
        value = float(problem.loads(cut).sum())
        bound = max(bound, value + price[over] * float(used[over] - problem.capacity[over]))
        if problem.fits(cut) and (best is None or value < float(problem.loads(best).sum())):
            best = cut
        if used[over] > problem.capacity[over]:
            low = price[over]
        else:
            high = price[over]
    return bound, best


def _starts(problem: Problem) -> list[Placement]:
    """Everything on one device, every node where it is cheapest, and the memories filled in order."""
    single = [[d] * problem.nodes for d in range(problem.devices)]
    return [*single, [int(d) for d in problem.cost.argmin(axis=1)], *_first_fit(problem)]


def _first_fit(problem: Problem) -> list[Placement]:
    """In topological order, each node to the cheapest device that has room."""
    import networkx as nx

    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(range(problem.nodes))
    graph.add_edges_from(problem.edges())
    room = problem.capacity.copy()
    placement = [0] * problem.nodes
    for v in nx.lexicographical_topological_sort(graph):
        for d in sorted(range(problem.devices), key=lambda d: problem.cost[v, d]):
            memory = problem.memory_of[d]
            if problem.size[v, d] <= room[memory] and np.isfinite(problem.cost[v, d]):
                room[memory] -= problem.size[v, d]
                placement[v] = d
                break
        else:
            return []
    return [placement]


def _searched(problem: Problem, start: Placement, objective: str, moves: int, runs: int) -> Placement:
    value = search.OBJECTIVES[objective]
    moves = min(moves, MOVES_PER_NODE * problem.nodes)
    tried = [search.improve(problem, start, objective, moves, seed) for seed in range(1, runs + 1)]
    return min([start, *tried], key=lambda p: value([float(x) for x in problem.loads(p)]))


# --- throughput -----------------------------------------------------------------------------------


def _throughput(problem: Problem, limit: int, moves: int, runs: int) -> Solution:
    coarse = ideals.enumerate_ideals(problem, max(limit // 10, 200))
    found = ideals.contiguous(problem, coarse)
    complete = coarse.complete
    if not complete:
        fine = ideals.enumerate_ideals(problem, limit)
        complete = fine.complete
        found = ideals.contiguous(problem, fine, found[0] if found else math.inf) or found
    candidates = [p for p in _starts(problem) if problem.fits(p)]
    contiguous, chain = math.nan, None
    if found is not None and problem.fits(found[1]):
        chain = found[1]
        contiguous = float(problem.loads(chain).max())
        candidates.append(chain)
    if not candidates:
        raise _does_not_fit(problem)
    start = min(candidates, key=lambda p: float(problem.loads(p).max()))
    best = _searched(problem, start, "throughput", moves, runs)
    value = float(problem.loads(best).max())
    method = "dynamic programming over ideals"
    if not value >= contiguous * (1 - 1e-12):
        method = "local search"
    bound = min(throughput_bound(problem), value)
    return Solution(best, value, bound, method, contiguous, chain, complete)


def throughput_bound(problem: Problem, steps: int = 400) -> float:
    """A load that no placement stays below, transfers left out.

    For any weights w of the devices that add up to 1, ``max_d load_d >= sum_d w_d load_d >=
    sum_v min_d w_d cost[v, d]``; the weights are improved by exponentiated subgradients.  And some
    device bears the dearest node.
    """
    finite = np.where(np.isfinite(problem.cost), problem.cost, 1e30)
    bound = float(finite.min(axis=1).max(initial=0.0))
    classes = np.asarray(problem.alike)
    weights: Floats = np.full(problem.devices, 1 / problem.devices)
    for step in range(steps):
        priced = finite * weights
        bound = max(bound, float(priced.min(axis=1).sum()))
        choice = priced.argmin(axis=1)
        loads = np.bincount(choice, finite[np.arange(problem.nodes), choice], problem.devices)
        for c in set(problem.alike):  # equal devices share their load
            loads[classes == c] = loads[classes == c].mean()
        top = float(loads.max(initial=0.0))
        if top <= 0:
            break
        weights = weights * np.exp(loads / top / math.sqrt(1 + step))
        weights /= weights.sum()
    return bound
