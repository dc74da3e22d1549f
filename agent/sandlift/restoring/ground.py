"""What is at the target of a restore: a listing, and the questions that a plan asks of it.

Paths are sorted component by component, so whatever is at or below a path is one run of neighbours; `span` finds it.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sandlift_helper import table
from sandlift_helper.table import Segment

MOUNTED = "something is mounted there"
OWN = "sandlift's own store is there"
_UNKNOWN = "it cannot be read"
_UNKNOWN_TEXT = b"/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is at the target; claims of a sandbox, already checked for form."""

    rows: Segment
    """Directories, files, and links with their raw texts, absolute ones too; ``rows.root`` is the target's own.

    Groups are the names of one inode in the target.  Excluded rows tell what is there and is no such entry: special
    files, whiteouts, foreign mounts, sandlift's own store, what could not be read or listed.  Flags are
    `table.NAMED_ELSEWHERE` and `table.MOUNT_POINT`.
    """
    hashed: frozenset[int]
    """Rows of files whose digests and positions are known."""
    folds: bool
    """Whether the file system there takes names that differ in case or composition for one."""
    absent: bool = False
    """Nothing is at the target; then there are no rows."""


class Ground:
    """A listing as one sorted list of all that exists, entry or not.  Items are named by their index."""

    def __init__(self, listing: Listing) -> None:
        rows = listing.rows
        self.rows = rows
        self.paths: list[bytes] = rows.paths
        self.kinds = rows.kinds
        self.row_of: Sequence[int] = range(len(rows))
        """For each item its row of the listing, -1 for what is no entry."""
        self.closed: dict[bytes, str] = {}
        """Directories of which nobody knows all that is in them, and why; perhaps the root."""
        self.unreadable: set[bytes] = set()
        """Those of ``closed`` that are neither a mount nor our own store."""
        self.root_is_mount = False
        self.elsewhere: set[bytes] = set()
        """Files that have names outside of the target."""
        self._mounts: set[bytes] = set()
        others = self._read_excluded()
        for path, flag in zip(rows.flag_paths, rows.flags, strict=True):
            if flag == table.NAMED_ELSEWHERE:
                self.elsewhere.add(path)
            elif flag == table.MOUNT_POINT and path:
                self._mounts.add(path)
            elif flag == table.MOUNT_POINT:
                self.root_is_mount = True
        if others:
            self._add(others)
        # Numbers only now: with items added, rows and items no longer go together.
        self.mounts = marks(self.paths, self._mounts, below=False)
        """Marks what something is mounted on."""
        self.mounted = marks(self.paths, self._mounts)
        """Marks what is at or below a mount; the target itself does not count."""
        self.held = marks(self.paths, [*self._mounts, *(path for path in self.closed if path)], below=False)
        """Marks what cannot be removed: mounts, our own store, and what could hold anything."""

    def __len__(self) -> int:
        return len(self.paths)

    def _read_excluded(self) -> dict[bytes, int]:
        """Reads the rows of what is there and is no entry; returns the kinds by path."""
        rows = self.rows
        others: dict[bytes, int] = {}
        for path, kind, reason, detail in zip(
            rows.excluded_paths, rows.excluded_kinds, rows.excluded_reasons, rows.details, strict=True
        ):
            if reason == table.LIMIT and kind == table.UNKNOWN and detail == b"entries":
                # The name and all that follow it were not looked at.
                self._close(path.rpartition(b"/")[0], "it has more names than are listed")
                continue
            others[path] = kind
            if reason == table.MOUNT:
                self._mounts.add(path)
                if kind == table.DIRECTORY:
                    self.closed[path] = MOUNTED
            elif reason == table.OWN:
                self.closed[path] = OWN
            elif kind in (table.DIRECTORY, table.UNKNOWN):
                self._close(path, _UNKNOWN)
        return others

    def _close(self, path: bytes, why: str) -> None:
        self.closed.setdefault(path, why)
        self.unreadable.add(path)

    def _add(self, others: dict[bytes, int]) -> None:
        rows = self.rows
        row_of = {path: row for row, path in enumerate(rows.paths)}
        self.paths = sorted({*rows.paths, *others}, key=table.sort_key)
        found = [row_of.get(path, -1) for path in self.paths]
        self.row_of = found
        self.kinds = bytearray(
            rows.kinds[row] if row >= 0 else others[path] for path, row in zip(self.paths, found, strict=True)
        )

    def mount_of(self, path: bytes) -> bytes:
        """Returns the mount point below the root that *path* lies at or below, or the root."""
        while path and self._mounts and path not in self._mounts:
            path = path.rpartition(b"/")[0]
        return path if self._mounts else b""

    def texts(self) -> Iterator[tuple[int, bytes]]:
        """Yields each link with its text; one whose text is unknown counts as one that leaves."""
        entries = iter(self.rows.texts)
        for here, kind in enumerate(self.kinds):
            if kind == table.LINK:
                yield here, next(entries) if self.row_of[here] >= 0 else _UNKNOWN_TEXT

    @cached_property
    def names(self) -> dict[int, list[int]]:
        """The items of each inode with several names in the target, by their group in the listing."""
        found: dict[int, list[int]] = {}
        if any(self.rows.groups):
            for here, row in enumerate(self.row_of):
                if row >= 0 and self.rows.groups[row]:
                    found.setdefault(self.rows.groups[row], []).append(here)
        return found


def span(paths: Sequence[bytes], path: bytes) -> tuple[int, int]:
    """Returns where in sorted *paths* those at or below *path* start and end; all are for the empty path."""
    if not path:
        return 0, len(paths)
    key = table.sort_key(path)
    # Of all that begins with the path, only what goes on with a slash sorts before this key.
    return bisect_left(paths, key, key=table.sort_key), bisect_left(paths, key + b"\x01", key=table.sort_key)


def following(paths: Sequence[bytes], path: bytes) -> tuple[int, int]:
    """Returns where in sorted *paths* a name and those behind it in its directory, with all below, start and end."""
    start = bisect_left(paths, table.sort_key(path), key=table.sort_key)
    return start, span(paths, path.rpartition(b"/")[0])[1]


def marks(paths: Sequence[bytes], tops: Iterable[bytes], *, below: bool = True) -> bytearray:
    """Returns a mark for each of sorted *paths* that is one of *tops*, or is *below* one."""
    marked = bytearray(len(paths))
    for top in tops:
        start, stop = span(paths, top)
        if below:
            marked[start:stop] = b"\1" * (stop - start)
        elif start < stop and paths[start] == top:
            marked[start] = 1
    return marked


def fold(path: bytes) -> bytes:
    """Returns what names have in common that a folding file system takes for one: case and composition set aside."""
    if path.isascii():
        return path.lower()
    text = unicodedata.normalize("NFD", path.decode("utf-8", "surrogateescape")).casefold()
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogateescape")
