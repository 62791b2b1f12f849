"""What the commands of the command line do: arguments in, JSON-like data out, nothing printed.

`cuvil.cli` parses the arguments and prints the data, as JSON or through `cuvil.report`.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from cuvil import fsio
from cuvil.errors import CuvilError
from cuvil.target import profiles

if TYPE_CHECKING:  # loaded where they are needed, so that light commands start fast
    from cuvil.artefacts import Layout
    from cuvil.ir.graph import Graph, TensorType
    from cuvil.report.verify import Subject
    from cuvil.stages import Progress
    from cuvil.target.schema import Target

Shape = tuple["int | str", ...]

Binding = Union[Shape, Sequence[Shape], None]
"""The shape of a tensor, the shapes of a sequence's items, or None for an absent optional."""

PROJECT_FILE = "cuvil.yaml"


@dataclass(frozen=True)
class Job:
    """A model, the target it is compiled for, and how.

    Attributes:
        model: the ``.onnx`` file.
        target: a profile's name, file or triple.
        shapes: sizes or names of dimensions, by input; lists of them for sequences, None for absent
            optionals.
        values: of inputs that become constants, by name.
        io_format: ``nchw`` or ``nhwc``.
        quantization: ``none``, ``int8``, or ``profile`` for what the profile says.
        calibration: an ``.npz`` file with samples by input.
        threads: on every CPU; what the profile says where None.
        accuracy: ``default`` or ``strict`` on every device; what the profile says where None.
        tuned: False switches the tuned kernels off.
        keep: the folder that keeps all artefacts; a temporary one where None.
    """

    model: Path
    target: str = "host"
    shapes: Mapping[str, Binding] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    io_format: str = "nchw"
    quantization: str = "profile"
    calibration: Path | None = None
    threads: int | None = None
    accuracy: str | None = None
    tuned: bool = True
    keep: Path | None = None


@dataclass(frozen=True)
class Work:
    """A job about to run: its folder, its target, the shapes with the batch bound, and notes for the user."""

    job: Job
    out: Layout
    target: Target
    shapes: Mapping[str, Binding]
    notes: tuple[str, ...]


def project_folder() -> Path:
    """The nearest folder upwards from the current one that has a project file; else the current one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / PROJECT_FILE).is_file()), here)


def profile_folders() -> list[Path]:
    """Where profiles are looked for: the project's folders, those that come with Cuvil, and ``targets/``."""
    folder, usual = project_folder(), profiles.default_folders()
    if (folder / PROJECT_FILE).is_file():
        from cuvil.scons import project

        usual = project.read(folder / PROJECT_FILE).profile_folders()
    return [path for path in dict.fromkeys([*usual, folder / "targets"]) if path.is_dir()]


@contextlib.contextmanager
def opened(job: Job) -> Iterator[Work]:
    """The job's target and folder; a temporary folder is removed at the end.

    Raises:
        CuvilError: no such model or target, or another build runs in the folder.
    """
    from cuvil import artefacts
    from cuvil.scons.project import configured
    from cuvil.target.schema import load

    target = configured(load(job.target, profile_folders()), job.quantization, job.threads, job.accuracy)
    shapes, notes = _bind_batch(job)
    integer = any(target.mode(d.name) == "int8" for d in target.devices if d.kind == "cpu")
    if job.calibration and not integer:
        notes.append("the calibration data are not used: no device computes in int8")
    elif integer and not job.calibration:
        notes.append("no calibration data: ranges are found at run time; --calibration makes int8 faster")
    if job.keep:
        with fsio.build_lock(job.keep):
            yield Work(job, artefacts.layout(job.keep, job.model.stem, target), target, shapes, tuple(notes))
        return
    with tempfile.TemporaryDirectory(prefix="cuvil-") as folder:
        yield Work(job, artefacts.layout(Path(folder), job.model.stem, target), target, shapes, tuple(notes))


def _bind_batch(job: Job) -> tuple[dict[str, Binding], list[str]]:
    """The job's shapes, with the symbolic first axis of every other input bound to 1, and notes on that."""
    from cuvil.frontend.onnx_reader import read_model

    graph = read_model(job.model, job.shapes, job.values)
    shapes, notes = dict(job.shapes), []
    declared = {name: graph.types[name].shape or () for name in graph.inputs}
    bound = {*shapes, *(item for bundle in graph.input_bundles for item in bundle.items or ())}
    asked = {dim for name in bound for dim in declared.get(name, ()) if isinstance(dim, str)}
    for name, shape in declared.items():
        if name in bound or not shape or not isinstance(shape[0], str) or shape[0] in asked:
            continue
        shapes[name] = (1, *shape[1:])
        kept = ",".join(map(str, shape))
        notes.append(f"batch '{shape[0]}' of '{name}' bound to 1; --shape {name}={kept} keeps it")
    return shapes, notes


def build(work: Work, progress: Progress | None = None) -> None:
    """Run every stage."""
    from cuvil import stages

    job = work.job
    stages.run_all(
        job.model,
        work.out,
        work.target,
        work.shapes,
        job.io_format,
        job.calibration,
        progress,
        job.tuned,
        job.values,
    )


def compile_library(job: Job, output: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Compile the job's model into the library `output`, with its header and metadata beside it.

    Args:
        output: the library; an archive where its name ends in ``.a``, a shared library otherwise.

    Raises:
        CuvilError: what is wrong with the model, the target or the toolchain.
    """
    from cuvil.toolchain import profile

    if output.is_dir() or output.suffix in (".h", ".json"):
        raise CuvilError("is no name for a library; libinfer.so and libinfer.a are", f"--output {output}")
    header, metadata = output.with_suffix(".h"), output.with_suffix(".json")
    with opened(job) as work:
        out = work.out
        build(work, progress)
        header_text = out.interface["h"].read_text(encoding="utf-8")
        result = {
            "library": str(output),
            "header": str(header),
            "metadata": str(metadata),
            "target": work.target.name,
            "triple": str(work.target.triple),
            **_contents(out, work.target),
            "prototype": _prototype(header_text, "infer"),
            "notes": list(work.notes),
        }
        if output.suffix == ".a":
            fsio.write_bytes(output, out.libraries[0].read_bytes())
        else:  # linked anew, so that the library's own name is the one asked for
            chain = work.target.slice("cc")
            levels = {d.name: d.isa_levels for d in work.target.devices}
            objects = [out.interface_object, *(o for d in out.devices for o in out.objects(d, levels[d]))]
            linker, options = profile.compiler(chain, None, progress), profile.options(chain)
            linker.link_shared(objects, output, libs=("m",), options=options)
        fsio.write_text(header, header_text)
        fsio.write_bytes(metadata, out.interface["json"].read_bytes())
    return result | {"library_bytes": output.stat().st_size}


def partition(job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """Who runs what: devices with their nodes, segments in order, transfers, what is left out and why."""
    from cuvil.frontend.onnx_reader import read_model

    with opened(job) as work:
        run_until(work, "partition", progress)
        placed = _json(work.out.partition)
        nodes = read_model(work.out.graph).nodes
        segments = [
            {
                "device": s["device"],
                "nodes": [nodes[i].name or nodes[i].outputs[0] for i in s["nodes"]],
                "operators": [nodes[i].op for i in s["nodes"]],
                "inputs": s["inputs"],
                "outputs": s["outputs"],
            }
            for s in placed["segments"]
        ]
        return {
            **{key: value for key, value in placed.items() if key not in ("inputs", "outputs", "segments")},
            "target": work.target.name,
            "devices": _devices(work.target, placed),
            "segments": segments,
            "notes": list(work.notes),
        }


def cost(job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """The predicted latency with its interval, by kernel, and the transfers between devices."""
    with opened(job) as work:
        run_until(work, "quantize", progress)
        return {
            "model": work.out.model,
            "target": work.target.name,
            **_estimate(work),
            "notes": _cost_notes(work),
        }


def _estimate(work: Work) -> dict[str, Any]:
    """The prediction for the kernels that will run, of the graphs that the quantize stage has left."""
    from cuvil.cost import estimate
    from cuvil.frontend.onnx_reader import read_model
    from cuvil.ir import expr
    from cuvil.partition.segments import Segment, split_device_graph

    expr.clear()
    out, board = work.out, work.target.slice("partition")
    placed = _json(out.partition)["segments"]
    pieces: dict[int, Graph] = {}
    for device in dict.fromkeys(s["device"] for s in placed):
        mine = {k: s for k, s in enumerate(placed) if s["device"] == device}
        pieces |= split_device_graph(read_model(out.quantized(device)), mine)
    parts = [
        (
            estimate.machine_of(board, s["device"]),
            estimate.scheduled(pieces[k], board, s["device"], work.job.tuned),
        )
        for k, s in enumerate(placed)
    ]
    segments = [
        Segment(s["device"], tuple(s["nodes"]), tuple(s["inputs"]), tuple(s["outputs"])) for s in placed
    ]
    moved = estimate.crossing(read_model(out.graph), board, segments, {})
    return estimate.assembled(parts, {}, moved).to_json()


def _cost_notes(work: Work) -> list[str]:
    from cuvil.frontend.onnx_reader import read_model

    graph = read_model(work.out.graph)
    open_sizes = dict.fromkeys(
        dim for n in graph.inputs for dim in graph.types[n].shape or () if isinstance(dim, str)
    )
    if not open_sizes:
        return list(work.notes)
    return [*work.notes, f"predicted for {', '.join(f'{n} = 1' for n in open_sizes)}; bind them with --shape"]


def verify(job: Job, data: Path | None, progress: Progress | None = None) -> dict[str, Any]:
    """Compile the model, run it and compare it with onnxruntime; the fields of `report.verify.Verification`.

    Args:
        data: ``.npz`` with samples by input, and their classes as ``label``; random inputs where None.
    """
    from cuvil.report import verify as checks

    with _built(job, data, progress) as (work, subject):
        found = checks.verify(subject, progress)
        return _result(work, found.to_json()) | {"library": subject.out.libraries[1].name}


def bench(job: Job, data: Path | None, progress: Progress | None = None) -> dict[str, Any]:
    """Compile the model and measure one inference, in turns with onnxruntime; the fields of
    `report.verify.Benchmark`.

    Args:
        data: as for `verify`.
    """
    from cuvil.report import verify as checks

    with _built(job, data, progress) as (work, subject):
        return _result(work, checks.bench(subject, progress).to_json())


@contextlib.contextmanager
def _built(job: Job, data: Path | None, progress: Progress | None) -> Iterator[tuple[Work, Subject]]:
    from cuvil.report.verify import Subject

    with opened(job) as work:
        build(work, progress)
        yield work, Subject(work.out, work.target, job.model, data, job.io_format, job.values, job.shapes)


def _result(work: Work, found: dict[str, Any]) -> dict[str, Any]:
    return found | {"notes": [*work.notes, *found["notes"]]}


def report(job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """All that `cuvil.report.html` shows: devices, segments, nodes, predicted kernels, arena maps."""
    from cuvil.frontend.onnx_reader import read_model
    from cuvil.ir.graph import captured

    with opened(job) as work:
        run_until(work, "codegen", progress)
        out, graph, placed = work.out, read_model(work.out.graph), _json(work.out.partition)
        by_node = {i: s["device"] for s in placed["segments"] for i in s["nodes"]}
        plans = {device: _json(out.generated(device)["plan"])["segments"] for device in out.devices}
        predicted = _estimate(work)
        arenas = []
        for number, segment in enumerate(placed["segments"]):
            device = segment["device"]
            plan = next(p for p in plans[device] if p["symbol"] == f"{out.stem(device)}_s{number}")
            known = isinstance(plan["workspace"], int)
            arenas.append(
                {
                    "device": device,
                    "segment": number,
                    "steps": len(plan["kernels"]),
                    "bytes": plan["workspace"] if known else None,
                    "buffers": plan["arena"] if known else [],
                }
            )
        return {
            **predicted,
            "model": out.model,
            "target": work.target.name,
            "board": work.target.board or work.target.description,
            "devices": _devices(work.target, placed),
            "segments": placed["segments"],
            "nodes": [
                {
                    "name": node.name or node.outputs[0],
                    "op": node.op,
                    "device": by_node[i],
                    "inputs": [n for n in (*node.inputs, *captured(node)) if n],
                    "outputs": [n for n in node.outputs if n],
                    "shapes": [_shape_text(graph.types.get(n)) for n in node.outputs if n],
                }
                for i, node in enumerate(graph.nodes)
            ],
            "arenas": arenas,
            **{key: _json(out.interface["json"])[key] for key in ("workspace_bytes", "prepared_bytes")},
            "weights_bytes": sum(out.generated(d)["bin"].stat().st_size for d in out.devices),
            "notes": _cost_notes(work),
        }


def write_report(job: Job, output: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write `report` as an HTML page; returns it with the page's path."""
    from cuvil.report import html

    if output.is_dir():
        raise CuvilError("is a folder; name the page to write", f"--output {output}")
    found = report(job, progress)
    fsio.write_text(output, html.page(found))
    return {"page": str(output), **found}


def run_until(work: Work, last: str, progress: Progress | None = None) -> None:
    """Run the stages from import to `last`: ``partition``, ``quantize`` or ``codegen``."""
    from cuvil import stages

    say, job, out, target = progress or (lambda text: None), work.job, work.out, work.target
    say("import")
    stages.run_import(job.model, out, work.shapes, job.io_format, job.values)
    say("partition")
    stages.run_partition(out, target.slice("partition"))
    if last == "partition":
        return
    say("quantize")
    stages.run_quantize(out, target.slice("quantize"), job.calibration, progress)
    if last == "quantize":
        return
    for device in out.devices:
        say(f"codegen {device}")
        stages.run_codegen(out, device, target.slice("codegen"), job.tuned)
    stages.run_interface(out, target.slice("codegen"))


def list_targets() -> dict[str, Any]:
    """Every profile that can be named, with its description, or what is wrong with it."""
    folders = profile_folders()
    found = []
    for name in profiles.names(folders):
        try:
            profile = profiles.find(name, folders).plain()
            entry = {key: str(profile.get(key, "")) for key in ("board", "description")}
        except CuvilError as error:
            entry = {"error": str(error)}
        found.append({"name": name, **entry})
    return {"targets": found}


def show_target(name: str) -> dict[str, Any]:
    """A profile with all that it extends and all that is derived, in SI units."""
    from cuvil.target.schema import load

    return load(name, profile_folders()).to_dict()


def operators() -> dict[str, Any]:
    """The operators that models may have, those of the standard that are left out with the reason, and those
    that are neither."""
    from cuvil.frontend import catalogue
    from cuvil.ops.left_out import LEFT_OUT

    return {
        **catalogue.standard(),
        "operators": [asdict(entry) for entry in catalogue.supported()],
        "left_out": [
            {"domain": domain, "name": name, "reason": reason}
            for (domain, name), reason in sorted(LEFT_OUT.items())
        ],
        "missing": [{"domain": domain, "name": name} for domain, name in catalogue.missing()],
    }


def probe(output: Path | None, measured: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Write the profile of this machine.

    Args:
        output: the file; ``targets/host.yaml`` of the current project where None.
        measured: measure peak rates and bandwidths instead of deriving or assuming them.
    """
    from cuvil.target import probe as prober
    from cuvil.target.schema import resolve
    from cuvil.target.yamlfile import read_bytes

    path = output or project_folder() / "targets" / f"{profiles.HOST}.yaml"
    if path.is_dir():
        raise CuvilError("is a folder; name the file to write", f"--output {path}")
    measure: prober.Measure | None = None
    if measured:
        from cuvil.toolchain import measure as figures

        measure = figures.measure
        (progress or (lambda text: None))("measure peak rates and bandwidths")
    text = prober.probe_yaml(measure=measure)
    profile = resolve(read_bytes(text.encode("utf-8"), str(path)))
    fsio.write_text(path, text)
    return {"profile": str(path), "target": profile.to_dict()}


def _contents(out: Layout, target: Target) -> dict[str, Any]:
    """What the generated code consists of: interface, bytes and kernels by device."""
    info, placed = _json(out.interface["json"]), _json(out.partition)
    plans = {device: _json(out.generated(device)["plan"]) for device in out.devices}
    devices = _devices(target, placed)
    for device in devices:
        device["kernels"] = sum(len(s["kernels"]) for s in plans[device["name"]]["segments"])
        device["arithmetic"] = "int8" if target.mode(device["name"]) == "int8" else "float"
    return {
        **{key: info[key] for key in ("model", "symbols", "inputs", "outputs")},
        **{key: info[key] for key in ("workspace_bytes", "prepared_bytes")},
        "weights_bytes": sum(out.generated(d)["bin"].stat().st_size for d in out.devices),
        "devices": devices,
    }


def _devices(target: Target, placed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The target's devices with the number of nodes and segments each has, and why one is left out."""
    return [
        {
            "name": d.name,
            "kind": d.kind,
            "isa": d.isa,
            "isa_levels": list(d.isa_levels),
            "nodes": sum(len(s["nodes"]) for s in placed["segments"] if s["device"] == d.name),
            "segments": sum(s["device"] == d.name for s in placed["segments"]),
            "left_out": placed["left_out"].get(d.name),
        }
        for d in target.devices
    ]


def _prototype(header: str, function: str) -> str:
    found = re.search(rf"^int {function}\(.*\);$", header, re.MULTILINE)
    assert found, f"the header declares {function}"
    return found[0]


def _shape_text(known: TensorType | None) -> str:
    return "?" if known is None or known.shape is None else "×".join(map(str, known.shape)) or "scalar"


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
