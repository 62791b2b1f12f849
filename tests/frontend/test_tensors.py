"""Tensor values, external data (row 1) and values that do not fit their type (row 5)."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from frontend_models import F32, model, one, save
from onnx import TensorProto, helper, numpy_helper

from cuvil.errors import ModelError, UnsupportedError
from cuvil.frontend.onnx_reader import read_model
from cuvil.frontend.tensors import (
    byte_size,
    decode,
    decode_sparse,
    dtype_code,
    dtype_name,
    numpy_dtype,
    type_from_proto,
    type_of,
    type_to_proto,
)
from cuvil.ir.graph import TensorType

WHERE = "initializer 'w'"


def refusal(tensor: TensorProto, folder: Path | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        decode(tensor, folder, WHERE)
    return str(caught.value).removeprefix(f"{WHERE}: ")


# External data


def external(location: str, dims: tuple[int, ...] = (2, 2), **entries: object) -> TensorProto:
    tensor = TensorProto(name="w", dims=dims, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, item in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(item))
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with 8 floats in w.bin, and a secret beside it."""
    home = tmp_path / "model"
    (home / "sub").mkdir(parents=True)
    np.arange(8, dtype=np.float32).tofile(home / "w.bin")
    (tmp_path / "secret").write_bytes(b"\x01" * 16)
    os.symlink(tmp_path / "secret", home / "link")
    os.symlink(home / "w.bin", home / "inner_link")
    os.symlink(tmp_path, home / "sub" / "up")
    return home


def test_external_data_is_read(folder: Path) -> None:
    assert decode(external("w.bin", offset=16, length=16), folder, WHERE).tolist() == [[4, 5], [6, 7]]
    assert decode(external("w.bin", offset=16), folder, WHERE).tolist() == [[4, 5], [6, 7]]
    assert decode(external("w.bin", length=16), folder, WHERE).tolist() == [[0, 1], [2, 3]]
    assert decode(external("./w.bin", length=16), folder, WHERE).shape == (2, 2)


def test_link_inside_the_folder_is_followed(folder: Path) -> None:
    assert decode(external("inner_link", length=16), folder, WHERE).shape == (2, 2)


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "sub/../../secret",
        "/etc/passwd",
        "\\etc\\passwd",
        "sub\\..\\..\\secret",
        "C:\\x",
        "",
        "a\0b",
    ],
)
def test_location_outside_the_folder(location: str, folder: Path) -> None:
    expected = f"external data location {location!r} must be a relative path inside the model's folder"
    assert refusal(external(location), folder) == expected


@pytest.mark.parametrize("location", ["link", "sub/up/secret", "./sub/up/model/sub/up/secret"])
def test_location_through_a_link(location: str, folder: Path) -> None:
    expected = f"external data location {location!r} leaves the model's folder through a link"
    assert refusal(external(location), folder) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"offset": 32}, "external data has 0 bytes, [2, 2] needs 16"),
        ({"offset": 33}, "external data at offset 33, length 0 lies outside 'w.bin' (32 bytes)"),
        (
            {"offset": 24, "length": 16},
            "external data at offset 24, length 16 lies outside 'w.bin' (32 bytes)",
        ),
        ({"offset": -1}, "external data offset '-1' is not a byte count"),
        ({"offset": "1e3"}, "external data offset '1e3' is not a byte count"),
        ({"length": -16}, "external data length '-16' is not a byte count"),
        ({"length": 1 << 50}, f"external data at offset 0, length {1 << 50} lies outside 'w.bin' (32 bytes)"),
        ({"length": 10**30}, f"external data length '{10**30}' is not a byte count"),
        ({"length": 12}, "external data has 12 bytes, [2, 2] needs 16"),
        ({}, "external data has 32 bytes, [2, 2] needs 16"),
    ],
)
def test_place_in_the_file(entries: dict[str, object], expected: str, folder: Path) -> None:
    assert refusal(external("w.bin", **entries), folder) == expected


def test_file_shorter_than_the_dims(folder: Path) -> None:
    assert refusal(external("w.bin", (3, 3)), folder) == "external data has 32 bytes, [3, 3] needs 36"


def test_external_file_is_missing_or_a_folder(folder: Path) -> None:
    assert refusal(external("none"), folder) == "cannot read external data 'none': No such file or directory"
    assert refusal(external("sub"), folder) == "cannot read external data 'sub': Is a directory"


def test_external_data_in_a_pipe_does_not_wait(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert refusal(external("pipe"), folder) == "external data 'pipe' is not a regular file"


def test_external_data_without_a_folder() -> None:
    assert refusal(external("w.bin")) == "external data without a model folder"


@pytest.mark.parametrize(
    ("location", "entries", "problem"),
    [
        ("../secret", {}, "location '../secret' must be"),
        ("sub/../../secret", {}, "location 'sub/../../secret' must be"),
        ("link", {}, "location 'link' leaves"),
        ("w.bin", {"offset": 40}, "at offset 40"),
        ("w.bin", {"offset": -4}, "offset '-4' is not"),
        ("w.bin", {"length": 1 << 50}, "at offset 0, length 1125899906842624"),
        ("w.bin", {"offset": 24}, "has 8 bytes"),
    ],
)
def test_error_of_a_model_names_the_tensor(
    location: str, entries: dict[str, object], problem: str, folder: Path
) -> None:
    """As initializer, and as value of a Constant node in a branch."""
    tensor = external(location, **entries)
    proto = one("Add", {"x": (F32, [2, 2])}, order=["x", "w"])
    proto.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match=f"^initializer 'w': external data {problem}"):
        read_model(save(folder, proto))
    hidden = helper.make_node("Constant", [], ["k"], name="c", value=tensor)
    branch = helper.make_graph([hidden], "g", [], [onnx.ValueInfoProto(name="k")])
    choice = helper.make_node("If", ["b"], ["y"], then_branch=branch, else_branch=branch)
    proto = model([choice], {"b": ("bool", [])}, ["y"])
    with pytest.raises(ModelError, match=rf"^node 'c' \(Constant\)[^:]*: external data {problem}"):
        read_model(save(folder, proto))


def test_weights_split_over_files_load(folder: Path) -> None:
    """Public report: weights split over files do not link (onnx2c#78)."""
    np.full(4, 9, np.float32).tofile(folder / "v.bin")
    nodes = [helper.make_node("Add", ["x", "w"], ["t"]), helper.make_node("Mul", ["t", "v"], ["y"])]
    proto = model(nodes, {"x": (F32, [2, 2])}, ["y"])
    second = external("v.bin")
    second.name = "v"
    proto.graph.initializer.extend([external("w.bin", offset=0, length=16), second])
    constants = read_model(save(folder, proto)).constants
    assert constants["w"].sum() == 6 and constants["v"].sum() == 36


# Values and shapes


def test_dims_that_overflow() -> None:
    tensor = TensorProto(name="w", dims=[1 << 62, 4], data_type=1)
    assert refusal(tensor) == f"shape [{1 << 62}, 4] has more than {1 << 40} elements"


def test_negative_and_too_many_dims() -> None:
    assert refusal(TensorProto(dims=[-1], data_type=1)) == "dimension -1 is negative"
    assert refusal(TensorProto(dims=[1] * 33, data_type=1)) == "33 dimensions, at most 32 are allowed"


def test_data_that_does_not_fit_the_dims() -> None:
    raw = TensorProto(dims=[3], data_type=TensorProto.FLOAT, raw_data=b"\0" * 8)
    assert refusal(raw) == "8 bytes of data do not fit float32 [3]"
    typed = TensorProto(dims=[3], data_type=TensorProto.INT64, int64_data=[1, 2])
    assert refusal(typed) == "2 values do not fit int64 [3]"


@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [
        (TensorProto.INT8, 300, "value 300 is outside int8 (-128 to 127)"),
        (TensorProto.UINT8, -1, "value -1 is outside uint8 (0 to 255)"),
        (TensorProto.BOOL, 2, "value 2 is outside bool (0 to 1)"),
        (TensorProto.INT16, 40000, "value 40000 is outside int16 (-32768 to 32767)"),
    ],
)
def test_values_outside_their_type(code: int, number: int, expected: str) -> None:
    assert refusal(TensorProto(dims=[2], data_type=code, int32_data=[0, number])) == expected


def test_value_outside_uint32() -> None:
    tensor = TensorProto(dims=[1], data_type=TensorProto.UINT32, uint64_data=[1 << 32])
    assert refusal(tensor) == f"value {1 << 32} is outside uint32 (0 to {(1 << 32) - 1})"


def test_string_that_is_not_utf8() -> None:
    assert refusal(helper.make_tensor("w", TensorProto.STRING, [1], [b"\xff"])) == "a string is not UTF-8"


def test_unknown_element_type() -> None:
    with pytest.raises(UnsupportedError) as caught:
        decode(TensorProto(dims=[], data_type=77), None, WHERE)
    assert str(caught.value) == f"{WHERE}: unknown element type 77"


@pytest.mark.parametrize(
    "name",
    ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int64", "bool", "uint4", "int4",
     "float8_e4m3fn", "complex64"],
)  # fmt: skip
def test_types_by_name_both_ways(name: str) -> None:
    assert dtype_name(dtype_code(name)) == name
    array = np.array([0, 1, 1], numpy_dtype(name))
    back = decode(numpy_helper.from_array(array), None, "t")
    assert back.dtype == array.dtype and back.tolist() == array.tolist()
    assert type_of(array) == TensorType(name, (3,))


def test_small_types_are_packed() -> None:
    assert byte_size("int4", 3) == 2
    assert byte_size("float32", 3) == 12
    array = np.array([-8, 7, -1], ml_dtypes.int4)
    assert decode(numpy_helper.from_array(array), None, "t").astype(int).tolist() == [-8, 7, -1]


def sparse(values: list[float], indices: np.ndarray, dims: list[int]) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array(values, np.float32)), numpy_helper.from_array(indices), dims
    )


def test_sparse_tensors_become_dense() -> None:
    expected = [[0, 5, 0], [0, 0, 6]]
    assert decode_sparse(sparse([5, 6], np.array([1, 5]), [2, 3]), None, "t").tolist() == expected
    assert decode_sparse(sparse([5, 6], np.array([[0, 1], [1, 2]]), [2, 3]), None, "t").tolist() == expected


@pytest.mark.parametrize(
    ("indices", "dims", "expected"),
    [
        (np.array([6]), [2, 3], "an index of the sparse tensor is out of range"),
        (np.array([-1]), [2, 3], "an index of the sparse tensor is out of range"),
        (np.array([0, 1]), [2, 3], "the indices of the sparse tensor do not fit its values"),
        (np.array([0]), [1 << 20, 1 << 19], f"a dense tensor [{1 << 20}, {1 << 19}] exceeds {1 << 28} bytes"),
    ],
)
def test_faulty_sparse_tensors(indices: np.ndarray, dims: list[int], expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        decode_sparse(sparse([1], indices, dims), None, "t")
    assert str(caught.value) == f"t: {expected}"


@pytest.mark.parametrize(
    "known",
    [TensorType("float32", (1, "N")), TensorType("uint4", None), TensorType("seq(float32)", None),
     TensorType("optional(seq(int64))", None), TensorType("string", ())],
)  # fmt: skip
def test_declared_types_both_ways(known: TensorType) -> None:
    assert type_from_proto(type_to_proto(known), "v") == known


def test_maps_are_not_supported() -> None:
    proto = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, [1]))
    with pytest.raises(UnsupportedError) as caught:
        type_from_proto(proto, "value 'v'")
    hint = "of a classifier, export the scores without ZipMap"
    assert str(caught.value) == f"value 'v': values of kind map_type are not supported, only tensors; {hint}"
