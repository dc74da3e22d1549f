"""Dry runs, conflicts, and restores that are done twice or were not finished."""

from __future__ import annotations

import os
import re
import socket

import pytest
from restore.roads import Shelf, change, standing
from restore.targets import MARKER, NEWER, OLDER, SNAPSHOT, TARGETS, flipped, target_of

from sandlift.deadline import Cancel
from sandlift.errors import Conflict, Interrupted, TargetNotEmpty
from sandlift.model import Mode, RestoreOptions
from sandlift.restoring.sender import Sender
from sandlift.results import Restore, RestoreCounts
from sandlift_helper.marker import new_id, write_marker
from support.tree import (
    Dir,
    File,
    assert_equal,
    read,
    tree,
)

KEPT = RestoreCounts(kept=len(SNAPSHOT.entries))


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


def told(done: Restore, action: str) -> set[bytes]:
    return {found.path for found in done.actions if found.action == action}


@pytest.mark.parametrize(
    ("mode", "there"),
    [("exact", "absent"), ("exact", "older"), ("exact", "newer"), ("exact", "foreign"), ("merge", "foreign")],
)
def test_a_dry_run_changes_nothing_and_says_what_the_restore_then_does(lift: Shelf, mode: Mode, there: str) -> None:
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, TARGETS[there])
    stood = standing(*lift.folder.iterdir())
    planned = lift.restore_to(taken, target, mode=mode, dry_run=True) if target.exists() else None
    if planned is None:
        with lift.road(target) as box:
            planned = box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode), dry_run=True)
    assert standing(*lift.folder.iterdir()) == stood
    before = standing(target) if target.exists() else {}
    done = lift.restore_to(taken, target, mode=mode)
    assert (planned.counts, planned.dry_run, done.dry_run) == (done.counts, True, False)
    found = change(target, before, standing(target))
    root = {b""} if mode == "merge" or not before else set()
    assert told(planned, "create") == found.created - root
    assert told(planned, "replace") == found.replaced
    assert told(planned, "remove") == found.removed
    moved = told(planned, "create") | told(planned, "remove") | told(planned, "replace")
    holders = {path.rpartition(b"/")[0] for path in moved}
    assert told(planned, "update") - holders == found.updated - holders - root
    assert found.updated - root <= told(planned, "update") | holders


@pytest.mark.parametrize(
    ("mode", "there"),
    [("new", "absent"), ("new", "empty"), ("new", "newer"), ("replace", "absent"), ("replace", "newer")],
)
def test_a_dry_run_beside_the_target_changes_nothing(lift: Shelf, mode: Mode, there: str) -> None:
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, TARGETS[there])
    stood = standing(*lift.folder.iterdir())
    with lift.road(target) as box:
        if (mode, there) == ("new", "newer"):
            with pytest.raises(TargetNotEmpty):
                box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode), dry_run=True)
            return
        planned = box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode), dry_run=True)
    assert standing(*lift.folder.iterdir()) == stood
    assert told(planned, "create") == set(SNAPSHOT.entries)
    assert told(planned, "replace") == ({b""} if mode == "replace" and there != "absent" else set())


def test_a_dry_run_tells_of_the_same_conflicts(lift: Shelf) -> None:
    wanted, there, _ = flipped(clashing=True)
    taken = lift.taken(wanted)
    target = target_of(lift, there)
    with pytest.raises(Conflict) as dry:
        lift.restore_to(taken, target, mode="merge", dry_run=True)
    with pytest.raises(Conflict) as wet:
        lift.restore_to(taken, target, mode="merge")
    assert (dry.value.conflicts, str(dry.value)) == (wet.value.conflicts, str(wet.value))


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_a_marker_that_is_not_ours_is_a_conflict(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(tree({b"a": File(b"x")}))
    target = target_of(lift, tree({b".sandlift-restoring": File(b"something of yours\n"), b"a": File(b"old")}))
    stood = standing(target)
    with pytest.raises(Conflict, match=re.escape(MARKER)):
        lift.restore_to(taken, target, mode=mode)
    assert standing(target) == stood


def test_an_unfinished_restore_stays_marked_when_the_next_one_is_stopped(
    lift: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first left half done is half done still, so a capture must be told."""
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, OLDER)
    fd = os.open(target, os.O_RDONLY)
    write_marker(fd, new_id())
    os.close(fd)
    cancel = Cancel()
    monkeypatch.setattr(Sender, "_send_stored", lambda *_: cancel.cancel())
    with lift.road(target) as box, pytest.raises(Interrupted):
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode="exact"), cancel=cancel)
    monkeypatch.undo()
    assert (target / MARKER).exists()
    lift.restore_to(taken, target, mode="exact")
    assert_equal(SNAPSHOT, read(target))


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_a_snapshot_with_the_markers_name_is_set_down_beside_alone(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(tree({b".sandlift-restoring": File(b"a file of the workspace's\n")}))
    target = target_of(lift, tree({}))
    with pytest.raises(Conflict, match="marks a restore in progress"):
        lift.restore_to(taken, target, mode=mode)
    assert read(target).entries == {}
    lift.restore_to(taken, target, mode="replace")
    assert (target / MARKER).read_bytes() == b"a file of the workspace's\n"


def test_a_conflict_is_told_on_one_line_whatever_the_name(lift: Shelf) -> None:
    taken = lift.taken(tree({b"a\nb\x1b[2J": Dir()}))
    target = target_of(lift, tree({b"a\nb\x1b[2J": File(b"x")}))
    with pytest.raises(Conflict) as caught:
        lift.restore_to(taken, target, mode="merge")
    for text in (str(caught.value), *caught.value.conflicts):
        assert not set(text) & {"\n", "\x1b"}


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_a_second_restore_does_nothing(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, NEWER)
    lift.restore_to(taken, target, mode=mode)
    stood = {path: row for path, row in standing(target).items() if path.startswith(os.fsencode(target) + b"/")}
    done = lift.restore_to(taken, target, mode=mode)
    assert done.counts == KEPT
    again = standing(target)
    assert {path: again[path] for path in stood} == stood
    planned = lift.restore_to(taken, target, mode=mode, dry_run=True)
    assert (planned.actions, planned.counts) == ((), KEPT)


def test_a_second_exact_restore_leaves_the_roots_own_time(lift: Shelf) -> None:
    taken = lift.taken(SNAPSHOT)
    target = target_of(lift, NEWER)
    for _ in range(2):
        lift.restore_to(taken, target, mode="exact")
        assert_equal(SNAPSHOT, read(target))
    assert not (target / MARKER).exists()


# cases: NVIDIA/NemoClaw#1901
def test_a_snapshot_of_nothing_is_restored_as_nothing(lift: Shelf) -> None:
    taken = lift.taken(tree({}))
    target = target_of(lift, NEWER)
    done = lift.restore_to(taken, target, mode="exact")
    assert read(target).entries == {}
    assert done.counts == RestoreCounts(removed=len(NEWER.entries))


def test_a_server_that_listens_in_the_target_loses_only_its_name(lift: Shelf) -> None:
    taken = lift.taken(tree({b"f": File(b"f")}))
    target = target_of(lift, tree({}))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(target / "s"))
        server.listen()
        lift.restore_to(taken, target, mode="exact")
        assert sorted(os.listdir(target)) == ["f"]


def test_a_relative_target_that_is_the_working_directory(lift: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place it is changed; beside it cannot be exchanged under its own name, and need not be."""
    taken = lift.taken(tree({b"f": File(b"f")}))
    target = target_of(lift, tree({b"old": File(b"x")}))
    monkeypatch.chdir(target)
    with lift.road(".") as box:
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode="exact"))
    assert read(target).entries.keys() == {b"f"}
