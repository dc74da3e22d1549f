"""An accepted manifest and its pack become a snapshot and a ref: the last writes of a capture, and of an import."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandlift import payload
from sandlift.errors import StoreDamaged
from sandlift.model import POLICY_VERSION, Outcome
from sandlift.results import Capture, Counts, Wire
from sandlift.store import RefRecord, StoredSnapshot
from sandlift.watch import now
from sandlift_helper.table import split_digests

if TYPE_CHECKING:
    from sandlift.deadline import Deadline
    from sandlift.holding import Brought, Place
    from sandlift.manifest import Manifest
    from sandlift.store import PackWriter, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a snapshot comes from, and under which name it is kept."""

    capture_id: str
    workspace: str
    source: str
    """Without credentials."""
    started: str
    """RFC 3339 in UTC."""
    rules: tuple[str, ...]
    """What decided about paths and links, as text."""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def _nowhere(digest: bytes) -> Place:
    raise KeyError(digest)


def commit(
    store: Store,
    pack: PackWriter,
    manifest: Manifest,
    brought: Brought,
    provenance: Provenance,
    deadline: Deadline,
    held: Callable[[bytes], Place] = _nowhere,
) -> tuple[RefRecord, tuple[str, ...]]:
    """Stores pack and snapshot, unless the store has the snapshot with all its packs, then the ref.

    Returns the ref's record and the snapshot's packs.  *brought* are the blocks in the pack, and may be empty
    afterwards, since they take as much memory as the table; *held* gives the place of one which was there before.
    Raises what the store raises, DeadlineExceeded, and StoreDamaged when a pack that was there before is not there
    any more.
    """
    deadline.check("storing")
    packs = store.packs_of(manifest.identity)
    reused = packs is not None
    if packs is None:
        pack.commit()
        snapshot = _placed(manifest, provenance.capture_id, brought, held)
        packs = snapshot.packs
        store.put_snapshot(snapshot)
        # What was held may have been pruned since it was offered.
        if not store.has_packs(packs):
            raise StoreDamaged("a pack that this capture relies on was removed meanwhile", hint="try again")
    else:
        pack.abort()
    deadline.check("storing")
    counts = manifest.counts
    record = _record(
        provenance,
        snapshot=manifest.identity.hex(),
        content=manifest.content.hex(),
        outcome=counts.outcome,
        flags={"changed": counts.changed, "vanished": counts.vanished},
        counts={name: getattr(counts, name) for name in Counts.__slots__},
        reused=reused,
    )
    return store.create_ref(record), packs


def _placed(manifest: Manifest, name: str, brought: Brought, held: Callable[[bytes], Place]) -> StoredSnapshot:
    """Returns the snapshot, whose new blocks lie in the pack *name*; *brought* is empty then."""
    packs: dict[str, int] = {}
    pack_index, found = array("I"), array("Q")
    for where, offset in brought.places(split_digests(manifest.rows.digests), name, held):
        pack_index.append(packs.setdefault(where, len(packs)))
        found.append(offset)
    # Before the encoding is made, which takes as much.
    brought.clear()
    return StoredSnapshot(
        identity=manifest.identity,
        manifest=manifest.encoded,
        originals=manifest.encoded_originals,
        packs=tuple(packs),
        pack_index=pack_index,
        offsets=found,
    )


def commit_again(store: Store, earlier: RefRecord, provenance: Provenance) -> RefRecord:
    """Stores the ref of a capture that found all as *earlier* has it; returns that."""
    return store.create_ref(
        _record(
            provenance,
            snapshot=earlier.snapshot,
            content=earlier.content,
            outcome=earlier.outcome,
            flags=earlier.flags,
            counts=earlier.counts,
            reused=True,
        )
    )


def _record(
    provenance: Provenance,
    *,
    snapshot: str,
    content: str,
    outcome: Outcome,
    flags: Mapping[str, int],
    counts: Mapping[str, int],
    reused: bool,
) -> RefRecord:
    return RefRecord(
        capture_id=provenance.capture_id,
        snapshot=snapshot,
        content=content,
        workspace=provenance.workspace,
        source=provenance.source,
        started=provenance.started,
        ended=now(),
        outcome=outcome,
        flags=flags,
        counts=counts,
        rules=provenance.rules,
        policy_version=POLICY_VERSION,
        # The link rule and the order of the table are the helper's, for an import too.
        helper_digest=payload.digest(),
        labels=dict(provenance.labels),
        note=provenance.note,
        reused=reused,
    )


def captured(record: RefRecord, counts: Counts, wire: Wire, seconds: float) -> Capture:
    """Returns what a capture or an import gave."""
    return Capture(
        snapshot=record.snapshot,
        content=record.content,
        ref=record.name,
        workspace=record.workspace,
        number=record.number,
        outcome=record.outcome,
        reused=record.reused,
        created=record.ended,
        source=record.source,
        labels=record.labels,
        note=record.note,
        counts=counts,
        wire=wire,
        seconds=seconds,
    )
