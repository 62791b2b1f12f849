from __future__ import annotations

import pytest

from cuvil.target import isa


@pytest.mark.parametrize(
    ("text", "zig", "gnu"),
    [
        ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu", "x86_64-linux-gnu"),
        ("aarch64-linux-gnu.2.28", "aarch64-linux-gnu.2.28", "aarch64-linux-gnu"),
        ("aarch64-none-linux-gnu", "aarch64-linux-gnu", "aarch64-linux-gnu"),
        ("armv7-unknown-linux-gnueabihf", "arm-linux-gnueabihf", "arm-linux-gnueabihf"),
        ("arm-linux-musl", "arm-linux-musleabihf", "arm-linux-musleabihf"),
        ("riscv64-linux-musl", "riscv64-linux-musl", "riscv64-linux-musl"),
        ("arm64-macos", "aarch64-macos-none", "aarch64-macos-none"),
        ("amd64-windows", "x86_64-windows-gnu", "x86_64-windows-gnu"),
        ("thumb-none-eabihf", "thumb-freestanding-eabihf", "arm-none-eabi"),
    ],
)
def test_triple(text: str, zig: str, gnu: str) -> None:
    triple = isa.parse_triple(text)
    assert (triple.zig, triple.gnu) == (zig, gnu)
    assert isa.parse_triple(str(triple)) == triple


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sparc-linux-gnu", "unknown architecture 'sparc'; allowed: x86_64, aarch64, arm, riscv64, thumb"),
        ("x86_64-linux-gnueabihf", "ABI 'gnueabihf' does not go with x86_64-linux"),
        ("x86_64-linux-musl.2.28", "a glibc version does not go with ABI 'musl'"),
        ("x86_64-plan9-gnu", "'x86_64-plan9-gnu' is not a triple"),
        ("../x86_64-linux-gnu", "'../x86_64-linux-gnu' is not a triple"),
    ],
)
def test_bad_triple(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        isa.parse_triple(text)
    assert str(caught.value).startswith(message)


def test_table() -> None:
    wide = isa.ISAS["x86-64-v4-vnni"]
    assert (wide.vector_bits, wide.vector_registers, wide.fma, wide.dot_i8) == (512, 32, True, True)
    assert [name for name, found in isa.ISAS.items() if found.amx] == ["x86-64-v4-amx"]
    assert not isa.ISAS["x86-64"].fma
    assert not isa.ISAS["x86-64-v4"].dot_i8
    assert {isa.ISAS[name].arch for name in isa.BASELINE.values()} == set(isa.BASELINE)


def test_flags() -> None:
    linux = isa.parse_triple("aarch64-linux-gnu")
    armv8 = isa.ISAS["armv8-a"]
    assert isa.zig_flags(linux, armv8) == ("-target", "aarch64-linux-gnu", "-mcpu=generic")
    assert isa.zig_flags(linux, armv8, "cortex_a57")[-1] == "-mcpu=cortex_a57"
    assert isa.gcc_flags(armv8, "cortex_a57") == ("-mcpu=cortex-a57",)
    assert isa.gcc_flags(isa.ISAS["x86-64-v4-vnni"]) == (
        "-march=x86-64-v4",
        "-mavx512vnni",
        "-mprefer-vector-width=512",
    )
    assert isa.gcc_flags(isa.ISAS["x86-64-v4-amx"])[1:4] == ("-mavx512vnni", "-mamx-tile", "-mamx-bf16")
    assert isa.ISAS["x86-64-v4-amx"].zig_cpu == "x86_64_v4+avx512vnni+amx_tile+amx_bf16"
    assert isa.gcc_flags(isa.ISAS["x86-64-v3"], "haswell") == ("-march=haswell",)
    assert isa.gcc_flags(isa.ISAS["armv7e-m"], "cortex_m7+fp_armv8d16sp")[0] == "-mcpu=cortex-m7"
    assert isa.gcc_flags(isa.ISAS["armv7a-neon-vfpv4"]) == (
        "-march=armv7-a",
        "-mfloat-abi=hard",
        "-mfpu=neon-vfpv4",
    )


def test_features_are_those_of_all_that_an_instruction_set_builds_on() -> None:
    assert isa.features("x86-64") == ()
    assert {"pni", "avx2", "avx512f"} <= {*isa.features("x86-64-v4")}
    assert "avx_vnni" not in isa.features("x86-64-v4-vnni")
    assert {*isa.features("x86-64-v4-amx")} - {*isa.features("x86-64-v4-vnni")} == {"amx_tile", "amx_bf16"}
    assert {name for name in isa.ISAS if not isa.features(name)} == {*isa.BASELINE.values()}
