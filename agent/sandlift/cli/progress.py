"""How far a run is, for whoever waits: one moving line on a terminal, a plain line now and then elsewhere.

Progress goes to standard error and never stops a run: what cannot be shown is not shown.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandlift.cli import output
from sandlift.cli.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

    from sandlift.model import Event

LINE_INTERVAL_S = 10.0
SHOWN_AFTER_S = 0.3
"""A run that is over before shows nothing: no flicker, and nothing imported for it."""
RATE_AFTER_S = 1.0
"""A rate over less time than this says nothing."""

_CLEAR_LINE = "\r\x1b[K"


class Reporter:
    """Takes the events of a run; this one shows warnings alone, and with --json nothing but with -v."""

    def __init__(self, settings: Settings) -> None:
        self._quiet = settings.json and not settings.verbose
        self._verbose = settings.verbose

    def __call__(self, event: Event) -> None:
        """Shows one event."""
        with suppress(OSError, ValueError):
            if event.kind == "warning":
                self._warn(event)
            elif event.kind == "end":
                self._end(event)
            else:
                self._progress(event)

    def _progress(self, event: Event) -> None:
        pass

    def _end(self, event: Event) -> None:
        self._stop()
        if self._verbose and event.durations:
            spent = ", ".join(f"{phase} {output.seconds_text(value)}" for phase, value in event.durations.items())
            _say(f"sandlift: {spent}\n")

    def _warn(self, event: Event) -> None:
        if self._quiet:
            return
        self._hide()
        more = "" if self._verbose or not event.detail else " (-v shows it)"
        _say(f"sandlift: warning: {output.harmless(event.message)}{more}\n")
        if self._verbose and event.detail:
            _say(output.harmless_lines(event.detail) + "\n")

    def _hide(self) -> None:
        """Makes room for a line of text."""

    def _stop(self) -> None:
        """Takes back whatever is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, ValueError):
            self._stop()


class Lines(Reporter):
    """A line every ten seconds, for logs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._due_s = LINE_INTERVAL_S

    def _progress(self, event: Event) -> None:
        if event.seconds >= self._due_s:
            self._due_s = event.seconds + LINE_INTERVAL_S
            _say(f"sandlift: {event.phase}: {', '.join([*figures(event), output.seconds_text(event.seconds)])}\n")


class Live(Reporter):
    """One moving line: phase, bar, files, bytes, rate, time left."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._bar: Progress | None = None
        self._connecting = False
        self._phase = ""
        self._phase_began_s = 0.0

    def _progress(self, event: Event) -> None:
        if event.phase == "connect":
            # A line of our own: rich takes longer to import than a connection takes to begin.
            # With -v, log lines come meanwhile.
            if not self._verbose:
                self._connecting = True
                _say("connecting ...")
            return
        self._hide_connecting()
        if event.phase != self._phase:
            self._phase, self._phase_began_s = event.phase, event.seconds
        if event.seconds < SHOWN_AFTER_S:
            return
        shown = figures(event, with_rate=event.seconds - self._phase_began_s >= RATE_AFTER_S)
        total = event.total_bytes or None
        fields = {
            "description": event.phase,
            "total": total,
            "completed": min(event.bytes, total) if total else event.bytes,
            "figures": ", ".join(shown),
        }
        if self._bar is None:
            self._bar = _make_bar()
            self._bar.add_task(**fields)  # type: ignore[arg-type]
            self._bar.start()
        else:
            self._bar.update(self._bar.tasks[0].id, **fields)  # type: ignore[arg-type]
            self._bar.refresh()

    def _hide_connecting(self) -> None:
        if self._connecting:
            self._connecting = False
            _say(_CLEAR_LINE)

    def _hide(self) -> None:
        self._hide_connecting()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _stop(self) -> None:
        self._hide()


def reporter(settings: Settings) -> Reporter:
    """Returns what shows the progress of this run."""
    if settings.json or sys.stderr is None:
        return Reporter(settings)
    return Live(settings) if sys.stderr.isatty() else Lines(settings)


def figures(event: Event, *, with_rate: bool = True) -> list[str]:
    """Returns how far it is, in words: files, bytes, rate, and the time left when the total is known."""
    parts = []
    if event.entries or event.total_entries:
        of = f" of {event.total_entries:,}" if event.total_entries else ""
        parts.append(f"{event.entries:,}{of} {'entries' if event.phase == 'scan' else 'files'}")
    of = f" of {output.size_text(event.total_bytes)}" if event.total_bytes else ""
    if event.bytes or event.total_bytes:
        parts.append(f"{output.size_text(event.bytes)}{of}")
    # A scan reads no content, so a rate of bytes would mean nothing there.
    if with_rate and event.rate > 0 and event.phase != "scan":
        parts.append(f"{output.size_text(event.rate)}/s")
        if event.total_bytes and event.total_bytes > event.bytes:
            parts.append(f"{output.seconds_text((event.total_bytes - event.bytes) / event.rate)} left")
    return parts


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # Without a thread of its own: every event draws, and the helper sends two a second.
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
