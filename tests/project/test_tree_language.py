"""The tree language: what it makes it reads back, and it notices every difference there can be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.tree import (
    BLOCK,
    MTIME_NS,
    Device,
    Dir,
    Fifo,
    File,
    HardLink,
    Link,
    Socket,
    Tree,
    assert_equal,
    differences,
    make,
    read,
    remove,
    restored,
    tree,
)

SAMPLE = tree(
    {
        b"d": Dir(mode=0o2750, mtime_ns=1_000_000_001),
        b"d/empty": Dir(),
        b"d/file": File(b"content\n", mode=0o640, mtime_ns=-5_000_000_003),
        b"d/other": HardLink(b"d/file"),
        b"fifo": Fifo(),
        b"hole": File(pieces=((3 * BLOCK, b"end"),), size=5 * BLOCK),
        b"link": Link(b"d/file", mtime_ns=7),
        b"link2": HardLink(b"link"),
        b"n\xff\n": File(b"\0\0"),
        b"socket": Socket(),
    },
    root=Dir(mode=0o750, mtime_ns=11),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make(SAMPLE, tmp_path / "made")
    return tmp_path / "made"


def test_what_is_made_is_read_back(place: Path) -> None:
    assert differences(SAMPLE, read(place)) == []
    assert_equal(SAMPLE, read(place))


def test_directories_on_the_way_are_there() -> None:
    assert tree({b"a/b/c": File(b"")}).entries.keys() == {b"a", b"a/b", b"a/b/c"}


def test_content_is_compared_however_it_was_written() -> None:
    whole = File(b"a" * 5000 + bytes(10000) + b"b").canonical()
    pieces = File(pieces=((15000, b"b"), (0, b"a" * 5000), (6000, bytes(4))), size=15001).canonical()
    assert whole == pieces
    assert whole.size == 15001
    assert [offset for offset, _ in whole.pieces] == [0, 12288]


def test_a_group_is_led_by_its_first_name() -> None:
    made = tree({b"z": File(b"x"), b"a": HardLink(b"z"), b"m": HardLink(b"z")})
    assert list(made.entries.values()) == [File(b"x").canonical(), HardLink(b"a"), HardLink(b"a")]
    assert made.without(b"a") == tree({b"m": File(b"x"), b"z": HardLink(b"m")})
    assert made.below(b"m", b"z") == made.without(b"a")


def test_names_are_sorted_by_component() -> None:
    assert list(tree({b"a.b": Dir(), b"a/c": Dir()}).entries) == [b"a", b"a/c", b"a.b"]


@pytest.mark.parametrize("path", [b"", b"/a", b"a/", b"a//b", b".", b"a/../b", b"a\0"])
def test_a_path_must_be_one(path: bytes) -> None:
    with pytest.raises(ValueError, match="no path"):
        tree({path: Dir()})


def test_nothing_is_below_a_file() -> None:
    with pytest.raises(ValueError, match="below it"):
        tree({b"a": File(b""), b"a/b": File(b"")})


def test_a_further_name_needs_a_first() -> None:
    with pytest.raises(ValueError, match="further name"):
        tree({b"a": HardLink(b"b")})


def test_a_restore_drops_what_it_must_not_make() -> None:
    made = restored(SAMPLE, links={b"link": b"elsewhere"})
    assert made.entries.keys() == SAMPLE.entries.keys() - {b"fifo", b"socket"}
    assert made.entries[b"d"] == Dir(mode=0o750, mtime_ns=1_000_000_001)
    assert made.entries[b"link"] == Link(b"elsewhere", mtime_ns=7)
    assert made.entries[b"link2"] == Link(b"d/file", mtime_ns=7)
    assert made.entries[b"d/other"] == HardLink(b"d/file")


def _touch(name: str) -> Callable[[Path], None]:
    """Give an entry another time, itself and not what it points at."""

    def change(place: Path) -> None:
        status = os.lstat(place / name)
        os.utime(place / name, ns=(status.st_mtime_ns + 1,) * 2, follow_symlinks=False)

    return change


def _keeping_times(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Make a change, then put all directories' times back, so that nothing but the change can be noticed."""

    def whole(place: Path) -> None:
        before = {folder: os.stat(folder).st_mtime_ns for folder, *_ in os.walk(place)}
        change(place)
        for folder, mtime_ns in before.items():
            if os.path.isdir(folder):
                os.utime(folder, ns=(mtime_ns, mtime_ns))

    return whole


def _write(place: Path, name: bytes, data: bytes, offset: int = 0) -> None:
    path = os.path.join(os.fsencode(place), name)
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _new_link(place: Path, text: bytes) -> None:
    path = os.path.join(os.fsencode(place), b"link")
    os.unlink(path)
    os.unlink(path + b"2")
    os.symlink(text, path)
    os.utime(path, ns=(7, 7), follow_symlinks=False)
    os.link(path, path + b"2", follow_symlinks=False)


def _exchange(path: Path, make_other: Callable[[Path], None]) -> None:
    path.unlink()
    make_other(path)


def _replace_by_copy(place: Path, name: str) -> None:
    path = place / name
    shutil.copy2(path, place / "copy", follow_symlinks=False)
    os.utime(place / "copy", ns=(os.lstat(path).st_mtime_ns,) * 2, follow_symlinks=False)
    os.rename(place / "copy", path)


FLIPS: dict[str, tuple[Callable[[Path], object], str]] = {
    "file-mode": (lambda place: os.chmod(place / "d/file", 0o641), "'d/file': mode is 0641, not 0640"),
    "directory-mode": (lambda place: os.chmod(place / "d", 0o750), "'d': mode is 0750, not 2750"),
    "root-mode": (lambda place: os.chmod(place, 0o755), "the root: mode is 0755, not 0750"),
    "file-time": (_touch("d/file"), "'d/file': mtime_ns is -5000000002, not -5000000003"),
    "directory-time": (_touch("d"), "'d': mtime_ns is 1000000002, not 1000000001"),
    "empty-directory-time": (_touch("d/empty"), f"'d/empty': mtime_ns is {MTIME_NS + 1}, not {MTIME_NS}"),
    "link-time": (_touch("link"), "'link': mtime_ns is 8, not 7"),
    "root-time": (_touch("."), "the root: mtime_ns is 12, not 11"),
    "one-byte": (lambda place: _write(place, b"d/file", b"X", 3), "'d/file': content differs, first at byte 3"),
    "one-zero-byte-more": (lambda place: _write(place, b"n\xff\n", b"\0", 2), "'n\\xff\\n': size is 3, not 2"),
    "data-in-a-hole": (lambda place: _write(place, b"hole", b"x", 100), "'hole': content differs, first at byte 0"),
    "zeros-in-a-hole": (lambda place: _write(place, b"hole", bytes(2 * BLOCK)), "'hole': takes "),
    "link-text": (lambda place: _new_link(place, b"d/file/"), "'link': text is b'd/file/', not b'd/file'"),
    "hard-link-gone": (lambda place: _replace_by_copy(place, "d/other"), "'d/other': is a File, not a HardLink"),
    "missing-file": (lambda place: os.unlink(place / "d/other"), "'d/other': is missing (HardLink)"),
    "missing-directory": (lambda place: os.rmdir(place / "d/empty"), "'d/empty': is missing (Dir)"),
    "missing-odd-name": (
        lambda place: os.unlink(os.path.join(os.fsencode(place), b"n\xff\n")),
        "'n\\xff\\n': is missing (File)",
    ),
    "missing-fifo": (lambda place: os.unlink(place / "fifo"), "'fifo': is missing (Fifo)"),
    "more-files": (lambda place: (place / "d/empty/x").touch(), "'d/empty/x': should not be there (File)"),
    "more-directories": (lambda place: (place / "x").mkdir(), "'x': should not be there (Dir)"),
    "more-links": (lambda place: (place / "x").symlink_to("d"), "'x': should not be there (Link)"),
    "another-kind": (
        lambda place: _exchange(place / "socket", lambda path: os.symlink("x", path)),
        "'socket': is a Link, not a Socket",
    ),
    "a-group-joined": (
        lambda place: _exchange(place / "fifo", lambda path: os.link(place / "d/file", path)),
        "'fifo': is a HardLink, not a Fifo",
    ),
}


@pytest.mark.parametrize(("change", "line"), FLIPS.values(), ids=FLIPS)
def test_every_difference_is_noticed(place: Path, change: Callable[[Path], object], line: str) -> None:
    timed = line.startswith("the root") or "mtime_ns" in line
    (change if timed else _keeping_times(change))(place)
    found = differences(SAMPLE, read(place))
    assert [text for text in found if text.startswith(line)], found
    assert len(found) == 1, found
    with pytest.raises(AssertionError, match="the trees differ"):
        assert_equal(SAMPLE, read(place))


def test_holes_need_not_be_judged(place: Path) -> None:
    _write(place, b"hole", bytes(2 * BLOCK))
    assert differences(SAMPLE, read(place), holes=False) == []


def test_many_differences_are_cut_off() -> None:
    wanted = tree({b"%03d" % number: Dir() for number in range(100)})
    with pytest.raises(AssertionError, match="and 75 more"):
        assert_equal(wanted, Tree(entries={}))


def test_a_deep_tree_is_made_read_and_removed(tmp_path: Path) -> None:
    deep = b"/".join([b"a-directory-with-a-long-name"] * 1100) + b"/file"
    wanted = tree({deep: File(b"down here")})
    make(wanted, tmp_path / "deep")
    assert_equal(wanted, read(tmp_path / "deep"))
    remove(tmp_path / "deep")
    assert not (tmp_path / "deep").exists()
    remove(tmp_path / "deep")


def test_what_is_read_only_is_removed(tmp_path: Path) -> None:
    make(tree({b"a/b/c": File(b""), b"a": Dir(mode=0o000)}), tmp_path / "tree")
    remove(tmp_path / "tree")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices: run as root")
def test_devices(tmp_path: Path) -> None:
    wanted = tree({b"null": Device(mode=0o622), b"disk": Device(block=True, number=(7, 200))})
    make(wanted, tmp_path / "dev")
    assert_equal(wanted, read(tmp_path / "dev"))
    assert len(differences(wanted, wanted.changed({b"null": Device(number=(1, 5), mode=0o622)}))) == 1
