"""Proofs that the sandbox has blocks, checked in a thread of their own while the stream is read."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sandlift.deadline import Deadline


class Claims:
    """Passes each of the claims that were put to *check*, in order; a context manager.

    The thread begins with the first one, so a capture that meets none has none.
    """

    def __init__(self, check: Callable[[bytes], None], deadline: Deadline) -> None:
        self._check = check
        self._deadline = deadline
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._abandoned = False

    def put(self, claims: bytes) -> None:
        """Takes the claims of one segment.  Raises what the thread has met."""
        self._raise_failure()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sandlift-claims", daemon=True)
            self._thread.start()
        self._queue.put(claims)

    def drain(self) -> None:
        """Waits until all that was put is checked.  Raises what the thread has met, and DeadlineExceeded."""
        if self._thread is None:
            return
        reached = threading.Event()
        self._queue.put(reached)
        while self._thread.is_alive() and not reached.wait(0.1):
            self._deadline.check("proving blocks")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, threading.Event):
                    item.set()
                elif not self._abandoned:
                    self._check(item)
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandoned = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
