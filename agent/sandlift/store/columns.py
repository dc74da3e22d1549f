"""Columns of numbers as they rest: of a fixed width, little-endian."""

from __future__ import annotations

import sys
from array import array


def encode(values: array[int], code: str) -> bytes:
    """Returns *values* in the width of the format; an array's own item may be wider on another machine."""
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def decode(data: bytes | memoryview, code: str) -> array[int]:
    """Returns what `encode` was given.  Raises ValueError unless *data* is a whole number of items."""
    column = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
