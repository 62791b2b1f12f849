"""Finding profiles by name, path or triple, and laying a profile upon the one it extends."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Sequence
from pathlib import Path

import cuvil
from cuvil.errors import TargetError
from cuvil.target import isa, probe
from cuvil.target.yamlfile import Node, from_plain, merged, quoted, read_file

HOST = "host"
"""The name of the machine that Cuvil runs on."""


def default_folders() -> list[Path]:
    """Where profiles are looked for: ``targets/`` beside the package, if it is there."""
    folder = Path(cuvil.__file__).resolve().parent.parent / "targets"
    return [folder] if folder.is_dir() else []


def names(search: Sequence[str | Path] | None = None) -> list[str]:
    """The profiles that can be named, sorted; `HOST` is always among them."""
    folders = default_folders() if search is None else search
    return sorted({HOST} | {path.stem for folder in folders for path in Path(folder).glob("*.yaml")})


def find(name_or_path: str | Path, search: Sequence[str | Path] | None = None) -> Node:
    """The profile of that name, path or triple, merged with everything it extends.

    A file in `search` wins over a generic profile of a triple and over a probe of the host.

    Raises:
        TargetError: no such profile, a cycle of ``extends``, or a file that is not strict YAML.
    """
    folders = default_folders() if search is None else [Path(folder) for folder in search]
    return _extended(_source(str(name_or_path), folders), folders, ())


def generic(triple: isa.Triple) -> dict[str, object]:
    """A profile for any machine of `triple`: its baseline instruction set, others where a library can
    choose at run time, and modest figures."""
    levels = isa.LEVELS.get(triple.arch)
    device = {"kind": "cpu", "isa": isa.BASELINE[triple.arch], "frequency": "1 GHz"}
    return {
        "description": f"any {triple.arch} machine, {'' if levels else 'baseline instruction set'}"
        + (f"{levels[0]} to {levels[-1]} chosen at run time" if levels else ""),
        "triple": str(triple),
        "devices": {"cpu0": device | ({"isa_levels": list(levels)} if levels else {})},
        "memories": {"dram": {"size": "1 GiB", "bandwidth": "5 GB/s", "latency": "120 ns"}},
    }


def _source(name: str, folders: Sequence[Path], beside: Path | None = None) -> Path | Node:
    """The file, or the profile made up in memory, that `name` stands for."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        return (beside or Path()) / name
    for folder in folders:
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path
    if name == HOST:
        return _probed()
    try:
        triple = isa.parse_triple(name)
    except ValueError:
        valid = names(folders)
        close = difflib.get_close_matches(name, valid, n=1)
        suggestion = f"did you mean {quoted(close[0])}? " if close else ""
        raise TargetError(
            f"unknown target {quoted(name)}; {suggestion}allowed: {', '.join(valid)}, "
            "a path to a YAML file, or a triple such as aarch64-linux-gnu"
        ) from None
    usual = f"{triple.arch}-unknown-{triple.os}-{triple.abi}"
    if name != usual and not triple.glibc and usual in names(folders):
        return _source(usual, folders)
    return from_plain(generic(triple) | {"name": name}, f"target {name}")


@functools.cache
def _probed() -> Node:
    return from_plain(probe.probe(), f"target {HOST} (probed)")


def _extended(source: Path | Node, folders: Sequence[Path], seen: tuple[Path, ...]) -> Node:
    if isinstance(source, Node):
        return source
    node = read_file(source)
    assert isinstance(node.value, dict)
    parent = node.value.get("extends")
    if parent is None:
        return node
    if not isinstance(parent.value, str):
        raise parent.error(f"expected the name or path of a profile, found {parent.describe()}")
    try:
        base_source = _source(parent.value, folders, source.parent)
    except TargetError as error:
        raise parent.error(error.message) from None
    seen = (*seen, source.resolve())
    if isinstance(base_source, Path) and base_source.resolve() in seen:
        chain = " -> ".join(path.stem for path in (*seen, base_source))
        raise parent.error(f"the profile extends itself: {chain}")
    base = _extended(base_source, folders, seen)
    assert isinstance(base.value, dict)
    # the name is this file's own, or its file name
    base = dataclasses.replace(
        base, value={k: v for k, v in base.value.items() if k not in ("extends", "name")}
    )
    return merged(base, node)
