"""What a scan finds, in which order, and that several processes find what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandlift_helper import table
from sandlift_helper.ladder import RUNGS_HALF, Ladder
from sandlift_helper.mounts import read_mounts
from sandlift_helper.scan import Limits, Scan
from support.needs import lacking, require
from support.tree import remove

SCANS = Path(__file__).with_name("scans.py")
TIMEOUT_S = 120


def scan(root: Path) -> Scan:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    limits = Limits(10_000, 1 << 16, 10_000, table.TEXT_MAX, 1 << 40)
    found = Scan(fd, limits, None, read_mounts(os.fsencode(root)), frozenset(), None, lambda *_: None)
    try:
        found.run()
    finally:
        os.close(fd)
    return found


def test_entries_come_in_path_order(tmp_path: Path) -> None:
    for name in ("a/b", "a/b-c", "a/b.d", "a-", "c", "e/f/g"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a/b/x", "a/b-c/x", "a/a", "a/c", "a-/x", "a.x", "b", "d", "e/f/h", "e/f/g/x", "e/g", "f"):
        (tmp_path / name).touch()
    for name in ("a/b/l", "a/bl", "0", "e/f/g/l", "g"):
        (tmp_path / name).symlink_to("x")
    found = scan(tmp_path)
    # By components: what is below a comes before a-, though a slash sorts after a hyphen.
    assert found.files.paths == [
        b"a/a", b"a/b/x", b"a/b-c/x", b"a/c", b"a-/x", b"a.x", b"b", b"d", b"e/f/g/x", b"e/f/h", b"e/g", b"f",
    ]  # fmt: skip
    assert [path for path, _ in found.directories] == [
        b"a", b"a/b", b"a/b-c", b"a/b.d", b"a-", b"c", b"e", b"e/f", b"e/f/g",
    ]  # fmt: skip
    assert [path for path, _, _ in found.links] == [b"0", b"a/b/l", b"a/bl", b"e/f/g/l", b"g"]
    assert found.files.elsewhere == bytes(12)


def test_a_deep_walk_comes_back_to_each_directory(tmp_path: Path) -> None:
    """More directories are on the way than stay open: they are opened again for what follows the way down."""
    depth = 5 * RUNGS_HALF
    path = tmp_path
    for number in range(depth):
        path = path / "m"
        path.mkdir()
        (path / "a").touch()
        (path / "z").touch()
        if number % 10 == 0:
            (path / "n").mkdir()
            (path / "n" / "x").touch()
    descriptors = os.listdir("/proc/self/fd")
    found = scan(tmp_path)
    assert os.listdir("/proc/self/fd") == descriptors
    assert len(found.directories) == depth + depth // 10
    assert len(found.files.paths) == 2 * depth + depth // 10
    assert found.files.paths == sorted(found.files.paths, key=table.sort_key)
    assert not found.left.excluded_paths
    assert not found.left.flag_paths


def test_a_directory_that_is_gone_when_the_walk_comes_back(tmp_path: Path) -> None:
    """What was still to be looked at in it, and below it, is said to have vanished."""
    way = [b"/".join([b"m"] * depth) for depth in range(1, 5 * RUNGS_HALF)]
    os.makedirs(tmp_path / os.fsdecode(way[-1]))
    for path in way:
        (tmp_path / os.fsdecode(path) / "a").touch()
        (tmp_path / os.fsdecode(path) / "z").touch()
    gone = way[2 * RUNGS_HALF]
    limits = Limits(10_000, 1 << 16, 10_000, table.TEXT_MAX, 1 << 40)

    def leave(entries: int, size: int) -> None:
        if (tmp_path / os.fsdecode(gone)).exists():
            os.rename(tmp_path / os.fsdecode(gone), tmp_path / "elsewhere")

    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    found = Scan(fd, limits, None, read_mounts(os.fsencode(tmp_path)), frozenset(), None, leave)
    found.run()
    os.close(fd)
    flagged = found.left.flag_paths
    # Above it nothing has changed, and of those below it the lowest were still open.
    assert flagged == [path + b"/z" for path in way[4 * RUNGS_HALF - 2 : 2 * RUNGS_HALF - 1 : -1]]
    assert set(found.left.flags) == {table.VANISHED}
    assert sorted(found.files.paths + flagged) == sorted(path + name for path in way for name in (b"/a", b"/z"))
    assert [path for path, _ in found.directories] == way
    assert not found.left.excluded_paths


class Opened:
    """Directories made on the way down a ladder, checked by what is in them."""

    def __init__(self, root: Path) -> None:
        self.fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self.ladder = Ladder(self.fd)
        self._before = len(os.listdir("/proc/self/fd"))

    def check(self, path: bytes) -> None:
        found = os.fstat(self.ladder.open(path))
        wanted = os.stat(path or b".", dir_fd=self.fd)
        assert (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino), path
        assert len(os.listdir("/proc/self/fd")) <= self._before + 2 * RUNGS_HALF


def test_a_ladder_reaches_what_it_is_asked_for(tmp_path: Path) -> None:
    long = b"/".join([b"d"] * (3 * RUNGS_HALF))
    for name in (os.fsdecode(long), "d/d/e", "de/f", "dd", "e"):
        (tmp_path / name).mkdir(parents=True)
    opened = Opened(tmp_path)
    cut = [long[: 2 * length - 1] for length in (1, 2, RUNGS_HALF, RUNGS_HALF + 1, 2 * RUNGS_HALF, 3 * RUNGS_HALF - 1)]
    for path in [b"", long, *cut, *cut[::-1], long, b"dd", b"d/d/e", b"d", b"de/f", b"de", b"", b"e", long, b"d/d"]:
        opened.check(path)
    for missing, error in ((b"d/none/x", FileNotFoundError), (b"d/d/none", FileNotFoundError)):
        with pytest.raises(error):
            opened.ladder.open(missing)
        opened.check(b"d/d")
    (tmp_path / "link").symlink_to("d")
    with pytest.raises(OSError, match="Not a directory|Too many levels"):
        opened.ladder.open(b"link/d")
    opened.check(b"d")
    before = len(os.listdir("/proc/self/fd"))
    opened.ladder.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    os.close(opened.fd)


def compare(folder: Path, seed: int, *prefix: str, mounts: bool = False) -> list[int]:
    """Runs `scans` on a random tree; returns what it prints."""
    folder.chmod(0o755)
    words = [str(SCANS), str(folder), str(seed), *(["mounts"] if mounts else [])]
    try:
        done = subprocess.run(
            [*prefix, sys.executable, "-W", "error", *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        # pytest itself cannot remove what nobody may read.
        remove(folder / "w")
    assert (done.returncode, done.stderr) == (0, ""), seed
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("seed", range(1, 9))
def test_several_processes_find_what_one_does(tmp_path: Path, seed: int) -> None:
    names, elsewhere, groups = compare(tmp_path, seed)
    assert names > 10
    assert not elsewhere
    assert groups


@pytest.mark.parametrize("seed", [101, 102])
def test_several_processes_find_what_one_does_where_there_are_mounts(tmp_path: Path, seed: int) -> None:
    if os.geteuid() != 0:
        lacking("mounts can be made by root alone: run the tests as root as well")
    require("unshare", "mount")
    _, elsewhere, _ = compare(tmp_path, seed, "unshare", "--mount", mounts=True)
    assert elsewhere
