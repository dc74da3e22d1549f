"""How a plan travels to the helper: tables cut into frames, and stored frames of blocks that bring what is missing."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sandlift_helper import members, table, wire
from sandlift_helper.table import Segment, split_digests

SEGMENT_TARGET = 16 << 20


class Places(Protocol):
    """Where a snapshot's blocks rest."""

    def place(self, index: int) -> tuple[int, int]:
        """Returns (pack, frame in the pack) of a distinct block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Which frames travel, in order, and which of them brings each block."""

    stored: tuple[tuple[int, int], ...]
    """(number of the pack in the snapshot, frame in the pack); they come first."""
    made: tuple[bytes, ...]
    """Runs of blocks that the snapshot lacks; they come after those."""
    frame_of: array[int]
    """For each distinct block of the plan, the number of its frame, or `wire.LOCAL`."""


def deliver(
    rows: Segment, numbers: Mapping[bytes, int], places: Places, local: Collection[bytes], extra: Mapping[bytes, bytes]
) -> Delivery:
    """Returns the delivery for the blocks of *rows*, stored frames in order of the packs.

    *numbers* gives a block's number in the snapshot by its digest, *local* the digests that the target holds,
    *extra* the blocks that the snapshot lacks.
    """
    distinct = list(dict.fromkeys(split_digests(rows.digests)))
    place_of = {
        digest: places.place(numbers[digest]) for digest in distinct if digest not in local and digest not in extra
    }
    stored = sorted(set(place_of.values()))
    number = {place: index for index, place in enumerate(stored)}
    made = [digest for digest in distinct if digest in extra and digest not in local]
    made_number = {digest: len(stored) + index for index, digest in enumerate(made)}
    frame_of = array("I")
    for digest in distinct:
        if digest in place_of:
            frame_of.append(number[place_of[digest]])
        else:
            frame_of.append(made_number.get(digest, wire.LOCAL))
    runs = []
    for digest in made:
        block = extra[digest]
        padding = bytes(members.padded(len(block)) - len(block))
        runs.append(members.header(digest, len(block)) + block + padding)
    return Delivery(stored=tuple(stored), made=tuple(runs), frame_of=frame_of)


def table_frames(rows: Segment, last: bytes, codec: int) -> Iterator[bytes]:
    """Yields *rows* as manifest frames, then the have frame that ends them, with *last* in it."""
    for encoded in segments(rows):
        yield packed(wire.MANIFEST, encoded, codec)
    yield packed(wire.HAVE, last, codec)


def packed(kind: int, data: bytes, codec: int) -> bytes:
    """Returns a frame whose payload is *data*, packed by zlib or not at all."""
    encoded = zlib.compress(data, 1) if codec == wire.CODEC_ZLIB else data
    return wire.frame(kind, wire.packed_header(codec, len(data)) + encoded)


def wanted_frames(paths: Sequence[bytes], codec: int) -> Iterator[bytes]:
    """Yields want frames for *paths*, then the empty one that ends them."""
    part: list[bytes] = []
    size = 0
    for path in paths:
        part.append(path)
        size += len(path) + 1
        if size >= SEGMENT_TARGET:
            yield packed(wire.WANT, b"\0".join(part), codec)
            part, size = [], 0
    if part:
        yield packed(wire.WANT, b"\0".join(part), codec)
    yield packed(wire.WANT, b"", codec)


def segments(rows: Segment) -> Iterator[bytes]:
    """Yields the encodings of *rows*, cut to fit the stream's frames."""
    if rows.size_estimate() + 17 * (len(rows.excluded_paths) + len(rows.flag_paths)) < SEGMENT_TARGET:
        yield table.encode(rows)
        return
    start, size = 0, 0
    for row, count in enumerate(rows.counts):
        size += len(rows.paths[row]) + 48 + 36 * count
        if size >= SEGMENT_TARGET:
            yield table.encode(_slice(rows, start, row + 1))
            start, size = row + 1, 0
    yield table.encode(_slice(rows, start, len(rows)))
    part = Segment()
    for path, kind, reason in zip(rows.excluded_paths, rows.excluded_kinds, rows.excluded_reasons, strict=True):
        part.exclude(path, kind, reason)
        if part.names_size >= SEGMENT_TARGET:
            yield table.encode(part)
            part = Segment()
    for path, flag in zip(rows.flag_paths, rows.flags, strict=True):
        part.flag(path, flag)
        if part.names_size >= SEGMENT_TARGET:
            yield table.encode(part)
            part = Segment()
    yield table.encode(part)


def _slice(rows: Segment, start: int, stop: int) -> Segment:
    """Returns entries *start* to *stop* as they stand, group numbers included."""
    part = Segment()
    part.root = rows.root if not start else None
    for name in ("paths", "kinds", "modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts"):
        setattr(part, name, getattr(rows, name)[start:stop])
    links_before = rows.kinds[:start].count(table.LINK)
    part.texts = rows.texts[links_before : links_before + part.kinds.count(table.LINK)]
    part.originals = [b""] * len(part.texts)
    before = sum(rows.counts[:start])
    part.digests = rows.digests[32 * before : 32 * (before + sum(part.counts))]
    holes = [
        sum(n for size, n in zip(sizes, counts, strict=True) if n < table.block_count(size))
        for sizes, counts in ((rows.sizes[:start], rows.counts[:start]), (part.sizes, part.counts))
    ]
    part.positions = rows.positions[holes[0] : holes[0] + holes[1]]
    return part
