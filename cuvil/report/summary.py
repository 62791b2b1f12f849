"""What the commands found out, as text for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cuvil.report.text import amount, duration, facts, size, table

Result = Mapping[str, Any]


def compiled(result: Result) -> str:
    """`commands.compile_library`."""
    arena, prepared = result["workspace_bytes"], result["prepared_bytes"]
    rows = [
        ("library", f"{result['library']}  {size(result['library_bytes'])}, {result['triple']}"),
        ("header", result["header"]),
        ("weights", size(result["weights_bytes"])),
        ("prepared", f"{size(prepared)} of memory, filled by the first run" if prepared else ""),
        ("arena", f"depends on {', '.join(result['symbols'])}" if arena is None else size(arena)),
        *(("device", _device(d)) for d in result["devices"]),
        *(("input", _tensor(t)) for t in result["inputs"]),
        *(("output", _tensor(t)) for t in result["outputs"]),
        ("call", result["prototype"]),
    ]
    return facts(rows)


def costed(result: Result) -> str:
    """`commands.cost`."""
    rows = []
    for k in result["kernels"]:
        amounts = [amount(k["flops"]), size(k["dram_bytes"]), size(k["pcie_bytes"])]
        rows.append([k["name"], k["device"], _names(k["origin"]), *amounts, duration(k["latency_ns"])])
    titles = ("kernel", "device", "from", "FLOP", "DRAM", "PCIe", "predicted")
    return _parts(table(rows, titles, "<<<>>>>"), _transfers(result["transfers"]), _latency(result))


def reported(result: Result) -> str:
    """`commands.write_report`."""
    return facts([("page", result["page"]), ("latency", f"{duration(result['latency_ns'])}, predicted")])


def partitioned(result: Result) -> str:
    """`commands.partition`."""
    devices = [
        [d["name"], d["kind"], d["isa"], str(d["nodes"]), d["left_out"] or ""] for d in result["devices"]
    ]
    segments = []
    for number, s in enumerate(result["segments"]):
        nodes = s["nodes"]
        what = [s["device"], str(len(nodes)), _ends(nodes), _names(s["inputs"]), _names(s["outputs"])]
        segments.append([str(number), *what])
    return _parts(
        table(devices, ("device", "kind", "isa", "nodes", "left out"), "<<<>"),
        table(segments, ("segment", "device", "nodes", "from .. to", "reads", "writes"), "><>"),
        _transfers(result["transfers"]),
        _latency(result["predicted"]),
    )


def verified(result: Result) -> str:
    """`commands.verify`."""
    from cuvil.report.verify import Verification

    return Verification(**{**result, "notes": ()}).text()


def benchmarked(result: Result) -> str:
    """`commands.bench`."""
    from cuvil.report.verify import Benchmark

    return Benchmark(**{**result, "notes": ()}).text()


def targets(result: Result) -> str:
    """`commands.list_targets`, or `commands.show_target` as JSON."""
    if "targets" not in result:
        return json.dumps(result, indent=2)
    return table([[t["name"], t.get("error") or t["description"]] for t in result["targets"]])


def probed(result: Result) -> str:
    """`commands.probe`."""
    target = result["target"]
    rows = [("profile", result["profile"]), ("board", target["board"]), ("triple", target["triple"])]
    for name, d in target["devices"].items():
        caches = ", ".join(f"{k} {size(d['caches'][k])}" for k in ("l1d", "l2", "l3") if d["caches"][k])
        clock = f"{d['frequency'] / 1e9:.3g} GHz"
        rows.append(("device", f"{name}: {d['isa']}, {d['cores']} cores, {clock}, {caches}"))
    for name, m in target["memories"].items():
        rows.append(("memory", f"{name}: {size(m['size'])}, {m['bandwidth'] / 1e9:.3g} GB/s"))
    return facts(rows)


def _parts(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _transfers(transfers: Sequence[Result]) -> str:
    rows = [
        [t["tensor"], t["from"], t["to"], size(t["bytes"]), size(t["pcie_bytes"]), duration(t["time_ns"])]
        for t in transfers
    ]
    return table(rows, ("transfer", "from", "to", "bytes", "PCIe", "predicted"), "<<<>>>") if rows else ""


def _latency(cost: Result) -> str:
    low, high = map(duration, cost["interval_ns"])
    return f"predicted latency  {duration(cost['latency_ns'])} ({low} to {high} for {cost['coverage']:.0%})"


def _device(device: Result) -> str:
    levels = device["isa_levels"]
    kind = f"{device['name']} ({f'{levels[0]} to {levels[-1]}' if levels else device['isa']})"
    if device["left_out"]:
        return f"{kind}: left out, {device['left_out']}"
    if not device["nodes"]:
        return f"{kind}: not used"
    return f"{kind}: {device['nodes']} nodes in {device['kernels']} kernels, {device['arithmetic']}"


def _tensor(tensor: Result) -> str:
    return f"{tensor['name']}: {tensor['dtype']} [{', '.join(map(str, tensor['shape']))}]"


def _ends(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} .. {nodes[-1]}" if nodes else ""


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
