from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from cuvil.errors import TargetError
from cuvil.target import records, yamlfile
from cuvil.target.records import (
    Flag,
    Integer,
    ListOf,
    MapOf,
    Named,
    Number,
    Quantity,
    Record,
    Section,
    Size,
    Text,
)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model
    of the project.

    More about it."""

    name: str
    path: Annotated[str, Text(r".+\.onnx", "the path of an ONNX file"), "where it lies"]
    threads: Annotated[int, Integer(1, 64), "threads to use"] = 1


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project file."""

    models: Annotated[tuple[Model, ...], Named(Model), "models by name"]
    sizes: Annotated[tuple[int, ...], ListOf(Size()), "some sizes"] = ()
    share: Annotated[float, Number(0, 1), "a share"] = 0.5
    strict: Annotated[bool, Flag(), "whether"] = True
    limits: Annotated[dict[str, float], MapOf(Quantity("time")), "limits"] = field(default_factory=dict)


def project(text: str) -> Project:
    return records.read_record(Project, yamlfile.read_bytes(text.encode(), "cuvil.yaml"))


def test_read() -> None:
    read = project(
        "models: {b: {path: x.onnx, threads: 4}, a: {path: y.onnx}}\n"
        "sizes: [4 KiB, 8 B]\nlimits: {run: 1 ms}\n"
    )
    assert read.models == (Model(name="b", path="x.onnx", threads=4), Model(name="a", path="y.onnx"))
    assert (read.sizes, read.share, read.strict, read.limits) == ((4096, 8), 0.5, True, {"run": 1e-3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "models: {a: {path: x.txt}}",
            "cuvil.yaml:1: models.a.path: expected the path of an ONNX file, found text 'x.txt'",
        ),
        ("models: {a: {}}", "cuvil.yaml:1: models.a: the key 'path' is missing"),
        ("strict: true", "cuvil.yaml:1: the key 'models' is missing"),
        ("models: {}\nshare: 1", "cuvil.yaml:2: share: expected a number between 0 and 1, found 1"),
        (
            "models: {}\nsizes: [1 B,\n  4]",
            "cuvil.yaml:3: sizes[1]: expected a number with a unit (B, kB, MB, GB, TB, "
            "KiB, MiB, GiB, TiB), found the number 4",
        ),
        (
            "models: {a: {path: x.onnx, threads: true}}",
            "cuvil.yaml:1: models.a.threads: expected a whole number, found true",
        ),
        (
            "models: {a: {path: x.onnx, threads: 65}}",
            "cuvil.yaml:1: models.a.threads: expected a whole number from 1 to 64, found 65",
        ),
        (
            "models: {a: {path: x.onnx, name: b}}",
            "cuvil.yaml:1: models.a.name: unknown key; allowed: path, threads",
        ),
        (
            "modles: {}",
            "cuvil.yaml:1: modles: unknown key; did you mean 'models'? allowed: models, sizes, "
            "share, strict, limits",
        ),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        project(text)
    assert str(caught.value) == message


def test_section() -> None:
    section = Section(yamlfile.read_bytes(b"jobs: 3\nmode: null\n", "f"))
    assert section.get("jobs", Integer(1, 8)) == 3
    assert section.get("absent", Integer(1, 8), default=2) == 2
    with pytest.raises(TargetError, match="f:2: mode: the key has no value"):
        section.get("mode", Text())
    with pytest.raises(TargetError, match="f:1: jobs: expected a mapping, found the number 3"):
        Section(section.node.at("jobs"))


def test_schema() -> None:
    schema = records.record_schema(Project)
    assert list(schema["properties"]) == ["models", "sizes", "share", "strict", "limits"]
    assert schema["properties"]["share"] == {
        "description": "a share",
        "type": "number",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 1,
        "default": 0.5,
    }
    model = schema["properties"]["models"]["additionalProperties"]["anyOf"][0]
    assert model["description"] == "A model of the project."
    assert (list(model["properties"]), model["additionalProperties"]) == (["path", "threads"], False)


def test_required_keys() -> None:
    assert records.required_keys(Record(Project)) == {
        "required": ["models"],
        "properties": {"models": {"additionalProperties": {"required": ["path"]}}},
    }
