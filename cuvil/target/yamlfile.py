"""A strict reader for the YAML that people write: profiles and the project file.

The syntax is PyYAML's; the meaning of a scalar is not.  As in YAML 1.2, only ``true``, ``false``,
``null``, decimal integers and decimal floats are more than text, and whatever YAML 1.1 would have
turned into something else behind the writer's back (``no``, ``010``, ``0000:41:00.0``) is refused
with the advice to quote it.  Duplicate keys, anchors, aliases, tags, tabs, control characters and
further documents are errors too.  Every error is a `TargetError` with file, line and key path,
whatever the bytes are.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cuvil import fsio
from cuvil.errors import CuvilError, TargetError
from cuvil.limits import MAX_YAML_BYTES, MAX_YAML_DEPTH

MAX_DIGITS = 18
"""Digits of one integer: what an int64 always holds."""

Scalar = bool | int | float | str | None
KeyPath = tuple[str | int, ...]

_FORBIDDEN = re.compile(
    "[^\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

_REFUSED: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"(?i)yes|no|on|off"),
        "is a truth value in some YAML versions: quote it, or write true or false",
    ),
    (
        re.compile(r"(?i)true|false|null|~"),
        "is ambiguous: write true, false or null in lower case, or quote it",
    ),
    (re.compile(r"[-+]?0[0-9]+"), "looks like an octal number: drop the leading zeros, or quote it"),
    (re.compile(r"[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?"), "is a base-60 number in some YAML versions: quote it"),
    (
        re.compile(r"(?i)[-+]?0(x[0-9a-f_]+|o[0-7_]+|b[01_]+)"),
        "is not a decimal number: write it in decimal, or quote it",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?"),
        "is a number with underscores: leave them out, or quote it",
    ),
    (re.compile(r"(?i)[-+]?\.inf|\.nan"), "is not a finite number"),
)


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a document, with the place where it was written.

    Attributes:
        value: a scalar, a mapping of names to nodes in the order of the file, or a list of nodes.
        file: the file as errors name it.
        line: 1-based line of the key (of the value, where it has no key); 0 if there is no file.
        path: the keys and indices that lead here.
    """

    value: Scalar | dict[str, Node] | list[Node]
    file: str
    line: int
    path: KeyPath = ()

    @property
    def where(self) -> str:
        """``file:line: key.path``, as `CuvilError.where` wants it."""
        return _where(self.file, self.line, self.path)

    def error(self, message: str) -> TargetError:
        """An error about this value, to be raised by the caller."""
        return TargetError(message, self.where)

    def at(self, *path: str | int) -> Node:
        """The node at `path` below this one, or its nearest ancestor that was written."""
        node = self
        for step in path:
            if isinstance(node.value, dict) and step in node.value:
                node = node.value[str(step)]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
            else:
                break
        return node

    def plain(self) -> Any:
        """The value as plain Python: dict, list and scalars."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def lines(self) -> dict[KeyPath, int]:
        """The source map: key path -> line, for this node and all below it."""
        below: Iterable[Node] = ()
        if isinstance(self.value, dict):
            below = self.value.values()
        elif isinstance(self.value, list):
            below = self.value
        found = {self.path: self.line}
        for child in below:
            found.update(child.lines())
        return found

    def describe(self) -> str:
        """What stands here, in a few words for an error message."""
        match self.value:
            case None:
                return "nothing"
            case dict():
                return "a mapping"
            case list():
                return "a list"
            case bool():
                return str(self.value).lower()
            case str():
                return f"text {quoted(self.value)}"
            case _:
                return f"the number {self.value}"


def quoted(text: str, limit: int = 60) -> str:
    """`text` between quotes, escaped and shortened to `limit` characters: safe in a one-line error."""
    return repr(text if len(text) <= limit else text[:limit] + "...")


def read_file(path: str | os.PathLike[str], what: str = "profile") -> Node:
    """Read the YAML file `path`; `what` names its role in messages.

    Raises:
        TargetError: the file is missing, too large or not strict YAML with a mapping on top.
    """
    shown = display_path(path)
    try:
        data = fsio.read_bytes(path, what, MAX_YAML_BYTES)
    except CuvilError as error:
        raise TargetError(error.message, shown) from error
    return read_bytes(data, shown)


def read_bytes(data: bytes, file: str) -> Node:
    """Parse the bytes of one document; `file` names them in errors.

    Raises:
        TargetError: see the module's description.
    """
    if len(data) > MAX_YAML_BYTES:
        raise TargetError(f"the file has {len(data)} bytes, at most {MAX_YAML_BYTES} are allowed", file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TargetError("not valid UTF-8", f"{file}:{line}") from None
    bad = _FORBIDDEN.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        hint = (
            "tab character: indent with spaces"
            if bad[0] == "\t"
            else f"control character U+{ord(bad[0]):04X}"
        )
        raise TargetError(hint, f"{file}:{line}")
    return _Composer(text, file).document()


def from_plain(value: Any, file: str, path: KeyPath = ()) -> Node:
    """Nodes for a plain Python value that was not read from a file; `file` is its name in errors."""
    if isinstance(value, Mapping):
        return Node({str(k): from_plain(v, file, (*path, str(k))) for k, v in value.items()}, file, 0, path)
    if isinstance(value, (list, tuple)):
        return Node([from_plain(v, file, (*path, i)) for i, v in enumerate(value)], file, 0, path)
    return Node(value, file, 0, path)


def merged(base: Node, over: Node) -> Node:
    """`over` laid upon `base`: mappings merge key by key, everything else is replaced.

    A key whose value in `over` is null is removed from `base`.
    """
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    result = dict(base.value)
    for key, child in over.value.items():
        if key in result and child.value is None:
            del result[key]
        else:
            result[key] = merged(result[key], child) if key in result else child
    return Node(result, over.file, over.line, over.path)


def display_path(path: str | os.PathLike[str]) -> str:
    """`path` as errors show it: relative to the working folder if it lies below it."""
    relative = os.path.relpath(path)
    return os.fspath(path) if relative.startswith(os.pardir) else relative


def _where(file: str, line: int, path: KeyPath) -> str:
    dotted = ""
    for step in path:
        if isinstance(step, int):
            dotted += f"[{step}]"
        else:
            dotted += ("." if dotted else "") + (
                step if re.fullmatch(r"[\w.+-]{1,60}", step) else quoted(step)
            )
    return ": ".join(part for part in (f"{file}:{line}" if line else file, dotted) if part)


class _Composer:
    """Builds nodes from PyYAML's parser events, which come from a state machine without recursion."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.path: list[str | int] = []
        self.line = 1
        self.loader = yaml.SafeLoader(text)

    def document(self) -> Node:
        self.next()  # the start of the stream
        start = self.next()
        if isinstance(start, yaml.StreamEndEvent):
            raise self.error("the file is empty")
        if start.version or start.tags:
            raise self.error("YAML directives (%) are not allowed")
        root = self.node(self.next())
        if not isinstance(root.value, dict):
            kind = "the file is empty" if root.value is None else f"found {root.describe()}"
            raise root.error(f"{kind}; a mapping of keys to values must stand at the top")
        self.next()  # the end of the document
        if not isinstance(self.next(), yaml.StreamEndEvent):
            raise self.error("a second document begins here, one is allowed")
        return root

    def next(self) -> Any:
        """The next event.  PyYAML answers some inputs with ValueError instead of its own errors."""
        try:
            event = self.loader.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.line = mark.line + 1 if mark else self.line
            text = " ".join(part for part in (error.problem, error.context) if part)
            raise self.error(f"not valid YAML: {text}") from None
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise self.error(f"not valid YAML: {' '.join(str(error).split())}") from None
        self.line = event.start_mark.line + 1
        return event

    def node(self, event: Any, line: int = 0) -> Node:
        """The node that `event` begins; `line` is that of its key, if it has one."""
        line = line or self.line
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self.error("anchors and aliases (& and *) are not allowed: write the value out")
        if event.tag is not None:
            raise self.error("tags (!) are not allowed")
        path = tuple(self.path)
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.scalar(event), self.file, line, path)
        if len(self.path) >= MAX_YAML_DEPTH:
            raise self.error(f"nested more than {MAX_YAML_DEPTH} deep")
        children = self.mapping() if isinstance(event, yaml.MappingStartEvent) else self.sequence()
        return Node(children, self.file, line, path)

    def mapping(self) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := self.next(), yaml.MappingEndEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                raise self.error("a key must be text, found a mapping or list")
            key = self.node(event)
            if not isinstance(key.value, str):
                raise self.error(f"a key must be text, found {key.describe()}; quote it if it is a name")
            self.path.append(key.value)
            if key.value in entries:
                raise self.error(f"duplicate key, first given in line {entries[key.value].line}")
            entries[key.value] = self.node(self.next(), key.line)
            self.path.pop()
        return entries

    def sequence(self) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self.next(), yaml.SequenceEndEvent):
            self.path.append(len(items))
            items.append(self.node(event))
            self.path.pop()
        return items

    def scalar(self, event: Any) -> Scalar:
        text: str = event.value
        if _FORBIDDEN.search(text):
            raise self.error("the text has a control character")
        if not event.implicit[0]:  # quoted or a block
            return text
        if text in ("", "null"):
            return None
        if text in ("true", "false"):
            return text == "true"
        for pattern, message in _REFUSED if len(text) < 64 else ():
            if pattern.fullmatch(text):
                raise self.error(f"{quoted(text)} {message}")
        if _INTEGER.fullmatch(text):
            if len(text.lstrip("+-")) > MAX_DIGITS:
                raise self.error(f"the integer {quoted(text, 20)} has more than {MAX_DIGITS} digits")
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self.error(f"{quoted(text)} is not a finite number")
            return number
        return text

    def error(self, message: str) -> TargetError:
        return TargetError(message, _where(self.file, self.line, tuple(self.path)))
