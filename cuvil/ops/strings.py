"""Operators on strings; a string tensor's last axis holds the bytes of an element (`cuvil.ir.text`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.builder import broadcast_load, broadcast_shapes, flatten, unflatten
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, If, Stmt, Store, While
from cuvil.ir.primitives import Value, elements, static
from cuvil.ops import regex
from cuvil.ops.characters import (
    NUL,
    Local,
    byte,
    capacity,
    change_case,
    changed,
    each,
    find,
    length,
    search,
    strings,
)
from cuvil.ops.registry import ON_STRINGS, OPERATORS, Context, lowering


def _string(c: Context, index: int = 0) -> Value:
    """Input `index`, which must be a string tensor."""
    value = c[index]
    if not value.text:
        raise c.error(f"input {index} has type {value.dtype}, string is expected")
    return value


@lowering("Equal", strings=True)
def equal(c: Context) -> Value:
    """Whether strings are the same, byte by byte."""
    a, b = _string(c, 0), _string(c, 1)
    shape = broadcast_shapes(a.shape[:-1], b.shape[:-1])
    width = max(capacity(a), capacity(b))
    return c.b.reduce("all", shape, [width], lambda i, w: E.eq(byte(a, i, w[0]), byte(b, i, w[0])))


@lowering("StringConcat", strings=True)
def concat(c: Context) -> Value:
    """One string behind the other."""
    a, b = _string(c, 0), _string(c, 1)
    first = length(c.b, a)
    shape = broadcast_shapes(a.shape[:-1], b.shape[:-1])

    def body(*i: Expr) -> Expr:
        *at, w = i
        n = broadcast_load(first, at)
        return E.select(E.lt(w, n), byte(a, at, w), byte(b, at, w - n))

    return strings(c.b, shape, capacity(a) + capacity(b), body)


@lowering("StringSplit", strings=True)
def split(c: Context) -> list[Value]:
    """The pieces of each string between delimiters, filled up with empty strings, and how many there are;
    without a delimiter runs of white space divide, at the ends they are dropped."""
    x = _string(c)
    delimiter = str(c.attr("delimiter") or "").encode()
    limit = c.attr("maxsplit")
    most = capacity(x) // len(delimiter) + 1 if delimiter else (capacity(x) + 1) // 2
    if limit is not None and limit >= 0:
        most = min(most, limit + 1)
    shape, width = x.shape[:-1], capacity(x)

    def body(starts: Value, ends: Value, counts: Value) -> Sequence[Stmt]:
        here, start, end, count = Local("here"), Local("start"), Local("end"), Local("count")

        def element(*at: Expr) -> Sequence[Stmt]:
            close = (
                Store(starts, (*at, count.now), start.now),
                Store(ends, (*at, count.now), end.now),
                count.set(count.now + 1),
            )
            may_split, more = E.lt(count.now, most - 1), E.ne(byte(x, at, here.now), NUL)
            if delimiter:
                match = may_split
                for k, code in enumerate(delimiter):
                    match = match & E.eq(byte(x, at, here.now + k), E.const(code, "uint8"))
                after = here.now + len(delimiter)
                step: Stmt = If(
                    match,
                    (end.set(here.now), *close, start.set(after), here.set(after)),
                    (here.set(here.now + 1),),
                )
                loop: tuple[Stmt, ...] = (start.set(0), While(more, (step,)), end.set(here.now), *close)
            else:
                space, inside = _white(x, at, here.now), E.le(0, start.now)
                step = If(
                    E.lt(0, space),
                    (If(inside & may_split, (*close, start.set(-1))), here.set(here.now + space)),
                    (
                        If(E.lt(start.now, 0), (start.set(here.now),)),
                        here.set(here.now + 1),
                        end.set(here.now),
                    ),
                )
                loop = (start.set(-1), end.set(0), While(more, (step,)), If(inside, close))
            return [here.set(0), count.set(0), *loop, Store(counts, at, count.now)]

        return [*(v.declaration for v in (here, start, end, count)), *each(shape, element)]

    bounds = (*shape, E.const(most))
    starts, ends, counts = c.b.opaque([x], [(E.INDEX, bounds), (E.INDEX, bounds), (E.INDEX, shape)], body)
    largest = c.b.reduce("max", [], shape, lambda _, i: counts[i]) if shape else counts
    pieces = c.b.derived(E.maximum(largest[()], 0), most)

    def substring(*i: Expr) -> Expr:
        *at, piece, w = i
        first = E.load(starts, (*at, piece))
        valid = E.lt(piece, counts[tuple(at)]) & E.lt(w, E.load(ends, (*at, piece)) - first)
        return E.select(valid, byte(x, at, first + w), NUL)

    return [strings(c.b, (*shape, pieces), width, substring), counts]


def _white(x: Value, at: Sequence[Expr], position: Expr) -> Expr:
    """The bytes of the white space (Unicode's) at a position of an element, 0 where there is none."""
    result = E.const(0)
    for size in (3, 2, 1):
        spaces = [s for s in map(str.encode, SPACES) if len(s) == size]
        for space in spaces:
            here = E.const(True, "bool")
            for k, code in enumerate(space):
                here = here & E.eq(byte(x, at, position + k), E.const(code, "uint8"))
            result = E.select(here, E.const(size), result)
    return result


SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
"""The characters with Unicode's property White_Space."""


@lowering("StringNormalizer", strings=True)
def normalizer(c: Context) -> Value:
    """The strings [C] or [1, C] without stop words, in another case.

    As in onnxruntime stop words are compared in the case asked for, in lower case where none is, an element
    is dropped where the whole of it is one, and the locale C knows letters of ASCII only.
    """
    x = _string(c)
    action, language = c.attr("case_change_action", "NONE"), c.attr("locale", "en_US")
    if action not in ("NONE", "LOWER", "UPPER"):
        raise c.error(f"case_change_action is {action!r}; NONE, LOWER and UPPER are allowed")
    if language.split(".")[0] not in ("", "C", "en_US"):
        raise c.unsupported(f"locale {language!r} is not supported; en_US and C are")
    if x.rank - 1 not in (1, 2) or (x.rank == 3 and static(x.shape[0]) != 1):
        raise c.error("the input must have shape [C] or [1, C]")
    upper, ascii_only = action == "UPPER", language in ("", "C")
    y = x if action == "NONE" else change_case(c.b, x, upper, ascii_only)
    compared, words = x, list(c.attr("stopwords") or [])
    if not words:
        return y
    if not c.attr("is_case_sensitive", 0):
        compared = change_case(c.b, x, upper, ascii_only) if action == "NONE" else y
        words = [changed(word, upper, ascii_only) for word in words]
    stops = find(c.b, compared, words)
    size = x.shape[-2]
    head = [E.const(0)] * (x.rank - 2)

    def body(kept: Value, count: Value) -> Sequence[Stmt]:
        n = Local("n")

        def element(i: Expr) -> Sequence[Stmt]:
            keep = (Store(kept, (n.now,), i), n.set(n.now + 1))
            return [If(E.lt(stops[(*head, i)], 0), keep)]

        return [n.declaration, n.set(0), *each([size], element), Store(count, (), n.now)]

    kept, count = c.b.opaque([stops], [(E.INDEX, [size]), (E.INDEX, [])], body)
    left = c.b.derived(E.maximum(count[()], 1), E.maximum(size, 1))

    def survivor(*i: Expr) -> Expr:
        *_, k, w = i
        return E.select(E.lt(k, count[()]), byte(y, (*head, E.load(kept, (k,))), w), NUL)

    return strings(c.b, (*x.shape[:-2], left), capacity(y), survivor)


@lowering("RegexFullMatch", strings=True)
def regex_full_match(c: Context) -> Value:
    """Whether the whole of each string matches a pattern: a walk through its automaton's table."""
    x, pattern = _string(c), c.attr("pattern")
    if pattern is None:
        raise c.error("attribute pattern is missing")
    found = regex.automaton(pattern)
    kinds, steps = found.classes.copy(), found.table
    stay = np.arange(len(steps), dtype=steps.dtype)[:, None]
    if kinds[0] in kinds[1:]:
        kinds[0], steps = steps.shape[1], np.hstack([steps, stay])
    else:
        steps[:, kinds[:1]] = stay
    classes, table, accepting = map(c.b.constant, (kinds, steps, found.accepting))

    def body(y: Value) -> Sequence[Stmt]:
        state = Local("state")

        def element(*at: Expr) -> Sequence[Stmt]:
            def step(w: Expr) -> Sequence[Stmt]:
                kind = E.load(classes, (E.cast(byte(x, at, w), E.INDEX),))
                return [state.set(E.cast(E.load(table, (state.now, E.cast(kind, E.INDEX))), E.INDEX))]

            walk = each([E.const(capacity(x))], step)
            return [state.set(found.start), *walk, Store(y, at, E.load(accepting, (state.now,)))]

        return [state.declaration, *each(x.shape[:-1], element)]

    (y,) = c.b.opaque([x, classes, table, accepting], [("bool", x.shape[:-1])], body)
    return y


# --- whole elements ---------------------------------------------------------------------------------


@lowering(
    "Compress", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Reshape",
    "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
    strings=True,
)  # fmt: skip
def move(c: Context) -> list[Value | None]:
    """What only moves elements is done with their numbers, and moves the strings at the end."""
    sources = list(dict.fromkeys(v for v in c.inputs if v is not None and v.text))
    firsts: list[Expr] = [E.const(0)]
    numbers: dict[Value, Value] = {}
    for x in sources:
        shape, first = x.shape[:-1], firsts[-1]
        numbers[x] = c.b.map(shape, lambda *i, first=first, shape=shape: first + flatten(i, shape))
        firsts.append(first + elements(shape))
    inputs = [v if v is None else numbers.get(v, v) for v in c.inputs]
    made = _on_elements(c, inputs)

    def moved(places: Value) -> Value:
        def body(*i: Expr) -> Expr:
            *at, w = i
            number = places[tuple(at)]
            result = NUL
            for x, first, after in reversed(list(zip(sources, firsts, firsts[1:]))):
                here = byte(x, unflatten(number - first, x.shape[:-1]), w)
                result = here if x is sources[-1] else E.select(E.lt(number, after), here, result)
            return result

        return strings(c.b, places.shape, max(map(capacity, sources)), body)

    return [None if v is None else moved(v) for v in made]


@lowering("Shape", "Size", strings=True)
def size(c: Context) -> list[Value | None]:
    """Sizes, of the elements' tensor."""
    return _on_elements(c, [c.b.map(c.x.shape[:-1], lambda *i: E.const(0))])


def _on_elements(c: Context, inputs: Sequence[Value | None]) -> list[Value | None]:
    """What the operator makes of `inputs`, none of which is a string tensor."""
    plain = OPERATORS["", c.node.op]
    if plain is ON_STRINGS["", c.node.op]:
        raise c.unsupported(f"operator {c.node.op} is not supported")
    other = copy.copy(c)
    other.given = list(inputs)
    made = plain.lower(other)
    outputs = made if isinstance(made, Sequence) else [made]
    return [None if v is None else c.tensor(v, f"output {n}") for n, v in enumerate(outputs)]


# --- n-grams ----------------------------------------------------------------------------------------


@lowering("TfIdfVectorizer")
def vectorizer(c: Context) -> Value:
    """How often the n-grams of a pool occur in each row of integers or strings.

    Skips make other bigrams and longer, but no other unigrams.  A weight belongs to an n-gram of the pool,
    as in the standard's text and onnxruntime; the reference evaluator takes it for one of the output.
    """
    return _count_grams(c, c.x, c.attr("pool_int64s"), "pool_int64s")


@lowering("TfIdfVectorizer", strings=True)
def string_vectorizer(c: Context) -> Value:
    """Strings are counted as their numbers among the pool's words."""
    words: list[str] | None = c.attr("pool_strings")
    number = {word: k for k, word in enumerate(dict.fromkeys(words or ()))}
    pool = None if words is None else [number[word] for word in words]
    return _count_grams(c, find(c.b, _string(c), list(number)), pool, "pool_strings")


def _count_grams(c: Context, x: Value, pool: Sequence[int] | None, name: str) -> Value:
    if pool is None:
        raise c.error(f"attribute {name} is missing")
    mode, weights, places = c.attr("mode"), c.attr("weights"), c.attr("ngram_indexes") or []
    if mode not in ("TF", "IDF", "TFIDF"):
        raise c.error(f"mode is {mode!r}; TF, IDF and TFIDF are allowed")
    if x.rank not in (1, 2) or not places or min(places) < 0:
        raise c.error("the input must have shape [C] or [N, C], and ngram_indexes be at least 0")
    if weights and len(weights) != len(places):
        raise c.error(f"{len(weights)} weights do not fit {len(places)} n-grams")
    tables = _tables(c, list(pool), places)
    rows, size, columns = x.shape[:-1], x.shape[-1], max(places) + 1
    skips = int(c.attr("max_skip_count", 0))
    constants = {n: (c.b.constant(grams), c.b.constant(at)) for n, (grams, at) in tables.items()}

    def body(y: Value) -> Sequence[Stmt]:
        low = Local("low")

        def count(n: int, *at: Expr) -> Sequence[Stmt]:
            grams, targets = constants[n]
            *row, skip, start = at
            total = static(grams.shape[0]) or 0
            window = [E.cast(E.load(x, (*row, start + (skip + 1) * k)), E.INDEX) for k in range(n)]

            def below(entry: Expr) -> tuple[Sequence[Stmt], Expr]:
                result = E.const(False, "bool")
                for k in reversed(range(n)):
                    theirs = E.load(grams, (entry, E.const(k)))
                    result = E.lt(theirs, window[k]) | (E.eq(theirs, window[k]) & result)
                return [], result

            found = E.lt(low.now, total)
            for k in range(n):
                found = found & E.eq(E.load(grams, (low.now, E.const(k))), window[k])
            hit = Accumulate(y, (*row, E.load(targets, (low.now,))), "sum", E.const(1, "float32"))
            inside = E.lt(start + (skip + 1) * (n - 1), size)
            return [If(inside, (*search(total, low, below), If(found, (hit,))))]

        loops = [
            low.declaration,
            *each([*rows, E.const(columns)], lambda *i: [Store(y, i, E.const(0, "float32"))]),
        ]
        for n in constants:
            distances = E.const(1 if n == 1 else skips + 1)
            loops += each([*rows, distances, size], lambda *i, n=n: count(n, *i))
        return loops

    sources = [x, *(v for pair in constants.values() for v in pair)]
    (counts,) = c.b.opaque(sources, [("float32", (*rows, E.const(columns)))], body)
    if mode == "TF":
        return counts
    scale = np.ones(columns, np.float32)
    if weights:
        scale[places] = weights
    factors = c.b.constant(scale)
    one = E.const(1, "float32")
    return c.b.elementwise(lambda n, w: (E.minimum(n, one) if mode == "IDF" else n) * w, counts, factors)


def _tables(c: Context, pool: list[int], places: Sequence[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By n of those counted: the n-grams [count, n] in order, and the output's place of each."""
    starts = c.attr("ngram_counts") or []
    ends = [*starts[1:], len(pool)]
    least, most = c.attr("min_gram_length", 1), c.attr("max_gram_length", 1)
    tables = {}
    done = 0
    for n, (start, end) in enumerate(zip(starts, ends), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % n:
            raise c.error(f"ngram_counts gives the {n}-grams items {start} to {end} of a pool of {len(pool)}")
        grams = np.array(pool[start:end], np.int64).reshape(-1, n)
        at = np.array(places[done : done + len(grams)], np.int64)
        done += len(grams)
        if len(at) < len(grams):
            raise c.error(f"{len(places)} ngram_indexes are fewer than the n-grams of the pool")
        if len(grams) and least <= n <= most:
            order = np.lexsort(grams.T[::-1])
            tables[n] = grams[order], at[order]
    return tables
