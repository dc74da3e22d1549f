"""The heartbeats of all runs of this process, sent by one thread that lives as long as there are runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Beat:
    """One run's heartbeat: what sends it, and how often; made by `Heart.add`."""

    __slots__ = ("due_at", "period_s", "send")

    def __init__(self, period_s: float, send: Callable[[], None]) -> None:
        self.period_s = period_s
        self.send = send
        self.due_at = time.monotonic() + period_s


class Heart:
    """Calls every beat's ``send`` in its period; ``send`` must neither wait nor raise, for all share the thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beats: set[Beat] = set()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, period_s: float, send: Callable[[], None]) -> Beat:
        """Begins a heartbeat; the first one is sent after one period."""
        beat = Beat(period_s, send)
        with self._lock:
            self._beats.add(beat)
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(
                    target=self._work, args=(self._wake,), name="sandlift-heartbeat", daemon=True
                )
                self._thread.start()
            else:
                self._wake.set()
        return beat

    def remove(self, beat: Beat) -> None:
        """Ends a heartbeat, and with the last one the thread; one that is being sent just now may still come."""
        ended = None
        with self._lock:
            self._beats.discard(beat)
            if not self._beats and self._thread is not None:
                ended, self._thread = self._thread, None
                self._wake.set()
        if ended is not None:
            ended.join()

    def _work(self, wake: threading.Event) -> None:
        while True:
            wake.clear()
            with self._lock:
                if self._thread is not threading.current_thread():
                    return
                now = time.monotonic()
                due = [beat for beat in self._beats if beat.due_at <= now]
                for beat in due:
                    beat.due_at = now + beat.period_s
                next_at = min(beat.due_at for beat in self._beats)
            for beat in due:
                beat.send()
            wake.wait(max(0.0, next_at - time.monotonic()))


HEART = Heart()
"""The one of this process."""
