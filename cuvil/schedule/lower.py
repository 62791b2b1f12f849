"""From a graph to primitives: each node through its operator's one lowering."""

from __future__ import annotations

from collections.abc import Sequence

import cuvil.ops  # noqa: F401  (fills the registry)
from cuvil.errors import ModelError, UnsupportedError
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.containers import Entry, kind_of
from cuvil.ir.graph import Graph
from cuvil.ir.primitives import Program, Value
from cuvil.ops.registry import lower_node


def lower(graph: Graph) -> Program:
    """The program of primitives that computes `graph`.

    Raises:
        UnsupportedError: an operator, type or form without a lowering.
        ModelError: a node whose inputs do not fit it, an input of unknown rank, or an output that is no
            tensor (the front end makes its items outputs).
    """
    builder, found = _lowered(graph)
    for name, value in found.items():
        if not isinstance(value, Value):
            raise ModelError(f"is {kind_of(value)}, a program has tensors only", f"output '{name}'")
        builder.program.outputs.append(own_output(builder, builder.program, value, name))
    return builder.program


def outputs(graph: Graph) -> dict[str, Entry]:
    """What the outputs of `graph` are, by name; raises as `lower` does."""
    return _lowered(graph)[1]


def _lowered(graph: Graph) -> tuple[Builder, dict[str, Entry]]:
    """The builder of a program that computes `graph`, and the outputs by name."""
    program = Program(graph.name)
    builder = Builder(program)
    env: dict[str, Entry | None] = {"": None}
    for name in graph.inputs:
        kind = graph.types.get(name)
        if kind is None or kind.shape is None:
            raise ModelError("the input has no known rank; give its shape", f"input '{name}'")
        shape = []
        for size in kind.shape:
            if isinstance(size, str) and size not in program.symbols:
                program.symbols.append(size)
            shape.append(E.sym(size) if isinstance(size, str) else E.const(size))
        if kind.dtype == "string":
            env[name] = builder.text_input(name, shape)
        else:
            env[name] = builder.input(name, kind.dtype, shape)
    for name, array in graph.constants.items():
        env[name] = builder.constant(array, name)
    lower_nodes(graph, builder, env)
    found = {}
    for name in graph.outputs:
        value = env.get(name)
        if value is None:
            raise ModelError("no node computes it", f"output '{name}'")
        found[name] = value
    return builder, found


def lower_nodes(graph: Graph, builder: Builder, env: dict[str, Entry | None]) -> None:
    """Lower the nodes of `graph` in order, reading and extending `env`."""

    def subgraph(inner: Graph, inputs: Sequence[Entry] = ()) -> list[Entry]:
        """The outputs of a graph inside of a node, which sees the values around it."""
        inside = {**env, **dict(zip(inner.inputs, inputs))}
        inside.update((name, builder.constant(array, name)) for name, array in inner.constants.items())
        lower_nodes(inner, builder, inside)
        results = [inside.get(name) for name in inner.outputs]
        if any(value is None for value in results):
            raise ModelError("no node computes an output of the subgraph", f"graph '{inner.name}'")
        return [value for value in results if value is not None]

    for node in graph.nodes:
        inputs = [env[name] for name in node.inputs]
        before = len(builder.program.values)
        values = lower_node(builder, node, inputs, graph.opset, subgraph, graph.types)
        made = set(builder.program.values[before:])
        for name, value in zip(node.outputs, values):
            kind = graph.types.get(name)
            if not isinstance(value, Value) or kind is None:
                continue
            if kind.dtype == "string" and not value.text:
                raise UnsupportedError(f"operator {node.op} is not supported on strings", node.where)
            if value in made and kind.shape is not None and len(kind.shape) == value.rank - value.text:
                sizes = [n if isinstance(n, int) else None for n in kind.shape]
                builder.settle(value, sizes + [None] * value.text)
        for name, value in zip(node.outputs, values):
            if not name:
                continue
            if (
                isinstance(value, Value)
                and value in made
                and value.name.split(".")[0] == builder.origin[0]
                and not value.is_constant
            ):
                builder.rename(value, name)
            env[name] = value


def own_output(builder: Builder, program: Program, value: Value, name: str) -> Value:
    """A value that may be written to an output's buffer: a copy of inputs, constants and of what is
    another output already."""
    computed = value.definition is not None and not value.is_constant and value.scan is None
    if computed and value not in program.inputs and value not in program.outputs:
        builder.rename(value, name)
        return value
    builder.origin = (name,)
    copy = builder.map(value.shape, lambda *i: E.load(value, i), name)
    copy.text = value.text
    if value not in program.inputs:
        builder.rename(copy, name)
    return copy
