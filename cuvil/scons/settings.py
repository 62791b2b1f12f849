"""What the command line and ``custom.py`` set: ``scons target=jetson-nano verbose=1``."""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import SCons.Errors
import SCons.Variables

from cuvil.errors import CuvilError
from cuvil.scons.project import QUANTIZATIONS
from cuvil.target.records import one_of
from cuvil.target.yamlfile import quoted

CUSTOM = "custom.py"
"""File in the project's folder that sets variables for good, as Python: ``target = "jetson-nano"``."""

VARIABLES = {
    "target": "board to build for: a name from the list above, a path to a YAML file, or a triple",
    "model": "model to build: a name from the list above, or a path to an .onnx file",
    "quantization": "arithmetic: none, int8, or profile for what the board profile says",
    "threads": "threads that the library uses on each CPU",
    "build_dir": "folder of all outputs",
    "cache_dir": "folder of a cache that builds and checkouts share",
    "verbose": "1 shows whole command lines, and tracebacks of internal errors",
}


@dataclass(frozen=True)
class Settings:
    """The variables' values; "" and None where they were not set."""

    target: str = ""
    model: str = ""
    quantization: str = ""
    threads: int | None = None
    build_dir: str = "build"
    cache_dir: str = ""
    verbose: bool = False


def read(arguments: Mapping[str, str], launched_in: str) -> Settings:
    """The settings of `arguments` (``NAME=VALUE`` of the command line) upon those of ``custom.py``.

    Args:
        launched_in: the folder that the user was in; paths in `arguments` may be relative to it.

    Raises:
        CuvilError: an unknown variable or a value that is not allowed.
    """
    found: dict[str, Any] = {}
    variables = SCons.Variables.Variables(CUSTOM, dict(arguments))
    for name, text in VARIABLES.items():
        variables.Add(name, text)
    try:
        variables.Update(found)
    except Exception as error:  # whatever the user's Python raises
        raise CuvilError(f"{type(error).__name__}: {' '.join(str(error).split())}", CUSTOM) from error
    for name, value in sorted(variables.UnknownVariables().items()):
        private = name not in arguments and (name.startswith("_") or isinstance(value, types.ModuleType))
        if not private:
            raise CuvilError(f"unknown variable {quoted(name)}; {one_of(VARIABLES, name)}")
    values = {name: str(value) for name, value in found.items()}
    for name in ("target", "model"):
        typed = os.path.join(launched_in, values.get(name, ""))
        if name in arguments and os.path.isfile(typed):
            values[name] = _relative(typed)
    quantization, verbose = values.get("quantization", ""), values.get("verbose", "0")
    if quantization and quantization not in QUANTIZATIONS:
        raise CuvilError(one_of(QUANTIZATIONS, quantization), f"quantization={quantization}")
    if verbose not in ("0", "1", "False", "True"):
        raise CuvilError("allowed: 0, 1", f"verbose={verbose}")
    return Settings(
        target=values.get("target", ""),
        model=values.get("model", ""),
        quantization=quantization,
        threads=_threads(values.get("threads", "")),
        build_dir=os.path.normpath(values.get("build_dir") or "build"),
        cache_dir=values.get("cache_dir", ""),
        verbose=verbose in ("1", "True"),
    )


def _threads(text: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 4096 or len(text) > 9:
        raise CuvilError("a whole number from 1 to 4096 is allowed", f"threads={text}")
    return int(text)


def _relative(path: str) -> str:
    """`path` relative to the current folder if it lies below, with a slash in it, so that it is no name."""
    relative = os.path.relpath(path)
    if relative.startswith(os.pardir):
        return os.path.abspath(path)
    return relative if os.sep in relative else os.path.join(os.curdir, relative)
