"""``python -m cuvil``: the command line."""

from __future__ import annotations

import sys

from cuvil.cli import main

sys.exit(main())
