"""A capture, seen from the sandbox: scan, judge the links, send what is there, then the blocks, then the end.

Frames: the host's request and the base frames that it announces; where a base is offered, a want frame with the
parts of it that differ and the base frames that answer it; have, with what is still as in the base; manifest
segments and content; where blocks were not sent because the host may hold them, have with their number and the
host's want frame with the files that must be read again after all; end.

The manifest travels in segments: directories, links and what the scan left out first, with the names of all files
that are read, then the files as their blocks are sent, small ones before large ones.  So whatever arrives before a
break is whole files, and the rest is known by name.
"""

import sys

from sandlift_helper import messages, table, wire
from sandlift_helper.base import Base, Clock, instance, settled_before
from sandlift_helper.channel import Channel
from sandlift_helper.codec import Packer, unpack_payload
from sandlift_helper.pace import content_packer, working_codecs
from sandlift_helper.parts import slices
from sandlift_helper.reading import Reading
from sandlift_helper.segments import Segments
from sandlift_helper.workspace import Request, scan_workspace

MYPY = False
if MYPY:
    from sandlift_helper.base import Known
    from sandlift_helper.scan import Files, Scan
    from sandlift_helper.segments import KeptLink

# Rows that are looked at together: few enough to stay far below the largest segment.
SLICE_ROWS = 4096


def all_but_files(channel: Channel, scan: "Scan", kept: "list[KeptLink]") -> table.Segment:
    """Returns what a scan found but its files, sorted."""
    found = Segments(channel, Packer(wire.CODEC_NONE), sys.maxsize)
    found.add_scan(scan, kept)
    found.rows.sort()
    return found.rows


def capture(channel: Channel, message: "dict[str, object]") -> None:
    """Does one capture and ends the stream."""
    request = Request(message)
    codecs = working_codecs(request.codecs)
    clock = Clock()
    root_fd, scan, kept, mounts = scan_workspace(channel, request)
    base = Base(channel, request.base)
    here = instance(scan.root_status, mounts)
    # Rows are few beside content, and zlib makes them a fifth: they are compressed where that can be.
    segments = Segments(channel, Packer(next(filter(None, codecs), wire.CODEC_NONE), request.level))
    parts, rows = base.match(scan, all_but_files(channel, scan, kept), here)
    channel.send(wire.HAVE, messages.encode({"instance": here, "same": bytes(base.same), "kept": bytes(base.kept)}))
    for part in parts:
        for piece in slices(part, SLICE_ROWS):
            segments.rows.extend(piece)
            segments.send_if_full()
    files = scan.files if len(rows) == len(scan.files.paths) else scan.files.select(rows)
    for first in range(0, len(files.paths), SLICE_ROWS):
        segments.rows.awaited += b"".join(path + b"\0" for path in files.paths[first : first + SLICE_ROWS])
        segments.send_if_full()
    segments.send()
    reading = Reading(channel, root_fd, content_packer(codecs, request.level), request.limits.file_bytes)
    reading.settled_before_ns = settled_before(clock, request.settle_ms, mounts, request.trust_ctime)
    read(channel, reading, segments, files, base.known())
    if reading.done.claimed:
        channel.send(wire.HAVE, messages.encode({"claimed": reading.done.claimed}))
        again = bytes(unpack_payload(channel.receive(wire.WANT), wire.SEGMENT_MAX)).split(b"\0")[:-1]
        if again:
            missed = scan.files.subset(frozenset(again))
            missed.offset = len(scan.files.paths)
            read(channel, reading, segments, missed, None)
    done = reading.done
    channel.end(frames=done.frames, blocks=done.blocks, steady=int(clock.is_steady()))


def read(channel: Channel, reading: Reading, segments: Segments, files: "Files", known: "Known | None") -> None:
    """Reads *files* and sends their rows, each after the blocks that are not *known*."""
    done = reading.done
    size = sum(files.sizes)
    totals = {"total_files": len(files.paths), "total_bytes": size}
    for rows in reading.rows(files, size, known):
        if rows is not None:
            segments.rows.extend(rows)
        segments.send_if_due()
        channel.progress("read", files=done.files, bytes=done.bytes, **totals)
    segments.send()
