"""What code is made for: a platform triple, a CPU, and features beyond that CPU.

Names are those of LLVM as zig spells them (``cortex_a72``, ``x86_64_v3``, ``avx512vnni``).  gcc and clang
want other spellings of the same things; the translation is here and nowhere else.
"""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path

from cuvil.errors import ToolchainError

DEFAULT_GLIBC = "2.28"
"""glibc that zig links against where the triple names none: that of RHEL 8 and of manylinux_2_28."""

_ARCH_ALIASES = {
    "amd64": "x86_64",
    "arm64": "aarch64",
    "i386": "x86",
    "i586": "x86",
    "i686": "x86",
    "armv6l": "arm",
    "armv7": "arm",
    "armv7a": "arm",
    "armv7l": "arm",
    "armv8l": "arm",
}
_VENDORS = ("unknown", "pc", "none")
_SYSTEMS = ("freestanding", "linux")
_BARE_GNU_TRIPLES = {"arm": "arm-none-eabi", "riscv64": "riscv64-unknown-elf"}
_AARCH64_GCC_FEATURES = {"fullfp16": "fp16", "neon": "simd", "fp_armv8": "fp"}
_CPUINFO_KEYS = (
    "vendor_id",
    "cpu family",
    "model",
    "flags",  # x86
    "CPU implementer",
    "CPU part",
    "Features",  # Arm
    "isa",
    "uarch",
)  # RISC-V


@dataclass(frozen=True)
class Machine:
    """One kind of processor with its operating system and C library.

    Args:
        triple: ``arch-os-abi`` as in ``aarch64-linux-gnu``; a vendor (``x86_64-unknown-linux-gnu``) is
            dropped, a glibc version may follow (``aarch64-linux-gnu.2.27``); ``native`` is the running
            machine.
        cpu: one LLVM CPU name, ``baseline`` for the architecture's least, ``native`` for the running CPU.
        features: LLVM feature names to add to the CPU, or to take away when preceded by ``-``.

    Raises:
        ToolchainError: a name is malformed, the operating system is not known, or ``native`` is asked of
            another architecture.
    """

    triple: str = "native"
    cpu: str = "native"
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "triple", _normalise(self.triple))
        for what, sign, names in (("cpu", "", (self.cpu,)), ("feature", "-?", self.features)):
            for name in names:
                if not re.fullmatch(rf"{sign}\w[\w.]*", name, re.ASCII):
                    raise ToolchainError(
                        f"{what} {name!r} is not a name of letters, digits, '_' and '.'", self.triple
                    )
        if self.cpu == "native" and not self.runs_here:
            raise ToolchainError(
                "cpu 'native' is that of another architecture, name one or use 'baseline'", self.triple
            )

    @property
    def arch(self) -> str:
        """``x86_64``, ``aarch64``, ``arm``, ``riscv64``, ..."""
        return self.triple.split("-")[0]

    @property
    def os(self) -> str:
        """``linux`` or ``freestanding``."""
        return self.triple.split("-")[1]

    @property
    def abi(self) -> str:
        """C library and calling convention without a version: ``gnu``, ``gnueabihf``, ``musl``, ``eabi``."""
        return self.triple.split("-")[2].split(".")[0]

    @property
    def pinned(self) -> bool:
        """Whether the triple names a version of the C library."""
        return "." in self.triple

    @property
    def runs_here(self) -> bool:
        """Whether the running machine executes Linux programs of this architecture itself."""
        same = self.arch == host_arch() or (self.arch, host_arch()) == ("x86", "x86_64")
        return same and self.os == "linux" and platform.system() == "Linux"

    @property
    def is_host(self) -> bool:
        """Whether architecture, operating system and C library are the running machine's."""
        return self.runs_here and f"{self.arch}-{self.os}-{self.abi}" == _normalise("native")

    @property
    def zig_triple(self) -> str:
        """The triple as zig wants it, with glibc's version pinned."""
        if self.arch == "arm" and self.os == "freestanding":
            return f"thumb-{self.os}-{self.abi}"
        if self.os == "linux" and self.abi.startswith("gnu") and not self.pinned:
            return f"{self.triple}.{DEFAULT_GLIBC}"
        return self.triple

    @property
    def gnu_triple(self) -> str:
        """The triple as GNU cross compilers are prefixed with it (``i686-linux-gnu``, ``arm-none-eabi``)."""
        if self.os == "freestanding":
            return _BARE_GNU_TRIPLES.get(self.arch, f"{self.arch}-none-elf")
        return f"{'i686' if self.arch == 'x86' else self.arch}-{self.os}-{self.abi}"

    @property
    def zig_cpu(self) -> str:
        """Value of zig's ``-mcpu``."""
        return self.cpu + "".join(f if f.startswith("-") else f"+{f}" for f in self.features)

    @property
    def gcc_flags(self) -> tuple[str, ...]:
        """The CPU and its features as the ``-march``, ``-mcpu`` and ``-m...`` options of gcc and clang.

        Raises:
            ToolchainError: the two have no regular spelling for features of this architecture.
        """
        cpu = self.cpu.replace("_", "-")
        removed = any(f.startswith("-") for f in self.features)
        if self.arch in ("x86", "x86_64"):
            names = [f.replace("sse4_", "sse4.").replace("_", "-") for f in self.features]
            return (
                *([] if cpu == "baseline" else [f"-march={cpu}"]),
                *(f"-mno-{name[1:]}" if name.startswith("-") else f"-m{name}" for name in names),
            )
        if self.arch == "aarch64":
            suffix = ""
            for feature in self.features:
                name = feature.removeprefix("-")
                name = _AARCH64_GCC_FEATURES.get(name, name).replace("_", "-")
                suffix += f"+no{name}" if feature.startswith("-") else f"+{name}"
            if cpu == "baseline":
                return (f"-march=armv8-a{suffix}",) if suffix else ()
            return (f"-mcpu={cpu}{suffix}",)
        if self.arch == "riscv64" and self.features and not removed:
            single = "".join(f for f in self.features if len(f) == 1)
            return ("-march=" + "_".join([f"rv64gc{single}", *(f for f in self.features if len(f) > 1)]),)
        if self.features:
            raise ToolchainError(
                f"features {', '.join(self.features)} have no form that gcc and clang "
                f"share, name a cpu that has them or use 'zig'",
                self.triple,
            )
        return () if cpu == "baseline" else (f"-mcpu={cpu}",)

    def musl(self) -> Machine:
        """The same with the musl C library: zig links its programs statically, they run without a sysroot."""
        if self.os != "linux":
            raise ToolchainError("only Linux has a C library to choose", self.triple)
        return replace(self, triple=f"{self.arch}-{self.os}-{self.abi.replace('gnu', 'musl')}")

    def identity(self) -> dict[str, object]:
        """What code for it depends on, JSON-like; CPU ``native`` is replaced by what the running one is."""
        return {
            "triple": self.triple,
            "cpu": host_cpu() if self.cpu == "native" else self.cpu,
            "features": list(self.features),
        }


def host_arch() -> str:
    """Architecture of the running machine in LLVM's spelling."""
    arch = platform.machine().lower()
    return _ARCH_ALIASES.get(arch, arch)


@functools.cache
def host_cpu() -> str:
    """Model and instruction sets of the running CPU in one line, equal where ``native`` code is equal."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    facts: dict[str, set[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in _CPUINFO_KEYS:
            facts.setdefault(key.strip(), set()).add(" ".join(sorted(value.split())))
    return "; ".join(f"{key}={'|'.join(sorted(facts[key]))}" for key in sorted(facts))


@functools.cache
def _normalise(triple: str) -> str:
    """``arch-os-abi`` for any accepted spelling of `triple`."""
    if triple == "native":
        if platform.system() != "Linux":
            raise ToolchainError(f"code is native on Linux only, not on {platform.system()}; name a triple")
        libc = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
        return f"{host_arch()}-linux-{libc}{'eabihf' if host_arch() == 'arm' else ''}"
    parts = triple.split("-")
    if len(parts) == 4 and parts[1] in _VENDORS:
        del parts[1]
    if (
        len(parts) != 3
        or not all(re.fullmatch(r"[a-z0-9_]+", part) for part in parts[:2])
        or not re.fullmatch(r"[a-z0-9_]+(\.\d+)*", parts[2])
    ):
        raise ToolchainError(f"triple {triple!r} is not of the form arch-os-abi, as in 'aarch64-linux-gnu'")
    arch, system, abi = parts
    if system == "none":  # arm-none-eabi, riscv64-unknown-none-elf
        system = "freestanding"
    if system not in _SYSTEMS:
        raise ToolchainError(f"operating system {system!r} is not one of {', '.join(_SYSTEMS)}", triple)
    return f"{_ARCH_ALIASES.get(arch, arch)}-{system}-{'none' if abi == 'elf' else abi}"
