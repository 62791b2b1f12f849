"""The build of one model for one target as a list of steps, each one node of the build graph.

Nothing here knows SCons: a `Step` is a ``cuvil stage`` command, the files it reads and those it writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvil import stages
from cuvil.scons.project import Model
from cuvil.stages import Layout
from cuvil.target.schema import Target


@dataclass(frozen=True)
class Step:
    """One run of a stage.

    Attributes:
        stage: the stage's name, of `stage_command.STAGES`.
        label: the model and where it will run: ``digits [host/cpu0]``.
        options: the arguments that, with the inputs' contents, decide the outcome; no path is among them.
        paths: the arguments that say where the files are.
        inputs, outputs: all files that are read and written.
        device: the device it works for, "" for all.
        apart: it may take long and runs in a process of its own.
    """

    stage: str
    label: str
    options: tuple[str, ...]
    paths: tuple[str, ...]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    device: str = ""
    apart: bool = False

    @property
    def title(self) -> str:
        """What a short command line shows: ``CODEGEN  digits [host/cpu0]``."""
        return f"{self.stage.upper():<8} {self.label}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of ``cuvil stage``."""
        return (self.stage, *self.options, *self.paths)


def steps(out: Layout, target: Target, model: Model) -> list[Step]:
    """The steps that make all artefacts of `model` for `target` in `out`, in order."""
    result: list[Step] = []

    def add(
        stage: str,
        inputs: Iterable[Path],
        outputs: Iterable[Path],
        device: str = "",
        options: tuple[str, ...] = (),
        paths: tuple[str, ...] = (),
        apart: bool = False,
    ) -> None:
        known = ("--name", out.model, "--devices", ",".join(out.devices))
        if stage != "import":
            kind = "codegen" if stage == "interface" else stage
            content = target.slice(kind, device or None)
            known += ("--slice", json.dumps(content, sort_keys=True, separators=(",", ":")))
        if device:
            known += ("--device", device)
        label = f"{out.model} [{target.name}{'/' if device else ''}{device}]"
        where = ("--folder", str(out.folder), *paths)
        result.append(
            Step(stage, label, (*known, *options), where, tuple(inputs), tuple(outputs), device, apart)
        )

    source, calibration = Path(model.path), Path(model.calibration)
    placed, quantized = [out.placed(d) for d in out.devices], [out.quantized(d) for d in out.devices]
    shapes = {name: list(shape) for name, shape in model.shapes.items()}
    options = ("--shapes", json.dumps(shapes, sort_keys=True)) if shapes else ()
    options += ("--io-format", model.io_format) if model.io_format != "nchw" else ()
    add("import", [source], [out.graph], options=options, paths=("--model", str(source)))
    add("partition", [out.graph], [out.partition, *placed])
    if any(target.mode(d) == "int8" for d in out.devices):
        data = [calibration] if model.calibration else []
        paths = ("--calibration", str(calibration)) if data else ()
        add("quantize", [out.graph, *placed, *data], [out.quantization, *quantized], paths=paths, apart=True)
    else:
        add("quantize", placed, [out.quantization, *quantized])
    for device in out.devices:
        generated = out.generated(device)
        add("codegen", [out.partition, out.quantized(device)], generated.values(), device)
    plans = [out.generated(d)["plan"] for d in out.devices]
    add("interface", [out.partition, *plans], out.interface.values())
    for device in out.devices:
        sources = [out.generated(device)[k] for k in ("c", "s", "bin")]
        add("cc", sources, [*out.objects(device), *out.device_libraries(device)], device)
    objects = [o for d in out.devices for o in out.objects(d)]
    add("cc", [out.interface["c"], out.interface["h"], *objects], [out.interface_object, *out.libraries])
    return result


def compile_commands(out: Layout, target: Target) -> list[dict[str, Any]]:
    """The compilations of `out`'s C files, as entries of ``compile_commands.json``."""
    content = target.slice("cc")
    options, cpus = stages.options(content), stages.cpu_devices(content)
    found = [(d if d in cpus else None, out.generated(d)["c"], out.objects(d)[0]) for d in out.devices]
    found.append((None, out.interface["c"], out.interface_object))
    return [
        {
            "directory": os.path.abspath(source.parent),
            "file": source.name,
            "output": os.path.abspath(target_file),
            "arguments": stages.compiler(content, device).compile_command(source, target_file, options),
        }
        for device, source, target_file in found
    ]


def toolchain(target: Target, device: str) -> dict[str, object]:
    """What of the compiler decides the objects of `device` (of the interface where empty), without paths."""
    content = target.slice("cc")
    chosen = device if device in stages.cpu_devices(content) else None
    return stages.compiler(content, chosen).identity(stages.options(content))
