"""The constants of a device: one array of bytes that all its schedules share."""

from __future__ import annotations

from cuvil.schedule.memory import aligned
from cuvil.schedule.plan import Schedule


class Weights:
    """Constants one after the other, each aligned, equal ones kept once.

    Schedules for several instruction sets hold mostly the same bytes; a schedule added first has its own
    in its order of execution.

    Args:
        symbol: the C array that will hold the bytes.
    """

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self._places: dict[bytes, int] = {}
        self._size = 0

    def add(self, schedule: Schedule) -> dict[int, int]:
        """Keep the constants of `schedule`: their offsets in its own weights -> those in the array."""
        starts = sorted({*schedule.constants.values()})
        places: dict[int, int] = {}
        for start, stop in zip(starts, [*starts[1:], len(schedule.weights) - aligned(1)]):
            data = schedule.weights[start:stop]
            places[start] = self._places.setdefault(data, self._size)
            if places[start] == self._size:
                self._size += len(data)
        return places

    @property
    def data(self) -> bytes:
        """The bytes of all that was added, with some at the end that a tile may read beyond them."""
        return b"".join([*self._places, bytes(aligned(1) if self._size else 0)])
