"""Constants that a library makes at its first run: the same bits as at compile time, made once, in memory
that takes no room in the file."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from codegen.sandbox import ADDRESS, ISAS, THREAD, Array, Callers, Case, Isa, Program, isa, schedule_of
from zoo.net import Net

import cuvil
from cuvil.cli import main
from cuvil.codegen.program import Part, render
from cuvil.codegen.tuned import transforms, winograd
from cuvil.ir.primitives import Prepared
from cuvil.schedule import verify
from cuvil.schedule.plan import Schedule, constant_bytes, workspace_bytes
from cuvil.session import Session
from cuvil.target.schema import Target, load
from cuvil.toolchain import symbols
from cuvil.toolchain.compilers import Options
from cuvil.toolchain.machine import Machine

END = 64
"""Bytes that a tile may read beyond the last constant."""


def chain(channels: Sequence[int], side: int = 24) -> onnx.ModelProto:
    """3x3 convolutions one after the other, which Winograd's algorithm is faster for, between two of 1x1."""
    net = Net("chain", 7)
    x = net.conv(net.input("x", [1, channels[0], side, side]), channels[0], channels[0], 1)
    for inputs, outputs in itertools.pairwise(channels):
        x = net.op("Relu", net.conv(x, inputs, outputs, 3))
    net.output(net.conv(x, channels[-1], 16, 1), "y", [1, 16, side, side])
    return net.model()


def cancelling(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every other filter such that G g is 0 but for rounding errors, in two rows of F(4x4)."""
    (p, _), rng = transforms.POINTS[4], np.random.default_rng(3)
    for t in model.graph.initializer:
        w = onnx.numpy_helper.to_array(t).copy()
        if w.shape[2:] == (3, 3):
            w[::2, :, 1] = 0
            w[::2, :, 2] = rng.integers(-999, 999, w[::2, :, 2].shape)
            w[::2, :, 0] = -p * p * w[::2, :, 2]
            t.CopyFrom(onnx.numpy_helper.from_array(w, t.name))
    return model


def taps_bytes(channels: Sequence[int]) -> int:
    """Bytes of the 3x3 weights of a `chain`."""
    return sum(4 * 9 * inputs * outputs for inputs, outputs in itertools.pairwise(channels))


def feeds(channels: Sequence[int], side: int = 24) -> dict[str, Array]:
    shape = (1, channels[0], side, side)
    return {"x": np.random.default_rng(5).standard_normal(shape).astype(np.float32)}


def small_file(chosen: Isa) -> Isa:
    """The same machine with ``footprint: file``."""
    options = None if chosen.packing is None else {**chosen.packing, "footprint": "file"}
    return replace(chosen, options={**(chosen.options or {}), "footprint": "file"}, packing=options)


def definitions(s: Schedule) -> list[Prepared]:
    return [v.definition for v in s.prepared if isinstance(v.definition, Prepared)]


# --- what is made ---------------------------------------------------------------------------------------


class Dump(Program):
    """A program that runs its one case and writes the prepared constants."""

    def _main(self) -> str:
        (case,) = self.cases
        s = case.schedule
        size = sum(s.prepared.values())
        return f"""
#include <stdio.h>
#include <stdlib.h>
int main(void) {{
    static unsigned char workspace[{workspace_bytes(s, {})}] CV_ALIGN64;
    static float in[{case.bytes(s.program.inputs[0])}], out[{case.bytes(s.program.outputs[0])}];
    if (function0(workspace, in, out) != 0) return 1;
    return fwrite(cases_prepared, 1, {size}, stdout) != {size};
}}
"""

    def prepared(self) -> bytes:
        return self._done(0, 0).stdout


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("name", [*(n for n in ISAS if n.startswith("x86-64")), "host"])
def test_the_same_bits_as_at_compile_time(
    name: str, m: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the compiler may fuse multiplications and additions, which would give other rounding errors.
    Partial panels are filled with zeros, here of either sign."""
    monkeypatch.setattr(winograd, "choose", lambda *layer: m)
    channels = (33, 50, 16, 7)
    chosen = small_file(isa(name))
    case = Case("chain", schedule_of(cancelling(chain(channels, 9)), chosen), feeds(channels, 9))
    s = case.schedule
    verify.schedule(s)
    assert len(s.prepared) == 3 and {d.kernel.m for d in definitions(s)} == {m}
    assert not s.prepared.keys() & s.constants.keys()
    wanted = b"".join(
        data + bytes(size - len(data))
        for v, size in s.prepared.items()
        for data in [constant_bytes(v, s.storage.layout(v))]
    )
    got = np.frombuffer(Dump([case], tmp_path, chosen, (), options=Options()).prepared(), np.float32)
    assert np.array_equal(got, np.frombuffer(wanted, np.float32)) and np.isfinite(got).all()


def test_only_winograds_weights_are_prepared() -> None:
    model = chain((32, 32))
    host = isa("host")
    for change in ({}, {"footprint": "small"}, {"footprint": "file", "accuracy": "strict"}):
        s = schedule_of(model, replace(host, options={**(host.options or {}), **change}))
        assert not s.prepared
        code = render([Part(s, "f")], "net")
        assert "prepare" not in code.source and code.plan["prepared_bytes"] == 0


def test_equal_ones_are_prepared_once() -> None:
    """Of two segments, and of one."""
    chosen = small_file(isa("host"))
    first, second, other = (schedule_of(chain(c), chosen) for c in ((32, 32), (32, 32), (32, 48)))
    (one,), (more,) = first.prepared.values(), other.prepared.values()
    for schedules, size in (([first], one), ([first, second], one), ([first, second, other], one + more)):
        code = render([Part(s, f"f{i}") for i, s in enumerate(schedules)], "net")
        assert code.plan["prepared_bytes"] == size + END
        assert code.source.count("    net_prepare();\n") == len(schedules)
    assert len(re.findall(r"^ {8}winograd\d_weights_", code.source, re.MULTILINE)) == 2


# --- when it is made ------------------------------------------------------------------------------------


class Twice(Program):
    """A program that runs its one case, erases the prepared constants, and runs it again."""

    def _main(self) -> str:
        erase = "memset(cases_prepared, 0, sizeof cases_prepared);"
        text = super()._main()
        call = next(line for line in text.splitlines() if "const int code = " in line)
        again = call.replace("const int code", "code")
        return text.replace(call, call.replace("const ", "") + f"\n        {erase}\n{again}")


def test_a_later_call_prepares_nothing(tmp_path: Path) -> None:
    channels = (32, 32)
    chosen = small_file(isa("host"))
    case = Case("chain", schedule_of(chain(channels), chosen), feeds(channels))
    once, again = (kind([case], tmp_path / kind.__name__, chosen, ()).run(0)[0] for kind in (Program, Twice))
    assert np.ptp(once, axis=(2, 3)).min() > 0.1
    assert np.ptp(again, axis=(2, 3)).max() == 0  # of all sums only the biases are left


@pytest.mark.parametrize("sanitize", [(), THREAD, ADDRESS], ids=["plain", "races", "bounds"])
@pytest.mark.parametrize("threads", [1, 2])
def test_callers_that_meet_in_the_first_run(
    threads: int, sanitize: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Callers, "RUNS", 2)
    channels = (32, 48, 32)
    host = isa("host")
    chosen = replace(host, options={**(host.options or {}), "threads": threads})
    cases = [
        Case("chain", schedule_of(chain(channels), kind), feeds(channels))
        for kind in (chosen, small_file(chosen))
    ]
    wanted = Program(cases[:1], tmp_path / "default", chosen, (), threads).run(0)[0]
    program = Callers(cases[1:], tmp_path / "file", chosen, sanitize, threads)
    assert "cases_prepare();" in program.source
    if sanitize:  # compiled in another way, which may round otherwise
        assert np.abs(program.run(0)[0] - wanted).max() <= 1e-6 * np.abs(wanted).max()
    else:
        assert program.run(0)[0].tobytes() == wanted.tobytes()


# --- libraries ------------------------------------------------------------------------------------------

CHANNELS = (64, 64, 64)


def compiled(target: Target, footprint: str, folder: Path) -> Session:
    devices = tuple(replace(d, footprint=footprint) for d in target.devices)
    chain_ = replace(target.toolchain, optimization="O1")
    folder.mkdir()
    onnx.save(chain(CHANNELS), folder / "chain.onnx")
    target = replace(target, devices=devices, toolchain=chain_)
    return cuvil.compile(folder / "chain.onnx", target, output=folder / "out")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Session]:
    """Libraries for this machine by footprint."""
    folder = tmp_path_factory.mktemp("host")
    return {name: compiled(load("host"), name, folder / name) for name in ("default", "file")}


def test_answers_are_the_same(libraries: dict[str, Session]) -> None:
    default, file = (libraries[name].run(None, feeds(CHANNELS))[0] for name in ("default", "file"))
    assert file.tobytes() == default.tobytes()
    assert libraries["file"].run(None, feeds(CHANNELS))[0].tobytes() == default.tobytes()


def test_the_file_is_smaller_by_what_is_prepared(libraries: dict[str, Session]) -> None:
    own = taps_bytes(CHANNELS)
    sizes = {name: s.library.stat().st_size for name, s in libraries.items()}
    saved = sizes["default"] - sizes["file"]
    assert saved == pytest.approx(4 * own - own, abs=16 << 10)  # F(4x4): 36 numbers in the place of 9
    bss = {name: symbols.sizes(s.library).bss for name, s in libraries.items()}
    assert bss["file"] - bss["default"] == pytest.approx(4 * own + END, abs=256)


def test_what_the_library_says_of_it(libraries: dict[str, Session]) -> None:
    size = 4 * taps_bytes(CHANNELS) + END
    for name, wanted in (("default", 0), ("file", size)):
        code = libraries[name].library.parent / "codegen"
        assert json.loads((code / "chain.json").read_text())["prepared_bytes"] == wanted
        plan = json.loads((code / "cpu0.plan.json").read_text())
        assert plan["prepared_bytes"] == wanted
        header = (code / "chain.h").read_text()
        assert (f"#define CHAIN_PREPARED_BYTES {size} " in header) == (name == "file")


def test_what_is_written_in_the_objects(libraries: dict[str, Session]) -> None:
    """The prepared constants and the word that guards them, in zeroed memory; names stay in the library."""
    library = libraries["file"].library
    images = {image.name: image for image in symbols.read(library.with_suffix(".a"))}
    sections = [s for s in images["chain_cpu0.o"].sections if s.category in ("data", "bss")]
    assert sum(s.size for s in sections if s.category == "data") == 0
    assert 4 <= sum(s.size for s in sections) - (4 * taps_bytes(CHANNELS) + END) <= END
    hidden = {s.name for s in images["chain_cpu0.o"].symbols if s.visibility == "hidden"}
    assert {"chain_cpu0_prepared", "chain_cpu0_prepare"} <= hidden
    assert not any("prepare" in name for name in symbols.defined(library))
    names = {name.split("@")[0] for name in symbols.undefined(library)}
    assert not names & {"malloc", "sched_yield", "pthread_once", "mmap"}


@pytest.mark.skipif(Machine().arch != "x86_64", reason="needs an x86-64 machine")
def test_instruction_sets_share_what_is_prepared(tmp_path: Path) -> None:
    """One array, whichever is run first, and after it another."""
    isa("x86-64-v3")
    target = load("x86_64-unknown-linux-gnu")
    levels = ("x86-64", "x86-64-v3")
    tools = replace(target.toolchain, compiler="gcc" if shutil.which("gcc") else "zig")
    device = replace(target.devices[0], isa=levels[-1], isa_levels=levels)
    target = replace(target, devices=(device,), toolchain=tools)
    default, file = (compiled(target, name, tmp_path / name) for name in ("default", "file"))
    images = symbols.read(file.library.with_suffix(".a"))
    defined = [(image.name, s) for image in images for s in image.symbols if s.defined]
    found = [(name, s.size) for name, s in defined if s.name.endswith("_prepared")]
    assert found == [("chain_cpu0.o", 4 * taps_bytes(CHANNELS) + END)]
    for order in (levels, levels[::-1]):
        copy = shutil.copy(file.library, tmp_path / f"{order[0]}.so")  # a fresh state
        session = Session(Path(copy), file.library.parent / "codegen" / "chain.json")
        for level in order:
            assert session.use_isa(level) == default.use_isa(level) == level
            (got,), (wanted,) = (s.run(None, feeds(CHANNELS)) for s in (session, default))
            assert got.tobytes() == wanted.tobytes(), level


def test_a_forked_process_has_them(libraries: dict[str, Session]) -> None:
    session = libraries["file"]
    (wanted,) = session.run(None, feeds(CHANNELS))
    child = os.fork()
    if child == 0:
        os._exit(session.run(None, feeds(CHANNELS))[0].tobytes() != wanted.tobytes())
    assert os.waitpid(child, 0)[1] == 0


def test_the_command_line_says_what_is_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(chain(CHANNELS), tmp_path / "chain.onnx")
    profile = tmp_path / "small-file.yaml"
    profile.write_text(
        "extends: x86_64-linux-gnu\ndevices: {cpu0: {footprint: file}}\ntoolchain: {optimization: O1}\n"
    )
    arguments = ["--model", str(tmp_path / "chain.onnx"), "--target", str(profile)]
    assert main(["compile", *arguments, "--output", str(tmp_path / "chain.so")]) == 0
    assert "\nprepared  1.13 MiB of memory, filled by the first run\n" in capsys.readouterr().out
