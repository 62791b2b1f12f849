"""Operators: one file per family, each operator lowered once, to primitives.

Importing this package loads every family, which fills the registry in `cuvil.ops.registry`.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
