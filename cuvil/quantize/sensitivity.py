"""How much quantization changes what layers compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.frontend.scope import Namer
from cuvil.ir.graph import Graph, Node
from cuvil.quantize.qdq import Plan, copy_graph, insert, key

Array = npt.NDArray[Any]


def relative_errors(
    pairs: Iterable[tuple[Mapping[str, Array], Mapping[str, Array]]], names: Mapping[str, str]
) -> dict[str, float]:
    """``sqrt(sum (y - x)**2 / sum x**2)`` over all finite elements, for each x of `names` and its y.

    Args:
        pairs: the arrays of the x and those of the y, batch by batch.
        names: the y's name by the x's.
    """
    noise, signal = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for exact, other in pairs:
        for x, y in names.items():
            wanted, got = exact[x].astype(np.float64), other[y].astype(np.float64)
            finite = np.isfinite(wanted) & np.isfinite(got)
            noise[x] += float(np.square(got - wanted, where=finite, out=np.zeros_like(wanted)).sum())
            signal[x] += float(np.square(wanted, where=finite, out=np.zeros_like(wanted)).sum())
    return {x: float(np.sqrt(noise[x] / signal[x])) if signal[x] else float(noise[x] > 0) for x in names}


def beside(graph: Graph, plan: Plan) -> tuple[Graph, dict[str, str]]:
    """`graph` with every layer of `plan` computed a second time, in integers, from the float graph's own
    values; returns it and the second result's name by the first's.  Both are outputs.

    The difference is what quantizing this one layer does.
    """
    twin = copy_graph(graph)
    fresh = Namer.of_values(graph)
    names: dict[str, str] = {}
    nodes: list[Node] = []
    for node in twin.nodes:
        nodes.append(node)
        output = key(node)
        if output in plan.layers:
            name = names[output] = fresh(f"{output}.int8")
            nodes.append(replace(node, inputs=list(node.inputs), outputs=[name], name=name))
            twin.types[names[output]] = twin.types[output]
    twin.nodes = nodes
    layers = {names[output]: replace(layer, output=names[output]) for output, layer in plan.layers.items()}
    weights = {names[output]: w for output, w in plan.weights.items()}
    insert(twin, Plan(layers, weights, plan.tensors), set(layers))
    twin.outputs = list(dict.fromkeys([*graph.outputs, *names, *names.values()]))
    return twin, names


def measured(graph: Graph, plan: Plan, readers: Collection[str]) -> Graph:
    """A copy of `graph` in QDQ form whose layers' results are outputs."""
    whole = copy_graph(graph, plan.layers)
    insert(whole, plan, readers)
    return whole
