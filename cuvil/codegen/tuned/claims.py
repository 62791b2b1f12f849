"""The tuned kernels of a device: which group each one claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuvil.codegen.tuned import amx, attention, contract, depthwise, layouts, pack, transpose, winograd
from cuvil.codegen.tuned.isa import Tiles, tiles
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Kernel, Stmt
from cuvil.ir.primitives import Program, Value
from cuvil.schedule.fuse import is_contraction
from cuvil.schedule.group import Group
from cuvil.schedule.nest import Nest
from cuvil.schedule.place import Placer
from cuvil.schedule.storage import Storage
from cuvil.schedule.strips import LARGE, SMALL, Budget


class TunedKernels:
    """Blocked layouts and packed contractions for one ISA (`cuvil.schedule.plan.Tuner`); where `machine` is
    given, Winograd convolutions that pay there."""

    def __init__(
        self,
        shapes: Tiles,
        machine: winograd.Machine | None = None,
        budget: Budget | None = None,
        threads: int = 1,
    ) -> None:
        self.tiles, self.machine, self.budget, self.threads = shapes, machine, budget, threads
        self.staged = shapes.dot
        self.contractions: dict[Value, pack.Contraction] = {}
        self.convolutions: dict[Value, winograd.Convolution] = {}
        self.attentions: dict[Group, attention.Attention] = {}

    def prepare(self, program: Program, storage: Storage, placer: Placer) -> None:
        """Choose layouts and pack the operands of contractions."""
        self.contractions.clear()
        self.convolutions.clear()
        self.attentions.clear()
        layouts.assign(program, storage, placer)
        byte = winograd.weight_cost(program, self.machine) if self.machine is not None else 0.0
        for value in list(program.values):
            if is_contraction(value):
                if self.machine is not None:
                    prepares = self.machine.prepares
                    chosen = winograd.pack(program, storage, value, self.tiles, byte, prepares)
                    if chosen is not None:
                        self.convolutions[value] = chosen
                        continue
                found = depthwise.find(storage, value, self.tiles)
                found = found or pack.pack(program, storage, value, self.tiles)
                if found is not None:
                    self.contractions[value] = found

    def join(
        self,
        groups: Sequence[Group],
        readers: Mapping[Value, list[Value]],
        kept: set[Value],
        storage: Storage,
    ) -> list[Group]:
        """The groups, those of an attention as one in the place of the last of them."""
        found = attention.find(groups, readers, kept, self.contractions, storage)
        gone = {g for a in found for g in (a.scores, a.rows)}
        whole = {a.values: a for a in found}
        result: list[Group] = []
        for group in groups:
            if group in whole:
                a = whole[group]
                members = [*a.scores.members, *a.rows.members, *group.members]
                group = Group(members, group.anchor.rank - 2)
                self.attentions[group] = a
            if group not in gone:
                result.append(group)
        return result

    def build(self, group: Group, storage: Storage, internal: set[Value], name: str) -> Kernel | None:
        """The kernel of a group with a packed contraction."""
        if group.serial:
            return None  # the contractions of a recurrence come one by one, from `member`
        if group in self.attentions:
            a = self.attentions[group]
            return attention.build(a, group, storage, internal, name, self.tiles, self.threads)
        for value in group.members:
            if value in self.convolutions and self.machine is not None:
                chosen = self.convolutions[value]
                return winograd.build(chosen, group, storage, internal, name, self.tiles, self.machine)
        found = self.contractions.get(group.members[0])
        if found is None:
            return transpose.build(group, storage, name, self.tiles)
        if self.tiles.amx:
            cache = self.budget.cache if self.budget is not None else 1 << 20
            kernel = amx.build(found, group, storage, internal, name, self.tiles, self.threads, cache)
            if kernel is not None:
                return kernel
        return contract.build(found, group, storage, internal, name, self.tiles)

    def member(self, value: Value, step: Expr, context: Nest) -> list[Stmt] | None:
        """A packed contraction within a recurrence."""
        found = self.contractions.get(value)
        return contract.member(found, step, context, self.tiles) if found is not None else None


def for_device(options: Mapping[str, Any], packing: Mapping[str, Any] | None = None) -> TunedKernels:
    """The tuned kernels of a device, from its part of the ``codegen`` slice; they read constants as those
    for `packing`, another such part, pack them."""
    chosen = options if packing is None else packing
    cache = int(options.get("caches", {}).get("l2", 0))
    threads = int(options.get("threads", 1))
    large = SMALL if chosen.get("footprint") == "small" else LARGE
    budget = Budget(cache, threads, large) if cache else None
    shapes = tiles(options, None if packing is None else tiles(packing))
    return TunedKernels(shapes, winograd.machine(chosen), budget, threads)
