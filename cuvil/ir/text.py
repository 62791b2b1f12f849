"""Strings as bytes: UTF-8, padded with NUL to the capacity of one element.

A string tensor of shape S is a `uint8` value of shape [*S, capacity]; numpy's ``S<capacity>`` has the
same memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvil.errors import ModelError


def encode(strings: Any, where: str, capacity: int | None = None) -> np.ndarray:
    """The bytes of an array of strings (str or UTF-8 bytes), `uint8` of its shape and [capacity] after that.

    Args:
        where: names the array in errors.
        capacity: bytes of one element; those of the longest, at least 1, where it is not given.

    Raises:
        ModelError: an element is no string, has a NUL in it, or is longer than `capacity`.
    """
    array = np.asarray(strings)
    if array.dtype.kind not in "OUS":
        raise ModelError(f"has type {array.dtype}, string is expected", where)
    items = [_bytes(s, where) for s in array.reshape(-1).tolist()]
    longest = max(map(len, items), default=0)
    width = max(longest, 1) if capacity is None else capacity
    if longest > width:
        raise ModelError(f"a string has {longest} bytes, at most {width} are allowed", where)
    data = np.array(items, f"S{width}") if items else np.zeros(0, f"S{width}")
    return data.view(np.uint8).reshape(*array.shape, width)


def _bytes(item: object, where: str) -> bytes:
    if not isinstance(item, (str, bytes)):
        raise ModelError(f"has an element of type {type(item).__name__}, string is expected", where)
    try:
        data = item.encode() if isinstance(item, str) else item
    except UnicodeEncodeError:
        raise ModelError("a string is not UTF-8", where) from None
    if b"\0" in data:
        raise ModelError("a string has a NUL character in it, which is not supported", where)
    return data


def decode(data: np.ndarray) -> np.ndarray:
    """The strings, as an object array, of `uint8` bytes [*S, capacity]; what is no UTF-8 becomes
    U+FFFD."""
    *shape, width = data.shape
    items = np.ascontiguousarray(data).reshape(-1, width)
    result = np.empty(len(items), object)
    result[:] = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in items]
    return result.reshape(shape)
