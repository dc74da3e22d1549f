"""Streams and packed payloads made by hand, as an honest helper would send them, to be broken by tests."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Self

import msgpack  # type: ignore[import-untyped]
import zstandard

from sandlift_helper import members, table, wire
from sandlift_helper.table import Segment


def digest_of(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()


def member(block: bytes, *, name: bytes | None = None) -> bytes:
    """The member of a block, under another digest where *name* is given."""
    padding = bytes(members.padded(len(block)) - len(block))
    return members.header(name or digest_of(block), len(block)) + block + padding


def run_of(blocks: Sequence[bytes]) -> bytes:
    return b"".join(map(member, blocks))


def pack(decoded: bytes, codec: int = wire.CODEC_NONE) -> bytes:
    """A packed payload."""
    if codec == wire.CODEC_ZLIB:
        encoded = zlib.compress(decoded, 1)
    elif codec == wire.CODEC_ZSTD:
        encoded = zstandard.ZstdCompressor(level=1).compress(decoded)
    else:
        encoded = decoded
    return wire.packed_header(codec, len(decoded)) + encoded


def message(**fields: object) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


class Stream:
    """The frames of one stream, without the mark; keeps the digest and the counts that its end must state."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.content_frames = self.blocks = 0
        self._digest = hashlib.sha256()

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)

    def add(self, kind: int, payload: bytes) -> Self:
        frame = wire.frame_header(kind, len(payload)) + payload
        self.frames.append(frame)
        if kind not in (wire.CONTENT, wire.END):
            self._digest.update(frame)
        return self

    def hello(self, **fields: object) -> Self:
        return self.add(
            wire.HELLO, message(**{"protocol": 1, "python": "3.6.0", "executable": "/p", "pid": 1, **fields})
        )

    def progress(self, phase: str = "read", **counts: int) -> Self:
        return self.add(wire.PROGRESS, message(phase=phase, **counts))

    def content(self, *blocks: bytes, codec: int = wire.CODEC_NONE) -> Self:
        return self.run(run_of(blocks), len(blocks), codec)

    def run(self, run: bytes, blocks: int, codec: int = wire.CODEC_NONE) -> Self:
        """A content frame of any bytes, counted as so many blocks."""
        self.content_frames += 1
        self.blocks += blocks
        return self.add(wire.CONTENT, pack(run, codec))

    def manifest(self, segment: Segment, codec: int = wire.CODEC_NONE) -> Self:
        return self.add(wire.MANIFEST, pack(table.encode(segment), codec))

    def end(self, **fields: object) -> Self:
        given = {"frames": self.content_frames, "blocks": self.blocks, "digest": self._digest.digest(), **fields}
        return self.add(wire.END, message(**given))

    def failure(self, code: str, text: str = "", report: str = "") -> Self:
        return self.add(wire.FAILURE, message(code=code, message=text, report=report))


def root_segment() -> Segment:
    """A segment that holds a root and nothing else."""
    segment = Segment()
    segment.root = table.Root(0o755, 1_500_000_000_000_000_000, 1000, 1000)
    return segment


def add_file(segment: Segment, path: bytes, *blocks: bytes, size: int = -1, group: int = 0) -> None:
    """A file of these blocks, without holes; *size* is theirs unless it is given."""
    found = sum(map(len, blocks)) if size < 0 else size
    segment.add_file(path, 0o644, 1, 0, 0, found, group, [digest_of(block) for block in blocks])


def add_directory(segment: Segment, path: bytes, mode: int = 0o755) -> None:
    segment.add(path, table.DIRECTORY, mode, 1, 0, 0)


FILES = {b"a": b"hello\n", b"d/b": b"b" * 5000, b"d/c": b"", b"d/e/f": bytes(range(256)) * 40}


def small() -> Stream:
    """A valid capture of four files, with several content frames, segments, a link, an excluded row and a flag."""
    first = root_segment()
    add_directory(first, b"d")
    add_directory(first, b"d/e")
    first.add_link(b"d/link", 0o777, 1, 0, 0, b"../a")
    first.exclude(b"pipe", table.FIFO, table.REASON_FIFO)
    first.flag(b"d/gone", table.VANISHED)
    stream = Stream().hello().progress("scan", entries=3, bytes=9).manifest(first)
    for codec, path in zip((wire.CODEC_NONE, wire.CODEC_ZLIB, wire.CODEC_ZSTD, wire.CODEC_ZSTD), FILES, strict=True):
        block = FILES[path]
        segment = Segment()
        if block:
            stream.content(block, codec=codec)
            add_file(segment, path, block)
        else:
            add_file(segment, path)
        stream.manifest(segment, codec)
    return stream.progress(files=4, bytes=9).end()
