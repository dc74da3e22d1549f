"""Targets for the objects of a store, which may be damaged."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from functools import cache
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import zstandard
from fuzz.invariants import hold

from sandlift.errors import StoreDamaged, StoreNewer
from sandlift.manifest import Manifest
from sandlift.store import Store, packs, refs, snapshots
from sandlift.store.directory import DirectoryObjects

PACK = "ab" * 16
WORKSPACE = "demo"


@cache
def store() -> Store:
    """A store below the folder for temporary files; it stays for the life of the process."""
    return Store.open(Path(tempfile.mkdtemp(prefix="fuzz-")) / "store", create=True)


def _plant(key: str, data: bytes) -> DirectoryObjects:
    objects = store().objects
    path = objects.path / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return objects


def pack(data: bytes) -> None:
    """A pack: an accepted seek table covers the file, and frames decode to the sizes that it states."""
    objects = _plant(packs.key_of(PACK), data)
    try:
        opened = packs.PackReader(objects, PACK)
    except (StoreDamaged, StoreNewer):
        return
    compressed = [opened.compressed_offset[0], *opened.compressed_size]
    table_size = 8 + 8 * (len(compressed) + 1) + 9
    compressed.append(len(data) - table_size - sum(compressed))
    sizes = zip(compressed, (0, *opened.decoded_size, 1024), strict=True)
    written = b"".join(value.to_bytes(4, "little") for pair in sizes for value in pair)
    frames = len(compressed).to_bytes(4, "little")
    expected = b"\x5e\x2a\x4d\x18%s%s%s\0\xb1\xea\x92\x8f" % ((table_size - 8).to_bytes(4, "little"), written, frames)
    hold(data.endswith(expected) and len(expected) == table_size, "the seek table is not the one of its frames")
    edges = [*opened.decoded_offset, opened.blocks_bytes]
    for index, (start, end) in enumerate(itertools.pairwise(edges)):
        hold(opened.frame_index(start) == opened.frame_index(end - 1) == index, "an offset leads to another frame")
    for index in range(min(len(opened), 8)):
        try:
            hold(len(opened.decode_frame(index)) == opened.decoded_size[index], "a frame decodes to another size")
        except StoreDamaged:
            continue
    try:
        opened.check_tail()
    except StoreDamaged:
        return


def identity_in(data: bytes) -> bytes:
    """The identity that a snapshot object can stand under: its manifest's digest, or zeros where there is none."""
    try:
        if not 0 <= zstandard.frame_content_size(data) <= 1 << 20:
            return bytes(32)
        decoded = zstandard.ZstdDecompressor(max_window_size=1 << 20).decompress(data)
        manifest = msgpack.unpackb(decoded, raw=False, unicode_errors="surrogateescape")["manifest"]
        return hashlib.sha256(manifest).digest()
    except (zstandard.ZstdError, msgpack.UnpackException, ValueError, TypeError, KeyError, IndexError):
        return bytes(32)


def snapshot(data: bytes) -> None:
    """A snapshot object: what is read can be stored and read again."""
    identity = identity_in(data)
    objects = _plant(snapshots.key_of(identity), data)
    try:
        stored = snapshots.get(objects, identity)
    except (StoreDamaged, StoreNewer):
        return
    finally:
        objects.delete(snapshots.key_of(identity))
    hold(len(stored.pack_index) == len(stored.offsets), "places are torn")
    hold(all(index < len(stored.packs) for index in stored.pack_index), "a place in an unnamed pack")
    snapshots.put(objects, stored)
    hold(snapshots.get(objects, identity) == stored, "a snapshot reads as another one once it is stored again")
    objects.delete(snapshots.key_of(identity))
    try:
        manifest = Manifest.decode(stored.manifest, stored.originals)
    except StoreDamaged:
        return
    hold(manifest.encoded_originals == stored.originals, "original texts read as others")


def ref(data: bytes) -> None:
    """A ref object: what is read can be created and read again."""
    key = refs.key_of(WORKSPACE, 1)
    objects = _plant(key, data)
    try:
        record = refs.read(objects, WORKSPACE, 1)
    except (StoreDamaged, StoreNewer):
        return
    finally:
        objects.delete(key)
    if isinstance(record, refs.Tombstone):
        return
    created = refs.create(objects, record)
    hold(created == record == refs.read(objects, WORKSPACE, 1), "a ref reads as another one once it is created again")
    objects.delete(key)
