"""Which kernels run in strips, how high the strips are, and what windows they leave in the arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from codegen.sandbox import Isa, schedule_of
from zoo.net import Net

from cuvil.codegen.tuned import claims
from cuvil.ir.loops import For, walk
from cuvil.ir.primitives import static
from cuvil.ir.verify import InternalError
from cuvil.schedule import verify
from cuvil.schedule.plan import Schedule
from cuvil.schedule.storage import Layout, blocked
from cuvil.schedule.strips import SHARE, Span, Strips, by_rows


@pytest.fixture(autouse=True)
def small_tensors_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LARGE", 0.5)


KIB = 1024


def isa(cache: int, threads: int = 1) -> Isa:
    options = {"arch": "x86_64", "vector_bits": 256, "vector_registers": 16, "dot_i8": False}
    return Isa({**options, "threads": threads, "caches": {"l2": cache}})


def residual(
    size: int = 32, channels: int = 16, kernel: int = 3, stride: int = 1, batch: int | str = 1
) -> Net:
    """An inverted residual block: expand 6 times, depthwise, project, with a sum where shapes allow it."""
    net = Net("n", 1)
    x = net.op("Relu", net.conv(net.input("x", [batch, 4, size, size]), 4, channels, 1))
    wide = 6 * channels
    y = net.op("Relu", net.conv(x, channels, wide, 1))
    y = net.op("Relu", net.conv(y, wide, wide, kernel, stride=stride, groups=wide))
    y = net.conv(y, wide, channels, 1)
    y = net.op("Add", y, x) if stride == 1 else y
    net.output(net.op("Relu", y), "y", [batch, channels, size // stride, size // stride])
    return net


def scheduled(net: Net, cache: int, threads: int = 1) -> Schedule:
    s = schedule_of(net.model(), isa(cache, threads))
    verify.schedule(s)
    return s


def arena(s: Schedule) -> int:
    return static(s.arena_bytes) or 0


# --- chains -------------------------------------------------------------------------------------------


def test_a_block_is_one_chain_and_its_wide_tensors_are_windows() -> None:
    plain, s = scheduled(residual(), 0), scheduled(residual(), 512 * KIB)
    assert not plain.strips
    (chain,) = s.strips
    tags = [k.tag for k in s.kernels[chain.first : chain.last + 1]]
    assert tags == ["conv", "border", "contraction", "conv"]
    assert [len(plain.kernels), len(s.kernels)] == [chain.last + 1] * 2
    wide = 96 * 32 * 32 * 4
    assert arena(plain) > 2 * wide and arena(s) < wide
    assert sum(static(s.size(v)) or 0 for v in chain.windows) <= SHARE * 512 * KIB


def test_the_residual_is_not_replaced_in_place() -> None:
    assert scheduled(residual(), 0).aliases == {}  # the block's sum is the model's output
    net = residual()
    s = scheduled(net, 256 * KIB)
    assert s.strips and not s.aliases


@pytest.mark.parametrize(
    ("kernel", "stride", "low", "high"), [(3, 1, 0, 2), (5, 1, 0, 4), (3, 2, 0, 1), (5, 2, 0, 3)]
)
def test_spans(kernel: int, stride: int, low: int, high: int) -> None:
    s = scheduled(residual(32 * stride, kernel=kernel, stride=stride), 256 * KIB)
    (chain,) = s.strips
    expand, border, depthwise, project = (stage.span for stage in chain.stages[-4:])
    pad = (kernel - 1) // 2
    assert border == Span(stride, low, high)
    assert expand == Span(stride, low - pad, high - pad)
    assert depthwise == project == Span(1, 0, 0)
    (rows, *_) = [m for axis, _, m in s.storage.layout(chain.windows[-2]).dims if axis == 2]
    assert rows == border.rows(chain.height)


def test_a_tensor_that_fits_in_the_cache_gets_no_window() -> None:
    wide = 96 * 34 * 34 * 4
    assert len(scheduled(residual(), 2 * wide - KIB).strips) == 1
    assert not scheduled(residual(), 2 * wide).strips


def test_the_weights_must_fit_beside_the_windows() -> None:
    net = residual(size=8, channels=256)
    weights = 2 * 256 * 1536 * 4
    assert not scheduled(net, weights).strips
    assert not scheduled(net, 128 * KIB).strips


def test_windows_are_as_high_as_their_share_allows() -> None:
    heights = [scheduled(residual(size=64), cache * KIB).strips[0].height for cache in (256, 512, 1024)]
    assert heights == sorted(heights) and heights[0] < heights[-1]


def _second_reader(net: Net, y: str) -> str:
    return net.op("Mul", y, net.op("Sigmoid", net.op("GlobalAveragePool", y)))


def _dense(net: Net, y: str) -> str:
    return net.conv(y, 64, 64, 3)


def _pool(net: Net, y: str) -> str:
    pooled = net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return net.conv(pooled, 64, 64, 1)


def _mirrored(net: Net, y: str) -> str:
    return net.op("Transpose", y, perm=[0, 1, 3, 2])


@pytest.mark.parametrize(("rest", "chains"), [(_second_reader, 0), (_dense, 0), (_mirrored, 0), (_pool, 1)])
def test_who_may_read_a_window(rest: Callable[[Net, str], str], chains: int) -> None:
    net = Net("n", 1)
    y = net.op("Relu", net.conv(net.input("x", [1, 4, 32, 32]), 4, 64, 1))
    size = 16 if rest is _pool else 32
    net.output(rest(net, y), "y", [1, 64, size, size])
    assert len(scheduled(net, 128 * KIB).strips) == chains


def test_outputs_are_no_windows() -> None:
    net = Net("n", 1)
    y = net.conv(net.input("x", [1, 4, 32, 32]), 4, 64, 1)
    net.output(net.conv(y, 64, 64, 3, groups=64), "z", [1, 64, 32, 32])
    net.output(y, "y", [1, 64, 32, 32])
    assert not scheduled(net, 128 * KIB).strips


def test_a_long_run_is_cut_into_chains_that_fit() -> None:
    net = Net("n", 1)
    y = net.conv(net.input("x", [1, 4, 48, 48]), 4, 32, 1)
    for _ in range(6):
        y = net.op("Relu", net.conv(y, 32, 32, 3, groups=32))
        y = net.op("Relu", net.conv(y, 32, 32, 1))
    net.output(y, "y", [1, 32, 48, 48])
    s = scheduled(net, 256 * KIB)
    assert len(s.strips) > 1
    for chain in s.strips:
        assert sum(static(s.size(v)) or 0 for v in chain.windows) <= 256 * KIB


# --- threads ------------------------------------------------------------------------------------------


def test_each_thread_has_windows_of_its_own() -> None:
    one, three = (scheduled(residual(size=64), 256 * KIB, n) for n in (1, 3))
    (a,), (b,) = one.strips, three.strips
    assert (a.pieces, b.pieces) == (1, 3)
    for v, w in zip(a.windows, b.windows):
        assert static(three.size(w)) == 3 * (static(one.size(v)) or 0)


def test_pieces_are_finer_where_few_rows_are_computed_again() -> None:
    (chain,) = scheduled(residual(size=128, stride=2), 512 * KIB, 2).strips
    assert chain.pieces == 4
    rows = [row for piece in range(4) for turn in chain.turns(piece) for row in turn[-1]]
    assert rows == [*range(64)]


def test_any_batch() -> None:
    (chain,) = scheduled(residual(batch="N"), 256 * KIB).strips
    assert chain.batch.op == "sym"
    (chain,) = scheduled(residual(batch=3), 256 * KIB).strips
    assert chain.batch.attr == 3


# --- the pieces ---------------------------------------------------------------------------------------


def test_span_through_two_windows() -> None:
    depthwise = Span().read(2, 0, 2)  # of the border: 3x3, stride 2
    assert depthwise == Span(2, 0, 1)
    assert depthwise.moved(1).read(1, -1, 1) == Span(2, -2, 1)
    assert [depthwise.rows(n) for n in (1, 2, 8)] == [3, 5, 17]


def test_straight_layouts() -> None:
    nchw16c = blocked(4, 1, 16)
    window = Layout(tuple((a, d, 5 if a == 2 else m) for a, d, m in nchw16c.dims))
    assert window.straight == nchw16c and nchw16c.straight == nchw16c
    assert (window.block, window.blocked_axis) == (16, 1)
    assert Layout(((0, 1, 0), (1, 1, 0), (2, 1, 5), (3, 1, 0))).blocked_axis == -1


def test_a_kernel_that_does_not_go_by_rows() -> None:
    s = scheduled(residual(), 0)
    border = next(k for k in s.kernels if k.tag == "border")
    assert by_rows(border, Span(), 34) is None


# --- what the verifier finds --------------------------------------------------------------------------


def _with(s: Schedule, chain: Strips) -> Schedule:
    s.strips = [chain]
    return s


def test_the_verifier_finds_rows_that_are_gone() -> None:
    s = scheduled(residual(), 256 * KIB)
    root = s.strips[0].windows[0]
    dims = s.storage.layouts[root].dims
    s.storage.layouts[root] = Layout(tuple((a, d, m - 1 if a == 2 else m) for a, d, m in dims))
    with pytest.raises(InternalError, match="finds row"):
        verify.strips(s)


def test_the_verifier_finds_rows_that_are_not_there_yet() -> None:
    s = scheduled(residual(), 256 * KIB)
    (chain,) = s.strips
    first, *rest = chain.stages
    late = replace(first, span=replace(first.span, high=first.span.high - 1))
    with pytest.raises(InternalError, match="finds row"):
        verify.strips(_with(s, replace(chain, stages=(late, *rest))))


def test_the_verifier_counts_points_and_rows() -> None:
    s = scheduled(residual(), 256 * KIB)
    (chain,) = s.strips
    *rest, last = chain.stages
    more = replace(last, points=last.points + 1)
    with pytest.raises(InternalError, match="number of points"):
        verify.strips(_with(s, replace(chain, stages=(*rest, more))))
    with pytest.raises(InternalError, match="each row once"):
        verify.strips(_with(s, replace(chain, rows=chain.rows - 1)))


def test_the_verifier_finds_a_window_outside_of_its_chain() -> None:
    s = scheduled(residual(), 256 * KIB)
    (chain,) = s.strips
    with pytest.raises(InternalError, match="touches a window"):
        verify.strips(_with(s, replace(chain, stages=chain.stages[:-1])))
    s.strips = []
    with pytest.raises(InternalError, match="no chain's"):
        verify.schedule(s)


def test_a_window_takes_what_lies_beyond_the_last_channel() -> None:
    """The 10 channels of a window's block of 16 are written as whole blocks, without a loop of 10."""
    net = Net("n", 1)
    x = net.op("Relu", net.conv(net.input("x", [1, 3, 64, 64]), 3, 10, 3))
    net.output(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), "y", [1, 10, 32, 32])
    s = scheduled(net, 256 * KIB)
    (chain,) = s.strips
    first = s.kernels[chain.first]
    assert chain.windows
    loops = [static(loop.stop) for loop in walk(first.body) if isinstance(loop, For) and loop.kind == "simd"]
    assert set(loops) == {16}
