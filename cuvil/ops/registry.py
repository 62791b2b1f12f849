"""The registry of operators and the context that a lowering works in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

import numpy as np

from cuvil import limits
from cuvil.errors import ModelError, UnsupportedError
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.containers import Entry, OptionalValue, SequenceValue, kind_of
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.ir.primitives import Value, depends_on_data, static
from cuvil.ops.left_out import LEFT_OUT

Lowered = Union[Entry, Sequence[Union[Entry, None]]]
"""What a lowering returns: the result, or one per output."""


class Subgraph(Protocol):
    """Lowers a graph inside of the node being lowered, with `inputs` as the values of its inputs, and
    returns the values of its outputs."""

    def __call__(self, graph: Graph, inputs: Sequence[Entry] = (), /) -> list[Entry]: ...


@dataclass(frozen=True)
class Operator:
    """One registered operator."""

    name: str
    domain: str
    lower: Callable[[Context], Lowered]
    doc: str


OPERATORS: dict[tuple[str, str], Operator] = {}

ON_STRINGS: dict[tuple[str, str], Operator] = {}
"""What lowers an operator where an input is a string tensor."""


def lowering(*names: str, domain: str = "", strings: bool = False) -> Callable[[Any], Any]:
    """Register a function as the lowering of the operators `names`; with `strings` of those that have a
    string tensor among their inputs.

    It takes a `Context` and returns the output value, or one per output.
    """

    def register(function: Callable[[Context], Lowered]) -> Any:
        for name in names:
            key, operator = (domain, name), Operator(name, domain, function, function.__doc__ or "")
            if strings:
                assert key not in ON_STRINGS, name
                ON_STRINGS[key] = operator
                OPERATORS.setdefault(key, operator)
            else:
                assert OPERATORS.get(key) is ON_STRINGS.get(key), name
                OPERATORS[key] = operator
        return function

    return register


class Context:
    """What a lowering sees: the node, its input values, and the builder.

    Attributes:
        b: makes values.
        node: the graph node, at the canonical opset.
        given: its inputs; None for an omitted one.
        opset: version of the default domain.
        subgraph: lowers a graph among the attributes.
        types: what is known of the node's results, by name.
    """

    def __init__(
        self,
        b: Builder,
        node: Node,
        given: Sequence[Entry | None],
        opset: int,
        subgraph: Subgraph,
        types: Mapping[str, TensorType],
    ) -> None:
        self.b, self.node, self.opset, self.subgraph, self.types = b, node, opset, subgraph, types
        self.given = list(given)

    @property
    def inputs(self) -> list[Value | None]:
        """The inputs of an operator on tensors; None for an omitted one."""
        return [self.optional(index) for index in range(len(self.given))]

    @property
    def x(self) -> Value:
        """The first input."""
        return self[0]

    def __getitem__(self, index: int) -> Value:
        """Input `index`, which must be present."""
        value = self.optional(index)
        if value is None:
            raise self.error(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Input `index`, or None where it is omitted."""
        entry = self.entry(index)
        return None if entry is None else self.tensor(entry, f"input {index}")

    def entry(self, index: int) -> Entry | None:
        """Input `index`, whether tensor, sequence or optional; None where it is omitted."""
        return self.given[index] if index < len(self.given) else None

    def sequence(self, index: int) -> SequenceValue:
        """Input `index`, which must be a sequence."""
        entry = self.entry(index)
        if not isinstance(entry, SequenceValue):
            raise self.error(f"input {index} is {kind_of(entry) if entry else 'missing'}, not a sequence")
        return entry

    def tensor(self, entry: Entry, what: str) -> Value:
        """`entry`, which must be a tensor."""
        if not isinstance(entry, Value):
            raise self.error(f"{what} is {kind_of(entry)}, not a tensor")
        return entry

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return self.node.attrs.get(name, default)

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        """An axis attribute, non-negative, checked against `rank`."""
        return self.normal(self.attr(name, default), rank)

    def normal(self, axis: int, rank: int) -> int:
        """`axis` made non-negative."""
        if not -rank <= axis < max(rank, 1):
            raise self.error(f"axis {axis} is outside [-{rank}, {rank})")
        return axis + rank if axis < 0 else axis

    def ints(
        self, index: int, name: str, low: int = -limits.MAX_SYMBOL, high: Operand = limits.MAX_SYMBOL
    ) -> list[Expr] | None:
        """The entries of an integer input as index expressions, or None where the input is omitted.

        Entries that depend on the data are numbers of the run (`Builder.derived`), which ends with an
        error code where one is outside [low, high].

        Raises:
            UnsupportedError: the number of entries is not known.
        """
        entries = self.entries(index, name)
        return None if entries is None else [self.b.derived(e, high, low) for e in entries]

    def entries(self, index: int, name: str) -> list[Expr] | None:
        """Like `ints`, but what depends on the data is the expression that loads it, without limits."""
        value = self.optional(index)
        if value is None:
            return None
        count = static(value.shape[0]) if value.rank else 1
        if count is None:
            raise self.unsupported(f"input '{name}' has a length that is not known at compile time")
        return [E.cast(value[(i,) if value.rank else ()], E.INDEX) for i in range(count)]

    def static_ints(self, index: int, name: str) -> list[int] | None:
        """Like `entries`, but plain numbers.

        Raises:
            UnsupportedError: an entry depends on the data or on a symbolic size.
        """
        entries = self.entries(index, name)
        if entries is None:
            return None
        numbers = [static(e) for e in entries]
        if any(depends_on_data(e) for e in entries):
            raise self.unsupported(f"input '{name}' depends on the data; it must be known at compile time")
        if any(n is None for n in numbers):
            raise self.unsupported(
                f"input '{name}' must be a number at compile time; bind its symbols with shapes"
            )
        return [n for n in numbers if n is not None]

    def declared(self, axis: int, size: Expr, output: int = 0) -> Expr:
        """The size of a result's axis: what the model declares where else the data would decide (the run
        then ends with an error code where they decide otherwise)."""
        asks = depends_on_data(size) and self.b.guard is None
        kind = self.types.get(self.node.outputs[output]) if asks else None
        known = kind.shape[axis] if kind is not None and kind.shape is not None else None
        return self.b.derived(size, known, known) if isinstance(known, int) else size

    def constant(self, index: int) -> np.ndarray | None:
        """The data of an input that is a constant, or None."""
        value = self.optional(index)
        return value.array if value is not None and value.is_constant else None

    def error(self, message: str) -> ModelError:
        return ModelError(message, self.node.where)

    def unsupported(self, message: str) -> UnsupportedError:
        return UnsupportedError(message, self.node.where)


def lower_node(
    b: Builder,
    node: Node,
    inputs: Sequence[Entry | None],
    opset: int,
    subgraph: Subgraph,
    types: Mapping[str, TensorType],
) -> list[Entry | None]:
    """The output values of one node; `subgraph` lowers the graphs inside of it, `types` says what is known
    of its results.

    Raises:
        UnsupportedError: there is no lowering for the operator.
        ModelError: the node is malformed.
    """
    strings = any(isinstance(v, Value) and v.text for v in inputs)
    operator = (ON_STRINGS if strings else OPERATORS).get((node.domain, node.op))
    if operator is None:
        domain = f" of domain '{node.domain}'" if node.domain else ""
        kind = " on strings" if strings else ""
        reason = LEFT_OUT.get((node.domain, node.op))
        why = f": {reason}" if reason else ""
        raise UnsupportedError(f"operator {node.op}{domain} is not supported{kind}{why}", node.where)
    b.origin = (node.name or node.outputs[0],)
    try:
        made = operator.lower(Context(b, node, inputs, opset, subgraph, types))
    except ModelError as error:
        if error.where:
            raise
        raise type(error)(error.message, node.where) from error
    return [made] if isinstance(made, (Value, SequenceValue, OptionalValue)) else list(made)
