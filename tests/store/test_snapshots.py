"""Snapshots: stored under their identity, refused when anything in them is wrong."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
from array import array
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
import zstandard
from store.samples import digest, snapshot_of
from store.test_packs import need

from sandlift.errors import StoreDamaged, StoreNewer
from sandlift.store import Store, StoredSnapshot, snapshots
from sandlift.store.objects import UnknownObject

PACKS = ["ab" * 16, "cd" * 16]
SAMPLE = snapshot_of(
    [(digest(b"a"), PACKS[0], 0), (digest(b"b"), PACKS[1], 1 << 40), (digest(b"c"), PACKS[0], 1024)],
    originals=b"texts",
)


def path_of(store: Store, snapshot: StoredSnapshot) -> Path:
    return Path(store.location) / snapshots.key_of(snapshot.identity)


def write(store: Store, snapshot: StoredSnapshot, **changes: Any) -> None:
    """Writes a snapshot by hand, field by field."""
    fields = {
        "format": 1,
        "sealed": None,
        "manifest": snapshot.manifest,
        "originals": snapshot.originals,
        "packs": list(snapshot.packs),
        "places": struct.pack("<3I", *snapshot.pack_index) + struct.pack("<3Q", *snapshot.offsets),
    }
    path = path_of(store, snapshot)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(msgpack.packb(fields | changes)))


@pytest.mark.parametrize(
    "snapshot",
    [SAMPLE, snapshot_of([]), dataclasses.replace(SAMPLE, manifest=bytes(5 << 20), identity=digest(bytes(5 << 20)))],
    ids=["sample", "empty", "large"],
)
def test_a_snapshot_comes_back_as_it_was(store: Store, snapshot: StoredSnapshot) -> None:
    assert not store.has_snapshot(snapshot.identity)
    store.put_snapshot(snapshot)
    assert store.has_snapshot(snapshot.identity)
    assert store.load(snapshot.identity) == snapshot
    store.put_snapshot(snapshot)
    assert store.load(snapshot.identity) == snapshot


def test_the_form_is_the_documented_one(store: Store) -> None:
    store.put_snapshot(SAMPLE)
    written = path_of(store, SAMPLE).read_bytes()
    assert zstandard.get_frame_parameters(written).has_checksum
    write(store, SAMPLE)
    by_hand = path_of(store, SAMPLE).read_bytes()
    fields = msgpack.unpackb(zstandard.decompress(written))
    assert fields == msgpack.unpackb(zstandard.decompress(by_hand))
    assert store.load(SAMPLE.identity) == SAMPLE


def test_zstd_accepts_the_checksum(store: Store) -> None:
    need("zstd")
    store.put_snapshot(SAMPLE)
    with open(path_of(store, SAMPLE), "rb") as file:
        done = subprocess.run(["zstd", "-dc"], stdin=file, capture_output=True, check=True)
    assert msgpack.unpackb(done.stdout)["manifest"] == SAMPLE.manifest


def test_putting_again_replaces_the_places(store: Store) -> None:
    store.put_snapshot(SAMPLE)
    moved = dataclasses.replace(SAMPLE, packs=("ef" * 16,), pack_index=array("I", [0, 0, 0]))
    store.put_snapshot(moved)
    assert store.load(SAMPLE.identity) == moved


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": digest(b"other")},
        {"offsets": array("Q", [0])},
        {"pack_index": array("I", [0, 1, 2])},
        {"packs": ("ab" * 16, "../../etc")},
    ],
)
def test_a_value_that_contradicts_itself_is_our_fault(store: Store, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"identity|places|name of a pack"):
        store.put_snapshot(dataclasses.replace(SAMPLE, **changes))
    assert list(store.objects.list("snapshots/")) == []


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"format": 2}, StoreNewer, "snapshots/.* has format 2"),
        ({"sealed": "age"}, StoreNewer, "sealed as 'age'"),
        ({"manifest": b"other"}, StoreDamaged, "does not hash to its name"),
        ({"manifest": "text"}, StoreDamaged, "lacks a field"),
        ({"originals": None}, StoreDamaged, "lacks a field"),
        ({"places": bytes(35)}, StoreDamaged, "lacks a field"),
        ({"packs": "ab" * 16}, StoreDamaged, "lacks a field"),
        ({"packs": ["ab" * 16]}, StoreDamaged, "pack that it does not name"),
        ({"packs": ["ab" * 16, "../x"]}, StoreDamaged, "pack that cannot exist"),
        ({"packs": ["ab" * 16, 7]}, StoreDamaged, "pack that cannot exist"),
    ],
)
def test_a_wrong_field_is_refused(store: Store, changes: dict[str, Any], error: type[Exception], text: str) -> None:
    write(store, SAMPLE, **changes)
    with pytest.raises(error, match=text):
        store.load(SAMPLE.identity)


def test_every_cut_and_flip_is_damage_or_harmless(store: Store) -> None:
    """A few bits mean nothing to zstd: the unused one of the header, the padding of a bit stream."""
    store.put_snapshot(SAMPLE)
    path = path_of(store, SAMPLE)
    data = path.read_bytes()
    wrong = [data[:size] for size in range(len(data))] + [data + b"\0", data + data]
    for index in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[index] ^= 1 << bit
            wrong.append(bytes(flipped))
    harmless = 0
    for variant in wrong:
        path.write_bytes(variant)
        try:
            assert store.load(SAMPLE.identity) == SAMPLE
            harmless += 1
        except StoreDamaged:
            pass
    assert harmless <= 4


def test_a_missing_snapshot(store: Store) -> None:
    with pytest.raises(UnknownObject):
        snapshots.get(store.objects, SAMPLE.identity)
    with pytest.raises(StoreDamaged, match="is missing"):
        store.load(SAMPLE.identity)


def test_find_by_prefix(store: Store) -> None:
    made = [snapshot_of([(digest(b"%d" % number), PACKS[0], 0)]) for number in range(40)]
    for snapshot in made:
        store.put_snapshot(snapshot)
    identities = sorted(snapshot.identity for snapshot in made)
    assert snapshots.find(store.objects, "") == identities
    for length in (1, 2, 3, 6, 64):
        prefix = identities[7].hex()[:length]
        expected = [identity for identity in identities if identity.hex().startswith(prefix)]
        assert snapshots.find(store.objects, prefix) == expected
    assert snapshots.find(store.objects, "f" * 64) == []


def test_other_files_are_no_snapshots(store: Store) -> None:
    store.put_snapshot(SAMPLE)
    folder = path_of(store, SAMPLE).parent
    (folder / "README").write_bytes(b"")
    other = Path(store.location) / "snapshots" / "zz"
    other.mkdir()
    (other / SAMPLE.identity.hex()).write_bytes(b"")
    assert snapshots.find(store.objects, "") == [SAMPLE.identity]
