"""Blocks, packs, snapshots and refs to store.

A sample manifest is nothing but the digests of its blocks, so ``distinct_blocks`` is the identity function.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Sequence
from typing import Any

import zstandard

from sandlift.store import PackInfo, RefRecord, Store, StoredSnapshot
from sandlift.store.verify import VerifyReport, verify_with
from sandlift_helper import members


def digest(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()


def run_of(blocks: Sequence[bytes]) -> bytes:
    """The tar members of *blocks*."""
    return b"".join(
        members.header(digest(block), len(block)) + block + bytes(members.padded(len(block)) - len(block))
        for block in blocks
    )


def frame_of(run: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(run)


def put_pack(store: Store, runs: Sequence[Sequence[bytes]], name: str = "") -> tuple[PackInfo, dict[bytes, int]]:
    """Stores a pack with one frame for each run; returns it and the decoded offset of each digest."""
    offsets = {}
    with store.begin_pack(name or secrets.token_hex(16)) as pack:
        for blocks in runs:
            run = run_of(blocks)
            position = pack.append(frame_of(run), len(run))
            for block in blocks:
                offsets[digest(block)] = position
                position += 512 + members.padded(len(block))
        info = pack.commit()
    assert info is not None
    return info, offsets


def snapshot_of(places: Sequence[tuple[bytes, str, int]], originals: bytes = b"") -> StoredSnapshot:
    """A snapshot of blocks, each given as digest, pack and offset."""
    manifest = b"".join(place[0] for place in places)
    packs = sorted({place[1] for place in places})
    return StoredSnapshot(
        identity=digest(manifest),
        manifest=manifest,
        originals=originals,
        packs=tuple(packs),
        pack_index=array("I", [packs.index(place[1]) for place in places]),
        offsets=array("Q", [place[2] for place in places]),
    )


def record_of(stored: StoredSnapshot, workspace: str = "demo", **changes: Any) -> RefRecord:
    fields: dict[str, Any] = {
        "capture_id": secrets.token_hex(16),
        "snapshot": stored.identity.hex(),
        "content": digest(stored.manifest + b"content").hex(),
        "workspace": workspace,
        "source": "ssh://me@box/work",
        "started": "2026-01-02T03:04:05Z",
        "ended": "2026-01-02T03:04:06.25Z",
        "outcome": "complete",
        "flags": {"changed": 1},
        "counts": {"files": 3},
        "rules": ("*.log", "caf\udce9/"),
        "policy_version": 1,
        "helper_digest": "ab" * 32,
        "labels": {"team": "web"},
        "note": "before the upgrade",
    }
    return RefRecord(**fields | changes)


def save(store: Store, workspace: str, runs: Sequence[Sequence[bytes]], pack: str = "", **changes: Any) -> RefRecord:
    """A whole commit: pack, snapshot, ref."""
    info, offsets = put_pack(store, runs, pack)
    snapshot = snapshot_of([(named, info.name, offset) for named, offset in offsets.items()])
    store.put_snapshot(snapshot)
    return store.create_ref(record_of(snapshot, workspace, **changes))


def check(store: Store) -> VerifyReport:
    """Verifies a store of sample manifests."""
    return verify_with(store.objects, lambda manifest: manifest)
