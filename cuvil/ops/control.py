"""Control flow: If, Loop and Scan.

A loop whose body is made of maps and reductions becomes a recurrence of the intermediate language: each
value of the body gets a leading axis, the step, and what the body receives from the step before is read one
step back.  Other bodies are written out step by step where their number is known and small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from cuvil import limits
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.containers import Entry, OptionalValue, SequenceValue, kind_of
from cuvil.ir.expr import Expr
from cuvil.ir.graph import Graph
from cuvil.ir.primitives import (
    Input,
    Map,
    Reduce,
    Scan,
    Value,
    definition_loads,
    depends_on_data,
    operands,
    static,
)
from cuvil.ir.printer import show_shape
from cuvil.ops.registry import Context, lowering

MAX_UNROLLED = 64
"""Steps up to which a loop is written out where it cannot become a recurrence."""


@lowering("If")
def if_node(c: Context) -> list[Entry]:
    """One branch where the condition is known; else both are computed and each element is selected."""
    condition = c.x[(0,) * c.x.rank]
    branches: tuple[Graph, Graph] = c.attr("then_branch"), c.attr("else_branch")
    if condition.is_const:
        return c.subgraph(branches[0 if condition.attr else 1])
    yes = _branch(c, condition, branches[0])
    no = _branch(c, E.unary("not", condition), branches[1])
    return [_chosen_entry(c, condition, number, a, b) for number, (a, b) in enumerate(zip(yes, no))]


def _branch(c: Context, condition: Expr, graph: Graph) -> list[Entry]:
    """The results of a branch; where its condition does not hold its values mean nothing, but what makes
    them stays within memory."""
    made = len(c.b.program.values)
    with c.b.given(condition):
        results = c.subgraph(graph)
    numbers = set(c.b.program.derived)
    for v in c.b.program.values[made:]:
        d = v.definition
        if isinstance(d, Map):
            v.definition = Map(d.axes, confined(d.body, numbers))
        elif isinstance(d, Reduce):
            v.definition = Reduce(d.axes, d.reduced, d.op, confined(d.body, numbers))
    return results


def confined(e: Expr, numbers: Collection[Expr]) -> Expr:
    """`e` with the loads on which `numbers` bear kept within their tensors, whatever the numbers are; a load
    from an empty tensor gives 0."""

    def moved(n: Expr) -> Expr | None:
        if n.op != "load" or n.attr.scan is not None:
            return None
        if not any(s in numbers for s in E.walk(*n.args, *n.attr.shape) if s.op == "sym"):
            return None
        at, filled = list(n.args), E.const(True, "bool")
        for k, (i, size) in enumerate(zip(n.args, n.attr.shape)):
            if i.lo < 0 or E.upper_bound(i - size) >= 0:
                at[k] = E.maximum(E.minimum(i, size - 1), 0)
                filled = filled & E.lt(0, size)
        return E.select(filled, E.load(n.attr, at), E.const(0, n.dtype))

    return E.transform(e, moved)


def _chosen_entry(c: Context, condition: Expr, number: int, yes: Entry, no: Entry) -> Entry:
    """`chosen` for any result; sequences item by item."""
    if isinstance(yes, Value) and isinstance(no, Value):
        return chosen(c, condition, number, yes, no)
    if isinstance(yes, SequenceValue) and isinstance(no, SequenceValue):
        if len(yes.items) == len(no.items):
            pairs = zip(yes.items, no.items)
            return SequenceValue(yes.dtype, tuple(chosen(c, condition, number, a, b) for a, b in pairs))
        kinds = f"sequences of {len(yes.items)} and {len(no.items)} items"
    elif isinstance(yes, OptionalValue) and isinstance(no, OptionalValue):
        if yes.content is None and no.content is None:
            return yes
        if yes.content is not None and no.content is not None:
            content = _chosen_entry(c, condition, number, yes.content, no.content)
            assert not isinstance(content, OptionalValue)
            return OptionalValue(content)
        kinds = "an optional that is present in one only"
    else:
        kinds = f"{kind_of(yes)} and {kind_of(no)}"
    raise c.unsupported(
        f"the branches give output {number} {kinds}; the condition must then be known at compile time"
    )


def chosen(c: Context, condition: Expr, number: int, yes: Value, no: Value) -> Value:
    """`yes` where the condition holds, else `no`; their sizes may differ, but not their ranks."""
    if yes is no:
        return yes
    if yes.rank != no.rank or yes.dtype != no.dtype:
        kinds = " and ".join(f"{v.dtype}{show_shape(v.shape)}" for v in (yes, no))
        raise c.unsupported(
            f"the branches give output {number} the types {kinds}; where they differ in rank the condition"
            " must be known at compile time"
        )
    sizes = [
        a if a is b else c.b.derived(E.select(condition, a, b), E.maximum(a, b))
        for a, b in zip(yes.shape, no.shape)
    ]
    return c.b.map(sizes, lambda *i: E.select(condition, E.load(yes, i), E.load(no, i)))


@lowering("Scan")
def scan_node(c: Context) -> list[Entry]:
    """The body once per entry of the scanned axes, in order; states go from step to step."""
    body: Graph = c.attr("body")
    count = c.attr("num_scan_inputs")
    values = [c[i] for i in range(len(c.inputs))]
    states, scanned = values[: len(values) - count], values[len(values) - count :]
    axes = [c.normal(a, x.rank) for a, x in zip(c.attr("scan_input_axes") or [0] * count, scanned)]
    backward = c.attr("scan_input_directions") or [0] * count
    results = len(body.outputs) - len(states)
    out_axes = c.attr("scan_output_axes") or [0] * results
    out_backward = c.attr("scan_output_directions") or [0] * results
    length = _common_length(c, [x.shape[a] for x, a in zip(scanned, axes)])
    loop = _Loop(c, body, length, states)

    def slice_of(x: Value, axis: int, reverse: int) -> _Feed:
        shape = [s for k, s in enumerate(x.shape) if k != axis]

        def element(t: Expr, i: Sequence[Expr]) -> Expr:
            return E.load(x, (*i[:axis], length - 1 - t if reverse else t, *i[axis:]))

        return _Feed(x.dtype, shape, element)

    feeds = [slice_of(*item) for item in zip(scanned, axes, backward)]
    final, stacked = loop.run([], feeds, None)
    made = []
    for y, axis, reverse in zip(stacked, out_axes, out_backward):
        place = c.normal(axis, y.rank)

        def body_of(*i: Expr, y: Value = y, place: int = place, reverse: int = reverse) -> Expr:
            t = length - 1 - i[place] if reverse else i[place]
            return E.load(y, (t, *i[:place], *i[place + 1 :]))

        rest = list(y.shape[1:])
        rest.insert(place, length)
        made.append(c.b.map(rest, body_of) if place or reverse else y)
    return [*final, *made]


def _common_length(c: Context, lengths: Sequence[Expr]) -> Expr:
    """The size that all of `lengths` must have: the known one, or the smallest."""
    length = next((n for n in lengths if static(n) is not None), lengths[0])
    for n in lengths:
        c.b.require_equal(n, length)
        length = length if length.is_const else E.minimum(length, n)
    return length


@lowering("Loop")
def loop_node(c: Context) -> list[Entry]:
    """The body again and again, at most as often as input 0 says and while its condition holds."""
    body: Graph = c.attr("body")
    trips, condition = c.optional(0), c.optional(1)
    states = [entry for entry in c.given[2:] if entry is not None]
    start = E.const(True, "bool") if condition is None else condition[(0,) * condition.rank]
    passes_on = _passes_on(body, body.inputs[1], body.outputs[0])
    asked = None if trips is None else E.maximum(E.cast(trips[(0,) * trips.rank], E.INDEX), 0)
    if asked is None and passes_on:
        c.b.require(E.unary("not", start))
        if start.is_const and start.attr:
            raise c.error("the loop never ends: it has no trip count, and its condition stays true")
        asked = E.const(0)
    endless = asked is None or (asked.is_const and asked.attr > limits.MAX_SYMBOL)
    most: Expr = E.const(limits.DATA_SIZE)
    if asked is not None and not endless:
        if passes_on or (start.is_const and not start.attr):
            asked = E.select(start, asked, E.const(0))
        most = _declared_trips(c, len(states), asked) if passes_on else asked
        most = c.b.derived(most, limits.MAX_SYMBOL)
    loop = _Loop(c, body, most, states, endless)
    number = _Feed(E.INDEX, [E.const(1)] * _rank(body, body.inputs[0]), lambda t, i: t + 0)
    shape = [E.const(1)] * _rank(body, body.inputs[1])
    if passes_on:
        running = _Feed("bool", shape, lambda t, i: E.const(True, "bool"))
        final, stacked = loop.run([number, running], [], None)
    else:
        final, stacked = loop.run([number], [], start)
    return [*final, *stacked]


def _rank(body: Graph, name: str) -> int:
    kind = body.types.get(name)
    return len(kind.shape) if kind is not None and kind.shape is not None else 0


def _declared_trips(c: Context, states: int, trips: Expr) -> Expr:
    """The number of steps, from the declared size of what the loop collects where there is any."""
    for output in range(states, len(c.node.outputs)):
        kind = c.types.get(c.node.outputs[output])
        if kind is not None and kind.shape:
            return c.declared(0, trips, output)
    return trips


def _passes_on(graph: Graph, source: str, result: str) -> bool:
    """`result` is `source`, through Identity nodes alone, or a constant true."""
    producers = graph.producers()
    while result != source:
        if result in graph.constants:
            return bool(graph.constants[result].all())
        node = producers.get(result)
        if node is None or node.op not in ("Identity", "Cast"):
            return False
        result = node.inputs[0]
    return True


class _Feed:
    """What the body receives at each step: `element(t, indices)`."""

    def __init__(
        self, dtype: str, shape: Sequence[Expr], element: Callable[[Expr, Sequence[Expr]], Expr]
    ) -> None:
        self.dtype, self.shape, self.element = dtype, list(shape), element


class _Loop:
    """A body that runs `extent` times over `states`.

    Attributes:
        must_end: the run ends with an error code where the condition still holds after `extent` steps.
    """

    def __init__(
        self, c: Context, body: Graph, extent: Expr, states: Sequence[Entry], must_end: bool = False
    ) -> None:
        self.c, self.b, self.body, self.extent, self.must_end = c, c.b, body, extent, must_end
        self.initial = list(states)
        self.states = [s for s in states if isinstance(s, Value)]

    def run(
        self, before: Sequence[_Feed], after: Sequence[_Feed], start: Expr | None
    ) -> tuple[list[Entry], list[Value]]:
        """The final states, and what each step yields besides, stacked along a new first axis.

        Args:
            before, after: what the body receives in front of the states and behind them.
            start: the condition before the first step, where the body has one that may end the loop: it
                follows `before`, and is the body's first result.

        Raises:
            UnsupportedError: the body can neither be a recurrence nor be written out.
        """
        reason = "a state is a sequence or an optional"
        if len(self.states) == len(self.initial):
            undo = self.b.attempt()
            names = self.body.inputs[len(before) + (start is not None) :]
            self.states = [self._as_declared(s, name) for s, name in zip(self.states, names)]
            made = self._recurrence(before, after, start)
            if not isinstance(made, str):
                return list(made[0]), made[1]
            reason = made
            undo()
        steps = static(self.extent)
        if steps is None:
            raise self.c.unsupported(f"{reason}; the number of steps must then be known at compile time")
        if steps > MAX_UNROLLED:
            raise self.c.unsupported(f"{reason}; such a loop may have {MAX_UNROLLED} steps, not {steps}")
        return self._unrolled(steps, before, after, start)

    def _as_declared(self, state: Value, name: str) -> Value:
        """A state with the sizes that the body declares for its input `name` where else the data decide."""
        kind = self.body.types.get(name)
        shape = kind.shape if kind is not None and kind.shape is not None else state.shape
        pairs = zip(state.shape, shape)
        sizes = [E.const(n) if isinstance(n, int) and depends_on_data(s) else s for s, n in pairs]
        if sizes == list(state.shape):
            return state
        for size, wanted in zip(state.shape, sizes):
            self.b.require_equal(size, wanted)
        return self.b.map(sizes, lambda *i: E.load(state, i))

    # --- as a recurrence ---

    def _recurrence(
        self, before: Sequence[_Feed], after: Sequence[_Feed], start: Expr | None
    ) -> tuple[list[Value], list[Value]] | str:
        """The results, or the reason why the body is no recurrence."""
        b = self.b
        first = len(b.program.values)
        known = len(b.program.derived)
        condition = [_Feed("bool", [], lambda t, i: E.const(True, "bool"))] if start is not None else []
        ahead = [_placeholder(f"step{n}", f.dtype, f.shape) for n, f in enumerate((*before, *condition))]
        carried = [_placeholder(f"state{n}", s.dtype, s.shape) for n, s in enumerate(self.states)]
        sliced = [_placeholder(f"slice{n}", f.dtype, f.shape) for n, f in enumerate(after)]
        results = self._body([*ahead, *carried, *sliced])
        going = results.pop(0) if start is not None else None
        if start is None and self.c.node.op == "Loop":
            results.pop(0)
        inner = b.program.values[first:]
        for old, new in zip(self.states, results):
            if old.dtype != new.dtype or old.shape != new.shape:
                return f"a state goes from {show_shape(old.shape)} to {show_shape(new.shape)}"

        scan = b.scan(self.extent)
        members = [b.member(scan, s.dtype, s.shape) for s in self.states]
        active = b.member(scan, "bool", []) if start is not None else None
        for member in (*members, *([active] if active is not None else [])):
            b.program.values.remove(member)
        lifter = _Lifter(b, scan, inner)
        for p, f in zip((*ahead, *sliced), (*before, *condition, *after)):
            lifter.feeds[p] = f.element

        def previous(member: Value, initial: Value) -> Callable[[Expr, Sequence[Expr]], Expr]:
            return lambda t, i: E.select(E.eq(t, 0), E.load(initial, i), E.load(member, (t - 1, *i)))

        for p, member, initial in zip(carried, members, self.states):
            lifter.feeds[p] = previous(member, initial)
        trouble = lifter.lift(b.program.derived[known:], [*results, *([going] if going is not None else [])])
        if trouble:
            return trouble
        if active is not None and going is not None and start is not None:
            said = E.load(going, (0,) * going.rank)

            def alive(t: Expr) -> Expr:
                return E.select(E.eq(t, 0), start, E.load(active, (t - 1,)) & lifter.at(said, t - 1))

            b.program.values.append(active)
            b.define(active, alive)
            if self.must_end:
                end = self.extent - 1
                b.require(E.unary("not", E.load(active, (end,)) & lifter.at(said, end)))
        self._check(scan, lifter, active)
        for member, result, p in zip(members, results, carried):

            def state(t: Expr, *i: Expr, result: Value = result, p: Value = p) -> Expr:
                new = lifter.at(E.load(result, i), t)
                if active is None:
                    return new
                return E.select(E.load(active, (t,)), new, lifter.feeds[p](t, i))

            b.program.values.append(member)
            b.define(member, state)
        stacked = [self._collected(scan, lifter, y, active) for y in results[len(members) :]]
        return [self._final(s, m) for s, m in zip(self.states, members)], stacked

    def _check(self, scan: Scan, lifter: _Lifter, active: Value | None) -> None:
        """The run ends with an error code where a number of a step that ran is outside its limits."""
        b = self.b
        if not lifter.numbers:
            return
        failed = b.member(scan, "bool", [])

        def outside(t: Expr) -> Expr:
            found = E.const(False, "bool")
            for symbol, value in lifter.numbers.items():
                number, most = lifter.at(E.load(value, ()), t), lifter.at(symbol.args[1], t)
                found = found | E.lt(number, int(symbol.lo)) | E.lt(most, number)
            if active is not None:
                found = found & E.load(active, (t,))
            return E.select(E.eq(t, 0), found, E.load(failed, (t - 1,)) | found)

        b.define(failed, outside)
        last = E.unary("not", E.load(failed, (self.extent - 1,)))
        b.require(E.select(E.eq(self.extent, 0), E.const(True, "bool"), last))

    def _body(self, inputs: Sequence[Value]) -> list[Value]:
        """The results of a body that makes tensors of tensors."""
        made = self.c.subgraph(self.body, inputs)
        return [self.c.tensor(entry, f"result {n} of the body") for n, entry in enumerate(made)]

    def _final(self, initial: Value, member: Value) -> Value:
        """The state after the last step."""
        return self.b.map(
            initial.shape,
            lambda *i: E.select(
                E.eq(self.extent, 0), E.load(initial, i), E.load(member, (self.extent - 1, *i))
            ),
        )

    def _collected(self, scan: Scan, lifter: _Lifter, y: Value, active: Value | None) -> Value:
        """What all steps that ran yield."""
        b = self.b
        member = b.member(scan, y.dtype, y.shape)
        b.define(member, lambda t, *i: lifter.at(E.load(y, i), t))
        count = self.extent
        if active is not None:
            ran = b.reduce("sum", [], [self.extent], lambda i, r: E.cast(E.load(active, r), E.INDEX))
            count = b.derived(E.load(ran, ()), self.extent)
        return b.map([count, *y.shape], lambda *i: E.load(member, i))

    # --- written out ---

    def _unrolled(
        self, steps: int, before: Sequence[_Feed], after: Sequence[_Feed], start: Expr | None
    ) -> tuple[list[Entry], list[Value]]:
        b, states = self.b, list(self.initial)
        outputs: list[list[Value]] = []
        unknown = "the condition of a loop that is written out must be known at compile time"
        if start is not None and not (start.is_const and start.attr):
            raise self.c.unsupported(unknown)
        collected = len(self.body.outputs) - len(states) - (self.c.node.op == "Loop")
        for step in range(max(steps, min(collected, 1))):  # one that is not taken shows the results' sizes

            def value(f: _Feed, step: int = step) -> Value:
                return b.map(f.shape, lambda *i: f.element(E.const(step), i))

            running = [b.constant(np.ones((), bool))] if start is not None else []
            results = self.c.subgraph(self.body, [*map(value, before), *running, *states, *map(value, after)])
            if self.c.node.op == "Loop":
                condition = self.c.tensor(results.pop(0), "the condition")
                if start is not None:
                    going = condition[(0,) * condition.rank]
                    if not going.is_const:
                        raise self.c.unsupported(unknown)
                    steps = steps if going.attr else step + 1
            outputs.append([self.c.tensor(y, "what a step yields") for y in results[len(states) :]])
            if not steps:
                break
            states = results[: len(states)]
            if step + 1 == steps:
                break
        stacked = []
        for column in zip(*outputs):

            def body(t: Expr, *i: Expr, column: Sequence[Value] = column) -> Expr:
                result = E.load(column[-1], i)
                for k in range(len(column) - 2, -1, -1):
                    result = E.select(E.eq(t, k), E.load(column[k], i), result)
                return result

            for y in column[1:]:
                if any(static(m) != static(n) for m, n in zip(column[0].shape, y.shape)):
                    raise self.c.error("what the steps yield differs in size")
                for m, n in zip(column[0].shape, y.shape):
                    b.require_equal(m, n)
            stacked.append(b.map([steps, *column[0].shape], body))
        return states, stacked


def _placeholder(name: str, dtype: str, shape: Sequence[Expr]) -> Value:
    """Stands for what the body receives while it is lowered."""
    return Value(name, dtype, tuple(shape), Input())


class _Lifter:
    """Gives the values of a loop's body a leading axis, the step.

    Attributes:
        feeds: the element of a placeholder at a step.
    """

    def __init__(self, b: Builder, scan: Scan, inner: Sequence[Value]) -> None:
        self.b, self.scan, self.inner = b, scan, list(inner)
        self.feeds: dict[Value, Callable[[Expr, Sequence[Expr]], Expr]] = {}
        self.members: dict[Value, Value] = {}
        self.bodies: dict[Value, Map] = {}
        self.numbers: dict[Expr, Value] = {}

    def lift(self, derived: Sequence[Expr], results: Sequence[Value]) -> str:
        """Define a member for each value that depends on the step; the reason where one cannot be."""
        moving: set[Value] = set(self.feeds)
        ordered = []
        for v in self.inner:
            if any(s in moving for s in operands(v)):
                moving.add(v)
                ordered.append(v)
        self.numbers = {s: s.args[0].attr for s in derived if s.args[0].attr in moving}
        for s in self.numbers:
            self.b.program.derived.remove(s)
        uses: dict[Value, int] = {}
        for v in ordered:
            for e in definition_loads(v):
                uses[e.attr] = uses.get(e.attr, 0) + (1 if isinstance(v.definition, Map) else 2)
        pinned = {*results, *self.numbers.values()}
        for v in ordered:
            self.b.program.values.remove(v)
        for v in ordered:
            d = v.definition
            if not isinstance(d, (Map, Reduce)) or v.scan is not None:
                return f"its body has '{v.name}', which is no map or reduction"
            changing = any(s in self.numbers for n in v.shape for s in E.walk(n))
            if isinstance(d, Map) and (
                changing or (v not in pinned and (d.body.op == "load" or uses.get(v, 0) <= 1))
            ):
                self.bodies[v] = d
                continue
            extents = [r.args[0] for r in d.reduced] if isinstance(d, Reduce) else []
            if changing or any(s in self.numbers for n in extents for s in E.walk(n)):
                return f"its body has '{v.name}', whose size changes from step to step"
            member = self.b.member(self.scan, v.dtype, v.shape)
            self.members[v] = member
            if isinstance(d, Map):

                def body(t: Expr, *i: Expr, d: Map = d) -> Expr:
                    return self.at(E.substitute(d.body, dict(zip(d.axes, i))), t)

                self.b.define(member, body)
            else:
                self.b.define(member, self._reduction(d), d.op, extents)
        return ""

    def _reduction(self, d: Reduce) -> Callable[..., Expr]:
        def body(at: tuple[Expr, ...], inner: tuple[Expr, ...]) -> Expr:
            mapping = {**dict(zip(d.axes, at[1:])), **dict(zip(d.reduced, inner))}
            return self.at(E.substitute(d.body, mapping), at[0])

        return body

    def at(self, e: Expr, t: Expr) -> Expr:
        """An expression of the body at step `t`."""

        def moved(n: Expr) -> Expr | None:
            if n.op == "sym" and n in self.numbers:
                number = self.at(E.load(self.numbers[n], ()), t)
                return E.maximum(E.minimum(number, self.at(n.args[1], t)), int(n.lo))
            if n.op != "load":
                return None
            source = n.attr
            if source in self.feeds:
                return self.feeds[source](t, n.args)
            if source in self.bodies:
                d = self.bodies[source]
                return self.at(E.substitute(d.body, dict(zip(d.axes, n.args))), t)
            return E.load(self.members[source], (t, *n.args)) if source in self.members else None

        return E.transform(confined(e, self.numbers) if self.numbers else e, moved)
