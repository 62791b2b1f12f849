"""Resident memory of a C program that runs a library: ``python -m benchmarks.resident_memory --help``.

The program is linked with the model's shared library, has the workspace, the inputs and the outputs as static
arrays, and runs the model once on zeros.  Reported is what Linux says at its end: the peak (``VmHWM``), of it
the pages of files (``RssFile``: code, and the weights, which are read-only and can be dropped and read again
at any time) and the others (``RssAnon``: workspace, inputs, outputs, and weights that the library prepares).
onnxruntime runs the same model in a Python process of its own; what that had before it imported onnxruntime
is given beside its peak.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from zoo.entry import ModelEntry, Unavailable
from zoo.registry import find

import cuvil
from benchmarks.latency import machine
from cuvil import fsio
from cuvil.ir.expr import numpy_dtype
from cuvil.target.board import FOOTPRINTS
from cuvil.target.schema import Target, load
from cuvil.toolchain.profile import compiler

MODELS = ("mobilenet_v2", "resnet18")
AIMS_MB = {"mobilenet_v2": 32, "resnet18": 64}
"""The largest peak that is aimed at, MB (10^6 bytes); none for ``footprint: file``, which takes memory for
the size of the file."""

FIELDS = ("VmHWM", "RssAnon", "RssFile")

_PROGRAM = """#include <stdio.h>
#include <string.h>
#include "{model}.h"
{arrays}
int main(void) {{
    const int code = {model}_run({arguments});
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "VmHWM:", 6) || !strncmp(line, "RssAnon:", 8) || !strncmp(line, "RssFile:", 8))
            fputs(line, stdout);
    return code;
}}
"""

_ONNXRUNTIME = """
import sys
import numpy as np
def status():
    print(open("/proc/self/status").read())
status()
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = dict(np.load(sys.argv[2]))
session.run(None, feeds)
status()
"""

Row = dict[str, Any]


def program(metadata: Mapping[str, Any]) -> str:
    """The C program for a library with the given metadata (``<model>.json``), whose sizes are all known."""
    arrays = [
        f"static unsigned char workspace[{max(metadata['workspace_bytes'], 1)}] __attribute__((aligned(64)));"
    ]
    arguments = ["workspace", "sizeof workspace"]
    for side, const in (("inputs", "const "), ("outputs", "")):
        for i, tensor in enumerate(metadata[side]):
            size = max(int(np.prod(tensor["shape"])), 1) * numpy_dtype(tensor["dtype"]).itemsize
            arrays.append(f"static unsigned char {side}{i}[{size}] __attribute__((aligned(64)));")
            arguments.append(f"({const}void *){side}{i}")
    return _PROGRAM.format(model=metadata["model"], arrays="\n".join(arrays), arguments=", ".join(arguments))


def resident(status: str) -> dict[str, int]:
    """Bytes of each of `FIELDS` from the text of ``/proc/<pid>/status``."""
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {field: int(lines[field].split()[0]) * 1024 for field in FIELDS if field in lines}


def of_library(entry: ModelEntry, target: Target, folder: Path) -> Row:
    """Compile the model, and run its library in a program of its own."""
    session = cuvil.compile(
        entry.path(folder),
        target,
        shapes=entry.shapes(),
        values=entry.values,
        output=folder / entry.name,
    )
    code = folder / entry.name / "codegen"
    metadata = json.loads((code / f"{session.model}.json").read_text())
    source, object, binary = (folder / entry.name / f"resident{end}" for end in (".c", ".o", ""))
    source.write_text(program(metadata))
    cc = compiler(target.slice("cc"))
    cc.compile(source, object, include_dirs=[code])
    cc.link_executable([object, session.library], binary, libs=["m", "pthread"])
    done = subprocess.run(
        [binary],
        env={"LD_LIBRARY_PATH": str(session.library.parent)},
        check=True,
        capture_output=True,
        text=True,
    )
    weights = sum(file.stat().st_size for file in code.glob("*.bin"))
    return {
        "peak": resident(done.stdout),
        "workspace": metadata["workspace_bytes"],
        "weights": weights,
        "prepared": metadata["prepared_bytes"],
        "library": session.library.stat().st_size,
    }


def of_onnxruntime(entry: ModelEntry, folder: Path) -> Row:
    """One run in a Python process: the peak, and what was resident before onnxruntime was imported."""
    feeds = folder / f"{entry.name}.npz"
    np.savez(feeds, allow_pickle=False, **entry.inputs(0))
    command = [sys.executable, "-c", _ONNXRUNTIME, str(entry.path(folder)), str(feeds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, after = done.stdout.split("Name:")[1:]
    return {"peak": resident(after), "before": resident(before)["VmHWM"]}


def markdown(rows: Sequence[Row]) -> str:
    """The results as a Markdown table, in MB (10^6 bytes)."""
    titles = [
        "model",
        "library",
        "peak",
        "aim",
        "of files",
        "not of files",
        "weights",
        "prepared",
        "workspace",
        "onnxruntime's peak",
        "of it Python",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        if "skipped" in row:
            reason = " ".join(str(row["skipped"]).replace("|", "/").split())
            lines.append(f"| {row['model']} | skipped: {reason} |" + " |" * (len(titles) - 2))
            continue
        peak, rival = row["peak"], row.get("onnxruntime")
        numbers = [peak["RssFile"], peak["RssAnon"], row["weights"], row["prepared"], row["workspace"]]
        numbers += [rival["peak"]["VmHWM"], rival["before"]] if rival else []
        cells = [row["model"], f"{row['library'] / 1e6:.1f}", f"{peak['VmHWM'] / 1e6:.1f}"]
        cells += [str(row["aim_mb"] or "")]
        cells += [f"{n / 1e6:.1f}" for n in numbers] + [""] * (0 if rival else 2)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; the exit status is 1 where a peak is above its aim."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        "python -m benchmarks.resident_memory", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--models", default=",".join(MODELS), metavar="A,B", help="names from the zoo or paths to .onnx files"
    )
    parser.add_argument("--target", default="host", help="profile that is compiled for (default host)")
    parser.add_argument(
        "--footprints",
        default=",".join(FOOTPRINTS),
        metavar="F,G",
        help="settings of the profile (default all of them)",
    )
    parser.add_argument("--no-rival", action="store_true", help="leave onnxruntime out")
    parser.add_argument("--output", metavar="FILE.json", help="write all figures there")
    options = parser.parse_args(arguments)
    try:
        entries = [find(name) for name in options.models.split(",")]
    except KeyError as error:
        parser.error(str(error.args[0]))
    footprints = options.footprints.split(",")
    if unknown := {*footprints} - {*FOOTPRINTS}:
        parser.error(f"--footprints: {', '.join(sorted(unknown))} is none of {', '.join(FOOTPRINTS)}")
    profile = load(options.target)
    rows: list[Row] = []
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cuvil": cuvil.__version__,
        "compiler": compiler(profile.slice("cc")).version,
    }
    if not options.no_rival:
        import onnxruntime

        versions["onnxruntime"] = onnxruntime.__version__
    for entry, footprint in itertools.product(entries, footprints):
        devices = tuple(replace(d, footprint=footprint) for d in profile.devices)
        target = replace(profile, devices=devices)
        which = "" if footprint == "default" else f" ({footprint})"
        aim = AIMS_MB.get(entry.name) if footprint != "file" else None
        row: Row = {"model": entry.name + which, "aim_mb": aim}
        with tempfile.TemporaryDirectory(prefix="cuvil-") as name:
            try:
                row |= of_library(entry, target, Path(name))
                if not options.no_rival and not which:
                    row["onnxruntime"] = of_onnxruntime(entry, Path(name))
            except Unavailable as reason:
                row["skipped"] = str(reason)
        rows.append(row)
    if options.output:
        fsio.write_json(
            options.output,
            {
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "command": ["python", "-m", "benchmarks.resident_memory", *arguments],
                "machine": machine(),
                "versions": versions,
                "target": options.target,
                "results": rows,
            },
        )
    print(markdown(rows))
    above = [r for r in rows if r["aim_mb"] and "peak" in r and r["peak"]["VmHWM"] > r["aim_mb"] * 1e6]
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
