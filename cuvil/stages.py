"""The compile as a list of stages, each a pure function from files to files.

    import -> partition -> quantize -> codegen (per device) -> interface -> cc

SCons, the command line and `cuvil.compile` all run these functions, on the same folders:

    <out>/graph.onnx
    <out>/partition/partition.json, <device>.onnx
    <out>/quantize/quantization.json, <device>.onnx
    <out>/codegen/<model>_<device>.c .bin .S, <device>.plan.json, <model>.c, <model>.h, <model>.json
    <out>/lib<model>_<device>.a .so, lib<model>.a .so
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvil import fsio
from cuvil.codegen import abi, program
from cuvil.codegen.names import identifier, model_name
from cuvil.codegen.tuned import claims
from cuvil.errors import CuvilError
from cuvil.frontend.importer import import_model
from cuvil.frontend.onnx_reader import read_model
from cuvil.frontend.onnx_writer import write_model
from cuvil.ir import expr
from cuvil.ir.graph import Graph
from cuvil.partition import partitioner
from cuvil.partition.segments import device_graph, split_device_graph
from cuvil.quantize import dynamic, quantizer
from cuvil.rewrite import integer, simplify
from cuvil.schedule.lower import lower
from cuvil.schedule.plan import schedule
from cuvil.target.schema import Target
from cuvil.toolchain import compilers
from cuvil.toolchain.machine import Machine

Shapes = Mapping[str, Sequence[int | str]]
Progress = Callable[[str], None]

MODULES = {
    "import": ("cuvil.frontend.importer", "cuvil.rewrite.simplify", "cuvil.frontend.onnx_writer"),
    "partition": ("cuvil.partition.partitioner",),
    "quantize": ("cuvil.quantize.quantizer", "cuvil.quantize.dynamic", "cuvil.session"),
    "codegen": (
        "cuvil.rewrite.integer",
        "cuvil.schedule.lower",
        "cuvil.schedule.plan",
        "cuvil.codegen.tuned.claims",
        "cuvil.codegen.program",
    ),
    "interface": ("cuvil.codegen.abi",),
    "cc": ("cuvil.toolchain.compilers",),
}
"""The modules at the root of each stage; a build depends on the digest of all they import."""


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

    @property
    def interface(self) -> dict[str, Path]:
        """The orchestrating file, the header and the metadata: c, h, json."""
        base = self.folder / "codegen"
        return {k: base / f"{self.model}.{k}" for k in ("c", "h", "json")}

    def objects(self, device: str) -> list[Path]:
        return [self.folder / "obj" / f"{self.stem(device)}{suffix}.o" for suffix in ("", "_weights")]

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


def run_import(model: Path, out: Layout, shapes: Shapes | None = None, io_format: str = "nchw") -> None:
    """Read, check and simplify a model into ``graph.onnx``.

    Args:
        shapes: sizes (or names) of dimensions, by input.
        io_format: ``nchw`` as the model has it, or ``nhwc`` for channels-last inputs and outputs.
    """
    expr.clear()
    graph = import_model(model, shapes)
    graph.name = out.model
    if io_format == "nhwc":
        simplify.channels_last(graph)
    elif io_format != "nchw":
        raise CuvilError("is no I/O format; nchw and nhwc are", repr(io_format))
    simplify.simplify(graph)
    write_model(graph, out.graph)


def run_partition(out: Layout, target: Mapping[str, Any]) -> None:
    """Place the graph on the devices of the target's ``partition`` slice."""
    expr.clear()
    graph = read_model(out.graph)
    result = partitioner.partition(graph, target)
    for device in out.devices:
        write_model(device_graph(graph, result.segments, device, out.model), out.placed(device))
    fsio.write_json(out.partition, result.to_json(graph))


def run_quantize(
    out: Layout,
    target: Mapping[str, Any],
    calibration: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Put every device's graph into its arithmetic: as it is, or int8 in QDQ form."""
    modes: Mapping[str, str] = target["modes"]
    report: dict[str, Any] = {"modes": dict(modes), "tensors": {}, "layers": {}}
    if any(modes.get(d) == "int8" for d in out.devices):
        graph = read_model(out.graph)
        placed = {d: read_model(out.placed(d)) for d in out.devices}
        if calibration is None:
            (progress or (lambda text: None))("quantize: no calibration data, ranges are found at run time")
            report |= dynamic.quantize(placed, target)
        else:
            run = evaluator(out.model)
            report |= quantizer.quantize(graph, placed, target, calibration, run, progress)
        for device, g in placed.items():
            write_model(g, out.quantized(device))
    else:
        for device in out.devices:
            fsio.write_bytes(out.quantized(device), out.placed(device).read_bytes())
    fsio.write_json(out.quantization, report)


def device_code(
    graph: Graph, out: Layout, device: str, options: Mapping[str, Any], tuned: bool = True
) -> program.DeviceCode:
    """The code of one device for its graph and its part of the ``codegen`` slice."""
    placed = json.loads(out.partition.read_text())
    wanted = {k: s for k, s in enumerate(placed["segments"]) if s["device"] == device}
    parts = []
    tuner = claims.for_device(options) if tuned else None
    for k, piece in split_device_graph(graph, wanted).items():
        integer.rewrite(piece)
        result = schedule(lower(piece), tuner)
        parts.append(program.Part(result, f"{out.stem(device)}_s{k}"))
    return program.render(parts, out.stem(device), int(options.get("threads", 1)))


def run_codegen(out: Layout, device: str, target: Mapping[str, Any], tuned: bool = True) -> None:
    """Generate the C, weights and plan of one device from the target's ``codegen`` slice; with
    `tuned` False from plain loops alone."""
    expr.clear()
    graph = read_model(out.quantized(device))
    code = device_code(graph, out, device, target["devices"][device], tuned)
    files = out.generated(device)
    fsio.write_bytes(files["bin"], code.weights)
    assembly = program.weights_assembly(code.weights_symbol, files["bin"].name) if code.weights_symbol else ""
    fsio.write_text(files["s"], assembly)
    fsio.write_text(files["c"], code.source)
    fsio.write_json(files["plan"], code.plan)


def run_interface(out: Layout, target: Mapping[str, Any]) -> None:
    """Generate the header and the C file that runs all devices' segments in order."""
    placed = json.loads(out.partition.read_text())
    plans = {d: json.loads(out.generated(d)["plan"].read_text()) for d in out.devices}
    by_symbol = {s["symbol"]: s for plan in plans.values() for s in plan["segments"]}
    ordered = [by_symbol[f"{out.stem(s['device'])}_s{k}"] for k, s in enumerate(placed["segments"])]
    devices = [s["device"] for s in placed["segments"]]
    several = len({*devices}) > 1
    affinity = [target["devices"][d].get("cpus", []) if several else [] for d in devices]
    made = abi.render(out.model, ordered, placed["inputs"], placed["outputs"], affinity)
    metadata = made.metadata | {"libm": any(p["libm"] for p in plans.values())}
    fsio.write_text(out.interface["c"], made.source)
    fsio.write_text(out.interface["h"], made.header)
    fsio.write_json(out.interface["json"], metadata)


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
    return compilers.Options(opt_level=chain["optimization"].removeprefix("O"), flags=tuple(chain["flags"]))


def cpu_devices(target: Mapping[str, Any]) -> list[str]:
    """The devices of a ``cc`` slice that C is compiled for; the others have no back end yet."""
    return [d for d, v in target["devices"].items() if v["kind"] == "cpu"]


def run_cc_device(
    out: Layout, device: str, target: Mapping[str, Any], progress: Progress | None = None
) -> None:
    """Compile one device's code to its static and shared library."""
    chosen = device if device in cpu_devices(target) else None
    cc, opts, files = compiler(target, chosen, progress), options(target), out.generated(device)
    objects = out.objects(device)
    cc.compile(files["c"], objects[0], opts)
    cc.compile(files["s"], objects[1], opts)
    archive, shared = out.device_libraries(device)
    cc.archive(objects, archive)
    cc.link_shared(objects, shared, libs=("m", "pthread"), options=opts)


def run_cc_model(out: Layout, target: Mapping[str, Any], progress: Progress | None = None) -> None:
    """Compile the interface and link it with all devices' objects to the model's libraries."""
    cc, opts = compiler(target, None, progress), options(target)
    cc.compile(out.interface["c"], out.interface_object, opts)
    objects = [out.interface_object, *(o for d in out.devices for o in out.objects(d))]
    archive, shared = out.libraries
    cc.archive(objects, archive)
    cc.link_shared(objects, shared, libs=("m", "pthread"), options=opts)


def run_all(
    model: Path,
    out: Layout,
    target: Target,
    shapes: Shapes | None = None,
    io_format: str = "nchw",
    calibration: Path | None = None,
    progress: Progress | None = None,
    tuned: bool = True,
) -> None:
    """Every stage, one after the other."""
    say = progress or (lambda text: None)
    say("import")
    run_import(model, out, shapes, io_format)
    say("partition")
    run_partition(out, target.slice("partition"))
    say("quantize")
    run_quantize(out, target.slice("quantize"), calibration, progress)
    for device in out.devices:
        say(f"codegen {device}")
        run_codegen(out, device, target.slice("codegen"), tuned)
    run_interface(out, target.slice("codegen"))
    for device in out.devices:
        say(f"cc {device}")
        run_cc_device(out, device, target.slice("cc"), progress)
    run_cc_model(out, target.slice("cc"), progress)


def evaluator(model: str) -> quantizer.Evaluator:
    """A function that compiles graphs for this machine to run them; what calibration uses."""
    from cuvil.session import evaluate_graph

    return lambda graph: evaluate_graph(graph, model)
