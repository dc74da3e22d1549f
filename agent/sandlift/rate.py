"""A limit in bytes a second: how long who has moved some bytes must wait before moving more."""

from __future__ import annotations

import threading
import time

BURST_S = 0.1
"""What was left unused is kept for so long: a run that waits for its disk may catch up a little, not more."""
PIECE_S = 0.05
PIECE_MIN_BYTES = 1 << 10
PIECE_MAX_BYTES = 1 << 20


class TokenBucket:
    """The arithmetic, without a clock of its own.

    It keeps the instant at which all bytes so far are paid for.  Bytes may be taken at any time; whoever takes them
    is told how long to wait, so those who share a bucket are served in the order in which they took.
    """

    def __init__(self, bytes_a_second: float, *, burst_s: float = BURST_S) -> None:
        if not 0 < bytes_a_second < float("inf"):
            raise ValueError(f"a rate cannot be {bytes_a_second!r} bytes a second")
        self.bytes_a_second = bytes_a_second
        self._burst_s = burst_s
        self._paid_at = float("-inf")

    def take(self, size_bytes: int, now_s: float) -> float:
        """Takes *size_bytes* at the instant *now_s*; returns the seconds until they are paid for."""
        self._paid_at = max(self._paid_at, now_s - self._burst_s) + size_bytes / self.bytes_a_second
        return max(0.0, self._paid_at - now_s)


class RateLimit:
    """A bucket that all runs of a process may share, from any thread; both directions count.

    Raises ValueError for a rate that is no number above 0.
    """

    def __init__(self, bytes_a_second: float) -> None:
        self._bucket = TokenBucket(bytes_a_second)
        self._lock = threading.Lock()
        self.piece_bytes = int(min(PIECE_MAX_BYTES, max(PIECE_MIN_BYTES, bytes_a_second * PIECE_S)))
        """How much to move in one go, so that all who share the limit move often."""

    @property
    def bytes_a_second(self) -> float:
        """The limit."""
        return self._bucket.bytes_a_second

    def take(self, size_bytes: int) -> float:
        """Counts bytes that move now; returns how many seconds to wait before the next ones."""
        with self._lock:
            return self._bucket.take(size_bytes, time.monotonic())
