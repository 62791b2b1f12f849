from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from typing import Any

from cuvil.report import html, layers

VOID = {"meta"}


class Checker(HTMLParser):
    """Tags that open and close in order, and every attribute that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(**changes: Any) -> dict[str, Any]:
    """A report of two nodes on two devices."""

    def kernel(name: str, device: str, latency: float) -> dict[str, Any]:
        return {
            "name": name, "device": device, "origin": [name], "flops": 1e6, "dram_bytes": 2048,
            "pcie_bytes": 0, "latency_ns": latency,
        }  # fmt: skip

    def node(name: str, device: str, source: str, made: str) -> dict[str, Any]:
        return {
            "name": name, "op": "Relu", "device": device, "inputs": [source], "outputs": [made],
            "shapes": ["1×8"],
        }  # fmt: skip

    buffer = {"name": "m", "offset": 64, "bytes": 192, "first": 0, "last": 1}
    base: dict[str, Any] = {
        "model": "net", "target": "board", "board": "A board", "notes": [],
        "latency_ns": 5000.0, "interval_ns": [4000.0, 7000.0],
        "kernels": [kernel("k0", "big", 1000.0), kernel("k1", "little", 4000.0)],
        "devices": [
            {"name": "big", "kind": "cpu", "isa": "armv8-a", "nodes": 1, "segments": 1, "left_out": None},
            {"name": "little", "kind": "cpu", "isa": "armv8-a", "nodes": 1, "segments": 1, "left_out": None},
            {"name": "npu", "kind": "npu", "isa": "x", "nodes": 0, "segments": 0,
             "left_out": "no back end yet"},
        ],
        "segments": [
            {"device": "big", "nodes": [0], "inputs": ["x"], "outputs": ["m"]},
            {"device": "little", "nodes": [1], "inputs": ["m"], "outputs": ["y"]},
        ],
        "nodes": [node("a", "big", "x", "m"), node("b", "little", "m", "y")],
        "arenas": [{"device": "big", "segment": 0, "steps": 2, "bytes": 256, "buffers": [buffer]}],
        "transfers": [
            {"tensor": "m", "from": "big", "to": "little", "bytes": 32, "pcie_bytes": 0, "time_ns": 5200},
        ],
        "workspace_bytes": 256, "weights_bytes": 1024, "prepared_bytes": 0,
    }  # fmt: skip
    return base | changes


def test_page_is_whole_and_loads_nothing() -> None:
    page = html.page(report())
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert (checker.open, checker.loaded) == ([], [])
    assert "url(" not in page
    assert "@import" not in page


def test_page_says_what_was_found() -> None:
    page = html.page(report())
    for text in (
        "net on board",
        "5 us",
        "4 us to 7 us",
        "2 MFLOP",
        "4 KiB",
        "left out: no back end yet",
        "big to little",
    ):
        assert text in page, text
    widths = re.findall(r"<div style='width:([0-9.]+)%", page)
    assert widths == ["25.0", "100.0"]
    # 192 of 256 bytes from offset 64: the upper three quarters of a map 300 high
    assert re.search(
        r"<title>m: 192 B at 64, steps 0 to 1</title><rect x='70.0' y='10.0' .* height='225.0'", page
    )


def test_prepared_weights_are_mentioned() -> None:
    assert "prepared" not in html.page(report())
    assert "<b>3 KiB</b><span>weights prepared by the first run" in html.page(report(prepared_bytes=3072))


def test_text_of_a_model_stays_text() -> None:
    evil = "<script>alert('&')</script>"
    nodes = [{**report()["nodes"][0], "name": evil, "op": evil, "shapes": [evil]}]
    assert "<script" not in html.page(report(model=evil, nodes=nodes, notes=[evil]))


def test_symbolic_arena() -> None:
    arena = {"device": "big", "segment": 0, "steps": 2, "bytes": None, "buffers": []}
    page = html.page(report(arenas=[arena], workspace_bytes=None))
    assert "the sizes are symbolic" in page


def test_a_large_graph_is_cut_and_says_so() -> None:
    node = report()["nodes"][0]
    page = html.page(report(nodes=[node] * (html.MAX_DRAWN_NODES + 1)))
    assert "The first 600 of 601 nodes." in page


def test_layers_of_a_skip_connection() -> None:
    """0 -> 1 -> 2 -> 3 with 0 -> 3 beside it: four layers, and the long edge passes beside the nodes."""
    drawing = layers.draw(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert [y for _, y in drawing.nodes] == [(i + 0.5) * layers.HEIGHT for i in range(4)]
    way = drawing.edges[3]
    assert (way[0], way[-1]) == (drawing.nodes[0], drawing.nodes[3])
    for (x, _), node in zip(way[1:-1], drawing.nodes[1:3]):
        assert abs(x - node[0]) >= (layers.WIDTH + layers.DETOUR) / 2 - 1e-9


def test_layers_do_not_overlap() -> None:
    """One source, nine branches, one sink."""
    edges = [(0, k) for k in range(1, 10)] + [(k, 10) for k in range(1, 10)]
    drawing = layers.draw(11, edges)
    middle = sorted(x for x, _ in drawing.nodes[1:10])
    assert all(b - a >= layers.WIDTH - 1e-9 for a, b in itertools.pairwise(middle))
    assert drawing.width >= 9 * layers.WIDTH - 1e-9
    assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in drawing.nodes)
    assert layers.draw(0, []) == layers.Drawing((), (), 0.0, 0.0)
