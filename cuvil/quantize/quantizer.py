"""The quantize stage: calibrate, choose what becomes int8, put it into QDQ form, report what it did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.ir.graph import Graph
from cuvil.quantize import qdq, scheme
from cuvil.quantize.calibration import Samples, load
from cuvil.quantize.qdq import Layer, Plan
from cuvil.quantize.ranges import Range, observe
from cuvil.quantize.sensitivity import beside, measured, relative_errors

Array = npt.NDArray[Any]
Runner = Callable[[Mapping[str, Array]], dict[str, Array]]
Evaluator = Callable[[Graph], Runner]
"""Compiles a graph for this machine; the result runs it on feeds and gives its outputs by name."""

MAX_ERROR = 0.1
"""Relative error (rms of the difference over rms) beyond which a layer is left in float.

Errors of independent layers add up as squares: a layer at this bound has a signal-to-noise ratio of
20 dB, where a well-behaved layer in 8 bits has 30 to 45."""

MAX_SPREAD = 4.0
"""How much wider than its own a tensor's range may become for the sake of a Concat."""

ERROR_SAMPLES = 64
"""Samples on which errors are measured."""

BATCH_BYTES = 64 << 20
"""What the observed tensors of one batch may take."""


def quantize(
    graph: Graph,
    placed: Mapping[str, Graph],
    target: Mapping[str, Any],
    calibration: Path,
    run: Evaluator,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Put the graphs of all devices whose mode is ``int8`` into QDQ form, in place.

    Activations are uint8 with a scale and zero point per tensor, weights int8 per output channel,
    biases int32.  A layer whose own relative error exceeds `MAX_ERROR` stays in float.

    Args:
        graph: the whole graph.
        placed: each device's graph, of nodes of `graph`; tensors have the same names.
        target: the ``quantize`` slice of a target.
        calibration: the ``.npz`` file.
        run: compiles and runs graphs.

    Returns:
        The report: ``calibration`` (method, samples), ``tensors`` (scale, zero point and range of each
        8-bit activation), ``layers`` (of each integer layer the operator, the weights' scales, its
        relative error alone and after all layers before it), ``outputs`` (relative error of the
        model's results), ``float`` (why the other layers were left in float).

    Raises:
        CuvilError: unfit calibration data.
    """
    say = progress or (lambda text: None)
    options = target["calibration"]
    mine = {qdq.key(n) for d, g in placed.items() if target["modes"].get(d) == "int8" for n in g.nodes}
    layers, refused = qdq.find_layers(graph, mine)
    if not layers:
        return {"tensors": {}, "layers": {}, "outputs": {}, "float": refused}
    samples = load(calibration, graph)
    say(f"quantize: ranges for {len(layers)} layers from {samples.count} samples")
    tensors = list(qdq.shared_tensors(graph, layers, mine))
    reference = _with_inputs(run(qdq.copy_graph(graph, [*tensors, *layers])))
    size = batch_size(reference, samples)
    ranges = observe(
        lambda: map(reference, samples.batches(size)), tensors, options["method"], options["percentile"]
    )
    plan, unfit = make_plan(graph, layers, ranges, mine, options["per_channel"])
    refused |= unfit
    say(f"quantize: errors of {len(plan.layers)} layers")
    twin, names = beside(graph, plan)
    results = map(run(twin), samples.batches(size, ERROR_SAMPLES))
    alone = relative_errors(((r, r) for r in results), names)
    for name, error in alone.items():
        if error > MAX_ERROR:
            refused[name] = f"relative error {error:.3g} in int8, at most {MAX_ERROR} is accepted"
    layers = {name: layer for name, layer in layers.items() if name not in refused}
    plan, _ = make_plan(graph, layers, ranges, mine, options["per_channel"])
    valueless = {qdq.key(n) for n in graph.nodes if n.op in qdq.VALUELESS}
    readers = mine - refused.keys() - valueless
    whole = run(measured(graph, plan, readers))
    pairs = ((reference(feeds), whole(feeds)) for feeds in samples.batches(size, ERROR_SAMPLES))
    after = relative_errors(pairs, {name: name for name in dict.fromkeys([*plan.layers, *graph.outputs])})
    for device, part in placed.items():
        if target["modes"].get(device) == "int8":
            qdq.insert(part, plan, readers)
    return _report(graph, plan, ranges, refused, alone, after) | {
        "calibration": {"method": options["method"], "samples": samples.count}
    }


def _with_inputs(run: Runner) -> Runner:
    """A runner whose results hold the feeds too."""
    return lambda feeds: {**feeds, **run(feeds)}


def batch_size(run: Runner, samples: Samples) -> int:
    """How many samples a run may take, from what one of them gives."""
    outputs = run(next(samples.batches(1)))
    return max(1, min(32, BATCH_BYTES // max(sum(a.nbytes for a in outputs.values()), 1)))


def make_plan(
    graph: Graph,
    layers: Mapping[str, Layer],
    ranges: Mapping[str, Range],
    nodes: Collection[str],
    per_channel: bool,
) -> tuple[Plan, dict[str, str]]:
    """The plan for `layers`, and those left out of it, each with its reason.

    Args:
        ranges: of all tensors that `qdq.shared_tensors` names for these layers.
        nodes: the nodes (by `qdq.key`) on devices that compute in integers.
    """

    def may_join(names: list[str]) -> bool:
        widths = [ranges[n].high - ranges[n].low for n in names]
        return all(ranges[n].finite for n in names) and max(widths) <= MAX_SPREAD * min(widths)

    refused = {
        name: f"its input '{layer.data}' has values that are not finite"
        for name, layer in layers.items()
        if not ranges[layer.data].finite
    }
    kept = {name: layer for name, layer in layers.items() if name not in refused}
    shared = qdq.shared_tensors(graph, kept, nodes, may_join)
    joint: dict[str, Range] = {}
    for name, root in shared.items():
        joint[root] = joint[root] | ranges[name] if root in joint else ranges[name]
    plan = Plan(tensors={n: scheme.activation(joint[r].low, joint[r].high) for n, r in shared.items()})
    for name, layer in kept.items():
        bias = graph.constants[layer.bias] if layer.bias else None
        scale = plan.tensors[layer.data].scale
        weights = scheme.weights(graph.constants[layer.weights], layer.axis, bias, scale, per_channel)
        if scheme.fits(weights, layer.axis):
            plan.layers[name], plan.weights[name] = layer, weights
        else:
            refused[name] = "a sum of its products may exceed 2**30"
    return plan, refused


def _report(
    graph: Graph,
    plan: Plan,
    ranges: Mapping[str, Range],
    refused: Mapping[str, str],
    alone: Mapping[str, float],
    after: Mapping[str, float],
) -> dict[str, Any]:
    nodes = {qdq.key(node): node for node in graph.nodes}
    tensors = {
        name: {
            "scale": float(p.scale),
            "zero_point": p.zero_point,
            "low": ranges[name].low,
            "high": ranges[name].high,
        }
        for name, p in plan.tensors.items()
    }
    layers = {
        name: {
            "node": nodes[name].name,
            "op": layer.op,
            "weight_scales": [float(s) for s in np.atleast_1d(plan.weights[name].scale)],
            "error_alone": alone[name],
            "error": after[name],
        }
        for name, layer in plan.layers.items()
    }
    outputs = {name: after[name] for name in graph.outputs}
    return {"tensors": tensors, "layers": layers, "outputs": outputs, "float": dict(refused)}
