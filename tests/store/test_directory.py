"""Objects in a directory: the contract, and what only a directory can get wrong."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store.contract import ObjectsContract, put
from store.seam import watched

from sandlift.errors import StoreDamaged, StoreError, StoreFull, StoreMissing, StoreUnusable
from sandlift.store.directory import DirectoryObjects


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[DirectoryObjects]:
    opened = DirectoryObjects(tmp_path / "store", create=True)
    yield opened
    opened.close()


class TestContract(ObjectsContract):
    pass


def temporaries(objects: DirectoryObjects) -> list[str]:
    return os.listdir(objects.path / "tmp")


# cases: NousResearch/hermes-agent#48441, NousResearch/hermes-agent#62336, inoio/agents-sandbox#12
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_everything_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        objects = DirectoryObjects(tmp_path / "new" / "store", create=True)
        put(objects, "packs/ab/one", b"data")
        objects.create_if_absent("refs/a/b/@1", b"data")
        half = objects.put("packs/half")
    finally:
        os.umask(before)
    seen = {"files": 0, "folders": 0}
    for folder, _, files in os.walk(tmp_path / "new"):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700, folder
        seen["folders"] += 1
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600, name
            seen["files"] += 1
    assert seen == {"files": 3, "folders": 8}
    half.abort()
    objects.close()


def test_links_in_the_store_are_not_followed(objects: DirectoryObjects, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_bytes(b"mine")
    put(objects, "packs/real", b"data")
    (objects.path / "packs" / "file").symlink_to(outside / "victim")
    (objects.path / "linked").symlink_to(outside)
    for key in ("packs/file", "linked/victim"):
        with pytest.raises(StoreDamaged, match="no regular file"):
            objects.get(key, max_bytes=100)
    with pytest.raises(StoreUnusable):
        put(objects, "linked/new", b"data")
    with pytest.raises(StoreUnusable):
        objects.delete("linked/victim")
    # A put goes over a planted link, not through it.
    put(objects, "packs/file", b"new")
    assert objects.get("packs/file", max_bytes=10) == b"new"
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_bytes() == b"mine"
    assert temporaries(objects) == []


def test_a_fifo_does_not_hold_a_reader(objects: DirectoryObjects) -> None:
    put(objects, "packs/real", b"data")
    os.mkfifo(objects.path / "packs" / "fifo")
    with pytest.raises(StoreDamaged, match="no regular file"):
        objects.get("packs/fifo", max_bytes=100)


def test_the_root_may_be_reached_through_a_link(objects: DirectoryObjects, tmp_path: Path) -> None:
    put(objects, "a", b"data")
    (tmp_path / "link").symlink_to(objects.path)
    other = DirectoryObjects(tmp_path / "link")
    assert other.get("a", max_bytes=4) == b"data"
    other.close()


def test_strange_names_are_no_objects(objects: DirectoryObjects) -> None:
    put(objects, "packs/one", b"data")
    for name in (b".DS_Store", b"-rf", b"with space", b"\xff"):
        (objects.path / "packs" / os.fsdecode(name)).write_bytes(b"")
    assert [info.key for info in objects.list("")] == ["packs/one"]


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="no store at"):
        DirectoryObjects(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"")
    for create in (False, True):
        with pytest.raises(StoreMissing, match="no directory"):
            DirectoryObjects(tmp_path / "file", create=create)


def test_no_descriptor_is_left_open(objects: DirectoryObjects) -> None:
    put(objects, "packs/ab/one", b"data")
    before = len(os.listdir("/proc/self/fd"))
    put(objects, "packs/ab/two", b"data")
    objects.create_if_absent("packs/ab/two", b"")
    objects.put("packs/three").abort()
    list(objects.list(""))
    next(objects.list("packs/"))
    objects.get("packs/ab/one", max_bytes=4)
    objects.delete("packs/ab/one")
    assert len(os.listdir("/proc/self/fd")) == before


def test_listings_of_two_threads_do_not_disturb_each_other(objects: DirectoryObjects) -> None:
    for number in range(300):
        os.mkdir(objects.path / f"d{number:03d}")
        (objects.path / f"d{number:03d}" / "x").write_bytes(b"")
    counts: list[int] = []

    def count() -> None:
        counts.extend(sum(1 for _ in objects.list("")) for _ in range(5))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [300] * 15


# --- unfinished files ---------------------------------------------------------------------------------------------


# cases: openclaw/crawlbar#39, justrach/codedb#52, justrach/codedb#408, openclaw/openclaw#42273
def test_a_killed_writers_file_is_swept_and_a_living_ones_is_not(
    objects: DirectoryObjects, start: Callable[..., subprocess.Popen[str]]
) -> None:
    from sandlift.store import Store

    Store.open(objects.path, create=True).close()
    workers = [start("hold", objects.path) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    assert len(temporaries(objects)) == 2
    workers[0].send_signal(signal.SIGKILL)
    workers[0].wait()
    put(objects, "packs/one", b"data")
    assert len(temporaries(objects)) == 1
    workers[1].send_signal(signal.SIGKILL)
    workers[1].wait()
    # One sweep a process is enough, so another opening does the rest.
    second = DirectoryObjects(objects.path)
    second.create_if_absent("packs/two", b"data")
    second.close()
    assert temporaries(objects) == []


def test_reading_sweeps_nothing(objects: DirectoryObjects) -> None:
    put(objects, "packs/one", b"data")
    (objects.path / "tmp" / "left").write_bytes(b"")
    reader = DirectoryObjects(objects.path)
    reader.get("packs/one", max_bytes=4)
    list(reader.list(""))
    reader.delete("packs/one")
    reader.close()
    assert temporaries(objects) == ["left"]


@pytest.mark.parametrize("when", ["before the lock", "after the lock"])
def test_a_writer_whose_new_file_was_swept_takes_another(objects: DirectoryObjects, when: str) -> None:
    put(objects, "warm", b"")
    taken: list[str] = []

    def before(count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "flock" and not taken:
            (only,) = temporaries(objects)
            taken.append(only)
            if when == "before the lock":
                (objects.path / "tmp" / only).unlink()
            else:
                sweeper = os.open(objects.path / "tmp" / only, os.O_RDWR)
                held.append(sweeper)
                fcntl_flock(sweeper)

    held: list[int] = []

    def fcntl_flock(fd: int) -> None:
        # Another open file description, as another process would have.
        import fcntl

        real_flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    import fcntl

    real_flock = fcntl.flock
    with watched(before):
        put(objects, "a", b"data")
    for fd in held:
        os.close(fd)
    assert len(taken) == 1
    assert objects.get("a", max_bytes=4) == b"data"
    assert temporaries(objects) == []


# --- durability ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["put", "create_if_absent", "create_again"])
def test_file_then_name_then_folders_are_flushed(objects: DirectoryObjects, operation: str) -> None:
    """The file is flushed after its last write and before it has its name; every folder after that."""
    put(objects, "warm", b"")
    if operation == "create_again":
        objects.create_if_absent("refs/team/demo/@1", b"data")
    steps: list[tuple[str, int]] = []

    def before(count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in ("write", "fsync"):
            steps.append((name, os.fstat(args[0]).st_ino))
        if name in ("rename", "link", "mkdir"):
            steps.append((name, 0))

    with watched(before):
        if operation == "put":
            put(objects, "refs/team/demo/@1", b"data")
        else:
            objects.create_if_absent("refs/team/demo/@1", b"data")
    name = "rename" if operation == "put" else "link"
    named = steps.index((name, 0))
    path = objects.path / "refs/team/demo/@1"
    if operation != "create_again":
        inode = path.stat().st_ino
        last_write = max(index for index, step in enumerate(steps) if step == ("write", inode))
        assert last_write < steps.index(("fsync", inode)) < named
    for folder in (path.parents[0], path.parents[1], path.parents[2], objects.path):
        assert steps.index(("fsync", folder.stat().st_ino), named) > named
    assert ("mkdir", 0) not in steps[named:]


def test_writeback_starts_while_an_object_grows(objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "sandlift.store.directory.start_writeback", lambda fd, offset, size: ranges.append((offset, size))
    )
    with objects.put("big") as writer:
        for _ in range(5):
            writer.write(bytes(5 << 20))
        writer.commit()
    assert ranges == [(0, 10 << 20), (10 << 20, 10 << 20)]


def test_writeback_is_harmless_for_real(tmp_path: Path) -> None:
    from sandlift.store.flush import start_writeback

    with open(tmp_path / "file", "wb", buffering=0) as file:
        file.write(b"data")
        start_writeback(file.fileno(), 0, 4)
    start_writeback(-1, 0, 4)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_only_a_folder_that_cannot_be_flushed_is_forgiven(objects: DirectoryObjects, code: int) -> None:
    put(objects, "packs/one", b"data")

    def before(count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode):
            raise OSError(code, os.strerror(code))

    with watched(before):
        if code == errno.EINVAL:
            put(objects, "packs/two", b"data")
        else:
            with pytest.raises(StoreUnusable, match="packs/two"):
                put(objects, "packs/two", b"data")


# --- faults -------------------------------------------------------------------------------------------------------


def write_all(objects: DirectoryObjects, key: str) -> None:
    with objects.put(key) as writer:
        writer.write(b"first part, ")
        writer.write(b"second part")
        writer.commit()


MUTATIONS: dict[str, Callable[[DirectoryObjects], object]] = {
    "put": lambda objects: write_all(objects, "packs/ab/new"),
    "replace": lambda objects: write_all(objects, "packs/old"),
    "create": lambda objects: objects.create_if_absent("refs/demo/@1", b"data"),
    "delete": lambda objects: objects.delete("packs/old"),
}


def contents(objects: DirectoryObjects) -> dict[str, bytes]:
    return {info.key: objects.get(info.key, max_bytes=100) for info in objects.list("")}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_fault_at_any_call_leaves_the_old_state_or_the_new(tmp_path: Path, mutation: str, code: int) -> None:
    """The N-th system call fails, for N = 1, 2, ... until none does."""
    before_all = {"packs/old": b"old"}
    faults = 0
    for number in range(1, 200):
        objects = DirectoryObjects(tmp_path / f"{number}", create=True)
        put(objects, "packs/old", b"old")
        open_files = len(os.listdir("/proc/self/fd"))
        reached: list[str] = []

        def fail(
            count: int, name: str, args: object, kwargs: object, number: int = number, reached: list[str] = reached
        ) -> None:
            # A close that fails has closed nevertheless: that is Linux, and no wrapper can imitate it.
            if count == number and name != "close":
                reached.append(name)
                raise OSError(code, os.strerror(code))
            if count == number:
                reached.append(name)

        raised: StoreError | None = None
        try:
            with watched(fail):
                MUTATIONS[mutation](objects)
        except StoreError as error:
            raised = error
        state = contents(objects)
        assert len(os.listdir("/proc/self/fd")) == open_files, reached
        if raised is not None:
            faults += 1
            assert isinstance(raised, StoreFull if code == errno.ENOSPC else StoreUnusable)
            assert str(tmp_path) in str(raised)
            assert raised.hint
        if reached == ["unlink"] and mutation != "delete":
            assert len(temporaries(objects)) == 1  # what could not be removed waits for the next sweep
        else:
            assert temporaries(objects) == []
        done = tmp_path / "done"
        complete = DirectoryObjects(done, create=True)
        put(complete, "packs/old", b"old")
        MUTATIONS[mutation](complete)
        assert state in (before_all, contents(complete)), reached
        if raised is None:
            assert state == contents(complete)
        complete.close()
        objects.close()
        if not reached:
            assert faults >= 2
            return
    raise AssertionError("the operation never ends")


def fill(objects: DirectoryObjects) -> int:
    """Puts objects until the store is full; returns how many."""
    for number in range(1000):
        try:
            put(objects, f"packs/f{number}", secrets.token_bytes(20_000))
        except StoreFull as error:
            assert "No space left" in error.message
            return number
    return 1000


@pytest.mark.parametrize("limit", ["size=256k", "nr_inodes=12"])
def test_a_full_disk_for_real(tmp_path: Path, limit: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small file system cannot be mounted without root: run the tests as root")
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "tmpfs", mount], capture_output=True, text=True)
    if made.returncode:
        pytest.skip("tmpfs cannot be mounted here: run the tests where mount is allowed")
    try:
        objects = DirectoryObjects(mount / "store", create=True)
        put(objects, "packs/one", b"data")
        # Space ends inside a write, or inodes end at an open.
        filler = fill(objects)
        assert 1 <= filler < 1000
        assert temporaries(objects) == []
        with pytest.raises(StoreFull):
            objects.create_if_absent("refs/demo/@1", bytes(40_000))
        assert temporaries(objects) == []
        assert [info.key for info in objects.list("refs/")] == []
        assert objects.get("packs/one", max_bytes=4) == b"data"
        for number in range(filler):
            objects.delete(f"packs/f{number}")
        assert objects.create_if_absent("refs/demo/@1", bytes(40_000)) is True
        objects.close()
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)


def test_a_read_only_store_can_be_read_and_says_what_it_is(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a read-only file system cannot be mounted without root: run the tests as root")
    objects = DirectoryObjects(tmp_path / "store", create=True)
    put(objects, "packs/one", b"data")
    objects.close()
    if subprocess.run(["mount", "--bind", objects.path, objects.path], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here: run the tests where mount is allowed")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", objects.path], check=True)
        reader = DirectoryObjects(objects.path)
        assert reader.get("packs/one", max_bytes=4) == b"data"
        with pytest.raises(StoreUnusable) as caught:
            put(reader, "packs/two", b"data")
        assert "read-only" in caught.value.hint
        reader.close()
    finally:
        subprocess.run(["umount", "--lazy", objects.path], check=True)
