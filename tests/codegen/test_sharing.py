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


def product(m: int, k: int, n: int) -> onnx.ModelProto:
    """A matrix product ``[m, k] x [k, n]`` with weights."""
    net = Net("product", 1)
    net.output(net.op("MatMul", net.input("x", [m, k]), net.weight(k, n, fan_in=k)), "y", [m, n])
    return net.model()


# --- whether ------------------------------------------------------------------------------------------


def test_an_input_is_with_the_calling_thread() -> None:
    """To get half of it takes a thread longer than to let the other one add to it."""
    assert not shared(scheduled(maps(1000)))


@pytest.mark.parametrize(
    ("m", "k", "n", "wanted"),
    [
        (64, 64, 103, False),  # 4.4 us; half of it, the input from the other core, and a fork: 5.5
        (64, 256, 512, True),  # 87 us; half of it, 65 KB at 13 GB/s, and a fork: 50.8
        (4, 64, 1024, False),  # 2.7 us
        (1, 1024, 1024, True),  # 4.2 MB from memory: 150 us, or half of it for each
        (1, 128, 256, False),  # the 131 KB are in the cache
    ],
)
def test_products_are_shared_where_that_saves_time(m: int, k: int, n: int, wanted: bool) -> None:
    s = scheduled(product(m, k, n))
    assert bool(shared(s)) == wanted
    assert not shared(s, 1)


def test_all_programs_of_a_device_count() -> None:
    """Of 32.8 us a thread saves 9.4: two of them are not worth a pool, three are."""
    s = scheduled(product(128, 192, 128))
    functions = functions_of(s)

    def several(n: int) -> list[tuple[Schedule, list[Function]]]:
        return [(s, [replace(f, name=f"{f.name}_{i}") for f in functions]) for i in range(n)]

    assert not cuts(several(2), 2)
    assert len(cuts(several(3), 2)) == 3


def test_code_without_shared_kernels_has_no_pool() -> None:
    few, many = (render([Part(scheduled(product(m, 256, 512)), "run")], "p", 2).source for m in (4, 256))
    assert "cv_" in few and not any(word in few for word in ("pthread", "cv_parallel", "cv_wake"))
    assert many.count("    cv_wake();\n") == 1
    assert many.count("      cv_parallel(") == 1


@pytest.mark.parametrize("convolved", [False, True])
def test_what_threads_have_is_worth_a_fork(convolved: bool) -> None:
    """Pooling takes 2.5 us in one thread, and 31 more to get the half of 0.8 MB that another one wrote."""
    net = Net("pool", 1)
    x = net.input("x", [1, 64, 56, 56])
    x = net.op("Relu", net.conv(x, 64, 64, 3)) if convolved else x
    net.output(net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), "y", [1, 64, 28, 28])
    s = scheduled(net.model())
    assert (functions_of(s)[-1].name in shared(s)) == convolved


# --- along which points -------------------------------------------------------------------------------


def the_cuts(s: Schedule, threads: int) -> list[Cut]:
    """How kernels on images of four dimensions are cut, all of them; every point is among those shared."""
    found, functions = shared(s, threads), functions_of(s)
    for f in functions:
        if f.name in found:
            cut = found[f.name]
            assert cut.outer * cut.rows * cut.row == f.points
    return [found[f.name] for f in functions if f.name in found and f.kernel.writes[0].rank == 4]


def test_images_are_cut_at_the_same_rows() -> None:
    """56 rows of 32 channels (58 with a border, 14 of Winograd tiles): 0.4 MB of images, 37 KB of weights."""
    found = the_cuts(scheduled(convolution(32, 56, 56)), 2)
    assert len(found) > 2
    assert {static(c.rows) for c in found} == {56, 58, 14}


def test_large_weights_are_not_read_by_all() -> None:
    """A 1x1 convolution of 8x8 images with 9.4 MB of weights: each thread reads half of them."""
    net = Net("wide", 1)
    x = net.input("x", [1, 1536, 8, 8])
    net.output(net.conv(x, 1536, 1536, 1), "y", [1, 1536, 8, 8])
    s = scheduled(net.model())
    (cut,) = (c for c in the_cuts(s, 2) if (static(c.outer), static(c.row)) == (1, 1))
    assert (static(cut.rows) or 0) % 8 != 0 or (static(cut.rows) or 0) > 8


@pytest.mark.parametrize("batch", [1, 3, "N"])
def test_the_images_of_a_batch_are_cut_alike(batch: int | str) -> None:
    """The depthwise one: all rows of two blocks of channels in each image; one image is expected of "N"."""
    found = the_cuts(scheduled(convolution(32, 56, 56, batch)), 2)
    images = E.sym("N") if batch == "N" else E.const(int(batch))
    assert Cut(images * 2, E.const(56), E.const(1)) in found


def test_unknown_sizes_are_shared_between_any_points() -> None:
    net = Net("unknown", 1)
    x = net.input("x", [1, 32, "H", "W"])
    net.output(net.op("Relu", net.conv(x, 32, 32, 3)), "y", [1, 32, "H", "W"])
    found = the_cuts(scheduled(net.model()), 2)
    assert found and all((c.outer, c.row) == (E.const(1), E.const(1)) for c in found)


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
    """A chain of kernels on an image larger than the cache, and a product apart that saves 9.4 us."""
    net = Net("strips", 1)
    x = net.input("x", [1, 16, 64, 64])
    y = net.op("Relu", net.conv(x, 16, 96, 1))
    y = net.op("Relu", net.conv(y, 96, 96, 3, groups=96))
    net.output(net.conv(y, 96, 16, 1), "y", [1, 16, 64, 64])
    net.output(
        net.op("MatMul", net.input("z", [128, 192]), net.weight(192, 128, fan_in=192)), "w", [128, 128]
    )
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
