"""Classic machine learning, the domain ``ai.onnx.ml``: features and linear models.

The specification decides where it speaks; where it is silent, onnxruntime's rule holds.  It is silent on
two classes with one score ``s``: without a transform their scores are (1 - s, s) or (-s, s), as the model's
kind and weights have it (`two_scores`).  onnxruntime itself departs from the specification where it skips
the transform of a single score, and where it returns 0 or 1 instead of a class label.

Tables of labels are in `encoders`, support vector machines in `svm`, trees in `trees`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value, elements, static
from cuvil.ops.characters import capacity, strings
from cuvil.ops.contraction import matmul_value
from cuvil.ops.movement import concat, wrap_index
from cuvil.ops.reduction import first_best, softmax_value
from cuvil.ops.registry import Context, lowering

DOMAIN = "ai.onnx.ml"

Array = npt.NDArray[Any]

# --- what the models share --------------------------------------------------------------------------


def rows(c: Context, dtype: str = "float32") -> Value:
    """Input 0 as a matrix [N, F] of `dtype`; a vector is one row.

    Raises:
        ModelError: it has another rank.
    """
    x = c.x
    if x.rank not in (1, 2):
        raise c.error(f"the input has rank {x.rank}, it must be [N, F] or [F]")
    return c.b.cast(x if x.rank == 2 else c.b.reshape(x, [1, x.shape[0]]), dtype)


def table(c: Context, name: str, length: int | None = None, dtype: str = "float32") -> Array:
    """The attribute `name`, a list of numbers, as a vector; empty where it is omitted.

    Raises:
        ModelError: it is not empty and has another length than `length`.
    """
    array = np.asarray(c.attr(name, []), dtype).reshape(-1)
    if length is not None and array.size not in (0, length):
        raise c.error(f"{name} has {array.size} entries, {length} are needed")
    return array


def matrix(c: Context, name: str, count: int, width: Expr) -> Array:
    """The attribute `name` as a matrix of `count` rows, each as long as the samples.

    Raises:
        ModelError: the length does not fit.
    """
    flat, known = table(c, name), static(width)
    if count < 1 or not flat.size or flat.size % count:
        raise c.error(f"{name} has {flat.size} entries, which do not make {count} rows")
    if known is not None and flat.size != count * known:
        raise c.error(f"{name} has {flat.size} entries, {count} rows of {known} need {count * known}")
    return flat.reshape(count, -1)


def linear(b: Builder, x: Value, weights: Array, bias: Array) -> Value:
    """x W' + bias for samples [N, F] and weights [E, F]; an empty bias is 0."""
    y = matmul_value(b, x, b.constant(np.ascontiguousarray(weights.T)))
    return added(b, y, bias)


def added(b: Builder, y: Value, bias: Array) -> Value:
    """[N, E] plus a row, or plus the only entry of `bias`; an empty one is 0."""
    if not bias.any():
        return y
    row = b.constant(bias.astype(y.dtype))
    return b.map(y.shape, lambda n, e: y[n, e] + (row[e] if bias.size > 1 else row[0]))


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""Values of `post_transform`, in the order in which TreeEnsemble numbers them."""


def transform_of(c: Context) -> str:
    """The attribute `post_transform`.

    Raises:
        ModelError: there is no such transform.
    """
    name = c.attr("post_transform", "NONE")
    name = TRANSFORMS[name] if isinstance(name, int) and 0 <= name < len(TRANSFORMS) else name
    if name not in TRANSFORMS:
        raise c.error(f"post_transform is {name!r}, it must be one of {', '.join(TRANSFORMS)}")
    return str(name)


def transformed(b: Builder, scores: Value, transform: str) -> Value:
    """A post_transform of scores [N, E], each row by itself."""
    if transform == "SOFTMAX":
        return softmax_value(b, scores, 1)
    if transform == "LOGISTIC":
        return b.elementwise(lambda s: E.unary("sigmoid", s), scores)
    if transform == "SOFTMAX_ZERO":
        return _softmax_zero(b, scores)
    return b.elementwise(_probit, scores) if transform == "PROBIT" else scores


def _softmax_zero(b: Builder, scores: Value) -> Value:
    """Softmax in which zeros (below 1e-7) stay zero; a row of zeros becomes halves."""
    largest = b.reduce_axes("max", scores, [1])
    powers = b.elementwise(
        lambda s, m: E.select(E.lt(1e-7, E.unary("abs", s)), E.unary("exp", s - m), s * E.unary("exp", -m)),
        scores,
        largest,
    )
    total = b.reduce_axes("sum", powers, [1])
    return b.elementwise(lambda p, t: E.select(E.eq(t, 0), E.const(0.5, p.dtype), p / t), powers, total)


def _probit(p: Expr) -> Expr:
    """The normal distribution's quantile function sqrt(2) erfinv(2 p - 1), by Winitzki's approximation
    of erfinv with a = 0.147, as onnxruntime and onnx have it."""
    x = p * 2 - 1
    log = E.unary("log", (1 - x) * (1 + x))
    v = log * 0.5 + 2 / (math.pi * 0.147)
    root = E.unary("sqrt", E.unary("sqrt", v * v - log * (1 / 0.147)) - v)
    return E.select(x < 0, -root, root) * math.sqrt(2)


def two_scores(b: Builder, scores: Value, transform: str, complement: bool) -> Value:
    """The scores of two classes [N, 2] from one score [N, 1] of the second, transformed.

    Args:
        complement: without a transform the first is 1 - s, else it is -s.
    """
    one = transform == "PROBIT" or (transform == "NONE" and complement)

    def body(n: Expr, e: Expr) -> Expr:
        s = scores[n, 0]
        return E.select(E.eq(e, 0), 1 - s if one else -s, s)

    return transformed(b, b.map([scores.shape[0], 2], body), transform)


def class_count(c: Context, ints: str) -> int:
    """How many class labels there are, in the attribute `ints` or ``classlabels_strings``.

    Raises:
        ModelError: there are none, or both.
    """
    given = [n for n in (len(c.attr(ints) or []), len(c.attr("classlabels_strings") or [])) if n]
    if len(given) != 1:
        raise c.error(f"exactly one of {ints} and classlabels_strings must be given")
    return given[0]


def labelled(c: Context, index: Value, ints: str) -> Value:
    """The labels of classes given by their index; `ints` names the attribute with integer labels."""
    words = c.attr("classlabels_strings")
    labels = np.array(words, object) if words else table(c, ints, dtype="int64")
    if not words and (labels == np.arange(labels.size)).all():
        return index
    return picked(c.b, c.b.constant(labels), index)


def picked(b: Builder, entries: Value, index: Value) -> Value:
    """Entries of a vector, of numbers or strings, by index."""
    if entries.text:
        return strings(b, index.shape, capacity(entries), lambda *i: entries[index[i[:-1]], i[-1]])
    return b.map(index.shape, lambda *i: entries[index[i]])


def top_class(b: Builder, scores: Value) -> Value:
    """The index of the first largest of scores [N, E], as [N]; within range where a score is no number."""
    best = first_best(b, scores, 1, "max")
    return b.map([scores.shape[0]], lambda n: E.minimum(best[n, 0], scores.shape[1] - 1))


# --- linear models ----------------------------------------------------------------------------------


@lowering("LinearRegressor", domain=DOMAIN)
def linear_regressor(c: Context) -> Value:
    """X W' + intercepts for each target, transformed."""
    x, targets = rows(c), c.attr("targets", 1)
    weights = matrix(c, "coefficients", targets, x.shape[1])
    y = linear(c.b, x, weights, table(c, "intercepts", targets))
    return transformed(c.b, y, transform_of(c))


@lowering("LinearClassifier", domain=DOMAIN)
def linear_classifier(c: Context) -> list[Value]:
    """The class with the largest score X W' + intercepts, and the transformed scores.  One row of
    weights is the score of the second class of two, which wins above 0."""
    b, x, transform = c.b, rows(c), transform_of(c)
    classes, intercepts = class_count(c, "classlabels_ints"), table(c, "intercepts")
    width = static(x.shape[1])
    count = intercepts.size or (table(c, "coefficients").size // width if width else classes)
    if classes < 2 or count not in (classes, 1) or (count == 1 and classes > 2):
        raise c.error(f"{count} rows of coefficients do not fit {classes} classes")
    scores = linear(b, x, matrix(c, "coefficients", count, x.shape[1]), intercepts)
    if count == 1:
        index = b.map([x.shape[0]], lambda n: E.cast(E.lt(0, scores[n, 0]), E.INDEX))
        return [labelled(c, index, "classlabels_ints"), two_scores(b, scores, transform, True)]
    index = top_class(b, scores)
    return [labelled(c, index, "classlabels_ints"), transformed(b, scores, transform)]


# --- features ---------------------------------------------------------------------------------------


@lowering("ArrayFeatureExtractor", domain=DOMAIN, strings=True)
@lowering("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(c: Context) -> Value:
    """Elements of the last axis picked by indices; of a vector, as one row."""
    x, picks = c[0], c[1]
    rank = x.rank - x.text
    if not rank:
        raise c.error("the input is a scalar, it must have at least one axis")
    flat = c.b.reshape(picks, [elements(picks.shape)])
    outer = list(x.shape[: rank - 1]) or [E.const(1)]
    last = x.shape[rank - 1]

    def body(*i: Expr) -> Expr:
        pick = wrap_index(flat[i[len(outer)]], last)
        return x[(*i[: rank - 1], pick, *i[len(outer) + 1 :])]

    if x.text:
        return strings(c.b, [*outer, flat.shape[0]], capacity(x), body)
    return c.b.map([*outer, flat.shape[0]], body)


@lowering("Binarizer", domain=DOMAIN)
def binarizer(c: Context) -> Value:
    """1 where the input is above the threshold, else 0."""
    threshold, dtype = c.attr("threshold", 0.0), c.x.dtype
    wide = dtype if E.is_float(dtype) else "float32"
    return c.b.elementwise(lambda v: E.cast(E.lt(threshold, E.cast(v, wide)), dtype), c.x)


@lowering("Scaler", domain=DOMAIN)
def scaler(c: Context) -> Value:
    """(X - offset) * scale, with one entry each or one per feature."""
    b, wide = c.b, "float64" if c.x.dtype == "float64" else "float32"
    offset, scale = _per_feature(c, "offset", 0, wide), _per_feature(c, "scale", 1, wide)

    def body(*i: Expr) -> Expr:
        return E.cast((E.cast(c.x[i], wide) - _feature(offset, i)) * _feature(scale, i), "float32")

    return b.map(c.x.shape, body)


@lowering("Imputer", domain=DOMAIN)
def imputer(c: Context) -> Value:
    """Elements equal to a given value (or, if that is NaN, all NaN) replaced, by one value or one per
    feature."""
    x = c.x
    floats = bool(c.attr("imputed_value_floats"))
    if floats == bool(c.attr("imputed_value_int64s")):
        raise c.error("exactly one of imputed_value_floats and imputed_value_int64s must be given")
    imputed = _per_feature(c, "imputed_value_floats" if floats else "imputed_value_int64s", 0, x.dtype)
    wanted = c.attr("replaced_value_float", 0.0) if floats else c.attr("replaced_value_int64", 0)

    def body(*i: Expr) -> Expr:
        if wanted != wanted:
            missing = E.unary("isnan", x[i]) if E.is_float(x.dtype) else E.const(False, "bool")
        else:
            missing = E.eq(x[i], E.const(wanted, x.dtype))
        return E.select(missing, _feature(imputed, i), x[i])

    return c.b.map(x.shape, body)


def _per_feature(c: Context, name: str, default: float, dtype: str) -> Value:
    """An attribute with one entry, or one per feature: those of the last axis of input 0."""
    array = table(c, name, dtype=dtype) if c.attr(name) else np.full(1, default, dtype)
    features = static(c.x.shape[-1]) if c.x.rank else None
    if array.size != 1 and features not in (None, array.size):
        raise c.error(f"{name} has {array.size} entries, 1 or {features} are needed")
    return c.b.constant(array)


def _feature(values: Value, i: Sequence[Expr]) -> Expr:
    return values[0] if static(values.shape[0]) == 1 else values[i[-1]]


@lowering("Normalizer", domain=DOMAIN)
def normalizer(c: Context) -> Value:
    """Each row divided by its largest element, the sum of its absolute values or its Euclidean length,
    where that is not zero."""
    norm, b, x = c.attr("norm", "MAX"), c.b, c.b.cast(c.x, "float32")
    if norm not in ("MAX", "L1", "L2"):
        raise c.error(f"norm is {norm!r}, it must be one of MAX, L1, L2")
    if x.rank not in (1, 2):
        raise c.error(f"the input has rank {x.rank}, it must be [N, F] or [F]")
    last = [x.rank - 1]
    if norm == "MAX":
        divisor = b.reduce_axes("max", x, last)
    elif norm == "L1":
        divisor = b.reduce_axes("sum", x, last, f=lambda v: E.unary("abs", v))
    else:
        total = b.reduce_axes("sum", x, last, f=lambda v: v * v)
        divisor = b.elementwise(lambda t: E.unary("sqrt", t), total)
    return b.elementwise(lambda v, d: E.select(E.eq(d, 0), v, v / d), x, divisor)


@lowering("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(c: Context) -> Value:
    """The inputs' rows side by side, each cut or filled with zeros to its length."""
    b, parts = c.b, []
    lengths = c.attr("inputdimensions") or [None] * len(c.inputs)
    if len(lengths) != len(c.inputs):
        raise c.error(f"inputdimensions has {len(lengths)} entries for {len(c.inputs)} inputs")
    for k, length in enumerate(lengths):
        v = c[k]
        flat = b.reshape(v, [1 if v.rank < 2 else v.shape[0], elements(v.shape[min(v.rank - 1, 1) :])])
        parts.append(_resized(b, b.cast(flat, "float32"), length))
    return concat(b, parts, 1)


def _resized(b: Builder, x: Value, length: int | None) -> Value:
    """[N, F] cut or filled with zeros to [N, length]."""
    width = x.shape[1]
    if length is None or static(width) == length:
        return x
    zero = E.const(0, x.dtype)
    return b.map([x.shape[0], length], lambda n, f: E.select(E.lt(f, width), x[n, f], zero))
