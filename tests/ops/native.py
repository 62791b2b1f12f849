"""Many small programs compiled into one native library and run, each apart from the others.

Everything between a model and its outputs is the compiler's own path.  The code runs in a child
process, so that a crash or an endless loop is the finding of one case.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Case = tuple[Any, Mapping[str, Any]]
"""An ONNX model and its inputs by name: arrays, lists of them for sequences, None for absent optionals."""

BATCH = 120
"""Programs per C file."""

GUARD = 64
"""Bytes around each buffer that must stay as they were."""

TIMEOUT_S = 60


@dataclass(frozen=True)
class Task:
    """One call of generated code, in plain data."""

    name: str
    library: str
    symbol: str
    sizes: tuple[int, ...]
    inputs: tuple[Array, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    workspace: int
    sized_by_data: bool = False
    texts: tuple[bool, ...] = ()


WIDE = {"vector_bits": 512, "vector_registers": 32, "arch": "x86_64"}
"""A device for tuned kernels; they are GNU vectors and run anywhere."""


def prepare(
    model: Any, device: Mapping[str, Any] | None = None, feeds: Mapping[str, Any] | None = None
) -> Any:
    """An ONNX model (a proto) imported, lowered and scheduled, with the tuned kernels of a device or
    with none; what must be bound of its inputs is bound to what `feeds` have."""
    from cuvil.codegen.tuned import claims
    from cuvil.frontend.bundles import binding_of, open_inputs
    from cuvil.frontend.importer import canonicalize
    from cuvil.frontend.onnx_reader import graph_from_proto
    from cuvil.schedule.lower import lower
    from cuvil.schedule.plan import schedule

    shapes = {n: binding_of(feeds[n]) for n in open_inputs(model)} if feeds is not None else {}
    graph = graph_from_proto(model, shapes=shapes)
    canonicalize(graph)
    return schedule(lower(graph), None if device is None else claims.for_device(device))


def outputs(models: Mapping[str, Case], opt_level: str = "1") -> dict[str, list[Array]]:
    """The outputs of each case; fails where one cannot be compiled or run."""
    schedules = {name: prepare(model, feeds=feeds) for name, (model, feeds) in models.items()}
    libraries = build(schedules, opt_level)
    tasks = [call(name, schedules[name], libraries[name], flat(feeds)) for name, (_, feeds) in models.items()]
    results = run(tasks)
    failed = {name: r for name, r in results.items() if isinstance(r, str)}
    assert not failed, failed
    return {name: r for name, r in results.items() if not isinstance(r, str)}


def flat(values: Mapping[str, Any]) -> dict[str, Array]:
    """Inputs or outputs as the tensors that generated code has for them."""
    arrays: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, list):
            arrays.update((f"{name}[{k}]", np.asarray(item)) for k, item in enumerate(value))
        elif value is not None:
            arrays[name] = np.asarray(value)
    return arrays


# --- building --------------------------------------------------------------------------------------


def build(schedules: Mapping[str, Any], opt_level: str = "1") -> dict[str, tuple[str, str]]:
    """(library, symbol) of each schedule, or ("", what is wrong)."""
    from cuvil.codegen.program import Part, render
    from cuvil.errors import UnsupportedError

    found: dict[str, tuple[str, str]] = {}
    parts = []
    for number, (name, s) in enumerate(schedules.items()):
        part = Part(s, f"case{number % BATCH}")
        try:
            render([part], "case")
        except UnsupportedError as error:
            found[name] = ("", error.message)
            continue
        parts.append((name, part))
    for start in range(0, len(parts), BATCH):
        _build_batch(parts[start : start + BATCH], opt_level, found)
    return found


def _build_batch(parts: Sequence[tuple[str, Any]], opt_level: str, found: dict[str, tuple[str, str]]) -> None:
    """One library of `parts`; where it does not compile, halves, so that one case fails alone."""
    from cuvil.codegen.program import Part, render
    from cuvil.errors import ToolchainError
    from cuvil.toolchain.compilers import Options, find
    from cuvil.toolchain.machine import Machine

    renumbered = [(name, Part(p.schedule, f"case{i}")) for i, (name, p) in enumerate(parts)]
    code = render([p for _, p in renumbered], "cases")
    compiler = find("auto", Machine())
    options = Options(opt_level=opt_level, flags=("-fvisibility=default",))
    key = hashlib.sha256(code.source.encode() + code.weights + repr(compiler.identity(options)).encode())
    folder = Path(tempfile.gettempdir()) / f"cuvil-tests-{os.getuid()}"
    library = folder / f"{key.hexdigest()[:24]}.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            try:
                _compile(code, Path(scratch), library, compiler, options)
            except ToolchainError as error:
                if len(parts) == 1:
                    gist = str(getattr(error, "output", error)).partition("error: ")[2].split("\n")[0]
                    found[parts[0][0]] = ("", f"the C compiler says: {gist or error}")
                else:
                    middle = len(parts) // 2
                    _build_batch(parts[:middle], opt_level, found)
                    _build_batch(parts[middle:], opt_level, found)
                return
    found.update({name: (str(library), p.symbol) for name, p in renumbered})


def _compile(code: Any, scratch: Path, library: Path, compiler: Any, options: Any) -> None:
    from cuvil.codegen.program import weights_assembly

    Path(scratch, "cases.c").write_text(code.source)
    objects = [Path(scratch, "cases.o")]
    compiler.compile(scratch / "cases.c", objects[0], options)
    if code.weights:
        Path(scratch, "weights.bin").write_bytes(code.weights)
        Path(scratch, "weights.S").write_text(weights_assembly(code.weights_symbol, "weights.bin"))
        objects.append(Path(scratch, "weights.o"))
        compiler.compile(scratch / "weights.S", objects[1], options)
    compiler.link_shared(objects, library, libs=("m",), options=options)


# --- running ---------------------------------------------------------------------------------------


def call(name: str, s: Any, library: tuple[str, str], feeds: Mapping[str, Array]) -> Task:
    """The task of running schedule `s` on `feeds`."""
    from cuvil import limits
    from cuvil.codegen.program import is_sized_by_data
    from cuvil.ir import expr as E
    from cuvil.ir import text
    from cuvil.schedule.plan import workspace_bytes

    bound: dict[str, int] = {}
    arrays = [
        text.encode(feeds[v.name], v.name, limits.STRING_BYTES) if v.text else feeds[v.name]
        for v in s.program.inputs
    ]
    for v, array in zip(s.program.inputs, arrays):
        for size, actual in zip(v.shape, array.shape):
            if size.op == "sym":
                assert bound.setdefault(size.attr, actual) == actual
    shapes = [
        (tuple(E.evaluate(E.capacity(n), bound) for n in v.shape), E.numpy_dtype(v.dtype))
        for v in s.program.outputs
    ]
    return Task(
        name,
        *library,
        tuple(bound[n] for n in s.program.symbols),
        tuple(map(np.ascontiguousarray, arrays)),
        tuple(shapes),
        workspace_bytes(s, bound),
        is_sized_by_data(s),
        tuple(v.text for v in s.program.outputs),
    )


def run(tasks: Iterable[Task]) -> dict[str, list[Array] | str]:
    """The outputs of each task, or what went wrong."""
    left = list(tasks)
    results: dict[str, list[Array] | str] = {}
    while left:
        with tempfile.TemporaryDirectory() as scratch:
            todo, done = Path(scratch, "todo"), Path(scratch, "done")
            todo.write_bytes(pickle.dumps(left))
            command = [sys.executable, __file__, str(todo), str(done)]
            try:
                code = subprocess.run(command, timeout=TIMEOUT_S, check=False).returncode
                trouble = f"crashed with signal {-code}" if code < 0 else f"ended with code {code}"
            except subprocess.TimeoutExpired:
                trouble = f"ran for more than {TIMEOUT_S} s"
            with done.open("rb") as stream:
                while True:
                    try:
                        name, result = pickle.load(stream)
                    except EOFError:
                        break
                    results[name] = result
        left = [t for t in left if t.name not in results]
        if left:
            results[left[0].name] = trouble
            del left[0]
    return results


def _run_one(task: Task, libraries: dict[str, ctypes.CDLL]) -> list[Array] | str:
    library = libraries.setdefault(task.library, ctypes.CDLL(task.library))
    before = [a.copy() for a in task.inputs]
    sizes = [int(np.prod(shape, dtype=np.int64)) * kind.itemsize for shape, kind in task.outputs]
    buffers = [_guarded(n) for n in (task.workspace, *sizes)]
    pointers = [ctypes.c_void_p(b[GUARD:].ctypes.data) for b in buffers]
    arguments = [pointers[0], *(ctypes.c_ssize_t(n) for n in task.sizes)]
    arguments += [ctypes.c_void_p(a.ctypes.data) for a in task.inputs]
    function = library[task.symbol]
    actual = np.zeros(sum(len(shape) for shape, _ in task.outputs) + 1, np.int64)
    code = function(*arguments, *pointers[1:], *([ctypes.c_void_p(actual.ctypes.data)] * task.sized_by_data))
    if code:
        return f"returned error code {code}"
    if any(a.tobytes() != b.tobytes() for a, b in zip(before, task.inputs)):
        return "wrote to an input"
    for buffer, size in zip(buffers, (task.workspace, *sizes)):
        if (buffer[:GUARD] != 0xA5).any() or (buffer[GUARD + size :] != 0xA5).any():
            return "wrote outside of a buffer"
    found = [b[GUARD : GUARD + n].view(kind) for b, n, (_, kind) in zip(buffers[1:], sizes, task.outputs)]
    shapes = [shape for shape, _ in task.outputs]
    if task.sized_by_data:
        given = iter(actual.tolist())
        shapes = [tuple(next(given) for _ in shape) for shape in shapes]
    counts = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    results = [a[:n].reshape(shape).copy() for a, n, shape in zip(found, counts, shapes)]
    return [_strings(a) if is_text else a for a, is_text in zip(results, task.texts)]


def _strings(data: Array) -> Array:
    """The strings whose bytes are on the last axis, as an object array."""
    return np.char.decode(data.view(f"S{data.shape[-1]}")[..., 0], "utf-8").astype(object)


def _guarded(size: int) -> Array:
    """`size` bytes at an aligned address, with a guard on both sides, all 0xA5."""
    memory = np.full(size + 2 * GUARD + 64, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size + 2 * GUARD]


def main(todo: str, done: str) -> None:
    """Run the tasks in file `todo`; write each result to `done` as soon as it is there."""
    tasks: list[Task] = pickle.loads(Path(todo).read_bytes())
    libraries: dict[str, ctypes.CDLL] = {}
    with Path(done).open("wb") as stream:
        for task in tasks:
            pickle.dump((task.name, _run_one(task, libraries)), stream)
            stream.flush()


if __name__ == "__main__":
    import ml_dtypes  # noqa: F401  (registers the small types with numpy)

    sys.modules["native"] = sys.modules["__main__"]
    main(*sys.argv[1:])
