from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cuvil.errors import TargetError
from cuvil.target import profiles, schema
from cuvil.target.isa import LEVELS

HERE = Path(__file__).parent
TARGETS = HERE.parent.parent / "targets"
PROFILES = sorted(TARGETS.glob("*.yaml"))

BOARD = """
triple: aarch64-linux-gnu
devices:
  big: {kind: cpu, isa: armv8.2-a-dotprod, cores: 4, frequency: 2 GHz, fma_units: 2, cpus: 4-7}
  little: {kind: cpu, isa: armv8-a, cores: 2, frequency: 1 GHz, cpus: [1, 0]}
memories:
  dram: {size: 2 GiB, bandwidth: 10 GB/s, latency: 100 ns}
"""


def load(tmp_path: Path, text: str) -> schema.Target:
    path = tmp_path / "board.yaml"
    path.write_text(text)
    return schema.load(path, [])


def test_values_and_what_is_derived(tmp_path: Path) -> None:
    target = load(tmp_path, BOARD)
    big, little = target.devices
    assert target.name == "board"
    assert (big.name, big.cores, big.threads, big.cpus, big.memory) == ("big", 4, 1, (4, 5, 6, 7), "dram")
    assert big.peak_f32 == 2 * 4 * 2 * 2e9  # multiply and add, four lanes, two units
    assert big.peak_i8 == 4 * big.peak_f32
    assert (little.cpus, little.peak_f32, little.peak_i8) == ((0, 1), 8e9, 8e9)
    assert big.caches == schema.Caches(l1d=32768, l2=262144, l3=0, line=64)
    assert target.memory("dram").size == 2**31
    assert target.toolchain == schema.Toolchain(compiler="auto", optimization="O3", flags=())
    assert (target.partition.objective, target.partition.quantile) == ("latency", 0.95)
    assert big.isa_info is not None
    assert big.isa_info.vector_registers == 32


def test_a_given_peak_needs_no_frequency(tmp_path: Path) -> None:
    text = BOARD.replace("frequency: 1 GHz", "peak_f32: 5 GFLOP/s")
    assert load(tmp_path, text).device("little").peak_f32 == 5e9


def test_npu_and_gpu(tmp_path: Path) -> None:
    text = BOARD + "quantization: {mode: none, devices: {npu: int8}}\n"
    text = text.replace("memories:", "  npu: {kind: npu, isa: ethos-u55-128, peak_i8: 1 TOP/s}\nmemories:")
    target = load(tmp_path, text)
    npu = target.device("npu")
    assert (npu.peak_f32, npu.peak_i8, npu.isa_info) == (0, 1e12, None)
    assert (target.mode("npu"), target.mode("big")) == ("int8", "none")


def test_memories_reach_each_other_in_both_directions() -> None:
    target = schema.load(HERE / "base.yaml", [])
    assert target.memory("node1").remote["node0"] == schema.Remote(latency=192e-9, bandwidth=10e9)
    assert target.memory("vram").remote == {}


def test_cost_parameters(tmp_path: Path) -> None:
    text = BOARD.replace("fma_units: 2", "cost: {p: 4, efficiency: {gemm: 0.9}}")
    assert load(tmp_path, text).device("big").cost == {"p": 4.0, "efficiency": {"gemm": 0.9}}


EDITS: list[tuple[str, str, set[str]]] = [
    ("triple:", "# a comment\ndescription: x\nboard: y\ntriple:", set()),
    ("triple:", "quantization: {mode: int8}\ntriple:", {"quantize"}),
    ("triple:", "quantization: {calibration: {method: mse}}\ntriple:", {"quantize"}),
    ("triple:", "partition: {objective: throughput}\ntriple:", {"partition"}),
    ("triple:", "toolchain: {optimization: Os}\ntriple:", {"cc"}),
    ("fma_units: 2", "cpu: cortex_a76, fma_units: 2", {"cc"}),
    ("cpus: 4-7", "cpus: 4-7, threads: 2", {"partition", "codegen", "cc"}),
    ("cpus: 4-7", "cpus: 4-7, accuracy: strict", {"partition", "codegen"}),
    ("cpus: 4-7", "cpus: 4-7, footprint: file", {"partition", "codegen"}),
    ("cpus: 4-7", "cpus: 3-6", {"codegen"}),
    ("latency: 100 ns", "latency: 90 ns", {"partition"}),
    ("2 GHz", "2000 MHz", set()),
    ("armv8-a", "armv8.2-a", {"partition", "codegen", "cc"}),
]


@pytest.mark.parametrize(("old", "new", "stages"), EDITS, ids=[new for _, new, _ in EDITS])
def test_an_edit_changes_the_slices_of_the_stages_that_read_it(
    tmp_path: Path, old: str, new: str, stages: set[str]
) -> None:
    before, after = load(tmp_path, BOARD), load(tmp_path, BOARD.replace(old, new, 1))
    assert {s for s in schema.STAGES if before.slice(s) != after.slice(s)} == stages


def test_slice_of_one_device(tmp_path: Path) -> None:
    target = load(tmp_path, BOARD)
    edited = load(tmp_path, BOARD.replace("1 GHz", "1.2 GHz"))
    assert target.slice("codegen", "big") == edited.slice("codegen", "big")
    assert target.slice("codegen", "little") != edited.slice("codegen", "little")
    assert list(target.slice("cc", "big")["devices"]) == ["big"]
    facts = target.slice("codegen", "big")["devices"]["big"]
    assert (facts["vector_bits"], facts["dot_i8"], facts["bandwidth"]) == (128, True, 10e9)
    flags = target.slice("cc")["devices"]["little"]["zig_flags"]
    assert flags == ["-target", "aarch64-linux-gnu", "-mcpu=generic"]
    with pytest.raises(KeyError):
        target.slice("cc", "gpu")
    with pytest.raises(ValueError, match="unknown stage 'compile'; allowed: import, partition"):
        target.slice("compile")


LEVELS_BOARD = """
triple: x86_64-linux-gnu
devices:
  cpu0: {kind: cpu, isa: x86-64-v3, isa_levels: [x86-64, x86-64-v3, x86-64-v4-vnni], frequency: 2 GHz}
memories: {dram: {size: 2 GiB, bandwidth: 10 GB/s, latency: 100 ns}}
"""


def test_levels_in_the_slices(tmp_path: Path) -> None:
    target = load(tmp_path, LEVELS_BOARD)
    facts = target.slice("codegen")["devices"]["cpu0"]
    least, stated, best = facts["levels"]
    assert [x["isa"] for x in facts["levels"]] == ["x86-64", "x86-64-v3", "x86-64-v4-vnni"]
    assert [x["vector_bits"] for x in facts["levels"]] == [128, 256, 512]
    # one unit of 4 lanes, two of 8, two of 16
    assert [x["peak_f32"] for x in facts["levels"]] == [16e9, 64e9, 128e9]
    assert (least["peak_i8"], best["peak_i8"]) == (16e9, 4 * 128e9)
    assert {key: facts[key] for key in stated} == stated
    flags = target.slice("cc", "cpu0")["devices"]["cpu0"]
    assert flags["levels"] == ["x86-64", "x86-64-v3", "x86-64-v4-vnni"]
    assert flags["gcc_flags"] == ["-march=x86-64"]
    alone = target.slice("cc", "cpu0", "x86-64-v3")["devices"]["cpu0"]
    assert (alone["isa"], alone["gcc_flags"]) == ("x86-64-v3", ["-march=x86-64-v3"])
    assert "levels" not in alone


def test_levels_are_read_by_the_stages_that_make_code(tmp_path: Path) -> None:
    before = load(tmp_path, LEVELS_BOARD)
    after = load(tmp_path, LEVELS_BOARD.replace("x86-64-v4-vnni", "x86-64-v4"))
    assert {s for s in schema.STAGES if before.slice(s) != after.slice(s)} == {"codegen", "cc"}
    assert before.slice("cc", "cpu0", "x86-64") == after.slice("cc", "cpu0", "x86-64")


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_profile(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=schema.json\n")
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema.json_schema())
    target = schema.load(path.stem)
    assert target.name == path.stem
    for data in (target.to_dict(), *(target.slice(stage) for stage in schema.STAGES)):
        assert json.loads(json.dumps(data)) == data


def test_the_boards_that_ship() -> None:
    names = {"x86_64-unknown-linux-gnu", "raspberry-pi-4", "jetson-nano", "rk3588", "xeon-2s"}
    assert names <= {path.stem for path in PROFILES}
    assert schema.load("jetson-nano").device("gpu0").peak_f32 == 236e9
    assert schema.load("rk3588").device("npu").peak_i8 * 3 == 6e12
    assert [d.cpus for d in schema.load("rk3588").devices] == [(4, 5, 6, 7), (0, 1, 2, 3), ()]
    assert schema.load("raspberry-pi-4").device("cpu0").peak_f32 == 12e9
    assert [d.memory for d in schema.load("xeon-2s").devices] == ["node0", "node1"]
    generic = schema.load("x86_64-unknown-linux-gnu").device("cpu0")
    assert (generic.isa, generic.isa_levels) == ("x86-64-v3", LEVELS["x86_64"])


def test_schema_json_is_up_to_date() -> None:
    jsonschema.Draft7Validator.check_schema(schema.json_schema())
    committed = (TARGETS / "schema.json").read_text(encoding="utf-8")
    assert committed == schema.json_schema_text(), schema.json_schema_text.__doc__


def invalid(instance: dict[str, Any]) -> str:
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft7Validator(schema.json_schema()).iter_errors(instance)
    )
    return error.message if error else ""


def test_the_json_schema_refuses_what_the_reader_refuses() -> None:
    board = yaml.safe_load(BOARD)
    assert not invalid(board)
    assert "'corse' was unexpected" in invalid(
        board | {"devices": {"cpu0": {"kind": "cpu", "isa": "x", "corse": 4}}}
    )
    assert "'triple' is a required property" in invalid({k: v for k, v in board.items() if k != "triple"})
    assert "'bandwidth' is a required property" in invalid(board | {"memories": {"dram": {"size": "1 GiB"}}})
    assert "'1 GB' does not match" in invalid(board | {"pcie": {"setup": "1 GB"}})
    assert not invalid({"extends": "rk3588", "devices": {"npu": None, "big": {"threads": 4}}})


def test_errors_of_files_in_invalid_that_the_json_schema_sees_too() -> None:
    for name in ("unknown_key", "unknown_unit", "text_for_number", "mode", "lanes", "not_an_address"):
        text = (HERE / "invalid" / f"{name}.yaml").read_text(encoding="utf-8")
        assert invalid(yaml.safe_load(text)), name


def test_file_name_that_cannot_name_a_target(tmp_path: Path) -> None:
    path = tmp_path / "my board!.yaml"
    path.write_text(BOARD)
    with pytest.raises(TargetError, match="cannot name a profile: give it a 'name'"):
        schema.load(path, [])
    path.write_text("name: my-board" + BOARD)
    assert schema.load(path, []).name == "my-board"


def test_default_folder_is_the_repository_s() -> None:
    assert profiles.default_folders() == [TARGETS]
