"""The parts of a board: the records that a profile is made of, below `cuvil.target.schema.Target`.

A field is a key of the YAML; its annotation says what may stand there and what it means, and both
the reader and the JSON Schema follow from it (see `cuvil.target.records`).  Quantities are SI
numbers here: hertz, bytes, bytes a second, seconds, operations a second.  A zero or an empty text
where a default is declared means that the key was absent; `load` fills in what can be derived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from cuvil.target.isa import CPU_NAME, GPU_ISA, ISAS, TRIPLE, Isa, Triple, parse_triple
from cuvil.target.records import (
    NAME,
    Choice,
    Flag,
    Integer,
    JsonSchema,
    ListOf,
    MapOf,
    Named,
    Number,
    Quantity,
    Record,
    Section,
    Size,
    Text,
)
from cuvil.target.yamlfile import Node

KiB = 1 << 10
MODES = ("none", "int8")
MAX_CPU = 4095

_PAYLOAD = Size(among=(128, 256, 512, 1024, 2048, 4096))
_OTHER = Text(NAME, "the name of another entry")
_ADDRESS = Text(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", 'a PCI address such as "0000:41:00.0"')


@dataclass(frozen=True)
class CpuIds:
    """CPUs as the operating system numbers them: ``4-7``, ``0,2``, or a list of numbers."""

    def read(self, node: Node) -> tuple[int, ...]:
        number = Integer(0, MAX_CPU)
        ids: list[int] = []
        if isinstance(node.value, list):
            ids = [number.read(child) for child in node.value]
        elif isinstance(node.value, int):
            ids = [number.read(node)]
        else:
            form = r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*"
            for part in Text(form, "CPU numbers such as 4-7 or [0, 2]").read(node).split(","):
                first, _, last = part.partition("-")
                ids += range(int(first), int(last or first) + 1)
        if not ids or len(set(ids)) != len(ids) or max(ids) > MAX_CPU:
            raise node.error(f"expected at least one CPU number from 0 to {MAX_CPU}, none of them twice")
        return tuple(sorted(ids))

    def schema(self) -> JsonSchema:
        number = Integer(0, MAX_CPU).schema()
        return {
            "anyOf": [number, {"type": "string", "pattern": "^[0-9,-]+$"}, {"type": "array", "items": number}]
        }


@dataclass(frozen=True)
class CostParameters:
    """A free mapping of names to positive numbers, or to such mappings."""

    def read(self, node: Node) -> dict[str, Any]:
        number = Number(0, float("inf"))
        return {
            key: self.read(child) if isinstance(child.value, dict) else number.read(child)
            for key, child in Section(node).entries.items()
        }

    def schema(self) -> JsonSchema:
        return {"type": "object"}


@dataclass(frozen=True)
class TripleText:
    """A triple, see `cuvil.target.isa.parse_triple`."""

    def read(self, node: Node) -> Triple:
        try:
            return parse_triple(Text(what="a triple such as aarch64-linux-gnu").read(node))
        except ValueError as error:
            raise node.error(str(error)) from None

    def schema(self) -> JsonSchema:
        return {"type": "string", "pattern": f"^({TRIPLE})$"}


@dataclass(frozen=True)
class IsaName:
    """The name of an instruction set; whether it fits the device's kind is checked with the device."""

    def read(self, node: Node) -> str:
        return Text(what="an instruction set").read(node)

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"enum": list(ISAS)}, {"type": "string", "pattern": f"^({GPU_ISA})$"}]}


ACCURACIES = ("default", "strict")
"""Whether algorithms may be used that round more than the definition of what they compute."""


FOOTPRINTS = ("default", "small", "file")
"""What is kept small: nothing in particular; all memory, which costs speed; the library's file, which costs
memory, and time at the first run."""


@dataclass(frozen=True, kw_only=True)
class Caches:
    """Data caches as one core sees them, shared or not."""

    l1d: Annotated[int, Size(zero=True), "first-level data cache of a core"] = 32 * KiB
    l2: Annotated[int, Size(zero=True), "second-level cache that a core can fill"] = 256 * KiB
    l3: Annotated[int, Size(zero=True), "third-level cache that a core can fill; 0 B if there is none"] = 0
    line: Annotated[int, Size(among=(16, 32, 64, 128, 256)), "cache line"] = 64


@dataclass(frozen=True, kw_only=True)
class Device:
    """Equal cores that run one part of the net: a CPU, a cluster or socket of one, a GPU, an NPU."""

    name: str
    kind: Annotated[str, Choice(("cpu", "gpu", "npu")), "what the device is"]
    isa: Annotated[
        str,
        IsaName(),
        "instruction set of a CPU (armv8-a, x86-64-v3, ...), architecture of a GPU or NPU (sm_53)",
    ]
    isa_levels: Annotated[
        tuple[str, ...],
        ListOf(IsaName()),
        "instruction sets that a library has code for, from the least on; it runs the last one that the CPU "
        "has, and `isa`, which is among them, is what predictions are made for (x86_64 only)",
    ] = ()
    cpu: Annotated[
        str,
        Text(CPU_NAME, "a CPU as zig names it, e.g. cortex_a57"),
        "CPU model to compile for, as zig names it (cortex_a57), instead of the instruction set's usual one",
    ] = ""
    cores: Annotated[int, Integer(1, 4096), "cores of a CPU or NPU, multiprocessors of a GPU"] = 1
    threads: Annotated[int, Integer(1, 4096), "threads that a library uses, at most the cores"] = 1
    accuracy: Annotated[
        str,
        Choice(ACCURACIES),
        "default, or strict: no faster algorithm whose results round otherwise than the definition's "
        "(Winograd convolutions, float32 on AMX tiles)",
    ] = "default"
    footprint: Annotated[
        str,
        Choice(FOOTPRINTS),
        "default; small: no weights beyond the model's own, and less workspace, where that costs speed; or "
        "file: no weights beyond the model's own in the library's file, but in memory, computed at the first "
        "run",
    ] = "default"
    frequency: Annotated[float, Quantity("frequency"), "clock under sustained load; a CPU needs it"] = 0.0
    fma_units: Annotated[
        int,
        Integer(1, 16),
        "f32 vector multiply-adds of full width that a core issues per cycle; the instruction set's usual "
        "number where absent",
    ] = 0
    peak_f32: Annotated[
        float,
        Quantity("rate"),
        "f32 operations a second of one core; for a CPU derived from frequency, vector width and fma_units "
        "where absent",
    ] = 0.0
    peak_i8: Annotated[
        float, Quantity("rate"), "int8 operations a second of one core; derived where absent"
    ] = 0.0
    caches: Annotated[Caches, Record(Caches), "data caches"] = field(default_factory=Caches)
    memory: Annotated[
        str, _OTHER, "memory the device is attached to; may be left out if there is one only"
    ] = ""
    cpus: Annotated[
        tuple[int, ...], CpuIds(), "CPUs of the operating system that make up the device, for affinity: 4-7"
    ] = ()
    launch_overhead: Annotated[float, Quantity("time", zero=True), "time to start one kernel"] = 0.0
    cost: Annotated[
        dict[str, Any], CostParameters(), "fitted parameters of the cost model, by free names"
    ] = field(default_factory=dict)

    @property
    def isa_info(self) -> Isa | None:
        """The instruction set of a CPU; None for other kinds."""
        return ISAS[self.isa] if self.kind == "cpu" else None


@dataclass(frozen=True, kw_only=True)
class Remote:
    """How the devices of one memory reach another memory."""

    latency: Annotated[float, Quantity("time"), "latency of a load from there, at least the local one"]
    bandwidth: Annotated[
        float,
        Quantity("bandwidth"),
        "bandwidth of the connection in one direction; the slower memory's where absent",
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A memory: a NUMA node, or a device's own."""

    name: str
    size: Annotated[int, Size(), "capacity"]
    bandwidth: Annotated[float, Quantity("bandwidth"), "peak bandwidth of all channels together"]
    latency: Annotated[float, Quantity("time"), "latency of a load by a device attached to it"]
    remote: Annotated[
        dict[str, Remote],
        MapOf(Record(Remote)),
        "memories reached from here without PCIe, by name; holds in both directions unless both say it",
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RootPort:
    """A PCIe port of the CPU's root complex."""

    name: str
    memory: Annotated[str, _OTHER, "memory (NUMA node) beside it; may be left out if there is one only"] = ""
    address: Annotated[str, _ADDRESS, 'PCI address, quoted: "0000:40:01.0"'] = ""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A PCIe switch, all its ports together."""

    name: str
    address: Annotated[str, _ADDRESS, "PCI address of the upstream port, quoted"] = ""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A PCIe device or a slot."""

    name: str
    device: Annotated[str, _OTHER, "the entry of `devices` that sits here, if it is one"] = ""
    address: Annotated[str, _ADDRESS, "PCI address, quoted"] = ""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A PCIe link between a root port or switch and what is below it."""

    upstream: Annotated[str, _OTHER, "root port or switch above"]
    downstream: Annotated[str, _OTHER, "switch or endpoint below"]
    generation: Annotated[int, Integer(among=(1, 2, 3, 4, 5)), "PCIe generation the link runs at"]
    lanes: Annotated[int, Integer(among=(1, 2, 4, 8, 16)), "lanes the link runs with"]
    mps: Annotated[int, _PAYLOAD, "maximum payload size"] = 256
    mrrs: Annotated[int, _PAYLOAD, "maximum read request size"] = 512
    tags: Annotated[int, Integer(1, 1024), "read requests that may be outstanding"] = 256
    latency: Annotated[float, Quantity("time", zero=True), "one way through the link and the port above"] = (
        250e-9
    )


@dataclass(frozen=True, kw_only=True)
class Pcie:
    """The PCIe tree."""

    root_ports: Annotated[tuple[RootPort, ...], Named(RootPort), "root ports by name"] = ()
    switches: Annotated[tuple[Switch, ...], Named(Switch), "switches by name"] = ()
    endpoints: Annotated[tuple[Endpoint, ...], Named(Endpoint), "endpoints by name"] = ()
    links: Annotated[
        tuple[Link, ...], ListOf(Record(Link)), "links; every switch and endpoint hangs below exactly one"
    ] = ()
    setup: Annotated[float, Quantity("time", zero=True), "software and DMA set-up of a transfer"] = 2e-6
    jitter: Annotated[float, Quantity("time", zero=True), "standard deviation of a transfer's time"] = 200e-9


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How the ranges of activations are found from calibration data."""

    method: Annotated[str, Choice(("minmax", "percentile", "mse")), "statistic that gives the range"] = (
        "minmax"
    )
    percentile: Annotated[
        float, Number(50, 100), "percentage of the values inside the range, for method percentile"
    ] = 99.99
    per_channel: Annotated[bool, Flag(), "one scale for each output channel of the weights"] = True


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Arithmetic per device."""

    mode: Annotated[str, Choice(MODES), "mode of every device that `devices` does not name"] = "none"
    devices: Annotated[dict[str, str], MapOf(Choice(MODES)), "mode by device"] = field(default_factory=dict)
    calibration: Annotated[Calibration, Record(Calibration), "range finding"] = field(
        default_factory=Calibration
    )


@dataclass(frozen=True, kw_only=True)
class Partition:
    """What the partitioner works for."""

    objective: Annotated[
        str, Choice(("latency", "throughput")), "end-to-end time, or the largest load of a device"
    ] = "latency"
    quantile: Annotated[float, Number(0, 1), "quantile of the predicted time that counts"] = 0.95


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """How the generated code is compiled."""

    compiler: Annotated[str, Choice(("auto", "zig", "gcc", "clang")), "compiler; auto takes zig"] = "auto"
    optimization: Annotated[str, Choice(("O0", "O1", "O2", "O3", "Os", "Oz")), "optimization level"] = "O3"
    flags: Annotated[
        tuple[str, ...], ListOf(Text(r"-[^\s]{1,200}", "a compiler flag")), "further compiler flags"
    ] = ()
