"""The positions of a strip on AMX tiles: lines of a window, or part of a run of rows, as they are staged."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from cuvil.codegen.tuned.amxtile import POSITIONS
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import static


@dataclass(frozen=True, eq=False)
class Axis:
    """A spatial axis of the left operand.

    Attributes:
        index: the axis in the left operand.
        row: the variable of its positions, None where there is one.
        size: positions.
        stride: of the positions in the operand.
        tap: the variable of its taps, None where there is one.
        dilation: of the taps.
    """

    index: int
    row: Expr | None
    size: int
    stride: int
    tap: Expr | None
    dilation: int

    def place(self, tap: int) -> tuple[int, int]:
        """The class of a tap, and its offset in the class."""
        return self.dilation * tap % self.stride, self.dilation * tap // self.stride

    def places(self) -> list[tuple[int, int]]:
        """`place` of all taps."""
        return [self.place(t) for t in range(static(self.tap.args[0]) or 1 if self.tap is not None else 1)]


@dataclass(frozen=True, eq=False)
class Area:
    """The positions of a strip: lines of a window, or part of a run of rows.

    Attributes:
        axes: of the lines and of the places in a line; none for a run of rows.
        width: places in an output line; positions of a strip for a run.
        pitch: staged positions from line to line.
        lines: output lines of a strip.
        classes: of staged inputs (remainders of lines and places), with lines and places of each.
    """

    axes: tuple[Axis, Axis] | None
    width: int
    pitch: int
    lines: int = 1
    classes: tuple[tuple[tuple[int, int], int, int], ...] = (((0, 0), 1, 0),)

    @property
    def blocks(self) -> int:
        """Tiles of positions in a strip."""
        return -(-((self.lines - 1) * self.pitch + self.width) // POSITIONS)

    def plane(self) -> int:
        """Positions of a plane, an odd number: planes must not all fall on the same lines of a cache."""
        staged = sum(lines * self.pitch for _, lines, _ in self.classes) if self.axes else 0
        last = max(self.starts().values(), default=0)
        return max(staged, last + self.reach + self.blocks * POSITIONS) | 1

    @property
    def reach(self) -> int:
        """The largest offset of a tap."""
        if self.axes is None:
            return 0
        down, along = (max(offset for _, offset in axis.places()) for axis in self.axes)
        return down * self.pitch + along

    def starts(self) -> dict[tuple[int, int], int]:
        """Where the positions of each class start."""
        sizes = [lines * self.pitch for _, lines, _ in self.classes]
        return {c: at for (c, _, _), at in zip(self.classes, itertools.accumulate(sizes, initial=0))}
