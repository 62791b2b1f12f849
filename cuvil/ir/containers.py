"""Sequences and optionals: what is known of them at compile time, around the tensors that they hold.

The number of items of a sequence and the presence of an optional are facts of the program, not data: no code
is generated for the containers themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from cuvil.ir.primitives import Value


@dataclass(frozen=True, eq=False)
class SequenceValue:
    """A list of tensors of one element type, whose shapes may differ.

    Attributes:
        dtype: the element type, by its ONNX name (``string`` for text).
        items: in order.
    """

    dtype: str
    items: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class OptionalValue:
    """A tensor, a sequence, or nothing."""

    content: Value | SequenceValue | None


Entry = Union[Value, SequenceValue, OptionalValue]
"""What a name of a graph stands for while the graph is lowered."""


def element_type(value: Value) -> str:
    """The element type of a tensor, by its ONNX name."""
    return "string" if value.text else value.dtype


def kind_of(entry: Entry) -> str:
    """What an entry is, for messages."""
    if isinstance(entry, SequenceValue):
        return "a sequence"
    return "an optional" if isinstance(entry, OptionalValue) else "a tensor"
