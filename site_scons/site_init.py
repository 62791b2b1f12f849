"""Makes the `cuvil` of this folder importable; SCons runs this before SConstruct and keeps the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cuvil.scons  # noqa: F401  loaded before SCons gives the tool's file the package's name
