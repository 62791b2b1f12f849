"""Makes the repository root and this folder importable: `import zoo`, `import benchmarks`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
