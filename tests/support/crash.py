"""A seam under the helper: it runs in a forked process, every system call for files is counted, and one disturbed.

`Forked` is a transport whose helper is this process's own modules in a child of it, with workers and confinement as
ever; what the host sends is checked for nothing but being read.  The count is one for the helper and its workers.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import mmap
import os
import signal
import stat
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal, NoReturn, cast

from sandlift.box import Box
from sandlift.deadline import Deadline
from sandlift.errors import SandliftError
from sandlift.targets import parse_target
from sandlift.transports.base import Channel
from sandlift.transports.command import CommandChannel
from sandlift.transports.local import CAPABILITIES
from sandlift_helper import apply, codec, inplace, main, rename, staging

Disturbance = Literal["nothing", "kill", "eio", "enospc", "eintr", "short", "call"]

CHANGING = (
    *("mkdir", "rmdir", "rename", "link", "symlink", "unlink", "write", "pwrite"),
    *("ftruncate", "fchmod", "chmod", "utime", "fchown", "chown", "fsync"),
)
"""Calls that change files; besides, those that create a file, renameat2 and syncfs."""
LOOKING = ("stat", "lstat", "fstat", "listdir", "readlink", "scandir")

_ERRNO = {"eio": errno.EIO, "enospc": errno.ENOSPC, "eintr": errno.EINTR}
_COUNT = struct.Struct("<Q")
_SLOT, _SLOTS = 64, 4000
# What a restore or a capture imports when it needs it; here before the fork.
_EARLY = ("apply", "capture", "reading", "writer", "ignore")
_EARLY_HOST = ("content", "gathering", "restoring.run", "restoring.plan", "restoring.delivery")


@dataclass(slots=True, kw_only=True)
class Seam:
    """What becomes of the *at*-th call."""

    what: Disturbance = "nothing"
    at: int = 0
    """0 is every one."""
    opens: bool = False
    """Whether every open counts, not only one that creates a file."""
    looks: bool = False
    """Whether calls that only look count as well."""
    exchange: bool = True
    """Whether the kernel can exchange two names."""
    ask: Callable[[], None] | None = None
    """Called in the helper's process ahead of the call, for the disturbance ``call``."""
    chance: bytes = b""
    """One byte that takes the place of chance in names."""
    user: int | None = None
    """Whom the helper works as."""
    _shared: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, _SLOT * _SLOTS))

    @property
    def count(self) -> int:
        """How many calls there were."""
        return int(_COUNT.unpack_from(self._shared)[0])

    @property
    def resolved(self) -> int:
        """How many calls there were when the helper had opened the target."""
        return int(_COUNT.unpack_from(self._shared, _COUNT.size)[0])

    def name(self, number: int) -> str:
        """A call, and what it was about."""
        return bytes(self._shared[_SLOT * number : _SLOT * (number + 1)]).rstrip(b"\0").decode()

    @property
    def names(self) -> list[str]:
        """All calls, from the first on."""
        return [self.name(number) for number in range(1, self.count + 1)]

    def begin(self) -> None:
        """Counts from the start again."""
        self._shared[:] = bytes(len(self._shared))

    def install(self) -> None:
        """Puts the seam under this process and all that it forks."""
        names = (*CHANGING, *(LOOKING if self.looks else ()))
        for name in (*names, "open"):
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        if self.chance:
            os.urandom = lambda size: self.chance * size
        target = cast(Any, apply).Target

        def opened(*args: Any) -> Any:
            made = target(*args)
            _COUNT.pack_into(self._shared, _COUNT.size, self.count)
            return made

        cast(Any, apply).Target = opened
        exchange = rename._renameat2
        rename._renameat2 = self._renamed(exchange)
        for module in (staging, inplace):
            # Who is killed loses nothing that only was not flushed, and a real flush costs time.
            cast(Any, module).sync_file_system = self._wrapped("syncfs", lambda fd: None)
        cast(Any, os).fsync = self._wrapped("fsync", lambda fd: None)

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self._counts(name, args, kwargs) or not self._is_next(name, args):
                return call(*args, **kwargs)
            if self.what == "kill":
                if name in ("write", "pwrite"):
                    call(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
                os.killpg(0, signal.SIGKILL)
            if self.what == "short" and name in ("write", "pwrite"):
                return call(args[0], bytes(args[1])[: max(1, len(args[1]) // 2)], *args[2:])
            if self.what in _ERRNO:
                number = _ERRNO[self.what]
                raise OSError(number, os.strerror(number), args[0] if isinstance(args[0], (bytes, str)) else None)
            if self.ask is not None:
                self.ask()
            return call(*args, **kwargs)

        return wrapped

    def _renamed(self, call: Callable[..., int]) -> Callable[..., int]:
        def renameat2(old_fd: int, old: bytes, new_fd: int, new: bytes, flags: int) -> int:
            if not self.exchange:
                return errno.ENOSYS
            if self._is_next("renameat2", (old, new)):
                if self.what == "kill":
                    os.killpg(0, signal.SIGKILL)
                if self.what in _ERRNO:
                    return _ERRNO[self.what]
                if self.ask is not None:
                    self.ask()
            return call(old_fd, old, new_fd, new, flags)

        return renameat2

    def _counts(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if name in ("write", "pwrite"):
            return stat.S_ISREG(_FSTAT(args[0]).st_mode)
        if name == "open":
            return self.opens or bool((args[1] if len(args) > 1 else kwargs["flags"]) & os.O_CREAT)
        return True

    def _is_next(self, name: str, args: Sequence[Any]) -> bool:
        number = self.count + 1
        _COUNT.pack_into(self._shared, 0, number)
        text = f"{name} {ascii(args[0])[-40:]}".encode()[:_SLOT]
        self._shared[_SLOT * number : _SLOT * number + len(text)] = text
        return self.what != "nothing" and self.at in (0, number)


_FSTAT = os.fstat


class _Process:
    """A forked child, with as much of `subprocess.Popen` as a channel needs."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < end, "the helper does not end"
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class Forked:
    """A transport to this machine; each helper is a child of this process, in a group of its own, under the seam."""

    name = "local"
    capabilities = CAPABILITIES
    rate = None

    def __init__(self, seam: Seam) -> None:
        self.seam = seam
        for name in _EARLY:
            importlib.import_module(f"sandlift_helper.{name}")
        for name in _EARLY_HOST:
            importlib.import_module(f"sandlift.{name}")
        # What is loaded here need not be loaded by each helper and each of its workers.
        importlib.import_module("ctypes")
        codec.available()

    def open(self, argv: Sequence[str], *, deadline: Deadline) -> Channel:
        """Forks the helper, whatever the command says."""
        self.seam.begin()
        pipes = [os.pipe() for _ in range(3)]
        pid = os.fork()
        if not pid:
            for fd in (pipes[0][1], pipes[1][0], pipes[2][0]):
                os.close(fd)
            self._serve([pipes[0][0], pipes[1][1], pipes[2][1]])
        for fd in (pipes[0][0], pipes[1][1], pipes[2][1]):
            os.close(fd)
        files = [os.fdopen(fd, mode, 0) for fd, mode in ((pipes[0][1], "wb"), (pipes[1][0], "rb"), (pipes[2][0], "rb"))]
        return CommandChannel(cast(Any, _Process(pid, *cast(Any, files))), own_group=True, cancel=deadline.cancel)

    def _serve(self, ends: list[int]) -> NoReturn:
        try:
            os.setsid()
            for number, fd in enumerate(ends):
                os.dup2(fd, number)
                os.close(fd)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            stage = int(_line())
            _skip(stage)
            size, nonce = _line().split()
            _skip(int(size))
            if self.seam.user is not None:
                os.setgroups([])
                os.setgid(self.seam.user)
                os.setuid(self.seam.user)
            self.seam.install()
            main.run(bytes.fromhex(nonce.decode()))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    def explain(self, channel: Channel) -> SandliftError | None:
        """Nothing of its own can fail."""
        return None

    def close(self) -> None:
        """Nothing is kept."""


def _line() -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        text += os.read(0, 1)
    return text


def _skip(size: int) -> None:
    while size:
        size -= len(os.read(0, size))


def box_at(path: os.PathLike[str], seam: Seam) -> Box:
    """A box at a path of this machine, whose helpers run under the seam."""
    return Box(parse_target(f"local:{os.fspath(path)}"), Forked(seam))


@contextlib.contextmanager
def one_processor() -> Any:
    """Lets helpers work one call after the other, so that the count of a call says what it is."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
