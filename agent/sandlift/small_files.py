"""The bytes of a snapshot's small files, read from its store and proved on the way."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from sandlift.errors import StoreDamaged
from sandlift.manifest import Manifest
from sandlift.store import BlockReader
from sandlift.validate import shown
from sandlift_helper import table
from sandlift_helper.wire import BLOCK_MAX

SIZE_MAX: Final = BLOCK_MAX
"""Larger files are not looked into; one that is not larger has one block at most."""


class SmallFiles:
    """Reads files of at most `SIZE_MAX` bytes.  For one thread."""

    def __init__(self, manifest: Manifest, reader: BlockReader) -> None:
        self._rows = manifest.rows
        self._reader = reader
        self._starts = array("Q", accumulate(self._rows.counts, initial=0))
        self._carriers = self._rows.first_of_groups()
        self._numbers = {digest: number for number, digest in enumerate(manifest.blocks)}

    def digest(self, row: int) -> bytes:
        """Returns the digest of a small file's one block, or nothing where it is empty or all zeros.

        Raises ValueError for what is no file, or too large.
        """
        rows = self._rows
        if rows.kinds[row] != table.FILE or rows.sizes[row] > SIZE_MAX:
            raise ValueError(f"row {row} is no small file")
        carrier = self._carriers[rows.groups[row]] if rows.groups[row] else row
        start = 32 * self._starts[carrier]
        return bytes(rows.digests[start : start + 32 * rows.counts[carrier]])

    def read(self, row: int) -> bytes:
        """Returns a small file's bytes.  Raises ValueError as `digest`, StoreDamaged, StoreNewer."""
        digest, size = self.digest(row), self._rows.sizes[row]
        data = self._reader.read(self._numbers[digest], digest) if digest else bytes(size)
        if len(data) != size:
            raise StoreDamaged(f"the block of {shown(self._rows.paths[row])} has {len(data)} bytes instead of {size}")
        return data

    def in_order(self, wanted: Iterable[int]) -> Iterator[tuple[tuple[int, ...], bytes]]:
        """Yields small files, each different content once: the rows that have it, and its bytes.

        They come in the order in which their blocks rest, so that each stored frame is decoded once.
        """
        rows_of: dict[bytes, list[int]] = {}
        for row in wanted:
            if digest := self.digest(row):
                rows_of.setdefault(digest, []).append(row)
        places = sorted((self._reader.place(self._numbers[digest]), digest) for digest in rows_of)
        for _, digest in places:
            rows = rows_of[digest]
            # Hostile rows may claim different sizes for one block; each that fits no block is told as damage.
            for size in dict.fromkeys(self._rows.sizes[row] for row in rows):
                same = tuple(row for row in rows if self._rows.sizes[row] == size)
                yield same, self.read(same[0])
