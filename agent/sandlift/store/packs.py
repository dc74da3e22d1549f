"""Packs: the blocks that one capture brought, in one file that ordinary tools can read.

A pack ``packs/<aa>/<name>`` (name: 32 hex digits, the capture's id; aa: its first two) is a sequence of zstd
frames and nothing else:

1. the *head*, a skippable frame (magic 0x184D2A53) with a record of the format number and ``sealed``;
2. *block frames*, each independent, each one run of whole members (`sandlift_helper.members`);
3. the *tail*, a frame of 1,024 zero bytes: the end of a tar archive;
4. the *seek table*, a skippable frame in the seekable format of zstd (contrib/seekable_format, version 0.1.0),
   which lists the compressed and decompressed size of each frame before it, the head's and the tail's too.

So ``zstd -dc PACK | tar t`` lists the digests of the blocks.  A *decoded offset* counts bytes of that tar, and
the offset of a block is the one of its member's header.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Final, Self

import zstandard

from sandlift.errors import StoreDamaged
from sandlift.store import records
from sandlift.store.objects import Objects, UnknownObject, Writer
from sandlift_helper.wire import PACKED_SLACK, RUN_MAX

FRAME_MAX: Final = RUN_MAX + PACKED_SLACK
"""The most bytes of one frame as it is stored; decoded it is at most ``RUN_MAX``."""
WINDOW_MAX: Final = 8 << 20
"""The largest zstd window that a stored frame may ask a reader to have."""

_NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SKIPPABLE = struct.Struct("<II")
_HEAD_MAGIC = 0x184D2A53
_TABLE_MAGIC = 0x184D2A5E
_FOOTER = struct.Struct("<IBI")
_FOOTER_MAGIC = 0x8F92EAB1
# The seekable format's own limit.
_FRAMES_MAX = 0x8000000
_HEAD_MAX = 4096
# One read that brings the seek table of a pack of up to 8,000 frames.
_TAIL_READ = 64 << 10
_TAR_END = bytes(1024)
# A zstd block takes at least 4 bytes, a header and one byte to repeat, and holds at most 128 KiB (RFC 8878, 3.1.1.2).
_ZSTD_BLOCK_MIN = 4
_ZSTD_BLOCK_MAX = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInfo:
    """A pack that is stored."""

    name: str
    frames: int
    """Block frames: without head and tail."""
    blocks_bytes: int
    """Decoded size of all block frames, member headers and padding included."""
    size_bytes: int
    """Size of the object."""


def key_of(name: str) -> str:
    """Returns the key of the pack *name*.  Raises ValueError unless it is 32 hex digits."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"not the name of a pack: {name!r}")
    return f"packs/{name[:2]}/{name}"


class PackWriter:
    """Writes one pack; nothing of it can be seen before `commit`.  One thread at a time may use it.

    As a context manager it aborts unless it was committed.  The object is begun with the first frame: a capture
    that brings no block makes no pack.
    """

    def __init__(self, objects: Objects, name: str) -> None:
        self.name = name
        self.blocks_bytes = 0
        """Decoded bytes so far: the decoded offset of the next frame."""
        self._objects = objects
        self._key = key_of(name)
        self._writer: Writer | None = None
        self._compressed = array("I")
        self._decoded = array("I")

    @property
    def size_bytes(self) -> int:
        """Stored bytes so far."""
        return self._writer.size_bytes if self._writer else 0

    def append(self, frame: bytes | memoryview, decoded_size_bytes: int) -> int:
        """Appends one zstd frame that holds a run of whole members, and returns its decoded offset.

        The frame's content is the caller's word.  Raises ValueError for a size that no run has, StoreFull,
        StoreUnusable.
        """
        if not 0 < decoded_size_bytes <= RUN_MAX or decoded_size_bytes % 512 or not 0 < len(frame) <= FRAME_MAX:
            raise ValueError(f"no run of blocks: {len(frame)} bytes that decode to {decoded_size_bytes}")
        if self._writer is None:
            self._writer = self._objects.put(self._key)
            head = records.encode({"sandlift-pack": records.FORMAT, "sealed": None})
            self._write(_SKIPPABLE.pack(_HEAD_MAGIC, len(head)) + head, 0)
        offset = self.blocks_bytes
        self._write(frame, decoded_size_bytes)
        self.blocks_bytes += decoded_size_bytes
        return offset

    def commit(self) -> PackInfo | None:
        """Completes and stores the pack; None when no frame was appended, and then nothing is stored."""
        if self._writer is None:
            return None
        try:
            self._write(zstandard.ZstdCompressor(level=1).compress(_TAR_END), len(_TAR_END))
            count = len(self._compressed)
            sizes = array("I", bytes(8 * count))
            sizes[0::2], sizes[1::2] = self._compressed, self._decoded
            table = _little_endian(sizes).tobytes() + _FOOTER.pack(count, 0, _FOOTER_MAGIC)
            self._writer.write(_SKIPPABLE.pack(_TABLE_MAGIC, len(table)) + table)
            self._writer.commit()
        except BaseException:
            self.abort()
            raise
        return PackInfo(
            name=self.name, frames=count - 2, blocks_bytes=self.blocks_bytes, size_bytes=self._writer.size_bytes
        )

    def abort(self) -> None:
        """Drops what was written; does nothing after `commit`."""
        if self._writer is not None:
            self._writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _write(self, frame: bytes | memoryview, decoded_size_bytes: int) -> None:
        assert self._writer is not None
        if len(self._compressed) >= _FRAMES_MAX:
            raise ValueError("a pack cannot have more frames")
        self._writer.write(frame)
        self._compressed.append(len(frame))
        self._decoded.append(decoded_size_bytes)


class PackReader:
    """Reads the block frames of one pack, numbered from 0.

    The four tables have one number for each block frame.  Reading frames is safe from several threads, decoding
    them is not.
    """

    compressed_offset: array[int]
    compressed_size: array[int]
    decoded_offset: array[int]
    decoded_size: array[int]

    def __init__(self, objects: Objects, name: str) -> None:
        """Reads head and seek table.  Raises StoreDamaged (also when there is no such pack), StoreNewer."""
        self.name = name
        self.key = key_of(name)
        self._objects = objects
        self._what = f"the pack {self.key}"
        self._decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX)
        try:
            self.size_bytes = objects.size(self.key)
            compressed, decoded = self._read_table()
            self._read_head(compressed[0])
        except UnknownObject:
            raise StoreDamaged(f"{self._what} is missing") from None
        self.compressed_offset = array("Q", accumulate(compressed[:-2], initial=0))[1:]
        self.compressed_size = compressed[1:-1]
        self.decoded_offset = array("Q", accumulate(decoded[1:-2], initial=0))
        self.decoded_size = decoded[1:-1]
        self.blocks_bytes = self.decoded_offset[-1] + self.decoded_size[-1]
        """Decoded size of all block frames."""

    def __len__(self) -> int:
        return len(self.compressed_size)

    def frame_index(self, decoded_offset: int) -> int:
        """Returns the frame that holds the byte at *decoded_offset*.  Raises StoreDamaged beyond the last."""
        if not 0 <= decoded_offset < self.blocks_bytes:
            raise StoreDamaged(f"{self._what} has no block at {decoded_offset}, it ends at {self.blocks_bytes}")
        return bisect_right(self.decoded_offset, decoded_offset) - 1

    def open_file(self) -> int | None:
        """Returns a descriptor of the pack's file, for the caller to close; None where the store has no files.

        A frame lies there at its ``compressed_offset``.  Raises StoreDamaged.
        """
        try:
            return self._objects.open_file(self.key)
        except UnknownObject:
            raise StoreDamaged(f"{self._what} is missing") from None

    def read_frame(self, index: int) -> bytes:
        """Returns one frame as it is stored."""
        return self._read(self.compressed_offset[index], self.compressed_size[index])

    def decode_frame(self, index: int) -> bytes:
        """Returns one frame decoded: a run of members, not yet parsed or hashed.  Raises StoreDamaged."""
        return self._decode(self.read_frame(index), self.decoded_size[index], f"frame {index}")

    def check_tail(self) -> None:
        """Decodes the tail, which nothing but `tar` needs.  Raises StoreDamaged."""
        offset = self.compressed_offset[-1] + self.compressed_size[-1]
        tail = self._read(offset, self._tail_size)
        if self._decode(tail, len(_TAR_END), "the tail") != _TAR_END:
            raise StoreDamaged(f"{self._what}: the tail is not the end of an archive")

    def _decode(self, frame: bytes, size: int, part: str) -> bytes:
        return decompress(self._decoder, frame, f"{self._what}: {part}", lambda stated: stated == size)

    def _read(self, offset: int, size: int) -> bytes:
        try:
            return self._objects.get_range(self.key, offset, size)
        except UnknownObject:
            raise StoreDamaged(f"{self._what} is missing") from None

    def _read_table(self) -> tuple[array[int], array[int]]:
        """Returns the compressed and the decoded sizes of all frames before the seek table."""
        known = min(self.size_bytes, _TAIL_READ)
        end = self._read(self.size_bytes - known, known)
        if len(end) < _FOOTER.size:
            raise self._bad_table("it is cut off")
        count, descriptor, magic = _FOOTER.unpack_from(end, len(end) - _FOOTER.size)
        size = _SKIPPABLE.size + 8 * count + _FOOTER.size
        if magic != _FOOTER_MAGIC or descriptor or not 3 <= count <= _FRAMES_MAX or size > self.size_bytes:
            raise self._bad_table("its footer is wrong")
        if size > known:
            end = self._read(self.size_bytes - size, size)
        table = memoryview(end)[len(end) - size :]
        if _SKIPPABLE.unpack_from(table) != (_TABLE_MAGIC, size - _SKIPPABLE.size):
            raise self._bad_table("its header is wrong")
        sizes = array("I")
        sizes.frombytes(table[_SKIPPABLE.size : size - _FOOTER.size])
        sizes = _little_endian(sizes)
        compressed, decoded = sizes[0::2], sizes[1::2]
        if sum(compressed) + size != self.size_bytes:
            raise self._bad_table("its sizes do not add up")
        blocks = decoded[1:-1]
        if (
            decoded[0]
            or decoded[-1] != len(_TAR_END)
            or min(blocks) == 0
            or max(blocks) > RUN_MAX
            or max(compressed) > FRAME_MAX
        ):
            raise self._bad_table("a frame has a size that none can have")
        self._tail_size = compressed[-1]
        return compressed, decoded

    def _read_head(self, size: int) -> None:
        if not _SKIPPABLE.size < size <= _HEAD_MAX:
            raise StoreDamaged(f"{self._what} has no head")
        head = self._read(0, size)
        if _SKIPPABLE.unpack_from(head) != (_HEAD_MAGIC, size - _SKIPPABLE.size):
            raise StoreDamaged(f"{self._what} has no head")
        fields = records.decode(head[_SKIPPABLE.size :], self._what)
        records.check_format(fields, self._what, field="sandlift-pack")

    def _bad_table(self, reason: str) -> StoreDamaged:
        return StoreDamaged(f"{self._what} has no usable seek table: {reason}")


def decompress(decoder: zstandard.ZstdDecompressor, frame: bytes, what: str, accepts: Callable[[int], bool]) -> bytes:
    """Returns the content of exactly one zstd frame whose stated size *accepts* takes.  Raises StoreDamaged.

    The size is judged before anything is allocated, also against the most that so many bytes can stand for: the
    decoder would reserve whatever a frame states.
    """
    try:
        stated = zstandard.frame_content_size(frame)
        possible = len(frame) // _ZSTD_BLOCK_MIN * _ZSTD_BLOCK_MAX
        if not 0 <= stated <= possible or not accepts(stated):
            raise StoreDamaged(f"{what} states a size of {stated} bytes, which is wrong")
        content = decoder.decompress(frame, max_output_size=stated, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise StoreDamaged(f"{what} does not decompress: {error}") from error
    if len(content) != stated:
        raise StoreDamaged(f"{what} decompresses to {len(content)} bytes instead of {stated}")
    return content


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column.byteswap()
    return column
