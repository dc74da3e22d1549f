"""Mounts inside a workspace: which belong to it, by the kernel's table, and by real ones where root can make them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.lift import Lift

from sandlift.box import Box, connect
from sandlift_helper.mounts import Mounts, read_mounts
from support.needs import require
from support.tree import Dir, File, assert_equal, make, tree

ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"


def mounts(*lines: str, root: bytes = b"/w") -> Mounts:
    return Mounts(root, [line.encode("utf-8", "surrogateescape") for line in (ROOT, *lines)])


FOREIGN = {
    # cases: openai/openai-agents-js#1501
    "sshfs": ("40 22 0:50 / /w/data rw,nosuid - fuse.sshfs me@box:/srv rw", b"fuse.sshfs me@box:/srv"),
    "bucket": ("40 22 0:50 / /w/data rw - fuse.rclone remote: rw", b"fuse.rclone remote:"),
    "nfs": ("40 22 0:50 / /w/data rw - nfs4 10.0.0.1:/export rw,vers=4.2", b"nfs4 10.0.0.1:/export"),
    "cifs": ("40 22 0:50 / /w/data rw - cifs //server/share rw", b"cifs //server/share"),
    "9p": ("40 22 0:50 / /w/data rw - 9p host rw", b"9p host"),
    "virtiofs": ("40 22 0:50 / /w/data rw - virtiofs tag rw", b"virtiofs tag"),
    "proc": ("40 22 0:50 / /w/data rw shared:5 master:1 - proc proc rw", b"proc proc"),
    "sysfs": ("40 22 0:50 / /w/data ro - sysfs sysfs rw", b"sysfs sysfs"),
    "autofs": ("40 22 0:50 / /w/data rw - autofs systemd-1 rw,fd=30", b"autofs systemd-1"),
    "no-source": ("40 22 0:50 / /w/data rw - fuse  rw", b"fuse "),
}


@pytest.mark.parametrize(("line", "detail"), FOREIGN.values(), ids=FOREIGN)
def test_what_is_not_entered(line: str, detail: bytes) -> None:
    found = mounts(line)
    assert found.known
    assert found.foreign(b"data") == detail
    assert [found.foreign(path) for path in (b"", b"dat", b"data2", b"data/below", b"x/data")] == [None] * 5


@pytest.mark.parametrize(
    "line",
    [
        "40 22 0:50 / /w/data rw - tmpfs tmpfs rw,size=65536k",
        "40 22 254:0 /srv /w/data rw - ext4 /dev/vda rw",
        "40 22 8:1 / /w/data rw - ext4 /dev/sdb1 rw",
        "40 22 0:60 / /w/data rw - overlay overlay rw,lowerdir=/l",
        "40 22 0:60 / /w/data rw - xfs /dev/sdc rw",
    ],
    ids=["tmpfs", "bind-of-the-same", "another-disk", "overlay", "xfs"],
)
def test_what_is_entered(line: str) -> None:
    assert mounts(line).foreign(b"data") is None


def test_a_mount_of_the_roots_own_kind_and_source_is_entered() -> None:
    home = "40 22 0:50 / /w rw - 9p host rw"
    assert mounts(home, "41 40 0:50 /x /w/data rw - 9p host rw").foreign(b"data") is None
    assert mounts(home, "41 40 0:51 /x /w/data rw - 9p other rw").foreign(b"data") == b"9p other"
    assert mounts(home).root_type == b"9p"


def test_the_last_mount_on_a_point_is_the_visible_one() -> None:
    proc, tmpfs = "40 22 0:50 / /w/d rw - proc proc rw", "41 40 0:51 / /w/d rw - tmpfs tmpfs rw"
    assert mounts(proc, tmpfs).foreign(b"d") is None
    assert mounts(tmpfs, proc).foreign(b"d") == b"proc proc"


def test_a_mount_below_one_that_was_mounted_over_is_hidden() -> None:
    hidden, over = "40 22 0:50 / /w/d/p rw - proc proc rw", "41 22 0:51 / /w/d rw - tmpfs tmpfs rw"
    below = "42 41 0:52 / /w/d/q rw - sysfs sysfs rw"
    found = mounts(hidden, over, below)
    assert found.foreign(b"d/p") is None
    assert found.foreign(b"d/q") == b"sysfs sysfs"


@pytest.mark.parametrize(
    ("root", "point", "path"),
    [
        (b"/w", "/w/with\\040space\\011tab", b"with space\ttab"),
        (b"/w", "/w/line\\012feed\\134back", b"line\nfeed\\back"),
        (b"/", "/data", b"data"),
        (b"/w/a", "/w/a/b/c", b"b/c"),
        (b"/w", "/w/\udcff", b"\xff"),
        (b"/w", "/w/hash\\043", b"hash#"),
    ],
)
def test_names_in_the_table(root: bytes, point: str, path: bytes) -> None:
    assert mounts(f"40 22 0:50 / {point} rw - proc proc rw", root=root).foreign(path) == b"proc proc"


def test_mounts_elsewhere_mean_nothing() -> None:
    found = mounts("40 22 0:50 / /w2 rw - proc proc rw", "41 22 0:50 / /x/w rw - proc proc rw")
    assert [found.foreign(path) for path in (b"", b"2", b"w")] == [None] * 3
    assert mounts("40 22 0:50 / /w rw - proc proc rw").foreign(b"") is None


def test_without_a_table_nothing_is_known() -> None:
    assert not Mounts(b"/w", []).known
    assert read_mounts(b"/").known


SOURCE = tree(
    {
        b"file": File(b"x"),
        b"tmp": Dir(),
        b"bound": Dir(),
        b"proc": Dir(mode=0o700),
        b"sys": Dir(),
        b"version": File(b""),
        b"resolv.conf": File(b"covered"),
        b"zz/after": File(b"y"),
    }
)


@pytest.fixture
def mounted(place: Path, as_root: None) -> Iterator[Lift]:
    """A workspace with mounts inside, each in a private mount namespace of the capture's own."""
    require("unshare", "mount")

    def road(path: Path | str) -> Box:
        script = os.environ["SL_TEST_MOUNTS"] + ' && exec "$@"'
        return connect(os.fspath(path), via=shlex.join(["unshare", "-m", "sh", "-c", script, "sh"]))

    with closing(Lift(place, road)) as lifted:
        lifted.make(SOURCE)
        make(tree({b"other/deep": File(b"elsewhere")}), place / "elsewhere")
        yield lifted


def mount(lift: Lift, monkeypatch: pytest.MonkeyPatch, *commands: str) -> None:
    monkeypatch.setenv("SL_TEST_MOUNTS", " && ".join([f"cd {shlex.quote(str(lift.root))}", *commands]))


# cases: moby/moby#22020, langchain-ai/deepagents#1402
def test_memory_inside_is_entered(mounted: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(mounted, monkeypatch, "mount -t tmpfs -o mode=750 t tmp", "echo live >tmp/live", "mkdir tmp/d", ": >tmp/d/f")
    taken = mounted.capture()
    assert taken.excluded == {}
    assert {b"tmp/live", b"tmp/d", b"tmp/d/f"} < set(taken.paths)
    assert taken.mode(b"tmp") == 0o750


def test_a_bind_mount_of_the_same_disk_is_entered(mounted: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(mounted, monkeypatch, "mount --bind ../elsewhere bound")
    taken = mounted.capture()
    assert taken.excluded == {}
    assert b"bound/other/deep" in taken.paths


def test_a_bind_mount_of_the_workspace_itself_ends(mounted: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(mounted, monkeypatch, "mount --bind . bound")
    taken = mounted.capture()
    assert taken.excluded == {}
    assert b"bound/file" in taken.paths
    assert b"bound/bound/file" not in taken.paths


# cases: openai/openai-agents-python#2986
def test_pseudo_file_systems_are_not_entered(mounted: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(mounted, monkeypatch, "mount -t proc proc proc", "mount --bind /sys/kernel sys")
    taken = mounted.capture()
    assert taken.excluded == {
        b"proc": ("directory", "mount", b"proc proc"),
        b"sys": ("directory", "mount", b"sysfs sysfs"),
    }
    assert taken.capture.outcome == "complete"
    assert not [path for path in taken.paths if path.startswith((b"proc/", b"sys/"))]
    mount(mounted, monkeypatch)
    expected = SOURCE.changed({b"proc": Dir(mtime_ns=0), b"sys": Dir(mtime_ns=0)})
    assert_equal(expected, mounted.restore(taken))


# cases: moby/moby#9998
def test_a_bind_mounted_file_is_read_from_inside(mounted: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(mounted, monkeypatch, "mount --bind ../elsewhere/other/deep resolv.conf")
    taken = mounted.capture()
    assert taken.excluded == {}
    mount(mounted, monkeypatch)
    back = mounted.restore(taken)
    assert back.entries[b"resolv.conf"] == File(b"elsewhere").canonical()


# cases: moby/moby#10037
def test_a_file_mounted_from_a_foreign_file_system_is_no_directory(
    mounted: Lift, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(mounted, monkeypatch, "mount --bind /proc/version version")
    taken = mounted.capture()
    assert taken.excluded == {b"version": ("file", "mount", b"proc proc")}
    assert b"version" not in taken.paths
