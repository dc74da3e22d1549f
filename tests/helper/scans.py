"""Scans of random trees by one process and by several, told apart, in a process of its own since scanners are forked.

scans.py FOLDER SEED [mounts]    prints how many names the tree has and how many files are elsewhere, of how many in
                                 hard-link groups; with mounts in it, which need a mount namespace of their own.  As
                                 root, it scans as somebody who may not read everything.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from sandlift_helper import scanners, table
from sandlift_helper.channel import Channel
from sandlift_helper.ignore import Rules, compile_rules
from sandlift_helper.mounts import Mounts, read_mounts
from sandlift_helper.portions import Portion, Subtree
from sandlift_helper.scan import COLUMNS, Limits, Scan

NOBODY = 65534
LEFTOVER = b"0123456789abcdef"
NAMES = (b"a", b"b", b"a-b", b"a.log", b"keep.log", b"\xff", b"z" * 60, b".sandlift-0123456789abcdef-1", b"naive e")
CACHE = b"Signature: 8a477f597d28d172789f06886806bc55\n"
LARGE_BYTES = 5000
DEPTH = 9


class Tree:
    """A random tree below *root*, its files linked to one another and to one outside, some of it unreadable."""

    def __init__(self, root: bytes, chance: random.Random) -> None:
        self.root = root
        self.directories = [root]
        self.files: list[bytes] = []
        self._chance = chance
        os.mkdir(root)
        with open(root + b".outside", "wb") as outside:
            outside.write(b"outside")
        self.files.append(root + b".outside")

    def grow(self, entries: int) -> None:
        """Add so many entries."""
        for number in range(entries):
            parent = self._chance.choice(self.directories[-12:] if number % 3 else self.directories)
            path = os.path.join(parent, self._chance.choice(NAMES) + b"%d" % number)
            self._add(path, self._chance.randrange(12))
            if os.geteuid() == 0 and os.path.lexists(path):
                os.chown(path, self._chance.choice((0, NOBODY)), self._chance.randrange(9), follow_symlinks=False)
        with open(os.path.join(self._chance.choice(self.directories), b"CACHEDIR.TAG"), "wb") as tag:
            tag.write(CACHE)

    def _add(self, path: bytes, kind: int) -> None:
        if kind < 4:
            os.mkdir(path, 0o755)
            self.directories.append(path)
        elif kind < 7:
            with open(path, "wb") as file:
                file.write(bytes(self._chance.randrange(20)))
                file.truncate(self._chance.choice((0, 7, LARGE_BYTES, LARGE_BYTES + 1)))
            self.files.append(path)
        elif kind < 9:
            with contextlib.suppress(OSError):  # across a mount
                os.link(self._chance.choice(self.files), path)
        elif kind < 11:
            os.symlink(self._chance.choice((b"a", b"../b", b"/etc", b"x" * 200)), path)
        else:
            os.mkfifo(path)

    def mount(self) -> None:
        """Mount what belongs to a workspace, and what does not, below a directory that comes last."""
        for name, kind in ((b"zz/memory", "tmpfs"), (b"zz/kernel", "proc")):
            path = os.path.join(self.root, name)
            os.makedirs(path)
            subprocess.run(["mount", "-t", kind, kind, path], check=True)
        self.directories.append(os.path.join(self.root, b"zz/memory"))

    def forbid(self) -> None:
        """Make some of the directories unreadable, for who is not root."""
        # The last are the deepest: nobody has to pass one that is forbidden already.
        for path in self.directories[: len(self.directories) // 3 : -1]:
            if self._chance.random() < 0.1:
                os.chmod(path, self._chance.choice((0o000, 0o444, 0o111)))

    def own(self) -> frozenset[tuple[int, int]]:
        """One directory that is said to be sandlift's own."""
        status = os.stat(self._chance.choice(self.directories))
        return frozenset([(status.st_dev, status.st_ino)])


def said(scan: Scan) -> dict[str, Any]:
    """All that a scan tells, as values."""
    files, left = scan.files, scan.left

    def look(status: os.stat_result | None) -> object:
        return status and (status.st_mode, status.st_mtime_ns, status.st_uid, status.st_gid)

    return {
        **{name: list(getattr(files, name)) for name in COLUMNS},
        "members": files.members,
        "name_counts": files.name_counts,
        "directories": [(path, look(status)) for path, status in scan.directories],
        "links": [(path, look(status), text) for path, status, text in scan.links],
        "excluded": [left.excluded_paths, left.excluded_kinds, left.excluded_reasons, left.details],
        "flags": [left.flag_paths, left.flags],
        "leftovers": scan.leftovers,
        "bytes": scan.bytes,
    }


def assert_in_order(scan: Scan) -> None:
    for column in (scan.files.paths, [row[0] for row in scan.directories], [row[0] for row in scan.links]):
        keys = [table.sort_key(path) for path in column]
        assert keys == sorted(set(keys))
    for rows in scan.files.members.values():
        assert rows == sorted(rows)


class Scans:
    """Scans of one tree, by one process or several."""

    def __init__(self, tree: Tree, chance: random.Random) -> None:
        self.forks = 0
        self._chance = chance
        self._fd = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY)
        self._mounts: Mounts = read_mounts(tree.root)
        self._own = tree.own()
        self._counts: list[tuple[int, int]] = []
        silent, self._host_end = os.pipe()
        self._channel = Channel(silent, os.open(os.devnull, os.O_WRONLY))
        self._channel.progress = self._count  # type: ignore[method-assign]

    def _count(self, phase: str, **counts: int) -> None:
        self._counts.append((counts["entries"], counts["bytes"]))

    def names(self) -> int:
        """How many names one process looks at."""
        scan = Portion(self._fd, limits(), None, self._mounts, self._own, None, lambda *_: None, LEFTOVER)
        scan.walk([Subtree(b"", 0, None)], 1 << 30)
        return scan.names

    def compare(self, bounds: Limits, rules: Rules | None, *, caches: bool, leftover: bytes) -> Scan:
        """Scan both ways; returns the scan by one process."""
        skip = scanners.cache_tag if caches else None
        alone = Scan(self._fd, bounds, rules, self._mounts, self._own, skip, lambda *_: None, leftover)
        alone.run()
        assert_in_order(alone)
        cores = self._chance.randint(2, 4)
        vars(scanners).update(
            usable_cores=lambda: cores,
            FIRST_NAMES=self._chance.choice((1, 5, 40)),
            BATCH_NAMES=self._chance.choice((1, 7, 60)),
            BATCH_SUBTREES_MAX=self._chance.choice((1, 3, 64)),
        )
        self._counts.clear()
        descriptors = os.listdir("/proc/self/fd")
        with forks_counted() as forks:
            shared = scanners.shared_scan(
                self._channel, self._fd, bounds, rules, self._mounts, self._own, caches, leftover
            )
        self.forks += len(forks)
        assert os.listdir("/proc/self/fd") == descriptors
        assert not self._channel.children
        one, several = said(alone), said(shared)
        for key, value in one.items():
            assert several[key] == value, (key, value, several[key])
        assert all(late >= early for pair in pairwise(self._counts) for early, late in zip(*pair, strict=True))
        assert self._counts[-1][0] >= len(alone.files.paths) + len(alone.directories) + len(alone.links)
        return alone


@contextlib.contextmanager
def forks_counted() -> Iterator[list[int]]:
    """Yields the numbers of the processes that are forked meanwhile."""
    forked: list[int] = []
    fork = os.fork

    def counting() -> int:
        forked.append(fork())
        return forked[-1]

    os.fork = counting
    try:
        yield forked
    finally:
        os.fork = fork


@contextlib.contextmanager
def no_forks_after(count: int) -> Iterator[None]:
    """As where a limit of processes is reached."""
    fork, left = os.fork, [None] * count

    def limited() -> int:
        if not left:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left.pop()
        return fork()

    os.fork = limited
    try:
        yield
    finally:
        os.fork = fork


def limits(entries: int = 1 << 20, depth: int = 100, path_bytes: int = 4096) -> Limits:
    return Limits(entries, path_bytes, depth, 150, LARGE_BYTES)


def main(folder: str, seed: str, *mounts: str) -> None:
    chance = random.Random(int(seed))
    tree = Tree(os.fsencode(os.path.realpath(folder)) + b"/w", chance)
    if mounts:
        tree.mount()
    tree.grow(chance.choice((60, 300, 900)))
    scans = Scans(tree, chance)
    tree.forbid()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    patterns = [(b"*.log*", b"test"), (b"!keep*", b"test"), (b"/b*/", b"test"), (b"**/a-b*/a*", b"test")]
    rules = compile_rules(patterns, [])
    found = scans.compare(limits(), None, caches=False, leftover=b"")
    scans.compare(limits(), rules, caches=True, leftover=LEFTOVER)
    scans.compare(limits(depth=3), None, caches=True, leftover=b"")
    scans.compare(limits(path_bytes=255), None, caches=False, leftover=LEFTOVER)
    names = scans.names()
    for entries in {1, 2, names // 3, names - 1, names, names + 1}:
        alone = scans.compare(limits(entries=entries), None, caches=False, leftover=LEFTOVER)
        assert len(alone.files.paths) + len(alone.directories) + len(alone.links) <= entries
        assert (table.LIMIT in alone.left.excluded_reasons) >= (entries < names)
    assert scans.forks
    for count in range(3):
        with no_forks_after(count):
            scans.compare(limits(), None, caches=False, leftover=b"")
    print(names, found.files.elsewhere.count(1), len(found.files.members))


if __name__ == "__main__":
    main(*sys.argv[1:])
