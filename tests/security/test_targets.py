"""Places that are prepared, changed or watched by somebody else: the classes of links again, and 73 to 77."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from archive import archives as a
from archive.archives import Member, archive
from protocol.replay import MARK
from protocol.stream import Stream, message
from security.ground import TIME_NS, Ground, directory, file, link

from sandlift.errors import SandliftError
from sandlift.model import RestoreOptions
from sandlift.store import Store
from sandlift_helper import wire
from support.crash import Seam, box_at
from support.needs import lacking
from support.tree import Dir, HardLink, Tree, assert_equal, make, read, tree
from support.tree import File as TreeFile
from support.tree import Link as TreeLink
from support.world import stamp

Mode = Literal["new", "replace", "exact", "merge"]

MEMBERS = (
    Member(b"d", kind=a.DIRECTORY, mode=0o750),
    Member(b"d/x", b"ours", mode=0o600),
    Member(b"f", b"our file"),
    Member(b"h1", b"one of two"),
    Member(b"h2", kind=a.HARD_LINK, link=b"h1"),
    Member(b"l", kind=a.LINK, link=b"d/x", mode=0o777),
)
WANTED = tree(
    {
        b"d": directory(0o750),
        b"d/x": file(b"ours", mode=0o600),
        b"f": file(b"our file"),
        b"h1": file(b"one of two"),
        b"h2": HardLink(b"h1"),
        b"l": link(b"d/x"),
    },
    root=Dir(mtime_ns=TIME_NS),
)
TOP = {path for path in WANTED.entries if b"/" not in path}
PLAIN = tree({b"d/x": TreeFile(b"theirs"), b"f": TreeFile(b"theirs"), b"h1": TreeFile(b"theirs"), b"l": TreeLink(b"f")})
"""A target without a trap."""

Plant = Callable[[Path, Path], None]
"""Prepares the target, given that and the sentinel."""


def placed(name: str, text: str) -> Plant:
    """A link to something of the sentinel."""

    def plant(target: Path, outside: Path) -> None:
        away(target / name)
        (target / name).symlink_to(outside / text)

    return plant


def away(path: Path) -> None:
    """Removes what is at a path, to make room for a trap."""
    if path.is_dir() and not path.is_symlink():
        for name in os.listdir(path):
            (path / name).unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def linked(*names: str) -> Plant:
    """Further names of a file of the sentinel."""

    def plant(target: Path, outside: Path) -> None:
        for name in names:
            (target / name).unlink(missing_ok=True)
            os.link(outside / "shared", target / name)

    return plant


def chained(target: Path, outside: Path) -> None:
    """A link to a link that leads out."""
    away(target / "d")
    (target / "way").symlink_to(outside)
    (target / "d").symlink_to("way/inner")


def dangling(target: Path, outside: Path) -> None:
    """A link to what would come into being outside."""
    (target / "f").unlink()
    (target / "f").symlink_to(outside / "made")


def fifo(target: Path, outside: Path) -> None:
    """A pipe that nobody writes to."""
    (target / "f").unlink()
    os.mkfifo(target / "f")


def listening(target: Path, outside: Path) -> None:
    """A socket."""
    (target / "f").unlink()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(target / "f"))


def nested_link(target: Path, outside: Path) -> None:
    """A link below a directory that is in order."""
    (target / "d" / "x").unlink()
    (target / "d" / "x").symlink_to("../../outside/victim")


def special(target: Path, outside: Path) -> None:
    """A program that runs as root, where a plain file will be."""
    (target / "f").chmod(0o6755)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """What stands in a target; ``merge`` is the exit status of a merge over it."""

    row: int
    plant: Plant
    merge: int = 0


TRAPS = {
    "CVE-2025-45582-a-file-is-a-link": Trap(row=21, plant=placed("f", "victim")),
    "CVE-2026-62268-a-directory-is-a-link": Trap(row=21, plant=placed("d", "inner"), merge=4),
    "CVE-2018-1002100-a-link-below-a-directory": Trap(row=13, plant=nested_link),
    "jwilk-dirsymlink2-a-link-to-a-link": Trap(row=14, plant=chained, merge=4),
    "quirq-42-a-link-to-nothing": Trap(row=17, plant=dangling),
    "CVE-2026-33056-a-link-whose-mode-would-change": Trap(row=18, plant=placed("d", "."), merge=4),
    "restic-nlink-a-hard-link": Trap(row=22, plant=linked("f")),
    "CVE-2026-23745-a-hard-link-group-is-outside": Trap(row=29, plant=linked("h1", "h2")),
    "a-link-is-a-hard-link": Trap(row=31, plant=linked("l")),
    "NemoClaw-10756-a-pipe": Trap(row=35, plant=fifo),
    "a-socket": Trap(row=35, plant=listening),
    "CVE-2005-2541-a-setuid-program": Trap(row=37, plant=special),
}


def outcome(ground: Ground, trap: Plant | None, mode: Mode) -> tuple[int, Path]:
    """Restores over a target with a trap, or without one."""
    target = ground.target()
    make(PLAIN, target)
    if trap is not None:
        trap(target, ground.outside)
    before = stamp(target)
    said = ground.restore(target, "--mode", mode)
    if said.status:
        assert said.err.startswith("sandlift: error: ")
        assert stamp(target) == before
    return said.status, target


@pytest.mark.parametrize("slug", TRAPS)
def test_traps(slug: str, ground: Ground) -> None:
    """Set down over it, beside it, merged into it: what it leads to stays as it is, and so does its twin's."""
    trap = TRAPS[slug]
    assert ground.take(archive(*MEMBERS)).status == 0
    for mode in ("exact", "replace"):
        status, target = outcome(ground, trap.plant, mode)
        assert status == 0
        assert_equal(WANTED, read(target))
    status, target = outcome(ground, trap.plant, "merge")
    assert status == trap.merge
    if not status:
        found = read(target)
        assert_equal(WANTED, Tree(entries={path: found.entries[path] for path in WANTED.entries}, root=WANTED.root))
    assert outcome(ground, trap.plant, "new")[0] == 1
    ground.assert_unharmed()


@pytest.mark.parametrize("mode", ["exact", "replace", "merge"])
def test_the_twin_of_all_traps(mode: Mode, ground: Ground) -> None:
    assert ground.take(archive(*MEMBERS)).status == 0
    status, target = outcome(ground, None, mode)
    assert status == 0
    found = read(target)
    assert found.entries.keys() == WANTED.entries.keys()
    assert_equal(WANTED, Tree(entries=found.entries, root=WANTED.root))
    ground.assert_unharmed()


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_a_marker_that_is_a_link(mode: Mode, ground: Ground) -> None:
    """The one name in a target that is known before: neither written through, nor taken for ours, nor removed."""
    assert ground.take(archive(*MEMBERS)).status == 0
    target = ground.target()
    make(PLAIN, target)
    (target / ".sandlift-restoring").symlink_to(ground.outside / "victim")
    before = stamp(target)
    assert ground.restore(target, "--mode", mode).status == 4
    assert stamp(target) == before
    (target / ".sandlift-restoring").unlink()
    assert ground.restore(target, "--mode", mode).status == 0
    ground.assert_unharmed()


def test_CVE_2025_45582_two_archives_into_one_directory(ground: Ground) -> None:
    """The link of the first is not there for the second, though a hand puts it back in between."""
    first = archive(Member(b"x", kind=a.LINK, link=b"../outside"))
    second = archive(Member(b"x", kind=a.DIRECTORY, mode=0o755), Member(b"x/victim", b"data"))
    for through in (first, archive(Member(b"x", kind=a.LINK, link=b"inside"), Member(b"inside/y", b"data"))):
        target = ground.target()
        assert ground.take(through).status == 0
        assert ground.restore(target).status == 0
        if through == first:
            assert not os.path.lexists(target / "x")
            (target / "x").symlink_to("../outside")
        assert ground.take(second).status == 0
        assert ground.restore(target, "--mode", "merge").status == 4
        assert ground.restore(target, "--mode", "exact").status == 0
        assert (target / "x" / "victim").read_bytes() == b"data"
    ground.assert_unharmed()


# A target that takes several names for one: CVE-2021-37701 and its family, where that matters.

FOLDING = {
    "CVE-2021-37701-a-link-and-a-directory": [(b"Link", a.LINK), (b"lINK/x", a.FILE), (b"d", a.DIRECTORY)],
    "CVE-2026-23950-sharp-s": [("straße".encode(), a.LINK), (b"STRASSE/x", a.FILE), (b"d", a.DIRECTORY)],
    "CVE-2024-10389-forms-of-one-letter": [("e\u0301".encode(), a.FILE), ("é".encode(), a.FILE)],
}


@pytest.mark.parametrize("folds", [True, False])
@pytest.mark.parametrize("slug", FOLDING)
def test_a_target_that_folds_names(slug: str, folds: bool, ground: Ground) -> None:
    """A sandbox says so of itself: refused before anything is sent; where names stay apart, it goes on."""
    members = [Member(name, kind=kind, link=b"d" if kind == a.LINK else b"") for name, kind in FOLDING[slug]]
    assert ground.take(archive(*members)).status == 0
    told = wire.frame(wire.HAVE, message(codecs=["zstd"], listed=False, exists=False, folds=folds, in_place=False))
    (ground.folder / "in" / "stream").write_bytes(MARK + Stream().hello().data + told)
    prefix = shlex.join(["sh", "-c", f"exec cat {ground.folder}/in/stream"])
    said = ground.run("restore", "demo", "/w", "--via", prefix, "--timeout", "20")
    if folds:
        assert said.status == 4
        assert "for one" in said.err
    else:
        # That sandbox ends there.
        assert (said.status, "for one" in said.err) == (5, False)
    ground.assert_unharmed()


# Somebody who changes the tree while it is written.


@contextlib.contextmanager
def attacker(act: Callable[[str], None]) -> Iterator[Seam]:
    """A seam at each of whose calls *act* is given the call's name, outside of the process that is confined."""
    here, there = os.pipe(), os.pipe()

    def ask() -> None:
        os.write(here[1], b"?")
        os.read(there[0], 1)

    seam = Seam(what="call", ask=ask)
    failures: list[BaseException] = []

    def serve() -> None:
        while os.read(here[0], 1) == b"?":
            try:
                act(seam.name(seam.count))
            except BaseException as error:
                failures.append(error)
            os.write(there[1], b"!")

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield seam
    finally:
        os.write(here[1], b".")
        server.join()
        for fd in (*here, *there):
            os.close(fd)
    assert failures == []


class Swapper:
    """Exchanges, at one call of a restore, an entry of the tree that is written for a link to the sentinel."""

    def __init__(self, ground: Ground, target: Path, name: str, text: str, when: Callable[[int, str], bool]) -> None:
        self.swapped = 0
        self.calls = 0
        self._ground, self._target, self._name, self._text, self._when = ground, target, name, text, when

    def __call__(self, call: str) -> None:
        self.calls += 1
        if not self._when(self.calls, call):
            return
        for tree_root in (self._target, *self._ground.folder.glob(f".{self._target.name}.*")):
            entry = tree_root / self._name
            trap = os.fspath(self._ground.outside / self._text)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not entry.is_symlink() or os.readlink(entry) != trap:
                    os.rename(entry, self._ground.folder / "in" / f"away{self.swapped}")
                    entry.symlink_to(trap)
                    self.swapped += 1


def disturbed(ground: Ground, mode: Mode, name: str, text: str, when: Callable[[int, str], bool]) -> Swapper:
    """One restore with a swap; a typed error or success, and the sentinel as it was."""
    target = ground.target()
    if mode != "new":
        make(PLAIN, target)
    swapper = Swapper(ground, target, name, text, when)
    with attacker(swapper) as seam, box_at(target, seam) as box, Store.open(ground.store) as store:
        with contextlib.suppress(SandliftError):
            box.restore(store, "demo", options=RestoreOptions(mode=mode), deadline_s=30)
    for path in ground.folder.glob(".out*"):
        os.rename(path, ground.folder / "in" / f"left{path.name}")
    for path in (ground.folder / "in").glob("away*"):
        os.rename(path, path.with_name(f"kept-{target.name}-{path.name}"))
    ground.assert_unharmed()
    return swapper


@pytest.mark.parametrize("mode", ["new", "exact"])
@pytest.mark.parametrize("name", ["d", "."])
def test_CVE_2018_15664_a_directory_is_swapped_for_a_link(mode: Mode, name: str, ground: Ground) -> None:
    """At the third call, the sixth and so on, one restore each; the directory, and the root itself."""
    assert ground.take(archive(*MEMBERS)).status == 0
    calls = disturbed(ground, mode, "none", "inner", lambda *_: False).calls
    assert_equal(WANTED, read(ground.folder / "out0"))
    swapped = 0
    for at in range(2, calls, 4):
        swapped += disturbed(ground, mode, name, "inner", lambda number, _, at=at: number == at).swapped  # type: ignore[misc]
    assert swapped >= 3
    assert stamp(ground.outside / "inner", links_change=True).keys() == {
        os.fsencode(ground.outside / "inner"),
        os.fsencode(ground.outside / "inner" / "x"),
    }


ATTRIBUTES = ("fchmod", "chmod", "utime", "chown", "fchown")


@pytest.mark.parametrize("mode", ["new", "exact"])
@pytest.mark.parametrize(("name", "text"), [("f", "victim"), ("d", "inner"), ("d/x", "victim"), ("l", "victim")])
def test_CVE_2026_32282_a_swap_ahead_of_a_change_of_attributes(
    mode: Mode, name: str, text: str, ground: Ground
) -> None:
    """The mode and the time are those of what was made, not of what bears its name now."""
    assert ground.take(archive(*MEMBERS)).status == 0
    swapper = disturbed(ground, mode, name, text, lambda _, call: call.split()[0] in ATTRIBUTES)
    assert swapper.swapped
    disturbed(ground, mode, "none", text, lambda *_: False)
    assert_equal(WANTED, read(ground.folder / "out1"))


# Names beside a target, and what can be seen of it before it is whole.


def test_CVE_2024_45339_nothing_beside_a_target_can_be_foreseen(ground: Ground) -> None:
    """The directory that a tree is built in: another name each time, made by us, ours alone."""
    assert ground.take(archive(*MEMBERS)).status == 0
    names: list[set[str]] = []
    for umask in (0o000, 0o022):
        target = ground.target()
        seen: set[str] = set()

        def look(_: str, seen: set[str] = seen, target: Path = target) -> None:
            for path in ground.folder.glob(f".{target.name}.*"):
                status = path.lstat()
                name = path.name.split(".")[2]
                assert stat.S_ISDIR(status.st_mode)
                assert status.st_uid == os.geteuid()
                # Once all is in it, it gets the mode that the tree's root will have.
                assert stat.S_IMODE(status.st_mode) == 0o700 or len(os.listdir(path)) == len(TOP)
                seen.add(name)

        before = os.umask(umask)
        try:
            with attacker(look) as seam, box_at(target, seam) as box, Store.open(ground.store) as store:
                box.restore(store, "demo", deadline_s=30)
        finally:
            os.umask(before)
        assert_equal(WANTED, read(target))
        names.append(seen)
    assert [len(seen) for seen in names] == [1, 1]
    assert names[0] != names[1]
    assert all(len(name) == 16 for seen in names for name in seen)
    ground.assert_unharmed()


def test_tar_fs_predictable_destination(ground: Ground) -> None:
    """What others put where our names are: links, and directories that are not ours; none is used or removed."""
    assert ground.take(archive(*MEMBERS)).status == 0
    place = ground.folder / "out0"
    place.mkdir()
    ground.places = 1
    planted = place / ".t.0123456789abcdef.sandlift-new"
    planted.symlink_to(ground.outside)
    plain = place / ".t.other"
    plain.mkdir()
    if os.geteuid() == 0:
        foreign = place / ".t.fedcba9876543210.sandlift-new"
        (foreign / "inner").mkdir(parents=True)
        os.chown(foreign, 65534, 65534)
        old = place / ".t.fedcba9876543210.sandlift-old"
        old.mkdir()
        os.chown(old, 65534, 65534)
    before = {path: stamp(path) for path in place.iterdir()}
    for mode in ("new", "replace"):
        assert ground.restore(place / "t", "--mode", mode).status == 0
        assert_equal(WANTED, read(place / "t"))
    assert {path: stamp(path) for path in place.iterdir() if path.name != "t"} == before
    ground.assert_unharmed()


@pytest.mark.parametrize("mode", ["replace", "new"])
def test_an_old_tree_that_somebody_else_puts_beside_a_missing_target(mode: Mode, ground: Ground) -> None:
    """It is no tree of ours that a restore was to give its name back."""
    if os.geteuid() != 0:
        lacking("directories of others need root: run the tests as root as well")
    assert ground.take(archive(*MEMBERS)).status == 0
    place = ground.folder / "out0"
    place.mkdir()
    ground.places = 1
    trap = place / ".t.0123456789abcdef.sandlift-old"
    trap.mkdir()
    (trap / "evil").write_bytes(b"theirs")
    os.chown(trap, 65534, 65534)
    assert ground.restore(place / "t", "--mode", mode).status == 0
    assert_equal(WANTED, read(place / "t"))
    assert (trap / "evil").exists()
    ground.assert_unharmed()


@pytest.mark.parametrize("mode", ["new", "exact", "replace"])
def test_the_window_of_permissions(mode: Mode, ground: Ground) -> None:
    """Ahead of each call, with a umask that allows all: nobody else may read a file that is not whole."""
    assert ground.take(archive(*MEMBERS)).status == 0
    target = ground.target()
    if mode != "new":
        make(PLAIN, target)
    kept = {(status.st_dev, status.st_ino) for status in map(os.lstat, _files(target))}
    looks = 0

    def look(_: str) -> None:
        nonlocal looks
        for root in (target, *ground.folder.glob(f".{target.name}.*")):
            for path in _files(root):
                status = os.lstat(path)
                if (status.st_dev, status.st_ino) in kept or not stat.S_ISREG(status.st_mode):
                    continue
                looks += 1
                data = path.read_bytes()
                if data == b"ours" or path.name == "x":
                    assert status.st_mode & 0o077 == 0, path
                elif status.st_mode & 0o077:
                    assert data in (b"our file", b"one of two") or "restoring" in path.name, path

    before = os.umask(0)
    try:
        with attacker(look) as seam, box_at(target, seam) as box, Store.open(ground.store) as store:
            box.restore(store, "demo", options=RestoreOptions(mode=mode), deadline_s=30)
    finally:
        os.umask(before)
    assert looks > 10
    assert_equal(WANTED, read(target))
    ground.assert_unharmed()


def _files(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, _, names in os.walk(root):
        found += [Path(folder) / name for name in names]
    return [path for path in found if os.path.lexists(path)]


def test_a_crash_leaves_nothing_that_the_next_restore_keeps(ground: Ground) -> None:
    """What a killed restore of ours leaves, and what only looks like it."""
    assert ground.take(archive(*MEMBERS)).status == 0
    place = ground.folder / "out0"
    left = place / ".t.0123456789abcdef.sandlift-new"
    (left / "d").mkdir(parents=True)
    (left / "d" / "way").symlink_to(ground.outside / "inner")
    os.link(ground.outside / "shared", left / "f")
    alike = place / ".t.0123456789abcdeg.sandlift-new"
    alike.mkdir()
    ground.places = 1
    assert ground.restore(place / "t").status == 0
    assert sorted(path.name for path in place.iterdir()) == [alike.name, "t"]
    assert_equal(WANTED, read(place / "t"))
    ground.assert_unharmed()
