"""The memory planner on instances of its problem: ``python -m benchmarks.memory_plan --help``.

An instance is a CSV file with the columns ``id,lower,upper,size``: a buffer of ``size`` bytes is alive from
``lower`` to before ``upper``.  Those of MiniMalloc (Moffitt, "MiniMalloc: A lightweight memory allocator
for hardware-accelerated machine learning", ASPLOS 2023) have a capacity of 1048576 bytes.  Each is packed
until it fits, and written with an ``offset`` column, which is checked pair by pair.  The lower bound is
the largest sum of sizes alive at once.

With ``--models`` the table is of the plans of models, with sizes as in the zoo's inputs and the layouts of a
CPU with AVX-512; the gap between plan and lower bound is shown.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from zoo.entry import ModelEntry, Unavailable
from zoo.registry import MODELS, find

from benchmarks.latency import machine
from cuvil import fsio
from cuvil.codegen.tuned import claims
from cuvil.errors import CuvilError
from cuvil.frontend.importer import import_model
from cuvil.ir import expr
from cuvil.rewrite import integer, simplify
from cuvil.schedule import packing
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import schedule

COLUMNS = ("id", "lower", "upper", "size")
BUDGET = 100_000_000
"""Visits of the search for one instance; a model's plan has fewer (`cuvil.schedule.packing.BUDGET`)."""

DEVICE = {"arch": "x86_64", "vector_bits": 512, "vector_registers": 32, "dot_i8": True}
"""What the models are planned for."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Buffer:
    """A buffer of `size` bytes that is alive in [`lower`, `upper`)."""

    id: str
    lower: int
    upper: int
    size: int


def read(path: Path) -> list[Buffer]:
    """The buffers of an instance.

    Raises:
        CuvilError: the file cannot be read or is no instance.
    """
    text = fsio.read_bytes(path, "the instance", 1 << 28).decode("utf-8", "replace")
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise CuvilError(f"has no column '{missing[0]}'; needed are {', '.join(COLUMNS)}", str(path))
    buffers = []
    for row in reader:
        try:
            lower, upper, size = (int(row[name]) for name in COLUMNS[1:])
        except (TypeError, ValueError):
            raise CuvilError("lower, upper and size must be integers", f"{path}:{reader.line_num}") from None
        if lower >= upper or size < 0:
            raise CuvilError("lower < upper and size >= 0 must hold", f"{path}:{reader.line_num}")
        buffers.append(Buffer(row["id"], lower, upper, size))
    return buffers


def overlap(buffers: Sequence[Buffer], offsets: Sequence[int]) -> tuple[str, str] | None:
    """Identifiers of two buffers that are alive together and share an address; None: there are none.

    Raises:
        ValueError: an offset is negative, or there is not one for each buffer.
    """
    if len(buffers) != len(offsets) or any(offset < 0 for offset in offsets):
        raise ValueError("an offset of at least 0 is needed for each buffer")
    for n, (a, at) in enumerate(zip(buffers, offsets)):
        for b, other in zip(buffers[:n], offsets):
            together = a.lower < b.upper and b.lower < a.upper
            if together and at < other + b.size and other < at + a.size:
                return b.id, a.id
    return None


def solve(path: Path, capacity: int, output: Path) -> Row:
    """Pack one instance, check the result and write it to the folder `output`."""
    buffers = read(path)
    begin = time.perf_counter()
    intervals = [packing.Interval(b.size, b.lower, b.upper - 1) for b in buffers]
    found = packing.pack(intervals, capacity, BUDGET)
    seconds = time.perf_counter() - begin
    both = overlap(buffers, found.offsets)
    if both is not None:
        raise RuntimeError(f"{path}: buffers {both[0]} and {both[1]} overlap")
    height = max((at + b.size for b, at in zip(buffers, found.offsets)), default=0)
    lines = [",".join((*COLUMNS, "offset"))]
    lines += [f"{b.id},{b.lower},{b.upper},{b.size},{at}" for b, at in zip(buffers, found.offsets)]
    fsio.write_text(output / path.name, "\n".join(lines) + "\n")
    return {
        "file": path.name,
        "buffers": len(buffers),
        "lower_bound": found.load,
        "height": height,
        "fits": height <= capacity,
        "seconds": round(seconds, 3),
    }


def plan_of(entry: ModelEntry, folder: Path) -> Row:
    """The lower bound and the height of a model's plan; `folder` receives the model.

    Raises:
        Unavailable: the model cannot be had.
        CuvilError: it cannot be compiled.
    """
    shapes = {name: list(array.shape) for name, array in entry.inputs(0).items()}
    with expr.fresh():
        graph = import_model(entry.path(folder), shapes)
        simplify.simplify(graph)
        integer.rewrite(graph)
        found = schedule(lower(graph), claims.for_device(DEVICE))
        height = expr.evaluate(found.arena_bytes, dict.fromkeys(found.program.symbols, 1))
        return {
            "model": entry.name,
            "values": len(found.arena),
            "lower_bound": found.lower_bound,
            "height": height,
        }


def model_rows(entries: Sequence[ModelEntry]) -> list[Row]:
    """A row a model; of one that is not to be had or not to be compiled, the reason."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries:
            try:
                rows.append(plan_of(entry, Path(folder)))
            except (Unavailable, CuvilError) as reason:
                rows.append({"model": entry.name, "skipped": str(reason)})
    return rows


def models_markdown(rows: Sequence[Row]) -> str:
    """The plans of models as a Markdown table, and how many reach their bound."""
    lines = ["| model | values | lower bound | height | gap |", "|---|---|---|---|---|"]
    planned = [r for r in rows if "height" in r]
    for r in rows:
        if "skipped" in r:
            reason = " ".join(r["skipped"].replace("|", "/").split())
            lines.append(f"| {r['model']} | skipped: {reason} | | | |")
            continue
        gap = r["height"] - r["lower_bound"]
        lines.append(f"| {r['model']} | {r['values']} | {r['lower_bound']} | {r['height']} | {gap} |")
    reached = sum(r["height"] == r["lower_bound"] for r in planned)
    lines.append(f"\n{reached} of {len(planned)} plans reach their lower bound.")
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    """The results as a Markdown table, one row an instance, and the sum of the times."""
    lines = ["| file | buffers | lower bound | height | fits | seconds |", "|---|---|---|---|---|---|"]
    for r in rows:
        fits = "yes" if r["fits"] else "**no**"
        cells = (r["file"], r["buffers"], r["lower_bound"], r["height"], fits, f"{r['seconds']:.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    total = sum(r["seconds"] for r in rows)
    lines.append(f"\n{sum(r['fits'] for r in rows)} of {len(rows)} fit; {total:.2f} s in total.")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack the instances; the exit status is 1 where one does not fit or cannot be read."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser("python -m benchmarks.memory_plan", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE.csv")
    add("--capacity", type=int, default=1 << 20, metavar="BYTES", help="default 1048576")
    add("--output", type=Path, metavar="DIR", help="for the files with an offset column")
    add("--models", metavar="A,B", help="names from the zoo or paths to .onnx files; 'all': the whole zoo")
    add("--record", type=Path, metavar="FILE.json", help="write all figures there")
    options = parser.parse_args(arguments)
    if not options.files and not options.models:
        parser.error("nothing to do: give files or --models")
    if options.files and not options.output:
        parser.error("--output is needed with files")
    report: Row = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.memory_plan", *arguments],
        "machine": machine(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "capacity": options.capacity,
    }
    try:
        names = options.models.split(",") if options.models else []
        entries = list(MODELS.values()) if names == ["all"] else [find(name) for name in names]
        rows = [solve(path, options.capacity, options.output) for path in options.files]
    except KeyError as error:
        parser.error(error.args[0])
    except (CuvilError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    plans = model_rows(entries)
    if options.record:
        fsio.write_json(options.record, {**report, "results": rows, "models": plans})
    tables = [markdown(rows)] if rows else []
    tables += [models_markdown(plans)] if plans else []
    print("\n\n".join(tables))
    return 0 if all(r["fits"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
