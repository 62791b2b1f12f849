"""Sequences and optionals: lists of tensors whose number is known at compile time, and what may be absent.

Only tensors are computed: a sequence is the tuple of its items (`cuvil.ir.containers`), so most of these
operators make no code at all.  A position that only the run knows selects among the items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.containers import Entry, OptionalValue, SequenceValue, element_type
from cuvil.ir.expr import Expr, depends_on_data
from cuvil.ir.graph import ONNX_TYPES, Graph, Node
from cuvil.ir.primitives import Value, static
from cuvil.ops.movement import narrow
from cuvil.ops.registry import Context, lower_node, lowering


def container(*names: str) -> Callable[[Callable[[Context], object]], object]:
    """Register a lowering that does the same whether tensors hold strings or not."""

    def register(function: Callable[[Context], object]) -> object:
        return lowering(*names, strings=True)(lowering(*names)(function))

    return register


@container("Identity")
def identity(c: Context) -> Entry:
    """The input, also a sequence or an optional."""
    entry = c.entry(0)
    return c.x if entry is None else entry


# --- sequences ---


@container("SequenceConstruct")
def construct(c: Context) -> SequenceValue:
    """The inputs as a sequence."""
    items = tuple(c[i] for i in range(len(c.given)))
    return SequenceValue(element_type(items[0]), items)


@lowering("SequenceEmpty")
def empty(c: Context) -> SequenceValue:
    """A sequence without items."""
    return SequenceValue(ONNX_TYPES[c.attr("dtype") or 1], ())


@lowering("SequenceLength")
def length(c: Context) -> Value:
    """The number of items, known at compile time."""
    return c.b.constant(np.array(len(c.sequence(0).items), np.int64))


@lowering("SequenceAt")
def at(c: Context) -> Value:
    """The item at a position; where the run alone knows the position, the items must agree in rank."""
    items = c.sequence(0).items
    position = _position(c, 1, -len(items), len(items) - 1)
    known = static(position)
    return items[known] if known is not None else _among(c, position, items)


@container("SequenceInsert")
def insert(c: Context) -> SequenceValue:
    """The sequence with one more item at a position, by default the end; where the run alone knows the
    position, the items must agree in rank."""
    sequence, new = c.sequence(0), c[1]
    items, count = sequence.items, len(sequence.items)
    if c.entry(2) is None:
        return SequenceValue(sequence.dtype, (*items, new))
    position = _position(c, 2, -count, count)
    known = static(position)
    if known is not None:
        return SequenceValue(sequence.dtype, (*items[:known], new, *items[known:]))
    made = []
    for k in range(count + 1):
        candidates = [items[k] if k < count else new, new, items[k - 1] if k else new]
        which = E.select(E.lt(k, position), 0, E.select(E.eq(position, k), 1, E.const(2)))
        made.append(_among(c, which, candidates))
    return SequenceValue(sequence.dtype, tuple(made))


@lowering("SequenceErase")
def erase(c: Context) -> SequenceValue:
    """The sequence without the item at a position, by default the last; where the run alone knows the
    position, the items must agree in rank."""
    sequence = c.sequence(0)
    items, count = sequence.items, len(sequence.items)
    position = _position(c, 1, -count, count - 1) if c.entry(1) is not None else E.const(count - 1)
    known = static(position)
    if known is not None:
        if not items:
            raise c.error("the sequence is empty")
        return SequenceValue(sequence.dtype, (*items[:known], *items[known + 1 :]))
    kept = tuple(
        _among(c, E.select(E.lt(k, position), 0, E.const(1)), items[k : k + 2]) for k in range(count - 1)
    )
    return SequenceValue(sequence.dtype, kept)


def _position(c: Context, index: int, low: int, high: int) -> Expr:
    """A position input, counted from the end where it is negative; `-low` positions are counted so.

    Raises:
        ModelError: it is a number outside of [low, high].
    """
    if low > high:
        raise c.error("the sequence is empty")
    given = c.ints(index, "position", low, high)
    if given is None or len(given) != 1:
        raise c.error(f"the position has {len(given or ())} entries, 1 is needed")
    known = static(given[0])
    if known is None:
        return E.select(E.lt(given[0], 0), given[0] - low, given[0])
    if not low <= known <= high:
        raise c.error(f"position {known} is outside of [{low}, {high}]")
    return E.const(known - low if known < 0 else known)


def _among(c: Context, index: Expr, choices: Sequence[Value]) -> Value:
    """The one of `choices` that a number of the run names; their sizes may differ, but not their ranks."""
    first = choices[0]
    if all(v is first for v in choices):
        return first
    if any(v.rank != first.rank or v.text for v in choices):
        raise c.unsupported(
            "items of several ranks, or of strings, need a position that is known at compile time"
        )

    def pick(parts: Sequence[Expr]) -> Expr:
        result = parts[-1]
        for k in range(len(parts) - 2, -1, -1):
            result = E.select(E.eq(index, k), parts[k], result)
        return result

    sizes = [
        column[0]
        if all(n is column[0] for n in column)
        else c.b.derived(pick(column), reduce(E.maximum, column))
        for column in zip(*(v.shape for v in choices))
    ]
    return c.b.map(sizes, lambda *i: pick([E.load(v, i) for v in choices]))


@container("SplitToSequence")
def split_to_sequence(c: Context) -> SequenceValue:
    """Pieces along an axis: of the given sizes, of one size but for a smaller last one, or single entries."""
    x = c.x
    axis = c.axis(x.rank - x.text)
    size, given = x.shape[axis], c.optional(1)
    if given is not None and given.rank:
        sizes = c.ints(1, "split", 0, size) or []
        rest = sum(sizes, E.const(0)) - size
        if depends_on_data(*sizes):
            c.b.require(E.eq(rest, 0))
        elif static(rest) not in (0, None):
            raise c.error(f"the sizes in split do not add up to {static(size)}, the size of axis {axis}")
    else:
        total = static(size)
        if total is None:
            raise c.unsupported(
                f"the number of items follows from axis {axis}, whose size must be known at compile time;"
                " bind it with shapes"
            )
        chunk = (c.static_ints(1, "split") or [1])[0]
        if chunk < 1:
            raise c.error(f"split is {chunk}, at least 1 is needed")
        sizes = [E.const(min(chunk, total - start)) for start in range(0, total, chunk)]
    pieces, start = [], E.const(0)
    for piece in sizes:
        if given is None and not c.attr("keepdims", 1):
            pieces.append(_entry_of(c, x, axis, start))
        else:
            pieces.append(narrow(c.b, x, axis, start, piece))
        pieces[-1].text = x.text
        start = start + piece
    return SequenceValue(element_type(x), tuple(pieces))


def _entry_of(c: Context, x: Value, axis: int, at: Expr) -> Value:
    """What `x` has at one place of an axis, without that axis."""
    sizes = [n for k, n in enumerate(x.shape) if k != axis]
    return c.b.map(sizes, lambda *i: E.load(x, (*i[:axis], at, *i[axis:])))


@lowering("ConcatFromSequence")
def concat_from_sequence(c: Context) -> Entry:
    """The items one after the other along an axis, or along a new one."""
    items = list(c.sequence(0).items)
    if not items:
        raise c.error("the sequence is empty")
    new = bool(c.attr("new_axis", 0))
    rank = items[0].rank - items[0].text
    if any(v.rank != items[0].rank for v in items):
        raise c.error("the items differ in rank")
    axis = c.normal(c.attr("axis"), rank + new)
    for number, v in enumerate(items):
        for k, (a, b) in enumerate(zip(items[0].shape[:rank], v.shape)):
            if not new and k == axis:
                continue
            if static(a) is not None and static(b) not in (static(a), None):
                raise c.error(f"item {number} has size {static(b)} at axis {k}, item 0 has {static(a)}")
            c.b.require_equal(a, b)
    if new:
        items = [_with_axis(c, v, axis) for v in items]
    concat = Node("Concat", list(c.node.inputs), list(c.node.outputs), {"axis": axis}, c.node.name)
    made = lower_node(c.b, concat, items, c.opset, c.subgraph, c.types)[0]
    assert made is not None
    return made


def _with_axis(c: Context, x: Value, axis: int) -> Value:
    """`x` with a new axis of size 1."""
    sizes = [*x.shape[:axis], E.const(1), *x.shape[axis:]]
    y = c.b.map(sizes, lambda *i: E.load(x, (*i[:axis], *i[axis + 1 :])))
    y.text = x.text
    return y


@container("SequenceMap")
def sequence_map(c: Context) -> list[Entry]:
    """The body once per item of the first sequence, with the items of further ones; other inputs stay."""
    body: Graph = c.attr("body")
    given = [entry for entry in c.given if entry is not None]
    count = len(c.sequence(0).items)
    for number, entry in enumerate(given):
        if isinstance(entry, SequenceValue) and len(entry.items) != count:
            raise c.error(f"input {number} has {len(entry.items)} items, input 0 has {count}")
    columns: list[list[Value]] = [[] for _ in c.node.outputs]
    for k in range(count):
        results = c.subgraph(body, [v.items[k] if isinstance(v, SequenceValue) else v for v in given])
        for column, result in zip(columns, results):
            column.append(c.tensor(result, "a result of the body"))
    return [_collected(c, name, column) for name, column in zip(c.node.outputs, columns)]


def _collected(c: Context, name: str, items: Sequence[Value]) -> SequenceValue:
    """A sequence of `items`; the type of one without items is what is known of `name`."""
    if items:
        return SequenceValue(element_type(items[0]), tuple(items))
    kind = c.types.get(name)
    return SequenceValue(kind.dtype[len("seq(") : -1] if kind is not None else "float32", ())


# --- optionals ---


@container("Optional")
def optional(c: Context) -> OptionalValue:
    """The input as an optional, or an absent one without input."""
    entry = c.entry(0)
    return entry if isinstance(entry, OptionalValue) else OptionalValue(entry)


@container("OptionalHasElement")
def has_element(c: Context) -> Value:
    """Whether the input is there, known at compile time."""
    entry = c.entry(0)
    content = entry.content if isinstance(entry, OptionalValue) else entry
    return c.b.constant(np.array(content is not None))


@container("OptionalGetElement")
def get_element(c: Context) -> Entry:
    """What the optional holds."""
    entry = c.entry(0)
    content = entry.content if isinstance(entry, OptionalValue) else entry
    if content is None:
        raise c.error("the optional is absent")
    return content
