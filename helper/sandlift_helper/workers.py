"""Forked copies of the helper that share the work of one operation.

Processes instead of threads: hashing and compressing small files is bound by the interpreter.  A worker
inherits everything by fork, and reports through a pipe of its own in messages of 4 bytes length and payload.
"""

import os
import select
import signal
import struct
import sys

from sandlift_helper.channel import Channel, Failure, read_exactly, write_all

MYPY = False
if MYPY:
    from collections.abc import Callable, Iterator
    from types import FrameType

WORKERS_MAX = 4

_DONE = b"d"
_RESULT = b"r"
_FAILURE = b"f"


def usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


class Workers:
    """Runs ``job(report)`` in *count* forked processes; ``report(data)`` sends one result.

    `results` yields what they report until all are done.  A worker that fails or dies fails the operation.
    Where fewer processes can be had, ``count`` says how many there are.  Raises OSError when there is none.
    """

    def __init__(self, channel: Channel, count: int, job: "Callable[[Callable[[bytes], None]], None]") -> None:
        self._channel = channel
        self._pipes: "dict[int, int]" = {}
        for _ in range(count):
            read_fd, write_fd = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                os.close(read_fd)
                os.close(write_fd)
                if not self._pipes:
                    raise
                break
            if pid == 0:
                os.close(read_fd)
                for other in self._pipes:
                    os.close(other)
                _run(job, write_fd)
            os.close(write_fd)
            channel.children.add(pid)
            self._pipes[read_fd] = pid
        self.count = len(self._pipes)

    def results(self) -> "Iterator[bytes]":
        """Yields results until all workers are done, and nothing (an empty one) twice a second while none comes."""
        done: "set[int]" = set()
        while self._pipes:
            # The host's credit is passed on as it comes, not when the next result does.
            readable = select.select(list(self._pipes) + self._channel.inputs(), [], [], 0.5)[0]
            self._channel.poll()
            for fd in self._pipes.keys() & set(readable):
                head = read_exactly(fd, 5)
                if len(head) < 5:
                    self._reap(fd, fd in done)
                    continue
                body = read_exactly(fd, int.from_bytes(head[1:], "little"))
                if head[:1] == _RESULT:
                    yield body
                elif head[:1] == _FAILURE:
                    code, _, message = body.decode("utf-8", "surrogateescape").partition("\n")
                    if code == "helper-crashed":
                        raise Failure(code, "a worker of the helper failed", message)
                    raise Failure(code, message)
                else:
                    done.add(fd)
            if not readable:
                yield b""

    def _reap(self, fd: int, done: bool) -> None:
        os.close(fd)
        pid = self._pipes.pop(fd)
        _, status = os.waitpid(pid, 0)
        self._channel.children.discard(pid)
        if not done:
            raise Failure("helper-crashed", "a worker of the helper died with status %d" % status)


def _run(job: "Callable[[Callable[[bytes], None]], None]", fd: int) -> None:
    """Is the life of a worker; never returns, and never raises: what called it is the helper's own work."""
    status = 1
    try:
        _work(job, fd)
        sys.stderr.flush()
        status = 0
    finally:
        os._exit(status)


def _work(job: "Callable[[Callable[[bytes], None]], None]", fd: int) -> None:
    """Does the job and reports how it ended."""
    parent = os.getppid()

    def orphaned(_number: int, _frame: "FrameType | None") -> None:
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGALRM, orphaned)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)

    def send(kind: bytes, body: bytes) -> None:
        write_all(fd, kind + struct.pack("<I", len(body)) + body)

    try:
        job(lambda data: send(_RESULT, data))
        send(_DONE, b"")
    except Failure as failure:
        send(_FAILURE, (failure.code + "\n" + failure.message).encode("utf-8", "surrogateescape"))
    except BaseException:
        import traceback

        send(_FAILURE, ("helper-crashed\n" + traceback.format_exc()).encode("utf-8", "surrogateescape"))
