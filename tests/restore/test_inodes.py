"""What a restore in place does to inodes: which stay as they are, which are made anew, and what travels for it."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from restore.roads import Shelf, inode, standing

from sandlift.model import Mode
from sandlift.results import RestoreCounts
from support.tree import BLOCK, Dir, File, HardLink, Link, Tree, assert_equal, make, read, tree

IN_PLACE: tuple[Mode, Mode] = ("exact", "merge")
HELPER_BYTES = 60_000
"""What a restore sends at most when no block travels: the helper itself, and the tables of a small tree."""


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


def target_of(lift: Shelf, there: Tree) -> Path:
    target = lift.target()
    make(there, target)
    return target


def same_tree(expected: Tree, target: Path, mode: Mode) -> None:
    """The target is that; a merge leaves the root its own."""
    after = read(target)
    assert_equal(expected if mode == "exact" else replace(expected, root=after.root), after)


PLAIN = tree(
    {
        b"changed": File(b"new"),
        b"sub/deep/same": File(b"same"),
        b"sub/same": File(b"same too", mode=0o600),
        b"sub/link": Link(b"same"),
        b"sub/holes": File(size=2 * BLOCK),
        b"empty": Dir(),
    }
)


@pytest.mark.parametrize("mode", IN_PLACE)
def test_what_is_as_wanted_is_not_touched(lift: Shelf, mode: Mode) -> None:
    """Not even its change time moves, though a neighbour is exchanged."""
    taken = lift.taken(PLAIN)
    target = target_of(lift, PLAIN.changed({b"changed": File(b"older")}))
    unchanged = [path for path in map(os.fsdecode, PLAIN.entries) if path != "changed"]
    before = [inode(target / path) for path in unchanged]
    done = lift.restore_to(taken, target, mode=mode)
    assert [inode(target / path) for path in unchanged] == before
    assert done.counts == RestoreCounts(replaced=1, kept=len(unchanged))
    same_tree(PLAIN, target, mode)


@pytest.mark.parametrize("mode", IN_PLACE)
def test_an_open_file_keeps_its_content(lift: Shelf, mode: Mode) -> None:
    """The content of an inode that was there is never altered: who reads or maps the old file goes on with it."""
    taken = lift.taken(PLAIN)
    target = target_of(lift, PLAIN.changed({b"changed": File(b"older, and longer")}))
    with open(target / "changed", "rb") as old:
        lift.restore_to(taken, target, mode=mode)
        assert old.read() == b"older, and longer"
        assert os.fstat(old.fileno()).st_nlink == 0
    assert (target / "changed").read_bytes() == b"new"


@pytest.mark.parametrize("mode", IN_PLACE)
def test_mode_and_time_alone_are_set_on_the_inode_that_is_there(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(PLAIN)
    there = PLAIN.changed(
        {b"sub/same": File(b"same too", mode=0o644), b"sub/link": Link(b"same", mtime_ns=7), b"empty": Dir(mode=0o700)}
    )
    target = target_of(lift, there)
    names = ["sub/same", "sub/link", "empty"]
    before = [inode(target / name)[0] for name in names]
    done = lift.restore_to(taken, target, mode=mode)
    assert [inode(target / name)[0] for name in names] == before
    assert done.counts == RestoreCounts(updated=3, kept=5)
    same_tree(PLAIN, target, mode)


def test_the_same_size_and_time_are_no_proof_of_the_same_content(lift: Shelf) -> None:
    mode: Mode = "exact"
    taken = lift.taken(PLAIN)
    target = target_of(lift, PLAIN.changed({b"sub/deep/same": File(b"SAME")}))
    done = lift.restore_to(taken, target, mode=mode)
    assert done.counts.replaced == 1
    same_tree(PLAIN, target, mode)


def test_a_hole_is_the_same_as_zeros(lift: Shelf) -> None:
    taken = lift.taken(PLAIN)
    target = target_of(lift, PLAIN)
    with open(target / "sub" / "holes", "r+b") as file:
        file.write(bytes(2 * BLOCK))
    os.utime(target / "sub" / "holes", ns=(0, os.lstat(target / "changed").st_mtime_ns))
    assert lift.restore_to(taken, target, mode="exact").counts == RestoreCounts(kept=8)


# Hard links.

LINKED = tree(
    {
        b"a": File(b"shared"),
        b"b": HardLink(b"a"),
        b"sub/c": HardLink(b"a"),
        b"x": File(b"pair"),
        b"sub/y": HardLink(b"x"),
        b"single": File(b"shared"),
    }
)
SHAPES = {
    "the-same": LINKED,
    "broken": tree(
        {
            b"a": File(b"shared"),
            b"b": File(b"shared"),
            b"sub/c": File(b"shared"),
            b"x": File(b"pair"),
            b"sub/y": File(b"pair"),
            b"single": File(b"shared"),
        }
    ),
    "one-too-many": LINKED.changed({b"single": HardLink(b"a")}),
    "a-name-elsewhere": LINKED.without(b"sub/c").changed({b"sub/d": HardLink(b"a"), b"sub/c": File(b"shared")}),
    "moved-to-another-group": LINKED.without(b"sub").changed({b"sub/c": HardLink(b"x"), b"sub/y": HardLink(b"a")}),
    "exchanged": tree(
        {
            b"a": File(b"pair"),
            b"b": HardLink(b"a"),
            b"sub/c": HardLink(b"a"),
            b"x": File(b"shared"),
            b"sub/y": HardLink(b"x"),
            b"single": HardLink(b"x"),
        }
    ),
    "one-is-missing": LINKED.without(b"b"),
    "other-mode": LINKED.changed({b"a": File(b"shared", mode=0o600)}),
    "other-content": LINKED.changed({b"a": File(b"changed")}),
    "all-one": tree(
        {name: HardLink(b"a") for name in LINKED.entries if name not in (b"a", b"sub")} | {b"a": File(b"shared")}
    ),
    "links-with-two-names": LINKED.changed({b"b": Link(b"x"), b"x": HardLink(b"b")}),
}


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("exact", shape) for shape in SHAPES]
    + [("merge", shape) for shape in ("the-same", "a-name-elsewhere", "exchanged", "all-one")],
)
def test_hard_links_are_as_in_the_snapshot(lift: Shelf, mode: Mode, shape: str) -> None:
    """Names of one inode there may be of none here, and the other way round; no inode that stays is altered."""
    taken = lift.taken(LINKED)
    target = target_of(lift, SHAPES[shape])
    done = lift.restore_to(taken, target, mode=mode)
    extra = {} if mode == "exact" or shape != "a-name-elsewhere" else {b"sub/d": File(b"shared")}
    same_tree(LINKED.changed(dict(extra)), target, mode)
    if mode == "exact":
        assert lift.restore_to(taken, target, mode=mode, dry_run=True).counts == RestoreCounts(kept=7)
    if shape == "the-same":
        assert done.counts == RestoreCounts(kept=7)
    if shape == "other-mode":
        assert done.counts == RestoreCounts(updated=3, kept=4)


OUTSIDE = {
    "as-wanted": (File(b"content"), True),
    "other-mode": (File(b"content", mode=0o600), False),
    "other-time": (File(b"content", mtime_ns=9), False),
    "other-content": (File(b"theirs!"), False),
    "longer": (File(b"content and more"), False),
}


@pytest.mark.parametrize(
    ("mode", "case"), [("exact", case) for case in OUTSIDE] + [("merge", "other-mode"), ("merge", "other-content")]
)
def test_a_file_with_a_name_outside_is_never_altered(lift: Shelf, mode: Mode, case: str) -> None:
    """Neither its content nor its mode or time: the name in the target gets an inode of its own."""
    taken = lift.taken(tree({b"d/f": File(b"content"), b"g": File(b"g")}))
    there, is_kept = OUTSIDE[case]
    target = target_of(lift, tree({b"d/f": there, b"g": File(b"g")}))
    outside = lift.target()
    os.link(target / "d" / "f", outside)
    before = os.lstat(outside)
    lift.restore_to(taken, target, mode=mode)
    after = os.lstat(outside)
    assert outside.read_bytes() == there.data
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (before.st_mode, before.st_mtime_ns, before.st_uid)
    assert after.st_nlink == (2 if is_kept else 1)
    if is_kept:
        assert after.st_ctime_ns == before.st_ctime_ns
    same_tree(tree({b"d/f": File(b"content"), b"g": File(b"g")}), target, mode)


def test_exact_removes_a_name_and_not_the_file_outside(lift: Shelf) -> None:
    taken = lift.taken(tree({b"g": File(b"g")}))
    target = target_of(lift, tree({b"extra": File(b"theirs", mode=0o400), b"g": File(b"g")}))
    outside = lift.target()
    os.link(target / "extra", outside)
    lift.restore_to(taken, target, mode="exact")
    assert (outside.read_bytes(), stat.S_IMODE(os.lstat(outside).st_mode)) == (b"theirs", 0o400)
    assert read(target).entries.keys() == {b"g"}


def test_replace_leaves_names_outside_alone(lift: Shelf) -> None:
    taken = lift.taken(tree({b"g": File(b"g")}))
    target = target_of(lift, tree({b"g": File(b"g"), b"locked/f": File(b"theirs"), b"locked": Dir(mode=0o500)}))
    outside = lift.target()
    os.link(target / "locked" / "f", outside)
    lift.restore_to(taken, target, mode="replace")
    assert outside.read_bytes() == b"theirs"
    assert os.lstat(outside).st_nlink == 1


def test_a_name_outside_of_a_linked_group_is_left_behind(lift: Shelf) -> None:
    """All names in the target move on together; the one outside keeps the old inode as it was."""
    taken = lift.taken(LINKED)
    target = target_of(lift, LINKED.changed({b"a": File(b"shared", mode=0o600)}))
    outside = lift.target()
    os.link(target / "b", outside)
    lift.restore_to(taken, target, mode="exact")
    assert_equal(LINKED, read(target))
    assert (stat.S_IMODE(os.lstat(outside).st_mode), os.lstat(outside).st_nlink) == (0o600, 1)


# What travels.

LARGE = [os.urandom(BLOCK) for _ in range(4)]


def large(blocks: list[bytes], tail: bytes = b"tail") -> File:
    return File(b"".join(blocks) + tail)


MOVED = {
    "nothing-is-there": (tree({}), 5),
    "equal": (tree({b"large": large(LARGE), b"small": File(b"s")}), 0),
    "one-block-changed": (tree({b"large": large([LARGE[0], b"x" * BLOCK, *LARGE[2:]]), b"small": File(b"s")}), 1),
    "renamed": (tree({b"elsewhere/older-name": large(LARGE), b"small": File(b"s")}), 0),
    "blocks-in-another-order": (tree({b"large": large(LARGE[::-1]), b"small": File(b"s")}), 0),
    "grown-since": (tree({b"large": large(LARGE, b"tail, and more"), b"small": File(b"s")}), 0),
    "two-of-four": (tree({b"large": large([LARGE[0], LARGE[1], b"y" * BLOCK, b"z" * BLOCK])}), 2),
}


@pytest.mark.parametrize(
    ("mode", "case"),
    [("exact", case) for case in MOVED]
    + [("merge", "renamed"), ("merge", "one-block-changed"), ("replace", "renamed"), ("replace", "one-block-changed")],
)
def test_only_missing_blocks_travel(lift: Shelf, mode: Mode, case: str) -> None:
    wanted = tree({b"large": large(LARGE), b"small": File(b"s")})
    taken = lift.taken(wanted)
    there, missing = MOVED[case]
    target = target_of(lift, there)
    done = lift.restore_to(taken, target, mode=mode)
    # A frame holds about one block, so at most one more comes along for each.
    blocks = min(missing, 4)
    assert blocks * BLOCK <= done.wire.sent <= min(2 * blocks, 4) * BLOCK + HELPER_BYTES
    assert read(target).entries[b"large"] == wanted.entries[b"large"]


def test_a_sparse_file_stays_sparse_and_linked(lift: Shelf) -> None:
    wanted = tree(
        {b"d/holes": File(b"start", pieces=((5 * BLOCK, b"mid"),), size=20 * BLOCK), b"twin": HardLink(b"d/holes")}
    )
    taken = lift.taken(wanted)
    there = tree({b"d/holes": File(b"start", pieces=((5 * BLOCK, b"old"),), size=20 * BLOCK + 1)})
    target = target_of(lift, there)
    lift.restore_to(taken, target, mode="exact")
    assert_equal(wanted, read(target), holes=True)


def test_blocks_of_a_file_that_goes_are_still_used(lift: Shelf) -> None:
    """The only copy there of what is wanted is in a file that this restore removes, and below a directory that goes."""
    wanted = tree({b"kept/large": large(LARGE)})
    taken = lift.taken(wanted)
    filler = [b"f" * BLOCK] * 2
    there = {b"kept": large([*LARGE[:2], *filler]), b"going/away/large": large([*filler, *LARGE[2:]])}
    target = target_of(lift, tree(dict(there)))
    done = lift.restore_to(taken, target, mode="exact")
    assert_equal(wanted, read(target))
    assert done.wire.sent < HELPER_BYTES


def test_nothing_but_the_target_and_its_parent_is_changed(lift: Shelf) -> None:
    taken = lift.taken(LINKED)
    beside = target_of(lift, LINKED)
    target = target_of(lift, SHAPES["exchanged"])
    parent = os.fsencode(lift.folder)
    before = {path: row for path, row in standing(beside).items() if path != parent}
    for mode in ("exact", "merge", "replace"):
        lift.restore_to(taken, target, mode=mode)
    assert {path: row for path, row in standing(beside).items() if path != parent} == before
