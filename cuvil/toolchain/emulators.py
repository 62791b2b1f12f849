"""Run programs built for a machine: directly where the CPU is of its architecture, else under qemu-user.

A statically linked program (zig with a musl triple, `Machine.musl`) needs nothing else.  A dynamically linked
one needs the target's loader; Debian's cross libraries in ``/usr/<triple>`` are used where they are there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cuvil.errors import ToolchainError
from cuvil.toolchain.machine import Machine

_QEMU_NAMES = {"x86": "i386", "powerpc64le": "ppc64le"}


def command(machine: Machine) -> list[str] | None:
    """What to put before a program of `machine` to run it here: nothing or an emulator; None: no way."""
    if machine.runs_here:
        return []
    if machine.os != "linux":
        return None
    name = f"qemu-{_QEMU_NAMES.get(machine.arch, machine.arch)}"
    path = shutil.which(name) or shutil.which(f"{name}-static")
    if path is None:
        return None
    has_vectors = machine.arch == "riscv64" and "v" in machine.features
    cpu = ["-cpu", "rv64,v=true,vext_spec=v1.0"] if has_vectors else []
    sysroot = Path("/usr", machine.gnu_triple)
    return [path, *cpu, *(["-L", str(sysroot)] if sysroot.is_dir() else [])]


def available(machine: Machine) -> bool:
    """Whether `run` has a way to run programs of `machine`."""
    return command(machine) is not None


def run(
    executable: str | os.PathLike[str],
    machine: Machine,
    args: Sequence[str] = (),
    stdin: bytes = b"",
    timeout: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end.

    Args:
        executable: the program.
        machine: what it was built for.
        args: its arguments.
        stdin: bytes that it reads.
        timeout: seconds after which it is killed.

    Returns:
        Its exit status and all that it wrote to stdout and stderr; a failing status is the caller's to judge.

    Raises:
        ToolchainError: there is no way to run it, it ran out of time, or it has an instruction that the CPU
            (the emulated one too) lacks.
    """
    prefix = command(machine)
    if prefix is None:
        how = f"install qemu-user for qemu-{machine.arch}" if machine.os == "linux" else "run it on the board"
        raise ToolchainError(f"no way to run programs for {machine.triple} here, {how}", str(executable))
    try:
        done = subprocess.run(
            [*prefix, os.path.abspath(executable), *args], input=stdin, capture_output=True, timeout=timeout
        )
    except OSError as error:
        raise ToolchainError(f"cannot be run: {error.strerror}", str(executable)) from error
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"did not end within {timeout:g} s", str(executable)) from error
    if done.returncode == -signal.SIGILL:
        raise ToolchainError(
            f"has an instruction for cpu {machine.zig_cpu!r} that the CPU here lacks", str(executable)
        )
    return done
