"""SIGINT, SIGTERM and SIGHUP: the first one stops the run in good order, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sandlift.deadline import Cancel

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal came while nothing had to be put in order; no ``except Exception`` takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class Interrupts:
    """What a signal does now: raise `Stopped`, or within `cancelling` set the run's token."""

    def __init__(self) -> None:
        self.cancel = Cancel()
        self._cancelling = False

    def install(self) -> None:
        """Handles the signals from now on; those that our parent had ignored, as nohup does, stay ignored."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    @contextmanager
    def cancelling(self) -> Iterator[Cancel]:
        """Within it a signal sets the token that it gives: whoever works with the token cleans up and raises."""
        self._cancelling = True
        try:
            yield self.cancel
        finally:
            self._cancelling = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self._cancelling:
            raise Stopped(number)
        if self.cancel.cancelled:
            os._exit(128 + number)
        self.cancel.cancel(number)
