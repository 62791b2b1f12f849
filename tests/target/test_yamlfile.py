from __future__ import annotations

import random
from pathlib import Path

import pytest

from cuvil.errors import TargetError
from cuvil.limits import MAX_YAML_BYTES, MAX_YAML_DEPTH
from cuvil.target import yamlfile


def read(text: str) -> yamlfile.Node:
    return yamlfile.read_bytes(text.encode(), "f.yaml")


def test_scalars() -> None:
    text = """
a: true
b: null
c:
d: -12
e: 1.5
f: 1e3
g: .5
h: "no"
i: '010'
j: 2024-01-01
k: 0000:4a:00.0
l: "1.43 GHz"
m: 0x
n: 0
o: yes sir
p: -4-7
"""
    expected = {
        "a": True,
        "b": None,
        "c": None,
        "d": -12,
        "e": 1.5,
        "f": 1000.0,
        "g": 0.5,
        "h": "no",
        "i": "010",
        "j": "2024-01-01",
        "k": "0000:4a:00.0",
        "l": "1.43 GHz",
        "m": "0x",
        "n": 0,
        "o": "yes sir",
        "p": "-4-7",
    }
    plain = read(text).plain()
    assert plain == expected
    assert [type(plain[key]) for key in "adf"] == [bool, int, float]


def test_source_map() -> None:
    node = read("# comment\na: 1\nb:\n  - x\n  - c: |\n      text\n      more\n    d:\n      2\n")
    assert node.plain() == {"a": 1, "b": ["x", {"c": "text\nmore\n", "d": 2}]}
    assert node.lines() == {
        (): 2,
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 4,
        ("b", 1): 5,
        ("b", 1, "c"): 5,
        ("b", 1, "d"): 8,
    }
    assert node.at("b", 1, "d").where == "f.yaml:8: b[1].d"
    assert node.at("b", 7, "missing").where == "f.yaml:3: b"


def test_windows_line_ends_and_byte_order_mark() -> None:
    assert yamlfile.read_bytes("\ufeffa: 1\r\nb: 2\r\n".encode(), "f").lines()["b",] == 2


def test_unquoted_keys_that_look_odd_are_quoted_in_the_key_path() -> None:
    assert read('"a b\\nc": {d: 1}').at("a b\nc", "d").where == "f.yaml:1: 'a b\\nc'.d"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f.yaml:1: the file is empty"),
        (b"a: 1\nb: \xff\xfe\n", "f.yaml:2: not valid UTF-8"),
        (b"a: 1\nb: x\0\n", "f.yaml:2: control character U+0000"),
        ("a: 1\nb: x\u2028c: 2\n".encode(), "f.yaml:2: control character U+2028"),
        ("a: 1\x85b: 2".encode("latin-1"), "f.yaml:1: not valid UTF-8"),
        (b"{" * 3000, "f.yaml:1: a key must be text, found a mapping or list"),
        (b"a: " * 3000, "f.yaml:1: not valid YAML: mapping values are not allowed here"),
        (b"%YAML " + b"9" * 5000 + b".1\n---\na: 1\n", "f.yaml:1: not valid YAML: "),
        (
            b"a" * (MAX_YAML_BYTES + 1),
            f"f.yaml: the file has {MAX_YAML_BYTES + 1} bytes, at most {MAX_YAML_BYTES}",
        ),
    ],
)
def test_bytes_that_are_no_yaml(data: bytes, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        yamlfile.read_bytes(data, "f.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("opening", ["[", "- ", "{a: "])
def test_depth(opening: str) -> None:
    with pytest.raises(TargetError, match=f"nested more than {MAX_YAML_DEPTH} deep$"):
        read("a:\n " + opening * 3000)
    inside = MAX_YAML_DEPTH - 1
    assert read("a: " + "[" * inside + "]" * inside).plain()["a"]


def test_file_errors(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot read project file: No such file"):
        yamlfile.read_file(tmp_path / "none.yaml", "project file")
    with pytest.raises(TargetError, match="cannot read profile: Is a directory"):
        yamlfile.read_file(tmp_path)
    (tmp_path / "big.yaml").write_bytes(b"a" * (MAX_YAML_BYTES + 1))
    with pytest.raises(TargetError, match="at most 1048576 are allowed"):
        yamlfile.read_file(tmp_path / "big.yaml")


def test_merged() -> None:
    base = read("a: {x: 1, y: 2}\nb: [1, 2]\nc: 3\n")
    over = yamlfile.read_bytes(b"\n\na: {y: 5, z: 6}\nb: [9]\nc: null\nd: null\n", "over.yaml")
    both = yamlfile.merged(base, over)
    assert both.plain() == {"a": {"x": 1, "y": 5, "z": 6}, "b": [9], "d": None}
    assert both.at("a", "x").where == "f.yaml:1: a.x"
    assert both.at("a", "y").where == "over.yaml:3: a.y"


def test_display_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert yamlfile.display_path(tmp_path / "targets" / "a.yaml") == "targets/a.yaml"
    assert yamlfile.display_path(tmp_path.parent / "a.yaml") == str(tmp_path.parent / "a.yaml")


def test_random_text_gives_a_value_or_a_target_error() -> None:
    pieces = [
        "a",
        "b: ",
        ":",
        "- ",
        "\n",
        "\n  ",
        "[",
        "]",
        "{",
        "}",
        ",",
        '"',
        "'",
        "|",
        ">-\n",
        "&a ",
        "*a",
        "!",
        "%",
        "?",
    ]
    pieces += [
        "---\n",
        "...\n",
        "#",
        "\\",
        '"\\U00110000"',
        "010",
        "1e3",
        "\r",
        "\x85",
        "@",
        "é",
        "9" * 30,
        "<<",
        "~",
        "no",
    ]
    rng = random.Random(5)
    accepted = 0
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 12)))
        try:
            accepted += isinstance(read(text).plain(), dict)
        except TargetError as error:
            assert "\n" not in str(error)
    assert accepted > 20
