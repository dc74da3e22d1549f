"""What a target's files looked like, put down for its next capture."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterable
from itertools import accumulate

from sandlift.selection import files_of, select
from sandlift.store import RefRecord, ScanCache, encode_part
from sandlift_helper import parts, table
from sandlift_helper.table import Segment
from sandlift_helper.wire import SEGMENT_MAX

PART_ROWS = 1024
"""Entries of one part: what differs from the base is told apart that finely."""
FIRSTS_MAX = 4 << 20
"""The most bytes of the names that a request can hold beside the rest."""
_NEVER = bytes(32)
_PLAIN = ("paths", "modes", "mtimes_ns", "uids", "gids", "sizes", "ctimes_ns", "inodes", "settled")


def scan_cache(rows: Segment, record: RefRecord, *, target: str, instance: bytes, packs: Iterable[str]) -> ScanCache:
    """Returns the scan cache of the target that *record* was captured from.

    *rows* are those of the snapshot, with a stamp for each file.  A part in which anything could differ unseen
    gets a digest that nothing has.
    """
    others = _without_files(rows)
    files = _files(rows)
    firsts = [b"", *rows.paths[PART_ROWS::PART_ROWS]]
    starts = parts.bounds(files.paths, firsts)
    ends = [*starts[1:], len(files)]
    blocks = array("Q", accumulate(files_of(rows, "counts"), initial=0))
    prefixes = array("Q")
    prefixes.frombytes(bytes(rows.digests))
    prefixes = prefixes[::4]
    digests, encoded, fits = [], [], True
    for other, start, end in zip(parts.cut(others, parts.starts_of(others, firsts)), starts, ends, strict=True):
        calm = not other.flags and all(files.settled[start:end])
        digests.append(parts.part_digest(other, files, start, end) if calm else _NEVER)
        known = Segment()
        for name in (*_PLAIN, "kinds", "groups", "counts"):
            setattr(known, name, getattr(files, name)[start:end])
        data = parts.encode_known(known, prefixes[blocks[start] : blocks[end]].tobytes())
        encoded.append(encode_part(data))
        fits = fits and len(data) <= SEGMENT_MAX
    joined = b"".join(first + b"\0" for first in firsts)
    if not fits or len(joined) > FIRSTS_MAX:
        # Names as long as these do not travel; the blocks are offered all the same.
        joined, digests, encoded = b"", [], []
    return ScanCache(
        workspace=record.workspace,
        target=target,
        source=record.source,
        identity=bytes.fromhex(record.snapshot),
        number=record.number,
        instance=instance,
        packs=tuple(packs),
        firsts=joined,
        digests=b"".join(digests),
        parts=tuple(encoded),
    )


def _without_files(rows: Segment) -> Segment:
    others = select(rows, [row for row, kind in enumerate(rows.kinds) if kind != table.FILE])
    for name in ("excluded_paths", "excluded_kinds", "excluded_reasons", "details", "flag_paths", "flags"):
        setattr(others, name, getattr(rows, name))
    others.ctimes_ns, others.inodes, others.settled = array("q"), array("Q"), bytearray()
    return others


def _files(rows: Segment) -> Segment:
    """Returns the files without their content."""
    files = copy.copy(rows)
    for name in ("paths", "modes", "mtimes_ns", "uids", "gids", "sizes"):
        column = getattr(rows, name)
        items = files_of(rows, name)
        setattr(files, name, array(column.typecode, items) if isinstance(column, array) else list(items))
    files.kinds = bytearray([table.FILE]) * len(files.paths)
    files.groups = files.counts = array("I", bytes(4 * len(files.paths)))
    return files
