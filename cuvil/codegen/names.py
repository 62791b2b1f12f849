"""Identifiers of generated code: the only way from a model's text to a C file."""

from __future__ import annotations

import hashlib
import re

from cuvil.errors import CuvilError

RESERVED = re.compile(
    # C, its GNU dialect, C++ (headers serve both)
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|"
    "register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|"
    "asm|typeof|linux|unix|i386|alignas|alignof|and|and_eq|bitand|bitor|bool|catch|class|compl|concept|constexpr|"
    "const_cast|co_\\w+|decltype|delete|dynamic_cast|explicit|export|false|friend|mutable|namespace|new|noexcept|not|"
    "not_eq|nullptr|operator|or|or_eq|private|protected|public|reinterpret_cast|requires|static_assert|static_cast|"
    "template|this|thread_local|throw|true|try|typeid|typename|using|virtual|xor|xor_eq|char\\d+_t|wchar_t|"
    # stddef.h, stdint.h and what generated code itself defines
    "size_t|ptrdiff_t|max_align_t|offsetof|NULL|u?int\\w*_t|(?:U?INT|SIZE|PTRDIFF|WCHAR|WINT|SIG)\\w*|"
    "(?:cv|CV|cuvil|CUVIL)_\\w*|main|infer|malloc|free|errno"
)
"""Names that a model cannot have in generated code."""

MAX_LENGTH = 48


def identifier(text: str, prefix: str = "v") -> str:
    """A C identifier made of the letters, digits and underscores of `text`; not unique."""
    clean = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:MAX_LENGTH]
    if not clean or clean[0].isdigit() or RESERVED.fullmatch(clean):
        clean = f"{prefix}_{clean}" if clean else prefix
    return clean


def size_symbol(name: str) -> str:
    """The C name of a symbolic size, another one for every name."""
    clean = identifier(name, "dim")
    return f"n_{clean}" if clean == name else f"n_{clean}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class Namer:
    """Unique identifiers within one scope, different also in capitals (macros are made of them)."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def unique(self, text: str, prefix: str = "v") -> str:
        """An identifier like `text` that this namer has not given out."""
        base = identifier(text, prefix)
        name, n = base, 1
        while name.lower() in self._used:
            n += 1
            name = f"{base}_{n}"
        self._used.add(name.lower())
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


def level_stem(stem: str, level: str) -> str:
    """The prefix of the files and symbols of a device's code for one of its instruction sets."""
    return f"{stem}_{identifier(level)}"


def comment(text: str) -> str:
    """Text from a model made safe inside a C comment."""
    return re.sub(r"[^ -.0-\[\]-~]", "?", text.replace("/", "|"))[:120]
