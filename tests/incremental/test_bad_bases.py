"""Bases that are gone, damaged, of somebody else, or that lie: time may be lost by them, never the truth."""

from __future__ import annotations

import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from incremental.again import Repeated, fill, packs, rewrite, scan_file

from sandlift.box import connect
from sandlift.capturing import _Capturing
from sandlift.errors import StoreDamaged, UsageError
from sandlift.store import Store, encode_part, records
from sandlift.targets import parse_target
from sandlift_helper import parts
from sandlift_helper.table import Segment

FILES = 40


@pytest.fixture
def known(repeated: Repeated) -> Repeated:
    """A workspace that was captured once."""
    fill(repeated.root, FILES, size=4000)
    repeated.again()
    return repeated


def refs(store: Store) -> list[str]:
    """The names of all refs of the workspace."""
    return [record.name for record in store.log("demo")]


# Gone.


@pytest.mark.parametrize("changed", [False, True], ids=["nothing-changed", "something-changed"])
def test_pruned_between_offer_and_commit(changed: bool, known: Repeated, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = _Capturing._listen

    def meanwhile(self: _Capturing, shelf: object) -> None:
        for path in packs(known.store):
            path.unlink()
        listen(self, shelf)  # type: ignore[arg-type]

    if changed:
        (known.root / "d001" / "f00001").write_bytes(b"changed")
    with monkeypatch.context() as patch:
        patch.setattr(_Capturing, "_listen", meanwhile)
        with pytest.raises(StoreDamaged, match="removed meanwhile") as caught:
            known.again()
    assert (caught.value.hint, caught.value.exit) == ("try again", 1)
    assert refs(known.store) == ["demo@1"]
    # Trying again is all that it takes.
    taken = known.checked()
    assert refs(known.store)[0] == "demo@2"
    target = known.target()
    with known.road(target) as box:
        box.restore(known.store, "demo")
    assert (target / "d002" / "f00002").read_bytes() == (known.root / "d002" / "f00002").read_bytes()
    assert taken.new["packs"] == 1


def test_a_pack_that_is_gone_before(known: Repeated) -> None:
    for path in packs(known.store):
        path.unlink()
    assert not known.store.verify().is_sound
    taken = known.checked()
    assert taken.files_read == FILES
    assert taken.new["packs"] == 1
    assert known.store.verify().is_sound
    assert known.again().capture.reused


def test_a_pack_that_is_gone_and_a_base_that_is_named(known: Repeated) -> None:
    (known.root / "d001" / "f00001").write_bytes(b"changed")
    known.again()
    first = next(path for path in packs(known.store) if path.stat().st_size > 5000)
    first.unlink()
    for base in ("demo@1", "demo@2"):
        with pytest.raises(StoreDamaged, match="is not whole any more"):
            known.again(base=base)
    assert refs(known.store) == ["demo@2", "demo@1"]


def test_a_ref_that_is_gone(known: Repeated) -> None:
    """Without the ref that the scan cache names, the newest other one of the target serves."""
    (known.root / "d001" / "f00001").write_bytes(b"changed")
    known.again()
    next((Path(known.store.location) / "refs" / "demo").glob("*2")).unlink()
    taken = known.checked()
    assert taken.received < 8000


def test_a_snapshot_that_is_gone(known: Repeated) -> None:
    shutil.rmtree(Path(known.store.location) / "snapshots")
    (known.root / "d001" / "f00001").write_bytes(b"changed")
    taken = known.checked()
    assert taken.files_read == FILES
    assert known.again().capture.reused


# Somebody else's.


def test_of_another_workspace_or_target(known: Repeated) -> None:
    other = known.folder / "w2"
    other.mkdir()
    known.again(other, workspace="more")
    with pytest.raises(UsageError, match="no ref of demo") as caught:
        known.again(base="more@1")
    assert "--like" in caught.value.hint
    with pytest.raises(UsageError, match="that is not known to be here") as caught:
        known.again(other, base="demo@1")
    assert "--like" in caught.value.hint
    with pytest.raises(UsageError):
        known.again(base=known.fresh().identity[:20], store=known.other, workspace="demo")


# The scan cache.


def altered(path: Path, **changes: object) -> None:
    """Other fields in a record, sealed again."""
    fields = records.decode(path.read_bytes(), "a record of a test")
    rewrite(path, records.encode({**fields, **changes}))


def other_parts(path: Path, change: Callable[[Segment, bytes], tuple[Segment, bytes]]) -> None:
    """Other rows in the parts of a scan cache, with the digests that fit."""
    fields = records.decode(path.read_bytes(), "a record of a test")
    encoded = []
    found = fields["parts"]
    assert isinstance(found, list)
    for part in found:
        rows, prefixes = parts.decode_known(zlib.decompress(part[4:]))
        encoded.append(encode_part(parts.encode_known(*change(rows, bytes(prefixes)))))
    altered(path, parts=encoded)


def fewer(rows: Segment, prefixes: bytes) -> tuple[Segment, bytes]:
    one, _ = list(parts.cut(rows, [(0, 0, 0), (len(rows) - 1, 0, 0)]))
    return one, prefixes[:-8]


def swapped(rows: Segment, prefixes: bytes) -> tuple[Segment, bytes]:
    """Each file has the other's content, by what is said of it."""
    return rows, prefixes[::-1]


def renamed(rows: Segment, prefixes: bytes) -> tuple[Segment, bytes]:
    rows.paths = [path + b"x" for path in rows.paths]
    return rows, prefixes


NONE: dict[str, Callable[[Path], object]] = {
    "newer format": lambda path: altered(path, format=2),
    "sealed": lambda path: altered(path, sealed="x"),
    "another target": lambda path: altered(path, target="0" * 64),
    "another workspace": lambda path: altered(path, workspace="more"),
    "a pack by no name": lambda path: altered(path, packs=["../x"]),
    "no parts": lambda path: altered(path, parts=[]),
    "parts that are no bytes": lambda path: altered(path, parts=["x"]),
    "fewer digests": lambda path: altered(path, digests=b""),
    "empty": lambda path: rewrite(path, b""),
    "cut off": lambda path: rewrite(path, path.read_bytes()[:-1]),
    "gone": lambda path: path.unlink(),
}


def test_a_scan_cache_that_is_none(known: Repeated) -> None:
    """What cannot be read is as good as nothing; the newest snapshot of the target serves without it."""
    path = scan_file(known.store)
    data = path.read_bytes()
    (record,) = known.store.log("demo")
    for what, damage in NONE.items():
        rewrite(path, data)
        assert known.store.read_scan("demo", parse_target(record.source).key()) is not None
        damage(path)
        assert known.store.read_scan("demo", parse_target(record.source).key()) is None, what
    taken = known.checked()
    assert (taken.capture.reused, taken.files_read) == (True, FILES)
    assert taken.received < 8000
    assert known.again().files_read == 0


LIES: dict[str, Callable[[Path], object]] = {
    "another identity": lambda path: altered(path, identity="00" * 32),
    "another number": lambda path: altered(path, number=7),
    "packs that are not there": lambda path: altered(path, packs=["00" * 16]),
    "a part that is none": lambda path: altered(path, parts=[b"junk"]),
    "a part of another size": lambda path: altered(path, parts=[b"\xff\0\0\0" + encode_part(b"x")[4:]]),
    "other digests": lambda path: altered(path, digests=bytes(32)),
    "fewer rows": lambda path: other_parts(path, fewer),
    "other names": lambda path: other_parts(path, renamed),
    "other content": lambda path: other_parts(path, swapped),
}


@pytest.mark.parametrize("what", LIES)
def test_a_scan_cache_that_lies(what: str, known: Repeated) -> None:
    """The truth is captured at once, or an error says to try again, and then it is; the next cache is right."""
    LIES[what](scan_file(known.store))
    (known.root / "d001" / "f00001").write_bytes(b"changed")
    try:
        taken = known.again()
    except StoreDamaged as error:
        assert error.hint == "try again"
        assert refs(known.store) == ["demo@1"]
        taken = known.again()
    assert taken.identity == known.fresh().identity
    again = known.again()
    assert (again.capture.reused, again.files_read) == (True, 0)


def test_a_cache_of_an_older_snapshot_is_not_that_of_the_newest(known: Repeated) -> None:
    """One that was put back with all that belongs to it is only old: rows that differ are read."""
    path = scan_file(known.store)
    old = path.read_bytes()
    (known.root / "d001" / "f00001").write_bytes(b"changed")
    known.again()
    rewrite(path, old)
    taken = known.checked()
    assert taken.files_read == 1


def test_flipped_bits_in_a_scan_cache(known: Repeated) -> None:
    """Wherever it is, it is seen, and the cache is none."""
    path = scan_file(known.store)
    data = path.read_bytes()
    (record,) = known.store.log("demo")
    assert known.store.read_scan("demo", parse_target(record.source).key()) is not None
    chance = random.Random(5)
    for _ in range(200):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        rewrite(path, bytes(broken))
        assert known.store.read_scan("demo", parse_target(record.source).key()) is None
    taken = known.checked()
    assert taken.capture.reused
    assert taken.files_read == FILES


# Damage.


def test_a_damaged_block_of_an_own_base(known: Repeated) -> None:
    """Blocks of an own base are not read again, so a snapshot that goes on from it has the damage too; verify tells."""
    (pack,) = packs(known.store)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    rewrite(pack, bytes(data))
    (known.root / "d001" / "f00001").write_bytes(b"changed")
    taken = known.again()
    assert taken.identity == known.fresh().identity
    report = known.store.verify()
    assert not report.is_sound
    assert {ref for damage in report.damaged for ref in damage.refs} == {"demo@1", "demo@2"}


def test_two_sandboxes_behind_one_program_are_two(known: Repeated, tmp_path: Path) -> None:
    """What one container gave is no base of another, though only the words of a command prefix tell them apart."""
    other = tmp_path / "other"
    shutil.copytree(known.root, other, symlinks=True)
    received = []
    for word, root in (("c1", known.root), ("c1", known.root), ("c2", other)):
        prefix = ("env", f"CONTAINER={word}")
        with connect(str(root), via=" ".join(prefix)) as box:
            taken = box.capture(known.store, "boxes")
        received.append(taken.wire.received)
    # The first of each brings everything, the second of one and the same nothing.
    assert received[1] < received[0] // 4
    assert received[2] > received[0] * 3 // 4


def test_a_damaged_ref_and_no_scan_cache(known: Repeated) -> None:
    """A ref that cannot be read is no base; it keeps its number, and keeps nobody from capturing."""
    scan_file(known.store).unlink()
    (ref,) = (Path(known.store.location) / "refs" / "demo").iterdir()
    rewrite(ref, b"damaged")
    taken = known.checked()
    assert taken.capture.number == 2
