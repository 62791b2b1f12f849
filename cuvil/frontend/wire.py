"""A first look at the bytes of a model, before the protobuf library builds millions of objects.

The wire format is walked without decoding any value: lengths are checked, nodes are counted, the
nesting of subgraphs is measured.  Damaged, truncated, doubled or padded files are told apart here,
because protobuf itself accepts many of them as an empty or merged message.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from cuvil.errors import ModelError
from cuvil.limits import MAX_NODES, MAX_SUBGRAPH_DEPTH

_LENGTH = 2
_SIZE_OF_FIXED = {1: 8, 5: 4}


def _number(message: type, field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)  # type: ignore[attr-defined]


_MODEL_FIELDS = frozenset(onnx.ModelProto.DESCRIPTOR.fields_by_number)
_MODEL_GRAPH = _number(onnx.ModelProto, "graph")
_MODEL_FUNCTIONS = _number(onnx.ModelProto, "functions")
_GRAPH_NODE = _number(onnx.GraphProto, "node")
_FUNCTION_NODE = _number(onnx.FunctionProto, "node")
_NODE_ATTRIBUTE = _number(onnx.NodeProto, "attribute")
_ATTRIBUTE_GRAPHS = frozenset((_number(onnx.AttributeProto, "g"), _number(onnx.AttributeProto, "graphs")))


def scan(data: bytes, where: str) -> int:
    """Check that `data` is laid out as exactly one ONNX model and return its number of nodes
    (those of subgraphs and local functions included).

    Raises:
        ModelError: the bytes are empty, truncated, followed by others or no protobuf message at
            all; there are more than `MAX_NODES` nodes; subgraphs nest deeper than
            `MAX_SUBGRAPH_DEPTH`.
    """
    if not data:
        raise ModelError("the file is empty, not an ONNX model", where)
    try:
        return _Scanner(data, where).model()
    except (_Damaged, IndexError):
        raise ModelError("the file is truncated, damaged or not an ONNX model", where) from None


class _Damaged(Exception):
    """The bytes break the rules of the wire format."""


class _Scanner:
    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.nodes = 0

    def varint(self, at: int) -> tuple[int, int]:
        """The variable-length integer at `at` and the position behind it."""
        value = shift = 0
        while True:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise _Damaged

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (field number, wire type, start, end of the payload) between `start` and `end`."""
        at = start
        while at < end:
            key, at = self.varint(at)
            number, wire = key >> 3, key & 7
            if number == 0:
                raise _Damaged
            first = at
            if wire == 0:
                _, at = self.varint(at)
            elif wire == _LENGTH:
                length, first = self.varint(at)
                at = first + length
            elif wire in _SIZE_OF_FIXED:
                at += _SIZE_OF_FIXED[wire]
            else:
                raise _Damaged
            if at > end:
                raise _Damaged
            yield number, wire, first, at

    def model(self) -> int:
        graphs = 0
        for number, wire, start, end in self.fields(0, len(self.data)):
            if number not in _MODEL_FIELDS:
                raise _Damaged
            if number == _MODEL_GRAPH:
                graphs += 1
                self._expect_message(wire)
                self.graph(start, end, _GRAPH_NODE, 0)
            elif number == _MODEL_FUNCTIONS:
                self._expect_message(wire)
                self.graph(start, end, _FUNCTION_NODE, 0)
        if graphs == 0:
            raise ModelError(
                "the file holds no graph; it is truncated, damaged or not an ONNX model", self.where
            )
        if graphs > 1:
            raise ModelError(
                f"the file holds {graphs} graphs one after the other, not one ONNX model", self.where
            )
        return self.nodes

    def graph(self, start: int, end: int, node_field: int, depth: int) -> None:
        if depth > MAX_SUBGRAPH_DEPTH:
            raise ModelError(f"subgraphs nest more than {MAX_SUBGRAPH_DEPTH} deep", self.where)
        for number, wire, first, last in self.fields(start, end):
            if number != node_field:
                continue
            self._expect_message(wire)
            self.nodes += 1
            if self.nodes > MAX_NODES:
                raise ModelError(f"the model has more than {MAX_NODES} nodes", self.where)
            for field, kind, low, high in self.fields(first, last):
                if field == _NODE_ATTRIBUTE and kind == _LENGTH:
                    for inner, inner_kind, begin, stop in self.fields(low, high):
                        if inner in _ATTRIBUTE_GRAPHS and inner_kind == _LENGTH:
                            self.graph(begin, stop, _GRAPH_NODE, depth + 1)

    def _expect_message(self, wire: int) -> None:
        if wire != _LENGTH:
            raise _Damaged
