"""Drawing a graph in layers: the method of Sugiyama, Tagawa and Toda (1981).

A node stands one layer below the lowest of its sources; an edge over several layers gets a point in
each; barycentre sweeps order the layers; then every item moves as near to its neighbours as the order
allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

Point = tuple[float, float]

SWEEPS = 6
WIDTH, DETOUR, HEIGHT = 150.0, 14.0, 46.0
"""Room for a node and for an edge that passes by; distance of layers."""


@dataclass(frozen=True)
class Drawing:
    """Centres of the nodes, the way of every edge, and the size of it all."""

    nodes: tuple[Point, ...]
    edges: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def draw(count: int, edges: Sequence[tuple[int, int]]) -> Drawing:
    """Positions for nodes ``0 .. count - 1`` in topological order and for `edges` between them."""
    layer = [0] * count
    for source, sink in sorted(edges, key=lambda e: e[1]):
        layer[sink] = max(layer[sink], layer[source] + 1)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node in range(count):
        rows[layer[node]].append(node)
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    ways = []
    for source, sink in edges:
        way = [source]
        for depth in range(layer[source] + 1, layer[sink]):
            way.append(len(above))
            rows[depth].append(len(above))
            above.append([])
            below.append([])
        way.append(sink)
        for upper, lower in itertools.pairwise(way):
            below[upper].append(lower)
            above[lower].append(upper)
        ways.append(way)
    room = [WIDTH if item < count else DETOUR for item in range(len(above))]
    x = _across(rows, above, below, room)
    left = min((x[i] - room[i] / 2 for i in range(len(x))), default=0.0)
    right = max((x[i] + room[i] / 2 for i in range(len(x))), default=0.0)
    y = {item: (depth + 0.5) * HEIGHT for depth, row in enumerate(rows) for item in row}
    points = [(x[i] - left, y[i]) for i in range(len(x))]
    return Drawing(
        tuple(points[:count]),
        tuple(tuple(points[i] for i in way) for way in ways),
        right - left,
        len(rows) * HEIGHT,
    )


def _across(
    rows: list[list[int]], above: list[list[int]], below: list[list[int]], room: list[float]
) -> list[float]:
    """The x of every item; orders the rows in place."""
    x = [0.0] * len(above)
    for row in rows:
        _pack(row, [0.0] * len(row), room, x)
    for sweep in range(SWEEPS):
        order, neighbours = (rows, above) if sweep % 2 == 0 else (rows[::-1], below)
        for row in order:
            wish = {item: fmean([x[n] for n in neighbours[item]] or [x[item]]) for item in row}
            row.sort(key=lambda item: wish[item])
            _pack(row, [wish[item] for item in row], room, x)
    return x


def _pack(row: list[int], wish: Sequence[float], room: list[float], x: list[float]) -> None:
    """Give the items of a row, in their order, an x near their wishes without overlap."""
    reached = float("-inf")
    for item, wanted in zip(row, wish):
        x[item] = max(wanted, reached + room[item] / 2)
        reached = x[item] + room[item] / 2
    if row:
        shift = fmean(w - x[item] for item, w in zip(row, wish))
        for item in row:
            x[item] += shift
