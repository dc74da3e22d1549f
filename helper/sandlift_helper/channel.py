"""The helper's end of the stream: frames in and out, and the watch over the host.

The host may vanish without a word, and most transports leave the far process running then.  So a timer of the
helper's own looks at the standard input every second: when it is closed, or when the host has said nothing
for ``silence_s`` seconds, the helper's workers are killed and the helper ends.  Because the timer interrupts
everything, the rest of the helper may simply block.
"""

import os
import select
import signal
import sys
import time
from hashlib import sha256

from sandlift_helper import messages, wire

MYPY = False
if MYPY:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

WATCH_INTERVAL_S = 1.0
PROGRESS_INTERVAL_S = 0.5

_HANG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)


class Failure(Exception):
    """The operation cannot be done; becomes the stream's ``failure`` frame.

    *code* is a word from the host's table of errors, *message* says what and where, *report* is a traceback.
    """

    def __init__(self, code: str, message: str, report: str = "") -> None:
        Exception.__init__(self, message)
        self.code = code
        self.message = message
        self.report = report


def read_exactly(fd: int, size: int, heard: "Callable[[], None] | None" = None) -> bytes:
    """Returns *size* bytes from *fd*; fewer only at its end.  *heard* is called for each piece that comes."""
    pieces = []
    while size:
        piece = os.read(fd, min(size, 1 << 20))
        if not piece:
            break
        if heard:
            heard()
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def write_all(fd: int, data: "bytes | bytearray | memoryview") -> float:
    """Writes all of *data*, also where *fd* was left in non-blocking mode; returns the seconds that this took."""
    view, started = memoryview(data), time.monotonic()
    while len(view):
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [], WATCH_INTERVAL_S)
    return time.monotonic() - started


class Channel:
    """Reads the host's frames from *in_fd* and writes frames to *out_fd*.

    ``children`` are the process ids that end with the helper.  ``credit`` counts content frames that the host
    is ready to take.
    """

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self.in_fd = in_fd
        self.out_fd = out_fd
        self.children: "set[int]" = set()
        self.credit = 0
        self.nonce = b""
        self.token: "Token | None" = None
        self.clean_up: "Callable[[], None] | None" = None
        self._reader = wire.Reader()
        self._digest = sha256()
        self._heard = time.monotonic()
        self.silence_s = 60.0
        self._listens = False
        self._polling = False
        self._awaits = False
        self._progress_due = 0.0
        self._phase = ""
        self._credit_fd = -1
        # Frames that came beside credit, for `receive`.
        self._inbox: "list[tuple[int, bytearray]]" = []

    def read_frame(self) -> "tuple[int, bytes]":
        """Returns the next frame, reading not one byte beyond it."""
        self._awaits = True
        self.hear()
        head = read_exactly(self.in_fd, wire.HEADER_SIZE)
        if len(head) < wire.HEADER_SIZE:
            self.host_gone()
        kind, length = head[0], int.from_bytes(head[1:], "little")
        if length > wire.CAPS.get(kind, -1):
            raise Failure("protocol", "the host sent a frame of kind %d and %d bytes" % (kind, length))
        payload = read_exactly(self.in_fd, length, self.hear)
        if len(payload) < length:
            self.host_gone()
        self._awaits = False
        return kind, payload

    def hear(self) -> None:
        """Notes a sign of the host's life: also a piece of a frame, on a slow line."""
        self._heard = time.monotonic()

    def watch(self, silence_s: float, listens: bool) -> None:
        """Starts the timer.  With *listens*, it takes credit frames from the input as well."""
        self.silence_s = silence_s
        self._listens = listens
        self._heard = time.monotonic()
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, WATCH_INTERVAL_S, WATCH_INTERVAL_S)

    def inputs(self) -> "list[int]":
        """Returns the descriptors that `poll` reads, for whoever waits for something else as well."""
        return [self.in_fd] if self._listens else []

    def _on_alarm(self, _number: int, _frame: "FrameType | None") -> None:
        self.poll()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Takes what the host has sent, waiting up to *timeout_s* for it; ends the helper when the host is gone."""
        if self._polling:
            return
        self._polling = True
        try:
            self._check_children()
            if self._listens:
                while select.select([self.in_fd], [], [], timeout_s)[0]:
                    data = os.read(self.in_fd, 1 << 16)
                    if not data:
                        self.host_gone()
                    self._heard = time.monotonic()
                    timeout_s = 0.0
                    for kind, payload in self._reader.feed(data):
                        self._take(kind, payload)
            else:
                watcher = select.poll()
                watcher.register(self.in_fd, _HANG_UP & ~select.POLLNVAL)
                if any(event & _HANG_UP for _, event in watcher.poll(int(timeout_s * 1000))):
                    self.host_gone()
            waits = self._listens or self._awaits
            if waits and time.monotonic() - self._heard > self.silence_s:
                self.host_gone()
        finally:
            self._polling = False

    def _check_children(self) -> None:
        """Raises Failure when a child has died: what it held, such as the token, others would await for ever."""
        if not hasattr(os, "waitid"):
            return
        for pid in self.children:
            try:
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except OSError:
                continue
            if ended is not None and (ended.si_code != os.CLD_EXITED or ended.si_status):
                raise Failure("helper-crashed", "a worker of the helper died with status %d" % ended.si_status)

    def _take(self, kind: int, payload: bytearray) -> None:
        if kind in (wire.BASE, wire.WANT):
            self._inbox.append((kind, payload))
            return
        if kind != wire.CREDIT:
            raise Failure("protocol", "the host sent a %s frame out of turn" % wire.KIND_NAMES[kind])
        frames = messages.decode(payload).get("frames")
        if isinstance(frames, int) and frames > 0:
            self.on_credit(frames)

    def receive(self, kind: int) -> bytearray:
        """Waits for the next frame that is no credit, and returns its payload.  Raises Failure if it is no *kind*."""
        while not self._inbox:
            self.poll(WATCH_INTERVAL_S)
        found, payload = self._inbox.pop(0)
        if found != kind:
            raise Failure("protocol", "the host sent a %s frame out of turn" % wire.KIND_NAMES[found])
        return payload

    def on_credit(self, frames: int) -> None:
        if self._credit_fd < 0:
            self.credit += frames
        else:
            os.write(self._credit_fd, bytes(frames))

    def pass_credit_to(self, fd: int) -> None:
        """From now on, each credit becomes one byte in the pipe *fd*, for workers to spend."""
        self._credit_fd = fd
        self.on_credit(self.credit)
        self.credit = 0

    def take_credit_back(self, fd: int) -> None:
        """Ends `pass_credit_to`, once nobody else reads *fd* any more: what the pipe still holds is spent here."""
        credit_in, self._credit_fd = self._credit_fd, -1
        os.close(credit_in)
        self.credit += len(read_exactly(fd, 1 << 30))
        os.close(fd)

    def spend_credit(self) -> None:
        """Waits until the host will take one more content frame."""
        while self.credit <= 0:
            self.poll(WATCH_INTERVAL_S)
        self.credit -= 1

    def greet(self, nonce: bytes) -> None:
        self.nonce = nonce
        write_all(self.out_fd, wire.MAGIC + nonce)

    def send(self, kind: int, payload: bytes) -> None:
        """Writes a frame that counts towards the digest in the ``end`` frame."""
        data = wire.frame(kind, payload)
        self._digest.update(data)
        self.write(data)

    def write(self, data: "bytes | bytearray | memoryview") -> float:
        """Writes whole frames, alone where workers write to the same output; returns the seconds that this took."""
        try:
            if self.token is None:
                return write_all(self.out_fd, data)
            with self.token:
                return write_all(self.out_fd, data)
        except OSError:
            return self.host_gone()

    def progress(self, phase: str, **counts: int) -> None:
        """Sends a progress frame: the first of a phase at once, then not more often than twice a second."""
        now = time.monotonic()
        if now >= self._progress_due or phase != self._phase:
            self._phase = phase
            self._progress_due = now + PROGRESS_INTERVAL_S
            self.send(wire.PROGRESS, messages.encode(dict(counts, phase=phase)))

    def end(self, **counts: object) -> None:
        self.write(wire.frame(wire.END, messages.encode(dict(counts, digest=self._digest.digest()))))

    def fail(self, failure: Failure) -> None:
        """Sends the failure frame that closes the stream."""
        record = {"code": failure.code, "message": failure.message[:4096], "report": failure.report[-32768:]}
        self.write(wire.frame(wire.FAILURE, messages.encode(record)))

    def host_gone(self) -> "NoReturn":
        """Ends the helper and its workers at once, after ``clean_up`` where there is something to remove."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.kill_children()
        if self.clean_up is not None:
            self.clean_up()
        os._exit(wire.EXIT_HOST_GONE)

    def kill_children(self) -> None:
        for pid in list(self.children):
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                pass
            self.children.discard(pid)


class Token:
    """The right to write to the output, handed round among processes: one byte in a pipe."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.write(self._write_fd, b"t")

    def __enter__(self) -> None:
        if not os.read(self._read_fd, 1):
            os._exit(wire.EXIT_HOST_GONE)

    def __exit__(self, *_: object) -> None:
        os.write(self._write_fd, b"t")

    def close(self) -> None:
        """Lets go of it in this process."""
        os.close(self._read_fd)
        os.close(self._write_fd)


def guard_descriptors() -> "tuple[int, int]":
    """Moves standard input and output out of reach of stray prints; returns the moved descriptors."""
    null = os.open(os.devnull, os.O_RDWR)
    while null < 3:
        # A standard descriptor that was closed would become the number of something else.
        null = os.dup(null)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    in_fd, out_fd = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    sys.stdout = sys.stderr
    return in_fd, out_fd
