"""One run of the helper over a transport: started, kept alive, listened to, and ended for good.

The run owns the channel.  Whoever iterates `events` reads; other threads may `write`.  A thread that all runs
share sends the heartbeat, so that neither a slow store nor a busy reader lets the helper believe that the host died.
A transport's rate is kept here: the run moves a piece, pays for it, and waits before the next one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandlift import payload, session
from sandlift.deadline import SLICE_S, Deadline
from sandlift.errors import (
    Conflict,
    HelperCrashed,
    HelperStart,
    NoPython,
    PythonOld,
    RemoteProtocolError,
    RootMissing,
    RootNotDirectory,
    RootUnreadable,
    SandboxGone,
    SandliftError,
    StoreDamaged,
    TargetFull,
    TargetNotEmpty,
    TargetUnusable,
    Truncated,
    UsageError,
)
from sandlift.heartbeat import HEART, Beat
from sandlift.limits import Limits
from sandlift.transports.base import Channel, FileChannel, Transport, harmless_text, last_line
from sandlift_helper import wire

if TYPE_CHECKING:
    from sandlift.results import Wire

READ_SIZE = 1 << 20
HEARTBEATS_A_SILENCE = 6
EXIT_WAIT_S = 2.0
UNHELD_BYTES = 1 << 10
"""A write of at most so much never waits for the transport's rate, though it counts: credit must not be late."""
SIGN_OF_LIFE_BYTES = 4096
"""So much of a frame counts as a sign of life; less does not, or a byte now and then would keep a run for ever."""
MESSAGE_MAX = 1000
"""What a person is shown of a failure's own words; the rest of a frame would fill a terminal."""

# What the helper's failure codes mean, for each operation; a code that is not in the table is a crash.
_OF_ROOTS: dict[str, type[SandliftError]] = {
    "protocol": RemoteProtocolError,
    "options": UsageError,
    "root-missing": RootMissing,
    "root-not-directory": RootNotDirectory,
    "root-unreadable": RootUnreadable,
}
FAILURES: dict[str, dict[str, type[SandliftError]]] = {
    "capture": _OF_ROOTS,
    "survey": _OF_ROOTS,
    "apply": {
        "protocol": RemoteProtocolError,
        "options": UsageError,
        "conflict": Conflict,
        "root-unreadable": TargetUnusable,
        "store-damaged": StoreDamaged,
        "target-not-empty": TargetNotEmpty,
        "target-full": TargetFull,
        "target-unusable": TargetUnusable,
    },
}
_HINTS = {
    "root-missing": "check the path in the target; it is the path inside the sandbox",
    "root-not-directory": "name the directory that holds the workspace",
    "root-unreadable": "connect as a user who may read it",
    "target-not-empty": "name a directory that does not exist yet, or an empty one",
    "conflict": "look at what is there, then try again: a restore in place can be run again",
    "store-damaged": "sandlift verify shows what is damaged",
    "target-full": "free some space, or restore to another file system",
}


class HelperRun:
    """A helper that does one operation.  Use it as a context manager; leaving it ends the far process."""

    def __init__(
        self, transport: Transport, operation: str, *, limits: Limits, deadline: Deadline, python: str | None = None
    ) -> None:
        self.session = session.Session(operation, limits)
        self.deadline = deadline
        self.sent_bytes = self.received_bytes = 0
        self.hello: session.Hello | None = None
        self._transport = transport
        self._operation = operation
        self._limits = limits
        self._python = python
        self._channel: Channel | None = None
        self._rate = transport.rate
        self._held_until = 0.0
        self._write_lock = threading.Lock()
        self._beat: Beat | None = None

    def start(self, request: Callable[[], Mapping[str, object]]) -> None:
        """Starts the helper and sends it its *request*, which is asked for while the connection is made.

        Raises what the transport or *request* raises.
        """
        argv, opening_of = payload.sandbox_argv(self._python), payload.opening
        if self._transport.name == "local" and self._python is not None:
            argv, opening_of = payload.local_argv(self._python), payload.local_opening
        self.deadline.check("starting the helper")
        self._channel = self._transport.open(argv, deadline=self.deadline)
        fields = {**request(), "silence_ms": int(self._limits.silence_s * 1000)}
        try:
            opening = opening_of(self.session.nonce, self._operation) + self.session.request(fields)
        except ValueError as error:
            raise UsageError(f"the rules are too many for one request: {error}") from None
        # A command that ends at once may refuse its input; why it ended is told when its output is read.
        with contextlib.suppress(Truncated):
            self.write(opening)
        self._beat = HEART.add(self._limits.silence_s / HEARTBEATS_A_SILENCE, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        """Says that the host lives, unless something is being sent or waits to be read, which says the same."""
        assert self._channel is not None
        data = self.session.heartbeat()
        if not self._write_lock.acquire(blocking=False):
            return
        try:
            # The reader meets the same end, and says why.
            with contextlib.suppress(SandliftError):
                if self._channel.write_now(data):
                    self.sent_bytes += len(data)
        finally:
            self._write_lock.release()

    def write(self, data: bytes | memoryview) -> None:
        """Sends bytes to the helper, whole.  Raises Truncated, SandboxGone, Interrupted, DeadlineExceeded."""
        assert self._channel is not None
        if self._rate is None:
            self._channel.write(data, self._limits.silence_s)
            self.sent_bytes += len(data)
            return
        view = memoryview(data).cast("B")
        with self._write_lock:
            while view:
                piece = view[: max(self._rate.piece_bytes, UNHELD_BYTES)]
                wait_s = self._rate.take(len(piece))
                if len(data) > UNHELD_BYTES:
                    self.deadline.pause(wait_s, "sending")
                self._channel.write(piece, self._limits.silence_s)
                self.sent_bytes += len(piece)
                view = view[len(piece) :]

    def _receive(self, channel: Channel, timeout_s: float) -> tuple[bytes | None, float]:
        """Reads what the rate allows; returns it, and the seconds for which the rate alone let nothing come."""
        held_s = min(timeout_s, self._held_until - time.monotonic())
        if held_s > 0:
            time.sleep(held_s)
            return None, held_s
        size = READ_SIZE if self._rate is None else min(READ_SIZE, self._rate.piece_bytes)
        data = channel.read(size, timeout_s)
        if data:
            self.received_bytes += len(data)
            if self._rate is not None:
                self._held_until = time.monotonic() + self._rate.take(len(data))
        return data, 0.0

    def tell(self, frame: bytes) -> None:
        """Sends a frame; where the far side has ended, why it did is told when its output is read."""
        with contextlib.suppress(Truncated):
            self.write(frame)

    def write_file(self, head: bytes, fd: int, offset: int, size: int) -> None:
        """Sends *head* and a part of the open file, as one.  Raises as `write`, StoreDamaged, OSError."""
        if isinstance(self._channel, FileChannel) and self._rate is None:
            self._channel.write_file(head, fd, offset, size, self._limits.silence_s)
            self.sent_bytes += len(head) + size
            return
        data = os.pread(fd, size, offset)
        if len(data) < size:
            raise StoreDamaged("a file became shorter while it was sent")
        self.write(head + data)

    def grant(self, frames: int) -> None:
        """Lets the helper send so many more content frames; a stream that has ended needs none."""
        self.tell(self.session.grant(frames))

    @property
    def wire(self) -> Wire:
        """Bytes moved so far."""
        from sandlift.results import Wire

        return Wire(sent=self.sent_bytes, received=self.received_bytes)

    def events(self, check: Callable[[], None] | None = None) -> Iterator[session.Event]:
        """Yields the events of the stream; the last one is its end.

        *check* is called while nothing comes: what it raises ends the run, so that a fault of another thread does
        not wait for the sandbox's next word.

        A sign of life is a whole frame, or much of one; noise is none, so the stream begins within one silence
        or not at all.  Raises the error that a failure frame stands for, RemoteProtocolError, HostLimit,
        Truncated, SandboxGone, an error of start or transport, Interrupted, DeadlineExceeded.
        """
        channel = self._channel
        assert channel is not None
        alive_at, heard_at, unheard_bytes = time.monotonic(), 0.0, 0
        while self.session.state is not session.State.ENDED:
            self.deadline.check("waiting for the sandbox")
            if check is not None:
                check()
            data, held_s = self._receive(channel, self.deadline.slice_s())
            if data == b"":
                raise self._cut_off(channel)
            # What we did not let come is not the sandbox's silence.
            alive_at, heard_at = alive_at + held_s, heard_at + held_s
            alive = False
            if data:
                heard_at = time.monotonic()
                unheard_bytes += len(data)
                for event in self.session.receive(data):
                    if isinstance(event, session.Failure):
                        raise self._failed(event)
                    if isinstance(event, session.Hello):
                        self.hello = event
                        _log(event)
                    alive = True
                    yield event
                alive = alive or (unheard_bytes >= SIGN_OF_LIFE_BYTES and self.session.state is not session.State.NOISE)
            now = time.monotonic()
            if alive:
                # Only now: the time that our own side took is not the sandbox's silence.
                alive_at, unheard_bytes = now, 0
            elif now - alive_at > self._limits.silence_s:
                raise self._silent(channel, unheard_bytes, chatters=now - heard_at < self._limits.silence_s)
        self._read_trailer(channel)

    def _read_trailer(self, channel: Channel) -> None:
        """Reads on until the far process has ended its output, but not for long: the end has come."""
        until = time.monotonic() + EXIT_WAIT_S
        while time.monotonic() < until:
            self.deadline.check("waiting for the sandbox")
            data, _ = self._receive(channel, SLICE_S)
            if data == b"":
                break
            if data:
                self.session.receive(data)
        self.session.ended()

    def _silent(self, channel: Channel, unheard_bytes: int, *, chatters: bool) -> SandliftError:
        """Says what came instead of a sign of life."""
        silence_s, stderr = self._limits.silence_s, harmless_text(channel.stderr_tail())
        if self.session.state is session.State.NOISE and chatters:
            return HelperStart(
                f"the sandbox prints, but the helper has not begun within {silence_s:g} s",
                hint="-v shows what it prints; --limit silence_s=S waits longer",
                noise=harmless_text(self.session.unfinished_noise()),
                stderr=stderr,
            )
        sent = f"only {unheard_bytes} bytes of a frame" if chatters else "nothing"
        return SandboxGone(
            f"the sandbox has sent {sent} for {silence_s:g} s", hint="check whether it still runs", stderr=stderr
        )

    def _failed(self, failure: session.Failure) -> SandliftError:
        kind = FAILURES[self._operation].get(failure.code, HelperCrashed)
        message = harmless_text(failure.message.encode("utf-8", "surrogateescape"))[:MESSAGE_MAX]
        context: dict[str, object] = {}
        if failure.report:
            context["report"] = harmless_text(failure.report.encode("utf-8", "surrogateescape"))
        return kind(message or "the helper failed", hint=_HINTS.get(failure.code, ""), **context)

    def _cut_off(self, channel: Channel) -> SandliftError:
        """Says why the output ended before the stream did."""
        status = channel.wait(EXIT_WAIT_S)
        stderr = harmless_text(channel.stderr_tail())
        begun = self.session.state is not session.State.NOISE
        if not begun:
            if status == wire.EXIT_NO_PYTHON:
                return NoPython(
                    "the sandbox has no Python 3 that could be found",
                    hint="install python3 there, or name one with --python",
                    tried=list(payload.PYTHONS) if self._python is None else [self._python],
                )
            if status == wire.EXIT_PYTHON_OLD:
                return PythonOld(
                    "the sandbox has only a Python older than 3.6",
                    hint="install a newer python3 there, or name one with --python",
                )
            if status == wire.EXIT_TERMINAL:
                return HelperStart(
                    "the command runs on a terminal, which would alter the stream",
                    hint="leave out the option that asks for one, such as -t",
                )
        if (known := self._transport.explain(channel)) is not None:
            return known
        if begun:
            return Truncated(
                "the stream from the sandbox ended before its end" + (f": {last_line(stderr)}" if stderr else ""),
                hint="nothing was stored; try again",
                received_bytes=self.received_bytes,
                stderr=stderr,
                exit_status=status,
            )
        noise = harmless_text(self.session.unfinished_noise())
        said = last_line(stderr) or last_line(noise)
        return HelperStart(
            f"the helper did not start in the sandbox (exit status {status})" + (f": {said}" if said else ""),
            hint="-v shows what the sandbox printed",
            stderr=stderr,
            noise=noise,
            exit_status=status,
        )

    def close(self, grace_s: float = 1.0) -> None:
        """Ends the far process and gives back threads and descriptors; may be called twice."""
        beat, self._beat = self._beat, None
        if beat is not None:
            HEART.remove(beat)
        if self._channel is not None:
            self._channel.close(grace_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _log(hello: session.Hello) -> None:
    # Imported late: a connection is started before anything that takes long to import.
    import logging

    python = harmless_text(hello.python.encode("utf-8", "surrogateescape"))
    logging.getLogger("sandlift.helper_run").debug("helper runs on Python %s", python)
