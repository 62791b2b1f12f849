"""Random models with run-time values and loops, under sanitizers, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import pytest
from codegen.random_control import RandomControl
from codegen.sandbox import ADDRESS, Case, Program, isa, relative_error, schedule_of
from codegen.test_random_models import TOLERANCE, reference

MODELS = 16
"""Models of each run."""


@pytest.mark.parametrize(("name", "first", "steps"), [("plain", 0, 8), ("x86-64-v3", 100, 10)])
def test_random_models_with_loops(name: str, first: int, steps: int, tmp_path: Path) -> None:
    chosen = isa(name)
    models = {seed: RandomControl(seed, steps) for seed in range(first, first + MODELS)}
    cases = [Case(f"seed {n}", schedule_of(m.model, chosen), m.feeds) for n, m in models.items()]
    program = Program(cases, tmp_path, chosen, ADDRESS)
    errors = {
        (seed, k): relative_error(got, want)
        for number, (seed, random) in enumerate(models.items())
        for k, (got, want) in enumerate(zip(program.run(number), reference(random), strict=True))
    }
    assert {key: e for key, e in errors.items() if not e <= TOLERANCE} == {}


def test_most_models_have_run_time_values_and_loops() -> None:
    graphs = [RandomControl(seed, 10).model.graph for seed in range(100)]
    assert sum(any(n.op_type in ("Loop", "Scan") for n in g.node) for g in graphs) > 50
    assert sum(any(i.name.startswith("n") for i in g.input) for g in graphs) > 60
