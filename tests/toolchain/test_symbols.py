from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cuvil.errors import ToolchainError
from cuvil.toolchain import compilers, symbols
from cuvil.toolchain.compilers import Options
from cuvil.toolchain.machine import Machine

SOURCE = r"""
void *malloc(__SIZE_TYPE__);
extern int other(void);
extern int maybe(void) __attribute__((weak));
__attribute__((visibility("default"))) int table[100] = {1};
__attribute__((visibility("default"))) const unsigned char constants[1000] = {2};
__attribute__((visibility("default"))) int zeros[5000];
int hidden_function(void) { return 1; }
__attribute__((noinline)) static int local_function(int x) { return x + other(); }
__attribute__((visibility("default"))) void *take(int n) {
    return maybe && maybe() ? 0 : malloc(local_function(n) + hidden_function());
}
"""


@pytest.fixture(
    params=["x86_64-linux-gnu", "aarch64-linux-gnu", "arm-linux-gnueabihf", "powerpc-linux-gnueabihf"]
)
def machine(request: pytest.FixtureRequest) -> Machine:
    """64 and 32 bits, little and big endian."""
    return Machine(request.param, "baseline")


def compile_source(machine: Machine, folder: Path, name: str, text: str) -> Path:
    (folder / f"{name}.c").write_text(text)
    compilers.find("zig", machine).compile(folder / f"{name}.c", folder / f"{name}.o", Options("1"))
    return folder / f"{name}.o"


def test_object(machine: Machine, tmp_path: Path) -> None:
    path = compile_source(machine, tmp_path, "a", SOURCE)
    [image] = symbols.read(path)
    by_name = {s.name: s for s in image.symbols}
    assert image.name == "a.o" and image.arch == machine.arch
    assert {"table", "constants", "zeros", "hidden_function", "take"} <= symbols.defined(path)
    assert "local_function" not in symbols.defined(path)
    assert "local_function" in symbols.defined(path, local=True)
    assert {"malloc", "other"} <= symbols.undefined(path) and "maybe" not in symbols.undefined(path)
    assert "maybe" in symbols.undefined(path, weak=True)
    assert by_name["table"] == symbols.Symbol("table", True, "global", "object", "default", 400)
    assert by_name["hidden_function"][2:5] == ("global", "func", "hidden")
    assert by_name["maybe"][1:4] == (False, "weak", "none")
    size = symbols.sizes(path)
    assert 400 <= size.data <= 404 and size.bss == 20000
    assert 1000 <= size.rodata < 1500 and 40 < size.text < 400


def test_archive_as_a_whole(machine: Machine, tmp_path: Path) -> None:
    first = compile_source(machine, tmp_path, "a", SOURCE)
    second = compile_source(machine, tmp_path, "more_than_sixteen_letters", "int other(void) { return 4; }\n")
    compilers.find("zig", machine).archive([first, second], tmp_path / "liba.a")
    assert [i.name for i in symbols.read(tmp_path / "liba.a")] == ["a.o", "more_than_sixteen_letters.o"]
    assert "malloc" in symbols.undefined(tmp_path / "liba.a")
    assert "other" not in symbols.undefined(tmp_path / "liba.a")
    assert symbols.sizes(tmp_path / "liba.a").text == symbols.sizes(first).text + symbols.sizes(second).text


def test_bsd_archive(tmp_path: Path) -> None:
    path = compile_source(Machine("x86_64-linux-gnu", "baseline"), tmp_path, "a", SOURCE)
    contents, name = path.read_bytes(), b"bsd_name.o\0\0"
    size = len(name) + len(contents)
    header = f"{f'#1/{len(name)}':16}{0:<12}{0:<6}{0:<6}{644:<8}{size:<10}`\n".encode()
    (tmp_path / "bsd.a").write_bytes(b"!<arch>\n" + header + name + contents + b"\n" * (size % 2))
    [image] = symbols.read(tmp_path / "bsd.a")
    assert image.name == "bsd_name.o" and image.symbols == symbols.read(path)[0].symbols


def test_shared_library_agrees_with_nm(tmp_path: Path) -> None:
    compiler = compilers.find("auto", Machine())
    text = SOURCE.replace("extern int other(void);", "static int other(void) { return 5; }")
    path = compile_source(Machine(), tmp_path, "b", text)
    compiler.link_shared([path], tmp_path / "libb.so", "libb.so.1")
    assert symbols.defined(tmp_path / "libb.so") == {"table", "constants", "zeros", "take"}
    assert symbols.undefined(tmp_path / "libb.so") == {"malloc"}
    [image] = symbols.read(tmp_path / "libb.so")
    assert [n.split(".")[0] for n in image.needed] == ["libc"]
    if nm := shutil.which("nm"):
        listed = subprocess.run([nm, "-D", tmp_path / "libb.so"], capture_output=True, text=True, check=True)
        names = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
        assert names == {s.name for s in image.symbols}


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF", b"!<arch>\nrubbish", b"!<arch>\n" + b" " * 60])
def test_not_an_object(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.o").write_bytes(content)
    with pytest.raises(ToolchainError, match=r"x\.o: is no ELF object, archive, library or program"):
        symbols.read(tmp_path / "x.o")


def test_damaged_object(tmp_path: Path) -> None:
    """A truncated object, or one with a header byte set to 255, is read or refused, never anything else."""
    path = compile_source(Machine("x86_64-linux-gnu", "baseline"), tmp_path, "a", SOURCE)
    whole = path.read_bytes()
    refused = 0
    damaged = [whole[:n] for n in range(0, len(whole), 97)]
    places = (*range(64), *range(len(whole) - 512, len(whole), 3))
    damaged += [whole[:i] + b"\xff" + whole[i + 1 :] for i in places]
    for content in damaged:
        path.write_bytes(content)
        try:
            symbols.sizes(path)
        except ToolchainError:
            refused += 1
    assert refused > len(whole) // 97


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"none\.o: cannot be read: No such file or directory"):
        symbols.read(tmp_path / "none.o")
