"""The int8 scheme: unsigned asymmetric activations, signed symmetric weights per output channel.

real = scale * (integer - zero_point), as QuantizeLinear and DequantizeLinear have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LEVELS = 255
"""Steps of uint8."""

MAX_WEIGHT = 127
"""Weights use [-127, 127], so that the range is symmetric."""

MAX_ACCUMULATOR = 2**30
"""Bound of the products' sum and of the bias, each, so that their sum fits int32."""

MIN_SCALE = np.float32(2.0**-60)
"""Products of two scales stay normal numbers of float32."""


@dataclass(frozen=True)
class Parameters:
    """Scale and zero point of a uint8 tensor."""

    scale: np.float32
    zero_point: int


def activation(low: float, high: float) -> Parameters:
    """The parameters for values in [low, high], widened to hold 0, which is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        return Parameters(np.float32(1), 0)
    scale = max(np.float32((high - low) / LEVELS), MIN_SCALE)
    return Parameters(scale, int(np.clip(np.rint(-low / scale), 0, LEVELS)))


@dataclass(frozen=True)
class Weights:
    """Weights of a layer in integers.

    Attributes:
        values: int8, of the float weights' shape.
        scale: float32, [channels], or of rank 0 where one scale serves all.
        bias: int32 with scale ``x_scale * scale``, or None.
    """

    values: Array
    scale: Array
    bias: Array | None


def weights(values: Array, axis: int, bias: Array | None, x_scale: np.float32, per_channel: bool) -> Weights:
    """Quantize a layer's weights and bias.

    The weights' scale is at least ``|bias| / (x_scale * 2**30)``, which also keeps the bias of a
    channel of nearly zero weights inside int32.

    Args:
        values: float weights.
        axis: their output channels.
        bias: float, [channels].
        x_scale: scale of the layer's input.
    """
    axis %= values.ndim
    others = tuple(k for k in range(values.ndim) if k != axis)
    peak = np.abs(values).max(axis=others if per_channel else None, initial=0).astype(np.float64)
    scale = np.asarray(peak / MAX_WEIGHT)
    if bias is not None:
        floor = np.abs(bias.astype(np.float64)) / (float(x_scale) * (MAX_ACCUMULATOR - 1))
        scale = np.maximum(scale, floor if per_channel else floor.max(initial=0))
    scale = np.where(scale == 0, 1.0, np.maximum(scale, MIN_SCALE)).astype(np.float32)
    spread = scale.reshape([-1 if k == axis else 1 for k in range(values.ndim)]) if per_channel else scale
    integers = np.clip(np.rint(values / spread), -MAX_WEIGHT, MAX_WEIGHT).astype(np.int8)
    whole = None
    if bias is not None:
        units = bias.astype(np.float64) / (x_scale * scale).astype(np.float64)
        whole = np.clip(np.rint(units), -MAX_ACCUMULATOR, MAX_ACCUMULATOR).astype(np.int32)
    return Weights(integers, scale, whole)


def fits(w: Weights, axis: int) -> bool:
    """No input can make the sum of products leave its bound."""
    others = tuple(k for k in range(w.values.ndim) if k != axis % w.values.ndim)
    largest = np.abs(w.values.astype(np.int64)).sum(axis=others).max(initial=0)
    return int(largest) * LEVELS < MAX_ACCUMULATOR
