"""A connected socket, made within a limit of time that also a cancel ends."""

from __future__ import annotations

import contextlib
import os
import select
import socket

from sandlift.deadline import Deadline

DEAD_PEER_MS = 60_000
"""After so long without an acknowledgement the kernel gives a connection up."""


def dial(host: str, port: int, limit: Deadline) -> socket.socket:
    """A connected socket; each address of the name is tried in turn until the limit."""
    error: OSError = OSError("the name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            _finish_connect(sock, address, limit)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # The kernel gives up on data that nobody acknowledges; else one waits a quarter of an hour.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
            return sock
        except OSError as failure:
            sock.close()
            error = failure
        except BaseException:
            sock.close()
            raise
    raise error


def _finish_connect(sock: socket.socket, address: object, limit: Deadline) -> None:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        sock.connect(address)  # type: ignore[arg-type]
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    while not poll.poll(max(1, int(1000 * limit.slice_s()))):
        if limit.over:
            raise TimeoutError("connecting took too long")
    if number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(number, os.strerror(number))
    sock.setblocking(True)
