"""The SCons tool: models as nodes of a build.

In a project with a ``cuvil.yaml``::

    env = Environment(tools=["cuvil"])
    env.CuvilProject("cuvil.yaml")

In the build of a firmware, beside its own programs::

    import cuvil.scons
    env = Environment(tools=["default", cuvil.scons.generate])
    library = env.CuvilModel("net.onnx", target="raspberry-pi-4")
    env.Program("firmware", ["main.c", library.libraries[0]], CPPPATH=[library.out.interface["h"].parent])
"""

from __future__ import annotations

from typing import Any

import cuvil as package  # site_scons/site_tools/cuvil.py puts it back where SCons has put the tool

__all__ = ["exists", "generate", "package"]


def exists(env: Any) -> bool:
    """Whether the tool can be used: it needs nothing but Python."""
    return True


def generate(env: Any) -> None:
    """Add `CuvilProject` and `CuvilModel` to an SCons environment."""
    from cuvil.scons import tool

    env.AddMethod(tool.declare_project, "CuvilProject")
    env.AddMethod(tool.declare_model, "CuvilModel")
