"""What a capture that broke off has brought: kept as a partial, and made a snapshot of if nothing better comes."""

from __future__ import annotations

import contextlib
import functools
import secrets
from array import array

from sandlift.base import Base
from sandlift.committing import Provenance, commit
from sandlift.deadline import Deadline
from sandlift.errors import StoreDamaged
from sandlift.gathering import Gathering
from sandlift.holding import Brought, Holding, PartialHolding, Place, SnapshotHolding, first_place, first_size
from sandlift.limits import Limits
from sandlift.results import Counts
from sandlift.store import PackWriter, PartialCapture, RefRecord, Store
from sandlift.tracking import scan_cache
from sandlift.watch import now
from sandlift_helper import table


def keep(
    store: Store,
    base: Base,
    gathering: Gathering,
    pack: PackWriter,
    brought: Brought,
    provenance: Provenance,
    target: str,
) -> bool:
    """Stores what came as the target's partial; returns whether there was anything worth it."""
    earlier, rows = base.partial, gathering.rows
    if not brought and not rows.kinds.count(table.FILE):
        # Only once the first file has come is all told that the scan found.
        return earlier is not None
    pack.commit()
    blocks = _Blocks()
    for digest, size in brought.items():
        blocks.add(digest, size, (pack.name, brought.offset(digest) or 0))
    if earlier is not None:
        for digest, size, place in PartialHolding(earlier):
            if digest not in brought:
                blocks.add(digest, size, place)
    rows.orphans = bytearray()
    kept = base.all_rows() if base.is_whole else gathering.kept
    store.write_partial(
        PartialCapture(
            workspace=provenance.workspace,
            target=target,
            source=provenance.source,
            capture_id=provenance.capture_id,
            packs=tuple(blocks.packs),
            started=provenance.started,
            ended=now(),
            rules=provenance.rules,
            digests=bytes(blocks.digests),
            sizes=blocks.sizes,
            pack_index=blocks.pack_index,
            offsets=blocks.offsets,
            rows=table.encode(rows),
            kept=table.encode(kept),
            base=bytes.fromhex(base.own.record.snapshot) if base.own else b"",
            awaited=gathering.awaited,
        )
    )
    if earlier is not None:
        store.collect_packs(set(earlier.packs) - blocks.packs.keys())
    return True


class _Blocks:
    """The columns of a partial that tell of blocks."""

    def __init__(self) -> None:
        self.packs: dict[str, int] = {}
        self.digests = bytearray()
        self.sizes = array("I")
        self.pack_index = array("I")
        self.offsets = array("Q")

    def add(self, digest: bytes, size_bytes: int, place: Place) -> None:
        self.digests += digest
        self.sizes.append(size_bytes)
        self.pack_index.append(self.packs.setdefault(place[0], len(self.packs)))
        self.offsets.append(place[1])


def salvage(store: Store, partial: PartialCapture, limits: Limits, deadline: Deadline) -> tuple[RefRecord, Counts]:
    """Makes an incomplete snapshot of a partial, by the same checks as any capture; returns its record and counts.

    Files that were awaited and did not come whole are lost: not-reached.  The partial is removed.  Raises
    InvalidManifest, HostLimit, StoreDamaged, StoreFull, StoreUnusable, DeadlineExceeded.
    """
    holders: list[Holding] = [PartialHolding(partial)]
    if partial.base:
        with contextlib.suppress(StoreDamaged):
            base = SnapshotHolding(store, store.load(partial.base))
            if store.has_packs(base.packs):
                holders.append(base)
    size_of, place = functools.partial(first_size, holders), functools.partial(first_place, holders)
    try:
        gathering = Gathering.of(table.decode(partial.rows), table.decode(partial.kept), limits)
    except ValueError as error:
        raise StoreDamaged(f"the partial of {partial.workspace} cannot be read: {error}") from error
    gathering.miss(gathering.missing(size_of))
    gathering.miss(partial.awaited.split(b"\0")[:-1])
    manifest = gathering.accept({}, size_of)
    provenance = Provenance(
        capture_id=secrets.token_hex(16),
        workspace=partial.workspace,
        source=partial.source,
        started=partial.started,
        rules=partial.rules,
        note="salvaged: the capture broke off",
    )
    with store.begin_pack(provenance.capture_id) as pack:
        record, packs = commit(store, pack, manifest, Brought(), provenance, deadline, place)
    if gathering.has_stamps:
        store.write_scan(scan_cache(gathering.rows, record, target=partial.target, instance=b"", packs=packs))
    store.remove_partial(partial)
    return record, manifest.counts
