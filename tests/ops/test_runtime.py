"""Axes, shapes, positions, counts and scales that only the run knows, against onnxruntime.

Each model is compiled once and run on several values; its outputs come back with the size that the data gave.
"""

from __future__ import annotations

import native
import numpy as np
import onnx
import pytest
from chain_cases import CHAINS, NUMBERS, cut
from families import BAD_VALUE, Family, Outcome, assert_agrees, i64, outcomes
from runtime_cases import FAMILIES, X
from single import node

import cuvil
from cuvil.errors import ModelError

ALL = {**FAMILIES, **CHAINS}

Found = dict[str, tuple[list[Outcome], list[Outcome]]]


@pytest.fixture(scope="module")
def plain() -> Found:
    return outcomes(ALL)


@pytest.fixture(scope="module")
def tuned() -> Found:
    return outcomes(CHAINS, native.WIDE)


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_onnxruntime(name: str, plain: Found) -> None:
    assert_agrees(ALL[name], plain[name][0])


@pytest.mark.parametrize("name", CHAINS)
def test_tuned_kernels_agree_with_onnxruntime(name: str, tuned: Found) -> None:
    assert_agrees(CHAINS[name], tuned[name][0])


@pytest.mark.parametrize("name", [n for n, f in ALL.items() if f.wrong])
def test_values_outside_of_their_limits_end_the_run(name: str, plain: Found) -> None:
    assert dict(enumerate(plain[name][1])) == dict.fromkeys(range(len(ALL[name].wrong)), BAD_VALUE)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> cuvil.Session:
    """Two cuts of one tensor: `y` as the data say, `z` of a declared size."""
    family = Family(
        [cut("x", "y"), cut("x", "z", end="m", axis="one")],
        {"x": X[0]},
        [{"n": i64(2), "m": i64(3)}],
        outputs=("y", "z"),
        constants=NUMBERS,
        declared={"z": [3, 3]},
    )
    path = tmp_path_factory.mktemp("cut") / "cut.onnx"
    onnx.save(family.model, path)
    return cuvil.compile(path)


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_a_session_gives_outputs_their_actual_size(size: int, session: cuvil.Session) -> None:
    y, z = session.run(None, {"x": X[0], "n": i64(size), "m": i64(3)})
    np.testing.assert_array_equal(y, X[0][:size])
    np.testing.assert_array_equal(z, X[0][:, :3])


def test_a_session_checks_a_declared_size(session: cuvil.Session) -> None:
    with pytest.raises(cuvil.CuvilError, match="CUVIL_BAD_VALUE"):
        session.run(None, {"x": X[0], "n": i64(1), "m": i64(2)})


def test_a_session_names_the_axes_that_the_data_decide(session: cuvil.Session) -> None:
    y, z = session.get_outputs()
    assert (len(y.shape), isinstance(y.shape[0], str), y.shape[1]) == (2, True, 4)
    assert z.shape == [3, 3]


def test_a_result_that_may_be_huge_is_refused() -> None:
    family = Family([node("ConstantOfShape", "s")], {}, [{"s": i64(1, 2, 3)}])
    with pytest.raises(
        ModelError, match="tensor 'y': its size depends on the data and may be up to 1073741824"
    ):
        native.prepare(family.model)
