"""The upgrade rules: what changed in ONNX's operators from opset 1 to 21, one function a change.

Changes that only admit more types, or that add an attribute whose default is the old behaviour,
need no rule.  Source of every form: the operator history (``Changelog.md``) of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil.errors import ModelError, UnsupportedError
from cuvil.frontend.scope import Namer, Scope
from cuvil.frontend.tensors import dtype_code, numpy_dtype, type_of
from cuvil.ir.graph import Graph, Node, Shape, TensorType


@dataclass(frozen=True)
class Context:
    """What a rule may ask of the graph around its node, and what it may add to it.

    Attributes:
        scope: the graph of the node.
        fresh: makes names for new values.
        read: every name that a node or a graph output reads.
        version: the opset whose form the rule makes.
    """

    scope: Scope
    fresh: Namer
    read: frozenset[str]
    version: int

    def shape(self, name: str) -> Shape | None:
        """The shape of a value, as far as it is known."""
        return self.scope.shape(name)

    def rank(self, node: Node, name: str) -> int:
        """The rank of an input of `node`.

        Raises:
            UnsupportedError: it is not known.
        """
        shape = self.scope.shape(name)
        if shape is None:
            raise self.unsupported(node, f"the rank of '{name}' is unknown, which it needs")
        return len(shape)

    def dtype(self, node: Node, name: str) -> np.dtype[Any]:
        """The element type of an input of `node`.

        Raises:
            UnsupportedError: it is not known.
        """
        known = self.scope.type(name)
        if known is None:
            raise self.unsupported(node, f"the type of '{name}' is unknown, which it needs")
        return numpy_dtype(known.dtype)

    def value(self, node: Node, index: int) -> np.ndarray:
        """The constant input `index` of `node`.

        Raises:
            UnsupportedError: it is not a constant.
        """
        value = self.scope.constant(node.inputs[index])
        if value is None:
            raise self.unsupported(node, f"input {index} must be a constant")
        return value

    def constant(self, node: Node, role: str, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant to the graph and return its name."""
        name = self.fresh(f"{node.outputs[0]}_{role}")
        self.scope.graph.constants[name] = np.array(value, dtype)
        self.scope.graph.types[name] = type_of(self.scope.graph.constants[name])
        return name

    def between(self, node: Node, role: str) -> str:
        """A new name for a value between the nodes that replace `node`."""
        return self.fresh(f"{node.outputs[0]}_{role}")

    def unsupported(self, node: Node, problem: str) -> UnsupportedError:
        """The error for a form that has no equal in the new opset."""
        return UnsupportedError(
            f"the form before opset {self.version} cannot be upgraded: {problem}", node.where
        )


Rule = Callable[[Node, Context], "list[Node] | None"]
"""Changes a node in place and returns None, or returns the nodes that take its place."""

RULES: dict[tuple[str, int], Rule] = {}
"""The rules by operator and the version whose form they make."""


def rule(version: int, *ops: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of `ops` at `version`."""

    def register(function: Rule) -> Rule:
        RULES.update({(op, version): function for op in ops})
        return function

    return register


def _input_from_attribute(node: Node, context: Context, key: str, index: int, dtype: Any = np.int64) -> None:
    """Turn attribute `key` into the constant input `index`; nothing where it is absent."""
    if key in node.attrs:
        value = node.attrs.pop(key)
        node.inputs += [""] * (index + 1 - len(node.inputs))
        node.inputs[index] = context.constant(node, key, value, dtype)


# Opset 2 to 6


@rule(2, "Pad")
def pad_paddings(node: Node, context: Context) -> None:
    node.attrs["pads"] = node.attrs.pop("paddings")


@rule(2, "LpPool", "GlobalLpPool")
def pool_norm_to_int(node: Node, context: Context) -> None:
    p = node.attrs.get("p", 2.0)
    if not float(p).is_integer():
        raise context.unsupported(node, f"p = {p} is not an integer")
    node.attrs["p"] = int(p)
    if node.op == "LpPool" and "kernel_shape" not in node.attrs:
        raise context.unsupported(node, "kernel_shape is missing")


@rule(2, "Split")
def split_input_to_attribute(node: Node, context: Context) -> None:
    if len(node.inputs) > 1 and node.inputs[1]:
        node.attrs["split"] = [int(size) for size in context.value(node, 1)]
    del node.inputs[1:]
    node.attrs.setdefault("axis", 0)


@rule(3, "GRU")
def gru_direction(node: Node, context: Context) -> None:
    if node.attrs.get("direction") == "foward":
        del node.attrs["direction"]


@rule(4, "Concat")
def concat_axis(node: Node, context: Context) -> None:
    node.attrs.setdefault("axis", 1)


@rule(5, "Reshape")
def reshape_shape_to_input(node: Node, context: Context) -> None:
    node.attrs.pop("consumed_inputs", None)
    node.attrs.setdefault("shape", [])
    _input_from_attribute(node, context, "shape", 1)


@rule(
    6, "Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor",
    "HardSigmoid", "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu",
    "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh",
)  # fmt: skip
def drop_consumed_inputs(node: Node, context: Context) -> None:
    node.attrs.pop("consumed_inputs", None)


@rule(6, "Selu")
def selu_defaults(node: Node, context: Context) -> None:
    node.attrs.pop("consumed_inputs", None)
    node.attrs.setdefault("alpha", float(np.float32(1.6732)))
    node.attrs.setdefault("gamma", float(np.float32(1.0507)))


@rule(6, "Cast")
def cast_type_by_number(node: Node, context: Context) -> None:
    names = {"float": "float32", "double": "float64"}
    name = str(node.attrs["to"]).lower()
    try:
        node.attrs["to"] = dtype_code(names.get(name, name))
    except KeyError:
        raise ModelError(f"'{node.attrs['to']}' is not an element type", node.where) from None


@rule(6, "Tile")
def tile_repeats(node: Node, context: Context) -> None:
    """(input, tiles, axis) becomes (input, repeats)."""
    tiles, axis = (int(context.value(node, i).reshape(-1)[0]) for i in (1, 2))
    repeats = [1] * context.rank(node, node.inputs[0])
    if not -len(repeats) <= axis < len(repeats):
        raise ModelError(f"axis {axis} is out of range for rank {len(repeats)}", node.where)
    repeats[axis] = tiles
    node.inputs[1:] = [context.constant(node, "repeats", repeats)]


# Opset 7 and 8


@rule(7, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
def broadcast_from_axis(node: Node, context: Context) -> list[Node] | None:
    """The second operand's dimensions lie at `axis` of the first: append ones behind them."""
    axis = node.attrs.pop("axis", None)
    if not node.attrs.pop("broadcast", 0) or axis is None:
        return None
    first, second = (context.rank(node, name) for name in node.inputs)
    missing = first - (axis + first if axis < 0 else axis) - second
    return _append_ones(node, context, second, missing)


@rule(7, "PRelu")
def prelu_slope_per_channel(node: Node, context: Context) -> list[Node] | None:
    """A slope of shape [C] lies at axis 1 of the input."""
    slope = context.shape(node.inputs[1])
    if slope is None or len(slope) != 1 or slope[0] == 1:
        return None
    return _append_ones(node, context, 1, context.rank(node, node.inputs[0]) - 2)


def _append_ones(node: Node, context: Context, rank: int, count: int) -> list[Node] | None:
    """Give the second input of `node`, of `rank` dimensions, `count` dimensions of 1 at its end."""
    if count <= 0:
        return None
    name = context.between(node, "unsqueezed")
    new = Node("Unsqueeze", [node.inputs[1]], [name], {"axes": list(range(rank, rank + count))})
    node.inputs[1] = name
    return [new, node]


@rule(7, "Gemm")
def gemm_broadcast(node: Node, context: Context) -> None:
    node.attrs.pop("broadcast", None)


@rule(7, "BatchNormalization", "Dropout")
def drop_is_test(node: Node, context: Context) -> None:
    node.attrs.pop("is_test", None)


@rule(7, "RNN", "LSTM", "GRU")
def drop_output_sequence(node: Node, context: Context) -> None:
    """Which results are wanted is said by their names; the attribute only repeated it."""
    node.attrs.pop("output_sequence", None)


@rule(7, "Upsample")
def upsample_scales(node: Node, context: Context) -> None:
    node.attrs["scales"] = [1.0, 1.0, node.attrs.pop("height_scale"), node.attrs.pop("width_scale")]
    if node.attrs.get("mode") == "bilinear":
        node.attrs["mode"] = "linear"


# Opset 9 to 12


@rule(9, "BatchNormalization")
def batch_normalization_per_activation(node: Node, context: Context) -> list[Node] | None:
    """`spatial` = 0: statistics per activation, which is plain broadcast arithmetic."""
    if node.attrs.pop("spatial", 1):
        return None
    if any(node.outputs[1:]):
        raise context.unsupported(node, "training with spatial = 0")
    x, scale, bias, mean, variance = node.inputs
    epsilon = context.constant(
        node, "epsilon", node.attrs.get("epsilon", 1e-5), context.dtype(node, variance)
    )
    centred, shifted, deviation, normal, scaled = (
        context.between(node, role) for role in ("centred", "shifted", "deviation", "normal", "scaled")
    )
    return [
        Node("Sub", [x, mean], [centred]),
        Node("Add", [variance, epsilon], [shifted]),
        Node("Sqrt", [shifted], [deviation]),
        Node("Div", [centred, deviation], [normal]),
        Node("Mul", [normal, scale], [scaled]),
        Node("Add", [scaled, bias], [node.outputs[0]], name=node.name),
    ]


@rule(9, "Upsample")
def upsample_scales_to_input(node: Node, context: Context) -> None:
    _input_from_attribute(node, context, "scales", 1, np.float32)


@rule(9, "Scan")
def scan_without_batch(node: Node, context: Context) -> list[Node]:
    """Scan-8 runs its body for each sample of a batch: a Scan over the batch with a Scan inside."""
    if node.inputs[0]:
        raise context.unsupported(node, "sequence_lens is given")
    body: Graph = node.attrs["body"]
    count = node.attrs["num_scan_inputs"]
    inner_attrs = {"body": body, "num_scan_inputs": count}
    if "directions" in node.attrs:
        inner_attrs["scan_input_directions"] = node.attrs["directions"]
    ins = [context.between(node, f"sample_in{i}") for i in range(len(node.inputs) - 1)]
    outs = [context.between(node, f"sample_out{i}") for i in range(len(node.outputs))]
    types = {}
    for name, outer in zip(ins, node.inputs[1:]):
        known = context.scope.type(outer)
        if known is not None:
            types[name] = TensorType(known.dtype, known.shape[1:] if known.shape else None)
    for name, inside in zip(outs, body.outputs):
        known = body.types.get(inside)
        if known is not None:
            types[name] = TensorType(known.dtype, None)
    scan = Node("Scan", ins, outs, inner_attrs, name=node.name)
    sample = Graph(f"{body.name}_sample", ins, outs, [scan], {}, types, body.opset)
    return [
        Node("Scan", node.inputs[1:], node.outputs, {"body": sample, "num_scan_inputs": len(ins)}, node.name)
    ]


@rule(10, "Upsample")
def upsample_to_resize(node: Node, context: Context) -> None:
    node.op = "Resize"


@rule(10, "Slice")
def slice_attributes_to_inputs(node: Node, context: Context) -> None:
    for index, key in enumerate(("starts", "ends", "axes"), 1):
        _input_from_attribute(node, context, key, index)


@rule(10, "TopK")
def topk_k_to_input(node: Node, context: Context) -> None:
    node.attrs["k"] = [node.attrs["k"]]
    _input_from_attribute(node, context, "k", 1)


@rule(11, "Resize")
def resize_coordinates(node: Node, context: Context) -> None:
    """Before opset 11 coordinates were scaled from the corner, and nearest rounded down when
    enlarging, up when shrinking (the onnx node test ``resize_downsample_nearest`` of opset 10)."""
    node.attrs["coordinate_transformation_mode"] = "asymmetric"
    if node.attrs.get("mode", "nearest") == "nearest":
        scales = context.scope.constant(node.inputs[1])
        shrinks = scales is not None and bool((scales < 1).any())
        if scales is not None and shrinks and bool((scales > 1).any()):
            raise context.unsupported(node, "nearest both enlarges and shrinks")
        node.attrs["nearest_mode"] = "ceil" if shrinks else "floor"
    node.inputs = [node.inputs[0], "", node.inputs[1]]


@rule(11, "Clip")
def clip_bounds_to_inputs(node: Node, context: Context) -> None:
    dtype = context.dtype(node, node.inputs[0])
    for index, key in enumerate(("min", "max"), 1):
        _input_from_attribute(node, context, key, index, dtype)


@rule(11, "Pad")
def pad_attributes_to_inputs(node: Node, context: Context) -> None:
    _input_from_attribute(node, context, "pads", 1)
    _input_from_attribute(node, context, "value", 2, context.dtype(node, node.inputs[0]))


@rule(11, "Scatter")
def scatter_to_scatter_elements(node: Node, context: Context) -> None:
    node.op = "ScatterElements"


@rule(12, "Dropout")
def dropout_ratio_to_input(node: Node, context: Context) -> None:
    _input_from_attribute(node, context, "ratio", 1, np.float32)


# Opset 13 to 21


@rule(13, "Softmax", "LogSoftmax", "Hardmax")
def softmax_of_matrix(node: Node, context: Context) -> list[Node] | None:
    """Before opset 13 the input was made a matrix whose rows run over all axes from `axis` on."""
    axis = node.attrs.pop("axis", 1)
    shape = context.shape(node.inputs[0])
    node.attrs["axis"] = -1
    if axis == -1 or (shape is not None and axis == len(shape) - 1):
        return None
    matrix, normal, sizes = (context.between(node, role) for role in ("matrix", "normal", "shape"))
    x, y = node.inputs[0], node.outputs[0]
    node.inputs, node.outputs = [matrix], [normal]
    return [
        Node("Flatten", [x], [matrix], {"axis": axis}),
        node,
        Node("Shape", [x], [sizes]),
        Node("Reshape", [normal, sizes], [y]),
    ]


@rule(13, "Squeeze", "Unsqueeze", "ReduceSum")
@rule(18, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
      "ReduceProd", "ReduceSumSquare")  # fmt: skip
def axes_to_input(node: Node, context: Context) -> None:
    if not node.attrs.get("axes", True):
        del node.attrs["axes"]
    _input_from_attribute(node, context, "axes", 1)


@rule(13, "Split")
def split_sizes_to_input(node: Node, context: Context) -> None:
    _input_from_attribute(node, context, "split", 1)


@rule(13, "Resize")
def resize_optional_inputs(node: Node, context: Context) -> None:
    """Empty tensors in the place of omitted inputs go, and so does ``tf_half_pixel_for_nn``.

    Its coordinate v = (x + 0.5) / scale is that of half_pixel, h = v - 0.5, so
    floor(v) = round_prefer_ceil(h) and round_prefer_floor(v) = ceil(h).
    """
    for index, name in enumerate(node.inputs[1:], 1):
        value = context.scope.constant(name)
        if value is not None and value.size == 0:
            node.inputs[index] = ""
    if node.attrs.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        modes = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}
        old = node.attrs.get("nearest_mode", "round_prefer_floor")
        if old not in modes or node.attrs.get("mode", "nearest") != "nearest":
            raise context.unsupported(node, f"tf_half_pixel_for_nn with nearest_mode {old}")
        node.attrs |= {"coordinate_transformation_mode": "half_pixel", "nearest_mode": modes[old]}


@rule(14, "BatchNormalization")
def batch_normalization_mode(node: Node, context: Context) -> None:
    """More than one result meant training; the saved statistics are no longer returned."""
    if any(node.outputs[1:]):
        if any(name in context.read for name in node.outputs[3:]):
            raise context.unsupported(node, "saved_mean or saved_var is read")
        node.attrs["training_mode"] = 1
    node.outputs = node.outputs[:3] if node.attrs.get("training_mode") else node.outputs[:1]


@rule(16, "RoiAlign")
def roi_align_coordinates(node: Node, context: Context) -> None:
    node.attrs["coordinate_transformation_mode"] = "output_half_pixel"


@rule(18, "Split")
def split_num_outputs(node: Node, context: Context) -> None:
    if len(node.inputs) < 2 or not node.inputs[1]:
        node.attrs["num_outputs"] = len(node.outputs)


@rule(20, "DFT")
def dft_axis_to_input(node: Node, context: Context) -> None:
    node.inputs += [""] * (2 - len(node.inputs))
    node.inputs.append(context.constant(node, "axis", node.attrs.pop("axis", 1)))


@rule(20, "GridSample")
def grid_sample_mode(node: Node, context: Context) -> None:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attrs.get("mode", "bilinear")
    node.attrs["mode"] = names.get(mode, mode)


@rule(21, "GroupNormalization")
def group_normalization_per_channel(node: Node, context: Context) -> list[Node]:
    """Scale and bias were per group: repeat each for the channels of its group."""
    shape = context.shape(node.inputs[0])
    groups = node.attrs["num_groups"]
    channels = shape[1] if shape and len(shape) > 1 else None
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise context.unsupported(node, f"{channels} channels in {groups} groups")
    nodes = []
    for index, role in ((1, "scale"), (2, "bias")):
        column, grid, flat = (context.between(node, f"{role}_{step}") for step in ("column", "grid", "flat"))
        nodes += [
            Node("Unsqueeze", [node.inputs[index], context.constant(node, f"{role}_axes", [1])], [column]),
            Node(
                "Expand",
                [column, context.constant(node, f"{role}_sizes", [groups, channels // groups])],
                [grid],
            ),
            Node("Reshape", [grid, context.constant(node, f"{role}_shape", [channels])], [flat]),
        ]
        node.inputs[index] = flat
    return [*nodes, node]
