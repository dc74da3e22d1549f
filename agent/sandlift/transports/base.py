"""What a transport is: it starts a command in a sandbox and moves bytes, and does nothing else.

Everything clever (finding Python, sending the helper, frames, credit, heartbeat) sits above and is the
same for all.  What a transport cannot do is a value in its ``Capabilities``, not a type that anybody asks
for.  A transport turns its library's errors into ours, once, so that nobody above knows the library.

Here stand the protocols with their contracts, and what every implementation needs: the bounded tail
of stderr, the one quoting that all login shells understand, and text from the far side made harmless.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from sandlift.deadline import Deadline
from sandlift.errors import LocalProtocolError, SandliftError
from sandlift.rate import RateLimit

STDERR_TAIL_BYTES = 64 * 1024
WRITE_NOW_BYTES = 512
"""So much goes into a pipe whole or not at all, on every POSIX system."""
ARGUMENT_MAX_BYTES = 131_071
"""The longest single argument that Linux takes (128 KiB with its NUL)."""

_UNQUOTABLE = b"'\\!\n\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a transport can do, as values."""

    duplex: bool
    """Whether stdin and stdout of a command are byte streams while it runs."""
    max_argument_bytes: int
    max_command_bytes: int | None
    """The longest whole command after quoting; None means that only single arguments are bounded."""
    max_call_s: float | None
    """The longest time that one command may run; None means no bound of the transport's own."""
    link_cost: Literal["cheap", "dear"]
    """What a byte costs the host's processor: ``dear`` makes stronger compression worth its time."""


class Channel(Protocol):
    """One running command.

    One thread reads, any thread writes (writes are whole: one does not cut into another), and any thread
    may close, twice too; a reader or writer that waits at that moment returns at once.
    """

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """Up to ``size`` bytes of stdout as soon as there are any.

        None means that nothing came within ``timeout_s``, or that the run was cancelled; ``b""`` that the
        output has ended.  Never raises for an ordinary end, and a lost connection is an end too.
        """
        ...

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """Write all of ``data`` to stdin.

        Raises Truncated if the far side no longer takes bytes, SandboxGone after ``timeout_s`` without any
        progress, Interrupted when the run is cancelled.
        """
        ...

    def write_now(self, data: bytes) -> bool:
        """Write a few bytes, at most ``WRITE_NOW_BYTES``, if that needs no waiting at all.

        False means that nothing was written, because stdin is full or another thread writes.  Raises
        Truncated as ``write`` does.
        """
        ...

    def stderr_tail(self) -> bytes:
        """The last bytes of stderr, at most ``STDERR_TAIL_BYTES``; the rest was drained and dropped."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """The exit status; None while the command runs, and when the transport cannot know it."""
        ...

    def close(self, grace_s: float = 1.0) -> None:
        """End the command and give everything back, within about ``grace_s`` + 0.5 seconds; never raises.

        Stdin is closed; a command that does not end by itself within the grace is ended by force.  No
        process, thread or descriptor of this side stays.
        """
        ...


@runtime_checkable
class FileChannel(Channel, Protocol):
    """A channel that takes a part of a file without anybody reading it."""

    def write_file(self, head: bytes, fd: int, offset: int, size: int, timeout_s: float) -> None:
        """Write ``head`` and then ``size`` bytes of the open file from ``offset`` to stdin, as one ``write``.

        Raises as ``write`` does, StoreDamaged if the file ends earlier, and OSError if it cannot be read.
        """
        ...


class Transport(Protocol):
    """A way into one sandbox.  ``open`` may be called from several threads, ``close`` twice."""

    @property
    def name(self) -> str:
        """What people call this way in: ``ssh``, ``paramiko``, ``local``, or a program's name."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def rate(self) -> RateLimit | None:
        """What the bytes of all its commands are held to by whoever reads and writes them; None is no limit."""
        ...

    def open(self, argv: Sequence[str], *, deadline: Deadline) -> Channel:
        """Start ``argv``; the deadline bounds the start alone, its cancel token also the channel's waits.

        Raises, when it is known at this point, Unreachable, Refused, AuthFailed, HostKeyUnknown,
        HostKeyChanged, a UsageError for what the user must change, DeadlineExceeded and Interrupted.
        Raises LocalProtocolError for words that ``shell_command`` refuses.
        """
        ...

    def explain(self, channel: Channel) -> SandliftError | None:
        """Why a stream ended before it began: the transport's own error, or None if the command ran."""
        ...

    def close(self) -> None:
        """Give back what the transport keeps between commands, within about 1.5 seconds; never raises."""
        ...


class StderrTail:
    """Keeps the last ``STDERR_TAIL_BYTES`` of what is added, from any thread."""

    __slots__ = ("_lock", "_tail")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Append, and forget what is too old."""
        with self._lock:
            self._tail += data
            # Cut at twice the size, so that many small pieces do not move 64 KiB each.
            if len(self._tail) > 2 * STDERR_TAIL_BYTES:
                del self._tail[:-STDERR_TAIL_BYTES]

    def value(self) -> bytes:
        """The tail as it is now."""
        with self._lock:
            return bytes(self._tail[-STDERR_TAIL_BYTES:])


def check_now(data: bytes) -> None:
    """Raises LocalProtocolError for more bytes than ``Channel.write_now`` takes."""
    if len(data) > WRITE_NOW_BYTES:
        raise LocalProtocolError(f"{len(data)} bytes are too many to be written at once")


def check_words(argv: Sequence[str], capabilities: Capabilities) -> None:
    """Refuse, as a fault of ours, a command that this transport could not carry."""
    if not argv or not argv[0]:
        raise LocalProtocolError("a command needs a program")
    for word in argv:
        data = os.fsencode(word)
        if b"\0" in data:
            raise LocalProtocolError("a word of a command cannot hold a NUL byte")
        if len(data) > capabilities.max_argument_bytes:
            raise LocalProtocolError(
                f"a word of {len(data)} bytes is more than the {capabilities.max_argument_bytes} that fit"
            )


def shell_command(argv: Sequence[str], capabilities: Capabilities) -> str:
    """``argv`` as one line for whatever login shell the far side has: sh, bash, dash, zsh, csh, tcsh, fish.

    Single quotes are the one quoting that all of them read alike, as long as no word holds a single quote,
    a backslash (special to fish), ``!`` (history, to csh) or a newline (an error, to csh).  The words are
    ours, so such a word raises LocalProtocolError.  ``exec`` leaves no shell waiting between us and the
    command.
    """
    check_words(argv, capabilities)
    for word in argv:
        if any(byte in _UNQUOTABLE for byte in os.fsencode(word)):
            raise LocalProtocolError(f"a word that cannot be quoted for every shell: {word[:40]!a}")
    command = "exec " + " ".join(f"'{word}'" for word in argv)
    size_bytes = len(os.fsencode(command))
    if capabilities.max_command_bytes is not None and size_bytes > capabilities.max_command_bytes:
        raise LocalProtocolError(f"a command of {size_bytes} bytes is more than {capabilities.max_command_bytes}")
    return command


def harmless_text(data: bytes, *, secret: str | None = None) -> str:
    """Text of the far side for a person: control characters escaped, ``secret`` blotted out."""
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    if secret:
        text = text.replace(secret, "***")
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text).strip()


def last_line(text: str, limit: int = 200) -> str:
    """The last line that says anything, for a message."""
    return next((line.strip()[:limit] for line in reversed(text.splitlines()) if line.strip()), "")
