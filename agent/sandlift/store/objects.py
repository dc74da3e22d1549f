"""The six operations that a store needs of the place where it lives.

``put``, ``get``, ``get_range``, ``list``, ``delete`` and ``create_if_absent``: everything above this module is
written in these words, so a directory and an object store serve alike.  Their contract is the test suite
``tests/store/contract.py``, which every implementation passes.

A *key* is a relative path of plain components, for example ``packs/3f/3f09…``.  Keys are made by sandlift from
checked parts, and checked again here, because one wrong ``..`` would leave the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

# A component begins with neither a dot nor a dash, so it is never ``..``, never hidden, and never an option.
_COMPONENT = re.compile(r"[A-Za-z0-9@][A-Za-z0-9@._-]{0,254}", re.ASCII)


class UnknownObject(KeyError):
    """No object goes by that key; it never leaves the store package, where it becomes a `StoreError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One row of a listing."""

    key: str
    size_bytes: int


class Writer(Protocol):
    """One object on its way in; invisible until `commit`, and gone after `abort`.

    As a context manager it aborts unless it was committed.  One thread at a time may use it.
    """

    @property
    def size_bytes(self) -> int:
        """What has been written so far."""

    def write(self, data: bytes | memoryview) -> None:
        """Appends all of *data*.  Raises StoreFull, StoreUnusable."""

    def commit(self) -> None:
        """Makes the object durable and then visible, whole, in place of an older one with the same key."""

    def abort(self) -> None:
        """Drops what was written; a second call, or one after `commit`, does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Objects(Protocol):
    """A flat space of whole objects; all methods may be called from any thread.

    Raises StoreFull when the medium has no room, StoreUnusable when it refuses, StoreDamaged when an object is
    not what it must be, and UnknownObject where a key is missing.
    """

    def put(self, key: str) -> Writer:
        """Begins an object; it replaces an older one when it is committed."""

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Returns a whole object.  One of more than *max_bytes* is StoreDamaged, and is not read."""

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Returns exactly *size* bytes from *offset*; an object that ends earlier is StoreDamaged."""

    def open_file(self, key: str) -> int | None:
        """Returns a descriptor of the file that is the object, for the caller to close; None where it is no file."""

    def size(self, key: str) -> int:
        """Returns an object's size in bytes."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yields what lies below *prefix* (empty, or a folder that ends in ``/``), sorted by key."""

    def delete(self, key: str) -> None:
        """Removes an object; one that is missing already is success."""

    def create_if_absent(self, key: str, data: bytes) -> bool:
        """Creates an object, whole and durable, unless the key exists; returns whether it did."""


def check_key(key: str) -> list[str]:
    """Returns the components of *key*.  Raises ValueError for anything that is not a plain relative path."""
    parts = key.split("/")
    for part in parts:
        if not _COMPONENT.fullmatch(part):
            raise ValueError(f"not a key of the store: {key!r}")
    return parts


def is_component(name: str) -> bool:
    """Whether *name* could be one component of a key."""
    return _COMPONENT.fullmatch(name) is not None
