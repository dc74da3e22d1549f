"""A command over ssh from its handshake on, which the server may drop and which is then tried again.

ssh does not say when it is logged in, so the command's first byte tells: until then the handshake keeps its turn.
ssh reads its input only when the session stands, so an input that is written earlier reaches no server whose
handshake is dropped.  It is kept until the first byte has come, and given to the next attempt.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable

from sandlift.deadline import SLICE_S, Deadline
from sandlift.errors import Truncated

from .command import CommandChannel
from .handshakes import RETRIES_MAX, TURN_MAX_S, Turn, pause_s

KEPT_MAX_BYTES = 1 << 20
"""Of the input; a command that got more before its first byte is not started twice."""

_DROPPED = re.compile(
    rb"(?:kex|ssh)_exchange_identification: .*(?:closed|reset)|connect to host .*: Connection reset"
    rb"|Exceeded MaxStartups",
    re.IGNORECASE,
)


def was_dropped(status: int | None, stderr: bytes) -> bool:
    """Whether ssh says that the server hung up before it had said its name."""
    return status == 255 and _DROPPED.search(stderr) is not None


class OpenSSHChannel:
    """A running ssh; see ``Channel`` for the contract.

    ``begin`` starts ssh, also for a further attempt; ``turn`` is left with the first byte, and kept between attempts,
    so that a server which drops handshakes sees fewer of them; ``closed`` is called once at the end.
    """

    def __init__(
        self,
        begin: Callable[[], CommandChannel],
        turn: Turn,
        *,
        deadline: Deadline,
        closed: Callable[[], None],
    ) -> None:
        self._begin = begin
        self._turn = turn
        self._deadline = deadline
        self._closed = closed
        self._ssh = begin()
        self._turn_until = time.monotonic() + TURN_MAX_S
        self._tries = 1
        # Set between two attempts: ``_ssh`` is then the one that was dropped, and has been closed.
        self._again_at: float | None = None
        self._settled = False
        self._kept: bytearray | None = bytearray()
        self._input_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._closing = threading.Event()

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """See ``Channel.read``."""
        if self._settled:
            return self._ssh.read(size, timeout_s)
        end = time.monotonic() + timeout_s
        while not self._closing.is_set():
            left_s = max(0.0, end - time.monotonic())
            if self._again_at is not None:
                if self._kept is None:
                    # More came than is kept for another attempt, so this was the last one.
                    self._settle()
                    return b""
                if not self._try_again(left_s):
                    if time.monotonic() >= end or self._deadline.cancelled:
                        return None
                    continue
            data = self._ssh.read(size, min(left_s, SLICE_S))
            if data == b"" and self._can_try_again():
                self._give_way()
                continue
            if data is not None:
                self._settle()
                return data
            if time.monotonic() >= self._turn_until:
                self._turn.leave()
            if time.monotonic() >= end or self._deadline.cancelled:
                return None
        return b""

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """See ``Channel.write``."""
        if not self._settled:
            with self._input_lock:
                if not self._settled:
                    self._write_early(memoryview(data).cast("B"), timeout_s)
                    return
        self._ssh.write(data, timeout_s)

    def write_now(self, data: bytes) -> bool:
        """See ``Channel.write_now``; before the first byte nobody waits for a sign of life."""
        return self._settled and self._ssh.write_now(data)

    def stderr_tail(self) -> bytes:
        """See ``Channel.stderr_tail``."""
        return self._ssh.stderr_tail()

    def wait(self, timeout_s: float) -> int | None:
        """See ``Channel.wait``."""
        if self._again_at is not None:
            self._closing.wait(timeout_s)
            return None
        return self._ssh.wait(timeout_s)

    def close(self, grace_s: float = 1.0) -> None:
        """See ``Channel.close``."""
        with self._close_lock:
            if self._closing.is_set():
                return
            self._closing.set()
            self._ssh.close(grace_s)
            # An attempt that began meanwhile is behind this lock.
            with self._input_lock:
                self._ssh.close(grace_s)
                self._turn.leave()
            self._closed()

    def _settle(self) -> None:
        """The session stands, or has failed for good."""
        self._settled = True
        self._kept = None
        self._turn.leave()

    def _write_early(self, data: memoryview, timeout_s: float) -> None:
        kept = self._kept
        if kept is not None and len(kept) + len(data) <= KEPT_MAX_BYTES:
            kept += data
        else:
            self._kept = None
        if self._again_at is not None and self._kept is not None:
            return
        try:
            self._ssh.write(data, timeout_s)
        except Truncated:
            # The next attempt gets it.
            if self._again_at is None and not self._can_try_again():
                raise

    def _can_try_again(self) -> bool:
        return (
            not self._closing.is_set()
            and self._kept is not None
            and self._tries <= RETRIES_MAX
            and not self._deadline.over
            and was_dropped(self._ssh.wait(SLICE_S), self._ssh.stderr_tail())
        )

    def _give_way(self) -> None:
        """Leaves the server alone for a while."""
        self._again_at = time.monotonic() + pause_s(self._tries)
        self._tries += 1
        self._ssh.close(0)

    def _try_again(self, left_s: float) -> bool:
        """Begins the next attempt if its time has come within *left_s* and within a slice."""
        assert self._again_at is not None
        pause_left_s = self._again_at - time.monotonic()
        if pause_left_s > 0:
            self._closing.wait(min(pause_left_s, left_s, SLICE_S))
            return False
        with self._input_lock:
            if self._closing.is_set():
                return False
            self._ssh = self._begin()
            self._turn_until = time.monotonic() + TURN_MAX_S
            self._again_at = None
            if self._kept:
                with contextlib.suppress(Truncated):
                    self._ssh.write(bytes(self._kept), TURN_MAX_S)
        return True
