"""The threads of this process that prove content frames, shared by all of its captures.

Decompressing, hashing and compressing release the interpreter's lock, so as many threads as there are cores use
all of them, and more would only hold more buffers.  Captures that run at once share them, and share one bound of
bytes under way.  The threads end with the last capture.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sandlift.deadline import SLICE_S
from sandlift_helper.workers import usable_cores

if TYPE_CHECKING:
    from sandlift.content import Run

UNDER_WAY_BYTES_MAX: Final = 128 << 20
"""Bytes of frames, as they came, that all captures together may hold before they stop to read."""


class Frame:
    """One content frame on its way: claimed by the sandbox, then proved or refused."""

    __slots__ = ("_failure", "_proved", "_run", "payload", "size_bytes", "unwanted")

    def __init__(self, payload: bytes | bytearray, unwanted: Callable[[], bool]) -> None:
        self.payload = payload
        self.size_bytes = len(payload)
        self.unwanted = unwanted
        """Whether nobody needs the result any more; asked before the work is begun."""
        self._run: Run | None = None
        self._failure: BaseException | None = None
        self._proved = threading.Lock()
        self._proved.acquire()

    def settle(self, run: Run | None, failure: BaseException | None) -> None:
        """Sets the result, once."""
        self._run, self._failure, self.payload = run, failure, b""
        self._proved.release()

    def result(self) -> Run | None:
        """Waits for the result; None when it was no longer wanted.  Raises what proving raised; to be called once."""
        self._proved.acquire()
        if self._failure is not None:
            raise self._failure
        return self._run


class Provers:
    """A pool of threads; whoever uses it holds it open with ``with``."""

    def __init__(self, threads_max: int | None = None, under_way_bytes_max: int = UNDER_WAY_BYTES_MAX) -> None:
        self._threads_max = threads_max or usable_cores()
        self._under_way_bytes_max = under_way_bytes_max
        self._under_way_bytes = 0
        self._lock = threading.Lock()
        self._room = threading.Condition()
        self._users = 0
        self._queue: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Provers:
        with self._lock:
            self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            ending, self._threads = self._threads, []
            ended, self._queue = self._queue, queue.SimpleQueue()
        for _thread in ending:
            ended.put(None)
        for thread in ending:
            thread.join()

    def take(self, frame: Frame, *, alone: Callable[[], bool], check: Callable[[], None]) -> None:
        """Takes a frame to be proved, once there is room.

        Whoever has no other frame under way (*alone*) needs none, so no capture starves.  *check* is called while it
        waits, and ends the wait with what it raises.
        """
        with self._room:
            while not alone() and self._under_way_bytes + frame.size_bytes > self._under_way_bytes_max:
                self._room.wait(SLICE_S)
                check()
            self._under_way_bytes += frame.size_bytes
        with self._lock:
            if not self._users:
                # Whoever waited here has left meanwhile, and a thread that begins now would never end.
                frame.settle(None, None)
                return
            if len(self._threads) < self._threads_max and (self._queue.qsize() or not self._threads):
                thread = threading.Thread(target=_prove, args=(self._queue,), name="sandlift-prover", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._queue.put(frame)

    def give_back(self, frame: Frame) -> None:
        """Says that nothing of *frame* is held any more, once for each frame that was taken."""
        with self._room:
            self._under_way_bytes -= frame.size_bytes
            self._room.notify_all()


SHARED: Final = Provers()
"""The one of this process."""


def _prove(frames: queue.SimpleQueue[Frame | None]) -> None:
    """Is the life of a thread."""
    from sandlift.content import Prover

    prover = Prover()
    while (frame := frames.get()) is not None:
        run, failure = None, None
        try:
            if not frame.unwanted():
                run = prover.prove(frame.payload)
        except BaseException as error:
            failure = error
        frame.settle(run, failure)
        # While it waits for the next one, it holds nothing of this one.
        del frame, run, failure
