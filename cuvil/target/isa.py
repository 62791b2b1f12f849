"""Instruction sets and triples: what the code generator and the compilers need to know of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

GPU_ISA = r"sm_[0-9]{2,3}a?|gfx[0-9a-f]{3,4}|[a-z][a-z0-9_.-]{0,31}"
"""How a GPU's or NPU's architecture is written: ``sm_53``, ``gfx1030``, ``rknpu2``, ``ethos-u55-128``."""

CPU_NAME = r"[a-z0-9_]+([+-][a-z0-9_]+)*"
"""A CPU as zig names it, with features: ``cortex_a57``, ``cortex_m7+fp_armv8d16sp``."""


@dataclass(frozen=True)
class Isa:
    """An instruction set of a CPU.

    Attributes:
        arch: the first word of its triples.
        vector_bits: width of a vector register; 0 without vectors.  RVV: the least VLEN allowed.
        vector_registers: architectural vector registers (floating-point ones where there are no vectors).
        fma: fused multiply-add of f32.
        dot_i8: int8 dot products that accumulate four products in an int32 lane.
        fma_units: f32 multiply-adds of full width that a usual core issues per cycle.
        zig_cpu: what ``zig cc -mcpu=`` is given.
        gcc: what selects the instruction set in gcc and clang.
        gcc_abi: flags that stay when a CPU's name replaces `gcc`.
        common: flags for every compiler.
    """

    name: str
    arch: str
    vector_bits: int
    vector_registers: int
    fma: bool
    dot_i8: bool
    fma_units: int
    zig_cpu: str
    gcc: tuple[str, ...]
    gcc_abi: tuple[str, ...] = ()
    common: tuple[str, ...] = ()

    @property
    def amx(self) -> bool:
        """Products of tiles of bfloat16 (AMX)."""
        return self.zig_cpu.endswith("+amx_bf16")


# clang halves its vectors on 512-bit machines unless it is told not to
_WIDE = "-mprefer-vector-width=512"
_NEON = "-mfloat-abi=hard -mfpu=neon"
_THUMB = "-mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16"
_RV64 = "generic_rv64+m+a+f+d+c"

# fmt: off
_TABLE = (
    # name, arch, vector bits and registers, fma, dot, fma units, zig_cpu, gcc, gcc_abi, common
    ("x86-64", "x86_64", 128, 16, False, False, 1, "x86_64", "-march=x86-64"),
    ("x86-64-v2", "x86_64", 128, 16, False, False, 1, "x86_64_v2", "-march=x86-64-v2"),
    ("x86-64-v3", "x86_64", 256, 16, True, False, 2, "x86_64_v3", "-march=x86-64-v3"),
    ("x86-64-v3-vnni", "x86_64", 256, 16, True, True, 2, "x86_64_v3+avxvnni", "-march=x86-64-v3 -mavxvnni"),
    ("x86-64-v4", "x86_64", 512, 32, True, False, 2, "x86_64_v4", "-march=x86-64-v4", "", _WIDE),
    ("x86-64-v4-vnni", "x86_64", 512, 32, True, True, 2, "x86_64_v4+avx512vnni",
     "-march=x86-64-v4 -mavx512vnni", "", _WIDE),
    ("x86-64-v4-amx", "x86_64", 512, 32, True, True, 2, "x86_64_v4+avx512vnni+amx_tile+amx_bf16",
     "-march=x86-64-v4 -mavx512vnni -mamx-tile -mamx-bf16", "", _WIDE),
    ("armv8-a", "aarch64", 128, 32, True, False, 1, "generic", "-march=armv8-a"),
    ("armv8.2-a", "aarch64", 128, 32, True, False, 1, "generic+v8_2a", "-march=armv8.2-a"),
    ("armv8.2-a-dotprod", "aarch64", 128, 32, True, True, 1, "generic+v8_2a+dotprod",
     "-march=armv8.2-a+dotprod"),
    ("armv8.6-a-i8mm", "aarch64", 128, 32, True, True, 2, "generic+v8_6a+dotprod+i8mm",
     "-march=armv8.6-a+dotprod+i8mm"),
    ("armv7a-neon", "arm", 128, 16, False, False, 1, "generic+v7a+neon", "-march=armv7-a", _NEON),
    ("armv7a-neon-vfpv4", "arm", 128, 16, True, False, 1, "generic+v7a+neon+vfp4",
     "-march=armv7-a", f"{_NEON}-vfpv4"),
    ("armv7e-m", "thumb", 0, 32, True, False, 1, "cortex_m4+vfp4d16sp", "-mcpu=cortex-m4", _THUMB),
    ("rv64gc", "riscv64", 0, 32, True, False, 1, _RV64, "-march=rv64gc", "-mabi=lp64d"),
    ("rv64gcv", "riscv64", 128, 32, True, False, 1, f"{_RV64}+v", "-march=rv64gcv", "-mabi=lp64d"),
)
# fmt: on

ISAS: dict[str, Isa] = {row[0]: Isa(*row[:8], *(tuple(flags.split()) for flags in row[8:])) for row in _TABLE}
"""Every instruction set that a CPU device may name."""

BASELINE = {
    "x86_64": "x86-64",
    "aarch64": "armv8-a",
    "arm": "armv7a-neon",
    "riscv64": "rv64gc",
    "thumb": "armv7e-m",
}
"""Architecture -> the instruction set that every machine of it has."""

FEATURES: dict[str, tuple[str, str]] = {
    "x86-64-v2": ("x86-64", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    "x86-64-v3": ("x86-64-v2", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    "x86-64-v3-vnni": ("x86-64-v3", "avx_vnni"),
    "x86-64-v4": ("x86-64-v3", "avx512f avx512bw avx512cd avx512dq avx512vl"),
    "x86-64-v4-vnni": ("x86-64-v4", "avx512_vnni"),
    "x86-64-v4-amx": ("x86-64-v4-vnni", "amx_tile amx_bf16"),
    "armv8.2-a": ("armv8-a", "asimd atomics asimdrdm crc32 dcpop"),
    "armv8.2-a-dotprod": ("armv8.2-a", "asimddp"),
    "armv8.6-a-i8mm": ("armv8.2-a-dotprod", "i8mm bf16 jscvt fcma lrcpc ilrcpc flagm flagm2 sb dcpodp"),
    "armv7a-neon-vfpv4": ("armv7a-neon", "neon vfpv4"),
    "rv64gcv": ("rv64gc", "v"),
}
"""Instruction set -> the one it builds on, and what it adds to it, in Linux' words (/proc/cpuinfo)."""

LEVELS = {"x86_64": ("x86-64", "x86-64-v3", "x86-64-v3-vnni", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-amx")}
"""Architecture -> the instruction sets that a library for every machine of it carries."""


def features(name: str) -> tuple[str, ...]:
    """What a CPU has beyond its architecture's baseline if it has the instruction set `name`."""
    if name not in FEATURES:
        return ()
    base, added = FEATURES[name]
    return *features(base), *added.split()


_ARCH_ALIASES = {
    "amd64": "x86_64",
    "arm64": "aarch64",
    "armv7": "arm",
    "armv7a": "arm",
    "armv7l": "arm",
    "armv8l": "arm",
}
_OS_ABIS = {
    "linux": ("gnu", "musl", "gnueabihf", "musleabihf"),
    "macos": ("none",),
    "windows": ("gnu",),
    "none": ("none", "eabihf"),
}
TRIPLE = r"[a-z0-9_]+(-(unknown|pc|none))?-(linux|macos|windows|none)(-[a-z]+)?(\.[0-9]+\.[0-9]+)?"
"""What a triple looks like: architecture, an optional vendor, system, ABI, glibc version."""


@dataclass(frozen=True)
class Triple:
    """Architecture, operating system and ABI, e.g. ``aarch64-linux-gnu.2.28``."""

    arch: str
    os: str
    abi: str
    glibc: str = ""

    @property
    def zig(self) -> str:
        """The triple as ``zig cc -target`` takes it."""
        system = "freestanding" if self.os == "none" else self.os
        return f"{self.arch}-{system}-{self.abi}" + (f".{self.glibc}" if self.glibc else "")

    @property
    def gnu(self) -> str:
        """The prefix of GNU tools: ``aarch64-linux-gnu`` for ``aarch64-linux-gnu-gcc``."""
        if self.os == "none":
            return "arm-none-eabi" if self.arch == "thumb" else f"{self.arch}-none-elf"
        return f"{self.arch}-{self.os}-{self.abi}"

    def __str__(self) -> str:
        return f"{self.arch}-{self.os}-{self.abi}" + (f".{self.glibc}" if self.glibc else "")


def parse_triple(text: str) -> Triple:
    """Read a triple, with or without a vendor: ``x86_64-unknown-linux-gnu``, ``aarch64-linux-musl``.

    Raises:
        ValueError: the text names what is allowed.
    """
    form = "a triple is ARCH-OS-ABI, e.g. aarch64-linux-gnu or x86_64-linux-gnu.2.28"
    match = re.fullmatch(
        r"([a-z0-9_]+)(?:-(?:unknown|pc))?-(?:none-)?(linux|macos|windows|none)(?:-([a-z]+))?"
        r"(?:\.([0-9]+\.[0-9]+))?",
        text,
    )
    if not match:
        raise ValueError(f"{text[:60]!r} is not a triple; {form}")
    arch, os, abi, glibc = _ARCH_ALIASES.get(match[1], match[1]), match[2], match[3], match[4] or ""
    if arch not in BASELINE:
        raise ValueError(f"unknown architecture {match[1][:30]!r}; allowed: {', '.join(BASELINE)}")
    hard_float = {"linux": "gnueabihf", "none": "eabihf"}.get(os, "") if arch in ("arm", "thumb") else ""
    abi = abi or hard_float or _OS_ABIS[os][0]
    abi = {"gnu": "gnueabihf", "musl": "musleabihf"}.get(abi, abi) if arch == "arm" and os == "linux" else abi
    if abi not in _OS_ABIS[os] or (abi.endswith("eabihf") != bool(hard_float)):
        raise ValueError(f"ABI {abi!r} does not go with {arch}-{os}; {form}")
    if glibc and not abi.startswith("gnu"):
        raise ValueError(f"a glibc version does not go with ABI {abi!r}")
    return Triple(arch, os, abi, glibc)


def zig_flags(triple: Triple, isa: Isa, cpu: str = "") -> tuple[str, ...]:
    """Flags that make ``zig cc`` compile for `isa`, or for the CPU of that name."""
    return "-target", triple.zig, f"-mcpu={cpu or isa.zig_cpu}", *isa.common


def gcc_flags(isa: Isa, cpu: str = "") -> tuple[str, ...]:
    """Flags that make gcc or clang compile for `isa`, or for the CPU of that name.

    `cpu` is named as zig does; its feature suffixes are left to `Isa.gcc_abi`.
    """
    if not cpu:
        return *isa.gcc, *isa.gcc_abi, *isa.common
    name = re.split(r"[+-]", cpu)[0]
    option = f"-march={name}" if isa.arch == "x86_64" else f"-mcpu={name.replace('_', '-')}"
    return (
        option,
        *(flag for flag in isa.gcc if not flag.startswith(("-march", "-mcpu"))),
        *isa.gcc_abi,
        *isa.common,
    )
