from __future__ import annotations

from pathlib import Path

import pytest

from cuvil.errors import TargetError
from cuvil.target import profiles, schema

BASE = """
description: the base
triple: x86_64-linux-gnu
devices:
  cpu0: {kind: cpu, isa: x86-64-v3, cores: 8, frequency: 3 GHz, caches: {l1d: 48 KiB, l2: 1 MiB}}
  gpu0: {kind: gpu, isa: sm_86, peak_f32: 1 TFLOP/s}
memories:
  dram: {size: 8 GiB, bandwidth: 20 GB/s, latency: 85 ns}
toolchain: {flags: [-g0, -fno-plt]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.yaml").write_text(text)


def test_extends_merges_by_key_and_device(folder: Path) -> None:
    write(
        folder,
        "fast",
        "extends: base\nname: fast\ndevices: {cpu0: {threads: 4, caches: {l2: 2 MiB}}, gpu0: null}\n"
        "toolchain: {flags: [-g1]}\n",
    )
    write(folder, "faster", "extends: ./fast.yaml\ndevices: {cpu0: {threads: 8}}\n")
    target = schema.load("faster", [folder])
    assert (target.name, target.description) == ("faster", "the base")
    assert [device.name for device in target.devices] == ["cpu0"]
    cpu = target.devices[0]
    assert (cpu.cores, cpu.threads, cpu.caches.l1d, cpu.caches.l2) == (8, 8, 48 << 10, 2 << 20)
    assert target.toolchain.flags == ("-g1",)


def test_error_in_an_extended_profile_names_its_own_file(folder: Path) -> None:
    write(folder, "fast", "extends: base\nmemories: {dram: {size: 4 GiB}}\n")
    write(folder, "base", BASE.replace("20 GB/s", "20 GBps"))
    with pytest.raises(TargetError) as caught:
        schema.load("fast", [folder])
    assert caught.value.where == f"{folder / 'base.yaml'}:8: memories.dram.bandwidth"


def test_cycle(folder: Path) -> None:
    for name, parent in (("a", "b"), ("b", "c"), ("c", "a")):
        write(folder, name, f"extends: {parent}\n")
    with pytest.raises(TargetError) as caught:
        schema.load("a", [folder])
    assert (
        str(caught.value) == f"{folder / 'c.yaml'}:1: extends: the profile extends itself: a -> b -> c -> a"
    )


def test_unknown_name(folder: Path) -> None:
    with pytest.raises(TargetError) as caught:
        schema.load("bass", [folder])
    assert str(caught.value) == (
        "unknown target 'bass'; did you mean 'base'? allowed: base, host, a path to a YAML file, "
        "or a triple such as aarch64-linux-gnu"
    )
    write(folder, "child", "\nextends: bass\n")
    with pytest.raises(TargetError, match=r"child.yaml:2: extends: unknown target 'bass'"):
        schema.load("child", [folder])
    with pytest.raises(TargetError, match=r"none.yaml: cannot read profile: No such file"):
        schema.load(str(folder / "none.yaml"), [folder])


def test_search_order(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    second = tmp_path_factory.mktemp("second")
    write(second, "base", BASE.replace("the base", "another"))
    write(second, "other", BASE)
    assert schema.load("base", [folder, second]).description == "the base"
    assert schema.load("base", [second, folder]).description == "another"
    assert profiles.names([folder, second]) == ["base", "host", "other"]


def test_triple_without_a_file() -> None:
    target = schema.load("aarch64-unknown-linux-gnu", [])
    assert (target.name, str(target.triple)) == ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu")
    assert [(device.name, device.isa, device.threads) for device in target.devices] == [
        ("cpu0", "armv8-a", 1)
    ]
    assert schema.load("riscv64-linux-musl", []).devices[0].isa == "rv64gc"


def test_a_file_named_by_triple_wins(folder: Path) -> None:
    write(folder, "x86_64-unknown-linux-gnu", BASE)
    for name in ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu", "amd64-pc-linux-gnu"):
        assert schema.load(name, [folder]).devices[0].isa == "x86-64-v3"
    made_up = schema.load("x86_64-linux-gnu.2.17", [folder]).devices[0]
    assert (made_up.isa, made_up.isa_levels[-1]) == ("x86-64", "x86-64-v4-amx")


def test_a_kept_host_wins_over_the_probe(folder: Path) -> None:
    assert schema.load("host", [folder]).description == "this machine, as probed"
    write(folder, "host", "extends: base\n")
    assert schema.load("host", [folder]).description == "the base"
