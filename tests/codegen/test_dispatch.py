"""Libraries with code for several instruction sets: what they hold, what runs, and that each is right."""

from __future__ import annotations

import ctypes
import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from codegen.sandbox import relative_error
from onnx import TensorProto
from zoo.net import Net

import cuvil
from cuvil import artefacts, stages
from cuvil.codegen import dispatch
from cuvil.errors import CuvilError
from cuvil.session import Session
from cuvil.target.isa import LEVELS, features
from cuvil.target.schema import Target, load
from cuvil.toolchain.compilers import Options, find
from cuvil.toolchain.machine import Machine

NAMES = LEVELS["x86_64"]

pytestmark = pytest.mark.skipif(Machine().arch != "x86_64", reason="needs an x86-64 machine")


def generic(*levels: str) -> Target:
    """Any x86-64 machine, with gcc where it is there: it compiles faster than zig starts."""
    target = load("x86_64-unknown-linux-gnu")
    levels = levels or NAMES
    device = replace(target.devices[0], isa=levels[-1], isa_levels=levels)
    chain = replace(target.toolchain, compiler="gcc" if shutil.which("gcc") else "zig", optimization="O1")
    return replace(target, devices=(device,), toolchain=chain)


def floats() -> onnx.ModelProto:
    """Convolutions (3x3, 1x1, grouped, depthwise), a matrix product of many rows and one of a single row."""
    net = Net("floats", 3)
    x = net.op("Relu", net.conv(net.input("x", [1, 3, 20, 18]), 3, 40, 3))
    x = net.op("Relu", net.conv(x, 40, 64, 3))
    x = net.op("Relu", net.conv(x, 64, 96, 1))
    x = net.op("Relu", net.conv(x, 96, 48, 3, groups=12))
    x = net.op("Add", x, net.conv(x, 48, 48, 3, groups=48))
    rows = net.op("MatMul", net.op("Transpose", x, perm=[0, 2, 3, 1]), net.weight(48, 100, fan_in=48))
    pooled = net.op("ReduceMean", rows, axes=[1, 2], keepdims=0)
    net.output(net.op("MatMul", pooled, net.weight(100, 130, fan_in=100)), "y", [1, 130])
    return net.model()


def bytes_() -> onnx.ModelProto:
    """Products of bytes, which VNNI has an instruction for."""
    net = Net("bytes", 4)
    x = net.input("x", [1, 20, 64], TensorProto.UINT8)
    w = net.rng.integers(-128, 128, (64, 48)).astype(np.int8)
    net.output(net.op("MatMulInteger", x, w), "y", [1, 20, 48], TensorProto.INT32)
    return net.model()


@dataclass(frozen=True)
class Built:
    """A library for `NAMES` with the folder it was made in, and what onnxruntime answers."""

    session: Session
    folder: Path
    feeds: Mapping[str, np.ndarray]
    wanted: np.ndarray

    @property
    def plan(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads((self.folder / "codegen" / "cpu0.plan.json").read_text())
        return found

    @property
    def runs(self) -> dict[str, str]:
        """Level -> the one whose code it runs."""
        return {level["isa"]: level["runs"] for level in self.plan["levels"]}

    def object(self, suffix: str = "") -> Path:
        return self.folder / "obj" / f"{self.session.model}{suffix}.o"


def build(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path, **options: Any) -> Built:
    path = folder / f"{model.graph.name}.onnx"
    onnx.save(model, path)
    session = cuvil.compile(path, target=generic(), output=folder / "out", **options)
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return Built(session, folder / "out", feeds, reference.run(None, dict(feeds))[0])


@pytest.fixture(scope="module")
def of_floats(tmp_path_factory: pytest.TempPathFactory) -> Built:
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 3, 20, 18)).astype(np.float32)}
    return build(floats(), feeds, tmp_path_factory.mktemp("floats"))


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory: pytest.TempPathFactory) -> Built:
    feeds = {"x": np.random.default_rng(2).integers(0, 256, (1, 20, 64)).astype(np.uint8)}
    return build(bytes_(), feeds, tmp_path_factory.mktemp("bytes"), threads=2)


@functools.cache
def runs_here() -> tuple[str, ...]:
    """The levels of which this CPU has all features."""
    flags = {*Path("/proc/cpuinfo").read_text().split()}
    return tuple(name for name in NAMES if flags.issuperset(features(name)))


@pytest.mark.parametrize("name", NAMES)
def test_each_level_answers_as_onnxruntime(name: str, of_floats: Built, of_bytes: Built) -> None:
    for built in (of_floats, of_bytes):
        assert built.session.isa_levels == NAMES
        if name not in runs_here():
            with pytest.raises(CuvilError, match="this CPU has not got that instruction set"):
                built.session.use_isa(name)
            continue
        assert built.session.use_isa(name) == name
        assert relative_error(built.session.run(None, built.feeds)[0], built.wanted) <= 1e-5


def test_the_best_that_the_cpu_has_is_the_default(of_floats: Built) -> None:
    again = Session(of_floats.session.library, of_floats.folder / "codegen" / "floats.json")
    assert (
        NAMES[again._levels[0][0](len(NAMES))] == runs_here()[-1]
    )  # a level that there is not changes nothing
    assert again.use_isa("x86-64") == "x86-64"
    assert again.use_isa(None) == runs_here()[-1]
    with pytest.raises(CuvilError, match="'sse9': the library cannot choose it; allowed: x86-64, x86-64-v3"):
        again.use_isa("sse9")


def test_code_without_products_of_bytes_is_there_once(of_floats: Built, of_bytes: Built) -> None:
    """Nor is code without tiles."""
    assert of_floats.runs == {name: name.removesuffix("-vnni") for name in NAMES}
    assert [len(level["segments"]) for level in of_floats.plan["levels"]] == [1, 1, 0, 1, 0, 1]
    assert of_bytes.runs == {name: name.replace("-amx", "-vnni") for name in NAMES}


def codegen(model: Path, folder: Path, target: Target) -> artefacts.Layout:
    """The stages up to codegen."""
    out = artefacts.layout(folder, model.stem, target)
    stages.run_import(model, out)
    stages.run_partition(out, target.slice("partition"))
    stages.run_quantize(out, target.slice("quantize"))
    stages.run_codegen(out, "cpu0", target.slice("codegen"))
    return out


def test_levels_share_their_weights(of_floats: Built, tmp_path: Path) -> None:
    model = of_floats.folder.parent / "floats.onnx"
    weights = (of_floats.folder / "codegen" / "floats_cpu0.bin").read_bytes()
    again = codegen(model, tmp_path / "again", generic())
    for name in ("floats_cpu0.c", "floats_cpu0_x86_64_v3.c", "floats_cpu0.bin", "cpu0.plan.json"):
        made = (again.folder / "codegen" / name).read_bytes()
        assert made == (of_floats.folder / "codegen" / name).read_bytes(), name
    alone = codegen(model, tmp_path / "alone", generic("x86-64-v4"))
    assert alone.generated("cpu0")["bin"].read_bytes() == weights
    with_avx2 = codegen(model, tmp_path / "two", generic("x86-64", "x86-64-v3"))
    assert with_avx2.generated("cpu0")["bin"].stat().st_size <= len(weights)


def test_workspace_is_that_of_the_largest_level(of_floats: Built) -> None:
    sizes = [s["workspace"] for level in of_floats.plan["levels"] for s in level["segments"]]
    assert of_floats.plan["segments"][0]["workspace"] == max(sizes) == of_floats.session.workspace_bytes()


def test_a_device_that_runs_nothing() -> None:
    code = dispatch.combine(["x86-64", "x86-64-v3"], lambda level: [], [], "net_cpu0")
    assert (code.weights, code.weights_symbol, code.plan["segments"]) == (b"", "", [])
    assert "int net_cpu0_isa_level(int level)" in code.source
    assert all("runs on this device" in text for text in code.levels.values())


def instructions(path: Path) -> str:
    done = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump")
def test_no_object_has_instructions_beyond_its_level(of_floats: Built, of_bytes: Built) -> None:
    vex = re.compile(r"^ +[0-9a-f]+:\tv\w+", re.MULTILINE)
    for built in (of_floats, of_bytes):
        for suffix in ("", "_cpu0", "_cpu0_x86_64"):
            text = instructions(built.object(suffix))
            assert not vex.search(text) and "%ymm" not in text, suffix
    assert "mulps" in instructions(of_floats.object("_cpu0_x86_64"))
    assert "xgetbv" in instructions(of_floats.object("_cpu0"))
    found = {}
    for name in {*of_bytes.runs.values()}:
        text = instructions(of_bytes.object(f"_cpu0_{name.replace('-', '_')}"))
        found[name] = tuple(word in text for word in ("%ymm", "%zmm", "dpbusd"))
    assert {name: (wide, dot) for name, (_, wide, dot) in found.items()} == {
        "x86-64": (False, False),
        "x86-64-v3": (False, False),
        "x86-64-v3-vnni": (False, True),
        "x86-64-v4": (True, False),
        "x86-64-v4-vnni": (True, True),
    }
    assert found["x86-64-v3"][0]
    tiles = {n: "tdpbf16ps" in instructions(of_floats.object(f"_cpu0_{n.replace('-', '_')}")) for n in NAMES}
    assert [name for name, has in tiles.items() if has] == ["x86-64-v4-amx"]
    assert vex.search(instructions(of_floats.object("_cpu0_x86_64_v3")))


FAKE = """
#include <cpuid.h>
static unsigned cpu[6], xcr0; /* 1.ecx 7.ebx 7.ecx 7.1.eax 0x80000001.ecx 7.edx */
static int refused;
static int fake(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    *a = leaf == 7 && subleaf == 1 ? cpu[3] : 0;
    *b = leaf == 7 && subleaf == 0 ? cpu[1] : 0;
    *c = leaf == 1 ? cpu[0] : leaf == 7 && subleaf == 0 ? cpu[2] : leaf == 0x80000001 ? cpu[4] : 0;
    *d = leaf == 7 && subleaf == 0 ? cpu[5] : 0;
    return 1;
}
#define __get_cpuid_count fake
enum {
    V2 = bit_SSE3 | bit_SSSE3 | bit_CMPXCHG16B | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT,
    V3 = V2 | bit_FMA | bit_MOVBE | bit_XSAVE | bit_OSXSAVE | bit_AVX | bit_F16C,
    AVX2 = bit_BMI | bit_AVX2 | bit_BMI2,
    AMX_BF16 = 1 << 22,
    AMX_TILE = 1 << 24,
};
#define AVX512 (AVX2 | bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL)
void set_cpu(int number, unsigned saved, int no) {
    const unsigned all[][6] = {
        {bit_SSE3, 0, 0, 0, 0},
        {V2, 0, 0, 0, bit_LAHF_LM},
        {V3, AVX2, 0, 0, bit_LAHF_LM | bit_ABM},
        {V3 & ~bit_OSXSAVE, AVX2, 0, 0, bit_LAHF_LM | bit_ABM},
        {V3 & ~bit_FMA, AVX2, 0, 0, bit_LAHF_LM | bit_ABM},
        {V3, AVX2, 0, bit_AVXVNNI, bit_LAHF_LM | bit_ABM},
        {V3, AVX512, 0, 0, bit_LAHF_LM | bit_ABM},
        {V3, AVX512 & ~bit_AVX512VL, bit_AVX512VNNI, 0, bit_LAHF_LM | bit_ABM},
        {V3, AVX512, bit_AVX512VNNI, bit_AVXVNNI, bit_LAHF_LM | bit_ABM},
        {V3, AVX512, bit_AVX512VNNI, bit_AVXVNNI, bit_LAHF_LM | bit_ABM, AMX_TILE | AMX_BF16},
        {V3, AVX512, bit_AVX512VNNI, bit_AVXVNNI, bit_LAHF_LM | bit_ABM, AMX_TILE},
    };
    __builtin_memcpy(cpu, all[number], sizeof cpu);
    xcr0 = saved;
    refused = no;
}
"""

CPUS = {
    "Prescott": (0, 0, "x86-64"),
    "Nehalem": (1, 0, "x86-64"),
    "Haswell": (2, 0x07, "x86-64-v3"),
    "Haswell, system without AVX": (2, 0x03, "x86-64"),
    "Haswell, system without XSAVE": (3, 0x07, "x86-64"),
    "AVX2 without FMA": (4, 0x07, "x86-64"),
    "Alder Lake": (5, 0x207, "x86-64-v3-vnni"),
    "Skylake-X": (6, 0xE7, "x86-64-v4"),
    "Skylake-X, system without AVX-512": (6, 0x07, "x86-64-v3"),
    "Knights Mill": (7, 0xE7, "x86-64-v3"),
    "Sapphire Rapids": (9, 0x600E7, "x86-64-v4-amx"),
    "Sapphire Rapids, tiles not granted": (9, 0x600E7, "x86-64-v4-vnni"),
    "Sapphire Rapids, system without tiles": (9, 0xE7, "x86-64-v4-vnni"),
    "Sapphire Rapids, system without data of tiles": (9, 0x200E7, "x86-64-v4-vnni"),
    "Sapphire Rapids, virtual without AMX": (8, 0x600E7, "x86-64-v4-vnni"),
    "Sapphire Rapids, system without AVX-512": (9, 0x07, "x86-64-v3-vnni"),
    "tiles without bfloat16": (10, 0x600E7, "x86-64-v4-vnni"),
}
"""Number in `FAKE`, XCR0, and the level that must be chosen."""


def chooser(built: Built, folder: Path, *defines: str) -> Path:
    """The C file that chooses, on a made-up CPU, with functions that tell which level they stand for."""
    text = (built.folder / "codegen" / "bytes_cpu0.c").read_text()
    text = text.replace("#include <cpuid.h>", FAKE)
    for asked, answer in ((r"\.byte", "low = xcr0;"), ("syscall", "result = refused;")):
        text, count = re.subn(rf'__asm__ volatile\("{asked}.*\);', answer, text)
        assert count == 1
    declared = re.findall(r"^int bytes_cpu0_x\w+_s0\(.*\);$", text, re.MULTILINE)
    assert len(declared) == len({*built.runs.values()})
    text += "".join(f"{line[:-1]} {{ return {100 + i}; }}\n" for i, line in enumerate(declared))
    text += '__attribute__((visibility("default"))) int call(void) { return bytes_cpu0_s0(0, 0, 0); }\n'
    text = text.replace("void set_cpu", '__attribute__((visibility("default"))) void set_cpu')
    (folder / "chooser.c").write_text(text)
    tools, options = find("gcc", Machine("native", "x86_64")), Options(opt_level="1")
    tools.compile(folder / "chooser.c", folder / "chooser.o", options, defines=defines)
    tools.link_shared([folder / "chooser.o"], folder / "chooser.so", options=options)
    return folder / "chooser.so"


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc's names of cpuid's bits")
def test_the_choice_on_every_kind_of_cpu(of_bytes: Built, tmp_path: Path) -> None:
    library = chooser(of_bytes, tmp_path)
    code = [*dict.fromkeys(of_bytes.runs.values())]
    for index, (cpu, (number, saved, wanted)) in enumerate(CPUS.items()):
        copy = shutil.copy(library, tmp_path / f"{index}.so")  # a fresh state
        handle = ctypes.CDLL(str(copy))
        handle.set_cpu(number, saved, -("not granted" in cpu))
        called = 100 + code.index(of_bytes.runs[wanted])
        assert handle.call() == called, cpu
        choose = handle.bytes_cpu0_isa_level
        assert choose(len(NAMES)) == NAMES.index(wanted), cpu
        handle.set_cpu(0, 0, 0)
        assert handle.call() == called, f"{cpu}: chosen once"
        handle.set_cpu(number, saved, 0)
        assert choose(0) == 0 and handle.call() == 100
        assert choose(-1) == NAMES.index(wanted)
        if wanted != NAMES[-1]:
            assert choose(len(NAMES) - 1) == NAMES.index(wanted), f"{cpu}: cannot run it"


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc's names of cpuid's bits")
def test_a_level_fixed_when_compiling(of_bytes: Built, tmp_path: Path) -> None:
    handle = ctypes.CDLL(str(chooser(of_bytes, tmp_path, "CUVIL_ISA_LEVEL=1")))
    handle.set_cpu(9, 0xE7, 0)
    assert handle.call() == 101
    assert handle.bytes_cpu0_isa_level(0) == 1


WITHOUT_TILES = """
import ctypes, sys
from ctypes import c_uint8, c_uint16, c_uint32
from pathlib import Path
import numpy as np
from cuvil.errors import CuvilError
from cuvil.session import Session

class Filter(ctypes.Structure):  # struct sock_filter
    _fields_ = [("code", c_uint16), ("jt", c_uint8), ("jf", c_uint8), ("k", c_uint32)]

class Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = [("length", c_uint16), ("filters", ctypes.POINTER(Filter))]

steps = [
    (0x20, 0, 0, 0),  # load the call's number
    (0x15, 0, 3, 158),  # arch_prctl, and
    (0x20, 0, 0, 16),  # its first argument
    (0x15, 0, 1, 0x1023),  # ARCH_REQ_XCOMP_PERM
    (0x06, 0, 0, 0x00050001),  # fails with EPERM
    (0x06, 0, 0, 0x7FFF0000),  # anything else goes on
]
program = Program(len(steps), (Filter * len(steps))(*(Filter(*s) for s in steps)))
libc = ctypes.CDLL(None)
libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
no_new_privileges, seccomp, by_filter = (38, 1), 22, 2
for call in ((*no_new_privileges, 0, 0, 0), (seccomp, by_filter, ctypes.addressof(program), 0, 0)):
    if libc.prctl(*call):
        sys.exit(77)
session = Session(Path(sys.argv[1]), Path(sys.argv[2]))
feeds = dict(np.load(sys.argv[3]))
try:
    (y,) = session.run(None, feeds)
    print(session.use_isa(None), y.tobytes().hex())
except CuvilError as error:
    print(error)
"""
"""A program in which the kernel refuses the tile registers: prints the level and the output's bytes, or the
error."""


def run_without_tiles(session: Session, feeds: Mapping[str, np.ndarray], folder: Path) -> str:
    """What `WITHOUT_TILES` prints of a library; skips where filters of system calls are not allowed."""
    np.savez(folder / "feeds.npz", **feeds)
    metadata = next(session.library.parent.rglob(f"{session.model}.json"))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TILES, session.library, metadata, folder / "feeds.npz"],
        capture_output=True, text=True, cwd=Path(cuvil.__file__).parents[1],
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("the system allows no filter of system calls")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


needs_tiles = pytest.mark.skipif("x86-64-v4-amx" not in runs_here(), reason="this CPU has no AMX")


@needs_tiles
def test_tiles_that_are_not_granted_are_not_chosen(of_floats: Built, tmp_path: Path) -> None:
    assert of_floats.session.use_isa("x86-64-v4-vnni") == "x86-64-v4-vnni"
    (wanted,) = of_floats.session.run(None, of_floats.feeds)
    printed = run_without_tiles(of_floats.session, of_floats.feeds, tmp_path)
    assert printed == f"x86-64-v4-vnni {wanted.tobytes().hex()}"


@needs_tiles
def test_a_library_for_tiles_alone_says_that_they_are_not_granted(of_floats: Built, tmp_path: Path) -> None:
    session = cuvil.compile(
        of_floats.folder.parent / "floats.onnx", target=generic("x86-64-v4-amx"), output=tmp_path / "out"
    )
    (got,) = session.run(None, of_floats.feeds)
    assert relative_error(got, of_floats.wanted) <= 1e-5
    printed = run_without_tiles(session, of_floats.feeds, tmp_path)
    assert "CUVIL_UNSUPPORTED" in printed, printed
