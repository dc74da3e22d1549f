"""A part of a scan, which one process walks and another puts in its place among the other parts.

A portion enters directories until it has looked at a number of names.  From then on, each directory that comes up
becomes a *subtree*, left to whoever is free, and a *mark* keeps the place where its rows belong.  So work that
turns out large is dealt out again, whatever the shape of the tree.

Between processes, subtrees and portions travel as columns: their sizes in bytes (4 each), then their bytes, in the
machine's own order.  Names are each followed by a NUL, which no name can hold.
"""

import os
from array import array

from sandlift_helper import table
from sandlift_helper.scan import COLUMNS, Scan

MYPY = False
if MYPY:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    # A list of names, a bytearray, or an array.
    Column = Any
    # How many files, directories, links, excluded rows, flags and leftovers there are before a place.
    Place = tuple[int, ...]

# The columns of entries (paths, modes, times, owners), with n for names; of subtrees, which have a depth as well;
# and of a portion but for what it shares with `Scan`: its number and its names, directories, links, their texts,
# groups, the counts of their names, the places of marks, their subtrees.
_ENTRIES = "nHqII"
_SUBTREES = _ENTRIES + "I"
_PORTION = "Q" + _ENTRIES + _ENTRIES + "nQII" + _SUBTREES

# In place of the mode where there is no status.
_NO_MODE = 0xFFFF
_PLACE_SIZE = 6


class Subtree:
    """A directory that is still to be entered, as it was found."""

    __slots__ = ("path", "depth", "status")

    def __init__(self, path: bytes, depth: int, status: "os.stat_result | None") -> None:
        self.path = path
        self.depth = depth
        self.status = status


class Portion(Scan):
    """A part of a scan: that of some subtrees, until it has looked at *names_max* names.

    ``names`` counts them.  ``marks`` are pairs in path order: a place, and the subtree that is left there, or None
    where a subtree of this portion ends.  What stands between two places is added to another portion by `take`.
    """

    names_max = 0
    names = 0

    def walk(self, subtrees: "Iterable[Subtree]", names_max: int) -> None:
        """Walks the subtrees, at least the first directory.  Raises Failure when the root itself cannot be listed."""
        self.names_max = names_max
        self.marks: "list[tuple[Place, Subtree | None]]" = []
        for subtree in subtrees:
            self._walk(subtree.path, subtree.depth, subtree.status or self.root_status)
            self.marks.append((self.place(), None))
        self._ladder.close()

    def _enter(self, path: bytes, depth: int, status: os.stat_result) -> None:
        if self.names < self.names_max:
            Scan._enter(self, path, depth, status)
        else:
            self.marks.append((self.place(), Subtree(path, depth, status)))

    def _room(self, path: bytes, count: int) -> int:
        self.names += count
        # Where the limit of entries applies, depends on what comes before: see `scanners`.
        return count if self.names <= self._limits.entries else 0

    def place(self) -> "Place":
        """Returns the place after all that was found so far."""
        left = self.left
        found = self.files.paths, self.directories, self.links, left.excluded_paths, left.flag_paths, self.leftovers
        return tuple([len(rows) for rows in found])

    def take(self, part: "Portion", start: "Place", stop: "Place") -> None:
        """Adds what *part* found between two places."""
        self.directories += part.directories[start[1] : stop[1]]
        self.links += part.links[start[2] : stop[2]]
        left = part.left
        for row in range(start[3], stop[3]):
            kind, reason = left.excluded_kinds[row], left.excluded_reasons[row]
            self.left.exclude(left.excluded_paths[row], kind, reason, left.details[row])
        for row in range(start[4], stop[4]):
            self.left.flag(left.flag_paths[row], left.flags[row])
        self.leftovers += part.leftovers[start[5] : stop[5]]
        first = len(self.files.paths)
        for name in COLUMNS:
            getattr(self.files, name).extend(getattr(part.files, name)[start[0] : stop[0]])
        self.bytes += sum(part.files.sizes[start[0] : stop[0]])
        if any(self.files.groups[first:]):
            self._join_groups(part, first)

    def _join_groups(self, part: "Portion", first: int) -> None:
        """Gives the files from row *first* on, which come from *part*, the numbers that their groups have here."""
        files = self.files
        keys = list(part._groups)
        for row in range(first, len(files.groups)):
            number = files.groups[row]
            if number:
                group = files.groups[row] = self._groups.setdefault(keys[number - 1], len(self._groups) + 1)
                files.name_counts[group] = part.files.name_counts[number]
                members = files.members.setdefault(group, [])
                if members:
                    self.bytes -= files.sizes[row]
                members.append(row)

    def encode(self, number: int) -> bytes:
        """Returns all that was found as bytes, the answer to the batch of subtrees with this *number*."""
        texts = [link[2] for link in self.links]
        groups = array("Q", [value for key in self._groups for value in key])
        counts = array("I", self.files.name_counts.values())
        places = array("I", [count for place, _ in self.marks for count in place])
        marked = [subtree or Subtree(b"", 0, None) for _, subtree in self.marks]
        return _encode(
            self._own_columns()
            + [array("Q", (number, self.names))]
            + _entry_columns(self.directories)
            + _entry_columns(self.links)
            + [texts, groups, counts, places]
            + _subtree_columns(marked)
        )

    def decode(self, data: bytes) -> int:
        """Takes what another process has encoded; returns the number."""
        fresh = _columns(_PORTION)
        _decode(data, self._own_columns() + fresh)
        number: int = fresh[0][0]
        self.names = fresh[0][1]
        self.directories += _entries(fresh[1:6])
        texts, groups, counts, places = fresh[11:15]
        self.links += [(path, status, text) for (path, status), text in zip(_entries(fresh[6:11]), texts)]
        self._groups.update(zip(zip(groups[::2], groups[1::2]), range(1, len(counts) + 1)))
        self.files.name_counts.update(enumerate(counts, 1))
        marked = zip(zip(*[iter(places)] * _PLACE_SIZE), _subtrees(fresh[15:]))
        self.marks = [(place, subtree if subtree.path else None) for place, subtree in marked]
        return number

    def _own_columns(self) -> "list[Column]":
        left = self.left
        rows = [left.excluded_paths, left.excluded_kinds, left.excluded_reasons, left.details]
        return [getattr(self.files, name) for name in COLUMNS] + rows + [left.flag_paths, left.flags, self.leftovers]


def encode_subtrees(number: int, subtrees: "Sequence[Subtree]") -> bytes:
    """Returns a batch of subtrees, and its number, as bytes."""
    return _encode([array("Q", [number])] + _subtree_columns(subtrees))


def decode_subtrees(data: bytes) -> "tuple[int, list[Subtree]]":
    """Returns what `encode_subtrees` was given."""
    columns = _columns("Q" + _SUBTREES)
    _decode(data, columns)
    return columns[0][0], list(_subtrees(columns[1:]))


def _subtree_columns(subtrees: "Sequence[Subtree]") -> "list[Column]":
    depths = array("I", [subtree.depth for subtree in subtrees])
    return _entry_columns([(subtree.path, subtree.status) for subtree in subtrees]) + [depths]


def _subtrees(columns: "Sequence[Column]") -> "Iterator[Subtree]":
    return (Subtree(path, depth, status) for (path, status), depth in zip(_entries(columns[:5]), columns[5]))


def _entry_columns(entries: "Sequence[tuple[Any, ...]]") -> "list[Column]":
    none = _status(_NO_MODE, 0, 0, 0)
    statuses = [entry[1] or none for entry in entries]
    return [
        [entry[0] for entry in entries],
        array("H", [status.st_mode for status in statuses]),
        array("q", [table.clamp_ns(status.st_mtime_ns) for status in statuses]),
        array("I", [status.st_uid for status in statuses]),
        array("I", [status.st_gid for status in statuses]),
    ]


def _entries(columns: "Sequence[Column]") -> "Iterator[Any]":
    for path, mode, mtime_ns, uid, gid in zip(*columns):
        yield path, None if mode == _NO_MODE else _status(mode, mtime_ns, uid, gid)


def _status(mode: int, mtime_ns: int, uid: int, gid: int) -> os.stat_result:
    # Behind the ten fields that it has as a tuple: three times in seconds, then in nanoseconds, as in CPython's
    # posixmodule.c.  To name them takes six times as long.
    return os.stat_result((mode, 0, 0, 0, uid, gid, 0, 0, 0, 0, 0, 0, 0, 0, mtime_ns, 0))


def _columns(codes: str) -> "list[Column]":
    return [[] if code == "n" else array(code) for code in codes]


def _encode(columns: "Sequence[Column]") -> bytes:
    raws = [_joined(column) if isinstance(column, list) else bytes(column) for column in columns]
    return b"".join([array("I", map(len, raws)).tobytes()] + raws)


def _joined(names: "list[bytes]") -> bytes:
    return b"\0".join(names + [b""])


def _decode(data: bytes, columns: "Sequence[Column]") -> None:
    """Extends the *columns* by those that *data* holds."""
    sizes = array("I")
    position = sizes.itemsize * len(columns)
    sizes.frombytes(data[:position])
    for column, size in zip(columns, sizes):
        raw = data[position : position + size]
        position += size
        if isinstance(column, list):
            column += raw.split(b"\0")[:-1]
        elif isinstance(column, bytearray):
            column += raw
        else:
            column.frombytes(raw)
