"""What a board profile says as a whole: `Target`, how it is read and checked, and its JSON Schema.

The parts are declared in `cuvil.target.board`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import networkx as nx

from cuvil.target import profiles
from cuvil.target.board import (
    Caches,
    Calibration,
    Device,
    Endpoint,
    Link,
    Memory,
    Partition,
    Pcie,
    Quantization,
    Remote,
    RootPort,
    Switch,
    Toolchain,
    TripleText,
)
from cuvil.target.isa import GPU_ISA, ISAS, LEVELS, Triple, gcc_flags, zig_flags
from cuvil.target.records import (
    JsonSchema,
    Named,
    Record,
    Text,
    one_of,
    read_record,
    record_schema,
    required_keys,
)
from cuvil.target.yamlfile import Node, quoted

__all__ = [
    "STAGES",
    "Caches",
    "Calibration",
    "Device",
    "Endpoint",
    "Link",
    "Memory",
    "Partition",
    "Pcie",
    "Quantization",
    "Remote",
    "RootPort",
    "Switch",
    "Target",
    "Toolchain",
    "Triple",
    "json_schema",
    "json_schema_text",
    "load",
    "resolve",
]

PROFILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
STAGES = ("import", "partition", "quantize", "codegen", "cc")
"""The stages that `Target.slice` knows."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A board profile."""

    name: Annotated[
        str,
        Text(PROFILE_NAME, "a profile's name (letters, digits, '.', '_' and '-')"),
        "name of the profile; the file's name where absent",
    ] = ""
    description: Annotated[str, Text(), "what the profile describes, for lists"] = ""
    board: Annotated[str, Text(), "board or machine"] = ""
    triple: Annotated[Triple, TripleText(), "architecture, system and ABI, e.g. aarch64-linux-gnu"]
    devices: Annotated[tuple[Device, ...], Named(Device), "devices by name"]
    memories: Annotated[tuple[Memory, ...], Named(Memory), "memories (NUMA nodes) by name"]
    pcie: Annotated[Pcie, Record(Pcie), "the PCIe tree"] = field(default_factory=Pcie)
    quantization: Annotated[Quantization, Record(Quantization), "arithmetic per device"] = field(
        default_factory=Quantization
    )
    partition: Annotated[Partition, Record(Partition), "what the partitioner works for"] = field(
        default_factory=Partition
    )
    toolchain: Annotated[Toolchain, Record(Toolchain), "how generated code is compiled"] = field(
        default_factory=Toolchain
    )

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
            **_plain(self),
            "triple": str(self.triple),
            "devices": {device.name: _plain(device) for device in self.devices},
            "memories": {memory.name: _plain(memory) for memory in self.memories},
        }

    def slice(self, stage: str, device: str | None = None, level: str | None = None) -> dict[str, Any]:
        """The part of the resolved profile that a stage reads, as JSON-able data.

        An edit of anything else leaves the slice, and so the stage's outputs, as they are.

        Args:
            stage: one of `STAGES`.
            device: leave out the other devices; for stages that run once for each device.
            level: one of the device's `isa_levels`; as if that were its instruction set, and the only one.

        Raises:
            KeyError: no such device.
            ValueError: no such stage.
        """
        chosen = self.devices if device is None else (self.device(device),)
        if level is not None:
            chosen = tuple(at_level(d, level) for d in chosen)
        if stage == "import":
            return {}
        if stage == "partition":
            everything = self.to_dict()
            unread = ("cpu", "cpus", "isa_levels")
            devices = {d.name: _plain(d, without=unread) | _isa_facts(d) for d in chosen}
            return {"devices": devices} | {key: everything[key] for key in ("memories", "pcie", "partition")}
        if stage == "quantize":
            return {
                "modes": {d.name: self.mode(d.name) for d in chosen},
                "calibration": _plain(self.quantization.calibration),
            }
        if stage == "codegen":
            keep = {"name", "kind", "isa", "cores", "threads", "accuracy", "footprint"}
            keep |= {"peak_f32", "peak_i8", "caches", "cpus"}
            return {
                "arch": self.triple.arch,
                "os": self.triple.os,
                "devices": {
                    d.name: {key: value for key, value in _plain(d).items() if key in keep}
                    | {"bandwidth": self.memory(d.memory).bandwidth, **_isa_facts(d)}
                    | ({"levels": [_level_facts(d, name) for name in d.isa_levels]} if d.isa_levels else {})
                    for d in chosen
                },
            }
        if stage == "cc":
            return {
                "triple": str(self.triple),
                "zig": self.triple.zig,
                "gnu": self.triple.gnu,
                "toolchain": _plain(self.toolchain),
                "threaded": any(d.threads > 1 for d in chosen),
                "devices": {d.name: self._flags(d) for d in chosen},
            }
        raise ValueError(f"unknown stage {stage!r}; {one_of(STAGES)}")

    def _flags(self, device: Device) -> dict[str, Any]:
        info = device.isa_info
        if info is None:
            return {"kind": device.kind, "isa": device.isa}
        if device.isa_levels:  # what chooses between the levels runs on every machine of the least
            chooser = replace(device, isa=device.isa_levels[0], isa_levels=())
            return {**self._flags(chooser), "levels": list(device.isa_levels)}
        return {
            "kind": device.kind,
            "isa": device.isa,
            "cpu": device.cpu,
            "zig_flags": list(zig_flags(self.triple, info, device.cpu)),
            "gcc_flags": list(gcc_flags(info, device.cpu)),
        }


def load(name_or_path: str | Path, search: Sequence[str | Path] | None = None) -> Target:
    """Read a profile and everything it extends, check it, and fill in what can be derived.

    Args:
        name_or_path: a profile's name (``jetson-nano``), a path to a YAML file, ``host``, or a triple.
        search: folders with profiles; `profiles.default_folders()` if None.

    Raises:
        TargetError: no such profile, or what is wrong in it, with file, line and key path.
    """
    return resolve(profiles.find(name_or_path, search))


def resolve(root: Node) -> Target:
    """The target that a profile describes whose ``extends`` has been followed.

    Raises:
        TargetError: what is wrong in it, with file, line and key path.
    """
    target = read_record(Target, _without(root, "extends"))
    return _Checker(root, target).resolved()


def json_schema() -> JsonSchema:
    """JSON Schema (draft 7) of a profile, from the declarations; ``targets/schema.json`` is its copy."""
    schema = record_schema(Target)
    extends = {
        "type": "string",
        "description": "profile to start from, by name, by path relative to this file, or by "
        "triple; mappings merge key by key, null removes a key",
    }
    schema["properties"] = {"extends": extends, **schema["properties"]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Cuvil board profile",
        **schema,
        "if": {"not": {"required": ["extends"]}},
        "then": required_keys(Record(Target)),
    }


def json_schema_text() -> str:
    """`json_schema` as the text of ``targets/schema.json``.

    To write it: ``python -c "from cuvil.target import schema; print(schema.json_schema_text(), end='')"``.
    """
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _without(node: Node, key: str) -> Node:
    assert isinstance(node.value, dict)
    return replace(node, value={k: child for k, child in node.value.items() if k != key})


def _plain(value: Any, without: tuple[str, ...] = ()) -> Any:
    """Records and tuples as JSON-able dicts and lists."""
    if dataclasses.is_dataclass(value):
        return {
            f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in without
        }
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _isa_facts(device: Device) -> dict[str, Any]:
    info = device.isa_info
    if info is None:
        return {}
    keys = ("arch", "vector_bits", "vector_registers", "fma", "dot_i8", "amx")
    return {key: getattr(info, key) for key in keys}


def _level_facts(device: Device, level: str) -> dict[str, Any]:
    """What code generation for one of the device's levels reads beyond what all levels share."""
    chosen = at_level(device, level)
    rates = {key: getattr(chosen, key) for key in ("isa", "peak_f32", "peak_i8")}
    return rates | _isa_facts(chosen)


def at_level(device: Device, level: str) -> Device:
    """A CPU as if `level` were its instruction set, and the only one; peak rates follow from its vectors."""
    stated, info = ISAS[device.isa], ISAS[level]
    if level == device.isa:
        return replace(device, isa_levels=())
    width = max(info.vector_bits, 32) * info.fma_units / (max(stated.vector_bits, 32) * device.fma_units)
    peak = device.peak_f32 * width
    return replace(
        device,
        isa=level,
        isa_levels=(),
        fma_units=info.fma_units,
        peak_f32=peak,
        peak_i8=peak * (4 if info.dot_i8 else 1),
    )


def _names(items: Iterable[Any]) -> list[str]:
    return [item.name for item in items]


class _Checker:
    """Checks that need more than one key, and derived values."""

    def __init__(self, root: Node, target: Target) -> None:
        self.root = root
        self.target = target

    def resolved(self) -> Target:
        target = self.target
        for key in ("devices", "memories"):
            if not getattr(target, key):
                raise self.root.at(key).error("at least one entry is needed")
        ports = tuple(
            replace(port, memory=self.attached(port.memory, "pcie", "root_ports", port.name))
            for port in target.pcie.root_ports
        )
        name = target.name or Path(self.root.file).stem
        if not re.fullmatch(PROFILE_NAME, name):
            raise self.root.error(f"the file's name {quoted(name)} cannot name a profile: give it a 'name'")
        target = replace(
            target,
            name=name,
            devices=tuple(self.device(device) for device in target.devices),
            memories=tuple(self.memory(memory) for memory in target.memories),
            pcie=replace(target.pcie, root_ports=ports),
        )
        for name in target.quantization.devices:
            self.known("device", name, _names(target.devices), "quantization", "devices", name)
        self.links(target.pcie)
        self.seats(target.pcie)
        self.unique(target)
        self.connected(target)
        return target

    def known(self, what: str, name: str, names: Sequence[str], *path: str | int) -> None:
        if name not in names:
            raise self.root.at(*path).error(f"unknown {what} {quoted(name)}; {one_of(names, name)}")

    def attached(self, memory: str, *path: str) -> str:
        """The memory that the entry at `path` names, or the only one there is."""
        names = _names(self.target.memories)
        if memory:
            self.known("memory", memory, names, *path, "memory")
        elif len(names) > 1:
            raise self.root.at(*path).error(f"the key 'memory' is missing; {one_of(names)}")
        return memory or names[0]

    def memory(self, memory: Memory) -> Memory:
        others = {other.name: other for other in self.target.memories if other.name != memory.name}
        for name, remote in memory.remote.items():
            path = ("memories", memory.name, "remote", name)
            self.known("other memory", name, list(others), *path)
            if remote.latency < max(memory.latency, others[name].latency):
                raise self.root.at(*path, "latency").error(
                    "a remote latency must not be less than the local one"
                )
        remotes = {}
        for name, other in others.items():
            way = memory.remote.get(name) or other.remote.get(memory.name)
            if way:
                remotes[name] = replace(
                    way, bandwidth=way.bandwidth or min(memory.bandwidth, other.bandwidth)
                )
        return replace(memory, remote=remotes)

    def device(self, device: Device) -> Device:
        def at(key: str) -> Node:
            return self.root.at("devices", device.name, key)

        device = replace(device, memory=self.attached(device.memory, "devices", device.name))
        if device.threads > device.cores:
            raise at("threads").error(
                f"{device.threads} threads on {device.cores} cores; at most one thread a core"
            )
        if device.cpus and len(device.cpus) < device.threads:
            raise at("cpus").error(f"{len(device.cpus)} CPUs for {device.threads} threads")
        if device.kind == "cpu":
            return self.cpu(device)
        if not re.fullmatch(GPU_ISA, device.isa):
            raise at("isa").error(f"{quoted(device.isa)} is not the name of an architecture such as sm_53")
        for key in ("cpu", "cpus", "isa_levels"):
            if getattr(device, key):
                raise at(key).error(f"only a device of kind cpu has {quoted(key)}")
        if not (device.peak_f32 or device.peak_i8):
            raise at("peak_f32").error(f"a device of kind {device.kind} needs 'peak_f32' or 'peak_i8'")
        return replace(device, peak_i8=device.peak_i8 or device.peak_f32)

    def cpu(self, device: Device) -> Device:
        path, triple = ("devices", device.name), self.target.triple
        fitting = [name for name, info in ISAS.items() if info.arch == triple.arch]
        self.known(
            "instruction set", device.isa, fitting if device.isa not in ISAS else list(ISAS), *path, "isa"
        )
        info = ISAS[device.isa]
        if info.arch != triple.arch:
            raise self.root.at(*path, "isa").error(
                f"{device.isa} does not go with triple {triple}; {one_of(fitting)}"
            )
        self.levels(device, fitting)
        if not (device.frequency or device.peak_f32):
            raise self.root.at(*path).error("the key 'frequency' is missing")
        units, lanes = device.fma_units or info.fma_units, max(info.vector_bits // 32, 1)
        peak = device.peak_f32 or 2 * lanes * units * device.frequency
        return replace(
            device, fma_units=units, peak_f32=peak, peak_i8=device.peak_i8 or peak * (4 if info.dot_i8 else 1)
        )

    def levels(self, device: Device, fitting: list[str]) -> None:
        """The instruction sets that a library chooses from go from the least to the best."""
        names = device.isa_levels
        if not names:
            return
        path = ("devices", device.name)
        node = self.root.at(*path, "isa_levels")
        if self.target.triple.arch not in LEVELS:
            arch = self.target.triple.arch
            raise node.error(f"a library for {arch} cannot choose at run time; name one 'isa'")
        if device.cpu:
            raise self.root.at(*path, "cpu").error("does not go with 'isa_levels', which are for many CPUs")
        for index, name in enumerate(names):
            self.known("instruction set", name, fitting, *path, "isa_levels", index)
        if [*names] != sorted({*names}, key=fitting.index):
            raise node.error(f"expected each once, from the least to the best: {', '.join(fitting)}")
        if device.isa not in names:
            raise self.root.at(*path, "isa").error(
                f"{device.isa} is not among the 'isa_levels'; {one_of(names)}"
            )

    def links(self, pcie: Pcie) -> None:
        """The ends of every link exist, and nothing hangs below two of them."""
        upper = _names((*pcie.root_ports, *pcie.switches))
        lower = _names((*pcie.switches, *pcie.endpoints))
        above: dict[str, str] = {}
        for index, link in enumerate(pcie.links):
            path = ("pcie", "links", index)
            self.known("root port or switch", link.upstream, upper, *path, "upstream")
            self.known("switch or endpoint", link.downstream, lower, *path, "downstream")
            if link.downstream in above:
                raise self.root.at(*path, "downstream").error(
                    f"{quoted(link.downstream)} already hangs below {quoted(above[link.downstream])}"
                )
            above[link.downstream] = link.upstream

    def seats(self, pcie: Pcie) -> None:
        """The devices that endpoints name exist, and none sits in two."""
        seats: dict[str, str] = {}
        for endpoint in pcie.endpoints:
            if endpoint.device:
                path = ("pcie", "endpoints", endpoint.name, "device")
                self.known("device", endpoint.device, _names(self.target.devices), *path)
                if endpoint.device in seats:
                    raise self.root.at(*path).error(
                        f"device {quoted(endpoint.device)} already sits in {quoted(seats[endpoint.device])}"
                    )
                seats[endpoint.device] = endpoint.name

    def unique(self, target: Target) -> None:
        """Names and PCI addresses are unique over the whole board: they are nodes of one graph."""
        seen: dict[str, str] = {}
        for path, items in _groups(target):
            for item in items:
                for key, steps in ((item.name, ()), (getattr(item, "address", ""), ("address",))):
                    if key and key in seen:
                        raise self.root.at(*path, item.name, *steps).error(
                            f"{quoted(key)} is already used by {seen[key]}"
                        )
                    seen[key] = ".".join((*path, item.name))

    def connected(self, target: Target) -> None:
        """Every part of the board is reachable from the first memory."""
        graph: nx.Graph[Any] = nx.Graph()
        attached: list[Device | RootPort] = [*target.devices, *target.pcie.root_ports]
        graph.add_nodes_from(item.name for _, items in _groups(target) for item in items)
        graph.add_edges_from((memory.name, other) for memory in target.memories for other in memory.remote)
        graph.add_edges_from((item.name, item.memory) for item in attached)
        graph.add_edges_from((link.upstream, link.downstream) for link in target.pcie.links)
        graph.add_edges_from((end.name, end.device) for end in target.pcie.endpoints if end.device)
        first = target.memories[0].name
        reached = set(nx.bfs_tree(graph, first))
        for path, items in _groups(target):
            for item in items:
                if item.name not in reached:
                    raise self.root.at(*path, item.name).error(
                        f"not connected to memory {quoted(first)}: the board is in two pieces; "
                        "a PCIe link or a 'remote' is missing"
                    )


def _groups(target: Target) -> list[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """Everything that has a name, with the key path it stands under; first what others hang on."""
    pcie = target.pcie
    return [
        (("pcie", "root_ports"), pcie.root_ports),
        (("pcie", "switches"), pcie.switches),
        (("pcie", "endpoints"), pcie.endpoints),
        (("memories",), target.memories),
        (("devices",), target.devices),
    ]
