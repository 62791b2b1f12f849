"""The solver on public instances: it reproduces the contiguous optima known from elsewhere, and beats
the best placements known from elsewhere."""

from __future__ import annotations

import pytest
from placements import loads

from benchmarks import partition_instances
from benchmarks.partition_instances import KNOWN, Instance
from cuvil.partition import ideals, solver

pytestmark = pytest.mark.skipif(
    not partition_instances.folder().is_dir(), reason="no folder dnn-partitioning: name it with CUVIL_DATA"
)


def instance(name: str) -> Instance:
    return partition_instances.read(partition_instances.folder() / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("LayerGraphs/bert24_inference", 39),
        ("LayerGraphs/resnet50_inference", 242),
        ("OperatorGraphs/resnet50_inference", 241),
        ("OperatorGraphs/bert_l-3_inference", 1428),
        ("OperatorGraphs/bert_l-6_inference", 1923),
        ("OperatorGraphs/bert_l-12_inference", 2906),
    ],
)
def test_contiguous_optimum(name: str, count: int) -> None:
    problem = instance(name).problem
    found = ideals.enumerate_ideals(problem)
    assert found.complete and len(found.sets) == count
    bound = (KNOWN[name][0] or 0) * 1.001  # spares the time to look at what is worse
    best = ideals.contiguous(problem, found, bound)
    assert best is not None
    value, placement = best
    assert round(value, 3) == KNOWN[name][0]
    assert problem.is_contiguous(placement) and problem.fits(placement)


def test_a_beam_finds_the_optimum_of_gnmt() -> None:
    """It has more than 200,000 ideals."""
    problem = instance("LayerGraphs/gnmt_inference").problem
    found = ideals.enumerate_ideals(problem, 500)
    assert not found.complete
    best = ideals.contiguous(problem, found)
    assert best is not None and round(best[0], 3) == 32.911


@pytest.mark.parametrize(
    ("name", "moves", "runs"),
    [
        ("LayerGraphs/bert24_inference", 20_000, 1),
        ("LayerGraphs/gnmt_inference", 30_000, 9),
        ("OperatorGraphs/bert_l-3_inference", 20_000, 1),
    ],
)
def test_better_than_the_best_placement_known(name: str, moves: int, runs: int) -> None:
    given = instance(name)
    found = solver.solve(given.problem, "throughput", limit=500, moves=moves, runs=runs)
    placement = [found.placement[g] for g in given.group]
    whole = max(loads(given.whole, placement))
    assert found.value == pytest.approx(whole), "on the file's nodes, by the definition"
    assert given.whole.fits(placement)
    assert found.lower_bound < whole < (KNOWN[name][1] or 0)
