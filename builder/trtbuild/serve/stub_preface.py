"""Runs inside every Python stub before its model.py; a copy lies beside the stub and the server's utilities import it.

Repairs two things that a stub cannot be told from outside, since its interpreter ignores the environment.

UTF-8. It takes ASCII for standard output and for files opened without an encoding, and buffers its output to the end.

numpy 2. Stubs up to 2.51 at least hold a pybind11 that knows only numpy 1, whose array descriptor is laid out
differently: where it reads the size of an item it finds zero. Every element of an input then equals the first, strings
cannot be decoded, which ends the process, and outputs have no bytes. So
 * the function of numpy's C API through which it makes arrays is replaced, for it alone, by one that leaves the strides
   to numpy; it makes C-contiguous arrays only;
 * arrays of numbers go out through DLPack, which tells the size of an item by itself;
 * serialized strings go out in an array whose descriptor, its own, has the size where numpy 1 had it.
None of this disturbs a stub that knows numpy 2.

Source: PyArray_Descr in ndarraytypes.h of numpy 1.26 and 2.0; pybind11/numpy.h before 2.12; numpy/core/multiarray.py of
numpy 2, which keeps `_ARRAY_API` for that pybind11; index 94 from numpy/_core/code_generators/numpy_api.py.
"""

from __future__ import annotations

import ctypes
import locale
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import c_python_backend_utils  # type: ignore[import-not-found]  # exists only inside a stub
import numpy as np

#: numpy's letters for boolean, integer, unsigned and floating point: what DLPack and Triton both know.
_NUMBERS = "biuf"
#: Where PyArray_NewFromDescr stands in numpy's table of C functions, and how much of the table pybind11 reads.
_NEW_FROM_DESCR, _TABLE_LENGTH = 94, 283
#: Where numpy 1 kept the size of an item in a descriptor, 64-bit; numpy 2 has the lower half of the flags there.
_ITEM_SIZE_OFFSET = 32
#: PyObject *PyArray_NewFromDescr(type, descriptor, int ndim, dims, strides, data, int flags, object)
_Signature = ctypes.PYFUNCTYPE(
    ctypes.py_object,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
)


def use_utf8() -> None:
    """Make UTF-8 the encoding of files opened without one, and of output, which appears line by line."""
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]  # text files


def leave_strides_to_numpy() -> tuple[Any, ...]:
    """Give pybind11 a table of numpy's C functions in which arrays are made with numpy's own strides.

    Returns:
        What must stay alive as long as the process.
    """
    multiarray: Any = import_module("numpy.core.multiarray")

    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    original = api.PyCapsule_GetPointer(multiarray._ARRAY_API, None)
    table = (ctypes.c_void_p * _TABLE_LENGTH)()
    ctypes.memmove(table, original, ctypes.sizeof(table))
    make = _Signature(int(table[_NEW_FROM_DESCR] or 0))

    def make_contiguous(
        kind: int, descriptor: int, ndim: int, dims: int, strides: int, data: int, flags: int, base: int
    ) -> Any:
        return make(kind, descriptor, ndim, dims, None, data, flags, base)

    replacement = _Signature(make_contiguous)
    table[_NEW_FROM_DESCR] = ctypes.cast(replacement, ctypes.c_void_p).value
    multiarray._ARRAY_API = api.PyCapsule_New(ctypes.addressof(table), None, None)
    return table, replacement


def to_capsule(array: Any) -> Any:
    """Return a DLPack capsule that owns a reference to the array and gives it up to whoever takes the tensor out.

    The stub renames a capsule it has consumed in a way that numpy's destructor takes for an error and reports on each
    call; a consumed capsule has nothing to destroy, so it gets no destructor.
    """
    capsule = array.__dlpack__()
    ctypes.pythonapi.PyCapsule_SetDestructor(ctypes.py_object(capsule), None)
    return capsule


def send_numbers_through_dlpack(tensor: Any) -> None:
    """Change the class Tensor so that arrays of numbers reach it through DLPack.

    Args:
        tensor: the class, whose constructor takes a name and an array.
    """
    make, initialize = tensor.__new__, tensor.__init__

    def new(cls: Any, name: str, array: Any) -> Any:
        if not holds_numbers(array):
            return make(cls)
        return cls.from_dlpack(name, to_capsule(np.require(array, requirements=("C_CONTIGUOUS", "WRITEABLE"))))

    def init(self: Any, name: str, array: Any) -> None:
        if not holds_numbers(array):
            initialize(self, name, array)

    tensor.__new__, tensor.__init__ = new, init


def holds_numbers(array: object) -> bool:
    """Say whether this is an array of numbers, and has some: without elements the size of an item does not matter."""
    if not isinstance(array, np.ndarray):
        return False
    return array.dtype.kind in _NUMBERS and array.dtype.isnative and array.size > 0


def with_item_size(serialize: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a serializer of strings whose result has a size for a reader of either numpy.

    Args:
        serialize: returns bytes, or something else for what is empty or no string.
    """
    if not _IS_NUMPY_2:
        return serialize

    def serialize_with_size(strings: Any) -> Any:
        serialized = serialize(strings)
        if not isinstance(serialized, bytes):
            return serialized
        # The metadata make numpy give out a descriptor of its own. As a flag, 1 says that items hold references, which
        # numpy looks at when it frees memory that the array owns; this array owns none, and nothing else is done to it.
        array = np.frombuffer(serialized, np.dtype("u1", metadata={"size": "as in numpy 1"}))
        ctypes.c_uint32.from_address(id(array.dtype) + _ITEM_SIZE_OFFSET).value = 1
        return array

    return serialize_with_size


use_utf8()
_IS_NUMPY_2 = int(np.__version__.partition(".")[0]) >= 2
if _IS_NUMPY_2:
    _kept = leave_strides_to_numpy()
    send_numbers_through_dlpack(c_python_backend_utils.Tensor)
