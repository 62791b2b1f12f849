"""Damaged, padded and oversized files (rows 2 and 7 of the list of faults)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from frontend_models import F32, one, save

from cuvil.errors import ModelError
from cuvil.frontend.importer import import_model
from cuvil.frontend.onnx_reader import read_model
from cuvil.frontend.wire import scan
from cuvil.limits import MAX_NODES, MAX_SUBGRAPH_DEPTH

GOOD = one("Relu", {"x": (F32, [2])}).SerializeToString()
DAMAGED = "the file is truncated, damaged or not an ONNX model"


def refusal(data: bytes) -> str:
    with pytest.raises(ModelError) as caught:
        scan(data, "m.onnx")
    return str(caught.value)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def test_good_file_counts_its_nodes() -> None:
    assert scan(GOOD, "m.onnx") == 1


def test_empty_file() -> None:
    assert refusal(b"") == "m.onnx: the file is empty, not an ONNX model"


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04 a zip file", b"#!/bin/sh\n", b"\x89PNG\r\n\x1a\n", b"\x00" * 64]
)
def test_not_protobuf(data: bytes) -> None:
    assert refusal(data) == f"m.onnx: {DAMAGED}"


@pytest.mark.parametrize("length", range(1, len(GOOD)))
def test_truncated_anywhere(length: int, tmp_path: Path) -> None:
    """No prefix of a model imports: those cut between two fields miss the graph or the opset."""
    path = tmp_path / "m.onnx"
    path.write_bytes(GOOD[:length])
    with pytest.raises(ModelError) as caught:
        import_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("junk", [b"\x00", b"\n\n\n", b"trailing", b"\xff" * 9])
def test_trailing_junk(junk: bytes) -> None:
    assert refusal(GOOD + junk) == f"m.onnx: {DAMAGED}"


def test_unknown_field_behind_the_model() -> None:
    assert refusal(GOOD + field(99, b"junk")) == f"m.onnx: {DAMAGED}"


def test_two_models_in_one_file() -> None:
    expected = "m.onnx: the file holds 2 graphs one after the other, not one ONNX model"
    assert refusal(GOOD + GOOD) == expected


def test_three_million_empty_nodes(tmp_path: Path) -> None:
    """6 MB, of which protobuf would make 500 MB of objects: refused before, with no more than the file's
    own size in memory."""
    path = tmp_path / "m.onnx"
    path.write_bytes(field(7, field(1, b"") * 3_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            import_model(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(caught.value) == f"{path}: the model has more than {MAX_NODES} nodes"
    assert peak < 2 * path.stat().st_size


def nested(depth: int) -> bytes:
    """An If around an If around ... `depth` deep; protobuf's own library builds no 40."""
    graph = field(1, field(4, b"Relu"))
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph)
        graph = field(1, field(4, b"If") + field(5, attribute))
    return field(7, graph)


def test_subgraphs_nested_forty_deep(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(nested(40))
    with pytest.raises(ModelError) as caught:
        import_model(path)
    assert str(caught.value) == f"{path}: subgraphs nest more than {MAX_SUBGRAPH_DEPTH} deep"


def test_deepest_allowed_nesting_is_counted() -> None:
    assert scan(nested(MAX_SUBGRAPH_DEPTH), "m.onnx") == MAX_SUBGRAPH_DEPTH + 1


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_model(tmp_path / "none.onnx")
    assert str(caught.value) == f"{tmp_path / 'none.onnx'}: cannot read the model: No such file or directory"


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_model(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot read the model: Is a directory"


def test_saved_model_reads(tmp_path: Path) -> None:
    graph = read_model(save(tmp_path, one("Relu", {"x": (F32, [2])})))
    assert [node.op for node in graph.nodes] == ["Relu"]
