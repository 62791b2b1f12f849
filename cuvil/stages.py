"""The compile as a list of stages, each a pure function from files to files.

    import -> partition -> quantize -> codegen (per device) -> interface -> cc

SCons, the command line and `cuvil.compile` all run these functions, on the same folders
(`cuvil.artefacts`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cuvil import fsio
from cuvil.artefacts import Layout
from cuvil.codegen import abi, dispatch, program
from cuvil.codegen.tuned import claims
from cuvil.errors import CuvilError
from cuvil.frontend.binding import Shapes as Shapes
from cuvil.frontend.binding import Values as Values
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
from cuvil.schedule.plan import Schedule, schedule
from cuvil.target.schema import Target
from cuvil.toolchain.profile import compiler, cpu_devices, isa_levels, options

Progress = Callable[[str], None]


@expr.fresh()
def run_import(
    model: Path,
    out: Layout,
    shapes: Shapes | None = None,
    io_format: str = "nchw",
    values: Values | None = None,
) -> None:
    """Read, check and simplify a model into ``graph.onnx``.

    Args:
        shapes: sizes (or names) of dimensions, by input.
        io_format: ``nchw`` as the model has it, or ``nhwc`` for channels-last inputs and outputs.
        values: of inputs that become constants, by name.
    """
    graph = import_model(model, shapes, values)
    graph.name = out.model
    if io_format == "nhwc":
        simplify.channels_last(graph)
    elif io_format != "nchw":
        raise CuvilError("is no I/O format; nchw and nhwc are", repr(io_format))
    simplify.simplify(graph)
    write_model(graph, out.graph)


@expr.fresh()
def run_partition(out: Layout, target: Mapping[str, Any]) -> None:
    """Place the graph on the devices of the target's ``partition`` slice."""
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
    pieces = split_device_graph(graph, wanted)
    for piece in pieces.values():
        integer.rewrite(piece)

    def schedules(tuner: claims.TunedKernels | None) -> list[Schedule]:
        return [schedule(lower(piece), tuner) for piece in pieces.values()]

    stem, threads = out.stem(device), int(options.get("threads", 1))
    levels = {facts["isa"]: {**options, **facts} for facts in options.get("levels", ())}
    if not levels:
        only = schedules(claims.for_device(options) if tuned else None)
        return program.render([program.Part(s, f"{stem}_s{k}") for k, s in zip(pieces, only)], stem, threads)
    best = [*levels.values()][-1]

    def of_level(name: str) -> list[Schedule]:
        return schedules(claims.for_device(levels[name], best) if tuned else None)

    return dispatch.combine([*levels], of_level, [*pieces], stem, threads)


@expr.fresh()
def run_codegen(out: Layout, device: str, target: Mapping[str, Any], tuned: bool = True) -> None:
    """Generate the C, weights and plan of one device from the target's ``codegen`` slice; with
    `tuned` False from plain loops alone."""
    graph = read_model(out.quantized(device))
    code = device_code(graph, out, device, target["devices"][device], tuned)
    files = out.generated(device)
    fsio.write_bytes(files["bin"], code.weights)
    assembly = program.weights_assembly(code.weights_symbol, files["bin"].name) if code.weights_symbol else ""
    fsio.write_text(files["s"], assembly)
    fsio.write_text(files["c"], code.source)
    for level, source in code.levels.items():
        fsio.write_text(out.level_source(device, level), source)
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
    levels = {
        dispatch.function(out.stem(d)): [level["isa"] for level in plan["levels"]]
        for d, plan in plans.items()
        if "levels" in plan
    }
    prepared = sum(plan["prepared_bytes"] for plan in plans.values())
    made = abi.render(
        out.model, ordered, placed["inputs"], placed["outputs"], placed["tensors"], affinity, levels, prepared
    )
    bundles = {key: placed[key] for key in ("input_bundles", "output_bundles")}
    metadata = made.metadata | bundles | {"libm": any(p["libm"] for p in plans.values())}
    fsio.write_text(out.interface["c"], made.source)
    fsio.write_text(out.interface["h"], made.header)
    fsio.write_json(out.interface["json"], metadata)


def run_cc_level(
    out: Layout, device: str, level: str, target: Mapping[str, Any], progress: Progress | None = None
) -> None:
    """Compile a device's code for one of its instruction sets; `target` is the slice of that one."""
    cc = compiler(target, device, progress)
    cc.compile(out.level_source(device, level), out.level_object(device, level), options(target))


def run_cc_device(
    out: Layout, device: str, target: Mapping[str, Any], progress: Progress | None = None
) -> None:
    """Compile one device's code to its static and shared library; the code for each of several instruction
    sets has been compiled by `run_cc_level`."""
    chosen = device if device in cpu_devices(target) else None
    cc, opts, files = compiler(target, chosen, progress), options(target), out.generated(device)
    objects = out.objects(device, isa_levels(target, device))
    cc.compile(files["c"], objects[0], opts)
    cc.compile(files["s"], objects[1], opts)
    archive, shared = out.device_libraries(device)
    cc.archive(objects, archive)
    cc.link_shared(objects, shared, libs=("m", "pthread"), options=opts)


def run_cc_model(out: Layout, target: Mapping[str, Any], progress: Progress | None = None) -> None:
    """Compile the interface and link it with all devices' objects to the model's libraries."""
    cc, opts = compiler(target, None, progress), options(target)
    cc.compile(out.interface["c"], out.interface_object, opts)
    objects = [out.interface_object, *(o for d in out.devices for o in out.objects(d, isa_levels(target, d)))]
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
    values: Values | None = None,
) -> None:
    """Every stage, one after the other."""
    say = progress or (lambda text: None)
    say("import")
    run_import(model, out, shapes, io_format, values)
    say("partition")
    run_partition(out, target.slice("partition"))
    say("quantize")
    run_quantize(out, target.slice("quantize"), calibration, progress)
    for device in out.devices:
        say(f"codegen {device}")
        run_codegen(out, device, target.slice("codegen"), tuned)
    run_interface(out, target.slice("codegen"))
    _compile_levels(out, target, progress)
    for device in out.devices:
        say(f"cc {device}")
        run_cc_device(out, device, target.slice("cc"), progress)
    run_cc_model(out, target.slice("cc"), progress)


def _compile_levels(out: Layout, target: Target, progress: Progress | None) -> None:
    """`run_cc_level` for all that there are, at once: the work is done in the compiler's processes."""

    def run(of: tuple[str, str]) -> None:
        run_cc_level(out, *of, target.slice("cc", *of), progress)

    levels = [(d.name, level) for d in target.devices for level in d.isa_levels]
    if levels:
        (progress or (lambda text: None))(f"cc {', '.join(level for _, level in levels)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(run, of) for of in levels]:
            done.result()


def evaluator(model: str) -> quantizer.Evaluator:
    """A function that compiles graphs for this machine to run them; what calibration uses."""
    from cuvil.session import evaluate_graph

    return lambda graph: evaluate_graph(graph, model)
