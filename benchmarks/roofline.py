"""Each kernel's share of what the machine can do: ``python -m benchmarks.roofline --help``.

A model is compiled for one thread with a call after each kernel (``-DCUVIL_PROFILE``), which notes the time;
the least of many runs counts, for everything else on the machine only ever slows a kernel down.  Operations
and bytes from DRAM are those of the cost model (`cuvil.cost`).  The peaks are measured several times in
between, on one core, and the best counts: multiply-adds on full vectors, and reading memory
(`cuvil.toolchain.measure`).  A kernel's roof is the peak, or its intensity (operations per byte) times the
bandwidth where that is less.  The plot has the bytes of the tensors that a kernel touches instead, for most
of them are in a cache.  Winograd kernels count with the operations of the convolution that they
compute, although they multiply 2.25 to 4 times less often; so they may be above the roof.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from zoo.entry import ModelEntry, Unavailable
from zoo.registry import find

import cuvil
from benchmarks.latency import machine
from cuvil import artefacts, fsio, stages
from cuvil.codegen.names import identifier
from cuvil.cost.estimate import KernelCost, estimate, scheduled
from cuvil.errors import CuvilError
from cuvil.frontend.onnx_reader import read_model
from cuvil.ir import expr
from cuvil.schedule.plan import roots_of
from cuvil.session import Session, configure
from cuvil.target.schema import Target, load
from cuvil.toolchain import measure
from cuvil.toolchain.profile import compiler, options

MODELS = ("resnet18", "mobilenet_v2", "bert_mini")
RUNS = 40
TRIES = 4
"""Measurements of the peaks for each model."""

PLOT = Path(__file__).resolve().parent.parent / "docs" / "roofline.svg"

_TICKER = """#include <string.h>
#include <time.h>
#define CV_PUBLIC __attribute__((visibility("default")))
static const char *names[8192];
static double seconds[8192], last;
static int count;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
CV_PUBLIC void ticker_start(void) { count = 0; last = now(); }
CV_PUBLIC int ticker_count(void) { return count; }
CV_PUBLIC const char *ticker_name(int i) { return names[i]; }
CV_PUBLIC double ticker_seconds(int i) { return seconds[i]; }
CV_PUBLIC void cuvil_tick(const char *kernel) { /* a kernel that runs in strips is through several times */
    const double t = now();
    int i = 0;
    while (i < count && names[i] != kernel && strcmp(names[i], kernel)) i++;
    if (i == count && count < 8192) names[count] = kernel, seconds[count++] = 0;
    if (i < count) seconds[i] += t - last;
    last = now();
}
"""

Row = dict[str, Any]


def profiled(
    entry: ModelEntry, target: Target, folder: Path, runs: int = RUNS
) -> tuple[dict[str, float], list[KernelCost], dict[str, int]]:
    """Seconds of each kernel of the model by name, the least of `runs` runs; the kernels' predictions; and
    the bytes of the tensors that each touches.

    Raises:
        CuvilError: it cannot be compiled, or is for another machine.
    """
    path = entry.path(folder)
    out = artefacts.layout(folder / "out", identifier(path.stem, "model"), target)
    stages.run_import(path, out, entry.shapes(), values=entry.values)
    stages.run_partition(out, target.slice("partition"))
    stages.run_quantize(out, target.slice("quantize"))
    device = target.devices[0].name
    stages.run_codegen(out, device, target.slice("codegen"))
    stages.run_interface(out, target.slice("codegen"))
    with expr.fresh():
        predicted = list(estimate(read_model(out.graph), target).kernels)
        made = scheduled(read_model(out.graph), target.slice("partition"), device)
        touched = {
            kernel.name: sum(
                expr.evaluate(made.storage.elements(root), {}) * expr.numpy_dtype(root.dtype).itemsize
                for root in roots_of(kernel, made.storage)
            )
            for kernel in made.kernels
        }
    ticker, library = _linked(out, target, device, folder)
    clock = ctypes.CDLL(str(ticker))
    clock.ticker_name.restype, clock.ticker_seconds.restype = ctypes.c_char_p, ctypes.c_double
    session = Session(library, out.interface["json"])
    feeds = {name: array for name, array in entry.inputs(0).items() if name not in entry.values}
    best: dict[str, float] = {}
    for _ in range(runs):
        clock.ticker_start()
        session.run(None, feeds)
        for i in range(clock.ticker_count()):
            name, seconds = clock.ticker_name(i).decode(), clock.ticker_seconds(i)
            best[name] = min(seconds, best.get(name, seconds))
    return best, predicted, touched


def _linked(out: artefacts.Layout, target: Target, device: str, folder: Path) -> tuple[Path, Path]:
    """The library of the clock, and the model's, which calls it."""
    plan, opts = target.slice("cc"), options(target.slice("cc"))
    cc, files = compiler(plan, device), out.generated(device)
    (folder / "ticker.c").write_text(_TICKER)
    cc.compile(folder / "ticker.c", folder / "ticker.o")
    ticker, library = (folder / f"lib{out.model}_{what}.so" for what in ("ticker", "profiled"))
    cc.link_shared([folder / "ticker.o"], ticker)
    objects = []
    for source in (files["c"], files["s"], out.interface["c"]):
        objects.append(folder / f"{source.stem}.o")
        cc.compile(source, objects[-1], opts, defines=["CUVIL_PROFILE"])
    cc.link_shared([*objects, ticker], library, libs=["m", "pthread"], options=opts)
    return ticker, library


def matched(
    seconds: Mapping[str, float], predicted: Sequence[KernelCost]
) -> Iterator[tuple[float, KernelCost]]:
    """Each prediction with the measured seconds of its kernel, whose function's name starts with its own.

    Raises:
        CuvilError: a kernel was not measured: prediction and code are of different schedules.
    """
    times = {name.split("_")[0]: s for name, s in seconds.items()}
    for kernel in predicted:
        if kernel.name not in times:
            raise CuvilError("was predicted and did not run", f"kernel {kernel.name}")
        yield times[kernel.name], kernel


def shares(seconds: float, flops: float, moved: float, peak: float, bandwidth: float) -> Row:
    """A kernel against the peaks: `flops` operations and `moved` bytes in `seconds`; FLOP/s and B/s."""
    roof = min(peak, flops / moved * bandwidth) if moved and flops else peak
    return {
        "us": round(seconds * 1e6, 2),
        "flops": round(flops),
        "dram_bytes": round(moved),
        "gflops": round(flops / seconds / 1e9, 2),
        "share_of_peak": round(flops / seconds / peak, 4),
        "share_of_roof": round(flops / seconds / roof, 4),
        "share_of_bandwidth": round(moved / seconds / bandwidth, 4),
    }


def peaks(isa: str, core: Sequence[int], before: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
    """FLOP/s of a core and B/s that it reads from memory, the best of some tries and of those `before`."""
    flops = max(measure.measure("peak_f32", isa, core) for _ in range(TRIES))
    return max(flops, before[0]), max(measure.measure("bandwidth", isa, core), before[1])


def classes(rows: Sequence[Row], peak: float) -> list[Row]:
    """Per model and class of kernels: how many, their time, and their share of the peak; longest first."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["class"]), []).append(row)
    order = list(dict.fromkeys(row["model"] for row in rows))
    found = []
    for (model, kind), of in groups.items():
        total, flops = sum(r["us"] for r in of), sum(r["flops"] for r in of)
        whole = sum(r["us"] for r in rows if r["model"] == model)
        found.append(
            {
                "model": model,
                "class": kind,
                "kernels": len(of),
                "us": round(total, 2),
                "share_of_time": round(total / whole, 4),
                "gflops": round(flops / total / 1e3, 2),
                "share_of_peak": round(flops / total * 1e6 / peak, 4),
            }
        )
    return sorted(found, key=lambda r: (order.index(r["model"]), -r["us"]))


def markdown(summary: Sequence[Row]) -> str:
    """The classes as a Markdown table."""
    titles = ["model", "class", "kernels", "us", "share of the time", "GFLOP/s", "share of peak"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [
        f"| {r['model']} | {r['class']} | {r['kernels']} | {r['us']:.0f} | {r['share_of_time']:.1%} "
        f"| {r['gflops']:.1f} | {r['share_of_peak']:.1%} |"
        for r in summary
    ]
    return "\n".join(lines)


def draw(report: Mapping[str, Any], path: Path) -> None:
    """The roofline plot of a report: a dot a kernel, as large as its share of its model's time."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "roofline", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(8, 5))
        peak, bandwidth = report["peak_flops"] / 1e9, report["bandwidth"] / 1e9
        x = np.geomspace(0.05, 2000, 200)
        axes.plot(x, np.minimum(peak, x * bandwidth), color="black", linewidth=1)
        for number, model in enumerate(dict.fromkeys(r["model"] for r in report["results"])):
            of = [r for r in report["results"] if r["model"] == model and r["gflops"]]
            whole = sum(r["us"] for r in of) or 1.0
            intensity = [min(r["flops"] / max(r["tensor_bytes"], 1), x[-1]) for r in of]
            axes.scatter(
                np.maximum(intensity, x[0]),
                [r["gflops"] for r in of],
                s=[12 + 600 * r["us"] / whole for r in of],
                alpha=0.5,
                color=f"C{number}",
                label=model,
            )
        axes.set(
            xscale="log",
            yscale="log",
            ylim=(peak / 2000, peak * 4),
            ylabel="GFLOP/s",
            xlabel="operations per byte of the tensors touched",
        )
        legend = axes.legend(loc="lower right")
        for handle in legend.legend_handles:
            handle.set_sizes([40])
        axes.grid(True, which="major", alpha=0.3)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    fsio.write_text(path, "\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models, print the table of classes, write data and plot where asked for."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser("python -m benchmarks.roofline", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--models", default=",".join(MODELS), metavar="A,B", help="names from the zoo or paths to .onnx files"
    )
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"of each model (default {RUNS})")
    parser.add_argument("--output", metavar="FILE.json", help="write all figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help=f"draw, for the documents {PLOT.name}")
    given = parser.parse_args(arguments)
    try:
        entries = [find(name) for name in given.models.split(",")]
    except KeyError as error:
        parser.error(str(error.args[0]))
    target = configure(load("host"), 1, "none")
    isa, core = target.devices[0].isa, sorted(os.sched_getaffinity(0))[:1]
    best, kernels = peaks(isa, core), []
    for entry in entries:
        try:
            with tempfile.TemporaryDirectory(prefix="cuvil-") as folder:
                seconds, predicted, touched = profiled(entry, target, Path(folder), given.runs)
        except Unavailable as reason:
            print(f"{entry.name} is left out: {reason}", file=sys.stderr)
            continue
        kernels += [(entry.name, s, k, touched[k.name]) for s, k in matched(seconds, predicted)]
        best = peaks(isa, core, best)
    peak, bandwidth = best
    rows: list[Row] = [
        {"model": model, "kernel": k.name, "class": k.tag, "origin": list(k.origin)}
        | shares(s, k.flops + k.epilogue_flops, k.dram_bytes, peak, bandwidth)
        | {"tensor_bytes": moved}
        for model, s, k, moved in kernels
    ]
    summary = classes(rows, peak)
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.roofline", *arguments],
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cuvil": cuvil.__version__,
            "compiler": compiler(target.slice("cc")).version,
        },
        "isa": isa,
        "peak_flops": round(peak),
        "bandwidth": round(bandwidth),
        "classes": summary,
        "results": rows,
    }
    if given.output:
        fsio.write_json(given.output, report)
    if given.plot:
        draw(json.loads(json.dumps(report)), given.plot)
    print(f"Peak {peak / 1e9:.0f} GFLOP/s, memory {bandwidth / 1e9:.1f} GB/s ({isa}, one core)\n")
    print(markdown(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
