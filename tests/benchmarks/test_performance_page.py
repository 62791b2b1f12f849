"""The performance page shows what the benchmarks recorded, and their small parts compute what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import compile_time, performance, resident_memory, roofline
from cuvil.cost.estimate import KernelCost
from cuvil.errors import CuvilError


def test_the_page_shows_the_records() -> None:
    text = performance.PAGE.read_text(encoding="utf-8")
    assert performance.page(text, performance.read()) == text, "run python -m benchmarks.performance"


def test_the_page_must_have_a_place_for_every_table() -> None:
    report = performance.read()["resident-memory"]
    with pytest.raises(ValueError, match="no place for 'resident-memory'"):
        performance.page("# Performance\n", {"resident-memory": report})
    marked = "a\n<!-- resident-memory -->\nold\n<!-- end -->\nb\n"
    made = performance.page(marked, {"resident-memory": report})
    assert made.startswith("a\n<!-- resident-memory -->\n`python -m benchmarks.resident_memory")
    assert made.endswith("|\n\n<!-- end -->\nb\n") and "old" not in made
    assert performance.page(made, {"resident-memory": report}) == made


def test_refreshing_runs_the_recorded_commands() -> None:
    modules = [command[2] for command in performance.commands()]
    assert modules == [
        f"benchmarks.{m}" for m in ("latency", "latency", "roofline", "compile_time", "resident_memory")
    ]
    for command, stem in zip(performance.commands(), performance.SECTIONS):
        assert f"benchmarks/results/{stem}.json" in command


@pytest.mark.parametrize("family", list(compile_time.GENERATED))
@pytest.mark.parametrize("nodes", [7, 100])
def test_generated_networks_have_that_many_nodes(family: str, nodes: int) -> None:
    graph = compile_time.GENERATED[family](nodes).graph
    assert len(graph.node) == nodes
    assert {"convolutions": "Conv", "transformer": "LayerNormalization"}[family] in {
        n.op_type for n in graph.node
    } or nodes < 32


def test_exponent_of_growth() -> None:
    sizes = (10, 100, 900)
    rows = [{"family": "transformer", "nodes": n, "total": 1, "processor": 2e-3 * n**1.5} for n in sizes]
    assert compile_time.exponent(rows) == pytest.approx(1.5)
    assert compile_time.growth(rows) == {"transformer": 1.5}
    assert compile_time.growth(rows[:1]) == {}
    with pytest.raises(ValueError, match="two sizes"):
        compile_time.exponent(rows[:1])


def test_stopwatch_reads_the_stages_from_the_progress() -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    watch = compile_time.Stopwatch(lambda: next(times))
    for line in ("import", "partition", "gcc: compile x.c is still running", "cc cpu0", ""):
        watch(line)
    assert watch.seconds == {"import": 2.0, "partition": 3.0, "quantize": 0.0, "codegen": 0.0, "cc": 4.0}


def test_compile_time_of_a_small_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "r.json"
    assert compile_time.main(["--nodes", "5", "--models", "mlp", "--output", str(record)]) == 0
    rows = json.loads(record.read_text())["results"]
    names = [(r["model"], r["nodes"]) for r in rows]
    assert names[:2] == [("convolutions 5", 5), ("transformer 5", 5)] and names[2][0] == "mlp"
    assert all(r["library_kb"] > r["weights_kb"] and r["seconds"]["cc"] > 0 for r in rows)
    assert capsys.readouterr().out.count("\n| ") == 3


def test_resident_memory_of_a_small_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "r.json"
    arguments = ["--models", "ds_cnn", "--no-rival", "--output", str(record)]
    assert resident_memory.main(arguments) == 0
    row, small, file = json.loads(record.read_text())["results"]
    assert small["model"] == "ds_cnn (small)" and small["workspace"] <= row["workspace"]
    assert file["model"] == "ds_cnn (file)" and file["library"] == row["library"]
    assert row["prepared"] == file["prepared"] == 0, "it has no Winograd convolution"
    assert row["workspace"] < row["peak"]["VmHWM"] < 8e6
    assert row["peak"]["RssFile"] > row["weights"] > 0
    assert "| ds_cnn | " in capsys.readouterr().out


def test_resident_memory_of_an_unknown_footprint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        resident_memory.main(["--footprints", "file,tiny"])
    assert "--footprints: tiny is none of default, small, file" in capsys.readouterr().err


def test_status_of_a_process() -> None:
    text = "Name:\tx\nVmHWM:\t    1234 kB\nRssAnon:\t   10 kB\nThreads:\t1\n"
    assert resident_memory.resident(text) == {"VmHWM": 1234 * 1024, "RssAnon": 10240}


def test_shares_of_the_peaks() -> None:
    row = roofline.shares(1e-3, 1e8, 1e6, 200e9, 10e9)
    assert row["gflops"] == 100.0 and row["share_of_peak"] == 0.5
    assert row["share_of_roof"] == 0.5 and row["share_of_bandwidth"] == 0.1
    bound = roofline.shares(1e-3, 1e6, 1e6, 200e9, 10e9)
    assert bound["share_of_roof"] == 0.1 and bound["share_of_peak"] == 0.005
    assert roofline.shares(1e-3, 0, 1e6, 200e9, 10e9)["share_of_roof"] == 0


def test_predictions_meet_their_measurements() -> None:
    def kernel(name: str) -> KernelCost:
        return KernelCost(name, "cpu0", "map", (), 0, 0, 0, 0, 0, 0, 0, (0, 0))

    seconds = {"k1_Relu": 2.0, "k10_Relu": 3.0}
    assert [s for s, _ in roofline.matched(seconds, [kernel("k10"), kernel("k1")])] == [3.0, 2.0]
    with pytest.raises(CuvilError, match="kernel k2"):
        list(roofline.matched(seconds, [kernel("k2")]))


def test_classes_of_kernels() -> None:
    rows = [
        {"model": "m", "class": kind, "us": us, "flops": flops}
        for kind, us, flops in (("map", 10.0, 0), ("conv", 20.0, 2_000_000), ("conv", 10.0, 1_000_000))
    ]
    conv, other = roofline.classes(rows, 200e9)
    assert (conv["class"], conv["kernels"], conv["us"], conv["gflops"]) == ("conv", 2, 30.0, 100.0)
    assert conv["share_of_peak"] == 0.5 and conv["share_of_time"] == 0.75
    assert other["gflops"] == 0
    assert "| m | conv | 2 | 30 | 75.0% | 100.0 | 50.0% |" in roofline.markdown([conv, other])


def test_kernels_of_a_network_and_their_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(roofline.measure, "measure", lambda what, *_: 1e10 if what == "bandwidth" else 2e11)
    record, plot = tmp_path / "r.json", tmp_path / "r.svg"
    arguments = ["--models", "mlp,ds_cnn", "--runs", "2", "--output", str(record), "--plot", str(plot)]
    assert roofline.main(arguments) == 0
    report = json.loads(record.read_text())
    assert {r["model"] for r in report["results"]} == {"mlp", "ds_cnn"}
    assert all(r["us"] >= 0 for r in report["results"]) and report["peak_flops"] == 2e11
    assert np.isclose(sum(c["share_of_time"] for c in report["classes"] if c["model"] == "mlp"), 1, atol=1e-3)
    drawn = plot.read_text()
    assert "ds_cnn" in drawn and str(tmp_path) not in drawn
