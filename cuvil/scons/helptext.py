"""The text of ``scons -h``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cuvil.errors import CuvilError
from cuvil.report.text import table
from cuvil.scons.project import Project
from cuvil.scons.settings import CUSTOM, VARIABLES
from cuvil.target import profiles
from cuvil.target.yamlfile import read_file

COMMANDS = {
    "all": "build every model",
    "verify": "build, run, and compare with onnxruntime: error, accuracy, sizes, latency",
    "bench": "build and measure the latency, beside onnxruntime's",
    "size": "build and print what the library takes",
    "test": "run the project's tests",
    "compiledb": "write compile_commands.json for editors",
}

_EXAMPLES = (
    ("scons", "the default model for the default target"),
    ("scons verify", "the same, checked"),
    ("scons target={other} model={last}", "another board, another model"),
    ("scons quantization=int8 verify", "in int8 arithmetic"),
    ("scons -c all", "remove what was built"),
)


def text(project: Project) -> str:
    """What can be built and how; nothing is probed and no model is read."""
    folders = project.profile_folders()
    targets = [(name, _description(name, folders)) for name in profiles.names(folders)]
    default = project.find_model("")
    models = [(m.name, f"{m.path}{' (default)' if m is default else ''}") for m in project.models]
    rows = [(name, f"{about}{' (default)' if name == project.target else ''}") for name, about in targets]
    other = next((name for name, _ in targets if name != project.target), "host")
    examples = [(e.format(other=other, last=project.models[-1].name), about) for e, about in _EXAMPLES]
    sections = [
        ("Models", models),
        ("Targets", rows),
        (f"Variables (also set in {CUSTOM})", [(f"{name}=", about) for name, about in VARIABLES.items()]),
        ("Commands", list(COMMANDS.items())),
        ("Examples", examples),
    ]
    lines = ["scons [NAME=VALUE ...] [COMMAND ...]"]
    for title, entries in sections:
        lines += ["", title, table([(f"  {name}", about) for name, about in entries])]
    return "\n".join([*lines, ""])


def _description(name: str, folders: Sequence[Path]) -> str:
    """The profile's own words, not those of one that it extends."""
    for folder in folders:
        path = folder / f"{name}.yaml"
        if path.is_file():
            try:
                return str(read_file(path).plain().get("description", ""))
            except CuvilError as error:
                return f"not usable: {error}"
    return "this machine, probed"
