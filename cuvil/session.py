"""Compiled models in Python, with onnxruntime's interface."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cuvil import artefacts, limits, stages
from cuvil.codegen.abi import ERRORS
from cuvil.codegen.names import identifier
from cuvil.errors import CuvilError
from cuvil.frontend.onnx_writer import write_model
from cuvil.ir import text
from cuvil.ir.expr import numpy_dtype
from cuvil.ir.graph import Graph
from cuvil.target.board import ACCURACIES
from cuvil.target.schema import Target, load

_compiling = threading.RLock()
"""Compiles of one process take turns: they share the table of interned expressions."""

_ORT_TYPES = {
    "float32": "float", "float64": "double", "float8_e4m3fn": "float8e4m3fn", "float8_e5m2": "float8e5m2",
    "float8_e4m3fnuz": "float8e4m3fnuz", "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0", "float4_e2m1fn": "float4e2m1",
}  # fmt: skip
"""Where onnxruntime's names of element types differ from ours."""


STRING = "string"
"""The element type whose arrays are of objects in Python; a library takes bytes (`cuvil.ir.text`)."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `name`, `type` (``tensor(float)``, ``seq(tensor(float))``), `shape` (numbers and
    names; empty for a sequence)."""

    name: str
    type: str
    shape: list[int | str]


class Session:
    """A compiled model that is loaded.

    Args:
        library: the shared library.
        metadata: the JSON file beside the generated code (``<model>.json``).
    """

    def __init__(self, library: Path, metadata: Path) -> None:
        info = json.loads(metadata.read_text())
        self.library = library
        self.model: str = info["model"]
        self._symbols: list[str] = info["symbols"]
        self._inputs, self._outputs = info["inputs"], info["outputs"]
        self._input_bundles, self._output_bundles = info["input_bundles"], info["output_bundles"]
        self._keep: object = None
        self.target: Target | None = None
        self._types = [
            np.dtype(f"S{t['capacity']}") if t["dtype"] == STRING else numpy_dtype(t["dtype"])
            for t in self._inputs
        ]
        self._types += [numpy_dtype("uint8" if t["dtype"] == STRING else t["dtype"]) for t in self._outputs]
        self._known = frozenset(t["name"] for t in self._inputs)
        self._has_strings = any(t["dtype"] == STRING for t in (*self._inputs, *self._outputs))
        self._plans: dict[tuple[int, ...], tuple[list[tuple[int, ...]], int]] = {}
        self._numbers_of: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
        self._local = threading.local()
        handle = _load(library)
        numbers = [ctypes.c_int64] * len(self._symbols)
        self._run = getattr(handle, f"{self.model}_run")
        pointers = [ctypes.c_void_p] * len(self._types)
        self._sized_by_data = bool(info.get("sized_by_data"))
        actual = [ctypes.c_void_p] if self._sized_by_data else []
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *numbers, *pointers, *actual]
        self._bytes = getattr(handle, f"{self.model}_workspace_bytes")
        self._bytes.argtypes, self._bytes.restype = numbers, ctypes.c_size_t
        self._shapes = getattr(handle, f"{self.model}_output_shapes")
        self._shapes.argtypes = [*numbers, ctypes.c_void_p]
        self._levels = [(getattr(handle, name), levels) for name, levels in info["isa_levels"].items()]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs in the model's order."""
        return _arguments(self._inputs, self._input_bundles)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs in the model's order."""
        return _arguments(self._outputs, self._output_bundles)

    @property
    def isa_levels(self) -> tuple[str, ...]:
        """The instruction sets that the library chooses from, from the least to the best; none where it has
        code for one only."""
        return tuple(dict.fromkeys(name for _, levels in self._levels for name in levels))

    def use_isa(self, name: str | None) -> str:
        """Run the code for one of `isa_levels` from now on, or for the best that the CPU has where None.

        Returns:
            The name of the instruction set that is used.

        Raises:
            CuvilError: the library has no code for it, or the CPU lacks it.
        """
        if not self._levels or name not in (None, *self.isa_levels):
            allowed = ", ".join(self.isa_levels) or "none, it is made for one"
            raise CuvilError(f"the library cannot choose it; allowed: {allowed}", repr(name))
        used = ""
        for choose, levels in self._levels:
            used = levels[choose(-1 if name is None else levels.index(name))]
            if name not in (None, used):
                raise CuvilError("this CPU has not got that instruction set", repr(name))
        return used

    def workspace_bytes(self, **sizes: int) -> int:
        """Bytes of workspace for the given symbolic sizes."""
        return int(self._bytes(*self._numbers(sizes)))

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: the outputs wanted, all where None.
            input_feed: an array per input; a list of arrays for a sequence, None for an absent optional.
            run_options: ignored; there for onnxruntime's signature.

        Raises:
            CuvilError: a missing or unknown name, a wrong type or shape, another number of items than the
                library was compiled for.
        """
        outputs, call, actual = self._prepare(input_feed)
        _check(call())
        if actual is not None:
            outputs = _as_sized(outputs, actual)
        if self._has_strings:
            outputs = [text.decode(a) if t["dtype"] == STRING else a for t, a in zip(self._outputs, outputs)]
        results = grouped(outputs, self._output_bundles) if self._output_bundles else outputs
        if output_names is None:
            return results
        by_name = dict(zip((t.name for t in self.get_outputs()), results))
        for name in output_names:
            if name not in by_name:
                raise CuvilError(f"is no output; the outputs are {', '.join(by_name)}", repr(name))
        return [by_name[name] for name in output_names]

    def benchmark(self, input_feed: Mapping[str, Any], repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls of the library alone, without Python's share."""
        _, call, _ = self._prepare(input_feed)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return seconds

    def _prepare(
        self, feeds: Mapping[str, Any]
    ) -> tuple[list[np.ndarray], Callable[[], int], np.ndarray | None]:
        """Buffers for the outputs, the call that fills them, and one for the outputs' actual sizes where
        the data decide some of them."""
        arrays, numbers = self._known_form(feeds) or self._checked(feeds)
        shapes, need = self._plans.get(numbers) or self._plan(numbers)
        outputs = list(map(np.empty, shapes, self._types[len(arrays) :]))
        actual = np.empty(sum(a.ndim for a in outputs) + 1, np.int64) if self._sized_by_data else None
        written = outputs if actual is None else [*outputs, actual]
        pointers = map(_pointer, (*arrays, *written))
        run, arguments = self._run, (self._base(need), need, *numbers, *pointers)

        def call(keep: object = (arrays, outputs, actual)) -> int:
            return int(run(*arguments))

        return outputs, call, actual

    def _known_form(self, feeds: Mapping[str, Any]) -> tuple[list[np.ndarray], tuple[int, ...]] | None:
        """The inputs and the symbolic sizes where `_checked` has seen arrays of these shapes before: the
        short way that calls after the first go."""
        if len(feeds) != len(self._inputs) or self._has_strings or self._input_bundles:
            return None
        arrays: list[Any] = [feeds.get(t["name"]) for t in self._inputs]
        for a, kind in zip(arrays, self._types):
            if type(a) is not np.ndarray or a.dtype is not kind or not a.flags.c_contiguous:
                return None
        shapes = tuple([a.shape for a in arrays])
        numbers = self._numbers_of.get(shapes)
        return None if numbers is None else (arrays, numbers)

    def _checked(self, feeds: Mapping[str, Any]) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """The inputs as the library takes them, and the symbolic sizes that they show."""
        if self._input_bundles:
            feeds = _taken_apart(feeds, self._input_bundles)
        if not self._known.issuperset(feeds):
            unknown = next(n for n in feeds if n not in self._known)
            names = ", ".join(t.name for t in self.get_inputs())
            raise CuvilError(f"is no input; the inputs are {names}", repr(unknown))
        sizes: dict[str, int] = {}
        arrays = [self._array(t, kind, feeds, sizes) for t, kind in zip(self._inputs, self._types)]
        numbers = self._numbers(sizes)
        if len(self._numbers_of) < _FORMS:
            self._numbers_of[tuple(a.shape for a in arrays)] = numbers
        return arrays, numbers

    def _plan(self, numbers: tuple[int, ...]) -> tuple[list[tuple[int, ...]], int]:
        """The outputs' shapes and the bytes of workspace for the symbolic sizes `numbers`."""
        ranks = [len(t["shape"]) + (t["dtype"] == STRING) for t in self._outputs]
        flat = (ctypes.c_int64 * max(sum(ranks), 1))()
        self._shapes(*numbers, ctypes.addressof(flat))
        sizes = iter(flat)
        shapes = [tuple(next(sizes) for _ in range(rank)) for rank in ranks]
        for t, shape in zip(self._outputs, shapes):
            if min(shape, default=0) < 0:
                given = ", ".join(f"{n} = {size}" for n, size in zip(self._symbols, numbers))
                raise CuvilError(f"would have shape {list(shape)} for {given}", f"output '{t['name']}'")
        self._plans[numbers] = shapes, int(self._bytes(*numbers))
        return self._plans[numbers]

    def _base(self, need: int) -> int:
        """The aligned address of this thread's workspace."""
        held: tuple[np.ndarray, int, int] | None = getattr(self._local, "workspace", None)
        if held is None or held[1] < need:
            unit = limits.WORKSPACE_ALIGNMENT
            memory = np.empty(need + unit, np.uint8)
            base = -(-int(memory.__array_interface__["data"][0]) // unit) * unit
            held = self._local.workspace = (memory, need, base)
        return held[2]

    def _numbers(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        missing = [n for n in self._symbols if n not in sizes]
        if missing:
            raise CuvilError("the size is not given", f"dimension '{missing[0]}'")
        return tuple(sizes[n] for n in self._symbols)

    def _array(
        self, t: Mapping[str, Any], kind: np.dtype[Any], feeds: Mapping[str, Any], sizes: dict[str, int]
    ) -> np.ndarray:
        """One input, checked; binds the symbolic sizes that it shows."""
        name, shape = t["name"], t["shape"]
        if name not in feeds:
            raise CuvilError("is missing from the feed", f"input '{name}'")
        array = np.asarray(feeds[name])
        if t["dtype"] == STRING:
            array = text.encode(array, f"input '{name}'", t["capacity"]).view(kind)[..., 0]
        if array.dtype != kind:
            raise CuvilError(f"has type {array.dtype}, {t['dtype']} is expected", f"input '{name}'")
        fits = array.ndim == len(shape)
        for size, wanted in zip(array.shape, shape):
            fits = fits and size == (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size))
        if not fits:
            raise CuvilError(f"has shape {list(array.shape)}, {shape} is expected", f"input '{name}'")
        return np.ascontiguousarray(array) if array.ndim else array


_FORMS = 256
"""Combinations of input shapes that a session remembers."""

_Byte = ctypes.c_char * 1


def _pointer(array: np.ndarray) -> Any:
    """The address of an array's data as an argument of a library call; by the buffer protocol, which is much
    faster than numpy's own attributes, where it gives a writable buffer of at least one byte."""
    try:
        return _Byte.from_buffer(array)  # type: ignore[arg-type]  # numpy's arrays are buffers
    except (TypeError, ValueError, BufferError):
        return array.__array_interface__["data"][0]


def _load(library: Path) -> ctypes.CDLL:
    """The library, from a copy of its own: the dynamic loader would give what it loaded from that path
    before, although the file is a new one."""
    with tempfile.TemporaryDirectory(prefix="cuvil-") as folder:
        copy = Path(folder) / library.name
        shutil.copyfile(library, copy)
        return ctypes.CDLL(str(copy))


def _as_sized(buffers: Sequence[np.ndarray], actual: np.ndarray) -> list[np.ndarray]:
    """The outputs in `buffers`, which are as large as they can be, under their actual sizes."""
    sizes = iter(actual.tolist())
    shapes = [tuple(next(sizes) for _ in range(b.ndim)) for b in buffers]
    return [b.reshape(-1)[: math.prod(shape)].reshape(shape) for b, shape in zip(buffers, shapes)]


def grouped(flat: Sequence[Any], bundles: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What a model has, in its order, from what the library has for each tensor: sequences become lists,
    absent optionals None.

    Args:
        bundles: of the library's metadata, those of the inputs or of the outputs.
    """
    return [held if b and _is_list(b) else held[0] if held else None for b, held in _in_order(flat, bundles)]


def as_model(feed: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The model's inputs by name, from a feed of tensors."""
    bundles = metadata["input_bundles"]
    own = {item for bundle in bundles for item in bundle["items"] or ()}
    held = [[feed[item] for item in bundle["items"] or ()] for bundle in bundles]
    whole = {name: value for name, value in feed.items() if name not in own}
    whole.update((b["name"], h if _is_list(b) else h[0] if h else None) for b, h in zip(bundles, held))
    return whole


def as_tensors(values: Sequence[Any]) -> list[np.ndarray]:
    """What `Session.run` or onnxruntime gives, with the items of sequences instead of lists."""
    lists = (value if isinstance(value, list) else [] if value is None else [value] for value in values)
    return [array for items in lists for array in items]


def _in_order(
    flat: Sequence[Any], bundles: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any] | None, list[Any]]]:
    """Each bundle with what belongs to it, and what belongs to none, in the model's order."""
    done = 0
    for bundle in bundles:
        start = bundle["at"]
        yield from ((None, [item]) for item in flat[done:start])
        done = start + len(bundle["items"] or ())
        yield bundle, list(flat[start:done])
    yield from ((None, [item]) for item in flat[done:])


def _is_list(bundle: Mapping[str, Any]) -> bool:
    return bundle["items"] is not None and "seq(" in bundle["dtype"]


def _taken_apart(feeds: Mapping[str, Any], bundles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`feeds` with the tensors of sequences and optionals instead."""
    flat = dict(feeds)
    for bundle in bundles:
        name, items, where = bundle["name"], bundle["items"], f"input '{bundle['name']}'"
        if name not in flat:
            continue
        value = flat.pop(name)
        if (value is None) != (items is None):
            there = "absent" if items is None else "present"
            raise CuvilError(f"the library is compiled for one that is {there}", where)
        if not _is_list(bundle):
            flat.update({item: value for item in items or ()})
            continue
        if not isinstance(value, (list, tuple)):
            raise CuvilError("is a sequence: a list of arrays is expected", where)
        if len(value) != len(items):
            raise CuvilError(f"has {len(value)} items, {len(items)} are expected", where)
        flat.update(zip(items, value))
    return flat


def _arguments(tensors: Sequence[Mapping[str, Any]], bundles: Sequence[Mapping[str, Any]]) -> list[NodeArg]:
    """The model's inputs or outputs."""
    found = []
    for bundle, held in _in_order(tensors, bundles):
        t = bundle or held[0]
        shape = held[0]["shape"] if held and not (bundle and _is_list(bundle)) else []
        found.append(NodeArg(t["name"], _ort_type(t["dtype"]), list(shape)))
    return found


def _ort_type(dtype: str) -> str:
    """onnxruntime's name of a type."""
    kind, _, inner = dtype.rstrip(")").rpartition("(")
    text = f"tensor({_ORT_TYPES.get(inner, inner)})"
    return f"{kind}({text}{')' * dtype.count(')')}" if kind else text


def _check(code: int) -> None:
    if code:
        text = next(
            (f"{name}: {text}" for name, (number, text) in ERRORS.items() if number == code), str(code)
        )
        raise CuvilError(f"the library returned {text}")


def compile(
    model: str | Path,
    target: str | Path | Target = "host",
    threads: int = 1,
    shapes: stages.Shapes | None = None,
    quantization: str = "none",
    calibration: str | Path | Mapping[str, np.ndarray] | None = None,
    io_format: str = "nchw",
    output: str | Path | None = None,
    tuned: bool = True,
    progress: stages.Progress | None = None,
    values: stages.Values | None = None,
    accuracy: str | None = None,
) -> Session:
    """Compile an ONNX model and load it.

    Args:
        model: the ``.onnx`` file.
        target: a profile's name, file or `Target`; it must run on this machine.
        threads: worker threads of each device.
        shapes: sizes (or new names) of dimensions, by input; of a sequence the shapes of its items, and None
            for an absent optional.
        quantization: ``none``, ``int8``, or ``profile`` for what the profile says.
        calibration: an ``.npz`` file or arrays by input name, samples on the first axis.
        io_format: ``nchw`` or ``nhwc``.
        output: a folder that keeps all artefacts; a temporary one where None.
        tuned: False switches all tuned kernels off.
        values: of inputs that are fixed now and no longer inputs of the library, by name: numbers, nested
            lists of them, or arrays.
        accuracy: ``default``, or ``strict`` for no algorithm that rounds more than what it computes is
            defined to; what the profile says where None.

    Raises:
        CuvilError: what is wrong with the model, the profile or the machine.
    """
    path = Path(model)
    loaded = target if isinstance(target, Target) else load(target)
    profile = configure(loaded, threads, quantization, accuracy)
    keep: object = None
    if output is None:
        keep = tempfile.TemporaryDirectory(prefix="cuvil-")
        output = keep.name
    folder = Path(output)
    out = artefacts.layout(folder, identifier(path.stem, "model"), profile)
    data: Path | None = None
    if isinstance(calibration, Mapping):
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "calibration.npz"
        np.savez(data, allow_pickle=False, **dict(calibration))
    elif calibration is not None:
        data = Path(calibration)
    with _compiling:
        stages.run_all(path, out, profile, shapes, io_format, data, progress, tuned, values)
    session = Session(out.libraries[1], out.interface["json"])
    session._keep, session.target = keep, profile
    return session


def configure(target: Target, threads: int, quantization: str, accuracy: str | None = None) -> Target:
    """`target` with `threads` on every CPU, the quantization mode asked for and, unless None, `accuracy` on
    every device."""
    if threads < 1:
        raise CuvilError("at least 1 thread is needed", f"threads {threads}")
    if quantization not in ("none", "int8", "profile"):
        raise CuvilError("is no quantization mode; none, int8 and profile are", repr(quantization))
    if accuracy not in (None, *ACCURACIES):
        raise CuvilError(f"is no accuracy; {' and '.join(ACCURACIES)} are", repr(accuracy))
    devices = tuple(
        replace(d, threads=threads if d.kind == "cpu" else d.threads, accuracy=accuracy or d.accuracy)
        for d in target.devices
    )
    chosen = target.quantization
    if quantization != "profile":
        chosen = replace(chosen, mode=quantization, devices={})
    return replace(target, devices=devices, quantization=chosen)


def evaluate_graph(graph: Graph, model: str) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Compile `graph` for this machine; the result computes its outputs, by name, from feeds."""
    with tempfile.TemporaryDirectory(prefix="cuvil-") as folder:
        path = Path(folder) / f"{model}.onnx"
        write_model(replace(graph, input_bundles=(), output_bundles=()), path)
        session = compile(path)
    names = [t.name for t in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds)))
