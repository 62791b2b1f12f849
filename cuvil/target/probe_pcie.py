"""The PCIe tree as Linux shows it: accelerators, disks, network cards and their links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_GENERATIONS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5}
_SHOWN_CLASSES = {"0x0108": "nvme", "0x0200": "net", "0x0300": "gpu", "0x0302": "gpu", "0x1200": "accel"}
_ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"


def probe_pcie(root: Path, memories: list[str]) -> dict[str, Any]:
    """The ``pcie`` mapping of a profile; empty where nothing is readable or attached.

    Of every link the generation and width are what both ends can do: the present state changes
    with power management.  A switch's ports are one node.

    Args:
        root: folder that holds ``sys``.
        memories: names of the NUMA nodes, the first for ports that belong to none.
    """
    tree: dict[str, Any] = {"root_ports": {}, "switches": {}, "endpoints": {}, "links": []}
    names: dict[Path, str] = {}
    for entry in sorted((root / "sys/bus/pci/devices").glob("*")):
        device = entry.resolve()
        label = _SHOWN_CLASSES.get(read_text(device / "class")[:6])
        chain = [p for p in (*reversed(device.parents), device) if re.fullmatch(_ADDRESS, p.name)]
        whole = device.name.endswith(".0")  # further functions share the first one's link
        if (
            label
            and whole
            and len(chain) % 2 == 0
            and all(_link(a, b) for a, b in zip(chain[::2], chain[1::2]))
        ):
            _add(tree, names, chain, label, memories)
    return {key: value for key, value in tree.items() if value} if tree["links"] else {}


def _add(
    tree: dict[str, Any], names: dict[Path, str], chain: list[Path], label: str, memories: list[str]
) -> None:
    """Add the endpoint at the end of `chain`: a root port, a switch and its lower port for each level, it."""
    port = chain[0]
    if port not in names:
        names[port] = f"root{len(tree['root_ports'])}"
        node = read_text(port / "numa_node")
        memory = f"node{node}" if f"node{node}" in memories else memories[0]
        tree["root_ports"][names[port]] = {"memory": memory, "address": port.name}
    upstream = names[port]
    for above, below in zip(chain[::2], chain[1::2]):
        if below not in names:
            kind, prefix = ("endpoints", label) if below == chain[-1] else ("switches", "switch")
            names[below] = f"{prefix}{sum(name.startswith(prefix) for name in tree[kind])}"
            tree[kind][names[below]] = {"address": below.name}
            generation, lanes = _link(above, below) or (1, 1)
            tree["links"].append(
                {"upstream": upstream, "downstream": names[below], "generation": generation, "lanes": lanes}
            )
        upstream = names[below]


def _link(above: Path, below: Path) -> tuple[int, int] | None:
    """Generation and lanes that both ends of a link can do; None where an end does not say."""
    ends = []
    for end in (above, below):
        speed = _GENERATIONS.get(read_text(end / "max_link_speed").split(" ")[0])
        width = read_text(end / "max_link_width")
        if not speed or width not in ("1", "2", "4", "8", "16"):
            return None
        ends.append((speed, int(width)))
    return min(speed for speed, _ in ends), min(width for _, width in ends)


def read_text(path: Path) -> str:
    """The text of a file of ``/proc`` or ``/sys``; empty where it is missing or closed to us."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
