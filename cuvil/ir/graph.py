"""The graph: tensors and nodes as the model states them, before anything is lowered.

A `Graph` is what the front end makes of a file: operators at one opset, attributes as plain
Python values, constants as numpy arrays, every tensor with a type and, as far as it is known,
a shape.  Rewrites, quantization and the partition work on it; lowering reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np

Dim = Union[int, str]
"""A known size, or the name of a symbolic one."""

Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class TensorType:
    """Element type (an ONNX name in lower case: ``float32``, ``int8``, ``bool``, ``string``...)
    and shape; `shape` is None where even the rank is unknown.

    A sequence is ``seq(float32)``, without a shape since its items may differ; an optional is
    ``optional(float32)`` or ``optional(seq(float32))``.
    """

    dtype: str
    shape: Shape | None

    @property
    def is_tensor(self) -> bool:
        return "(" not in self.dtype

    @property
    def inner(self) -> TensorType:
        """The type of what an optional holds; of a sequence's items, whose shapes are unknown."""
        return TensorType(self.dtype[self.dtype.index("(") + 1 : -1], self.shape)


@dataclass
class Node:
    """One operator call.  An empty string among `inputs` or `outputs` is an omitted one."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The node as an error message names it."""
        return f"node '{self.name or (self.outputs[0] if self.outputs else '?')}' ({self.op})"

    def subgraphs(self) -> Iterator[Graph]:
        """The graphs among the attributes (If, Loop, Scan)."""
        return (value for value in self.attrs.values() if isinstance(value, Graph))

    def reads(self) -> list[str]:
        """The values that it reads, also from inside its subgraphs, each once."""
        return [name for name in dict.fromkeys([*self.inputs, *captured(self)]) if name]


@dataclass(frozen=True)
class Bundle:
    """A model's input or output that is a sequence or an optional; a graph has the tensors in it instead.

    Attributes:
        name: in the model.
        dtype: its type, ``seq(float32)``, ``optional(float32)`` or ``optional(seq(float32))``.
        items: the graph's inputs (outputs) that it consists of, in order; None for an absent optional.
        at: how many inputs (outputs) of the graph come before it.
    """

    name: str
    dtype: str
    items: tuple[str, ...] | None
    at: int


@dataclass
class Graph:
    """A model's graph: nodes in topological order, values named by strings.

    Attributes:
        inputs, outputs: names in the model's order; constants are not among the inputs.
        constants: initializers by name, in numpy with `ml_dtypes` for the small types.
        types: the type of every value that is known.
        opset: version of the default domain.
        input_bundles, output_bundles: those inputs and outputs of the model that are no tensors.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    types: dict[str, TensorType]
    opset: int
    input_bundles: tuple[Bundle, ...] = ()
    output_bundles: tuple[Bundle, ...] = ()

    def producers(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value, also from inside their subgraphs, in order."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.reads():
                readers.setdefault(name, []).append(node)
        return readers


def captured(node: Node) -> list[str]:
    """Names of outer values that the subgraphs of `node` read, in order of first use."""
    found: dict[str, None] = {}
    for graph in node.subgraphs():
        local = {*graph.inputs, *graph.constants}
        for inner in graph.nodes:
            for name in [*inner.inputs, *captured(inner)]:
                if name and name not in local:
                    found[name] = None
            local.update(inner.outputs)
        for name in graph.outputs:
            if name not in local:
                found[name] = None
    return list(found)


ONNX_TYPES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128",
    16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
    21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""Element types by their number in the standard (TensorProto.DataType)."""
