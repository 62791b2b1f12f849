"""Symbolic sizes that onnx's shape inference loses: results whose size is an input's size.

onnx gives up on ``Reshape([N, 4, 8] -> [-1, 32])`` although -1 can only be N, on Expand and
ConstantOfShape to computed sizes, and on a Slice that takes the whole of a symbolic axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from cuvil.frontend.scope import Scope
from cuvil.frontend.shape_values import Known, followed
from cuvil.ir.graph import Dim, Node, Shape
from cuvil.limits import MAX_TENSOR_ELEMENTS

INT32_MAX = (1 << 31) - 1
"""What exporters write as the end of a Slice that goes to the end."""


def deduce(node: Node, scope: Scope, known: Known) -> Shape | None:
    """The shape of the node's first result with every size that can be said; the sizes inference
    found stay where there is nothing better."""
    function = None if node.domain else _DEDUCE.get(node.op)
    found = scope.shape(node.outputs[0]) if function else None
    if function is None or found is None or all(isinstance(d, int) for d in found):
        return None
    better = function(node, scope, known, found)
    if better is None or len(better) != len(found):
        return None
    return tuple(old if isinstance(new, int) and new < 0 else new for new, old in zip(better, found))


def _reshape(node: Node, scope: Scope, known: Known, found: Shape) -> Shape | None:
    shape, target = scope.shape(node.inputs[0]), followed(node.inputs[1], scope, known)
    if shape is None or target is None or node.attrs.get("allowzero") or target.shape != (len(found),):
        return None
    dims: list[Dim | None] = []
    for axis, item in enumerate(target):
        if item == 0 and axis < len(shape):
            item = shape[axis]
        dims.append(None if item is None or item == -1 else item)
    if dims.count(None) == 1:
        dims[dims.index(None)] = _quotient(shape, [d for d in dims if d is not None])
    return tuple(old if new is None else new for new, old in zip(dims, found))


def _quotient(shape: Shape, dims: list[Dim]) -> Dim | None:
    """The one size that makes `dims` hold as many elements as `shape`, where it is a number or a
    symbol; symbols cancel."""
    left = [d for d in shape if isinstance(d, str)]
    for dim in dims:
        if isinstance(dim, str):
            if dim not in left:
                return None
            left.remove(dim)
    whole = math.prod(d for d in shape if isinstance(d, int))
    part = math.prod(d for d in dims if isinstance(d, int))
    if part == 0 or whole % part:
        return None
    if not left:
        return whole // part
    return left[0] if len(left) == 1 and whole == part else None


def _expand(node: Node, scope: Scope, known: Known, found: Shape) -> Shape | None:
    shape, target = scope.shape(node.inputs[0]), followed(node.inputs[1], scope, known)
    rank = len(found)
    if shape is None or target is None or target.ndim != 1 or max(len(shape), len(target)) != rank:
        return None
    own = [*[1] * (rank - len(shape)), *shape]
    asked = [*[1] * (rank - len(target)), *target]
    return tuple(
        b if a == 1 and b is not None else a if b in (1, a) else c for a, b, c in zip(own, asked, found)
    )


def _constant_of_shape(node: Node, scope: Scope, known: Known, found: Shape) -> Shape | None:
    target = followed(node.inputs[0], scope, known)
    return (
        None
        if target is None or target.shape != (len(found),)
        else tuple(c if d is None else d for d, c in zip(target, found))
    )


def _slice(node: Node, scope: Scope, known: Known, found: Shape) -> Shape | None:
    shape = scope.shape(node.inputs[0])
    names = [*node.inputs, "", ""][1:5]
    values = [scope.constant(name) for name in names]
    if (
        not shape
        or values[0] is None
        or values[1] is None
        or any(n and v is None for n, v in zip(names, values))
    ):
        return None
    starts, ends = values[0].tolist(), values[1].tolist()
    axes = list(range(len(starts))) if values[2] is None else [int(a) % len(shape) for a in values[2]]
    steps = [1] * len(starts) if values[3] is None else values[3].tolist()
    dims = list(found)
    for axis in set(range(len(shape))) - set(axes):
        dims[axis] = shape[axis]
    largest = MAX_TENSOR_ELEMENTS // max(1, math.prod(d for d in shape if isinstance(d, int)))
    to_the_end = min(largest, INT32_MAX)
    for axis, start, end, step in zip(axes, starts, ends, steps):
        if isinstance(shape[axis], str) and start == 0 and step == 1 and end >= to_the_end:
            dims[axis] = shape[axis]
    return tuple(dims)


def _tile(node: Node, scope: Scope, known: Known, found: Shape) -> Shape | None:
    shape, repeats = scope.shape(node.inputs[0]), followed(node.inputs[1], scope, known)
    if shape is None or repeats is None or not repeats.shape == (len(shape),) == (len(found),):
        return None
    return tuple(
        a if b == 1 else b if a == 1 and b is not None else c for a, b, c in zip(shape, repeats, found)
    )


def _resize(node: Node, scope: Scope, known: Known, found: Shape) -> Shape | None:
    """An axis with scale 1 keeps its size."""
    shape = scope.shape(node.inputs[0])
    scales = scope.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if shape is None or scales is None or "axes" in node.attrs or not scales.size == len(shape) == len(found):
        return None
    return tuple(a if np.float32(s) == 1 else c for a, s, c in zip(shape, scales.reshape(-1), found))


def _window(node: Node, scope: Scope, known: Known, found: Shape) -> Shape | None:
    """A window that moves by one and is padded by its extent less one keeps the size."""
    shape = scope.shape(node.inputs[0])
    kernel: Sequence[Dim] | None = node.attrs.get("kernel_shape")
    if kernel is None and len(node.inputs) > 1:
        kernel = (scope.shape(node.inputs[1]) or ())[2:]
    if shape is None or not kernel or not len(kernel) + 2 == len(shape) == len(found):
        return None
    rank = len(kernel)
    strides, dilations = (node.attrs.get(key, [1] * rank) for key in ("strides", "dilations"))
    pads = node.attrs.get("pads", [0] * (2 * rank))
    if not 2 * len(strides) == 2 * len(dilations) == len(pads) == 2 * rank:
        return None
    auto = node.attrs.get("auto_pad", "NOTSET")
    dims = list(found)
    for i, size in enumerate(kernel):
        missing = None if isinstance(size, str) else (size - 1) * dilations[i] - pads[i] - pads[i + rank]
        if auto == "VALID":
            missing = None if isinstance(size, str) else (size - 1) * dilations[i]
        if strides[i] == 1 and (auto.startswith("SAME") or missing == 0):
            dims[i + 2] = shape[i + 2]
    return tuple(dims)


_DEDUCE: dict[str, Callable[[Node, Scope, Known, Shape], Shape | None]] = {
    **dict.fromkeys(("Conv", "MaxPool", "AveragePool", "LpPool"), _window),
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Slice": _slice,
    "Tile": _tile,
    "Resize": _resize,
}
