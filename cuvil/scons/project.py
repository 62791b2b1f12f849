"""The project file, ``cuvil.yaml``: which models there are, and what is built where nothing is asked for.

It is read by the strict reader of the board profiles, so an error names file, line and key path.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from cuvil.codegen.names import model_name
from cuvil.errors import CuvilError
from cuvil.target import profiles
from cuvil.target.records import (
    Choice,
    Integer,
    JsonSchema,
    ListOf,
    MapOf,
    Named,
    Text,
    one_of,
    read_record,
)
from cuvil.target.yamlfile import Node, quoted, read_file

if TYPE_CHECKING:  # with networkx; not needed to list what there is
    from cuvil.target.schema import Target

QUANTIZATIONS = ("none", "int8", "profile")
IO_FORMATS = ("nchw", "nhwc")

_PATH = Text(what="a path relative to this file")
_TENSOR = "[\\s\\S]{1,1000}"


@dataclass(frozen=True)
class Size:
    """One dimension of an input: a size, or a name for one that stays open."""

    def read(self, node: Node) -> int | str:
        if isinstance(node.value, str):
            return Text(r"[A-Za-z_]\w{0,63}", "a size, or a name such as N").read(node)
        return Integer(0, 1 << 31).read(node)

    def schema(self) -> JsonSchema:
        return {"type": ["integer", "string"]}


Binding = Union[tuple[Union[int, str], ...], tuple[tuple[Union[int, str], ...], ...], None]


@dataclass(frozen=True)
class Bound:
    """The sizes of an input, the sizes of each item of a sequence, or null for an absent optional."""

    def read(self, node: Node) -> Binding:
        if node.value is None:
            return None
        items = node.value if isinstance(node.value, list) else []
        if items and isinstance(items[0].value, list):
            return ListOf(ListOf(Size())).read(node)
        return ListOf(Size()).read(node)

    def schema(self) -> JsonSchema:
        shape = ListOf(Size()).schema()
        return {"anyOf": [shape, {"type": "array", "items": shape}, {"type": "null"}]}


@dataclass(frozen=True)
class Value:
    """The value of an input: a number, a truth value, a text, or lists of them."""

    def read(self, node: Node) -> Any:
        if isinstance(node.value, list):
            return [self.read(child) for child in node.value]
        if not isinstance(node.value, (bool, int, float, str)):
            raise node.error(f"expected a number or a list of numbers, found {node.describe()}")
        return node.value

    def schema(self) -> JsonSchema:
        return {"type": ["number", "boolean", "string", "array"]}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of the project; paths are as written until `read` makes them relative to the current folder."""

    name: str
    path: Annotated[str, _PATH, "the .onnx file"]
    shapes: Annotated[
        dict[str, Binding],
        MapOf(Bound(), _TENSOR, "the name of an input"),
        "sizes (or names) of the dimensions of inputs, by input; a list of them for a sequence, null for an"
        " optional that is absent",
    ] = field(default_factory=dict)
    values: Annotated[
        dict[str, Any],
        MapOf(Value(), _TENSOR, "the name of an input"),
        "values of inputs that become constants and are no inputs of the library, by input",
    ] = field(default_factory=dict)
    io_format: Annotated[str, Choice(IO_FORMATS), "layout of images at the library's interface"] = "nchw"
    quantization: Annotated[
        str, Choice(QUANTIZATIONS), "arithmetic, instead of the project's; profile: what the board's says"
    ] = ""
    calibration: Annotated[str, _PATH, ".npz with samples of each input, for int8"] = ""
    test: Annotated[str, _PATH, ".npz with samples of each input and their classes as 'label'"] = ""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project file."""

    target: Annotated[str, Text(), "board where the command line names none"] = profiles.HOST
    model: Annotated[str, Text(), "model where the command line names none; the first where absent"] = ""
    quantization: Annotated[str, Choice(QUANTIZATIONS), "arithmetic of every model"] = "profile"
    targets: Annotated[tuple[str, ...], ListOf(_PATH), "folders with board profiles"] = ("targets",)
    models: Annotated[tuple[Model, ...], Named(Model), "models by name"] = ()

    def profile_folders(self) -> list[Path]:
        """Where profiles are looked for: the project's folders, then those that come with Cuvil."""
        return [*dict.fromkeys([*map(Path, self.targets), *profiles.default_folders()])]

    def find_model(self, asked: str) -> Model:
        """The model called `asked` (the default one where empty), or one for the ``.onnx`` file of that path.

        Raises:
            CuvilError: neither a name nor a path to a file.
        """
        by_name = {m.name: m for m in self.models}
        if asked in by_name:
            return by_name[asked]
        if not asked and self.models:
            return by_name[self.model] if self.model else self.models[0]
        if asked.endswith(".onnx") or os.sep in asked:
            if not os.path.isfile(asked):
                raise CuvilError("no such file", f"model {quoted(asked)}")
            known = (m for m in self.models if os.path.exists(m.path) and os.path.samefile(m.path, asked))
            return next(known, Model(name=model_name(Path(asked).stem), path=asked))
        allowed = f"{one_of(by_name, asked)}, or a path to an .onnx file"
        raise CuvilError(f"unknown model {quoted(asked)}; {allowed}")


def read(path: str | os.PathLike[str]) -> Project:
    """The project file at `path`; its paths become relative to the current folder.

    Raises:
        TargetError: what is wrong in it, with file, line and key path.
    """
    root = read_file(path, "project file")
    project = read_record(Project, root)
    names = [m.name for m in project.models]
    if not names:
        raise root.at("models").error("at least one model is needed")
    if project.model and project.model not in names:
        raise root.at("model").error(f"unknown model {quoted(project.model)}; {one_of(names, project.model)}")
    folder = os.path.relpath(Path(path).parent)

    def below(name: str) -> str:
        return os.path.normpath(os.path.join(folder, name)) if name else ""

    models = tuple(
        replace(m, path=below(m.path), calibration=below(m.calibration), test=below(m.test))
        for m in project.models
    )
    return replace(project, targets=tuple(map(below, project.targets)), models=models)


def configured(target: Target, quantization: str, threads: int | None, accuracy: str | None = None) -> Target:
    """`target` with the arithmetic asked for (``profile``: its own) and, unless None, `threads` on every CPU
    and `accuracy` on every device.

    Raises:
        CuvilError: more threads than a CPU has cores.
    """
    if quantization != "profile":
        target = replace(target, quantization=replace(target.quantization, mode=quantization, devices={}))
    if accuracy is not None:
        target = replace(target, devices=tuple(replace(d, accuracy=accuracy) for d in target.devices))
    if threads is None:
        return target
    for device in target.devices:
        if device.kind == "cpu" and threads > device.cores:
            raise CuvilError(f"device '{device.name}' has {device.cores} cores", f"threads={threads}")
    devices = tuple(replace(d, threads=threads) if d.kind == "cpu" else d for d in target.devices)
    return replace(target, devices=devices)
