"""Values that are made of sizes: what ``Shape -> Gather -> Concat -> Reshape`` computes, known
size by known size, even where the batch has no number yet.

A value is a numpy array of objects: integers, names of symbolic sizes, and None for an unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cuvil.frontend.scope import Scope
from cuvil.ir.graph import Node, Shape

MAX_ELEMENTS = 64
"""Longest vector that is followed; a shape has at most `MAX_RANK` elements."""

Known = dict[str, np.ndarray]
"""The followed values by name."""


def follow(node: Node, scope: Scope, known: Known) -> np.ndarray | None:
    """The value of a node's first result as far as it is made of sizes; None where it is not."""
    if node.domain or not node.outputs or not node.inputs:
        return None
    if node.op == "Shape":
        shape = scope.shape(node.inputs[0])
        return None if shape is None else _objects(shape[_part(node)])
    if node.op == "Size":
        shape = scope.shape(node.inputs[0])
        if shape is None or any(isinstance(d, str) for d in shape):
            return None
        return np.array(math.prod(d for d in shape if isinstance(d, int)), object)
    function = _FOLLOW.get(node.op)
    if function is None:
        return None
    values = [followed(name, scope, known) if name else None for name in node.inputs]
    if values[0] is None or all(value is None for value in values):
        return None
    result = function(node, values)
    return result if result is not None and result.size <= MAX_ELEMENTS else None


def as_constant(value: np.ndarray) -> np.ndarray | None:
    """A followed value as int64, or None where a size is symbolic or unknown."""
    if all(isinstance(item, int) and -(1 << 63) <= item < 1 << 63 for item in value.flat):
        return value.astype(np.int64)
    return None


def reshape_target(value: np.ndarray, shape: Shape | None) -> list[int] | None:
    """The sizes that a Reshape of an input of `shape` to the followed `value` can be given.

    A symbolic size becomes 0 where the input has the same size at that place, and one other
    becomes -1; None where that does not suffice.
    """
    if value.ndim != 1 or any(item == 0 for item in value.flat):
        return None
    sizes: list[int] = []
    for axis, item in enumerate(value.flat):
        if isinstance(item, int):
            sizes.append(item)
        elif item is not None and shape is not None and axis < len(shape) and shape[axis] == item:
            sizes.append(0)
        else:
            sizes.append(-1)
    return sizes if sizes.count(-1) <= 1 else None


def _part(node: Node) -> slice:
    return slice(node.attrs.get("start", 0), node.attrs.get("end"))


def _objects(items: Any) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def followed(name: str, scope: Scope, known: Known) -> np.ndarray | None:
    """The followed value called `name`; small integer constants count."""
    if name in known:
        return known[name]
    value = scope.constant(name)
    if (
        value is None
        or value.ndim > 1
        or value.size > MAX_ELEMENTS
        or value.dtype not in (np.int64, np.int32)
    ):
        return None
    array = np.empty(value.shape, object)
    array[...] = value.tolist()
    return array


def _gather(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
    data, index = values[0], values[1]
    places = None if index is None else as_constant(index)
    if (
        data is None
        or places is None
        or data.ndim != 1
        or places.ndim > 1
        or node.attrs.get("axis", 0) not in (0, -1)
    ):
        return None
    if places.size and not (-len(data) <= places.min() and places.max() < len(data)):
        return None
    taken = np.empty(places.shape, object)
    taken[...] = data[places]
    return taken


def _slice(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
    data, rest = values[0], values[1:]
    if (
        data is None
        or data.ndim != 1
        or (len(rest) > 2 and rest[2] is not None and list(rest[2]) not in ([0], [-1]))
    ):
        return None
    numbers = [None if v is None else as_constant(v) for v in (*rest[:2], *rest[3:4])]
    if numbers[0] is None or numbers[1] is None or any(n is not None and n.size != 1 for n in numbers):
        return None
    if len(rest) > 3 and node.inputs[4] and numbers[2] is None:
        return None
    start, end, step = [int(n.reshape(-1)[0]) if n is not None else 1 for n in [*numbers, None][:3]]
    if step == 0:
        return None
    return data[_clamped(start, len(data), step) : _end(end, len(data), step) : step]


def _clamped(start: int, length: int, step: int) -> int:
    start = start + length if start < 0 else start
    return min(max(start, 0), length if step > 0 else length - 1)


def _end(end: int, length: int, step: int) -> int | None:
    end = end + length if end < 0 else end
    return None if step < 0 and end < 0 else min(max(end, 0), length)


def _concat(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
    parts = [value for value in values if value is not None and value.ndim == 1]
    return np.concatenate(parts) if len(parts) == len(values) else None


def _to_vector(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
    data = values[0]
    return data.reshape(1) if data is not None and data.ndim == 0 else None


def _to_scalar(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
    data = values[0]
    return data.reshape(()) if data is not None and data.shape == (1,) else None


def _reshape(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
    data, sizes = values[0], values[1]
    target = None if sizes is None else as_constant(sizes)
    if (
        data is None
        or target is None
        or target.size > 1
        or (target.size == 1 and target[0] not in (-1, data.size))
    ):
        return None
    return data.reshape(tuple(target)) if target.size or data.size == 1 else None


def _cast(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
    int32, int64 = 6, 7
    return values[0] if node.attrs.get("to") in (int32, int64) else None


def _arithmetic(
    function: Callable[[Any, Any], Any],
) -> Callable[[Node, list[np.ndarray | None]], np.ndarray | None]:
    def apply(node: Node, values: list[np.ndarray | None]) -> np.ndarray | None:
        left, right = values
        if left is None or right is None:
            return None
        try:
            left, right = np.broadcast_arrays(left, right)
        except ValueError:
            return None
        result = np.empty(left.shape, object)
        for index in np.ndindex(left.shape):
            result[index] = function(left[index], right[index])
        return result

    return apply


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return left if right == 0 else right if left == 0 else None


def _subtract(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return left if right == 0 else 0 if left is not None and left == right else None


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return left if right == 1 else right if left == 1 else None


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and right != 0:
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return left if right == 1 else None


_FOLLOW: dict[str, Callable[[Node, list[np.ndarray | None]], np.ndarray | None]] = {
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _to_vector,
    "Squeeze": _to_scalar,
    "Reshape": _reshape,
    "Cast": _cast,
    "Identity": lambda node, values: values[0],
    "Add": _arithmetic(_add),
    "Sub": _arithmetic(_subtract),
    "Mul": _arithmetic(_multiply),
    "Div": _arithmetic(_divide),
}
