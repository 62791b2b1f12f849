"""C compilers, assemblers, archivers and linkers, behind one interface.

`find` returns a `Compiler` for a `Machine`.  Families:

- ``zig``: clang with C libraries for every target in one Python package (`ziglang`); always works.
- ``gcc``, ``clang``: the system's; for another platform gcc is looked for as ``aarch64-linux-gnu-gcc``,
  clang is given ``--target``.  Any other name that is a command (``gcc-13``) is asked what it is.
- ``auto``: for the platform of the running machine the first of gcc, clang, zig that links a small library
  for the machine's CPU; for every other machine, and where a glibc version is named, zig.

Outputs are the same bytes whatever the current folder, the time and the folders of sources and outputs:
every command runs in its source's folder, paths are mapped away, nothing is dated.  They are made under a
temporary name and moved into place, so no output is ever half written.

zig's own object cache does not notice an edited ``.incbin`` file (0.17.1) and would serve old weights, so
every command gets an empty local cache.  The C libraries that zig builds at the first link for a target
(seconds to a minute) stay in `zig_cache_folder`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cuvil.errors import ToolchainError
from cuvil.toolchain.machine import Machine

StrPath = str | os.PathLike[str]
Progress = Callable[[str], None]

PROGRESS_AFTER_S = 2.0
"""Seconds after which a running command is reported to the progress hook."""

OPT_LEVELS = ("0", "1", "2", "3", "s", "z")
SANITIZERS = ("address", "undefined", "thread")

_C_FLAGS = (
    "-std=gnu11",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fno-stack-protector",
    "-fno-ident",
    "-U_FORTIFY_SOURCE",
)
_FREESTANDING_FLAGS = (
    "-ffreestanding",
    "-fno-pic",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    "-fshort-enums",
    "-ffunction-sections",
    "-fdata-sections",
)
_LINK_FLAGS = ("-Wl,--build-id=none", "-Wl,--as-needed", "-Wl,-z,relro", "-Wl,-z,noexecstack")


class CompileError(ToolchainError):
    """A tool ran and failed.

    Args:
        message: one line for the user.
        command: the whole command.
        output: everything that the tool printed.
    """

    def __init__(self, message: str, command: Sequence[str], output: str) -> None:
        super().__init__(message)
        self.command = tuple(command)
        self.output = output


@dataclass(frozen=True)
class Options:
    """How code is compiled, the same for all sources of a library.

    Args:
        opt_level: one of `OPT_LEVELS`.
        contract: ``fast`` lets a multiplication and an addition become one fused operation, ``off`` does not,
            so that every compiler gives the same bits.
        sanitize: of `SANITIZERS`; gcc and clang only. The program stops at the first finding.
        strip: leave the symbols that are not exported out of linked outputs.
        resident: shared libraries stay in memory when closed, as those with threads of their own must.
        flags: further compiler flags, last.

    Raises:
        ToolchainError: a value that is not allowed.
    """

    opt_level: str = "3"
    contract: Literal["fast", "off"] = "fast"
    sanitize: tuple[str, ...] = ()
    strip: bool = True
    resident: bool = False
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, values, allowed in (
            ("opt_level", (self.opt_level,), OPT_LEVELS),
            ("contract", (self.contract,), ("fast", "off")),
            ("sanitize", self.sanitize, SANITIZERS),
        ):
            for value in values:
                if value not in allowed:
                    raise ToolchainError(f"{what} {value!r} is not one of {', '.join(allowed)}")


@dataclass(frozen=True)
class Compiler:
    """A compiler that was found, bound to the machine that it makes code for.

    All methods raise `CompileError` when the tool fails, and leave no output then.
    """

    family: Literal["zig", "gcc", "clang"]
    command: tuple[str, ...]
    machine: Machine
    progress: Progress | None = field(default=None, compare=False)

    @property
    def version(self) -> str:
        """Name and version, e.g. ``ziglang 0.17.1`` or ``gcc 12.2.0 (Debian 12.2.0-14+deb12u1)``."""
        return _version(self.family, self.command)

    def identity(self, options: Options = Options()) -> dict[str, object]:
        """All that decides outputs besides the sources, JSON-like, without paths, for a build's signature."""
        return {
            "compiler": self.version,
            "machine": self.machine.identity(),
            "compile": list(self.flags(options)),
            "link": [*self._link_flags(options), *self._shared_flags(options)],
        }

    def flags(self, options: Options = Options(), *, assembly: bool = False) -> tuple[str, ...]:
        """Flags of one compilation, without defines, folders and files."""
        sanitize = options.sanitize
        if sanitize and self.family == "zig":
            raise ToolchainError("zig brings no sanitizer runtime, use gcc or clang to sanitize")
        flags = list(self._machine_flags(baseline=False))
        if assembly:
            return (*flags, "-g0", "-Wa,--noexecstack")
        flags += [
            *_C_FLAGS,
            f"-O{options.opt_level}",
            f"-ffp-contract={options.contract}",
            "-g1" if sanitize else "-g0",
        ]
        if self.machine.os == "freestanding":
            flags += _FREESTANDING_FLAGS
        if self.machine.arch in ("x86", "x86_64"):
            flags.append("-mprefer-vector-width=512")
        if self.family == "zig":
            flags.append("-fno-sanitize=undefined")
        if sanitize:
            flags += [
                f"-fsanitize={','.join(sanitize)}",
                "-fno-sanitize-recover=all",
                "-fno-omit-frame-pointer",
            ]
        return (*flags, *options.flags)

    def compile_command(
        self,
        source: StrPath,
        object: StrPath,
        options: Options = Options(),
        *,
        include_dirs: Sequence[StrPath] = (),
        defines: Sequence[str] = (),
    ) -> list[str]:
        """The command that compiles `source`; it must run in `source`'s folder."""
        source = _absolute(source)
        assembly = source.suffix in (".s", ".S")
        if not assembly and source.suffix != ".c":
            raise ToolchainError("is neither C (.c) nor assembler (.s, .S)", str(source))
        folders = [str(_absolute(d)) for d in include_dirs]
        command = [*self.command, *self.flags(options, assembly=assembly)]
        if not assembly:  # later maps win, and a folder sorts before those in it
            command += [f"-ffile-prefix-map={d}=." for d in sorted({str(source.parent), *folders})]
        if source.suffix != ".s":
            command += [f"-D{d}" for d in defines]
        return [*command, *(f"-I{d}" for d in folders), "-c", source.name, "-o", str(_absolute(object))]

    def compile(
        self,
        source: StrPath,
        object: StrPath,
        options: Options = Options(),
        *,
        include_dirs: Sequence[StrPath] = (),
        defines: Sequence[str] = (),
    ) -> None:
        """Compile one C (``.c``) or assembler (``.s``, preprocessed ``.S``) file.

        Args:
            source: the file; ``.incbin`` and ``#include`` look beside it and in `include_dirs`.
            object: the object file to write.
            options: as for the rest of the library.
            include_dirs: folders.
            defines: ``NAME`` or ``NAME=VALUE``.
        """
        source = _absolute(source)
        if not source.is_file():
            raise ToolchainError("no such source file", str(source))
        with _output(object) as temporary:
            command = self.compile_command(
                source, temporary, options, include_dirs=include_dirs, defines=defines
            )
            self._run(command, source.parent, temporary.parent, f"compile {source.name}")

    def archive(self, objects: Sequence[StrPath], library: StrPath) -> None:
        """Put object files into a static library, in the given order, without dates and owners."""
        with _output(library) as temporary:
            command = [*self._archiver(), "qcsD", str(temporary), *_strings(objects)]
            self._run(command, temporary.parent, temporary.parent, f"archive {Path(library).name}")

    def link_shared(
        self,
        objects: Sequence[StrPath],
        library: StrPath,
        soname: str | None = None,
        *,
        libs: Sequence[str] = (),
        options: Options = Options(),
    ) -> None:
        """Link objects and archives into a shared library that leaves no symbol undefined.

        Args:
            objects: objects and archives in link order.
            library: the file to write.
            soname: the name that programs will ask for; the file's name by default.
            libs: system libraries without ``lib`` (``m``); recorded only where they are needed.
            options: `sanitize`, `strip` and `resident` matter.
        """
        if self.machine.os == "freestanding":
            raise ToolchainError("has no shared libraries, use the static one", self.machine.triple)
        extra = [f"-Wl,-soname,{soname or Path(library).name}", *self._shared_flags(options)]
        self._link(objects, library, extra, libs, options)

    def link_executable(
        self,
        objects: Sequence[StrPath],
        executable: StrPath,
        *,
        libs: Sequence[str] = (),
        static: bool = False,
        options: Options = Options(),
    ) -> None:
        """Link objects and archives into a program; with zig, `static` needs a musl machine."""
        if static and self.family == "zig" and self.machine.abi.startswith("gnu"):
            raise ToolchainError("zig links glibc dynamically only, use the musl triple", self.machine.triple)
        self._link(objects, executable, ["-static"] if static else [], libs, options)

    def _link(
        self,
        objects: Sequence[StrPath],
        output: StrPath,
        extra: list[str],
        libs: Sequence[str],
        options: Options,
    ) -> None:
        with _output(output) as temporary:
            command = [
                *self.command,
                *self._link_flags(options),
                *extra,
                *_strings(objects),
                *(f"-l{name}" for name in libs),
                "-o",
                str(temporary),
            ]
            self._run(command, temporary.parent, temporary.parent, f"link {Path(output).name}")

    def _link_flags(self, options: Options) -> tuple[str, ...]:
        sanitize = [f"-fsanitize={','.join(options.sanitize)}"] if options.sanitize else []
        strip = ["-s"] if options.strip and not options.sanitize else []
        return (*self._machine_flags(baseline=True), *_LINK_FLAGS, *sanitize, *strip)

    def _shared_flags(self, options: Options) -> tuple[str, ...]:
        by_program = bool(options.sanitize) and self.family == "clang"  # which then brings the sanitizer
        complete = () if by_program else ("-Wl,-z,defs",)
        return ("-shared", *complete, *(["-Wl,-z,nodelete"] if options.resident else []))

    def _machine_flags(self, *, baseline: bool) -> tuple[str, ...]:
        """Target and CPU; `baseline`, for linking, has zig build one C library a triple, not one a CPU."""
        machine = self.machine
        if self.family == "zig":
            return ("-target", machine.zig_triple, f"-mcpu={'baseline' if baseline else machine.zig_cpu}")
        target = (f"--target={machine.gnu_triple}",) if self.family == "clang" else ()
        bare_arm = (
            ("-mthumb", f"-mfloat-abi={'hard' if machine.abi.endswith('hf') else 'soft'}")
            if (machine.arch, machine.os) == ("arm", "freestanding")
            else ()
        )
        of_cpu = (self.family, machine.arch) == ("gcc", "arm") and machine.cpu != "baseline"
        return (*target, *bare_arm, *machine.gcc_flags, *(["-mfpu=auto"] if of_cpu else []))

    def _archiver(self) -> list[str]:
        if self.family == "zig":
            return [self.command[0], "ar"]
        for name in (f"{self.machine.gnu_triple}-ar", "ar", "llvm-ar"):
            if path := shutil.which(name):
                return [path]
        raise ToolchainError("no archiver: none of ar, llvm-ar is on PATH; install binutils or use zig")

    def _run(self, command: Sequence[str], cwd: Path, scratch: Path, what: str) -> None:
        env = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
        if self.family == "zig":
            env["ZIG_GLOBAL_CACHE_DIR"] = str(zig_cache_folder())
            env["ZIG_LOCAL_CACHE_DIR"] = str(scratch / "cache")
        tool = f"zig {command[1]}" if self.family == "zig" else Path(command[0]).name
        try:
            with subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                try:
                    output = self._wait(process, f"{tool}: {what}")
                except BaseException:
                    process.kill()
                    raise
        except OSError as error:
            raise ToolchainError(f"cannot run {tool}: {error.strerror}", command[0]) from error
        if process.returncode:
            text = output.decode("utf-8", errors="replace").replace(f"{scratch}{os.sep}", "")
            reason = _gist(text) if process.returncode > 0 else f"killed by signal {-process.returncode}"
            raise CompileError(f"{tool} could not {what}: {reason}", command, text)

    def _wait(self, process: subprocess.Popen[bytes], what: str) -> bytes:
        if self.progress:
            try:
                return process.communicate(timeout=PROGRESS_AFTER_S)[0]
            except subprocess.TimeoutExpired:
                first_link = self.family == "zig" and ": link" in what
                self.progress(
                    f"{what} is still running"
                    + (
                        ", the first for a target builds its C library in up to a minute"
                        if first_link
                        else ""
                    )
                )
        return process.communicate()[0]


def find(name: str, machine: Machine, progress: Progress | None = None) -> Compiler:
    """The compiler called `name` for `machine`.

    Args:
        name: ``auto``, ``zig``, ``gcc``, ``clang``, or a command that is a gcc or a clang.
        machine: what it is to make code for.
        progress: called with one line when a command takes longer than `PROGRESS_AFTER_S`.

    Raises:
        ToolchainError: it is not there, or makes code for another architecture; the message says what to do.
    """
    if name == "auto":
        return _find_auto(machine, progress)
    if name == "zig":
        return Compiler("zig", (_zig_binary(), "cc"), machine, progress)
    command, hint = name, "give its path, or use 'zig', which always works"
    if name == "gcc":
        package = "gcc" if machine.is_host else f"gcc-{machine.gnu_triple}"
        command = "gcc" if machine.is_host else f"{machine.gnu_triple}-gcc"
        hint = f"install it (Debian: {package}) or use 'zig'"
    elif name == "clang":
        hint = "install it (Debian: clang) or use 'zig'"
    path = shutil.which(command)
    if path is None:
        raise ToolchainError(f"compiler {command!r} is not on PATH; {hint}")
    family = _family(path)
    if family == "gcc":
        arch = _stdout((path, "-dumpmachine")).split("-")[0]
        if arch != machine.gnu_triple.split("-")[0]:
            raise ToolchainError(
                f"compiler {command!r} makes {arch} code, not {machine.arch}; "
                f"name a cross compiler or use 'zig'"
            )
    return Compiler(family, (path,), machine, progress)


def zig_cache_folder() -> Path:
    """Where zig keeps the C libraries it builds: ``ZIG_GLOBAL_CACHE_DIR``, else a folder of the user's cache.

    Raises:
        ToolchainError: no folder can be made that is the user's own.
    """
    if explicit := os.environ.get("ZIG_GLOBAL_CACHE_DIR"):
        return _absolute(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in (Path(base, "cuvil", "zig"), Path(tempfile.gettempdir(), f"cuvil-zig-{os.getuid()}")):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.stat(folder).st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            continue
    raise ToolchainError("zig needs a writable cache folder, set ZIG_GLOBAL_CACHE_DIR to one")


def _find_auto(machine: Machine, progress: Progress | None) -> Compiler:
    if machine.is_host and not machine.pinned:
        for name in ("gcc", "clang"):
            try:
                compiler = find(name, machine, progress)
            except ToolchainError:
                continue
            if _works(compiler):
                return compiler
    return find("zig", machine, progress)


@functools.cache
def _works(compiler: Compiler) -> bool:
    """Whether the compiler knows the machine's CPU, has the C library's headers, and links."""
    with tempfile.TemporaryDirectory(prefix="cuvil-") as name:
        source, object, library = (Path(name, file) for file in ("probe.c", "probe.o", "libprobe.so"))
        source.write_text("#include <math.h>\nfloat probe(float x) { return expf(x); }\n", encoding="utf-8")
        try:
            compiler.compile(source, object)
            compiler.link_shared([object], library, libs=["m"])
        except ToolchainError:
            return False
    return True


@functools.cache
def _zig_binary() -> str:
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("zig", "zig.exe"):
            if os.access(os.path.join(folder, name), os.X_OK):
                return os.path.abspath(os.path.join(folder, name))
    if path := shutil.which("zig"):
        return path
    raise ToolchainError("compiler 'zig' is not installed; run: pip install ziglang")


def _family(path: str) -> Literal["gcc", "clang"]:
    macros = _stdout((path, "-dM", "-E", "-x", "c", os.devnull))
    if "__clang__" in macros:
        return "clang"
    if "__GNUC__" in macros:
        return "gcc"
    raise ToolchainError("is neither gcc nor clang", path)


@functools.cache
def _version(family: str, command: tuple[str, ...]) -> str:
    if family == "zig":
        name = "ziglang" if "ziglang" in Path(command[0]).parts else "zig"
        return f"{name} {_stdout((command[0], 'version')).strip()}"
    first = _stdout((*command, "--version")).splitlines()[0]
    number = re.findall(r"\d+(?:\.\d+)+", first)
    vendor = re.search(r"\(([^()]*)\)", first)
    return f"{family} {number[-1] if number else first}{f' ({vendor[1]})' if vendor else ''}"


@functools.cache
def _stdout(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            check=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainError(f"cannot run {shlex.join(command)}: {error}") from error


@contextmanager
def _output(path: StrPath) -> Iterator[Path]:
    """A path to write, alone in a scratch folder, that is moved to `path` when the block ends well."""
    path = _absolute(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        yield Path(folder, path.name)
        os.replace(Path(folder, path.name), path)


def _gist(text: str) -> str:
    """The first lines of a compiler's output that say what is wrong, as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|undefined reference|cannot find", line, re.I)]
    return " | ".join((errors or lines)[:3])[:400] or "it gave no reason"


def _absolute(path: StrPath) -> Path:
    return Path(os.path.abspath(path))


def _strings(paths: Sequence[StrPath]) -> list[str]:
    return [str(_absolute(p)) for p in paths]
