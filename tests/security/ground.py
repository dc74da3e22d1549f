"""The ground on which attacks are tried: a store with a snapshot, a sentinel that nothing may touch, the program.

An attack stands in a table as a value, beside its harmless twin that differs in the attacked property alone:

- `Refused`, an archive that `sandlift import` must refuse before anything of it is stored;
- `Kept`, one that it takes in and makes harmless: what a restore then sets down is stated;
- `Lie`, a manifest that a hostile sandbox sends to `sandlift capture`.

All of them run the program's own command line, in this process; the helpers of captures and restores are real.
``row`` is the number of the attack's class in the table of classes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from archive.archives import Member, archive
from protocol.replay import MARK, contents
from protocol.stream import Stream

from sandlift import cli
from sandlift.errors import InvalidManifest, SandliftError, UnsafeArchive
from sandlift.manifest import Manifest
from sandlift.store import Store
from sandlift_helper import table
from sandlift_helper.table import Segment
from support.crash import Seam, box_at
from support.tree import Dir, Entry, File, HardLink, Link, Tree, assert_equal, make, read, tree
from support.world import Stamp, stamp

ROOT = "/srv/work"
"""Where the archives were made, if they are to be believed."""
TIME_NS = 1_600_000_000_000_000_000
"""The time that members have if they do not say another."""
HARMLESS = archive(Member(b"before", b"stored before the attack"))

Make = bytes | Callable[[bytes], bytes]
"""An archive, or what makes it from the absolute path of the sentinel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An archive that is refused; ``says`` is a pattern of the one line that tells it, ``names`` stands in it."""

    row: int
    attack: Make
    twin: Make
    says: str
    names: str = ""
    error: type[SandliftError] = UnsafeArchive
    words: tuple[str, ...] = ()
    """Of the command line."""
    twin_words: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An archive that is taken in; ``tree`` is what a restore makes of it, and of its twin unless that has its own."""

    row: int
    attack: Make
    twin: Make
    tree: Mapping[bytes, Entry]
    twin_tree: Mapping[bytes, Entry] | None = None
    excluded: Mapping[bytes, str] = field(default_factory=dict)
    """Path to reason of what is left out."""
    warns: str = ""
    root: Dir = field(default_factory=lambda: Dir(mtime_ns=TIME_NS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """Segments of a manifest that is refused, and what accepted ones look like; both with the blocks that come."""

    row: int
    attack: Callable[[], Sequence[Segment]]
    twin: Callable[[], Sequence[Segment]]
    says: str
    names: str = ""
    blocks: tuple[bytes, ...] = ()
    twin_blocks: tuple[bytes, ...] | None = None
    error: type[SandliftError] = InvalidManifest
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one run of the program said."""

    status: int
    out: str
    err: str


class Ground:
    """A private folder with a short path: ``store``, the sentinel ``outside``, and ``dest``, where the program runs.

    ``dest-evil`` lies beside it, and all of them but the store are the sentinel.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.outside = folder / "outside"
        self.dest = folder / "dest"
        (self.outside / "inner").mkdir(parents=True)
        (self.outside / "victim").write_bytes(b"nothing may change this\n")
        (self.outside / "victim").chmod(0o640)
        (self.outside / "inner" / "x").write_bytes(b"nor this\n")
        # A trap may give it a further name, and take it away: only its own time of change moves.
        (self.outside / "shared").write_bytes(b"nor this, by whatever name\n")
        os.symlink("victim", self.outside / "link")
        self.dest.mkdir()
        (self.dest / "local").write_bytes(b"a file of the host in the working directory\n")
        (folder / "dest-evil").mkdir()
        (folder / "in").mkdir()
        self.places = 0
        """How many targets there are, named out0 and so on."""
        self.remember()

    def remember(self) -> None:
        """Takes the sentinel as it is now for what must stay."""
        self._sentinel = self._look()

    def _look(self) -> dict[Path, Stamp]:
        places = (self.outside, self.dest, self.folder / "dest-evil")
        return {place: stamp(place, links_change=True) for place in places}

    def assert_unharmed(self) -> None:
        """Fails unless the sentinel is as it was: bytes, modes, owners, times, inodes, names."""
        assert self._look() == self._sentinel
        allowed = {"store", "outside", "dest", "dest-evil", "in", *(f"out{number}" for number in range(self.places))}
        assert set(os.listdir(self.folder)) <= allowed

    def target(self) -> Path:
        """A path for a restore, where nothing is."""
        self.places += 1
        return self.folder / f"out{self.places - 1}"

    def stored(self) -> dict[str, str]:
        """Each file of the store, unfinished ones too, with the digest of its bytes."""
        return contents(self.store)

    def run(self, *words: str | Path) -> Said:
        """Runs the program's command line here, with the working directory among the sentinel."""
        out, err = io.StringIO(), io.StringIO()
        before = os.getcwd()
        os.chdir(self.dest)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cli.run([*(os.fspath(word) for word in words), "--store", os.fspath(self.store)])
        finally:
            os.chdir(before)
        return Said(status=status, out=out.getvalue(), err=err.getvalue())

    def made(self, content: Make) -> bytes:
        """The bytes of an archive."""
        return content if isinstance(content, bytes) else content(os.fsencode(self.outside))

    def take(self, content: Make, *words: str) -> Said:
        """Imports an archive as ``demo``; nothing may start a process for it."""
        path = self.folder / "in" / "archive"
        path.write_bytes(self.made(content))
        with no_process():
            return self.run("import", path, "--as", "demo", "--root", ROOT, *words)

    def send(self, data: bytes, *words: str) -> Said:
        """Captures from a sandbox that sends these bytes behind the mark, as ``demo``."""
        path = self.folder / "in" / "stream"
        path.write_bytes(MARK + data)
        prefix = shlex.join(["sh", "-c", shlex.join(["exec", "cat", os.fspath(path)])])
        return self.run("capture", "/w", "--via", prefix, "--as", "demo", "--timeout", "30", *words)

    def restore(self, target: Path, *words: str) -> Said:
        """Restores the newest ``demo``."""
        return self.run("restore", "demo", target, *words)

    def manifest(self) -> Manifest:
        """What the newest ``demo`` holds."""
        with Store.open(self.store) as store:
            snapshot = store.load(store.resolve("demo"))
        return Manifest.decode(snapshot.manifest, snapshot.originals)

    def excluded(self) -> dict[bytes, str]:
        """Path to reason of what the newest ``demo`` leaves out."""
        rows = self.manifest().rows
        return dict(
            zip(rows.excluded_paths, (table.REASON_NAMES[reason] for reason in rows.excluded_reasons), strict=True)
        )


@contextlib.contextmanager
def no_process() -> Iterator[None]:
    """Fails when a process is started meanwhile."""

    def start(*words: object, **_: object) -> None:
        raise AssertionError(f"a process was started: {words}")

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((subprocess, "Popen"), (os, "fork"), (os, "posix_spawn"), (os, "system"), (os, "execve")):
            patch.setattr(owner, name, start)
        yield


# What is asserted of each kind of attack.


def assert_refusal(ground: Ground, said: Said, case: Refused | Lie) -> None:
    """One line that says what and where, harmless to a terminal, and exit status 4."""
    assert said.status == case.error.exit == 4, said
    assert said.out == ""
    first, *more = said.err.splitlines()
    assert first.startswith("sandlift: error: ")
    assert len(more) == (1 if more and more[0].startswith("hint: ") else 0), said.err
    assert all(line.isprintable() for line in (first, *more))
    assert first.isascii()
    assert re.search(case.says, first), first
    assert case.names in first


def try_refused(ground: Ground, case: Refused) -> None:
    """The attack is refused and changes nothing; the twin is taken in."""
    before = ground.stored()
    assert_refusal(ground, ground.take(case.attack, *case.words), case)
    answer = ground.take(case.attack, *case.words, "--json")
    assert f'"code": "{case.error.code}"' in answer.out
    assert ground.stored() == before
    assert ground.made(case.attack) != ground.made(case.twin) or case.words != case.twin_words
    said = ground.take(case.twin, *(case.words if case.twin_words is None else case.twin_words))
    assert said.status == 0, said
    assert ground.stored() != before
    ground.assert_unharmed()


def sending(segments: Iterable[Segment], blocks: Iterable[bytes]) -> bytes:
    """The frames of a capture that brings these blocks and this manifest."""
    made = Stream().hello()
    for block in blocks:
        made.content(block)
    for segment in segments:
        made.manifest(segment)
    return made.end().data


def try_lie(ground: Ground, case: Lie) -> None:
    """The manifest is refused and nothing of it stored; the twin's is accepted."""
    before = ground.stored()
    attack = sending(case.attack(), case.blocks)
    twin = sending(case.twin(), case.blocks if case.twin_blocks is None else case.twin_blocks)
    assert attack != twin
    assert_refusal(ground, ground.send(attack, *case.words), case)
    assert ground.stored() == before
    said = ground.send(twin, *case.words)
    assert said.status == 0, said
    assert ground.stored() != before
    ground.assert_unharmed()


def try_kept(ground: Ground, case: Kept) -> None:
    """Attack and twin are taken in; both are set down as stated, in a new place and over a target full of traps."""
    for content, entries, is_attack in (
        (case.attack, case.tree, True),
        (case.twin, case.tree if case.twin_tree is None else case.twin_tree, False),
    ):
        said = ground.take(content)
        assert said.status == 0, said
        if is_attack:
            assert ground.excluded() == case.excluded
            assert case.warns in said.err
        wanted = tree(entries, root=case.root)
        new = ground.target()
        if not is_attack:
            # Sooner done in a forked process than in a new one.
            with box_at(new, Seam()) as box, Store.open(ground.store) as store:
                box.restore(store, "demo", deadline_s=60)
        else:
            said = ground.restore(new)
            assert said.status == 0, said
        assert_equal(wanted, read(new))
        if is_attack:
            trapped = ground.target()
            plant(wanted, trapped, ground.outside)
            said = ground.restore(trapped, "--mode", "exact")
            assert said.status == 0, said
            assert_equal(wanted, read(trapped))
    ground.assert_unharmed()


def plant(wanted: Tree, target: Path, outside: Path) -> None:
    """Fills a target with what must not be followed, each where the tree has an entry.

    Links to the sentinel in the place of files and of every other directory, further names of a sentinel's file in the
    place of links and of every other file.
    """
    traps: dict[bytes, Entry] = {}
    shared: list[bytes] = []
    for number, (path, entry) in enumerate(wanted.entries.items()):
        parents = path.split(b"/")[:-1]
        above = [b"/".join(parents[: depth + 1]) for depth in range(len(parents))]
        if any(not isinstance(traps.get(parent), Dir) for parent in above):
            continue
        if isinstance(entry, Dir):
            traps[path] = Dir() if number % 2 else Link(os.fsencode(outside / "inner"))
        elif isinstance(entry, (File, HardLink)) and number % 2:
            traps[path] = Link(os.fsencode(outside / "victim"))
        else:
            shared.append(path)
    make(tree(traps), target)
    for path in shared:
        whole = os.path.join(os.fsencode(target), path)
        with contextlib.suppress(OSError):
            os.link(os.fsencode(outside / "shared"), whole)


# Words of the tables.


def file(data: bytes = b"data", **changes: Any) -> File:
    """A file as members make it by default."""
    return File(data, **{"mtime_ns": TIME_NS, **changes})


def directory(mode: int = 0o755, mtime_ns: int = TIME_NS) -> Dir:
    """A directory as members make it by default, or as they imply it."""
    return Dir(mode=mode, mtime_ns=mtime_ns)


def link(text: bytes) -> Link:
    """A link as members make it by default."""
    return Link(text, mtime_ns=TIME_NS)
