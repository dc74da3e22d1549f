"""An accepted manifest and its pack become a snapshot and a ref: the last writes of a capture, and of an import."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandlift import payload
from sandlift.model import POLICY_VERSION, Capture, Counts, Wire
from sandlift.store import RefRecord, StoredSnapshot
from sandlift.watch import now

if TYPE_CHECKING:
    from sandlift.deadline import Deadline
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


def commit(
    store: Store,
    pack: PackWriter,
    manifest: Manifest,
    offsets: Mapping[bytes, int],
    provenance: Provenance,
    deadline: Deadline,
) -> RefRecord:
    """Stores pack and snapshot, unless the store has the snapshot with all its packs, then the ref; returns that.

    *offsets* gives each block's place in the pack by its digest.  Raises what the store raises, DeadlineExceeded.
    """
    deadline.check("storing")
    reused = store.has_whole_snapshot(manifest.identity)
    if reused:
        pack.abort()
    else:
        pack.commit()
        blocks = manifest.blocks
        store.put_snapshot(
            StoredSnapshot(
                identity=manifest.identity,
                manifest=manifest.encoded,
                originals=manifest.encoded_originals,
                packs=(provenance.capture_id,) if blocks else (),
                pack_index=array("I", bytes(4 * len(blocks))),
                offsets=array("Q", [offsets[digest] for digest in blocks]),
            )
        )
    deadline.check("storing")
    return store.create_ref(_record(manifest, provenance, reused=reused))


def _record(manifest: Manifest, provenance: Provenance, *, reused: bool) -> RefRecord:
    counts = manifest.counts
    return RefRecord(
        capture_id=provenance.capture_id,
        snapshot=manifest.identity.hex(),
        content=manifest.content.hex(),
        workspace=provenance.workspace,
        source=provenance.source,
        started=provenance.started,
        ended=now(),
        outcome=counts.outcome,
        flags={"changed": counts.changed, "vanished": counts.vanished},
        counts={name: getattr(counts, name) for name in Counts.__slots__},
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
