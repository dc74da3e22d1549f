"""Disturbs a restore at its system calls, one after the other, in a process of its own.

points.py kill MODE FOLDER [VARIANT] [STEP]     looks at the target ahead of every call, which is what a kill leaves;
                                                then kills the helper and its workers at some calls, a write halfway
points.py fail MODE FOLDER [VARIANT] [STEP]     the call fails: EIO, ENOSPC, EINTR in turn; or a write is short
points.py again MODE FOLDER [VARIANT] [STEP]    the same for the restore that is to complete one that was killed

Variants: ``plain``, ``no-exchange`` (renameat2 is missing), ``empty`` (an empty directory is there), ``mount`` (an
empty mount), ``nobody`` (the helper is not root).  With STEP 1, every call is disturbed, else every so manieth and
those that decide.  Prints one JSON line for each: what was done, the state of the target, and everything that must
not be.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from sandlift.errors import SandliftError
from sandlift.manifest import Manifest
from sandlift.model import Event
from sandlift_helper import table
from support.crash import Disturbance, Seam, box_at, one_processor
from support.tree import tree
from support.world import MODES, Mode, World, mounted, state

FAULTS: tuple[Disturbance, ...] = ("eio", "enospc", "eintr")
TYPED = frozenset(("target-full", "target-unusable", "conflict", "target-not-empty"))
CUT_OFF = frozenset(("truncated", "helper-start", "helper-crashed"))
# What ends or begins a stage of a restore.
DECIDING = ("rename", "renameat2", "syncfs", "fsync", "open b'.sandlift", "unlink b'.sandlift")
# Comes once, and decides who removes what was just made.
ALWAYS = "open b'.t."
RESTORE_MAX_S = 15.0
NOBODY = 65534

Row = dict[str, object]


class Points:
    """One mode's restore, again and again."""

    def __init__(self, folder: Path, mode: Mode, variant: str, step: int) -> None:
        self.world = World(folder)
        self.mode, self.variant, self.step = mode, variant, step
        self.exchange = variant != "no-exchange"
        self.user = NOBODY if variant == "nobody" and os.geteuid() == 0 else None
        folder.chmod(0o711)

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """A target as the mode meets it."""
        self.world.begin(self.mode, empty=self.variant == "empty", owner=self.user)
        with mounted(self.world.target) if self.variant == "mount" else contextlib.nullcontext():
            self.world.keep_root()
            yield

    def restore(self, seam: Seam, mode: Mode | None = None) -> tuple[SandliftError | None, list[str]]:
        """Restores under a seam; returns what it said, and what must not be."""
        seam.exchange, seam.user = self.exchange, self.user
        began = time.monotonic()
        failure: SandliftError | None = None
        with box_at(self.world.target, seam) as box:
            try:
                self.world.restore(box, mode or self.mode)
            except SandliftError as error:
                failure = error
        took_s = time.monotonic() - began
        return failure, [f"it took {took_s:.1f} s"] if took_s > RESTORE_MAX_S else []

    def state(self) -> tuple[str, list[str]]:
        """What the target is now, and what of that must never be."""
        if self.variant != "mount":
            return state(self.world, self.mode, exchange=self.exchange)
        # The tree is made in place, where nothing was before.
        bare = copy.copy(self.world)
        bare.old = tree({})
        return state(bare, "exact")

    def completed(self, found: str, mode: Mode | None = None) -> list[str]:
        """What keeps a further restore from completing what is *found*, or what of it is left."""
        mode = mode or self.mode
        if not (mode == "new" and found == "new"):
            failure, problems = self.restore(Seam(), mode)
            if failure is not None:
                return [*problems, f"again: {_told(failure)}"]
            if self.variant == "mount" and self.world.root is not None:
                # What was cut off has moved the root's time already, and nothing tells what it was.
                moved_ns = os.stat(self.world.target).st_mtime_ns
                self.world.root = replace(self.world.root, mtime_ns=moved_ns)
        else:
            problems = []
        return [*problems, *(f"again: {line}" for line in [*self.world.is_done(mode), *self.world.harm()])]

    def watched(self) -> Iterator[Row]:
        """Looks at the target ahead of each call of one restore."""
        here, there = os.pipe(), os.pipe()
        rows: list[Row] = []

        def ask() -> None:
            os.write(here[1], b"?")
            os.read(there[0], 1)

        seam = Seam(what="call", ask=ask)

        def look() -> None:
            while os.read(here[0], 1) == b"?":
                try:
                    found, problems = self.state()
                except Exception as error:
                    found, problems = "", [f"looking: {error!r}"]
                rows.append({"call": "ahead of " + seam.name(seam.count), "state": found, "problems": problems})
                os.write(there[1], b"!")

        looker = threading.Thread(target=look)
        looker.start()
        try:
            with self.begun():
                failure, problems = self.restore(seam)
                problems += [] if failure is None else [_told(failure)]
                rows.append({"call": "the end", "state": self.state()[0], "problems": problems})
        finally:
            os.write(here[1], b".")
            looker.join()
            for fd in (*here, *there):
                os.close(fd)
        yield from rows

    def calls(self, *, opens: bool = False) -> list[str]:
        """The calls of a whole restore."""
        with self.begun():
            seam = Seam(opens=opens)
            self.restore(seam)
            return seam.names

    def chosen(self, names: list[str]) -> Iterator[tuple[int, str]]:
        """The calls that are disturbed, counted from 1."""
        for number, name in enumerate(names, 1):
            decides = name.startswith(DECIDING) and (number + self.step) % 3 == 0
            taken = (number - 1) % self.step == 1 % self.step or (decides and self.step < 10)
            if "/dev/null" not in name and (taken or name.startswith(ALWAYS)):
                yield number, name

    def kills(self) -> Iterator[Row]:
        """Looks at every call, then has the helper die at some."""
        yield from self.watched()
        for turn, (number, _) in enumerate(self.chosen(self.calls())):
            yield self.kill(number, turn)

    def kill(self, number: int, turn: int) -> Row:
        """The helper dies at a call."""
        with self.begun():
            seam = Seam(what="kill", at=number)
            failure, problems = self.restore(seam)
            found, more = self.state()
            problems += more
            if failure is None or failure.code not in CUT_OFF:
                problems.append(f"the host was told {_told(failure)}")
            if turn % 4 == 2 and self.mode in ("exact", "merge"):
                problems += self.captured(broken=found == "broken")
            # Another mode completes it as well: exact what merge began, replace what exact began.
            others: dict[str, Mode] = {"exact": "replace", "merge": "exact"}
            mode = others.get(self.mode, self.mode) if turn % 4 == 3 else self.mode
            problems += self.completed(found, mode)
        return {"call": f"kill {seam.name(number)}", "state": found, "problems": problems}

    def captured(self, *, broken: bool) -> list[str]:
        """What a capture of the target does not say of a restore that broke off."""
        events: list[Event] = []
        with box_at(self.world.target, Seam()) as box:
            taken = box.capture(self.world.store, "broken", deadline_s=30, on_event=events.append)
        snapshot = self.world.store.load(self.world.store.resolve(taken.ref))
        rows = Manifest.decode(snapshot.manifest, snapshot.originals).rows
        flags = dict(zip(rows.flag_paths, rows.flags, strict=True))
        warnings = [event.message for event in events if event.kind == "warning"]
        names = [path for path in rows.paths if path.rpartition(b"/")[2].startswith(b".sandlift-")]
        problems = [f"a capture took {name!r}" for name in names]
        if (flags.get(b"") == table.UNFINISHED) != broken:
            problems.append(f"a capture flags {flags}, and the tree is {'' if broken else 'not '}broken")
        if any("restore" in message for message in warnings) != broken:
            problems.append(f"a capture warns of {warnings}, and the tree is {'' if broken else 'not '}broken")
        return problems

    def faults(self) -> Iterator[Row]:
        """Has calls fail."""
        for turn, (number, name) in enumerate(self.chosen(self.calls(opens=True))):
            for what in _faults_of(name, turn, every=self.step == 1):
                with self.begun():
                    yield self.fault(number, what)

    def fault(self, number: int, what: Disturbance) -> Row:
        """A call fails."""
        seam = Seam(what=what, at=number, opens=True)
        failure, problems = self.restore(seam)
        found, more = self.state()
        problems += more
        if failure is not None and failure.code not in TYPED:
            problems.append(f"untyped: {_told(failure)}")
        if failure is None and found not in ("new", "broken"):
            problems.append(f"it succeeded, and the target is {found}")
        if failure is not None:
            problems += [f"left beside the target: {name!r}" for name in self.world.beside()]
        if found == "broken" or self.world.beside() or self.variant == "mount":
            problems += self.completed(found)
        return {"call": f"{what} {seam.name(number)}", "state": found, "problems": problems}

    def agains(self) -> Iterator[Row]:
        """Kills a restore in the middle of its renames, and has calls of the one that shall complete it fail."""
        renames = [number for number, name in enumerate(self.calls(), 1) if name.startswith(("rename", "renameat2"))]
        middle = renames[len(renames) // 2]
        with self.begun():
            self.restore(Seam(what="kill", at=middle))
            seam = Seam(opens=True)
            self.restore(seam)
        for turn, (number, name) in enumerate(self.chosen(seam.names)):
            for what in _faults_of(name, turn, every=self.step == 1):
                with self.begun():
                    self.restore(Seam(what="kill", at=middle))
                    found, problems = self.state()
                    if found != "broken":
                        problems.append(f"it is {found} after the kill")
                    row = self.fault(number, what)
                    yield {**row, "problems": [*problems, *cast(list[str], row["problems"])]}


def _faults_of(name: str, turn: int, *, every: bool) -> tuple[Disturbance, ...]:
    kinds: tuple[Disturbance, ...] = (*FAULTS, "short") if name.startswith(("write", "pwrite")) else FAULTS
    return kinds if every else (kinds[turn % len(kinds)],)


def _told(failure: SandliftError | None) -> str:
    if failure is None:
        return "nothing"
    report = str(failure.context.get("report") or failure.context.get("stderr") or "")
    return f"{failure.code}: {failure.message} {report[-900:]}"


def main(what: str, mode: str, folder: str, variant: str = "plain", step: str = "1") -> None:
    assert mode in MODES
    points = Points(Path(folder), mode, variant, int(step))
    ways = {"kill": points.kills, "fail": points.faults, "again": points.agains}
    with one_processor(), points.world:
        for row in ways[what]():
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
