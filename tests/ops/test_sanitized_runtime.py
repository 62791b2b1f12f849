"""Run-time values and loops under gcc's sanitizers: whatever the values, no access outside of the buffers."""

from __future__ import annotations

from pathlib import Path

import pytest
from branch_cases import IFS
from chain_cases import CHAINS
from codegen.sandbox import ADDRESS, Case, Program, isa, schedule_of
from families import Family, assert_agrees
from loop_cases import LOOPS, NESTED
from runtime_cases import FAMILIES
from scan_cases import SCANS

BAD_VALUE = 5

TABLES: dict[str, dict[str, Family]] = {
    "runtime": FAMILIES,
    "chains": CHAINS,
    "loops": {**LOOPS, **SCANS, **NESTED},
    "branches": IFS,
}


@pytest.mark.parametrize(
    ("table", "name"),
    [("runtime", "plain"), ("chains", "x86-64-v3"), ("loops", "plain"), ("branches", "plain")],
)
def test_no_access_outside_of_buffers(table: str, name: str, tmp_path: Path) -> None:
    chosen = isa(name)
    families = TABLES[table]
    cases: list[Case] = []
    for title, family in families.items():
        schedule = schedule_of(family.model, chosen)
        cases += [Case(title, schedule, family.feeds(values)) for values in (*family.runs, *family.wrong)]
    program = Program(cases, tmp_path, chosen, ADDRESS)
    number = 0
    for family in families.values():
        count = len(family.runs)
        assert_agrees(family, [program.run(number + k) for k in range(count)])
        for k in range(len(family.wrong)):
            program.ends_with(number + count + k, BAD_VALUE)
        number += count + len(family.wrong)
