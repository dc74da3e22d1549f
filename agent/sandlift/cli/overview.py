"""How far several runs are together: one moving line on a terminal, a plain line now and then elsewhere.

Runs report from their threads; only the main thread draws and says anything.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandlift.cli import output
from sandlift.cli.progress import LINE_INTERVAL_S, SHOWN_AFTER_S
from sandlift.cli.settings import Settings

if TYPE_CHECKING:
    from sandlift.model import Event

_CLEAR_LINE = "\r\x1b[K"


class Overview:
    """Gathers the events of *total* runs; with --json it shows nothing, and warnings with -v."""

    def __init__(self, settings: Settings, total: int) -> None:
        self._total = total
        self._verbose = settings.verbose
        self._warns = not settings.json or settings.verbose
        self._live = not settings.json and sys.stderr is not None and sys.stderr.isatty()
        self._lines = not settings.json and not self._live
        self._began = time.monotonic()
        self._line_due = self._began + LINE_INTERVAL_S
        self._shown = False
        self._done = self._failed = 0
        self._lock = threading.Lock()
        self._running: dict[str, tuple[int, int]] = {}
        self._ended_counts = (0, 0)
        self._warnings: list[str] = []

    def take(self, name: str, event: Event) -> None:
        """Takes an event of the run *name*, in its thread."""
        with self._lock:
            if event.kind == "warning" and self._warns:
                more = "" if self._verbose or not event.detail else " (-v shows it)"
                self._warnings.append(f"sandlift: warning: {name}: {output.harmless(event.message)}{more}\n")
                if self._verbose and event.detail:
                    self._warnings.append(output.harmless_lines(event.detail) + "\n")
            elif event.kind == "progress":
                # A scan counts entries; only what was read counts here, and it never goes back.
                files, size = self._running.get(name, (0, 0))
                if event.phase != "scan":
                    files, size = max(files, event.entries), max(size, event.bytes)
                self._running[name] = (files, size)

    def ended(self, name: str, *, failed: bool) -> None:
        """Counts a run that has ended, and makes room for what is said about it."""
        with self._lock:
            files, size = self._running.pop(name, (0, 0))
            self._ended_counts = (self._ended_counts[0] + files, self._ended_counts[1] + size)
        self._done += not failed
        self._failed += failed
        self._warn()
        self._hide()

    def say(self, text: str) -> None:
        """Writes lines to standard error."""
        self._hide()
        _write(text)

    def draw(self) -> None:
        """Shows how far all are, if it is time."""
        self._warn()
        now = time.monotonic()
        if self._live and now - self._began >= SHOWN_AFTER_S:
            width = shutil.get_terminal_size().columns
            _write(_CLEAR_LINE + self._text(now)[: max(1, width - 1)])
            self._shown = True
        elif self._lines and now >= self._line_due:
            self._line_due = now + LINE_INTERVAL_S
            _write(f"sandlift: {self._text(now)}, {output.seconds_text(now - self._began)}\n")

    def _text(self, now: float) -> str:
        with self._lock:
            counts = [self._ended_counts, *self._running.values()]
            running = len(self._running)
        files, size = (sum(column) for column in zip(*counts, strict=True))
        done = f"{self._done:,} of {self._total:,} done" + (f", {self._failed:,} FAILED" if self._failed else "")
        rate = size / max(now - self._began, 0.001)
        moved = f"{output.number_of(files, 'file')}, {output.size_text(size)}, {output.size_text(rate)}/s"
        return f"{done}, {running:,} at work: {moved}"

    def _warn(self) -> None:
        with self._lock:
            warnings, self._warnings = self._warnings, []
        if warnings:
            self.say("".join(warnings))

    def _hide(self) -> None:
        if self._shown:
            self._shown = False
            _write(_CLEAR_LINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warn()
        self._hide()


def _write(text: str) -> None:
    """What cannot be shown is not shown: it never stops a run."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()
