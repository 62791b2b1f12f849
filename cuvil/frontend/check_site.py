"""What a check of one node works with: the node in its scope, and the table checks register in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from cuvil.errors import ModelError
from cuvil.frontend.scope import Scope
from cuvil.ir.graph import Node, Shape


class Site:
    """A node in its scope: what a check may ask, by position of the input."""

    def __init__(self, node: Node, scope: Scope) -> None:
        self.node = node
        self.scope = scope

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def shape(self, index: int) -> Shape | None:
        """The shape of an input, None where it is omitted or unknown."""
        return self.scope.shape(self.node.inputs[index]) if self.has(index) else None

    def dtype(self, index: int) -> str | None:
        """The element type of an input."""
        known = self.scope.type(self.node.inputs[index]) if self.has(index) else None
        return known.dtype if known else None

    def size(self, index: int, axis: int) -> int | None:
        """One known size of an input."""
        shape = self.shape(index)
        dim = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        return dim if isinstance(dim, int) else None

    def count(self, index: int) -> int | None:
        """The number of elements of an input, where it is known."""
        sizes = self.shape(index)
        known = [d for d in sizes or () if isinstance(d, int)]
        return math.prod(known) if sizes is not None and len(known) == len(sizes) else None

    def constant(self, index: int) -> np.ndarray | None:
        """The value of a constant input."""
        return self.scope.constant(self.node.inputs[index]) if self.has(index) else None

    def integers(self, index: int) -> list[int] | None:
        """The value of a constant input of integers as a flat list."""
        value = self.constant(index)
        return None if value is None or value.dtype.kind not in "iu" else [int(v) for v in value.reshape(-1)]

    def attr(self, key: str, default: Any = None) -> Any:
        """An attribute or its default."""
        return self.node.attrs.get(key, default)

    def fail(self, problem: str) -> NoReturn:
        """Refuse the node."""
        raise ModelError(problem, self.node.where)

    def axis(self, axis: int, rank: int, what: str = "axis") -> int:
        """`axis` counted from the front, refused where it is out of range."""
        if not -rank <= axis < rank:
            self.fail(f"{what} {axis} is out of range for rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        """`axes` counted from the front, refused where one is out of range or comes twice."""
        found = [self.axis(axis, rank) for axis in axes]
        if len(set(found)) != len(found):
            self.fail(f"axes {list(axes)} name one axis twice")
        return found

    def same(self, what: str, found: int | None, expected: int | None) -> None:
        """Refuse two known sizes that differ."""
        if found is not None and expected is not None and found != expected:
            self.fail(f"{what} is {found}, it must be {expected}")


Check = Callable[[Site], None]

CHECKS: dict[str, Check] = {}
"""The checks by operator."""


def check(*ops: str) -> Callable[[Check], Check]:
    """Register a function as the check of `ops`."""

    def register(function: Check) -> Check:
        CHECKS.update(dict.fromkeys(ops, function))
        return function

    return register
