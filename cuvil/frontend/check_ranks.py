"""Ranks and sizes that inputs must have, as tables by operator: what onnx's shape inference does not look at,
because no result's shape follows from it."""

from __future__ import annotations

from cuvil.frontend.check_site import Site
from cuvil.ir.graph import Shape
from cuvil.limits import MAX_RANK

_VECTOR = (1, 1)
_LIST = (0, 1)
"""A vector; one number without an axis is let through."""

_RECURRENT = {i: (rank, rank) for i, rank in enumerate((3, 3, 3, 2, 1, 3, 3, 2))}
"""X, W, R, B, sequence_lens, initial_h, initial_c, P."""

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

RANKS: dict[str, dict[int, tuple[int, int]]] = {
    **{op: {1: _LIST} for op in _REDUCTIONS},
    **{op: _RECURRENT for op in ("RNN", "GRU", "LSTM")},
    "AffineGrid": {0: (3, 3), 1: _VECTOR},
    "ArgMax": {0: (1, MAX_RANK)},
    "ArgMin": {0: (1, MAX_RANK)},
    "CenterCropPad": {1: _VECTOR},
    "Compress": {1: _VECTOR},
    "Conv": {2: _VECTOR},
    "ConvTranspose": {2: _VECTOR},
    "CumProd": {0: (1, MAX_RANK)},
    "CumSum": {0: (1, MAX_RANK)},
    "DeformConv": {3: _VECTOR},
    "Det": {0: (2, MAX_RANK)},
    "EyeLike": {0: (2, 2)},
    "GroupNormalization": {0: (2, MAX_RANK), 1: _VECTOR, 2: _VECTOR},
    "InstanceNormalization": {0: (2, MAX_RANK), 1: _VECTOR, 2: _VECTOR},
    "LRN": {0: (2, MAX_RANK)},
    "MaxRoiPool": {0: (4, 4), 1: (2, 2)},
    "Multinomial": {0: (2, 2)},
    "NegativeLogLikelihoodLoss": {0: (2, MAX_RANK), 2: _VECTOR},
    "NonMaxSuppression": {0: (3, 3), 1: (3, 3)},
    "OneHot": {2: _VECTOR},
    "Pad": {1: _VECTOR, 3: _VECTOR},
    "QLinearConv": {8: _VECTOR},
    "Resize": {1: _VECTOR, 2: _VECTOR, 3: _VECTOR},
    "RoiAlign": {0: (4, 4), 1: (2, 2), 2: _VECTOR},
    "RotaryEmbedding": {0: (3, 4), 3: (2, 2)},
    "STFT": {0: (2, 3), 2: _VECTOR},
    "ScatterND": {0: (1, MAX_RANK), 1: (1, MAX_RANK)},
    "Slice": dict.fromkeys((1, 2, 3, 4), _LIST),
    "SoftmaxCrossEntropyLoss": {0: (2, MAX_RANK), 2: _VECTOR},
    "Split": {1: _VECTOR},
    "SplitToSequence": {1: _LIST},
    "Squeeze": {1: _LIST},
    "Tile": {1: _VECTOR},
    "Unsqueeze": {1: _LIST},
}
"""The least and the largest rank by operator and position of the input."""

SINGLE: dict[str, tuple[int, ...]] = {
    "BlackmanWindow": (0,), "CumProd": (1,), "CumSum": (1,), "DFT": (1, 2), "HammingWindow": (0,),
    "HannWindow": (0,), "MelWeightMatrix": (0, 1, 2, 3, 4), "NonMaxSuppression": (2, 3, 4), "OneHot": (1,),
    "Pad": (2,), "Range": (0, 1, 2), "STFT": (1, 3), "SequenceAt": (1,), "SequenceErase": (1,),
    "SequenceInsert": (2,), "TopK": (1,), "Trilu": (1,),
}  # fmt: skip
"""Inputs of exactly one element and at most one axis."""

SPREAD: dict[str, tuple[int, ...]] = {
    "LayerNormalization": (1, 2), "PRelu": (1,), "RMSNormalization": (1,),
}  # fmt: skip
"""Inputs that must broadcast to the first one."""

PER_LINE: dict[str, dict[int, tuple[int, int]]] = {
    "ConvInteger": {2: (0, -1), 3: (1, 0)},
    "MatMulInteger": {2: (0, -2), 3: (1, -1)},
    "QLinearConv": {1: (0, -1), 4: (3, 0), 6: (0, -1)},
    "QLinearMatMul": {1: (0, -2), 4: (3, -1), 6: (0, -2)},
}
"""Scales and zero points, and the operand and axis each has one number for, unless it has one for all."""

PER_TENSOR = {("ConvInteger", 2), ("QLinearConv", 1), ("QLinearConv", 6)}
"""Those of them that are always one for all."""


def check_ranks(site: Site) -> None:
    """Check the inputs of a node of the default domain against the tables.

    Raises:
        ModelError: a known rank or size breaks a rule.
    """
    op = site.node.op
    if site.node.domain:
        return
    for index, (least, most) in RANKS.get(op, {}).items():
        _rank(site, index, least, most)
    for index in SINGLE.get(op, ()):
        _rank(site, index, 0, 1)
        if site.count(index) not in (None, 1):
            site.fail(f"input {index} has {site.count(index)} elements, one is allowed")
    for index in SPREAD.get(op, ()):
        shape, whole = site.shape(index), site.shape(0)
        if shape is not None and whole is not None and not _broadcasts(shape, whole):
            site.fail(f"input {index} of shape {_text(shape)} does not broadcast to {_text(whole)}")
    _lines(site)
    if op == "CenterCropPad":
        _crop(site)
    if op in ("GatherElements", "ScatterElements"):
        _elements(site)
    if op == "ScatterND":
        _scattered_slices(site)
    if op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        _labels(site)
    if op == "RotaryEmbedding":
        rank = 2 if site.has(3) else 3  # angles by position, or of each batch entry's positions
        _rank(site, 1, rank, rank)
        _rank(site, 2, rank, rank)


def _rank(site: Site, index: int, least: int, most: int) -> None:
    shape = site.shape(index)
    if shape is not None and not least <= len(shape) <= most:
        allowed = f"{least} to {most}" if most < MAX_RANK else f"{least} or more"
        allowed = str(least) if least == most else allowed
        site.fail(f"input {index} has rank {len(shape)}, {allowed} is allowed")


def _broadcasts(shape: Shape, whole: Shape) -> bool:
    """Whether `shape` may be one that broadcasts to `whole`; sizes that are not known may fit."""
    pairs = zip(reversed(shape), reversed(whole))
    return len(shape) <= len(whole) and all(
        a in (1, b) or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs
    )


def _lines(site: Site) -> None:
    """Scales and zero points: one for all, one per row, column or channel, or for those of each matrix."""
    op = site.node.op
    for index, (operand, axis) in PER_LINE.get(op, {}).items():
        found, shape, count = site.shape(index), site.shape(operand), site.count(index)
        if found is None or shape is None or count in (None, 1):
            continue
        size = site.size(operand, axis) if len(shape) > 1 else 1
        stacked = op in ("MatMulInteger", "QLinearMatMul")
        if (op, index) in PER_TENSOR:
            fits = False
        elif len(found) == 1:
            fits = size in (None, count)
        else:
            fits = stacked and len(found) == len(shape) and _broadcasts(found, shape)
        if not fits:
            site.fail(f"input {index} of shape {_text(found)} does not fit input {operand} of {_text(shape)}")


def _crop(site: Site) -> None:
    """A size for each of the axes."""
    shape, axes = site.shape(0), site.attr("axes")
    if shape is not None:
        named = range(len(shape)) if axes is None else site.axes(axes, len(shape))
        site.same("the number of sizes", site.size(1, 0), len(named))


def _elements(site: Site) -> None:
    """Beside the axis, indices reach no further than the data; updates have the shape of the indices."""
    data, indices, updates = (site.shape(i) for i in range(3))
    if data is not None and indices is not None and len(data) == len(indices):
        axis = site.axis(site.attr("axis", 0), len(data))
        for i, (size, count) in enumerate(zip(data, indices)):
            if i != axis and isinstance(size, int) and isinstance(count, int) and count > size:
                site.fail(f"the indices have size {count} at axis {i}, the data has only {size}")
    if indices is not None and updates is not None and not _may_equal(indices, updates):
        site.fail(f"the updates have shape {_text(updates)}, the indices {_text(indices)}")


def _scattered_slices(site: Site) -> None:
    data, indices, updates = (site.shape(i) for i in range(3))
    depth = site.size(1, -1)
    if data is None or indices is None or updates is None or depth is None:
        return
    wanted = (*indices[:-1], *data[depth:])
    if depth > len(data) or not _may_equal(wanted, updates):
        site.fail(f"the updates have shape {_text(updates)}, {_text(wanted)} is expected")


def _labels(site: Site) -> None:
    """Scores [N, C, ...] and labels [N, ...]; a weight for each class."""
    scores, labels = site.shape(0), site.shape(1)
    if scores is not None and labels is not None:
        wanted = (*scores[:1], *scores[2:])
        if not _may_equal(wanted, labels):
            site.fail(f"the labels have shape {_text(labels)}, {_text(wanted)} is expected")
    site.same("the number of weights", site.size(2, 0), site.size(0, 1))


def _may_equal(a: Shape, b: Shape) -> bool:
    """Whether two shapes are equal as far as their sizes are known."""
    known = (x == y for x, y in zip(a, b) if isinstance(x, int) and isinstance(y, int))
    return len(a) == len(b) and all(known)


def _text(shape: Shape) -> str:
    return f"[{', '.join(str(d) if d != '' else '?' for d in shape)}]"
