"""Mounts inside a target, a target that is one, sandlift's own store in it, and too little room; all real."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.lift import Lift, Taken
from restore.roads import Namespace, Shelf, standing

from sandlift.errors import Conflict, TargetFull, TargetNotEmpty, TargetUnusable
from sandlift.model import Mode, RestoreOptions
from sandlift.results import Restore, RestoreCounts
from sandlift.store import Store
from support.tree import BLOCK, Dir, File, HardLink, Link, Tree, assert_equal, make, read, tree

PATIENCE_S = 60

WANTED = tree({b"f": File(b"wanted"), b"m/in": File(b"wanted"), b"z": File(b"z")}, root=Dir(mode=0o750))


class Mounted:
    """A target in a private mount namespace, and restores to it."""

    def __init__(self, lift: Shelf, namespace: Namespace, there: Tree) -> None:
        self.lift = lift
        self.namespace = namespace
        self.target = lift.target()
        self.target.mkdir()
        if there.entries:
            make(there, self.target)

    def run(self, script: str) -> None:
        """Run a shell script in the target, as it is seen in the namespace; ``$1`` is a place of its own."""
        beside = self.lift.target()
        beside.mkdir()
        self.namespace.run(f'cd "$2" && {script}', beside, self.target)

    @property
    def seen(self) -> Path:
        """The target with what is mounted in it."""
        return self.namespace.seen(self.target)

    def restore(self, taken: Taken, mode: Mode, *, dry_run: bool = False) -> Restore:
        """Restore a capture to the target."""
        with self.namespace.road(self.target) as box:
            return box.restore(
                self.lift.store,
                taken.capture.ref,
                options=RestoreOptions(mode=mode),
                dry_run=dry_run,
                deadline_s=PATIENCE_S,
            )


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


def refused(at: Mounted, taken: Taken, mode: Mode, *words: str) -> Conflict:
    """The conflict of a restore that changes nothing."""
    stood, beside = standing(at.seen), sorted(os.listdir(at.seen.parent))
    with pytest.raises(Conflict) as caught:
        at.restore(taken, mode)
    assert standing(at.seen) == stood
    assert sorted(os.listdir(at.seen.parent)) == beside
    for word in words:
        assert word in str(caught.value)
    return caught.value


MEMORY = "mount -t tmpfs t m && mkdir m/old && echo live >m/old/live && echo old >m/in"
MOUNTS = {
    "memory": MEMORY,
    "bind": 'mkdir -p "$1/old" && echo live >"$1/old/live" && echo old >"$1/in" && mount --bind "$1" m',
}


@pytest.mark.parametrize("kind", MOUNTS)
def test_exact_enters_a_mount_and_removes_nothing_from_it(lift: Shelf, namespace: Namespace, kind: str) -> None:
    taken = lift.taken(WANTED)
    at = Mounted(lift, namespace, tree({b"m": Dir(), b"gone": File(b"x"), b"f": File(b"older")}))
    at.run(MOUNTS[kind])
    live = standing(at.seen / "m" / "old")
    done = at.restore(taken, "exact")
    assert (at.seen / "m" / "in").read_bytes() == b"wanted"
    assert {path: row for path, row in standing(at.seen / "m" / "old").items() if b"/old" in path} == {
        path: row for path, row in live.items() if b"/old" in path
    }
    assert sorted(os.listdir(at.seen)) == ["f", "m", "z"]
    assert [(action.action, action.path) for action in done.actions] == [("leave", b"m/old")]
    assert "mounted" in done.actions[0].why


@pytest.mark.parametrize("kind", MOUNTS)
def test_exact_leaves_the_way_to_a_mount_that_is_not_wanted(lift: Shelf, namespace: Namespace, kind: str) -> None:
    taken = lift.taken(tree({b"f": File(b"f")}))
    at = Mounted(lift, namespace, tree({b"up/over/m": Dir(), b"up/gone/x": File(b"x"), b"f": File(b"f")}))
    at.run(f"cd up/over && {MOUNTS[kind]}")
    done = at.restore(taken, "exact")
    assert (at.seen / "up" / "over" / "m" / "old" / "live").read_bytes() == b"live\n"
    assert (at.seen / "up" / "over" / "m" / "in").read_bytes() == b"old\n"
    assert os.listdir(at.seen / "up") == ["over"]
    assert done.counts == RestoreCounts(removed=2, kept=1)
    assert {action.path for action in done.actions if action.action == "leave"} == {b"up", b"up/over", b"up/over/m"}
    assert at.restore(taken, "exact").counts == RestoreCounts(kept=1)


def test_exact_leaves_a_foreign_mount_closed(lift: Shelf, namespace: Namespace) -> None:
    taken = lift.taken(tree({b"f": File(b"f"), b"p": Dir(mode=0o700)}))
    at = Mounted(lift, namespace, tree({b"p": Dir(), b"q": Dir()}))
    at.run("mount -t proc proc p && mount -t proc proc q")
    done = at.restore(taken, "exact")
    assert (at.seen / "p" / "version").exists()
    assert (at.seen / "q" / "version").exists()
    assert {action.path for action in done.actions} == {b"p", b"q"}


BOUND_FILE = 'echo theirs >"$1/file" && mount --bind "$1/file" f'


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_nothing_takes_the_place_of_a_file_that_is_mounted(lift: Shelf, namespace: Namespace, mode: Mode) -> None:
    taken = lift.taken(WANTED)
    at = Mounted(lift, namespace, tree({b"f": File(b"below"), b"z": File(b"older")}))
    at.run(BOUND_FILE)
    refused(at, taken, mode, "f: something is mounted there")
    assert (at.seen / "f").read_bytes() == b"theirs\n"


def test_exact_leaves_a_file_that_is_mounted(lift: Shelf, namespace: Namespace) -> None:
    taken = lift.taken(tree({b"z": File(b"z")}))
    at = Mounted(lift, namespace, tree({b"d/f": File(b"below"), b"d/g": File(b"g")}))
    at.run(f"cd d && {BOUND_FILE}")
    at.restore(taken, "exact")
    assert (at.seen / "d" / "f").read_bytes() == b"theirs\n"
    assert os.listdir(at.seen / "d") == ["f"]


def test_a_file_cannot_be_where_something_is_mounted(lift: Shelf, namespace: Namespace) -> None:
    taken = lift.taken(tree({b"m": File(b"file")}))
    at = Mounted(lift, namespace, tree({b"m": Dir()}))
    at.run(MEMORY)
    refused(at, taken, "exact", "m: ")
    refused(at, taken, "merge", "m: ")


def test_a_mount_below_a_directory_that_shall_be_a_file(lift: Shelf, namespace: Namespace) -> None:
    taken = lift.taken(tree({b"up": File(b"file")}))
    at = Mounted(lift, namespace, tree({b"up/m": Dir()}))
    at.run(f"cd up && {MEMORY}")
    refused(at, taken, "exact", "up: ", "up/m")


@pytest.mark.parametrize("script", [MEMORY, MOUNTS["bind"], "mount --bind /sys/kernel m", BOUND_FILE])
def test_replace_refuses_a_target_with_a_mount_inside(lift: Shelf, namespace: Namespace, script: str) -> None:
    taken = lift.taken(WANTED)
    at = Mounted(lift, namespace, tree({b"f": File(b"below"), b"m": Dir()}))
    at.run(script)
    found = refused(at, taken, "replace", "something is mounted there")
    assert "exact" in found.hint


def test_merge_goes_into_a_mount(lift: Shelf, namespace: Namespace) -> None:
    taken = lift.taken(WANTED)
    at = Mounted(lift, namespace, tree({b"m": Dir(), b"mine": File(b"m")}))
    at.run(MEMORY)
    at.restore(taken, "merge")
    assert (at.seen / "m" / "in").read_bytes() == b"wanted"
    assert (at.seen / "m" / "old" / "live").read_bytes() == b"live\n"
    assert sorted(os.listdir(at.seen)) == ["f", "m", "mine", "z"]


def test_hard_links_across_a_mount_become_copies(lift: Shelf, namespace: Namespace) -> None:
    source = tree({b"a": File(b"shared"), b"m/b": HardLink(b"a"), b"m/c": HardLink(b"a")})
    taken = lift.taken(source)
    at = Mounted(lift, namespace, tree({b"m": Dir()}))
    at.run("mount -t tmpfs t m")
    done = at.restore(taken, "exact")
    assert [(at.seen / name).read_bytes() for name in ("a", "m/b", "m/c")] == [b"shared"] * 3
    # One copy, and on its side of the mount they are one file again.
    assert done.lossy.links_copied == 1
    assert os.path.samefile(at.seen / "m/b", at.seen / "m/c")


def test_copies_that_cannot_be_linked_are_as_wanted(lift: Shelf, namespace: Namespace) -> None:
    """A second restore does nothing, though their hard links differ: they cannot be made."""
    taken = lift.taken(tree({b"a": File(b"shared"), b"m/b": HardLink(b"a"), b"m/c": HardLink(b"a")}))
    at = Mounted(lift, namespace, tree({b"m": Dir()}))
    at.run("mount -t tmpfs t m")
    at.restore(taken, "exact")
    assert at.restore(taken, "exact").counts == RestoreCounts(kept=4)


# A target that is itself a mount.


def test_new_into_an_empty_mount_is_built_in_it(lift: Shelf, namespace: Namespace) -> None:
    source = tree({b"d/f": File(b"f"), b"d": Dir(mode=0o500), b"l": Link(b"d/f"), b"t": HardLink(b"d/f")})
    taken = lift.taken(source)
    at = Mounted(lift, namespace, tree({}))
    at.run('mount -t tmpfs -o mode=711 t "$2"')
    done = at.restore(taken, "new")
    # A root that was there keeps its own mode; no marker is left.
    assert_equal(replace(source, root=replace(read(at.seen).root, mode=0o711)), read(at.seen))
    assert done.counts == RestoreCounts(created=4)
    assert os.listdir(at.target) == []
    with pytest.raises(TargetNotEmpty):
        at.restore(taken, "new")


def test_replace_of_a_mount_refuses_and_names_exact(lift: Shelf, namespace: Namespace) -> None:
    taken = lift.taken(WANTED)
    at = Mounted(lift, namespace, tree({}))
    at.run('mount -t tmpfs t "$2" && echo mine >"$2/mine"')
    for dry_run in (True, False):
        with pytest.raises(TargetUnusable, match=r"mount point.*exact"):
            at.restore(taken, "replace", dry_run=dry_run)
    assert (at.seen / "mine").read_bytes() == b"mine\n"


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_in_place_a_target_may_be_a_mount(lift: Shelf, namespace: Namespace, mode: Mode) -> None:
    taken = lift.taken(WANTED)
    at = Mounted(lift, namespace, tree({}))
    at.run('mount -t tmpfs t "$2" && echo mine >"$2/mine" && echo older >"$2/f"')
    at.restore(taken, mode)
    assert sorted(os.listdir(at.seen)) == (["f", "m", "z"] if mode == "exact" else ["f", "m", "mine", "z"])
    assert (at.seen / "f").read_bytes() == b"wanted"


# Room. cases: actions/cache#1659


@pytest.mark.parametrize("mode", ["new", "exact", "merge"])
@pytest.mark.parametrize("lacking", ["size=1m", "nr_inodes=20"])
def test_room_is_looked_for_first(lift: Shelf, namespace: Namespace, mode: Mode, lacking: str) -> None:
    taken = lift.taken(tree({b"f%02d" % number: File(os.urandom(100_000)) for number in range(30)}))
    at = Mounted(lift, namespace, tree({}))
    at.run(f'mount -t tmpfs -o {lacking} t "$2"')
    stood = standing(at.seen)
    with pytest.raises(TargetFull, match="bytes" if lacking == "size=1m" else "inodes") as caught:
        at.restore(taken, mode)
    assert standing(at.seen) == stood
    assert "3000000" in str(caught.value) or lacking != "size=1m"


def test_room_is_looked_for_beside_the_target(lift: Shelf, namespace: Namespace) -> None:
    """Replace needs room for both trees at once, and says so before it writes."""
    taken = lift.taken(tree({b"large": File(os.urandom(3 * BLOCK))}))
    at = Mounted(lift, namespace, tree({}))
    at.run('mount -t tmpfs -o size=4m t "$2" && mkdir "$2/out" && head -c 2000000 /dev/urandom >"$2/out/mine"')
    stood = standing(at.seen)
    with namespace.road(at.target / "out") as box:
        for mode in ("replace", "merge"):
            with pytest.raises(TargetFull):
                box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode), deadline_s=PATIENCE_S)
            assert set(standing(at.seen)) == set(stood)
        assert (at.seen / "out" / "mine").stat().st_size == 2_000_000


# sandlift's own store.


@pytest.fixture
def own(lift: Shelf) -> tuple[Path, Store, str]:
    """(a target with a store deep inside, that store, a ref in it)."""
    target = lift.target()
    make(tree({b"f": File(b"older"), b"sub/gone": File(b"x"), b"sub/deep": Dir()}), target)
    workspace = lift.target()
    make(WANTED, workspace)
    store = Store.open(target / "sub" / "deep" / "store", create=True)
    with lift.road(workspace) as box:
        ref = box.capture(store, "demo").ref
    return target, store, ref


def test_exact_leaves_sandlifts_own_store(lift: Lift, own: tuple[Path, Store, str]) -> None:
    target, store, ref = own
    with lift.road(target) as box:
        done = box.restore(store, ref, options=RestoreOptions(mode="exact"))
    assert sorted(os.listdir(target)) == ["f", "m", "sub", "z"]
    assert os.listdir(target / "sub") == ["deep"]
    assert store.verify().damaged == ()
    assert b"sub/deep/store" in {action.path for action in done.actions if action.action == "leave"}
    store.close()


def test_replace_refuses_a_target_with_sandlifts_own_store(lift: Lift, own: tuple[Path, Store, str]) -> None:
    target, store, ref = own
    stood = standing(target / "f", target / "sub")
    with lift.road(target) as box:
        with pytest.raises(Conflict, match="sub/deep/store: sandlift's own store is there"):
            box.restore(store, ref, options=RestoreOptions(mode="replace"))
    assert standing(target / "f", target / "sub") == stood
    assert store.verify().damaged == ()
    store.close()


def test_merge_leaves_sandlifts_own_store(lift: Lift, own: tuple[Path, Store, str]) -> None:
    target, store, ref = own
    with lift.road(target) as box:
        box.restore(store, ref, options=RestoreOptions(mode="merge"))
    assert sorted(os.listdir(target / "sub")) == ["deep", "gone"]
    assert store.verify().damaged == ()
    store.close()
