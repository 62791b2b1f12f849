from __future__ import annotations

import os

import pytest

from cuvil.target import probe
from cuvil.target.isa import BASELINE
from cuvil.toolchain import measure
from cuvil.toolchain.machine import Machine


def test_figures_are_those_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a microcontroller's, less than any core's or memory's; and the affinity is given back."""
    monkeypatch.setattr(measure, "STEPS", 20_000)
    monkeypatch.setattr(measure, "BUFFER_BYTES", 8 << 20)
    isa = BASELINE[Machine("native").arch]
    before = os.sched_getaffinity(0)
    cpus = sorted(before)
    assert 1e8 < measure.measure("peak_f32", isa, cpus) < 1e13
    assert 1e8 < measure.measure("bandwidth", isa, cpus) < 1e14
    assert os.sched_getaffinity(0) == before


def test_it_is_what_the_probe_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "STEPS", 1000)
    monkeypatch.setattr(measure, "BUFFER_BYTES", 1 << 20)
    profile = probe.probe(measure=measure.measure)
    assert profile["devices"]["cpu0"]["peak_f32"].endswith("FLOP/s")
    assert profile["memories"]["node0"]["bandwidth"].endswith("B/s")
