"""Verification finds every kind of damage and says which refs it costs."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from store.samples import check, digest, frame_of, put_pack, record_of, save, snapshot_of

from sandlift.errors import InvalidManifest, StoreNewer
from sandlift.manifest import Manifest
from sandlift.store import RefRecord, Store, records, refs, snapshots
from sandlift.store.objects import ObjectInfo
from sandlift.store.packs import key_of
from sandlift.store.verify import verify_with
from sandlift_helper import members, table


def pack_path(store: Store, record: RefRecord) -> Path:
    return Path(store.location) / key_of(store.load(record).packs[0])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def put_frame(store: Store, run: bytes) -> str:
    """Stores a pack whose only frame holds *run*, whatever that is."""
    with store.begin_pack("ee" * 16) as pack:
        pack.append(frame_of(run), len(run))
        pack.commit()
    return key_of("ee" * 16)


def test_a_sound_store(store: Store) -> None:
    save(store, "demo", [[b"one", b"two"], [b"three"]])
    save(store, "demo", [[b"four"]])
    save(store, "team/web", [[b"one"]])
    steps: list[tuple[int, int]] = []
    report = verify_with(store.objects, lambda manifest: manifest, lambda done, total: steps.append((done, total)))
    stored = sum(info.size_bytes for prefix in ("packs/", "snapshots/", "refs/") for info in store.objects.list(prefix))
    assert (report.packs, report.snapshots, report.refs, report.bytes) == (3, 3, 3, stored)
    assert report.is_sound
    assert report.damaged == ()
    assert steps == sorted(steps)
    assert steps[-1] == (stored, stored)


def test_an_empty_store_is_sound(store: Store) -> None:
    report = check(store)
    assert (report.packs, report.snapshots, report.refs, report.bytes, report.damaged) == (0, 0, 0, 0, ())


def test_garbage_of_a_crash_is_no_damage(store: Store) -> None:
    info, offsets = put_pack(store, [[b"nobody names it"]])
    assert check(store).is_sound
    store.put_snapshot(snapshot_of([(named, info.name, offset) for named, offset in offsets.items()]))
    assert check(store).is_sound


@pytest.mark.parametrize("part", ["head", "block", "tail", "table", "footer"])
def test_a_flipped_bit_in_a_pack_names_the_refs(store: Store, part: str) -> None:
    first = save(store, "demo", [[b"one", b"two"], [b"three"]])
    again = store.create_ref(record_of(store.load(first), "demo"))
    other = store.create_ref(record_of(store.load(first), "team/web"))
    save(store, "bystander", [[b"five"]])
    path = pack_path(store, first)
    pack = store.pack(path.name)
    middle_of_block = pack.compressed_offset[0] + pack.compressed_size[0] // 2
    tail = pack.compressed_offset[-1] + pack.compressed_size[-1]
    positions = {"head": 20, "block": middle_of_block, "tail": tail + 2, "table": -20, "footer": -1}
    flip(path, positions[part])
    report = check(store)
    (damage,) = report.damaged
    assert damage.object == key_of(path.name)
    assert damage.refs == (first.name, again.name, other.name) == ("demo@1", "demo@2", "team/web@1")
    assert key_of(path.name) in damage.reason


# cases: markmhendrickson/neotoma#2075, Abilityai/trinity#2060
def test_every_flipped_bit_is_found_unless_the_blocks_are_right(store: Store) -> None:
    blocks = [b"one", b"two", b"three"]
    record = save(store, "demo", [blocks[:2], blocks[2:]])
    snapshot = store.load(record)
    path = pack_path(store, record)
    data = path.read_bytes()
    silent = 0
    for position in range(len(data)):
        path.write_bytes(data)
        flip(path, position)
        report = check(store)
        if report.is_sound:
            silent += 1
            for index, block in enumerate(blocks):
                assert store.read_block(snapshot, index, digest(block)) == block
        else:
            assert [damage.refs for damage in report.damaged] == [("demo@1",)]
    # zstd itself ignores a bit of each frame's header.
    assert silent <= 4


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_cut_off_pack_names_the_refs(store: Store, kept: int) -> None:
    record = save(store, "demo", [[b"one", b"two"]])
    path = pack_path(store, record)
    path.write_bytes(path.read_bytes()[:kept])
    (damage,) = check(store).damaged
    assert damage.object == key_of(path.name)
    assert damage.refs == ("demo@1",)


def test_a_missing_pack_names_the_refs(store: Store) -> None:
    record = save(store, "demo", [[b"one"]])
    path = pack_path(store, record)
    path.unlink()
    (damage,) = check(store).damaged
    assert (damage.object, damage.refs) == (key_of(path.name), ("demo@1",))
    assert "missing" in damage.reason


def test_a_block_under_another_blocks_name(store: Store) -> None:
    run = members.header(digest(b"what it says"), 4) + b"lies" + bytes(508)
    key = put_frame(store, run)
    (damage,) = check(store).damaged
    assert (damage.object, damage.refs) == (key, ())
    assert "does not hash to its name" in damage.reason


def test_a_frame_that_is_no_run_of_blocks(store: Store) -> None:
    key = put_frame(store, bytes(1024))
    (damage,) = check(store).damaged
    assert damage.object == key
    assert "no run of blocks" in damage.reason


def test_a_tail_that_is_no_end_of_an_archive(store: Store) -> None:
    record = save(store, "demo", [[b"one"]])
    path = pack_path(store, record)
    pack = store.pack(path.name)
    data = path.read_bytes()
    start = pack.compressed_offset[-1] + pack.compressed_size[-1]
    tail, wrong = frame_of(bytes(1024)), frame_of(b"x" * 1024)
    assert data[start : start + len(tail)] == tail
    assert len(wrong) == len(tail)
    path.write_bytes(data[:start] + wrong + data[start + len(tail) :])
    (damage,) = check(store).damaged
    assert "not the end of an archive" in damage.reason


@pytest.mark.parametrize("place", ["offset", "other block"])
def test_a_wrong_place_is_the_snapshots_damage(store: Store, place: str) -> None:
    info, offsets = put_pack(store, [[b"one", b"two"]])
    wrong = 512 if place == "offset" else offsets[digest(b"two")]
    snapshot = snapshot_of([(digest(b"one"), info.name, wrong)])
    store.put_snapshot(snapshot)
    store.create_ref(record_of(snapshot))
    (damage,) = check(store).damaged
    assert (damage.object, damage.refs) == (snapshots.key_of(snapshot.identity), ("demo@1",))
    assert digest(b"one").hex() in damage.reason


# cases: markmhendrickson/neotoma#2075
def test_a_block_without_a_place(store: Store) -> None:
    record = save(store, "demo", [[b"one"]])
    report = verify_with(store.objects, lambda manifest: manifest + digest(b"two"))
    (damage,) = report.damaged
    assert damage.object == snapshots.key_of(bytes.fromhex(record.snapshot))
    assert "places for 1 of its 2 blocks" in damage.reason


@pytest.mark.parametrize("error", [InvalidManifest("makes no sense"), ValueError("makes no sense")], ids=repr)
def test_a_manifest_that_cannot_be_read(store: Store, error: Exception) -> None:
    save(store, "demo", [[b"one"]])

    def refuse(manifest: bytes) -> bytes:
        raise error

    (damage,) = verify_with(store.objects, refuse).damaged
    assert damage.refs == ("demo@1",)
    assert damage.reason.endswith("its manifest cannot be read: makes no sense")


def test_a_real_manifest(store: Store) -> None:
    """The store's own verification, with the function that reads real manifests."""
    rows = table.Segment()
    rows.root = table.Root(0o755, 0, 0, 0)
    for path, content in ((b"a", b"same"), (b"b", b"other"), (b"c", b"same")):
        rows.add_file(path, 0o644, 0, 0, 0, len(content), digests=[digest(content)])
    manifest = Manifest(rows)
    info, offsets = put_pack(store, [[b"other"], [b"same"]])
    places = [(named, info.name, offsets[named]) for named in (digest(b"same"), digest(b"other"))]
    snapshot = dataclasses.replace(snapshot_of(places), identity=manifest.identity, manifest=manifest.encoded)
    store.put_snapshot(snapshot)
    store.create_ref(record_of(snapshot))
    assert store.verify().is_sound
    store.put_snapshot(dataclasses.replace(snapshot, offsets=array("Q", reversed(snapshot.offsets))))
    (damage,) = store.verify().damaged
    assert damage.refs == ("demo@1",)


@pytest.mark.parametrize("how", ["flip", "cut", "missing"])
def test_a_damaged_snapshot_names_its_refs(store: Store, how: str) -> None:
    record = save(store, "demo", [[b"one"]])
    store.create_ref(record_of(store.load(record), "demo"))
    save(store, "other", [[b"two"]])
    key = snapshots.key_of(bytes.fromhex(record.snapshot))
    path = Path(store.location) / key
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, 40)
    (damage,) = check(store).damaged
    assert (damage.object, damage.refs) == (key, ("demo@1", "demo@2"))


@pytest.mark.parametrize("how", ["flip", "cut", "link"])
def test_a_damaged_ref_names_itself(store: Store, how: str) -> None:
    for number in range(3):
        save(store, "demo", [[b"%d" % number]])
    key = refs.key_of("demo", 2)
    path = Path(store.location) / key
    if how == "cut":
        path.write_bytes(path.read_bytes()[:50])
    elif how == "flip":
        flip(path, 60)
    else:
        path.unlink()
        path.symlink_to("@0000000001")
    (damage,) = check(store).damaged
    assert (damage.object, damage.refs) == (key, ("demo@2",))


def test_refs_are_named_in_the_order_of_their_numbers(store: Store) -> None:
    first = save(store, "demo", [[b"one"]])
    for _ in range(10):
        store.create_ref(record_of(store.load(first), "demo"))
    pack_path(store, first).unlink()
    (damage,) = check(store).damaged
    assert damage.refs == tuple(f"demo@{number}" for number in range(1, 12))


def test_a_tombstone_is_no_damage(store: Store) -> None:
    save(store, "demo", [[b"one"]])
    fields = {"format": 1, "sealed": None, "workspace": "demo", "number": 2, "pruned": "2026-01-01T00:00:00Z"}
    store.objects.create_if_absent(refs.key_of("demo", 2), records.encode(fields))
    report = check(store)
    assert report.is_sound
    assert report.refs == 2


def test_a_capture_that_commits_meanwhile_is_no_damage(store: Store) -> None:
    save(store, "demo", [[b"one"]])
    late: list[RefRecord] = []

    def commit_late(done: int, total: int) -> None:
        if not late:
            late.append(save(store, "demo", [[b"late"]]))

    assert verify_with(store.objects, lambda manifest: manifest, commit_late).is_sound
    assert check(store).refs == 2


@pytest.mark.parametrize("when", [1, 2, 3])
def test_a_capture_that_commits_between_the_listings(store: Store, monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    save(store, "demo", [[b"one"]])
    listed: list[str] = []
    original = store.objects.list

    def list_late(prefix: str) -> Iterator[ObjectInfo]:
        listed.append(prefix)
        if len(listed) == when:
            monkeypatch.undo()
            save(store, "demo", [[b"late"]])
            monkeypatch.setattr(store.objects, "list", list_late)
        return original(prefix)

    monkeypatch.setattr(store.objects, "list", list_late)
    report = check(store)
    assert report.is_sound
    assert len(listed) == 3
    # Whatever a ref that was read names was read as well.
    assert report.packs >= report.snapshots >= report.refs >= 1


def test_a_snapshot_that_moved_meanwhile_is_no_damage(store: Store) -> None:
    """Repacking puts the snapshot again, with places in a pack that the listing does not know."""
    record = save(store, "demo", [[b"one"], [b"two"]])
    old = pack_path(store, record)
    moved: list[str] = []

    def repack(done: int, total: int) -> None:
        if not moved:
            info, offsets = put_pack(store, [[b"one", b"two"]])
            moved.append(info.name)
            store.put_snapshot(snapshot_of([(named, info.name, offset) for named, offset in offsets.items()]))

    report = verify_with(store.objects, lambda manifest: manifest, repack)
    assert report.is_sound
    assert report.packs == 2
    assert old.exists()


def test_a_newer_object_cannot_be_judged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(records, "FORMAT", 2)
        put_pack(store, [[b"one"]])
    with pytest.raises(StoreNewer, match="format 2"):
        check(store)
