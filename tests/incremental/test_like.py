"""Snapshots of other targets: what the sandbox proves to have does not travel, what it does not is asked for."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from incremental.again import Repeated, copy_tree, fill, noise, packs, rewrite

from sandlift.holding import SnapshotHolding

FILES = 60


@pytest.fixture
def sibling(repeated: Repeated) -> Path:
    """Another sandbox with the same files, some hard links among them, of which the store knows one."""
    fill(repeated.root, FILES, size=4000)
    (repeated.root / "large").write_bytes(noise(5, 3_000_000))
    for number in range(4):
        os.link(repeated.root / "d000" / "f00000", repeated.root / f"link{number}")
    os.link(repeated.root / "d001" / "f00001", repeated.root / "linked")
    repeated.again(workspace="kin")
    copy = copy_tree(repeated.root, repeated.folder / "sibling")
    # Else it would be the very same snapshot.
    os.utime(copy, ns=(1, 2))
    return copy


@contextmanager
def counted_wants(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[bytes]]]:
    """What the host asks for again, by capture."""
    from sandlift.gathering import Gathering

    wants: list[list[bytes]] = []
    missing = Gathering.missing

    def counting(self: Gathering, size_of: object) -> list[bytes]:
        wants.append(missing(self, size_of))  # type: ignore[arg-type]
        return wants[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Gathering, "missing", counting)
        yield wants


def test_a_sibling_sends_almost_nothing(repeated: Repeated, sibling: Path) -> None:
    first = repeated.fresh(sibling)
    taken = repeated.again(sibling, like=("kin",))
    assert taken.identity == first.identity
    assert taken.received < first.received // 100
    assert taken.new == {"snapshots": 1, "refs": 1, "scans": 1}
    assert repeated.store.verify().is_sound
    # It has a base of its own from then on.
    again = repeated.again(sibling)
    assert (again.capture.reused, again.files_read) == (True, 0)


def test_like_and_own_together(repeated: Repeated, sibling: Path) -> None:
    (sibling / "d003" / "f00003").write_bytes(b"mine alone")
    repeated.again(sibling, like=("kin",))
    (sibling / "d003" / "f00023").write_bytes(b"mine too")
    (sibling / "d004" / "f00004").write_bytes((repeated.root / "large").read_bytes())
    taken = repeated.checked(root=sibling, like=("kin",))
    assert taken.received < 4000


def test_like_by_identity_and_several(repeated: Repeated, sibling: Path) -> None:
    other = repeated.folder / "other-tree"
    other.mkdir()
    (other / "own").write_bytes(noise(8, 500_000))
    repeated.again(other, workspace="more")
    (sibling / "own").write_bytes(noise(8, 500_000))
    kin = repeated.store.resolve("kin")
    assert not isinstance(kin, bytes)
    taken = repeated.again(sibling, like=(kin.snapshot[:12], "more@1"), base="none")
    assert taken.received < 10_000
    assert taken.new == {"snapshots": 1, "refs": 1, "scans": 1}


def all_damaged(repeated: Repeated) -> None:
    """Destroy each frame of the packs, but not what tells where they are."""
    for path in packs(repeated.store):
        data = bytearray(path.read_bytes())
        count = struct.unpack("<I", data[-9:-5])[0]
        at = 0
        table = len(data) - 9 - 8 * count
        for index in range(count):
            size = struct.unpack_from("<I", data, table + 8 * index)[0]
            # The head and the tail of the tar stay.
            if 0 < index < count - 1:
                data[at : at + size] = b"\xff" * size
            at += size
        rewrite(path, bytes(data))


def test_damaged_blocks_travel_again(repeated: Repeated, sibling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All claims are refused, so all is read again: among it more than one hard-link group, and large files."""
    all_damaged(repeated)
    assert not repeated.store.verify().is_sound
    with counted_wants(monkeypatch) as wants:
        taken = repeated.again(sibling, like=("kin",))
    assert len(wants) == 1
    assert len(wants[0]) == FILES + 6
    fresh = repeated.fresh(sibling)
    assert taken.identity == fresh.identity
    assert taken.received > 3_000_000
    snapshot = repeated.store.load(repeated.store.resolve(taken.capture.ref))
    assert len(snapshot.packs) == 1
    assert all(repeated.store.read_block(snapshot, at, name) for at, name in enumerate(taken.manifest.blocks))


def test_a_pack_that_is_gone(repeated: Repeated, sibling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in packs(repeated.store):
        path.unlink()
    with counted_wants(monkeypatch) as wants:
        taken = repeated.again(sibling, like=("kin",))
    assert [len(paths) for paths in wants] == [FILES + 6]
    assert taken.identity == repeated.fresh(sibling).identity


def test_one_damaged_group_among_several(repeated: Repeated, sibling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are read again belong to their group, and to no other that was read before."""
    target = b"%08d" % 1 * 500
    read = SnapshotHolding.read

    def lossy(self: SnapshotHolding, digests: list[bytes]) -> Iterator[tuple[bytes, memoryview]]:
        return ((digest, block) for digest, block in read(self, digests) if block != target)

    monkeypatch.setattr(SnapshotHolding, "read", lossy)
    with counted_wants(monkeypatch) as wants:
        taken = repeated.again(sibling, like=("kin",))
    assert wants == [[b"d001/f00001", b"linked"]]
    assert taken.identity == repeated.fresh(sibling).identity
    assert taken.received < 20_000


@pytest.mark.parametrize("offered", ["like", "own"])
def test_a_prefix_that_two_digests_share(
    offered: str, repeated: Repeated, sibling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix of a block that the store does not have is offered, as if another block began with the same bytes."""
    fresh = repeated.fresh(sibling)
    (sibling / "d001" / "f00001").write_bytes(b"not in the store")
    (sibling / "linked2").write_bytes(b"")
    digests = [sha256(b"not in the store").digest()]
    planted = array("Q", [int.from_bytes(digest[:8], "little") for digest in digests])
    prefixes = SnapshotHolding.prefixes
    monkeypatch.setattr(SnapshotHolding, "prefixes", lambda self: prefixes(self) + planted)
    if offered == "own":
        # Captured from the same target, but nothing is known of its files.
        repeated.again(sibling, workspace="demo", base="none")
        (sibling / "d001" / "f00001").write_bytes(b"not in the stor2")
        planted[0] = int.from_bytes(sha256(b"not in the stor2").digest()[:8], "little")
        options: dict[str, Any] = {"base": "demo@1"}
        (next((Path(repeated.store.location) / "scans" / "demo").iterdir())).unlink()
    else:
        options = {"like": ("kin",)}
    with counted_wants(monkeypatch) as wants:
        taken = repeated.again(sibling, **options)
    assert wants == [[b"d001/f00001", b"linked"]]
    assert taken.identity == repeated.fresh(sibling).identity != fresh.identity
    assert taken.received < 20_000


def test_a_proof_is_worth_nothing_in_another_run(
    repeated: Repeated, sibling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host checks by another nonce than the helper was told: each claim is a replay, and each is refused."""
    from sandlift.base import Base

    take = Base.take_claims
    monkeypatch.setattr(Base, "take_claims", lambda self, claims, nonce: take(self, claims, bytes(len(nonce))))
    with counted_wants(monkeypatch) as wants:
        taken = repeated.again(sibling, like=("kin",))
    assert [len(paths) for paths in wants] == [FILES + 6]
    assert taken.received > 3_000_000
    assert taken.identity == repeated.fresh(sibling).identity
