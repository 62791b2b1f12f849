"""The commands beside the build itself: verify, bench, size, test, compiledb."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Action

from cuvil import fsio
from cuvil.errors import CuvilError
from cuvil.scons import actions
from cuvil.scons.nodes import Artefacts

if TYPE_CHECKING:
    from cuvil.report.verify import Subject

COMPILE_COMMANDS = "compile_commands.json"


def declare(env: Any, selected: Sequence[Artefacts], verbose: bool) -> None:
    """Declare the commands; those that need a library work on the `selected` models."""

    def phony(name: str, needs: Sequence[Any], run: Callable[[], bool]) -> None:
        def action(target: object, source: object, env: object) -> int:
            try:
                return 0 if run() else 1
            except (CuvilError, OSError) as error:
                actions.fail(error)
                return 1

        env.AlwaysBuild(env.Alias(name, needs, SCons.Action.Action(action, cmdstr=None)))

    libraries = [a.libraries for a in selected]
    phony("verify", libraries, lambda: all([_verify(a) for a in selected]))
    phony("bench", libraries, lambda: all([_bench(a) for a in selected]))
    phony("size", libraries, lambda: all([_size(a) for a in selected]))
    phony("test", [], lambda: subprocess.run([sys.executable, "-m", "pytest"]).returncode == 0)
    phony("compiledb", [], lambda: _compile_commands(selected))


def _subject(a: Artefacts) -> Subject:
    from cuvil.report.verify import Subject

    data = a.model.test or a.model.calibration
    path, samples = Path(a.model.path), Path(data) if data else None
    m = a.model
    return Subject(a.out, a.target, path, samples, m.io_format, m.values, m.shapes)


def _verify(a: Artefacts) -> bool:
    from cuvil.report import verify

    with actions.progress(f"VERIFY   {a.out.model} [{a.target.name}]") as say:
        result = verify.verify(_subject(a), say)
    print(result.text(), flush=True)
    return result.good


def _bench(a: Artefacts) -> bool:
    from cuvil.report import verify

    with actions.progress(f"BENCH    {a.out.model} [{a.target.name}]") as say:
        result = verify.bench(_subject(a), say)
    print(result.text(), flush=True)
    return True


def _size(a: Artefacts) -> bool:
    from cuvil.report import verify

    print(verify.sizes(_subject(a)).text(), flush=True)
    return True


def _compile_commands(selected: Sequence[Artefacts]) -> bool:
    entries = [step.compilation() for a in selected for step in a.steps if step.stage == "cc"]
    fsio.write_text(COMPILE_COMMANDS, json.dumps(entries, indent=2) + "\n")
    print(f"{COMPILE_COMMANDS}: {len(entries)} files", flush=True)
    return True
