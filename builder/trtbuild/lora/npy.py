"""The header of .npy files, so that an array can be written row by row and is the same with every version of numpy.

Source: NEP 1 (https://numpy.org/neps/nep-0001-npy-format.html), format version 1.0.
"""

from __future__ import annotations

import struct

#: The header, magic included, ends on a multiple of this.
_ALIGNMENT_BYTES = 64


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return the bytes before the elements of a C-ordered array.

    Args:
        descr: numpy's name of the dtype, for example "<f2".
        shape: of two or more axes.
    """
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    padding = -(len(text) + 11) % _ALIGNMENT_BYTES
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + padding + 1) + text + b" " * padding + b"\n"
