"""Content frames of one capture, proved and stored while more of them arrive.

Reading, proving and storing overlap: the caller reads, the process's provers prove several frames at once, and
a thread of the capture's own appends them to the pack in the order in which they came, then grants credit for as
many more.  So a slow disk, or a sandbox that does not take its credit, holds up this capture alone, and the
memory in use is bounded by the credit and by what the provers take.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandlift.deadline import Deadline
from sandlift.errors import RemoteProtocolError
from sandlift.holding import Brought
from sandlift.provers import SHARED, Frame, Provers

if TYPE_CHECKING:
    from sandlift.content import Run
    from sandlift.store import PackWriter


class Shelf:
    """Takes content frames and puts what they hold into *pack*; a context manager.

    ``brought`` are the blocks that have come; it is whole after `drain` and `finish`.  *grant* is called with 1 for
    each frame that is stored.
    """

    def __init__(
        self, pack: PackWriter, grant: Callable[[int], None], deadline: Deadline, *, provers: Provers = SHARED
    ) -> None:
        self.brought = Brought()
        self._pack = pack
        self._grant = grant
        self._deadline = deadline
        self._provers = provers
        self._blocks = 0
        self._taken = self._stored = 0
        self._queue: queue.SimpleQueue[Frame | threading.Event | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="sandlift-shelf", daemon=True)

    def __enter__(self) -> Shelf:
        self._provers.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._abandoned = True
        self._queue.put(None)
        self._thread.join()
        self._provers.__exit__()

    def put(self, payload: bytes | bytearray) -> None:
        """Takes the payload of one content frame; waits while the process holds too many.

        Raises what `check` raises, and DeadlineExceeded or Interrupted.
        """
        frame = Frame(payload, self._is_abandoned)
        self._provers.take(frame, alone=self._is_empty, check=self._check_wait)
        self._taken += 1
        self._queue.put(frame)

    def drain(self) -> None:
        """Waits until all that was put is stored, or given up after a failure; raises only the end of the time."""
        reached = threading.Event()
        self._queue.put(reached)
        while self._thread.is_alive() and not reached.wait(0.1):
            self._deadline.check("storing")

    def check(self) -> None:
        """Raises what proving or storing has met, the earliest frame's first."""
        if self._failure is not None:
            raise self._failure

    def finish(self, blocks: int) -> None:
        """Waits for the last frame.  Raises RemoteProtocolError when blocks are missing."""
        self._queue.put(None)
        while self._thread.is_alive():
            self._deadline.check("storing")
            self._thread.join(0.1)
        self.check()
        if self._blocks != blocks:
            raise RemoteProtocolError(f"the stream's end counts {blocks} blocks, {self._blocks} came")

    def _is_empty(self) -> bool:
        return self._taken == self._stored

    def _is_abandoned(self) -> bool:
        return self._abandoned or self._failure is not None

    def _check_wait(self) -> None:
        self._deadline.check("storing")
        self.check()

    def _work(self) -> None:
        """Stores what was proved, frame by frame; after a failure, only gives them back."""
        while (frame := self._queue.get()) is not None:
            if isinstance(frame, threading.Event):
                frame.set()
                continue
            run = None
            try:
                run = frame.result()
                if run is not None and not self._is_abandoned():
                    self._append(run)
            except BaseException as error:
                self._failure = self._failure or error
            del run
            self._stored += 1
            self._provers.give_back(frame)
            if not self._is_abandoned():
                self._pay()

    def _pay(self) -> None:
        try:
            self._grant(1)
        except BaseException as error:
            self._failure = error

    def _append(self, run: Run) -> None:
        offset = self._pack.append(run.stored, run.size_bytes)
        for digest, start, size in run.blocks:
            self._blocks += 1
            # A block may come twice, when two of the helper's workers met it at once.
            self.brought.add(digest, size, offset + start)
