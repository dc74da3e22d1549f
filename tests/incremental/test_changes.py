"""Every kind of change between two captures: the second gives what a capture without a base gives."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from incremental.again import Repeated, noise

from sandlift.model import Rules

PART_ROWS = 5


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that a tree of some dozen entries has many, and that groups of names span them."""
    monkeypatch.setattr("sandlift.tracking.PART_ROWS", PART_ROWS)


def plant(root: Path) -> None:
    """Some folders of files, a hard-link group from the first part to the last, links, a FIFO and holes."""
    for folder in "abcdxyz":
        (root / folder / "in").mkdir(parents=True)
        for number in range(4):
            (root / folder / f"f{number}").write_bytes(f"{folder}{number}\n".encode() * 40)
        (root / folder / "in" / "deep").write_bytes(folder.encode() * 5000)
    (root / "empty").write_bytes(b"")
    os.link(root / "a" / "f1", root / "m-linked")
    os.link(root / "a" / "f1", root / "z" / "linked")
    os.link(root / "c" / "f2", root / "x" / "pair")
    os.symlink("a/f0", root / "inside")
    os.symlink("/nowhere/one", root / "outside")
    os.symlink(f"{root}/b/f1", root / "rebased")
    os.mkfifo(root / "fifo")
    with open(root / "y" / "sparse", "wb") as file:
        file.write(noise(1, 5000))
        file.seek(5 << 20)
        file.write(b"end")
    os.link(root / "y" / "sparse", root / "b" / "sparse-too")


def set_back(path: Path, data: bytes) -> None:
    """Write other content of the same size, and put the time back."""
    status = path.stat()
    assert len(data) == status.st_size
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def exchange(root: Path) -> None:
    """Exchange two files of the same size and the same time by their names."""
    os.rename(root / "a" / "f2", root / "t")
    os.rename(root / "b" / "f2", root / "a" / "f2")
    os.rename(root / "t", root / "b" / "f2")


def file_to_directory(root: Path) -> None:
    (root / "b" / "f3").unlink()
    (root / "b" / "f3").mkdir()
    (root / "b" / "f3" / "below").write_bytes(b"below")


def directory_to_file(root: Path) -> None:
    shutil.rmtree(root / "c" / "in")
    (root / "c" / "in").write_bytes(b"a file now")


def directory_to_link(root: Path) -> None:
    os.rename(root / "d" / "in", root / "d" / "kept")
    os.symlink("kept", root / "d" / "in")


def bind(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(root / "s"))


def relink(root: Path, name: str, text: str) -> None:
    (root / name).unlink()
    os.symlink(text, root / name)


def zero(root: Path) -> None:
    with open(root / "y" / "sparse", "r+b") as file:
        file.write(bytes(5000))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


Change = Callable[[Path], object]


def all_deleted(root: Path) -> None:
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)


def fifo_becomes_a_file(root: Path) -> None:
    (root / "fifo").unlink()
    (root / "fifo").write_bytes(b"now")


def moved_to_another_group(root: Path) -> None:
    (root / "x" / "pair").unlink()
    os.link(root / "a" / "f1", root / "x" / "pair")


def to_a_copy(root: Path) -> None:
    (root / "x" / "pair").unlink()
    shutil.copy2(root / "c" / "f2", root / "x" / "pair")


# One after the other, in the same workspace: each from the capture of the one before.
CHANGES: dict[str, dict[str, Change]] = {
    "content": {
        "other": lambda root: (root / "a" / "f0").write_bytes(b"other"),
        "of the same size": lambda root: (root / "a" / "f2").write_bytes(b"b2\n" * 40),
        "of the same size, time set back": lambda root: set_back(root / "a" / "f3", b"b3\n" * 40),
        "appended": lambda root: append(root / "x" / "f0", b"more"),
        "truncated": lambda root: os.truncate(root / "x" / "f0", 7),
        "emptied": lambda root: os.truncate(root / "x" / "f0", 0),
        "filled": lambda root: (root / "empty").write_bytes(b"full"),
        "exchanged with another": exchange,
    },
    "what is told of it": {
        "time": lambda root: os.utime(root / "b" / "f0", ns=(1, 1_400_000_000_000_000_001)),
        "mode": lambda root: (root / "b" / "f0").chmod(0o600),
        "mode of a directory": lambda root: (root / "b").chmod(0o700),
        "time of a directory": lambda root: os.utime(root / "b", ns=(1, 2)),
        "mode of the root": lambda root: root.chmod(0o711),
        "time of the root": lambda root: os.utime(root, ns=(1, 2)),
    },
    "names": {
        "new first": lambda root: (root / "!").write_bytes(b"first"),
        "new last": lambda root: (root / "~").write_bytes(b"last"),
        "new directory": lambda root: (root / "e").mkdir(),
        "deleted": lambda root: (root / "c" / "f0").unlink(),
        "renamed": lambda root: os.rename(root / "c" / "f1", root / "c" / "g0"),
        "renamed directory": lambda root: os.rename(root / "a", root / "w"),
        "directory into another": lambda root: os.rename(root / "w", root / "x" / "w"),
        "deleted first": lambda root: shutil.rmtree(root / "b"),
        "deleted last": lambda root: shutil.rmtree(root / "z"),
        "all deleted": all_deleted,
    },
    "kinds": {
        "file becomes a directory": file_to_directory,
        "directory becomes a file": directory_to_file,
        "directory becomes a link": directory_to_link,
        "fifo becomes a file": fifo_becomes_a_file,
        "new fifo": lambda root: os.mkfifo(root / "z" / "pipe"),
        "new socket": bind,
        "fifo gone": lambda root: (root / "z" / "pipe").unlink(),
        "ignore file": lambda root: (root / ".sandliftignore").write_bytes(b"f2\n/x\n"),
    },
    "names that are added to a group": {
        "new pair": lambda root: os.link(root / "b" / "f1", root / "z" / "new"),
        "new pair before": lambda root: os.link(root / "z" / "f1", root / "a" / "A"),
        "third": lambda root: os.link(root / "c" / "f2", root / "b" / "third"),
        "moved from group to group": moved_to_another_group,
        "content of all": lambda root: (root / "z" / "linked").write_bytes(b"all four"),
    },
    "names that a group loses": {
        "first": lambda root: (root / "a" / "f1").unlink(),
        "last": lambda root: (root / "z" / "linked").unlink(),
        "first of a pair": lambda root: (root / "c" / "f2").unlink(),
        "first of a sparse pair": lambda root: (root / "b" / "sparse-too").unlink(),
    },
    "more names that a group loses": {
        "middle": lambda root: (root / "m-linked").unlink(),
        "to a copy": to_a_copy,
        "sparse data zeroed": zero,
        "sparse grown": lambda root: os.truncate(root / "y" / "sparse", 9 << 20),
    },
    "links": {
        "text": lambda root: relink(root, "inside", "a/f2"),
        "turned outside": lambda root: relink(root, "inside", "../elsewhere"),
        "turned inside": lambda root: relink(root, "outside", "b/f0"),
        "outside elsewhere": lambda root: relink(root, "inside", "/nowhere/two"),
        "rebased elsewhere": lambda root: relink(root, "rebased", f"{root}/b/f2"),
        "relative now": lambda root: relink(root, "rebased", "b/f2"),
        "new outside": lambda root: os.symlink("/nowhere/three", root / "new-outside"),
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name: str, repeated: Repeated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repeated.root)
    plant(repeated.root)
    last = first = repeated.again()
    for what, change in CHANGES[name].items():
        change(repeated.root)
        taken = repeated.checked()
        assert taken.identity != last.identity, what
        assert taken.received < first.received, what
        last = taken
    # And from that the next, which finds nothing.
    again = repeated.again()
    assert (again.identity, again.capture.reused, again.new) == (last.identity, True, {"refs": 1, "scans": 1})


RULES: dict[str, tuple[Rules, Rules]] = {
    "first name of a group excluded": (Rules(), Rules(paths=(b"a/f1",))),
    "other name of a group excluded": (Rules(), Rules(paths=(b"z/linked",))),
    "all names but one excluded": (Rules(), Rules(paths=(b"a/f1", b"m-linked"))),
    "first name of a group included": (Rules(paths=(b"a/f1",)), Rules()),
    "other name of a group included": (Rules(paths=(b"z/linked",)), Rules()),
    "all names but one included": (Rules(paths=(b"m-linked", b"z/linked")), Rules()),
    "sparse first name excluded": (Rules(), Rules(paths=(b"b/sparse-too",))),
    "directory excluded": (Rules(), Rules(patterns=((b"/x/", b"test"),))),
    "directory included": (Rules(patterns=((b"/x/", b"test"),)), Rules()),
    "all excluded": (Rules(), Rules(patterns=((b"*", b"test"),))),
    "another rule for the same": (Rules(patterns=((b"f0", b"one"),)), Rules(patterns=((b"f0", b"two"),))),
}


@pytest.mark.parametrize("name", RULES)
def test_other_rules(name: str, repeated: Repeated) -> None:
    plant(repeated.root)
    before, after = RULES[name]
    first = repeated.again(rules=before)
    second = repeated.checked(rules=after)
    assert second.identity != first.identity
    # And back again, from the base of the other rules.
    assert repeated.again(rules=before).identity == first.identity


def test_owner(repeated: Repeated, as_root: None) -> None:
    plant(repeated.root)
    repeated.again()
    os.chown(repeated.root / "b" / "f0", 1234, 4321)
    os.chown(repeated.root / "outside", 1234, 4321, follow_symlinks=False)
    os.chown(repeated.root / "inside", 1234, 4321, follow_symlinks=False)
    taken = repeated.checked()
    assert taken.owner(b"b/f0") == taken.owner(b"inside") == (1234, 4321)


def test_there_and_back(repeated: Repeated) -> None:
    """A file that becomes a directory and a file again is never taken for what it was first."""
    plant(repeated.root)
    path = repeated.root / "b" / "f3"
    kept = path.stat()
    repeated.again()
    file_to_directory(repeated.root)
    repeated.checked()
    shutil.rmtree(path)
    path.write_bytes(b"B3\n" * 40)
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    repeated.checked()


def test_only_what_is_in_question_is_read(repeated: Repeated) -> None:
    """Beside a file that changed, its settled neighbours in the same part are not read."""
    plant(repeated.root)
    repeated.again()
    (repeated.root / "a" / "f0").write_bytes(b"changed")
    taken = repeated.again()
    assert (taken.files_read, taken.bytes_read) == (1, 7)
