"""Random placement problems, and their answers by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cuvil.partition.problem import Problem, Tensor


def random_problem(
    seed: int,
    nodes: int = 7,
    devices: int = 2,
    tight: float = np.inf,
    alike: bool = False,
    shared_memory: bool = False,
    star: bool = False,
) -> Problem:
    """A random directed acyclic graph.

    Args:
        tight: capacity of each memory, relative to what all nodes need together.
        alike: equal devices.
        shared_memory: all devices use one memory.
        star: entering a device costs the same from anywhere.
    """
    rng = np.random.default_rng(seed)
    cost = rng.uniform(1, 10, (nodes, 1 if alike else devices)) * np.ones((1, devices))
    size = np.repeat(rng.uniform(1, 10, (nodes, 1)), devices, axis=1)
    tensors = []
    for producer in range(nodes - 1):
        later = np.arange(producer + 1, nodes)
        readers = later[rng.random(len(later)) < 0.4]
        if readers.size:
            leave = rng.uniform(0, 2, 1 if alike else devices) * np.ones(devices)
            enter = rng.uniform(0, 4, (1, 1) if alike else (1, devices) if star else (devices, devices))
            tensors.append(
                Tensor(producer, tuple(int(r) for r in readers), leave, enter * np.ones((devices, devices)))
            )
    memories = 1 if shared_memory else devices
    capacity = np.full(memories, tight * size[:, 0].sum())
    memory_of = (0,) * devices if shared_memory else tuple(range(devices))
    classes = (0,) * devices if alike else tuple(range(devices))
    return Problem(cost, size, tuple(tensors), memory_of, capacity, classes)


def placements(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All placements that fit."""
    for found in itertools.product(range(problem.devices), repeat=problem.nodes):
        if problem.fits(found):
            yield found


def loads(problem: Problem, placement: Sequence[int]) -> list[float]:
    """What each device bears, written from the definition, one device and tensor after the other."""
    result = []
    for device in range(problem.devices):
        total = sum(float(problem.cost[v, device]) for v in range(problem.nodes) if placement[v] == device)
        for t in problem.tensors:
            source = placement[t.producer]
            if source == device and any(placement[c] != device for c in t.consumers):
                total += float(t.leave[device])
            if source != device and any(placement[c] == device for c in t.consumers):
                total += float(t.enter[source, device])
        result.append(total)
    return result


def best(problem: Problem, objective: Callable[[list[float]], float], contiguous: bool = False) -> float:
    """The optimum by trying everything."""
    values = [
        objective(loads(problem, p))
        for p in placements(problem)
        if not contiguous or problem.is_contiguous(p)
    ]
    return min(values, default=np.inf)
