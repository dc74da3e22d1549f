"""Captures of several targets by one command, some at once, in the order in which they were named.

Threads capture and put what came of it into a queue; the main thread alone writes and draws, so lines never mix.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sandlift.cli import failures, output
from sandlift.cli.capture_cmd import EXIT_INCOMPLETE, capture_fields, capture_line, read_choices
from sandlift.cli.overview import Overview
from sandlift.cli.sandbox_options import connect_box, read_rate, read_timeout
from sandlift.cli.settings import Settings
from sandlift.cli.several import named, worst
from sandlift.deadline import Cancel
from sandlift.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from sandlift.box import Box
    from sandlift.results import Capture
    from sandlift.watch import OnEvent

TICK_S = 0.2
DESCRIPTORS_EACH = 8
"""Of a capture over ssh: three pipes, what wakes their readers, the pack, and some for a moment."""
DESCRIPTORS_BESIDES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One target, and the name of its snapshots."""

    name: str
    box: Box


def capture_several(context: click.Context, texts: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Captures all of NAME=TARGET; returns the exit status of the worst.

    Raises UsageError, BadURL, BadName, MissingExtra and what `Store.open` raises before anything is captured.
    """
    settings: Settings = context.obj
    timeout_s = read_timeout(options["timeout_text"])
    until = None if timeout_s is None else time.monotonic() + timeout_s
    common = read_choices(context, options)
    with ExitStack() as stack:
        jobs = _read_jobs(texts, options, stack)
        _allow_descriptors(min(options["concurrency"], len(jobs)))
        with settings.interrupts.cancelling() as cancel:
            store = stack.enter_context(settings.open_store(create=True))
            # Of our own: the other one says that a signal came.
            stop = Cancel(cancel)

            def capture_one(job: _Job, on_event: OnEvent) -> Capture:
                left_s = None if until is None else max(0.0, until - time.monotonic())
                return job.box.capture(store, job.name, deadline_s=left_s, cancel=stop, on_event=on_event, **common)

            with Overview(settings, len(jobs)) as overview:
                return _Several(settings, jobs, capture_one, overview, stop).run(options["concurrency"])


def _read_jobs(texts: tuple[str, ...], options: Mapping[str, Any], stack: ExitStack) -> list[_Job]:
    from sandlift.store import check_name

    rate = read_rate(options["rate_text"])
    jobs: list[_Job] = []
    for text in texts:
        pair = named(text)
        if pair is None:
            raise UsageError(
                "each of several targets needs a name", hint="write NAME=TARGET, as in demo=ssh://me@box/srv/work"
            )
        name = check_name(pair[0])
        if any(job.name == name for job in jobs):
            raise UsageError(f"the name {name} is given twice", hint="give each target a name of its own")
        jobs.append(_Job(name=name, box=stack.enter_context(connect_box(pair[1], options, rate=rate))))
    return jobs


def _allow_descriptors(captures: int) -> None:
    """Raises this process's soft limit of open files as far as it may be, where so many captures need it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_BESIDES + captures * DESCRIPTORS_EACH
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Several:
    """The captures under way; ``run`` begins them, tells what comes of each as it ends, and waits for all."""

    def __init__(
        self,
        settings: Settings,
        jobs: list[_Job],
        capture_one: Callable[[_Job, OnEvent], Capture],
        overview: Overview,
        stop: Cancel,
    ) -> None:
        self._settings = settings
        self._total = len(jobs)
        self._waiting = deque(jobs)
        self._capture_one = capture_one
        self._overview = overview
        self._stop = stop
        self._ended: queue.SimpleQueue[tuple[_Job, Capture | BaseException]] = queue.SimpleQueue()

    def run(self, concurrency: int) -> int:
        """Captures so many at once; returns the exit status for all.  Raises what writing to the output raises."""
        threads = [
            threading.Thread(target=self._work, name="sandlift-capture", daemon=True)
            for _ in range(min(concurrency, self._total))
        ]
        statuses: list[int] = []
        try:
            for thread in threads:
                thread.start()
            while len(statuses) < self._total:
                try:
                    job, result = self._ended.get(timeout=TICK_S)
                except queue.Empty:
                    self._overview.draw()
                    continue
                statuses.append(self._tell(job, result))
        finally:
            # Before the last one has ended only after a failure to write: the rest is given up then.
            if len(statuses) < self._total:
                self._stop.cancel()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        self._sum_up(statuses)
        return worst(statuses)

    def _work(self) -> None:
        while True:
            try:
                job = self._waiting.popleft()
            except IndexError:
                return
            result: Capture | BaseException
            try:
                with job.box:
                    result = self._capture_one(job, partial(self._overview.take, job.name))
            except BaseException as error:
                result = error
            self._ended.put((job, result))

    def _tell(self, job: _Job, result: Capture | BaseException) -> int:
        """Writes one line for a capture that has ended; returns its exit status."""
        if not isinstance(result, BaseException):
            self._overview.ended(job.name, failed=False)
            if self._settings.json:
                output.write_json(capture_fields(result))
            else:
                output.write(capture_line(result) + "\n")
            output.flush()
            return EXIT_INCOMPLETE if result.outcome == "incomplete" else 0
        error = failures.as_error(result, self._settings)
        self._overview.ended(job.name, failed=True)
        if self._settings.json:
            source = {"workspace": job.name, "source": job.box.target.source()}
            output.write_json({**source, "error": failures.error_fields(error)})
            output.flush()
        elif not isinstance(error, Interrupted):
            whose = f"{job.name} ({job.box.target.source()}): "
            self._overview.say(failures.error_text(error, verbose=self._settings.verbose, whose=whose))
        return failures.exit_status(error)

    def _sum_up(self, statuses: list[int]) -> None:
        stored = sum(status in (0, EXIT_INCOMPLETE) for status in statuses)
        incomplete = statuses.count(EXIT_INCOMPLETE)
        if self._settings.json or (stored == self._total and not incomplete):
            return
        parts = [f"{stored:,} of {self._total:,} stored"]
        if incomplete:
            parts.append(f"{incomplete:,} incomplete")
        interrupted = any(status in (130, failures.EXIT_TERMINATED) for status in statuses)
        self._overview.say(f"sandlift: {'interrupted: ' if interrupted else ''}{', '.join(parts)}\n")
