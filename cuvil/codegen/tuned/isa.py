"""What a device's vector unit means for the shape of tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BLOCK = 16
"""Channels of a block in blocked layouts, on every ISA (narrower blocks ran at half speed)."""

MAX_ROWS = 28
"""Rows of a tile, whatever the registers."""


@dataclass(frozen=True)
class Tiles:
    """Tile shapes of one ISA.

    Attributes:
        width: float32 elements of a vector.
        registers: vector registers.
        dot: bytes are multiplied in groups of four, and each group's sum added to an int32.
        vnni: one instruction does that for unsigned times signed ones.
        amx: tiles of bfloat16 are multiplied (`cuvil.codegen.tuned.amx`).
        packing: the ISA for which constants are packed where code for several shares them, else None.
    """

    width: int
    registers: int
    dot: bool
    vnni: bool = False
    packing: Tiles | None = None
    amx: bool = False

    def vectors(self, columns: int | None, spatial: bool, rows: int | None) -> int:
        """Vectors in a row of the tile, for so many columns: as few idle lanes as can be, and enough
        accumulators to hide the latency of a multiply-add."""
        per_block = max(BLOCK // self.width, 1)
        if spatial:
            if per_block > 1 or columns is None:
                return per_block
            blocks = -(-columns // BLOCK)
            if blocks % 2 == 0 or (blocks > 8 and blocks % 3):
                return 2
            return 3 if blocks % 3 == 0 else 1
        many = self.registers >= 32
        choices: tuple[int, ...]
        if rows == 1:
            choices = (8, 7, 6, 5, 4)
        elif rows is not None and rows <= 4:
            choices = (4, 5, 3) if many else (2, 3)
        elif self.width == 4:
            choices = (2, 3, 4) if many else (2,)
        else:
            choices = (3, 2, 4) if self.width == 16 else (2, 1)
        if columns is None:
            return choices[0]
        return min(choices, key=lambda v: (-(-columns // (v * self.width)) * v, choices.index(v)))

    def grouped(self, preferred: int) -> tuple[int, ...]:
        """Vectors in a row of the tile of a grouped convolution, among which its groups decide."""
        per_block = max(BLOCK // self.width, 1)
        return tuple(dict.fromkeys((preferred, per_block, *((2, 3, 1) if per_block == 1 else ()))))

    def within(self, lanes: int, vectors: int) -> int:
        """Vectors in a row of a tile over `lanes` columns in panels of a block: the largest number up to
        `vectors` that covers them, and whole panels or whole parts of one."""
        pitch = math.gcd(lanes, BLOCK)
        columns = {v: v * self.width for v in range(vectors, 0, -1)}
        fitting = (v for v, n in columns.items() if lanes % n == 0 and 0 in (n % pitch, pitch % n))
        return next(fitting, 1)

    def rows(self, vectors: int, halves: int = 1) -> int:
        """Rows of a tile with so many vectors: what the registers hold beside the operands, which come in
        so many parts."""
        return max(1, min(MAX_ROWS, (self.registers - (vectors + 1) * halves) // vectors))


def tiles(options: Mapping[str, Any], packing: Tiles | None = None) -> Tiles:
    """The tile shapes of a device, from its part of the ``codegen`` slice."""
    bits, arch = int(options.get("vector_bits", 128)), options.get("arch", "")
    if bits not in (128, 256, 512):
        bits = 128
    registers, dot = int(options.get("vector_registers", 16)), arch == "x86_64"
    return Tiles(bits // 32, registers, dot, dot and bool(options.get("dot_i8")), packing, _amx(options))


def _amx(options: Mapping[str, Any]) -> bool:
    """Whether products of float32 may run as those of bfloat16 parts; not where accuracy is to be strict."""
    return bool(options.get("amx")) and options.get("accuracy") != "strict"
