"""Where the artefacts of a compile lie.

<out>/graph.onnx
<out>/partition/partition.json, <device>.onnx
<out>/quantize/quantization.json, <device>.onnx
<out>/codegen/<model>_<device>.c .bin .S, <device>.plan.json, <model>.c, <model>.h, <model>.json
<out>/codegen/<model>_<device>_<level>.c (where the device has several instruction sets)
<out>/obj/*.o
<out>/lib<model>_<device>.a .so, lib<model>.a .so
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuvil.codegen.names import identifier, level_stem, model_name
from cuvil.target.schema import Target


@dataclass(frozen=True)
class Layout:
    """Where the artefacts of one model for one target lie.

    Attributes:
        folder: the output folder.
        model: the model's identifier.
        devices: names of the target's devices, in the profile's order.
    """

    folder: Path
    model: str
    devices: tuple[str, ...]

    @property
    def graph(self) -> Path:
        return self.folder / "graph.onnx"

    @property
    def partition(self) -> Path:
        return self.folder / "partition" / "partition.json"

    @property
    def quantization(self) -> Path:
        return self.folder / "quantize" / "quantization.json"

    def placed(self, device: str) -> Path:
        return self.folder / "partition" / f"{device}.onnx"

    def quantized(self, device: str) -> Path:
        return self.folder / "quantize" / f"{device}.onnx"

    def stem(self, device: str) -> str:
        return f"{self.model}_{identifier(device)}"

    def generated(self, device: str) -> dict[str, Path]:
        """The files of a device's codegen: c, bin, s, plan."""
        base = self.folder / "codegen"
        return {
            "c": base / f"{self.stem(device)}.c",
            "bin": base / f"{self.stem(device)}.bin",
            "s": base / f"{self.stem(device)}_weights.S",
            "plan": base / f"{device}.plan.json",
        }

    def level_source(self, device: str, level: str) -> Path:
        """The C file of one of a device's instruction sets."""
        return self.folder / "codegen" / f"{level_stem(self.stem(device), level)}.c"

    def level_object(self, device: str, level: str) -> Path:
        return self.folder / "obj" / f"{level_stem(self.stem(device), level)}.o"

    @property
    def interface(self) -> dict[str, Path]:
        """The orchestrating file, the header and the metadata: c, h, json."""
        base = self.folder / "codegen"
        return {k: base / f"{self.model}.{k}" for k in ("c", "h", "json")}

    def objects(self, device: str, levels: Sequence[str] = ()) -> list[Path]:
        """The objects of a device: its code, its weights, its code for each of `levels`."""
        own = [self.folder / "obj" / f"{self.stem(device)}{suffix}.o" for suffix in ("", "_weights")]
        return own + [self.level_object(device, level) for level in levels]

    @property
    def interface_object(self) -> Path:
        return self.folder / "obj" / f"{self.model}.o"

    def device_libraries(self, device: str) -> list[Path]:
        return [self.folder / f"lib{self.stem(device)}{suffix}" for suffix in (".a", ".so")]

    @property
    def libraries(self) -> list[Path]:
        """lib<model>.a and lib<model>.so."""
        return [self.folder / f"lib{self.model}{suffix}" for suffix in (".a", ".so")]


def layout(folder: Path, model: str, target: Target) -> Layout:
    """The artefacts of `model` (any text) for `target` in `folder`."""
    return Layout(folder, model_name(model), tuple(d.name for d in target.devices))
