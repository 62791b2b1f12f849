"""Random models on several instruction sets, under sanitizers, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from codegen.random_models import RandomModel
from codegen.sandbox import ADDRESS, Case, Program, isa, relative_error, schedule_of

from cuvil.codegen.tuned import amx

MODELS = 24
"""Models of each run."""

TOLERANCE = 1e-4


def reference(random: RandomModel) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(random.model.SerializeToString(), options)
    outputs: list[np.ndarray] = session.run(None, random.feeds)
    return outputs


@pytest.mark.parametrize(
    ("name", "first", "steps"),
    [
        ("plain", 0, 10),
        ("host", 100, 10),
        ("x86-64", 200, 14),
        ("x86-64-v3", 300, 14),
        ("x86-64-v4-vnni", 400, 18),
        ("x86-64-v4-amx", 700, 18),
        ("x86-64 in a library for several", 500, 14),
        ("x86-64-v3 in a library for several", 600, 14),
    ],
)
def test_random_models(
    name: str, first: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = isa(name)
    monkeypatch.setattr(amx, "MIN_GAIN", 0.0)  # tiles wherever they have a form: the models are small
    cases, wanted = [], []
    for seed in range(first, first + MODELS):
        random = RandomModel(seed, steps)
        cases.append(Case(f"seed {seed}", schedule_of(random.model, chosen), random.feeds))
        wanted.append(reference(random))
    program = Program(cases, tmp_path, chosen, ADDRESS)
    worse = []
    for number, case in enumerate(cases):
        for got, want in zip(program.run(number), wanted[number]):
            error = relative_error(got, want)
            if not error <= TOLERANCE:
                worse.append((case.name, error))
    assert not worse
