"""Which stored frames travel for a plan, and where the helper finds each block in them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from store.samples import digest, put_pack, run_of, snapshot_of

from sandlift.errors import StoreDamaged
from sandlift.restoring.delivery import Delivery, deliver
from sandlift.store import Store, StoredSnapshot
from sandlift_helper import table, wire
from sandlift_helper.channel import Failure
from sandlift_helper.writer import Layout

A, B, C, D, LARGE = b"a" * 700, b"b" * 512, b"c", b"d" * 5000, b"e" * wire.BLOCK_MAX
# Two packs, of two frames and of one.
RUNS = {"11" * 16: ((A, B), (C, LARGE)), "22" * 16: ((D,),)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", create=True) as made:
        yield made


@pytest.fixture
def snapshot(store: Store) -> StoredSnapshot:
    places = []
    for name, runs in RUNS.items():
        _, offsets = put_pack(store, runs, name)
        places += [(found, name, offset) for found, offset in offsets.items()]
    # A snapshot has its blocks in the manifest's order, not in the packs'.
    return snapshot_of(places[::-1])


def rows_of(*files: tuple[bytes, ...]) -> table.Segment:
    rows = table.Segment()
    for number, blocks in enumerate(files):
        size = sum(map(len, blocks))
        rows.add_file(b"f%d" % number, 0o644, 0, 0, 0, size, 0, [digest(block) for block in blocks])
    return rows


def delivered(
    store: Store,
    snapshot: StoredSnapshot,
    rows: table.Segment,
    local: tuple[bytes, ...] = (),
    extra: tuple[bytes, ...] = (),
) -> Delivery:
    digests = list(table.split_digests(snapshot.manifest))
    blocks = {digest(block): block for block in extra}
    return deliver(rows, digests, snapshot, store.blocks(snapshot), frozenset(map(digest, local)), blocks)


def layout_of(rows: table.Segment, delivery: Delivery) -> Layout:
    column = array("Q")
    column.frombytes(delivery.column)
    return Layout(rows, column)


def brought(store: Store, snapshot: StoredSnapshot, rows: table.Segment, delivery: Delivery) -> dict[int, bytes]:
    """What the helper would write for each use of a block."""
    packs = store.blocks(snapshot)
    runs = [packs.pack(pack).decode_frame(frame) for pack, frame in delivery.stored]
    layout, found = layout_of(rows, delivery), {}
    for number, run in enumerate([*runs, *delivery.made]):
        for use in layout.uses(number):
            at = layout.places[use] - layout.starts[number]
            size = rows.sizes[layout.row_of[use]] - layout.index_of[use] * wire.BLOCK_MAX
            assert use not in found
            found[use] = run[at : at + min(size, wire.BLOCK_MAX)]
    return found


def test_each_use_finds_its_block_in_the_frame_that_brings_it(store: Store, snapshot: StoredSnapshot) -> None:
    rows = rows_of((D,), (LARGE, C), (A,), (A,), (B,), (LARGE, LARGE, B))
    delivery = delivered(store, snapshot, rows)
    assert (delivery.stored, delivery.made) == (((0, 0), (0, 1), (1, 0)), ())
    found = brought(store, snapshot, rows, delivery)
    assert [found[use] for use in sorted(found)] == [D, LARGE, C, A, A, B, LARGE, LARGE, B]
    layout = layout_of(rows, delivery)
    assert list(layout.row_of) == [0, 1, 1, 2, 3, 4, 5, 5, 5]
    assert list(layout.index_of) == [0, 0, 1, 0, 0, 0, 0, 1, 2]
    assert not len(layout.local(0))


def test_only_frames_that_are_needed_travel(store: Store, snapshot: StoredSnapshot) -> None:
    rows = rows_of((D,), (B,))
    delivery = delivered(store, snapshot, rows)
    assert delivery.stored == ((0, 0), (1, 0))
    assert brought(store, snapshot, rows, delivery) == {0: D, 1: B}


def test_what_the_target_holds_does_not_travel(store: Store, snapshot: StoredSnapshot) -> None:
    rows = rows_of((A,), (D,), (B,), (A,))
    delivery = delivered(store, snapshot, rows, local=(A, D))
    assert delivery.stored == ((0, 0),)
    assert brought(store, snapshot, rows, delivery) == {2: B}
    assert list(layout_of(rows, delivery).local(0)) == [0, 1, 3]


def test_what_the_snapshot_lacks_is_made_where_it_is_wanted(store: Store, snapshot: StoredSnapshot) -> None:
    rows = rows_of((b"new",), (C,), (b"newer",))
    delivery = delivered(store, snapshot, rows, extra=(b"new", b"not wanted", b"newer"))
    assert delivery.stored == ((0, 1),)
    assert delivery.made == (run_of([b"new"]), run_of([b"newer"]))
    assert brought(store, snapshot, rows, delivery) == {0: b"new", 1: C, 2: b"newer"}


def test_holes_are_no_uses(store: Store, snapshot: StoredSnapshot) -> None:
    rows = table.Segment()
    rows.add_file(b"f", 0o644, 0, 0, 0, 3 * wire.BLOCK_MAX + 1, 0, [digest(LARGE), digest(C)], [1, 3])
    rows.add_file(b"g", 0o644, 0, 0, 0, 512, 0, [digest(B)])
    delivery = delivered(store, snapshot, rows)
    layout = layout_of(rows, delivery)
    assert (list(layout.row_of), list(layout.index_of)) == ([0, 0, 1], [1, 3, 0])
    assert brought(store, snapshot, rows, delivery) == {0: LARGE, 1: C, 2: B}


@pytest.mark.parametrize("offset", [1 << 44, (1 << 44) - 512])
def test_a_place_that_no_pack_has_is_damage(store: Store, snapshot: StoredSnapshot, offset: int) -> None:
    offsets = array("Q", [*snapshot.offsets[:-1], offset])
    rows = rows_of(*((block,) for runs in RUNS.values() for run in runs for block in run))
    with pytest.raises(StoreDamaged):
        delivered(store, replace(snapshot, offsets=offsets), rows)


def test_a_snapshot_that_does_not_place_each_block_is_damaged(store: Store, snapshot: StoredSnapshot) -> None:
    short = replace(snapshot, offsets=snapshot.offsets[:-1], pack_index=snapshot.pack_index[:-1])
    with pytest.raises(StoreDamaged):
        delivered(store, short, rows_of((A,)))


@pytest.mark.parametrize("column", [[], [0], [1, 0], [2, 0, 512], [0, 512, 512]])
def test_the_helper_refuses_a_column_that_does_not_place_each_block(column: list[int]) -> None:
    with pytest.raises(Failure, match="does not place"):
        Layout(rows_of((A,)), array("Q", column))
