"""Automata of regular expressions against Python's `re` on random texts."""

from __future__ import annotations

import random
import re

import pytest

from cuvil.errors import ModelError, UnsupportedError
from cuvil.limits import MAX_REGEX_STATES
from cuvil.ops import regex

PATTERNS = (
    "", "a|", "a*b+c?", "(ab|cd)*e{2,3}", "x{2,}y{0}", "(?:a|b)*a(?:a|b){3}", "[^a-c]x", "[]x-]+",
    r"[\w.-]+@\d\S", r"[^\W_]+", r"\bab\b.*", r"\Ba\B|.\Bb", "^$", "(^|,)a($|,)", r"\A.+\z", r"(?s:.)\.",
    "(?i)aB(?-i:C)É", "é+[à-ü]?", ".*日本?", r"\x41\x{e9}|\101", "(?m)^a$\n^b$", "(?P<n>a)+?",
    r"\Qa.b\E+", "a{,2}", "[^日]*", "[[:alpha:]_][[:^digit:]]", r"(?i)[^k-s]ß*",
)  # fmt: skip

PIECES = (
    *"abcdeABCxy_ .,-@0159éàüÉ日本\nkKſß", "ab", "cd", "ee", "a.b", "é", "\u212a", "a{,2}", "a\nb", ",a,"
)  # fmt: skip


def python(pattern: str) -> re.Pattern[str]:
    """The same pattern in Python's syntax: ASCII classes, and what RE2 alone has written out."""
    for ours, theirs in (
        (r"\z", r"\Z"), (r"\x{e9}", "é"), (r"\Qa.b\E", r"a\.b"), ("a{,2}", r"a\{,2\}"),
        ("[:alpha:]", "a-zA-Z"), ("[[:^digit:]]", "[^0-9]"), ("$)", r"\Z)"), (r"^$", r"\A\Z"),
    ):  # fmt: skip
        pattern = pattern.replace(ours, theirs)
    flags = 0 if "(?i" in pattern else re.ASCII
    return re.compile(pattern, flags)


def texts(count: int) -> list[str]:
    rng = random.Random(5)
    return ["".join(rng.choices(PIECES, k=rng.randint(0, 6))) for _ in range(count)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_as_in_python(pattern: str) -> None:
    ours, theirs = regex.automaton(pattern), python(pattern)
    samples = [*texts(400), *PIECES]
    wrong = [s for s in samples if ours.matches(s.encode()) != bool(theirs.fullmatch(s))]
    assert not wrong


def test_every_code_point_of_a_class() -> None:
    """A range over all lengths of UTF-8 accepts its code points and no other."""
    found = regex.automaton(r"[\x{41}-\x{7ff}\x{d7ff}-\x{10437}]")
    edges = (0x40, 0x41, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FE, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10437, 0x10438)
    inside = [found.matches(chr(code).encode()) for code in edges]
    assert inside == [0x41 <= code <= 0x7FF or 0xD7FF <= code <= 0x10437 for code in edges]
    assert not found.matches(b"\xc3") and not found.matches(b"\xc3\xa9\xa9")


def test_general_categories() -> None:
    found = regex.automaton(r"\pL\p{Nd}\P{L}\p{^Lu}")
    assert found.matches("é٣1ä".encode())
    assert not found.matches("é٣1Ä".encode()) and not found.matches("1٣1ä".encode())


def test_the_automaton_is_minimal() -> None:
    assert regex.automaton("(a|b)*a(a|b){5}").table.shape == (
        65,
        3,
    )  # 2**6 pasts of a and b, and the dead end
    assert regex.automaton("(?:aa|a)*").table.shape == (2, 2)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a",
        "a)",
        "[a",
        "*a",
        "a**",
        "a{2}{3}",
        "a{3,2}",
        "a{1001}",
        "[b-a]",
        r"\y",
        "\\",
        "(?#x)",
        "[[:no:]]",
        "(" * 200,
    ],
)
def test_malformed(pattern: str) -> None:
    with pytest.raises(ModelError, match="pattern") as caught:
        regex.automaton(pattern)
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", r"(a)\1", r"\p{Greek}"])
def test_no_regular_language(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match="which is not supported"):
        regex.automaton(pattern)


def test_too_many_states() -> None:
    with pytest.raises(UnsupportedError, match=str(MAX_REGEX_STATES)):
        regex.automaton("(?:[^a]{100}){100}")
    with pytest.raises(UnsupportedError, match=str(MAX_REGEX_STATES)):
        regex.automaton("(a|b)*a(a|b){20}")
