"""docs/conformance.md from the record of ONNX's suite: how many cases pass, and why the others do not.

``python tests/ops/suite_page.py`` writes it, after ``conformance.py --update`` has written the record.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx.backend.test

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1])]

from cuvil.report.operators import table  # noqa: E402

RECORD = HERE / "expectations.json"
PAGE = HERE.parents[1] / "docs" / "conformance.md"

GROUPS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PASS = "pass"

HEAD = """\
# Conformance

ONNX's own backend tests through generated C, made from `tests/ops/expectations.json` by
`python tests/ops/suite_page.py`. A case passes where all outputs agree within the suite's tolerances. The
others are refused at compile time, unless their reason says that another answer is wanted. The suite's
networks (`light`, `real`) are tests of their own. [Operators](operators.md) lists what is supported."""


def group_of(name: str) -> str:
    """The group of a case: those but ``node`` are folders of the installed suite."""
    data = Path(onnx.backend.test.__file__).parent / "data"
    return next((group for group in GROUPS[1:] if (data / group / name).is_dir()), "node")


def page(verdicts: Mapping[str, str]) -> str:
    """The page for `PASS` or a reason by case."""
    groups = {name: group_of(name) for name in verdicts}
    cases = Counter(groups.values())
    passed = Counter(groups[name] for name, verdict in verdicts.items() if verdict == PASS)
    rows = [(g, str(cases[g]), str(passed[g]), str(cases[g] - passed[g])) for g in GROUPS]
    rows.append(("all", str(cases.total()), str(passed.total()), str(cases.total() - passed.total())))
    parts = [HEAD, table(("group", "cases", "passed", "left out"), rows)]
    reasons: dict[str, list[str]] = {}
    for name, verdict in sorted(verdicts.items()):
        if verdict != PASS:
            reasons.setdefault(verdict, []).append(name)
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    if ordered:
        lines = [(reason, str(len(names)), f"`{names[0]}`") for reason, names in ordered]
        parts += ["## Left out", table(("reason", "cases", "the first one"), lines)]
    return "\n\n".join(parts) + "\n"


def current() -> str:
    """The page for the record as it is."""
    return page(json.loads(RECORD.read_text(encoding="utf-8"))["cases"])


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
