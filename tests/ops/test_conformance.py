"""ONNX's backend tests against the record: what passed must go on passing."""

from __future__ import annotations

import json
from typing import Any

import conformance
import native
import pytest
from conformance import PASS

Verdicts = dict[str, str]


@pytest.fixture(scope="module")
def record() -> dict[str, Verdicts]:
    recorded: dict[str, Verdicts] = json.loads(conformance.EXPECTATIONS.read_text())
    return recorded


@pytest.fixture(scope="module")
def passed(record: dict[str, Verdicts]) -> dict[str, Any]:
    """The cases that passed, alone or with constant shape inputs."""
    names = {name for verdicts in record.values() for name, v in verdicts.items() if v == PASS}
    return {name: case for name, case in conformance.cases().items() if name in names}


@pytest.fixture(scope="module", params=[None, native.WIDE], ids=["plain", "tuned"])
def now(request: pytest.FixtureRequest, passed: dict[str, Any]) -> tuple[Verdicts, Verdicts]:
    """The verdicts of those cases, without and with tuned kernels."""
    return conformance.verdicts(passed, request.param)


@pytest.mark.parametrize("kind", ["cases", "with_constants"])
def test_what_passed_still_passes(
    kind: str, record: dict[str, Verdicts], now: tuple[Verdicts, Verdicts]
) -> None:
    alone, with_constants = now
    found = {**with_constants, **{n: v for n, v in alone.items() if v == PASS}}
    found = alone if kind == "cases" else found
    lost = {
        name: found.get(name, "no longer in the suite")
        for name, verdict in record[kind].items()
        if verdict == PASS and found.get(name) != PASS
    }
    assert not lost


def test_nothing_is_answered_wrongly(record: dict[str, Verdicts]) -> None:
    """What is not supported is refused; a wrong answer is recorded with the reason it is wanted."""
    bad = ("BUG", "crashed", "elements are wrong", "wrote", "ran for", "C compiler")
    wrong = {n: v for verdicts in record.values() for n, v in verdicts.items() if any(b in v for b in bad)}
    assert not wrong
