"""A capture that breaks off leaves what had come; the next goes on from there, or salvage makes a snapshot of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli.program import run
from incremental.again import Again, Repeated, noise, packs, rewrite, scan_file

from sandlift.deadline import Deadline
from sandlift.errors import StoreDamaged, Truncated
from sandlift.limits import DEFAULT_LIMITS
from sandlift.salvaging import salvage
from sandlift.store import PartialCapture, Store, records
from sandlift_helper import table
from support.tree import Tree, read

CUT = Path(__file__).with_name("cut.py")
SMALL, LARGE = 150, 8
LARGE_BYTES = 1_100_000
SPARE_BYTES = 32 << 10


class Line:
    """The way to a sandbox, which breaks after so many bytes."""

    def __init__(self, folder: Path) -> None:
        self._size = folder / "size"
        self.via = (sys.executable, str(CUT), str(self._size))
        self.last_for(-1)

    def last_for(self, size: int, pause_s: float = 0.0) -> None:
        """Break after so many bytes, or not at all; wait after each 64 KiB."""
        self._size.write_text(f"{size} {pause_s}")


@pytest.fixture
def line(repeated: Repeated) -> Line:
    """A way to a workspace of small and large files, hard links among them."""
    root = repeated.root
    (root / "small").mkdir()
    for number in range(SMALL):
        (root / "small" / f"{number:03}").write_bytes(noise(number, 1000))
    for number in range(LARGE):
        (root / f"large{number:02}").write_bytes(noise(1000 + number, LARGE_BYTES))
    os.link(root / "small" / "000", root / "other-name")
    os.link(root / "large07", root / "small" / "last")
    os.symlink("large00", root / "link")
    os.symlink("/nowhere/outside", root / "outside")
    (root / "empty").mkdir()
    return Line(repeated.folder)


def whole_size(repeated: Repeated, line: Line) -> int:
    """How many bytes a first capture takes."""
    line.last_for(-1)
    return repeated.fresh(via=line.via).received


def broken(repeated: Repeated, line: Line, size: int, *, slow: bool = False) -> PartialCapture:
    """Capture over a line that breaks after so many bytes; returns what is left of it.

    Rows travel now and then, so over a fast line the last of them are missing.
    """
    line.last_for(size, 0.025 if slow else 0.0)
    with pytest.raises(Truncated) as caught:
        repeated.again(via=line.via)
    assert "sandlift salvage demo" in caught.value.hint
    line.last_for(-1)
    (found,) = repeated.store.partials("demo")
    return found


@pytest.mark.parametrize("percent", [10, 50, 90])
def test_the_next_capture_goes_on(percent: int, repeated: Repeated, line: Line) -> None:
    # So large that the one frame which breaks is a small part.
    for number in range(2 * LARGE):
        (repeated.root / f"more{number:02}").write_bytes(noise(3000 + number, LARGE_BYTES))
    whole = whole_size(repeated, line)
    left = broken(repeated, line, whole * percent // 100)
    assert repeated.store.verify().is_sound
    assert "demo" not in repeated.store.workspaces()
    taken = repeated.again(via=line.via)
    assert taken.identity == repeated.fresh(via=line.via).identity
    assert taken.received < whole * (100 - percent) // 100 + whole // 20
    if percent == 90:
        assert taken.received <= whole * 15 // 100
    assert sum(left.sizes) > whole * (percent - 5) // 100
    # What is left of the break is part of the snapshot, and the partial is gone.
    assert repeated.store.partials() == []
    assert set(left.packs) < set(repeated.store.load(repeated.store.resolve("demo")).packs)
    assert repeated.store.verify().is_sound
    again = repeated.again(via=line.via)
    assert (again.capture.reused, again.files_read) == (True, 0)


def test_two_breaks_in_a_row(repeated: Repeated, line: Line) -> None:
    """The second partial keeps what the first had brought, and the third capture needs neither again."""
    whole = whole_size(repeated, line)
    first = broken(repeated, line, whole // 2)
    second = broken(repeated, line, whole // 4)
    assert set(first.packs) < set(second.packs)
    assert set(digests(first)) < set(digests(second))
    taken = repeated.again(via=line.via)
    assert taken.received < whole * 45 // 100
    assert taken.identity == repeated.fresh(via=line.via).identity
    assert repeated.store.partials() == []


def digests(partial: PartialCapture) -> list[bytes]:
    """The blocks that it brought."""
    return [partial.digests[at : at + 32] for at in range(0, len(partial.digests), 32)]


def test_a_break_on_top_of_a_base(repeated: Repeated, line: Line) -> None:
    """What was as in the base is in the salvaged snapshot too."""
    repeated.again(via=line.via)
    for number in range(LARGE):
        (repeated.root / f"large{number:02}").write_bytes(noise(2000 + number, LARGE_BYTES))
    whole = LARGE * LARGE_BYTES
    broken(repeated, line, whole * 8 // 10, slow=True)
    before = read(repeated.root)
    done = run("salvage", "demo", "--store", repeated.store.location, "--json")
    assert (done.status, done.object["outcome"]) == (3, "incomplete")
    snapshot = salvaged(repeated)
    lost = [path for path, reason in snapshot.reasons.items() if reason == "not-reached"]
    assert 1 <= len([path for path in lost if path.startswith(b"large")]) <= LARGE - 2
    assert not any(path.startswith(b"small/0") for path in lost)
    assert read_back(repeated, snapshot).entries.keys() == before.entries.keys() - set(lost) - {b"outside"}
    # And on from the salvaged one.
    taken = repeated.again(via=line.via)
    assert taken.identity == repeated.fresh(via=line.via).identity
    assert taken.received < whole


def salvaged(repeated: Repeated) -> Again:
    """The newest snapshot."""
    from sandlift.manifest import Manifest

    snapshot = repeated.store.load(repeated.store.resolve("demo"))
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    return Again(manifest=manifest, files_read=0, bytes_read=0, new={})


def read_back(repeated: Repeated, taken: Again) -> Tree:
    """Restore the newest snapshot, and compare each entry with what the workspace holds."""
    target = repeated.target()
    done = run("restore", "demo", target, "--store", repeated.store.location, "--json")
    assert done.status == 0, done
    found, source = read(target), read(repeated.root)
    assert found.entries.keys() == set(taken.paths)
    for path, entry in found.entries.items():
        if (target / os.fsdecode(path)).is_file():
            assert (target / os.fsdecode(path)).read_bytes() == (repeated.root / os.fsdecode(path)).read_bytes()
            assert (
                os.lstat(target / os.fsdecode(path)).st_mtime_ns
                == os.lstat(repeated.root / os.fsdecode(path)).st_mtime_ns
            )
        else:
            assert entry == source.entries[path]
    return found


def arrived(partial: PartialCapture) -> set[bytes]:
    """The files whose rows and blocks came."""
    rows, held = table.decode(partial.rows), set(digests(partial))
    carriers, contents = rows.first_of_groups(), list(rows.contents())
    found = set()
    for row, path in enumerate(rows.paths):
        first, _, count = contents[carriers.get(rows.groups[row], row)]
        names = {bytes(rows.digests[32 * at : 32 * at + 32]) for at in range(first, first + count)}
        if rows.kinds[row] == table.FILE and names <= held:
            found.add(path)
    return found


@pytest.mark.parametrize("percent", [55, 90])
def test_salvage(percent: int, repeated: Repeated, line: Line) -> None:
    whole = whole_size(repeated, line)
    left = broken(repeated, line, whole * percent // 100, slow=True)
    done = run("salvage", "demo", "--store", repeated.store.location, "--json")
    assert done.status == 3, done
    fields = done.object
    assert (fields["ref"], fields["outcome"], fields["source"]) == ("demo@1", "incomplete", left.source)
    taken = salvaged(repeated)
    files = {path for path in read(repeated.root).entries if (repeated.root / os.fsdecode(path)).is_file()}
    files -= {b"link", b"outside"}
    lost = {path for path, reason in taken.reasons.items() if reason == "not-reached"}
    kept = files - lost
    assert lost <= files
    assert fields["counts"]["lost"] == len(lost) > 0
    assert taken.reasons == {**dict.fromkeys(lost, "not-reached"), b"outside": "outside-link"}
    assert set(taken.paths) == kept | {b"link", b"small", b"empty"}
    assert kept == arrived(left)
    # Rows come some frames after their blocks, for they are collected.
    assert percent < 90 or len(kept) > SMALL // 2
    read_back(repeated, taken)
    assert repeated.store.verify().is_sound
    assert repeated.store.partials() == []
    # There is nothing to salvage twice.
    again = run("salvage", "demo", "--store", repeated.store.location, "--json")
    assert (again.status, again.error["code"]) == (1, "unknown-ref")
    # The sandbox was there after all.
    after = repeated.again(via=line.via)
    assert after.identity == repeated.fresh(via=line.via).identity
    # What was salvaged does not travel again; its rows and the offers for it take little.
    saved = sum((repeated.root / os.fsdecode(path)).stat().st_size for path in kept)
    assert after.received < whole - saved + SPARE_BYTES


def test_a_break_before_any_file(repeated: Repeated, line: Line) -> None:
    """Nothing is left, and nothing is promised."""
    line.last_for(120)
    with pytest.raises(Truncated) as caught:
        repeated.again(via=line.via)
    assert "salvage" not in caught.value.hint
    assert repeated.store.partials() == []
    assert packs(repeated.store) == []


def test_without_a_base_what_is_left_is_not_offered(repeated: Repeated, line: Line) -> None:
    whole = whole_size(repeated, line)
    broken(repeated, line, whole // 2)
    taken = repeated.again(via=line.via, base="none")
    assert taken.received > whole * 95 // 100


def partial_file(store: Store) -> Path:
    """The one record of a broken capture."""
    (found,) = (path for path in (Path(store.location) / "partials").rglob("@*") if path.is_file())
    return found


def altered(data: bytes, **changes: object) -> bytes:
    """A record with other fields, sealed again."""
    fields = records.decode(data, "a record of a test")
    encoded: bytes = records.encode({**fields, **changes})
    return encoded


BROKEN: dict[str, Callable[[Store], object]] = {
    "a flipped bit": lambda store: flip(partial_file(store), 100),
    "cut off": lambda store: rewrite(partial_file(store), partial_file(store).read_bytes()[:-40]),
    "empty": lambda store: rewrite(partial_file(store), b""),
    "a newer format": lambda store: rewrite(partial_file(store), altered(partial_file(store).read_bytes(), format=2)),
    "another target's": lambda store: rewrite(
        partial_file(store), altered(partial_file(store).read_bytes(), target="0" * 64)
    ),
    "columns that do not fit": lambda store: rewrite(
        partial_file(store), altered(partial_file(store).read_bytes(), sizes=b"")
    ),
    "places beyond the packs": lambda store: rewrite(
        partial_file(store), altered(partial_file(store).read_bytes(), packs=[])
    ),
    "its pack is gone": lambda store: packs(store)[0].unlink(),
}


def flip(path: Path, at: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    rewrite(path, bytes(data))


def test_what_is_left_is_broken_too(repeated: Repeated, line: Line) -> None:
    """It is nothing then: not to be offered, not to be salvaged; the next capture is as the first one."""
    whole = whole_size(repeated, line)
    left = broken(repeated, line, whole * 9 // 10)
    path = partial_file(repeated.store)
    data = path.read_bytes()
    assert repeated.store.read_partial("demo", left.target) == left
    for what, damage in BROKEN.items():
        damage(repeated.store)
        assert repeated.store.read_partial("demo", left.target) is None, what
        if what != "its pack is gone":
            assert repeated.store.partials() == [], what
            rewrite(path, data)
    taken = repeated.again(via=line.via)
    assert taken.identity == repeated.fresh(via=line.via).identity
    assert taken.received > whole * 9 // 10
    assert repeated.store.verify().is_sound


def test_salvage_of_a_pack_that_is_gone(repeated: Repeated, line: Line) -> None:
    broken(repeated, line, whole_size(repeated, line) * 9 // 10, slow=True)
    packs(repeated.store)[0].unlink()
    done = run("salvage", "demo", "--store", repeated.store.location, "--json")
    assert (done.status, done.error["code"]) == (1, "store-damaged")
    assert "demo" not in repeated.store.workspaces()


def test_a_damaged_pack_is_told_by_verify(repeated: Repeated, line: Line) -> None:
    """What was stored is not read again by the next capture; verify finds what decayed since."""
    whole = whole_size(repeated, line)
    broken(repeated, line, whole * 9 // 10)
    (pack,) = packs(repeated.store)
    flip(pack, pack.stat().st_size // 2)
    assert not repeated.store.verify().is_sound
    taken = repeated.again(via=line.via)
    assert taken.identity == repeated.fresh(via=line.via).identity
    report = repeated.store.verify()
    assert [damage.refs for damage in report.damaged] == [("demo@1",)]


def test_salvage_asks_which(repeated: Repeated, line: Line) -> None:
    store = repeated.store
    left = broken(repeated, line, whole_size(repeated, line) * 9 // 10)
    store.write_partial(replace(left, target="0" * 64, source="ssh://box/work"))
    refused = run("salvage", "demo", "--store", store.location, "--json")
    assert (refused.status, refused.error["code"]) == (2, "options")
    assert left.source in refused.error["hint"]
    assert "ssh://box/work" in refused.error["hint"]
    unknown = run("salvage", "demo", "--from", "ssh://nowhere/x", "--store", store.location, "--json")
    assert (unknown.status, unknown.error["code"]) == (1, "unknown-ref")
    done = run("salvage", "demo", "--from", "ssh://box/work", "--store", store.location, "--json")
    assert (done.status, done.object["source"]) == (3, "ssh://box/work")
    assert [partial.source for partial in store.partials()] == [left.source]


def test_salvage_without_its_base(repeated: Repeated, line: Line) -> None:
    """What was kept of a base whose pack is gone was not reached."""
    repeated.again(via=line.via)
    (old,) = packs(repeated.store)
    for number in range(LARGE):
        (repeated.root / f"large{number:02}").write_bytes(noise(2000 + number, LARGE_BYTES))
    left = broken(repeated, line, LARGE * LARGE_BYTES // 2, slow=True)
    old.unlink()
    record, counts = salvage(repeated.store, left, DEFAULT_LIMITS, Deadline.after(30))
    taken = salvaged(repeated)
    assert (record.outcome, counts.lost) == ("incomplete", len(taken.reasons) - 1)
    assert taken.reasons[b"small/001"] == "not-reached"
    read_back(repeated, taken)


def test_prune(repeated: Repeated, line: Line) -> None:
    """The record and its packs go, but no pack that a snapshot names."""
    store = repeated.store
    left = broken(repeated, line, whole_size(repeated, line) * 9 // 10, slow=True)
    names = {path.name for path in packs(store)}
    assert names == set(left.packs)
    done = run("prune", "--partials", "1d", "--store", store.location, "--json")
    assert (done.status, done.object["partials"]) == (0, [])
    done = run("prune", "--partials", "0s", "--dry-run", "--store", store.location, "--json")
    assert [row["source"] for row in done.object["partials"]] == [left.source]
    assert store.partials() == [left]
    # A snapshot is made of it meanwhile, by somebody else.
    salvage(store, left, DEFAULT_LIMITS, Deadline.after(30))
    store.write_partial(left)
    done = run("prune", "--partials", "0s", "--store", store.location, "--json")
    assert (done.status, len(done.object["partials"])) == (0, 1)
    assert store.partials() == []
    assert {path.name for path in packs(store)} == names
    assert store.verify().is_sound
    # Another, which nothing names.
    (repeated.root / "large00").write_bytes(noise(77, 4_000_000))
    again = broken(repeated, line, 3_900_000)
    assert {path.name for path in packs(store)} == names | set(again.packs)
    assert run("prune", "--partials", "0s", "--store", store.location).status == 0
    assert {path.name for path in packs(store)} == names
    assert store.verify().is_sound


def test_prune_needs_a_rule(repeated: Repeated) -> None:
    for words in ((), ("--dry-run",), ("--partials", "soon"), ("--partials", "7")):
        done = run("prune", *words, "--store", repeated.store.location, "--json")
        assert (done.status, done.error["code"]) == (2, "options")


def test_a_partial_is_pruned_while_it_is_offered(
    repeated: Repeated, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture that relies on it says so, and makes no ref."""
    left = broken(repeated, line, whole_size(repeated, line) * 9 // 10)
    put = Store.put_snapshot

    def meanwhile(self: Store, snapshot: object) -> None:
        repeated.store.collect_partial(left)
        put(self, snapshot)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_snapshot", meanwhile)
        with pytest.raises(StoreDamaged, match="removed meanwhile") as caught:
            repeated.again(via=line.via)
    assert caught.value.hint == "try again"
    assert "demo" not in repeated.store.workspaces()
    taken = repeated.again(via=line.via)
    assert taken.identity == repeated.fresh(via=line.via).identity
    assert not (Path(repeated.store.location) / "partials" / "demo").exists() or not repeated.store.partials()
    assert scan_file(repeated.store).stat().st_size > 0
