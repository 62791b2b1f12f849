"""Dense, recurrent and attention networks with random weights."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx
from onnx import TensorProto

from zoo.net import Net, Value, f32, i64

INT32, INT64 = TensorProto.INT32, TensorProto.INT64


def mlp(
    batch: int | str = "N", sizes: tuple[int, ...] = (64, 256, 256, 10), seed: int = 3
) -> onnx.ModelProto:
    """Dense layers with ReLU between: `x` [N, sizes[0]] -> `probabilities` [N, sizes[-1]]."""
    net = Net("mlp", seed)
    x = net.input("x", [batch, sizes[0]])
    for layer, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        x = net.gemm(net.op("Relu", x) if layer else x, n_in, n_out)
    net.output(net.op("Softmax", x, axis=-1), "probabilities", [batch, sizes[-1]])
    return net.model()


# -- recurrent -------------------------------------------------------------------------------


def lstm(
    batch: int | str = "N",
    sequence: int | str = "T",
    size: int = 64,
    hidden: int = 128,
    *,
    seed: int = 1997,
    **options: bool,
) -> onnx.ModelProto:
    """One LSTM layer: `x` [T, N, size] -> `y` [T, D, N, hidden], `hn`, `cn` [D, N, hidden].

    Options: `bidirectional` (D is 2, else 1), `initial_state` (default true: inputs `h`, `c`
    [D, N, hidden]), `sequence_lens` (input `lens` [N] int32).
    """
    return _recurrent("LSTM", 4, batch, sequence, size, hidden, seed, {}, **options)


def gru(
    batch: int | str = "N",
    sequence: int | str = "T",
    size: int = 64,
    hidden: int = 128,
    *,
    linear_before_reset: bool = True,
    seed: int = 2014,
    **options: bool,
) -> onnx.ModelProto:
    """One GRU layer: like `lstm`, without the cell state; torch exports it with `linear_before_reset`."""
    attributes = {"linear_before_reset": int(linear_before_reset)}
    return _recurrent("GRU", 3, batch, sequence, size, hidden, seed, attributes, **options)


def _recurrent(
    kind: str,
    gates: int,
    batch: int | str,
    sequence: int | str,
    size: int,
    hidden: int,
    seed: int,
    attributes: dict[str, int],
    *,
    bidirectional: bool = False,
    initial_state: bool = True,
    sequence_lens: bool = False,
) -> onnx.ModelProto:
    net = Net(kind.lower(), seed)
    directions, direction = (2, "bidirectional") if bidirectional else (1, "forward")
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    state_shape = [directions, batch, hidden]
    inputs: list[Value] = [
        net.input("x", [sequence, batch, size]),
        net.weight(directions, gates * hidden, size, fan_in=size, gain=1.0),
        net.weight(directions, gates * hidden, hidden, fan_in=hidden, gain=1.0),
        net.bias(directions * 2 * gates * hidden).reshape(directions, -1),
    ]
    if sequence_lens or initial_state:
        inputs.append(net.input("lens", [batch], INT32) if sequence_lens else "")
    if initial_state:
        inputs += [net.input(name, state_shape) for name in states]
    y, *final = net.ops(kind, inputs, 1 + len(states), hidden_size=hidden, direction=direction, **attributes)
    net.output(y, "y", [sequence, directions, batch, hidden])
    for name, value in zip(states, final):
        net.output(value, f"{name}n", state_shape)
    return net.model()


# -- attention -------------------------------------------------------------------------------


def bert_encoder_layer(
    batch: int | str = "batch",
    sequence: int | str = "sequence",
    hidden: int = 256,
    heads: int = 4,
    ffn: int = 1024,
    seed: int = 2018,
) -> onnx.ModelProto:
    """One layer of BERT (Devlin et al. 2019) as torch exports it: `hidden` [batch, sequence, hidden] and
    `attention_mask` [batch, sequence] int64, 1 where a token counts -> `output`, shaped like `hidden`."""
    net = Net("bert_encoder_layer", seed)
    x = net.input("hidden", [batch, sequence, hidden])
    mask = _additive_mask(net, net.input("attention_mask", [batch, sequence], INT64))
    x = _encoder_layer(net, x, mask, hidden, heads, ffn)
    net.output(x, "output", [batch, sequence, hidden])
    return net.model()


def bert_mini(
    batch: int | str = "batch",
    sequence: int | str = "sequence",
    hidden: int = 256,
    heads: int = 4,
    ffn: int = 1024,
    layers: int = 4,
    vocabulary: int = 8192,
    positions: int = 512,
    seed: int = 2019,
) -> onnx.ModelProto:
    """BERT with 4 layers, 256 wide; see `bert`."""
    return bert(Net("bert_mini", seed), batch, sequence, hidden, heads, ffn, layers, vocabulary, positions)


def bert(
    net: Net,
    batch: int | str,
    sequence: int | str,
    hidden: int,
    heads: int,
    ffn: int,
    layers: int,
    vocabulary: int,
    positions: int = 512,
) -> onnx.ModelProto:
    """BERT with embeddings and pooler: `input_ids`, `attention_mask`, `token_type_ids`, all int64
    [batch, sequence] -> `last_hidden_state` [batch, sequence, hidden], `pooler_output` [batch, hidden].

    `net` is empty; its name and its weights become the model's.  These are asked for in the order: words,
    token types, positions, norm; in each layer query, key, value, output, norm, the dense pair, norm; pooler.
    """
    names = ("input_ids", "attention_mask", "token_type_ids")
    ids, attention, types = (net.input(name, [batch, sequence], INT64) for name in names)
    mask = _additive_mask(net, attention)
    words = net.op("Gather", net.weight(vocabulary, hidden, fan_in=1, gain=0.5), ids, axis=0)
    kinds = net.op("Gather", net.weight(2, hidden, fan_in=1, gain=0.1), types, axis=0)
    position_ids = np.arange(positions, dtype=np.int64)[None]
    used = net.op("Slice", position_ids, i64(0), net.dim(ids, 1), i64(1), i64(1))
    places = net.op("Gather", net.weight(positions, hidden, fan_in=1, gain=0.1), used, axis=0)
    x = net.layer_norm(net.op("Add", net.op("Add", words, kinds), places), hidden)
    for _ in range(layers):
        x = _encoder_layer(net, x, mask, hidden, heads, ffn)
    first = net.op("Gather", x, np.array(0, np.int64), axis=1)
    pooled = net.op("Tanh", net.gemm(first, hidden, hidden, gain=1.0))
    net.output(x, "last_hidden_state", [batch, sequence, hidden])
    net.output(pooled, "pooler_output", [batch, hidden])
    return net.model()


def _additive_mask(net: Net, mask: str) -> str:
    """[batch, sequence] of 1 and 0 -> [batch, 1, 1, sequence] of 0 and the least float32."""
    wide = net.op("Unsqueeze", net.op("Unsqueeze", mask, i64(1)), i64(2))
    hidden = net.op("Sub", f32(1.0), net.op("Cast", wide, to=TensorProto.FLOAT))
    return net.op("Mul", hidden, f32(float(np.finfo(np.float32).min)))


def _encoder_layer(net: Net, x: str, mask: str, hidden: int, heads: int, ffn: int) -> str:
    size = hidden // heads

    def split(value: str, order: list[int]) -> str:
        rows = net.reshape(value, net.dim(value, 0), net.dim(value, 1), heads, size)
        return net.op("Transpose", rows, perm=order)

    query = split(net.linear(x, hidden, hidden), [0, 2, 1, 3])
    key = split(net.linear(x, hidden, hidden), [0, 2, 3, 1])
    value = split(net.linear(x, hidden, hidden), [0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", query, key), f32(math.sqrt(size)))
    weights = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
    context = net.op("Transpose", net.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    context = net.reshape(context, net.dim(context, 0), net.dim(context, 1), hidden)
    x = net.layer_norm(net.op("Add", net.linear(context, hidden, hidden), x), hidden)
    inner = net.gelu(net.linear(x, hidden, ffn))
    return net.layer_norm(net.op("Add", net.linear(inner, ffn, hidden), x), hidden)


def decoder_step(
    batch: int | str = "batch",
    past: int | str = "past",
    hidden: int = 128,
    heads: int = 4,
    ffn: int = 384,
    vocabulary: int = 1024,
    positions: int = 256,
    seed: int = 2023,
) -> onnx.ModelProto:
    """One token through one layer of a Llama-like decoder with a key-value cache.

    `token` and `position` [batch, 1] int64, `past_key` and `past_value` [batch, heads, past, hidden/heads] ->
    `logits` [batch, 1, vocabulary], `key` and `value`: the caches, longer by one. RMS norms, rotary
    embedding (Su et al. 2021), a SiLU-gated dense part (Shazeer 2020).
    """
    net = Net("decoder_step", seed)
    size = hidden // heads
    token, position = (net.input(name, [batch, 1], INT64) for name in ("token", "position"))
    cache_shape = [batch, heads, past, size]
    past_key, past_value = net.input("past_key", cache_shape), net.input("past_value", cache_shape)
    angles = np.outer(np.arange(positions), 10000.0 ** (-np.arange(0, size, 2) / size))
    angles = np.concatenate([angles, angles], axis=1)
    cosine, sine = (
        net.op("Unsqueeze", net.op("Gather", table.astype(np.float32), position, axis=0), i64(1))
        for table in (np.cos(angles), np.sin(angles))
    )

    def project(value: str) -> str:
        rows = net.reshape(net.linear(value, hidden, hidden, bias=False), net.dim(value, 0), 1, heads, size)
        return net.op("Transpose", rows, perm=[0, 2, 1, 3])

    def rotate(value: str) -> str:
        low = net.op("Slice", value, i64(0), i64(size // 2), i64(3))
        high = net.op("Slice", value, i64(size // 2), i64(np.iinfo(np.int64).max), i64(3))
        turned = net.op("Concat", net.op("Neg", high), low, axis=-1)
        return net.op("Add", net.op("Mul", value, cosine), net.op("Mul", turned, sine))

    x = net.op("Gather", net.weight(vocabulary, hidden, fan_in=1, gain=1.0), token, axis=0)
    y = net.rms_norm(x, hidden)
    query, new_key, new_value = rotate(project(y)), rotate(project(y)), project(y)
    key = net.op("Concat", past_key, new_key, axis=2)
    value = net.op("Concat", past_value, new_value, axis=2)
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    weights = net.op("Softmax", net.op("Mul", scores, f32(1 / math.sqrt(size))), axis=-1)
    context = net.op("Transpose", net.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    context = net.reshape(context, net.dim(context, 0), 1, hidden)
    x = net.op("Add", x, net.linear(context, hidden, hidden, bias=False))
    y = net.rms_norm(x, hidden)
    gate = net.linear(y, hidden, ffn, bias=False)
    gate = net.op("Mul", gate, net.op("Sigmoid", gate))
    gated = net.op("Mul", gate, net.linear(y, hidden, ffn, bias=False))
    x = net.op("Add", x, net.linear(gated, ffn, hidden, bias=False))
    logits = net.linear(net.rms_norm(x, hidden), hidden, vocabulary, bias=False)
    net.output(logits, "logits", [batch, 1, vocabulary])
    total = past + 1 if isinstance(past, int) else "total"
    net.output(key, "key", [batch, heads, total, size])
    net.output(value, "value", [batch, heads, total, size])
    return net.model()
