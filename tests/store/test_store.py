"""Opening a store, and reading blocks through it."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from store.samples import check, digest, put_pack, save, snapshot_of

from sandlift.errors import BadURL, StoreDamaged, StoreMissing, StoreNewer
from sandlift.store import RefRecord, Store, default_store_path, records
from sandlift.store.directory import DirectoryObjects
from sandlift.store.location import store_path
from sandlift.store.packs import key_of


def test_a_new_store_has_a_mark_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store"
    with Store.open(path, create=True) as store:
        fields = records.decode(store.objects.get("format", max_bytes=1000), "it")
        assert fields["sandlift-store"] == 1
        assert fields["sealed"] is None
        assert isinstance(fields["created"], str)
    mark = (path / "format").read_bytes()
    for create in (True, False):
        with Store.open(f"file:{path}", create=create) as store:
            assert store.location == str(path)
    assert (path / "format").read_bytes() == mark
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_missing_store_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing) as caught:
        Store.open(tmp_path / "none")
    assert "capture" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreMissing):
        Store.open(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_an_empty_directory_becomes_a_private_store(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.mkdir()
    path.chmod(0o755)
    Store.open(path, create=True).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["file.txt", ".git", "packs"])
def test_a_directory_of_other_things_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(StoreMissing, match="is no store") as caught:
        Store.open(tmp_path, create=True)
    assert "empty directory" in caught.value.hint
    assert os.listdir(tmp_path) == [name]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_creators_at_the_same_time_agree(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)
    marks: list[bytes] = []

    def create() -> None:
        barrier.wait()
        with Store.open(tmp_path / "store", create=True) as store:
            marks.append(store.objects.get("format", max_bytes=1000))

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(marks) == 6
    assert len(set(marks)) == 1


def test_a_store_made_by_another_after_the_first_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is empty when the mark is looked for, and a store when its content is."""
    original = DirectoryObjects.is_vacant

    def is_vacant_late(objects: DirectoryObjects, *, but: str) -> bool:
        monkeypatch.undo()
        Store.open(tmp_path / "store", create=True).close()
        return original(objects, but=but)

    monkeypatch.setattr(DirectoryObjects, "is_vacant", is_vacant_late)
    Store.open(tmp_path / "store", create=True).close()
    assert sorted(os.listdir(tmp_path / "store")) == ["format", "tmp"]
    assert os.listdir(tmp_path / "store/tmp") == []


# cases: quirq-ai/xo-space#42, onyx-dot-app/onyx#11909
@pytest.mark.parametrize(
    ("fields", "text"),
    [({"sandlift-store": 2, "sealed": None}, "format 2"), ({"sandlift-store": 1, "sealed": "age"}, "sealed as 'age'")],
)
def test_a_newer_store_is_refused_by_name(tmp_path: Path, fields: dict[str, object], text: str) -> None:
    Store.open(tmp_path / "store", create=True).close()
    (tmp_path / "store/format").write_bytes(records.encode(fields))
    for create in (True, False):
        with pytest.raises(StoreNewer, match=text) as caught:
            Store.open(tmp_path / "store", create=create)
        assert str(tmp_path) in caught.value.message


def test_a_damaged_mark(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True).close()
    (tmp_path / "store/format").write_bytes(b"junk")
    with pytest.raises(StoreDamaged, match="does not match its own digest"):
        Store.open(tmp_path / "store")


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("FILE:/a/b", "/a/b"),
        ("file:/a%20b", "/a%20b"),
        ("rel", "{cwd}/rel"),
        ("file:rel", "{cwd}/rel"),
        ("with:colon", "{cwd}/with:colon"),
        (Path("file:odd"), "{cwd}/file:odd"),
    ],
)
def test_locations(where: str | Path, path: str) -> None:
    expected = path.format(cwd=Path.cwd())
    assert os.path.normpath(store_path(where)) == os.path.normpath(expected)


@pytest.mark.parametrize(
    "where", ["", "file:", "s3://bucket/x", "https://host/x", "file://host/x", "a\0b", "ssh://h/x"]
)
def test_bad_locations(where: str) -> None:
    with pytest.raises(BadURL):
        store_path(where)


def test_the_default_store_is_in_the_users_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/home/me/data")
    assert default_store_path() == Path("/home/me/data/sandlift/store")


def test_blocks_are_read_through_their_places(store: Store) -> None:
    runs = [[b"one", b"two"], [b"three" * 1000]]
    record = save(store, "demo", runs)
    snapshot = store.load(record)
    blocks = [block for run in runs for block in run]
    reader = store.blocks(snapshot)
    for index in (0, 1, 2, 1, 0):
        assert reader.read(index, digest(blocks[index])) == blocks[index]
        assert store.read_block(snapshot, index, digest(blocks[index])) == blocks[index]
    with pytest.raises(IndexError):
        reader.read(3, digest(b""))
    with pytest.raises(StoreDamaged, match="does not hold the block"):
        reader.read(0, digest(b"another"))


def test_blocks_of_two_packs(store: Store) -> None:
    first, at_first = put_pack(store, [[b"one"]])
    second, at_second = put_pack(store, [[b"two"], [b"three"]])
    places = [(named, first.name, offset) for named, offset in at_first.items()]
    places += [(named, second.name, offset) for named, offset in at_second.items()]
    snapshot = snapshot_of(places)
    store.put_snapshot(snapshot)
    reader = store.blocks(store.load(snapshot.identity))
    assert [reader.read(index, digest(block)) for index, block in enumerate([b"one", b"two", b"three"])] == [
        b"one",
        b"two",
        b"three",
    ]


@pytest.mark.parametrize("offset", [1, 512, 2048, 1 << 60])
def test_a_place_that_is_no_members_is_damage(store: Store, offset: int) -> None:
    info, _ = put_pack(store, [[b"one", b"two"]])
    snapshot = snapshot_of([(digest(b"one"), info.name, offset)])
    with pytest.raises(StoreDamaged):
        store.read_block(snapshot, 0, digest(b"one"))


def test_a_block_with_a_flipped_bit_is_never_returned(store: Store) -> None:
    block = bytes(range(256)) * 20
    record = save(store, "demo", [[block]])
    snapshot = store.load(record)
    (path,) = [path for path in (Path(store.location) / "packs").rglob("*") if path.is_file()]
    data = path.read_bytes()
    pack = store.pack(snapshot.packs[0])
    start, size = pack.compressed_offset[0], pack.compressed_size[0]
    refused = 0
    for position in range(start, start + size):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        try:
            assert store.read_block(snapshot, 0, digest(block)) == block
        except StoreDamaged:
            refused += 1
    assert refused >= size - 1


def test_load_takes_a_ref_or_an_identity(store: Store) -> None:
    record = save(store, "demo", [[b"one"]])
    named = store.resolve("demo")
    assert isinstance(named, RefRecord)
    assert store.load(named) == store.load(bytes.fromhex(record.snapshot))
    store.objects.delete(f"snapshots/{record.snapshot[:2]}/{record.snapshot}")
    with pytest.raises(StoreDamaged, match=f"{record.snapshot} of demo@1 is missing"):
        store.load(named)
    assert not check(store).is_sound


@pytest.mark.parametrize("missing", ["nothing", "snapshot", "pack", "table"])
def test_a_whole_snapshot_has_all_its_packs(store: Store, missing: str) -> None:
    record = save(store, "demo", [[b"one"]])
    identity = bytes.fromhex(record.snapshot)
    pack = key_of(store.load(record).packs[0])
    assert store.packs_of(identity) is not None
    if missing == "snapshot":
        store.objects.delete(f"snapshots/{record.snapshot[:2]}/{record.snapshot}")
    elif missing == "pack":
        store.objects.delete(pack)
    elif missing == "table":
        os.truncate(Path(store.location) / pack, 100)
    assert (store.packs_of(identity) is not None) is (missing == "nothing")
