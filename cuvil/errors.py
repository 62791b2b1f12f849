"""The two kinds of failure Cuvil knows: what a user can fix, and everything else.

`CuvilError` is for the former.  Its text is one line that says what is wrong, where
(file, line, key path or node name), and what is allowed.  Every other exception that
reaches the command line is a bug in Cuvil and is reported as such.
"""

from __future__ import annotations


class CuvilError(Exception):
    """A problem in the user's model, profile, arguments or machine.

    Args:
        message: what is wrong and what is allowed, one sentence, no trailing full stop.
        where: the place, most specific last, e.g. ``"targets/a.yaml:12: devices.cpu0.cores"``
            or ``"node 'Conv_3' (Conv)"``.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class ModelError(CuvilError):
    """The ONNX model is malformed, inconsistent or beyond a documented limit."""


class UnsupportedError(ModelError):
    """The model is valid, but uses an operator, type or form that Cuvil has no lowering for."""


class TargetError(CuvilError):
    """The board profile is malformed or inconsistent."""


class ToolchainError(CuvilError):
    """A compiler, archiver or emulator is missing or failed."""
