"""Records declared once: a frozen dataclass that reads itself from YAML and describes itself as JSON Schema.

A field's annotation has the type, the `Kind` of values that may be written, and what they mean.  The
kind reads the value, reports what is wrong with it, and gives the JSON Schema of what it accepts;
`read_record` and `record_schema` do the rest::

    @dataclass(frozen=True, kw_only=True)
    class Project:
        "A project file."
        target: Annotated[str, Text(), "the board to build for"] = "host"
        jobs: Annotated[int, Integer(1, 64), "processes at a time"] = 1

    project = read_record(Project, yamlfile.read_file("cuvil.yaml", "project file"))

A field ``name: str`` without a kind holds the key under which the record itself stands.

For a single value without a record: ``Section(node).get("jobs", Integer(1, 64), default=1)``.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

from cuvil.target import units
from cuvil.target.yamlfile import Node, quoted

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
JsonSchema = dict[str, Any]

NAME = r"[a-z][a-z0-9_]{0,31}"
"""What a device, a memory or a PCIe node may be called: it becomes part of file names and C symbols."""


class Kind(Protocol[T_co]):
    """A set of values that can be written in YAML."""

    def read(self, node: Node) -> T_co:
        """The value of `node`; TargetError if it is none of this kind."""

    def schema(self) -> JsonSchema:
        """JSON Schema of the values."""


def one_of(names: Iterable[str], wrong: str | None = None) -> str:
    """``allowed: a, b``, preceded by a suggestion if `wrong` resembles one of `names`."""
    names = list(names)
    close = difflib.get_close_matches(wrong, names, n=1) if wrong else []
    suggestion = f"did you mean {quoted(close[0])}? " if close else ""
    return f"{suggestion}allowed: {', '.join(names) or 'none'}"


@dataclass(frozen=True)
class Text:
    """Text that matches `pattern` as a whole; `what` says in words what is expected."""

    pattern: str = r"[\s\S]{1,1000}"
    what: str = "text of 1 to 1000 characters"

    def read(self, node: Node) -> str:
        if not isinstance(node.value, str):
            hint = "; put it in quotes" if isinstance(node.value, (bool, int, float)) else ""
            raise node.error(f"expected {self.what}, found {node.describe()}{hint}")
        if not re.fullmatch(self.pattern, node.value):
            raise node.error(f"expected {self.what}, found {node.describe()}")
        return node.value

    def schema(self) -> JsonSchema:
        return {"type": "string", "pattern": f"^({self.pattern})$"}


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    names: tuple[str, ...]

    def read(self, node: Node) -> str:
        if not isinstance(node.value, str) or node.value not in self.names:
            wrong = node.value if isinstance(node.value, str) else None
            raise node.error(f"{node.describe()} is not allowed here; {one_of(self.names, wrong)}")
        return node.value

    def schema(self) -> JsonSchema:
        return {"enum": list(self.names)}


@dataclass(frozen=True)
class Flag:
    """``true`` or ``false``."""

    def read(self, node: Node) -> bool:
        if not isinstance(node.value, bool):
            raise node.error(f"expected true or false, found {node.describe()}")
        return node.value

    def schema(self) -> JsonSchema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Integer:
    """A whole number from `low` to `high`, or one of `among`."""

    low: int = 0
    high: int = 10**9
    among: tuple[int, ...] = ()

    def read(self, node: Node) -> int:
        if not isinstance(node.value, int) or isinstance(node.value, bool):
            raise node.error(f"expected a whole number, found {node.describe()}")
        if self.among and node.value not in self.among:
            raise node.error(f"{node.value} is not allowed here; {one_of(map(str, self.among))}")
        if not self.low <= node.value <= self.high:
            raise node.error(f"expected a whole number from {self.low} to {self.high}, found {node.value}")
        return node.value

    def schema(self) -> JsonSchema:
        if self.among:
            return {"enum": list(self.among)}
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number:
    """A finite number between `low` and `high`, the ends excluded."""

    low: float
    high: float

    def read(self, node: Node) -> float:
        if not isinstance(node.value, (int, float)) or isinstance(node.value, bool):
            raise node.error(f"expected a number, found {node.describe()}")
        if not self.low < node.value < self.high:
            raise node.error(f"expected a number between {self.low:g} and {self.high:g}, found {node.value}")
        return float(node.value)

    def schema(self) -> JsonSchema:
        return {"type": "number", "exclusiveMinimum": self.low, "exclusiveMaximum": self.high}


@dataclass(frozen=True)
class Quantity:
    """A number with a unit of `dimension` (see `cuvil.target.units`), read as a float in SI units."""

    dimension: str
    zero: bool = False

    def read(self, node: Node) -> float:
        if not isinstance(node.value, str):
            allowed = ", ".join(units.UNITS[self.dimension])
            raise node.error(f"expected a number with a unit ({allowed}), found {node.describe()}")
        try:
            value = units.parse(self.dimension, node.value)
        except ValueError as error:
            raise node.error(str(error)) from None
        if value == 0 and not self.zero:
            raise node.error("must be more than zero")
        return value

    def schema(self) -> JsonSchema:
        return {"type": "string", "pattern": units.pattern(self.dimension)}


@dataclass(frozen=True)
class Size:
    """A number of bytes with a unit, read as an int; one of `among` if that is given."""

    zero: bool = False
    among: tuple[int, ...] = ()

    def read(self, node: Node) -> int:
        value = int(Quantity("bytes", self.zero).read(node))
        if self.among and value not in self.among:
            raise node.error(f"{value} B is not allowed here; {one_of(f'{n} B' for n in self.among)}")
        return value

    def schema(self) -> JsonSchema:
        return Quantity("bytes").schema()


@dataclass(frozen=True)
class ListOf(Kind[tuple[T, ...]]):
    """A list, read as a tuple."""

    item: Kind[T]

    def read(self, node: Node) -> tuple[T, ...]:
        if not isinstance(node.value, list):
            raise node.error(f"expected a list, found {node.describe()}")
        return tuple(self.item.read(child) for child in node.value)

    def schema(self) -> JsonSchema:
        return {"type": "array", "items": self.item.schema()}


@dataclass(frozen=True)
class MapOf(Kind[dict[str, T]]):
    """A mapping from names that match `pattern` to values of one kind."""

    item: Kind[T]
    pattern: str = NAME
    what: str = "a name (lower-case letters, digits and _, a letter first, at most 32)"

    def read(self, node: Node) -> dict[str, T]:
        if not isinstance(node.value, dict):
            raise node.error(f"expected a mapping, found {node.describe()}")
        for key, child in node.value.items():
            if not re.fullmatch(self.pattern, key):
                raise child.error(f"the key must be {self.what}")
        return {key: self.item.read(child) for key, child in node.value.items()}

    def schema(self) -> JsonSchema:
        # null removes an entry that an extended profile has
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^({self.pattern})$"},
            "additionalProperties": {"anyOf": [self.item.schema(), {"type": "null"}]},
        }


@dataclass(frozen=True)
class Named(Kind[tuple[T, ...]]):
    """A mapping from names to records, read as a tuple of records that keep their names."""

    cls: type[T]

    def read(self, node: Node) -> tuple[T, ...]:
        return tuple(MapOf(Record(self.cls)).read(node).values())

    def schema(self) -> JsonSchema:
        return MapOf(Record(self.cls)).schema()


@dataclass(frozen=True)
class Record(Kind[T]):
    """A mapping with the fields that the dataclass `cls` declares."""

    cls: type[T]

    def read(self, node: Node) -> T:
        return read_record(self.cls, node)

    def schema(self) -> JsonSchema:
        return record_schema(self.cls)


class Section:
    """A mapping whose keys are read one by one.

    Raises:
        TargetError: `node` is not a mapping.
    """

    def __init__(self, node: Node) -> None:
        if not isinstance(node.value, dict):
            raise node.error(f"expected a mapping, found {node.describe()}")
        self.node = node
        self.entries: Mapping[str, Node] = node.value

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse keys that are not among `known`, with a suggestion."""
        known = list(known)
        for key, child in self.entries.items():
            if key not in known:
                raise child.error(f"unknown key; {one_of(known, key)}")

    def get(self, key: str, kind: Kind[T], default: Any = MISSING) -> T:
        """The value of `key`; `default` if it is not there.

        Raises:
            TargetError: the key is missing and has no default, or its value is not of `kind`.
        """
        child = self.entries.get(key)
        if child is None:
            if default is MISSING:
                raise self.node.error(f"the key {quoted(key)} is missing")
            return default  # type: ignore[no-any-return]
        if child.value is None:
            raise child.error("the key has no value: give it one, or remove it")
        return kind.read(child)


@dataclass(frozen=True)
class Entry:
    """A key of a record: its kind, what it means, and the field's default or `MISSING`."""

    kind: Kind[Any]
    doc: str
    default: Any


def entries(cls: type[Any]) -> dict[str, Entry]:
    """The keys that the dataclass `cls` declares, in order."""
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        if get_origin(hints[field.name]) is Annotated:
            _, kind, doc = get_args(hints[field.name])
            default = field.default if field.default_factory is MISSING else field.default_factory()
            found[field.name] = Entry(kind, doc, default)
    return found


def read_record(cls: type[T], node: Node) -> T:
    """An instance of the dataclass `cls` from the mapping `node`.

    Raises:
        TargetError: unknown or missing keys, or a value of another kind.
    """
    declared = entries(cls)
    section = Section(node)
    section.refuse_unknown(declared)
    values = {key: section.get(key, entry.kind, entry.default) for key, entry in declared.items()}
    if "name" not in declared and any(field.name == "name" for field in dataclasses.fields(cls)):  # type: ignore[arg-type]
        values["name"] = node.path[-1]
    return cls(**values)


def record_schema(cls: type[Any]) -> JsonSchema:
    """JSON Schema of the record `cls`, without saying which keys are required (see `required_keys`)."""
    properties = {}
    for key, entry in entries(cls).items():
        properties[key] = {"description": entry.doc, **entry.kind.schema()}
        if isinstance(entry.kind, (Choice, Flag, Integer, Number)) and entry.default not in (MISSING, 0):
            properties[key]["default"] = entry.default
    doc = (cls.__doc__ or "").split("\n\n")[0]
    return {
        "type": "object",
        "description": " ".join(doc.split()),
        "properties": properties,
        "additionalProperties": False,
    }


def required_keys(kind: Kind[Any]) -> JsonSchema:
    """JSON Schema that asks for nothing but the presence of the required keys, at every depth of `kind`."""
    if isinstance(kind, Named):
        return required_keys(MapOf(Record(kind.cls)))
    if isinstance(kind, (ListOf, MapOf)):
        below = required_keys(kind.item)
        return {"items" if isinstance(kind, ListOf) else "additionalProperties": below} if below else {}
    if not isinstance(kind, Record):
        return {}
    declared = entries(kind.cls)
    required = [key for key, entry in declared.items() if entry.default is MISSING]
    properties = {key: below for key, entry in declared.items() if (below := required_keys(entry.kind))}
    return ({"required": required} if required else {}) | ({"properties": properties} if properties else {})
