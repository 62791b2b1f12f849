"""From a board profile's ``cc`` slice to a compiler and its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuvil.toolchain import compilers
from cuvil.toolchain.compilers import Progress
from cuvil.toolchain.machine import Machine


def machine(target: Mapping[str, Any], device: str | None = None) -> Machine:
    """The toolchain's machine for a device (the baseline of the triple where None)."""
    flags = target["devices"].get(device, {}).get("zig_flags", []) if device else []
    cpu = next((f.removeprefix("-mcpu=") for f in flags if f.startswith("-mcpu=")), "baseline")
    name, *features = cpu.split("+")
    return Machine(target["triple"], name, tuple(features))


def compiler(
    target: Mapping[str, Any], device: str | None = None, progress: Progress | None = None
) -> compilers.Compiler:
    """The compiler that the target's ``cc`` slice names, for one device."""
    return compilers.find(target["toolchain"]["compiler"], machine(target, device), progress)


def options(target: Mapping[str, Any]) -> compilers.Options:
    """Compiler options of the ``cc`` slice."""
    chain = target["toolchain"]
    return compilers.Options(
        opt_level=chain["optimization"].removeprefix("O"),
        resident=target["threaded"],
        flags=tuple(chain["flags"]),
    )


def isa_levels(target: Mapping[str, Any], device: str) -> tuple[str, ...]:
    """The instruction sets that a device of a ``cc`` slice has code for; none where it has but one."""
    return tuple(target["devices"][device].get("levels", ()))


def cpu_devices(target: Mapping[str, Any]) -> list[str]:
    """The devices of a ``cc`` slice that C is compiled for; the others have no back end yet."""
    return [d for d, v in target["devices"].items() if v["kind"] == "cpu"]
