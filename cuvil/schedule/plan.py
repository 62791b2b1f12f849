"""The schedule of one device: kernels in order, layouts, and the memory plan.

`schedule` is the whole of the middle end in one readable function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cuvil import limits
from cuvil.errors import ModelError
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, Kernel, Micro, Stmt, Store, expressions, walk
from cuvil.ir.primitives import Constant, Input, Prepared, Program, Value, elements, operands, static
from cuvil.schedule import memory, nest, onehot, ranges, strips
from cuvil.schedule.fuse import fuse
from cuvil.schedule.group import Group, Grouper, internal
from cuvil.schedule.guards import guard
from cuvil.schedule.place import Placer
from cuvil.schedule.storage import Layout, Storage


class Tuner(Protocol):
    """What a set of tuned kernels offers the scheduler; `staged`: see `Schedule`."""

    staged: bool

    @property
    def budget(self) -> strips.Budget | None:
        """What kernels that run in strips may use; None where none are to."""

    def prepare(self, program: Program, storage: Storage, placer: Placer) -> None:
        """Choose layouts, and insert the values that hold operands as a tuned kernel wants them."""

    def join(
        self,
        groups: Sequence[Group],
        readers: Mapping[Value, list[Value]],
        kept: set[Value],
        storage: Storage,
    ) -> list[Group]:
        """The groups in order, some of them joined to one that a tuned kernel claims."""

    def build(self, group: Group, storage: Storage, internal: set[Value], name: str) -> Kernel | None:
        """The tuned kernel of a group, or None where none claims it."""

    def member(self, value: Value, step: Expr, context: nest.Nest) -> list[Stmt] | None:
        """The statements of one member of a recurrence at a step, or None."""


@dataclass
class Schedule:
    """What one device runs.

    Attributes:
        program: the primitives, fused.
        kernels: in order of execution.
        storage: layouts and placements.
        constants: root values with their bytes' offsets in the weights, in order.
        weights: the bytes.
        prepared: root values that the library itself makes of constants, with their bytes of memory.
        arena: byte offset of each root value in the workspace.
        arena_bytes: size of the workspace, an expression of the symbolic sizes.
        lower_bound: bytes that no plan can beat.
        aliases: roots that share memory with a root they replace in place.
        known: per data-dependent symbol, the kernel after which its value is there.
        staged: loops over bytes are printed in parts that compilers vectorize better.
        lives: first and last kernel that touches each root of the arena (its in-place heirs included).
        strips: the chains of kernels that run strip by strip, in order.
    """

    program: Program
    storage: Storage
    kernels: list[Kernel] = field(default_factory=list)
    constants: dict[Value, int] = field(default_factory=dict)
    weights: bytes = b""
    prepared: dict[Value, int] = field(default_factory=dict)
    arena: dict[Value, Expr] = field(default_factory=dict)
    arena_bytes: Expr = field(default_factory=lambda: E.const(0))
    lower_bound: int = 0
    aliases: dict[Value, Value] = field(default_factory=dict)
    lives: dict[Value, tuple[int, int]] = field(default_factory=dict)
    known: dict[Expr, int] = field(default_factory=dict)
    strips: list[strips.Strips] = field(default_factory=list)
    staged: bool = False

    def size(self, root: Value) -> Expr:
        """Bytes of the arena that a root value takes: a window of rows once for each thread."""
        one = capacity(self.storage, root) * E.numpy_dtype(root.dtype).itemsize
        chain = next((c for c in self.strips if root in c.windows), None)
        return one if chain is None else memory.aligned(static(one) or 0) * E.const(chain.threads)

    def together(self, step: int) -> tuple[int, int]:
        """The first and the last of the kernels that take turns with kernel `step`."""
        return next(((c.first, c.last) for c in self.strips if c.first <= step <= c.last), (step, step))


def schedule(program: Program, tuner: Tuner | None = None) -> Schedule:
    """Fuse, place, group, build loops and plan the memory of a program."""
    fuse(program)
    if onehot.pick(program):
        fuse(program)
    storage = Storage()
    placer = Placer(program, storage)
    placer.run()
    if tuner is not None:
        tuner.prepare(program, storage, placer)
    result = Schedule(program, storage, staged=tuner is not None and tuner.staged)
    kernels, result.strips = build_kernels(program, storage, placer, tuner)
    kernels = [ranges.cut(k) for k in kernels]
    result.kernels = guard(kernels, storage, {storage.root(v) for v in program.pinned})
    pack_constants(result)
    plan_memory(result)
    return result


def build_kernels(
    program: Program, storage: Storage, placer: Placer, tuner: Tuner | None
) -> tuple[list[Kernel], list[strips.Strips]]:
    """Groups to kernels, with the kernels that borders and joined parts need, and those to run in strips."""
    special = {*placer.borders, *placer.joins, *placer.views}
    grouper = Grouper(program, skip=special)
    groups = grouper.run()
    pinned = program.pinned
    outputs = {*pinned, *(storage.root(v) for v in pinned)}
    hosted = set(storage.placements)
    budget = tuner.budget if tuner is not None else None
    kernels: list[Kernel] = []
    made: set[Value] = set()

    def emit_special(value: Value) -> None:
        """The border of a padded host and the copied parts of a join, once what they read exists."""
        if value in made:
            return
        made.add(value)
        if value in placer.borders:
            pad, name = placer.borders[value], f"border{len(kernels)}"
            if budget is not None and budget.threads > 1 and strips.is_framed(value, pad[0]):
                kernels.append(nest.border_by_rows(value, *pad, strips.ROW, storage, name, window=False))
            else:
                kernels.append(nest.border(value, *pad, storage, name))
        for part, axis, start in placer.joins.get(value, ()):
            kernels.append(nest.copy_part(value, part, axis, start, storage, f"copy{len(kernels)}"))

    def need(value: Value) -> None:
        for source in operands(value):
            if source in special:
                need(source)
                emit_special(source)

    def kernel_of(group: Group, name: str) -> Kernel:
        inside = internal(group, grouper.readers, outputs) - hosted
        kernel = tuner.build(group, storage, set(inside), name) if tuner is not None else None
        if kernel is None:
            kernel = nest.build(group, storage, inside, name, *([tuner.member] if tuner is not None else []))
        return kernel

    def remake(kernel: Kernel) -> Kernel:
        """A kernel of a chain anew, its rows in windows."""
        (value,) = strips.results(kernel)
        if value in placer.borders:
            return nest.border_by_rows(value, *placer.borders[value], strips.ROW, storage, kernel.name)
        return kernel_of(grouper.group_of[value], kernel.name)

    chains = strips.find(groups, grouper.readers, outputs, storage, placer, budget) if budget else []
    starts = {chain.groups[0]: chain for chain in chains}
    if tuner is not None:
        groups = tuner.join(groups, grouper.readers, outputs, storage)
    running: list[tuple[int, strips.Chain]] = []
    chained: list[strips.Strips] = []
    for group in groups:
        for value in group.members:
            need(value)
        if group in starts:
            running = [(len(kernels), starts[group])]
        kernels.append(kernel_of(group, f"k{len(kernels)}"))
        if running and group is running[0][1].groups[-1] and budget is not None:
            start, chain = running.pop()
            turns = strips.build(chain, kernels[start:], start, remake, storage, budget)
            if turns is not None:
                kernels[start:] = turns[0]
                chained.append(turns[1])
    for value in program.outputs:
        if value in special:
            need(value)
            emit_special(value)
    return kernels, chained


def constant_bytes(value: Value, layout: Layout) -> bytes:
    """A constant in its physical layout; what a partial block lacks is zero."""
    array = value.array
    if layout.is_row_major:
        return np.ascontiguousarray(array).tobytes()
    extents = [static(e) or 0 for e in layout.extents(value.shape)]
    data = array
    padded = [n for n in array.shape]
    for axis, divisor, modulus in layout.dims:
        if modulus:
            padded[axis] = -(-padded[axis] // (divisor * modulus)) * divisor * modulus
    data = np.zeros(padded, array.dtype)
    data[tuple(slice(0, n) for n in array.shape)] = array
    factors: list[list[tuple[int, int]]] = [[] for _ in array.shape]
    for position, (axis, _, _) in enumerate(layout.dims):
        factors[axis].append((position, extents[position]))
    shape, order = [], []
    for axis_factors in factors:
        ordered = sorted(axis_factors, key=lambda item: -layout.dims[item[0]][1])
        for position, extent in ordered:
            order.append(position)
            shape.append(extent)
    view = data.reshape(shape)
    return np.ascontiguousarray(view.transpose([order.index(p) for p in range(len(layout.dims))])).tobytes()


def pack_constants(s: Schedule) -> None:
    """Lay the constants that kernels read one after the other, in order of first use; in the place of one
    that the library prepares, what that is made of."""
    chunks: list[bytes] = []
    offset = 0
    seen: dict[bytes, int] = {}
    for kernel in s.kernels:
        for value in roots_of(kernel, s.storage):
            if isinstance(value.definition, Prepared):
                size = static(s.storage.elements(value)) or 0
                s.prepared[value] = memory.aligned(size * E.numpy_dtype(value.dtype).itemsize)
                value = value.definition.source
            if not isinstance(value.definition, Constant) or value in s.constants:
                continue
            data = constant_bytes(value, s.storage.layout(value))
            key = data if len(data) <= 4096 else b""
            if key and key in seen:
                s.constants[value] = seen[key]
                continue
            s.constants[value] = offset
            if key:
                seen[key] = offset
            padded = memory.aligned(len(data))
            chunks.append(data + bytes(padded - len(data)))
            offset += padded
    s.weights = b"".join(chunks) + bytes(memory.aligned(1) if chunks else 0)


def roots_of(kernel: Kernel, storage: Storage) -> list[Value]:
    """The root values that a kernel's statements touch, each once."""
    local = {s.target for s in walk(kernel.body) if isinstance(s, Declare)}
    found: dict[Value, None] = {}
    for s in walk(kernel.body):
        touched: list[Value] = []
        if isinstance(s, (Store, Accumulate)):
            touched.append(s.target)
        if isinstance(s, Micro):
            touched += [v for v, _ in (*s.reads, s.writes)]
        for e in expressions(s):
            touched += [n.attr for n in E.loads(e)]
        for v in touched:
            if v not in local:
                found[storage.root(v)] = None
    return list(found)


OWN_UNIT = 4096
"""Bytes of which a thread's scratch memory is a multiple."""


def plan_memory(s: Schedule) -> None:
    """Lifetimes of root values over the kernels, in-place reuse, and offsets."""
    for v in s.program.outputs:
        _bounded(v, elements(v.shape))
    outputs = {s.storage.root(v) for v in s.program.outputs}
    writers = {s.storage.root(v): step for step, kernel in enumerate(s.kernels) for v in kernel.writes}
    s.known = {symbol: writers[s.storage.root(number(symbol))] for symbol in s.program.derived}
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for step, kernel in enumerate(s.kernels):
        for root in roots_of(kernel, s.storage):
            if isinstance(root.definition, (Constant, Input)) or root in outputs:
                continue
            begin, end = s.together(step)
            first.setdefault(root, begin)
            last[root] = max(last.get(root, end), end)
    leader: dict[Value, Value] = {}

    def find(v: Value) -> Value:
        while v in leader:
            v = leader[v]
        return v

    for step, kernel in enumerate(s.kernels):
        alone = s.together(step) == (step, step)  # a chain still reads what another piece would replace
        for target, source in in_place(kernel, s.storage) if alone else ():
            if target in first and first[target] == step and source in last and last[find(source)] == step:
                owner = find(source)
                leader[target] = owner
                last[owner] = last[target]
                s.aliases[target] = source
                break
    always: set[Value] = set()
    for same in _threads_own(s):
        always.add(same[0])
        leader.update(dict.fromkeys(same[1:], same[0]))
    owners = [v for v in first if v not in leader]
    end = len(s.kernels) - 1
    requests = [
        memory.Request(v.name, s.size(v), *((0, end) if v in always else (first[v], last[v]))) for v in owners
    ]
    arena = memory.plan(requests)
    offsets = dict(zip(owners, arena.offsets))
    s.arena = {v: offsets[find(v)] for v in first}
    s.lives = {v: (first[v], last[v]) for v in first}
    s.arena_bytes, s.lower_bound = arena.size, arena.lower_bound


def _threads_own(s: Schedule) -> list[list[Value]]:
    """The scratch memory ``[threads, n, m]`` of kernels that threads share, those values together that are to
    lie in one place, the largest first.  A thread's part is at the same place in all of them, for `n` is
    made so large: what is still in another core's cache is slow to write to."""
    groups: list[list[Value]] = []
    for kernel in s.kernels:
        slots = static(kernel.slot.args[0]) if kernel.slot is not None else None
        scratch = [v for v in kernel.writes if v.definition is None and static(elements(v.shape))]
        sizes = [(static(elements(v.shape[2:])) or 0) * E.numpy_dtype(v.dtype).itemsize for v in scratch]
        if slots is None or slots == 1 or any(OWN_UNIT % n for n in sizes):
            continue
        for number, v in enumerate(scratch):
            if number == len(groups):
                groups.append([])
            groups[number].append(v)
    for group in groups:
        widths = [(static(s.size(v)) or 0) // (static(v.shape[0]) or 1) for v in group]
        width = -(-max(widths) // OWN_UNIT) * OWN_UNIT
        for v, n in zip(group, widths):
            v.shape = (v.shape[0], E.const(width * (static(v.shape[1]) or 1) // n), *v.shape[2:])
        group.sort(key=lambda v: static(s.size(v)) or 0, reverse=True)
    return groups


def number(symbol: Expr) -> Value:
    """The value in memory that holds a data-dependent symbol's value."""
    found: Value = symbol.args[0].attr
    return found


def capacity(storage: Storage, root: Value) -> Expr:
    """Elements of memory that a root value gets: where the data decide its size, the most it can be.

    Raises:
        ModelError: nothing keeps it from being huge.
    """
    if root.capacity is not None:
        return root.capacity
    return _bounded(root, storage.elements(root))


def _bounded(value: Value, size: Expr) -> Expr:
    """The most that the number of elements of `value` can be; raises as `capacity` does."""
    most = E.capacity(size)
    if most is not size and most.hi > limits.MAX_DATA_ELEMENTS and static(most) is not None:
        raise ModelError(
            f"its size depends on the data and may be up to {static(most)} elements; declare the shapes of"
            " the model's outputs, or give values for the inputs that it depends on",
            f"tensor '{value.name}'",
        )
    return most


def sizes_in_memory(s: Schedule) -> set[Expr]:
    """The data-dependent symbols that decide how much memory is needed."""
    roots = [s.storage.elements(v) for v in s.arena if v.capacity is None]
    shapes = [n for v in s.program.outputs for n in v.shape]
    return {e for e in E.walk(*roots, *shapes) if e.op == "sym" and e.args}


def in_place(kernel: Kernel, storage: Storage) -> list[tuple[Value, Value]]:
    """(written root, read root) pairs where the result may overwrite the operand: same memory size,
    and every access of the operand is at the address stored to, in the last statement that uses it."""
    stores = [s for s in walk(kernel.body) if isinstance(s, Store)]
    if any(isinstance(s, (Accumulate, Micro)) for s in walk(kernel.body)):
        micro_reads = {storage.root(v) for s in walk(kernel.body) if isinstance(s, Micro) for v, _ in s.reads}
    else:
        micro_reads = set()
    local = {s.target for s in walk(kernel.body) if isinstance(s, Declare)}
    targets = {storage.root(s.target) for s in stores if s.target not in local}
    if kernel.tag in ("scan", "opaque", "border", "copy") or len(targets) != 1:
        return []
    (target,) = targets
    writes = [s for s in stores if s.target not in local]
    if len(writes) != 1:
        return []
    write = writes[0]
    address = storage.address(write.target, write.indices)[1]
    found = []
    for source in dict.fromkeys(storage.root(e.attr) for e in E.loads(write.value) if e.attr not in local):
        same = (
            source.definition is not None
            and not isinstance(source.definition, (Constant, Input))
            and storage.elements(source) is storage.elements(target)
            and source.capacity is target.capacity
            and E.numpy_dtype(source.dtype).itemsize == E.numpy_dtype(target.dtype).itemsize
            and source not in micro_reads
        )
        if same and _only_at(kernel, storage, source, address, local, write):
            found.append((target, source))
    return found


def sharing(s: Schedule, kernel: Kernel) -> set[Value]:
    """The roots among those a kernel touches that share memory with another of them."""
    owners: dict[Value, list[Value]] = {}
    for root in roots_of(kernel, s.storage):
        owner = root
        while owner in s.aliases:
            owner = s.aliases[owner]
        owners.setdefault(owner, []).append(root)
    return {root for together in owners.values() if len(together) > 1 for root in together}


def _only_at(
    kernel: Kernel, storage: Storage, source: Value, address: Expr, local: set[Value], write: Store
) -> bool:
    """Every load of `source` in the kernel is in `write`, at `address`."""
    for s in walk(kernel.body):
        for e in expressions(s):
            for node in E.loads(e):
                if node.attr in local or storage.root(node.attr) is not source:
                    continue
                if s is not write or storage.address(node.attr, node.args)[1] is not address:
                    return False
    return True


def workspace_bytes(s: Schedule, bindings: Mapping[str, int]) -> int:
    """The workspace's size when the symbolic sizes are bound."""
    return E.evaluate(s.arena_bytes, bindings)
