"""How a plan travels to the helper: tables cut into frames, and stored frames of blocks that bring what is missing."""

from __future__ import annotations

import copy
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from sandlift.errors import StoreDamaged
from sandlift.manifest import little_endian
from sandlift_helper import members, parts, table, wire
from sandlift_helper.table import Segment, split_digests

if TYPE_CHECKING:
    from sandlift.store import PackReader, StoredSnapshot

SEGMENT_TARGET = 16 << 20


class Packs(Protocol):
    """The packs of one snapshot."""

    def pack(self, index: int) -> PackReader:
        """Returns the reader of the pack of that number.  Raises StoreDamaged, StoreNewer."""
        ...


# A place has the number of the snapshot's pack in its upper bits, a decoded offset in that in these lower ones.
_OFFSET_BITS: Final = 44
_PACKS_MAX: Final = (1 << 64 - _OFFSET_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Which frames travel, in order, and where in them each block is."""

    stored: tuple[tuple[int, int], ...]
    """(number of the pack in the snapshot, frame in the pack); they come first."""
    made: tuple[bytes, ...]
    """Runs of blocks that the snapshot lacks; they come after those."""
    starts: array[int]
    """For each frame, stored and then made, the place where it begins."""
    places: array[int]
    """For each use of a block in the plan, in order, the place of its bytes, or `wire.LOCAL`."""

    @property
    def column(self) -> bytes:
        """What the helper needs to know of it: how many frames there are, their starts, and the places."""
        return little_endian(array("Q", [len(self.starts)]) + self.starts + self.places)


def deliver(
    rows: Segment,
    digests: Sequence[bytes],
    snapshot: StoredSnapshot,
    packs: Packs,
    local: Collection[bytes],
    extra: Mapping[bytes, bytes],
) -> Delivery:
    """Returns the delivery for the blocks of *rows*, stored frames in order of the packs.

    *digests* are the distinct blocks of the *snapshot*, *local* those that the target holds, *extra* has the blocks
    that the snapshot lacks.  Raises StoreDamaged, StoreNewer.
    """
    offsets = snapshot.offsets
    if len(digests) != len(offsets) or max(offsets, default=0) >> _OFFSET_BITS or len(snapshot.packs) >= _PACKS_MAX:
        raise StoreDamaged(
            "a stored snapshot does not place each of its blocks", hint="sandlift verify shows what is damaged"
        )
    # The block itself comes after its member's header.
    numbers = zip(snapshot.pack_index, offsets, strict=True)
    blocks_at = [(pack << _OFFSET_BITS) + offset + members.HEADER_SIZE for pack, offset in numbers]
    place_of = dict(zip(digests, blocks_at, strict=True))
    runs: dict[int, bytes] = {}
    end = len(snapshot.packs) << _OFFSET_BITS
    for digest, block in extra.items():
        run = members.header(digest, len(block)) + block + bytes(members.padded(len(block)) - len(block))
        runs[end] = run
        place_of[digest] = end + members.HEADER_SIZE
        end += len(run)
    place_of.update(dict.fromkeys(local, wire.LOCAL))
    places = array("Q", map(place_of.__getitem__, split_digests(rows.digests)))
    stored, made, starts = _frames(sorted(set(places) - {wire.LOCAL}), packs, runs)
    return Delivery(stored=tuple(stored), made=tuple(made), starts=starts, places=places)


def _frames(
    needed: Sequence[int], packs: Packs, runs: Mapping[int, bytes]
) -> tuple[list[tuple[int, int]], list[bytes], array[int]]:
    """Returns the stored frames and the made runs that have the blocks at sorted places, and where each begins."""
    stored: list[tuple[int, int]] = []
    made: list[bytes] = []
    starts = array("Q")
    at = 0
    while at < len(needed):
        header = needed[at] - members.HEADER_SIZE
        if header in runs:
            start, size = header, len(runs[header])
            made.append(runs[header])
        else:
            pack = header >> _OFFSET_BITS
            reader = packs.pack(pack)
            frame = reader.frame_index(header - (pack << _OFFSET_BITS))
            start, size = (pack << _OFFSET_BITS) + reader.decoded_offset[frame], reader.decoded_size[frame]
            stored.append((pack, frame))
        starts.append(start)
        at = bisect_left(needed, start + size, at + 1)
    return stored, made, starts


def table_frames(rows: Segment, codec: int) -> Iterator[bytes]:
    """Yields *rows* as manifest frames, then the empty have frame that ends them."""
    for encoded in segments(rows):
        yield packed(wire.MANIFEST, encoded, codec)
    yield packed(wire.HAVE, b"", codec)


def column_frames(column: bytes, codec: int) -> Iterator[bytes]:
    """Yields *column* as have frames, then the empty one that ends them."""
    for start in range(0, len(column), SEGMENT_TARGET):
        yield packed(wire.HAVE, column[start : start + SEGMENT_TARGET], codec)
    yield packed(wire.HAVE, b"", codec)


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
    starts, size = [0], 0
    for row, count in enumerate(rows.counts):
        size += len(rows.paths[row]) + 48 + 36 * count
        if size >= SEGMENT_TARGET:
            starts.append(row + 1)
            size = 0
    entries = copy.copy(rows)
    entries.excluded_paths, entries.details, entries.flag_paths = [], [], []
    entries.excluded_kinds, entries.excluded_reasons, entries.flags = bytearray(), bytearray(), bytearray()
    for part in parts.cut(entries, [(start, 0, 0) for start in starts]):
        yield table.encode(part)
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
