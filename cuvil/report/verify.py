"""Whether a built library is right, how large and how fast: what ``verify``, ``bench`` and ``size`` report.

The reference is onnxruntime, where it is installed, on the model as it was before Cuvil.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cuvil import artefacts, stages
from cuvil.errors import CuvilError
from cuvil.frontend.binding import constant
from cuvil.frontend.onnx_reader import read_model
from cuvil.report import samples, text
from cuvil.report.foreign import ForeignRunner
from cuvil.report.samples import Arrays, Samples
from cuvil.session import Session, as_model, as_tensors
from cuvil.target.profiles import HOST
from cuvil.target.schema import Target
from cuvil.toolchain import symbols

Outputs = list[list[np.ndarray]]
"""The outputs of each batch."""

TOLERANCE = 1e-3
"""Largest error of a float library, relative to the largest value of the output concerned, that is good."""

EMULATED_SAMPLES = 64
"""Samples that are run under an emulator, which is some hundred times slower."""

VERIFY_S, BENCH_S = 0.5, 2.0
"""Seconds of work that a measurement of latency takes."""


@dataclass(frozen=True)
class Subject:
    """A built library and what to hold it against.

    Attributes:
        out: the artefacts, built.
        target: what they were built for.
        model: the ``.onnx`` file that they were built from.
        data: ``.npz`` with samples of each input, laid out as the model has it, and optionally their classes
            as ``label``; random numbers where None.
        io_format: of the library's interface.
        values: of inputs of the model that the library has as constants, by name.
        shapes: what inputs are bound to, by name.
    """

    out: artefacts.Layout
    target: Target
    model: Path
    data: Path | None = None
    io_format: str = "nchw"
    values: Mapping[str, Any] = field(default_factory=dict)
    shapes: stages.Shapes = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        """What the build wrote on the library's interface."""
        info: dict[str, Any] = json.loads(self.out.interface["json"].read_text(encoding="utf-8"))
        return info

    def samples(self, info: Mapping[str, Any]) -> tuple[Samples, list[dict[str, Any]]]:
        """The samples, and the inputs as the model has them."""
        inputs = [dict(t) for t in info["inputs"]]
        for t in inputs:
            if self.io_format == "nhwc" and len(t["shape"]) == 4:
                n, h, w, c = t["shape"]
                t["shape"] = [n, c, h, w]
        return samples.read(self.data, inputs) if self.data else samples.random(inputs), inputs

    def constants(self) -> Arrays:
        """The values as the model takes them."""
        if not self.values:
            return {}
        types = read_model(self.model, self.shapes).types
        return {name: constant(name, value, types[name]) for name, value in self.values.items()}


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes:
        quantization: the arithmetic, ``f32`` or ``int8``.
        library: path of the shared library; `library_bytes`: its size.
        arena_bytes: workspace of one inference with one sample; None where it depends on open sizes.
        samples: how many were run, 0 where the library cannot be run here.
        error: largest absolute difference from the reference; None where it was not compared.
        relative_error: the largest of them relative to its output's largest value.
        accuracy_f32, accuracy: share of samples whose class is right, by the reference and by the library.
        agreement: share of samples that both give the same class; None where the output is no classification.
        predicted_ns, interval_ns: latency as the partition predicted it.
        measured_ns: median latency of one inference; None where it was not run on the target itself.
        good: False where the library is wrong.
        notes: what was not done, and why.
    """

    model: str
    target: str
    quantization: str
    library: str
    library_bytes: int
    arena_bytes: int | None
    samples: int
    error: float | None
    relative_error: float | None
    accuracy_f32: float | None
    accuracy: float | None
    agreement: float | None
    predicted_ns: float | None
    interval_ns: tuple[float, float] | None
    measured_ns: float | None
    good: bool
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-like data."""
        return asdict(self)

    def text(self) -> str:
        """The report for a terminal."""
        largest = accuracy = agreement = measured = ""
        if self.error is not None and self.relative_error is not None:
            verdict = "" if self.good else f"; WRONG, {text.error(TOLERANCE)} of it is allowed"
            relative = f"{text.error(self.relative_error)} of the largest value{verdict}"
            largest = f"{text.error(self.error)}, {relative}; {self.samples} samples"
        if self.accuracy is not None:
            accuracy = f"{self.accuracy:.4f}"
            accuracy += (
                "" if self.accuracy_f32 is None else f", {self.accuracy_f32:.4f} by onnxruntime in f32"
            )
        elif self.agreement is not None:
            agreement = f"{self.agreement:.4f} of the samples in the same class"
        if self.measured_ns is not None:
            measured = text.duration(self.measured_ns)
        rows = [
            ("model", f"{self.model} [{self.target}], {self.quantization}"),
            ("library", f"{self.library}  {text.size(self.library_bytes)}"),
            ("arena", _arena_text(self.arena_bytes)),
            ("largest error", largest),
            ("accuracy", accuracy),
            ("agreement", agreement),
            ("predicted latency", _predicted_text(self.predicted_ns, self.interval_ns)),
            ("measured latency", measured),
            *(("note", note) for note in self.notes),
        ]
        return text.facts(rows)


@dataclass(frozen=True)
class Benchmark:
    """What `bench` found: latencies of one inference of one sample, in ns.

    Attributes:
        median_ns, p10_ns, p90_ns: of the library, over `samples` runs.
        reference_ns: median of onnxruntime with as many threads.
        ratio: `reference_ns` over `median_ns`, above 1 where the library is faster.
        predicted_ns, interval_ns: as the partition predicted it.
    """

    model: str
    target: str
    threads: int
    samples: int
    median_ns: float
    p10_ns: float
    p90_ns: float
    reference_ns: float | None
    ratio: float | None
    predicted_ns: float | None
    interval_ns: tuple[float, float] | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-like data."""
        return asdict(self)

    def text(self) -> str:
        """The report for a terminal."""
        low, median, high = map(text.duration, (self.p10_ns, self.median_ns, self.p90_ns))
        rival = ""
        if self.reference_ns is not None and self.ratio is not None:
            rival = f"{text.duration(self.reference_ns)}, {text.digits(self.ratio)} times the library's"
        rows = [
            ("model", f"{self.model} [{self.target}], {self.threads} thread{'s' * (self.threads != 1)}"),
            ("latency", f"{median} (median), {low} to {high} (10 to 90 %), {self.samples} runs"),
            ("onnxruntime", rival),
            ("predicted latency", _predicted_text(self.predicted_ns, self.interval_ns)),
            *(("note", note) for note in self.notes),
        ]
        return text.facts(rows)


@dataclass(frozen=True)
class Sizes:
    """What a library takes, in bytes.

    Attributes:
        library: path of the shared library; `library_bytes`: its size as a file.
        code_bytes, constant_bytes, variable_bytes: in memory; weights are constants, the arena of ``infer``
            is a variable.
        weights_bytes: the weights alone.
        prepared_bytes: variables that hold weights as kernels want them, filled by the first run.
        arena_bytes: workspace of one inference; None where it depends on open sizes.
    """

    model: str
    target: str
    library: str
    library_bytes: int
    code_bytes: int
    constant_bytes: int
    variable_bytes: int
    weights_bytes: int
    prepared_bytes: int
    arena_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-like data."""
        return asdict(self)

    def text(self) -> str:
        """The report for a terminal."""
        weights, prepared = text.size(self.weights_bytes), text.size(self.prepared_bytes)
        among = f" and {prepared} of prepared weights" if self.prepared_bytes else ""
        rows = [
            ("model", f"{self.model} [{self.target}]"),
            ("library", f"{self.library}  {text.size(self.library_bytes)}"),
            ("code", text.size(self.code_bytes)),
            ("constants", f"{text.size(self.constant_bytes)}, {weights} of them weights"),
            ("variables", f"{text.size(self.variable_bytes)}, the arena of infer(){among} among them"),
            ("arena", _arena_text(self.arena_bytes)),
        ]
        return text.facts(rows)


def verify(subject: Subject, progress: stages.Progress | None = None) -> Verification:
    """Run the library on the data and compare it with onnxruntime.

    A library for another machine is run in a program of its own, under qemu-user where the CPU is another;
    what cannot be done is said in the notes.

    Raises:
        CuvilError: the data do not fit the model, or the library failed.
    """
    say = progress or (lambda line: None)
    out, info = subject.out, subject.metadata()
    data, inputs = subject.samples(info)
    notes = ["no data are given, the inputs are random"] if data.random else []
    ours: Outputs = []
    theirs: Outputs = []
    measured: float | None = None
    feeds: list[Arrays] = []
    try:
        runner = _runner(subject, say)
        emulated = isinstance(runner, ForeignRunner) and runner.emulated
        feeds = samples.batches(data, inputs, EMULATED_SAMPLES if emulated else None)
        say("running the library")
        ours, measured = _run(runner, feeds, subject)
        if emulated:
            notes.append("run under qemu: the latency cannot be measured here")
    except CuvilError as why:
        if subject.target.name == HOST:
            raise
        notes.append(f"not run: {why}")
    if ours and importlib.util.find_spec("onnxruntime") is None:
        notes.append("not compared: onnxruntime is not installed")
    elif ours:
        say("running onnxruntime")
        try:
            reference = _onnxruntime(subject.model, 1)
            constants = subject.constants()
            wholes = [as_model(feed, info) | constants for feed in feeds]
            theirs = [as_tensors(reference.run(None, whole)) for whole in wholes]
        except Exception as why:  # onnxruntime has a class for each of its status codes
            notes.append(f"not compared, onnxruntime fails: {' '.join(str(why).split())[:200]}")
    largest, relative = errors(ours, theirs) if theirs else (None, None)
    modes = {subject.target.mode(d.name) for d in subject.target.devices if d.kind == "cpu"}
    ours_class, theirs_class = classes(ours), classes(theirs)
    predicted, interval = _prediction(out)
    agree = None if ours_class is None or theirs_class is None else ours_class == theirs_class
    return Verification(
        model=out.model,
        target=subject.target.name,
        quantization=" and ".join(sorted("f32" if mode == "none" else mode for mode in modes)),
        library=str(out.libraries[1]),
        library_bytes=out.libraries[1].stat().st_size,
        arena_bytes=_arena_bytes(subject, info, feeds),
        samples=sum(len(batch[0]) if batch[0].ndim else 1 for batch in ours),
        error=largest,
        relative_error=relative,
        accuracy_f32=_accuracy(theirs_class, data.labels),
        accuracy=_accuracy(ours_class, data.labels),
        agreement=None if agree is None else float(np.mean(agree)),
        predicted_ns=predicted,
        interval_ns=interval,
        measured_ns=measured,
        good=relative is None or (math.isfinite(relative) and (modes != {"none"} or relative <= TOLERANCE)),
        notes=tuple(notes),
    )


def bench(subject: Subject, progress: stages.Progress | None = None) -> Benchmark:
    """Measure one inference, in turns with onnxruntime where that is installed.

    Raises:
        CuvilError: the library was not built for this machine.
    """
    say = progress or (lambda line: None)
    runner = _runner(subject, say) if subject.target.name == HOST else None
    if not isinstance(runner, Session):
        raise CuvilError("is another machine, the latency can be measured there only", subject.target.name)
    info = subject.metadata()
    data, inputs = subject.samples(info)
    feed = samples.batches(data, inputs, largest=1)[0]
    ours = _to_interface(feed, subject.io_format)
    threads = max((d.threads for d in subject.target.devices if d.kind == "cpu"), default=1)
    candidates: dict[str, Callable[[], float]] = {"library": lambda: runner.benchmark(ours, 1)[0]}
    notes = []
    if importlib.util.find_spec("onnxruntime") is None:
        notes.append("onnxruntime is not installed, so there is nothing to compare with")
    else:
        reference = _onnxruntime(subject.model, threads)
        whole = as_model(feed, info) | subject.constants()
        candidates["onnxruntime"] = lambda: _timed(lambda: reference.run(None, whole))
    say("measuring")
    taken = measure(candidates, BENCH_S)
    low, median, high = (float(q) * 1e9 for q in np.quantile(taken["library"], [0.1, 0.5, 0.9]))
    rival = float(np.median(taken["onnxruntime"])) * 1e9 if "onnxruntime" in taken else None
    predicted, interval = _prediction(subject.out)
    return Benchmark(
        model=subject.out.model,
        target=subject.target.name,
        threads=threads,
        samples=len(taken["library"]),
        median_ns=median,
        p10_ns=low,
        p90_ns=high,
        reference_ns=rival,
        ratio=None if rival is None else rival / median,
        predicted_ns=predicted,
        interval_ns=interval,
        notes=tuple(notes),
    )


def sizes(subject: Subject) -> Sizes:
    """What the shared library takes.

    Raises:
        ToolchainError: it is no ELF file.
    """
    out = subject.out
    library = out.libraries[1]
    taken = symbols.sizes(library)
    return Sizes(
        model=out.model,
        target=subject.target.name,
        library=str(library),
        library_bytes=library.stat().st_size,
        code_bytes=taken.text,
        constant_bytes=taken.rodata,
        variable_bytes=taken.data + taken.bss,
        weights_bytes=sum(out.generated(d)["bin"].stat().st_size for d in out.devices),
        prepared_bytes=subject.metadata()["prepared_bytes"],
        arena_bytes=subject.metadata()["workspace_bytes"],
    )


def measure(
    candidates: Mapping[str, Callable[[], float]], seconds: float, pause: float = 0.05
) -> dict[str, list[float]]:
    """Seconds of single calls of each candidate, in blocks that take turns, for about `seconds` in all.

    Each block begins with a `pause`, in which another's threads come to rest, and two calls that do not
    count.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + seconds
    while True:
        for name, call in candidates.items():
            time.sleep(pause)
            call()
            call()
            stop = time.perf_counter() + seconds / 20
            taken[name].append(call())
            while time.perf_counter() < stop:
                taken[name].append(call())
        if time.perf_counter() > end:
            return taken


def errors(ours: Outputs, theirs: Outputs) -> tuple[float, float]:
    """Largest absolute difference, and the largest relative to its output's largest value, over all batches.

    Equal values, infinite or NaN on both sides, differ by 0; a NaN on one side gives infinity, and so do
    different shapes and strings.
    """
    absolute = relative = 0.0
    for outputs, references in zip(zip(*ours), zip(*theirs)):
        largest = scale = 0.0
        for a, b in zip(outputs, references):
            if a.shape != b.shape or (a.dtype == object and (a != b).any()):
                return math.inf, math.inf
            if a.dtype == object:
                continue
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            differs = ~((x == y) | (np.isnan(x) & np.isnan(y)))
            difference = np.nan_to_num(np.abs(x[differs] - y[differs]), nan=math.inf, posinf=math.inf)
            largest = max(largest, float(difference.max(initial=0.0)))
            scale = max(scale, float(np.abs(y[np.isfinite(y)]).max(initial=0.0)))
        absolute = max(absolute, largest)
        if largest:
            relative = max(relative, largest / scale if scale else math.inf)
    return absolute, relative


def classes(outputs: Outputs) -> np.ndarray | None:
    """The class of every sample by the first output, if that is [samples, classes]."""
    if not outputs or any(batch[0].ndim != 2 or batch[0].shape[1] < 2 for batch in outputs):
        return None
    return np.concatenate([batch[0].argmax(axis=1) for batch in outputs])


# --- the two sides ---


def _runner(subject: Subject, say: stages.Progress) -> Session | ForeignRunner:
    """What runs the library here; a library for another machine might kill this process."""
    if subject.target.name == HOST:
        return Session(subject.out.libraries[1], subject.out.interface["json"])
    return ForeignRunner(subject.out, subject.target, say)


def _run(
    runner: Session | ForeignRunner, feeds: Sequence[Arrays], subject: Subject
) -> tuple[Outputs, float | None]:
    """The outputs, laid out as the model has them, and the median ns of one inference of one sample."""
    inputs = [_to_interface(feed, subject.io_format) for feed in feeds]
    taken: list[float] = []
    if isinstance(runner, ForeignRunner):
        outputs, seconds = runner.run(inputs)
        taken = [] if runner.emulated else seconds
    else:
        outputs = [as_tensors(runner.run(None, feed)) for feed in inputs]
        opened = {i.name for i in runner.get_inputs() if i.shape and isinstance(i.shape[0], str)}
        one = {name: array[:1] if name in opened else array for name, array in inputs[0].items()}
        taken = measure({"": lambda: runner.benchmark(one, 1)[0]}, VERIFY_S)[""]
    if subject.io_format == "nhwc":
        outputs = [[np.moveaxis(a, 3, 1) if a.ndim == 4 else a for a in batch] for batch in outputs]
    return outputs, float(np.median(taken)) * 1e9 if taken else None


def _to_interface(feed: Arrays, io_format: str) -> Arrays:
    """Arrays as the model has them, laid out for the library's interface."""
    if io_format != "nhwc":
        return feed
    return {n: np.ascontiguousarray(np.moveaxis(a, 1, 3)) if a.ndim == 4 else a for n, a in feed.items()}


def _onnxruntime(model: Path, threads: int) -> Any:
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --- figures ---


def _accuracy(found: np.ndarray | None, labels: np.ndarray | None) -> float | None:
    if found is None or labels is None or labels.ndim != 1 or len(labels) < len(found):
        return None
    return float(np.mean(found == labels[: len(found)]))


def _arena_bytes(subject: Subject, info: Mapping[str, Any], feeds: Sequence[Arrays]) -> int | None:
    """Bytes of workspace for one sample, where they are fixed or the library can be asked."""
    if info["workspace_bytes"] is not None or subject.target.name != HOST:
        known: int | None = info["workspace_bytes"]
        return known
    feed = _to_interface(feeds[0], subject.io_format)
    found: dict[str, int] = {}
    for t in info["inputs"]:
        for axis, (name, size) in enumerate(zip(t["shape"], feed[t["name"]].shape)):
            if isinstance(name, str):
                found.setdefault(name, 1 if axis == 0 else size)
    return Session(subject.out.libraries[1], subject.out.interface["json"]).workspace_bytes(**found)


def _prediction(out: artefacts.Layout) -> tuple[float | None, tuple[float, float] | None]:
    """Latency and its interval in ns, as ``partition.json`` has them."""
    predicted = json.loads(out.partition.read_text(encoding="utf-8")).get("predicted") or {}
    interval = predicted.get("interval_ns")
    return predicted.get("latency_ns"), (interval[0], interval[1]) if interval else None


def _arena_text(arena: int | None) -> str:
    return "depends on open sizes" if arena is None else text.size(arena)


def _predicted_text(latency: float | None, interval: tuple[float, float] | None) -> str:
    if latency is None:
        return ""
    between = f", {text.duration(interval[0])} to {text.duration(interval[1])}" if interval else ""
    return f"{text.duration(latency)}{between}"
