"""The constants of a device: one array of bytes that all its schedules share."""

from __future__ import annotations

from cuvil.codegen.prepared import Preparation
from cuvil.ir.primitives import Prepared, Value
from cuvil.schedule.memory import aligned
from cuvil.schedule.plan import Schedule


class Weights:
    """Constants one after the other, each aligned, equal ones kept once.

    Schedules for several instruction sets hold mostly the same bytes; a schedule added first has its own
    in its order of execution.

    Args:
        stem: prefix of the C symbols.

    Attributes:
        symbol: the C array that will hold the bytes.
        prepared: the constants that the library makes of those in the array.
    """

    def __init__(self, stem: str) -> None:
        self.symbol = f"{stem}_weights"
        self.prepared = Preparation(stem)
        self._places: dict[bytes, int] = {}
        self._size = 0

    def add(self, schedule: Schedule) -> dict[Value, str]:
        """Keep the constants of `schedule`: their addresses in C."""
        starts = sorted({*schedule.constants.values()})
        places: dict[int, int] = {}
        for start, stop in zip(starts, [*starts[1:], len(schedule.weights) - aligned(1)]):
            data = schedule.weights[start:stop]
            places[start] = self._places.setdefault(data, self._size)
            if places[start] == self._size:
                self._size += len(data)
        found = {v: f"{self.symbol} + {places[start]}" for v, start in schedule.constants.items()}
        for v, size in schedule.prepared.items():
            assert isinstance(v.definition, Prepared)
            found[v] = self.prepared.add(v, size, found[v.definition.source])
        return found

    @property
    def data(self) -> bytes:
        """The bytes of all that was added, with some at the end that a tile may read beyond them."""
        return b"".join([*self._places, bytes(aligned(1) if self._size else 0)])

    @property
    def declaration(self) -> str:
        """The C declarations."""
        text = f'extern __attribute__((visibility("hidden"))) const unsigned char {self.symbol}[];\n'
        return text + (self.prepared.declaration if self.prepared.bytes else "")

    @property
    def definition(self) -> str:
        """The C code that prepares constants, "" where there are none to prepare; `declaration` is first."""
        return self.prepared.definition if self.prepared.bytes else ""
