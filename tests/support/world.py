"""A place where a restore is disturbed: an old tree, a new one, a store that holds both, and a tree outside.

The trees differ in every way that a restore in place knows; `MILD` leaves out what *merge* refuses.  `state` tells
what a target is in the middle of a restore, and lists what must never be.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from sandlift.box import Box, connect
from sandlift.model import RestoreOptions
from sandlift.store import Store
from sandlift_helper.marker import MARKER
from sandlift_helper.staging import NEW as NEW_SUFFIX
from sandlift_helper.staging import OLD as OLD_SUFFIX
from support.tree import BLOCK, MTIME_NS, Dir, Entry, File, HardLink, Link, Tree, differences, make, read, remove, tree

Mode = Literal["new", "replace", "exact", "merge"]
MODES: tuple[Mode, ...] = ("new", "replace", "exact", "merge")

LATER_NS = MTIME_NS + 1_000_000_007
TEMPORARY = re.compile(rb"\.sandlift-[0-9a-f]{16}-[0-9]+(-old)?")
BESIDE = re.compile(rb"\.t\.[0-9a-f]{16}(%s|%s)" % (re.escape(NEW_SUFFIX), re.escape(OLD_SUFFIX)))
SECRET = b"a sentinel that nothing may take, change or remove\n"

_STAYING: dict[bytes, Entry] = {b"stays": File(b"stays as it is"), b"way/down/here": File(b"stays too")}
_OLD: dict[bytes, Entry] = {
    **_STAYING,
    b"content": File(b"old content"),
    b"large": File(b"o" * (BLOCK + 10)),
    b"mode": File(b"one mode", mode=0o644),
    b"time": File(b"one time"),
    b"link": Link(b"stays"),
    b"link-to-file": Link(b"stays"),
    b"file-to-link": File(b"a file, old"),
    b"d": Dir(mode=0o755),
    b"d/inner": File(b"inner, old"),
    b"d/gone": File(b"gone"),
    b"old/sub/x": File(b"only old"),
    b"pair1": File(b"one file of two names"),
    b"pair2": HardLink(b"pair1"),
    b"apart1": File(b"will be one"),
    b"apart2": File(b"will be one"),
    b"locked": Dir(mode=0o555),
    b"locked/f": File(b"locked, old", mode=0o400),
    b"shared": File(b"has a name outside"),
    b"shared-mode": File(b"has a name outside as well", mode=0o644),
}
_MILD: dict[bytes, Entry] = {
    **_STAYING,
    b"content": File(b"new content, longer", mtime_ns=LATER_NS),
    b"large": File(b"n" * (BLOCK + 10), mtime_ns=LATER_NS),
    b"mode": File(b"one mode", mode=0o600),
    b"time": File(b"one time", mtime_ns=LATER_NS),
    b"link": Link(b"content", mtime_ns=LATER_NS),
    b"link-to-file": File(b"a file, new"),
    b"file-to-link": Link(b"stays"),
    b"d": Dir(mode=0o750, mtime_ns=LATER_NS),
    b"d/inner": File(b"inner, new"),
    b"d/added": File(b"added"),
    b"new/sub/y": File(b"only new"),
    b"new/sub/z": Link(b"y"),
    b"pair1": File(b"one file of two names"),
    b"pair2": File(b"one file of two names"),
    b"apart1": File(b"will be one"),
    b"apart2": HardLink(b"apart1"),
    b"locked": Dir(mode=0o555, mtime_ns=LATER_NS),
    b"locked/f": File(b"locked, new", mode=0o400),
    b"shared": File(b"has no name outside now"),
    b"shared-mode": File(b"has a name outside as well", mode=0o600),
}
_FLIPS_OLD: dict[bytes, Entry] = {
    b"to-directory": File(b"a file"),
    b"to-file/sub/y": File(b"below"),
    b"to-link/y": File(b"below"),
    b"link-to-directory": Link(b"stays"),
}
_FLIPS_NEW: dict[bytes, Entry] = {
    b"to-directory/sub/z": File(b"below"),
    b"to-file": File(b"a file now"),
    b"to-link": Link(b"stays"),
    b"link-to-directory/z": File(b"below"),
}
OLD = tree({**_OLD, **_FLIPS_OLD}, root=Dir(mode=0o755))
NEW = tree({**_MILD, **_FLIPS_NEW}, root=Dir(mode=0o700, mtime_ns=LATER_NS))
MILD = tree(_MILD, root=Dir(mode=0o700, mtime_ns=LATER_NS))
MERGED = OLD.changed(_MILD)
SHARED = (b"shared", b"shared-mode")

Stamp = dict[bytes, tuple[object, ...]]


def stamp(root: Path, *, links_change: bool = False) -> Stamp:
    """Everything about a tree that a change would move: bytes, mode, owner, times to ctime, inode, names.

    With *links_change*, the files of `SHARED` may lose a name elsewhere, which moves their ctime.
    """
    found: Stamp = {}
    for folder, directories, files in os.walk(os.fsencode(root)):
        for path in [folder, *(os.path.join(folder, name) for name in [*directories, *files])]:
            status = os.lstat(path)
            content: bytes = b""
            if stat.S_ISREG(status.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            facts = (status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, status.st_ino)
            loose = links_change and os.path.basename(path) in SHARED
            found[path] = (*facts, content, () if loose else (status.st_ctime_ns, status.st_nlink))
    return found


class World:
    """A folder with a store that holds both trees, a target ``place/t``, and ``outside``, which nothing may touch."""

    def __init__(self, folder: Path, *, old: Tree = OLD, new: Tree = NEW, mild: Tree = MILD) -> None:
        self.folder = folder
        self.place = folder / "place"
        self.target = self.place / "t"
        self.outside = folder / "outside"
        self.old, self.new, self.mild = old, new, mild
        self.store = Store.open(folder / "store", create=True)
        for name, wanted in (("old", old), ("new", new), ("mild", mild)):
            make(wanted, folder / name)
            with connect(os.fspath(folder / name)) as box:
                box.capture(self.store, name)
        self.place.mkdir()
        self._before: Stamp = {}
        self.root: Dir | None = None

    def ref(self, mode: Mode) -> str:
        """The snapshot that a mode sets down."""
        return "mild" if mode == "merge" else "new"

    def wanted(self, mode: Mode) -> Tree:
        """What is there after a restore to the old tree."""
        if mode != "merge":
            return self.new
        return self.old.changed(self.mild.entries)

    def begin(self, mode: Mode, *, empty: bool = False, owner: int | None = None) -> None:
        """Makes everything anew: the target as *mode* meets it, beside it nothing, and what is outside.

        With *owner*, all of it but what is outside belongs to that user.
        """
        for path in (self.place, self.outside):
            remove(path)
            path.mkdir()
        (self.outside / "inner").write_bytes(SECRET)
        (self.outside / "sub").mkdir()
        (self.outside / "sub" / "x").write_bytes(SECRET)
        if mode != "new":
            make(self.old, self.target)
            for name in SHARED:
                if name in self.old.entries:
                    os.link(os.fsencode(self.target) + b"/" + name, os.fsencode(self.outside) + b"/" + name)
        elif empty:
            self.target.mkdir(0o751)
        if owner is not None:
            for folder, directories, files in os.walk(self.place):
                for whole in [folder, *(os.path.join(folder, name) for name in [*directories, *files])]:
                    os.chown(whole, owner, owner, follow_symlinks=False)
        self.keep_root()
        self._before = stamp(self.outside, links_change=True)

    def keep_root(self) -> None:
        """Remembers the root that is there: *new* and *merge* leave it its mode and time."""
        self.root = read(self.target).root if self.target.exists() else None

    def restore(self, box: Box, mode: Mode, **options: object) -> None:
        """Restores what *mode* sets down."""
        box.restore(self.store, self.ref(mode), options=RestoreOptions(mode=mode), deadline_s=30)

    def harm(self) -> list[str]:
        """What was done outside the target and beside it."""
        now, before = stamp(self.outside, links_change=True), self._before
        return [
            f"outside: {path!r} was {before.get(path)}, is {now.get(path)}"
            for path in now.keys() | before.keys()
            if now.get(path) != before.get(path)
        ]

    def beside(self) -> list[bytes]:
        """What stands beside the target."""
        return sorted(os.fsencode(name) for name in os.listdir(self.place) if name != "t")

    def clutter(self) -> list[str]:
        """What stands beside the target and is no name of ours."""
        return [f"beside the target: {name!r}" for name in self.beside() if not BESIDE.fullmatch(name)]

    def is_done(self, mode: Mode) -> list[str]:
        """What keeps the target from being what a whole restore leaves."""
        if not self.target.exists():
            return ["the target is missing"]
        found, wanted = read(self.target), self.wanted(mode)
        if mode == "new" and self.root is not None:
            wanted = replace(wanted, root=self.root)
        if mode == "merge":
            # Names that come move the time.
            wanted = replace(wanted, root=replace(self.old.root, mtime_ns=found.root.mtime_ns))
        lines = differences(wanted, found, holes=False)
        return [*lines, *(f"left beside the target: {name!r}" for name in self.beside())]

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


State = Literal["absent", "old", "broken", "new"]


def state(world: World, mode: Mode, *, exchange: bool = True) -> tuple[State, list[str]]:
    """What the target is after a restore was cut off, and what of that must never be."""
    problems = [*world.harm(), *world.clutter()]
    if not os.path.lexists(world.target):
        old_beside = [name for name in world.beside() if name.endswith(OLD_SUFFIX)]
        if mode == "new":
            return "absent", problems
        if exchange or mode != "replace" or not old_beside:
            problems.append("the target is gone")
        return "absent", problems
    found = read(world.target)
    if mode == "new":
        if not found.entries:
            return "absent", problems
        return "new", [
            *problems,
            *differences(world.new if world.root is None else replace(world.new, root=world.root), found, holes=False),
        ]
    if mode == "replace":
        if not differences(world.old, found, holes=False):
            return "old", problems
        lines = differences(world.new, found, holes=False)
        return "new", [*problems, *lines]
    found_state, problems = _in_place(world, mode, found, problems)
    if not exchange and any(path.endswith(b"-old") for path in found.entries):
        # Between two renames the name is free, and what was there stands beside it.
        problems = [line for line in problems if not line.endswith("although it was there and will be")]
    return found_state, problems


def _in_place(world: World, mode: Mode, found: Tree, problems: list[str]) -> tuple[State, list[str]]:
    old, new = world.old, world.wanted(mode)
    temporary = {path for path in found.entries if any(part.startswith(b".sandlift-") for part in path.split(b"/"))}
    real = {path: _plain(found, path) for path in found.entries.keys() - temporary}
    tops = {path.rpartition(b"/")[2] for path in temporary if path.rpartition(b"/")[0] not in temporary}
    prefix = _prefix(found)
    marked = MARKER in found.entries
    if not prefix and len(temporary) == 1 and temporary == tops and isinstance(found.entries[min(tops)], File):
        # The marker itself is half written, so nothing else may have begun.
        found, marked, temporary, tops = found.without(min(tops)), False, set(), set()
    problems += [
        f"a name that is not ours: {name!r}"
        for name in tops - {MARKER}
        if not TEMPORARY.fullmatch(name) or not name.startswith(prefix)
    ]
    if not marked:
        problems += [f"a temporary name without a marker: {path!r}" for path in temporary]
        from_old = differences(_with_times(old, found, all_directories=True), found, holes=False)
        from_new = differences(_with_times(new, found, all_directories=False), found, holes=False)
        if not from_old:
            return "old", problems
        if from_new:
            lines = min(from_old, from_new, key=len)
            problems.append(f"no marker, and neither old nor new: {'; '.join(lines)}")
        return "broken" if from_new else "new", problems
    for path in old.entries.keys() | new.entries.keys() | real.keys():
        problems += _entry(path, real, old, new, exact=mode == "exact")
    return "broken", problems


def _with_times(wanted: Tree, found: Tree, *, all_directories: bool) -> Tree:
    """*wanted* with the root that is there, and the times of all directories: they move when a name comes and goes."""
    entries = dict(wanted.entries)
    for path, entry in entries.items():
        there = found.entries.get(path)
        if all_directories and isinstance(entry, Dir) and isinstance(there, Dir):
            entries[path] = replace(entry, mtime_ns=there.mtime_ns)
    return replace(wanted, entries=entries, root=found.root)


def _prefix(found: Tree) -> bytes:
    marker = found.entries.get(MARKER)
    if not isinstance(marker, File) or not marker.pieces:
        return b""
    match = re.fullmatch(rb"sandlift restore ([0-9a-f]{16})\n", marker.pieces[0][1])
    return b".sandlift-%s-" % match.group(1) if match else b""


def _plain(whole: Tree, path: bytes) -> Entry | None:
    """The entry at a path, for a further name the file itself."""
    entry = whole.entries.get(path)
    return whole.entries[entry.to] if isinstance(entry, HardLink) else entry


def _entry(path: bytes, real: dict[bytes, Entry | None], old: Tree, new: Tree, *, exact: bool) -> Iterator[str]:
    was, will, entry = _plain(old, path), _plain(new, path), real.get(path)
    if entry is None:
        above = path.rpartition(b"/")[0]
        if was is not None and will is not None:
            yield f"{path!r} is missing, although it was there and will be"
        elif was is not None and not exact:
            yield f"{path!r} is missing, and merge removes nothing"
        elif will is not None and above and old.entries.get(above) is None and above in real:
            yield f"{path!r} is missing in a directory that is new"
        return
    if was is None and will is None:
        yield f"{path!r} should never be there"
    elif isinstance(entry, Dir):
        modes = {known.mode for known in (was, will) if isinstance(known, Dir)}
        if not modes:
            yield f"{path!r} is a directory"
        elif entry.mode not in modes | {mode | 0o700 for mode in modes}:
            yield f"{path!r} has the mode {entry.mode:o}"
    elif entry not in (was, will) and not _is_between(entry, was, will):
        yield f"{path!r} is {entry!r:.200}, neither {was!r:.200} nor {will!r:.200}"


def _is_between(entry: Entry, was: Entry | None, will: Entry | None) -> bool:
    """Whether a file keeps its content, and has got its new mode but not its new time."""
    return (
        isinstance(entry, File)
        and isinstance(was, File)
        and isinstance(will, File)
        and (was.pieces, was.size) == (will.pieces, will.size)
        and entry == replace(was, mode=will.mode)
    )


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[None]:
    """An empty file system in memory at *path*; root alone can do that."""
    import subprocess

    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)
