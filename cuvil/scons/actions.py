"""How a build node runs its step: with progress, errors in one line, and whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cuvil
from cuvil.errors import CuvilError
from cuvil.scons import stage_command
from cuvil.scons.stage_command import Progress

if TYPE_CHECKING:  # with the whole compiler; not needed to print an error
    from cuvil.scons.steps import Step

Nodes = Sequence[Any]

_PROGRESS_S = (1, 2, 5, 10, 20, 30)
"""Seconds after which a running step is mentioned; then every 30."""

_python = threading.Lock()
"""Held by a stage that runs in this process: the compiler's intern tables are shared by all threads."""


def run(target: Nodes, source: Nodes, env: object) -> int:
    """SCons action: run the step that is attached to the node.  0 or, after a message, 1."""
    step: Step = target[0].attributes.cuvil_step
    verbose: bool = target[0].attributes.cuvil_verbose
    if step.apart:
        done = _guarded(step, lambda say: _run_apart(step, verbose), verbose)
    elif step.stage == "cc":
        done = _guarded(step, lambda say: stage_command.run(step.arguments, say), verbose)
    else:
        with _python:
            done = _guarded(step, lambda say: stage_command.run(step.arguments, say), verbose)
    if not done:
        for path in step.outputs:
            with contextlib.suppress(OSError):
                path.unlink()
    return 0 if done else 1


def describe(target: Nodes, source: Nodes, env: object) -> str:
    """SCons' text of the action: the step's title, or with verbose=1 commands that do the same by hand."""
    step: Step = target[0].attributes.cuvil_step
    if not target[0].attributes.cuvil_verbose:
        return step.title
    lines = [shlex.join(_command(step))]
    if step.stage == "cc":
        entry = step.compilation()
        lines.append(f"# cd {shlex.quote(entry['directory'])} && {shlex.join(entry['arguments'])}")
    return "\n".join(lines)


def fail(error: CuvilError | OSError) -> None:
    """Print `error` as the one line that users see."""
    text = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    print(f"cuvil: error: {' '.join(text.split())}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Mention on stdout that `title` is still running, whenever that has lasted long enough.

    Yields a function that takes a line on what is being done, shown with the next mention.
    """
    stop = threading.Event()
    detail = [""]

    def watch() -> None:
        elapsed = 0
        while True:
            pause = next((s for s in _PROGRESS_S if s > elapsed), elapsed + _PROGRESS_S[-1]) - elapsed
            if stop.wait(pause):
                return
            elapsed += pause
            print(f"  ... {title}, {elapsed} s{f': {detail[0]}' if detail[0] else ''}", flush=True)

    def say(text: str) -> None:
        detail[0] = text

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        stop.set()
        thread.join()


def _guarded(step: Step, action: Callable[[Progress], None], verbose: bool) -> bool:
    """Whether `action` ended well and wrote all outputs of `step`; if not, why is on stderr."""
    try:
        with progress(step.title) as say:
            action(say)
        missing = [str(path) for path in step.outputs if not path.exists()]
        if missing:
            raise RuntimeError(f"it did not write {', '.join(missing)}")
    except _Reported:
        pass
    except CuvilError as error:
        fail(error)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            fail(error)
            return False
        if verbose:
            traceback.print_exc()
        hint = "" if verbose else "; verbose=1 shows the traceback"
        text = f"{type(error).__name__}: {error}; please report with a reproducer{hint}"
        print(f"cuvil: internal error in {step.title}: {text}", file=sys.stderr, flush=True)
    else:
        return True
    return False


def _command(step: Step) -> list[str]:
    return [sys.executable, "-m", "cuvil", "stage", *step.arguments]


def _run_apart(step: Step, verbose: bool) -> None:
    """Run the step in a process of its own, so that it and others may compute at once."""
    root = str(Path(cuvil.__file__).resolve().parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [*_command(step), *(["--debug"] if verbose else [])]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL)
    if done.returncode < 0:
        raise CuvilError(f"was killed by signal {-done.returncode}; is there enough memory?", step.title)
    if done.returncode:
        raise _Reported


class _Reported(Exception):
    """The step failed in its own process and has said why there."""
