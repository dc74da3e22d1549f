"""A workspace that changes while it is captured: what is flagged, what is lost, and what is never read."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.lift import Lift
from e2e.window import taken_after

from sandlift.manifest import Manifest
from sandlift.model import Event
from sandlift_helper import table
from support.tree import BLOCK, Fifo, File, HardLink, Link, make, tree

SENTINEL = b"a sentinel that nothing may take\n" * 30


@pytest.fixture
def root(place: Path) -> Path:
    """A workspace in which files are about to change."""
    wanted = tree(
        {
            b"d/f": File(b"first content"),
            b"d/twin": HardLink(b"d/f"),
            b"d/other": File(b"other"),
            b"large": File(os.urandom(3 * BLOCK)),
            b"small": File(b"small"),
            b"zz": File(b"last"),
        }
    )
    make(wanted, place / "w")
    (place / "outside").mkdir()
    for name in ("f", "other", "secret"):
        (place / "outside" / name).write_bytes(SENTINEL)
    return place / "w"


def replaced(path: Path, by: Callable[[Path], object]) -> Callable[[], None]:
    """Exchange what is at a path for something else."""

    def change() -> None:
        path.unlink()
        by(path)

    return change


# cases: composefs/tar-rs#352
def test_a_file_that_grew_before_it_was_read_is_taken_as_it_is(root: Path) -> None:
    def grow() -> None:
        with open(root / "small", "ab") as file:
            file.write(b" and more")
        with open(root / "large", "ab") as file:
            file.write(b"x" * BLOCK)

    taken, window = taken_after(root, grow)
    assert taken.excluded == {}
    assert window.content(taken.manifest, b"small") == b"small and more"
    assert len(window.content(taken.manifest, b"large")) == 4 * BLOCK


# cases: mafintosh/tar-fs#42
@pytest.mark.parametrize("size", [0, 3, BLOCK, 3 * BLOCK - 1])
def test_a_file_that_shrank_before_it_was_read_is_taken_as_it_is(root: Path, size: int) -> None:
    before = (root / "large").read_bytes()
    taken, window = taken_after(root, lambda: os.truncate(root / "large", size))
    assert taken.excluded == {}
    assert taken.flags == {}
    assert window.content(taken.manifest, b"large") == before[:size]


@contextmanager
def during_reads(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], times: int = 1000) -> Iterator[None]:
    """Let something happen right after each of the next reads of the helper."""
    real, left = os.readv, [times]

    def readv(fd: int, buffers: list[memoryview]) -> int:
        count = real(fd, buffers)
        if count and left[0]:
            left[0] -= 1
            change()
        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "readv", readv)
        yield


# cases: composefs/tar-rs#352, adamhathcock/sharpcompress#820
@pytest.mark.parametrize("name", ["small", "large"])
def test_a_log_that_never_stops_growing(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def append() -> None:
        with open(root / name, "ab") as file:
            file.write(b"line\n")

    with during_reads(monkeypatch, append):
        taken, window = taken_after(root, lambda: None)
    assert taken.flags == {os.fsencode(name): "changed"}
    assert taken.excluded == {}
    assert taken.manifest.counts.outcome == "complete"
    content = window.content(taken.manifest, os.fsencode(name))
    assert (root / name).read_bytes().startswith(content)
    assert len(content) < (root / name).stat().st_size
    assert window.content(taken.manifest, b"zz") == b"last"


@pytest.mark.parametrize("size", [1, 2 * BLOCK + 1, 3 * BLOCK], ids=["shrinks", "shrinks-a-block", "rewritten"])
def test_a_file_that_changes_at_every_try_is_lost_and_still_stored(
    root: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def change() -> None:
        data = os.urandom(3 * BLOCK)
        (root / "large").write_bytes(data)
        os.truncate(root / "large", size)

    with during_reads(monkeypatch, change):
        taken, window = taken_after(root, lambda: None)
    assert taken.flags[b"large"] == "changed"
    assert taken.excluded == {b"large": ("file", "unstable", b"changed while it was read")}
    assert taken.manifest.counts.outcome == "incomplete"
    # What earlier tries sent and no entry names was accounted for, or the host would have refused all of it.
    assert window.contents.keys() > set(taken.manifest.blocks)
    assert len(window.content(taken.manifest, b"large")) <= 3 * BLOCK


@pytest.mark.parametrize("tries", [1, 2])
def test_a_file_that_settles_is_read_again_and_whole(root: Path, monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    def rewrite() -> None:
        (root / "small").write_bytes(b"%d" % time.monotonic_ns())

    with during_reads(monkeypatch, rewrite, tries):
        taken, window = taken_after(root, lambda: os.unlink(root / "large"))
    assert taken.flags == {b"large": "vanished"}
    assert taken.excluded == {}
    assert window.content(taken.manifest, b"small") == (root / "small").read_bytes()


# cases: openclaw/openclaw#153250, restic/restic#3098
def test_what_vanished(root: Path) -> None:
    taken, _ = taken_after(root, lambda: os.unlink(root / "small"))
    assert taken.flags == {b"small": "vanished"}
    assert taken.excluded == {}
    assert taken.paths == [b"d", b"d/f", b"d/other", b"d/twin", b"large", b"zz"]
    assert taken.manifest.counts.outcome == "complete"


def test_a_directory_that_vanished(root: Path) -> None:
    def vanish() -> None:
        for name in ("f", "twin", "other"):
            os.unlink(root / "d" / name)
        os.rmdir(root / "d")

    taken, _ = taken_after(root, vanish)
    assert taken.flags == {b"d/f": "vanished", b"d/other": "vanished", b"d/twin": "vanished"}
    assert taken.manifest.counts.outcome == "complete"


@pytest.mark.parametrize("first", ["f", "twin"])
def test_a_hard_link_group_that_loses_a_name(root: Path, first: str) -> None:
    taken, window = taken_after(root, lambda: os.unlink(root / "d" / first))
    other = b"d/twin" if first == "f" else b"d/f"
    assert taken.flags == {b"d/" + first.encode(): "vanished"}
    assert window.content(taken.manifest, other) == b"first content"
    assert set(taken.manifest.rows.groups) == {0}


@pytest.mark.parametrize("name", ["f", "twin"])
def test_a_hard_link_group_that_comes_apart(root: Path, name: str) -> None:
    taken, window = taken_after(root, replaced(root / "d" / name, lambda path: path.write_bytes(b"its own")))
    assert taken.excluded == {}
    contents = {path: window.content(taken.manifest, path) for path in (b"d/f", b"d/twin")}
    own, old = b"d/" + name.encode(), b"d/twin" if name == "f" else b"d/f"
    assert contents == {own: b"its own", old: b"first content"}


# cases: CVE-2018-15664 (a name exchanged for a link)
@pytest.mark.parametrize(
    ("by", "detail"),
    [
        (lambda path: path.symlink_to("../outside/secret"), b"no longer a file"),
        (os.mkfifo, b"no longer a file"),
        (os.mkdir, b"no longer a file"),
    ],
    ids=["link", "fifo", "directory"],
)
@pytest.mark.parametrize("name", ["small", "large"])
def test_a_file_that_was_replaced(root: Path, name: str, by: Callable[[Path], object], detail: bytes) -> None:
    taken, window = taken_after(root, replaced(root / name, by))
    assert taken.excluded == {os.fsencode(name): ("file", "unstable", detail)}
    assert taken.manifest.counts.outcome == "incomplete"
    assert SENTINEL not in window.contents.values()
    assert window.content(taken.manifest, b"zz") == b"last"


@pytest.mark.parametrize("data", [b"", b"for somebody else"], ids=["silent", "full"])
def test_a_pipe_in_a_files_place_is_not_drained(root: Path, data: bytes) -> None:
    writer = []

    def exchange() -> None:
        replaced(root / "small", os.mkfifo)()
        reader = os.open(root / "small", os.O_RDONLY | os.O_NONBLOCK)
        writer.extend([os.open(root / "small", os.O_WRONLY), reader])
        if data:
            os.write(writer[0], data)

    try:
        taken, _ = taken_after(root, exchange)
        assert taken.excluded == {b"small": ("file", "unstable", b"no longer a file")}
        if data:
            assert os.read(writer[1], 100) == data
    finally:
        for fd in writer:
            os.close(fd)


# cases: CVE-2018-15664, CVE-2026-42306
@pytest.mark.parametrize("absolute", [False, True])
def test_a_directory_that_was_swapped_for_a_link(root: Path, absolute: bool) -> None:
    def swap() -> None:
        os.rename(root / "d", root / "elsewhere")
        (root / "d").symlink_to(root.parent / "outside" if absolute else "../outside")

    taken, window = taken_after(root, swap)
    assert taken.excluded.keys() == {b"d/f", b"d/other", b"d/twin"}
    assert set(taken.reasons.values()) == {"unstable"}
    assert SENTINEL not in window.contents.values()
    assert window.content(taken.manifest, b"zz") == b"last"


@contextmanager
def restless(*words: str) -> Iterator[None]:
    """A program beside the capture, for at most 30 seconds; it says when it has begun."""
    process = subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.read(1) == b"."
        yield
        assert process.poll() is None, "the program beside the capture ended early"
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


APPENDS = """
import sys, time
end = time.monotonic() + 30
with open(sys.argv[1], "ab", buffering=0) as file:
    number = 0
    while time.monotonic() < end:
        file.write(b"line %d\\n" % number)
        number += 1
        if number == 100:
            print(end=".", flush=True)
"""


# cases: juju/utils#227, mholt/archiver#8
def test_a_log_that_is_really_written_to(lift: Lift) -> None:
    lift.make(tree({b"log": File(b""), b"before": File(b"b"), b"z": File(b"z")}))
    with restless(APPENDS, str(lift.root / "log")):
        for _ in range(3):
            taken = lift.capture()
            assert taken.capture.outcome == "complete"
            assert taken.flags in ({}, {b"log": "changed"})
            target = lift.target()
            lift.restore_to(taken, target)
            content = (target / "log").read_bytes()
            assert len(content) > 500
            assert (lift.root / "log").read_bytes().startswith(content)


# cases: markmhendrickson/neotoma#2075, lbedner/aegis-stack#1198
def test_a_database_that_is_written_to_is_warned_of(lift: Lift) -> None:
    lift.make(tree({b"app.db": File(b""), b"app.db-wal": File(b"wal"), b"log": File(b"")}))
    flagged = 0
    with restless(APPENDS, str(lift.root / "app.db")):
        for _ in range(20):
            events: list[Event] = []
            taken = lift.capture(on_event=events.append)
            warnings = [event.message for event in events if event.kind == "warning"]
            expected = ["the database app.db was written to meanwhile: it and its journal may not fit together"]
            assert warnings == (expected if b"app.db" in taken.flags else [])
            flagged += b"app.db" in taken.flags
            assert set(taken.paths) == {b"app.db", b"app.db-wal", b"log"}
            if flagged:
                break


@pytest.mark.parametrize(
    ("names", "changed", "torn"),
    [
        ((b"a", b"a-wal"), {b"a"}, [b"a"]),
        ((b"a", b"a-wal"), {b"a-wal"}, [b"a"]),
        ((b"d/a", b"d/a-journal", b"b"), {b"d/a", b"b"}, [b"d/a"]),
        ((b"a", b"a-wal", b"b", b"b-wal"), {b"b"}, [b"b"]),
        ((b"a", b"a-wal"), set(), []),
        ((b"a", b"b"), {b"a"}, []),
        ((b"a-wal",), {b"a-wal"}, []),
    ],
)
def test_which_databases_may_be_torn(names: tuple[bytes, ...], changed: set[bytes], torn: list[bytes]) -> None:
    rows = table.Segment()
    for name in sorted(names):
        rows.add_file(name, 0o644, 0, 0, 0, 0)
    for name in sorted(changed):
        rows.flag(name, table.CHANGED)
    assert Manifest(rows).torn_databases() == torn


SWAPS = """
import os, sys, time
end = time.monotonic() + 30
inside, link = sys.argv[1:]
print(end=".", flush=True)
while time.monotonic() < end:
    os.rename(inside, inside + ".away"); os.rename(link, inside)
    os.rename(inside, link); os.rename(inside + ".away", inside)
"""


# cases: CVE-2018-15664 (a name exchanged for a link)
def test_a_directory_that_is_really_swapped(lift: Lift) -> None:
    entries: dict[bytes, File | Link] = {b"d/%03d" % number: File(b"mine %d" % number) for number in range(200)}
    lift.make(tree({**entries, b"link": Link(b"../outside"), b"z": File(b"z")}))
    make(tree({b"%03d" % number: File(SENTINEL) for number in range(200)}), lift.folder / "outside")
    with restless(SWAPS, str(lift.root / "d"), str(lift.root / "link")):
        for _ in range(6):
            taken = lift.capture()
            assert hashlib.sha256(SENTINEL).digest() not in taken.manifest.blocks
            assert b"z" in taken.paths


def test_a_pipe_never_holds_up_a_capture(lift: Lift) -> None:
    lift.make(tree({b"%d" % number: Fifo() for number in range(20)} | {b"f": File(b"x")}))
    started = time.monotonic()
    assert lift.capture().capture.counts.files == 1
    assert time.monotonic() - started < 10
