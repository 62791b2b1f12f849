"""What shape inference and onnx's checker let pass: a table of small checks by operator.

Each check looks at one node in the form of the canonical opset, says nothing where it knows
nothing (symbolic sizes, values that are not constant), and names the node and the rule it breaks.
The numbers and types of arguments are checked before, by `schema`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cuvil.frontend.check_ranks import check_ranks
from cuvil.frontend.check_site import CHECKS, Site, check
from cuvil.frontend.scope import Scope
from cuvil.ir.graph import Dim, Graph, Shape


def check_graph(graph: Graph, outer: Scope | None = None) -> None:
    """Run the checks of every node of `graph` and of its subgraphs.

    Raises:
        ModelError: a node breaks a rule of its operator; names the node.
    """
    scope = Scope(graph, outer)
    for node in graph.nodes:
        check_ranks(Site(node, scope))
        if node.op in CHECKS:
            CHECKS[node.op](Site(node, scope))
        for inner in node.subgraphs():
            check_graph(inner, scope)


# Windows: convolutions and pools

_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def _window(site: Site, kernel: Sequence[int] | None, must_fit: bool) -> None:
    """Strides, dilations, pads and the kernel's extent of a sliding window over input 0."""
    shape = site.shape(0)
    if shape is not None and len(shape) < 3:
        site.fail(f"the input has {len(shape)} dimensions, at least 3 (batch, channels, space) are needed")
    rank = len(shape) - 2 if shape is not None else len(kernel) if kernel is not None else None
    if min(site.attr("pads", ()), default=0) < 0:
        site.fail(f"pads {site.attr('pads')} have a negative one")
    for key in ("kernel_shape", "strides", "dilations", "pads", "output_padding"):
        if key in site.node.attrs:
            expected = None if rank is None else 2 * rank if key == "pads" else rank
            site.same(f"the number of {key}", len(site.attr(key)), expected)
    if site.attr("auto_pad", "NOTSET") not in _AUTO_PADS:
        site.fail(f"auto_pad '{site.attr('auto_pad')}' is unknown, only {', '.join(_AUTO_PADS)} are allowed")
    if not must_fit or kernel is None or shape is None or site.attr("auto_pad", "NOTSET").startswith("SAME"):
        return
    pads = site.attr("pads") or [0] * (2 * len(kernel))
    dilations = site.attr("dilations") or [1] * len(kernel)
    for i, (size, dim) in enumerate(zip(kernel, shape[2:])):
        extent = (size - 1) * dilations[i] + 1
        if isinstance(dim, int) and extent > dim + pads[i] + pads[i + len(kernel)]:
            site.fail(
                f"the kernel covers {extent} elements of axis {i + 2}, "
                f"the padded input has only {dim + pads[i] + pads[i + len(kernel)]}"
            )


def _kernel(site: Site, weights: int) -> list[int] | None:
    """The kernel's sizes, from the weights and the attribute, which must agree."""
    shape = site.shape(weights)
    stated: list[int] | None = site.attr("kernel_shape")
    if shape is None or not all(isinstance(d, int) for d in shape[2:]):
        return stated
    sizes = [int(d) for d in shape[2:]]
    if stated is not None and sizes != stated:
        site.fail(f"kernel_shape {stated} differs from that of the weights, {sizes}")
    return sizes


@check("Conv", "ConvInteger", "QLinearConv", "DeformConv")
def _conv(site: Site) -> None:
    weights = 3 if site.node.op == "QLinearConv" else 1
    bias = {"Conv": 2, "QLinearConv": 8, "DeformConv": 3}.get(site.node.op, len(site.node.inputs))
    group = site.attr("group", 1)
    given, shape = site.shape(0), site.shape(weights)
    if given is not None and shape is not None:
        site.same("the rank of the weights", len(shape), len(given))
    _window(site, _kernel(site, weights), must_fit=True)
    channels, per_group, maps = site.size(0, 1), site.size(weights, 1), site.size(weights, 0)
    if channels is not None and per_group is not None and channels != per_group * group:
        site.fail(
            f"the input has {channels} channels, the weights ask for {per_group * group} "
            f"({per_group} in each of {group} groups)"
        )
    if maps is not None and maps % group:
        site.fail(f"{maps} output channels cannot be split into {group} groups")
    site.same("the size of the bias", site.size(bias, 0), maps)


@check("ConvTranspose")
def _conv_transpose(site: Site) -> None:
    group = site.attr("group", 1)
    _window(site, _kernel(site, 1), must_fit=False)
    channels, maps = site.size(0, 1), site.size(1, 1)
    site.same("the number of input channels", channels, site.size(1, 0))
    if channels is not None and channels % group:
        site.fail(f"{channels} input channels cannot be split into {group} groups")
    site.same("the size of the bias", site.size(2, 0), None if maps is None else maps * group)


@check("MaxPool", "AveragePool", "LpPool")
def _pool(site: Site) -> None:
    _window(site, site.attr("kernel_shape"), must_fit=not site.attr("ceil_mode", 0))


@check("DepthToSpace", "SpaceToDepth")
def _blocks(site: Site) -> None:
    block = site.attr("blocksize")
    sizes = [(1, block * block)] if site.node.op == "DepthToSpace" else [(2, block), (3, block)]
    for axis, divisor in sizes:
        size = site.size(0, axis)
        if size is not None and size % divisor:
            site.fail(f"axis {axis} of size {size} cannot be split into blocks of {divisor}")


# Shapes


@check("Reshape")
def _reshape(site: Site) -> None:
    wanted = site.integers(1)
    if wanted is None:
        return
    if wanted.count(-1) > 1:
        site.fail(f"the shape {wanted} leaves more than one dimension open (-1)")
    if min(wanted, default=0) < -1:
        site.fail(f"the shape {wanted} has a negative dimension")
    shape = site.shape(0)
    if shape is None:
        return
    dims: list[Dim] = list(wanted)
    if not site.attr("allowzero", 0):
        for i, size in enumerate(wanted):
            if size == 0 and i >= len(shape):
                site.fail(f"the shape {wanted} copies dimension {i} of an input of rank {len(shape)}")
            if size == 0:
                dims[i] = shape[i]
    elif -1 in wanted and 0 in wanted:
        site.fail(f"the shape {wanted} has both 0 and -1, which allowzero forbids")
    if any(isinstance(d, str) for d in (*shape, *dims)):
        return
    count = math.prod(d for d in shape if isinstance(d, int))
    known = math.prod(d for d in dims if isinstance(d, int) and d != -1)
    if (count != known) if -1 not in dims else (known == 0 or count % known):
        site.fail(f"{count} elements do not fit the shape {wanted}")


@check("Transpose")
def _transpose(site: Site) -> None:
    perm, shape = site.attr("perm"), site.shape(0)
    if perm is not None and sorted(perm) != list(range(len(perm) if shape is None else len(shape))):
        rank = len(perm) if shape is None else len(shape)
        site.fail(f"perm {perm} is not a permutation of the {rank} axes")


@check("Concat")
def _concat(site: Site) -> None:
    shapes = [site.shape(i) for i in range(len(site.node.inputs))]
    known = [(i, shape) for i, shape in enumerate(shapes) if shape is not None]
    for i, shape in known:
        axis = site.axis(site.attr("axis"), len(shape))
        _, first = known[0]
        if len(shape) != len(first):
            site.fail(f"input {i} has rank {len(shape)}, input {known[0][0]} has rank {len(first)}")
        for other, (here, there) in enumerate(zip(shape, first)):
            if other != axis and isinstance(here, int) and isinstance(there, int) and here != there:
                site.fail(f"input {i} has size {here} at axis {other}, input {known[0][0]} has {there}")


@check("Split")
def _split(site: Site) -> None:
    shape, parts = site.shape(0), site.integers(1)
    if site.has(1) and "num_outputs" in site.node.attrs:
        site.fail("split and num_outputs are both given")
    site.same("the number of parts", None if parts is None else len(parts), len(site.node.outputs))
    if parts is not None and min(parts, default=0) < 0:
        site.fail(f"the part sizes {parts} have a negative one")
    if shape is None:
        return
    axis = site.axis(site.attr("axis", 0), len(shape))
    size = site.size(0, axis)
    if parts is not None and size is not None and sum(parts) != size:
        site.fail(f"the part sizes {parts} add up to {sum(parts)}, axis {axis} has size {size}")


@check("Squeeze", "Unsqueeze")
def _squeeze(site: Site) -> None:
    shape, axes = site.shape(0), site.integers(1)
    if shape is not None and not any(site.node.inputs[1:]):
        for size in shape:
            if isinstance(size, str):
                site.fail(f"no axes are given, and whether size '{size}' is 1 is not known; bind it")
    if shape is None or axes is None:
        return
    if site.node.op == "Unsqueeze":
        site.axes(axes, len(shape) + len(axes))
        return
    for axis in site.axes(axes, len(shape)):
        if isinstance(shape[axis], int) and shape[axis] != 1:
            site.fail(f"axis {axis} has size {shape[axis]}, only axes of size 1 can be squeezed")


@check("Flatten")
def _flatten(site: Site) -> None:
    shape, axis = site.shape(0), site.attr("axis", 1)
    if shape is not None and not -len(shape) <= axis <= len(shape):
        site.fail(f"axis {axis} is out of range for rank {len(shape)}")


@check("Expand", "Tile", "ConstantOfShape")
def _expand(site: Site) -> None:
    last = len(site.node.inputs) - 1
    sizes, shape = site.integers(last), site.shape(0)
    if site.node.op == "Tile" and shape is not None:
        site.same("the number of repeats", site.size(1, 0), len(shape))
    if sizes is None:
        return
    if min(sizes, default=0) < 0:
        site.fail(f"the sizes {sizes} have a negative one")
    if site.node.op == "Expand" and shape is not None:
        _broadcast(site, [shape, tuple(sizes)])


@check("Slice")
def _slice(site: Site) -> None:
    shape, lengths = site.shape(0), {i: site.integers(i) for i in range(1, len(site.node.inputs))}
    known = {i: len(v) for i, v in lengths.items() if v is not None and site.has(i)}
    if len(set(known.values())) > 1:
        site.fail("starts, ends, axes and steps have different lengths")
    if 0 in (lengths.get(4) or ()):
        site.fail("a step is 0")
    if shape is not None and lengths.get(3) is not None:
        site.axes(lengths[3] or [], len(shape))
    elif shape is not None and known.get(1, 0) > len(shape):
        site.fail(f"{known[1]} starts for an input of rank {len(shape)}")


@check("Pad")
def _pad(site: Site) -> None:
    shape, pads, axes = site.shape(0), site.integers(1), site.integers(3)
    if site.attr("mode", "constant") not in ("constant", "reflect", "edge", "wrap"):
        site.fail(f"mode '{site.attr('mode')}' is unknown, only constant, reflect, edge and wrap are allowed")
    if shape is None:
        return
    if axes is not None:
        axes = site.axes(axes, len(shape))
    elif site.has(3):
        return
    else:
        axes = list(range(len(shape)))
    if pads is None:
        return
    site.same("the number of pads", len(pads), 2 * len(axes))
    for i, axis in enumerate(axes):
        size = site.size(0, axis)
        if size is not None and size + pads[i] + pads[i + len(axes)] < 0:
            site.fail(
                f"pads {pads[i]} and {pads[i + len(axes)]} remove more than axis {axis}'s {size} elements"
            )


@check("Resize")
def _resize(site: Site) -> None:
    shape, axes = site.shape(0), site.attr("axes")
    if site.has(2) == site.has(3):
        site.fail("exactly one of scales and sizes must be given")
    scales, sizes = site.constant(2), site.integers(3)
    if scales is not None and not ((scales > 0) & np.isfinite(scales)).all():
        site.fail(f"the scales {[float(s) for s in scales.reshape(-1)]} must be positive and finite")
    if sizes is not None and min(sizes, default=1) < 0:
        site.fail(f"the sizes {sizes} have a negative one")
    if shape is not None:
        count = len(site.axes(axes, len(shape))) if axes is not None else len(shape)
        for what, value in (("scales", scales), ("sizes", sizes)):
            if value is not None:
                site.same(f"the number of {what}", np.size(value), count)


@check("Range")
def _range(site: Site) -> None:
    step = site.constant(2)
    if step is not None and not step.any():
        site.fail("the step is 0")


# Axes and indices


@check("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "LayerNormalization", "RMSNormalization",
       "LpNormalization")  # fmt: skip
def _one_axis(site: Site) -> None:
    shape = site.shape(0)
    default = 0 if site.node.op.startswith("Arg") else -1
    if shape is not None and (shape or "axis" in site.node.attrs):
        site.axis(site.attr("axis", default), len(shape))


@check("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
       "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
def _reduce(site: Site) -> None:
    shape, axes = site.shape(0), site.integers(1)
    if shape is not None and axes is not None:
        site.axes(axes, len(shape))


@check("CumSum", "CumProd")
def _cumsum(site: Site) -> None:
    shape, axis = site.shape(0), site.integers(1)
    if shape is not None and axis:
        site.axis(axis[0], len(shape))


@check("TopK")
def _top_k(site: Site) -> None:
    shape, k = site.shape(0), site.integers(1)
    if shape is None:
        return
    size = site.size(0, site.axis(site.attr("axis", -1), len(shape)))
    if k and (k[0] < 0 or (size is not None and k[0] > size)):
        site.fail(f"k is {k[0]}, from 0 to {'the axis size' if size is None else size} is allowed")


def _indices(site: Site, values: np.ndarray | None, size: int | None, axis: int) -> None:
    if values is None or size is None or values.size == 0 or values.dtype.kind not in "iu":
        return
    for index in (int(values.min()), int(values.max())):
        if not -size <= index < size:
            site.fail(f"index {index} is out of range for axis {axis} of size {size}")


@check("Gather", "GatherElements", "ScatterElements")
def _gather(site: Site) -> None:
    shape = site.shape(0)
    if shape is None:
        return
    axis = site.axis(site.attr("axis", 0), len(shape))
    _indices(site, site.constant(1), site.size(0, axis), axis)
    other = site.shape(1)
    if site.node.op != "Gather" and other is not None and len(other) != len(shape):
        site.fail(f"the indices have rank {len(other)}, the data has rank {len(shape)}")


@check("GatherND", "ScatterND")
def _gather_nd(site: Site) -> None:
    shape, batch = site.shape(0), site.attr("batch_dims", 0)
    depth = site.size(1, -1)
    if shape is None or depth is None:
        return
    if depth < 1 or batch + depth > len(shape):
        site.fail(
            f"indices of {depth} numbers behind {batch} batch axes do not fit data of rank {len(shape)}"
        )
    values = site.constant(1)
    for i in range(depth):
        _indices(site, None if values is None else values[..., i], site.size(0, batch + i), batch + i)


# Arithmetic


def _broadcast(site: Site, shapes: Sequence[Shape]) -> None:
    rank = max((len(shape) for shape in shapes), default=0)
    for axis in range(1, rank + 1):
        sizes = [shape[-axis] for shape in shapes if axis <= len(shape)]
        known = sorted({d for d in sizes if isinstance(d, int) and d != 1})
        if len(known) > 1:
            texts = " and ".join(str([*shape]).replace("'", "") for shape in shapes)
            site.fail(f"the shapes {texts} do not broadcast")


@check(
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "Min", "Max", "Sum", "Mean", "Where", "PRelu", "BitShift", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor",
)  # fmt: skip
def _elementwise(site: Site) -> None:
    shapes = [site.shape(i) for i in range(len(site.node.inputs))]
    _broadcast(site, [shape for shape in shapes if shape is not None])


@check("MatMul", "MatMulInteger", "QLinearMatMul")
def _matmul(site: Site) -> None:
    second = 3 if site.node.op == "QLinearMatMul" else 1
    left, right = site.shape(0), site.shape(second)
    if left is None or right is None:
        return
    if not left or not right:
        site.fail("an operand is a scalar")
    inner = site.size(second, -2 if len(right) > 1 else 0)
    site.same("the inner size of the second operand", inner, site.size(0, -1))
    _broadcast(site, [left[:-2], right[:-2]])


@check("Gemm")
def _gemm(site: Site) -> None:
    flip_a, flip_b = bool(site.attr("transA", 0)), bool(site.attr("transB", 0))
    for i in (0, 1):
        shape = site.shape(i)
        if shape is not None and len(shape) != 2:
            site.fail(f"input {i} has {len(shape)} dimensions, 2 are needed")
    site.same("the inner size of B", site.size(1, int(flip_b)), site.size(0, 1 - int(flip_a)))
    result = (site.size(0, int(flip_a)), site.size(1, 1 - int(flip_b)))
    bias = site.shape(2)
    if bias is not None and len(bias) > 2:
        site.fail(f"C has {len(bias)} dimensions, at most 2 are allowed")
    for axis, size in zip((-1, -2), reversed(result)):
        found = site.size(2, axis)
        if found != 1:
            site.same(f"the size of C at axis {axis}", found, size)


# Normalization, recurrences


@check("BatchNormalization", "InstanceNormalization", "GroupNormalization")
def _channel_parameters(site: Site) -> None:
    channels = site.size(0, 1)
    for i in range(1, len(site.node.inputs)):
        site.same(f"the size of input {i}", site.size(i, 0), channels)
    groups = site.attr("num_groups", 1)
    if channels is not None and channels % groups:
        site.fail(f"{channels} channels cannot be split into {groups} groups")


@check("MeanVarianceNormalization")
def _mean_variance(site: Site) -> None:
    shape = site.shape(0)
    if shape is not None:
        site.axes(site.attr("axes", (0, 2, 3)), len(shape))


@check("LSTM", "GRU", "RNN")
def _recurrent(site: Site) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[site.node.op]
    direction = site.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        site.fail(f"direction '{direction}' is unknown, only forward, reverse and bidirectional are allowed")
    hidden = site.attr("hidden_size")
    if hidden is None:
        hidden = site.size(2, 2)
    rows = None if hidden is None else gates * hidden
    for i, sizes in {
        1: (rows, site.size(0, 2)),
        2: (rows, hidden),
        3: (None if rows is None else 2 * rows,),
    }.items():
        site.same(
            f"the size of input {i} at axis 0", site.size(i, 0), 2 if direction == "bidirectional" else 1
        )
        for axis, size in enumerate(sizes, 1):
            site.same(f"the size of input {i} at axis {axis}", site.size(i, axis), size)


# Quantization

_QUANTIZED: dict[str, list[tuple[int, int | None]]] = {
    "QuantizeLinear": [(1, 2)],
    "DequantizeLinear": [(1, 2)],
    "QLinearConv": [(1, 2), (4, 5), (6, 7)],
    "QLinearMatMul": [(1, 2), (4, 5), (6, 7)],
    "QLinearAdd": [(1, 2), (4, 5), (6, 7)],
    "QLinearMul": [(1, 2), (4, 5), (6, 7)],
    **{
        f"QLinear{op}": [(1, 2), (3, 4)]
        for op in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "ReduceMean", "Sigmoid", "Softmax")
    },
    "QGemm": [(1, 2), (4, 5), (7, 8)],
    "MatMulIntegerToFloat": [(2, None), (3, None)],
    "DynamicQuantizeMatMul": [(2, None)],
}
"""Positions of (scale, zero point) among the inputs, for com.microsoft's operators too; None where the
zero points may be fewer than the scales."""


def _positive(site: Site, scale: int) -> None:
    """A constant scale holds positive finite numbers only."""
    values = site.constant(scale)
    if values is not None and values.dtype != object:
        numbers = values.astype(np.float64)
        wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
        if wrong.size:
            site.fail(f"scale {wrong[0]:g} is not a positive finite number")


@check("QLinearConcat")
def _quantized_concat(site: Site) -> None:
    for scale in (0, *range(3, len(site.node.inputs), 3)):
        _positive(site, scale)


@check(*_QUANTIZED)
def _quantized(site: Site) -> None:
    for scale, zero in _QUANTIZED[site.node.op]:
        _positive(site, scale)
        if zero is None:
            continue
        counts = [site.count(scale), site.count(zero)]
        if None not in counts and counts[0] != counts[1]:
            site.fail(f"{counts[1]} zero points for {counts[0]} scales")
    if site.node.op == "QLinearConv":
        _conv(site)
    elif site.node.op == "QLinearMatMul":
        _matmul(site)
    elif site.node.op in ("QuantizeLinear", "DequantizeLinear"):
        _per_axis(site)


def _per_axis(site: Site) -> None:
    """The granularity of QuantizeLinear and DequantizeLinear: one scale, one per slice, or blocks."""
    if site.node.op == "DequantizeLinear" and site.has(2):
        kinds = site.dtype(0), site.dtype(2)
        if None not in kinds and kinds[0] != kinds[1]:
            site.fail(f"the zero point is {kinds[1]}, the input is {kinds[0]}")
        zero = site.constant(2)
        if zero is not None and kinds[0] == "int32" and zero.any():
            site.fail("the zero point of an int32 input must be 0")
    shape, scales, zeros = site.shape(0), site.shape(1), site.shape(2)
    if scales is not None and zeros is not None and len(scales) != len(zeros) and site.count(1) != 1:
        site.fail(f"the scale has rank {len(scales)}, the zero point {len(zeros)}")
    if shape is None or scales is None or not scales or (len(scales) == 1 and site.size(1, 0) == 1):
        return
    axis = site.axis(site.attr("axis", 1), len(shape))
    block = site.attr("block_size", 0)
    if block == 0:
        if len(scales) != 1:
            site.fail(f"the scale has rank {len(scales)}, without block_size at most 1 is allowed")
        site.same("the number of scales", site.size(1, 0), site.size(0, axis))
    else:
        site.same("the rank of the scale", len(scales), len(shape))
        size = site.size(0, axis)
        site.same(
            f"the number of scales at axis {axis}",
            site.size(1, axis),
            None if size is None else -(-size // block),
        )


# Control flow


@check("If")
def _if(site: Site) -> None:
    for key in ("then_branch", "else_branch"):
        branch: Graph = site.attr(key)
        site.same(f"the number of results of {key}", len(branch.outputs), len(site.node.outputs))
        if branch.inputs:
            site.fail(f"{key} has inputs, a branch has none")


@check("Loop")
def _loop(site: Site) -> None:
    body: Graph = site.attr("body")
    carried = len(site.node.inputs) - 2
    site.same("the number of inputs of the body", len(body.inputs), carried + 2)
    site.same("the number of results of the body", len(body.outputs), len(site.node.outputs) + 1)
    if len(site.node.outputs) < carried:
        site.fail(f"{len(site.node.outputs)} outputs for {carried} carried values")


@check("Scan")
def _scan(site: Site) -> None:
    body: Graph = site.attr("body")
    count = site.attr("num_scan_inputs")
    if count > len(site.node.inputs):
        site.fail(f"num_scan_inputs is {count}, there are only {len(site.node.inputs)} inputs")
    site.same("the number of inputs of the body", len(body.inputs), len(site.node.inputs))
    site.same("the number of results of the body", len(body.outputs), len(site.node.outputs))
