"""Ranges from calibration runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cuvil.quantize import scheme
from cuvil.quantize.ranges import BINS, Range, central, least_error, observe


def in_batches(*arrays: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    return ({"t": a} for a in arrays)


def test_smallest_and_largest_over_all_batches() -> None:
    arrays = np.array([1.0, 2]), np.array([-3.0, 0]), np.array([[5.0]])
    assert observe(lambda: in_batches(*arrays), ["t"], "minmax", 99) == {"t": Range(-3, 5)}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
def test_values_that_are_not_finite_are_noticed(bad: float, method: str) -> None:
    arrays = np.array([1.0, bad]), np.array([0.0, 2])
    assert not observe(lambda: in_batches(*arrays), ["t"], method, 99)["t"].finite


def test_percentile_leaves_both_tails_out() -> None:
    values = np.arange(10_000.0)
    found = observe(lambda: in_batches(values[::2], values[1::2]), ["t"], "percentile", 98)["t"]
    bin_width = 9_999 / BINS
    assert abs(found.low - 100) <= 1.5 * bin_width and abs(found.high - 9_900) <= 1.5 * bin_width


def test_percentile_of_a_rectified_tensor_keeps_zero_and_drops_one_outlier() -> None:
    values = np.concatenate([np.zeros(5000), np.linspace(0, 1, 5000), [1000.0]])
    found = observe(lambda: in_batches(values), ["t"], "percentile", 99.9)["t"]
    assert found.low == 0 and 1 <= found.high <= 1 + 1000 / BINS


def test_all_values_inside_give_the_full_range() -> None:
    counts = np.ones(BINS, np.int64)
    assert central(counts, Range(-1, 3), 100) == Range(-1, 3)


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
def test_a_constant_tensor_has_a_range(method: str) -> None:
    assert observe(lambda: in_batches(np.full(9, 2.5)), ["t"], method, 99.9)["t"] == Range(2.5, 2.5)


def squared_error(values: np.ndarray, r: Range) -> float:
    p = scheme.activation(r.low, r.high)
    q = np.clip(np.rint(values / p.scale) + p.zero_point, 0, 255)
    return float(np.square((q - p.zero_point) * p.scale - values).sum())


def test_least_error_beats_the_full_range_where_there_are_outliers() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(0, 1, 200_000), [-30.0, 40.0]])
    found = observe(lambda: in_batches(values), ["t"], "mse", 99)["t"]
    full = Range(-30, 40)
    assert squared_error(values, found) < 0.7 * squared_error(values, full)
    assert -30 < found.low < -3 and 3 < found.high < 40


def test_least_error_of_evenly_spread_values_is_the_full_range() -> None:
    found = least_error(np.ones(BINS, np.int64), Range(0, 10))
    assert found == Range(0, 10)
