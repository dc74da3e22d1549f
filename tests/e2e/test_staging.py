"""What is left beside a target when a restore is killed, and who removes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest
import zstandard

from sandlift.box import connect
from sandlift.errors import DeadlineExceeded, SandliftError, StoreDamaged
from sandlift.restoring import sender
from sandlift.store import Store
from sandlift_helper import members
from sandlift_helper.staging import NEW
from support.sshd import descendants
from support.tree import Dir, File, Link, assert_equal, make, read, tree

WORKSPACE = tree({b"a": File(b"a" * 3_000_000), b"d": Dir(mode=0o555), b"d/b": File(b"b"), b"l": Link(b"d/b")})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(tmp_path / "store", create=True)
    make(WORKSPACE, tmp_path / "work")
    with connect(str(tmp_path / "work")) as box:
        box.capture(made, "demo")
    return made


def stages(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.endswith(NEW.decode())]


def restore(store: Store, target: Path) -> None:
    with connect(str(target)) as box:
        box.restore(store, "demo")


def left_by_a_killed_restore(store: Store, target: Path) -> Path:
    """Kills the helper once it has begun to stage, before the last content frame; returns what it left."""
    others = set(descendants(os.getpid()))

    def kill(*_: object) -> None:
        deadline = time.monotonic() + 20
        while not any((stage / "d").exists() for stage in stages(target.parent)) and time.monotonic() < deadline:
            time.sleep(0.001)
        for pid in set(descendants(os.getpid())) - others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sender.Sender, "_send_stored", kill)
        with pytest.raises(SandliftError):
            restore(store, target)
    assert not target.exists()
    (left,) = stages(target.parent)
    return left


def test_what_a_killed_restore_left_is_removed_by_the_next(store: Store, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    left = left_by_a_killed_restore(store, tmp_path / "to" / "out")
    # As if it had come as far as the directories' own modes.
    os.chmod(left / "d", 0)
    restore(store, tmp_path / "to" / "out")
    assert stages(tmp_path / "to") == []
    assert_equal(read(tmp_path / "work"), read(tmp_path / "to" / "out"))


def test_what_a_living_restore_has_stays(store: Store, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    left = left_by_a_killed_restore(store, tmp_path / "to" / "out")
    alive = os.open(left, os.O_RDONLY)
    fcntl.flock(alive, fcntl.LOCK_EX)
    with connect(str(tmp_path / "to" / "out")) as box, pytest.raises(DeadlineExceeded):
        box.restore(store, "demo", deadline_s=1.5)
    assert stages(tmp_path / "to") == [left]
    assert not (tmp_path / "to" / "out").exists()
    os.close(alive)
    restore(store, tmp_path / "to" / "out")
    assert stages(tmp_path / "to") == []


@pytest.mark.parametrize("zstd", [True, False])
def test_a_block_that_is_another_in_the_store_is_never_set_down(store: Store, tmp_path: Path, zstd: bool) -> None:
    """The frame decodes and its members are in form: only the hash can tell, whoever decodes it."""
    snapshot = store.load(store.resolve("demo"))
    (name,) = snapshot.packs
    pack = store.pack(name)
    frames = [bytearray(pack.decode_frame(index)) for index in range(len(pack))]
    store.objects.delete(pack.key)
    frames[0][members.HEADER_SIZE] ^= 1
    with store.begin_pack(name) as writer:
        for frame in frames:
            writer.append(zstandard.ZstdCompressor(write_content_size=True).compress(frame), len(frame))
        writer.commit()
    (tmp_path / "to").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if not zstd:
            begin = sender.Sender.__init__
            patch.setattr(sender.Sender, "__init__", lambda self, *rest, zstd: begin(self, *rest, zstd=False))
        with pytest.raises(StoreDamaged, match="does not hash to its name"):
            restore(store, tmp_path / "to" / "out")
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize(
    "name", [".other.0123456789abcdef.sandlift-new", ".out.0123456789abcdeX.sandlift-new", ".out.sandlift-new", ".out"]
)
def test_what_has_another_name_stays(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / "to" / name).mkdir(parents=True)
    restore(store, tmp_path / "to" / "out")
    assert (tmp_path / "to" / name).is_dir()


def test_a_link_in_the_place_of_what_was_left_is_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "sentinel").mkdir(mode=0o500)
    (tmp_path / "to").mkdir()
    link = tmp_path / "to" / ".out.0123456789abcdef.sandlift-new"
    link.symlink_to(tmp_path / "sentinel")
    restore(store, tmp_path / "to" / "out")
    assert link.is_symlink()
    assert (tmp_path / "sentinel").stat().st_mode & 0o777 == 0o500
