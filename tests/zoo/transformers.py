"""Transformers at their real sizes with random weights, as torch exports them."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from zoo.net import Net, f32, i64
from zoo.sequence import bert

INT64 = TensorProto.INT64


def bert_base(
    batch: int | str = "batch", sequence: int | str = "sequence", vocabulary: int = 4096, seed: int = 2018
) -> onnx.ModelProto:
    """BERT-base (Devlin et al. 2019), 12 layers, 768 wide, but for the size of its vocabulary: see `bert`."""
    return bert(Net("bert_base", seed), batch, sequence, 768, 12, 3072, 12, vocabulary)


def minilm(
    batch: int | str = "batch", sequence: int | str = "sequence", vocabulary: int = 4096, seed: int = 2020
) -> onnx.ModelProto:
    """MiniLM (Wang et al. 2020), 6 layers, 384 wide, but for the size of its vocabulary: see `bert`."""
    return bert(Net("minilm", seed), batch, sequence, 384, 12, 1536, 6, vocabulary)


def vit_small(
    batch: int | str = "N",
    image: int = 224,
    patch: int = 16,
    hidden: int = 384,
    heads: int = 6,
    layers: int = 12,
    classes: int = 1000,
    seed: int = 2021,
) -> onnx.ModelProto:
    """ViT-S/16 (Dosovitskiy et al. 2021; Touvron et al. 2021): `x` [N, 3, image, image] -> `logits`.

    Query, key and value come from one dense layer; norms come before what they are for.
    """
    net = Net("vit_small", seed)
    tokens = (image // patch) ** 2 + 1
    x = net.input("x", [batch, 3, image, image])
    x = net.conv(x, 3, hidden, patch, stride=patch, pad=False, gain=1.0)
    count = net.dim(x, 0)
    x = net.op("Transpose", net.reshape(x, count, hidden, tokens - 1), perm=[0, 2, 1])
    shape = net.op("Concat", count, i64(1, hidden), axis=0)
    first = net.op("Expand", net.bias(hidden).reshape(1, 1, hidden), shape)
    x = net.op("Concat", first, x, axis=1)
    x = net.op("Add", x, net.weight(1, tokens, hidden, fan_in=1, gain=0.1))
    for _ in range(layers):
        y = net.linear(net.layer_norm(x, hidden, 1e-6), hidden, 3 * hidden)
        y = net.reshape(y, net.dim(y, 0), tokens, 3, heads, hidden // heads)
        parts = net.ops("Split", [net.op("Transpose", y, perm=[2, 0, 3, 1, 4]), i64(1, 1, 1)], 3, axis=0)
        query, key, value = (net.op("Squeeze", part, i64(0)) for part in parts)
        query = net.op("Mul", query, f32((hidden // heads) ** -0.5))
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
        context = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
        context = net.op("Transpose", context, perm=[0, 2, 1, 3])
        context = net.reshape(context, net.dim(context, 0), tokens, hidden)
        x = net.op("Add", x, net.linear(context, hidden, hidden))
        y = net.gelu(net.linear(net.layer_norm(x, hidden, 1e-6), hidden, 4 * hidden))
        x = net.op("Add", x, net.linear(y, 4 * hidden, hidden))
    first = net.op("Gather", net.layer_norm(x, hidden, 1e-6), np.array(0, np.int64), axis=1)
    net.output(net.gemm(first, hidden, classes, gain=1.0), "logits", [batch, classes])
    return net.model()


def gpt2_step(
    batch: int | str = "batch",
    past: int | str = "past",
    hidden: int = 768,
    heads: int = 12,
    layers: int = 12,
    vocabulary: int = 8192,
    positions: int = 1024,
    seed: int = 2019,
) -> onnx.ModelProto:
    """One token through GPT-2 (Radford et al. 2019), small but for the size of its vocabulary.

    `input_ids` and `position_ids` [batch, 1] int64, and for each layer k `past_k_key` and `past_k_value`
    [batch, heads, past, hidden / heads] -> `logits` [batch, 1, vocabulary], and `present_k_key` and
    `present_k_value`: the caches, longer by one. Dense layers are Gemms between Reshapes; what a token may
    look at is cut out of a table.
    """
    net = Net("gpt2_step", seed)
    size = hidden // heads
    ids, places = (net.input(name, [batch, 1], INT64) for name in ("input_ids", "position_ids"))
    caches = [
        [net.input(f"past_{k}_{kind}", [batch, heads, past, size]) for kind in ("key", "value")]
        for k in range(layers)
    ]
    total = past + 1 if isinstance(past, int) else "total"
    words = net.weight(vocabulary, hidden, fan_in=1, gain=0.01)
    allowed = np.tril(np.ones((positions, positions), np.bool_))[None, None]
    least = f32(float(np.finfo(np.float32).min))

    def dense(x: str, n_in: int, n_out: int, gain: float = 1.0) -> str:
        weight = net.weight(n_in, n_out, fan_in=n_in, gain=gain)
        y = net.op("Gemm", net.op("Reshape", x, i64(-1, n_in)), weight, net.bias(n_out))
        return net.reshape(y, net.dim(x, 0), net.dim(x, 1), n_out)

    def split(x: str) -> str:
        rows = net.reshape(x, net.dim(x, 0), net.dim(x, 1), heads, size)
        return net.op("Transpose", rows, perm=[0, 2, 1, 3])

    x = net.op("Gather", words, ids, axis=0)
    places = net.op("Gather", net.weight(positions, hidden, fan_in=1, gain=0.002), places, axis=0)
    x = net.op("Add", x, places)
    presents = []
    for cache in caches:
        parts = dense(net.layer_norm(x, hidden, 1e-5), hidden, 3 * hidden)
        parts = net.ops("Split", [parts, i64(hidden, hidden, hidden)], 3, axis=2)
        query, new_key, new_value = (split(part) for part in parts)
        key = net.op("Concat", cache[0], new_key, axis=2)
        value = net.op("Concat", cache[1], new_value, axis=2)
        presents += [key, value]
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = net.op("Div", scores, f32(math.sqrt(size)))
        end = net.dim(key, 2)
        rows = net.op("Slice", allowed, net.op("Sub", end, net.dim(query, 2)), end, i64(2), i64(1))
        scores = net.op("Where", net.op("Slice", rows, i64(0), end, i64(3), i64(1)), scores, least)
        context = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
        context = net.op("Transpose", context, perm=[0, 2, 1, 3])
        context = net.reshape(context, net.dim(context, 0), net.dim(context, 1), hidden)
        x = net.op("Add", dense(context, hidden, hidden), x)
        y = dense(net.layer_norm(x, hidden, 1e-5), hidden, 4 * hidden)
        x = net.op("Add", x, dense(_gelu_tanh(net, y), 4 * hidden, hidden))
    logits = net.op("MatMul", net.layer_norm(x, hidden, 1e-5), np.ascontiguousarray(words.T))
    net.output(logits, "logits", [batch, 1, vocabulary])
    names = [f"present_{k}_{kind}" for k in range(layers) for kind in ("key", "value")]
    for present, name in zip(presents, names, strict=True):
        net.output(present, name, [batch, heads, total, size])
    return net.model()


def _gelu_tanh(net: Net, x: str) -> str:
    """GELU by its approximation with tanh (Hendrycks and Gimpel 2016), in its parts."""
    cube = net.op("Mul", net.op("Pow", x, f32(3.0)), f32(0.044715))
    bend = net.op("Tanh", net.op("Mul", net.op("Add", x, cube), f32(math.sqrt(2 / math.pi))))
    return net.op("Mul", net.op("Mul", x, f32(0.5)), net.op("Add", bend, f32(1.0)))
