from __future__ import annotations

import numpy as np
import pytest
from placements import loads, random_problem

from cuvil.partition.problem import Problem, Tensor, contract


def chain(*costs: float, travel: float = 1.0) -> Problem:
    """Nodes one after the other, on two devices that cost the same."""
    n = len(costs)
    enter = np.full((2, 2), travel)
    tensors = tuple(Tensor(k, (k + 1,), np.zeros(2), enter) for k in range(n - 1))
    cost = np.repeat(np.array(costs, float)[:, None], 2, axis=1)
    return Problem(cost, np.ones((n, 2)), tensors, (0, 1), np.full(2, np.inf), (0, 0))


def test_loads() -> None:
    problem = chain(1, 2, 4, travel=0.5)
    assert problem.loads([0, 0, 0]).tolist() == [7, 0]
    assert problem.loads([0, 1, 1]).tolist() == [1, 6.5]
    assert problem.loads([0, 1, 0]).tolist() == [5.5, 2.5]


def test_a_tensor_is_paid_once_for_each_destination() -> None:
    """Three readers on two other devices: leaving is paid once, entering once on each."""
    tensor = Tensor(0, (1, 2, 3), np.full(3, 10.0), np.arange(9.0).reshape(3, 3))
    problem = Problem(np.zeros((4, 3)), np.zeros((4, 3)), (tensor,), (0, 0, 0), np.ones(1), (0, 1, 2))
    assert problem.loads([0, 1, 1, 2]).tolist() == [10.0, 1.0, 2.0]
    assert problem.loads([0, 0, 0, 2]).tolist() == [10.0, 0.0, 2.0]
    assert problem.loads([1, 1, 1, 1]).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_loads_are_as_defined(seed: int) -> None:
    problem = random_problem(seed, nodes=9, devices=3)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        placement = rng.integers(0, 3, 9).tolist()
        assert problem.loads(placement) == pytest.approx(loads(problem, placement))


def test_memories() -> None:
    problem = Problem(np.ones((3, 2)), np.full((3, 2), 4.0), (), (0, 0), np.array([12.0]), (0, 0))
    assert problem.fits([0, 1, 0]) and problem.used([0, 1, 0]).tolist() == [12.0]
    apart = Problem(np.ones((3, 2)), np.full((3, 2), 4.0), (), (0, 1), np.array([4.0, 8.0]), (0, 0))
    assert apart.fits([0, 1, 1]) and not apart.fits([0, 0, 1])
    banned = Problem(np.array([[np.inf, 1.0]]), np.zeros((1, 2)), (), (0, 1), np.ones(2), (0, 1))
    assert banned.fits([1]) and not banned.fits([0])


def test_contiguous() -> None:
    problem = chain(1, 1, 1)
    assert problem.is_contiguous([0, 0, 1])
    assert not problem.is_contiguous([0, 1, 0])


def test_contract() -> None:
    problem = chain(1, 2, 4, 8)
    made, group = contract(problem, [[1, 2]])
    assert group == [0, 1, 1, 2]
    assert made.cost[:, 0].tolist() == [1, 6, 8]
    assert made.size[:, 1].tolist() == [1, 2, 1]
    assert made.edges() == [(0, 1), (1, 2)]


def test_what_lies_on_a_cycle_joins() -> None:
    """Nodes 0 and 3 together: 1 and 2 lie between them."""
    made, group = contract(chain(1, 2, 4, 8, 16), [[0, 3]])
    assert group == [0, 0, 0, 0, 1]
    assert made.cost[:, 0].tolist() == [15, 16]


def test_overlapping_sets_join() -> None:
    assert contract(chain(1, 1, 1, 1, 1), [[0, 1], [1, 2], [3, 4]])[1] == [0, 0, 0, 1, 1]


def test_groups_are_in_topological_order() -> None:
    """Also where the nodes are not."""
    tensor = Tensor(1, (0,), np.zeros(2), np.zeros((2, 2)))
    problem = Problem(np.array([[1.0, 1], [2, 2]]), np.zeros((2, 2)), (tensor,), (0, 1), np.ones(2), (0, 0))
    made, group = contract(problem, [])
    assert group == [1, 0]
    assert made.cost[:, 0].tolist() == [2, 1]
    assert made.edges() == [(0, 1)]
