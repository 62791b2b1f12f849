"""Convolutional networks with random weights.

All take images [batch, channels, height, width]; `batch` is a size or a symbol's name.
"""

from __future__ import annotations

import onnx

from zoo.net import Net, f32, i64


def _stem(net: Net, x: str, width: int) -> str:
    """The first layers of a ResNet: a quarter of the rows and columns, `width` channels."""
    x = net.op("Relu", net.batch_norm(net.conv(x, 3, width, 7, stride=2, bias=False), width))
    return net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


def resnet18(
    batch: int | str = "N", image: int = 224, width: int = 64, classes: int = 1000, seed: int = 18
) -> onnx.ModelProto:
    """ResNet-18 (He et al. 2016) with its batch normalizations: `x` [N, 3, image, image] -> `logits`."""
    net = Net("resnet18", seed)
    x = _stem(net, net.input("x", [batch, 3, image, image]), width)
    c_in = width
    for stage in range(4):
        c_out = width << stage
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            y = net.conv(x, c_in, c_out, 3, stride=stride, bias=False)
            y = net.op("Relu", net.batch_norm(y, c_out))
            y = net.batch_norm(net.conv(y, c_out, c_out, 3, bias=False), c_out, scale=0.5)
            if stride != 1 or c_in != c_out:
                x = net.batch_norm(net.conv(x, c_in, c_out, 1, stride=stride, bias=False, gain=1.0), c_out)
            x = net.op("Relu", net.op("Add", y, x))
            c_in = c_out
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    net.output(net.gemm(x, c_in, classes), "logits", [batch, classes])
    return net.model()


def resnet50(
    batch: int | str = "N", image: int = 224, width: int = 64, classes: int = 1000, seed: int = 50
) -> onnx.ModelProto:
    """ResNet-50 v1.5 (strides in the 3x3 convolutions): `x` [N, 3, image, image] -> `logits`."""
    net = Net("resnet50", seed)
    x = _stem(net, net.input("x", [batch, 3, image, image]), width)
    c_in = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width << stage
        c_out = 4 * inner
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = net.op("Relu", net.batch_norm(net.conv(x, c_in, inner, 1, bias=False), inner))
            y = net.conv(y, inner, inner, 3, stride=stride, bias=False)
            y = net.op("Relu", net.batch_norm(y, inner))
            y = net.batch_norm(net.conv(y, inner, c_out, 1, bias=False), c_out, scale=0.5)
            if block == 0:
                x = net.batch_norm(net.conv(x, c_in, c_out, 1, stride=stride, bias=False, gain=1.0), c_out)
            x = net.op("Relu", net.op("Add", y, x))
            c_in = c_out
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    net.output(net.gemm(x, c_in, classes), "logits", [batch, classes])
    return net.model()


def vgg11_bn(
    batch: int | str = "N",
    image: int = 224,
    width: int = 64,
    dense: int = 512,
    classes: int = 1000,
    seed: int = 2014,
) -> onnx.ModelProto:
    """VGG-11 with batch normalizations (Simonyan and Zisserman 2015) and dense layers of `dense` instead of
    4096 channels: `x` [N, 3, image, image] -> `logits`. `image` is a multiple of 32."""
    net = Net("vgg11_bn", seed)
    x, c_in = net.input("x", [batch, 3, image, image]), 3
    for stage, convolutions in enumerate((1, 1, 2, 2, 2)):
        c_out = width << min(stage, 3)
        for _ in range(convolutions):
            x = net.op("Relu", net.batch_norm(net.conv(x, c_in, c_out, 3), c_out))
            c_in = c_out
        x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x, n_in = net.op("Flatten", x, axis=1), c_in * (image // 32) ** 2
    for _ in range(2):
        x, n_in = net.op("Relu", net.gemm(x, n_in, dense)), dense
    net.output(net.gemm(x, n_in, classes), "logits", [batch, classes])
    return net.model()


def densenet121(
    batch: int | str = "N",
    image: int = 224,
    growth: int = 32,
    blocks: tuple[int, ...] = (6, 12, 24, 16),
    classes: int = 1000,
    seed: int = 121,
) -> onnx.ModelProto:
    """DenseNet-121 (Huang et al. 2017): `x` [N, 3, image, image] -> `logits`.

    Every layer joins all that its block has made so far, the first a single value, as torchvision does it.
    """
    net = Net("densenet121", seed)

    def activated(x: str, channels: int) -> str:
        return net.op("Relu", net.batch_norm(x, channels))

    channels = 2 * growth
    x = net.conv(net.input("x", [batch, 3, image, image]), 3, channels, 7, stride=2, bias=False)
    x = net.op("MaxPool", activated(x, channels), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block, layers in enumerate(blocks):
        features = [x]
        for _ in range(layers):
            joined = net.op("Concat", *features, axis=1)
            y = net.conv(activated(joined, channels), channels, 4 * growth, 1, bias=False)
            features.append(net.conv(activated(y, 4 * growth), 4 * growth, growth, 3, bias=False))
            channels += growth
        x = activated(net.op("Concat", *features, axis=1), channels)
        if block < len(blocks) - 1:
            x = net.conv(x, channels, channels // 2, 1, bias=False)
            x = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
            channels //= 2
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    net.output(net.gemm(x, channels, classes), "logits", [batch, classes])
    return net.model()


MOBILENET_V2 = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]
"""Expansion, channels, repeats and first stride of each stage: table 2 of Sandler et al. 2018."""


def mobilenet_v2(
    batch: int | str = "N", image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 2
) -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al. 2018), ReLU6 as Clip: `x` [N, 3, image, image] -> `logits`."""

    def channels(base: int) -> int:
        return max(8, round(base * width / 8) * 8)

    def block(x: str, c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        y = net.batch_norm(net.conv(x, c_in, c_out, kernel, stride=stride, groups=groups, bias=False), c_out)
        return net.op("Clip", y, f32(0.0), f32(6.0))

    net = Net("mobilenet_v2", seed)
    c_in = channels(32)
    x = block(net.input("x", [batch, 3, image, image]), 3, c_in, 3, stride=2)
    for expansion, base, repeats, first_stride in MOBILENET_V2:
        c_out = channels(base)
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            inner = c_in * expansion
            y = block(x, c_in, inner, 1) if expansion > 1 else x
            y = block(y, inner, inner, 3, stride=stride, groups=inner)
            y = net.batch_norm(net.conv(y, inner, c_out, 1, bias=False), c_out)
            x = net.op("Add", x, y) if stride == 1 and c_in == c_out else y
            c_in = c_out
    c_out = max(1280, channels(1280))
    x = net.op("Flatten", net.op("GlobalAveragePool", block(x, c_in, c_out, 1)), axis=1)
    net.output(net.gemm(x, c_out, classes), "logits", [batch, classes])
    return net.model()


def squeezenet(
    batch: int | str = "N", image: int = 224, classes: int = 1000, seed: int = 11
) -> onnx.ModelProto:
    """SqueezeNet 1.1 (Iandola et al. 2016): `x` [N, 3, image, image] -> `probabilities`.

    Its fire modules join two branches with Concat; its pooling rounds sizes up (`ceil_mode`).
    """
    net = Net("squeezenet", seed)

    def pool(x: str) -> str:
        return net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)

    def fire(x: str, c_in: int, squeeze: int, expand: int) -> str:
        x = net.op("Relu", net.conv(x, c_in, squeeze, 1))
        left = net.op("Relu", net.conv(x, squeeze, expand, 1))
        right = net.op("Relu", net.conv(x, squeeze, expand, 3))
        return net.op("Concat", left, right, axis=1)

    x = net.op("Relu", net.conv(net.input("x", [batch, 3, image, image]), 3, 64, 3, stride=2))
    c_in = 64
    for stage in ([(16, 64), (16, 64)], [(32, 128), (32, 128)], [(48, 192), (48, 192), (64, 256), (64, 256)]):
        x = pool(x)
        for squeeze, expand in stage:
            x = fire(x, c_in, squeeze, expand)
            c_in = 2 * expand
    x = net.op("GlobalAveragePool", net.op("Relu", net.conv(x, c_in, classes, 1)))
    net.output(net.op("Softmax", net.op("Flatten", x), axis=1), "probabilities", [batch, classes])
    return net.model()


def ds_cnn(
    batch: int | str = "N", frames: int = 49, width: int = 64, classes: int = 12, seed: int = 10
) -> onnx.ModelProto:
    """The small DS-CNN keyword spotter (Zhang et al. 2017): `x` [N, 1, frames, 10] -> `probabilities`."""
    net = Net("ds_cnn", seed)
    x = net.input("x", [batch, 1, frames, 10])
    x = net.op("Relu", net.batch_norm(net.conv(x, 1, width, (10, 4), stride=(2, 2), bias=False), width))
    for _ in range(4):
        for kernel, groups in ((3, width), (1, 1)):
            x = net.conv(x, width, width, kernel, groups=groups, bias=False)
            x = net.op("Relu", net.batch_norm(x, width))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.op("Softmax", net.gemm(x, width, classes), axis=1), "probabilities", [batch, classes])
    return net.model()


def unet(
    batch: int | str = "N", image: int = 96, width: int = 16, classes: int = 3, seed: int = 15
) -> onnx.ModelProto:
    """A U-Net of three levels: `x` [N, 3, image, image] -> `mask` [N, classes, image, image].

    The way up is, from the bottom: bilinear Resize by a factor, nearest Resize to the size of the
    skip connection (known only through its Shape), and ConvTranspose. `image` is a multiple of 8.
    """
    net = Net("unet", seed)

    def double(x: str, c_in: int, c_out: int) -> str:
        x = net.op("LeakyRelu", net.conv(x, c_in, c_out, 3), alpha=0.1)
        return net.op("LeakyRelu", net.conv(x, c_out, c_out, 3), alpha=0.1)

    x = net.input("x", [batch, 3, image, image])
    skips, c_in = [], 3
    for level in range(3):
        x = double(x, c_in, width << level)
        skips.append(x)
        c_in = width << level
        x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = double(x, c_in, c_in * 2)
    c_in *= 2
    for level in (2, 1, 0):
        c_skip = width << level
        if level == 2:
            x = net.op(
                "Resize",
                x,
                "",
                f32(1.0, 1.0, 2.0, 2.0),
                mode="linear",
                coordinate_transformation_mode="half_pixel",
            )
        elif level == 1:
            spatial = net.op("Slice", net.op("Shape", skips[level]), i64(2), i64(4), i64(0))
            leading = net.op("Slice", net.op("Shape", x), i64(0), i64(2), i64(0))
            sizes = net.op("Concat", leading, spatial, axis=0)
            x = net.op(
                "Resize",
                x,
                "",
                "",
                sizes,
                mode="nearest",
                nearest_mode="floor",
                coordinate_transformation_mode="asymmetric",
            )
        else:
            weight = net.weight(c_in, c_skip, 2, 2, fan_in=c_in, gain=1.0)
            x = net.op("ConvTranspose", x, weight, net.bias(c_skip), kernel_shape=[2, 2], strides=[2, 2])
            c_in = c_skip
        x = double(net.op("Concat", skips[level], x, axis=1), c_skip + c_in, c_skip)
        c_in = c_skip
    x = net.op("Sigmoid", net.conv(x, c_in, classes, 1, gain=1.0))
    net.output(x, "mask", [batch, classes, image, image])
    return net.model()
