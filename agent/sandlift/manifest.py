"""A manifest that the host has accepted, in its canonical form, with its identity and content digest.

Only `sandlift.gathering` makes one from a sandbox's claims, and `Manifest.decode` from a store's own object,
whose identity was checked there.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator
from functools import cached_property

from sandlift.errors import StoreDamaged
from sandlift.results import Counts
from sandlift_helper import table
from sandlift_helper.table import Segment, split_digests

EXECUTE = 0o100
NAMES_AT_ONCE = 1 << 12
JOURNAL_SUFFIXES = (b"-wal", b"-journal")
"""What SQLite puts behind a database's name for the files that belong to it."""


class Manifest:
    """The table of a workspace's entries, and what was left out.

    ``rows`` is sorted and canonical; its ``originals`` hold the absolute texts that rebased links had.
    """

    def __init__(self, rows: Segment) -> None:
        self.rows = rows

    @classmethod
    def decode(cls, encoded: bytes, originals: bytes) -> Manifest:
        """Returns the manifest of a stored snapshot.  Raises StoreDamaged."""
        try:
            rows = table.decode(encoded)
        except ValueError as error:
            raise StoreDamaged(f"a stored manifest cannot be read: {error}") from error
        texts = originals[:-1].split(b"\0") if originals else []
        if len(texts) != len(rows.texts) or originals[-1:] not in (b"", b"\0") or rows.root is None:
            raise StoreDamaged("a stored manifest's parts do not fit together")
        rows.originals = texts
        return cls(rows)

    @property
    def encoded(self) -> bytes:
        """The canonical encoding, made anew: it takes as much memory as the rows, so nobody keeps it."""
        originals, self.rows.originals = self.rows.originals, [b""] * len(self.rows.texts)
        try:
            return table.encode(self.rows)
        finally:
            self.rows.originals = originals

    @cached_property
    def identity(self) -> bytes:
        """SHA-256 of the canonical encoding."""
        return hashlib.sha256(self.encoded).digest()

    @property
    def encoded_originals(self) -> bytes:
        """The original link texts, each followed by NUL, as a snapshot stores them."""
        return b"\0".join(self.rows.originals) + b"\0" if self.rows.originals else b""

    @cached_property
    def content(self) -> bytes:
        """SHA-256 over path, kind, execute bit, bytes and link text of each entry, hard links written out.

        It covers these columns, each behind its length (8 bytes): paths, each followed by NUL; kinds; for each
        entry ``x`` where its owner may execute it as a file, else ``-``; sizes (8 bytes) and counts of data
        blocks (4); block positions (4) of files with holes; block digests; link texts, each followed by NUL.
        """
        rows = _without_hard_links(self.rows)
        executable = bytes(
            120 if kind == table.FILE and mode & EXECUTE else 45
            for kind, mode in zip(rows.kinds, rows.modes, strict=True)
        )
        summed = hashlib.sha256((sum(map(len, rows.paths)) + len(rows)).to_bytes(8, "little"))
        for at in range(0, len(rows), NAMES_AT_ONCE):
            summed.update(b"\0".join((*rows.paths[at : at + NAMES_AT_ONCE], b"")))
        for column in (
            bytes(rows.kinds),
            executable,
            little_endian(rows.sizes),
            little_endian(rows.counts),
            little_endian(rows.positions),
            bytes(rows.digests),
            b"".join(text + b"\0" for text in rows.texts),
        ):
            summed.update(len(column).to_bytes(8, "little"))
            summed.update(column)
        return summed.digest()

    @cached_property
    def blocks(self) -> list[bytes]:
        """The distinct block digests, in order of first appearance."""
        return list(dict.fromkeys(split_digests(self.rows.digests)))

    @cached_property
    def counts(self) -> Counts:
        """How much there is of everything."""
        rows = self.rows
        seen: set[int] = set()
        size_bytes = 0
        for size, group in zip(rows.sizes, rows.groups, strict=True):
            if group and group in seen:
                continue
            seen.add(group)
            size_bytes += size
        return Counts(
            directories=rows.kinds.count(table.DIRECTORY),
            files=rows.kinds.count(table.FILE),
            links=rows.kinds.count(table.LINK),
            bytes=size_bytes,
            excluded=len(rows.excluded_paths),
            lost=sum(reason >= table.LOST for reason in rows.excluded_reasons),
            changed=rows.flags.count(table.CHANGED),
            vanished=rows.flags.count(table.VANISHED),
        )

    def torn_databases(self) -> list[bytes]:
        """Returns the files that changed while they were read and have a journal beside them, or are one.

        Such a file and its journal were read at different moments, so together they may be no state that the
        database was ever in (SQLite, "How To Corrupt An SQLite Database File", section 1.2).
        """
        rows = self.rows
        changed = {path for path, flag in zip(rows.flag_paths, rows.flags, strict=True) if flag == table.CHANGED}
        if not changed:
            return []
        files = {path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.FILE}
        found = {
            path
            for path in files
            for suffix in JOURNAL_SUFFIXES
            if path + suffix in files and (path in changed or path + suffix in changed)
        }
        return sorted(found)

    def find(self, path: bytes) -> int:
        """Returns the row of *path*.  Raises KeyError."""
        from bisect import bisect_left

        wanted = table.sort_key(path)
        row = bisect_left(self.rows.paths, wanted, key=table.sort_key)
        if row == len(self.rows) or self.rows.paths[row] != path:
            raise KeyError(path)
        return row

    def carrier(self, row: int) -> int:
        """Returns the row that carries the blocks of a file: itself, or the first name of its hard-link group."""
        group = self.rows.groups[row]
        return self.rows.groups.index(group) if group else row

    def below(self, path: bytes) -> Iterator[int]:
        """Yields the rows of *path* itself and all below it; all rows for the empty path."""
        if not path:
            yield from range(len(self.rows))
            return
        prefix = path + b"/"
        for row in range(self.find(path), len(self.rows)):
            name = self.rows.paths[row]
            if name != path and not name.startswith(prefix):
                return
            yield row


def _without_hard_links(rows: Segment) -> Segment:
    """Returns rows in which every name of a hard-link group carries the blocks; the same object if there is none."""
    if not any(rows.groups):
        return rows
    written = Segment()
    for name in ("paths", "kinds", "modes", "sizes", "texts"):
        setattr(written, name, getattr(rows, name))
    carriers: dict[int, tuple[int, int, int]] = {}
    for group, place in zip(rows.groups, rows.contents(), strict=True):
        digest, position, count = carriers.setdefault(group, place) if group else place
        written.counts.append(count)
        written.digests += rows.digests[32 * digest : 32 * (digest + count)]
        if position >= 0:
            written.positions += rows.positions[position : position + count]
    return written


def little_endian(column: array[int]) -> bytes:
    """Returns a column as it travels and rests."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def distinct_blocks(encoded: bytes) -> bytes:
    """Returns the distinct block digests of a canonical manifest, joined, in order of first appearance."""
    return b"".join(dict.fromkeys(split_digests(table.decode(encoded).digests)))


def number_groups(groups: array[int]) -> array[int]:
    """Returns the column with groups numbered from 1 in order of first appearance; a group of one becomes 0."""
    sizes: dict[int, int] = {}
    for group in groups:
        if group:
            sizes[group] = sizes.get(group, 0) + 1
    numbers = {group: index + 1 for index, group in enumerate(g for g in dict.fromkeys(groups) if sizes.get(g, 0) > 1)}
    return array("I", [numbers.get(group, 0) for group in groups])
