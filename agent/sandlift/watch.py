"""Turns what a run reports into the one stream of events that callers see."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from sandlift.model import Event
from sandlift.transports.base import harmless_text

OnEvent = Callable[[Event], None]


class Watch:
    """Keeps the time of one run and its phases, and passes events to *on_event*; ``started`` is when it began."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self.started = now()
        self._on_event = on_event
        self._began = time.monotonic()
        self._phase = "connect"
        self._phase_began = self._began
        self._durations: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began

    def progress(
        self,
        phase: str,
        *,
        entries: int = 0,
        bytes: int = 0,
        total_entries: int | None = None,
        total_bytes: int | None = None,
    ) -> None:
        """Reports how far a phase is; another phase than before ends that one."""
        self._enter(phase)
        if self._on_event is None:
            return
        elapsed = time.monotonic() - self._phase_began
        self._on_event(
            Event(
                kind="progress",
                phase=phase,
                seconds=self.seconds,
                entries=entries,
                bytes=bytes,
                total_entries=total_entries,
                total_bytes=total_bytes,
                rate=bytes / elapsed if elapsed > 0 else 0.0,
            )
        )

    def warn(self, message: str, *, detail: str = "") -> None:
        """Reports something that does not stop the run."""
        if self._on_event is not None:
            event = Event(kind="warning", phase=self._phase, seconds=self.seconds, message=message, detail=detail)
            self._on_event(event)

    def warn_of_noise(self, noise: bytes) -> None:
        """Reports what the sandbox printed before the stream, if anything."""
        if noise:
            many = f"{len(noise)} byte{'' if len(noise) == 1 else 's'}"
            self.warn(f"the sandbox printed {many} before the stream", detail=harmless_text(noise))

    def end(self) -> float:
        """Reports the end with the phases' durations; returns the whole run's seconds."""
        self._enter("end")
        seconds = self.seconds
        if self._on_event is not None:
            self._on_event(Event(kind="end", phase="end", seconds=seconds, durations=dict(self._durations)))
        return seconds

    def _enter(self, phase: str) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._durations[self._phase] = self._durations.get(self._phase, 0.0) + now - self._phase_began
            self._phase, self._phase_began = phase, now


def now() -> str:
    """Returns this instant, RFC 3339 in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
