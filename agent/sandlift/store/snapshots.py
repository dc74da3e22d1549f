"""Snapshots: a manifest, and where its blocks lie.

An object ``snapshots/<aa>/<identity>`` (identity: 64 hex digits, the SHA-256 of the manifest's canonical
encoding) is one zstd frame with a content checksum, around a msgpack map:

    format      1
    sealed      nil
    manifest    the canonical encoding
    originals   the link texts as they were before they were made relative; opaque here
    packs       the names of the packs that hold its blocks
    places      for each distinct block, in the manifest's order of first appearance: a column of u32, the
                pack's index in ``packs``, then a column of u64, the block's decoded offset in that pack;
                both little-endian

The manifest is proved by the key, the places by the digests of the blocks that they lead to, the rest by the
checksum of the frame.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass, field
from typing import Final

import zstandard

from sandlift.errors import StoreDamaged
from sandlift.store import columns, records
from sandlift.store import packs as pack_format
from sandlift.store.objects import Objects, UnknownObject

SNAPSHOT_MAX: Final = 4 << 30
"""The most bytes that a snapshot may have, stored or decoded."""

_LEVEL = 3
_WINDOW_MAX = 128 << 20
_BIN32 = struct.Struct(">BI")
_U32_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A snapshot as it rests in the store."""

    identity: bytes
    """SHA-256 of ``manifest``."""
    manifest: bytes
    originals: bytes = b""
    packs: tuple[str, ...] = ()
    pack_index: array[int] = field(default_factory=lambda: array("I"))
    """For each distinct block, in order of first appearance: which of ``packs``."""
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    """For each distinct block: the decoded offset of its member's header."""


def key_of(identity: bytes) -> str:
    """Returns the key of a snapshot.  Raises ValueError unless *identity* has 32 bytes."""
    if len(identity) != 32:
        raise ValueError("an identity has 32 bytes")
    return f"snapshots/{identity[0]:02x}/{identity.hex()}"


def put(objects: Objects, snapshot: StoredSnapshot) -> None:
    """Stores a snapshot, durably; one of the same identity is replaced whole, its places too.

    Raises ValueError when the value contradicts itself, StoreFull, StoreUnusable.
    """
    count = len(snapshot.pack_index)
    if hashlib.sha256(snapshot.manifest).digest() != snapshot.identity:
        raise ValueError("the identity is not the manifest's SHA-256")
    if count != len(snapshot.offsets) or (count and max(snapshot.pack_index) >= len(snapshot.packs)):
        raise ValueError("the places do not fit together")
    for name in snapshot.packs:
        pack_format.key_of(name)
    places = columns.encode(snapshot.pack_index, "I") + columns.encode(snapshot.offsets, "Q")
    small = {"format": records.FORMAT, "sealed": None, "packs": list(snapshot.packs)}
    large = {"manifest": snapshot.manifest, "originals": snapshot.originals, "places": places}
    # The large fields go into the compressor one by one, so that a big manifest is not copied for it.
    pieces = [bytes((0x80 | (len(small) + len(large)),)), records.pack(small)[1:]]
    for name, value in large.items():
        if len(value) > _U32_MAX:
            raise ValueError(f"the snapshot's {name} are too large for the store: {len(value)} bytes")
        pieces += [bytes((0xA0 | len(name),)), name.encode(), _BIN32.pack(0xC6, len(value)), value]
    size = sum(map(len, pieces))
    if size > SNAPSHOT_MAX:
        raise ValueError(f"the snapshot is too large for the store: {size} bytes")
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj(size=size)
    with objects.put(key_of(snapshot.identity)) as writer:
        for piece in pieces:
            writer.write(compressor.compress(piece))
        writer.write(compressor.flush())
        writer.commit()


def get(objects: Objects, identity: bytes) -> StoredSnapshot:
    """Returns a snapshot whose manifest hashes to *identity*.

    Raises UnknownObject, StoreDamaged, StoreNewer.  That the manifest's blocks lie at its places is only known
    once they are read.
    """
    key = key_of(identity)
    what = f"the snapshot {key}"
    frame = objects.get(key, max_bytes=SNAPSHOT_MAX)
    decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX)
    data = pack_format.decompress(decoder, frame, what, lambda stated: stated <= SNAPSHOT_MAX)
    del frame
    fields = records.unpack(data, what)
    del data
    records.check_format(fields, what)
    manifest, originals, places = (fields.get(name) for name in ("manifest", "originals", "places"))
    names = fields.get("packs")
    if not (
        isinstance(manifest, bytes)
        and isinstance(originals, bytes)
        and isinstance(places, bytes)
        and isinstance(names, list)
        and len(places) % 12 == 0
    ):
        raise StoreDamaged(f"{what} lacks a field")
    if hashlib.sha256(manifest).digest() != identity:
        raise StoreDamaged(f"{what}: its manifest does not hash to its name")
    count = len(places) // 12
    pack_index = columns.decode(memoryview(places)[: 4 * count], "I")
    if count and max(pack_index) >= len(names):
        raise StoreDamaged(f"{what} places a block in a pack that it does not name")
    return StoredSnapshot(
        identity=identity,
        manifest=manifest,
        originals=originals,
        packs=tuple(_pack_name(name, what) for name in names),
        pack_index=pack_index,
        offsets=columns.decode(memoryview(places)[4 * count :], "Q"),
    )


def exists(objects: Objects, identity: bytes) -> bool:
    """Whether a snapshot of that identity is stored; it is not read."""
    try:
        objects.size(key_of(identity))
    except UnknownObject:
        return False
    return True


def find(objects: Objects, prefix: str) -> list[bytes]:
    """Returns the identities that begin with the lower-case hex digits *prefix*, sorted; all for an empty one."""
    folder = f"snapshots/{prefix[:2]}/" if len(prefix) >= 2 else "snapshots/"
    found = (identity_of(info.key) for info in objects.list(folder))
    return [identity for identity in found if identity is not None and identity.hex().startswith(prefix)]


def identity_of(key: str) -> bytes | None:
    """Returns the identity that *key* is for, or None when it is no snapshot's key."""
    try:
        identity = bytes.fromhex(key[-64:])
        return identity if key == key_of(identity) else None
    except ValueError:
        return None


def _pack_name(name: object, what: str) -> str:
    try:
        if isinstance(name, str):
            pack_format.key_of(name)
            return name
    except ValueError:
        pass
    raise StoreDamaged(f"{what} names a pack that cannot exist")
