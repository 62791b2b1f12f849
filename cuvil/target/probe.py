"""A profile of the machine that Cuvil runs on, from what its operating system tells.

Everything is read from ``/proc/cpuinfo`` and ``/sys`` and may be missing, as in containers, virtual
machines and outside Linux; then a modest value stands in.  Nothing that varies from run to run is
read (current clock, free memory, load), so that the profile is the same each time.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from cuvil.errors import TargetError
from cuvil.target import isa, units, yamlfile
from cuvil.target.probe_pcie import probe_pcie, read_text

Measure = Callable[[str, str, tuple[int, ...]], float]
"""``measure(what, isa, cpus)``: the measured value of ``peak_f32`` (FLOP/s of one core) or ``bandwidth``
(B/s of the memory beside `cpus`)."""

ASSUMED_BANDWIDTH, ASSUMED_LATENCY, ASSUMED_MEMORY = 10e9, 100e-9, 1 << 30
ASSUMED_FREQUENCY = 2e9
MEMORY_GRAIN = 1 << 26
"""Sizes of memory are rounded down to this: kernels differ in what they keep for themselves."""


def best_isa(arch: str, flags: Iterable[str]) -> str:
    """The largest instruction set of `arch` all of whose features are among `flags` (Linux' names)."""
    available = frozenset(flags)
    reached = [isa.BASELINE[arch]]
    for name in isa.FEATURES:
        if isa.ISAS[name].arch == arch and available.issuperset(isa.features(name)):
            reached.append(name)
    return reached[-1]


def probe(root: str | Path = "/", measure: Measure | None = None) -> dict[str, Any]:
    """The profile of this machine, as the mapping that its YAML file would hold.

    There is one CPU device for each NUMA node and kind of core.

    Args:
        root: folder that holds ``proc`` and ``sys``.
        measure: measures peak rates and bandwidths; None leaves them out or assumes them.

    Raises:
        TargetError: the machine's architecture or operating system is none that Cuvil compiles for.
    """
    root = Path(root)
    triple = _triple()
    blocks = _cpuinfo(root)
    nodes = _numa_nodes(root, sorted(blocks))
    groups: dict[tuple[int, str], list[int]] = {}
    for cpu, block in sorted(blocks.items()):
        node = next((number for number, cpus in nodes.items() if cpu in cpus), min(nodes))
        part = block.get("CPU implementer", "") + block.get("CPU part", "")
        groups.setdefault((node, part), []).append(cpu)
    devices: dict[str, Any] = {}
    for index, ((node, _), cpus) in enumerate(groups.items() if groups else [((min(nodes), ""), [])]):
        device = _device(root, triple, [blocks[cpu] for cpu in cpus], cpus, measure)
        if len(nodes) > 1:
            device["memory"] = f"node{node}"
        if len(groups) > 1:
            device["cpus"] = list(cpus)
        devices[f"cpu{index}"] = device
    name = devices["cpu0"]["isa"]
    memories = {
        f"node{node}": _memory(root, node, list(nodes), tuple(cpus), name, measure)
        for node, cpus in nodes.items()
    }
    model = next((block["model name"] for block in blocks.values() if block.get("model name")), triple.arch)
    model = "".join(c for c in " ".join(model.split()) if c.isprintable())[:200]
    profile: dict[str, Any] = {
        "name": "host",
        "description": "this machine, as probed",
        "board": model,
        "triple": str(triple),
        "devices": devices,
        "memories": memories,
    }
    pcie = probe_pcie(root, [f"node{node}" for node in nodes])
    return profile | ({"pcie": pcie} if pcie else {})


def probe_yaml(root: str | Path = "/", measure: Measure | None = None) -> str:
    """`probe` as the text of a profile that can be kept and edited."""
    body = yaml.dump(probe(root, measure), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"# yaml-language-server: $schema=schema.json\n# Written by cuvil probe; edit it freely.\n{body}"


class _Dumper(yaml.SafeDumper):
    """Quotes every text that the strict reader would not read back."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        try:
            plain = yamlfile.read_bytes(f"k: {text}\n".encode(), "").plain() == {"k": text}
        except TargetError:
            plain = False
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def _triple() -> isa.Triple:
    system = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}.get(
        platform.system(), platform.system().lower()
    )
    abi = (
        "-musl"
        if system == "linux" and any(Path("/lib").glob("ld-musl-*")) and not platform.libc_ver()[0]
        else ""
    )
    try:
        return isa.parse_triple(f"{platform.machine().lower()}-{system}{abi}")
    except ValueError as error:
        raise TargetError(f"this machine cannot be a target: {error}", "probe") from None


def _cpuinfo(root: Path) -> dict[int, dict[str, str]]:
    """CPU number -> the fields of its block of ``/proc/cpuinfo``."""
    blocks: dict[int, dict[str, str]] = {}
    for text in read_text(root / "proc/cpuinfo").split("\n\n"):
        fields = {
            key.strip(): value.strip()
            for key, colon, value in (line.partition(":") for line in text.splitlines())
            if colon
        }
        if fields.get("processor", "").isdigit():
            blocks[int(fields["processor"])] = fields
    return blocks


def _numbers(text: str) -> list[int]:
    """The numbers of a list as Linux writes it: ``0-3,8``."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def _numa_nodes(root: Path, cpus: list[int]) -> dict[int, list[int]]:
    """NUMA node -> its CPUs; one node with all CPUs where the system tells of none."""
    nodes: dict[int, list[int]] = {}
    for folder in sorted(
        (root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda f: int(f.name[4:])
    ):
        if _node_bytes(folder):
            nodes[int(folder.name[4:])] = [
                cpu for cpu in _numbers(read_text(folder / "cpulist")) if cpu in cpus
            ]
    return nodes or {0: cpus}


def _node_bytes(folder: Path) -> int:
    match = re.search(r"MemTotal:\s*(\d+) kB", read_text(folder / "meminfo"))
    return int(match[1]) * 1024 if match else 0


def _device(
    root: Path, triple: isa.Triple, blocks: list[dict[str, str]], cpus: list[int], measure: Measure | None
) -> dict[str, Any]:
    flag_sets = [re.split(r"\s+", b.get("flags", "") or b.get("Features", "")) for b in blocks]
    if triple.arch == "riscv64":
        flag_sets = [list(b.get("isa", "").split("_")[0].removeprefix("rv64")) for b in blocks]
    name = best_isa(triple.arch, frozenset(flag_sets[0]).intersection(*flag_sets[1:]) if flag_sets else ())
    if triple.os == "macos" and triple.arch == "aarch64":
        name = "armv8.2-a-dotprod"  # every Mac of this architecture has it
    folder = root / f"sys/devices/system/cpu/cpu{cpus[0] if cpus else 0}"
    topology = {
        (read_text(path / "physical_package_id"), read_text(path / "core_id"))
        for cpu in cpus
        if (path := root / f"sys/devices/system/cpu/cpu{cpu}/topology").is_dir()
    }
    device: dict[str, Any] = {
        "kind": "cpu",
        "isa": name,
        "cores": len(topology) or max(len(cpus), 1),
        "frequency": units.show("frequency", _frequency(folder, blocks[0] if blocks else {})),
    }
    if measure:
        device["peak_f32"] = units.show("rate", measure("peak_f32", name, tuple(cpus)))
    caches = _caches(folder)
    return device | ({"caches": caches} if caches else {})


def _frequency(folder: Path, block: dict[str, str]) -> float:
    """Hz: the largest or stated clock, else that of x86's time-stamp counter, else an assumption."""
    maximum = read_text(folder / "cpufreq/cpuinfo_max_freq")
    if maximum.isdigit() and int(maximum):
        return int(maximum) * 1e3
    stated = re.search(r"@ ([0-9.]+)GHz", block.get("model name", ""))
    if stated:
        return float(stated[1]) * 1e9
    bogomips = re.fullmatch(r"[0-9]+(\.[0-9]+)?", block.get("bogomips", ""))
    if bogomips and "flags" in block and float(bogomips[0]):  # x86: twice the counter's rate
        return max(round(float(bogomips[0]) / 20) * 1e7, 1e7)
    return ASSUMED_FREQUENCY


def _caches(folder: Path) -> dict[str, str]:
    found = {}
    for index in sorted((folder / "cache").glob("index[0-9]*")):
        level, size, line = (read_text(index / key) for key in ("level", "size", "coherency_line_size"))
        match = re.fullmatch(r"(\d+)([KM])", size)
        if match and read_text(index / "type") != "Instruction" and level in "123":
            value = int(match[1]) << {"K": 10, "M": 20}[match[2]]
            found[{"1": "l1d", "2": "l2", "3": "l3"}[level]] = units.show("bytes", value)
            if line in ("16", "32", "64", "128", "256"):
                found["line"] = f"{line} B"
    return found


def _memory(
    root: Path, node: int, nodes: list[int], cpus: tuple[int, ...], name: str, measure: Measure | None
) -> dict[str, Any]:
    folder = root / f"sys/devices/system/node/node{node}"
    total = re.search(r"MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo"))
    size = _node_bytes(folder) or (int(total[1]) * 1024 if total else ASSUMED_MEMORY)
    bandwidth = measure("bandwidth", name, cpus) if measure and cpus else ASSUMED_BANDWIDTH
    memory: dict[str, Any] = {
        "size": units.show("bytes", max(size // MEMORY_GRAIN, 1) * MEMORY_GRAIN),
        "bandwidth": units.show("bandwidth", bandwidth),
        "latency": units.show("time", ASSUMED_LATENCY),
    }
    online = sorted(int(path.name[4:]) for path in folder.parent.glob("node[0-9]*"))
    distances = dict(zip(online, _numbers(read_text(folder / "distance"))))
    remote = {
        f"node{other}": {
            "latency": units.show("time", ASSUMED_LATENCY * max(distances.get(other, 20), 10) / 10)
        }
        for other in nodes
        if other != node
    }
    return memory | ({"remote": remote} if remote else {})
