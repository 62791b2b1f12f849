"""Sums over much more than they result in are kernels of their own."""

from __future__ import annotations

import pytest
from codegen.sandbox import Isa, schedule_of
from zoo.net import Net

from cuvil.ir.primitives import Reduce

AVX2 = Isa({"arch": "x86_64", "vector_bits": 256, "vector_registers": 16, "dot_i8": False})


@pytest.mark.parametrize(("channels", "size", "together"), [(64, 14, False), (10, 4, True)])
def test_a_mean_over_an_image_stays_apart_from_the_softmax_after_it(
    channels: int, size: int, together: bool
) -> None:
    """12544 elements, or 160, are summed for all channels of an image."""
    net = Net("n", 1)
    x = net.op("Relu", net.input("x", [1, channels, size, size]))
    x = net.op("Softmax", net.op("GlobalAveragePool", x), axis=1)
    net.output(x, "y", [1, channels, 1, 1])
    s = schedule_of(net.model(), AVX2)
    sums = next(k for k in s.kernels if any(isinstance(v.definition, Reduce) for v in k.values))
    assert (s.program.outputs[0] in sums.values) == together
