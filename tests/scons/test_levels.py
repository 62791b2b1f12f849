"""A device with several instruction sets: one node for each one's object, rebuilt alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from scons_tree import Tree

from cuvil import artefacts
from cuvil.scons.project import Model
from cuvil.scons.steps import steps
from cuvil.target import isa, schema
from cuvil.toolchain.machine import Machine

pytestmark = pytest.mark.skipif(Machine().arch != "x86_64", reason="needs an x86-64 machine")

BOARD = """
triple: x86_64-linux-gnu
devices:
  cpu0: {kind: cpu, isa: x86-64-v3, isa_levels: [x86-64, x86-64-v3, x86-64-v3-vnni], frequency: 2 GHz}
memories:
  dram: {size: 1 GiB, bandwidth: 10 GB/s, latency: 90 ns}
toolchain: {compiler: COMPILER}
"""


@pytest.fixture
def levels(fresh: Tree) -> Tree:
    """A project whose board has three levels, of which nothing has been built."""
    compiler = "gcc" if shutil.which("gcc") else "zig"
    fresh.board.write_text(BOARD.replace("COMPILER", compiler), encoding="utf-8")
    return fresh


def compiled(tree: Tree, *arguments: str) -> list[str]:
    """The ``cc`` steps that ``scons`` with `arguments` ran, without the model's name, sorted."""
    lines = tree.scons(*arguments).stdout.splitlines()
    return sorted(line.split("[")[1].rstrip("]") for line in lines if line.startswith("CC"))


def test_steps() -> None:
    target = schema.load("x86_64-unknown-linux-gnu")
    out = artefacts.layout(Path("out"), "net", target)
    listed = steps(out, target, Model(name="net", path="m.onnx"))
    found = {s.title.split("/", 2)[2].rstrip("]"): s for s in listed if s.level}
    assert (*found,) == target.devices[0].isa_levels
    one = found["x86-64-v3"]
    assert one.inputs == (Path("out/codegen/net_cpu0_x86_64_v3.c"),)
    assert one.outputs == (Path("out/obj/net_cpu0_x86_64_v3.o"),)
    assert one.settings[-4:-1] == ("--level", "x86-64-v3", "--slice")
    assert "x86-64-v4" not in one.settings[-1]
    device, model = (s for s in listed if s.stage == "cc" and not s.level)
    for step in (device, model):
        assert {path for s in found.values() for path in s.outputs} <= {*step.inputs}
    commands = [" ".join(s.compilation()["arguments"]) for s in (*found.values(), device)]
    vnni = "x86_64_v4+avx512vnni"
    cpus = [
        "x86_64",
        "x86_64_v3",
        "x86_64_v3+avxvnni",
        "x86_64_v4",
        vnni,
        f"{vnni}+amx_tile+amx_bf16",
        "x86_64",
    ]
    assert [command.split("-mcpu=")[1].split()[0] for command in commands] == cpus
    outputs = [path for s in listed for path in s.outputs]
    assert len(outputs) == len({*outputs})


def test_flags_of_a_level_reach_its_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings() -> dict[str, tuple[str, ...]]:
        target = schema.load("x86_64-unknown-linux-gnu")
        listed = steps(artefacts.layout(Path("out"), "net", target), target, Model(name="net", path="m.onnx"))
        return {s.title: s.settings for s in listed}

    before = settings()
    changed = replace(isa.ISAS["x86-64-v3"], zig_cpu="haswell")
    monkeypatch.setitem(isa.ISAS, "x86-64-v3", changed)
    after = settings()
    assert {title for title in before if before[title] != after[title]} == {
        "CC       net [x86_64-unknown-linux-gnu/cpu0/x86-64-v3]"
    }


def test_a_level_is_a_node_of_its_own(levels: Tree) -> None:
    whole = ["board", "board/cpu0"]
    every = ["board/cpu0/x86-64", "board/cpu0/x86-64-v3", "board/cpu0/x86-64-v3-vnni"]
    assert compiled(levels, "-j2") == [*whole, *every]
    before = levels.artefacts()
    assert compiled(levels) == []

    levels.edit(levels.board, "[x86-64,", "[x86-64, x86-64-v2,")
    assert compiled(levels) == [*whole, "board/cpu0/x86-64-v2"]
    assert b"tiny_cpu0_x86_64_v2_s0" in levels.artefacts()["libtiny.a"]
    levels.edit(levels.board, " x86-64-v2,", "")
    assert compiled(levels) == whole
    after = levels.artefacts()
    assert {name: after[name] for name in before} == before
