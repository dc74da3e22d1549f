"""What the tests run "in the sandbox": one small program with a word for each behaviour.

Nothing here runs for more than half a minute, whatever happens to the test.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time

PIECE = 1 << 16
LIFE_S = 30


def pattern(size_bytes: int) -> bytes:
    """Bytes of all 256 values whose order differs from block to block."""
    row = bytes(range(256))
    rows = (row[i % 256 :] + row[: i % 256] for i in range(size_bytes // 256 + 1))
    return b"".join(rows)[:size_bytes]


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:PIECE]) :]


def main(word: str, *rest: str) -> int:
    if word == "pattern":
        write_all(1, pattern(int(rest[0])))
    elif word == "digest":
        left, digest = int(rest[0]), hashlib.sha256()
        while left and (data := os.read(0, min(left, PIECE))):
            digest.update(data)
            left -= len(data)
        write_all(1, digest.hexdigest().encode())
    elif word == "cat":
        while data := os.read(0, PIECE):
            write_all(1, data)
    elif word == "stderr":
        write_all(2, b"e" * int(rest[0]) + b"the end of stderr")
        write_all(1, b"written")
    elif word == "exit":
        return int(rest[0])
    elif word == "until-eof":
        # The proof that the end of the input arrived is a file, because nobody reads any more.
        write_all(1, b"started")
        while os.read(0, PIECE):
            pass
        open(rest[0], "x").close()
    elif word == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        child = os.fork()
        if child:
            write_all(1, b"%d %d\n" % (os.getpid(), child))
        time.sleep(LIFE_S)
    elif word == "deaf":
        write_all(1, b"started")
        time.sleep(LIFE_S)
    elif word == "words":
        write_all(1, "\0".join(rest).encode("utf-8", "surrogateescape"))
    else:
        return 99
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
