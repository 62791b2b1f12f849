"""Cuvil: an ahead-of-time compiler from ONNX models and YAML board profiles to native libraries."""

from __future__ import annotations

__version__ = "0.1.0"
