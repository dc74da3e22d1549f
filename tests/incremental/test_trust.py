"""When a file may be left unread: its times must be at rest, on a clock and a file system that can be believed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from e2e.conftest import local
from incremental.again import TICK_S, Repeated, fill, noise, scan_of
from incremental.tracing import Trace

from sandlift.capturing import SETTLE_S
from sandlift_helper.base import Clock, instance, settled_before
from sandlift_helper.mounts import Mounts, read_mounts
from support.needs import lacking, require

WRITEBACKS_AT_MOST = 5
ROOT = "22 1 254:0 / / rw,relatime shared:1 - %s /dev/vda rw"


def mounts(kind: str = "ext4") -> Mounts:
    return Mounts(b"/w", [(ROOT % kind).encode()])


def test_nothing_is_trusted_within_a_minute(repeated: Repeated) -> None:
    """By the rule that holds by default, files that were just made are read each time; nothing travels for it."""
    assert SETTLE_S == 60
    fill(repeated.root, 50)
    old = repeated.root / "old"
    old.write_bytes(b"old")
    os.utime(old, ns=(0, 0))
    trace = Trace(repeated.folder)
    first = repeated.again(settle_s=SETTLE_S, via=trace.via)
    for _ in range(2):
        taken = repeated.again(settle_s=SETTLE_S, via=trace.via)
        assert (taken.identity, taken.capture.reused) == (first.identity, True)
        # However old its content says it is: its change time tells when that was said.
        assert len(trace.opened) == 51
    assert taken.received < 12_000
    assert not any(taken_settled(repeated))


def taken_settled(repeated: Repeated) -> list[int]:
    """What the scan cache says of each file."""
    from sandlift_helper import parts

    cache = scan_of(repeated.store)
    assert cache is not None
    return [flag for number in range(len(cache.parts)) for flag in parts.decode_known(cache.decode(number))[0].settled]


# The rule itself.


@pytest.mark.parametrize(
    "kind", ["tmpfs", "ramfs", "nfs", "nfs4", "cifs", "9p", "virtiofs", "fuse.sshfs", "fuseblk", ""]
)
def test_file_systems_that_are_not_believed(kind: str) -> None:
    found = mounts(kind) if kind else Mounts(b"/w", [])
    clock = Clock()
    assert settled_before(clock, 60_000, found, False) == 0
    assert settled_before(clock, 60_000, found, True) == clock.started_ns - 60 * 10**9


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "zfs"])
def test_file_systems_that_are_believed(kind: str) -> None:
    clock = Clock()
    expiry_ns = int(Path("/proc/sys/vm/dirty_expire_centisecs").read_text()) * 10**7
    assert settled_before(clock, 60_000, mounts(kind), False) == clock.started_ns - max(60 * 10**9, 2 * expiry_ns)
    # Shorter than the kernel takes to write back is never believed, but for tests that ask for nothing.
    assert settled_before(clock, 1, mounts(kind), False) == clock.started_ns - 2 * expiry_ns
    assert settled_before(clock, 0, mounts(kind), False) == clock.started_ns


def test_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    real, shift = time.time, 0.0
    monkeypatch.setattr("sandlift_helper.base.time.time", lambda: real() + shift)
    clock = Clock()
    assert clock.is_steady()
    for shift in (0.9, -0.9, 0.0):
        assert clock.is_steady(), shift
    for shift in (1.5, -1.5, -3600.0, 86_400.0):
        assert not clock.is_steady(), shift


def test_a_clock_that_was_set_makes_nothing_trusted(repeated: Repeated, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the helper says at its end makes all that it said of settled files worth nothing."""
    from sandlift import session

    fill(repeated.root, 30)
    counts = session._counts
    with monkeypatch.context() as patch:
        patch.setattr(session, "_counts", lambda message: {**counts(message), "steady": 0})
        repeated.again()
    assert taken_settled(repeated) == [0] * 30
    trace = Trace(repeated.folder)
    taken = repeated.again(via=trace.via)
    assert len(trace.opened) == 30
    taken = repeated.again()
    assert taken.capture.reused
    assert all(taken_settled(repeated))


def test_change_times_of_the_future(repeated: Repeated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that changed after the moment by the clock, as when it was set back, are not settled."""
    import sandlift.capturing as capturing

    fill(repeated.root, 10)
    request = capturing.sandbox_request
    # As if the helper's clock stood an hour before all change times.
    monkeypatch.setattr(capturing, "sandbox_request", lambda *given: {**request(*given), "settle_ms": 3_600_000})
    repeated.again()
    assert taken_settled(repeated) == [0] * 10


def test_a_change_within_the_same_tick(repeated: Repeated) -> None:
    """A file that was written right before a capture, and again right after it, is read by the next."""
    path = repeated.root / "file"
    for number in range(4):
        path.write_bytes(b"one%05d" % number)
        settled = repeated.again(settle_s=SETTLE_S)
        # Without a pause: on a coarse clock both writes may have the same times.
        path.write_bytes(b"two%05d" % number)
        os.utime(path, ns=(1, settled.mtime_ns(b"file")))
        taken = repeated.again(settle_s=SETTLE_S)
        assert taken.identity == repeated.fresh().identity != settled.identity


def test_a_write_through_a_shared_mapping(repeated: Repeated) -> None:
    """It moves no time before the page is written back, so only age tells that nothing can be under way."""
    for number in range(WRITEBACKS_AT_MOST):
        path = repeated.root / f"mapped{number}"
        path.write_bytes(b"a" * 8192)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
            mapped[0] = ord("b")
            time.sleep(TICK_S)
            first = repeated.again(settle_s=SETTLE_S)
            before = path.stat()
            # The page is dirty already: another write to it moves nothing, but for one that was just written back.
            mapped[1] = ord("b")
            after = path.stat()
            second = repeated.again(settle_s=SETTLE_S)
            assert second.identity == repeated.fresh().identity != first.identity
            if (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns):
                return
    pytest.fail("each write moved the times: this file system shows nothing")


SLOW_WRITE = """
import os, sys
# Two calls for one that takes long: what a reader sees of it is half of the bytes.
fd = os.open(sys.argv[1], os.O_WRONLY)
status = os.fstat(fd)
os.pwrite(fd, b"B" * 4096, 0)
os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
print("half", flush=True)
sys.stdin.readline()
os.pwrite(fd, b"B" * 4096, 4096)
os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
print("done", flush=True)
sys.stdin.readline()
"""


def test_a_write_that_lasts_while_a_capture_runs(repeated: Repeated) -> None:
    """Half of a write is captured; the next sees the rest, though size and modification time are the same."""
    path = repeated.root / "written"
    path.write_bytes(b"A" * 8192)
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdin and writer.stdout
        writer.stdout.readline()
        first = repeated.again(settle_s=SETTLE_S)
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        writer.stdout.readline()
        second = repeated.again(settle_s=SETTLE_S)
        writer.stdin.close()
    assert second.identity == repeated.fresh().identity != first.identity


def test_a_file_that_changes_while_it_is_read_is_not_settled(repeated: Repeated) -> None:
    """Something writes all the time: what was flagged is read again by the next capture, which finds it at rest."""
    path = repeated.root / "busy"
    path.write_bytes(noise(1, 6_000_000))
    (repeated.root / "calm").write_bytes(b"calm")
    # Over a slow line, so that the reading lasts.
    slow = repeated.folder / "slow"
    slow.write_text("-1 0.01")
    via = (sys.executable, str(Path(__file__).with_name("cut.py")), str(slow))
    script = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY)
print(flush=True)
while True:
    os.pwrite(fd, os.urandom(64), 5_999_000)
    time.sleep(0.002)
"""
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        writer.stdout.readline()
        taken = repeated.again(via=via)
        writer.kill()
    assert taken.flags == {b"busy": "changed"}
    assert taken.reasons == {b"busy": "unstable"}
    settled = taken_settled(repeated)
    assert settled == [0, 1]
    slow.write_text("-1 0")
    after = repeated.checked(via=via)
    assert (after.flags, after.reasons) == ({}, {})
    assert after.identity != taken.identity


# File systems.


@contextmanager
def mounted(source: Path | str, at: Path, *options: str) -> Iterator[None]:
    """Something mounted at a folder, where this machine lets us."""
    require("mount", "umount")
    done = subprocess.run(["mount", *options, source, at], capture_output=True, text=True)
    if done.returncode:
        lacking(f"mount says {done.stderr.strip()}: run the tests where file systems can be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def test_tmpfs_is_trusted_only_on_request(place: Path, as_root: None) -> None:
    with closing(Repeated(place, local)) as repeated:
        repeated.root.mkdir()
        with mounted("tmpfs", repeated.root, "-t", "tmpfs"):
            fill(repeated.root, 20)
            trace = Trace(place)
            for trusts, opened in ((False, 20), (False, 20), (True, 20), (True, 0), (False, 0)):
                repeated.again(via=trace.via, trust_ctime=trusts)
                assert len(trace.opened) == opened
            # What was settled stays so; what is read now is not.
            (repeated.root / "d001" / "f00001").write_bytes(b"changed")
            repeated.again(via=trace.via)
            assert trace.opened == ["f00001"]
            repeated.again(via=trace.via)
            assert trace.opened == ["f00001"]


def test_a_mount_inside_is_not_trusted(place: Path, as_root: None) -> None:
    """Change times of another file system than the root's are nobody's word."""
    with closing(Repeated(place, local)) as repeated:
        inside = repeated.root / "inside"
        inside.mkdir(parents=True)
        (repeated.root / "home").write_bytes(b"home")
        with mounted("tmpfs", inside, "-t", "tmpfs"):
            (inside / "file").write_bytes(b"one")
            trace = Trace(place)
            repeated.again(via=trace.via)
            assert trace.opened == ["file", "home"]
            repeated.again(via=trace.via)
            assert trace.opened == ["file"]
            repeated.checked()


def make_image(path: Path, label: str) -> None:
    require("mkfs.ext4", "debugfs")
    with open(path, "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-L", label, path], check=True)


def test_two_sandboxes_of_one_image_at_one_clock(place: Path, as_root: None) -> None:
    """All times and inode numbers are equal, only the content differs, and it is mounted at the same place.

    What tells them apart is the instance: the device on which it is mounted.
    """
    one, two = place / "one", place / "two"
    with closing(Repeated(place, local)) as repeated:
        repeated.root.mkdir()
        aside = place / "aside"
        aside.mkdir()
        make_image(one, "same")
        with mounted(one, repeated.root, "-o", "loop"):
            (repeated.root / "file").write_bytes(b"one" * 100)
            (repeated.root / "below").mkdir()
            os.link(repeated.root / "file", repeated.root / "below" / "file")
            (repeated.root / "lost+found").rmdir()
        subprocess.run(["cp", one, two], check=True)
        with mounted(two, aside, "-o", "loop"):
            status = (aside / "file").stat()
            with open(aside / "file", "r+b") as file:
                file.write(b"two" * 100)
        # At one clock: both were written at the same moment.
        for name, value in (("ctime", status.st_ctime_ns), ("mtime", status.st_mtime_ns)):
            for field, number in ((name, f"@{value // 10**9}"), (f"{name}_extra", extra(value))):
                subprocess.run(
                    ["debugfs", "-w", "-R", f"set_inode_field /file {field} {number}", two],
                    check=True,
                    capture_output=True,
                )
        with mounted(one, aside, "-o", "loop"):
            with mounted(aside, repeated.root, "--bind"):
                first = repeated.again()
                assert repeated.again().capture.reused
                stamp = (repeated.root / "file").stat()
            with mounted(two, repeated.root, "-o", "loop"):
                found = (repeated.root / "file").stat()
                assert (found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size) == (
                    stamp.st_ino,
                    stamp.st_ctime_ns,
                    stamp.st_mtime_ns,
                    stamp.st_size,
                )
                assert (repeated.root / "file").read_bytes() == b"two" * 100
                second = repeated.again()
                assert second.files_read == 2
                assert second.identity == repeated.fresh().identity != first.identity
            # And where the other is mounted inside, beside files of the first.
            with mounted(aside, repeated.root, "--bind"):
                assert repeated.again().identity == first.identity
                assert repeated.again().files_read == 0
                elsewhere = place / "elsewhere"
                elsewhere.mkdir()
                with mounted(two, elsewhere, "-o", "loop"):
                    with mounted(elsewhere / "below", repeated.root / "below", "--bind"):
                        third = repeated.again()
                        assert third.identity == repeated.fresh().identity != first.identity


def extra(time_ns: int) -> str:
    """The nanoseconds and the epoch as ext4 keeps them beside a time's 32 bits."""
    return hex((time_ns % 10**9) << 2 | (time_ns // 10**9) >> 32)


def test_an_instance_is_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node name, boot, device, inode or file system makes another one."""
    status = os.stat(tmp_path)
    found = read_mounts(os.fsencode(tmp_path))
    own = instance(status, found)
    assert own == instance(os.stat(tmp_path), found)
    assert len(own) == 32
    others = [instance(os.stat("/proc"), found), instance(status, mounts("xfs"))]
    fields = list(status)
    fields[1] += 1
    others.append(instance(os.stat_result(fields), found))
    names = os.uname()
    monkeypatch.setattr("sandlift_helper.base.os.uname", lambda: os.uname_result((*names[:1], "other", *names[2:])))
    others.append(instance(status, found))
    monkeypatch.undo()
    boot = tmp_path / "boot_id"
    boot.write_text("another boot\n")
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *rest: real(boot if str(path).endswith("boot_id") else path, *rest)
    )
    others.append(instance(status, found))
    monkeypatch.undo()
    assert len({own, *others}) == 6
