"""Scan caches: what a target's files looked like when the newest snapshot of it was taken.

An object ``scans/<workspace>/@<target>`` (32 hex digits that stand for the target with all that belongs to it) is
a record (`sandlift.store.records`) with

    identity    of the snapshot that it describes
    number      of a ref of the workspace that names that snapshot
    target      64 hex digits that no other target has
    source      the target's URL without credentials, for people
    instance    32 bytes that the helper gave for the machine and the mount; empty after a restore
    packs       the packs of the snapshot
    firsts      the first path of each part of the table, each followed by NUL
    digests     the digest of each part, 32 bytes (`sandlift_helper.parts.part_digest`); zeros where a file was
                not settled
    parts       each part's files with their stamps and prefixes (`sandlift_helper.parts.encode_known`): the
                decoded size (u32, little-endian), then zlib data, which every helper can read

It is rewritten after every capture and restore.  Nothing but time is lost with it, so one that cannot be read is
none.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from sandlift.errors import StoreDamaged, StoreNewer
from sandlift.store import packs as pack_format
from sandlift.store import records
from sandlift.store.names import check_name
from sandlift.store.objects import Objects, UnknownObject

SCAN_MAX: Final = 1 << 30
"""The most bytes of a scan cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCache:
    """What is known of a target's tree."""

    workspace: str
    target: str
    source: str
    identity: bytes
    number: int
    instance: bytes = b""
    packs: tuple[str, ...] = ()
    firsts: bytes = b""
    digests: bytes = b""
    parts: tuple[bytes, ...] = ()

    def decode(self, number: int) -> bytes:
        """Returns one part decoded.  Raises StoreDamaged."""
        part = self.parts[number]
        size = int.from_bytes(part[:4], "little")
        try:
            stream = zlib.decompressobj()
            data = stream.decompress(part[4:], size + 1)
        except zlib.error as error:
            raise StoreDamaged(f"a part of a scan cache cannot be read: {error}") from error
        if len(data) != size:
            raise StoreDamaged("a part of a scan cache has a wrong size")
        return data


def encode_part(data: bytes) -> bytes:
    """Returns one part as it rests."""
    return len(data).to_bytes(4, "little") + zlib.compress(data, 1)


def key_of(workspace: str, target: str) -> str:
    """Returns the key of a target's scan cache.  Raises BadName, ValueError."""
    return f"scans/{check_name(workspace)}/@{target_digits(target)}"


def target_digits(target: str) -> str:
    """Returns the digits that stand for a target in keys.  Raises ValueError unless *target* is 64 hex digits."""
    if len(bytes.fromhex(target)) != 32:
        raise ValueError(f"no target: {target!a}")
    return target[:32]


def read(objects: Objects, workspace: str, target: str) -> ScanCache | None:
    """Returns the scan cache of a target, or None when there is none that can be read."""
    key = key_of(workspace, target)
    what = f"the scan cache {key}"
    try:
        fields = records.decode(objects.get(key, max_bytes=SCAN_MAX), what)
        records.check_format(fields, what)
        stored = records.Fields(fields, what)
        parts = fields.get("parts")
        firsts, digests, instance = (fields.get(name) for name in ("firsts", "digests", "instance"))
        if not (
            isinstance(parts, list)
            and all(isinstance(part, bytes) for part in parts)
            and isinstance(firsts, bytes)
            and isinstance(digests, bytes)
            and isinstance(instance, bytes)
            and firsts.count(b"\0") * 32 == len(digests) == 32 * len(parts)
        ):
            return None
        found = ScanCache(
            workspace=stored.text("workspace"),
            target=stored.text("target"),
            source=stored.text("source"),
            identity=bytes.fromhex(stored.digits("identity", 64)),
            number=stored.count("number"),
            instance=instance,
            packs=stored.texts("packs"),
            firsts=firsts,
            digests=digests,
            parts=tuple(parts),
        )
        for name in found.packs:
            pack_format.key_of(name)
    except (UnknownObject, StoreDamaged, StoreNewer, ValueError):
        return None
    return found if (found.workspace, found.target) == (workspace, target) else None


def remove(objects: Objects, cache: ScanCache) -> None:
    """Removes a scan cache; a missing one is no error."""
    objects.delete(key_of(cache.workspace, cache.target))


def write(objects: Objects, cache: ScanCache) -> None:
    """Stores a scan cache in place of the one before.  Raises StoreFull, StoreUnusable."""
    data = records.encode(
        {
            "format": records.FORMAT,
            "sealed": None,
            "workspace": cache.workspace,
            "target": cache.target,
            "source": cache.source,
            "identity": cache.identity.hex(),
            "number": cache.number,
            "instance": cache.instance,
            "packs": list(cache.packs),
            "firsts": cache.firsts,
            "digests": cache.digests,
            "parts": list(cache.parts),
        }
    )
    with objects.put(key_of(cache.workspace, cache.target)) as writer:
        writer.write(data)
        writer.commit()
