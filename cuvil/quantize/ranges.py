"""Ranges of activations from calibration runs: smallest and largest value, percentiles, least error.

Batches are streamed: what is kept of a tensor is two numbers, and a histogram where the method needs
one (then the data passes twice, first for the histogram's bounds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.quantize.scheme import LEVELS

Array = npt.NDArray[Any]
Batches = Callable[[], Iterable[Mapping[str, Array]]]
"""Values of all tensors, batch by batch; may be called again for a second pass."""

BINS = 2048
"""Bins of a histogram, from the smallest to the largest value."""

SHRINKS = 0.93 ** np.arange(40)
"""Fractions of the full range that `least_error` tries (1 down to 0.06)."""


@dataclass(frozen=True)
class Range:
    """The interval of a tensor that 8 bits shall cover; `finite` is False where a value was not."""

    low: float
    high: float
    finite: bool = True

    def __or__(self, other: Range) -> Range:
        """The smallest interval that holds both."""
        both = self.finite and other.finite
        return Range(min(self.low, other.low), max(self.high, other.high), both)


def observe(batches: Batches, names: Sequence[str], method: str, percentile: float) -> dict[str, Range]:
    """The range of every tensor in `names`.

    Args:
        method: ``minmax``, ``percentile`` or ``mse``.
        percentile: percentage of the values inside the range, for method ``percentile``.
    """
    extremes: dict[str, Range] = {}
    for batch in batches():
        for name in names:
            found = _extremes(batch[name])
            extremes[name] = extremes[name] | found if name in extremes else found
    if method == "minmax":
        return extremes
    counts = {name: np.zeros(BINS, np.int64) for name in names}
    for batch in batches():
        for name in names:
            r = extremes[name]
            if r.finite and r.low < r.high:
                counts[name] += np.histogram(batch[name], BINS, (r.low, r.high))[0]
    narrow = least_error if method == "mse" else lambda c, r: central(c, r, percentile)
    return {name: narrow(counts[name], r) if counts[name].any() else r for name, r in extremes.items()}


def _extremes(values: Array) -> Range:
    if not values.size:
        return Range(0.0, 0.0)
    low, high = float(values.min()), float(values.max())
    finite = bool(np.isfinite(low) and np.isfinite(high))
    return Range(low, high, finite) if finite else Range(0.0, 0.0, False)


def central(counts: Array, full: Range, percentile: float) -> Range:
    """The bins that hold the central `percentile` percent of the values, the rest shared by both tails.

    Args:
        counts: a histogram over `full`, [BINS].
    """
    edges = np.linspace(full.low, full.high, len(counts) + 1)
    total = counts.sum()
    tail = (1 - percentile / 100) / 2 * total
    below = np.cumsum(counts)
    first = int(np.searchsorted(below, tail, "right"))
    last = int(np.searchsorted(below, total - tail, "left"))
    return Range(float(edges[min(first, len(counts) - 1)]), float(edges[min(last, len(counts) - 1) + 1]))


def least_error(counts: Array, full: Range) -> Range:
    """The part of `full` whose 8-bit grid gives the least mean squared error, of both ends shrunk
    together and then each by itself.

    Args:
        counts: a histogram over `full`, [BINS]; a bin's values count as its centre.
    """
    edges = np.linspace(full.low, full.high, len(counts) + 1)
    used = counts > 0
    centres, weights = ((edges[1:] + edges[:-1]) / 2)[used], counts[used].astype(np.float64)
    low, high = min(full.low, 0.0), max(full.high, 0.0)

    def error(lows: Array, highs: Array) -> Array:
        scale = np.maximum(highs - lows, 1e-30)[:, None] / LEVELS
        zero = np.rint(-lows[:, None] / scale)
        grid = (np.clip(np.rint(centres / scale) + zero, 0, LEVELS) - zero) * scale
        return np.asarray((grid - centres) ** 2 @ weights)

    fixed = np.ones_like(SHRINKS)
    best = int(np.argmin(error(low * SHRINKS, high * SHRINKS)))
    a, b = low * SHRINKS[best], high * SHRINKS[best]
    for _ in range(2):
        b = high * SHRINKS[int(np.argmin(error(a * fixed, high * SHRINKS)))]
        a = low * SHRINKS[int(np.argmin(error(low * SHRINKS, b * fixed)))]
    return Range(float(a), float(b))
