"""Attention and what goes with it in language models: rotary embeddings, caches, causal convolution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.graph import ONNX_TYPES
from cuvil.ir.primitives import Value, static
from cuvil.ops.contraction import summed
from cuvil.ops.movement import concat, wrap_index
from cuvil.ops.registry import Context, lowering

LOWEST = -math.inf


def split_heads(b: Builder, x: Value, heads: int) -> Value:
    """[B, S, heads * D] as [B, heads, S, D]."""
    size = E.floordiv(x.shape[2], heads)
    shape: list[Operand] = [x.shape[0], heads, x.shape[1], size]
    return b.map(shape, lambda n, h, s, d: x[(n, s, h * size + d)])


def merge_heads(b: Builder, x: Value) -> Value:
    """[B, H, S, D] as [B, S, H * D]."""
    size = x.shape[3]
    shape = [x.shape[0], x.shape[2], x.shape[1] * size]
    return b.map(shape, lambda n, s, e: x[(n, E.floordiv(e, size), s, E.mod(e, size))])


@dataclass(frozen=True)
class Mask:
    """Which keys a query may see, and what is added to its scores.

    Attributes:
        extra: the attention mask, bool or additive, broadcast from the right; its last axis may be
            shorter than the keys.
        offset: valid keys before the block of queries, by batch entry.
        valid: valid keys, one per batch entry.
        left, right: how far a query sees before and after its own position; None for any distance.
        keys: how many there are.
    """

    extra: Value | None
    offset: Callable[[Expr], Expr]
    valid: Value | None
    left: int | None
    right: int | None
    keys: Expr

    def apply(self, score: Expr, at: tuple[Expr, ...]) -> Expr:
        """The score at [batch, head, query, key], minus infinity where the key is not seen."""
        n, _, s, t = at
        seen: Expr = E.const(True, "bool")
        position = s + self.offset(n)
        if self.left is not None:
            seen = E.le(position, t + self.left)
        if self.right is not None:
            seen &= E.le(t, position + self.right)
        if self.valid is not None:
            seen &= E.lt(t, E.cast(self.valid[n], E.INDEX))
        if self.extra is not None:
            extra, inside = self._extra(self.extra, at)
            seen &= inside
            if extra.dtype == "bool":
                seen &= extra
            else:
                score = score + E.cast(extra, score.dtype)
        return E.select(seen, score, LOWEST)

    def _extra(self, mask: Value, at: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        """The mask's entry, and whether it has one for this key."""
        where: list[Expr] = []
        inside: Expr = E.const(True, "bool")
        for axis, (i, size) in enumerate(zip(at[4 - mask.rank :], mask.shape)):
            if static(size) == 1:
                where.append(E.const(0))
            elif axis < mask.rank - 1:
                where.append(i if E.upper_bound(i - size) < 0 else E.minimum(i, size - 1))
            else:
                inside = E.const(True, "bool") if size is self.keys else E.lt(i, size)
                where.append(i)
        return E.load(mask, where), inside


@lowering("Attention")
def attention(c: Context) -> list[Value | None]:
    """softmax(Q K^T scale + mask) V by heads, with key and value caches; a query that sees no key
    gives 0."""
    b, flat = c.b, c.x.rank == 3
    q, k, v = c[0], c[1], c[2]
    if flat:
        heads, groups = c.attr("q_num_heads"), c.attr("kv_num_heads")
        if not heads or not groups:
            raise c.error("inputs of rank 3 need q_num_heads and kv_num_heads")
        q, k, v = split_heads(b, q, heads), split_heads(b, k, groups), split_heads(b, v, groups)
    past_key, past_value, valid = c.optional(4), c.optional(5), c.optional(6)
    queries, cached = q.shape[2], past_key.shape[2] if past_key is not None else E.const(0)
    if past_key is not None and past_value is not None:
        k, v = concat(b, [past_key, k], 2), concat(b, [past_value, v], 2)

    def offset(n: Expr) -> Expr:
        return cached if valid is None or past_key is not None else E.cast(valid[n], E.INDEX) - queries

    left, right = (None if n < 0 else n for n in (c.attr(f"{s}_window_size", -1) for s in ("left", "right")))
    if c.attr("is_causal", 0):
        right = 0
    mask = Mask(c.optional(3), offset, valid, left, right, k.shape[2])
    scale = c.attr("scale") or None
    raw, scores, weights = scaled_attention(
        b, q, k, mask, scale, c.attr("softcap", 0.0) or None, ONNX_TYPES.get(c.attr("softmax_precision", 0))
    )
    y = weighted_values(b, weights, v)
    shown = [raw[0], raw[1], scores, weights][c.attr("qk_matmul_output_mode", 0)]
    return [merge_heads(b, y) if flat else y, k, v, b.cast(shown, q.dtype)]


def scaled_attention(
    b: Builder, q: Value, k: Value, mask: Mask, scale: float | None, softcap: float | None,
    precision: str | None,
) -> tuple[tuple[Value, Value], Value, Value]:  # fmt: skip
    """((scores, scores after the soft cap), scores after the mask, weights), all [B, H, S, T].

    Args:
        q: [B, H, S, D].
        k: [B, G, T, D] with G dividing H.
        mask: of the keys.
        scale: of the scores; the inverse root of D where it is None.
        softcap: c for c tanh(score / c).
        precision: the type that the weights are computed in.
    """
    shape = [q.shape[0], q.shape[1], q.shape[2], k.shape[2]]
    repeats = E.floordiv(q.shape[1], k.shape[1])

    def product(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        n, h, s, t = i
        return q[(n, h, s, r[0])], k[(n, E.floordiv(h, repeats), t, r[0])]

    dots = summed(b, shape, [q.shape[3]], product)
    size = E.cast(q.shape[3], q.dtype)
    factor = 1 / E.unary("sqrt", size) if scale is None else E.const(scale, q.dtype)
    raw = b.elementwise(lambda e: e * factor, dots)
    capped = raw
    if softcap is not None:
        capped = b.elementwise(lambda e: E.unary("tanh", e / softcap) * softcap, raw)
    scores = b.map(shape, lambda *i: mask.apply(capped[i], i))
    weights = _softmax(b, b.cast(scores, precision or q.dtype))
    return (raw, capped), scores, b.cast(weights, q.dtype)


def _softmax(b: Builder, x: Value) -> Value:
    """Softmax over the last axis, 0 where all of a row is minus infinity."""
    axes = [x.rank - 1]
    largest = b.reduce_axes("max", x, axes)
    safe = b.elementwise(lambda m: E.select(E.eq(m, LOWEST), E.const(0, x.dtype), m), largest)
    powers = b.elementwise(lambda v, m: E.unary("exp", v - m), x, safe)
    total = b.reduce_axes("sum", powers, axes)
    inverse = b.elementwise(lambda t: E.select(E.eq(t, 0), t, 1 / t), total)
    return b.elementwise(lambda v, t: v * t, powers, inverse)


def weighted_values(b: Builder, weights: Value, v: Value) -> Value:
    """Weights [B, H, S, T] times values [B, G, T, D], [B, H, S, D]."""
    shape = [*weights.shape[:3], v.shape[3]]
    repeats = E.floordiv(weights.shape[1], v.shape[1])

    def product(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        n, h, s, d = i
        return weights[(n, h, s, r[0])], v[(n, E.floordiv(h, repeats), r[0], d)]

    return summed(b, shape, [v.shape[2]], product)


@lowering("RotaryEmbedding")
def rotary_embedding(c: Context) -> Value:
    """Pairs of entries of each head rotated by an angle that grows with the position."""
    if c.x.rank == 3 and not c.attr("num_heads", 0):
        raise c.error("an input of rank 3 needs num_heads")
    return rotate(c, c[0], c[1], c[2], c.optional(3))


def rotate(c: Context, x: Value, cosine: Value, sine: Value, positions: Value | None) -> Value:
    """`x`, [B, S, H * D] or [B, H, S, D], rotated.

    Args:
        cosine, sine: [positions, R / 2], or without `positions` [B, S, R / 2], where R is the part of
            D that is rotated; D itself where the number of heads is not given.
        positions: [B, S], or [1] for the position of the first entry.
    """
    heads = c.attr("num_heads", 0)
    if x.rank == 4:
        whole = x.shape[-1]
    else:
        whole = E.floordiv(x.shape[2], heads) if heads else cosine.shape[-1] * 2
    part = E.wrap(c.attr("rotary_embedding_dim", 0), E.INDEX)
    rotated = whole if static(part) == 0 else part
    half = E.floordiv(rotated, 2)

    def angle(table: Value, n: Expr, s: Expr, pair: Expr) -> Expr:
        if positions is None:
            return table[(n, s, pair)]
        place = positions[(0,)] if positions.rank == 1 else positions[(n, s)]
        row = wrap_index(place, table.shape[0])
        return table[(row + s if positions.rank == 1 else row, pair)]

    def body(*i: Expr) -> Expr:
        n, s = i[0], i[1] if x.rank == 3 else i[2]
        d = i[-1] if x.rank == 4 else E.mod(i[2], whole)
        if c.attr("interleaved", 0):
            pair, second, distance = E.floordiv(d, 2), E.eq(E.mod(d, 2), 1), E.const(1)
        else:
            pair, second, distance = E.mod(d, half), E.le(half, d), half
        cos, sin = angle(cosine, n, s, pair), angle(sine, n, s, pair)

        def moved(by: Expr) -> Expr:
            return E.load(x, (*i[:-1], i[-1] + by))

        here = cos * moved(E.const(0))
        turned = E.select(second, sin * moved(-distance) + here, here - sin * moved(distance))
        return E.select(E.lt(d, rotated), turned, x[i])

    return c.b.map(x.shape, body)


@lowering("TensorScatter")
def tensor_scatter(c: Context) -> Value:
    """A cache with a run of new entries along an axis, from an index of its own per batch entry on."""
    cache, update, starts = c[0], c[1], c.optional(2)
    axis = c.axis(cache.rank, -2)
    length = cache.shape[axis]

    def at(*i: Expr) -> tuple[list[Expr], Expr]:
        start = E.const(0) if starts is None else E.cast(starts[i[0]], E.INDEX)
        place = start + i[axis]
        if c.attr("mode", "linear") == "circular":
            place = E.mod(place, length)
        elif starts is not None:
            place = E.minimum(E.maximum(place, 0), length - 1)
        return [place if k == axis else v for k, v in enumerate(i)], update[i]

    return c.b.scatter(cache, update.shape, at)


@lowering("CausalConvWithState")
def causal_convolution(c: Context) -> list[Value]:
    """A depthwise convolution over past and present positions, and the last positions for next time."""
    b, x, w, bias, past = c.b, c[0], c[1], c.optional(2), c.optional(3)
    taps = w.shape[2]
    before = past if past is not None else b.map([*x.shape[:2], taps - 1], lambda *i: E.const(0, x.dtype))
    whole = concat(b, [before, x], 2)

    def product(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        return whole[(i[0], i[1], i[2] + r[0])], w[(i[1], 0, r[0])]

    sums = summed(b, x.shape, [taps], product)

    def finish(*i: Expr) -> Expr:
        y = sums[i] if bias is None else sums[i] + bias[i[1]]
        return y * E.unary("sigmoid", y) if c.attr("activation", "none") in ("silu", "swish") else y

    state = b.map(before.shape, lambda n, o, t: whole[(n, o, x.shape[2] + t)])
    return [b.map(x.shape, finish), state]
