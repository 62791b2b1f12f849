"""Operators of onnxruntime's domain that transformers are exported with: attention over merged projections
and caches, products with weights of few bits, embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, broadcast_load
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.primitives import Value, depends_on_data, elements, static
from cuvil.ops.attention import Mask, merge_heads, rotate, scaled_attention, split_heads, weighted_values
from cuvil.ops.contraction import integer_product, matmul_value
from cuvil.ops.elementwise import gelu_exact, gelu_tanh
from cuvil.ops.microsoft import DOMAIN
from cuvil.ops.movement import concat, narrow, wrap_index
from cuvil.ops.quantization import real, scalar
from cuvil.ops.reduction import normalized, widened
from cuvil.ops.registry import Context, lowering

# --- attention ------------------------------------------------------------------------------------


def _refuse(c: Context, inputs: dict[int, str], attributes: tuple[str, ...]) -> None:
    """Raise UnsupportedError where an input or a flag is given that has no lowering."""
    for index, name in inputs.items():
        if c.optional(index) is not None:
            raise c.unsupported(f"input '{name}' is not supported")
    for name in attributes:
        if c.attr(name, 0):
            raise c.unsupported(f"attribute '{name}' is not supported")


def _expect(c: Context, name: str, v: Value, *shape: Operand) -> None:
    """Raise ModelError where `v` has another rank than `shape`, or a known size differs."""
    had, wanted = list(map(static, v.shape)), [static(E.wrap(n, E.INDEX)) for n in shape]
    if len(had) != len(wanted) or any(a != n for a, n in zip(had, wanted) if None not in (a, n)):
        shown = [", ".join("?" if n is None else str(n) for n in sizes) for sizes in (had, wanted)]
        raise c.error(f"'{name}' has shape ({shown[0]}), not ({shown[1]})")


def _split(c: Context, x: Value, heads: int) -> Value:
    """[B, S, heads * D] as [B, heads, S, D]."""
    if x.rank != 3 or not heads or (static(x.shape[2]) or 0) % heads:
        raise c.error(f"an input of rank 3 is needed whose last size is a multiple of {heads} heads")
    return split_heads(c.b, x, heads)


def _present(b: Builder, past: Value | None, new: Value, axis: int = 2) -> Value:
    return new if past is None else concat(b, [past, new], axis)


def _padding(c: Context, mask: Value, batch: Expr) -> Callable[[Expr, Expr, Expr], Expr]:
    """Whether key t of entry n is hidden from query s by an integer mask of one of the forms [B] (the keys'
    lengths), [2 B] (their ends, then their starts), [3 B + 2] (lengths and their sums), [B, T] and [B, S, T]
    (0 hides)."""
    if mask.rank in (2, 3):
        return lambda n, s, t: E.le(broadcast_load(mask, (n, s, t) if mask.rank == 3 else (n, t)), 0)
    if mask.rank != 1:
        raise c.unsupported(f"a mask of rank {mask.rank} is not supported, but one of rank 1, 2 or 3")
    sizes = {"ends": batch, "both": batch * 2, "sums": batch * 3 + 2}
    form = next((name for name, size in sizes.items() if static(mask.shape[0] - size) == 0), None)
    if form is None:
        raise c.unsupported("a mask of rank 1 must have B, 2 B or 3 B + 2 entries for a batch of B")

    def hidden(n: Expr, s: Expr, t: Expr) -> Expr:
        after = E.le(E.cast(mask[(n,)], E.INDEX), t)
        return after | E.lt(t, E.cast(mask[(n + batch,)], E.INDEX)) if form == "both" else after

    return hidden


def _added(
    c: Context, mask: Value | None, bias: Value | None, shape: tuple[Expr, Expr, Expr], dtype: str
) -> Value | None:
    """What is added to scores [B, H, S, T]: the bias, and `mask_filter_value` for a key that the mask hides;
    None where there is nothing.

    Args:
        mask: as `_padding` takes it.
        bias: [B or 1, H or 1, S, T].
        shape: B, S, T.
    """
    batch, queries, keys = shape
    if mask is None:
        return bias
    hides = _padding(c, mask, batch)
    penalty = E.const(c.attr("mask_filter_value", -10000.0), dtype)

    def body(*i: Expr) -> Expr:
        n, _, s, t = i
        hidden = E.select(hides(n, s, t), penalty, 0)
        return hidden if bias is None else hidden + broadcast_load(bias, i)

    heads = E.const(1) if bias is None else bias.shape[1]
    return c.b.map([batch, heads, queries, keys], body)


def _attend(
    c: Context, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None, past: Expr
) -> tuple[Value, Value]:
    """([B, S, H * D'], the scores behind the mask) of queries [B, H, S, D], keys [B, H, T, D] and values
    [B, H, T, D'], the first query being behind `past` keys where none may see later ones."""
    extra = _added(c, mask, bias, (q.shape[0], q.shape[2], k.shape[2]), q.dtype)
    right = 0 if c.attr("unidirectional", 0) else None
    seen = Mask(extra, lambda n: past, None, None, right, k.shape[2])
    _, scores, weights = scaled_attention(c.b, q, k, seen, c.attr("scale") or None, None, None)
    return merge_heads(c.b, weighted_values(c.b, weights, v)), scores


def _self_attention(
    c: Context, projected: Value, mask: Value | None, past: Value | None, bias: Value | None
) -> list[Value]:
    """Attention of merged projections [B, S, Q + K + V] with a cache [2, B, H, P, D]; also the new cache."""
    b, heads = c.b, c.attr("num_heads", 0)
    third = E.floordiv(projected.shape[2], 3)
    sizes: list[Operand] = c.attr("qkv_hidden_sizes") or [third, third, third]
    if len(sizes) != 3:
        raise c.error("qkv_hidden_sizes must have 3 entries")
    _expect(c, "input x weights", projected, *projected.shape[:2], sum(sizes, E.const(0)))
    starts: list[Operand] = [0, sizes[0], E.wrap(sizes[0], E.INDEX) + sizes[1]]
    q, k, v = (_split(c, narrow(b, projected, 2, a, n), heads) for a, n in zip(starts, sizes))
    before = E.const(0)
    if past is not None:
        _expect(c, "past", past, 2, q.shape[0], heads, past.shape[3], q.shape[3])
        before = past.shape[3]
        k, v = (
            concat(b, [b.map(past.shape[1:], lambda *i, side=side: past[(side, *i)]), new], 2)
            for side, new in enumerate((k, v))
        )
    y, _ = _attend(c, q, k, v, mask, bias, before)
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return [y]
    return [y, b.map([2, *k.shape], lambda side, *i: E.select(E.eq(side, 0), E.load(k, i), E.load(v, i)))]


@lowering("Attention", domain=DOMAIN)
def attention(c: Context) -> list[Value]:
    """Self-attention with the projections of queries, keys and values merged into one matrix."""
    _refuse(c, {6: "past_sequence_length"}, ("do_rotary", "past_present_share_buffer"))
    projected, bias = matmul_value(c.b, c[0], c[1]), c.optional(2)
    if bias is not None:
        projected = c.b.elementwise(E.add, projected, bias)
    return _self_attention(c, projected, c.optional(3), c.optional(4), c.optional(5))


@lowering("QAttention", domain=DOMAIN)
def qattention(c: Context) -> list[Value]:
    """Attention whose input and merged projection are 8-bit matrices."""
    _refuse(c, {}, ("do_rotary", "past_present_share_buffer"))
    bias, x_scale, w_scale = c[2], c[3], c[4]
    total = integer_product(c.b, c[0], c.optional(6), c[1], c.optional(7))

    _expect(c, "bias", bias, total.shape[2])
    if static(elements(w_scale.shape)) != 1:
        _expect(c, "weight_scale", w_scale, total.shape[2])

    def body(*i: Expr) -> Expr:
        each = scalar(w_scale) if static(elements(w_scale.shape)) == 1 else w_scale[(i[2],)]
        return E.cast(total[i], bias.dtype) * (scalar(x_scale) * each) + bias[(i[2],)]

    return _self_attention(c, c.b.map(total.shape, body), c.optional(5), c.optional(8), None)


@lowering("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(c: Context) -> list[Value]:
    """Attention of projected queries, keys and values, apart or packed, plus their biases; also the caches
    and the scores."""
    _refuse(c, {8: "past_sequence_length", 9: "cache_indirection"}, ())
    b, heads, bias = c.b, c.attr("num_heads", 0), c.optional(3)
    start = E.const(0)

    def part(x: Value, index: int | None) -> Value:
        """[B, H, S, D] of the projection `x`, or of entry `index` of a packed one, plus its bias."""
        nonlocal start
        if index is not None:
            shape = [x.shape[0], x.shape[2], x.shape[1], x.shape[4]]
            made = b.map(shape, lambda n, h, s, d: x[(n, s, h, E.const(index), d)])
        elif x.rank == 4:
            return x
        else:
            made = _split(c, x, heads)
        if bias is None:
            return made
        size, first = made.shape[3], start
        start = start + made.shape[1] * size
        return b.map(made.shape, lambda n, h, s, d: made[(n, h, s, d)] + bias[(first + h * size + d,)])

    query, key, value = c[0], c.optional(1), c.optional(2)
    if query.rank == 5:
        q, k, v = (part(query, n) for n in range(3))
    elif key is not None and key.rank == 5:
        q, k, v = part(query, None), part(key, 0), part(key, 1)
    elif key is None or value is None:
        raise c.error("key and value are missing, and the query is not packed with them")
    else:
        q, k, v = part(query, None), part(key, None), part(value, None)
    if bias is not None and key is not None and key.rank != 4:
        _expect(c, "bias", bias, start)
    _expect(c, "query", q, q.shape[0], heads, *q.shape[2:])
    _expect(c, "key", k, q.shape[0], heads, k.shape[2], q.shape[3])
    _expect(c, "value", v, q.shape[0], heads, k.shape[2], v.shape[3])
    past_key, past_value = c.optional(6), c.optional(7)
    before = E.const(0) if past_key is None else past_key.shape[2]
    k, v = _present(b, past_key, k), _present(b, past_value, v)
    y, scores = _attend(c, q, k, v, c.optional(4), c.optional(5), before)
    return [y, k, v, scores]


@lowering("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(c: Context) -> list[Value]:
    """Causal attention of few keys for many queries, with caches of which each entry of the batch fills a
    part, and rotary embeddings."""
    names = {11: "head_sink", 12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight"}
    flags = ("smooth_softmax", "sliding_window_cache", "qk_output", "kv_cache_bit_width")
    _refuse(c, {**names, 16: "query_seqlens"}, flags)
    b, heads, groups = c.b, c.attr("num_heads", 0), c.attr("kv_num_heads", 0)
    if not groups or heads % groups:
        raise c.error(f"num_heads, {heads}, must be a multiple of kv_num_heads, {groups}")
    q, k, v = _grouped(c, heads, groups)
    past_key, past_value, lengths = c.optional(3), c.optional(4), c[5]
    new = q.shape[2]
    room = E.const(0) if past_key is None else past_key.shape[2]
    for name, x in (("key", k), ("value", v)):
        _expect(c, name, x, q.shape[0], groups, new, q.shape[3])
    for name, old in (("past_key", past_key), ("past_value", past_value)):
        if old is not None:
            _expect(c, name, old, q.shape[0], groups, room, q.shape[3])
    _expect(c, "seqlens_k", lengths, q.shape[0], *([1] if lengths.rank == 2 else []))
    (total,) = c.ints(6, "total_sequence_length", 1, room + new) or [new]
    first = E.eq(total, new)

    def before(n: Expr) -> Expr:
        """Entries of the cache in front of the new ones, 0 at the first step."""
        if past_key is None:
            return E.const(0)
        filled = E.cast(_length(lengths, n), E.INDEX) + 1 - new
        return E.select(first, 0, E.minimum(E.maximum(filled, 0), room))

    if c.attr("do_rotary", 0):
        q, k = _rotated(c, [q, k], first, before)

    def cache(past: Value | None, x: Value) -> Value:
        if past is None and not depends_on_data(total) and total is new:
            return x
        shape = [x.shape[0], x.shape[1], E.maximum(total, room), x.shape[3]]

        def entry(n: Expr, h: Expr, t: Expr, d: Expr) -> Expr:
            start = before(n)
            last = E.select(E.lt(t, start + new), E.load(x, (n, h, t - start, d)), E.const(0, x.dtype))
            return last if past is None else E.select(E.lt(t, start), E.load(past, (n, h, t, d)), last)

        return b.map(shape, entry)

    k, v = cache(past_key, k), cache(past_value, v)
    window = c.attr("local_window_size", -1)
    left, right = window - 1 if window > 0 else None, 0 if c.attr("causal", 1) else None
    filled = b.map([q.shape[0]], lambda n: E.cast(_length(lengths, n), E.INDEX) + 1)
    mask = Mask(c.optional(10), before, filled, left, right, k.shape[2])
    scale, softcap = c.attr("scale") or None, c.attr("softcap", 0.0) or None
    _, _, weights = scaled_attention(b, q, k, mask, scale, softcap, None)
    return [merge_heads(b, weighted_values(b, weights, v)), k, v]


def _length(lengths: Value, n: Expr) -> Expr:
    """Entry `n` of seqlens_k, [B] or [B, 1]."""
    return lengths[(n,) if lengths.rank == 1 else (n, 0)]


def _grouped(c: Context, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """Queries [B, heads, S, D], keys and values [B, groups, S, D], which may be packed in one tensor."""
    b, key, value = c.b, c.optional(1), c.optional(2)
    if key is not None and value is not None:
        return _split(c, c[0], heads), _split(c, key, groups), _split(c, value, groups)
    size = E.floordiv(c[0].shape[2], heads + 2 * groups)
    starts, counts = (0, heads, heads + groups), (heads, groups, groups)
    q, k, v = (
        _split(c, narrow(b, c[0], 2, size * start, size * count), count)
        for start, count in zip(starts, counts)
    )
    return q, k, v


def _rotated(c: Context, values: list[Value], first: Expr, before: Callable[[Expr], Expr]) -> list[Value]:
    """Rotary embeddings of [B, H, S, D], at the given positions or behind the filled part of the cache."""
    cosine, sine, given = c[7], c[8], c.optional(9)
    batch, _, length, _ = values[0].shape

    def position(n: Expr, s: Expr) -> Expr:
        if given is None:
            return before(n) + s
        at_once = E.cast(given[(0, 0)], E.INDEX) + s
        return E.select(first, at_once, E.cast(broadcast_load(given, (n, s)), E.INDEX))

    positions = c.b.map([batch, length], position)
    attributes = {
        "interleaved": c.attr("rotary_interleaved", 0),
        "rotary_embedding_dim": static(cosine.shape[1] * 2) or 0,
    }
    inner = Context(c.b, replace(c.node, attrs=attributes), c.given, c.opset, c.subgraph, c.types)
    return [rotate(inner, x, cosine, sine, positions) for x in values]


# --- weights of few bits --------------------------------------------------------------------------


def _field(byte: Expr, place: Operand, bits: int) -> Expr:
    """Number `place`, from the low end, of those of `bits` bits in a byte, as int32."""
    wide = E.cast(byte, "int32")
    if bits == 8:
        return wide
    shift = E.cast(E.wrap(place, E.INDEX) * bits, "int32")
    return E.binary("band", E.binary("shr", wide, shift), E.const((1 << bits) - 1, "int32"))


def _columns_last(c: Context, v: Value, shape: tuple[int, ...], name: str) -> Value:
    """`v`, of `shape` [N, ...] or flat, as [..., N], which vectors of columns read in order; a constant is
    stored so."""
    if static(elements(v.shape)) != math.prod(shape):
        raise c.error(f"{name} must have shape {shape}")
    if v.is_constant:
        return c.b.constant(np.ascontiguousarray(np.moveaxis(v.array.reshape(shape), 0, -1)))
    whole = v if v.rank == len(shape) else c.b.reshape(v, shape)
    return c.b.transpose(whole, [*range(1, len(shape)), 0])


@lowering("MatMulNBits", domain=DOMAIN)
def matmul_nbits(c: Context) -> Value:
    """A product with weights of 2, 4 or 8 bits that have a scale and a zero point per block of a column,
    plus a bias; the packed weights are what is stored."""
    _refuse(c, {4: "g_idx"}, ("weight_prepacked",))
    b, x, packed, scales, zeros, bias = c.b, c[0], c[1], c[2], c.optional(3), c.optional(5)
    bits, block, rows, columns = c.attr("bits", 4), c.attr("block_size"), c.attr("K"), c.attr("N")
    if bits not in (2, 4, 8):
        raise c.unsupported(f"weights of {bits} bits are not supported, but of 2, 4 or 8")
    blocks, each = -(-rows // block), 8 // bits
    bytes_ = block // each
    if static(x.shape[-1]) not in (None, rows):
        raise c.error(f"the last axis of A has {static(x.shape[-1])} entries, not K, {rows}")
    weights = _columns_last(c, packed, (columns, blocks, bytes_), "B")
    factors = _columns_last(c, scales, (columns, blocks), "scales")
    centres = None
    if zeros is not None:
        width = -(-blocks // each) if zeros.dtype == "uint8" else blocks
        centres = _columns_last(c, zeros, (columns, width), "zero_points")

    def zero(k: Expr, n: Expr) -> Expr:
        if centres is None:
            return E.const(1 << (bits - 1), "float32")
        if centres.dtype != "uint8":
            return E.cast(centres[(k, n)], "float32")
        byte = centres[(E.floordiv(k, each), n)]
        return E.cast(_field(byte, E.mod(k, each), bits), "float32")

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        (k, j), n = r, i[-1]
        sums: list[Expr] = []
        for place in range(each):
            entry = k * block + j * each + place
            a = E.cast(E.load(x, (*i[:-1], entry)), "float32")
            if rows % block:
                a = E.select(E.lt(entry, rows), a, E.const(0, "float32"))
            sums.append(a * (E.cast(_field(weights[(k, j, n)], place, bits), "float32") - zero(k, n)))
        total = sums[0]
        for term in sums[1:]:
            total = total + term
        return total * E.cast(factors[(k, n)], "float32")

    y = b.reduce("sum", [*x.shape[:-1], columns], [blocks, bytes_], body)
    if bias is not None:
        y = b.map(y.shape, lambda *i, y=y: y[i] + E.cast(bias[(i[-1],)], "float32"))
    return b.cast(y, x.dtype)


@lowering("GatherBlockQuantized", domain=DOMAIN)
def gather_block_quantized(c: Context) -> Value:
    """Entries of an axis of a table of few bits, with a scale and a zero point per block, as floats; 0 for
    an index that is out of range."""
    x, picks, scales, zeros = c[0], c[1], c[2], c.optional(3)
    if x.dtype not in ("uint8", "int4", "uint4"):
        raise c.unsupported(f"data of type {x.dtype} is not supported, but uint8, int4 and uint4")
    bits = c.attr("bits", 4) if x.dtype == "uint8" else 8
    if bits not in (2, 4, 8):
        raise c.unsupported(f"data of {bits} bits are not supported, but of 2, 4 or 8")
    block, each = c.attr("block_size", 128), 8 // bits
    by = c.normal(c.attr("gather_axis", 0), x.rank)
    blocked = c.normal(c.attr("quantize_axis", 1), x.rank)
    if each > 1 and (blocked != x.rank - 1 or by == blocked):
        raise c.unsupported("packed data must be quantized along the last axis and gathered along another")
    count = E.floordiv(x.shape[blocked] * each + (block - 1), block)
    _expect(c, "scales", scales, *(count if n == blocked else size for n, size in enumerate(x.shape)))
    if zeros is not None:
        packed = E.floordiv(count + (each - 1), each)
        _expect(c, "zero_points", zeros, *(packed if n == blocked else e for n, e in enumerate(x.shape)))
    default = 1 << (c.attr("bits", 4) - 1) if x.dtype == "uint8" else 0
    sizes = [*x.shape[:-1], x.shape[-1] * each]

    def unpacked(v: Value, at: list[Expr]) -> Expr:
        return _field(v[(*at[:-1], E.floordiv(at[-1], each))], E.mod(at[-1], each), bits)

    def body(*i: Expr) -> Expr:
        pick = E.cast(picks[i[by : by + picks.rank]], E.INDEX)
        at = [*i[:by], wrap_index(pick, sizes[by]), *i[by + picks.rank :]]
        places = [E.floordiv(e, block) if n == blocked else e for n, e in enumerate(at)]
        zero = E.const(default, "int32") if zeros is None else unpacked(zeros, places)
        value = E.cast(unpacked(x, at) - zero, scales.dtype) * scales[tuple(places)]
        inside = E.le(-sizes[by], pick) & E.lt(pick, sizes[by])
        return E.select(inside, value, E.const(0, scales.dtype))

    return c.b.map([*sizes[:by], *picks.shape, *sizes[by + 1 :]], body)


# --- embeddings -----------------------------------------------------------------------------------

Table = tuple[Value, Callable[[Expr], Expr]]
"""A tensor and what its elements stand for."""


def _embedded(
    c: Context, segments: Value | None, word: Table, position: Table, segment: Table | None, gamma: Table,
    beta: Table, positions: Value | None,
) -> list[Value]:  # fmt: skip
    """Layer normalization of the sum of the words', positions' and segments' embeddings, the number of
    ones in each row of the mask, and that sum."""
    b, ids, mask = c.b, c[0], c.optional(7)

    def row(table: Table, pick: Expr, e: Expr) -> Expr:
        values, meaning = table
        return meaning(values[(wrap_index(pick, values.shape[0]), e)])

    def body(n: Expr, s: Expr, e: Expr) -> Expr:
        place = (
            E.minimum(s, position[0].shape[0] - 1) if positions is None else broadcast_load(positions, (n, s))
        )
        total = row(word, ids[(n, s)], e) + row(position, place, e)
        if segments is None or segment is None:
            return total
        return total + row(segment, segments[(n, s)], e)

    width = word[0].shape[1]
    for name, kind in (("word", word), ("position", position), ("segment", segment)):
        if kind is not None:
            _expect(c, f"{name}_embedding", kind[0], kind[0].shape[0], width)
    _expect(c, "gamma", gamma[0], width)
    _expect(c, "beta", beta[0], width)
    for name, of in (("segment_ids", segments), ("mask", mask)):
        if of is not None:
            _expect(c, name, of, *ids.shape)
    summed = b.map([*ids.shape, word[0].shape[1]], body)
    normal, _, _ = normalized(b, widened(b, summed), [2], c.attr("epsilon", 1e-12))
    y = b.map(
        summed.shape,
        lambda n, s, e: (
            E.cast(normal[(n, s, e)], summed.dtype) * gamma[1](gamma[0][(e,)]) + beta[1](beta[0][(e,)])
        ),
    )
    if mask is None:
        return [y, b.map([ids.shape[0]], lambda n: E.const(0, "int32")), summed]
    return [y, b.reduce_axes("sum", mask, [1], False, lambda m: E.cast(E.eq(m, 1), "int32")), summed]


@lowering("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(c: Context) -> list[Value]:
    """Layer normalization of the sum of the words', positions' and segments' embeddings; also the number of
    ones in each row of the mask, and that sum."""

    def table(index: int) -> Table:
        return c[index], lambda e: e

    segments = c.optional(1)
    segment = table(4) if segments is not None else None
    return _embedded(c, segments, table(2), table(3), segment, table(5), table(6), c.optional(8))


@lowering("QEmbedLayerNormalization", domain=DOMAIN)
def qembed_layer_normalization(c: Context) -> list[Value]:
    """EmbedLayerNormalization of 8-bit tables, each with a scale and a zero point."""

    def table(index: int) -> Table:
        place = index - 2
        values, scale, zero = c[index], c[8 + place], c[13 + place]
        return values, lambda e: real(e, scalar(scale), scalar(zero))

    segments = c.optional(1)
    segment = table(4) if segments is not None else None
    return _embedded(c, segments, table(2), table(3), segment, table(5), table(6), None)[:2]


# --- biases ---------------------------------------------------------------------------------------


@lowering("BiasSplitGelu", domain=DOMAIN)
def bias_split_gelu(c: Context) -> Value:
    """The first half of the last axis of x + bias times the Gelu of the second."""
    total = c.b.elementwise(E.add, c[0], c[1])
    half = E.floordiv(total.shape[-1], 2)
    return c.b.map(
        [*total.shape[:-1], half],
        lambda *i: E.load(total, i) * gelu_exact(E.load(total, (*i[:-1], i[-1] + half))),
    )


@lowering("BiasAdd", domain=DOMAIN)
def bias_add(c: Context) -> Value:
    """x + bias + skip."""
    return c.b.elementwise(lambda x, bias, skip: x + bias + skip, c[0], c[1], c[2])


@lowering("GemmFastGelu", domain=DOMAIN)
def gemm_fast_gelu(c: Context) -> Value:
    """The tanh form of Gelu of a matrix product plus a bias."""
    y, bias = matmul_value(c.b, c[0], c[1]), c.optional(2)
    return c.b.elementwise(gelu_tanh, y if bias is None else c.b.elementwise(E.add, y, bias))
