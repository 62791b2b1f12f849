from __future__ import annotations

import platform

import pytest

from cuvil.errors import ToolchainError
from cuvil.toolchain.machine import Machine, host_arch, host_cpu


@pytest.mark.parametrize(
    ("given", "triple", "zig", "gnu"),
    [
        ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu", "x86_64-linux-gnu.2.28", "x86_64-linux-gnu"),
        ("aarch64-linux-gnu.2.27", "aarch64-linux-gnu.2.27", "aarch64-linux-gnu.2.27", "aarch64-linux-gnu"),
        ("arm64-linux-musl", "aarch64-linux-musl", "aarch64-linux-musl", "aarch64-linux-musl"),
        (
            "armv7-unknown-linux-gnueabihf",
            "arm-linux-gnueabihf",
            "arm-linux-gnueabihf.2.28",
            "arm-linux-gnueabihf",
        ),
        ("i686-pc-linux-gnu", "x86-linux-gnu", "x86-linux-gnu.2.28", "i686-linux-gnu"),
        ("arm-none-eabihf", "arm-freestanding-eabihf", "thumb-freestanding-eabihf", "arm-none-eabi"),
        (
            "riscv64-unknown-none-elf",
            "riscv64-freestanding-none",
            "riscv64-freestanding-none",
            "riscv64-unknown-elf",
        ),
    ],
)
def test_triples(given: str, triple: str, zig: str, gnu: str) -> None:
    machine = Machine(given, "baseline")
    assert (machine.triple, machine.zig_triple, machine.gnu_triple) == (triple, zig, gnu)


@pytest.mark.parametrize(
    ("machine", "zig", "gcc"),
    [
        (Machine("x86_64-linux-gnu", "x86_64_v3"), "x86_64_v3", ("-march=x86-64-v3",)),
        (
            Machine("x86_64-linux-gnu", "skylake_avx512", ("avx512vnni", "-sse4_2")),
            "skylake_avx512+avx512vnni-sse4_2",
            ("-march=skylake-avx512", "-mavx512vnni", "-mno-sse4.2"),
        ),
        (Machine("x86_64-linux-gnu", "baseline"), "baseline", ()),
        (
            Machine("aarch64-linux-gnu", "cortex_a76", ("fullfp16", "-crypto")),
            "cortex_a76+fullfp16-crypto",
            ("-mcpu=cortex-a76+fp16+nocrypto",),
        ),
        (
            Machine("aarch64-linux-gnu", "baseline", ("dotprod",)),
            "baseline+dotprod",
            ("-march=armv8-a+dotprod",),
        ),
        (Machine("arm-linux-gnueabihf", "cortex_a7"), "cortex_a7", ("-mcpu=cortex-a7",)),
        (
            Machine("riscv64-linux-musl", "baseline", ("v", "zba", "zbb")),
            "baseline+v+zba+zbb",
            ("-march=rv64gcv_zba_zbb",),
        ),
    ],
)
def test_cpu_names(machine: Machine, zig: str, gcc: tuple[str, ...]) -> None:
    assert (machine.zig_cpu, machine.gcc_flags) == (zig, gcc)


def test_native_is_the_running_machine() -> None:
    machine = Machine()
    assert machine.runs_here and machine.is_host
    assert machine.triple == f"{host_arch()}-linux-{'gnu' if platform.libc_ver()[0] == 'glibc' else 'musl'}"
    assert machine.identity()["cpu"] == host_cpu() != "native"
    assert "flags=" in host_cpu() or "Features=" in host_cpu() or "isa=" in host_cpu()


def test_musl_keeps_the_rest() -> None:
    machine = Machine("arm-linux-gnueabihf.2.27", "cortex_a7", ("neon",))
    assert machine.musl() == Machine("arm-linux-musleabihf", "cortex_a7", ("neon",))
    with pytest.raises(ToolchainError, match="arm-freestanding-eabi: only Linux has a C library to choose"):
        Machine("arm-none-eabi", "cortex_m4").musl()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("linux",), "triple 'linux' is not of the form arch-os-abi, as in 'aarch64-linux-gnu'"),
        (
            ("x86_64-linux-gnu -fplugin=x", "baseline"),
            "triple 'x86_64-linux-gnu -fplugin=x' is not of the form arch-os-abi, as in 'aarch64-linux-gnu'",
        ),
        (
            ("x86_64-windows-gnu", "baseline"),
            "x86_64-windows-gnu: operating system 'windows' is not one of freestanding, linux",
        ),
        (
            ("aarch64-linux-gnu", "-o/etc/x"),
            "aarch64-linux-gnu: cpu '-o/etc/x' is not a name of letters, digits, '_' and '.'",
        ),
        (
            ("aarch64-linux-gnu", "cortex_a72", ("dotprod crypto",)),
            "aarch64-linux-gnu: feature 'dotprod crypto' is not a name of letters, digits, '_' and '.'",
        ),
        (
            ("s390x-linux-gnu",),
            "s390x-linux-gnu: cpu 'native' is that of another architecture, name one or use 'baseline'",
        ),
    ],
)
def test_malformed(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ToolchainError) as error:
        Machine(*arguments)
    assert str(error.value) == message


def test_features_without_a_gcc_form() -> None:
    with pytest.raises(ToolchainError, match="features vfp4d16sp have no form that gcc and clang share"):
        _ = Machine("arm-none-eabihf", "cortex_m4", ("vfp4d16sp",)).gcc_flags
