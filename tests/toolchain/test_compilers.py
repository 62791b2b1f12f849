from __future__ import annotations

import _ctypes
import ctypes
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from conftest import write_sources

from cuvil.errors import ToolchainError
from cuvil.toolchain import compilers, emulators, symbols
from cuvil.toolchain.compilers import CompileError, Compiler, Options
from cuvil.toolchain.machine import Machine

BASELINE = Machine("native", "baseline")
FAMILIES = ("zig", "gcc", "clang")
PLAIN = Options()


def require(name: str, machine: Machine) -> Compiler:
    """The compiler, or a skipped test where the system has none of that name."""
    try:
        return compilers.find(name, machine)
    except ToolchainError as error:
        pytest.skip(str(error))


def build(compiler: Compiler, sources: Path, out: Path, options: Options = PLAIN) -> tuple[Path, Path]:
    """Compile the sample; returns the archive and the shared library."""
    objects = []
    for name in ("library.c", "weights.S"):
        objects.append(out / f"{name}.o")
        compiler.compile(
            sources / name, objects[-1], options, include_dirs=[sources / "include"], defines=["SHIFT=100"]
        )
    compiler.archive(objects, out / "libsample.a")
    compiler.link_shared(objects, out / "libsample.so", libs=["m"], options=options)
    return out / "libsample.a", out / "libsample.so"


@pytest.mark.parametrize("family", FAMILIES)
def test_library_computes(family: str, sources: Path, tmp_path: Path) -> None:
    compiler = require(family, Machine())
    archive, shared = build(compiler, sources, tmp_path / "out")
    library = ctypes.CDLL(str(shared))
    vector = (ctypes.c_float * 16)(*range(16))
    library.dot.restype = library.root.restype = ctypes.c_float
    library.root.argtypes = [ctypes.c_float]
    library.source.restype = library.header.restype = ctypes.c_char_p
    assert library.dot(vector, vector, 16) == sum(i * i for i in range(16))
    assert library.root(16.0) == 5.0
    assert [library.weight(i) for i in range(10)] == list(range(110, 120))
    assert library.source().removeprefix(b"./") == b"library.c"
    assert library.header().removeprefix(b"./") == b"api.h"
    assert symbols.defined(shared) == {"dot", "root", "weight", "source", "header"}
    assert [i.name for i in symbols.read(archive)] == ["library.c.o", "weights.S.o"]
    assert set(os.listdir(tmp_path / "out")) == {"library.c.o", "weights.S.o", "libsample.a", "libsample.so"}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not say what is mapped")
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_resident_library_stays_when_it_is_closed(
    family: str, resident: bool, sources: Path, tmp_path: Path
) -> None:
    compiler, options = require(family, BASELINE), Options(resident=resident)
    _, shared = build(compiler, sources, tmp_path / "out", options)
    library = ctypes.CDLL(str(shared))
    assert library.weight(0) == 110 and str(shared) in Path("/proc/self/maps").read_text()
    _ctypes.dlclose(library._handle)
    assert (str(shared) in Path("/proc/self/maps").read_text()) == resident
    assert ("-Wl,-z,nodelete" in str(compiler.identity(options))) == resident


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [PLAIN, Options(sanitize=("undefined",))], ids=["plain", "sanitized"])
def test_same_bytes_in_any_folder(
    family: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = require(family, BASELINE)
    if family == "zig" and options.sanitize:
        pytest.skip("zig brings no sanitizer runtime")
    made = []
    for folder, timezone in (("a", "UTC"), ("elsewhere/deep er", "Asia/Tokyo")):
        work = tmp_path / folder
        sources = write_sources(work / "src")
        monkeypatch.chdir(work)
        monkeypatch.setenv("TZ", timezone)
        os.utime(sources / "library.c", (time.time() - 1e6,) * 2)
        build(compiler, Path("src"), Path("out"), options)
        made.append({p.name: p.read_bytes() for p in (work / "out").iterdir()})
    assert made[0].keys() == {"library.c.o", "weights.S.o", "libsample.a", "libsample.so"}
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []
    assert not any(str(tmp_path).encode() in data for data in made[0].values())


@pytest.mark.parametrize("family", FAMILIES)
def test_edited_incbin_is_seen(family: str, sources: Path, tmp_path: Path) -> None:
    compiler = require(family, BASELINE)
    weights, objects = sources / "include" / "weights.bin", []
    for i, content in enumerate((b"first___", b"second__", b"first___")):
        weights.write_bytes(content)
        compiler.compile(sources / "weights.S", tmp_path / f"{i}.o", include_dirs=[weights.parent])
        objects.append((tmp_path / f"{i}.o").read_bytes())
        assert content in objects[-1]
    assert objects[0] == objects[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_failed_compile(family: str, tmp_path: Path) -> None:
    compiler = require(family, BASELINE)
    (tmp_path / "bad.c").write_text("int f(void) {\n    return nonsense;\n}\n")
    (tmp_path / "bad.o").write_bytes(b"old")
    with pytest.raises(CompileError) as error:
        compiler.compile(tmp_path / "bad.c", tmp_path / "bad.o")
    message = str(error.value)
    assert "could not compile bad.c: bad.c:2:12: error: " in message and "nonsense" in message
    assert "\n" not in message and str(tmp_path) not in message
    assert error.value.command[-4:-1] == ("-c", "bad.c", "-o") and "return nonsense;" in error.value.output
    assert sorted(os.listdir(tmp_path)) == ["bad.c", "bad.o"] and (tmp_path / "bad.o").read_bytes() == b"old"


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_library_must_be_complete(family: str, sources: Path, tmp_path: Path) -> None:
    compiler = require(family, BASELINE)
    compiler.compile(
        sources / "library.c", tmp_path / "library.o", include_dirs=[sources / "include"], defines=["SHIFT=0"]
    )
    with pytest.raises(CompileError, match=r"could not link libx\.so: .*weights"):
        compiler.link_shared([tmp_path / "library.o"], tmp_path / "libx.so", libs=["m"])
    assert not (tmp_path / "libx.so").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_contraction_is_a_choice(family: str, tmp_path: Path) -> None:
    """Of a*b - c, where c is a*b rounded, a fused operation leaves the rounding error, two leave zero."""
    compiler = require(family, Machine())
    (tmp_path / "fma.c").write_text(
        '__attribute__((visibility("default")))\nfloat f(float a, float b, float c) { return a * b - c; }\n'
    )
    result = {}
    for contract in ("fast", "off"):
        out = tmp_path / f"lib{contract}.so"
        options = Options(contract=contract)
        compiler.compile(tmp_path / "fma.c", out.with_suffix(".o"), options)
        compiler.link_shared([out.with_suffix(".o")], out, options=options)
        f = ctypes.CDLL(str(out)).f
        f.restype, f.argtypes = ctypes.c_float, [ctypes.c_float] * 3
        x = 1 + 2.0**-12
        result[contract] = f(x, x, ctypes.c_float(x * x).value)
    assert result["off"] == 0
    if "fma" in str(compiler.machine.identity()["cpu"]).split() or compiler.machine.arch == "aarch64":
        assert result["fast"] == 2.0**-24


@pytest.mark.parametrize(
    ("sanitizer", "body", "finding"),
    [
        ("address", "volatile int a[4] = {0}; return a[argc + 3];", b"stack-buffer-overflow"),
        ("undefined", "volatile int a = 0x7fffffff; return a + argc;", b"signed integer overflow"),
    ],
)
@pytest.mark.parametrize("family", ["gcc", "clang"])
def test_sanitizers_stop_the_program(
    family: str, sanitizer: str, body: str, finding: bytes, tmp_path: Path
) -> None:
    compiler = require(family, BASELINE)
    options = Options("1", sanitize=(sanitizer,))
    (tmp_path / "bug.c").write_text(f"int main(int argc, char **argv) {{ {body} }}\n")
    compiler.compile(tmp_path / "bug.c", tmp_path / "bug.o", options)
    try:
        compiler.link_executable([tmp_path / "bug.o"], tmp_path / "bug", options=options)
    except CompileError as error:
        pytest.skip(f"no sanitizer runtime: {error}")
    done = emulators.run(tmp_path / "bug", compiler.machine)
    assert done.returncode > 0 and finding in done.stderr and b"bug.c:1" in done.stderr


def test_bare_metal_objects(sources: Path, tmp_path: Path) -> None:
    compiler = compilers.find("zig", Machine("arm-none-eabihf", "cortex_m4", ("vfp4d16sp",)))
    (tmp_path / "m.c").write_text("float f(float a, float b) { return a * b; }\n")
    compiler.compile(tmp_path / "m.c", tmp_path / "m.o", Options("s"))
    compiler.archive([tmp_path / "m.o"], tmp_path / "libm.a")
    [image] = symbols.read(tmp_path / "libm.a")
    assert image.arch == "arm" and ".text.f" in {s.name for s in image.sections}
    assert symbols.undefined(tmp_path / "libm.a") == frozenset()  # no __aeabi_fmul, no __aeabi_unwind_cpp_pr0
    with pytest.raises(ToolchainError) as error:
        compiler.link_shared([tmp_path / "m.o"], tmp_path / "m.so")
    assert str(error.value) == "arm-freestanding-eabihf: has no shared libraries, use the static one"


def test_identity_tells_what_matters() -> None:
    zig = compilers.find("zig", BASELINE)
    base = zig.identity()
    assert str(base["compiler"]).startswith("ziglang ") or str(base["compiler"]).startswith("zig ")
    assert base == compilers.find("zig", Machine("native", "baseline")).identity()
    assert base != zig.identity(Options("s")) and base != zig.identity(Options(contract="off"))
    assert base != compilers.find("zig", Machine()).identity()
    assert "/" not in str(base)


def test_progress_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "PROGRESS_AFTER_S", 0.0)
    said: list[str] = []
    compiler = compilers.find("zig", BASELINE, said.append)
    (tmp_path / "a.c").write_text("int a;\n")
    compiler.compile(tmp_path / "a.c", tmp_path / "a.o")
    assert said == ["zig cc: compile a.c is still running"]


def test_auto_prefers_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilers.find("auto", Machine("sparc64-linux-gnu", "baseline")).family == "zig"
    assert compilers.find("auto", Machine(f"{BASELINE.triple}.2.30", "baseline")).family == "zig"
    gcc = tmp_path / "gcc"
    gcc.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"answers = {{'--version': 'gcc 12.0.0', '-dumpmachine': '{BASELINE.gnu_triple}',\n"
        "           '-dM': '#define __GNUC__ 12'}\n"
        "print(answers.get(sys.argv[1], 'fatal error: math.h: No such file'))\n"
        "sys.exit(sys.argv[1] not in answers)\n"
    )
    gcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compilers.find("gcc", BASELINE).version == "gcc 12.0.0"
    assert compilers.find("auto", BASELINE).family == "zig"
    gcc.unlink()
    assert compilers.find("auto", BASELINE).family == "zig"


def test_missing_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    messages = {}
    cross = Machine("s390x-linux-gnu", "z13")
    for name, machine in (("gcc", BASELINE), ("gcc", cross), ("clang", BASELINE), ("tcc", BASELINE)):
        with pytest.raises(ToolchainError) as error:
            compilers.find(name, machine)
        messages[name, machine] = str(error.value)
    assert messages == {
        ("gcc", BASELINE): "compiler 'gcc' is not on PATH; install it (Debian: gcc) or use 'zig'",
        ("gcc", cross): "compiler 's390x-linux-gnu-gcc' is not on PATH; "
        "install it (Debian: gcc-s390x-linux-gnu) or use 'zig'",
        ("clang", BASELINE): "compiler 'clang' is not on PATH; install it (Debian: clang) or use 'zig'",
        ("tcc", BASELINE): "compiler 'tcc' is not on PATH; give its path, or use 'zig', which always works",
    }
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: None)
    compilers._zig_binary.cache_clear()
    with pytest.raises(ToolchainError, match=r"^compiler 'zig' is not installed; run: pip install ziglang$"):
        compilers.find("zig", BASELINE)
    compilers._zig_binary.cache_clear()


def test_wrong_compilers(tmp_path: Path) -> None:
    gcc = require("gcc", BASELINE)
    other = Machine("aarch64-linux-gnu" if BASELINE.arch != "aarch64" else "x86_64-linux-gnu", "baseline")
    with pytest.raises(ToolchainError, match=f"makes {BASELINE.arch} code, not {other.arch}; name a cross"):
        compilers.find(gcc.command[0], other)
    true = shutil.which("true")
    assert true is not None
    with pytest.raises(ToolchainError, match=f"^{true}: is neither gcc nor clang$"):
        compilers.find(true, BASELINE)


def test_refused_uses(sources: Path, tmp_path: Path) -> None:
    zig = compilers.find("zig", BASELINE)
    with pytest.raises(ToolchainError, match="zig brings no sanitizer runtime, use gcc or clang"):
        zig.flags(Options(sanitize=("address",)))
    with pytest.raises(ToolchainError, match="opt_level '9' is not one of 0, 1, 2, 3, s, z"):
        Options("9")
    with pytest.raises(ToolchainError, match="sanitize 'memory' is not one of address, undefined, thread"):
        Options(sanitize=("memory",))
    with pytest.raises(ToolchainError, match="include: is neither C"):
        zig.compile_command(sources / "include", "x.o")
    with pytest.raises(ToolchainError, match=r"none\.c: no such source file"):
        zig.compile(sources / "none.c", tmp_path / "x.o")


def test_unknown_cpu_is_named(sources: Path, tmp_path: Path) -> None:
    zig = compilers.find("zig", Machine("aarch64-linux-gnu", "cortex_a9000"))
    with pytest.raises(CompileError, match=r"could not compile main\.c: .*error: .*cortex_a9000"):
        zig.compile(sources / "main.c", tmp_path / "x.o")


def test_zig_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "explicit"))
    assert compilers.zig_cache_folder() == tmp_path / "explicit"
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert compilers.zig_cache_folder() == tmp_path / "cache" / "cuvil" / "zig"
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(compilers.tempfile, "gettempdir", lambda: str(tmp_path))
    assert compilers.zig_cache_folder() == tmp_path / f"cuvil-zig-{os.getuid()}"
    monkeypatch.setattr(compilers.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    with pytest.raises(ToolchainError, match="needs a writable cache folder, set ZIG_GLOBAL_CACHE_DIR"):
        compilers.zig_cache_folder()
