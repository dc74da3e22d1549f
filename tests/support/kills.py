"""Restores that are killed at chance instants: host, helper with its workers, or both; then completed.

kills.py FOLDER KILLS SEED MODE...      prints one JSON line for each kill: what was killed and when, the state of the
                                        target, and everything that must not be
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from sandlift.box import connect
from sandlift.errors import SandliftError, TargetNotEmpty
from support.sshd import descendants
from support.tree import Entry, File
from support.world import LATER_NS, MILD, NEW, OLD, Mode, World, state

VICTIMS = ("helper", "host", "both")
# A helper whose host has died looks for it once a second.
HELPER_ENDS_S = 8.0
RESTORE_MAX_S = 60.0
BULK = 60
FAILED, NOT_EMPTY = 2, 3
_EARLY = ("sandlift.content", "sandlift.gathering", "sandlift.restoring.run", "sandlift.restoring.delivery")

Row = dict[str, object]


def bulky_world(folder: Path) -> World:
    """A world whose trees hold enough for several frames and several workers; half of it differs."""
    chance = random.Random(BULK)
    old: dict[bytes, Entry] = {}
    new: dict[bytes, Entry] = {}
    for number in range(BULK):
        path = b"bulk/%d/%d" % (number % 8, number)
        old[path] = new[path] = File(chance.randbytes(int(chance.expovariate(1 / 30_000))))
        if number % 2:
            new[path] = File(chance.randbytes(int(chance.expovariate(1 / 30_000))), mtime_ns=LATER_NS)
    return World(folder, old=OLD.changed(old), new=NEW.changed(new), mild=MILD.changed(new))


class Restores:
    """Restores to the world's target, each in a process of its own; the helper is a program, as ever."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.pid = 0
        self.running: set[int] = set()
        for name in _EARLY:
            importlib.import_module(name)

    def begin(self, mode: Mode) -> None:
        """Starts one."""
        self.running = set()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                with connect(os.fspath(self._world.target)) as box:
                    self._world.restore(box, mode)
                status = 0
            except TargetNotEmpty:
                status = NOT_EMPTY
            except SandliftError:
                status = FAILED
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(status)

    def kill(self, victim: str) -> str:
        """Kills what runs of it; returns what there was to kill."""
        self.running = set(descendants(self.pid))
        groups = set()
        for pid in self.running:
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(pid))
        groups.discard(os.getpgid(0))
        killed = []
        if victim != "host":
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
                killed = ["helper"]
        if victim != "helper" or not groups:
            os.kill(self.pid, signal.SIGKILL)
            killed.append("host")
        return " and ".join(killed)

    def wait(self) -> int:
        """Waits for the host's end and for all that it started; returns its status."""
        end = time.monotonic() + RESTORE_MAX_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("a restore does not end")
            time.sleep(0.002)
        end = time.monotonic() + HELPER_ENDS_S
        while any(map(_runs, self.running)):
            if time.monotonic() > end:
                raise AssertionError(f"left running: {[pid for pid in self.running if _runs(pid)]}")
            time.sleep(0.005)
        return os.waitstatus_to_exitcode(status)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def storm(folder: Path, kills: int, seed: int, modes: list[Mode]) -> Iterator[Row]:
    """Kills *kills* restores of each mode, at instants that are spread over the time that a whole one takes."""
    chance = random.Random(seed)
    with bulky_world(folder) as world:
        restores = Restores(world)
        for mode in modes:
            whole_s = min(_whole(world, restores, mode) for _ in range(2))
            for number in range(kills):
                after_s = whole_s * (number + chance.random()) / kills
                yield {"mode": mode, **_one(world, restores, mode, after_s, number)}


def _whole(world: World, restores: Restores, mode: Mode) -> float:
    world.begin(mode)
    began = time.monotonic()
    restores.begin(mode)
    assert restores.wait() == 0, "a restore that nobody disturbs has failed"
    took_s = time.monotonic() - began
    assert not world.is_done(mode), world.is_done(mode)
    return took_s


def _one(world: World, restores: Restores, mode: Mode, after_s: float, number: int) -> Row:
    world.begin(mode)
    restores.begin(mode)
    time.sleep(after_s)
    killed = restores.kill(VICTIMS[number % len(VICTIMS)])
    status = restores.wait()
    found, problems = state(world, mode)
    if status not in (0, FAILED, -signal.SIGKILL):
        problems.append(f"the host ended with {status}")
    if status == 0 and found != "new":
        problems.append(f"it succeeded, and the target is {found}")
    others: dict[Mode, Mode] = {"exact": "replace", "merge": "exact"}
    again = others.get(mode, mode) if number % 5 == 4 else mode
    restores.begin(again)
    status_again = restores.wait()
    # A new tree that is whole is there; nothing is to be completed.
    if status_again != (NOT_EMPTY if mode == "new" and found == "new" else 0):
        problems.append(f"again, as {again}: it ends with {status_again}")
    problems += [f"again, as {again}: {line}" for line in [*world.is_done(again), *world.harm()]]
    return {
        "killed": killed,
        "after_s": round(after_s, 4),
        "state": found,
        "survived": status == 0,
        "again": again,
        "problems": problems[:20],
    }


def main(folder: str, kills: str, seed: str, *modes: str) -> None:
    for row in storm(Path(folder), int(kills), int(seed), cast(list[Mode], list(modes))):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
