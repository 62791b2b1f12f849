"""The build of one model for one target as a list of steps, each one node of the build graph.

Nothing here knows SCons: a `Step` is a ``cuvil stage`` command, the files it reads and those it writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvil.artefacts import Layout
from cuvil.scons.project import Model
from cuvil.target.schema import Target
from cuvil.toolchain import profile
from cuvil.toolchain.compilers import Compiler


@dataclass(frozen=True)
class Step:
    """One run of a stage.

    Attributes:
        stage: the stage's name, of `stage_command.STAGES`.
        label: the model and where it will run: ``digits [host/cpu0]``.
        slice: what it reads of the board profile, JSON-like.
        options: further arguments that, with the inputs' contents, decide the outcome; no path is among them.
        paths: the arguments that say where the files are.
        inputs, outputs: all files that are read and written.
        device: the device it works for, "" for all.
        level: the instruction set it works for, "" for all that the device has.
        apart: it may take long and runs in a process of its own.
    """

    stage: str
    label: str
    slice: Mapping[str, Any]
    options: tuple[str, ...]
    paths: tuple[str, ...]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    device: str
    level: str
    apart: bool

    @property
    def title(self) -> str:
        """What a short command line shows: ``CODEGEN  digits [host/cpu0]``."""
        return f"{self.stage.upper():<8} {self.label}"

    @property
    def settings(self) -> tuple[str, ...]:
        """The arguments of ``cuvil stage`` but for paths: what the outcome depends on besides files."""
        content = json.dumps(self.slice, sort_keys=True, separators=(",", ":"))
        device = ("--device", self.device) if self.device else ()
        level = ("--level", self.level) if self.level else ()
        return (self.stage, *self.options, *device, *level, "--slice", content)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of ``cuvil stage``."""
        return (*self.settings, *self.paths)

    def toolchain(self) -> dict[str, object]:
        """Of a ``cc`` step: what of the compiler decides its outputs, without paths.

        Raises:
            ToolchainError: the compiler that the profile names is not there.
        """
        return self._compiler().identity(profile.options(self.slice))

    def compilation(self) -> dict[str, Any]:
        """Of a ``cc`` step: the compilation of its C file, as an entry of ``compile_commands.json``."""
        source, target = self.inputs[0], self.outputs[0]
        command = self._compiler().compile_command(source, target, profile.options(self.slice))
        folder, output = os.path.abspath(source.parent), os.path.abspath(target)
        return {"directory": folder, "file": source.name, "output": output, "arguments": command}

    def _compiler(self) -> Compiler:
        device = self.device if self.device in profile.cpu_devices(self.slice) else None
        return profile.compiler(self.slice, device)


def steps(out: Layout, target: Target, model: Model) -> list[Step]:
    """The steps that make all artefacts of `model` for `target` in `out`, in order."""
    result: list[Step] = []

    def add(
        stage: str,
        inputs: Iterable[Path],
        outputs: Iterable[Path],
        device: str = "",
        level: str = "",
        options: tuple[str, ...] = (),
        paths: tuple[str, ...] = (),
        apart: bool = False,
    ) -> None:
        label = f"{out.model} [{'/'.join(filter(None, (target.name, device, level)))}]"
        content = target.slice("codegen" if stage == "interface" else stage, device or None, level or None)
        known = ("--name", out.model, "--devices", ",".join(out.devices), *options)
        where = ("--folder", str(out.folder), *paths)
        files = tuple(inputs), tuple(outputs)
        result.append(Step(stage, label, content, known, where, *files, device, level, apart))

    levels = {d: target.device(d).isa_levels for d in out.devices}
    source, calibration = Path(model.path), Path(model.calibration)
    placed, quantized = [out.placed(d) for d in out.devices], [out.quantized(d) for d in out.devices]
    options: tuple[str, ...]
    options = ("--shapes", json.dumps(model.shapes, sort_keys=True), "--io-format", model.io_format)
    if model.values:
        options += ("--values", json.dumps(model.values, sort_keys=True))
    add("import", [source], [out.graph], options=options, paths=("--model", str(source)))
    add("partition", [out.graph], [out.partition, *placed])
    if any(target.mode(d) == "int8" for d in out.devices):
        data = [calibration] if model.calibration else []
        paths = ("--calibration", str(calibration)) if data else ()
        add("quantize", [out.graph, *placed, *data], [out.quantization, *quantized], paths=paths, apart=True)
    else:
        add("quantize", placed, [out.quantization, *quantized])
    for device in out.devices:
        generated = [*out.generated(device).values(), *(out.level_source(device, n) for n in levels[device])]
        add("codegen", [out.partition, out.quantized(device)], generated, device)
    plans = [out.generated(d)["plan"] for d in out.devices]
    add("interface", [out.partition, *plans], out.interface.values())
    for device in out.devices:
        for name in levels[device]:
            add("cc", [out.level_source(device, name)], [out.level_object(device, name)], device, name)
        sources = [out.generated(device)[k] for k in ("c", "s", "bin")]
        sources += [out.level_object(device, name) for name in levels[device]]
        add("cc", sources, [*out.objects(device), *out.device_libraries(device)], device)
    objects = [o for d in out.devices for o in out.objects(d, levels[d])]
    add("cc", [out.interface["c"], out.interface["h"], *objects], [out.interface_object, *out.libraries])
    return result
