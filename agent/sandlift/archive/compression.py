"""The archive's bytes, decompressed: one stream of one format, and nothing before, between or after it.

Where readers could disagree the archive is refused: several gzip members, zstd frames or xz streams, skippable
frames, and trailing bytes (some readers go on, some stop, some fail).  ``gzip``, ``pigz``, ``zstd -T0`` and ``xz -T0``
write one; ``pzstd`` and ``bgzip`` write several.  Output comes in pieces of bounded size whatever the input says,
and is refused where it grows out of proportion.
"""

from __future__ import annotations

import io
import lzma
import select
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

import zstandard

from sandlift.archive.bounds import WINDOW_MAX, XZ_MEMORY_MAX, ArchiveBounds, over
from sandlift.deadline import Deadline
from sandlift.errors import HostLimit, UnsafeArchive

Compression = Literal["auto", "none", "gzip", "zstd", "xz"]

PIECE_BYTES = 256 << 10
RATIO_FREE_BYTES = 8 << 20

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
XZ_MAGIC = b"\xfd7zXZ\0"
_KNOWN: tuple[tuple[bytes, Compression], ...] = ((GZIP_MAGIC, "gzip"), (ZSTD_MAGIC, "zstd"), (XZ_MAGIC, "xz"))
_FOREIGN = (
    (b"BZh", "bzip2", "bzip2 -dc FILE | sandlift import ..."),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc FILE | sandlift import ..."),
    (b"\x5d\0\0", "lzma", "xz -dc FILE | sandlift import ..."),
    (b"PK\x03\x04", "zip", "unpack it and capture the directory"),
)
_MANY_HINT = {
    "gzip": "gzip -dc FILE | sandlift import ...",
    "zstd": "zstd -dc FILE | sandlift import ...",
    "xz": "xz -dc FILE | sandlift import ...",
}

_ZSTD_BLOCK_MAX = 128 << 10
_ZSTD_RLE, _ZSTD_RESERVED = 1, 3


class ByteStream(Protocol):
    """What an archive is read from."""

    def read(self, size: int, /) -> bytes | None:
        """Returns up to *size* bytes, empty at the end; None when there are none yet."""


class Source:
    """The archive as it comes: counted, and waited for no longer than allowed."""

    def __init__(self, stream: ByteStream, deadline: Deadline, silence_s: float) -> None:
        self.count_bytes = 0
        self._stream = stream
        self._deadline = deadline
        self._silence_s = silence_s
        self._held = b""
        self._taken = 0
        self._poll: select.poll | None = None
        # What is buffered above a descriptor cannot be seen by asking the descriptor, so only raw streams are waited
        # for in slices.
        if isinstance(stream, io.RawIOBase):
            self._poll = select.poll()
            self._poll.register(stream.fileno(), select.POLLIN)

    def peek(self, size: int) -> bytes:
        """Returns the next *size* bytes, fewer at the end, without taking them."""
        while len(self._held) - self._taken < size and (piece := self._next()):
            self._held = self._held[self._taken :] + piece
            self._taken = 0
        return self._held[self._taken : self._taken + size]

    def read(self) -> bytes:
        """Returns the next piece; empty at the end.  Raises UnsafeArchive, HostLimit, DeadlineExceeded, Interrupted."""
        if self._taken < len(self._held):
            held, self._held = self._held[self._taken :], b""
            self._taken = 0
            return held
        return self._next()

    def take(self, size: int) -> bytes:
        """Returns exactly *size* bytes.  Raises UnsafeArchive when there are fewer."""
        taken = self.peek(size)
        if len(taken) < size:
            raise _cut_off()
        self._taken += size
        return taken

    def _next(self) -> bytes:
        doing = "reading the archive"
        self._deadline.check(doing)
        silent = Deadline.after(self._silence_s)
        while True:
            if self._poll is not None:
                while not self._poll.poll(1000 * self._deadline.slice_s()):
                    self._deadline.check(doing)
                    if silent.over:
                        raise _silent(self._silence_s)
            try:
                piece = self._stream.read(PIECE_BYTES)
            except OSError as error:
                raise UnsafeArchive(f"the archive cannot be read: {error.strerror or error}") from error
            if piece is not None:
                self.count_bytes += len(piece)
                return piece
            # Nothing yet, and no word of when: asked again soon.
            time.sleep(self._deadline.slice_s(0.05))
            self._deadline.check(doing)


class Plain:
    """The decompressed archive; ``position`` counts its bytes from the start."""

    def __init__(self, source: Source, pieces: Iterator[bytes], bounds: ArchiveBounds, *, packed: bool) -> None:
        self.position = 0
        self._source = source
        self._pieces = pieces
        self._bounds = bounds
        self._packed = packed
        self._decoded_bytes = 0
        self._piece = memoryview(b"")

    def peek(self, size: int) -> bytes:
        """Returns the next *size* bytes, fewer at the end, without taking them."""
        while len(self._piece) < size and (piece := self._next()):
            self._piece = memoryview(bytes(self._piece) + piece)
        return bytes(self._piece[:size])

    def read(self, size: int) -> bytes:
        """Returns the next *size* bytes; fewer only at the end."""
        if len(self._piece) < size:
            taken = bytearray(size)
            count = self.read_into(memoryview(taken))
            return bytes(taken[:count])
        taken_view, self._piece = self._piece[:size], self._piece[size:]
        self.position += size
        return bytes(taken_view)

    def read_into(self, target: memoryview) -> int:
        """Fills *target*; returns how many bytes there were, fewer only at the end."""
        filled = 0
        while filled < len(target):
            if not len(self._piece):
                piece = self._next()
                if not piece:
                    break
                self._piece = memoryview(piece)
            part = self._piece[: len(target) - filled]
            target[filled : filled + len(part)] = part
            self._piece = self._piece[len(part) :]
            filled += len(part)
        self.position += filled
        return filled

    def _next(self) -> bytes:
        """Returns the next piece that is not empty, within the bounds; empty at the end."""
        for piece in self._pieces:
            self._decoded_bytes += len(piece)
            if self._decoded_bytes > self._bounds.stream_bytes:
                raise over("stream_bytes", self._bounds.stream_bytes, self._decoded_bytes)
            if self._packed and self._decoded_bytes > RATIO_FREE_BYTES:
                ratio = self._decoded_bytes // max(1, self._source.count_bytes)
                if ratio > self._bounds.ratio:
                    raise over("ratio", self._bounds.ratio, ratio)
            if piece:
                return piece
        return b""


def open_plain(
    source: Source, compression: Compression, bounds: ArchiveBounds, looks_like_tar: Callable[[bytes], bool]
) -> Plain:
    """Returns the archive decompressed.

    *auto* goes by the first bytes.  A plain tar can begin with a name that looks like another format's magic, so a
    first block that is both is refused.  *looks_like_tar* judges a block of 512 bytes.  Raises UnsafeArchive.
    """
    if compression == "auto":
        compression = _recognise(source.peek(512), looks_like_tar)
    decoders = {"none": _pass_on, "gzip": _gunzip, "zstd": _unzstd, "xz": _unxz}
    return Plain(source, decoders[compression](source), bounds, packed=compression != "none")


def _recognise(first: bytes, looks_like_tar: Callable[[bytes], bool]) -> Compression:
    is_tar = len(first) == 512 and looks_like_tar(first)
    found = next((name for magic, name in _KNOWN if first.startswith(magic)), None)
    if found and is_tar:
        raise UnsafeArchive(
            f"the archive begins both like a tar and like {found}: readers could disagree about it",
            hint=f"say which it is: --compression none, or --compression {found}",
        )
    if not is_tar:
        refuse_other_formats(first)
    return found or "none"


def refuse_other_formats(first: bytes) -> None:
    """Raises UnsafeArchive when the archive begins like a format that is not taken in."""
    for magic, name, hint in _FOREIGN:
        if first.startswith(magic):
            raise UnsafeArchive(f"the archive is {name}, which is not read", hint=hint)
    if first[1:4] == b"\x2a\x4d\x18" and first[0] & 0xF0 == 0x50:
        raise _several("zstd", "a skippable frame")


def is_compressed(first: bytes) -> bool:
    """Whether these bytes begin like a compressed stream."""
    return any(first.startswith(magic) for magic, _ in _KNOWN)


def _pass_on(source: Source) -> Iterator[bytes]:
    while piece := source.read():
        yield piece


def _gunzip(source: Source) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    data, is_full = b"", False
    try:
        while not stream.eof:
            # A full piece may have more behind it that zlib has taken in already.
            if not data and not is_full:
                data = source.read()
                if not data:
                    raise _cut_off()
            piece = stream.decompress(data, PIECE_BYTES)
            data, is_full = stream.unconsumed_tail, len(piece) == PIECE_BYTES
            yield piece
    except zlib.error as error:
        raise _damaged("gzip", error) from None
    if stream.unused_data or source.read():
        raise _several("gzip", "another member, or other bytes, after the first")


def _unxz(source: Source) -> Iterator[bytes]:
    stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY_MAX)
    try:
        while not stream.eof:
            data = b""
            if stream.needs_input:
                data = source.read()
                if not data:
                    raise _cut_off()
            yield stream.decompress(data, PIECE_BYTES)
    except lzma.LZMAError as error:
        raise _damaged("xz", error) from None
    if stream.unused_data or source.read():
        raise _several("xz", "another stream, or other bytes, after the first")


def _unzstd(source: Source) -> Iterator[bytes]:
    """Decodes one frame block by block: a block gives at most 128 KiB, however few bytes it has."""
    stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX).decompressobj()
    head, has_checksum = _zstd_head(source)
    try:
        yield stream.decompress(head)
        is_last = False
        while not is_last:
            field = source.take(3)
            word = int.from_bytes(field, "little")
            is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
            if kind == _ZSTD_RESERVED or size > _ZSTD_BLOCK_MAX:
                raise _damaged("zstd", "a block that none can have")
            yield stream.decompress(field + source.take(1 if kind == _ZSTD_RLE else size))
        if has_checksum:
            yield stream.decompress(source.take(4))
    except zstandard.ZstdError as error:
        raise _damaged("zstd", error) from None
    if not stream.eof:
        raise _damaged("zstd", "the frame does not end where it says")
    if source.read():
        raise _several("zstd", "another frame, or other bytes, after the first")


def _zstd_head(source: Source) -> tuple[bytes, bool]:
    """Returns a frame's header, and whether a checksum ends it (RFC 8878, section 3.1.1.1)."""
    head = source.take(5)
    flags = head[4]
    if head[:4] != ZSTD_MAGIC or flags & 0b1000:
        raise _damaged("zstd", "not a standard frame")
    if flags & 0b11:
        raise _damaged("zstd", "the frame needs a dictionary")
    is_single_segment = bool(flags & 0b100000)
    if not is_single_segment:
        field = source.take(1)
        base = 1 << (10 + (field[0] >> 3))
        window = base + base // 8 * (field[0] & 7)
        head += field
    size_width = (int(is_single_segment), 2, 4, 8)[flags >> 6]
    field = source.take(size_width)
    head += field
    if is_single_segment:
        window = int.from_bytes(field, "little") + (256 if size_width == 2 else 0)
    if window > WINDOW_MAX:
        raise UnsafeArchive(
            f"the archive's zstd frame asks for a window of {window} bytes, at most {WINDOW_MAX} are allowed",
            hint=_MANY_HINT["zstd"],
        )
    return head, bool(flags & 0b100)


def _silent(silence_s: float) -> HostLimit:
    return HostLimit(
        f"the archive brought nothing for {silence_s:g} s, the limit silence_s",
        hint="if its writer is slow, --limit silence_s=600 waits longer",
        limit="silence_s",
        allowed=silence_s,
    )


def _cut_off() -> UnsafeArchive:
    return UnsafeArchive("the archive is cut off", hint="get it again: its end is missing")


def _damaged(name: str, why: object) -> UnsafeArchive:
    return UnsafeArchive(f"the archive's {name} data is damaged: {why}")


def _several(name: str, what: str) -> UnsafeArchive:
    return UnsafeArchive(
        f"the archive is more than one {name} stream, and readers could disagree about it: {what}",
        hint=f"if you trust your own tool to join them: {_MANY_HINT[name]}",
    )
