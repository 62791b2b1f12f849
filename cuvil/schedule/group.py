"""Fusion groups: the values that one kernel computes.

Members of a group share their first `shared` axes: at each point of that domain every member
computes its own slice, in order, so what passes between them stays in registers or in the first
cache.  An epilogue shares all axes with its convolution; softmax shares the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cuvil.ir.expr import product
from cuvil.ir.primitives import (
    Constant,
    Input,
    Map,
    Opaque,
    Program,
    Reduce,
    Value,
    definition_loads,
    elements,
    operands,
    static,
)  # fmt: skip
from cuvil.schedule.fuse import is_contraction

MAX_SLICE = 8192
"""Elements of one member's slice beyond which sharing outer loops gains nothing."""


@dataclass(eq=False)
class Group:
    """Values computed by one kernel, in order; all share their first `shared` axes.

    Attributes:
        serial: in a recurrence the first axis is a sequence of steps, not independent iterations.
        beside: the recurrences that it consists of where it has several, which threads may share.
    """

    members: list[Value]
    shared: int
    serial: bool = False
    beside: tuple[Group, ...] = ()

    @property
    def anchor(self) -> Value:
        """The member whose axes name the outer loops: the last one."""
        return self.members[-1]

    @property
    def contraction(self) -> Value | None:
        return next((v for v in self.members if is_contraction(v)), None)

    @property
    def is_pointwise(self) -> bool:
        """All members share all axes."""
        return all(v.rank == self.shared for v in self.members)


def shared_axes(source: Value, reader: Value) -> int:
    """How many leading axes agree wherever `reader` reads `source`."""
    d = reader.definition
    if not isinstance(d, (Map, Reduce)):
        return 0
    count = min(source.rank, reader.rank)
    for e in definition_loads(reader):
        if e.attr is not source:
            continue
        agree = 0
        while agree < count:
            size = reader.shape[agree]
            same = e.args[agree] is d.axes[agree] or (static(size) == 1 and e.args[agree].is_const)
            if not same or source.shape[agree] is not size:
                break
            agree += 1
        count = min(count, agree)
    return count


class Grouper:
    """Merges single values into groups, producers into consumers, first to last.

    Attributes:
        readers: the values that read each value.
        sources, later: what each value depends on and what depends on it, where values that need
            no group (views, padded hosts) are looked through.
    """

    def __init__(self, program: Program, skip: Iterable[Value] = ()) -> None:
        self.program = program
        ignored = set(skip)
        self.group_of: dict[Value, Group] = {}
        self.position = {v: i for i, v in enumerate(program.values)}
        self.outputs = set(program.outputs)
        scans: dict[int, Group] = {}
        opaque: dict[int, Group] = {}
        self.groups: list[Group] = []
        for value in program.values:
            d = value.definition
            if isinstance(d, (Input, Constant)) or value in ignored:
                continue
            shared = value.rank if isinstance(d, (Map, Reduce)) else 0
            group = None
            if value.scan is not None:
                group = scans.get(id(value.scan))
            elif isinstance(d, Opaque):
                group = opaque.get(id(d))
            if group is not None:
                group.members.append(value)
            else:
                group = Group([value], 1 if value.scan else shared, serial=value.scan is not None)
                self.groups.append(group)
                if value.scan is not None:
                    scans[id(value.scan)] = group
                elif isinstance(d, Opaque):
                    opaque[id(d)] = group
            self.group_of[value] = group
        self.readers: dict[Value, list[Value]] = {v: [] for v in program.values}
        self.sources: dict[Value, list[Value]] = {}
        for value in program.values:
            through = (self.sources[s] if s in ignored else [s] for s in operands(value))
            self.sources[value] = list(dict.fromkeys([s for part in through for s in part]))
            for source in operands(value):
                self.readers[source].append(value)
        self.later: dict[Value, list[Value]] = {v: [] for v in program.values}
        for value, sources in self.sources.items():
            if value not in ignored:
                for source in sources:
                    self.later[source].append(value)

    def run(self) -> list[Group]:
        for value in list(self.program.values):
            group = self.group_of.get(value)
            if group is None or not isinstance(value.definition, (Map, Reduce)):
                continue
            for reader in self.readers[value]:
                other = self.group_of.get(reader)
                if other is None or other is self.group_of[value]:
                    continue
                shared = self._mergeable(self.group_of[value], other)
                if shared:
                    self._merge(self.group_of[value], other, shared)
        return self._side_by_side(self._ordered())

    def _mergeable(self, first: Group, second: Group) -> int:
        """The number of shared axes of the merged group, 0 where they must stay apart."""
        if first.serial or second.serial:
            return 0
        if any(not isinstance(v.definition, (Map, Reduce)) for v in (*first.members, *second.members)):
            return 0
        shared = min(first.shared, second.shared)
        for reader in second.members:
            direct = operands(reader)
            for source in self.sources[reader]:
                if source in first.members and source not in direct:
                    return 0  # read through a padded host or a view
                if source in first.members:
                    shared = min(shared, shared_axes(source, reader))
        if shared < 1:
            return 0
        members = [*first.members, *second.members]
        contractions = [v for v in members if is_contraction(v)]
        if contractions:
            anchor = second.anchor
            same = all(v.shape == anchor.shape for v in members) and shared == anchor.rank
            alone = all(v is contractions[0] or isinstance(v.definition, Map) for v in members)
            if len(contractions) > 1 or contractions[0] not in first.members or not same or not alone:
                return 0
        reductions = [v for v in members if isinstance(v.definition, Reduce)]
        if not reductions and any(v.shape != second.anchor.shape for v in members):
            return 0
        for v in members:
            inner = static(elements(v.shape[shared:]))
            if shared < v.rank - 1 and (inner is None or inner > MAX_SLICE):
                return 0
            if isinstance(v.definition, Reduce) and inner != 1 and len(members) > 1:
                summed = static(elements(v.shape[shared:]) * product(r.args[0] for r in v.definition.reduced))
                if summed is not None and summed > MAX_SLICE:
                    return 0  # its sums alone are a kernel's work, best done over its own axes
        if any(v.shape[:shared] != second.anchor.shape[:shared] for v in members):
            return 0
        if self._path_between(first, second):
            return 0
        return shared

    def _path_between(self, first: Group, second: Group) -> bool:
        """`second` depends on `first` through a third group (merging would make a cycle)."""
        last = max(self.position[v] for v in second.members)
        stack = [r for v in first.members for r in self.later[v]]
        seen: set[Group] = {first}
        while stack:
            group = self.group_of.get(stack.pop())
            if group is None or group in seen or group is second:
                continue
            seen.add(group)
            for v in group.members:
                for r in self.later[v]:
                    target = self.group_of.get(r)
                    if target is second:
                        return True
                    if self.position[r] <= last:
                        stack.append(r)
        return False

    def _merge(self, first: Group, second: Group, shared: int) -> None:
        members = sorted({*first.members, *second.members}, key=self.position.__getitem__)
        second.members, second.shared = members, shared
        for v in members:
            self.group_of[v] = second
        self.groups.remove(first)

    def _ordered(self) -> list[Group]:
        """Groups so that what one reads is computed before it; ties in the program's order."""
        done: set[Group] = set()
        result: list[Group] = []
        for start in sorted(self.groups, key=lambda g: self.position[g.anchor]):
            stack = [start]
            while stack:
                group = stack[-1]
                if group in done:
                    stack.pop()
                    continue
                pending = []
                for v in group.members:
                    for source in self.sources[v]:
                        other = self.group_of.get(source)
                        if other is not None and other is not group and other not in done:
                            pending.append(other)
                if pending:
                    stack.extend(pending)
                    continue
                done.add(group)
                result.append(group)
                stack.pop()
        return result

    def _side_by_side(self, groups: list[Group]) -> list[Group]:
        """Groups in order, with a recurrence that depends on nothing from an earlier one on, such as the
        other direction of a layer, as part of that one."""
        result: list[Group] = []
        place: dict[Group, int] = {}
        for group in groups:
            sources = {s for v in group.members for s in self.sources[v]} - {*group.members}
            after = [place[self.group_of[s]] for s in sources if s in self.group_of]
            later = range(max(after, default=-1) + 1, len(result)) if group.serial else range(0)
            found = next((i for i in later if result[i].serial), len(result))
            place[group] = found
            if found == len(result):
                result.append(group)
                continue
            parts = (*(result[found].beside or (result[found],)), group)
            result[found] = Group([v for g in parts for v in g.members], 1, True, parts)
        return result


def internal(group: Group, readers: dict[Value, list[Value]], outputs: set[Value]) -> set[Value]:
    """Members that nothing outside the group reads."""
    inside = set(group.members)
    return {v for v in group.members if v not in outputs and all(r in inside for r in readers[v])}
