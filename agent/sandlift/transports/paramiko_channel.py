"""One command on a connection of paramiko's; see ``Channel`` for the contract.

paramiko's calls wait longer than they are told to where the network hangs: in a send that the kernel does
not take, in a request that nobody answers.  So every channel has one thread that drains stderr and watches
the writer, and closing is done in a thread that is waited for; whoever hangs is freed by closing the
connection under him, which ends every wait in paramiko.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandlift.deadline import SLICE_S, Cancel
from sandlift.errors import Interrupted, SandboxGone, Truncated

from .base import StderrTail, check_now
from .handshakes import TURN_MAX_S, Turn

if TYPE_CHECKING:
    import paramiko

# paramiko cuts at the server's packet size, 32 KiB everywhere; more at once would only be copied twice.
_SEND_BYTES = 32 * 1024
_SHORT_S = 0.005
_CLOSE_EXTRA_S = 0.25


class ParamikoChannel:
    """A running command on a shared connection.

    ``drop`` closes that connection, however it hangs; ``turn`` is left when the command has begun, that is with its
    first byte; ``closed`` is called once when the command is given up.
    """

    def __init__(
        self,
        session: paramiko.Channel,
        *,
        drop: Callable[[], None],
        turn: Turn,
        closed: Callable[[], None],
        cancel: Cancel | None,
    ) -> None:
        self._session = session
        self._drop = drop
        self._told_closed = closed
        self._turn: Turn | None = turn
        self._turn_until = time.monotonic() + TURN_MAX_S
        self._cancel = cancel
        # One value for ever: the time-out of a channel is shared by all threads that use it.
        session.settimeout(SLICE_S)
        self._tail = StderrTail()
        self._closing = threading.Event()
        self._closed = False
        self._stalled = False
        self._write_end: float | None = None
        self._write_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._drain = threading.Thread(target=self._drain_stderr, name="sandlift-stderr", daemon=True)
        self._drain.start()

    @property
    def connection(self) -> paramiko.Transport:
        """The connection that carries this channel."""
        return self._session.get_transport()

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """See ``Channel.read``."""
        end = time.monotonic() + timeout_s
        session = self._session
        while True:
            if self._closing.is_set():
                return b""
            left_s = end - time.monotonic()
            if session.recv_ready() or session.eof_received or session.closed or left_s >= SLICE_S:
                with contextlib.suppress(TimeoutError):
                    data = self._receive(size)
                    self._leave()
                    return data
            elif left_s > 0:
                time.sleep(min(left_s, _SHORT_S))
            if end - time.monotonic() <= 0 or (self._cancel is not None and self._cancel.cancelled):
                return None

    def _leave(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.leave()

    def _receive(self, size: int) -> bytes:
        try:
            return self._session.recv(size)
        except TimeoutError:
            raise
        except (OSError, EOFError, self._ssh_error):
            return b""

    @property
    def _ssh_error(self) -> type[Exception]:
        from paramiko import SSHException

        return SSHException

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """See ``Channel.write``."""
        view = memoryview(data).cast("B")
        with self._write_lock:
            try:
                self._write_all(view, timeout_s)
            finally:
                self._write_end = None

    def _write_all(self, view: memoryview, timeout_s: float) -> None:
        self._write_end = time.monotonic() + timeout_s
        while view:
            if self._closing.is_set():
                raise Truncated("the channel was closed while data was being sent")
            if self._cancel is not None and self._cancel.cancelled:
                raise Interrupted("interrupted while sending", signal=self._cancel.signal)
            try:
                sent = self._session.send(bytes(view[:_SEND_BYTES]))
            except TimeoutError:
                if time.monotonic() < self._write_end:
                    continue
                raise SandboxGone(f"the command took no input for {timeout_s:g} s") from None
            except (OSError, EOFError, self._ssh_error):
                sent = 0
            # paramiko drops data in silence once the connection is dead.
            if sent == 0 or not self._session.get_transport().is_active():
                if self._stalled:
                    raise SandboxGone(f"the network took no data for {timeout_s:g} s")
                raise Truncated("the command takes no more input: it has ended, or the connection was lost")
            view = view[sent:]
            self._write_end = time.monotonic() + timeout_s

    def write_now(self, data: bytes) -> bool:
        """See ``Channel.write_now``; what might wait is told beforehand by paramiko's state and by the socket."""
        check_now(data)
        if not self._write_lock.acquire(blocking=False):
            return False
        try:
            if self._closing.is_set() or self._session.closed:
                raise Truncated("the channel was closed while data was being sent")
            if not self._takes_at_once(len(data)):
                return False
            return self._session.send(data) == len(data)
        except (OSError, EOFError, self._ssh_error):
            raise Truncated("the command takes no more input: it has ended, or the connection was lost") from None
        finally:
            self._write_lock.release()

    def _takes_at_once(self, size: int) -> bool:
        """Whether the window has room, no keys are being renewed, and the socket takes data."""
        connection = self._session.get_transport()
        if self._session.out_window_size < size or not connection.clear_to_send.is_set():
            return False
        poll = select.poll()
        poll.register(connection.sock.fileno(), select.POLLOUT)
        return bool(poll.poll(0))

    def stderr_tail(self) -> bytes:
        """See ``Channel.stderr_tail``; after the command's end, what it said last is waited for shortly."""
        if not self._closed and (self._session.closed or self._session.eof_received):
            self._drain.join(SLICE_S)
        return self._tail.value()

    def wait(self, timeout_s: float) -> int | None:
        """See ``Channel.wait``; a command that died by a signal has no status."""
        end = time.monotonic() + timeout_s
        while not self._session.status_event.wait(max(0.0, min(SLICE_S, end - time.monotonic()))):
            if time.monotonic() >= end or (self._cancel is not None and self._cancel.cancelled):
                return None
        status = self._session.exit_status
        return status if status >= 0 else None

    def close(self, grace_s: float = 1.0) -> None:
        """See ``Channel.close``; a connection that hangs is closed, with all its channels."""
        with self._close_lock:
            if self._closed:
                return
            self._closing.set()
            self._leave()
            closer = threading.Thread(target=self._say_goodbye, args=(grace_s,), name="sandlift-close", daemon=True)
            closer.start()
            closer.join(grace_s + _CLOSE_EXTRA_S)
            if closer.is_alive():
                self._drop()
                closer.join(_CLOSE_EXTRA_S)
            self._drain.join(2 * SLICE_S)
            self._closed = True
            self._told_closed()

    def _say_goodbye(self, grace_s: float) -> None:
        """End of input, a while for the command to end, then the end of the channel."""
        with contextlib.suppress(OSError, EOFError, self._ssh_error):
            self._session.shutdown_write()
            self._session.status_event.wait(grace_s)
            self._session.close()

    def _drain_stderr(self) -> None:
        """Read stderr to its end, and drop the connection under a writer who is overdue."""
        while True:
            try:
                data = self._session.recv_stderr(65536)
            except TimeoutError:
                data = None
            except (OSError, EOFError, self._ssh_error):
                return
            if data:
                self._tail.add(data)
            elif data is not None:
                return
            if time.monotonic() > self._turn_until:
                self._leave()
            # A slice longer than the writer's own limit, who can tell a full window by himself.
            write_end = self._write_end
            if write_end is not None and time.monotonic() > write_end + 2 * SLICE_S:
                self._stalled = True
                self._drop()
                return
