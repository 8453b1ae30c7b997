"""Values to tensors and back, in the data types the server declares. Knows Triton's encoding, no parameter and no transport."""

from __future__ import annotations

import reprlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.errors import InvalidRequest, ServerError
from trtbuild_client.wire import Tensor, TensorSpec

#: Triton's names of fixed-size types -> little-endian numpy types.
DTYPES: dict[str, str] = {
    "BOOL": "?",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}

_LENGTH = struct.Struct("<I")


def encode(name: str, value: Any, spec: TensorSpec, *, is_batched: bool) -> Tensor:
    """Return the value as the tensor the server wants.

    Args:
        name: name of the input, for messages too.
        value: scalar, nested list or array. Without a batch dimension, one of size 1 is added where the model has one.
        spec: data type and dims as declared by the server.
        is_batched: whether tensors of this model carry a batch dimension.

    Raises:
        InvalidRequest: the value does not fit the data type or the shape; nothing is ever wrapped, cut or rounded.
    """
    array = _text_array(name, value) if spec.dtype == "BYTES" else _number_array(name, value, spec.dtype)
    if array.ndim == 0:
        array = array.reshape((1,) * len(spec.dims))
    if is_batched and array.ndim == len(spec.dims):
        array = array[np.newaxis]
    dims = (1, *spec.dims) if is_batched else spec.dims
    if array.ndim != len(dims) or any(want not in (-1, have) for want, have in zip(dims, array.shape, strict=True)):
        raise InvalidRequest(
            f"input '{name}' has shape {list(array.shape)}", hint=f"The server wants {list(dims)} (-1: any size)."
        )
    if spec.dtype == "BYTES":
        data = b"".join(_LENGTH.pack(len(element)) + element for element in array.ravel().tolist())
    else:
        data = np.ascontiguousarray(array).tobytes()
    return Tensor(name=name, dtype=spec.dtype, shape=array.shape, data=data)


def decode(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> NDArray[np.generic]:
    """Return a tensor of a response as an array; BYTES as an array of `bytes` objects.

    Raises:
        ServerError: data and shape disagree, or the data type is not known.
    """
    try:
        if dtype != "BYTES":
            return np.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape)
        elements: list[bytes] = []
        offset = 0
        while offset < len(data):
            (length,) = _LENGTH.unpack_from(data, offset)
            offset += _LENGTH.size + length
            elements.append(data[offset - length : offset])
        if offset > len(data):
            raise ValueError("the last element is cut off")
        return object_array(elements).reshape(shape)
    except (KeyError, ValueError, struct.error) as error:
        raise ServerError(
            f"output '{name}' ({dtype} {list(shape)}, {len(data)} bytes) cannot be read: {error}",
            hint=f"Known data types: BYTES, {', '.join(DTYPES)}.",
        ) from error


def numbers(name: str, dtype: str, values: list[Any]) -> NDArray[np.generic]:
    """Return numbers of a response that came as values (JSON, typed fields), one after another; nothing is wrapped or cut.

    Raises:
        ServerError: one has another type, or does not fit.
    """
    target = np.dtype(DTYPES[dtype])
    low, high = _limits(target)
    if all(
        type(each) in _TYPES[target.kind] and (low <= each <= high or each in _ENDLESS or each != each)
        for each in values
    ):
        return np.asarray(values, dtype=target)
    raise ServerError(f"output '{name}'={reprlib.repr(values)} is no {dtype}", hint=f"{dtype}: {_range(target)}.")


def _limits(target: np.dtype[Any]) -> tuple[float, float]:
    """Return the least and the greatest finite value of a data type."""
    if target.kind == "b":
        return 0, 1
    if target.kind == "f":
        return float(np.finfo(target).min), float(np.finfo(target).max)
    return int(np.iinfo(target).min), int(np.iinfo(target).max)


_ENDLESS = (float("inf"), float("-inf"))
#: numpy kind of a tensor of a response -> types of the values taken for it.
_TYPES: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}


def object_array(elements: list[Any]) -> NDArray[np.generic]:
    """Return a one-dimensional array of the very objects given."""
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def _text_array(name: str, value: Any) -> NDArray[np.generic]:
    """Return the texts as UTF-8; what the command line could not decode (LC_ALL=C) becomes the original bytes again."""
    texts = np.asarray(value, dtype=np.object_)
    try:
        elements = [
            text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape") for text in texts.ravel()
        ]
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"input '{name}' is no valid text: {error}", hint="Give str or UTF-8 bytes.") from error
    return object_array(elements).reshape(texts.shape)


def _number_array(name: str, value: Any, dtype: str) -> NDArray[np.generic]:
    if dtype not in DTYPES:
        raise InvalidRequest(
            f"input '{name}' has data type {dtype}", hint=f"Only BYTES, {', '.join(DTYPES)} can be sent."
        )
    target = np.dtype(DTYPES[dtype])
    try:
        source = np.asarray(value)
    except ValueError as error:
        raise InvalidRequest(
            f"input '{name}'={value!r} is no array: {error}", hint="Its rows differ in length."
        ) from error
    if source.size and (source.dtype.kind not in _SOURCES[target.kind] or not _fits(source, target)):
        raise InvalidRequest(
            f"input '{name}'={value!r} does not fit {dtype}", hint=f"The server wants {_range(target)}."
        )
    return source.astype(target)


#: numpy kind of the tensor -> kinds of values taken for it.
_SOURCES = {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}


def _fits(source: NDArray[Any], target: np.dtype[Any]) -> bool:
    if target.kind == "b":
        return True
    low, high = source.min(), source.max()
    if target.kind == "f":
        limit = float(np.finfo(target).max)
        return bool(np.isfinite(low) and np.isfinite(high) and -limit <= float(low) and float(high) <= limit)
    limits = np.iinfo(target)
    return int(limits.min) <= int(low) and int(high) <= int(limits.max)


def _range(target: np.dtype[Any]) -> str:
    if target.kind == "b":
        return "True or False"
    if target.kind == "f":
        return f"finite numbers up to {float(np.finfo(target).max):.4g}"
    limits = np.iinfo(target)
    return f"integers from {limits.min} to {limits.max}"
