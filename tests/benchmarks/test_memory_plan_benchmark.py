"""The memory plan benchmark reads, packs, checks and writes instances; public ones fit their capacity."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from benchmarks import memory_plan
from benchmarks.memory_plan import Buffer, overlap
from cuvil.errors import CuvilError

DATA = Path(os.environ.get("CUVIL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")

SMALL = "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,4\nd,9,21,4\ne,0,21,4\n"
"""Half-open lives: a and b may share their bytes, so 12 are enough."""


def instance(folder: Path, text: str = SMALL) -> Path:
    path = folder / "small.csv"
    path.write_text(text)
    return path


def test_writes_offsets_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    arguments = [str(instance(tmp_path)), "--capacity", "12", "--output", str(tmp_path / "out")]
    assert memory_plan.main([*arguments, "--record", str(record)]) == 0
    assert "| small.csv | 5 | 12 | 12 | yes |" in capsys.readouterr().out
    with open(tmp_path / "out" / "small.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == list("abcde")
    assert [row["offset"] for row in rows if row["id"] in "ab"] == [rows[0]["offset"]] * 2
    assert sorted(int(row["offset"]) for row in rows if row["id"] in "ace") == [0, 4, 8]
    report = json.loads(record.read_text())
    assert report["capacity"] == 12 and set(report["versions"]) == {"python", "numpy"}
    assert [(r["file"], r["height"], r["lower_bound"], r["fits"]) for r in report["results"]] == [
        ("small.csv", 12, 12, True)
    ]


def test_status_tells_that_one_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = instance(tmp_path)
    assert memory_plan.main([str(path), "--capacity", "11", "--output", str(tmp_path / "out")]) == 1
    assert "**no**" in capsys.readouterr().out


def test_overlap_knows_half_open_lives_and_touching_places() -> None:
    a, b = Buffer("a", 0, 3, 4), Buffer("b", 2, 5, 4)
    assert overlap([a, b], [0, 3]) == ("a", "b")
    assert overlap([a, b], [0, 4]) is None
    assert overlap([a, Buffer("b", 3, 5, 4)], [0, 0]) is None
    with pytest.raises(ValueError, match="offset"):
        overlap([a, b], [0])
    with pytest.raises(ValueError, match="offset"):
        overlap([a], [-1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,lower,upper\na,0,1\n", "no column 'size'"),
        ("", "no column 'id'"),
        ("id,lower,upper,size\na,0,x,4\n", r"small\.csv:2: .*integers"),
        ("id,lower,upper,size\na,0,1\n", "integers"),
        ("id,lower,upper,size\na,0,1,1\nb,5,5,1\n", r"small\.csv:3: .*lower < upper"),
        ("id,lower,upper,size\na,0,1,-1\n", "size >= 0"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CuvilError, match=message):
        memory_plan.read(instance(tmp_path, text))


def test_missing_file_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "none.csv"), "--output", str(tmp_path / "out")]
    assert memory_plan.main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_plans_of_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    assert memory_plan.main(["--models", "ds_cnn,mlp", "--record", str(record)]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(record.read_text())["models"]
    assert [row["model"] for row in rows] == ["ds_cnn", "mlp"]
    for row in rows:
        assert row["values"] > 0 and row["height"] == row["lower_bound"] > 0
        assert f"| {row['model']} | {row['values']} | {row['lower_bound']} | {row['height']} | 0 |" in printed
    assert "2 of 2 plans reach" in printed


@pytest.mark.parametrize("arguments", [[], ["a.csv"], ["--models", "no_such_model"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        memory_plan.main(arguments)
    assert status.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("name", list("ABCDEFGHIJK"))
def test_public_instances_fit(name: str, tmp_path: Path) -> None:
    path = DATA / "minimalloc" / f"{name}.1048576.csv"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there")
    row = memory_plan.solve(path, 1 << 20, tmp_path)
    assert row["fits"] and row["lower_bound"] <= row["height"] <= 1 << 20
    assert len((tmp_path / path.name).read_text().splitlines()) == 1 + row["buffers"]
