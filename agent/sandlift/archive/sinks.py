"""Where an archive goes: gathered into larger pieces, compressed if that is wanted, and counted."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Literal, Protocol

Compression = Literal["none", "gzip", "zstd"]
Write = Callable[[bytes], None]

PIECE: Final = 256 << 10
"""How many bytes are gathered before they are compressed or written."""
GZIP_LEVEL: Final = 6
ZSTD_LEVEL: Final = 3


class _Encoder(Protocol):
    def encode(self, data: bytes) -> bytes:
        """What *data* adds to the output."""

    def pause(self) -> bytes:
        """All that was encoded so far, with no end."""

    def end(self) -> bytes:
        """The rest, with the end."""


class _Plain:
    def encode(self, data: bytes) -> bytes:
        return data

    def pause(self) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""


class _Gzip:
    """One member that names no file and no time, so that equal archives are equal bytes."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        return self._deflate.compress(data)

    def pause(self) -> bytes:
        return self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._deflate.flush()


class _Zstd:
    """One frame with a checksum."""

    def __init__(self) -> None:
        import zstandard

        self._frame = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compressobj()
        self._pause = zstandard.COMPRESSOBJ_FLUSH_BLOCK

    def encode(self, data: bytes) -> bytes:
        return self._frame.compress(data)

    def pause(self) -> bytes:
        return self._frame.flush(self._pause)

    def end(self) -> bytes:
        return self._frame.flush()


_ENCODERS: dict[Compression, Callable[[], _Encoder]] = {"none": _Plain, "gzip": _Gzip, "zstd": _Zstd}


class Sink:
    """Takes the bytes of an archive and hands them to *write* in larger pieces.

    It holds at most `PIECE` bytes beside the one piece that it was given.  What *write* raises passes through.
    """

    def __init__(self, write: Write, compression: Compression = "none") -> None:
        self._write = write
        self._encoder = _ENCODERS[compression]()
        self._gathered: list[bytes | memoryview] = []
        self._gathered_bytes = 0
        self.taken_bytes = 0
        """What came in."""
        self.written_bytes = 0
        """What went out."""

    def put(self, data: bytes | memoryview) -> None:
        """Takes some bytes."""
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        self.taken_bytes += len(data)
        if self._gathered_bytes >= PIECE:
            self._hand_on()

    def end(self) -> None:
        """Writes what is left, and the end of the compressed stream."""
        self._hand_on()
        self._out(self._encoder.end())

    def break_off(self) -> None:
        """Writes what is left and no end: a reader must notice that something is missing."""
        self._hand_on()
        self._out(self._encoder.pause())

    def _hand_on(self) -> None:
        data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
        self._gathered = []
        self._gathered_bytes = 0
        self._out(self._encoder.encode(bytes(data)))

    def _out(self, data: bytes) -> None:
        if data:
            self._write(data)
            self.written_bytes += len(data)
