"""Projects in temporary folders; see `scons_tree`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from scons_tree import REPOSITORY, Tree, fresh_tree


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cuvil as it is now, whatever is edited while the tests run."""
    folder = tmp_path_factory.mktemp("package") / "cuvil"
    shutil.copytree(REPOSITORY / "cuvil", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def fresh(tmp_path: Path, package: Path) -> Tree:
    """A project of which nothing has been built."""
    return fresh_tree(tmp_path / "project", package)


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Tree:
    tree = fresh_tree(tmp_path_factory.mktemp("scons") / "project", package)
    tree.scons()
    return tree


@pytest.fixture
def built(_built: Tree, tmp_path: Path) -> Tree:
    """A copy of a project whose default model has been built."""
    return _built.copy(tmp_path / "project")


@pytest.fixture
def make_tree(tmp_path: Path, package: Path) -> Callable[[str], Tree]:
    """Makes further projects of which nothing has been built, by name of the folder."""
    return lambda name: fresh_tree(tmp_path / name, package)
