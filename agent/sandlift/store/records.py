"""Small objects: one msgpack map and the digest that proves it.

A record is a msgpack stream of two values: a map, and the 32 bytes of the SHA-256 of the map's encoding.  That
shape holds in every version, so a reader can tell a damaged object from one that a newer sandlift wrote: the
digest is checked first, then ``format`` and ``sealed``.

Text is UTF-8 with lone surrogates for undecodable bytes, as Python's ``os.fsdecode`` gives it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final, TypeGuard

import msgpack  # type: ignore[import-untyped]

from sandlift.errors import StoreDamaged, StoreNewer

FORMAT: Final = 1
"""The format number of every kind of object that this version writes."""

_TAIL = b"\xc4\x20"  # msgpack's bin 8 of 32 bytes
_TAIL_SIZE = len(_TAIL) + 32
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z", re.ASCII)


def pack(fields: Mapping[str, object]) -> bytes:
    """Returns the msgpack encoding of a map."""
    return bytes(msgpack.packb(dict(fields), use_bin_type=True, unicode_errors="surrogateescape"))


def unpack(data: bytes, what: str) -> dict[str, object]:
    """Returns the map that is all of *data*; *what* names the object.  Raises StoreDamaged."""
    try:
        fields = msgpack.unpackb(data, raw=False, strict_map_key=True, unicode_errors="surrogateescape")
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise StoreDamaged(f"{what} is not readable: {error}") from error
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise StoreDamaged(f"{what} is not readable: no map of named fields")
    return fields


def encode(fields: Mapping[str, object]) -> bytes:
    """Returns a record of *fields*."""
    body = pack(fields)
    return b"".join((body, _TAIL, hashlib.sha256(body).digest()))


def decode(data: bytes, what: str) -> dict[str, object]:
    """Returns a record's fields once its digest holds; *what* names the object.  Raises StoreDamaged."""
    body, tail = data[:-_TAIL_SIZE], data[-_TAIL_SIZE:]
    if len(data) <= _TAIL_SIZE or tail != _TAIL + hashlib.sha256(body).digest():
        raise StoreDamaged(f"{what} does not match its own digest")
    return unpack(body, what)


def check_format(fields: Mapping[str, object], what: str, *, field: str = "format") -> None:
    """Accepts only the format that this version writes, unsealed.  Raises StoreNewer, StoreDamaged."""
    number = fields.get(field)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise StoreDamaged(f"{what} has no format number")
    if number > FORMAT:
        raise StoreNewer(
            f"{what} has format {number}, this sandlift reads up to {FORMAT}",
            hint="use the newer sandlift that wrote it",
            format=number,
        )
    if fields.get("sealed") is not None:
        raise StoreNewer(
            f"{what} is sealed as {_shown(fields['sealed'])}, which this sandlift cannot open",
            hint="use the newer sandlift that wrote it",
        )


class Fields:
    """Typed access to the fields of a decoded map; each method raises StoreDamaged for any other value."""

    def __init__(self, fields: Mapping[str, object], what: str) -> None:
        self._fields = fields
        self._what = what

    def wrong(self, name: str) -> StoreDamaged:
        """Returns the error that says that the field *name* is wrong."""
        return StoreDamaged(f"{self._what} has a wrong {name}: {_shown(self._fields.get(name))}")

    def text(self, name: str) -> str:
        """A string."""
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise self.wrong(name)
        return value

    def digits(self, name: str, count: int) -> str:
        """A string of exactly *count* lower-case hex digits."""
        value = self.text(name)
        if len(value) != count or not _HEX.fullmatch(value):
            raise self.wrong(name)
        return value

    def time(self, name: str) -> str:
        """An RFC 3339 time in UTC with a trailing Z."""
        value = self.text(name)
        if not _TIME.fullmatch(value):
            raise self.wrong(name)
        return value

    def count(self, name: str) -> int:
        """An integer from 0."""
        value = self._fields.get(name)
        if not _is_count(value):
            raise self.wrong(name)
        return int(value)

    def truth(self, name: str) -> bool:
        """True or false."""
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name)
        return tuple(value)

    def text_map(self, name: str) -> dict[str, str]:
        """A map of strings to strings."""
        value = self._fields.get(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
            raise self.wrong(name)
        return dict(value)

    def counts(self, name: str) -> dict[str, int]:
        """A map of strings to integers from 0."""
        value = self._fields.get(name)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self.wrong(name)
        if not all(_is_count(number) for number in value.values()):
            raise self.wrong(name)
        return dict(value)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(value: object) -> str:
    return ascii(value)[:80]
