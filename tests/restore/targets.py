"""Trees for targets and snapshots: equal, older, newer, foreign, and each kind in the place of each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from e2e.lift import Lift

from sandlift.model import Mode
from support.tree import BLOCK, Device, Dir, Entry, Fifo, File, HardLink, Link, Socket, Tree, make, tree

MODES: tuple[Mode, ...] = ("new", "replace", "exact", "merge")
NANOSECONDS = 1_468_471_990_914_840_077
RANDOM = os.urandom(2 * BLOCK + 77)
MARKER = ".sandlift-restoring"

SNAPSHOT = tree(
    {
        b"a.txt": File(b"the snapshot's\n", mtime_ns=NANOSECONDS),
        b"bin/run": File(b"#!/bin/sh\n", mode=0o755),
        b"bin/key": File(b"secret", mode=0o600, mtime_ns=-2_145_916_800_000_000_001),
        b"big": File(RANDOM, mtime_ns=0),
        b"dir/deep/c": File(b"c"),
        b"empty": Dir(mode=0o700, mtime_ns=1),
        b"holes": File(b"start", pieces=((3 * BLOCK + 5, b"middle"),), size=6 * BLOCK + 1),
        b"one": File(b"one of two"),
        b"dir/two": HardLink(b"one"),
        b"links/in": Link(b"../a.txt"),
        b"links/dangling": Link(b"nowhere", mtime_ns=NANOSECONDS + 1),
        b"read-only": Dir(mode=0o555),
        b"read-only/file": File(b"x", mode=0o444),
    },
    root=Dir(mode=0o750, mtime_ns=NANOSECONDS - 1),
)

OLDER = SNAPSHOT.without(b"bin/key", b"links", b"dir/deep").changed(
    {
        b"a.txt": File(b"the older one\n", mtime_ns=5),
        b"big": File(RANDOM[:BLOCK] + b"other" + RANDOM[BLOCK:], mtime_ns=0),
        b"bin/run": File(b"#!/bin/sh\n", mode=0o700, mtime_ns=7),
        b"since-removed/x": File(b"x"),
    }
)
NEWER = SNAPSHOT.changed(
    {
        b"a.txt": File(b"a newer one, and longer\n"),
        b"added": File(b"added"),
        b"dir/added/below": File(b"added"),
        b"read-only": Dir(mode=0o755),
        b"read-only/added": File(b"added"),
        b"one": File(b"one of two"),
        b"dir/two": File(b"one of two"),
    }
)
# cases: Basekick-Labs/arc#635 (a stale side file must not survive)
FOREIGN = tree(
    {
        b"app.db": File(b"live"),
        b"app.db-wal": File(b"newer than the snapshot"),
        b"node_modules/x/index.js": File(b"x"),
        b"locked": Dir(mode=0o500),
        b"locked/below/file": File(b"x", mode=0o400),
        b"pipe": Fifo(),
        b"sock": Socket(),
        b"to-etc": Link(b"/etc"),
        b"zz": HardLink(b"app.db"),
    },
    root=Dir(mode=0o711),
)
TARGETS: dict[str, Tree | None] = {
    "absent": None,
    "empty": tree({}, root=Dir(mode=0o711)),
    "equal": SNAPSHOT,
    "older": OLDER,
    "newer": NEWER,
    "foreign": FOREIGN,
}

# Kinds exchanged: what is there, and what shall be there.

WANTED: dict[bytes, Entry] = {
    b"file": File(b"wanted"),
    b"dir": Dir(mode=0o750),
    b"link": Link(b"anchor"),
    b"hard": HardLink(b"anchor"),
}
THERE: dict[bytes, Entry | None] = {
    b"nothing": None,
    b"file": File(b"there"),
    b"empty-dir": Dir(),
    b"full-dir": Dir(mode=0o500),
    b"link-out": Link(b"/etc"),
    b"dangling": Link(b"nowhere"),
    b"hard": HardLink(b"0-old"),
    b"fifo": Fifo(),
    b"socket": Socket(),
    b"char": Device(),
    b"block": Device(block=True, number=(7, 200)),
    b"whiteout": Device(number=(0, 0)),
}
PAIRS = [(there, wanted) for there in THERE for wanted in WANTED]
DIRECTORIES = (b"empty-dir", b"full-dir", b"dir")


def flipped(*, clashing: bool) -> tuple[Tree, Tree, set[bytes]]:
    """(the snapshot, the target, the paths where a directory meets something else)."""
    devices = os.geteuid() == 0
    wanted: dict[bytes, Entry] = {b"anchor": File(b"anchor")}
    there: dict[bytes, Entry] = {b"0-old": File(b"old")}
    clashes = set()
    for old, new in PAIRS:
        path = old + b"-" + new
        entry = THERE[old]
        clash = entry is not None and (old in DIRECTORIES) != (new in DIRECTORIES)
        if (clash and not clashing) or (isinstance(entry, Device) and not devices):
            continue
        if clash:
            clashes.add(path)
        wanted[path] = WANTED[new]
        if new == b"dir":
            wanted[path + b"/child/deep"] = File(b"deep")
        if entry is not None:
            there[path] = entry
        if old == b"full-dir":
            there[path + b"/old/below"] = File(b"below")
            there[path + b"/pipe"] = Fifo()
    return tree(wanted), tree(there), clashes


def target_of(lift: Lift, there: Tree | None) -> Path:
    """A target where that tree stands, or nothing."""
    target = lift.target()
    if there is not None:
        make(there, target)
    return target


def below(target: Path, names: list[str], rows: dict[bytes, Any]) -> dict[bytes, Any]:
    """The part of a standing that is at or below *names*."""
    tops = [os.fsencode(target / name) for name in names]
    return {path: row for path, row in rows.items() if any(path == top or path.startswith(top + b"/") for top in tops)}
