"""Latency of Cuvil's sessions against other runtimes: ``python -m benchmarks.latency --help``.

Runtimes are timed in blocks, in turn: a pause of 60 ms, two samples to warm up, six timed. The pause
lets the rival's worker threads stop spinning, which would hold the other cores (onnxruntime's spin for
some 35 ms after each run); so each runs with its default settings, and a runtime against itself gives
a ratio of 1.00 (``--subject onnxruntime``). A sample is one inference, or as many as last 0.2 ms.
Reported are medians over all samples; the ratio rival / subject (above 1: the subject is faster) as the
median and the quartiles over the rounds of the ratio of the blocks' medians, since neighbouring blocks
see the same load; and the largest error against onnxruntime in float32: absolute, and relative to the
largest absolute value of the output concerned.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from zoo.entry import ModelEntry, Unavailable
from zoo.registry import MODELS, find

from benchmarks.runners import RUNNERS, OnnxRuntime, Runner, Settings
from cuvil import fsio

PAUSE = 60e-3
"""Seconds of rest before each block."""

WARM, TIMED = 2, 6
"""Samples of a block that are thrown away, and that count."""

MIN_SAMPLE = 0.2e-3
"""Seconds that one sample lasts at least."""

Clock = Callable[[], float]
Outputs = Sequence[npt.NDArray[Any]]
Row = dict[str, Any]


def inner_loops(run: Callable[[], object], clock: Clock = time.perf_counter) -> int:
    """How many calls of `run` last at least `MIN_SAMPLE`."""
    run()
    count = 1
    while (elapsed := _timed(run, count, clock)) < MIN_SAMPLE:
        count = max(2 * count, math.ceil(count * MIN_SAMPLE / max(elapsed, 1e-9)))
    return count


def measure(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, npt.NDArray[np.float64]]:
    """Seconds per call of each candidate, [rounds, TIMED], measured in blocks as the module's text says.

    Each round runs a block of every candidate; who begins changes from round to round.
    """
    loops = {name: inner_loops(run, clock) for name, run in candidates.items()}
    seconds = {name: np.zeros((rounds, TIMED)) for name in candidates}
    names = list(candidates)
    gc.collect()
    gc.disable()
    try:
        for index in range(rounds):
            start = index % len(names)
            for name in names[start:] + names[:start]:
                run, count = candidates[name], loops[name]
                sleep(PAUSE)
                for _ in range(WARM):
                    _timed(run, count, clock)
                seconds[name][index] = [_timed(run, count, clock) / count for _ in range(TIMED)]
    finally:
        gc.enable()
    return seconds


def _timed(run: Callable[[], object], count: int, clock: Clock) -> float:
    begin = clock()
    for _ in range(count):
        run()
    return clock() - begin


def errors(outputs: Outputs, reference: Outputs) -> tuple[float, float]:
    """Largest absolute difference, and the largest of them relative to its output's largest value.

    Values that are equal, infinite or not, differ by 0; a NaN on one side only gives infinity.

    Raises:
        ValueError: the number or the shapes of the outputs differ.
    """
    if [np.shape(a) for a in outputs] != [np.shape(b) for b in reference]:
        raise ValueError(
            f"output shapes {[np.shape(a) for a in outputs]} are not {[np.shape(b) for b in reference]}"
        )
    absolute = relative = 0.0
    for ours, theirs in zip(outputs, reference):
        a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        differing = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if not differing.any():
            continue
        difference = np.abs(a[differing] - b[differing])
        error = math.inf if np.isnan(difference).any() else float(difference.max())
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        absolute = max(absolute, error)
        relative = max(relative, error / scale if scale else math.inf)
    return absolute, relative


def compare(
    entry: ModelEntry,
    threads: int,
    runners: Sequence[Runner],
    rounds: int,
    folder: Path,
    rival_model: Path | None = None,
) -> Row:
    """Measure `entry` on `runners`, of which the first is the subject, the others its rivals.

    Rivals run `rival_model` where given, e.g. the model in a form that they quantized.  One that cannot run
    the model is left out, with what it says in ``unable``.

    Raises:
        Unavailable: the model cannot be had.
    """
    model, feeds = entry.path(folder), entry.inputs(0)
    reference = OnnxRuntime(runners[0].settings).prepare(model, 1, feeds).run()
    subject = runners[0].name
    prepared = {subject: runners[0].prepare(model, threads, feeds, entry.values)}
    unable: dict[str, str] = {}
    for runner in runners[1:]:
        label = runner.name if runner.name not in prepared else f"{runner.name} again"
        try:
            prepared[label] = runner.prepare(rival_model or model, threads, feeds, entry.values)
            prepared[label].run()
        except Exception as error:  # whatever a rival raises where it does not know a model
            prepared.pop(label, None)
            unable[label] = f"{type(error).__name__}: {error}"
    row: Row = {"model": entry.name, "threads": threads, "tolerance": entry.tolerance, "errors": {}}
    if unable:
        row["unable"] = unable
    for label, candidate in prepared.items():
        absolute, relative = errors(candidate.run(), reference)
        row["errors"][label] = {"absolute": absolute, "relative": relative}
    seconds = measure({label: candidate.run for label, candidate in prepared.items()}, rounds)
    row["ms"] = {label: _spread(samples * 1e3) for label, samples in seconds.items()}
    row["ratio"] = {}
    for rival in list(prepared)[1:]:
        by_round = np.median(seconds[rival], axis=1) / np.median(seconds[subject], axis=1)
        low, middle, high = (float(q) for q in np.quantile(by_round, [0.25, 0.5, 0.75]))
        row["ratio"][rival] = {"median": middle, "quartiles": [low, high]}
    bare = prepared[subject].bare
    if bare is not None:
        samples = np.concatenate([np.asarray(bare(WARM + TIMED))[WARM:] for _ in range(rounds)])
        row["bare_ms"] = _spread(samples * 1e3)
    return row


def _spread(samples: npt.NDArray[np.float64]) -> dict[str, float | int]:
    low, middle, high = (float(q) for q in np.quantile(samples, [0.1, 0.5, 0.9]))
    return {"median": middle, "p10": low, "p90": high, "samples": samples.size}


def geometric_means(rows: Sequence[Row]) -> list[Row]:
    """Per number of threads and rival: the geometric mean of the ratios, over how many models."""
    groups: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        for rival, ratio in row.get("ratio", {}).items():
            groups.setdefault((row["threads"], rival), []).append(ratio["median"])
    means: list[Row] = []
    for (threads, rival), ratios in sorted(groups.items()):
        mean = float(np.exp(np.mean(np.log(ratios))))
        means.append({"threads": threads, "rival": rival, "ratio": mean, "models": len(ratios)})
    return means


def markdown(rows: Sequence[Row], subject: str) -> str:
    """The results as a Markdown table, one row a model, number of threads and rival."""
    titles = [
        "model",
        "threads",
        f"{subject} ms",
        "bare ms",
        "rival",
        "rival ms",
        "ratio",
        "quartiles",
        "max error",
        "relative",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        start = f"| {row['model']} | {row['threads']} |"
        if "ratio" not in row:
            reason = str(row.get("failed") or f"skipped: {row['skipped']}")
            lines.append(f"{start} {' '.join(reason.replace('|', '/').split())} |" + " |" * (len(titles) - 3))
            continue
        error, ours = row["errors"][subject], row["ms"][subject]["median"]
        exceeded = " **above tolerance**" if error["relative"] > row["tolerance"] else ""
        bare = f"{row['bare_ms']['median']:.3f}" if "bare_ms" in row else ""
        for rival, ratio in row["ratio"].items():
            low, high = ratio["quartiles"]
            theirs = row["ms"][rival]["median"]
            lines.append(
                f"{start} {ours:.3f} | {bare} | {rival} | {theirs:.3f} | {ratio['median']:.2f} "
                f"| {low:.2f}-{high:.2f} | {error['absolute']:.1e} | {error['relative']:.1e}{exceeded} |"
            )
        for rival, reason in row.get("unable", {}).items():
            text = " ".join(reason.replace("|", "/").split())[:100]
            lines.append(f"{start} {ours:.3f} | {bare} | {rival} | cannot: {text} | | | | |")
    for mean in geometric_means(rows):
        lines.append(
            f"\nGeometric mean against {mean['rival']}, {mean['threads']} thread(s), "
            f"{mean['models']} model(s): {mean['ratio']:.2f}"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores that may be used, system, load when it began."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu, "cores": cores, "system": platform.platform(), "load": list(os.getloadavg())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; the exit status is 1 where a model failed or exceeded its tolerance."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)
    settings = Settings(options.target, options.quantization, options.calibration, not options.dynamic)
    runners = [RUNNERS[name](settings) for name in [options.subject, *options.rivals]]
    rows: list[Row] = []
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.latency", *arguments],
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "onnx": onnx.__version__,
            **{runner.name: runner.version for runner in runners},
        },
        "subject": options.subject,
        "results": rows,
    }
    with tempfile.TemporaryDirectory() as folder:
        for entry in options.models:
            for threads in options.threads:
                print(f"{entry.name}, {threads} thread(s) ...", file=sys.stderr, flush=True)
                row: Row = {"model": entry.name, "threads": threads}
                try:
                    row = compare(entry, threads, runners, options.repeats, Path(folder), options.rival_model)
                except Unavailable as reason:
                    row["skipped"] = str(reason)
                except Exception as error:
                    row["failed"] = f"{type(error).__name__}: {error}"
                rows.append(row)
    report["geometric_means"] = geometric_means(rows)
    if options.output:
        fsio.write_json(options.output, report)
    print(markdown(rows, options.subject))
    bad = [row for row in rows if "failed" in row or not _within_tolerance(row, options)]
    return 1 if bad else 0


def _within_tolerance(row: Row, options: argparse.Namespace) -> bool:
    """Quantized answers have no fixed tolerance here; they are reported, not judged."""
    if options.quantization != "none" or "errors" not in row:
        return True
    return bool(row["errors"][options.subject]["relative"] <= row["tolerance"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.latency", description=__doc__.split("\n\n")[0])

    def positive(text: str) -> int:
        if int(text) < 1:
            raise ValueError
        return int(text)

    def models(text: str) -> list[ModelEntry]:
        try:
            return [find(name) for name in text.split(",")]
        except KeyError as error:
            raise argparse.ArgumentTypeError(str(error.args[0])) from error

    def runners(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in RUNNERS]
        if unknown:
            raise argparse.ArgumentTypeError(f"no runtime '{unknown[0]}': known are {', '.join(RUNNERS)}")
        return text.split(",")

    add = parser.add_argument
    add(
        "--models",
        type=models,
        default=list(MODELS.values()),
        metavar="A,B",
        help="names from the zoo or paths to .onnx files (default: the whole zoo)",
    )
    add("--threads", type=lambda text: [positive(n) for n in text.split(",")], default=[1], metavar="1,2")
    add("--repeats", type=positive, default=12, metavar="N", help="rounds of blocks (default 12)")
    add("--output", metavar="FILE.json", help="write all figures there")
    add("--subject", choices=list(RUNNERS), default="cuvil")
    add("--rivals", type=runners, default=["onnxruntime"], metavar="A,B", help=f"of {', '.join(RUNNERS)}")
    add("--target", default="host", help="profile that cuvil compiles for (default host)")
    add("--quantization", default="none", metavar="MODE", help="mode that cuvil is given, e.g. int8")
    add("--calibration", metavar="FILE.npz", help="calibration data that cuvil is given")
    add("--rival-model", type=Path, metavar="FILE.onnx", help="what the rivals run, e.g. a quantized form")
    add("--dynamic", action="store_true", help="leave symbolic dimensions open, for every runtime")
    return parser


if __name__ == "__main__":
    sys.exit(main())
