"""The methods that the tool adds to an SCons environment."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from SCons.Script import ARGUMENTS, COMMAND_LINE_TARGETS, GetLaunchDir

from cuvil import fsio
from cuvil.codegen.names import model_name
from cuvil.errors import CuvilError
from cuvil.scons import actions, helptext, settings
from cuvil.scons.project import Model, Project, configured, read
from cuvil.scons.settings import Settings
from cuvil.target.records import one_of
from cuvil.target.yamlfile import quoted

if TYPE_CHECKING:
    from cuvil.scons.nodes import Artefacts
    from cuvil.target.schema import Target

_locked: set[Path] = set()
"""The build folders that this process has locked; the locks are held until it ends."""


def declare_project(env: Any, file: str = "cuvil.yaml") -> None:
    """``env.CuvilProject``: declare all that can be built of the project file, as the command line asks.

    What is wrong in the file, on the command line or on the machine is printed as one line; SCons ends then.
    """
    with _reported():
        chosen = settings.read(ARGUMENTS, GetLaunchDir())
        project = read(file)
        if env.GetOption("help"):
            env.Help(helptext.text(project).replace("$", "$$"))
            return
        _declare_project(env, project, chosen)


def declare_model(
    env: Any,
    path: str,
    target: str | Path | Target = "host",
    name: str = "",
    *,
    shapes: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    io_format: str = "nchw",
    quantization: str = "profile",
    calibration: str = "",
    threads: int | None = None,
    folder: str = "",
) -> Artefacts:
    """``env.CuvilModel``: declare the build of one model, for builds that have a main part of their own.

    Args:
        path: the ``.onnx`` file, relative to the SConscript.
        target: a profile's name, file or triple.
        name: prefix of files and symbols; the file's name by default.
        shapes: sizes or names of the dimensions of inputs, by input; lists of them for sequences, None for
            absent optionals.
        values: of inputs that become constants, by name: numbers or nested lists of them.
        io_format: ``nchw`` or ``nhwc``.
        quantization: ``none``, ``int8``, or ``profile`` for what the profile says.
        calibration: an ``.npz`` file for int8, relative to the SConscript.
        threads: on each CPU; what the profile says where None.
        folder: for all artefacts; by default ``build/<target>/<name>``, which ``scons -c`` removes whole.

    Returns:
        The nodes and their paths; `Artefacts.libraries` are the model's ``.a`` and ``.so``.
    """
    with _reported():
        from cuvil.target.schema import Target, load

        model = Model(
            name=name or model_name(Path(path).stem),
            path=env.File(path).get_internal_path(),
            shapes=dict(shapes or {}),
            values=dict(values or {}),
            io_format=io_format,
            calibration=env.File(calibration).get_internal_path() if calibration else "",
        )
        profile = target if isinstance(target, Target) else load(target)
        profile = configured(profile, quantization, threads)
        if folder:
            place = base = Path(env.Dir(folder).get_internal_path())
        else:
            base = Path("build", profile.name)
            place = base / model.name
        _lock(env, base)
        found = _declare(env, [(model, profile, place)], base, verbose=False)[0]
        if not folder:
            env.Clean(found.nodes, env.Dir(f"#{place}"))
        return found
    raise AssertionError  # _reported lets no exception pass


def _declare_project(env: Any, project: Project, chosen: Settings) -> None:
    from cuvil.scons import commands
    from cuvil.target.schema import load

    target = load(chosen.target or project.target, project.profile_folders())
    model = project.find_model(chosen.model)
    _check_asked(chosen.build_dir)
    base = Path(chosen.build_dir, target.name)
    _lock(env, base)
    if base.is_dir():
        env.SConsignFile(str(base / ".sconsign"))
    if chosen.cache_dir:
        from cuvil.scons import cache

        cache.use(env, chosen.cache_dir)
    else:
        env.CacheDir(None)  # unset, SCons would make a default environment and look for compilers
    models = [model, *(m for m in project.models if m.name != model.name)]
    if not env.GetOption("clean"):
        for wanted in models if "all" in COMMAND_LINE_TARGETS else models[:1]:
            _check_files(wanted)
    asked = []
    for m in models:
        quantization = chosen.quantization or m.quantization or project.quantization
        asked.append((m, configured(target, quantization, chosen.threads), base / m.name))
    found = _declare(env, asked, base, chosen.verbose)
    for artefacts in found:
        folder = artefacts.out.folder
        env.Clean(artefacts.nodes, env.Dir(str(folder) if folder.is_absolute() else f"#{folder}"))
    selected = found if "all" in COMMAND_LINE_TARGETS else found[:1]
    env.Alias("all", [a.libraries for a in found])
    env.Default([a.libraries for a in selected])
    commands.declare(env, selected, chosen.verbose)


def _declare(
    env: Any, asked: Sequence[tuple[Model, Target, Path]], base: Path, verbose: bool
) -> list[Artefacts]:
    """Declare the nodes of models for targets in folders; `base` is the folder that is locked."""
    from cuvil.scons import nodes, signatures

    env.SetOption("max_drift", -1)
    cleaning, dry = env.GetOption("clean"), _is_dry(env)
    modules = {} if cleaning else signatures.of_stages(None if dry else base / ".cuvil-modules.json")
    found = [nodes.declare(env, target, model, place, modules, verbose) for model, target, place in asked]
    if not (cleaning or dry):
        nodes.drop_edited([node for artefacts in found for node in artefacts.nodes])
    return found


def _is_dry(env: Any) -> bool:
    """Whether nothing is to be written (-n, -q, -h)."""
    return any(env.GetOption(option) for option in ("no_exec", "question", "help"))


def _lock(env: Any, folder: Path) -> None:
    """Hold the lock of a build folder until the build ends.

    Raises:
        CuvilError: another build holds it, or the folder cannot be written.
    """
    if folder not in _locked and not _is_dry(env):
        try:
            lock = contextlib.ExitStack()
            lock.enter_context(fsio.build_lock(folder))
            atexit.register(lock.close)
            _locked.add(folder)
        except OSError as error:
            message = f"cannot be written: {error.strerror}; build_dir= names another"
            raise CuvilError(message, str(folder)) from None


def _check_asked(build_dir: str) -> None:
    """Refuse words on the command line that are no command and no file."""
    for name in COMMAND_LINE_TARGETS:
        inside = os.path.normpath(name).split(os.sep)[0] == build_dir or os.path.isabs(name)
        if name not in helptext.COMMANDS and not inside and not os.path.exists(name):
            allowed = one_of(helptext.COMMANDS, name)
            raise CuvilError(f"unknown command {quoted(name)}; {allowed}, or a file in {build_dir}")


def _check_files(model: Model) -> None:
    for key in ("path", "calibration", "test"):
        path = getattr(model, key)
        if path and not os.path.isfile(path):
            raise CuvilError(f"no such file {quoted(path)}", f"model {model.name}: {key}")


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Print a `CuvilError` as one line and end SCons."""
    try:
        yield
    except CuvilError as error:
        actions.fail(error)
        sys.exit(2)
