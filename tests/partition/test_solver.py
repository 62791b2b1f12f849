"""Minimum cuts, local search and the solver that combines them, against trying everything."""

from __future__ import annotations

import random

import numpy as np
import pytest
from placements import best, placements, random_problem

from cuvil.errors import CuvilError
from cuvil.partition import mincut, search, solver
from cuvil.partition.problem import Problem


@pytest.mark.parametrize("seed", range(6))
def test_the_cut_is_the_optimum_of_two_devices(seed: int) -> None:
    problem = random_problem(seed, nodes=9)
    found = mincut.swap(problem, [0] * 9, 0, 1)
    assert sum(problem.loads(found)) == pytest.approx(best(problem, sum))


def test_the_start_does_not_matter() -> None:
    problem = random_problem(5, nodes=9)
    values = {round(float(problem.loads(mincut.swap(problem, [d] * 9, 0, 1)).sum()), 9) for d in (0, 1)}
    assert len(values) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_swap_is_the_best_that_two_of_three_devices_can_do(seed: int) -> None:
    """Nodes on the third device stay; what enters and leaves it is part of the cut."""
    problem = random_problem(seed, nodes=7, devices=3)
    start = [v % 3 for v in range(7)]
    found = mincut.swap(problem, start, 0, 2)
    assert [f for f, s in zip(found, start) if s == 1] == [1, 1]
    reachable = [p for p in placements(problem) if all((a == 1) == (b == 1) for a, b in zip(p, start))]
    assert sum(problem.loads(found)) == pytest.approx(min(float(problem.loads(p).sum()) for p in reachable))


@pytest.mark.parametrize("seed", range(6))
def test_swaps_never_lose_and_stay_in_memory(seed: int) -> None:
    problem = random_problem(seed, nodes=8, devices=3, tight=0.5)
    start = next(placements(problem))
    found = mincut.swaps(problem, start)
    assert problem.fits(found)
    optimum = best(problem, sum)
    assert optimum <= sum(problem.loads(found)) + 1e-9 <= sum(problem.loads(start)) + 1e-8


def test_a_node_that_only_one_device_can_run() -> None:
    problem = random_problem(4, nodes=8)
    problem.cost[3, 0] = problem.cost[6, 1] = np.inf
    found = solver.solve(problem, "latency")
    assert (found.placement[3], found.placement[6]) == (1, 0)
    assert found.value == pytest.approx(best(problem, sum))


@pytest.mark.parametrize("seed", range(3))
def test_moves_keep_the_loads_exact(seed: int) -> None:
    problem = random_problem(seed, nodes=12, devices=4)
    generator = random.Random(seed)
    state = search.State(problem, [generator.randrange(4) for _ in range(12)])
    for _ in range(200):
        state.move(generator.randrange(12), generator.randrange(4))
    assert state.loads == pytest.approx(problem.loads(state.placement))
    assert state.used == pytest.approx(problem.used(state.placement))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("seed", range(4))
def test_search_finds_small_optima(seed: int, objective: str) -> None:
    problem = random_problem(seed, nodes=8, devices=3, tight=0.5)
    start = next(placements(problem))
    found = [search.improve(problem, start, objective, 3000, seed) for seed in (1, 2, 3)]
    assert all(problem.fits(p) for p in found)
    value = search.OBJECTIVES[objective]
    optimum = best(problem, value)
    assert optimum - 1e-9 <= min(value(problem.loads(p).tolist()) for p in found) <= 1.1 * optimum


def test_search_is_the_same_each_time() -> None:
    problem = random_problem(9, nodes=30, devices=4)
    runs = [search.improve(problem, [0] * 30, "throughput", 2000, seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("tight", [np.inf, 0.7], ids=["roomy", "tight"])
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_solve(seed: int, devices: int, tight: float, objective: str) -> None:
    problem = random_problem(seed, nodes=7, devices=devices, tight=tight)
    found = solver.solve(problem, objective, moves=3000)
    assert problem.fits(found.placement)
    value = search.OBJECTIVES[objective]
    optimum = best(problem, value)
    assert found.value == pytest.approx(value(problem.loads(found.placement).tolist()))
    assert found.lower_bound <= optimum * (1 + 1e-9) <= found.value * (1 + 2e-9)
    assert found.value <= 1.02 * optimum
    if devices == 2 and objective == "latency" and tight == np.inf:
        assert found.method == "minimum cut" and found.gap == 0


def test_a_shared_memory() -> None:
    problem = random_problem(3, nodes=7, devices=2, tight=1.0, shared_memory=True)
    assert solver.solve(problem, "throughput").value == pytest.approx(best(problem, max))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_nothing_fits(devices: int, objective: str) -> None:
    problem = random_problem(1, devices=devices, tight=0.2)
    with pytest.raises(
        CuvilError, match=r"partition: needs \d+ bytes of weights, the memories have room for \d+"
    ):
        solver.solve(problem, objective)


def test_one_device() -> None:
    found = solver.solve(random_problem(1, devices=1), "latency")
    assert (found.placement, found.method, found.gap) == ([0] * 7, "single device", 0.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_throughput(seed: int) -> None:
    problem = random_problem(seed, nodes=8, devices=3)
    without = Problem(problem.cost, problem.size, (), problem.memory_of, problem.capacity, problem.alike)
    bound, optimum = solver.throughput_bound(problem), best(without, max)
    assert bound <= optimum + 1e-9
    assert bound >= 0.7 * optimum


def test_the_bound_of_equal_devices() -> None:
    """The dearest node, or the mean."""
    problem = random_problem(0, nodes=20, devices=4, alike=True)
    assert solver.throughput_bound(problem) == pytest.approx(problem.cost[:, 0].sum() / 4)
    problem.cost[7] = 100.0
    assert solver.throughput_bound(problem) == 100.0
