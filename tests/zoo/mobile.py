"""MobileNets of the first and third version and an EfficientNet-Lite, with random weights; MobileNetV2 is in
`zoo.vision`.

All take images [batch, channels, height, width]; `batch` is a size or a symbol's name.
"""

from __future__ import annotations

import onnx

from zoo.net import Net, f32

MOBILENET_V1 = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
]
"""Channels and stride of each separable convolution: table 1 of Howard et al. 2017."""

MOBILENET_V3_LARGE = [
    (3, 16, 16, False, "Relu", 1),
    (3, 64, 24, False, "Relu", 2),
    (3, 72, 24, False, "Relu", 1),
    (5, 72, 40, True, "Relu", 2),
    (5, 120, 40, True, "Relu", 1),
    (5, 120, 40, True, "Relu", 1),
    (3, 240, 80, False, "HardSwish", 2),
    (3, 200, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1),
    (3, 480, 112, True, "HardSwish", 1),
    (3, 672, 112, True, "HardSwish", 1),
    (5, 672, 160, True, "HardSwish", 2),
    (5, 960, 160, True, "HardSwish", 1),
    (5, 960, 160, True, "HardSwish", 1),
]
"""Kernel, expanded channels, channels, whether there is a squeeze-and-excitation, activation and stride of
each block: table 1 of Howard et al. 2019."""

EFFICIENTNET_LITE0 = [
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
]
"""Expansion, kernel, channels, repeats and first stride of each stage: table 1 of Tan and Le 2019."""


def _rounded(channels: float) -> int:
    """The nearest multiple of 8, as all MobileNets have it; not less than nine tenths of `channels`."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def mobilenet_v1(
    batch: int | str = "N", image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 1
) -> onnx.ModelProto:
    """MobileNetV1 (Howard et al. 2017), ReLU6 as Clip: `x` [N, 3, image, image] -> `logits`."""
    net = Net("mobilenet_v1", seed)

    def block(x: str, c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        y = net.batch_norm(net.conv(x, c_in, c_out, kernel, stride=stride, groups=groups, bias=False), c_out)
        return net.op("Clip", y, f32(0.0), f32(6.0))

    c_in = _rounded(32 * width)
    x = block(net.input("x", [batch, 3, image, image]), 3, c_in, 3, stride=2)
    for base, stride in MOBILENET_V1:
        c_out = _rounded(base * width)
        x = block(block(x, c_in, c_in, 3, stride, groups=c_in), c_in, c_out, 1)
        c_in = c_out
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    net.output(net.gemm(x, c_in, classes), "logits", [batch, classes])
    return net.model()


def mobilenet_v3_large(
    batch: int | str = "N", image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 3
) -> onnx.ModelProto:
    """MobileNetV3-Large (Howard et al. 2019): `x` [N, 3, image, image] -> `logits`.

    HardSwish and HardSigmoid are the operators of these names, as torch exports them from opset 14 on.
    """
    net = Net("mobilenet_v3_large", seed)

    def block(
        x: str, c_in: int, c_out: int, kernel: int, activation: str, stride: int = 1, groups: int = 1
    ) -> str:
        gain = 2.4 if groups > 1 else 1.0  # only what goes into a depthwise convolution was activated
        y = net.conv(x, c_in, c_out, kernel, stride=stride, groups=groups, bias=False, gain=gain)
        return net.op(activation, net.batch_norm(y, c_out, epsilon=1e-3))

    def excite(x: str, channels: int) -> str:
        squeezed = _rounded(channels // 4)
        y = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), channels, squeezed, 1))
        return net.op("Mul", net.op("HardSigmoid", net.conv(y, squeezed, channels, 1), alpha=1 / 6), x)

    c_in = _rounded(16 * width)
    x = block(net.input("x", [batch, 3, image, image]), 3, c_in, 3, "HardSwish", stride=2)
    for kernel, expanded, base, squeeze, activation, stride in MOBILENET_V3_LARGE:
        inner, c_out = _rounded(expanded * width), _rounded(base * width)
        y = block(x, c_in, inner, 1, activation) if inner != c_in else x
        y = block(y, inner, inner, kernel, activation, stride, groups=inner)
        gain = 2.0
        if squeeze:
            y, gain = excite(y, inner), 2.5
        y = net.batch_norm(net.conv(y, inner, c_out, 1, bias=False, gain=gain), c_out, epsilon=1e-3)
        x = net.op("Add", x, y) if stride == 1 and c_in == c_out else y
        c_in = c_out
    c_out, dense = 6 * c_in, _rounded(1280 * width)
    x = net.op("GlobalAveragePool", block(x, c_in, c_out, 1, "HardSwish"))
    x = net.op("HardSwish", net.gemm(net.op("Flatten", x, axis=1), c_out, dense))
    net.output(net.gemm(x, dense, classes), "logits", [batch, classes])
    return net.model()


def efficientnet_lite0(
    batch: int | str = "N", image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 5
) -> onnx.ModelProto:
    """EfficientNet-Lite0: EfficientNet-B0 (Tan and Le 2019) with ReLU6, as Clip, for SiLU and without
    squeeze-and-excitation: `x` [N, 3, image, image] -> `logits`."""
    net = Net("efficientnet_lite0_relu6", seed)

    def block(x: str, c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        y = net.conv(x, c_in, c_out, kernel, stride=stride, groups=groups, bias=False)
        return net.op("Clip", net.batch_norm(y, c_out, epsilon=1e-3), f32(0.0), f32(6.0))

    c_in = _rounded(32 * width)
    x = block(net.input("x", [batch, 3, image, image]), 3, c_in, 3, stride=2)
    for expansion, kernel, base, repeats, first_stride in EFFICIENTNET_LITE0:
        c_out = _rounded(base * width)
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            inner = c_in * expansion
            y = block(x, c_in, inner, 1) if expansion > 1 else x
            y = block(y, inner, inner, kernel, stride, groups=inner)
            y = net.batch_norm(net.conv(y, inner, c_out, 1, bias=False), c_out, epsilon=1e-3)
            x = net.op("Add", y, x) if repeat else y
            c_in = c_out
    c_out = _rounded(1280 * width)
    x = net.op("Flatten", net.op("GlobalAveragePool", block(x, c_in, c_out, 1)), axis=1)
    net.output(net.gemm(x, c_out, classes), "logits", [batch, classes])
    return net.model()
