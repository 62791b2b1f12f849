"""Where 8-bit copies go, and the graphs that result."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from cuvil.frontend.onnx_writer import to_proto
from cuvil.ir.graph import Graph, Node, TensorType
from cuvil.partition.segments import SEGMENT_KEY, device_graph, segments, split_device_graph
from cuvil.quantize import qdq, scheme
from cuvil.quantize.quantizer import make_plan
from cuvil.quantize.ranges import Range
from cuvil.quantize.sensitivity import beside, relative_errors

RNG = np.random.default_rng(0)
SHAPE = ("N", 4, 8, 8)


def conv(name: str, x: str, attrs: dict[str, object] | None = None) -> Node:
    return Node("Conv", [x, f"{name}.w", f"{name}.b"], [name], {"pads": [1, 1, 1, 1], **(attrs or {})}, name)


def build(nodes: list[Node], outputs: list[str], **types: tuple[int | str, ...]) -> Graph:
    """A graph of float tensors [N, 4, 8, 8] (unless `types` says otherwise) from input ``x``; every Conv
    gets weights and a bias."""
    graph = Graph("net", ["x"], outputs, nodes, {}, {"x": TensorType("float32", SHAPE)}, 21)
    for node in nodes:
        for name in node.outputs:
            graph.types[name] = TensorType("float32", types.get(name, SHAPE))
        if node.op == "Conv":
            graph.constants[node.inputs[1]] = RNG.normal(0, 0.2, (4, 4, 3, 3)).astype(np.float32)
            graph.constants[node.inputs[2]] = RNG.normal(0, 0.2, 4).astype(np.float32)
    return graph


def block() -> Graph:
    """A pool, two convolutions with a residual sum, and a shortcut convolution."""
    return build(
        [
            conv("a", "x"),
            Node("Relu", ["a"], ["ar"]),
            Node("MaxPool", ["ar"], ["p"], {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4}),
            conv("b", "p"),
            conv("short", "p"),
            Node("Add", ["b", "short"], ["sum"]),
            Node("Relu", ["sum"], ["y"]),
            conv("c", "y"),
            Node("Sigmoid", ["y"], ["gate"]),
            Node("Mul", ["c", "gate"], ["out"]),
        ],
        ["out"],
    )


def everything(graph: Graph) -> set[str]:
    return {qdq.key(n) for n in graph.nodes}


def plan_of(graph: Graph, **ranges: Range) -> qdq.Plan:
    layers, _ = qdq.find_layers(graph, everything(graph))
    known = {name: ranges.get(name, Range(-1, 3)) for name in graph.types}
    plan, refused = make_plan(graph, layers, known, everything(graph), per_channel=True)
    assert not refused
    return plan


def run(graph: Graph, x: np.ndarray) -> list[np.ndarray]:
    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def measured(graph: Graph, x: np.ndarray) -> dict[str, Range]:
    """The range of every tensor for input `x`."""
    whole = qdq.copy_graph(graph, graph.types)
    values = {"x": x, **dict(zip(whole.outputs, run(whole, x)))}
    return {name: Range(float(a.min()), float(a.max())) for name, a in values.items()}


def test_copies_are_what_layers_read_and_what_pools_take() -> None:
    graph = block()
    layers, refused = qdq.find_layers(graph, everything(graph))
    assert list(layers) == ["a", "b", "short", "c"] and not refused
    shared = qdq.shared_tensors(graph, layers, everything(graph))
    assert set(shared) == {"x", "ar", "p", "y", "short"}, "of the layers in the sum, the second is stored"
    assert shared["ar"] == shared["p"] and len({shared[n] for n in ("x", "p", "y", "short")}) == 4


def test_quantized_graph_is_valid_and_close() -> None:
    graph = block()
    x = RNG.normal(0, 1, (2, 4, 8, 8)).astype(np.float32)
    (exact,) = run(graph, x)
    qdq.insert(graph, plan_of(graph, **measured(graph, x)), everything(graph))
    (close,) = run(graph, x)
    error = float(np.sqrt(np.square(close - exact).sum() / np.square(exact).sum()))
    assert 0 < error < 0.03
    ops = [n.op for n in graph.nodes]
    assert ops.count("QuantizeLinear") == 5 and ops.count("DequantizeLinear") == 5 + 2 * 4
    stored = {str(a.dtype) for n, a in graph.constants.items() if n.endswith(".q")}
    assert stored == {"int8", "int32"}
    assert not any(n.endswith((".w", ".b")) for n in graph.constants), "float weights are gone"


def test_readers_choose_between_the_copy_and_the_tensor() -> None:
    graph = block()
    qdq.insert(graph, plan_of(graph), everything(graph) - {"gate"})
    reads = {qdq.key(n): n.inputs[0] for n in graph.nodes}
    assert reads["c"] == "y.dq" and reads["gate"] == "y" and reads["p"] == "ar.dq" and reads["b"] == "p.dq"


def test_graph_results_stay_as_they_are() -> None:
    graph = build([conv("a", "x"), Node("Relu", ["a"], ["y"]), conv("b", "y")], ["y", "b"])
    qdq.insert(graph, plan_of(graph), everything(graph))
    assert graph.outputs == ["y", "b"]
    producers = graph.producers()
    assert producers["y"].op == "Relu" and producers["b"].inputs[0] == "y.dq"


def test_concat_shares_parameters_where_the_ranges_are_alike() -> None:
    def concatenation() -> Graph:
        nodes = [
            conv("a", "x"),
            conv("b", "x"),
            Node("Concat", ["a", "b"], ["ab"], {"axis": 2}),
            conv("c", "ab"),
        ]
        return build(nodes, ["c"], ab=("N", 4, 16, 8), c=("N", 4, 16, 8))

    alike = plan_of(concatenation(), a=Range(-2, 1), b=Range(-1, 2), ab=Range(-2, 2))
    assert alike.tensors["a"] == alike.tensors["b"] == alike.tensors["ab"] == scheme.activation(-2, 2)
    apart = plan_of(concatenation(), a=Range(-2, 2), b=Range(-0.1, 0.1), ab=Range(-2, 2))
    assert "a" not in apart.tensors and apart.tensors["ab"] == scheme.activation(-2, 2)
    assert apart.tensors["b"] == scheme.activation(-0.1, 0.1), "stored, with its own range"


def test_layers_that_are_refused_say_why() -> None:
    graph = block()
    graph.nodes += [
        Node("MatMul", ["x", "y"], ["xy"], {}, "product"),
        Node("ConvTranspose", ["x", "a.w"], ["up"], {}, "up"),
        Node("MatMul", ["x", "stack"], ["stacked"], {}, "stacked"),
        Node("MatMul", ["x", "half"], ["halved"], {}, "halved"),
    ]
    graph.constants |= {"stack": np.zeros((2, 8, 8), np.float32), "half": np.zeros((8, 8), np.float16)}
    _, refused = qdq.find_layers(graph, everything(graph))
    assert refused == {
        "xy": "one operand must be a constant and the other not",
        "up": "ConvTranspose has no integer form in ONNX",
        "stacked": "the weights have 3 axes, only 2 are quantized",
        "halved": "the weights have type float16, only float32 is quantized",
    }


def test_infinite_inputs_and_endless_sums_are_refused() -> None:
    graph = build([conv("a", "x"), conv("b", "a")], ["b"])
    graph.constants["b.w"] = np.ones((4, 4, 100, 100), np.float32)
    layers, _ = qdq.find_layers(graph, everything(graph))
    ranges = {"x": Range(0, 0, False), "a": Range(-1, 1)}
    plan, refused = make_plan(graph, layers, ranges, everything(graph), per_channel=True)
    assert not plan.layers
    assert refused == {
        "a": "its input 'x' has values that are not finite",
        "b": "a sum of its products may exceed 2**30",
    }


def test_nodes_of_other_devices_are_not_touched_and_edges_stay_float() -> None:
    whole = block()
    names = ["left" if qdq.key(n) in ("a", "ar", "p") else "right" for n in whole.nodes]
    plan = segments(whole, names)
    placed = {d: device_graph(whole, plan, d, "net") for d in ("left", "right")}
    mine = everything(placed["right"])
    layers, _ = qdq.find_layers(whole, mine)
    assert list(layers) == ["b", "short", "c"]
    quantized, _ = make_plan(whole, layers, {n: Range(-1, 3) for n in whole.types}, mine, per_channel=True)
    qdq.insert(placed["right"], quantized, mine)
    assert placed["right"].inputs == ["p"] and placed["right"].types["p"].dtype == "float32"
    (only,) = {n.metadata[SEGMENT_KEY] for n in placed["right"].nodes}
    ports = {int(only): {"inputs": ["p"], "outputs": ["out"]}}
    (piece,) = split_device_graph(placed["right"], ports).values()
    assert [n.op for n in piece.nodes].count("QuantizeLinear") == 3


def test_every_segment_of_a_device_has_its_own_copy() -> None:
    whole = build([conv("a", "x"), conv("b", "a"), conv("c", "b"), Node("Add", ["c", "a"], ["y"])], ["y"])
    plan = segments(whole, ["one", "one", "two", "one"])
    graph = device_graph(whole, plan, "one", "net")
    layers, _ = qdq.find_layers(graph, everything(graph))
    quantized, _ = make_plan(graph, layers, {n: Range(-1, 3) for n in whole.types}, everything(graph), True)
    qdq.insert(graph, quantized, everything(graph))
    copies = [n for n in graph.nodes if n.op == "QuantizeLinear" and n.inputs[0] == "a"]
    assert [c.metadata[SEGMENT_KEY] for c in copies] == ["0", "2"]
    assert [n.inputs for n in graph.nodes if n.op == "Add"] == [["c", "a.dq_1"]]
    assert copies[1].outputs == ["a.q_1"]


def test_layers_beside_their_integer_form() -> None:
    graph = block()
    x = RNG.normal(0, 1, (2, 4, 8, 8)).astype(np.float32)
    twin, names = beside(graph, plan_of(graph, **measured(graph, x)))
    assert list(names) == ["a", "b", "short", "c"] and len(graph.nodes) == 10
    results = dict(zip(twin.outputs, run(twin, x)))
    errors = relative_errors([(results, results)], names)
    assert all(0 < e < 0.02 for e in errors.values())
    np.testing.assert_allclose(results["out"], run(graph, x)[0], atol=1e-5)


def test_relative_error_adds_up_over_batches_and_skips_what_is_not_finite() -> None:
    exact = [{"t": np.array([3.0, np.inf])}, {"t": np.array([4.0])}, {"t": np.array([0.0])}]
    other = [{"u": np.array([3.0, 1.0])}, {"u": np.array([4.5])}, {"u": np.array([0.0])}]
    assert relative_errors(zip(exact, other), {"t": "u"}) == {"t": pytest.approx(0.1)}
    assert relative_errors([({"t": np.zeros(2)}, {"u": np.zeros(2)})], {"t": "u"}) == {"t": 0}
