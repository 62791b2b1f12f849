"""Calibration data: what is accepted, how it is cut into runs, and what is said of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cuvil.errors import CuvilError
from cuvil.ir.graph import Graph, TensorType
from cuvil.quantize.calibration import Samples, load


def graph(**inputs: TensorType) -> Graph:
    return Graph("net", list(inputs), [], [], {}, dict(inputs), 21)


IMAGE = graph(image=TensorType("float32", ("N", 1, 4, 4)))
FIXED = graph(image=TensorType("float32", (2, 1, 4, 4)))
RECURRENT = graph(
    input=TensorType("float32", ("T", 3)), state=TensorType("float32", (1, 5)), rate=TensorType("int64", ())
)


def shapes(samples: Samples, size: int, at_most: int | None = None) -> list[tuple[int, ...]]:
    return [next(iter(feeds.values())).shape for feeds in samples.batches(size, at_most)]


def test_free_batch_is_cut_as_asked() -> None:
    samples = Samples(IMAGE, {"image": np.zeros((7, 1, 4, 4), np.float32)})
    assert shapes(samples, 3) == [(3, 1, 4, 4), (3, 1, 4, 4), (1, 1, 4, 4)]
    assert (samples.count, samples.step) == (7, None)


def test_fixed_batch_is_kept_and_an_incomplete_run_left_out() -> None:
    array = np.arange(7 * 16, dtype=np.float32).reshape(7, 1, 4, 4)
    runs = list(Samples(FIXED, {"image": array}).batches(5))
    assert [r["image"][0, 0, 0, 0] for r in runs] == [0, 32, 64]
    assert all(r["image"].shape == (2, 1, 4, 4) for r in runs)


def test_a_further_axis_makes_every_entry_a_whole_input() -> None:
    arrays = {
        "input": np.zeros((6, 9, 3), np.float32),
        "state": np.zeros((6, 1, 5), np.float32),
        "rate": np.arange(6),
    }
    runs = list(Samples(RECURRENT, arrays).batches(4))
    assert len(runs) == 6 and runs[0]["input"].shape == (9, 3) and runs[0]["state"].shape == (1, 5)
    assert [int(r["rate"]) for r in runs] == list(range(6)) and runs[0]["rate"].shape == ()


def test_a_selection_is_spread_over_all_samples() -> None:
    array = np.repeat(np.arange(100, dtype=np.float32), 16).reshape(100, 1, 4, 4)
    runs = [r["image"][:, 0, 0, 0].tolist() for r in Samples(IMAGE, {"image": array}).batches(2, at_most=8)]
    assert runs == [[0, 1], [24, 25], [50, 51], [74, 75]]


def test_wider_numbers_are_narrowed() -> None:
    (feeds,) = Samples(IMAGE, {"image": np.ones((2, 1, 4, 4))}).batches(2)
    assert feeds["image"].dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "data: has no array for input 'image'"),
        ({"picture": np.zeros(1)}, "data: 'picture': is no input; the inputs are image"),
        (
            {"image": np.zeros((3, 4, 4), np.float32)},
            "data: 'image': has shape [3, 4, 4]; samples of shape [1, 4, 4] or [N, 1, 4, 4] are expected, "
            "on the first axis",
        ),
        (
            {"image": np.zeros((3, 1, 4, 5), np.float32)},
            "data: 'image': has shape [3, 1, 4, 5]; samples of shape [1, 4, 4] or [N, 1, 4, 4] are expected, "
            "on the first axis",
        ),
        ({"image": np.zeros((0, 1, 4, 4), np.float32)}, "data: has 0 samples, at least 1 are needed"),
        (
            {"image": np.full((1, 1, 4, 4), np.nan, np.float32)},
            "data: 'image': holds values that are not finite",
        ),
        (
            {"image": np.zeros((1, 1, 4, 4), np.complex64)},
            "data: 'image': has type complex64, float32 is expected",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(CuvilError) as caught:
        Samples(IMAGE, arrays, "data")
    assert str(caught.value) == message


def test_integers_are_not_made_of_fractions() -> None:
    tokens = graph(tokens=TensorType("int32", ("N", 8)))
    with pytest.raises(CuvilError, match=r"'tokens': has type float32, int32 is expected"):
        Samples(tokens, {"tokens": np.zeros((4, 8), np.float32)})


def test_arrays_of_different_lengths_are_refused() -> None:
    arrays = {"input": np.zeros((2, 9, 3)), "state": np.zeros((2, 1, 5)), "rate": np.arange(3)}
    with pytest.raises(CuvilError, match=r"equally many samples, they have 'input' 2, 'state' 2, 'rate' 3"):
        Samples(RECURRENT, arrays)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the calibration data: No such file or directory"),
        (b"", "is not an .npz file of plain arrays; give one with --calibration FILE.npz, an array"),
        (b"PK\3\4 and then nothing", "is not an .npz file of plain arrays"),
        (b"text", "is not an .npz file of plain arrays"),
    ],
)
def test_files_that_are_no_npz(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "data.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CuvilError, match=f"^{re.escape(f'{path}: {message}')}"):
        load(path, IMAGE)


def test_objects_and_single_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", image=np.array([{}], object))
    with pytest.raises(CuvilError, match=r"objects\.npz: is not an \.npz file of plain arrays"):
        load(tmp_path / "objects.npz", IMAGE)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(CuvilError, match=r"one\.npy: holds one array without a name"):
        load(tmp_path / "one.npy", IMAGE)
