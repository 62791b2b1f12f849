"""Element types, shapes and tensor values: ONNX protobuf on one side, names and numpy on the other."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cuvil.errors import ModelError, UnsupportedError
from cuvil.ir.graph import Dim, TensorType
from cuvil.limits import MAX_FOLD_BYTES, MAX_MODEL_BYTES, MAX_RANK, MAX_TENSOR_ELEMENTS

STRING = "string"

_NAME_OF = {
    code: STRING if code == TensorProto.STRING else str(np.dtype(helper.tensor_dtype_to_np_dtype(code)).name)
    for code in TensorProto.DataType.values()
    if code != TensorProto.UNDEFINED
}
_CODE_OF = {name: code for code, name in _NAME_OF.items()}

_PACKED_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
"""Element types that ONNX packs several to a byte, lowest bits first."""

_NARROW = frozenset(("bool", "int8", "uint8", "int16", "uint16", "uint32", *_PACKED_BITS))
"""Types whose values protobuf holds in a wider integer field, so that they may not fit."""


def dtype_name(code: int, where: str = "") -> str:
    """The name of an ONNX element type (``TensorProto.FLOAT`` -> ``"float32"``).

    Raises:
        UnsupportedError: `code` is undefined or unknown to the installed onnx.
    """
    if code not in _NAME_OF:
        raise UnsupportedError(f"unknown element type {code}", where)
    return _NAME_OF[code]


def dtype_code(name: str) -> int:
    """The ONNX element type of a name (``"float32"`` -> ``TensorProto.FLOAT``)."""
    return int(_CODE_OF[name])


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy type of an element type name; object for strings."""
    if name == STRING:
        return np.dtype(object)
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def type_of(array: np.ndarray) -> TensorType:
    """The type of a constant."""
    name = STRING if array.dtype == object else array.dtype.name
    return TensorType(name, tuple(int(d) for d in array.shape))


def checked_elements(dims: Sequence[int], where: str) -> int:
    """The product of `dims`.

    Raises:
        ModelError: a dimension is negative, there are more than `MAX_RANK` of them, or the
            product exceeds `MAX_TENSOR_ELEMENTS`.
    """
    if len(dims) > MAX_RANK:
        raise ModelError(f"{len(dims)} dimensions, at most {MAX_RANK} are allowed", where)
    negative = [d for d in dims if d < 0]
    if negative:
        raise ModelError(f"dimension {negative[0]} is negative", where)
    count = math.prod(dims)
    if count > MAX_TENSOR_ELEMENTS:
        raise ModelError(f"shape {list(dims)} has more than {MAX_TENSOR_ELEMENTS} elements", where)
    return count


def type_from_proto(proto: onnx.TypeProto, where: str) -> TensorType | None:
    """The type a model declares, or None where it declares none.

    A dimension without size or name becomes the empty string; a negative size is kept, so that
    the caller can ask for a binding.  An optional becomes ``optional(float32)`` with the shape of what
    it holds, a sequence ``seq(float32)`` without a shape: items may differ, whatever a model declares.

    Raises:
        UnsupportedError: a map, a sparse tensor or an opaque type.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind == "tensor_type":
        tensor = proto.tensor_type
        if tensor.elem_type == TensorProto.UNDEFINED:
            return None
        dtype = dtype_name(tensor.elem_type, where)
        return TensorType(dtype, _dims(tensor.shape) if tensor.HasField("shape") else None)
    if kind in ("sequence_type", "optional_type"):
        inner = type_from_proto(getattr(proto, kind).elem_type, where)
        if inner is None:
            return None
        if kind == "sequence_type":
            return TensorType(f"seq({inner.dtype})", None)
        return TensorType(f"optional({inner.dtype})", inner.shape)
    hint = "; of a classifier, export the scores without ZipMap" if kind == "map_type" else ""
    raise UnsupportedError(f"values of kind {kind} are not supported, only tensors{hint}", where)


def type_to_proto(value: TensorType) -> onnx.TypeProto:
    """The inverse of `type_from_proto`; an empty dimension name is written as unknown."""
    dtype = value.dtype
    for prefix, make in (
        ("seq(", helper.make_sequence_type_proto),
        ("optional(", helper.make_optional_type_proto),
    ):
        if dtype.startswith(prefix):
            return make(type_to_proto(TensorType(dtype[len(prefix) : -1], value.shape)))
    shape = None if value.shape is None else [d if d != "" else None for d in value.shape]
    return helper.make_tensor_type_proto(dtype_code(dtype), shape)


def _dims(shape: onnx.TensorShapeProto) -> tuple[Dim, ...]:
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in shape.dim)


def decode(tensor: TensorProto, folder: Path | None, where: str) -> np.ndarray:
    """The value of `tensor` as numpy.

    Args:
        tensor: an initializer or the value of an attribute.
        folder: the model's folder, in which external data lies; None refuses external data.
        where: names the tensor in errors.

    Raises:
        ModelError: the dimensions and the data do not fit each other, a value does not fit the
            element type, or external data breaks a rule of `_external_bytes`.
    """
    dtype = dtype_name(tensor.data_type, where)
    count = checked_elements(tensor.dims, where)
    if tensor.HasField("segment"):
        raise UnsupportedError("tensors in segments are not supported", where)
    size = byte_size(dtype, count)
    if tensor.data_location == TensorProto.EXTERNAL:
        if dtype == STRING:
            raise ModelError("strings cannot lie in external data", where)
        plain = TensorProto(dims=tensor.dims, data_type=tensor.data_type)
        plain.raw_data = _external_bytes(tensor, folder, size, where)
        tensor = plain
    elif tensor.HasField("raw_data"):
        if dtype == STRING or len(tensor.raw_data) != size:
            raise ModelError(
                f"{len(tensor.raw_data)} bytes of data do not fit {dtype} {list(tensor.dims)}", where
            )
    else:
        _check_typed_data(tensor, dtype, count, where)
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except UnicodeDecodeError:
        raise ModelError("a string is not UTF-8", where) from None


def byte_size(dtype: str, count: int) -> int:
    """Bytes of `count` elements as ONNX stores them (small types packed)."""
    if dtype in _PACKED_BITS:
        return -(-count * _PACKED_BITS[dtype] // 8)
    return count * numpy_dtype(dtype).itemsize


def _check_typed_data(tensor: TensorProto, dtype: str, count: int, where: str) -> None:
    """Check the number of values of a tensor without raw data, and that integers fit its type."""
    field = helper.tensor_dtype_to_field(tensor.data_type)
    data = getattr(tensor, field)
    expected = count
    if dtype in _PACKED_BITS:
        expected = -(-count * _PACKED_BITS[dtype] // 8)
    elif dtype.startswith("complex"):
        expected = 2 * count
    if len(data) != expected:
        raise ModelError(f"{len(data)} values do not fit {dtype} {list(tensor.dims)}", where)
    if data and dtype in _NARROW:
        low, high = (0, 1) if dtype == "bool" else (0, 255) if dtype in _PACKED_BITS else _range(dtype)
        for extreme in (min(data), max(data)):
            if not low <= extreme <= high:
                raise ModelError(f"value {extreme} is outside {dtype} ({low} to {high})", where)


def _range(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def decode_sparse(sparse: onnx.SparseTensorProto, folder: Path | None, where: str) -> np.ndarray:
    """The dense value of a sparse tensor.

    Raises:
        ModelError: the indices do not fit, or the dense tensor exceeds `MAX_FOLD_BYTES`.
    """
    values = decode(sparse.values, folder, where)
    indices = decode(sparse.indices, folder, where)
    count = checked_elements(sparse.dims, where)
    shape = tuple(sparse.dims)
    if byte_size(type_of(values).dtype, count) > MAX_FOLD_BYTES:
        raise ModelError(f"a dense tensor {list(shape)} exceeds {MAX_FOLD_BYTES} bytes", where)
    if (
        values.ndim != 1
        or indices.dtype != np.int64
        or indices.shape not in ((len(values),), (len(values), len(shape)))
    ):
        raise ModelError("the indices of the sparse tensor do not fit its values", where)
    limit = np.array(shape if indices.ndim == 2 else [count], np.int64)
    if ((indices < 0) | (indices >= limit)).any():
        raise ModelError("an index of the sparse tensor is out of range", where)
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _external_bytes(tensor: TensorProto, folder: Path | None, size: int, where: str) -> bytes:
    """The `size` bytes that `tensor` keeps in a file of the model's folder.

    Raises:
        ModelError: the location is absolute, leaves the folder (by ``..`` or a symbolic link) or
            is no regular file; offset and length are not numbers inside the file; the length is
            not the one that the dimensions ask for.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not all(isinstance(text, str) for pair in entries.items() for text in pair):
        raise ModelError("the place of the external data is not UTF-8", where)
    location = entries.get("location", "")
    if folder is None:
        raise ModelError("external data without a model folder", where)
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or location[0] in "/\\" or ":" in parts[0] or ".." in parts:
        raise ModelError(
            f"external data location {location[:80]!r} must be a relative path inside the model's folder",
            where,
        )
    root = folder.resolve()
    path = (root / location).resolve()
    if not path.is_relative_to(root):
        raise ModelError(
            f"external data location {location!r} leaves the model's folder through a link", where
        )
    offset = _count(entries.get("offset", "0"), "offset", where)
    length = _count(entries["length"], "length", where) if "length" in entries else None
    if size > MAX_MODEL_BYTES:
        raise ModelError(f"{size} bytes of external data, at most {MAX_MODEL_BYTES} are allowed", where)
    try:
        file = open(path, "rb", opener=_open_safely)  # noqa: SIM115  closed below
    except OSError as error:
        raise ModelError(f"cannot read external data {location!r}: {error.strerror}", where) from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"external data {location!r} is not a regular file", where)
        length = status.st_size - offset if length is None else length
        if offset + max(length, 0) > status.st_size or length < 0:
            raise ModelError(
                f"external data at offset {offset}, length {max(length, 0)} lies outside {location!r} "
                f"({status.st_size} bytes)",
                where,
            )
        if length != size:
            raise ModelError(f"external data has {length} bytes, {list(tensor.dims)} needs {size}", where)
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise ModelError(f"external data {location!r} changed while it was read", where)
    return data


def _open_safely(path: str, flags: int) -> int:
    """Open without following a link that took the file's place, and without waiting for a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _count(text: str, what: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ModelError(f"external data {what} {text[:40]!r} is not a byte count", where)
    return int(text)
