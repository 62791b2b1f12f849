from __future__ import annotations

import numpy as np
import pytest
from placements import best, random_problem

from cuvil.partition.ideals import Ideals, contiguous, enumerate_ideals
from cuvil.partition.problem import Problem, Tensor


def free(nodes: int, edges: list[tuple[int, int]]) -> Problem:
    """A problem of which only the edges matter."""
    tensors = tuple(Tensor(a, (b,), np.ones(2), np.ones((2, 2))) for a, b in edges)
    return Problem(np.ones((nodes, 2)), np.zeros((nodes, 2)), tensors, (0, 1), np.ones(2), (0, 0))


def test_ideals_of_a_diamond() -> None:
    found = enumerate_ideals(free(4, [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert found.complete
    assert found.sets == [0b0000, 0b0001, 0b0011, 0b0101, 0b0111, 0b1111]


def test_a_chain_and_an_antichain() -> None:
    assert len(enumerate_ideals(free(9, [(k, k + 1) for k in range(8)])).sets) == 10
    assert len(enumerate_ideals(free(9, [])).sets) == 2**9


def test_the_beam_holds_ideals_only_with_both_ends() -> None:
    problem = random_problem(3, nodes=14)
    found = enumerate_ideals(problem, limit=60)
    assert not found.complete
    assert found.sets[0] == 0 and found.sets[-1] == (1 << 14) - 1
    for ideal in found.sets:
        assert all(ideal >> a & 1 for a, b in problem.edges() if ideal >> b & 1)
    assert len(found.sets) < len(enumerate_ideals(problem, limit=1 << 14).sets)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("alike", [False, True], ids=["apart", "alike"])
def test_against_trying_everything(seed: int, alike: bool) -> None:
    problem = random_problem(seed, nodes=6, devices=3, alike=alike, star=True)
    found = contiguous(problem, enumerate_ideals(problem))
    assert found is not None
    value, placement = found
    assert problem.is_contiguous(placement)
    assert value == pytest.approx(max(problem.loads(placement)))
    assert value == pytest.approx(best(problem, max, contiguous=True))


@pytest.mark.parametrize("seed", range(4))
def test_two_devices_with_costs_by_pair(seed: int) -> None:
    problem = random_problem(seed, nodes=7, devices=2)
    found = contiguous(problem, enumerate_ideals(problem))
    assert found is not None and found[0] == pytest.approx(best(problem, max, contiguous=True))


@pytest.mark.parametrize("seed", range(4))
def test_memories_are_a_hard_limit(seed: int) -> None:
    problem = random_problem(seed, nodes=6, devices=2, tight=0.6)
    wanted = best(problem, max, contiguous=True)
    found = contiguous(problem, enumerate_ideals(problem))
    if np.isinf(wanted):
        assert found is None
    else:
        assert found is not None and problem.fits(found[1])
        assert found[0] == pytest.approx(wanted)


def test_what_a_device_cannot_run() -> None:
    problem = random_problem(1, nodes=5, devices=2, star=True)
    problem.cost[2, 0] = problem.cost[4, 1] = np.inf
    found = contiguous(problem, enumerate_ideals(problem))
    assert found is not None
    assert found[1][2] == 1 and found[1][4] == 0
    assert found[0] == pytest.approx(best(problem, max, contiguous=True))


def test_a_bound_prunes_but_does_not_change_the_answer() -> None:
    problem = random_problem(2, nodes=10, devices=3, star=True)
    found = enumerate_ideals(problem)
    plain = contiguous(problem, found)
    assert plain is not None
    assert contiguous(problem, found, plain[0] * 1.001) == plain
    assert contiguous(problem, found, plain[0]) is None


def test_fewer_ideals_give_no_better_answer() -> None:
    problem = random_problem(8, nodes=12, devices=3, star=True)
    whole, some = (contiguous(problem, enumerate_ideals(problem, n)) for n in (1 << 12, 40))
    ends = contiguous(problem, Ideals([0, (1 << 12) - 1], False))
    assert whole is not None and some is not None and ends is not None
    assert whole[0] <= some[0] <= ends[0]
    assert len(set(ends[1])) == 1
