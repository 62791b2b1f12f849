"""Windows of grouped convolutions."""

from __future__ import annotations

import pytest

from cuvil.codegen.tuned.groups import Groups
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
