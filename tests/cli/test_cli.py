"""The command line, in this process: exact errors, exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from cuvil import __version__, cli, commands
from cuvil.target.schema import load

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "models" / "digits" / "digits.onnx"
GENERIC = "x86_64-unknown-linux-gnu"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the repository, where a project file is; and no progress of a slow machine in stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "PROGRESS_EVERY_S", 3600.0)


def run(*argv: object) -> int:
    return cli.main([str(a) for a in argv])


def save(path: Path, inputs: dict[str, list[Any]], op: str = "Add") -> Path:
    """A model of one node over all inputs, which are f32."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, list(inputs), ["y"], name="n")], "g", values, [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


# --- errors ---


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        (
            ["compile", "--model", "none.onnx", "--output", "l.so"],
            1,
            "cuvil: error: none.onnx: cannot read the model: No such file or directory",
        ),
        (
            ["compile", "--model", "m.onnx", "--output", "l.so", "--shape", "x=1,,3"],
            2,
            "cuvil: error: argument --shape: 'x=1,,3' is no shape: write NAME=D0,D1,... with sizes or names, "
            "such as x=1,3,224,224; s=[[2,3],[4,3]] for a sequence, s=null for an optional that is absent; "
            "see cuvil compile --help",
        ),
        (
            ["compile", "--model", "m.onnx", "--output", "l.so", "--shape", "1,3"],
            2,
            "cuvil: error: argument --shape: '1,3' is no shape: write NAME=D0,D1,... with sizes or names, "
            "such as x=1,3,224,224; s=[[2,3],[4,3]] for a sequence, s=null for an optional that is absent; "
            "see cuvil compile --help",
        ),
        *(
            (
                ["compile", "--model", "m.onnx", "--output", "l.so", "--value", wrong],
                2,
                f"cuvil: error: argument --value: '{wrong}' is no value: write NAME=VALUE with a number or a "
                "list of numbers, such as rate=16000; see cuvil compile --help",
            )
            for wrong in ("rate", "rate=", "rate=fast", "=1", "rate=null", "rate=[1,", "rate={}")
        ),
        (
            ["compile", "--model", DIGITS, "--output", "l.so", "--value", "x=1"],
            1,
            "cuvil: error: the model has no input 'x' to bind; its inputs are image",
        ),
        (
            ["partition", "--model", "m.onnx", "--io-format", "nhcw"],
            2,
            "cuvil: error: argument --io-format: 'nhcw' is none of nchw, nhwc; see cuvil partition --help",
        ),
        (
            ["partition", "--model", "m.onnx", "--enable-quantization", "int4"],
            2,
            "cuvil: error: argument --enable-quantization: 'int4' is none of none, int8, profile; "
            "see cuvil partition --help",
        ),
        (
            ["partition", "--model", "m.onnx", "--threads", "0"],
            2,
            "cuvil: error: argument --threads: '0' is no whole number from 1; see cuvil partition --help",
        ),
        (
            ["partition", "--model", "m.onnx", "--accuracy", "loose"],
            2,
            "cuvil: error: argument --accuracy: 'loose' is none of default, strict; "
            "see cuvil partition --help",
        ),
        (
            ["compile", "--model", "m.onnx"],
            2,
            "cuvil: error: the following arguments are required: --output; see cuvil compile --help",
        ),
        (
            ["targets", "--show", "jetson-mano"],
            1,
            "cuvil: error: unknown target 'jetson-mano'; did you mean 'jetson-nano'? allowed: host, "
            "jetson-nano, raspberry-pi-4, rk3588, x86_64-unknown-linux-gnu, xeon-2s, a path to a YAML file, "
            "or a triple such as aarch64-linux-gnu",
        ),
        (
            ["compile", "--model", DIGITS, "--target", GENERIC, "--threads", "5", "--output", "l.so"],
            1,
            "cuvil: error: threads=5: device 'cpu0' has 4 cores",
        ),
        (
            ["compile", "--model", DIGITS, "--output", "l.so", "--shape", "x=1"],
            1,
            "cuvil: error: the model has no input 'x' to bind; its inputs are image",
        ),
        (
            ["compile", "--model", DIGITS, "--output", "."],
            1,
            "cuvil: error: --output .: is no name for a library; libinfer.so and libinfer.a are",
        ),
        (
            ["probe", "--output", "."],
            1,
            "cuvil: error: --output .: is a folder; name the file to write",
        ),
        (["stage", "import", "--folder", "f", "--name", "m", "--devices", "cpu0"], 1,
         "cuvil: error: --model: is needed to import"),
    ],
)  # fmt: skip
def test_errors(argv: list[object], status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == status
    out, err = capsys.readouterr()
    assert (out, err) == ("", text + "\n")


def test_damaged_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(DIGITS.read_bytes()[:5000])
    assert run("compile", "--model", "m.onnx", "--output", "l.so") == 1
    assert capsys.readouterr().err.startswith("cuvil: error: m.onnx: ")
    assert not list(tmp_path.glob("l.*"))


def test_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("probe", "--output", "file/host.yaml") == 1
    assert capsys.readouterr().err.startswith("cuvil: error: file")


def test_a_bug_is_told_from_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("of\nnothing")

    monkeypatch.setattr(commands, "list_targets", broken)
    assert run("targets") == 3
    message = (
        "cuvil: internal error: ZeroDivisionError: of nothing; please report with a reproducer; "
        "run with --debug for the traceback\n"
    )
    assert capsys.readouterr().err == message
    for argv in (["--debug", "targets"], ["targets", "--debug"]):
        assert run(*argv) == 3
        err = capsys.readouterr().err
        assert "ZeroDivisionError: of\nnothing\n" in err
        assert "in broken" in err
        assert err.endswith(message)


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "list_targets", interrupted)
    assert run("targets") == 130
    assert capsys.readouterr().err == "cuvil: interrupted\n"


def test_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What lasts is said once; what is over before anyone would ask is not."""
    monkeypatch.setattr(cli, "PROGRESS_EVERY_S", 0.05)
    progress = cli.Progress()
    progress("short")
    progress("long")
    time.sleep(0.5)
    progress.close()
    assert capsys.readouterr() == ("", "cuvil: long ...\n")


# --- light commands ---


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"cuvil {__version__}\n"
    assert run() == 2
    assert "compile" in capsys.readouterr().err


def test_light_commands_import_little() -> None:
    code = (
        "import sys; from cuvil import cli; cli.main(['targets']); "
        "print([m for m in ('numpy', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_targets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text("extends: xeon-2s\ndescription: our server\n")
    (tmp_path / "targets" / "broken.yaml").write_text("a: 1\na: 2\n")
    assert run("targets", "--json") == 0
    found = {t["name"]: t for t in json.loads(capsys.readouterr().out)["targets"]}
    assert found["mine"] == {
        "name": "mine",
        "board": "dual Xeon Gold 6338",
        "description": "our server",
    }
    assert "duplicate" in found["broken"]["error"]
    assert {"host", "jetson-nano", "raspberry-pi-4", "rk3588", GENERIC} <= set(found)
    assert run("targets", "--show", "mine") == 0
    assert json.loads(capsys.readouterr().out)["devices"]["socket0"]["cores"] == 32


def test_profiles_of_the_project(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project file says where its profiles are, also from a folder below it."""
    (tmp_path / "boards" / "deep").mkdir(parents=True)
    (tmp_path / "boards" / "mine.yaml").write_text("extends: rk3588\ndescription: ours\n")
    (tmp_path / "cuvil.yaml").write_text("targets: [boards]\nmodels: {a: {path: a.onnx}}\n")
    monkeypatch.chdir(tmp_path / "boards" / "deep")
    assert run("targets", "--json") == 0
    names = [t["name"] for t in json.loads(capsys.readouterr().out)["targets"]]
    assert {"mine", "rk3588"} <= set(names)


def test_probe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("probe", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    path = tmp_path / "targets" / "host.yaml"
    assert Path(result["profile"]) == path
    assert load(path).to_dict() == result["target"]
    assert run("probe", "--output", "here.yaml") == 0
    assert capsys.readouterr().out.startswith("profile  here.yaml\n")
    assert load("./here.yaml").name == "host"


# --- compile and partition ---


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    assert run("compile", "--model", DIGITS, "--target", "host", "--output", folder / "libinfer.so") == 0
    return folder / "libinfer.so"


def test_infer_through_ctypes(compiled: Path) -> None:
    image = np.load(DIGITS.with_name("test.npz"))["image"][:1]
    logits = np.full(10, np.nan, np.float32)
    floats = ctypes.POINTER(ctypes.c_float)
    infer = ctypes.CDLL(str(compiled)).infer
    assert infer(image.ctypes.data_as(floats), logits.ctypes.data_as(floats)) == 0
    expected = onnxruntime.InferenceSession(DIGITS).run(None, {"image": image})[0][0]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_what_lies_beside_the_library(compiled: Path) -> None:
    assert sorted(p.name for p in compiled.parent.iterdir()) == ["libinfer.h", "libinfer.json", "libinfer.so"]
    assert "int infer(const float *image, float *logits);" in compiled.with_suffix(".h").read_text()
    assert b"\0libinfer.so\0" in compiled.read_bytes()  # the name that a program linked with it asks for


def test_compile_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    assert (
        run("compile", "--model", DIGITS, "--output", "out/net.a", "--no-tuned", "--keep", keep, "--json")
        == 0
    )
    out, err = capsys.readouterr()
    result = json.loads(out)
    note = "batch 'N' of 'image' bound to 1; --shape image=N,1,28,28 keeps it"
    assert f"note: {note}\n" in err
    assert result["notes"] == [note]
    assert (result["library"], result["header"]) == ("out/net.a", "out/net.h")
    assert Path("out/net.a").read_bytes().startswith(b"!<arch>\n")
    assert result["library_bytes"] == Path("out/net.a").stat().st_size
    assert result["prototype"] == "int infer(const float *image, float *logits);"
    assert result["inputs"] == [{"name": "image", "dtype": "float32", "shape": [1, 1, 28, 28]}]
    assert result["symbols"] == []
    assert result["workspace_bytes"] > 0
    (device,) = result["devices"]
    assert (device["kind"], device["nodes"], device["left_out"]) == ("cpu", 16, None)
    assert device["kernels"] == len(
        json.loads((keep / "codegen/cpu0.plan.json").read_text())["segments"][0]["kernels"]
    )
    assert (keep / "graph.onnx").is_file()


def test_symbolic_sizes_stay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", {"x": ["N", "S", 8], "z": ["N", "S", 8]})
    assert run("compile", "--model", model, "--output", "m.so") == 0
    out, err = capsys.readouterr()
    assert "int infer(int64_t n_S, const float *x, const float *z, float *y);" in out
    assert "arena    " in out
    assert err == (
        "note: batch 'N' of 'x' bound to 1; --shape x=N,S,8 keeps it\n"
        "note: batch 'N' of 'z' bound to 1; --shape z=N,S,8 keeps it\n"
    )


def test_shape_keeps_or_binds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A symbol that the user speaks about in one input is left alone in the others."""
    model = save(tmp_path / "m.onnx", {"x": ["N", "S", 8], "z": ["N", "S", 8]})
    assert run("compile", "--model", model, "--output", "m.so", "--shape", "x=N,4,8", "--json") == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["symbols"], err) == (["N"], "")
    assert json.loads(out)["inputs"][1]["shape"] == ["N", 4, 8]


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("x=1,N", ("x", (1, "N"))),
        ("x=", ("x", ())),
        ("s=[[2,N],[4, 3]]", ("s", [(2, "N"), (4, 3)])),
        ("s=[[]]", ("s", [()])),
        ("s=[]", ("s", [])),
        ("o=null", ("o", None)),
    ],
)
def test_bindings(text: str, bound: tuple[str, object]) -> None:
    assert cli.shape(text) == bound


@pytest.mark.parametrize("text", ["s=[2,3]", "s=[[2,3]", "s=[[2,3],4]", "s=[[2,-3]]", "s=[[2,,3]]", "=[[1]]"])
def test_what_is_no_binding(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no shape: write NAME=D0,D1"):
        cli.shape(text)


def test_a_sequence_is_verified(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The library takes its items, onnxruntime the sequence."""
    s = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
        helper.make_node("SequenceInsert", ["s", "y"], ["t"]),
    ]
    t = helper.make_tensor_sequence_value_info("t", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "g", [s], [t, y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, tmp_path / "m.onnx")
    argv = ["--model", tmp_path / "m.onnx", "--no-tuned", "--json"]
    assert run("verify", *argv, "--shape", "s=[[2,3],[N,3]]") == 0
    assert json.loads(capsys.readouterr().out)["relative_error"] == 0
    assert run("verify", *argv) == 1
    assert "input 's': is seq(float32): bind the shape of each item" in capsys.readouterr().err


def test_bound_value_is_no_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", {"x": [1, 2], "z": ["N", 2]})
    argv = ["--model", model, "--no-tuned", "--value", "z=[[0.5, 8], [1e3, -1]]", "--json"]
    assert run("verify", *argv) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["relative_error"], err) == (0, "note: no data are given, the inputs are random\n")
    assert run("compile", *argv, "--output", "m.so") == 0
    assert json.loads(capsys.readouterr().out)["prototype"] == "int infer(const float *x, float *y);"


def test_calibration_that_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["partition", "--model", DIGITS, "--target", GENERIC, "--calibration", "c.npz"]
    assert run(*argv) == 0
    note = "note: the calibration data are not used: no device computes in int8\n"
    assert note in capsys.readouterr().err


def test_int8_without_calibration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command as the article has it: no data, and still integer arithmetic."""
    argv = ["compile", "--model", DIGITS, "--target", GENERIC, "--output", str(tmp_path / "libinfer.so")]
    assert run(*argv, "--enable-quantization", "int8", "--io-format", "nhwc", "--keep", str(tmp_path)) == 0
    note = "note: no calibration data: ranges are found at run time; --calibration makes int8 faster\n"
    assert note in capsys.readouterr().err
    assert "int32_t *restrict acc" in (tmp_path / "codegen" / "digits_cpu0_x86_64_v3.c").read_text()
    assert "dpbusd" in (tmp_path / "codegen" / "digits_cpu0_x86_64_v4_vnni.c").read_text()


def test_partition(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("partition", "--model", DIGITS, "--target", "jetson-nano", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    cpu, gpu = result["devices"]
    assert (cpu["name"], cpu["nodes"], cpu["left_out"]) == ("cpu0", 16, None)
    assert (gpu["name"], gpu["nodes"], gpu["left_out"]) == ("gpu0", 0, "no back end yet")
    (segment,) = result["segments"]
    assert (segment["inputs"], segment["outputs"]) == (["image"], ["logits"])
    assert segment["operators"].count("Conv") == 5
    assert run("partition", "--model", DIGITS, "--target", "jetson-nano") == 0
    assert "gpu0    gpu   sm_53        0  no back end yet" in capsys.readouterr().out


# --- cost and report ---

TWO_SOCKETS = "extends: xeon-2s\npartition: {objective: throughput}\n"


def test_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cost", "--model", DIGITS, "--target", GENERIC, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert {"name", "device", "flops", "dram_bytes", "pcie_bytes", "latency_ns"} <= set(result["kernels"][0])
    assert {k["device"] for k in result["kernels"]} == {"cpu0"}
    assert sum(k["latency_ns"] for k in result["kernels"]) == pytest.approx(result["latency_ns"], abs=100)
    low, high = result["interval_ns"]
    assert 0 < low < result["latency_ns"] < high
    # 3x3 convolutions of 28, 28, 14, 14 and 7 pixels, then the product with 64 x 10 weights
    layers = [(28, 1, 16), (28, 16, 32), (14, 32, 32), (14, 32, 32), (7, 32, 64)]
    products = 2 * (sum(9 * n * n * c * o for n, c, o in layers) + 640)
    assert sum(k["flops"] for k in result["kernels"] if k["flops"] > 1e5) == pytest.approx(products, rel=0.01)
    assert run("cost", "--model", DIGITS, "--target", GENERIC) == 0
    assert "predicted latency  " in capsys.readouterr().out


def test_cost_of_open_sizes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", {"x": [1, "S"], "z": [1, "S"]})
    assert run("cost", "--model", model, "--target", GENERIC) == 0
    assert capsys.readouterr().err == "note: predicted for S = 1; bind them with --shape\n"


def test_two_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Segments on two sockets: what is predicted, and what the page shows."""
    (tmp_path / "two.yaml").write_text(TWO_SOCKETS)
    assert run("report", "--model", DIGITS, "--target", "./two.yaml", "--output", "r.html", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    devices = [s["device"] for s in result["segments"]]
    assert set(devices) == {"socket0", "socket1"}
    assert len(result["transfers"]) >= len(devices) - 1
    assert [a["segment"] for a in result["arenas"]] == list(range(len(devices)))
    page = (tmp_path / result["page"]).read_text()
    for transfer in result["transfers"]:
        assert f"{transfer['from']} to {transfer['to']}" in page
    assert all(kernel["name"] in page for kernel in result["kernels"])
    assert run("partition", "--model", DIGITS, "--target", "./two.yaml") == 0
    out = capsys.readouterr().out
    assert f"transfer  from     to          bytes  PCIe  predicted\n{result['transfers'][0]['tensor']}" in out


# --- verify and bench ---


def test_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    test = np.load(DIGITS.with_name("test.npz"))
    np.savez(tmp_path / "some.npz", image=test["image"][::20], label=test["label"][::20])
    assert run("verify", "--model", DIGITS, "--data", "some.npz", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["library"], result["samples"], result["good"]) == ("libdigits.so", 50, True)
    assert result["accuracy"] == result["accuracy_f32"] >= 0.9
    assert 0 <= result["relative_error"] < 1e-5


def test_verify_of_a_wrong_library_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library computes x - z where the reference adds."""
    right = save(tmp_path / "m.onnx", {"x": [1, 8], "z": [1, 8]})
    wrong = save(tmp_path / "wrong.onnx", {"x": [1, 8], "z": [1, 8]}, "Sub")
    build = commands.build

    def build_another(work: commands.Work, progress: object = None) -> None:
        build(replace(work, job=replace(work.job, model=wrong)))

    monkeypatch.setattr(commands, "build", build_another)
    assert run("verify", "--model", right, "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["good"], result["error"] > 0.1) == (False, True)


def test_bench(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", {"x": [1, 64], "z": [1, 64]})
    assert run("bench", "--model", model, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result["p10_ns"] <= result["median_ns"] <= result["p90_ns"]
    assert result["ratio"] == pytest.approx(result["reference_ns"] / result["median_ns"])
    assert run("bench", "--model", model, "--target", "raspberry-pi-4") == 1
    assert capsys.readouterr().err.startswith("cuvil: error: raspberry-pi-4: ")
