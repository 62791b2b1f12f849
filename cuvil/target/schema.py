"""What a board profile says: its declarations, its JSON Schema, and `load`.

A profile is YAML with a mapping on top; `Target` and the records below it declare every key, its
unit and its meaning, and both the reader and the JSON Schema follow from these declarations.
Quantities are SI numbers here: hertz, bytes, bytes a second, seconds, operations a second.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx

from cuvil.target import isa as isa_module
from cuvil.target import profiles
from cuvil.target.isa import CPU_NAME, GPU_ISA, ISAS, TRIPLE, Isa, Triple
from cuvil.target.records import (
    Choice,
    Flag,
    Integer,
    JsonSchema,
    ListOf,
    MapOf,
    Number,
    Quantity,
    Record,
    Size,
    Text,
    entry,
    key_of_record,
    one_of,
    read_record,
    record_schema,
    required_keys,
)
from cuvil.target.yamlfile import Node, quoted

KiB = 1 << 10
PAYLOADS = (128, 256, 512, 1024, 2048, 4096)
PCI_ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
NODE_NAME = Text(r"[a-z][a-z0-9_]{0,31}", "the name of another entry")
MODES = ("none", "int8")
STAGES = ("import", "partition", "quantize", "codegen", "cc")
"""The stages that `Target.slice` knows."""

_ADDRESS = Text(PCI_ADDRESS, 'a PCI address such as "0000:41:00.0"')


@dataclass(frozen=True)
class CpuIds:
    """CPUs as the operating system numbers them: ``4-7``, ``0,2``, or a list of numbers."""

    def read(self, node: Node) -> tuple[int, ...]:
        if isinstance(node.value, list):
            ids = [Integer(0, 4095).read(child) for child in node.value]
        else:
            text = Text(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", "CPU numbers such as 4-7 or [0, 2]")
            ids = []
            for part in (str(Integer(0, 4095).read(node)) if isinstance(node.value, int) else text.read(node)).split(","):
                first, _, last = part.partition("-")
                ids += range(int(first), int(last or first) + 1)
        if not ids or len(set(ids)) != len(ids) or max(ids) > 4095:
            raise node.error("the CPU numbers must be different, from 0 to 4095, and at least one")
        return tuple(sorted(ids))

    def schema(self) -> JsonSchema:
        number = {"type": "integer", "minimum": 0, "maximum": 4095}
        return {"anyOf": [number, {"type": "string", "pattern": "^[0-9,-]+$"}, {"type": "array", "items": number}]}


@dataclass(frozen=True)
class CostParameters:
    """A free mapping of names to positive numbers, or to such mappings."""

    def read(self, node: Node) -> dict[str, Any]:
        entries = MapOf(_Itself(), pattern=r"[A-Za-z0-9_.-]{1,64}", what="a name").read(node)
        return {key: self.read(child) if isinstance(child.value, dict) else Number(0, float("inf")).read(child)
                for key, child in entries.items()}

    def schema(self) -> JsonSchema:
        return {"type": "object"}


@dataclass(frozen=True)
class _Itself:
    """Any node, unread."""

    def read(self, node: Node) -> Node:
        return node

    def schema(self) -> JsonSchema:
        return {}


@dataclass(frozen=True)
class IsaName:
    """The name of an instruction set; whether it fits the device's kind is checked later."""

    def read(self, node: Node) -> str:
        return Text(what="an instruction set").read(node)

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"enum": list(ISAS)}, {"type": "string", "pattern": f"^({GPU_ISA})$"}]}


@dataclass(frozen=True)
class Caches:
    """Data caches as one core sees them, shared or not."""

    l1d: int = entry(Size(zero=True), "first-level data cache of a core", default=32 * KiB)
    l2: int = entry(Size(zero=True), "second-level cache that a core can fill", default=256 * KiB)
    l3: int = entry(Size(zero=True), "third-level cache that a core can fill; 0 B if there is none", default=0)
    line: int = entry(Size(among=(16, 32, 64, 128, 256)), "cache line", default=64)


@dataclass(frozen=True)
class Device:
    """A set of equal cores that runs one part of the net: a CPU or a cluster or socket of one, a GPU, an NPU."""

    name: str = key_of_record()
    kind: str = entry(Choice(("cpu", "gpu", "npu")), "what the device is")
    isa: str = entry(IsaName(), "instruction set of a CPU (armv8-a, x86-64-v3, ...); architecture of a GPU or NPU (sm_53)")
    cpu: str = entry(Text(CPU_NAME, "a CPU as zig names it, e.g. cortex_a57"),
                     "CPU model to compile for, as zig names it (cortex_a57), instead of the instruction set's usual one",
                     default="")
    cores: int = entry(Integer(1, 4096), "cores of a CPU or NPU, multiprocessors of a GPU", default=1)
    threads: int = entry(Integer(1, 4096), "threads that a library uses, at most the cores", default=1)
    frequency: float = entry(Quantity("frequency"), "clock under sustained load; a CPU needs it", default=0.0)
    fma_units: int = entry(Integer(0, 16), "full-width f32 vector multiply-adds a core issues per cycle (0: the "
                           "instruction set's usual number)", default=0)
    peak_f32: float = entry(Quantity("rate"), "f32 operations a second of one core; for a CPU derived from frequency, "
                            "vector width and fma_units where absent", default=0.0)
    peak_i8: float = entry(Quantity("rate"), "int8 operations a second of one core; derived where absent", default=0.0)
    caches: Caches = entry(Record(Caches), "data caches", factory=Caches)
    memory: str = entry(NODE_NAME, "the memory the device is attached to; may be left out if there is one only", default="")
    cpus: tuple[int, ...] = entry(CpuIds(), "CPUs of the operating system that make up the device, for affinity: 4-7",
                                  default=())
    launch_overhead: float = entry(Quantity("time", zero=True), "time to start one kernel", default=0.0)
    cost: dict[str, Any] = entry(CostParameters(), "fitted parameters of the cost model, free names", factory=dict)

    @property
    def isa_info(self) -> Isa | None:
        """The instruction set of a CPU; None for other kinds."""
        return ISAS[self.isa] if self.kind == "cpu" else None


@dataclass(frozen=True)
class Remote:
    """How a device of one memory reaches another memory."""

    latency: float = entry(Quantity("time"), "latency of a load from there, at least the local one")
    bandwidth: float = entry(Quantity("bandwidth"), "bandwidth of the connection, one direction; the slower "
                             "memory's where absent", default=0.0)


@dataclass(frozen=True)
class Memory:
    """A memory: a NUMA node, or a device's own."""

    name: str = key_of_record()
    size: int = entry(Size(), "capacity")
    bandwidth: float = entry(Quantity("bandwidth"), "peak bandwidth of all channels together")
    latency: float = entry(Quantity("time"), "latency of a load by a device attached to it")
    remote: dict[str, Remote] = entry(MapOf(Record(Remote)), "memories that are reached from here without PCIe, by "
                                      "name; holds in both directions unless both are given", factory=dict)


@dataclass(frozen=True)
class RootPort:
    """A PCIe port of the CPU's root complex."""

    name: str = key_of_record()
    memory: str = entry(NODE_NAME, "the memory (NUMA node) beside it; may be left out if there is one only", default="")
    address: str = entry(_ADDRESS, 'PCI address, quoted: "0000:40:01.0"', default="")


@dataclass(frozen=True)
class Switch:
    """A PCIe switch, all its ports together."""

    name: str = key_of_record()
    address: str = entry(_ADDRESS, "PCI address of the upstream port, quoted", default="")


@dataclass(frozen=True)
class Endpoint:
    """A PCIe device or an empty slot."""

    name: str = key_of_record()
    device: str = entry(NODE_NAME, "the entry of `devices` that sits here, if it is one", default="")
    address: str = entry(_ADDRESS, "PCI address, quoted", default="")


@dataclass(frozen=True)
class Link:
    """A PCIe link between a root port or switch and what is below it."""

    upstream: str = entry(NODE_NAME, "root port or switch above")
    downstream: str = entry(NODE_NAME, "switch or endpoint below")
    generation: int = entry(Integer(among=(1, 2, 3, 4, 5)), "PCIe generation the link runs at")
    lanes: int = entry(Integer(among=(1, 2, 4, 8, 16)), "lanes the link runs with")
    mps: int = entry(Size(among=PAYLOADS), "maximum payload size", default=256)
    mrrs: int = entry(Size(among=PAYLOADS), "maximum read request size", default=512)
    tags: int = entry(Integer(1, 1024), "read requests that may be outstanding", default=256)
    latency: float = entry(Quantity("time", zero=True), "one way through the link and the port above", default=250e-9)


@dataclass(frozen=True)
class Pcie:
    """The PCIe tree."""

    root_ports: dict[str, RootPort] = entry(MapOf(Record(RootPort)), "root ports by name", factory=dict)
    switches: dict[str, Switch] = entry(MapOf(Record(Switch)), "switches by name", factory=dict)
    endpoints: dict[str, Endpoint] = entry(MapOf(Record(Endpoint)), "endpoints by name", factory=dict)
    links: tuple[Link, ...] = entry(ListOf(Record(Link)), "links; every switch and endpoint has one above it", default=())
    setup: float = entry(Quantity("time", zero=True), "software and DMA set-up of a transfer", default=2e-6)
    jitter: float = entry(Quantity("time", zero=True), "standard deviation of a transfer's time", default=200e-9)


@dataclass(frozen=True)
class Calibration:
    """How the ranges of activations are found from calibration data."""

    method: str = entry(Choice(("minmax", "percentile", "mse")), "statistic that gives the range", default="minmax")
    percentile: float = entry(Number(50, 100.0000001), "share of the values inside the range, for `percentile`",
                              default=99.99)
    per_channel: bool = entry(Flag(), "one scale for each output channel of the weights", default=True)


@dataclass(frozen=True)
class Quantization:
    """Arithmetic per device."""

    mode: str = entry(Choice(MODES), "mode of every device that `devices` does not name", default="none")
    devices: dict[str, str] = entry(MapOf(Choice(MODES)), "mode by device", factory=dict)
    calibration: Calibration = entry(Record(Calibration), "range finding", factory=Calibration)


@dataclass(frozen=True)
class Partition:
    """What the partitioner works for."""

    objective: str = entry(Choice(("latency", "throughput")), "end-to-end time, or the largest load of a device",
                           default="latency")
    quantile: float = entry(Number(0, 1), "quantile of the predicted time that counts", default=0.95)


@dataclass(frozen=True)
class Toolchain:
    """How the generated code is compiled."""

    compiler: str = entry(Choice(("auto", "zig", "gcc", "clang")), "auto takes zig", default="auto")
    optimization: str = entry(Choice(("O0", "O1", "O2", "O3", "Os", "Oz")), "optimization level", default="O3")
    flags: tuple[str, ...] = entry(ListOf(Text(r"-[^\s]{1,200}", "a compiler flag")), "further compiler flags", default=())


@dataclass(frozen=True)
class Target:
    """A board profile."""

    name: str = entry(Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a profile's name"),
                      "name of the profile; the file's name where absent", default="")
    description: str = entry(Text(), "what the profile describes, for lists", default="")
    board: str = entry(Text(), "board or machine", default="")
    triple: Triple = entry(Text(TRIPLE, "a triple such as aarch64-linux-gnu"), "architecture, system and ABI")
    devices: tuple[Device, ...] = entry(MapOf(Record(Device)), "devices by name")
    memories: tuple[Memory, ...] = entry(MapOf(Record(Memory)), "memories (NUMA nodes) by name")
    pcie: Pcie = entry(Record(Pcie), "PCIe root ports, switches, endpoints and links", factory=Pcie)
    quantization: Quantization = entry(Record(Quantization), "arithmetic per device", factory=Quantization)
    partition: Partition = entry(Record(Partition), "what the partitioner works for", factory=Partition)
    toolchain: Toolchain = entry(Record(Toolchain), "how generated code is compiled", factory=Toolchain)

    def device(self, name: str) -> Device:
        """The device of that name; KeyError if there is none."""
        return {device.name: device for device in self.devices}[name]

    def memory(self, name: str) -> Memory:
        """The memory of that name; KeyError if there is none."""
        return {memory.name: memory for memory in self.memories}[name]

    def mode(self, device: str) -> str:
        """The quantization mode of a device: ``none`` or ``int8``."""
        return self.quantization.devices.get(device, self.quantization.mode)

    def to_dict(self) -> dict[str, Any]:
        """The resolved profile as JSON-able data, in SI units, devices and memories by name."""
        return {
            "name": self.name, "description": self.description, "board": self.board, "triple": str(self.triple),
            "devices": {device.name: _plain(device) for device in self.devices},
            "memories": {memory.name: _plain(memory) for memory in self.memories},
            "pcie": _plain(self.pcie), "quantization": _plain(self.quantization),
            "partition": _plain(self.partition), "toolchain": _plain(self.toolchain),
        }

    def slice(self, stage: str, device: str | None = None) -> dict[str, Any]:
        """The part of the resolved profile that a stage reads, as JSON-able data.

        An edit of anything else leaves the slice, and so the stage's outputs, as they are.

        Args:
            stage: one of `STAGES`.
            device: leave out the other devices; for stages that run once for each device.
        """
        chosen = [d for d in self.devices if device in (None, d.name)]
        if stage == "import":
            return {}
        if stage == "partition":
            everything = self.to_dict()
            devices = {d.name: _plain(d, without=("cpu", "cpus")) | {"backend": _isa_facts(d)} for d in chosen}
            return {"devices": devices} | {key: everything[key] for key in ("memories", "pcie", "partition")}
        if stage == "quantize":
            return {"modes": {d.name: self.mode(d.name) for d in chosen},
                    "calibration": _plain(self.quantization.calibration)}
        if stage == "codegen":
            keep = ("name", "kind", "isa", "cores", "threads", "peak_f32", "peak_i8", "caches", "cpus")
            return {"arch": self.triple.arch, "os": self.triple.os, "devices": {
                d.name: {key: value for key, value in _plain(d).items() if key in keep}
                | {"bandwidth": self.memory(d.memory).bandwidth, **_isa_facts(d)} for d in chosen}}
        if stage == "cc":
            return {"triple": str(self.triple), "zig": self.triple.zig, "gnu": self.triple.gnu,
                    "toolchain": _plain(self.toolchain), "devices": {d.name: self._flags(d) for d in chosen}}
        raise ValueError(f"unknown stage {stage!r}; {one_of(STAGES)}")

    def _flags(self, device: Device) -> dict[str, Any]:
        info = device.isa_info
        if info is None:
            return {"kind": device.kind, "isa": device.isa}
        return {"kind": device.kind, "isa": device.isa, "cpu": device.cpu,
                "zig_flags": list(isa_module.zig_flags(self.triple, info, device.cpu)),
                "gcc_flags": list(isa_module.gcc_flags(info, device.cpu))}


def load(name_or_path: str, search: Sequence[str | Path] | None = None) -> Target:
    """Read a profile and everything it extends, check it, and fill in what can be derived.

    Args:
        name_or_path: a profile's name (``jetson-nano``), a path to a YAML file, ``host``, or a triple.
        search: folders with profiles; `profiles.default_folders()` if None.

    Raises:
        TargetError: no such profile, or what is wrong in it, with file, line and key path.
    """
    root = profiles.find(name_or_path, search)
    target = read_record(Target, _without(root, "extends"))
    return _Checker(root, target).resolved()


def json_schema() -> JsonSchema:
    """JSON Schema (draft 7) of a profile, from the declarations above; ``targets/schema.json`` is its copy."""
    schema = record_schema(Target)
    extends = {"type": "string", "description": "profile to start from, by name, by path relative to this file, or by "
               "triple; mappings merge key by key, null removes a key"}
    schema["properties"] = {"extends": extends, **schema["properties"]}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Cuvil board profile", **schema,
            "if": {"not": {"required": ["extends"]}}, "then": required_keys(Record(Target))}


def json_schema_text() -> str:
    """`json_schema` as the text of ``targets/schema.json``."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _without(node: Node, key: str) -> Node:
    assert isinstance(node.value, dict)
    return dataclasses.replace(node, value={k: child for k, child in node.value.items() if k != key})


def _plain(value: Any, without: tuple[str, ...] = ()) -> Any:
    """Records and tuples as JSON-able dicts and lists."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in without}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _isa_facts(device: Device) -> dict[str, Any]:
    info = device.isa_info
    if info is None:
        return {}
    return {key: getattr(info, key) for key in ("arch", "vector_bits", "vector_registers", "fma", "dot_i8")}


class _Checker:
    """Checks that need more than one key, and derived values."""

    def __init__(self, root: Node, target: Target) -> None:
        self.root = root
        self.target = target

    def resolved(self) -> Target:
        # The reader delivers devices and memories as mappings and the triple as text.
        target: Any = self.target
        try:
            triple = isa_module.parse_triple(target.triple)
        except ValueError as error:
            raise self.root.at("triple").error(str(error)) from None
        for key in ("devices", "memories"):
            if not getattr(target, key):
                raise self.root.at(key).error(f"at least one entry is needed in {quoted(key)}")
        memories = {m.name: self.memory(m, target.memories) for m in target.memories.values()}
        devices = {d.name: self.device(d, triple, memories) for d in target.devices.values()}
        ports = {name: dataclasses.replace(port, memory=self.memory_name(port.memory, memories, "pcie", "root_ports", name))
                 for name, port in target.pcie.root_ports.items()}
        pcie = dataclasses.replace(target.pcie, root_ports=ports)
        for name in target.quantization.devices:
            if name not in devices:
                raise self.unknown("device", name, devices, "quantization", "devices", name)
        self.pcie(pcie, devices)
        self.names(pcie, devices, memories)
        self.connected(pcie, devices, memories)
        return dataclasses.replace(target, name=target.name or Path(self.root.file).stem, triple=triple, pcie=pcie,
                                   devices=tuple(devices.values()), memories=tuple(memories.values()))

    def unknown(self, what: str, name: str, names: Any, *path: str | int) -> Exception:
        return self.root.at(*path).error(f"unknown {what} {quoted(name)}; {one_of(names, name)}")

    def memory_name(self, name: str, memories: dict[str, Memory], *path: str) -> str:
        if not name and len(memories) > 1:
            raise self.root.at(*path).error(f"the key 'memory' is missing; {one_of(memories)}")
        if name and name not in memories:
            raise self.unknown("memory", name, memories, *path, "memory")
        return name or next(iter(memories))

    def memory(self, memory: Memory, memories: dict[str, Memory]) -> Memory:
        remotes = {}
        for name, other in memories.items():
            remote = memory.remote.get(name) or other.remote.get(memory.name)
            if remote and name != memory.name:
                slower = min(memory.bandwidth, other.bandwidth)
                remotes[name] = dataclasses.replace(remote, bandwidth=remote.bandwidth or slower)
        for name in memory.remote:
            path = ("memories", memory.name, "remote", name)
            if name not in memories or name == memory.name:
                raise self.unknown("other memory", name, [m for m in memories if m != memory.name], *path)
            if memory.remote[name].latency < max(memory.latency, memories[name].latency):
                raise self.root.at(*path, "latency").error("the latency is less than the local one")
        return dataclasses.replace(memory, remote=remotes)

    def device(self, device: Device, triple: Triple, memories: dict[str, Memory]) -> Device:
        def at(key: str) -> Node:
            return self.root.at("devices", device.name, key)

        memory = self.memory_name(device.memory, memories, "devices", device.name)
        if device.threads > device.cores:
            raise at("threads").error(f"{device.threads} threads on {device.cores} cores; at most one thread a core")
        if device.cpus and len(device.cpus) < device.threads:
            raise at("cpus").error(f"{len(device.cpus)} CPUs for {device.threads} threads")
        if device.kind != "cpu":
            if not Text(GPU_ISA).matches(device.isa):
                raise at("isa").error(f"{quoted(device.isa)} is not the name of an architecture such as sm_53")
            for key in ("cpu", "cpus"):
                if getattr(device, key):
                    raise at(key).error(f"only a device of kind cpu has {quoted(key)}")
            if not (device.peak_f32 or device.peak_i8):
                raise at("peak_f32").error(f"a device of kind {device.kind} needs 'peak_f32' or 'peak_i8'")
            peak_i8 = device.peak_i8 or device.peak_f32
            return dataclasses.replace(device, memory=memory, peak_i8=peak_i8)
        if device.isa not in ISAS:
            raise self.unknown("instruction set", device.isa, ISAS, "devices", device.name, "isa")
        info = ISAS[device.isa]
        if info.arch != triple.arch:
            fitting = [name for name, other in ISAS.items() if other.arch == triple.arch]
            raise at("isa").error(f"{device.isa} does not go with triple {triple}; {one_of(fitting)}")
        if not (device.frequency or device.peak_f32):
            raise at("frequency").error("the key 'frequency' is missing")
        units = device.fma_units or info.fma_units
        lanes = max(info.vector_bits // 32, 1)
        peak = device.peak_f32 or 2 * lanes * units * device.frequency
        peak_i8 = device.peak_i8 or peak * (4 if info.dot_i8 else 1)
        return dataclasses.replace(device, memory=memory, fma_units=units, peak_f32=peak, peak_i8=peak_i8)

    def pcie(self, pcie: Pcie, devices: dict[str, Device]) -> None:
        upper, lower = [*pcie.root_ports, *pcie.switches], [*pcie.switches, *pcie.endpoints]
        above: dict[str, int] = {}
        for index, link in enumerate(pcie.links):
            for key, name, names, what in (("upstream", link.upstream, upper, "root port or switch"),
                                           ("downstream", link.downstream, lower, "switch or endpoint")):
                if name not in names:
                    raise self.unknown(what, name, names, "pcie", "links", index, key)
            if link.downstream in above:
                raise self.root.at("pcie", "links", index, "downstream").error(
                    f"{quoted(link.downstream)} already hangs below {quoted(pcie.links[above[link.downstream]].upstream)}")
            above[link.downstream] = index
        seated: dict[str, str] = {}
        for name, endpoint in pcie.endpoints.items():
            path = ("pcie", "endpoints", name, "device")
            if endpoint.device and endpoint.device not in devices:
                raise self.unknown("device", endpoint.device, devices, *path)
            if endpoint.device in seated:
                raise self.root.at(*path).error(f"device {quoted(endpoint.device)} already sits in "
                                                f"{quoted(seated[endpoint.device])}")
            if endpoint.device:
                seated[endpoint.device] = name

    def names(self, pcie: Pcie, devices: dict[str, Device], memories: dict[str, Memory]) -> None:
        """Names and PCI addresses are unique over the whole board: they are nodes of one graph."""
        seen: dict[str, str] = {}
        groups: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            (("devices",), devices), (("memories",), memories), (("pcie", "root_ports"), pcie.root_ports),
            (("pcie", "switches"), pcie.switches), (("pcie", "endpoints"), pcie.endpoints)]
        for path, group in groups:
            for name, item in group.items():
                for key, steps in ((name, (*path, name)), (getattr(item, "address", ""), (*path, name, "address"))):
                    if key and key in seen:
                        raise self.root.at(*steps).error(f"{quoted(key)} is already used by {seen[key]}")
                    seen[key] = ".".join(steps)

    def connected(self, pcie: Pcie, devices: dict[str, Device], memories: dict[str, Memory]) -> None:
        """Every part of the board must be reachable from the first memory."""
        graph = nx.Graph()
        graph.add_nodes_from([*memories, *devices, *pcie.root_ports, *pcie.switches, *pcie.endpoints])
        graph.add_edges_from((memory.name, other) for memory in memories.values() for other in memory.remote)
        graph.add_edges_from((device.name, device.memory) for device in devices.values())
        graph.add_edges_from((port.name, port.memory) for port in pcie.root_ports.values())
        graph.add_edges_from((link.upstream, link.downstream) for link in pcie.links)
        graph.add_edges_from((end.name, end.device) for end in pcie.endpoints.values() if end.device)
        first = next(iter(memories))
        lost = [name for name in graph if name not in nx.node_connected_component(graph, first)]
        for path in (("pcie", "switches"), ("pcie", "endpoints"), ("memories",), ("devices",)):
            for name in lost:
                if name in (getattr(pcie, path[-1]) if path[0] == "pcie" else {"memories": memories, "devices": devices}[path[0]]):
                    raise self.root.at(*path, name).error(
                        f"not connected to memory {quoted(first)}: the board is in two pieces, missing a link or a 'remote'")
