"""Symbols, section sizes and needed libraries of ELF objects, archives, shared libraries and programs.

A reader of the few ELF tables that size reports and checks ("no malloc") want, so that they need no binutils.
Layouts: System V ABI, chapters 4 and 5 (ELF), and the GNU and BSD archive formats (ar.h).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cuvil.errors import ToolchainError

StrPath = str | os.PathLike[str]
Category = Literal["text", "rodata", "data", "bss", "other"]

_MACHINES = {
    3: "x86",
    20: "powerpc",
    21: "powerpc64",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv",
    258: "loongarch",
}
_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_NOBITS, _SHT_DYNSYM = 2, 6, 8, 11
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR = 1, 2, 4
_ET_DYN, _DT_NEEDED = 3, 1
_SHN_UNDEF, _SHN_XINDEX = 0, 0xFFFF
_BINDINGS = {0: "local", 1: "global", 2: "weak"}
_KINDS = {0: "none", 1: "object", 2: "func", 3: "section", 4: "file", 5: "common", 6: "tls", 10: "ifunc"}
_VISIBILITIES = ("default", "internal", "hidden", "protected")


class Section(NamedTuple):
    """A section and its `size` in bytes; `category` is where it lands in memory, ``other`` where nowhere."""

    name: str
    size: int
    category: Category


class Symbol(NamedTuple):
    """A named symbol; `size` in bytes, 0 where the file says none."""

    name: str
    defined: bool
    binding: str
    kind: str
    visibility: str
    size: int


@dataclass(frozen=True)
class Image:
    """One ELF file, or one member of an archive.

    Of a shared library the symbols are those that the loader sees, of other files all that were not stripped.
    """

    name: str
    arch: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    needed: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """Bytes of code, constants, initialised and zeroed variables."""

    text: int
    rodata: int
    data: int
    bss: int


def read(path: StrPath) -> tuple[Image, ...]:
    """The ELF images in `path`: one, or one for every object in an archive.

    Raises:
        ToolchainError: the file cannot be read, or is neither ELF nor an archive of ELF objects.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:8] == b"!<arch>\n":
                return tuple(_read_elf(data, start, name) for name, start in _members(data))
            return (_read_elf(data, 0, os.path.basename(path)),)
    except OSError as error:
        raise ToolchainError(f"cannot be read: {error.strerror}", str(path)) from error
    except (ValueError, IndexError, struct.error) as error:
        raise ToolchainError("is no ELF object, archive, library or program", str(path)) from error


def defined(path: StrPath, *, local: bool = False) -> frozenset[str]:
    """Names that the file defines for others, and with `local` also those for itself alone."""
    return frozenset(
        s.name
        for image in read(path)
        for s in image.symbols
        if s.defined and s.kind not in ("section", "file") and (local or s.binding != "local")
    )


def undefined(path: StrPath, *, weak: bool = False) -> frozenset[str]:
    """Names that the file, or an archive as a whole, expects of others; weak references only with `weak`."""
    wanted = {
        s.name
        for image in read(path)
        for s in image.symbols
        if not s.defined and (weak or s.binding != "weak")
    }
    return frozenset(wanted - defined(path) - {"_GLOBAL_OFFSET_TABLE_"})  # the linker itself defines that one


def sizes(path: StrPath) -> Sizes:
    """Bytes that the file takes in memory by category, an archive as if all its members were linked."""
    totals: dict[Category, int] = {"text": 0, "rodata": 0, "data": 0, "bss": 0, "other": 0}
    for image in read(path):
        for section in image.sections:
            totals[section.category] += section.size
    return Sizes(totals["text"], totals["rodata"], totals["data"], totals["bss"])


def _members(data: mmap.mmap) -> Iterator[tuple[str, int]]:
    """Name and offset of every object in an archive."""
    position, long_names = 8, b""
    while position < len(data):
        header = data[position : position + 60]
        if header[58:60] != b"`\n":
            raise ValueError("member header")
        name, size = header[:16].rstrip(), int(header[48:58])
        start = position + 60
        if start + size > len(data):
            raise ValueError("member size")
        position = start + size + size % 2
        if name == b"//":
            long_names = data[start : start + size]
        elif name.startswith(b"#1/"):  # BSD: the name precedes the contents
            length = int(name[3:])
            name = data[start : start + length].rstrip(b"\0")
            if not name.startswith(b"__.SYMDEF"):
                yield name.decode(errors="replace"), start + length
        elif name not in (b"/", b"/SYM64/"):
            if name.startswith(b"/"):
                name = long_names[int(name[1:]) :].split(b"\n")[0]
            yield name.rstrip(b"/").decode(errors="replace"), start


def _read_elf(data: mmap.mmap, base: int, name: str) -> Image:
    """Decode the ELF file that starts at offset `base`."""
    if data[base : base + 4] != b"\x7fELF" or data[base + 4] not in (1, 2) or data[base + 5] not in (1, 2):
        raise ValueError("magic")
    wide = data[base + 4] == 2
    order = "<" if data[base + 5] == 1 else ">"

    def table(offset: int, size: int, layout: str) -> Iterator[tuple[int, ...]]:
        if offset < 0 or base + offset + size > len(data):
            raise ValueError("table")
        return struct.iter_unpack(order + layout, data[base + offset : base + offset + size])

    def text(strings: bytes, offset: int) -> str:
        return strings[offset : strings.index(b"\0", offset)].decode(errors="replace")

    (file_type, machine, _, _, _, table_offset, _, _, _, _, _, count, names_index) = struct.unpack_from(
        order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), data, base + 16
    )  # Ehdr after e_ident
    # Shdr: name type flags addr offset size link info addralign entsize
    layout = "IIQQQQIIQQ" if wide else "10I"
    width = struct.calcsize(order + layout)
    if table_offset and (count == 0 or names_index == _SHN_XINDEX):  # too many for 16 bits: kept in section 0
        first = next(table(table_offset, width, layout))
        count, names_index = count or first[5], first[6] if names_index == _SHN_XINDEX else names_index
    headers = list(table(table_offset, count * width, layout)) if table_offset else []

    def content(index: int) -> bytes:
        _, kind, _, _, offset, size, *_ = headers[index]
        if kind == _SHT_NOBITS or base + offset + size > len(data):
            raise ValueError("section")
        return data[base + offset : base + offset + size]

    names = content(names_index) if headers else b""
    sections = []
    for at, kind, flags, _, _, size, *_ in headers[1:]:
        sections.append(Section(text(names, at), size, _category(text(names, at), kind, flags)))
    symbols: list[Symbol] = []
    needed: list[str] = []
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind == (_SHT_DYNSYM if file_type == _ET_DYN else _SHT_SYMTAB):
            strings = content(link)
            for fields in table(offset, size, "IBBHQQ" if wide else "IIIBBH"):
                if wide:
                    at, info, other, index, _, length = fields
                else:
                    at, _, length, info, other, index = fields
                if at:
                    symbols.append(
                        Symbol(
                            text(strings, at),
                            index != _SHN_UNDEF,
                            _BINDINGS.get(info >> 4, "other"),
                            _KINDS.get(info & 15, "other"),
                            _VISIBILITIES[other & 3],
                            length,
                        )
                    )
        elif kind == _SHT_DYNAMIC:
            entries = table(offset, size, "QQ" if wide else "II")
            needed += [text(content(link), value) for tag, value in entries if tag == _DT_NEEDED]
    arch = _MACHINES.get(machine, f"machine {machine}")
    arch += ("64" if wide else "32") if arch in ("riscv", "loongarch") else ""
    return Image(name, arch, tuple(sections), tuple(symbols), tuple(needed))


def _category(name: str, kind: int, flags: int) -> Category:
    """Where a section lands; `.relro_padding` is address space that lld reserves, not memory."""
    if not flags & _SHF_ALLOC or name == ".relro_padding":
        return "other"
    if flags & _SHF_EXECINSTR:
        return "text"
    if not flags & _SHF_WRITE:
        return "rodata"
    return "bss" if kind == _SHT_NOBITS else "data"
