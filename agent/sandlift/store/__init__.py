"""The store: where snapshots rest.

**Terms.**  A *block* is at most 1 MiB of one file, named by its SHA-256.  A *pack* holds the blocks that one
capture brought.  A *snapshot* is a manifest and the places of its blocks, named by its identity, the SHA-256 of
the manifest's canonical encoding.  A *ref* is the record of one capture: which snapshot, when, from where, with
what outcome.  An *object* is any of these, or the format mark; its *key* is its place.

**Layout.**  ::

    format                          the mark of a store: a record with its format number
    packs/<aa>/<name>               a pack (sandlift.store.packs); name: 32 hex digits, aa: its first two
    snapshots/<aa>/<identity>       a snapshot (sandlift.store.snapshots); identity: 64 hex digits
    refs/<workspace>/@<number>      a ref or its tombstone (sandlift.store.refs); number: ten digits from 1
    scans/<workspace>/@<target>     what a target's files looked like (sandlift.store.scans); time is lost with it
    partials/<workspace>/@<target>  what a capture brought that broke off (sandlift.store.partials)
    tmp/<random>                    an unfinished file of a directory store; never an object

A *record* is a msgpack map followed by the SHA-256 of its encoding (sandlift.store.records).  Every object says
its format number, now 1, and has a field ``sealed``, now always nil and kept for encryption.  A greater number
or another value is refused by name, never guessed at.  Nothing else is needed to read a store: no index, no
database, no lock.

**Order of a commit.**

1. The pack: written under a temporary name, flushed, renamed, its folders flushed.
2. The snapshot, in the same way.  It names packs that are durable by now.
3. The ref, created whole and only if its number is free: temporary file, flush, link, folders flushed.

The ref is the commit.  A crash at any instant leaves garbage, a temporary file or an object that nothing names,
and never a ref that cannot be restored.  Objects are not changed once they are written: a snapshot may be
replaced by one of the same identity with other places, a ref by its tombstone.  Repeating a step whose answer
was lost is harmless: packs have names of their own, a snapshot is stored over itself, and a ref that carries the
same capture id is taken for what it is.

Captures of several processes need no lock among them.  They race for a ref's number alone, and there the one who
finds the number taken tries the next.

**Threats.**  What a store holds was accepted by the host, so the sandbox's bytes arrive here only as blocks that
hash to their names, inside an accepted manifest.  Every key is built from checked parts and is checked again.

- *Decay*: bad disks, cut-off files, flipped bits.  Blocks, manifests and records are proved by SHA-256 whenever
  they are read, the rest of a snapshot by its frame's checksum; `verify` reads everything.  Lengths are capped
  before memory is taken, so a damaged length costs nothing.
- *Other users* of the host: a directory store is readable and writable by its owner alone (folders 0700, files
  0600, whatever the umask), and is reached by descriptor without following links.
- *Not withstood*: somebody who can write into the store as its owner.  He can remove refs or write others;
  what he cannot do is make a snapshot's identity stand for other content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sandlift.errors import StoreDamaged, StoreFull, StoreMissing, StoreUnusable
from sandlift.store import packs as pack_format
from sandlift.store import partials, records, refs, scans, snapshots
from sandlift.store.blocks import BlockReader
from sandlift.store.directory import DirectoryObjects
from sandlift.store.location import default_store_path, store_path
from sandlift.store.names import check_name, propose_name
from sandlift.store.objects import UnknownObject
from sandlift.store.packs import PackInfo, PackReader, PackWriter
from sandlift.store.partials import PartialCapture
from sandlift.store.refs import RefRecord, Tombstone
from sandlift.store.scans import ScanCache, encode_part
from sandlift.store.snapshots import StoredSnapshot
from sandlift.store.verify import Damage, VerifyReport
from sandlift.store.verify import verify as verify_objects

__all__ = [
    "BlockReader",
    "Damage",
    "PackInfo",
    "PackReader",
    "PackWriter",
    "PartialCapture",
    "RefRecord",
    "ScanCache",
    "Store",
    "StoredSnapshot",
    "Tombstone",
    "VerifyReport",
    "check_name",
    "default_store_path",
    "encode_part",
    "propose_name",
]

_FORMAT_KEY: Final = "format"
_FORMAT_FIELD: Final = "sandlift-store"
_FORMAT_MAX: Final = 4096


class Store:
    """An opened store.  All methods may be called from any thread; what they return is for one thread."""

    def __init__(self, objects: DirectoryObjects, location: str) -> None:
        self.objects = objects
        self.location = location
        """For people: where the store is."""

    @classmethod
    def open(cls, where: str | Path, *, create: bool = False) -> Store:
        """Opens the store at *where*, a path or ``file:PATH``; with *create* it is made when it is missing.

        Raises BadURL, StoreMissing (also for a directory that holds something else), StoreNewer, StoreDamaged,
        StoreUnusable, StoreFull.
        """
        path = store_path(where)
        objects = DirectoryObjects(path, create=create)
        try:
            _check_mark(objects, path, create=create)
        except BaseException:
            objects.close()
            raise
        return cls(objects, str(path))

    def close(self) -> None:
        """Lets go of the store; a second call does nothing."""
        self.objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin_pack(self, capture_id: str) -> PackWriter:
        """Begins the pack of a capture; nothing is written before its first frame."""
        return PackWriter(self.objects, capture_id)

    def pack(self, name: str) -> PackReader:
        """Opens a pack.  Raises StoreDamaged (also when it is missing), StoreNewer."""
        return PackReader(self.objects, name)

    def put_snapshot(self, snapshot: StoredSnapshot) -> None:
        """Stores a snapshot whose packs are stored; see `snapshots.put`."""
        snapshots.put(self.objects, snapshot)

    def has_snapshot(self, identity: bytes) -> bool:
        """Whether a snapshot of that identity is there, unread."""
        return snapshots.exists(self.objects, identity)

    def packs_of(self, identity: bytes) -> tuple[str, ...] | None:
        """Returns the packs of a sound snapshot that are all there, or None when it is not there, or not whole."""
        try:
            snapshot = snapshots.get(self.objects, identity)
            for name in snapshot.packs:
                PackReader(self.objects, name)
        except (UnknownObject, StoreDamaged):
            return None
        return snapshot.packs

    def has_packs(self, names: Iterable[str]) -> bool:
        """Whether all these packs are there, unread."""
        try:
            for name in names:
                self.objects.size(pack_format.key_of(name))
        except UnknownObject:
            return False
        return True

    def read_scan(self, workspace: str, target: str) -> ScanCache | None:
        """Returns the scan cache of a target, or None; see `scans.read`."""
        return scans.read(self.objects, workspace, target)

    def write_scan(self, cache: ScanCache) -> None:
        """Replaces the scan cache of a target; see `scans.write`.  Where the store takes none, time is lost."""
        with contextlib.suppress(StoreFull, StoreUnusable):
            scans.write(self.objects, cache)

    def remove_scan(self, cache: ScanCache) -> None:
        """Removes a scan cache that is of no use; see `scans.remove`."""
        scans.remove(self.objects, cache)

    def read_partial(self, workspace: str, target: str) -> PartialCapture | None:
        """Returns what is left of a target's broken capture, or None, also when its pack is gone."""
        found = partials.read(self.objects, workspace, target)
        return found if found is not None and self.has_packs(found.packs) else None

    def write_partial(self, partial: PartialCapture) -> None:
        """Stores what a broken capture brought; see `partials.write`."""
        partials.write(self.objects, partial)

    def remove_partial(self, partial: PartialCapture) -> None:
        """Removes a partial that is of no more use; see `partials.remove`."""
        partials.remove(self.objects, partial)

    def collect_partial(self, partial: PartialCapture) -> None:
        """Removes a partial and the packs that nothing else needs; see `partials.collect`."""
        partials.collect(self.objects, partial)

    def collect_packs(self, names: Iterable[str]) -> None:
        """Removes those of the packs that nothing names; see `partials.collect_packs`."""
        partials.collect_packs(self.objects, names)

    def partials(self, workspace: str | None = None) -> list[PartialCapture]:
        """Returns the partials of one workspace or of all, oldest first."""
        return partials.log(self.objects, workspace)

    def find_ref(self, workspace: str, number: int) -> RefRecord | None:
        """Returns a ref, or None for one that cannot be had; see `refs.find`."""
        return refs.find(self.objects, workspace, number)

    def newest(self, workspace: str, looked_at: int) -> Iterator[RefRecord]:
        """Yields the newest refs that can be read, if there are any; see `refs.newest`."""
        return refs.newest(self.objects, workspace, looked_at)

    def create_ref(self, record: RefRecord) -> RefRecord:
        """Commits a capture and returns its record with the number that it got; see `refs.create`."""
        return refs.create(self.objects, record)

    def log(self, workspace: str) -> Iterator[RefRecord]:
        """Yields a workspace's refs, newest first; see `refs.log`."""
        return refs.log(self.objects, workspace)

    def workspaces(self) -> list[str]:
        """Returns the names of all workspaces, sorted."""
        return refs.workspaces(self.objects)

    def resolve(self, text: str) -> RefRecord | bytes:
        """Returns the ref or the identity that *text* names; see `refs.resolve`."""
        return refs.resolve(self.objects, text)

    def load(self, named: RefRecord | bytes) -> StoredSnapshot:
        """Returns the snapshot of a ref or an identity.  Raises StoreDamaged (also when it is missing), StoreNewer."""
        identity = named if isinstance(named, bytes) else bytes.fromhex(named.snapshot)
        try:
            return snapshots.get(self.objects, identity)
        except UnknownObject:
            whose = "" if isinstance(named, bytes) else f" of {named.name}"
            raise StoreDamaged(
                f"the snapshot {identity.hex()}{whose} is missing", hint="sandlift verify shows what else is"
            ) from None

    def blocks(self, snapshot: StoredSnapshot) -> BlockReader:
        """Returns a reader of a snapshot's blocks, for one thread."""
        return BlockReader(self.objects, snapshot)

    def read_block(self, snapshot: StoredSnapshot, index: int, digest: bytes) -> bytes:
        """Reads one block, as `BlockReader.read`; for more than a few, `blocks` is cheaper."""
        return self.blocks(snapshot).read(index, digest)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Reads and hashes everything again; see `sandlift.store.verify`."""
        return verify_objects(self.objects, progress)


def _check_mark(objects: DirectoryObjects, path: Path, *, create: bool) -> None:
    """Reads the format mark, and writes it first into a new store."""
    what = f"the store at {path}"
    try:
        mark = objects.get(_FORMAT_KEY, max_bytes=_FORMAT_MAX)
    except UnknownObject:
        if not create:
            raise StoreMissing(f"there is no store at {path}", hint="a first capture makes it") from None
        # Only what sandlift made itself may become a store: files of others could be taken for objects.
        # The mark itself may be there by now, made by another process.
        if not objects.is_vacant(but=_FORMAT_KEY):
            raise StoreMissing(
                f"{path} holds other files and is no store", hint="name a new or an empty directory"
            ) from None
        objects.make_private()
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        mark = records.encode({_FORMAT_FIELD: records.FORMAT, "created": created, "sealed": None})
        if not objects.create_if_absent(_FORMAT_KEY, mark):
            mark = objects.get(_FORMAT_KEY, max_bytes=_FORMAT_MAX)
    records.check_format(records.decode(mark, what), what, field=_FORMAT_FIELD)
