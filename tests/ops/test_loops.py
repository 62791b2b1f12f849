"""Loop and Scan against onnxruntime; what ends a run with an error code."""

from __future__ import annotations

import native
import pytest
from bodies import (
    FLOAT,
    GOES_ON,
    START,
    TRIPS,
    TRUE,
    S,
    T,
    loop,
    onward,
    recurrence,
)
from families import BAD_VALUE, Family, Outcome, assert_agrees, f32, i64, outcomes
from loop_cases import LOOPS, NESTED
from scan_cases import SCANS, scan
from single import node

from cuvil.errors import ModelError, UnsupportedError

ALL = {**LOOPS, **{f"Scan {n}": f for n, f in SCANS.items()}, **NESTED}

Found = dict[str, tuple[list[Outcome], list[Outcome]]]


@pytest.fixture(scope="module")
def plain() -> Found:
    return outcomes(ALL)


@pytest.fixture(scope="module")
def tuned() -> Found:
    return outcomes(ALL, native.WIDE)


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_onnxruntime(name: str, plain: Found, tuned: Found) -> None:
    assert_agrees(ALL[name], plain[name][0])
    assert_agrees(ALL[name], tuned[name][0])


@pytest.mark.parametrize("name", [n for n, f in ALL.items() if f.wrong])
def test_values_outside_of_their_limits_end_the_run(name: str, plain: Found, tuned: Found) -> None:
    wanted = dict.fromkeys(range(len(ALL[name].wrong)), BAD_VALUE)
    assert dict(enumerate(plain[name][1])) == wanted
    assert dict(enumerate(tuned[name][1])) == wanted


def test_a_loop_that_never_ends_is_refused() -> None:
    body = loop(onward(node("Add", "s s", "t")), [S], [GOES_ON, T], "- c x", "y")
    with pytest.raises(ModelError, match=r"node 'Loop0' \(Loop\): the loop never ends"):
        native.prepare(Family([body], {}, [START], constants={"c": TRUE}).model)


def test_a_body_that_cannot_be_lifted_needs_a_known_number_of_steps() -> None:
    sort = recurrence(node("TopK", "s two", "t p"), node("Identity", "t", "o"), two=i64(2))
    message = r"\(Loop\): its body has '.*', which is no map or reduction; the number of steps must"
    with pytest.raises(UnsupportedError, match=message):
        native.prepare(Family([sort], {**START, "c": TRUE}, TRIPS, outputs=("y", "z")).model)


def test_scanned_axes_must_agree() -> None:
    sum_ = scan(
        [node("Add", "a b", "o")], [("a", FLOAT, [3]), ("b", FLOAT, [3])], [("o", FLOAT, [3])], "u v", "z", 2
    )
    family = Family([sum_], {}, [{"u": f32(4, 3), "v": f32(5, 3)}], outputs=("z",))
    with pytest.raises(ModelError, match=r"Inferred=5 Declared=4"):
        native.prepare(family.model)
