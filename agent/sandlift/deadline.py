"""Time limits and cancellation, handed down to everything that waits.

A ``Deadline`` is one instant on the monotonic clock, with the ``Cancel`` token of the same run.  It is
made once, where the user's limit is known, and passed on; nobody below adds up timeouts.  Whoever waits
does so in slices of at most ``SLICE_S`` and calls ``check()`` between them, so that a cancel is seen soon
whatever the wait is for.
"""

from __future__ import annotations

import math
import time

from .errors import DeadlineExceeded, Interrupted

SLICE_S = 0.2
"""The longest uninterrupted wait anywhere."""


class Cancel:
    """A token that says "stop", settable from any thread and from a signal handler.

    It holds plain attributes and no lock: a signal handler runs between two instructions of whatever
    thread it interrupts, and a lock which that thread holds already would never be released.
    A token with a ``parent`` is cancelled when that one is, and never the other way round.
    """

    __slots__ = ("_cancelled", "_parent", "_signal")

    def __init__(self, parent: Cancel | None = None) -> None:
        self._cancelled = False
        self._signal: int | None = None
        self._parent = parent

    def cancel(self, signal: int | None = None) -> None:
        """Ask everything that looks at this token to stop; the first call's ``signal`` stays."""
        if not self._cancelled:
            self._signal = signal
            self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether anybody asked to stop."""
        return self._cancelled or (self._parent is not None and self._parent.cancelled)

    @property
    def signal(self) -> int | None:
        """The number of the signal that asked, or None."""
        if self._cancelled or self._parent is None:
            return self._signal
        return self._parent.signal


class Deadline:
    """An instant after which work must stop, and a token that can stop it earlier."""

    __slots__ = ("_at", "_limit_s", "cancel")

    def __init__(self, at: float, limit_s: float, cancel: Cancel | None) -> None:
        self._at = at
        self._limit_s = limit_s
        self.cancel = cancel

    @classmethod
    def after(cls, seconds: float | None, cancel: Cancel | None = None) -> Deadline:
        """A deadline that many seconds from now; None means no limit, 0 means over already.

        Raises ValueError for a negative number and for NaN.
        """
        limit_s = math.inf if seconds is None else float(seconds)
        if not limit_s >= 0:
            raise ValueError(f"a time limit cannot be {seconds!r} seconds")
        return cls(time.monotonic() + limit_s, limit_s, cancel)

    def sooner(self, seconds: float) -> Deadline:
        """This deadline or one that many seconds from now, whichever comes first; same token."""
        other = Deadline.after(seconds, self.cancel)
        return other if other._at < self._at else self

    def remaining_s(self, cap_s: float = math.inf) -> float:
        """Seconds left, from 0 to ``cap_s``; infinite when there is neither a limit nor a cap."""
        return max(0.0, min(cap_s, self._at - time.monotonic()))

    def slice_s(self, cap_s: float = SLICE_S) -> float:
        """How long the next uninterrupted wait may be: what remains, at most ``SLICE_S`` and ``cap_s``."""
        return self.remaining_s(min(SLICE_S, cap_s))

    def pause(self, seconds: float, doing: str = "") -> None:
        """Waits so long, in slices; raises as `check` once the work must stop."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self.check(doing)
            time.sleep(self.slice_s(left_s))
        self.check(doing)

    @property
    def cancelled(self) -> bool:
        """Whether the token of this deadline was cancelled."""
        return self.cancel is not None and self.cancel.cancelled

    @property
    def over(self) -> bool:
        """Whether ``check()`` would raise."""
        return self.cancelled or time.monotonic() >= self._at

    def check(self, doing: str = "") -> None:
        """Raise if the work must stop now; ``doing`` names it for the message ("connecting to box").

        Raises Interrupted (context ``signal``) when cancelled, DeadlineExceeded when the time is over.
        """
        if self.cancel is not None and self.cancel.cancelled:
            raise Interrupted(f"interrupted while {doing}" if doing else "interrupted", signal=self.cancel.signal)
        if time.monotonic() >= self._at:
            raise DeadlineExceeded(
                f"the time limit of {self._limit_s:g} s ran out" + (f" while {doing}" if doing else ""),
                hint="try again with a longer time limit",
                limit_s=self._limit_s,
            )
