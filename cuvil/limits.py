"""Every cap on untrusted input, in one place, so that a reviewer can read them all.

A model or profile beyond a cap is refused with an error that names the cap.
"""

from __future__ import annotations

MAX_MODEL_BYTES = 1 << 31
"""Size of one ``.onnx`` file; protobuf itself cannot hold more."""

MAX_NODES = 100_000
"""Nodes of one model, subgraphs included."""

MAX_SUBGRAPH_DEPTH = 16
"""Nesting of If / Loop / Scan bodies."""

MAX_TENSOR_ELEMENTS = 1 << 40
"""Elements of any one tensor (a checked multiply; 2**40 floats are 4 TiB)."""

MAX_SYMBOL = 1 << 24
"""Largest symbolic size that generated code accepts; the compiler counts on it."""

DATA_SIZE = 1024
"""Memory is planned for that many entries of an axis whose size the data decide and nothing bounds; the
run ends with an error code where there are more."""

MAX_DATA_ELEMENTS = 1 << 26
"""Elements that a tensor whose size the data decide may have at most."""

MAX_ARENA_BYTES = 1 << 36
"""Activation memory of one device's program."""

STRING_BYTES = 64
"""Bytes of UTF-8 that one element of a string input may have."""

MAX_REGEX_STATES = 1 << 13
"""States of the automaton of a regular expression."""

MAX_FOLD_BYTES = 1 << 28
"""Bytes that constant folding may create for one tensor."""

MAX_RANK = 32
"""Dimensions of one tensor."""

MAX_YAML_BYTES = 1 << 20
"""Size of one board profile."""

MAX_YAML_DEPTH = 32
"""Nesting of mappings and sequences in a profile."""

MAX_STACK_SCRATCH_BYTES = 16 << 10
"""Local arrays of one generated function; more than this goes to the workspace."""

WORKSPACE_ALIGNMENT = 64
"""Alignment in bytes that generated code asks of its workspace."""
