"""Some rows of a table, as a table of their own."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

from sandlift_helper import table
from sandlift_helper.table import Segment

_ENTRY_COLUMNS = ("modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts")


def select(rows: Segment, chosen: Sequence[int]) -> Segment:
    """Returns the entries in the rows *chosen*, which rise; stamps too where there are any, and the root.

    The first name of a hard-link group carries its blocks, whichever that is now.
    """
    taken = Segment()
    taken.root = rows.root
    flags = bytearray(len(rows))
    for row in chosen:
        flags[row] = 1
    taken.paths = list(compress(rows.paths, flags))
    taken.kinds = bytearray(compress(rows.kinds, flags))
    for name in _ENTRY_COLUMNS:
        column = getattr(rows, name)
        setattr(taken, name, array(column.typecode, compress(column, flags)))
    if rows.texts:
        links = _flags_of(rows, table.LINK, flags)
        taken.texts, taken.originals = list(compress(rows.texts, links)), list(compress(rows.originals, links))
    if rows.inodes:
        files = _flags_of(rows, table.FILE, flags)
        taken.ctimes_ns = array("q", compress(rows.ctimes_ns, files))
        taken.inodes = array("Q", compress(rows.inodes, files))
        taken.settled = bytearray(compress(rows.settled, files))
    _take_content(taken, rows, flags)
    taken.count_names()
    return taken


def files_of(rows: Segment, column: str) -> Iterator[Any]:
    """Yields a column's items in the rows that are files."""
    return compress(getattr(rows, column), _is_file(rows))


def _is_file(rows: Segment) -> Iterator[bool]:
    return (kind == table.FILE for kind in rows.kinds)


def _flags_of(rows: Segment, kind: int, flags: bytearray) -> bytearray:
    """Returns the flags of the rows of one kind."""
    return bytearray(flag for flag, other in zip(flags, rows.kinds, strict=True) if other == kind)


def _take_content(taken: Segment, rows: Segment, flags: bytearray) -> None:
    carried = _contents_of_groups(rows)
    counts, digests, positions = array("I"), bytearray(), array("I")
    for flag, group, content in zip(flags, rows.groups, rows.contents(), strict=True):
        if not flag:
            continue
        digest, position, count = carried.pop(group, (0, -1, 0)) if group else content
        counts.append(count)
        digests += rows.digests[32 * digest : 32 * (digest + count)]
        if position >= 0:
            positions += rows.positions[position : position + count]
    taken.counts, taken.digests, taken.positions = counts, digests, positions


def _contents_of_groups(rows: Segment) -> dict[int, tuple[int, int, int]]:
    found: dict[int, tuple[int, int, int]] = {}
    for group, content in zip(rows.groups, rows.contents(), strict=True):
        if group:
            found.setdefault(group, content)
    return found
