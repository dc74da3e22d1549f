"""Somebody in the workspace who exchanges names while they are worked with, as fast as he may.

attacker.py OPERATIONS PAUSE_US LAIR BAIT...    each BAIT is ``KIND:PATH:VICTIM``: what is at PATH is exchanged for a
                                                link to VICTIM, or for a pipe, and back, again and again; KIND is link
                                                or fifo, and a PATH ``PLACE//REST`` lies in a staging directory there

It prints a dot when it begins and the number of exchanges when it ends.  ``Attacker`` is the same by hand: one
exchange whenever it is asked for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

AT_FDCWD = -100
EXCHANGE = 2
ATTACK_MAX_S = 900.0

_library = ctypes.CDLL(None, use_errno=True)


def exchange(first: bytes, second: bytes) -> bool:
    """Exchanges two names at once; returns whether both were there."""
    return bool(_library.renameat2(AT_FDCWD, first, AT_FDCWD, second, EXCHANGE) == 0)


class Attacker:
    """A process that exchanges two names when it is asked; it is not confined as whoever asks may be."""

    def __init__(self, first: Path, second: Path) -> None:
        self._ask, self._answer = os.pipe(), os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._ask[1])
            while os.read(self._ask[0], 1):
                exchange(os.fsencode(first), os.fsencode(second))
                os.write(self._answer[1], b"!")
            os._exit(0)

    def strike(self) -> None:
        """Has the names exchanged; may be called in a child of the one that made this."""
        os.write(self._ask[1], b"?")
        os.read(self._answer[0], 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (*self._ask, *self._answer):
            os.close(fd)
        os.waitpid(self._pid, 0)


@contextlib.contextmanager
def attacked(operations: int, pause_us: int, *words: object) -> Iterator[Callable[[], int | None]]:
    """An attacker at work; yields a function that returns how many exchanges it made once it is done, else None.

    Whoever leaves before stops it.
    """
    command = [sys.executable, "-S", __file__, str(operations), str(pause_us), *map(os.fspath, map(str, words))]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.read(1) == b"."
        stdout = process.stdout

        def done() -> int | None:
            if process.poll() is None:
                return None
            assert process.returncode == 0, "the attacker has failed"
            return int(stdout.read())

        yield done
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


class Bait:
    """A link or a pipe that takes turns with what is at *path*; it is made anew whenever it got lost."""

    def __init__(self, kind: bytes, path: bytes, victim: bytes, lair: bytes) -> None:
        self._kind, self._path, self._victim = kind, path, victim
        self._bait = os.path.join(lair, b"bait-" + os.path.basename(path))
        self._lair = lair
        self._gone = 0

    def strike(self) -> bool:
        """Exchanges once; returns whether both names were there."""
        if not os.path.lexists(self._bait):
            self._make()
        path = self._path
        place, staged, below = path.partition(b"//")
        if staged:
            names = [name for name in os.listdir(place) if name.endswith(b".sandlift-new")]
            path = os.path.join(place, names[0], below) if names else b""
        done = exchange(path, self._bait)
        if done and self._is_mine(path) == self._is_mine(self._bait):
            # Whoever was at work there has replaced the bait.
            self._gone += 1
            os.rename(self._bait, self._bait + b"-%d-%d" % (os.getpid(), self._gone))
        return done

    def _make(self) -> None:
        if self._kind == b"fifo":
            os.mkfifo(self._bait)
        else:
            os.symlink(self._victim, self._bait)

    def _is_mine(self, path: bytes) -> bool:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return False
        return stat.S_ISLNK(mode) or stat.S_ISFIFO(mode)


def main(operations: int, pause_us: int, lair: str, words: Sequence[str]) -> None:
    parts = [os.fsencode(word).split(b":") for word in words]
    baits = [Bait(kind, path, victim, os.fsencode(lair)) for kind, path, victim in parts]
    print(end=".", flush=True)
    end = time.monotonic() + ATTACK_MAX_S
    done = tries = 0
    while done < operations and time.monotonic() < end:
        done += baits[tries % len(baits)].strike()
        tries += 1
        if pause_us:
            time.sleep(pause_us / 1e6)
    print(done, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
