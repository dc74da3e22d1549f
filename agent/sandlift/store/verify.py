"""Verification: everything in a store is read again and hashed again.

What is proved, from the blocks upwards: every member of every pack hashes to its name; every manifest hashes to
its snapshot's key, and each block that it names lies at its place; every ref is whole, and its snapshot is there.
Damage is reported by object, with the refs that lose something by it.  A pack that nothing names is no damage: a
crash between pack and snapshot leaves one.

The keys are listed before anything is read, refs first: what a ref names was stored before the ref, so a capture
that commits meanwhile cannot look like damage.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandlift.errors import Refusal, StoreDamaged, StoreUnusable, UnknownRef
from sandlift.store import packs, refs, snapshots
from sandlift.store.objects import Objects, UnknownObject
from sandlift_helper import members

Progress = Callable[[int, int], None]
"""Called with the bytes that were read and the bytes that there are, about once a MiB."""
DistinctBlocks = Callable[[bytes], bytes]
"""From a manifest's encoding to the SHA-256 of each distinct block, 32 bytes each, in order of first appearance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One object that is not what it must be."""

    object: str
    """Its key."""
    reason: str
    refs: tuple[str, ...]
    """The refs that cannot be restored whole, as ``demo@7``; empty when nothing names the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """How many objects were read, and what is wrong with them."""

    packs: int
    snapshots: int
    refs: int
    bytes: int
    """Stored bytes that were read."""
    damaged: tuple[Damage, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged


def verify(objects: Objects, progress: Progress | None = None) -> VerifyReport:
    """Verifies a whole store.  Memory: 40 bytes for each block of it.

    Raises StoreNewer for an object that only a newer version can judge, StoreUnusable when the store cannot even
    be listed.
    """
    return verify_with(objects, _distinct_blocks, progress)


def verify_with(objects: Objects, distinct_blocks: DistinctBlocks, progress: Progress | None = None) -> VerifyReport:
    """As `verify`, with the function that reads a manifest given by the caller."""
    run = _Run(objects, distinct_blocks, progress or (lambda done, total: None))
    run.verify_packs()
    run.verify_snapshots()
    run.verify_refs()
    return run.report()


class _Members:
    """The members of a sound pack: where each begins, and its digest."""

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.digests = bytearray()

    def add(self, offset: int, digest: bytes) -> None:
        self.offsets.append(offset)
        self.digests += digest

    def digest_at(self, offset: int) -> bytes | None:
        index = bisect_left(self.offsets, offset)
        if index == len(self.offsets) or self.offsets[index] != offset:
            return None
        return bytes(self.digests[32 * index : 32 * index + 32])


class _Run:
    def __init__(self, objects: Objects, distinct_blocks: DistinctBlocks, progress: Progress) -> None:
        self._objects = objects
        self._distinct_blocks = distinct_blocks
        self._progress = progress
        rows = [info for prefix in ("refs/", "snapshots/", "packs/") for info in objects.list(prefix)]
        self._keys = [info.key for info in rows]
        self._sizes = {info.key: info.size_bytes for info in rows}
        self._total = sum(self._sizes.values())
        self._done = 0
        self._read = 0
        self._counts = {"packs": 0, "snapshots": 0, "refs": 0}
        self._reasons: dict[str, str] = {}
        """Damaged object -> what is wrong."""
        self._packs: dict[str, _Members | None] = {}
        """Pack -> its members; None when it is damaged."""
        self._users: dict[str, set[str]] = {}
        """Object -> the refs or snapshots that name it, by key or ref name."""

    def verify_packs(self) -> None:
        for key in self._below("packs/"):
            name = key.rpartition("/")[2]
            try:
                if packs.key_of(name) != key:
                    continue
            except ValueError:
                continue
            self._pack(name)

    def verify_snapshots(self) -> None:
        for key in self._below("snapshots/"):
            identity = snapshots.identity_of(key)
            if identity is not None:
                self._snapshot(key, identity)

    def verify_refs(self) -> None:
        for key in self._below("refs/"):
            place = refs.place_of(key)
            if place is not None:
                self._ref(key, *place)

    def report(self) -> VerifyReport:
        damaged = []
        for key, reason in sorted(self._reasons.items()):
            damaged.append(Damage(object=key, reason=reason, refs=tuple(sorted(self._refs_of(key), key=_by_number))))
        return VerifyReport(**self._counts, bytes=self._read, damaged=tuple(damaged))

    def _below(self, prefix: str) -> Iterable[str]:
        return (key for key in self._keys if key.startswith(prefix))

    def _refs_of(self, key: str) -> set[str]:
        found: set[str] = set()
        for user in self._users.get(key, ()):
            found |= self._refs_of(user) if user.startswith("snapshots/") else {user}
        return found

    def _pack(self, name: str) -> _Members | None:
        """Returns the members of a pack, verified once; None when it is damaged."""
        if name in self._packs:
            return self._packs[name]
        key = packs.key_of(name)
        before = self._done
        found = _Members()
        try:
            self._read_pack(name, found)
            self._packs[name] = found
        except (StoreDamaged, StoreUnusable) as error:
            self._reasons[key] = error.message
            self._packs[name] = None
        self._counts["packs"] += 1
        self._step(before + self._sizes.get(key, 0) - self._done)
        return self._packs[name]

    def _read_pack(self, name: str, found: _Members) -> None:
        pack = packs.PackReader(self._objects, name)
        self._read += pack.size_bytes
        for index in range(len(pack)):
            run = memoryview(pack.decode_frame(index))
            base = pack.decoded_offset[index] - members.HEADER_SIZE
            try:
                parsed = members.parse_run(run)
            except ValueError as error:
                raise StoreDamaged(f"the pack {pack.key}: frame {index} is no run of blocks: {error}") from error
            for digest, start, size in parsed:
                if hashlib.sha256(run[start : start + size]).digest() != digest:
                    raise StoreDamaged(f"the pack {pack.key}: the block {digest.hex()} does not hash to its name")
                found.add(base + start, digest)
            self._step(pack.compressed_size[index])
        pack.check_tail()

    def _snapshot(self, key: str, identity: bytes) -> None:
        try:
            snapshot = snapshots.get(self._objects, identity)
            self._check_places(key, snapshot)
        except UnknownObject:
            # Deleted since it was listed; a ref that still names it will say so.
            return
        except (StoreDamaged, StoreUnusable) as error:
            self._reasons[key] = error.message
        self._counts["snapshots"] += 1
        self._read += self._sizes[key]
        self._step(self._sizes[key])

    def _check_places(self, key: str, snapshot: snapshots.StoredSnapshot) -> None:
        used = sorted(set(snapshot.pack_index))
        for index in used:
            self._users.setdefault(packs.key_of(snapshot.packs[index]), set()).add(key)
        try:
            digests = self._distinct_blocks(snapshot.manifest)
        except (Refusal, ValueError) as error:
            raise StoreDamaged(f"the snapshot {key}: its manifest cannot be read: {error}") from error
        count = len(snapshot.offsets)
        if len(digests) != 32 * count:
            raise StoreDamaged(f"the snapshot {key} has places for {count} of its {len(digests) // 32} blocks")
        tables = {index: self._pack(snapshot.packs[index]) for index in used}
        for block, (index, offset) in enumerate(zip(snapshot.pack_index, snapshot.offsets, strict=True)):
            table = tables[index]
            digest = digests[32 * block : 32 * block + 32]
            if table is not None and table.digest_at(offset) != digest:
                raise StoreDamaged(
                    f"the snapshot {key}: the pack {snapshot.packs[index]} does not hold the block {digest.hex()}"
                    f" at {offset}"
                )

    def _ref(self, key: str, workspace: str, number: int) -> None:
        name = f"{workspace}@{number}"
        try:
            stored = refs.read(self._objects, workspace, number)
        except UnknownRef:
            return
        except (StoreDamaged, StoreUnusable) as error:
            self._reasons[key] = error.message
            self._users.setdefault(key, set()).add(name)
        else:
            if isinstance(stored, refs.RefRecord):
                identity = bytes.fromhex(stored.snapshot)
                snapshot_key = snapshots.key_of(identity)
                self._users.setdefault(snapshot_key, set()).add(name)
                if not snapshots.exists(self._objects, identity):
                    self._reasons.setdefault(snapshot_key, f"the snapshot {snapshot_key} is missing")
        self._counts["refs"] += 1
        self._read += self._sizes[key]
        self._step(self._sizes[key])

    def _step(self, size: int) -> None:
        self._done += size
        self._progress(min(self._done, self._total), self._total)


def _by_number(name: str) -> tuple[str, int]:
    workspace, _, number = name.rpartition("@")
    return workspace, int(number)


def _distinct_blocks(manifest: bytes) -> bytes:
    from sandlift.manifest import distinct_blocks

    return distinct_blocks(manifest)
