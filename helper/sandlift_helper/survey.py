"""A look at a workspace without taking anything: what a capture would find, leave out and lose."""

import heapq
import os
import sys

from sandlift_helper import messages, table, wire
from sandlift_helper.blocks import FILE_FLAGS
from sandlift_helper.channel import Channel
from sandlift_helper.codec import available
from sandlift_helper.ladder import Ladder
from sandlift_helper.scan import loss_reason
from sandlift_helper.workspace import Request, scan_workspace

LARGEST_COUNT = 10


def survey(channel: Channel, message: "dict[str, object]") -> None:
    """Scans the workspace, tries to open each file, and ends the stream with the figures."""
    request = Request(message)
    root_fd, scan, kept, mounts = scan_workspace(channel, request)
    files = scan.files
    ladder = Ladder(root_fd)
    for path in files.paths:
        directory, _, name = path.rpartition(b"/")
        try:
            os.close(os.open(name, FILE_FLAGS, dir_fd=ladder.open(directory)))
        except OSError as error:
            scan.left.exclude(path, table.FILE, loss_reason(error))
        channel.progress("survey", entries=len(files.paths), bytes=scan.bytes)
    ladder.close()
    reasons: "dict[str, int]" = {}
    for reason in scan.left.excluded_reasons:
        name_of = table.REASON_NAMES[reason]
        reasons[name_of] = reasons.get(name_of, 0) + 1
    resolved = os.path.realpath(request.root)
    largest = heapq.nlargest(LARGEST_COUNT, range(len(files.paths)), key=files.sizes.__getitem__)
    report = {
        "python": sys.executable or "",
        "codecs": available(),
        "root": resolved,
        "filesystem": mounts.root_type,
        "entries": len(scan.directories) + len(kept) + len(files.paths),
        "bytes": scan.bytes,
        "largest": [[files.paths[row], files.sizes[row]] for row in largest],
        "reasons": reasons,
    }
    channel.send(wire.HAVE, messages.encode(report))
    channel.end(frames=0, blocks=0)
