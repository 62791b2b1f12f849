"""Control flow: If."""

from __future__ import annotations

from cuvil.ir import expr as E
from cuvil.ir.graph import Graph
from cuvil.ir.primitives import Value
from cuvil.ir.printer import show_shape
from cuvil.ops.registry import Context, lowering


@lowering("If")
def if_node(c: Context) -> list[Value]:
    """One branch where the condition is known; else both are computed and each element is selected,
    for which their results must have the same shapes."""
    condition = c.x[(0,) * c.x.rank]
    branches: tuple[Graph, Graph] = c.attr("then_branch"), c.attr("else_branch")
    if condition.is_const:
        return c.subgraph(branches[0 if condition.attr else 1])
    yes, no = (c.subgraph(b) for b in branches)
    return [_select(c, number, a, b) for number, (a, b) in enumerate(zip(yes, no))]


def _select(c: Context, number: int, yes: Value, no: Value) -> Value:
    if yes is no:
        return yes
    if yes.shape != no.shape:
        shapes = f"{show_shape(yes.shape)} and {show_shape(no.shape)}"
        raise c.unsupported(
            f"the branches give output {number} the shapes {shapes}; where they differ the condition"
            " must be known at compile time"
        )
    return c.b.map(yes.shape, lambda *i: E.select(c.x[(0,) * c.x.rank], yes[i], no[i]))
