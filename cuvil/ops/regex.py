"""Regular expressions in RE2's syntax, compiled to a finite automaton over the bytes of UTF-8.

Parsed to a tree, then Thompson's construction (backwards: each node is built with what follows it), the
subset construction with the assertions (``^ $ \\b``) decided by the bytes on both sides, and Moore's
minimisation.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from cuvil.errors import ModelError, UnsupportedError
from cuvil.limits import MAX_REGEX_STATES
from cuvil.ops.characters import LAST_LETTER, changed

Ranges = list[tuple[int, int]]
"""Code points, as ranges with both ends included."""

LAST = 0x10FFFF
MAX_REPEAT = 1000
MAX_DEPTH = 100


@dataclass(frozen=True)
class Automaton:
    """A deterministic automaton.

    Attributes:
        classes: the class of each byte, `uint8` [256].
        table: the state after a state and a class, `uint16` [states, classes].
        accepting: by state.
        start: the first state.
    """

    classes: np.ndarray
    table: np.ndarray
    accepting: np.ndarray
    start: int

    def matches(self, data: bytes) -> bool:
        """Whether the whole of `data` matches."""
        state = self.start
        for code in data:
            state = int(self.table[state, self.classes[code]])
        return bool(self.accepting[state])


def automaton(pattern: str) -> Automaton:
    """The automaton that accepts what all of `pattern` matches.

    Raises:
        ModelError: `pattern` is malformed.
        UnsupportedError: it is no regular language, or needs more than `MAX_REGEX_STATES` states.
    """
    tree = _Parser(pattern).parse()
    builder = _Builder()
    return _determine(builder, builder.build(tree, builder.node()))


# --- the tree ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Set:
    ranges: Ranges


@dataclass(frozen=True)
class _Assert:
    kind: str


@dataclass(frozen=True)
class _Sequence:
    parts: list[_Tree]


@dataclass(frozen=True)
class _Choice:
    parts: list[_Tree]


@dataclass(frozen=True)
class _Repeat:
    part: _Tree
    low: int
    high: int | None


_Tree = Union[_Set, _Assert, _Sequence, _Choice, _Repeat]

_DIGIT, _WORD = [(48, 57)], [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE = [(9, 10), (12, 13), (32, 32)]
_PERL = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, Ranges] = {
    "alnum": [(48, 57), (65, 90), (97, 122)], "alpha": [(65, 90), (97, 122)], "ascii": [(0, 127)],
    "blank": [(9, 9), (32, 32)], "cntrl": [(0, 31), (127, 127)], "digit": _DIGIT, "graph": [(33, 126)],
    "lower": [(97, 122)], "print": [(32, 126)], "punct": [(33, 47), (58, 64), (91, 96), (123, 126)],
    "space": [(9, 13), (32, 32)], "upper": [(65, 90)], "word": _WORD,
    "xdigit": [(48, 57), (65, 70), (97, 102)],
}  # fmt: skip
_CONTROLS = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_CATEGORY = re.compile(r"(C[cfos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?)\Z")


def _negated(ranges: Ranges) -> Ranges:
    """All other code points, in order and with gaps between the ranges."""
    result, after = [], 0
    for low, high in sorted(ranges):
        if low > after:
            result.append((after, low - 1))
        after = max(after, high + 1)
    return [*result, (after, LAST)] if after <= LAST else result


@functools.cache
def _letters() -> dict[int, tuple[int, ...]]:
    """The code points that a letter is when its case does not matter."""
    groups: dict[str, list[int]] = {}
    for code in range(LAST_LETTER + 1):
        key = changed(changed(chr(code), True), False)
        groups.setdefault(key, []).append(code)
    return {code: tuple(group) for group in groups.values() if len(group) > 1 for code in group}


def _folded(ranges: Ranges) -> Ranges:
    others = [o for c, group in _letters().items() if any(a <= c <= b for a, b in ranges) for o in group]
    return ranges + [(o, o) for o in others]


@functools.cache
def _category(name: str) -> tuple[tuple[int, int], ...]:
    """The code points of a general category, or of all that start with one letter."""
    ranges: Ranges = []
    for code in range(LAST + 1):
        if unicodedata.category(chr(code)).startswith(name):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1] = (ranges[-1][0], code)
            else:
                ranges.append((code, code))
    return tuple(ranges)


class _Parser:
    """Recursive descent over the pattern; `flags` are those that hold at the current place."""

    def __init__(self, pattern: str) -> None:
        self.text, self.at, self.flags, self.depth = pattern, 0, frozenset[str](), 0

    def parse(self) -> _Tree:
        tree = self.choice()
        if self.at < len(self.text):
            raise self.error("has a ) without (")
        return tree

    def error(self, message: str) -> ModelError:
        return ModelError(f"pattern {self.text!r} {message}")

    def irregular(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"pattern {self.text!r} has {what}, which is not supported")

    def take(self, expected: str) -> bool:
        """Step over `expected` where it comes next."""
        if not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def match(self, pattern: str) -> re.Match[str] | None:
        """Step over what Python's `pattern` matches here."""
        found = re.compile(pattern).match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def next(self) -> str:
        if self.at >= len(self.text):
            raise self.error("ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def choice(self) -> _Tree:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        return _Choice(parts) if len(parts) > 1 else parts[0]

    def sequence(self) -> _Tree:
        parts: list[_Tree] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self.take(r"\Q"):
                literal, _, _ = self.text[self.at :].partition(r"\E")
                self.at = min(self.at + len(literal) + 2, len(self.text))
                parts += [self.literal(ord(character)) for character in literal]
                if literal:
                    parts.append(self.repeated(parts.pop()))
                continue
            flags = self.match(r"\(\?([imsU]*)(?:-([imsU]+))?\)")
            if flags:
                self.flags = (self.flags | set(flags[1])) - set(flags[2] or "")
                continue
            parts.append(self.repeated(self.atom()))
        return _Sequence(parts) if len(parts) != 1 else parts[0]

    def repeated(self, part: _Tree) -> _Tree:
        """`part` with the repetition that follows it, if any."""
        found = self.match(r"([*+?])\??|\{(\d+)(,?)(\d*)\}\??")
        if not found:
            return part
        if found[1]:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[found[1]]
        else:
            low = int(found[2])
            high = int(found[4]) if found[4] else None if found[3] else low
        if max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
            raise self.error(f"repeats {found[0]}; at most {MAX_REPEAT} times and in order is allowed")
        if re.compile(r"[*+?]|\{\d+(,\d*)?\}").match(self.text, self.at):
            raise self.error("repeats a repetition")
        return _Repeat(part, low, high)

    def literal(self, code: int) -> _Tree:
        return self.set([(code, code)])

    def set(self, ranges: Ranges, negate: bool = False) -> _Tree:
        if "i" in self.flags:
            ranges = _folded(ranges)
        others = _negated(ranges)
        return _Set(others if negate else _negated(others))

    def atom(self) -> _Tree:
        character = self.next()
        if character == "(":
            return self.group()
        if character == "[":
            return self.bracket()
        if character == ".":
            return _Set([(0, LAST)] if "s" in self.flags else _negated([(10, 10)]))
        if character in "^$":
            return _Assert(character if "m" not in self.flags else f"m{character}")
        if character == "\\":
            return self.escaped()
        if character in "*+?":
            raise self.error(f"has nothing before {character}")
        return self.literal(ord(character))

    def group(self) -> _Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nests groups deeper than {MAX_DEPTH}")
        outer = self.flags
        if self.take("?"):
            if self.match(r"<?[=!]"):
                raise self.irregular("an assertion about what surrounds it")
            found = self.match(r"P?<\w+>|([imsU]*)(?:-([imsU]+))?:")
            if not found:
                raise self.error("has an unknown kind of group")
            self.flags = (self.flags | set(found[1] or "")) - set(found[2] or "")
        tree = self.choice()
        if not self.take(")"):
            raise self.error("has a ( without )")
        self.flags = outer
        self.depth -= 1
        return tree

    def escaped(self) -> _Tree:
        following = self.text[self.at : self.at + 1]
        if following in ("A", "z", "b", "B") and following:
            self.at += 1
            return _Assert({"A": "^", "z": "$"}.get(following, following))
        ranges, negate = self.escape()
        return self.set(ranges, negate)

    def escape(self) -> tuple[Ranges, bool]:
        """The code points that an escape, behind its backslash, stands for, and whether it is all others."""
        character = self.next()
        if character.lower() in _PERL:
            return list(_PERL[character.lower()]), character.isupper()
        if character in "pP":
            found = self.match(r"(\w)|\{(\^?)(\w+)\}")
            name = (found[1] or found[3]) if found else ""
            if not found or not _CATEGORY.match(name):
                raise self.irregular(f"the class \\p{{{name}}}")
            return list(_category(name)), (character == "P") != bool(found[2])
        if character in _CONTROLS:
            code = _CONTROLS[character]
        elif character == "x":
            digits = self.match(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\}")
            code = int(digits[1] or digits[2], 16) if digits else LAST + 1
        elif character in "01234567" and (
            character == "0" or self.text[self.at : self.at + 1] in tuple("01234567")
        ):
            more = self.match(r"[0-7]{0,2}")
            code = int(character + (more[0] if more else ""), 8)
        elif character.isdigit():
            raise self.irregular("a back-reference")
        elif character.isalnum() or ord(character) > 127:
            raise self.error(f"has the unknown escape \\{character}")
        else:
            code = ord(character)
        if code > LAST:
            raise self.error("has a bad code point")
        return [(code, code)], False

    def bracket(self) -> _Tree:
        negate, ranges, first = self.take("^"), list[tuple[int, int]](), True
        while first or not self.take("]"):
            first = False
            named = self.match(r"\[:(\^?)(\w+):\]")
            if named:
                if named[2] not in _POSIX:
                    raise self.error(f"has the unknown class {named[0]}")
                ranges += _negated(_POSIX[named[2]]) if named[1] else _POSIX[named[2]]
                continue
            members = self.member()
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in (
                "]",
                "",
            ):
                self.at += 1
                end = self.member()
                low, high = members[0][0], end[-1][1]
                if (
                    len(members) > 1
                    or len(end) > 1
                    or low != members[0][1]
                    or high != end[0][0]
                    or high < low
                ):
                    raise self.error("has a bad range in a class")
                members = [(low, high)]
            ranges += members
        return self.set(ranges, negate)

    def member(self) -> Ranges:
        character = self.next()
        if character != "\\":
            return [(ord(character), ord(character))]
        ranges, negate = self.escape()
        return _negated(ranges) if negate else ranges


# --- the automaton with choices ---------------------------------------------------------------------


@dataclass
class _Builder:
    """Nodes that read a byte of a range, or go on without one, some only where an assertion holds.

    Node 0 is the end.
    """

    reads: list[tuple[int, int, int] | None] = field(default_factory=list)
    leads: list[list[tuple[int, str]]] = field(default_factory=list)
    shared: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def node(self, *leads: tuple[int, str]) -> int:
        if len(self.reads) >= MAX_REGEX_STATES:
            raise UnsupportedError(f"the pattern needs more than {MAX_REGEX_STATES} states")
        self.reads.append(None)
        self.leads.append(list(leads))
        return len(self.reads) - 1

    def read(self, low: int, high: int, following: int) -> int:
        """The node that reads a byte and goes on to `following`."""
        key = (low, high, following)
        if key not in self.shared:
            self.shared[key] = self.node()
            self.reads[self.shared[key]] = key
        return self.shared[key]

    def build(self, tree: _Tree, following: int) -> int:
        """The node at which `tree` starts that ends in `following`."""
        if isinstance(tree, _Set):
            return self.node(*((n, "") for n in dict.fromkeys(self._characters(tree.ranges, following))))
        if isinstance(tree, _Assert):
            return self.node((following, tree.kind))
        if isinstance(tree, _Sequence):
            for part in reversed(tree.parts):
                following = self.build(part, following)
            return following
        if isinstance(tree, _Choice):
            return self.node(*((self.build(part, following), "") for part in tree.parts))
        if tree.high is None:
            loop = self.node((following, ""))
            self.leads[loop].append((self.build(tree.part, loop), ""))
            following = loop
        else:
            end = following
            for _ in range(tree.high - tree.low):
                following = self.node((self.build(tree.part, following), ""), (end, ""))
        for _ in range(tree.low):
            following = self.build(tree.part, following)
        return following

    def _characters(self, ranges: Ranges, following: int) -> Iterator[int]:
        for low, high in ranges:
            for sequence in _utf8(low, high):
                node = following
                for first, last in reversed(sequence):
                    node = self.read(first, last, node)
                yield node


def _utf8(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """Sequences of byte ranges that together are the code points from `low` to `high`."""
    for limit in (0x7F, 0x7FF, 0xFFFF):
        if low <= limit < high:
            yield from _utf8(low, limit)
            yield from _utf8(limit + 1, high)
            return
    size = 1 + (low > 0x7F) + (low > 0x7FF) + (low > 0xFFFF)
    for k in range(1, size):
        mask = (1 << 6 * k) - 1
        if low | mask < high | mask:
            cut = low | mask if low & mask else (high | mask) - mask - 1
            if low & mask or high & mask != mask:
                yield from _utf8(low, cut)
                yield from _utf8(cut + 1, high)
                return
    yield list(zip(_bytes(low, size), _bytes(high, size)))


def _bytes(code: int, size: int) -> list[int]:
    """UTF-8, also of surrogates."""
    if size == 1:
        return [code]
    tails = [0x80 | code >> 6 * k & 0x3F for k in reversed(range(size - 1))]
    return [(0xF0 << 4 - size & 0xFF) | code >> 6 * (size - 1), *tails]


# --- the automaton without --------------------------------------------------------------------------

_EDGE, _LINE, _WORDS, _OTHER = "edge", "line", "word", "other"
"""What lies beside a place in the text: nothing, a newline, a letter of a word, another byte."""


def _kind(code: int) -> str:
    return _LINE if code == 10 else _WORDS if any(a <= code <= b for a, b in _WORD) else _OTHER


def _holds(assertion: str, before: str, after: str) -> bool:
    if assertion in ("b", "B"):
        return ((before == _WORDS) != (after == _WORDS)) == (assertion == "b")
    side = before if assertion.endswith("^") else after
    return not assertion or side == _EDGE or (assertion.startswith("m") and side == _LINE)


def _closure(nfa: _Builder, nodes: Sequence[int], before: str, after: str) -> set[int]:
    """The nodes reached without reading between two bytes of the given kinds."""
    found, stack = set(nodes), list(nodes)
    while stack:
        for target, assertion in nfa.leads[stack.pop()]:
            if target not in found and _holds(assertion, before, after):
                found.add(target)
                stack.append(target)
    return found


def _determine(nfa: _Builder, start: int) -> Automaton:
    asserts = any(kind for leads in nfa.leads for _, kind in leads)
    cuts = {0, *(n for r in nfa.reads if r for n in (r[0], r[1] + 1))}
    if asserts:
        cuts |= {c for c in range(1, 256) if _kind(c) != _kind(c - 1)}
    firsts = sorted(cuts - {256})
    classes = np.searchsorted(firsts, np.arange(256), side="right") - 1
    State = tuple[frozenset[int], str]
    first: State = (frozenset([start]), _EDGE)
    number: dict[State, int] = {first: 0}
    table: list[list[int]] = []
    accepting: list[bool] = []
    queue = [first]
    for nodes, before in queue:
        ordered = sorted(nodes)
        accepting.append(0 in _closure(nfa, ordered, before, _EDGE))
        closures = (
            {kind: _closure(nfa, ordered, before, kind) for kind in (_LINE, _WORDS, _OTHER)}
            if asserts
            else {}
        )
        plain = None if asserts else _closure(nfa, ordered, before, _OTHER)
        row = []
        for code in firsts:
            inside = closures[_kind(code)] if plain is None else plain
            reads = (nfa.reads[n] for n in inside)
            after = frozenset(r[2] for r in reads if r and r[0] <= code <= r[1])
            state: State = (after, _kind(code) if asserts and after else _OTHER)
            if state not in number:
                if len(number) >= MAX_REGEX_STATES:
                    raise UnsupportedError(f"the pattern needs more than {MAX_REGEX_STATES} states")
                number[state] = len(number)
                queue.append(state)
            row.append(number[state])
        table.append(row)
    return _minimal(classes, np.array(table), np.array(accepting))


def _minimal(classes: np.ndarray, table: np.ndarray, accepting: np.ndarray) -> Automaton:
    """The smallest automaton for the same language: states that no text tells apart are one (Moore), and
    so are bytes that always lead to the same state."""
    block = accepting.astype(np.int64)
    while True:
        signature = np.column_stack([block, block[table]])
        _, representatives, finer = np.unique(signature, axis=0, return_index=True, return_inverse=True)
        finer = finer.reshape(-1)
        if finer.max() == block.max():
            break
        block = finer
    small = finer[table[representatives]]
    columns, merged = np.unique(small, axis=1, return_inverse=True)
    return Automaton(
        merged.reshape(-1)[classes].astype(np.uint8),
        columns.astype(np.uint16),
        accepting[representatives],
        int(finer[0]),
    )
