"""Kernels that run strip by strip compute, bit for bit, what they do one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codegen.sandbox import ADDRESS, THREAD, Case, Isa, Program, isa, schedule_of
from zoo.net import Net

from cuvil.codegen.tuned import amx, claims
from cuvil.schedule import verify
from cuvil.schedule.plan import Schedule


@pytest.fixture(autouse=True)
def small_tensors_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LARGE", 0.5)


KIB = 1024


def block(
    net: Net, x: str, channels: int, *, kernel: int = 3, stride: int = 1, out: int | None = None
) -> str:
    """An inverted residual block."""
    wide, out = 6 * channels, out or channels
    y = net.op("Relu", net.conv(x, channels, wide, 1))
    y = net.op("HardSwish", net.conv(y, wide, wide, kernel, stride=stride, groups=wide))
    y = net.conv(y, wide, out, 1)
    return net.op("Add", y, x) if stride == 1 and out == channels else y


def start(rows: int, columns: int, batch: int | str = 1) -> tuple[Net, str]:
    net = Net("n", 1)
    x = net.input("x", [batch, 3, rows, columns])
    return net, net.op("Relu", net.conv(x, 3, 16, 3))


def residual(batch: int | str = 1) -> Net:
    net, x = start(29, 23, batch)
    net.output(net.conv(block(net, x, 16), 16, 5, 1), "y", [batch, 5, 29, 23])
    return net


def stride() -> Net:
    net, x = start(45, 37)
    y = block(net, block(net, x, 16, kernel=5, stride=2, out=24), 24)
    net.output(y, "y", [1, 24, 23, 19])
    return net


def uneven_padding() -> Net:
    net, x = start(33, 33)
    y = net.conv(x, 16, 72, 1)
    weight = net.weight(72, 1, 3, 3, fan_in=9)
    y = net.op("Conv", y, weight, net.bias(72), strides=[2, 2], pads=[0, 0, 1, 1], group=72)
    net.output(net.op("Relu", net.conv(y, 72, 20, 1)), "y", [1, 20, 16, 16])
    return net


def separable() -> Net:
    """Depthwise and pointwise in turn, as in MobileNetV1: a chain through many windows."""
    net, y = start(40, 24)
    for _ in range(3):
        y = net.op("Relu", net.conv(y, 16, 16, 3, groups=16))
        y = net.op("Relu", net.conv(y, 16, 16, 1))
    net.output(y, "y", [1, 16, 40, 24])
    return net


def dilated() -> Net:
    net, x = start(30, 30)
    y = net.op("Sigmoid", net.conv(x, 16, 40, 1))
    weight = net.weight(40, 1, 3, 3, fan_in=9)
    y = net.op("Conv", y, weight, group=40, dilations=[3, 3], pads=[3, 3, 3, 3])
    net.output(net.conv(y, 40, 40, 1), "y", [1, 40, 30, 30])
    return net


def pooled() -> Net:
    net, x = start(40, 40)
    y = net.op("Relu", net.conv(x, 16, 48, 1))
    y = net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.output(net.conv(y, 48, 16, 1), "y", [1, 16, 20, 20])
    return net


MODELS: dict[str, tuple[Callable[..., Net], dict[str, Any], int]] = {
    "residual": (residual, {}, 128),
    "batch": (residual, {"batch": 3}, 128),
    "symbolic batch": (residual, {"batch": "N"}, 128),
    "stride": (stride, {}, 160),
    "uneven padding": (uneven_padding, {}, 128),
    "separable": (separable, {}, 96),
    "dilated": (dilated, {}, 128),
    "pooled": (pooled, {}, 96),
}


def pair(name: str, chosen: Isa, threads: int = 1) -> list[Case]:
    """A model in the plain order, and in strips."""
    build, arguments, cache = MODELS[name]
    net = build(**arguments)

    def scheduled(l2: int) -> Schedule:
        options = {**(chosen.options or {}), "threads": threads, "caches": {"l2": l2 * KIB}}
        return schedule_of(net.model(), replace(chosen, options=options))

    plain, strips = scheduled(0), scheduled(cache)
    verify.schedule(strips)
    assert not plain.strips and strips.strips
    rng = np.random.default_rng(2)
    (x,) = plain.program.inputs
    shape = [int(n.attr) if n.op == "const" else 2 for n in x.shape]
    feeds = {"x": rng.standard_normal(shape, np.float32)}
    return [Case(name, plain, feeds), Case(name, strips, feeds)]


def check(names: list[str], folder: Path, chosen: Isa, sanitize: tuple[str, ...], threads: int) -> None:
    cases = [case for name in names for case in pair(name, chosen, threads)]
    program = Program(cases, folder, chosen, sanitize, threads)
    for number in range(0, len(cases), 2):
        (plain,), (strips,) = program.run(number), program.run(number + 1)
        assert np.isfinite(plain).all() and np.ptp(plain) > 0.1
        np.testing.assert_array_equal(plain, strips, cases[number].name)


def test_the_same_as_in_plain_order(tmp_path: Path) -> None:
    check([*MODELS], tmp_path, isa("x86-64-v3"), ADDRESS, 1)


def test_the_same_with_wide_vectors(tmp_path: Path) -> None:
    check(["residual", "stride"], tmp_path, isa("x86-64-v4"), ADDRESS, 1)


@pytest.mark.parametrize(("threads", "sanitize"), [(1, ADDRESS), (2, THREAD)])
def test_the_same_on_tiles(
    threads: int, sanitize: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels with scratch memory of each thread."""
    monkeypatch.setattr(amx, "MIN_GAIN", 0.0)
    check(["residual", "stride", "symbolic batch"], tmp_path, isa("x86-64-v4-amx"), sanitize, threads)
    _, case = pair("residual", isa("x86-64-v4-amx"), threads)
    assert sum(k.slot is not None for k in case.schedule.kernels) > 1


def test_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    check(["stride", "symbolic batch"], tmp_path, isa("x86-64-v3"), THREAD, 3)


def test_fewer_windows_than_threads(tmp_path: Path) -> None:
    """Code for more threads than there are windows for runs a chain in one of them."""
    plain, strips = pair("residual", isa("x86-64-v3"), threads=1)
    program = Program([plain, strips], tmp_path, isa("x86-64-v3"), (), 2)
    np.testing.assert_array_equal(program.run(0), program.run(1))
