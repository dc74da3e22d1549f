"""An arena for races: a workspace, a target and a victim outside, worked with while an attacker exchanges names.

Whatever the attacker does, nothing of the victim may be captured, changed or created, nothing may block, and errors
are typed.  `naive_capture` and `naive_restore` go by path, look before they open, and lose: so the race is real.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandlift.box import Box, connect
from sandlift.errors import HelperCrashed, SandliftError
from sandlift.manifest import Manifest
from sandlift.model import RestoreOptions
from sandlift.store import Store
from support.attacker import attacked
from support.tree import File, Tree, make, remove, tree
from support.world import LATER_NS, Mode, Stamp, stamp

MARK = b"THE VICTIM'S OWN BYTES "
FILES = 60
DEADLINE_S = 20.0


@dataclass(slots=True, kw_only=True)
class Result:
    """What a race came to."""

    operations: int = 0
    rounds: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    escapes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _tree(word: bytes, files: int, mtime_ns: int) -> Tree:
    names = {b"d/%02d" % number: File(b"%s %d " % (word, number) * 40, mtime_ns=mtime_ns) for number in range(files)}
    more = {b"e/deep/%02d" % number: File(b"%s %d" % (word, number), mtime_ns=mtime_ns) for number in range(files // 2)}
    return tree({**names, **more, b"f": File(word * 3, mtime_ns=mtime_ns), b"g": File(word * 4, mtime_ns=mtime_ns)})


class Arena:
    """A folder with all that a race needs: ``w`` to capture, ``place/p/t`` to restore to, and ``victim``."""

    def __init__(self, folder: Path, files: int = FILES) -> None:
        self.folder = folder
        self.workspace = folder / "w"
        self.place = folder / "place" / "p"
        self.target = self.place / "t"
        self.victim = folder / "victim"
        self.lair = folder / "lair"
        self.lair.mkdir(parents=True)
        self.old, self.new = _tree(b"old", files, LATER_NS - 1), _tree(b"new", files, LATER_NS)
        self.store = Store.open(folder / "store", create=True)
        make(self.old, self.workspace)
        make(self.new, folder / "source")
        with connect(os.fspath(folder / "source")) as box:
            box.capture(self.store, "new")
        self._before: Stamp = {}
        self.make_victim()

    def make_victim(self) -> None:
        """Makes the victim's tree: the same names everywhere, so that who follows a link finds what he looks for."""
        files = {path: File(MARK * 20 + path) for path, entry in self.old.entries.items() if isinstance(entry, File)}
        below = {b"t/" + path: entry for path, entry in files.items()}
        make(tree({**files, **below}), self.victim)
        self.heal()

    def begin(self, mode: Mode) -> None:
        """Makes the target as *mode* meets it."""
        remove(self.place)
        self.place.mkdir(parents=True)
        if mode != "new":
            make(self.old, self.target)

    def harm(self) -> list[str]:
        """What was changed or created in the victim's tree."""
        now = stamp(self.victim)
        return [
            f"{path!r} was {self._before.get(path)!s:.110}, is {now.get(path)!s:.110}"
            for path in sorted(now.keys() | self._before.keys())
            if now.get(path) != self._before.get(path)
        ]

    def heal(self) -> None:
        """Takes the victim as it is now for what it was."""
        self._before = stamp(self.victim)

    def taken(self, ref: str) -> list[str]:
        """What of the victim's bytes a snapshot holds."""
        snapshot = self.store.load(self.store.resolve(ref))
        manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
        blocks = self.store.blocks(snapshot)
        return [
            f"{ref} holds {name.hex()}"
            for number, name in enumerate(manifest.blocks)
            if MARK in blocks.read(number, name)
        ]

    def capture(self, box: Box, result: Result) -> None:
        """Captures the workspace once, and notes what came of it."""
        began = time.monotonic()
        try:
            taken = box.capture(self.store, "raced", deadline_s=DEADLINE_S)
            result.escapes += self.taken(taken.ref)
        except SandliftError as error:
            self._note(error, result)
        result.rounds += 1
        result.slowest_s = max(result.slowest_s, time.monotonic() - began)

    def restore(self, box: Box, mode: Mode, result: Result) -> None:
        """Restores once, and notes what came of it."""
        began = time.monotonic()
        try:
            box.restore(self.store, "new", options=RestoreOptions(mode=mode), deadline_s=DEADLINE_S)
        except SandliftError as error:
            self._note(error, result)
        result.rounds += 1
        result.slowest_s = max(result.slowest_s, time.monotonic() - began)

    def _note(self, error: SandliftError, result: Result) -> None:
        result.errors[error.code] += 1
        if isinstance(error, HelperCrashed) or error.code in ("deadline", "protocol", "truncated"):
            report = error.context.get("report") or error.context.get("stderr") or ""
            result.problems.append(f"{error.code}: {error.message} {str(report)[-900:]}")

    def baits(self, root: Path | str) -> list[str]:
        """A directory and a file that become links to the victim's, a file that becomes a pipe; below *root*."""
        victim = self.victim
        return [
            f"link:{root}/d:{victim}/d",
            f"link:{root}/f:{victim}/f",
            f"fifo:{root}/g:",
            f"link:{root}/e/deep:{victim}/e/deep",
        ]

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def race(arena: Arena, baits: Sequence[str], operations: int, pause_us: int, once: Callable[[Result], None]) -> Result:
    """Does something again and again until the attacker has made all of his exchanges."""
    result = Result()
    with attacked(operations, pause_us, arena.lair, *baits) as done:
        while (made := done()) is None:
            once(result)
    result.operations = made
    result.escapes += arena.harm()
    if result.slowest_s > DEADLINE_S + 2:
        result.problems.append(f"one took {result.slowest_s:.1f} s")
    return result


def captures(arena: Arena, operations: int, pause_us: int) -> Result:
    """Captures under attack."""
    with connect(os.fspath(arena.workspace)) as box:
        return race(
            arena,
            arena.baits(arena.workspace),
            operations,
            pause_us,
            lambda result: arena.capture(box, result),
        )


def restores(arena: Arena, mode: Mode, operations: int, pause_us: int) -> Result:
    """Restores under attack: of what is in the target, or of what is in the staging directory."""
    root = arena.target if mode in ("exact", "merge") else f"{arena.place}/"
    arena.begin(mode)

    def once(result: Result) -> None:
        if mode == "new":
            remove(arena.target)
        arena.restore(box, mode, result)

    with connect(os.fspath(arena.target)) as box:
        return race(arena, arena.baits(root), operations, pause_us, once)


# The twins, by path.


def naive_capture(root: Path, between: Callable[[], None] = lambda: None) -> dict[str, bytes]:
    """Reads the files of a tree: each is looked at first, and a link is not read."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                between()
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                found[path] = os.read(fd, 1 << 16)
            finally:
                os.close(fd)
    return found


def naive_restore(root: Path, wanted: Tree, between: Callable[[], None] = lambda: None) -> None:
    """Writes the files of a tree: each directory on the way is looked at first, and a link is not entered."""
    for name, entry in wanted.entries.items():
        path = os.path.join(os.fsencode(root), name)
        if not isinstance(entry, File):
            continue
        try:
            folder = os.path.dirname(path)
            if stat.S_ISLNK(os.lstat(folder).st_mode) or not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            between()
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            os.write(fd, b"".join(data for _, data in entry.pieces))
        finally:
            os.close(fd)


def naive_captures(arena: Arena, operations: int, pause_us: int) -> Result:
    """The twin of `captures`."""

    def once(result: Result) -> None:
        result.rounds += 1
        result.escapes += [path for path, data in naive_capture(arena.workspace).items() if MARK in data]

    return race(arena, arena.baits(arena.workspace), operations, pause_us, once)


def naive_restores(arena: Arena, operations: int, pause_us: int) -> Result:
    """The twin of `restores`."""
    arena.begin("exact")

    def once(result: Result) -> None:
        result.rounds += 1
        naive_restore(arena.target, arena.new)

    result = race(arena, arena.baits(arena.target), operations, pause_us, once)
    arena.heal()
    return result
