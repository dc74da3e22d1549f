"""What the host does not have, sent: rows and the names of files first, then the files.

Frames: manifest segments and content; where blocks were not sent because the host may hold them, have with their
number and the host's want frame with the files that must be read again after all.

The manifest travels in segments: directories, links and what the scan left out first, with the names of all files
that are read, then the files as their blocks are sent, small ones before large ones.  So whatever arrives before a
break is whole files, and the rest is known by name.
"""

from sandlift_helper import messages, wire
from sandlift_helper.base import Clock, Known, settled_before
from sandlift_helper.channel import Channel
from sandlift_helper.codec import Packer, unpack_payload
from sandlift_helper.mounts import Mounts
from sandlift_helper.pace import content_packer, working_codecs
from sandlift_helper.parts import slices
from sandlift_helper.reading import Reading
from sandlift_helper.scan import Files
from sandlift_helper.segments import Segments
from sandlift_helper.workspace import Request

MYPY = False
if MYPY:
    from collections.abc import Sequence

    from sandlift_helper.table import Segment

# Rows that are looked at together: few enough to stay far below the largest segment.
SLICE_ROWS = 4096


class Sending:
    """Sends parts of the manifest with `tell`, then files with `send`."""

    def __init__(self, channel: Channel, request: Request, root_fd: int, clock: Clock, mounts: Mounts) -> None:
        codecs = working_codecs(request.codecs)
        self._channel = channel
        # Rows are few beside content, and zlib makes them a fifth: they are compressed where that can be.
        packer = Packer(next(filter(None, codecs), wire.CODEC_NONE), request.level)
        self._segments = Segments(channel, packer)
        self._reading = Reading(channel, root_fd, content_packer(codecs, request.level), request.limits.file_bytes)
        self._reading.settled_before_ns = settled_before(clock, request.settle_ms, mounts, request.trust_ctime)

    def tell(self, parts: "list[Segment]") -> None:
        """Sends all rows of *parts*."""
        for part in parts:
            for piece in slices(part, SLICE_ROWS):
                self._segments.rows.extend(piece)
                self._segments.send_if_full()

    def send(self, files: Files, rows: "Sequence[int]", known: "Known | None") -> "tuple[int, int]":
        """Reads the files in these *rows* and sends what is not *known*; returns how many frames and blocks it sent."""
        channel, done = self._channel, self._reading.done
        wanted = files if len(rows) == len(files.paths) else files.select(rows)
        for first in range(0, len(wanted.paths), SLICE_ROWS):
            self._segments.rows.awaited += b"".join(path + b"\0" for path in wanted.paths[first : first + SLICE_ROWS])
            self._segments.send_if_full()
        self._segments.send()
        self._read(wanted, known)
        if done.claimed:
            channel.send(wire.HAVE, messages.encode({"claimed": done.claimed}))
            again = bytes(unpack_payload(channel.receive(wire.WANT), wire.SEGMENT_MAX)).split(b"\0")[:-1]
            if again:
                missed = files.subset(frozenset(again))
                missed.offset = len(files.paths)
                self._read(missed, None)
        return done.frames, done.blocks

    def _read(self, files: Files, known: "Known | None") -> None:
        """Reads *files* and sends their rows, each after the blocks that are not *known*."""
        done, segments = self._reading.done, self._segments
        size = sum(files.sizes)
        totals = {"total_files": len(files.paths), "total_bytes": size}
        for rows in self._reading.rows(files, size, known):
            if rows is not None:
                segments.rows.extend(rows)
            segments.send_if_due()
            self._channel.progress("read", files=done.files, bytes=done.bytes, **totals)
        segments.send()
