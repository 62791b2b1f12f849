"""Scales, zero points, integer weights and biases."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil.quantize import scheme


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"),
    [
        (0, 255, 1, 0),
        (-1, 3, 4 / 255, 64),
        (-255, 0, 1, 255),
        (2, 51, 0.2, 0),  # widened to hold 0
        (-51, -2, 0.2, 255),
        (0, 0, 1, 0),
    ],
)
def test_parameters_of_activations(low: float, high: float, scale: float, zero: int) -> None:
    p = scheme.activation(low, high)
    assert p.scale.dtype == np.float32 and p.scale == pytest.approx(scale, rel=1e-6) and p.zero_point == zero


def test_tiny_ranges_keep_a_normal_scale() -> None:
    assert scheme.activation(0, 1e-42).scale == scheme.MIN_SCALE
    assert np.finfo(np.float32).tiny <= scheme.MIN_SCALE**2


def test_weights_use_the_symmetric_range_per_channel() -> None:
    values = np.array([[1.0, -2, 0.5], [0.015, 0, -0.02]], np.float32)
    w = scheme.weights(values, 0, None, np.float32(1), per_channel=True)
    assert w.values.dtype == np.int8 and w.values.tolist() == [[64, -127, 32], [95, 0, -127]]
    np.testing.assert_allclose(w.scale, [2 / 127, 0.02 / 127], rtol=1e-6)
    one = scheme.weights(values, 0, None, np.float32(1), per_channel=False)
    assert one.scale.shape == () and one.values.tolist() == [[64, -127, 32], [1, 0, -1]]


def test_other_axis() -> None:
    values = np.array([[1.0, 10], [-4, 20]], np.float32)
    w = scheme.weights(values, -1, None, np.float32(1), per_channel=True)
    np.testing.assert_allclose(w.scale, [4 / 127, 20 / 127], rtol=1e-6)


def test_bias_is_in_units_of_both_scales() -> None:
    values, bias = np.array([[127.0], [1.27]], np.float32), np.array([3.0, -3.0], np.float32)
    w = scheme.weights(values, 0, bias, np.float32(0.5), per_channel=True)
    assert w.bias is not None and w.bias.dtype == np.int32 and w.bias.tolist() == [6, -600]


@pytest.mark.parametrize("tiny", [0.0, 1e-12, 1e-30])
def test_bias_of_a_channel_of_nearly_zero_weights_fits(tiny: float) -> None:
    """onnxruntime#11415: 5 / (x_scale * scale) leaves int32 where the scale follows the weights alone."""
    values = np.array([[tiny, -tiny], [1, 2]], np.float32)
    w = scheme.weights(values, 0, np.array([5, 5], np.float32), np.float32(0.02), per_channel=True)
    assert w.bias is not None
    real = w.bias * (np.float32(0.02) * w.scale).astype(np.float64)
    np.testing.assert_allclose(real, [5, 5], rtol=1e-3)
    assert np.abs(w.bias.astype(np.int64)).max() <= scheme.MAX_ACCUMULATOR
    assert scheme.fits(w, 0)


def test_sums_that_could_overflow_do_not_fit() -> None:
    def row(size: int) -> scheme.Weights:
        return scheme.weights(np.ones((1, size), np.float32), 0, None, np.float32(1), per_channel=True)

    limit = scheme.MAX_ACCUMULATOR // (255 * 127)
    assert scheme.fits(row(limit), 0) and not scheme.fits(row(limit + 1), 0)
