"""Whether a built library is right, how large it is and how fast: what ``verify`` and ``bench`` report.

The reference is onnxruntime, where it is installed, on the model as it was before Cuvil.
"""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cuvil import stages
from cuvil.errors import CuvilError
from cuvil.report import text
from cuvil.report.foreign import ForeignRunner
from cuvil.session import Session
from cuvil.target.profiles import HOST
from cuvil.target.schema import Target
from cuvil.toolchain import symbols

Feeds = Mapping[str, np.ndarray]

LABEL = "label"
"""The array of a test file that holds the classes."""

TOLERANCE = 1e-3
"""Largest error of a float library, relative to the largest value of the output concerned, that is good."""

BATCH = 32
"""Samples of a batch where the model leaves its size open."""

EMULATED_SAMPLES = 64
"""Samples that are run under an emulator, some hundred times slower."""

MEASURE_S = 0.5
"""Seconds that a measurement of latency takes, at least."""


@dataclass(frozen=True)
class Subject:
    """A built library and what to hold it against.

    Attributes:
        out: the artefacts, built.
        target: what they were built for.
        model: the ``.onnx`` file that they were built from.
        data: ``.npz`` with samples by input, on the first axis, and optionally their classes; random where None.
        io_format: of the library's interface; `data` is as the model has it.
    """

    out: stages.Layout
    target: Target
    model: Path
    data: Path | None = None
    io_format: str = "nchw"


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes:
        library: path of the shared library; `library_bytes`: its size.
        arena_bytes: workspace of one inference with one sample; None where it depends on open sizes.
        samples: how many were run, 0 where the library cannot be run here.
        error: largest absolute difference from the reference; None where it was not compared.
        relative_error: the largest of them relative to its output's largest value.
        accuracy_f32, accuracy: share of samples whose class is right, by the reference and by the library.
        agreement: share of samples to which both give the same class; None where the output is no classification.
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
        error = ""
        if self.error is not None and self.relative_error is not None:
            against = f"over {self.samples} samples" + ("" if self.good else f"; more than {TOLERANCE:g} is wrong")
            error = f"{text.error(self.error)} ({text.error(self.relative_error)} of the largest value), {against}"
        accuracy = ""
        if self.accuracy is not None:
            before = "" if self.accuracy_f32 is None else f", {self.accuracy_f32:.4f} by onnxruntime in f32"
            accuracy = f"{self.accuracy:.4f}{before}"
        agreement = "" if self.agreement is None else f"{self.agreement:.4f} same class as the reference"
        rows = [
            ("model", f"{self.model} [{self.target}], {self.quantization}"),
            ("library", f"{self.library}  {text.size(self.library_bytes)}"),
            ("arena", "depends on open sizes" if self.arena_bytes is None else text.size(self.arena_bytes)),
            ("largest error", error),
            ("accuracy", accuracy),
            ("agreement", agreement),
            ("predicted latency", _predicted(self.predicted_ns, self.interval_ns)),
            ("measured latency", "" if self.measured_ns is None else text.duration(self.measured_ns)),
            *(("note", note) for note in self.notes),
        ]
        return text.facts(rows)


@dataclass(frozen=True)
class Benchmark:
    """What `bench` found: latencies of one inference in ns.

    Attributes:
        median_ns, p10_ns, p90_ns: of the library.
        reference_ns: median of onnxruntime with as many threads; `ratio`: over the library's, above 1 it is slower.
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
        spread = f"{text.duration(self.p10_ns)} to {text.duration(self.p90_ns)} for 10 to 90 %"
        rival = ""
        if self.reference_ns is not None and self.ratio is not None:
            rival = f"{text.duration(self.reference_ns)}, {text.digits(self.ratio)} times the library's"
        rows = [
            ("model", f"{self.model} [{self.target}], {self.threads} thread{'s' * (self.threads != 1)}"),
            ("latency", f"{text.duration(self.median_ns)}, {spread}, {self.samples} runs"),
            ("onnxruntime", rival),
            ("predicted latency", _predicted(self.predicted_ns, self.interval_ns)),
            *(("note", note) for note in self.notes),
        ]
        return text.facts(rows)


@dataclass(frozen=True)
class Sizes:
    """What a library takes, in bytes: code, constants (weights among them), variables, and the workspace."""

    model: str
    target: str
    library: str
    library_bytes: int
    code_bytes: int
    constant_bytes: int
    variable_bytes: int
    weights_bytes: int
    arena_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-like data."""
        return asdict(self)

    def text(self) -> str:
        """The report for a terminal."""
        rows = [
            ("model", f"{self.model} [{self.target}]"),
            ("library", f"{self.library}  {text.size(self.library_bytes)}"),
            ("code", text.size(self.code_bytes)),
            ("constants", f"{text.size(self.constant_bytes)}, of which weights {text.size(self.weights_bytes)}"),
            ("variables", f"{text.size(self.variable_bytes)}, the arena of infer() among them"),
            ("arena", "depends on open sizes" if self.arena_bytes is None else text.size(self.arena_bytes)),
        ]
        return text.facts(rows)


def verify(subject: Subject, progress: stages.Progress | None = None) -> Verification:
    """Run the library on the data and compare it with onnxruntime.

    A library for another machine is run under qemu-user; what cannot be done is said in the notes.

    Raises:
        CuvilError: the data do not fit the model, or the library failed.
    """
    say = progress or (lambda line: None)
    out, notes = subject.out, []
    info = json.loads(out.interface["json"].read_text(encoding="utf-8"))
    runner, why_not = _runner(subject, say)
    limit = EMULATED_SAMPLES if isinstance(runner, ForeignRunner) and runner.emulated else None
    feeds, labels, random = _samples(subject, info)
    batches = _batches(feeds, info, limit)
    notes += ["no data are given, the inputs are random"] if random else []
    ours: list[list[np.ndarray]] = []
    measured: float | None = None
    if runner is None:
        notes.append(f"not run: {why_not}")
    else:
        say("running the library")
        try:
            ours, measured = _run(runner, batches, subject)
        except CuvilError as error:
            if not isinstance(runner, ForeignRunner):
                raise
            notes.append(f"not run: {error}")
        if isinstance(runner, ForeignRunner) and runner.emulated and ours:
            notes.append("run under qemu: the latency cannot be measured here")
    theirs: list[list[np.ndarray]] = []
    if ours and not _has_onnxruntime():
        notes.append("not compared: onnxruntime is not installed (pip install onnxruntime)")
    elif ours:
        say("running onnxruntime")
        reference = _onnxruntime(subject.model, 1)
        theirs = [reference.run(None, dict(batch)) for batch in batches]
    error, relative = _errors(ours, theirs) if theirs else (None, None)
    modes = sorted({subject.target.mode(d.name) for d in subject.target.devices if d.kind == "cpu"})
    exact = modes == ["none"]
    good = error is None or (math.isfinite(error) and (not exact or (relative or 0.0) <= TOLERANCE))
    ours_class, theirs_class = _classes(ours), _classes(theirs)
    comparable = ours_class is not None and theirs_class is not None
    predicted, interval = _prediction(out)
    return Verification(
        model=out.model,
        target=subject.target.name,
        quantization="/".join("f32" if mode == "none" else mode for mode in modes),
        library=str(out.libraries[1]),
        library_bytes=out.libraries[1].stat().st_size,
        arena_bytes=_arena(info, runner, batches),
        samples=sum(len(outputs[0]) if outputs and outputs[0].ndim else 1 for outputs in ours),
        error=error,
        relative_error=relative,
        accuracy_f32=_accuracy(theirs_class, labels),
        accuracy=_accuracy(ours_class, labels),
        agreement=float(np.mean(ours_class == theirs_class)) if comparable and labels is None else None,
        predicted_ns=predicted,
        interval_ns=interval,
        measured_ns=None if measured is None else measured * 1e9,
        good=good,
        notes=tuple(notes),
    )


def bench(subject: Subject, progress: stages.Progress | None = None) -> Benchmark:
    """Measure one inference, in turns with onnxruntime where that is installed.

    Raises:
        CuvilError: the library was not built for this machine.
    """
    say = progress or (lambda line: None)
    out = subject.out
    info = json.loads(out.interface["json"].read_text(encoding="utf-8"))
    runner, why_not = _runner(subject, say)
    if not isinstance(runner, Session):
        raise CuvilError(f"cannot be measured here: {why_not or 'it is built for another machine'}", subject.target.name)
    feeds, _, _ = _samples(subject, info)
    feed = _batches(feeds, info, 1, largest=1)[0]
    ours = _to_interface(feed, subject.io_format)
    threads = max((d.threads for d in subject.target.devices if d.kind == "cpu"), default=1)
    candidates: dict[str, Callable[[], float]] = {"library": lambda: runner.benchmark(ours, 1)[0]}
    notes = []
    if _has_onnxruntime():
        reference = _onnxruntime(subject.model, threads)
        candidates["onnxruntime"] = lambda: _timed(lambda: reference.run(None, dict(feed)))
    else:
        notes.append("onnxruntime is not installed, so it is not measured beside")
    say("measuring")
    seconds = measure(candidates, 4 * MEASURE_S)
    low, median, high = (float(q) * 1e9 for q in np.quantile(seconds["library"], [0.1, 0.5, 0.9]))
    rival = float(np.median(seconds["onnxruntime"])) * 1e9 if "onnxruntime" in seconds else None
    predicted, interval = _prediction(out)
    return Benchmark(
        model=out.model,
        target=subject.target.name,
        threads=threads,
        samples=len(seconds["library"]),
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
    info = json.loads(out.interface["json"].read_text(encoding="utf-8"))
    return Sizes(
        model=out.model,
        target=subject.target.name,
        library=str(library),
        library_bytes=library.stat().st_size,
        code_bytes=taken.text,
        constant_bytes=taken.rodata,
        variable_bytes=taken.data + taken.bss,
        weights_bytes=sum(out.generated(d)["bin"].stat().st_size for d in out.devices),
        arena_bytes=info["workspace_bytes"],
    )


def measure(
    candidates: Mapping[str, Callable[[], float]], seconds: float, pause: float = 0.05
) -> dict[str, list[float]]:
    """Seconds of single calls of each candidate, in blocks that take turns, for `seconds` of work in all.

    Each block begins with a `pause`, in which the other's threads come to rest, and two calls that do not count.
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


# --- the two sides ---


def _runner(subject: Subject, say: stages.Progress) -> tuple[Session | ForeignRunner | None, str]:
    """What runs the library here, or None and why there is nothing."""
    if subject.target.name == HOST:
        return Session(subject.out.libraries[1], subject.out.interface["json"]), ""
    try:
        return ForeignRunner(subject.out, subject.target, say), ""
    except CuvilError as error:
        return None, str(error)


def _run(
    runner: Session | ForeignRunner, batches: Sequence[Feeds], subject: Subject
) -> tuple[list[list[np.ndarray]], float | None]:
    """The outputs of each batch, as the model has them, and the median seconds of one inference on the target."""
    inputs = [_to_interface(batch, subject.io_format) for batch in batches]
    seconds: list[float] | None
    if isinstance(runner, ForeignRunner):
        outputs, seconds = runner.run(inputs)
        seconds = None if runner.emulated or next(iter(inputs[0].values())).shape[:1] != (1,) else seconds
    else:
        outputs = [runner.run(None, feed) for feed in inputs]
        one = {name: array[:1] if _open(runner, name) else array for name, array in inputs[0].items()}
        seconds = measure({"": lambda: runner.benchmark(one, 1)[0]}, MEASURE_S)[""]
    if subject.io_format == "nhwc":
        outputs = [[np.moveaxis(a, 3, 1) if a.ndim == 4 else a for a in batch] for batch in outputs]
    return outputs, None if seconds is None else float(np.median(seconds))


def _open(session: Session, name: str) -> bool:
    """Whether the size of an input's first axis is open."""
    shape = next(i.shape for i in session.get_inputs() if i.name == name)
    return bool(shape) and isinstance(shape[0], str)


def _to_interface(feeds: Feeds, io_format: str) -> dict[str, np.ndarray]:
    """Arrays as the model has them, laid out for the library's interface."""
    last = io_format == "nhwc"
    return {n: np.ascontiguousarray(np.moveaxis(a, 1, 3)) if last and a.ndim == 4 else a for n, a in feeds.items()}


def _has_onnxruntime() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


def _onnxruntime(model: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --- data ---


def _samples(subject: Subject, info: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray | None, bool]:
    """Arrays by input as the model has them, the classes if there are any, and whether they are random."""
    if subject.data is None:
        shapes = {t["name"]: _reference_shape(t["shape"], subject.io_format) for t in info["inputs"]}
        generator = np.random.default_rng(0)
        return {t["name"]: _random(t["dtype"], shapes[t["name"]], generator) for t in info["inputs"]}, None, True
    try:
        with np.load(subject.data, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CuvilError(f"cannot be read as .npz: {reason}", str(subject.data)) from error
    missing = [t["name"] for t in info["inputs"] if t["name"] not in arrays]
    if missing:
        raise CuvilError(f"has no array '{missing[0]}', only {', '.join(arrays) or 'nothing'}", str(subject.data))
    feeds = {t["name"]: arrays[t["name"]] for t in info["inputs"]}
    counts = {name: len(a) if a.ndim else 0 for name, a in feeds.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        listed = ", ".join(f"'{name}' has {count}" for name, count in counts.items())
        raise CuvilError(f"the numbers of samples must agree and be more than 0: {listed}", str(subject.data))
    return feeds, arrays.get(LABEL), False


def _reference_shape(shape: Sequence[int | str], io_format: str) -> tuple[int, ...]:
    sizes = [d if isinstance(d, int) else 1 for d in shape]
    if io_format == "nhwc" and len(sizes) == 4:
        sizes = [sizes[0], sizes[3], sizes[1], sizes[2]]
    return tuple(sizes)


def _random(dtype: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Normal floats; zeros for other types, which may be indices."""
    if dtype.startswith("float"):
        return generator.standard_normal(shape).astype(dtype)
    return np.zeros(shape, dtype)


def _batches(
    feeds: Feeds, info: Mapping[str, Any], limit: int | None, largest: int = BATCH
) -> list[dict[str, np.ndarray]]:
    """The samples in batches of the model's size, or of `largest` where that is open; at most `limit` samples.

    An array with one axis more than its input has whole inputs on the first.
    """
    count = min(len(array) for array in feeds.values()) if feeds else 1
    whole = {t["name"]: feeds[t["name"]].ndim == len(t["shape"]) + 1 for t in info["inputs"]}
    fixed = {t["shape"][0] for t in info["inputs"] if not whole[t["name"]] and t["shape"]}
    numbers = sorted(n for n in fixed if isinstance(n, int))
    size = 1 if any(whole.values()) else numbers[0] if numbers else largest
    count = max(min(count, limit or count), size)
    batches = []
    for start in range(0, count - size + 1, size):
        batches.append(
            {name: a[start] if whole[name] else a[start : start + size] for name, a in feeds.items()}
        )
    rest = count % size
    if rest and not numbers and not any(whole.values()):
        batches.append({name: a[count - rest : count] for name, a in feeds.items()})
    return batches


# --- figures ---


def _errors(ours: Sequence[Sequence[np.ndarray]], theirs: Sequence[Sequence[np.ndarray]]) -> tuple[float, float]:
    """Largest absolute difference, and relative to the largest value of the output over all batches.

    Equal values, infinite or NaN on both sides, differ by 0; a NaN on one side gives infinity.
    """
    absolute = relative = 0.0
    for outputs, references in zip(zip(*ours), zip(*theirs)):
        largest = scale = 0.0
        for a, b in zip(outputs, references):
            if a.shape != b.shape:
                return math.inf, math.inf
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            differs = ~((x == y) | (np.isnan(x) & np.isnan(y)))
            difference = np.nan_to_num(np.abs(x[differs] - y[differs]), nan=math.inf, posinf=math.inf)
            largest = max(largest, float(difference.max(initial=0.0)))
            scale = max(scale, float(np.abs(y[np.isfinite(y)]).max(initial=0.0)))
        absolute = max(absolute, largest)
        relative = max(relative, largest / scale if scale else (math.inf if largest else 0.0))
    return absolute, relative


def _classes(batches: Sequence[Sequence[np.ndarray]]) -> np.ndarray | None:
    """The class of every sample, by the first output, if that is [samples, classes]."""
    if not batches or any(b[0].ndim != 2 or b[0].shape[1] < 2 for b in batches):
        return None
    return np.concatenate([b[0].argmax(axis=1) for b in batches])


def _accuracy(classes: np.ndarray | None, labels: np.ndarray | None) -> float | None:
    if classes is None or labels is None or labels.ndim != 1 or len(labels) < len(classes):
        return None
    return float(np.mean(classes == labels[: len(classes)]))


def _arena(info: Mapping[str, Any], runner: object, batches: Sequence[Feeds]) -> int | None:
    """Bytes of workspace for one sample."""
    if info["workspace_bytes"] is not None or not isinstance(runner, Session):
        known: int | None = info["workspace_bytes"]
        return known
    found: dict[str, int] = {}
    for t in info["inputs"]:
        for axis, (name, size) in enumerate(zip(t["shape"], batches[0][t["name"]].shape)):
            if isinstance(name, str):
                found.setdefault(name, 1 if axis == 0 else size)
    return runner.workspace_bytes(**found)


def _prediction(out: stages.Layout) -> tuple[float | None, tuple[float, float] | None]:
    """Latency and its interval in ns, as ``partition.json`` has them."""
    predicted = json.loads(out.partition.read_text(encoding="utf-8")).get("predicted") or {}
    interval = predicted.get("interval_ns")
    return predicted.get("latency_ns"), (interval[0], interval[1]) if interval else None


def _predicted(latency: float | None, interval: tuple[float, float] | None) -> str:
    if latency is None:
        return ""
    low_high = f" ({text.duration(interval[0])} to {text.duration(interval[1])})" if interval else ""
    return f"{text.duration(latency)}{low_high}"
