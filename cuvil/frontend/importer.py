"""The import stage: an ONNX file becomes a checked graph at one opset."""

from __future__ import annotations

import os

from cuvil.frontend.aliases import remove_aliases
from cuvil.frontend.binding import Shapes, Values
from cuvil.frontend.bundles import flatten_outputs
from cuvil.frontend.checks import check_graph
from cuvil.frontend.fold import fold_constants, remove_dead_code
from cuvil.frontend.functions import expand_functions
from cuvil.frontend.infer import check_strictly, infer_types
from cuvil.frontend.onnx_reader import read_model
from cuvil.frontend.opset import upgrade
from cuvil.frontend.scalars import make_scalars
from cuvil.ir.graph import Graph

FIRST_FOLDABLE_OPSET = 11
"""From here on the operators that compute sizes have their arguments where folding looks for them,
so that the upgrade rules find as many shapes known as possible."""

MAX_ROUNDS = 16
"""Rounds of folding and inference; each makes at least one more value known."""


def import_model(
    path: str | os.PathLike[str], shapes: Shapes | None = None, values: Values | None = None
) -> Graph:
    """Read, upgrade, check and simplify the model in `path`.

    Importing what `write_model` wrote of the result gives the same graph again.

    Args:
        path: the ``.onnx`` file.
        shapes: sizes or names for the dimensions of inputs, as for `read_model`.
        values: of inputs that become constants, as for `read_model`.

    Raises:
        ModelError: the file or the model is not valid, `shapes` or `values` do not fit it.
        UnsupportedError: the model uses a form that has no equal in the canonical opset.
    """
    graph = read_model(path, shapes, values)
    canonicalize(graph)
    return graph


def canonicalize(graph: Graph) -> None:
    """Upgrade, expand, check and simplify a graph from `read_model`, in place.

    Raises:
        ModelError: a node breaks a rule of its operator.
    """
    if graph.opset >= FIRST_FOLDABLE_OPSET:
        _simplify(graph)
    upgrade(graph)
    _settle(graph)
    if expand_functions(graph):
        _settle(graph)
    check_graph(graph)
    if flatten_outputs(graph):
        remove_dead_code(graph)
    check_strictly(graph)


def _settle(graph: Graph) -> None:
    infer_types(graph)
    if make_scalars(graph):
        infer_types(graph)
    _simplify(graph)


def _simplify(graph: Graph) -> None:
    for _ in range(MAX_ROUNDS):
        changed = fold_constants(graph)
        remove_aliases(graph)
        remove_dead_code(graph)
        infer_types(graph)
        if not changed:
            break
