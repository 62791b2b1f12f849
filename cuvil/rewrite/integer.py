"""Integer arithmetic for quantized graphs: rules that the codegen stage applies to a QDQ graph.

DequantizeLinear of bytes, then Conv, MatMul or Gemm, becomes ConvInteger or MatMulInteger on the bytes
themselves, an int32 constant (bias, and what the input's zero point adds up to), a Cast and a Mul by the
product of the scales:

    sum_k sx (x_k - zx) sw w_k + b  ==  sx sw (sum_k x_k w_k + (round(b / (sx sw)) - zx sum_k w_k))

so that the sum runs over products of bytes and everything else is element-wise, which the schedule fuses
behind it: activation, residual sum, the next QuantizeLinear.  Reordered constants and reciprocals round
differently from the float form in the last bit; a quantized result may differ by one step where it lies
half-way between two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.frontend.scope import Namer
from cuvil.ir.graph import Graph, Node, TensorType, captured

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

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Quantized:
    """A tensor in integers: the value's name, and its constant scale and zero point (int64), both of rank
    0 or of one entry per slice of `axis`."""

    name: str
    dtype: str
    scale: Array
    zero: Array
    axis: int


class Rewriter:
    """A graph being rewritten, with an index of who makes and who reads each value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fresh = Namer.of_values(graph)
        self.index()

    def index(self) -> None:
        """Bring the index up to date after a change."""
        self.producers = self.graph.producers()
        self.readers = self.graph.consumers()

    def producer(self, name: str, op: str) -> Node | None:
        """The node that makes `name`, if it is an `op` of the standard."""
        node = self.producers.get(name)
        return node if node is not None and node.op == op and not node.domain else None

    def is_private(self, name: str) -> bool:
        """One node reads the value, and it is no output."""
        return len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs

    def array(self, node: Node, index: int) -> Array | None:
        """Input `index` of a node where it is a constant."""
        return self.graph.constants.get(node.inputs[index]) if index < len(node.inputs) else None

    def parameters(self, node: Node) -> tuple[Array, Array, str] | None:
        """Constant scale and zero point of a QuantizeLinear or DequantizeLinear, and its integer type;
        None where they are not constants, or come in blocks."""
        scale, zero = self.array(node, 1), self.array(node, 2)
        given = len(node.inputs) > 2 and node.inputs[2] != ""
        if scale is None or scale.dtype != np.float32 or (given and zero is None) or node.attrs.get("block_size"):
            return None
        if zero is None:
            kind = self.graph.types.get(node.inputs[0] if node.op == "DequantizeLinear" else node.outputs[0])
            if kind is None:
                return None
            dtype, zero = kind.dtype, np.zeros(scale.shape, np.int64)
        else:
            dtype = str(zero.dtype)
        if scale.size == 1:
            scale, zero = scale.reshape(()), zero.reshape(())
        return scale, zero.astype(np.int64), dtype

    def dequantized(self, name: str) -> Quantized | None:
        """What DequantizeLinear makes `name` of."""
        node = self.producer(name, "DequantizeLinear")
        found = self.parameters(node) if node is not None else None
        if node is None or found is None:
            return None
        scale, zero, dtype = found
        return Quantized(node.inputs[0], dtype, scale, zero, node.attrs.get("axis", 1))

    def constant(self, stem: str, array: Array) -> str:
        name = self.fresh(stem)
        self.graph.constants[name] = array
        self.graph.types[name] = TensorType(str(array.dtype), array.shape)
        return name

    def replace(self, old: Node, build: Callable[[Sequence], None]) -> None:
        """Put the nodes that `build` appends where `old` stands."""
        new = Sequence(self, old)
        build(new)
        at = next(k for k, node in enumerate(self.graph.nodes) if node is old)
        self.graph.nodes[at : at + 1] = new.nodes
        self.index()


class Sequence:
    """Nodes that take the place of `old`, with its name and metadata."""

    def __init__(self, rewriter: Rewriter, old: Node) -> None:
        self.rewriter, self.old = rewriter, old
        self.nodes: list[Node] = []
        self.shape = rewriter.graph.types[old.outputs[0]].shape

    def constant(self, what: str, array: Array) -> str:
        return self.rewriter.constant(f"{self.old.outputs[0]}.{what}", array)

    def add(
        self, op: str, inputs: list[str], dtype: str, attrs: dict[str, Any] | None = None,
        output: str = "", shape: tuple[int | str, ...] | None = None,
    ) -> str:
        """Append a node; its result has the shape of the old one's unless told otherwise."""
        name = output or self.rewriter.fresh(f"{self.old.outputs[0]}.{op}")
        self.nodes.append(Node(op, inputs, [name], attrs or {}, self.old.name, metadata=dict(self.old.metadata)))
        self.rewriter.graph.types[name] = TensorType(dtype, self.shape if shape is None else shape)
        return name

    def scaled(self, total: str, scale: Array, bias: Array | str | None) -> None:
        """The end: int32 `total` times `scale`, plus a float bias, under the old result's name."""
        output = self.old.outputs[0]
        value = self.add("Cast", [total], "float32", {"to": 1})
        last = bias is None
        value = self.add("Mul", [value, self.constant("scale", scale)], "float32", output=output if last else "")
        if bias is not None:
            name = bias if isinstance(bias, str) else self.constant("bias", bias)
            self.add("Add", [value, name], "float32", output=output)


@dataclass(frozen=True)
class Rule:
    """A rewrite around one node; returns True where it fired."""

    name: str
    ops: tuple[str, ...]
    apply: Callable[[Rewriter, Node], bool]


def rewrite(graph: Graph, rules: tuple[Rule, ...] | None = None) -> dict[str, int]:
    """Apply the rules to `graph`, in place, until none fires; returns how often each did."""
    r = Rewriter(graph)
    counts: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for rule in rules or RULES:
            for node in list(graph.nodes):
                if node.op in rule.ops and not node.domain and rule.apply(r, node):
                    counts[rule.name] = counts.get(rule.name, 0) + 1
                    changed = True
    _prune(graph)
    return counts


def _prune(graph: Graph) -> None:
    """Drop nodes and constants that no output depends on."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not live.isdisjoint(name for name in node.outputs if name):
            live.update(node.inputs)
            live.update(captured(node))
            kept.append(node)
    graph.nodes = kept[::-1]
    graph.constants = {name: array for name, array in graph.constants.items() if name in live}


# --- contractions ----------------------------------------------------------------------------------


def _bytes(x: Quantized | None) -> bool:
    return x is not None and x.dtype in ("int8", "uint8")


def _centred(values: Array, zero: Array) -> Array | None:
    """Byte weights with their zero point taken off, as int8; None where they do not fit."""
    centred = values.astype(np.int64) - zero
    return centred.astype(np.int8) if centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127 else None


@dataclass(frozen=True)
class Operands:
    """A contraction's operands in integers.

    Attributes:
        x: the activation, with one scale.
        w: int8 weights without zero point; output channels on `axis`.
        scale: product of the scales, float32, of rank 0 or [channels].
        sums: of the weights over everything but `axis`, int64, [channels].
    """

    x: Quantized
    w: Array
    axis: int
    scale: Array
    sums: Array

    @property
    def peak(self) -> int:
        """Bound of the absolute sum of products."""
        others = tuple(k for k in range(self.w.ndim) if k != self.axis)
        largest = 255 if self.x.dtype == "uint8" else 128
        return largest * int(np.abs(self.w.astype(np.int64)).sum(axis=others).max(initial=0))


def _operands(r: Rewriter, data: str, weights: str, axis: int) -> Operands | None:
    """The operands where `data` is dequantized bytes, and `weights` dequantized constant bytes with a
    scale for all or for each output channel (on `axis`)."""
    x, q = r.dequantized(data), r.dequantized(weights)
    if x is None or q is None or not _bytes(x) or not _bytes(q) or x.scale.ndim or q.name not in r.graph.constants:
        return None
    values = r.graph.constants[q.name]
    if q.scale.ndim and (q.axis % values.ndim != axis or len(q.scale) != values.shape[axis]):
        return None
    spread = [-1 if k == axis else 1 for k in range(values.ndim)]
    w = _centred(values, q.zero.reshape(spread) if q.zero.ndim else q.zero)
    if w is None:
        return None
    scale = (x.scale.astype(np.float64) * q.scale).astype(np.float32)
    sums = w.astype(np.int64).sum(axis=tuple(k for k in range(w.ndim) if k != axis))
    found = Operands(x, w, axis, scale, sums)
    return found if found.peak < MAX_INT32 else None


def _bias(r: Rewriter, name: str, scale: Array) -> tuple[Array | None, Array | str | None]:
    """A bias as (whole units of `scale`, the float to be added instead)."""
    if not name:
        return None, None
    q = r.dequantized(name)
    if q is None or q.dtype != "int32" or q.name not in r.graph.constants:
        return None, r.graph.constants.get(name, name)
    values = r.graph.constants[q.name].astype(np.int64) - q.zero
    if np.allclose(q.scale, scale, rtol=1e-5, atol=0):
        return values, None
    return None, (values * q.scale).astype(np.float32)


def integer_conv(r: Rewriter, node: Node) -> bool:
    """Conv of dequantized bytes -> ConvInteger; borders are filled with the input's zero point."""
    found = _operands(r, node.inputs[0], node.inputs[1], 0)
    if found is None:
        return False
    x, rank = found.x, found.w.ndim
    whole, rest = _bias(r, node.inputs[2] if len(node.inputs) > 2 else "", found.scale)
    zero = int(x.zero)
    offset = np.zeros(len(found.sums), np.int64) if whole is None else whole
    attrs = dict(node.attrs)
    pads = attrs.get("pads") or [0] * (2 * (rank - 2))
    by_size = attrs.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    if attrs.get("auto_pad") == "VALID":
        pads = [0] * len(pads)
    if not by_size:
        offset = offset - zero * found.sums
    if found.peak + int(np.abs(offset).max(initial=0)) > MAX_INT32:
        return False
    column = (-1, *[1] * (rank - 2))

    def build(s: Sequence) -> None:
        data, weights = x.name, s.constant("weights", found.w)
        inputs = [data, weights]
        if zero and by_size:
            inputs.append(s.constant("zero", np.array(zero, x.dtype)))
        elif zero and any(pads):
            amounts = np.array([0, 0, *pads[: rank - 2], 0, 0, *pads[rank - 2 :]], np.int64)
            fill = s.constant("zero", np.array(zero, x.dtype))
            inputs[0] = s.add("Pad", [data, s.constant("pads", amounts), fill], x.dtype, shape=_padded(r, data, amounts))
            attrs["pads"] = [0] * len(pads)
            attrs.pop("auto_pad", None)
        total = s.add("ConvInteger", inputs, "int32", attrs)
        if offset.any():
            total = s.add("Add", [total, s.constant("offset", offset.astype(np.int32).reshape(column))], "int32")
        scale = found.scale.reshape(column) if found.scale.ndim else found.scale
        if isinstance(rest, str):
            shape = s.constant("column", np.array(column, np.int64))
            s.scaled(total, scale, s.add("Reshape", [rest, shape], "float32", shape=(len(offset), *column[1:])))
        else:
            s.scaled(total, scale, None if rest is None else rest.reshape(column))

    r.replace(node, build)
    return True


def _padded(r: Rewriter, name: str, amounts: Array) -> tuple[int | str, ...] | None:
    shape = r.graph.types[name].shape
    if shape is None:
        return None
    total = amounts.reshape(2, -1).sum(axis=0)
    return tuple(n + int(p) if isinstance(n, int) else n for n, p in zip(shape, total))


def integer_matmul(r: Rewriter, node: Node) -> bool:
    """MatMul or Gemm of dequantized bytes and constant weights -> MatMulInteger."""
    gemm = node.op == "Gemm"
    weights = r.dequantized(node.inputs[1])
    array = r.graph.constants.get(weights.name) if weights is not None else None
    if array is None or array.ndim != 2:
        return False
    found = _operands(r, node.inputs[0], node.inputs[1], 0 if gemm and node.attrs.get("transB") else 1)
    if found is None:
        return False
    x, w = found.x, found.w if found.axis == 1 else np.ascontiguousarray(found.w.T)
    scale = found.scale * np.float32(node.attrs.get("alpha", 1.0)) if gemm else found.scale
    beta = node.attrs.get("beta", 1.0)
    whole, rest = _bias(r, node.inputs[2] if gemm and len(node.inputs) > 2 else "", scale)
    if rest is not None and beta != 1:
        if isinstance(rest, str):
            return False
        rest = rest * np.float32(beta)
    if whole is not None and (beta != 1 or np.broadcast_shapes(whole.shape, found.sums.shape) != found.sums.shape):
        whole, rest = None, (whole * scale * beta).astype(np.float32)
    offset = (0 if whole is None else whole) - int(x.zero) * found.sums
    if found.peak + int(np.abs(offset).max(initial=0)) > MAX_INT32:
        return False

    def build(s: Sequence) -> None:
        data = x.name
        if gemm and node.attrs.get("transA"):
            shape = r.graph.types[data].shape
            data = s.add("Transpose", [data], x.dtype, {"perm": [1, 0]}, shape=shape and shape[::-1])
        total = s.add("MatMulInteger", [data, s.constant("weights", w)], "int32")
        if offset.any():
            total = s.add("Add", [total, s.constant("offset", offset.astype(np.int32))], "int32")
        s.scaled(total, scale, rest)

    r.replace(node, build)
    return True


def integer_product(r: Rewriter, node: Node) -> bool:
    """MatMul of two dequantized activations -> MatMulInteger; what the zero points add up to is taken
    off behind the sum: ``sum (a - za) (b - zb) == sum a b - za sum b - zb sum a + K za zb``."""
    a, b = r.dequantized(node.inputs[0]), r.dequantized(node.inputs[1])
    if a is None or b is None or not _bytes(a) or not _bytes(b) or a.scale.ndim or b.scale.ndim:
        return False
    left, right = (r.graph.types[n].shape for n in node.inputs)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return False
    inner = next((n for n in (left[-1], right[-2]) if isinstance(n, int)), None)
    if inner is None or inner * 255 * 255 > MAX_INT32:
        return False
    za, zb = int(a.zero), int(b.zero)

    def build(s: Sequence) -> None:
        total = s.add("MatMulInteger", [a.name, b.name], "int32")
        for name, factor, axis, shape in ((b.name, za, -2, right), (a.name, zb, -1, left)):
            if factor:
                kept = tuple(1 if k == axis + len(shape) else n for k, n in enumerate(shape))
                wide = s.add("Cast", [name], "int32", {"to": 6}, shape=shape)
                axes = s.constant("axes", np.array([axis], np.int64))
                part = s.add("ReduceSum", [wide, axes], "int32", {"keepdims": 1}, shape=kept)
                part = s.add("Mul", [part, s.constant("zero", np.array(-factor, np.int32))], "int32", shape=kept)
                total = s.add("Add", [total, part], "int32")
        if za * zb:
            total = s.add("Add", [total, s.constant("offset", np.array(inner * za * zb, np.int32))], "int32")
        s.scaled(total, (a.scale * b.scale).astype(np.float32), None)

    r.replace(node, build)
    return True


def zero_point_out(r: Rewriter, node: Node) -> bool:
    """MatMulInteger with constant weights: the zero points leave the sum."""
    b, b_zero = r.array(node, 1), r.array(node, 3)
    a_zero = node.inputs[2] if len(node.inputs) > 2 else ""
    known = r.graph.constants.get(a_zero)
    kind = r.graph.types.get(a_zero)
    if b is None or b.ndim != 2 or (len(node.inputs) > 3 and node.inputs[3] and b_zero is None):
        return False
    if (not a_zero and b_zero is None) or (a_zero and (kind is None or kind.shape not in ((), (1,)))):
        return False
    w = _centred(b, np.zeros(1, np.int64) if b_zero is None else b_zero.astype(np.int64))
    if w is None or 255 * int(np.abs(w.astype(np.int64)).sum(axis=0).max(initial=0)) > MAX_INT32:
        return False
    sums = -w.astype(np.int64).sum(axis=0)

    def build(s: Sequence) -> None:
        inputs = [node.inputs[0], s.constant("weights", w)]
        if not a_zero or (known is not None and not known.any()):
            s.add("MatMulInteger", inputs, "int32", output=node.outputs[0])
            return
        total = s.add("MatMulInteger", inputs, "int32")
        if known is not None:
            offset = s.constant("offset", (sums * int(known.reshape(-1)[0])).astype(np.int32))
        else:
            zero = s.add("Cast", [a_zero], "int32", {"to": 6}, shape=())
            offset = s.add("Mul", [zero, s.constant("sums", sums.astype(np.int32))], "int32", shape=sums.shape)
        s.add("Add", [total, offset], "int32", output=node.outputs[0])

    r.replace(node, build)
    return True


# --- what stands around them -----------------------------------------------------------------------


def expand_qlinear(r: Rewriter, node: Node) -> bool:
    """QLinearConv and QLinearMatMul -> DequantizeLinear, Conv or MatMul, QuantizeLinear."""
    conv = node.op == "QLinearConv"
    kinds = [r.graph.types.get(node.inputs[k]) for k in (0, 3, 1)]
    if any(k is None or k.shape is None for k in kinds):
        return False
    x_shape, w_shape = (k.shape for k in kinds[:2] if k is not None)
    scale_type = kinds[2].dtype if kinds[2] is not None else ""
    if scale_type != "float32":
        return False
    bias = node.inputs[8] if len(node.inputs) > 8 else ""
    factors = [r.array(node, k) for k in (1, 4)] if bias else []
    if any(f is None for f in factors):
        return False

    def build(s: Sequence) -> None:
        x = s.add("DequantizeLinear", node.inputs[0:3], "float32", shape=x_shape)
        w_axis = {"axis": 0 if conv else len(w_shape or ()) - 1}
        w = s.add("DequantizeLinear", node.inputs[3:6], "float32", w_axis, shape=w_shape)
        inputs = [x, w]
        if bias:
            first, second = (f.reshape(()) if f is not None and f.size == 1 else f for f in factors)
            assert first is not None and second is not None
            scale = s.constant("bias_scale", np.asarray(first * second, np.float32))
            shape = r.graph.types[bias].shape
            inputs.append(s.add("DequantizeLinear", [bias, scale], "float32", {"axis": 0}, shape=shape))
        y = s.add("Conv" if conv else "MatMul", inputs, "float32", dict(node.attrs))
        s.add("QuantizeLinear", [y, *node.inputs[6:8]], r.graph.types[node.outputs[0]].dtype, output=node.outputs[0])

    r.replace(node, build)
    return True


def unsigned_activation(r: Rewriter, node: Node) -> bool:
    """QuantizeLinear to int8 that only DequantizeLinear reads -> uint8, with all zero points 128 higher:
    the same values, and activations are of one type."""
    found, (q,) = r.parameters(node), node.outputs
    if found is None or found[2] != "int8" or q in r.graph.outputs or found[0].ndim:
        return False
    readers = r.readers.get(q, [])
    same = [n.op == "DequantizeLinear" and n.inputs[0] == q and _same(r.parameters(n), found) for n in readers]
    if not readers or not all(same):
        return False
    zero = r.constant(f"{q}.zero", np.asarray(int(found[1]) + 128, np.uint8))
    for n in (node, *readers):
        n.inputs[2:] = [zero]
    node.attrs.pop("output_dtype", None)
    r.graph.types[q] = TensorType("uint8", r.graph.types[q].shape)
    r.index()
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
    if any(n is None or n.inputs[0] in r.graph.constants for n in sources):
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
    for reader in r.readers.get(q, []):
        if any(reader.subgraphs()):
            return False
    for reader in r.readers.get(q, []):
        reader.inputs = [source if n == q else n for n in reader.inputs]
    r.graph.nodes.remove(node)
    r.index()
    return True


def saturating(r: Rewriter, node: Node) -> bool:
    """QuantizeLinear of Relu or Clip whose bounds lie at or beyond the ends of the integer type -> of
    what they bound."""
    found = r.parameters(node)
    before = r.producer(node.inputs[0], "Relu") or r.producer(node.inputs[0], "Clip")
    if found is None or before is None or found[0].ndim or found[2] not in ("int8", "uint8"):
        return False
    scale, zero = float(found[0]), int(found[1])
    info = np.iinfo(found[2])
    low, high = _bounds(r, before)
    if low is None or high is None:
        return False
    if low > (info.min - zero) * scale or high < (info.max - zero) * scale:
        return False
    node.inputs[0] = before.inputs[0]
    r.index()
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
    stack, seen = [name], set()
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
        if before.op == "Mul" and r.producer(before.inputs[0], "Cast") is not None and r.array(before, 1) is not None:
            break
        bounds = _bounds(r, before) if before.op in ("Relu", "Clip") else (None, None)
        if None in bounds and not (before.op == "Add" and r.array(before, 1) is not None):
            return False
        chain.append(before)
        name = before.inputs[0]
    c = factor.reshape(())
    for n in (before, *chain):
        first = 1 if n.op in ("Mul", "Add", "Clip") else len(n.inputs)
        for k in range(first, len(n.inputs)):
            if n.inputs[k]:
                array = r.graph.constants[n.inputs[k]]
                n.inputs[k] = r.constant(f"{n.outputs[0]}.scaled", np.asarray(array * c, np.float32))
    last = chain[0] if chain else before
    r.graph.types[node.outputs[0]] = r.graph.types[last.outputs[0]]
    last.outputs = list(node.outputs)
    r.graph.nodes.remove(node)
    r.index()
    return True


RULES = (
    Rule("expand-qlinear", ("QLinearConv", "QLinearMatMul"), expand_qlinear),
    Rule("unsigned-activation", ("QuantizeLinear",), unsigned_activation),
    Rule("sink-dequantize", tuple(sorted(PASSING)), sink_dequantize),
    Rule("cancel", ("QuantizeLinear",), cancel),
    Rule("integer-conv", ("Conv",), integer_conv),
    Rule("integer-matmul", ("MatMul", "Gemm"), integer_matmul),
    Rule("integer-product", ("MatMul",), integer_product),
    Rule("zero-point-out", ("MatMulInteger",), zero_point_out),
    Rule("saturating", ("QuantizeLinear",), saturating),
    Rule("reciprocal", ("QuantizeLinear",), reciprocal),
    Rule("merge-scales", ("Mul",), merge_scales),
)
