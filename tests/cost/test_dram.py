from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import pytest
from cost_nets import conv, matmul, scheduled, unary
from zoo.net import Net, i64

from cuvil.cost import dram
from cuvil.cost.dram import Footprint, Movement, miss_probability
from cuvil.cost.nests import Sizes
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Accumulate, Declare, For, If, Kernel, Stmt, Store, walk
from cuvil.ir.primitives import Value
from cuvil.schedule.plan import Schedule
from cuvil.schedule.storage import Storage

MIB = 1 << 20


class Cache:
    """Fully associative, least recently used out first; counts misses.  The truth for these tests."""

    def __init__(self, capacity: int, line: int = 64) -> None:
        self.lines, self.line, self.misses = capacity // line, line, 0
        self.held: OrderedDict[int, None] = OrderedDict()

    def touch(self, address: int) -> None:
        line = address // self.line
        if line in self.held:
            self.held.move_to_end(line)
            return
        self.misses += 1
        self.held[line] = None
        if len(self.held) > self.lines:
            self.held.popitem(last=False)


def simulate(kernel: Kernel, storage: Storage, capacity: int) -> int:
    """Bytes that a kernel of plain loops moves into a cold cache, access by access."""
    cache, sizes, base = Cache(capacity), Sizes(), dict[Value, int]()
    local = {s.target for s in walk(kernel.body) if isinstance(s, Declare)}

    def touch(value: Value, indices: Sequence[Expr], at: Mapping[Expr, float]) -> None:
        root, offset = storage.address(value, indices)
        start = base.setdefault(root, len(base) << 24)
        cache.touch(start + 4 * int(sizes(offset, at)))

    def run(body: Sequence[Stmt], at: dict[Expr, float]) -> None:
        for s in body:
            if isinstance(s, For):
                for i in range(int(sizes(s.start, at)), int(sizes(s.stop, at))):
                    run(s.body, {**at, s.var: i})
            elif isinstance(s, If):
                run(s.then if sizes(s.condition, at) else s.otherwise, at)
            elif isinstance(s, (Store, Accumulate)):
                for e in E.loads(s.value):
                    if e.attr not in local:
                        touch(e.attr, e.args, at)
                if s.target not in local:
                    touch(s.target, s.indices, at)

    for point in itertools.product(*(range(int(sizes(v.args[0]))) for v in kernel.parallel)):
        run(kernel.body, dict(zip(kernel.parallel, point)))
    return cache.misses * 64


def moved(s: Schedule, capacity: float) -> float:
    """Bytes that all kernels move past a cold cache."""
    return Movement(s, Sizes()).cold(capacity)


def last_footprints(s: Schedule, capacity: float) -> dict[Value, Footprint]:
    """What the last kernel moves past a cold cache."""
    return Movement(s, Sizes()).kernels[-1].past(capacity)


@pytest.mark.parametrize("capacity", [2048, 16384])
@pytest.mark.parametrize(("m", "k", "n"), [(4, 16, 64), (3, 48, 32)])
def test_matmul_against_a_simulated_cache(m: int, k: int, n: int, capacity: int) -> None:
    s = scheduled(matmul(m, k, n))
    (kernel,) = s.kernels
    assert moved(s, capacity) == pytest.approx(simulate(kernel, s.storage, capacity), rel=0.1)


def test_softmax_reads_a_row_once_for_all_its_passes() -> None:
    s = scheduled(unary("Softmax", 8, 64, axis=-1))
    (kernel,) = s.kernels
    assert moved(s, 1024) == simulate(kernel, s.storage, 1024) == 2 * 8 * 64 * 4


@pytest.mark.parametrize("capacity", [1 << 12, 1 << 14, 1 << 16, 1 << 30])
def test_matmul_is_above_the_lower_bound_and_compulsory_in_a_large_cache(capacity: int) -> None:
    m, k, n = 48, 64, 96
    bytes_ = moved(scheduled(matmul(m, k, n)), capacity)
    assert bytes_ >= 4 * dram.matmul_bound(m, n, k, capacity / 4)
    if capacity > 1 << 20:
        assert bytes_ == 4 * (m * k + k * n + m * n)


@pytest.mark.parametrize("tuned", [False, True], ids=["plain", "tuned"])
@pytest.mark.parametrize("capacity", [1 << 12, 1 << 15, 1 << 30])
def test_convolution_is_above_the_lower_bound(capacity: int, tuned: bool) -> None:
    c, o, size, kernel = 16, 32, 20, 3
    s = scheduled(conv(c, o, kernel, size), tuned)
    image, weights, result = c * size * size, o * c * kernel * kernel, o * size * size
    macs = result * c * kernel * kernel
    bound = 4 * dram.convolution_bound(image, weights, result, macs, kernel * kernel, capacity / 4)
    assert sum(f.read + f.written for f in last_footprints(s, capacity).values()) >= 0.5 * bound
    assert moved(s, capacity) >= bound


def test_bounds() -> None:
    assert dram.matmul_bound(64, 64, 64, 1e9) == 3 * 64 * 64
    assert dram.matmul_bound(1024, 1024, 1024, 4096) == 2 * 1024**3 / 64 - 2 * 4096
    assert dram.convolution_bound(10, 20, 30, 1, 1, 100) == 60
    assert dram.convolution_bound(1, 1, 1, 9e6, 9, 10000) == 2 * 9e6 / 300


def test_the_further_back_the_last_use_the_more_likely_a_miss() -> None:
    """The complement of the hit probability ``alpha ** (distance / capacity)``."""
    distances = (0, 0.1, 1, 5, 50)
    found = [miss_probability(d * MIB, MIB) for d in distances]
    assert found == sorted(found) and found[0] == 0
    assert found[2] == pytest.approx(1 - 0.85)
    assert found[-1] > 0.999
    assert miss_probability(1, 0) == 1


def test_weights_are_read_each_time_unless_everything_fits() -> None:
    s = scheduled(matmul(1, 256, 256))
    weights = 256 * 256 * 4
    assert Movement(s, Sizes()).traffic(8 * MIB)[0].read < 100
    small = Movement(s, Sizes()).traffic(64 << 10)[0]
    assert weights <= small.read <= weights + 256 * 4


def test_a_tensor_that_comes_back_soon_is_still_in_the_cache() -> None:
    """Two element-wise operators around a matrix product: what lies between their kernels decides."""

    def build(net: Net) -> None:
        x = net.input("x", [64, 256])
        y = net.op("Softmax", x, axis=-1)
        z = net.op("Softmax", y, axis=0)
        net.output(net.op("Mul", net.op("Softmax", z, axis=-1), y), "y", [64, 256])

    s = scheduled(build)
    size = 64 * 256 * 4
    reads = [t.read for t in Movement(s, Sizes()).traffic(size / 4)]
    warm = [t.read for t in Movement(s, Sizes()).traffic(64 * size)]
    assert all(r > 0.3 * size for r in reads[:2])
    assert all(r < 0.05 * size for r in warm)
    assert reads[-1] > reads[1], "the last kernel also reads what was made long ago"


def test_strided_reads_touch_whole_lines() -> None:
    def build(net: Net) -> None:
        x = net.input("x", [64, 64])
        net.output(net.op("Slice", x, i64(0, 0), i64(64, 1), i64(0, 1)), "y", [64, 1])

    s = scheduled(build)
    found = last_footprints(s, MIB)
    assert {f.read for f in found.values() if f.read} == {64 * 64}  # 64 lines of 64 bytes
    assert {f.written for f in found.values() if f.written} == {64 * 4}


def test_overlapping_windows_count_once() -> None:
    s = scheduled(conv(4, 4, 3, 32))
    found = last_footprints(s, 1 << 30)
    padded = 4 * 34 * 34 * 4
    assert padded in {f.touched for f in found.values()}
