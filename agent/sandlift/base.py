"""What the host holds already, offered to a capture: its own base, snapshots that are like it, what broke off.

An *own* base was captured from this very target, or set down in it by us.  Rows of it that the helper says are as
they were stand for themselves, and its blocks count without proof.  Blocks of a snapshot that is only *like* the
workspace count where the sandbox proves that it has them: SHA-256(nonce, block).
"""

from __future__ import annotations

import copy
import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from sandlift.errors import RemoteProtocolError, StoreDamaged, UsageError
from sandlift.holding import Holding, PartialHolding, Place, SnapshotHolding, first_place, first_size, prefixes_of
from sandlift.selection import select
from sandlift.store import PartialCapture, RefRecord, ScanCache, Store
from sandlift.targets import Target
from sandlift_helper import parts, table, wire
from sandlift_helper.table import CLAIM_SIZE, PROOF_SIZE, Segment

LOOK_BACK = 16
"""Refs that are looked at for one of the same target, where there is no scan cache."""
_PREFIXES_A_FRAME = 1 << 20
_OWN, _LIKE = b"\0", b"\1"


class OwnBase:
    """A snapshot of this very target; ``cache`` says what its files looked like then, if that is known."""

    def __init__(self, store: Store, record: RefRecord, cache: ScanCache | None) -> None:
        self.record = record
        self.cache = cache
        self._store = store

    @cached_property
    def holding(self) -> SnapshotHolding:
        """Its blocks.  Raises StoreDamaged, StoreNewer."""
        return SnapshotHolding(self._store, self._store.load(self.record))

    @cached_property
    def rows(self) -> Segment:
        """Its table, with stamps.  Raises StoreDamaged."""
        assert self.cache is not None
        rows = copy.copy(self.holding.manifest.rows)
        rows.ctimes_ns, rows.inodes, rows.settled = array("q"), array("Q"), bytearray()
        paths: list[bytes] = []
        prefixes = bytearray()
        for number in range(len(self.cache.parts)):
            try:
                known, found = parts.decode_known(self.part(number))
            except ValueError as error:
                raise self._unfit() from error
            rows.ctimes_ns += known.ctimes_ns
            rows.inodes += known.inodes
            rows.settled += known.settled
            paths += known.paths
            prefixes += found
        files = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.FILE]
        if len(rows.inodes) != len(files) or paths != files or prefixes != prefixes_of(bytes(rows.digests)).tobytes():
            raise self._unfit()
        return rows

    def part(self, number: int) -> bytes:
        """Returns a part of the scan cache.  Raises StoreDamaged."""
        assert self.cache is not None
        try:
            return self.cache.decode(number)
        except StoreDamaged as error:
            raise self._unfit() from error

    def _unfit(self) -> StoreDamaged:
        """Removes the scan cache, with which no capture could succeed; returns the error to raise."""
        assert self.cache is not None
        self._store.remove_scan(self.cache)
        return StoreDamaged("the scan cache does not fit its snapshot; it was removed", hint="try again")

    def kept(self, same: Sequence[bool], kept: bytes) -> Segment:
        """Returns the rows of the parts that are the *same*, and of others the files whose bit is set in *kept*.

        Raises RemoteProtocolError, StoreDamaged.
        """
        assert self.cache is not None
        rows, firsts = self.rows, self.cache.firsts.split(b"\0")[:-1]
        starts = parts.starts_of(rows, firsts)
        ends = [*starts[1:], (len(rows), len(rows.excluded_paths), len(rows.flag_paths))]
        chosen: list[int] = []
        left: list[int] = []
        bit = 0
        for is_same, start, end in zip(same, starts, ends, strict=True):
            if is_same:
                chosen += range(start[0], end[0])
                left += range(start[1], end[1])
                continue
            for row in range(start[0], end[0]):
                if rows.kinds[row] == table.FILE:
                    if bit >= 8 * len(kept) or kept[bit // 8] >> bit % 8 & 1:
                        chosen.append(row)
                    bit += 1
        if len(kept) != (bit + 7) // 8:
            raise RemoteProtocolError("the helper's answer to the base has a wrong length")
        found = select(rows, chosen)
        found.root = rows.root if same[0] else None
        for row in left:
            found.exclude(
                rows.excluded_paths[row], rows.excluded_kinds[row], rows.excluded_reasons[row], rows.details[row]
            )
        return found


class Base:
    """All that a capture offers, and what the helper answers to it."""

    def __init__(
        self,
        store: Store,
        own: OwnBase | None = None,
        like: Sequence[SnapshotHolding] = (),
        partial: PartialCapture | None = None,
    ) -> None:
        self.own = own
        self.partial = partial
        self.instance = b""
        """What the helper says of the machine and the mount."""
        self.is_whole = False
        """Whether all of the own base is as it was."""
        self._store = store
        self._like = like
        self._partial = PartialHolding(partial) if partial else None
        self._proven: set[bytes] = set()
        self._asked = self._answered = False
        self._tried: set[bytes] = set()

    @property
    def _cache(self) -> ScanCache | None:
        return self.own.cache if self.own else None

    def fields(self, *, rehash: bool) -> dict[str, object]:
        """Returns the request's field ``base``.  Raises StoreDamaged, StoreNewer."""
        cache = self._cache
        return {
            "firsts": cache.firsts if cache else b"",
            "digests": cache.digests if cache else b"",
            # Of no machine: then every row counts as changed, and the content decides.
            "instance": cache.instance if cache and not rehash else b"",
            "offers": len(self._offers),
        }

    @cached_property
    def _offers(self) -> list[bytes]:
        own, like = array("Q"), array("Q")
        if self.own and not (self.own.cache and self.own.cache.parts):
            own += self.own.holding.prefixes()
        if self._partial:
            own += self._partial.prefixes()
        for holding in self._like:
            like += holding.prefixes()
        return [
            mark + prefixes[at : at + _PREFIXES_A_FRAME].tobytes()
            for mark, prefixes in ((_OWN, own), (_LIKE, like))
            for at in range(0, len(prefixes), _PREFIXES_A_FRAME)
        ]

    def offers(self) -> Iterator[bytes]:
        """Yields the frames that follow the request."""
        for offer in self._offers:
            yield wire.frame(wire.BASE, wire.packed_header(wire.CODEC_NONE, len(offer)) + offer)

    def wanted_parts(self, message: Mapping[str, object]) -> Iterator[bytes]:
        """Yields the frames that answer a want frame.  Raises RemoteProtocolError, StoreDamaged."""
        numbers, cache = message.get("parts"), self._cache
        if self._asked:
            raise RemoteProtocolError("the helper asks for parts of the base twice")
        self._asked = True
        found = [number for number in numbers if type(number) is int] if isinstance(numbers, list) else []
        allowed = range(len(cache.parts) if cache else 0)
        if (
            self.own is None
            or cache is None
            or found != numbers
            or found != sorted(set(found))
            or not set(found) <= set(allowed)
        ):
            raise RemoteProtocolError("the helper asks for parts of a base that it was not offered")
        for number in found:
            size = len(self.own.part(number))
            yield wire.frame(wire.BASE, wire.packed_header(wire.CODEC_ZLIB, size) + cache.parts[number][4:])

    def take_answer(self, message: Mapping[str, object]) -> Segment | None:
        """Takes what the helper says of the own base; returns its rows that are as they were, None for all of them.

        Raises RemoteProtocolError, StoreDamaged.
        """
        instance, same, kept = (message.get(name) for name in ("instance", "same", "kept"))
        if not (isinstance(instance, bytes) and isinstance(same, bytes) and isinstance(kept, bytes)):
            raise RemoteProtocolError("the helper's answer to the base lacks a field")
        if self._answered:
            raise RemoteProtocolError("the helper answers to the base twice")
        self._answered = True
        self.instance = instance[:32]
        count = len(self._cache.parts) if self._cache else 0
        if len(same) != (count + 7) // 8 or (kept and not count):
            raise RemoteProtocolError("the helper's answer to the base has a wrong length")
        if self.own is None or not count:
            return Segment()
        is_same = [bool(same[number // 8] >> number % 8 & 1) for number in range(count)]
        self.is_whole = all(is_same) and not kept
        return None if self.is_whole else self.own.kept(is_same, kept)

    def all_rows(self) -> Segment:
        """Returns all rows of the own base.  Raises StoreDamaged."""
        assert self.own is not None
        return self.own.kept([True] * (len(self._cache.parts) if self._cache else 0), b"")

    def take_claims(self, claims: bytes | bytearray, nonce: bytes) -> None:
        """Checks the proofs for blocks of snapshots that are like this one; each block is tried once."""
        for holding in self._like:
            proofs: dict[bytes, bytes] = {}
            for at in range(0, len(claims), CLAIM_SIZE):
                for digest in holding.with_prefix(bytes(claims[at : at + 8])):
                    if digest not in self._tried:
                        proofs[digest] = bytes(claims[at + 8 : at + CLAIM_SIZE])
            self._tried |= proofs.keys()
            for digest, block in holding.read(list(proofs)):
                # What is damaged here hashes to something else as well, so the proof proves the block.
                proof = hashlib.sha256(nonce)
                proof.update(block)
                if proof.digest()[:PROOF_SIZE] == proofs[digest]:
                    self._proven.add(digest)

    def _holders(self, digest: bytes) -> Iterator[Holding]:
        if self.own:
            yield self.own.holding
        if self._partial:
            yield self._partial
        if digest in self._proven:
            yield from self._like

    def size_bytes(self, digest: bytes) -> int | None:
        """Returns the size of a block that counts as held, or None."""
        return first_size(self._holders(digest), digest)

    def place(self, digest: bytes) -> Place:
        """Returns where a block that counts as held rests.  Raises KeyError for any other."""
        return first_place(self._holders(digest), digest)


def find_own(store: Store, workspace: str, target: Target, named: str) -> OwnBase | None:
    """Returns the own base that *named* asks for: ``auto``, ``none``, or a ref of this very target.

    Raises UsageError for a ref that is not of this target, UnknownRef, StoreDamaged, StoreNewer.
    """
    if named == "none":
        return None
    cache = store.read_scan(workspace, target.key())
    if named != "auto":
        return _named(store, workspace, target, named, cache)
    if cache and (found := store.find_ref(workspace, cache.number)) and found.snapshot == cache.identity.hex():
        is_there = store.has_packs(cache.packs) and store.has_snapshot(cache.identity)
        return OwnBase(store, found, cache) if is_there else None
    return _newest_of(store, workspace, target)


def _is_of(record: RefRecord, target: Target) -> bool:
    """Whether a ref is of this very target, as far as it tells: behind a command prefix are many of one name."""
    return target.scheme != "via" and record.source == target.source()


def _named(store: Store, workspace: str, target: Target, named: str, cache: ScanCache | None) -> OwnBase:
    record = store.resolve(named)
    if isinstance(record, bytes) or record.workspace != workspace:
        raise UsageError(f"--base {named}: no ref of {workspace}", hint="--like takes any snapshot")
    is_here = cache is not None and cache.identity.hex() == record.snapshot
    if not is_here and not _is_of(record, target):
        raise UsageError(
            f"--base {named}: {record.name} was captured from {record.source}, and that is not known to be here",
            hint="--like takes it, and asks for proof of each block",
        )
    if store.packs_of(bytes.fromhex(record.snapshot)) is None:
        raise StoreDamaged(
            f"--base {named}: the snapshot of {record.name} is not whole any more", hint="--base none needs none"
        )
    return OwnBase(store, record, cache if is_here else None)


def _newest_of(store: Store, workspace: str, target: Target) -> OwnBase | None:
    for record in store.newest(workspace, LOOK_BACK):
        if _is_of(record, target):
            return OwnBase(store, record, None) if store.packs_of(bytes.fromhex(record.snapshot)) is not None else None
    return None


def find_like(store: Store, names: Sequence[str]) -> list[SnapshotHolding]:
    """Returns the snapshots that a person has named.  Raises UnknownRef, StoreDamaged, StoreNewer."""
    return [SnapshotHolding(store, store.load(store.resolve(name))) for name in names]
