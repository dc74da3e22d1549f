"""Any program that runs another: a prefix of words, and the command behind it.

``ssh HOST``, ``docker exec -i NAME``, ``kubectl exec -i POD --``, ``sudo -u USER``, ``sh -c`` and nothing
at all are one transport that differs in the prefix, in how the command is written behind it, and in how
the program's own failures are told from the command's.

The program runs in a session of its own, so that closing ends its whole process group.  Its pipes are
widened, non-blocking on our side and waited for with ``poll``; one thread drains stderr.  Closing climbs a
ladder: close stdin and stdout, wait, SIGTERM, SIGKILL to the group.  The group is signalled before its
leader is reaped: as long as the zombie holds the number, nobody else can be hit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Literal

from sandlift.deadline import SLICE_S, Cancel, Deadline
from sandlift.errors import (
    Interrupted,
    MissingExtra,
    Refused,
    SandboxGone,
    SandliftError,
    StoreDamaged,
    Truncated,
    UsageError,
)
from sandlift.rate import RateLimit

from .base import Capabilities, Channel, StderrTail, check_now, check_words, shell_command

PIPE_BYTES = 1 << 20
_WRITE_BYTES = 1 << 20
_KILL_WAIT_S = 0.2

Explain = Callable[[int | None, bytes], SandliftError | None]
"""(exit status, stderr) → the program's own failure, or None if the command behind it ran."""


class CommandChannel:
    """A running program; see ``Channel`` for the contract."""

    def __init__(self, process: subprocess.Popen[bytes], *, own_group: bool, cancel: Cancel | None = None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._own_group = own_group
        self._cancel = cancel
        self._stdin: IO[bytes] = process.stdin
        self._stdout: IO[bytes] = process.stdout
        self._stderr: IO[bytes] = process.stderr
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        for pipe in (self._stdin, self._stdout):
            _widen(pipe.fileno())
        self._tail = StderrTail()
        self._status: int | None = None
        self._closing = threading.Event()
        self._closed = False
        self._stop_drain = False
        self._read_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._wait_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._wake, self._waker = _make_wake()
        self._drain = threading.Thread(target=self._drain_stderr, name="sandlift-stderr", daemon=True)
        self._drain.start()

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """See ``Channel.read``."""
        end = time.monotonic() + timeout_s
        with self._read_lock:
            if self._closing.is_set():
                return b""
            poll = select.poll()
            poll.register(self._stdout.fileno(), select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            while True:
                try:
                    return os.read(self._stdout.fileno(), size)
                except BlockingIOError:
                    pass
                left_s = end - time.monotonic()
                if left_s <= 0 or (self._cancel is not None and self._cancel.cancelled):
                    return None
                poll.poll(_poll_ms(left_s))
                if self._closing.is_set():
                    return b""

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """See ``Channel.write``."""
        with self._write_lock:
            self._write(data, timeout_s)

    def write_file(self, head: bytes, fd: int, offset: int, size: int, timeout_s: float) -> None:
        """See ``FileChannel.write_file``; the kernel hands the file's pages to the pipe, where it can."""
        with self._write_lock:
            self._write(head, timeout_s)
            end = offset + size

            def send(stdin: int) -> int:
                nonlocal offset
                sent = os.sendfile(stdin, fd, offset, end - offset)
                if not sent:
                    raise StoreDamaged("a file became shorter while it was sent")
                offset += sent
                return end - offset

            try:
                self._send(send, timeout_s)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS):
                    raise
                # Not every file system or system can.
                data = os.pread(fd, end - offset, offset)
                if len(data) < end - offset:
                    raise StoreDamaged("a file became shorter while it was sent") from None
                self._write(data, timeout_s)

    def _write(self, data: bytes | memoryview, timeout_s: float) -> None:
        view = memoryview(data).cast("B")

        def send(stdin: int) -> int:
            nonlocal view
            view = view[os.write(stdin, view[:_WRITE_BYTES]) :]
            return len(view)

        if view:
            self._send(send, timeout_s)

    def _send(self, send: Callable[[int], int], timeout_s: float) -> None:
        """Calls ``send(stdin)``, which returns how much is left, as often as the pipe takes something."""
        poll = select.poll()
        if not self._closing.is_set():
            poll.register(self._stdin.fileno(), select.POLLOUT)
            poll.register(self._wake, select.POLLIN)
        end = time.monotonic() + timeout_s
        while True:
            if self._closing.is_set():
                raise Truncated("the channel was closed while data was being sent")
            try:
                if not send(self._stdin.fileno()):
                    return
                end = time.monotonic() + timeout_s
                continue
            except BlockingIOError:
                pass
            except BrokenPipeError:
                raise Truncated("the command takes no more input: it has ended, or closed its stdin") from None
            if self._cancel is not None and self._cancel.cancelled:
                raise Interrupted("interrupted while sending", signal=self._cancel.signal)
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise SandboxGone(f"the command took no input for {timeout_s:g} s")
            poll.poll(_poll_ms(left_s))

    def write_now(self, data: bytes) -> bool:
        """See ``Channel.write_now``."""
        check_now(data)
        if not self._write_lock.acquire(blocking=False):
            return False
        try:
            if self._closing.is_set():
                raise Truncated("the channel was closed while data was being sent")
            os.write(self._stdin.fileno(), data)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            raise Truncated("the command takes no more input: it has ended, or closed its stdin") from None
        finally:
            self._write_lock.release()
        return True

    def stderr_tail(self) -> bytes:
        """See ``Channel.stderr_tail``; after the program's end, what it said last is waited for shortly."""
        if not self._closed and self._poll_status() is not None:
            self._drain.join(SLICE_S)
        return self._tail.value()

    def wait(self, timeout_s: float) -> int | None:
        """See ``Channel.wait``; death by a signal is 128 + its number, as a shell says it."""
        end = time.monotonic() + timeout_s
        pause_s = 0.001
        while (status := self._poll_status()) is None:
            left_s = end - time.monotonic()
            if left_s <= 0 or (self._cancel is not None and self._cancel.cancelled):
                return None
            time.sleep(min(left_s, pause_s))
            pause_s = min(0.02, pause_s * 2)
        return status

    def close(self, grace_s: float = 1.0) -> None:
        """See ``Channel.close``."""
        with self._close_lock:
            if self._closed:
                return
            self._closing.set()
            if self._waker == self._wake:
                os.eventfd_write(self._wake, 1)
            else:
                os.close(self._waker)
            with self._write_lock, contextlib.suppress(OSError):
                self._stdin.close()
            with self._read_lock:
                self._stdout.close()
            self._end_process(grace_s)
            self._stop_drain = True
            self._drain.join(2 * SLICE_S)
            if not self._drain.is_alive():
                self._stderr.close()
                os.close(self._wake)
            self._closed = True

    def _end_process(self, grace_s: float) -> None:
        """Wait, then SIGTERM, then SIGKILL; leftovers of the group go in any case."""
        if self._wait_uncancelled(grace_s) is None:
            self._signal(signal.SIGTERM)
            self._wait_uncancelled(_KILL_WAIT_S)
        self._signal(signal.SIGKILL)
        if self._wait_uncancelled(_KILL_WAIT_S) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_WAIT_S)

    def _wait_uncancelled(self, timeout_s: float) -> int | None:
        end = time.monotonic() + timeout_s
        while (status := self._poll_status()) is None and time.monotonic() < end:
            time.sleep(0.005)
        return status

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group, or the program alone where it shares ours; no harm once it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._own_group:
                self._process.send_signal(number)
            elif self._process.returncode is None:
                os.killpg(self._process.pid, number)

    def _poll_status(self) -> int | None:
        """The exit status if the program has ended; it stays a zombie until ``close``."""
        with self._wait_lock:
            if self._status is None:
                self._status = _peek_status(self._process)
            return self._status

    def _drain_stderr(self) -> None:
        """Read stderr to its end, or until told to stop: a stray process may hold it open for ever."""
        fd = self._stderr.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            events = poll.poll(50 if self._closing.is_set() else None)
            if self._closing.is_set() and any(ready == self._wake for ready, _ in events):
                poll.unregister(self._wake)
            if any(ready == fd for ready, _ in events):
                try:
                    data = os.read(fd, 65536)
                except BlockingIOError:
                    continue
                if not data:
                    return
                self._tail.add(data)
            if self._stop_drain:
                return


class CommandTransport:
    """Runs commands behind a prefix; see ``Transport`` for the contract.

    ``quoting`` "argv" puts the words of a command behind the prefix, "shell" puts one word there: a line for
    a shell.  ``env`` is added to the environment of the program.  ``explain`` tells the program's
    own failures; ``own_session`` False leaves the program our terminal, for a question to the user.
    """

    def __init__(
        self,
        prefix: Sequence[str],
        *,
        quoting: Literal["argv", "shell"],
        capabilities: Capabilities,
        name: str,
        env: Mapping[str, str] | None = None,
        explain: Explain | None = None,
        own_session: bool = True,
        rate: RateLimit | None = None,
    ) -> None:
        self.rate = rate
        self.prefix = tuple(prefix)
        self.name = name
        self.capabilities = capabilities
        self._quoting = quoting
        self._env = env
        self._explain = explain
        self._own_session = own_session

    def open(self, argv: Sequence[str], *, deadline: Deadline) -> Channel:
        """See ``begin``."""
        return self.begin(argv, deadline=deadline)

    def begin(self, argv: Sequence[str], *, deadline: Deadline) -> CommandChannel:
        """Start the program; raises UsageError if the prefix, Refused if the command cannot be started."""
        if self._quoting == "shell":
            words = (*self.prefix, shell_command(argv, self.capabilities))
        else:
            check_words(argv, self.capabilities)
            words = (*self.prefix, *argv)
        deadline.check(f"starting {os.path.basename(words[0])}")
        return start(
            words,
            env=self._env,
            own_session=self._own_session,
            cancel=deadline.cancel,
            missing=self.missing if self.prefix else None,
        )

    def explain(self, channel: Channel) -> SandliftError | None:
        """Asks the ``explain`` given at the start, with the exit status and the tail of stderr."""
        if self._explain is None:
            return None
        return self._explain(channel.wait(SLICE_S), channel.stderr_tail())

    def close(self) -> None:
        """Nothing is kept between commands."""

    def missing(self, program: str, reason: str) -> SandliftError:
        """The error for a program of the prefix that cannot be started."""
        if self.name == "ssh":
            return MissingExtra(
                f"the ssh program {program!a} cannot be started: {reason}",
                hint="install the OpenSSH client, name another with SANDLIFT_SSH, or use a paramiko:// URL",
            )
        return UsageError(f"the program {program!a} of the command prefix cannot be started: {reason}")


def start(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    own_session: bool = True,
    cancel: Cancel | None = None,
    missing: Callable[[str, str], SandliftError] | None = None,
) -> CommandChannel:
    """Start a program with three pipes; raises what ``missing`` makes of its absence, else Refused."""
    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **env} if env else None,
            close_fds=True,
            start_new_session=own_session,
        )
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            raise _no_room(reason) from None
        if missing is not None:
            raise missing(words[0], reason) from None
        raise Refused(f"the command {words[0]!a} cannot be started: {reason}") from None
    try:
        return CommandChannel(process, own_group=own_session, cancel=cancel)
    except (OSError, RuntimeError) as error:
        # Descriptors or threads ran out just now; nobody else knows of the process yet.
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
        raise _no_room(str(error)) from None


def _no_room(reason: str) -> Refused:
    return Refused(
        f"this machine cannot start another process: {reason}", hint="run fewer at once, or raise `ulimit -n` and -u"
    )


def via(prefix: Sequence[str], *, shell: bool, rate: RateLimit | None = None) -> CommandTransport:
    """The transport behind a prefix that the user gave.

    8,000 bytes for a whole command: kubectl puts it into a URL, and proxies cut those at 8 KiB.
    """
    capabilities = Capabilities(
        duplex=True, max_argument_bytes=8_000, max_command_bytes=8_000, max_call_s=None, link_cost="cheap"
    )
    name = os.path.basename(prefix[0])
    quoting: Literal["argv", "shell"] = "shell" if shell else "argv"
    return CommandTransport(prefix, quoting=quoting, capabilities=capabilities, name=name, rate=rate)


def _peek_status(process: subprocess.Popen[bytes]) -> int | None:
    if process.returncode is None and hasattr(os, "waitid"):
        try:
            info = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            info = None
        else:
            if info is None:
                return None
            return info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status
    status = process.poll()
    return 128 - status if status is not None and status < 0 else status


def _make_wake() -> tuple[int, int]:
    """Returns a descriptor that becomes readable, or hangs up, for all who poll it, and what to do that with.

    It is one descriptor twice where there is eventfd: with many commands at once, each one counts.
    """
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return fd, fd
    return os.pipe()


def _poll_ms(left_s: float) -> int:
    """Milliseconds for one slice; at least one, so that a rest of microseconds does not spin."""
    return max(1, int(1000 * min(SLICE_S, left_s)))


def _widen(fd: int) -> None:
    """A wider pipe saves switches between processes; the user's pipe quota may forbid it."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
