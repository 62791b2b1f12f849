"""The generated interface as a C caller meets it: error codes, bounds, threads, symbols, stack, bytes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from codegen.sandbox import Array, Isa, Program, isa
from zoo import builders as b
from zoo.net import Net, i64

import cuvil
from cuvil.limits import MAX_SYMBOL
from cuvil.session import Session
from cuvil.target.schema import Target, load
from cuvil.toolchain import symbols
from cuvil.toolchain.compilers import Options

OK, MISALIGNED, TOO_SMALL, NULL, BAD_SIZE = range(5)
GUARD = 256
"""Bytes before and after each buffer that must not change."""

POINTER = ctypes.c_void_p


def host() -> Target:
    target = load("host")
    return replace(target, toolchain=replace(target.toolchain, optimization="O1"))


def compiled(model: onnx.ModelProto, folder: Path, threads: int = 1, **options: Any) -> Session:
    path = folder / "net.onnx"
    onnx.save(model, path)
    return cuvil.compile(path, target=host(), threads=threads, output=folder / f"out{threads}", **options)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A BERT layer with two symbolic sizes."""
    model = b.bert_encoder_layer(hidden=32, heads=2, ffn=48)
    return compiled(model, tmp_path_factory.mktemp("layer"))


class Guarded:
    """`size` bytes at a multiple of 64, plus `shift`, between two guards."""

    def __init__(self, size: int, shift: int = 0) -> None:
        self.memory = np.full(size + 2 * GUARD + 128, 0xA5, np.uint8)
        self.start = GUARD + -(self.memory.ctypes.data + GUARD) % 64 + shift
        self.size = size

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data) + self.start

    @property
    def data(self) -> Array:
        return self.memory[self.start : self.start + self.size]

    def is_whole(self) -> bool:
        """Nothing was written outside."""
        before, after = self.memory[: self.start], self.memory[self.start + self.size :]
        return bool((before == 0xA5).all() and (after == 0xA5).all())


class Call:
    """One call of ``<model>_run`` on buffers of exactly the promised sizes."""

    def __init__(self, session: Session, sizes: Mapping[str, int], feeds: Mapping[str, Array]) -> None:
        library = ctypes.CDLL(str(session.library))
        self.function = getattr(library, f"{session.model}_run")
        self.infer = library.infer
        self.sizes = list(sizes.values())
        self.need = session.workspace_bytes(**sizes)
        self.workspace = Guarded(self.need)
        self.inputs = [np.ascontiguousarray(feeds[i.name]) for i in session.get_inputs()]
        shapes = [[sizes[d] if isinstance(d, str) else d for d in o.shape] for o in session.get_outputs()]
        self.outputs = [Guarded(4 * int(np.prod(s))) for s in shapes]

    def __call__(
        self,
        workspace: int | None = None,
        given: int | None = None,
        sizes: list[int] | None = None,
        pointers: Callable[[list[int]], list[int]] = lambda p: p,
    ) -> int:
        chosen = [a.ctypes.data for a in self.inputs] + [o.address for o in self.outputs]
        return int(
            self.function(
                POINTER(self.workspace.address if workspace is None else workspace),
                ctypes.c_size_t(self.need if given is None else given),
                *map(ctypes.c_int64, self.sizes if sizes is None else sizes),
                *map(POINTER, pointers(chosen)),
            )
        )

    def answers(self) -> list[bytes]:
        return [o.data.tobytes() for o in self.outputs]


def layer_feeds(batch: int, sequence: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "hidden": rng.standard_normal((batch, sequence, 32)).astype(np.float32),
        "attention_mask": np.ones((batch, sequence), np.int64),
    }


def layer_call(session: Session, batch: int = 2, sequence: int = 5, seed: int = 0) -> Call:
    return Call(session, {"batch": batch, "sequence": sequence}, layer_feeds(batch, sequence, seed))


# --- error codes ----------------------------------------------------------------------------------------


def test_nothing_is_written_outside_and_inputs_stay(layer: Session) -> None:
    call = layer_call(layer)
    before = [a.copy() for a in call.inputs]
    assert call() == OK
    assert call.workspace.is_whole() and all(o.is_whole() for o in call.outputs)
    assert all(np.array_equal(a, c) for a, c in zip(call.inputs, before))
    wanted = layer.run(None, layer_feeds(2, 5))
    assert call.answers() == [a.tobytes() for a in wanted]


@pytest.mark.parametrize("shift", [1, 2, 4, 8, 16, 32, 63])
def test_misaligned_workspace(layer: Session, shift: int) -> None:
    call = layer_call(layer)
    assert call(workspace=call.workspace.address + shift) == MISALIGNED
    assert (call.outputs[0].data == 0xA5).all()


def test_too_small_workspace(layer: Session) -> None:
    call = layer_call(layer)
    for given in (0, 64, call.need - 1):
        assert call(given=given) == TOO_SMALL
    assert call(given=call.need) == OK


def test_null_pointers(layer: Session) -> None:
    call = layer_call(layer)
    for position in range(len(call.inputs) + len(call.outputs)):
        assert call(pointers=lambda p, n=position: [0 if k == n else a for k, a in enumerate(p)]) == NULL
    assert call(workspace=0) == NULL


@pytest.mark.parametrize("size", [-1, -(1 << 63), MAX_SYMBOL + 1, 1 << 62])
def test_bad_sizes(layer: Session, size: int) -> None:
    call = layer_call(layer)
    assert call(sizes=[size, 5]) == BAD_SIZE
    assert call(sizes=[2, size]) == BAD_SIZE


def test_sizes_whose_bytes_leave_64_bits_are_refused(tmp_path: Path) -> None:
    """[N] -> [N, N, N] of 4 bytes: N = 2**21 would ask for 2**65 bytes, which is 0 in 64 bits."""
    net = Net("cube", 1)
    x = net.input("x", ["N"])
    plane = net.op("Mul", net.op("Unsqueeze", x, i64(1, 2)), net.op("Unsqueeze", x, i64(0, 2)))
    cube = net.op("Add", plane, net.op("Unsqueeze", x, i64(0, 1)))
    sums = net.op("CumSum", cube, np.array(0, np.int64))
    net.output(net.op("ReduceSum", sums, i64(0, 1), keepdims=0), "y", ["N"])
    session = compiled(net.model(17), tmp_path)
    x_fed = np.ones(3, np.float32)
    call = Call(session, {"N": 3}, {"x": x_fed})
    assert call() == OK
    for size in (1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 24):
        assert call(given=1 << 40, sizes=[size]) == (TOO_SMALL if size == 1 << 19 else BAD_SIZE)


def test_workspace_grows_with_sizes(layer: Session) -> None:
    sizes = [layer.workspace_bytes(batch=n, sequence=7) for n in (1, 2, 3, 8)]
    assert sizes == sorted(sizes) and sizes[0] > 0
    assert all(n % 64 == 0 for n in sizes)


def test_infer_answers_as_run(layer: Session) -> None:
    call = layer_call(layer, 1, 6)
    pointers = [a.ctypes.data for a in call.inputs] + [o.address for o in call.outputs]
    assert call.infer(*map(ctypes.c_int64, call.sizes), *map(POINTER, pointers)) == OK
    inferred = call.answers()
    assert call() == OK
    assert call.answers() == inferred


def test_infer_refuses_what_its_arena_cannot_hold(layer: Session) -> None:
    call = layer_call(layer, 1, 1)
    pointers = [a.ctypes.data for a in call.inputs] + [o.address for o in call.outputs]
    many = [1 << 16, 1 << 10]
    assert call.infer(*map(ctypes.c_int64, many), *map(POINTER, pointers)) == TOO_SMALL


# --- threads ----------------------------------------------------------------------------------------


def test_two_callers_on_two_workspaces(layer: Session) -> None:
    calls = [layer_call(layer, 2, 9 + n, seed=n) for n in range(2)]
    wanted = []
    for call in calls:
        assert call() == OK
        wanted.append(call.answers())

    def repeat(call: Call) -> set[tuple[bytes, ...]]:
        found = set()
        for _ in range(200):
            assert call() == OK
            found.add(tuple(call.answers()))
        return found

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(repeat, calls))
    assert results == [{tuple(w)} for w in wanted]


def wide_model() -> onnx.ModelProto:
    """Layers with enough points and work for threads to share."""
    net = Net("wide", 1)
    x = net.input("x", ["N", 16, 40, 40])
    y = net.op("Relu", net.conv(x, 16, 48, 3))
    y = net.op("Add", net.conv(y, 48, 16, 1), x)
    y = net.op("Softmax", net.conv(y, 16, 24, 3, groups=8), axis=1)
    net.output(net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2]), "y", ["N", 24, 19, 19])
    return net.model()


def test_threads_change_no_bit_and_share_a_pool(tmp_path: Path) -> None:
    sessions = [compiled(wide_model(), tmp_path, threads) for threads in (1, 2)]
    assert "cv_parallel(" in next((tmp_path / "out2" / "codegen").glob("*cpu*.c")).read_text()
    feeds = [
        {"x": np.random.default_rng(n).standard_normal((n + 1, 16, 40, 40)).astype(np.float32)}
        for n in (0, 1)
    ]
    wanted = [sessions[0].run(None, f)[0].tobytes() for f in feeds]
    assert [sessions[1].run(None, f)[0].tobytes() for f in feeds] == wanted
    calls = [Call(sessions[1], {"N": n + 1}, f) for n, f in enumerate(feeds)]
    with ThreadPoolExecutor(2) as pool:  # one takes the pool, the other computes alone
        for _ in range(30):
            assert list(pool.map(lambda call: call(), calls)) == [OK, OK]
            assert [call.answers()[0] for call in calls] == wanted


# --- what the objects hold ----------------------------------------------------------------------------

LINKER = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__"}
MEMORY = {"memcpy", "memset", "memmove"}
"""Calls that a C compiler makes of its own."""

POOL = {
    "clock_gettime", "getpid", "pthread_attr_destroy", "pthread_attr_init", "pthread_attr_setdetachstate",
    "pthread_create", "pthread_sigmask", "sched_getaffinity", "sched_getcpu", "sched_setaffinity",
    "sched_yield", "sigdelset", "sigfillset", "syscall",
}  # fmt: skip


def undefined(library: Path) -> set[str]:
    return {name.split("@")[0] for name in symbols.undefined(library)} - LINKER


def test_libraries_need_nothing_of_the_system(layer: Session, tmp_path: Path) -> None:
    assert undefined(layer.library) <= MEMORY
    threaded = compiled(wide_model(), tmp_path, 2)
    assert undefined(threaded.library) <= MEMORY | POOL


def test_only_the_math_library_is_called(tmp_path: Path) -> None:
    net = Net("math", 1)
    x = net.input("x", ["N"])
    for kind in ("Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Exp", "Sqrt", "Floor", "Round"):
        x = net.op(kind, x)
    net.output(net.op("Atan", x), "y", ["N"])
    session = compiled(net.model(), tmp_path)
    assert undefined(session.library) <= MEMORY | {"atanf"}


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_written_but_the_arena_and_the_pool(tmp_path: Path, threads: int) -> None:
    session = compiled(wide_model(), tmp_path, threads)
    archive = session.library.with_suffix(".a")
    writable: dict[str, int] = {}
    for image in symbols.read(archive):
        writable[image.name] = sum(s.size for s in image.sections if s.category in ("data", "bss"))
    assert writable.pop("net.o") == 64 << 20  # the arena of infer
    for name, size in writable.items():
        assert size <= (1024 if threads > 1 and "weights" not in name else 0), name


def test_exported_symbols_have_the_prefix(layer: Session) -> None:
    prefix = layer.model
    assert symbols.defined(layer.library) == {
        "infer", f"{prefix}_run", f"{prefix}_workspace_bytes", f"{prefix}_output_shapes",
    }  # fmt: skip


MAX_FRAME = 64 << 10


def test_stack_is_bounded(tmp_path: Path) -> None:
    """No frame above 64 KiB, none of a size that is known at run time only."""
    from codegen.sandbox import Case, compiler, schedule_of

    chosen: Isa = isa("host")
    tools = compiler(chosen)
    if tools.family == "zig":
        pytest.skip("needs gcc or clang")
    nets = [partial(b.unet, image=16, width=8), partial(b.lstm, size=16, hidden=24),
            partial(b.bert_encoder_layer, hidden=64, heads=2, ffn=64)]  # fmt: skip
    sizes = [{"N": 1}, {"N": 1, "T": 2}, {"batch": 1, "sequence": 2}]
    cases = []
    for source, at in zip(nets, sizes):
        model = source()
        feeds = {}
        for v in model.graph.input:
            dims = v.type.tensor_type.shape.dim
            feeds[v.name] = np.zeros([at[d.dim_param] if d.dim_param else d.dim_value for d in dims])
        cases.append(Case(source.func.__name__, schedule_of(model, chosen), feeds))
    program = Program(cases, tmp_path, chosen, sanitize=(), options=Options(opt_level="1"))
    command = tools.compile_command(
        tmp_path / "cases.c", tmp_path / "again.o", Options(flags=("-fstack-usage",))
    )
    subprocess.run(command, cwd=tmp_path, check=True)
    usage = [line.split("\t") for line in (tmp_path / "again.su").read_text().splitlines()]
    assert len(usage) > len(program.cases)
    assert {kind for _, _, kind in usage} <= {"static", "dynamic,bounded"}
    assert max(int(size) for _, size, _ in usage) <= MAX_FRAME


# --- closing the library ---------------------------------------------------------------------------------

_CLOSE = """
import _ctypes, ctypes, os, sys, time
library = ctypes.CDLL(sys.argv[1])
x, y = ((ctypes.c_float * int(n))() for n in sys.argv[2:])
before = len(os.listdir("/proc/self/task"))
assert library.infer(x, y) == 0
print(len(os.listdir("/proc/self/task")) - before)
_ctypes.dlclose(library._handle)
time.sleep(0.05)  # workers look for work, and go to sleep
print("alive")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_library_may_be_closed_after_a_call(threads: int, tmp_path: Path) -> None:
    """Its threads, which live as long as the process, keep their code."""
    net = Net("closed", 1)
    net.output(net.op("Relu", net.conv(net.input("x", [1, 16, 48, 48]), 16, 32, 3)), "y", [1, 32, 48, 48])
    compiled(net.model(), tmp_path, threads)
    library = tmp_path / f"out{threads}" / "libnet.so"
    command = [sys.executable, "-c", _CLOSE, str(library), str(16 * 48 * 48), str(32 * 48 * 48)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, [str(threads - 1), "alive"])


# --- the same bytes ----------------------------------------------------------------------------------------

_COMPILE = """
import sys
from pathlib import Path
import cuvil
for model in sys.argv[2:]:
    cuvil.compile(model, output=Path(sys.argv[1], Path(model).stem), threads=2)
"""


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_same_bytes_whatever_seed_folder_and_time_zone(tmp_path: Path) -> None:
    models = []
    for net in (b.unet(image=16, width=16), b.bert_encoder_layer(hidden=32, heads=2, ffn=48)):
        models.append(tmp_path / f"{net.graph.name}.onnx")
        onnx.save(net, models[-1])
    root = str(Path(__file__).resolve().parents[2])
    found = []
    for seed, name, zone in (("0", "a", "UTC"), ("4242", "another folder", "Asia/Tokyo")):
        out = tmp_path / name
        out.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": root}
        command = [sys.executable, "-c", _COMPILE, str(out), *map(str, models)]
        subprocess.run(command, cwd=out, env=environment, check=True)
        found.append(digests(out))
    assert found[0] == found[1]
    names = set(found[0])
    assert {"unet/libunet.so", "unet/libunet.a", "unet/codegen/unet.h", "unet/graph.onnx"} <= names
