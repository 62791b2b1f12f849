"""Identifiers of generated code: the only way from a model's text to a C file."""

from __future__ import annotations

import re

from cuvil.errors import CuvilError

KEYWORDS = frozenset(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
        "_Bool",
        "_Complex",
        "asm",
        "main",
        "infer",
        "malloc",
        "free",
    ]
)

MAX_LENGTH = 48


def identifier(text: str, prefix: str = "v") -> str:
    """A C identifier made of the letters, digits and underscores of `text`; not unique."""
    clean = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:MAX_LENGTH]
    if not clean or clean[0].isdigit() or clean in KEYWORDS:
        clean = f"{prefix}_{clean}" if clean else prefix
    return clean


class Namer:
    """Unique identifiers within one scope."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def unique(self, text: str, prefix: str = "v") -> str:
        """An identifier like `text` that this namer has not given out."""
        base = identifier(text, prefix)
        name, n = base, 1
        while name in self._used:
            n += 1
            name = f"{base}_{n}"
        self._used.add(name)
        return name


def model_name(text: str) -> str:
    """The name of a model as the prefix of its files and symbols.

    Raises:
        CuvilError: nothing of `text` can be used.
    """
    name = identifier(text, "model")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise CuvilError("is no usable model name: letters, digits and underscores are", repr(text[:60]))
    return name


def comment(text: str) -> str:
    """Text from a model made safe inside a C comment."""
    return re.sub(r"[^ -.0-~]", "?", text.replace("/", "|"))[:120]
