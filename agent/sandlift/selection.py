"""Some rows of a table, as a table of their own."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sandlift_helper import table
from sandlift_helper.table import Segment

_ENTRY_COLUMNS = ("modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts")


def select(rows: Segment, chosen: Sequence[int]) -> Segment:
    """Returns the entries in the rows *chosen*, which rise; stamps too where there are any, and the root.

    The first name of a hard-link group carries its blocks, whichever that is now.
    """
    taken = Segment()
    taken.root = rows.root
    taken.paths = [rows.paths[row] for row in chosen]
    taken.kinds = bytearray([rows.kinds[row] for row in chosen])
    for name in _ENTRY_COLUMNS:
        column = getattr(rows, name)
        setattr(taken, name, array(column.typecode, [column[row] for row in chosen]))
    if rows.texts:
        links = [place for place, row in _places(rows, table.LINK, chosen)]
        taken.texts = [rows.texts[place] for place in links]
        taken.originals = [rows.originals[place] for place in links]
    if rows.inodes:
        files = [place for place, row in _places(rows, table.FILE, chosen)]
        taken.ctimes_ns = array("q", [rows.ctimes_ns[place] for place in files])
        taken.inodes = array("Q", [rows.inodes[place] for place in files])
        taken.settled = bytearray([rows.settled[place] for place in files])
    _take_content(taken, rows, chosen)
    taken.count_names()
    return taken


def _places(rows: Segment, kind: int, chosen: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (index among the rows of *kind*, row) of those that are chosen."""
    place_of = {row: place for place, row in enumerate(row for row, other in enumerate(rows.kinds) if other == kind)}
    return [(place_of[row], row) for row in chosen if row in place_of]


def _take_content(taken: Segment, rows: Segment, chosen: Sequence[int]) -> None:
    contents, carriers = list(rows.contents()), rows.first_of_groups()
    started: set[int] = set()
    digests = []
    for index, row in enumerate(chosen):
        group = rows.groups[row]
        digest, position, count = contents[carriers[group] if group else row]
        if group:
            if group in started:
                count = 0
            started.add(group)
            taken.counts[index] = count
        if count:
            digests.append(rows.digests[32 * digest : 32 * (digest + count)])
            if position >= 0:
                taken.positions += rows.positions[position : position + count]
    taken.digests = bytearray().join(digests)
