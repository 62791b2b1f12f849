"""Windows of grouped convolutions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from zoo.net import Net

import cuvil
from cuvil.codegen.tuned.groups import Groups
from cuvil.codegen.tuned.isa import BLOCK, Tiles
from cuvil.ir import expr as E


def groups(inputs: int, outputs: int, count: int, base: int = 0, spare: int = 0) -> Groups:
    column, channel = E.var(outputs * count), E.var(inputs)
    return Groups(column, channel, 1, inputs, outputs, outputs * count, base, base + inputs * count + spare)


@pytest.mark.parametrize(
    ("g", "lanes", "align", "width"),
    [
        (groups(16, 16, 4), 16, 16, 16),
        (groups(16, 16, 4), 32, 16, 32),
        (groups(4, 4, 8), 16, 16, 16),
        (groups(24, 24, 8), 16, 16, 48),
        (groups(24, 24, 8), 48, 16, 48),
        (groups(100, 64, 4), 32, 16, 112),
        (groups(100, 64, 4), 32, 1, 100),
        (groups(60, 30, 1, base=60), 16, 16, 72),
        (groups(60, 30, 1, base=20, spare=40), 16, 16, 64),
    ],
)
def test_width(g: Groups, lanes: int, align: int, width: int) -> None:
    assert g.width(lanes, align) == width


@pytest.mark.parametrize(
    ("inputs", "outputs", "count"), [(16, 16, 4), (24, 24, 5), (9, 36, 3), (36, 9, 3), (6, 8, 7)]
)
@pytest.mark.parametrize("base", [0, 5, 16])
@pytest.mark.parametrize("lanes", [16, 32, 48])
def test_every_window_holds_its_groups_and_ends_inside(
    inputs: int, outputs: int, count: int, base: int, lanes: int
) -> None:
    g = groups(inputs, outputs, count, base, spare=3)
    first, width = g.first(lanes, 16), g.width(lanes, 16)
    for column in range(g.total):
        start = E.evaluate(E.substitute(first, {g.column: E.const(column)}), {})
        own = base + column // outputs * inputs
        assert start % 16 == 0 and 0 <= start <= own
        assert own + inputs <= start + width <= g.channels
        assert start == E.evaluate(E.substitute(first, {g.column: E.const(column // lanes * lanes)}), {})


def test_waste_counts_idle_lanes_and_foreign_channels() -> None:
    assert groups(16, 16, 4).waste(16, 16) == 1
    assert groups(16, 16, 4).waste(32, 16) == 2
    assert groups(4, 4, 8).waste(16, 16) == 4
    assert groups(16, 24, 1).waste(16, 16) == pytest.approx(32 / 24)


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize(("inputs", "outputs", "count"), [(16, 16, 4), (32, 16, 3), (16, 48, 3), (64, 32, 2)])
def test_whole_blocks_of_channels_are_not_mixed(inputs: int, outputs: int, count: int, width: int) -> None:
    """Whatever the tile would else have, the least waste is none: a window is one group."""
    g, shapes = groups(inputs, outputs, count), Tiles(width, 16, dot=False)
    for preferred in (1, 2, 3, 4):
        lanes = [v * width for v in shapes.grouped(preferred)]
        assert g.width(min(lanes, key=lambda n: g.waste(n, BLOCK)), BLOCK) == inputs


@pytest.mark.parametrize(("channels", "tuned", "reached"), [(16, True, 1), (4, False, 1), (4, True, 4)])
def test_how_far_an_infinity_reaches(channels: int, tuned: bool, reached: int, tmp_path: Path) -> None:
    """Groups whose channels are no multiple of 16 multiply those beside their own by zero (docs/abi.md)."""
    total = 8 * channels
    net = Net("net", 1)
    net.output(net.conv(net.input("x", [1, total, 7, 7]), total, total, 3, groups=8), "y", [1, total, 7, 7])
    onnx.save(net.model(), tmp_path / "net.onnx")
    session = cuvil.compile(tmp_path / "net.onnx", tuned=tuned)
    x = np.zeros((1, total, 7, 7), np.float32)
    x[0, 0, 3, 3] = np.inf
    (y,) = session.run(None, {"x": x})
    of_group = np.isfinite(y.reshape(8, -1)).all(axis=1)
    assert of_group.tolist() == [False] * reached + [True] * (8 - reached)
