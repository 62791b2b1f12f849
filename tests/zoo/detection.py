"""A detector of objects with random weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from zoo.net import Net, f32, i64

BINS = 16
"""Of the distribution that the distance to each side of a box is the mean of (Li et al. 2020)."""


def yolo(
    batch: int | str = "N", image: int = 320, width: int = 16, classes: int = 80, seed: int = 8
) -> onnx.ModelProto:
    """A detector built like YOLOv8n: `x` [N, 3, image, image] -> `boxes` [N, 4 + classes, anchors].

    Cross-stage partial blocks with SiLU, pooling at several scales, a neck that goes up (Resize, Concat) and
    down again, and three heads at strides of 8, 16 and 32; `anchors` is the number of their pixels. The
    output has centre, width and height in pixels, then the classes' probabilities. 32 divides `image`.
    """
    net = Net("yolo", seed)
    body = _Body(net)
    c1, c2, c3, c4, c5 = (width << k for k in range(5))
    x = body.conv(net.input("x", [batch, 3, image, image]), 3, c1, stride=2)
    x = body.partial(body.conv(x, c1, c2, stride=2), c2, c2, 1)
    small = body.partial(body.conv(x, c2, c3, stride=2), c3, c3, 2)
    middle = body.partial(body.conv(small, c3, c4, stride=2), c4, c4, 2)
    x = body.partial(body.conv(middle, c4, c5, stride=2), c5, c5, 1)
    large = body.pools(x, c5)

    middle = body.partial(body.joined(body.up(large), middle), c5 + c4, c4, 1, add=False)
    small = body.partial(body.joined(body.up(middle), small), c4 + c3, c3, 1, add=False)
    x = body.joined(body.conv(small, c3, c3, stride=2), middle)
    middle = body.partial(x, c3 + c4, c4, 1, add=False)
    x = body.joined(body.conv(middle, c4, c4, stride=2), large)
    large = body.partial(x, c4 + c5, c5, 1, add=False)

    heads = [(small, c3), (middle, c4), (large, c5)]
    c_box, c_class = max(16, c3 // 4, 4 * BINS), max(c3, min(classes, 100))
    rows = []
    for x, channels in heads:
        boxes = body.head(x, channels, c_box, 4 * BINS)
        scores = body.head(x, channels, c_class, classes)
        joined = body.joined(boxes, scores)
        rows.append(net.reshape(joined, net.dim(joined, 0), 4 * BINS + classes, -1))
    sides = [image // stride for stride in (8, 16, 32)]
    boxes = _decode(net, net.op("Concat", *rows, axis=2), classes, sides)
    net.output(boxes, "boxes", [batch, 4 + classes, sum(side * side for side in sides)])
    return net.model()


class _Body:
    """The blocks that it is made of."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def conv(self, x: str, c_in: int, c_out: int, kernel: int = 3, stride: int = 1) -> str:
        net = self.net
        y = net.conv(x, c_in, c_out, kernel, stride=stride, bias=False, gain=2.2)
        return net.silu(net.batch_norm(y, c_out, epsilon=1e-3))

    def joined(self, *parts: str) -> str:
        return self.net.op("Concat", *parts, axis=1)

    def partial(self, x: str, c_in: int, c_out: int, repeats: int, *, add: bool = True) -> str:
        """A cross-stage partial block: half of the channels go through `repeats` pairs of convolutions, and
        all that arises on the way is joined."""
        half = c_out // 2
        parts = self.net.ops("Split", [self.conv(x, c_in, c_out, 1), i64(half, half)], 2, axis=1)
        for _ in range(repeats):
            y = self.conv(self.conv(parts[-1], half, half), half, half)
            parts.append(self.net.op("Add", parts[-1], y) if add else y)
        return self.conv(self.joined(*parts), len(parts) * half, c_out, 1)

    def pools(self, x: str, channels: int) -> str:
        """Maxima over 5x5, 9x9 and 13x13, by three poolings in a row, joined with what they are of."""
        parts = [self.conv(x, channels, channels // 2, 1)]
        for _ in range(3):
            parts.append(
                self.net.op("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2])
            )
        return self.conv(self.joined(*parts), 2 * channels, channels, 1)

    def up(self, x: str) -> str:
        """Every pixel four times."""
        modes = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return self.net.op("Resize", x, "", f32(1.0, 1.0, 2.0, 2.0), **modes)

    def head(self, x: str, c_in: int, inner: int, c_out: int) -> str:
        y = self.conv(self.conv(x, c_in, inner), inner, inner)
        return self.net.conv(y, inner, c_out, 1, gain=1.0)


def _decode(net: Net, rows: str, classes: int, sides: Sequence[int]) -> str:
    """[N, 4 * BINS + classes, anchors] -> [N, 4 + classes, anchors]: distances from the pixel to the sides of
    a box as centre and size, scores as probabilities."""
    places, strides = [], []
    for side, stride in zip(sides, (8, 16, 32), strict=True):
        y, x = np.meshgrid(np.arange(side) + 0.5, np.arange(side) + 0.5, indexing="ij")
        places.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full((1, side * side), stride))
    centres = np.concatenate(places, axis=1)[None].astype(np.float32)
    scale = np.concatenate(strides, axis=1).astype(np.float32)

    distances, scores = net.ops("Split", [rows, i64(4 * BINS, classes)], 2, axis=1)
    bins = net.reshape(distances, net.dim(distances, 0), 4, BINS, math.prod(centres.shape[2:]))
    weights = net.op("Softmax", net.op("Transpose", bins, perm=[0, 2, 1, 3]), axis=1)
    values = np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1)
    means = net.op("Conv", weights, values, kernel_shape=[1, 1])
    means = net.reshape(means, net.dim(means, 0), 4, math.prod(centres.shape[2:]))
    before = net.op("Sub", centres, net.op("Slice", means, i64(0), i64(2), i64(1)))
    after = net.op("Add", centres, net.op("Slice", means, i64(2), i64(4), i64(1)))
    middle = net.op("Div", net.op("Add", before, after), f32(2.0))
    boxes = net.op("Concat", middle, net.op("Sub", after, before), axis=1)
    return net.op("Concat", net.op("Mul", boxes, scale), net.op("Sigmoid", scores), axis=1)
