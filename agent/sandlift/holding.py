"""Blocks that the store holds already, found by digest: of a snapshot, or of a capture that broke off."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Protocol

from sandlift.errors import StoreDamaged
from sandlift.manifest import Manifest
from sandlift.store import PartialCapture, Store, StoredSnapshot
from sandlift_helper.table import split_digests
from sandlift_helper.wire import BLOCK_MAX

Place = tuple[str, int]
"""A pack, and the decoded offset of a block's member in it."""


class Holding(Protocol):
    """Blocks by digest."""

    def size_bytes(self, digest: bytes) -> int | None:
        """Returns a block's size, or None for one that is not held."""

    def place(self, digest: bytes) -> Place | None:
        """Returns where a block rests, or None for one that is not held."""

    def prefixes(self) -> array[int]:
        """Returns the first 8 bytes of each digest, as numbers in the byte order of the machine."""


class SnapshotHolding:
    """The blocks of one snapshot."""

    def __init__(self, store: Store, snapshot: StoredSnapshot) -> None:
        self._store = store
        self._snapshot = snapshot

    @property
    def packs(self) -> tuple[str, ...]:
        """The packs that hold the blocks."""
        return self._snapshot.packs

    @cached_property
    def manifest(self) -> Manifest:
        """The snapshot's manifest.  Raises StoreDamaged."""
        return Manifest.decode(self._snapshot.manifest, self._snapshot.originals)

    @cached_property
    def _index_of(self) -> dict[bytes, int]:
        return {digest: index for index, digest in enumerate(self.manifest.blocks)}

    @cached_property
    def _sizes(self) -> array[int]:
        rows = self.manifest.rows
        sizes = array("I", bytes(4 * len(self._index_of)))
        names = split_digests(rows.digests)
        for size, (_, position, count) in zip(rows.sizes, rows.contents(), strict=True):
            for index in range(count):
                at = rows.positions[position + index] if position >= 0 else index
                sizes[self._index_of[next(names)]] = min(BLOCK_MAX, size - at * BLOCK_MAX)
        return sizes

    @cached_property
    def _by_prefix(self) -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        for digest in self.manifest.blocks:
            found.setdefault(digest[:8], []).append(digest)
        return found

    def size_bytes(self, digest: bytes) -> int | None:
        """See `Holding`."""
        index = self._index_of.get(digest)
        return None if index is None else self._sizes[index]

    def place(self, digest: bytes) -> Place | None:
        """See `Holding`."""
        index = self._index_of.get(digest)
        if index is None:
            return None
        return self._snapshot.packs[self._snapshot.pack_index[index]], self._snapshot.offsets[index]

    def prefixes(self) -> array[int]:
        """See `Holding`."""
        return prefixes_of(b"".join(self.manifest.blocks))

    def with_prefix(self, prefix: bytes) -> list[bytes]:
        """Returns the digests that begin with these 8 bytes."""
        return self._by_prefix.get(prefix, [])

    def read(self, digests: list[bytes]) -> Iterator[tuple[bytes, memoryview]]:
        """Yields what lies where each of these blocks should, with its digest; one at a time is in memory.

        Where nothing can be read, nothing is yielded; that it is the block itself is for the caller to prove.
        """
        blocks = self._store.blocks(self._snapshot)
        for digest in sorted(digests, key=lambda digest: self.place(digest) or ("", 0)):
            try:
                block = blocks.read_unproved(self._index_of[digest])
            except StoreDamaged:
                continue
            yield digest, block


class Brought(Mapping[bytes, int]):
    """The blocks that one capture brings into its pack: the size of each, by digest, in the order of their coming."""

    def __init__(self) -> None:
        self._index_of: dict[bytes, int] = {}
        self._sizes = array("I")
        self._offsets = array("Q")

    def places(self, digests: Iterable[bytes], name: str, held: Callable[[bytes], Place]) -> Iterator[Place]:
        """Yields where each distinct one of *digests* rests, in order of first appearance.

        What was brought is in the pack *name*; for the rest, *held* is asked.
        """
        met, others = bytearray(len(self._sizes)), set()
        for digest in digests:
            index = self._index_of.get(digest)
            if index is None:
                if digest not in others:
                    others.add(digest)
                    yield held(digest)
            elif not met[index]:
                met[index] = True
                yield name, self._offsets[index]

    def clear(self) -> None:
        """Forgets all blocks."""
        self._index_of = {}
        self._sizes, self._offsets = array("I"), array("Q")

    def add(self, digest: bytes, size_bytes: int, offset: int) -> None:
        """Adds a block; one that has come before keeps its first place."""
        if self._index_of.setdefault(digest, len(self._sizes)) == len(self._sizes):
            self._sizes.append(size_bytes)
            self._offsets.append(offset)

    def size_bytes(self, digest: bytes) -> int | None:
        """See `Holding`."""
        index = self._index_of.get(digest)
        return None if index is None else self._sizes[index]

    def offset(self, digest: bytes) -> int | None:
        """Returns the decoded offset of a block's member in the pack, or None for one that has not come."""
        index = self._index_of.get(digest)
        return None if index is None else self._offsets[index]

    def __getitem__(self, digest: bytes) -> int:
        return self._sizes[self._index_of[digest]]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._index_of)

    def __len__(self) -> int:
        return len(self._sizes)


class PartialHolding:
    """The blocks that a capture brought before it broke off."""

    def __init__(self, partial: PartialCapture) -> None:
        self._partial = partial
        self._index_of = {digest: index for index, digest in enumerate(split_digests(partial.digests))}

    def __iter__(self) -> Iterator[tuple[bytes, int, Place]]:
        """Yields digest, size in bytes and place of each block."""
        for digest, index in self._index_of.items():
            place = self._partial.packs[self._partial.pack_index[index]], self._partial.offsets[index]
            yield digest, self._partial.sizes[index], place

    def size_bytes(self, digest: bytes) -> int | None:
        """See `Holding`."""
        index = self._index_of.get(digest)
        return None if index is None else self._partial.sizes[index]

    def place(self, digest: bytes) -> Place | None:
        """See `Holding`."""
        index = self._index_of.get(digest)
        if index is None:
            return None
        return self._partial.packs[self._partial.pack_index[index]], self._partial.offsets[index]

    def prefixes(self) -> array[int]:
        """See `Holding`."""
        return prefixes_of(self._partial.digests)


def first_size(holders: Iterable[Holding], digest: bytes) -> int | None:
    """Returns the size of a block by the first of *holders* that has it, or None."""
    return next((size for holder in holders if (size := holder.size_bytes(digest)) is not None), None)


def first_place(holders: Iterable[Holding], digest: bytes) -> Place:
    """Returns where a block rests by the first of *holders* that has it.  Raises KeyError when none has."""
    for holder in holders:
        if (place := holder.place(digest)) is not None:
            return place
    raise KeyError(digest)


def prefixes_of(digests: bytes) -> array[int]:
    """Returns the first 8 bytes of each of the joined digests, as numbers in the byte order of the machine."""
    whole = array("Q")
    whole.frombytes(digests)
    return whole[::4]
