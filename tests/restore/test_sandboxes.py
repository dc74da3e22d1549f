"""The same engine over every road into a sandbox, and on every interpreter that may be there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.lift import Lift, Road, Taken
from restore.roads import Shelf, local, roads_over, with_python

from sandlift.model import Mode
from sandlift.results import RestoreCounts
from support.pythons import PYTHONS, Interpreter
from support.sshd import Sshd
from support.tree import BLOCK, Dir, File, HardLink, Link, assert_equal, make, read, remove, tree

MODES: tuple[Mode, ...] = ("new", "replace", "exact", "merge")
RANDOM = os.urandom(3 * BLOCK + 5)

SOURCE = tree(
    {
        b"a": File(b"a", mtime_ns=1_468_471_990_914_840_077),
        b"bin/run": File(b"#!/bin/sh\n", mode=0o755),
        b"d/\xff\n": File(b"odd name"),
        b"d/twin": HardLink(b"a"),
        b"holes": File(b"x", pieces=((2 * BLOCK, b"y"),), size=4 * BLOCK),
        b"kind": Dir(mode=0o700),
        b"kind/below": File(b"below"),
        b"large": File(RANDOM),
        b"link": Link(b"d/twin"),
        b"read-only": Dir(mode=0o555),
        b"read-only/f": File(b"f", mode=0o400),
    },
    root=Dir(mode=0o750, mtime_ns=5),
)
THERE = SOURCE.without(b"bin", b"kind").changed(
    {
        b"a": File(b"older"),
        b"large": File(RANDOM[:BLOCK] + bytes([RANDOM[BLOCK] ^ 1]) + RANDOM[BLOCK + 1 :]),
        b"link": Link(b"elsewhere"),
        b"read-only": Dir(mode=0o755),
    }
)
EXTRA = {b"extra/below": File(b"x"), b"kind": File(b"a file, where a directory shall be")}


@pytest.fixture(scope="module", params=["ssh", "paramiko", "via", "via-shell"])
def road(request: pytest.FixtureRequest, sshd: Sshd) -> Road:
    """Each road in turn."""
    return roads_over(sshd)[request.param]


@pytest.fixture(scope="module")
def far(road: Road) -> Iterator[Shelf]:
    """A store, and workspaces that are reached by that road."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-restore-")))
    with closing(Shelf(folder, road)) as made:
        yield made
    remove(folder)


def identity_of(lift: Lift, target: Path) -> tuple[str, str]:
    taken = lift.capture(target).capture
    return taken.snapshot, taken.content


@pytest.mark.parametrize("mode", MODES)
def test_a_sandbox_set_down_in_another_is_the_same_snapshot(far: Shelf, mode: Mode) -> None:
    taken = far.taken(SOURCE)
    target = far.target()
    if mode != "new":
        there = THERE.changed(EXTRA) if mode in ("replace", "exact") else THERE
        make(there, target)
    done = far.restore_to(taken, target, mode=mode)
    after = read(target)
    if mode == "merge":
        assert_equal(replace(SOURCE, root=after.root), after)
        assert far.capture(target).capture.content == taken.capture.content
    else:
        assert_equal(SOURCE, after)
        assert identity_of(far, target) == (taken.capture.snapshot, taken.capture.content)
    if mode != "new":
        assert done.wire.sent < 3 * BLOCK


def test_a_second_exact_restore_does_nothing(far: Shelf) -> None:
    taken = far.taken(SOURCE)
    target = far.target()
    make(SOURCE, target)
    assert far.restore_to(taken, target, mode="exact").counts == RestoreCounts(kept=len(SOURCE.entries))


def from_one_user_to_another(lift: Lift) -> tuple[Taken, Path]:
    target = lift.target()
    lift.make(SOURCE)
    for path in SOURCE.entries:
        os.chown(os.fsencode(lift.root) + b"/" + path, 1234, 5678, follow_symlinks=False)
    taken = lift.capture()
    lift.restore_to(taken, target, mode="exact")
    return taken, target


def test_with_other_owners_the_content_is_the_same_and_the_snapshot_is_not(lift: Lift, as_root: None) -> None:
    taken, target = from_one_user_to_another(lift)
    snapshot, content = identity_of(lift, target)
    assert content == taken.capture.content
    assert snapshot != taken.capture.snapshot
    lift.restore_to(taken, target, mode="exact", owner="keep")
    assert identity_of(lift, target) == (taken.capture.snapshot, taken.capture.content)


@pytest.fixture(scope="module")
def home(shelf: Shelf) -> Shelf:
    """One store for all interpreters."""
    return shelf


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_a_helper_on_every_interpreter(home: Shelf, python: Interpreter) -> None:
    home.road = local
    taken = home.taken(SOURCE)
    home.road = with_python(python.path)
    target = home.target()
    make(THERE.changed(EXTRA), target)
    done = home.restore_to(taken, target, mode="exact")
    assert_equal(SOURCE, read(target))
    assert (done.counts.created, done.counts.replaced, done.counts.removed) == (3, 5, 2)
