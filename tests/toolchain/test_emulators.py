from __future__ import annotations

from pathlib import Path

import pytest

from cuvil.errors import ToolchainError
from cuvil.toolchain import compilers, emulators, symbols
from cuvil.toolchain.machine import Machine


def program(compiler: compilers.Compiler, sources: Path, out: Path, static: bool) -> Path:
    objects = []
    for name in ("main.c", "library.c", "weights.S"):
        objects.append(out / f"{name}.o")
        compiler.compile(
            sources / name, objects[-1], include_dirs=[sources / "include"], defines=["SHIFT=100"]
        )
    compiler.archive(objects[1:], out / "libsample.a")
    compiler.link_executable([objects[0], out / "libsample.a"], out / "main", static=static, libs=["m"])
    return out / "main"


def test_runs_here(sources: Path, tmp_path: Path) -> None:
    machine = Machine()
    assert emulators.command(machine) == [] and emulators.available(machine)
    exe = program(compilers.find("auto", machine), sources, tmp_path, static=False)
    done = emulators.run(exe, machine, ["word"], b"hello\n")
    assert (done.returncode, done.stdout) == (3, b"word 204 111 6\n")
    assert emulators.run(exe, machine).returncode == 9


@pytest.mark.parametrize(
    ("triple", "cpu", "arch"),
    [
        ("aarch64-linux-gnu", "cortex_a72", "aarch64"),
        ("arm-linux-gnueabihf", "cortex_a7", "arm"),
        pytest.param("riscv64-linux-gnu", "baseline", "riscv64", marks=pytest.mark.slow),
    ],
)
def test_cross_compiled_runs(triple: str, cpu: str, arch: str, sources: Path, tmp_path: Path) -> None:
    machine = Machine(triple, cpu).musl()
    compiler = compilers.find("zig", machine)
    compiler.compile(sources / "main.c", tmp_path / "main.o")
    assert symbols.read(tmp_path / "main.o")[0].arch == arch
    if not emulators.available(machine):
        pytest.skip(f"qemu-{machine.arch} is not installed (qemu-user)")
    exe = program(compiler, sources, tmp_path, static=True)
    assert symbols.read(exe)[0].needed == ()
    done = emulators.run(exe, machine, ["word"], b"hello\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"word 204 111 6\n", b"")


def test_no_way_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    foreign = Machine("s390x-linux-gnu", "baseline")
    assert not emulators.available(foreign)
    with pytest.raises(ToolchainError) as error:
        emulators.run("exe", foreign)
    assert str(error.value) == (
        "exe: no way to run programs for s390x-linux-gnu here, install qemu-user for qemu-s390x"
    )
    with pytest.raises(ToolchainError, match="arm-freestanding-eabi here, run it on the board"):
        emulators.run("exe", Machine("arm-none-eabi", "cortex_m4"))


def test_emulator_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("qemu-s390x-static", "qemu-riscv64"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", lambda self: self == Path("/usr/s390x-linux-gnu"))
    assert emulators.command(Machine("s390x-linux-gnu", "baseline")) == [
        str(tmp_path / "qemu-s390x-static"),
        "-L",
        "/usr/s390x-linux-gnu",
    ]
    assert emulators.command(Machine("riscv64-linux-musl", "baseline", ("v",))) == [
        str(tmp_path / "qemu-riscv64"),
        "-cpu",
        "rv64,v=true,vext_spec=v1.0",
    ]


def test_programs_that_do_not_end_well(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(ToolchainError, match="script: cannot be run: Permission denied"):
        emulators.run(script, Machine())
    script.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"script: did not end within 0.2 s"):
        emulators.run(script, Machine(), timeout=0.2)
    script.write_text("#!/bin/sh\nkill -ILL $$\n")
    with pytest.raises(ToolchainError, match="has an instruction for cpu 'native' that the CPU here lacks"):
        emulators.run(script, Machine())
