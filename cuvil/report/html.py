"""The report: one HTML file, pictures as inline SVG, nothing loaded from elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from cuvil import __version__
from cuvil.report import layers
from cuvil.report.text import amount, duration, size

Result = Mapping[str, Any]

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Colours of the devices in the profile's order, told apart by colour-blind readers too (Okabe and Ito)."""

MAX_DRAWN_NODES = 600
BOX = (138.0, 30.0)

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #1c2733; max-width: 1180px; margin: 2em auto }
h1 { font-size: 1.6em; margin: 0 }
h2 { font-size: 1.15em; margin: 2em 0 .5em; border-bottom: 1px solid #d5dbe1 }
p.sub { color: #5b6875; margin: .2em 0 1em } .tiles { display: flex; flex-wrap: wrap; gap: 12px }
.tile { border: 1px solid #d5dbe1; border-radius: 6px; padding: 8px 14px; min-width: 120px }
.tile b { display: block; font-size: 1.25em } .tile span { color: #5b6875; font-size: .85em }
table { border-collapse: collapse; margin-bottom: 1em }
th { text-align: left; color: #5b6875; font-weight: 600 }
td, th { padding: 3px 10px 3px 0; border-bottom: 1px solid #edf0f3; vertical-align: top }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
td.from { color: #5b6875; max-width: 280px; overflow-wrap: anywhere } td.bar { width: 22% }
.bar div { height: 12px; border-radius: 2px; margin-top: 4px; min-width: 1px }
.box { overflow: auto; max-height: 85vh; border: 1px solid #d5dbe1; border-radius: 6px; padding: 8px }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em }
svg text { font: 11px system-ui, sans-serif; fill: #1c2733 } svg .dim { fill: #5b6875 }
"""


def page(report: Result) -> str:
    """The page for what `commands.report` gathered."""
    colours = {d["name"]: PALETTE[i % len(PALETTE)] for i, d in enumerate(report["devices"])}
    title = f"{escape(report['model'])} on {escape(report['target'])}"
    parts = [
        f"<h1>{title}</h1><p class=sub>{escape(report['board'])} &middot; Cuvil {__version__}</p>",
        _tiles(report),
        "".join(f"<p class=sub>{escape(note)}</p>" for note in report["notes"]),
        "<h2>Who runs what</h2>",
        _devices(report, colours),
        _segments(report, colours),
        _transfers(report),
        "<h2>Kernels</h2>",
        _kernels(report, colours),
        "<h2>Working memory</h2>",
        "".join(_arena(arena, colours) for arena in report["arenas"]),
        "<h2>Network</h2>",
        _network(report["nodes"], colours),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{title}</title>\n"
        "<meta name=viewport content='width=device-width'>\n"
        f"<style>{_STYLE}</style>\n<body>\n{body}\n</body></html>\n"
    )


def _tiles(report: Result) -> str:
    low, high = report["interval_ns"]
    arena, prepared = report["workspace_bytes"], report["prepared_bytes"]
    tiles = [
        (duration(report["latency_ns"]), f"predicted latency ({duration(low)} to {duration(high)})"),
        (f"{amount(sum(k['flops'] for k in report['kernels']))}FLOP", "floating-point operations"),
        (size(sum(k["dram_bytes"] for k in report["kernels"])), "memory traffic"),
        (size(report["weights_bytes"]), "weights"),
        *([(size(prepared), "weights prepared by the first run")] if prepared else []),
        ("symbolic" if arena is None else size(arena), "working memory"),
        (str(len(report["kernels"])), f"kernels from {len(report['nodes'])} nodes"),
    ]
    inner = "".join(f"<div class=tile><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in tiles)
    return f"<div class=tiles>{inner}</div>"


def _devices(report: Result, colours: Mapping[str, str]) -> str:
    rows = [
        [
            f"<span class=key style='background:{colours[d['name']]}'></span>{escape(d['name'])}",
            escape(f"{d['kind']}, {d['isa']}"),
            str(d["nodes"]),
            escape(f"left out: {d['left_out']}" if d["left_out"] else ""),
        ]
        for d in report["devices"]
    ]
    return _table(("device", "kind", "nodes", ""), rows, numbers=(2,), width="auto")


def _segments(report: Result, colours: Mapping[str, str]) -> str:
    if len(report["segments"]) < 2:
        return ""
    rows = [
        [
            str(k),
            f"<span class=key style='background:{colours[s['device']]}'></span>{escape(s['device'])}",
            str(len(s["nodes"])),
            escape(", ".join(s["inputs"])),
            escape(", ".join(s["outputs"])),
        ]
        for k, s in enumerate(report["segments"])
    ]
    return _table(("segment", "device", "nodes", "reads", "writes"), rows, numbers=(0, 2), width="auto")


def _transfers(report: Result) -> str:
    rows = [
        [
            escape(t["tensor"]),
            escape(f"{t['from']} to {t['to']}"),
            size(t["bytes"]),
            size(t["pcie_bytes"]),
            duration(t["time_ns"]),
        ]
        for t in report["transfers"]
    ]
    titles = ("transfer", "way", "bytes", "PCIe", "predicted")
    return _table(titles, rows, numbers=(2, 3, 4), width="auto") if rows else ""


def _kernels(report: Result, colours: Mapping[str, str]) -> str:
    longest = max((k["latency_ns"] for k in report["kernels"]), default=0) or 1
    rows = [
        [
            escape(k["name"]),
            escape(k["device"]),
            escape(", ".join(k.get("origin", ()))),
            amount(k["flops"]),
            size(k["dram_bytes"]),
            size(k["pcie_bytes"]),
            duration(k["latency_ns"]),
            _bar(k["latency_ns"] / longest, colours[k["device"]]),
        ]
        for k in report["kernels"]
    ]
    titles = ("kernel", "device", "from", "FLOP", "DRAM", "PCIe", "predicted", "")
    return _table(titles, rows, numbers=(3, 4, 5, 6), classes={2: "from", 7: "bar"})


def _bar(share: float, colour: str) -> str:
    return f"<div style='width:{100 * share:.1f}%;background:{colour}'></div>"


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int] = (),
    classes: Mapping[int, str] | None = None,
    width: str = "100%",
) -> str:
    """A table of cells that are HTML already."""
    kinds = [(classes or {}).get(i, "n" if i in numbers else "") for i in range(len(titles))]
    head = "".join(f"<th class='{c}'>{escape(t)}</th>" for t, c in zip(titles, kinds))
    lines = ["".join(f"<td class='{c}'>{cell}</td>" for cell, c in zip(row, kinds)) for row in rows]
    return (
        f"<table style='width:{width}'><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
    )


def _arena(arena: Result, colours: Mapping[str, str]) -> str:
    """The arena map of one segment: steps from left to right, offsets upwards."""
    title = escape(f"{arena['device']}, segment {arena['segment']}")
    if arena["bytes"] is None:
        return f"<p>{title}: the sizes are symbolic; bind them with --shape to see the map.</p>"
    if not arena["buffers"]:
        return f"<p>{title}: no working memory.</p>"
    width, height, margin = 1000.0, 300.0, 70.0
    across, upwards = width / max(arena["steps"], 1), height / arena["bytes"]
    colour = colours[arena["device"]]
    boxes = []
    for buffer in arena["buffers"]:
        x, w = margin + buffer["first"] * across, (buffer["last"] - buffer["first"] + 1) * across
        h = buffer["bytes"] * upwards
        y = 10 + height - buffer["offset"] * upwards - h
        name = buffer["name"]
        where = f"{size(buffer['bytes'])} at {buffer['offset']}, steps {buffer['first']} to {buffer['last']}"
        label = f"<text x='{x + 4:.1f}' y='{y + h / 2 + 4:.1f}'>{escape(name)}</text>"
        boxes.append(
            f"<g><title>{escape(name)}: {where}</title>"
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(w - 1, 1):.1f}' height='{max(h, 0.7):.1f}' "
            f"fill='{colour}' fill-opacity='.3' stroke='{colour}'/>"
            f"{label if h > 13 and w > 7 * len(name) else ''}</g>"
        )
    marks = "".join(
        f"<text class=dim x='{margin - 6}' y='{14 + height * (1 - f):.0f}' text-anchor='end'>"
        f"{size(arena['bytes'] * f)}</text>"
        for f in (0.0, 0.5, 1.0)
    )
    frame = f"<rect x='{margin}' y='10' width='{width}' height='{height}' fill='none' stroke='#d5dbe1'/>"
    caption = (
        f"<text class=dim x='{margin}' y='{height + 28}'>{title}: {size(arena['bytes'])}, "
        f"steps 0 to {arena['steps'] - 1} from left to right</text>"
    )
    inner = f"{frame}{''.join(boxes)}{marks}{caption}"
    return f"<svg viewBox='0 0 {width + margin + 10} {height + 36}' width='100%'>{inner}</svg>"


def _network(nodes: Sequence[Result], colours: Mapping[str, str]) -> str:
    """The graph, one box a node in its device's colour."""
    drawn = nodes[:MAX_DRAWN_NODES]
    producer = {name: i for i, node in enumerate(drawn) for name in node["outputs"]}
    edges = dict.fromkeys(
        (producer[name], i) for i, node in enumerate(drawn) for name in node["inputs"] if name in producer
    )
    drawing = layers.draw(len(drawn), list(edges))
    lines = "".join(f"<path d='{_curve(way)}' fill='none' stroke='#9aa7b3'/>" for way in drawing.edges)
    boxes = []
    for node, (x, y) in zip(drawn, drawing.nodes):
        colour = colours[node["device"]]
        left, top = x - BOX[0] / 2, y - BOX[1] / 2
        shape = _short(node["shapes"][0] if node["shapes"] else "")
        hint = f"{node['op']} {node['name']} on {node['device']}: {', '.join(node['shapes'])}"
        boxes.append(
            f"<g><title>{escape(hint)}</title><rect x='{left:.1f}' y='{top:.1f}' width='{BOX[0]}' "
            f"height='{BOX[1]}' rx='4' fill='white' stroke='{colour}'/>"
            f"<rect x='{left:.1f}' y='{top:.1f}' width='4' height='{BOX[1]}' fill='{colour}'/>"
            f"<text x='{x:.1f}' y='{y - 2:.1f}' text-anchor='middle'>{escape(_short(node['op']))}</text>"
            f"<text class=dim x='{x:.1f}' y='{y + 10:.1f}' text-anchor='middle'>{escape(shape)}</text></g>"
        )
    more = f"<p>The first {len(drawn)} of {len(nodes)} nodes.</p>" if len(drawn) < len(nodes) else ""
    size = f"width='{drawing.width:.0f}' height='{drawing.height:.0f}'"
    svg = f"<svg {size} style='display:block;margin:auto'>{lines}{''.join(boxes)}</svg>"
    return f"{more}<div class=box>{svg}</div>"


def _curve(way: Sequence[layers.Point]) -> str:
    """A smooth line through the points of an edge, from a box's lower rim to another's upper one."""
    half = BOX[1] / 2
    points = [(way[0][0], way[0][1] + half), *way[1:-1], (way[-1][0], way[-1][1] - half)]
    text = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        text += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return text


def _short(text: str, limit: int = 20) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
