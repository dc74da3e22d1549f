"""The content of a restore, dealt out to the processes that write it."""

import mmap
import os
import struct
import time

from sandlift_helper import wire
from sandlift_helper.channel import Channel, Failure, Token
from sandlift_helper.confined import Confined
from sandlift_helper.workers import WORKERS_MAX, Workers, usable_cores
from sandlift_helper.writer import LOCAL_CHUNK, Held, Layout, Metadata, Writer

MYPY = False
if MYPY:
    from collections.abc import Callable

FORK_FRAMES_MIN = 4
REPORT_INTERVAL_S = 0.1

# Files, uses, bytes and refused owners of one frame.
_COUNTS = struct.Struct("<IIQI")
# Frames read so far, and when (seconds of the monotonic clock) the input last gave something.
_SHARED = struct.Struct("<Qd")


class _Input:
    """The content frames, then the chunks of blocks that the target holds, dealt out to several processes in turn.

    Who holds the token reads one frame.
    """

    def __init__(self, channel: Channel, frames: int, chunks: int) -> None:
        self._fd = channel.in_fd
        self._frames = frames
        self._chunks = chunks
        self._token = Token()
        self._shared = mmap.mmap(-1, _SHARED.size)
        # Each process has its own after the fork; a frame stays in it until the next one is read.
        self._buffer = memoryview(bytearray(wire.CAPS[wire.CONTENT]))
        self._note(0)

    def _note(self, number: int) -> None:
        self._shared[:] = _SHARED.pack(number, time.monotonic())

    def silent_s(self) -> float:
        """Returns for how long the input has given nothing, or 0 when all of it has come."""
        number, heard = _SHARED.unpack(self._shared[:])
        return 0.0 if number >= self._frames else time.monotonic() - heard

    def next(self) -> "tuple[int, memoryview | None] | None":
        """Returns (number, payload) of the next content frame, then (number, None) of chunks, then None.

        The payload is valid until the next call.
        """
        with self._token:
            number = _SHARED.unpack(self._shared[:])[0]
            while number < self._frames:
                head = self._read(wire.HEADER_SIZE, number)
                kind, length = head[0], int.from_bytes(head[1:], "little")
                if kind not in (wire.CONTENT, wire.CREDIT) or length > wire.CAPS[kind]:
                    raise Failure("protocol", "the host sent a frame of kind %d and %d bytes" % (kind, length))
                payload = self._read(length, number)
                if kind == wire.CONTENT:
                    self._note(number + 1)
                    return number, payload
            if number < self._frames + self._chunks:
                self._note(number + 1)
                return number - self._frames, None
        return None

    def _read(self, size: int, number: int) -> memoryview:
        filled = 0
        while filled < size:
            count = os.readv(self._fd, [self._buffer[filled:size]])
            if not count:
                raise Failure("protocol", "the host's stream is cut off")
            self._note(number)
            filled += count
        return self._buffer[:size]


def write_content(confined: Confined, layout: Layout, metadata: Metadata, held: "Held | None") -> int:
    """Writes all content, in several processes where that pays; returns how many owners were refused.

    Raises Failure unless every use of a block was written.
    """
    frames = len(layout.starts)
    chunks = (len(layout.order) - layout.bounds[-1] + LOCAL_CHUNK - 1) // LOCAL_CHUNK
    source = _Input(confined.channel, frames, chunks)
    count = min(WORKERS_MAX, usable_cores()) if frames + chunks >= FORK_FRAMES_MIN else 1

    def write(report: "Callable[[bytes], None]") -> None:
        writer = Writer(confined.root_fd, layout, metadata, held)
        told = 0, 0, 0, metadata.refused
        due = 0.0
        while True:
            item = source.next()
            if item is not None:
                number, payload = item
                if payload is None:
                    writer.copy_local(number)
                else:
                    writer.write_frame(number, payload)
            now = time.monotonic()
            if item is None or now > due:
                due = now + REPORT_INTERVAL_S
                before, told = told, (writer.files, writer.uses, writer.bytes, metadata.refused)
                report(_COUNTS.pack(*(new - old for new, old in zip(told, before))))
            if item is None:
                writer.close()
                return

    done = [0, 0, 0, 0]
    if frames + chunks:
        for report in Workers(confined.channel, count, confined.guarded(write)).results():
            if report:
                for index, more in enumerate(_COUNTS.unpack(report)):
                    done[index] += more
                confined.channel.progress("write", files=done[0], bytes=done[2], total_frames=frames)
            elif source.silent_s() > confined.channel.silence_s:
                confined.channel.host_gone()
    missing = len(layout.places) - done[1]
    if missing:
        raise Failure("protocol", "%d of %d blocks never came" % (missing, len(layout.places)))
    return done[3]
