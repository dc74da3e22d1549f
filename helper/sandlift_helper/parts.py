"""A table cut into parts: ranges of its rows in path order.

A segment is sent in parts where it is large.  The base of a capture is compared in parts: the host names the
first path of each and the digest of what it holds, and a part that the sandbox's scan digests to the same value
need not travel, neither way.
"""

from hashlib import sha256

from sandlift_helper import table
from sandlift_helper.wire import BLOCK_MAX

MYPY = False
if MYPY:
    from collections.abc import Iterator, Sequence

    from sandlift_helper.table import Segment

    # The first entry, excluded row and flag of a part.
    Start = tuple[int, int, int]

_COUNTED = ("paths", "kinds", "modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts")
_EXCLUDED = ("excluded_paths", "excluded_kinds", "excluded_reasons", "details")
# What a scan knows of a file, without reading it.
_SEEN = ("paths", "modes", "mtimes_ns", "uids", "gids", "sizes", "ctimes_ns", "inodes")


def cut(rows: "Segment", starts: "Sequence[Start]") -> "Iterator[Segment]":
    """Yields the parts that begin at *starts*, in one pass; the root goes with the first one."""
    ends = list(starts[1:]) + [(len(rows), len(rows.excluded_paths), len(rows.flag_paths))]
    link = file = digest = position = 0
    for index, ((entry, excluded, flag), (entry_end, excluded_end, flag_end)) in enumerate(zip(starts, ends)):
        part = table.Segment()
        part.root = None if index else rows.root
        _slice(rows, part, _COUNTED, entry, entry_end)
        links = part.kinds.count(table.LINK)
        _slice(rows, part, ("texts", "originals"), link, link + links)
        link += links
        if rows.inodes:
            files = part.kinds.count(table.FILE)
            _slice(rows, part, ("ctimes_ns", "inodes", "settled"), file, file + files)
            file += files
        blocks = sum(part.counts)
        part.digests = rows.digests[32 * digest : 32 * (digest + blocks)]
        digest += blocks
        placed = sum(count for size, count in zip(part.sizes, part.counts) if count * BLOCK_MAX < size)
        part.positions = rows.positions[position : position + placed]
        position += placed
        _slice(rows, part, _EXCLUDED, excluded, excluded_end)
        _slice(rows, part, ("flag_paths", "flags"), flag, flag_end)
        part.count_names()
        yield part


def _slice(rows: "Segment", part: "Segment", names: "tuple[str, ...]", start: int, end: int) -> None:
    for name in names:
        setattr(part, name, getattr(rows, name)[start:end])


def slices(rows: "Segment", count: int) -> "Iterator[Segment]":
    """Yields *rows* in parts of at most *count* entries, excluded rows and flags each; at least one part."""
    sizes = len(rows), len(rows.excluded_paths), len(rows.flag_paths)
    starts = [(min(at, sizes[0]), min(at, sizes[1]), min(at, sizes[2])) for at in range(0, max(sizes) or 1, count)]
    return cut(rows, starts)


def bounds(paths: "list[bytes]", firsts: "Sequence[bytes]") -> "list[int]":
    """Returns where each part begins in *paths*, which are in path order; the first part begins at 0."""
    found = [0]
    for first in firsts[1:]:
        key = table.sort_key(first)
        low, high = found[-1], len(paths)
        while low < high:
            middle = (low + high) // 2
            if table.sort_key(paths[middle]) < key:
                low = middle + 1
            else:
                high = middle
        found.append(low)
    return found


def starts_of(rows: "Segment", firsts: "Sequence[bytes]") -> "list[Start]":
    """Returns where the parts with these first paths begin in a sorted table."""
    return list(zip(*(bounds(paths, firsts) for paths in (rows.paths, rows.excluded_paths, rows.flag_paths))))


def part_digest(others: "Segment", files: object, start: int, end: int) -> bytes:
    """Returns the digest of a part: of all its rows but the files', and of files *start* to *end*.

    *files* has the columns of `table.Segment` that a scan can fill.  Content is no part of it: what stands for
    that is each file's stamp.
    """
    plain = table.Segment()
    for name in _SEEN:
        setattr(plain, name, getattr(files, name)[start:end])
    summed = sha256(table.encode(others))
    summed.update(table.encode(plain))
    return summed.digest()


def encode_known(files: "Segment", prefixes: bytes) -> bytes:
    """Returns a part of a base as it travels: its files with their stamps, and 8 bytes of each block's digest."""
    encoded = table.encode(files)
    return len(encoded).to_bytes(4, "little") + encoded + prefixes


def decode_known(data: "bytes | memoryview") -> "tuple[Segment, memoryview]":
    """Returns what `encode_known` was given.  Raises ValueError."""
    view = memoryview(data)
    size = 4 + int.from_bytes(view[:4], "little")
    if len(view) < size or (len(view) - size) % 8:
        raise ValueError("a part of the base has %d bytes" % len(view))
    return table.decode(view[4:size]), view[size:]
