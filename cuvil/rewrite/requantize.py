"""What stands round integer contractions: rules that make others' quantized graphs uniform, keep bytes
bytes where values are only moved, and make requantization one multiplication and one rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.ir.graph import Node, TensorType
from cuvil.rewrite.rewriter import Rewriter, Rule, Sequence

Array = npt.NDArray[Any]

PASSING = frozenset((
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice",
    "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze",
))  # fmt: skip
"""Operators that commute with DequantizeLinear: they move or select values."""

ELEMENTWISE = frozenset((
    "Add", "Clip", "Div", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul", "Relu",
    "Sigmoid", "Sub", "Tanh",
))  # fmt: skip
"""Operators that an integer contraction's kernel may contain between the sum and QuantizeLinear."""


def expand_qlinear(r: Rewriter, node: Node) -> bool:
    """QLinearConv and QLinearMatMul -> DequantizeLinear, Conv or MatMul, QuantizeLinear, where the
    scales and zero points are constants and those of input and result hold for the whole tensor."""
    conv = node.op == "QLinearConv"
    constants = [r.array(node, k) for k in (1, 2, 4, 5, 6, 7)]
    x_kind, w_kind = (r.graph.types.get(node.inputs[k]) for k in (0, 3))
    if x_kind is None or w_kind is None or w_kind.shape is None:
        return False
    if any(a is None or a.dtype not in (np.float32, np.int8, np.uint8) for a in constants):
        return False
    x_scale, _, w_scale, _, y_scale, _ = (a for a in constants if a is not None)
    if x_scale.size != 1 or y_scale.size != 1:
        return False
    bias = r.array(node, 8)
    if bias is None and len(node.inputs) > 8:
        return False
    axis = {"axis": 0 if conv else len(w_kind.shape) - 1}

    def build(s: Sequence) -> None:
        inputs = [s.add("DequantizeLinear", node.inputs[0:3], "float32", shape=x_kind.shape)]
        inputs.append(s.add("DequantizeLinear", node.inputs[3:6], "float32", axis, shape=w_kind.shape))
        if bias is not None:
            scale = x_scale.reshape(()) * (w_scale.reshape(()) if w_scale.size == 1 else w_scale)
            parts = [node.inputs[8], s.constant("bias_scale", scale.astype(np.float32))]
            inputs.append(s.add("DequantizeLinear", parts, "float32", {"axis": 0}, shape=bias.shape))
        y, output = s.add("Conv" if conv else "MatMul", inputs, "float32", dict(node.attrs)), node.outputs[0]
        s.add("QuantizeLinear", [y, *node.inputs[6:8]], r.graph.types[output].dtype, output=output)

    r.replace(node, build)
    return True


def unsigned_activation(r: Rewriter, node: Node) -> bool:
    """QuantizeLinear to int8 that only DequantizeLinear reads -> uint8, with all zero points 128 higher:
    the same values, and activations are of one type."""
    found, (q,) = r.parameters(node), node.outputs
    if found is None or found[2] != "int8" or q in r.graph.outputs or found[0].ndim:
        return False
    readers = r.readers.get(q, [])
    uniform = [n.op == "DequantizeLinear" and _same(r.parameters(n), found) for n in readers]
    if not uniform or not all(uniform):
        return False
    zero = r.constant(f"{q}.zero", np.asarray(int(found[1]) + 128, np.uint8))
    with r.changing(node, *readers):
        for n in (node, *readers):
            n.inputs[2:] = [zero]
    node.attrs.pop("output_dtype", None)
    r.graph.types[q] = TensorType("uint8", r.graph.types[q].shape)
    return True


def _same(a: tuple[Array, Array, str] | None, b: tuple[Array, Array, str] | None) -> bool:
    """Two sets of parameters agree and hold for whole tensors."""
    if a is None or b is None or a[0].ndim or b[0].ndim:
        return False
    return bool(a[0] == b[0] and a[1] == b[1] and a[2] == b[2])


def sink_dequantize(r: Rewriter, node: Node) -> bool:
    """An operator that moves values of dequantized bytes -> it moves the bytes, and they are dequantized
    behind it."""
    count = len(node.inputs) if node.op == "Concat" else 1
    sources = [r.producer(name, "DequantizeLinear") for name in node.inputs[:count]]
    found = [r.parameters(n) if n is not None else None for n in sources]
    if any(node.outputs[1:]) or not all(_same(p, found[0]) for p in found):
        return False
    if any(n is None or (n.inputs[0] in r.graph.constants and node.op != "Gather") for n in sources):
        return False
    dtype = found[0][2] if found[0] is not None else ""

    def build(s: Sequence) -> None:
        parts = [n.inputs[0] for n in sources if n is not None]
        moved = s.add(node.op, [*parts, *node.inputs[count:]], dtype, dict(node.attrs))
        rest = sources[0].inputs[1:] if sources[0] is not None else []
        s.add("DequantizeLinear", [moved, *rest], "float32", output=node.outputs[0])

    if dtype not in ("int8", "uint8"):
        return False
    r.replace(node, build)
    return True


def cancel(r: Rewriter, node: Node) -> bool:
    """QuantizeLinear of what was dequantized with the same parameters -> the bytes themselves."""
    before = r.producer(node.inputs[0], "DequantizeLinear")
    if before is None or not _same(r.parameters(before), r.parameters(node)):
        return False
    q, source = node.outputs[0], before.inputs[0]
    if q in r.graph.outputs:
        return False
    readers = r.readers.get(q, [])
    if any(any(reader.subgraphs()) for reader in readers):
        return False
    with r.changing(*readers):
        for reader in readers:
            reader.inputs = [source if n == q else n for n in reader.inputs]
    r.remove(node)
    return True


def saturating(r: Rewriter, node: Node) -> bool:
    """QuantizeLinear of Relu or Clip whose bounds round to the ends of the integer type, or lie beyond ->
    of what they bound; saturation does the rest."""
    found = r.parameters(node)
    before = r.producer(node.inputs[0], "Relu") or r.producer(node.inputs[0], "Clip")
    if found is None or before is None or found[0].ndim or found[2] not in ("int8", "uint8"):
        return False
    scale, zero = float(found[0]), int(found[1])
    info = np.iinfo(found[2])
    low, high = _bounds(r, before)
    if low is None or high is None:
        return False
    if low >= (info.min - zero + 0.5) * scale or high <= (info.max - zero - 0.5) * scale:
        return False
    with r.changing(node):
        node.inputs[0] = before.inputs[0]
    return True


def _bounds(r: Rewriter, node: Node) -> tuple[float | None, float | None]:
    """The constant bounds of a Relu or Clip; None where one is computed."""
    if node.op == "Relu":
        return 0.0, np.inf
    found: list[float | None] = []
    for index, default in ((1, -np.inf), (2, np.inf)):
        given = index < len(node.inputs) and node.inputs[index]
        array = r.array(node, index) if given else np.float32(default)
        found.append(None if array is None else float(np.asarray(array).reshape(-1)[0]))
    return found[0], found[1]


def reciprocal(r: Rewriter, node: Node) -> bool:
    """QuantizeLinear behind an integer contraction: the division by its scale -> a multiplication."""
    found = r.parameters(node)
    if found is None or found[0].ndim or found[0] == 1 or not _in_epilogue(r, node.inputs[0]):
        return False
    output = node.outputs[0]

    def build(s: Sequence) -> None:
        inverse = s.constant("inverse", (1 / found[0].astype(np.float64)).astype(np.float32))
        value = s.add("Mul", [node.inputs[0], inverse], "float32")
        one = s.constant("one", np.asarray(1, np.float32))
        dtype = r.graph.types[output].dtype
        s.add("QuantizeLinear", [value, one, *node.inputs[2:]], dtype, dict(node.attrs), output)

    r.replace(node, build)
    return True


def _in_epilogue(r: Rewriter, name: str) -> bool:
    """Element-wise operators alone lie between an integer contraction and `name`."""
    stack: list[str] = [name]
    seen: set[int] = set()
    while stack:
        node = r.producers.get(stack.pop())
        if node is None or node.domain or id(node) in seen:
            continue
        seen.add(id(node))
        if node.op == "Cast" and r.graph.types[node.inputs[0]].dtype == "int32":
            return True
        if node.op in ELEMENTWISE:
            stack.extend(n for n in node.inputs if n)
    return False


def _is_scale(r: Rewriter, node: Node) -> bool:
    """The multiplication by its scales that ends an integer contraction."""
    total = r.producer(node.inputs[0], "Cast")
    whole = total is not None and r.graph.types[total.inputs[0]].dtype == "int32"
    return node.op == "Mul" and whole and r.array(node, 1) is not None


def merge_scales(r: Rewriter, node: Node) -> bool:
    """A constant factor behind an integer contraction moves up to the contraction's own factor: through
    an added constant, Relu and Clip; zero points and signs stay what they were."""
    factor = r.array(node, 1)
    if factor is None or factor.dtype != np.float32 or factor.size != 1 or not factor.reshape(-1)[0] > 0:
        return False
    chain: list[Node] = []
    name = node.inputs[0]
    while True:
        before = r.producers.get(name)
        if before is None or before.domain or not r.is_private(name):
            return False
        if _is_scale(r, before):
            break
        bounds = _bounds(r, before) if before.op in ("Relu", "Clip") else (None, None)
        if before.op == "Add" and r.array(before, 0) is not None:
            before.inputs.reverse()
        if None in bounds and not (before.op == "Add" and r.array(before, 1) is not None):
            return False
        chain.append(before)
        name = before.inputs[0]
    if r.graph.types[node.outputs[0]] != r.graph.types[node.inputs[0]]:
        return False
    c = factor.reshape(())
    with r.changing(before, *chain):
        for n in (before, *chain):
            first = 1 if n.op in ("Mul", "Add", "Clip") else len(n.inputs)
            for k in range(first, len(n.inputs)):
                if n.inputs[k]:
                    array = r.graph.constants[n.inputs[k]]
                    n.inputs[k] = r.constant(f"{n.outputs[0]}.scaled", np.asarray(array * c, np.float32))
        last = chain[0] if chain else before
        last.outputs = list(node.outputs)
    r.remove(node)
    return True


BEFORE = (
    Rule("expand-qlinear", ("QLinearConv", "QLinearMatMul"), expand_qlinear),
    Rule("unsigned-activation", ("QuantizeLinear",), unsigned_activation),
    Rule("sink-dequantize", tuple(sorted(PASSING)), sink_dequantize),
    Rule("cancel", ("QuantizeLinear",), cancel),
)

AFTER = (
    Rule("saturating", ("QuantizeLinear",), saturating),
    Rule("reciprocal", ("QuantizeLinear",), reciprocal),
    Rule("merge-scales", ("Mul",), merge_scales),
)
