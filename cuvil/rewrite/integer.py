"""Integer arithmetic for quantized graphs: rules that the codegen stage applies to a QDQ graph.

DequantizeLinear of bytes, then Conv, MatMul or Gemm, becomes ConvInteger or MatMulInteger on the bytes
themselves, an int32 constant (bias, and what the input's zero point adds up to), a Cast and a Mul by the
product of the scales:

    sum_k sx (x_k - zx) sw w_k + b  ==  sx sw (sum_k x_k w_k + (round(b / (sx sw)) - zx sum_k w_k))

so that the sum runs over products of bytes and everything else is element-wise, which the schedule fuses
behind it: activation, residual sum, the next QuantizeLinear.  Reordered constants and reciprocals round
differently from the float form in the last bit; a quantized result may differ by one step where it lies
half-way between two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.ir.graph import Graph, Node
from cuvil.rewrite import requantize, rewriter
from cuvil.rewrite.rewriter import Quantized, Rewriter, Rule, Sequence

Array = npt.NDArray[Any]

MAX_INT32 = 2**31 - 1


def _bytes(x: Quantized | None) -> bool:
    return x is not None and x.dtype in ("int8", "uint8")


def _centred(values: Array, zero: Array) -> Array | None:
    """Byte weights with their zero point taken off, as int8; None where they do not fit."""
    centred = values.astype(np.int64) - zero
    fits = centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127
    return centred.astype(np.int8) if fits else None


def _spread(values: Array, axis: int, rank: int) -> Array:
    """Entries per slice of `axis`, shaped to broadcast against an array of that rank."""
    return values.reshape([-1 if k == axis else 1 for k in range(rank)]) if values.ndim else values


@dataclass(frozen=True)
class Operands:
    """A contraction's operands in integers.

    Attributes:
        x: the activation, with one scale.
        w: weights, bytes; output channels on `axis`.
        w_zero: their zero point, of rank 0 or [channels]; None where it is 0.
        axis: 0 for convolutions.
        scale: product of the scales, float32, of rank 0 or [channels].
        sums: of the weights less their zero point over everything but `axis`, int64, [channels].
        peak: bound of the absolute sum of products.
    """

    x: Quantized
    w: Array
    w_zero: Array | None
    axis: int
    scale: Array
    sums: Array
    peak: int


def _operands(r: Rewriter, data: str, weights: str, axis: int) -> Operands | None:
    """The operands where `data` is dequantized bytes, and `weights` dequantized constant bytes with a
    scale for all or for each output channel (on `axis`)."""
    x, q = r.dequantized(data), r.dequantized(weights)
    if x is None or q is None or not _bytes(x) or not _bytes(q) or x.scale.ndim:
        return None
    values = r.graph.constants.get(q.name)
    if values is None:
        return None
    if q.scale.ndim and (q.axis % values.ndim != axis or len(q.scale) != values.shape[axis]):
        return None
    zero = _spread(q.zero, axis, values.ndim)
    centred, w = values.astype(np.int64) - zero, _centred(values, zero)
    others = tuple(k for k in range(values.ndim) if k != axis)
    scale = (x.scale.astype(np.float64) * q.scale).astype(np.float32)
    peak = (255 if x.dtype == "uint8" else 128) * int(np.abs(centred).sum(axis=others).max(initial=0))
    if peak > MAX_INT32:
        return None
    w_zero = q.zero.astype(values.dtype) if w is None else None
    return Operands(x, values if w is None else w, w_zero, axis, scale, centred.sum(axis=others), peak)


def _bias(r: Rewriter, name: str, scale: Array) -> tuple[Array | None, Array | str | None]:
    """A bias as (whole units of `scale`, the float to be added instead)."""
    if not name:
        return None, None
    q = r.dequantized(name)
    if q is None or q.dtype != "int32" or q.name not in r.graph.constants:
        return None, r.graph.constants.get(name, name)
    values = r.graph.constants[q.name].astype(np.int64) - q.zero
    if np.allclose(q.scale, scale, rtol=1e-5, atol=0):
        return values, None
    return None, (values * q.scale).astype(np.float32)


def integer_conv(r: Rewriter, node: Node) -> bool:
    """Conv of dequantized bytes -> ConvInteger; borders are filled with the input's zero point."""
    found = _operands(r, node.inputs[0], node.inputs[1], 0)
    if found is None:
        return False
    x, rank = found.x, found.w.ndim
    whole, rest = _bias(r, node.inputs[2] if len(node.inputs) > 2 else "", found.scale)
    zero = int(x.zero)
    offset = np.zeros(len(found.sums), np.int64) if whole is None else whole
    attrs = dict(node.attrs)
    pads = attrs.get("pads") or [0] * (2 * (rank - 2))
    by_size = attrs.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    if attrs.get("auto_pad") == "VALID":
        pads = [0] * len(pads)
    if not by_size:
        offset = offset - zero * found.sums
    if found.peak + int(np.abs(offset).max(initial=0)) > MAX_INT32:
        return False
    column = (-1, *[1] * (rank - 2))

    def build(s: Sequence) -> None:
        data, weights = x.name, s.constant("weights", found.w)
        inputs = [data, weights]
        if zero and by_size:
            inputs.append(s.constant("zero", np.array(zero, x.dtype)))
        elif zero and any(pads):
            amounts = np.array([0, 0, *pads[: rank - 2], 0, 0, *pads[rank - 2 :]], np.int64)
            padding = [data, s.constant("pads", amounts), s.constant("zero", np.array(zero, x.dtype))]
            inputs[0] = s.add("Pad", padding, x.dtype, shape=_padded(r, data, amounts))
            attrs["pads"] = [0] * len(pads)
            attrs.pop("auto_pad", None)
        if found.w_zero is not None:
            inputs += ["", s.constant("weights_zero", found.w_zero)][len(inputs) - 2 :]
        total = s.add("ConvInteger", inputs, "int32", attrs)
        if offset.any():
            units = s.constant("offset", offset.astype(np.int32).reshape(column))
            total = s.add("Add", [total, units], "int32")
        scale = found.scale.reshape(column) if found.scale.ndim else found.scale
        if isinstance(rest, str):
            shape, sizes = s.constant("column", np.array(column, np.int64)), (len(offset), *column[1:])
            s.scaled(total, scale, s.add("Reshape", [rest, shape], "float32", shape=sizes))
        else:
            s.scaled(total, scale, None if rest is None else rest.reshape(column))

    r.replace(node, build)
    return True


def _padded(r: Rewriter, name: str, amounts: Array) -> tuple[int | str, ...] | None:
    shape = r.graph.types[name].shape
    if shape is None:
        return None
    total = amounts.reshape(2, -1).sum(axis=0)
    return tuple(n + int(p) if isinstance(n, int) else n for n, p in zip(shape, total))


def integer_matmul(r: Rewriter, node: Node) -> bool:
    """MatMul or Gemm of dequantized bytes and constant weights -> MatMulInteger."""
    gemm = node.op == "Gemm"
    weights = r.dequantized(node.inputs[1])
    array = r.graph.constants.get(weights.name) if weights is not None else None
    if array is None or array.ndim != 2:
        return False
    found = _operands(r, node.inputs[0], node.inputs[1], 0 if gemm and node.attrs.get("transB") else 1)
    if found is None:
        return False
    x, w = found.x, found.w if found.axis == 1 else np.ascontiguousarray(found.w.T)
    scale = found.scale * np.float32(node.attrs.get("alpha", 1.0)) if gemm else found.scale
    beta = node.attrs.get("beta", 1.0)
    whole, rest = _bias(r, node.inputs[2] if gemm and len(node.inputs) > 2 else "", scale)
    if whole is not None and (beta != 1 or whole.shape not in ((), (1,), found.sums.shape)):
        rest, whole = whole * scale.astype(np.float64), None
    if isinstance(rest, str) and beta != 1:
        return False
    if rest is not None and not isinstance(rest, str):
        rest = np.asarray(rest * beta, np.float32)
    offset = (0 if whole is None else whole) - int(x.zero) * found.sums
    if found.peak + int(np.abs(offset).max(initial=0)) > MAX_INT32:
        return False

    def build(s: Sequence) -> None:
        data = x.name
        if gemm and node.attrs.get("transA"):
            shape = r.graph.types[data].shape
            data = s.add("Transpose", [data], x.dtype, {"perm": [1, 0]}, shape=shape and shape[::-1])
        inputs = [data, s.constant("weights", w)]
        if found.w_zero is not None:
            inputs += ["", s.constant("weights_zero", found.w_zero)]
        total = s.add("MatMulInteger", inputs, "int32")
        if offset.any():
            total = s.add("Add", [total, s.constant("offset", offset.astype(np.int32))], "int32")
        s.scaled(total, scale, rest)

    r.replace(node, build)
    return True


def integer_product(r: Rewriter, node: Node) -> bool:
    """MatMul of two dequantized activations -> MatMulInteger; what the zero points add up to is taken
    off behind the sum: ``sum (a - za) (b - zb) == sum a b - za sum b - zb sum a + K za zb``."""
    a, b = r.dequantized(node.inputs[0]), r.dequantized(node.inputs[1])
    if a is None or b is None or not _bytes(a) or not _bytes(b) or a.scale.ndim or b.scale.ndim:
        return False
    left, right = (r.graph.types[n].shape for n in node.inputs)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return False
    inner = next((n for n in (left[-1], right[-2]) if isinstance(n, int)), None)
    if inner is None or inner * 255 * 255 > MAX_INT32:
        return False
    za, zb = int(a.zero), int(b.zero)

    def build(s: Sequence) -> None:
        total = s.add("MatMulInteger", [a.name, b.name], "int32")
        for name, factor, axis, shape in ((b.name, za, -2, right), (a.name, zb, -1, left)):
            if factor:
                kept = tuple(1 if k == axis + len(shape) else n for k, n in enumerate(shape))
                wide = s.add("Cast", [name], "int32", {"to": 6}, shape=shape)
                axes = s.constant("axes", np.array([axis], np.int64))
                part = s.add("ReduceSum", [wide, axes], "int32", {"keepdims": 1}, shape=kept)
                minus = s.constant("zero", np.array(-factor, np.int32))
                part = s.add("Mul", [part, minus], "int32", shape=kept)
                total = s.add("Add", [total, part], "int32")
        if za * zb:
            total = s.add("Add", [total, s.constant("offset", np.array(inner * za * zb, np.int32))], "int32")
        s.scaled(total, (a.scale * b.scale).astype(np.float32), None)

    r.replace(node, build)
    return True


def zero_point_out(r: Rewriter, node: Node) -> bool:
    """MatMulInteger with constant weights: the zero points leave the sum."""
    b, b_zero = r.array(node, 1), r.array(node, 3)
    a_zero = node.inputs[2] if len(node.inputs) > 2 else ""
    known = r.graph.constants.get(a_zero)
    kind = r.graph.types.get(a_zero)
    if b is None or b.ndim != 2 or (len(node.inputs) > 3 and node.inputs[3] and b_zero is None):
        return False
    if (not a_zero and b_zero is None) or (a_zero and (kind is None or kind.shape not in ((), (1,)))):
        return False
    w = _centred(b, np.zeros(1, np.int64) if b_zero is None else b_zero.astype(np.int64))
    if w is None or 255 * int(np.abs(w.astype(np.int64)).sum(axis=0).max(initial=0)) > MAX_INT32:
        return False
    sums = -w.astype(np.int64).sum(axis=0)

    def build(s: Sequence) -> None:
        inputs = [node.inputs[0], s.constant("weights", w)]
        if not a_zero or (known is not None and not known.any()):
            s.add("MatMulInteger", inputs, "int32", output=node.outputs[0])
            return
        total = s.add("MatMulInteger", inputs, "int32")
        if known is not None:
            offset = s.constant("offset", (sums * int(known.reshape(-1)[0])).astype(np.int32))
        else:
            zero, per_column = s.add("Cast", [a_zero], "int32", {"to": 6}, shape=()), sums.astype(np.int32)
            offset = s.add("Mul", [zero, s.constant("sums", per_column)], "int32", shape=sums.shape)
        s.add("Add", [total, offset], "int32", output=node.outputs[0])

    r.replace(node, build)
    return True


RULES = (
    *requantize.BEFORE,
    Rule("integer-conv", ("Conv",), integer_conv),
    Rule("integer-matmul", ("MatMul", "Gemm"), integer_matmul),
    Rule("integer-product", ("MatMul",), integer_product),
    Rule("zero-point-out", ("MatMulInteger",), zero_point_out),
    *requantize.AFTER,
)


def rewrite(graph: Graph) -> dict[str, int]:
    """Put a QDQ graph into integer arithmetic, in place; returns how often each rule fired."""
    return rewriter.rewrite(graph, RULES)
