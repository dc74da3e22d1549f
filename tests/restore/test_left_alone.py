"""What a restore leaves alone: what the snapshot does not hold, what is no path asked for, what is somebody else's."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

import pytest
from e2e.lift import Lift
from restore.roads import NOBODY, Shelf, give_to_nobody, standing
from restore.targets import below, target_of

from sandlift.errors import Conflict, UnknownPath, UsageError
from sandlift.limits import DEFAULT_LIMITS
from sandlift.model import Mode, Rules
from sandlift.results import Action, RestoreCounts
from support.tree import (
    Dir,
    Fifo,
    File,
    HardLink,
    Link,
    Socket,
    assert_equal,
    read,
    tree,
)


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


EXCLUDING = Rules(patterns=((b"*.log", b"here"), (b"cache/", b"here")), paths=(b"src/literal",))
WITH_EXCLUDED = tree(
    {
        b"x.log": File(b"log"),
        b"cache/thing": File(b"cached"),
        b"src/literal": File(b"x"),
        b"src/y.log": File(b"log"),
        b"src/main": File(b"main"),
        b"out": Link(b"/etc/hostname"),
        b"pipe": Fifo(),
        b"sock": Socket(),
    }
)
LEFT_OUT = ["x.log", "cache", "src/literal", "src/y.log", "out", "pipe", "sock"]
THEIRS = tree(
    {
        b"x.log/is/a/directory": File(b"here"),
        b"cache/deep/data": File(b"precious", mode=0o640),
        b"cache/link": Link(b"/etc"),
        b"src/literal": Link(b"main"),
        b"src/y.log": Fifo(),
        b"src/main": File(b"older"),
        b"out/was-a-link": File(b"and is a directory now"),
        b"pipe": File(b"no pipe"),
        b"sock": Dir(mode=0o500),
        b"z.log": File(b"not in the workspace when it was captured"),
    }
)


# cases: notque/vexjoy-agent#902, dagger/dagger#6909, paperclipai/paperclip#10555
def test_exact_leaves_alone_what_was_excluded_and_all_below(lift: Shelf) -> None:
    taken = lift.taken(WITH_EXCLUDED, rules=EXCLUDING)
    assert set(taken.reasons.values()) == {"pattern", "outside-link", "fifo", "socket"}
    target = target_of(lift, THEIRS)
    stood = below(target, LEFT_OUT, standing(target))
    done = lift.restore_to(taken, target, mode="exact")
    assert below(target, LEFT_OUT, standing(target)) == stood
    assert_equal(
        replace(THEIRS.without(b"z.log").changed({b"src": Dir(), b"src/main": File(b"main")}), root=WITH_EXCLUDED.root),
        read(target),
    )
    assert [action.path.decode() for action in done.actions] == sorted(LEFT_OUT)
    assert {(action.action, "left out when captured" in action.why) for action in done.actions} == {("leave", True)}
    assert done.counts == RestoreCounts(replaced=1, removed=1, kept=1)


def test_what_was_excluded_and_is_not_there_is_not_made(lift: Shelf) -> None:
    taken = lift.taken(WITH_EXCLUDED, rules=EXCLUDING)
    target = target_of(lift, tree({}))
    done = lift.restore_to(taken, target, mode="exact")
    assert read(target).entries.keys() == {b"src", b"src/main"}
    assert done.excluded == len(LEFT_OUT)


def test_a_directory_that_holds_what_was_excluded_cannot_make_room(lift: Shelf) -> None:
    """The workspace's directory became a file since; below it in the target stands what the snapshot never held."""
    taken = lift.taken(tree({b"d/x.log": File(b"log"), b"d/f": File(b"f"), b"e": File(b"e")}), rules=EXCLUDING)
    target = target_of(lift, tree({b"d/x.log": File(b"theirs"), b"d/f/x": File(b"x"), b"e/a": File(b"a")}))
    lift.restore_to(taken, target, mode="exact")
    assert_equal(tree({b"d/x.log": File(b"theirs"), b"d/f": File(b"f"), b"e": File(b"e")}), read(target))


def test_exact_leaves_alone_what_was_lost(nobodys_lift: Lift) -> None:
    """Unreadable and too large; the workspace's user may not read the one, its limits forbid the other."""
    lift = nobodys_lift
    lift.make(
        tree({b"closed/x": File(b"x"), b"f": File(b"f"), b"large": File(b"l" * 5000), b"secret": File(b"s", mode=0)})
    )
    give_to_nobody(lift.root)
    os.chmod(lift.root / "closed", 0)
    taken = lift.capture(limits=replace(DEFAULT_LIMITS, file_bytes=4096))
    assert taken.reasons == {b"closed": "unreadable", b"large": "too-large", b"secret": "unreadable"}
    assert taken.capture.outcome == "incomplete"
    target = target_of(
        lift, tree({b"closed/mine": File(b"m"), b"large": Dir(), b"secret": File(b"mine"), b"gone": File()})
    )
    give_to_nobody(target)
    names = ["closed/mine", "large", "secret"]
    stood = below(target, names, standing(target))
    done = lift.restore_to(taken, target, mode="exact")
    assert below(target, names, standing(target)) == stood
    assert sorted(read(target).entries) == [b"closed", b"closed/mine", b"f", b"large", b"secret"]
    assert done.outcome == "incomplete"


def test_exact_leaves_alone_a_name_at_the_limit_and_all_that_follow(lift: Shelf) -> None:
    names = [b"a", b"b", b"c", b"d", b"e"]
    taken = lift.taken(tree({name: File(name) for name in names}), limits=replace(DEFAULT_LIMITS, entries=3))
    (cut,) = taken.reasons
    assert taken.reasons == {cut: "limit"}
    assert taken.paths == [name for name in names if name < cut]
    target = target_of(
        lift,
        tree({name: File(b"older") for name in [*names, b"a0", cut + b"0", b"zz/below"]}),
    )
    after_cut = sorted({*names[names.index(cut) :], cut + b"0", b"zz"})
    stood = below(target, [os.fsdecode(name) for name in after_cut], standing(target))
    lift.restore_to(taken, target, mode="exact")
    assert below(target, [os.fsdecode(name) for name in after_cut], standing(target)) == stood
    found = read(target).entries
    assert b"a0" not in found
    assert [found[name] for name in taken.paths] == [File(name).canonical() for name in taken.paths]


def test_replace_asks_before_it_discards_what_was_excluded(lift: Shelf) -> None:
    taken = lift.taken(WITH_EXCLUDED, rules=EXCLUDING)
    target = target_of(lift, THEIRS)
    stood = standing(target)
    with pytest.raises(Conflict) as caught:
        lift.restore_to(taken, target, mode="replace")
    assert standing(target) == stood
    assert {line.partition(":")[0] for line in caught.value.conflicts} == set(LEFT_OUT)
    assert "discard-excluded" in caught.value.hint
    lift.restore_to(taken, target, mode="replace", discard_excluded=True)
    assert read(target).entries.keys() == {b"src", b"src/main"}


def test_replace_needs_no_permission_where_nothing_excluded_is(lift: Shelf) -> None:
    taken = lift.taken(WITH_EXCLUDED, rules=EXCLUDING)
    target = target_of(lift, tree({b"src/other": File(b"x")}))
    lift.restore_to(taken, target, mode="replace")
    assert read(target).entries.keys() == {b"src", b"src/main"}


def test_replace_asks_before_it_exchanges_for_an_incomplete_snapshot(lift: Shelf) -> None:
    source = tree({b"f": File(b"f"), b"large": File(b"l" * 5000)})
    taken = lift.taken(source, limits=replace(DEFAULT_LIMITS, file_bytes=4096))
    target = target_of(lift, tree({b"mine": File(b"m")}))
    stood = standing(target)
    with pytest.raises(Conflict, match="the snapshot is incomplete") as caught:
        lift.restore_to(taken, target, mode="replace")
    assert standing(target) == stood
    assert "discard-excluded" in caught.value.hint
    lift.restore_to(taken, target, mode="replace", discard_excluded=True)
    assert read(target).entries.keys() == {b"f"}


@pytest.mark.parametrize("mode", ["exact", "replace"])
def test_what_cannot_be_looked_into_is_not_removed(nobodys_lift: Lift, mode: Mode) -> None:
    lift = nobodys_lift
    lift.make(tree({b"f": File(b"f")}))
    give_to_nobody(lift.root)
    taken = lift.capture()
    target = target_of(lift, tree({b"closed/x": File(b"precious")}))
    give_to_nobody(target)
    os.chmod(target / "closed", 0)
    stood = standing(target)
    with pytest.raises(Conflict, match="closed: it cannot be read, so nobody knows what would be removed"):
        lift.restore_to(taken, target, mode=mode)
    assert standing(target) == stood


# Directories that nobody may write to, and a root that is somebody else's.


# cases: restic/restic#656, smol-machines/smolvm#925
@pytest.mark.parametrize("mode", ["exact", "merge", "replace"])
def test_read_only_directories_of_an_ordinary_user(nobodys_lift: Lift, mode: Mode) -> None:
    """What must change in them is changed, and they are read-only again."""
    lift = nobodys_lift
    source = tree(
        {
            b"ro": Dir(mode=0o555),
            b"ro/f": File(b"new", mode=0o400),
            b"ro/same": File(b"same", mode=0o400),
            b"ro/below": Dir(mode=0o500),
            b"ro/below/g": File(b"g"),
            b"ssh": Dir(mode=0o700),
        }
    )
    lift.make(source)
    give_to_nobody(lift.root)
    taken = lift.capture()
    there = source.without(b"ro/below/g").changed(
        {b"ro/f": File(b"old", mode=0o444), b"ro/x/y": File(b"y"), b"ro/x": Dir(mode=0o555)}
    )
    target = target_of(lift, there)
    give_to_nobody(target)
    lift.restore_to(taken, target, mode=mode)
    if mode == "merge":
        after = read(target)
        assert_equal(replace(there.changed(source.entries), root=after.root), after)
    else:
        assert_equal(source, read(target))


def test_a_read_only_root_of_an_ordinary_user(nobodys_lift: Lift) -> None:
    lift = nobodys_lift
    source = tree({b"f": File(b"new"), b"d/g": File(b"g")}, root=Dir(mode=0o555))
    lift.make(source)
    give_to_nobody(lift.root)
    taken = lift.capture()
    target = lift.target()
    lift.restore_to(taken, target)
    assert_equal(source, read(target))
    there = target_of(lift, tree({b"f": File(b"old")}, root=Dir(mode=0o555)))
    give_to_nobody(there)
    lift.restore_to(taken, there, mode="exact")
    assert_equal(source, read(there))


def test_with_paths_a_read_only_parent_of_an_ordinary_user_is_as_it_was(nobodys_lift: Lift) -> None:
    lift = nobodys_lift
    lift.make(tree({b"ro/f": File(b"new"), b"ro": Dir(mode=0o555)}))
    give_to_nobody(lift.root)
    taken = lift.capture()
    there = tree({b"ro/f": File(b"old"), b"ro": Dir(mode=0o500)})
    target = target_of(lift, there)
    give_to_nobody(target)
    lift.restore_to(taken, target, mode="exact", paths=(b"ro/f",))
    after = read(target)
    assert after.entries[b"ro/f"] == File(b"new").canonical()
    assert stat.S_IMODE(os.lstat(target / "ro").st_mode) == 0o500


# cases: paperclipai/paperclip#8903, actions/cache#130
def test_a_root_that_is_somebody_elses_keeps_its_own_mode_and_time(nobodys_lift: Lift, as_root: None) -> None:
    lift = nobodys_lift
    source = tree({b"f": File(b"f")}, root=Dir(mode=0o700, mtime_ns=5))
    lift.make(source)
    give_to_nobody(lift.root)
    taken = lift.capture()
    target = target_of(lift, tree({b"old": File(b"x")}))
    os.chown(target / "old", NOBODY, NOBODY)
    os.chmod(target, 0o777)
    done = lift.restore_to(taken, target, mode="exact")
    after = read(target)
    assert after.entries == source.entries
    assert after.root.mode == 0o777
    assert done.actions == (
        Action(action="leave", path=b"", kind="directory", why="its mode and time: it is not yours"),
    )


def test_a_protected_name_of_a_wanted_inode_is_left_alone(lift: Shelf) -> None:
    """An excluded path and a wanted one are one file there: the wanted one gets an inode of its own."""
    taken = lift.taken(WITH_EXCLUDED, rules=EXCLUDING)
    target = target_of(lift, tree({b"src/main": File(b"main", mode=0o600), b"x.log": HardLink(b"src/main")}))
    lift.restore_to(taken, target, mode="exact")
    after = os.lstat(target / "x.log")
    assert (stat.S_IMODE(after.st_mode), after.st_nlink) == (0o600, 1)
    assert read(target).entries[b"src/main"] == File(b"main").canonical()


# Only some paths.

PARTS = tree(
    {
        b"a/b/c/f": File(b"f", mtime_ns=3),
        b"a/b/c": Dir(mode=0o750, mtime_ns=4),
        b"a/b": Dir(mode=0o710, mtime_ns=5),
        b"a/other": File(b"other"),
        b"z": File(b"z"),
    },
    root=Dir(mode=0o700, mtime_ns=6),
)


def test_new_with_paths_makes_only_those(lift: Shelf) -> None:
    taken = lift.taken(PARTS)
    assert_equal(PARTS.below(b"a/b"), lift.restore(taken, paths=(b"a/b",)))


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_in_place_with_paths_nothing_else_is_touched(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(PARTS)
    there = tree(
        {b"a/b/c/f": File(b"older"), b"a/b/c/extra": File(b"x"), b"a/b/extra": File(b"x"), b"mine": File(b"m")}
    )
    target = target_of(lift, there)
    before = standing(target)
    lift.restore_to(taken, target, mode=mode, paths=(b"a/b/c",))
    wanted = there.changed({b"a/b/c/f": File(b"f", mtime_ns=3), b"a/b/c": Dir(mode=0o750, mtime_ns=4)})
    if mode == "exact":
        wanted = wanted.without(b"a/b/c/extra")
    after = read(target)
    # Only the marker's coming and going moves the root's time.
    assert_equal(replace(wanted, root=after.root), after)
    now = standing(target)
    for name in ("a", "a/b", "a/b/extra", "mine"):
        assert now[os.fsencode(target / name)] == before[os.fsencode(target / name)], name


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_in_place_with_paths_missing_parents_are_made(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(PARTS)
    target = target_of(lift, tree({b"mine": File(b"m")}))
    done = lift.restore_to(taken, target, mode=mode, paths=(b"a/b/c",))
    after = read(target)
    assert_equal(replace(PARTS.below(b"a/b/c").changed({b"mine": File(b"m")}), root=after.root), after)
    assert done.counts == RestoreCounts(created=4)


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_in_place_with_paths_what_stands_on_the_way_is_a_conflict(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(PARTS)
    target = target_of(lift, tree({b"a": File(b"in the way")}))
    stood = standing(target)
    with pytest.raises(Conflict, match="a: a file is in the way"):
        lift.restore_to(taken, target, mode=mode, paths=(b"a/b/c",))
    assert standing(target) == stood


def test_paths_that_are_asked_in_vain(lift: Shelf) -> None:
    taken = lift.taken(PARTS)
    target = target_of(lift, tree({b"mine": File(b"m")}))
    stood = standing(target)
    with pytest.raises(UsageError, match="takes no paths"):
        lift.restore_to(taken, target, mode="replace", paths=(b"a",))
    for mode in ("exact", "merge"):
        with pytest.raises(UnknownPath, match="no nope"):
            lift.restore_to(taken, target, mode=mode, paths=(b"nope",))
    assert standing(target) == stood
