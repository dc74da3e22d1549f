"""What each mode makes of each kind of target, entry by entry."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from restore.roads import Shelf, kind_of, standing
from restore.targets import SNAPSHOT, TARGETS, below, flipped, target_of

from sandlift.errors import Conflict, TargetNotEmpty
from sandlift.model import Mode, RestoreOptions
from sandlift.results import RestoreCounts
from support.tree import (
    Dir,
    Fifo,
    File,
    Link,
    assert_equal,
    read,
    tree,
)


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


@pytest.mark.parametrize(
    ("mode", "there"),
    [("exact", name) for name in TARGETS] + [("replace", "absent"), ("replace", "empty"), ("replace", "foreign")],
)
def test_afterwards_the_tree_equals_the_snapshot(lift: Shelf, mode: Mode, there: str) -> None:
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, TARGETS[there])
    done = lift.restore_to(taken, target, mode=mode)
    assert_equal(SNAPSHOT, read(target))
    assert (done.mode, done.outcome, done.actions) == (mode, "complete", ())


@pytest.mark.parametrize("there", TARGETS)
def test_merge_sets_down_all_and_deletes_nothing(lift: Shelf, there: str) -> None:
    taken = lift.taken(SNAPSHOT)
    before = TARGETS[there]
    target = target_of(lift, before)
    done = lift.restore_to(taken, target, mode="merge")
    after = read(target)
    if before is None:
        assert_equal(SNAPSHOT, after)
        return
    assert after.root.mode == before.root.mode
    assert_equal(replace(before.changed(SNAPSHOT.entries), root=after.root), after)
    assert done.counts.removed == 0
    assert done.counts.kept == {"equal": 17, "older": 8, "newer": 13}.get(there, 0)


@pytest.mark.parametrize("there", TARGETS)
def test_new_wants_nothing_there(lift: Shelf, there: str) -> None:
    taken = lift.taken(SNAPSHOT)
    before = TARGETS[there]
    target = target_of(lift, before)
    if before is None:
        lift.restore_to(taken, target)
        assert_equal(SNAPSHOT, read(target))
    elif there == "empty":
        # A root that was there keeps its own mode and time.
        lift.restore_to(taken, target)
        assert_equal(replace(SNAPSHOT, root=before.root), read(target))
    else:
        stood = standing(target)
        with pytest.raises(TargetNotEmpty, match="is not empty"):
            lift.restore_to(taken, target)
        assert standing(target) == stood


def test_one_hidden_file_makes_a_target_not_empty(lift: Shelf) -> None:
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, tree({b".hidden": File(b"")}))
    with pytest.raises(TargetNotEmpty):
        lift.restore_to(taken, target)
    assert read(target).entries.keys() == {b".hidden"}


@pytest.mark.parametrize(("mode", "kind"), [("new", "file"), ("replace", "fifo"), ("exact", "file"), ("merge", "fifo")])
def test_a_target_that_is_no_directory(lift: Shelf, mode: Mode, kind: str) -> None:
    taken = lift.taken(tree({b"a": File(b"x")}))
    target = lift.target()
    if kind == "file":
        target.write_bytes(b"mine")
    else:
        os.mkfifo(target)
    stood = standing(target)
    with pytest.raises(TargetNotEmpty, match="no directory"):
        lift.restore_to(taken, target, mode=mode)
    assert standing(target) == stood


# cases: kubernetes/kubernetes#78211, moby/moby#31816
@pytest.mark.parametrize("mode", ["new", "exact"])
def test_missing_parents_are_made_and_parents_may_be_links(lift: Shelf, mode: Mode) -> None:
    source = tree({b"a": File(b"x"), b"l": Link(b"a")})
    taken = lift.taken(source)
    folder = target_of(lift, tree({b"real/keep": File(b"keep"), b"alias": Link(b"real")}))
    with lift.road(folder / "alias" / "not" / "yet" / "there") as box:
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode))
    assert_equal(source, read(folder / "real" / "not" / "yet" / "there"))
    assert sorted(os.listdir(folder / "real")) == ["keep", "not"]
    assert os.listdir(folder / "real" / "not" / "yet") == ["there"]
    assert os.readlink(folder / "alias") == "real"


# cases: borgbackup/borg#4737
@pytest.mark.parametrize("mode", ["replace", "exact", "merge"])
def test_a_target_that_is_a_link_is_followed_once_and_stays_a_link(lift: Shelf, mode: Mode) -> None:
    source = tree({b"a": File(b"new")})
    taken = lift.taken(source)
    behind, target = target_of(lift, tree({b"a": File(b"old")})), lift.target()
    os.symlink(behind.name, target)
    lift.restore_to(taken, target, mode=mode)
    assert os.readlink(target) == behind.name
    assert read(behind).entries == source.entries


def test_replace_exchanges_the_whole_tree(lift: Shelf) -> None:
    """Who has the old tree open keeps it whole; nothing of it is in the new one."""
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, SNAPSHOT)
    root, file = inode_of(target), inode_of(target / "a.txt")
    old_fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = lift.restore_to(taken, target, mode="replace")
        assert os.fstat(old_fd).st_nlink == 0
    finally:
        os.close(old_fd)
    assert inode_of(target) != root
    assert inode_of(target / "a.txt") != file
    assert done.counts == RestoreCounts(created=len(SNAPSHOT.entries), removed=len(SNAPSHOT.entries))


def inode_of(path: Path) -> int:
    return os.lstat(path).st_ino


# cases: NVIDIA/NemoClaw#10756, quirq-ai/xo-space#42
def test_exact_exchanges_every_kind_for_every_other(lift: Shelf) -> None:
    wanted, there, clashes = flipped(clashing=True)
    taken = lift.taken(wanted)
    target = target_of(lift, there)
    etc = standing(Path("/etc"))
    lift.restore_to(taken, target, mode="exact")
    assert_equal(wanted, read(target))
    assert standing(Path("/etc")) == etc
    assert len(clashes) == (15 if os.geteuid() == 0 else 12)


# cases: NVIDIA/NemoClaw#10756
def test_merge_exchanges_what_is_no_directory(lift: Shelf) -> None:
    wanted, there, _ = flipped(clashing=False)
    taken = lift.taken(wanted)
    target = target_of(lift, there)
    lift.restore_to(taken, target, mode="merge")
    after = read(target)
    assert_equal(replace(there.changed(wanted.entries), root=after.root), after)


def test_merge_names_every_directory_that_meets_something_else_and_changes_nothing(lift: Shelf) -> None:
    wanted, there, clashes = flipped(clashing=True)
    taken = lift.taken(wanted)
    target = target_of(lift, there)
    stood = standing(target)
    with pytest.raises(Conflict) as caught:
        lift.restore_to(taken, target, mode="merge")
    assert standing(target) == stood
    assert {line.partition(":")[0].encode() for line in caught.value.conflicts} == clashes
    assert "\n" not in str(caught.value)
    assert (
        re.search(rf"block-dir: a block-device is where .* \(and {len(clashes) - 1} more\)$", str(caught.value))
        or os.geteuid()
    )
    assert caught.value.exit == 4
    assert "exact" in caught.value.hint


def test_a_pipe_with_a_reader_that_waits_is_not_opened(lift: Shelf) -> None:
    """A restore that opened it would let the reader go on, or hang itself."""
    taken = lift.taken(tree({b"p": File(b"file")}))
    target = target_of(lift, tree({b"p": Fifo()}))
    fd = os.open(target / "p", os.O_RDONLY | os.O_NONBLOCK)
    try:
        lift.restore_to(taken, target, mode="merge")
        assert os.fstat(fd).st_nlink == 0
    finally:
        os.close(fd)
    assert (target / "p").read_bytes() == b"file"


# cases: quirq-ai/xo-space#42, bytedance/deer-flow#5578
@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_links_in_the_target_are_never_followed(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(tree({b"notes.txt": File(b"ours", mode=0o600), b"sub/file": File(b"ours")}))
    victim = target_of(lift, tree({b"file": File(b"theirs"), b"notes": File(b"theirs")}))
    target = target_of(
        lift, tree({b"notes.txt": Link(os.fsencode(victim / "notes")), b"sub": Link(os.fsencode(victim))})
    )
    stood, before = standing(victim), standing(target)
    if mode == "exact":
        lift.restore_to(taken, target, mode=mode)
        assert kind_of(target / "sub") == "directory"
        assert (target / "notes.txt").read_bytes() == b"ours"
    else:
        with pytest.raises(Conflict, match="sub"):
            lift.restore_to(taken, target, mode=mode)
        assert standing(target) == before
    assert below(lift.folder, [victim.name], standing(victim)) == below(lift.folder, [victim.name], stood)


def test_a_link_that_would_leave_beside_what_is_there_is_a_conflict(lift: Shelf) -> None:
    taken = lift.taken(tree({b"y": Link(b"x/etc")}))
    target = target_of(lift, tree({b"x": Link(b"/")}))
    stood = standing(target)
    with pytest.raises(Conflict, match="y: the link would leave the tree"):
        lift.restore_to(taken, target, mode="merge")
    assert standing(target) == stood
    lift.restore_to(taken, target, mode="exact")
    assert read(target).entries.keys() == {b"y"}


def test_a_link_that_stays_and_would_lead_out_afterwards_is_a_conflict(lift: Shelf) -> None:
    taken = lift.taken(tree({b"d/e": Link(b"..")}))
    target = target_of(lift, tree({b"d": Dir(), b"q": Link(b"d/e/../../f")}))
    stood = standing(target)
    with pytest.raises(Conflict, match="q: the link stays, and would lead out of the tree afterwards"):
        lift.restore_to(taken, target, mode="merge")
    assert standing(target) == stood
