"""Cuvil: an ahead-of-time compiler from ONNX models and YAML board profiles to native libraries."""

from __future__ import annotations

from cuvil.errors import CuvilError

__version__ = "0.1.0"
__all__ = ["CuvilError", "Session", "compile"]


def __getattr__(name: str) -> object:
    """`compile` and `Session`, loaded on first use so that light commands start fast."""
    if name in ("Session", "compile"):
        from cuvil import session

        return getattr(session, name)
    raise AttributeError(f"module 'cuvil' has no attribute {name!r}")
