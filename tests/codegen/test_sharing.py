"""What threads share: kernels that are worth it, cut by rows where that keeps images in their cores."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from codegen.sandbox import Isa, schedule_of
from zoo.net import Net

from cuvil.codegen.c import CRenderer
from cuvil.codegen.functions import Function
from cuvil.codegen.program import Part, render
from cuvil.codegen.sharing import Cut, cuts, is_shared
from cuvil.ir import expr as E
from cuvil.ir.primitives import static
from cuvil.schedule.plan import Schedule, sharing

AVX512 = {"arch": "x86_64", "vector_bits": 512, "vector_registers": 32, "dot_i8": False, "amx": False}
"""The instruction set for which the sizes here are chosen; nothing is compiled or run."""

KIB = 1024


def scheduled(model: onnx.ModelProto, threads: int = 2, cache: int = 0) -> Schedule:
    return schedule_of(model, Isa({**AVX512, "threads": threads, "caches": {"l2": cache}}))


def functions_of(s: Schedule) -> list[Function]:
    renderer = CRenderer()
    renderer.storage, renderer.staged = s.storage, s.staged
    return [renderer.kernel(k, k.name, sharing(s, k)) for k in s.kernels]


def shared(s: Schedule, threads: int = 2) -> dict[str, Cut]:
    return cuts([(s, functions_of(s))], threads)


def maps(*rows: int | str) -> onnx.ModelProto:
    """Kernels that have nothing to do with each other, each a map of rows of 1000 elements (to which
    a vector is added: else there would be one row, and that is one point)."""
    net = Net("maps", 1)
    for i, n in enumerate(rows):
        net.output(net.op("Add", net.input(f"x{i}", [n, 1000]), net.bias(1000)), f"y{i}", [n, 1000])
    return net.model()


def convolution(channels: int, rows: int, columns: int, batch: int | str = 1) -> onnx.ModelProto:
    """A depthwise convolution between two dense ones of 3x3, on images [channels, rows, columns]."""
    net = Net("convolution", 1)
    x = net.input("x", [batch, channels, rows, columns])
    x = net.op("Relu", net.conv(x, channels, channels, 3))
    x = net.op("Relu", net.conv(x, channels, channels, 3, groups=channels))
    net.output(net.conv(x, channels, channels, 3), "y", [batch, channels, rows, columns])
    return net.model()


# --- whether ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([39] * 20, 0),  # each takes 9.75 us of 10
        ([47] * 5, 0),  # together 58.75 us of 60
        ([49] * 5, 5),
        ([239], 0),
        ([241], 1),
        (["N"], 1),
        ([300, 39], 1),
        ([39] * 20 + [239], 0),
    ],
)
def test_small_kernels_and_small_programs_stay_in_the_calling_thread(
    rows: list[int | str], wanted: int
) -> None:
    s = scheduled(maps(*rows))
    assert len(s.kernels) == len(rows)
    assert len(shared(s)) == wanted
    assert not shared(s, 1)


def test_the_large_kernel_is_the_shared_one() -> None:
    (cut,) = shared(scheduled(maps(39, 300))).values()
    assert (cut.outer, static(cut.rows), cut.row) == (1, 300, 1)


def test_products_count_by_the_width_of_tiles() -> None:
    """A product of 0.4 million multiply-adds: 10.5 us of a loop, 4.4 of tiles; of 34 million: 350 us."""
    net = Net("product", 1)
    x = net.input("x", [64, 64])
    net.output(net.op("MatMul", x, net.weight(64, 103, fan_in=64)), "y", [64, 103])
    large = Net("product", 1)
    x = large.input("x", [256, 256])
    large.output(large.op("MatMul", x, large.weight(256, 512, fan_in=256)), "y", [256, 512])
    assert not shared(scheduled(net.model()))
    assert shared(scheduled(large.model()))


def test_all_programs_of_a_device_count() -> None:
    """Two of 36 us are worth a pool; one is not."""
    s = scheduled(maps(48, 48, 48))
    functions = functions_of(s)
    renamed = [replace(f, name=f"again_{f.name}") for f in functions]
    assert not cuts([(s, functions)], 2)
    assert len(cuts([(s, functions), (s, renamed)], 2)) == 6


def test_code_without_shared_kernels_has_no_pool() -> None:
    few, many = (render([Part(scheduled(maps(*[48] * n)), "run")], "p", 2).source for n in (3, 6))
    assert "cv_" in few and not any(word in few for word in ("pthread", "cv_parallel", "cv_wake"))
    assert many.count("    cv_wake();\n") == 1
    assert many.count("      cv_parallel(") == 6
    assert many.count("_arguments { ") == 1  # kernels that are alike are one task


# --- along which points -------------------------------------------------------------------------------


def the_cuts(s: Schedule, threads: int) -> list[Cut]:
    """How kernels on images of four dimensions are cut, all of them; every point is among those shared."""
    found, functions = shared(s, threads), functions_of(s)
    for f in functions:
        if f.name in found:
            cut = found[f.name]
            points = static(f.points)
            assert points is None or cut.outer * (static(cut.rows) or 0) * cut.row == points
    return [found[f.name] for f in functions if f.name in found and f.kernel.writes[0].rank == 4]


def test_images_are_cut_at_the_same_rows() -> None:
    """56 rows of 32 channels: 0.4 MB of an image, 37 KB of weights; with a border there are 58 rows."""
    found = the_cuts(scheduled(convolution(32, 56, 56)), 2)
    assert len(found) > 2
    assert {static(c.rows) for c in found if c.outer > 1} == {56, 58}


@pytest.mark.parametrize(("threads", "by_rows"), [(2, True), (8, True), (9, False)])
def test_few_rows_for_each_thread_are_not_cut(threads: int, by_rows: bool) -> None:
    """8 threads have 7 rows each of 56."""
    found = the_cuts(scheduled(convolution(32, 56, 56), threads), threads)
    assert found and any(c.outer > 1 for c in found) == by_rows


def test_large_weights_are_not_read_by_all() -> None:
    """1.2 MB of weights and 0.6 MB of images: the dense ones share channels, the other rows."""
    s = scheduled(convolution(184, 20, 20))
    found = shared(s)
    dense = [
        found[f.name]
        for f in functions_of(s)
        if f.name in found and sum(v.array.nbytes for v in f.kernel.reads if v.is_constant) > 10**6
    ]
    assert dense and all(c.outer == 1 and c.row == 1 for c in dense)


def test_the_images_of_a_batch_are_cut_alike() -> None:
    """The depthwise one: all rows of two blocks of channels in each image."""
    one, three = (the_cuts(scheduled(convolution(32, 56, 56, n)), 2) for n in (1, 3))
    assert Cut(2, E.const(56), 1) in one and Cut(6, E.const(56), 1) in three


def test_unknown_sizes_are_shared_between_any_points() -> None:
    found = the_cuts(scheduled(convolution(32, 56, 56, "N")), 2)
    assert found and all((c.outer, c.row) == (1, 1) and static(c.rows) is None for c in found)


# --- scratch memory, and strips -----------------------------------------------------------------------


def test_scratch_memory_for_fewer_threads() -> None:
    """Winograd's kernels are scheduled with scratch memory for a number of threads, and need as much."""
    model = convolution(64, 56, 56)
    for threads in (1, 2, 3):
        s = scheduled(model, threads)
        slots = [f.name for f in functions_of(s) if f.kernel.slot is not None]
        assert slots
        for asked in (2, 3):
            assert all((name in shared(s, asked)) == (asked <= threads) for name in slots)


def in_strips(threads: int) -> Schedule:
    """A chain of kernels on an image larger than the cache, and a map of 12 us that is no part of it."""
    net = Net("strips", 1)
    x = net.input("x", [1, 16, 64, 64])
    y = net.op("Relu", net.conv(x, 16, 96, 1))
    y = net.op("Relu", net.conv(y, 96, 96, 3, groups=96))
    net.output(net.conv(y, 96, 16, 1), "y", [1, 16, 64, 64])
    net.output(net.op("Add", net.input("z", [48, 1000]), net.bias(1000)), "w", [48, 1000])
    return scheduled(net.model(), threads, 256 * KIB)


def test_strips_count_as_a_program_that_is_worth_it() -> None:
    s = in_strips(2)
    (chain,) = s.strips
    together = {f.name for f in functions_of(s)[chain.first : chain.last + 1]}
    found = shared(s)
    (mapped,) = (f.name for f in functions_of(s) if f.kernel.writes[0].rank == 2)
    assert mapped in found and not together & set(found)
    source = render([Part(s, "run")], "p", 2).source
    assert f"cv_parallel(run_strips{chain.first}_task, &a, 1, {chain.pieces}, 1);" in source


def test_strips_with_too_few_windows_do_not_count() -> None:
    (chain,) = in_strips(2).strips
    assert [is_shared(chain, n) for n in (1, 2, 3)] == [False, True, False]
    assert not is_shared(replace(chain, pieces=1), 2)
    source = render([Part(in_strips(1), "run")], "p", 2).source
    assert "_strips" in source and "_strips0_task" not in source
