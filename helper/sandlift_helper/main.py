"""The helper's life: guard the descriptors, greet, take one request, do it, end with one end or failure."""

import os
import sys

from sandlift_helper import messages, wire
from sandlift_helper.channel import Channel, Failure, guard_descriptors


def run(nonce: bytes) -> None:
    """Serves one request from standard input on standard output, then ends the process."""
    in_fd, out_fd = guard_descriptors()
    # Modules come from the bundle and the standard library only, never from the workspace.
    sys.path[:] = [path for path in sys.path if path]
    channel = Channel(in_fd, out_fd)
    try:
        channel.greet(nonce)
        serve(channel)
    except Failure as failure:
        channel.kill_children()
        channel.token = None
        channel.fail(failure)
    except BaseException:
        channel.kill_children()
        channel.token = None
        import traceback

        channel.fail(Failure("helper-crashed", "the helper failed", traceback.format_exc()))
    sys.stderr.flush()
    os._exit(0)


def serve(channel: Channel) -> None:
    """Takes one request from the channel and does it.  Raises Failure."""
    hello = {
        "protocol": wire.PROTOCOL,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable or "",
        "pid": os.getpid(),
    }
    channel.send(wire.HELLO, messages.encode(hello))
    channel.watch(channel.silence_s, listens=False)
    kind, payload = channel.read_frame()
    if kind != wire.REQUEST:
        raise Failure("protocol", "the first frame is no request")
    request = messages.decode(payload)
    silence_ms = request.get("silence_ms")
    if request.get("protocol") != wire.PROTOCOL or not isinstance(silence_ms, int):
        raise Failure("protocol", "the host speaks protocol %r" % request.get("protocol"))
    operation = request.get("operation")
    channel.watch(silence_ms / 1000.0, listens=operation != "apply")
    if operation == "capture":
        from sandlift_helper.capture import capture

        capture(channel, request)
    elif operation == "survey":
        from sandlift_helper.survey import survey

        survey(channel, request)
    elif operation == "apply":
        from sandlift_helper.apply import apply

        apply(channel, request)
    else:
        raise Failure("protocol", "the host asks for %r" % operation)
