"""Build nodes for the steps of a model, with all that they depend on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import SCons.Action
import SCons.Scanner

from cuvil import artefacts
from cuvil.scons import actions
from cuvil.scons.external_data import data_files
from cuvil.scons.project import Model
from cuvil.scons.steps import Step, steps
from cuvil.target.schema import Target

_ACTION = SCons.Action.Action(actions.run, actions.describe)


@dataclass(frozen=True)
class Artefacts:
    """What is built of one model for one target.

    Attributes:
        model, target: which.
        out: the paths of the artefacts.
        steps: how they are made.
        nodes: SCons' nodes of all of them.
        libraries: those of the model's static and shared library.
    """

    model: Model
    target: Target
    out: artefacts.Layout
    steps: Sequence[Step]
    nodes: Sequence[Any]
    libraries: Sequence[Any]


def declare(
    env: Any, target: Target, model: Model, folder: Path, modules: Mapping[str, str], verbose: bool
) -> Artefacts:
    """Declare the nodes of `model` for `target`, with all artefacts in `folder`.

    Args:
        env: the SCons environment whose cache is used.
        modules: digest of the code of each stage; empty where nothing will be built, and the toolchain is not
            asked for its version then.

    Raises:
        ToolchainError: the compiler that the profile names is not there.
    """
    out = artefacts.layout(folder, model.name, target)
    clean_env = env.Clone(SCANNERS=[])
    nodes: list[Any] = []
    listed = steps(out, target, model)
    for step in listed:
        scanner = _DATA if step.stage == "import" else None
        outputs, inputs = ([_file(env, path) for path in paths] for paths in (step.outputs, step.inputs))
        made = clean_env.Command(outputs, inputs, _ACTION, source_scanner=scanner)
        for node in made:
            node.attributes.cuvil_step = step
            node.attributes.cuvil_verbose = verbose
        # Values without names: --debug=explain then tells which one changed
        env.Depends(made, env.Value(json.dumps(step.settings)))
        if modules:
            env.Depends(made, env.Value(f"cuvil's modules for {step.stage}: {modules[step.stage]}"))
            if step.stage == "cc":
                env.Depends(made, env.Value(json.dumps(step.toolchain(), sort_keys=True)))
        nodes += made
    return Artefacts(model, target, out, listed, nodes, nodes[-2:])


def drop_edited(nodes: Sequence[Any]) -> None:
    """Remove outputs that are no longer what was built, so that they are built anew, and say so."""
    for node in nodes:
        built = getattr(node.get_stored_info().ninfo, "csig", None)
        if built and os.path.isfile(node.get_internal_path()) and node.get_content_hash() != built:
            print(f"cuvil: warning: {node} is not what was built and is made anew", file=sys.stderr)
            os.unlink(node.get_internal_path())
        node.clear_memoized_values()


def _file(env: Any, path: Path) -> Any:
    return env.File(str(path) if path.is_absolute() else f"#{path}")


def _scan(node: Any, env: Any, path: object) -> list[Any]:
    return [_file(env, p) for p in data_files(Path(node.get_internal_path()))]


_DATA = SCons.Scanner.Scanner(_scan, name="external data of a model")
