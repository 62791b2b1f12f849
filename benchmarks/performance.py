"""The tables of ``docs/performance.md`` from the benchmarks' records: ``python -m benchmarks.performance``.

With ``--refresh`` the benchmarks themselves run first, one after the other; the machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import compile_time, latency, resident_memory, roofline
from cuvil import fsio

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"

Report = Mapping[str, Any]


def _latency(report: Report) -> str:
    return latency.markdown(report["results"], report["subject"])


def _roofline(report: Report) -> str:
    peak, bandwidth = report["peak_flops"] / 1e9, report["bandwidth"] / 1e9
    line = f"Peak of one core {peak:.0f} GFLOP/s, memory {bandwidth:.1f} GB/s, {report['isa']}."
    return f"{line}\n\n{roofline.markdown(report['classes'])}"


def _compile_time(report: Report) -> str:
    return compile_time.markdown(report["results"], report["exponents"])


def _resident_memory(report: Report) -> str:
    return resident_memory.markdown(report["results"])


SECTIONS: dict[str, Callable[[Report], str]] = {
    "latency-one-thread": _latency,
    "latency-two-threads": _latency,
    "roofline": _roofline,
    "compile-time": _compile_time,
    "resident-memory": _resident_memory,
}
"""The tables by the stem of their data's file."""


def origin(report: Report) -> str:
    """Command, machine, versions and date of a report, as a paragraph."""
    machine, versions = report["machine"], report["versions"]
    known = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"`{' '.join(report['command'])}`, {report['date'][:10]}: {machine['cpu']}, {machine['cores']} "
        f"cores, {machine['system']}, load {machine['load'][0]:.1f}; {known}."
    )


def page(text: str, reports: Mapping[str, Report]) -> str:
    """The page `text` with each report's table between its marks, ``<!-- stem -->`` and ``<!-- end -->``.

    Raises:
        ValueError: the page has no place for a report.
    """
    for stem, report in reports.items():
        head, begin, rest = text.partition(f"<!-- {stem} -->\n")
        _, end, tail = rest.partition("<!-- end -->\n")
        if not begin or not end:
            raise ValueError(f"no place for '{stem}' in the page")
        text = f"{head}{begin}{origin(report)}\n\n{SECTIONS[stem](report)}\n\n{end}{tail}"
    return text


def read() -> dict[str, Report]:
    """The recorded reports by the stem of their files."""
    return {stem: json.loads((RESULTS / f"{stem}.json").read_text(encoding="utf-8")) for stem in SECTIONS}


def commands() -> list[list[str]]:
    """What refreshes all records, the modules' arguments as they were recorded."""
    return [list(report["command"]) for report in read().values()]


def refresh() -> None:
    """Run all benchmarks again; one that judges its results may end with status 1."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    for _, *rest in commands():
        print("python", *rest, file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, *rest], cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
        if done.returncode not in (0, 1):
            raise SystemExit(done.returncode)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.performance", description=__doc__)
    parser.add_argument("--refresh", action="store_true", help="run the benchmarks first")
    if parser.parse_args(arguments).refresh:
        refresh()
    fsio.write_text(PAGE, page(PAGE.read_text(encoding="utf-8"), read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
