"""The index of a graph being rewritten follows every change that is made through it."""

from __future__ import annotations

from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.rewrite.rewriter import Rewriter, Sequence


def chain() -> Graph:
    nodes = [
        Node("Relu", ["x"], ["a"]),
        Node("Add", ["a", "a"], ["b"]),
        Node("Mul", ["a", "b"], ["c"]),
        Node("Neg", ["c"], ["y"]),
    ]
    types = {name: TensorType("float32", (4,)) for name in "xabcy"}
    return Graph("chain", ["x"], ["y"], nodes, {}, types, 17)


def is_current(r: Rewriter) -> bool:
    def plain(readers: dict[str, list[Node]]) -> dict[str, set[int]]:
        return {name: {id(n) for n in nodes} for name, nodes in readers.items() if nodes}

    return r.producers == r.graph.producers() and plain(r.readers) == plain(r.graph.consumers())


def test_index_follows_a_replacement() -> None:
    r = Rewriter(chain())
    assert is_current(r) and not r.is_private("a")

    def build(s: Sequence) -> None:
        s.add("Exp", ["a"], "float32", output="b")

    r.replace(r.graph.nodes[1], build)
    assert is_current(r) and r.producers["b"].op == "Exp"


def test_index_follows_changes_and_removals() -> None:
    r = Rewriter(chain())
    add, mul = r.graph.nodes[1:3]
    with r.changing(mul):
        mul.inputs[1] = "a"
    assert is_current(r) and r.readers["b"] == []
    r.remove(add)
    assert is_current(r) and "b" not in r.producers and r.is_private("a")
    neg = r.graph.nodes[-1]
    with r.changing(mul):
        mul.outputs = list(neg.outputs)
    r.remove(neg)
    assert is_current(r) and r.producers["y"] is mul


def test_a_name_from_a_subgraph_is_read_once() -> None:
    inner = Graph("inner", [], ["z"], [Node("Add", ["x", "k"], ["z"])], {}, {}, 17)
    node = Node("If", ["c", "x", ""], ["y"], {"then_branch": inner})
    assert node.reads() == ["c", "x", "k"]
