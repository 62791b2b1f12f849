"""Compiled models in Python, with onnxruntime's interface."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
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


@dataclass(frozen=True)
class _Plan:
    """What calls with inputs of the same forms share.

    Attributes:
        shapes, kinds: of the outputs.
        need: bytes of workspace.
        fixed: the library's arguments between the workspace and the inputs: its bytes, the symbolic sizes.
    """

    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[np.dtype[Any], ...]
    need: int
    fixed: tuple[ctypes.c_size_t | ctypes.c_int64, ...]


@dataclass(frozen=True)
class _Workspace:
    """Memory that one call at a time works in: `size` bytes from the aligned `address` on."""

    memory: np.ndarray
    size: int
    address: ctypes.c_void_p


class Session:
    """A compiled model that is loaded. Several threads may call `run` at the same time.

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
        strings = [t["dtype"] == STRING for t in (*self._inputs, *self._outputs)]
        self._types = [
            np.dtype(f"S{t['capacity']}") if t["dtype"] == STRING else numpy_dtype(t["dtype"])
            for t in self._inputs
        ]
        self._kinds = tuple(
            numpy_dtype("uint8" if t["dtype"] == STRING else t["dtype"]) for t in self._outputs
        )
        self._names = tuple(t["name"] for t in self._inputs)
        self._known = frozenset(self._names)
        self._has_strings = any(strings)
        self._sized_by_data = bool(info.get("sized_by_data"))
        converts = self._has_strings or self._sized_by_data or self._input_bundles or self._output_bundles
        self._most_forms = 0 if converts or not _DATA_AT else _FORMS
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._forms: dict[tuple[Any, ...], _Plan] = {}
        self._idle: list[_Workspace] = []
        handle = _load(library)
        numbers = [ctypes.c_int64] * len(self._symbols)
        self._run = getattr(handle, f"{self.model}_run")
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
        arrays: list[np.ndarray] = []  # they must live until the library returns
        forms, addresses = [], []
        try:  # the short way of all calls whose inputs have forms that were checked before
            for name in self._names:
                array = input_feed[name]
                if type(array) is not _Array:
                    raise TypeError
                arrays.append(array)
                forms.append(_form(array))
                addresses.append(_pointer_at(id(array) + _DATA_AT))
            plan = self._forms[tuple(forms)] if len(input_feed) == len(arrays) else None
        except (AttributeError, KeyError, TypeError):
            plan = None
        if plan is None:
            return self._selected(output_names, self._run_checked(input_feed))
        outputs = []
        for shape, kind in zip(plan.shapes, plan.kinds):
            array = _empty(shape, kind)
            outputs.append(array)
            addresses.append(_pointer_at(id(array) + _DATA_AT))
        space = self._workspace(plan.need)
        code = self._run(space.address, *plan.fixed, *addresses)
        self._idle.append(space)
        if code:
            _check(code)
        return outputs if output_names is None else self._selected(output_names, outputs)

    def benchmark(self, input_feed: Mapping[str, Any], repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls of the library alone, without Python's share."""
        arrays, plan = self._checked(input_feed)
        outputs, actual = self._buffers(plan)
        arguments = self._arguments(plan, arrays, outputs, actual)
        space, run, clock = self._workspace(plan.need), self._run, time.perf_counter
        seconds = []
        for _ in range(repeats):
            start = clock()
            run(space.address, *arguments)
            seconds.append(clock() - start)
        self._idle.append(space)
        return seconds

    def _run_checked(self, feeds: Mapping[str, Any]) -> list[Any]:
        """All outputs, after all checks and conversions of the inputs."""
        arrays, plan = self._checked(feeds)
        outputs, actual = self._buffers(plan)
        space = self._workspace(plan.need)
        code = self._run(space.address, *self._arguments(plan, arrays, outputs, actual))
        self._idle.append(space)
        _check(code)
        if actual is not None:
            outputs = _as_sized(outputs, actual)
        if self._has_strings:
            outputs = [text.decode(a) if t["dtype"] == STRING else a for t, a in zip(self._outputs, outputs)]
        return grouped(outputs, self._output_bundles) if self._output_bundles else outputs

    def _selected(self, names: Sequence[str] | None, results: list[Any]) -> list[Any]:
        """Of all results those named, all where None."""
        if names is None:
            return results
        by_name = dict(zip((t.name for t in self.get_outputs()), results))
        for name in names:
            if name not in by_name:
                raise CuvilError(f"is no output; the outputs are {', '.join(by_name)}", repr(name))
        return [by_name[name] for name in names]

    def _buffers(self, plan: _Plan) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Buffers for the outputs, and one for their actual sizes where the data decide some of them."""
        outputs = [np.empty(shape, kind) for shape, kind in zip(plan.shapes, plan.kinds)]
        return outputs, np.empty(sum(a.ndim for a in outputs) + 1, np.int64) if self._sized_by_data else None

    def _arguments(
        self,
        plan: _Plan,
        arrays: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        actual: np.ndarray | None,
    ) -> list[ctypes.c_size_t | ctypes.c_int64 | ctypes.c_void_p]:
        """The library's arguments after the workspace; they are valid while the arrays live."""
        written = outputs if actual is None else [*outputs, actual]
        return [*plan.fixed, *(ctypes.c_void_p(_address(a)) for a in (*arrays, *written))]

    def _workspace(self, need: int) -> _Workspace:
        """A workspace of at least `need` bytes that no other call uses; whoever takes it puts it back into
        `_idle`. There are as many as calls ran at the same time."""
        try:
            space = self._idle.pop()
            if space.size >= need:
                return space
        except IndexError:
            pass
        unit = limits.WORKSPACE_ALIGNMENT
        memory = np.empty(need + unit, np.uint8)
        return _Workspace(memory, need, ctypes.c_void_p(-(-_address(memory) // unit) * unit))

    def _checked(self, feeds: Mapping[str, Any]) -> tuple[list[np.ndarray], _Plan]:
        """The inputs as the library takes them, and the plan for the symbolic sizes that they show."""
        if self._input_bundles:
            feeds = _taken_apart(feeds, self._input_bundles)
        if not self._known.issuperset(feeds):
            unknown = next(n for n in feeds if n not in self._known)
            names = ", ".join(t.name for t in self.get_inputs())
            raise CuvilError(f"is no input; the inputs are {names}", repr(unknown))
        sizes: dict[str, int] = {}
        arrays = [self._array(t, kind, feeds, sizes) for t, kind in zip(self._inputs, self._types)]
        numbers = self._numbers(sizes)
        plan = self._plans.get(numbers) or self._plan(numbers)
        if len(self._forms) < self._most_forms:
            self._forms[tuple(map(_form, arrays))] = plan
        return arrays, plan

    def _plan(self, numbers: tuple[int, ...]) -> _Plan:
        """The plan for the symbolic sizes `numbers`."""
        ranks = [len(t["shape"]) + (t["dtype"] == STRING) for t in self._outputs]
        flat = (ctypes.c_int64 * max(sum(ranks), 1))()
        self._shapes(*numbers, ctypes.addressof(flat))
        sizes = iter(flat)
        shapes = tuple(tuple(next(sizes) for _ in range(rank)) for rank in ranks)
        for t, shape in zip(self._outputs, shapes):
            if min(shape, default=0) < 0:
                given = ", ".join(f"{n} = {size}" for n, size in zip(self._symbols, numbers))
                raise CuvilError(f"would have shape {list(shape)} for {given}", f"output '{t['name']}'")
        need = int(self._bytes(*numbers))
        sizes_given = tuple(ctypes.c_int64(n) for n in numbers)
        plan = _Plan(shapes, self._kinds, need, (ctypes.c_size_t(need), *sizes_given))
        self._plans[numbers] = plan
        return plan

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
"""Combinations of forms of the inputs that a session remembers."""

_form = attrgetter("dtype", "shape", "flags.c_contiguous")
"""What decides whether the library takes an array as it is."""

_Array, _empty = np.ndarray, np.empty
_pointer_at = ctypes.c_void_p.from_address
"""The pointer that memory holds, as an argument of a library call: read when the call is made."""


def _address(array: np.ndarray) -> int:
    """Where an array's data begin."""
    return int(array.__array_interface__["data"][0])


def _data_at() -> int:
    """Bytes from an array object's address to its pointer to the data, the first field of numpy's C structure
    behind the object's header; 0 where this Python does not place objects so.

    Reading the pointer there takes a third of the time of the buffer protocol or numpy's attributes, and
    touches far less memory when the model has filled the caches.
    """
    if sys.implementation.name != "cpython":
        return 0
    offset = object.__basicsize__
    probes = np.arange(4), np.arange(6.0)[2:], np.empty((0, 3))
    held = [_pointer_at(id(a) + offset).value for a in probes]
    return offset if held == [_address(a) for a in probes] else 0


_DATA_AT = _data_at()


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
