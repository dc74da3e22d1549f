"""A far side that plays a given list of steps instead of being a helper.

As a program (``python -I -S hostile.py PLAY``) it reads the opening that the host sends, learns the nonce from
it, and plays the steps of the JSON file PLAY.  As a module it makes such files, and the command that plays them.
It never lives longer than `LIFE_S`, whatever happens to the test.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time

MAGIC = b"\x00sandlift\x00\x01\n"
LIFE_S = 30
PIECE = 1 << 16


class Play:
    """A list of steps; each method adds one and returns the play."""

    def __init__(self) -> None:
        self.steps: list[list[object]] = []

    def _add(self, *step: object) -> Play:
        self.steps.append(list(step))
        return self

    def mark(self) -> Play:
        """Send the mark with the nonce of the run."""
        return self._add("mark")

    def false_mark(self) -> Play:
        """Send the mark with another nonce."""
        return self._add("false_mark")

    def send(self, data: bytes) -> Play:
        """Send these bytes at once."""
        return self._add("send", base64.b64encode(data).decode())

    def drip(self, data: bytes, pause_s: float) -> Play:
        """Send these bytes one by one, for ever again from the first one."""
        return self._add("drip", base64.b64encode(data).decode(), pause_s)

    def repeat(self, data: bytes) -> Play:
        """Send these bytes again and again until nobody takes them."""
        return self._add("repeat", base64.b64encode(data).decode())

    def complain(self, size_bytes: int) -> Play:
        """Write so much to stderr."""
        return self._add("complain", size_bytes)

    def sleep(self, seconds: float) -> Play:
        return self._add("sleep", seconds)

    def stay(self) -> Play:
        """Live on until the host closes its end."""
        return self._add("stay")

    def close(self) -> Play:
        """Close stdout and live on."""
        return self._add("close")

    def exit(self, status: int) -> Play:
        return self._add("exit", status)

    def kill(self) -> Play:
        """Die by SIGKILL."""
        return self._add("kill")

    def save(self, path: os.PathLike[str] | str) -> list[str]:
        """Write the play to *path*; returns the command that plays it."""
        with open(path, "w") as file:
            json.dump(self.steps, file)
        return [sys.executable, "-I", "-S", os.path.abspath(__file__), os.fspath(path)]


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:PIECE]) :]


def read_nonce() -> bytes:
    """Read the opening as the start text and the stage do, and return the nonce in it."""
    source = os.fdopen(0, "rb", 0, closefd=False)
    source.read(int(source.readline()))
    size, nonce = source.readline().split()
    left = int(size)
    while left:
        left -= len(source.read(left))
    return bytes.fromhex(nonce.decode())


def emit(word: str, rest: list[str], nonce: bytes) -> bool:
    """Play a step that writes; returns whether it was one."""
    data = base64.b64decode(rest[0]) if word in ("send", "drip", "repeat") else b""
    if word == "mark":
        write_all(1, MAGIC + nonce)
    elif word == "false_mark":
        write_all(1, MAGIC + bytes(byte ^ 255 for byte in nonce))
    elif word == "send":
        write_all(1, data)
    elif word == "complain":
        write_all(2, b"e" * int(rest[0]) + b"\nthe end of stderr\n")
    elif word == "repeat":
        while True:
            write_all(1, data)
    elif word == "drip":
        while True:
            for byte in data:
                write_all(1, bytes([byte]))
                time.sleep(float(rest[1]))
    else:
        return False
    return True


def act(word: str, rest: list[str]) -> None:
    """Play a step that writes nothing."""
    if word == "sleep":
        time.sleep(float(rest[0]))
    elif word == "stay":
        while os.read(0, PIECE):
            pass
    elif word == "close":
        os.close(1)
    elif word == "exit":
        os._exit(int(rest[0]))
    elif word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise SystemExit(f"unknown step {word!r}")


def play(steps: list[list[object]]) -> None:
    nonce = read_nonce()
    for step in steps:
        word, *rest = map(str, step)
        if not emit(word, rest, nonce):
            act(word, rest)


if __name__ == "__main__":
    signal.alarm(LIFE_S)
    with open(sys.argv[1]) as script:
        parts = json.load(script)
    try:
        play(parts)
    except BrokenPipeError:
        os._exit(0)
