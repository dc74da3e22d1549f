"""A capture, seen from the sandbox: scan, judge the links, say what is as the host has it, send the rest, then the end.

Frames: the host's request and the base frames that it announces; where a base is offered, a want frame with the
parts of it that differ and the base frames that answer it; have, with what is still as in the base; what `sending`
sends of the rest; end.
"""

from sandlift_helper import messages, table, wire
from sandlift_helper.base import Base, Clock, instance
from sandlift_helper.channel import Channel
from sandlift_helper.segments import Segments
from sandlift_helper.workspace import Request, scan_workspace

MYPY = False
if MYPY:
    from sandlift_helper.scan import Scan
    from sandlift_helper.segments import KeptLink


def capture(channel: Channel, message: "dict[str, object]") -> None:
    """Does one capture and ends the stream."""
    request = Request(message)
    clock = Clock()
    root_fd, scan, kept, mounts = scan_workspace(channel, request)
    base = Base(channel, request.base)
    here = instance(scan.root_status, mounts)
    parts, rows = base.match(scan, all_but_files(channel, scan, kept), here)
    channel.send(wire.HAVE, messages.encode({"instance": here, "same": bytes(base.same), "kept": bytes(base.kept)}))
    frames = blocks = 0
    if parts:
        # Only now, since compiling it takes longer than all that came before.
        from sandlift_helper.sending import Sending

        sending = Sending(channel, request, root_fd, clock, mounts)
        sending.tell(parts)
        frames, blocks = sending.send(scan.files, rows, base.known())
    channel.end(frames=frames, blocks=blocks, steady=int(clock.is_steady()))


def all_but_files(channel: Channel, scan: "Scan", kept: "list[KeptLink]") -> table.Segment:
    """Returns what a scan found but its files, sorted."""
    found = Segments(channel, None)
    found.add_scan(scan, kept)
    found.rows.sort()
    return found.rows
