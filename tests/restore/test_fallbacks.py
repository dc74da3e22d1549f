"""Where the kernel lacks a call, or a file system refuses one: the restore does without, or says what works."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.lift import Lift
from restore.roads import Namespace, Shelf, give_to_nobody, local, standing, with_python

from sandlift.errors import SandliftError, TargetNotEmpty, TargetUnusable
from sandlift.model import Mode, RestoreOptions
from sandlift.results import RestoreCounts
from sandlift_helper.landlock import confine
from support.needs import lacking
from support.seccomp import ENOSYS, EPERM, KILL, is_known_machine, write_wrapper
from support.tree import BLOCK, Dir, File, HardLink, Link, Tree, assert_equal, make, read, tree

Without = Callable[[dict[str, int]], None]
MODES: tuple[Mode, ...] = ("new", "replace", "exact", "merge")

WANTED = tree(
    {
        b"d/f": File(b"f"),
        b"d/twin": HardLink(b"d/f"),
        b"kind": Dir(mode=0o500),
        b"kind/below": File(b"below"),
        b"large": File(os.urandom(BLOCK + 5)),
        b"l": Link(b"d/f"),
        b"was-a-directory": File(b"file"),
    },
    root=Dir(mode=0o750, mtime_ns=5),
)
THERE = tree(
    {
        b"d/f": File(b"older"),
        b"extra/below": File(b"x"),
        b"kind": File(b"a file"),
        b"was-a-directory/below": File(b"x"),
    }
)
MISSING = {
    "renameat2": {"renameat2": ENOSYS},
    "renameat2-forbidden": {"renameat2": EPERM},
    "landlock": {"landlock_create_ruleset": ENOSYS},
    "landlock-forbidden": {"landlock_create_ruleset": EPERM},
    "syncfs": {"syncfs": ENOSYS},
    "all": {"renameat2": ENOSYS, "landlock_create_ruleset": ENOSYS, "syncfs": ENOSYS},
}


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


@pytest.fixture
def without(lift: Shelf, tmp_path: Path) -> Iterator[Without]:
    """Lets the helper run on a Python that is refused some calls, until the test ends."""
    if not is_known_machine():
        lacking("this machine's system calls are not listed: run the tests on Linux, x86_64 or aarch64")

    def refuse(calls: dict[str, int]) -> None:
        lift.road = with_python(write_wrapper(tmp_path / "python", calls))

    yield refuse
    lift.road = local


def target_of(lift: Lift, there: Tree) -> Path:
    target = lift.target()
    make(there, target)
    return target


@pytest.mark.parametrize("missing", MISSING)
def test_a_restore_without_it(lift: Shelf, without: Without, missing: str) -> None:
    taken = lift.taken(WANTED)
    without(MISSING[missing])
    modes = {"all": ("replace", "exact", "new"), "landlock-forbidden": ("exact",), "syncfs": ("exact",)}
    for mode in modes.get(missing, ("replace", "exact")):
        target = target_of(lift, tree({}) if mode == "new" else THERE)
        root = read(target).root
        lift.restore_to(taken, target, mode=mode)
        assert_equal(replace(WANTED, root=root) if mode == "new" else WANTED, read(target))
        assert lift.restore_to(taken, target, mode="exact", dry_run=True).counts == RestoreCounts(
            kept=len(WANTED.entries)
        )


def test_a_new_name_is_never_taken_from_somebody_without_renameat2(lift: Shelf, without: Without) -> None:
    """The target is filled between the look and the rename: what fills it stays."""
    taken = lift.taken(WANTED)
    without(MISSING["all"])
    target = target_of(lift, tree({b"mine": File(b"m")}))
    with pytest.raises(TargetNotEmpty):
        lift.restore_to(taken, target)
    assert read(target).entries.keys() == {b"mine"}


def leftovers(target: Path) -> list[str]:
    return [name for name in os.listdir(target.parent) if name.startswith(f".{target.name}.")]


@pytest.mark.parametrize("second", ["new", "replace", "exact"])
def test_a_kill_between_the_two_renames_is_put_right_by_the_next(lift: Shelf, without: Without, second: Mode) -> None:
    """The parent is flushed between them: there the kernel kills the helper."""
    taken = lift.taken(WANTED)
    target = target_of(lift, THERE)
    without({"renameat2": ENOSYS, "fsync": KILL})
    with lift.road(target) as box, pytest.raises(SandliftError):
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode="replace"))
    assert not target.exists()
    old, new = sorted(leftovers(target), key=lambda name: not name.endswith("-old"))
    assert read(target.parent / old).entries == THERE.entries
    assert new.endswith("-new")
    lift.road = local
    with lift.road(target) as box:
        if second == "new":
            with pytest.raises(TargetNotEmpty):
                box.restore(lift.store, taken.capture.ref)
            assert_equal(THERE, read(target))
            return
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=second))
    assert_equal(WANTED, read(target))
    if second == "replace":
        assert leftovers(target) == []


def test_a_dry_run_after_such_a_kill_changes_nothing(lift: Shelf, without: Without) -> None:
    taken = lift.taken(WANTED)
    target = target_of(lift, THERE)
    without({"renameat2": ENOSYS, "fsync": KILL})
    with lift.road(target) as box, pytest.raises(SandliftError):
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode="replace"))
    lift.road = local
    beside = sorted(os.listdir(target.parent))
    with lift.road(target) as box, contextlib.suppress(SandliftError):
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode="exact"), dry_run=True)
    assert sorted(os.listdir(target.parent)) == beside


# Places where a tree cannot be exchanged.


@pytest.fixture
def overlay(lift: Shelf, namespace: Namespace) -> Iterator[Path]:
    """A directory of an overlay's lower layer, seen in the namespace."""
    folder = lift.target()
    for name in ("lower", "upper", "work", "merged"):
        (folder / name).mkdir(parents=True)
    make(THERE, folder / "lower" / "target")
    (folder / "lower" / "empty").mkdir()
    namespace.run(
        'cd "$1" && mount -t tmpfs t upper && mkdir upper/u upper/w &&'
        " mount -t overlay -o redirect_dir=off,lowerdir=lower,upperdir=upper/u,workdir=upper/w o merged",
        folder,
    )
    lift.road = namespace.road
    yield folder / "merged" / "target"
    lift.road = local


@pytest.mark.parametrize("mode", MODES)
def test_a_lower_directory_of_an_overlay(lift: Shelf, namespace: Namespace, overlay: Path, mode: Mode) -> None:
    lift.road = local
    taken = lift.taken(WANTED)
    lift.road = namespace.road
    seen = namespace.seen(overlay)
    before = {path: row[2:] for path, row in standing(seen).items()}
    with lift.road(overlay) as box:
        if mode == "replace":
            with pytest.raises(TargetUnusable, match=r"lower layer of an overlay.*exact"):
                box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode))
            after = {path: row[2:] for path, row in standing(seen).items()}
            parent = os.path.dirname(os.fsencode(seen))
            assert {path: row for path, row in after.items() if path != parent} == {
                path: row for path, row in before.items() if path != parent
            }
            assert sorted(os.listdir(seen.parent)) == ["empty", "target"]
        elif mode == "exact":
            box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode))
            assert_equal(WANTED, read(seen), holes=False)
    if mode == "new":
        with lift.road(overlay.parent / "made") as box:
            box.restore(lift.store, taken.capture.ref)
        assert_equal(WANTED, read(seen.parent / "made"), holes=False)
        with lift.road(overlay.parent / "empty") as box:
            box.restore(lift.store, taken.capture.ref)
        assert read(seen.parent / "empty").entries == WANTED.entries
    if mode == "merge":
        with lift.road(overlay / "d") as box:
            box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode, paths=(b"l", b"kind")))
        assert read(seen / "d").entries.keys() == {b"f", b"l", b"kind", b"kind/below"}


@pytest.fixture
def closed(nobodys_lift: Lift, as_root: None) -> Path:
    """A target of an ordinary user's in a folder that he cannot write to."""
    folder = nobodys_lift.folder / "closed"
    folder.mkdir(mode=0o755)
    return folder / "target"


@pytest.mark.parametrize("mode", MODES)
def test_a_target_whose_folder_cannot_be_written_to(nobodys_lift: Lift, closed: Path, mode: Mode) -> None:
    lift = nobodys_lift
    lift.make(WANTED)
    give_to_nobody(lift.root)
    taken = lift.capture()
    there = tree({}) if mode == "new" else tree({b"d/f": File(b"older")})
    make(there, closed)
    give_to_nobody(closed)
    stood = standing(closed)
    with lift.road(closed) as box:
        if mode in ("new", "replace"):
            with pytest.raises(TargetUnusable, match="exact") as caught:
                box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode))
            assert str(closed.parent) in str(caught.value)
            assert standing(closed) == stood
        else:
            box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode))
            after = read(closed)
            assert_equal(WANTED if mode == "exact" else replace(WANTED, root=after.root), after)
    assert os.listdir(closed.parent) == ["target"]


def test_a_missing_target_in_a_folder_that_cannot_be_written_to(nobodys_lift: Lift, closed: Path) -> None:
    lift = nobodys_lift
    lift.make(tree({b"f": File(b"f")}))
    give_to_nobody(lift.root)
    taken = lift.capture()
    for mode in MODES:
        with lift.road(closed) as box, pytest.raises(TargetUnusable, match=re.escape(str(closed.parent))):
            box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode))
    assert os.listdir(closed.parent) == []


# Confined by the kernel.


def test_a_confined_process_writes_inside_alone(tmp_path: Path) -> None:
    """Each way to change something outside is tried, in a child of this process."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        make(tree({b"f": File(b"f"), b"d": Dir(), b"g": File(b"g")}), folder)
    before = standing(outside)
    attempts: dict[str, Callable[[Path], object]] = {
        "write": lambda at: (at / "f").write_bytes(b"changed"),
        "create": lambda at: (at / "new").touch(),
        "unlink": lambda at: (at / "g").unlink(),
        "mkdir": lambda at: (at / "e").mkdir(),
        "rmdir": lambda at: (at / "d").rmdir(),
        "symlink": lambda at: (at / "s").symlink_to("f"),
        "fifo": lambda at: os.mkfifo(at / "p"),
        "truncate": lambda at: os.truncate(at / "f", 0),
        "rename": lambda at: os.rename(at / "f", at / "h"),
        "move-in": lambda at: os.rename(inside / "h", at / "from-inside"),
        "move-out": lambda at: os.rename(at / "h", outside / "from-inside"),
        "link": lambda at: os.link(inside / "h", at / "linked"),
    }
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        try:
            fd = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
            said.append(f"confined {confine(fd)}")
            for at in (outside, inside):
                for name, attempt in attempts.items():
                    if at == inside and name in ("move-in", "link"):
                        continue
                    try:
                        attempt(at)
                        said.append(f"{at.name} {name} done")
                    except OSError as error:
                        said.append(f"{at.name} {name} {error.errno}")
            said.append(f"reads {(outside / 'f').read_text()}")
        finally:
            os.write(writer, "\n".join(said).encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read().splitlines()
    os.waitpid(pid, 0)
    if said[0] == "confined False":
        lacking("the kernel confines nothing: run the tests on Linux 5.19 or later with Landlock")
    results = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in said}
    for name in attempts:
        # EACCES, or EXDEV for what would move between directories; inside is no "h" before the last round.
        assert results[f"outside {name}"] in ("13", "18", "2"), (name, results)
        assert results.get(f"inside {name}", "done") in (("13", "18") if name == "move-out" else ("done",)), (
            name,
            results,
        )
    assert [results[f"outside {name}"] for name in ("write", "create", "unlink", "truncate", "symlink")] == ["13"] * 5
    assert results["reads"] == "f"
    assert standing(outside) == before


def test_the_helper_confines_whoever_writes(lift: Shelf, without: Without) -> None:
    """Where the kernel kills whoever asks for a ruleset, a restore fails and a dry run does not: so it does ask."""
    taken = lift.taken(WANTED)
    without({"landlock_create_ruleset": KILL})
    target = target_of(lift, THERE)
    stood = standing(target)
    lift.restore_to(taken, target, mode="exact", dry_run=True)
    for mode in ("replace", "exact"):
        with lift.road(target) as box, pytest.raises(SandliftError):
            box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode), deadline_s=20)
    assert {path: row for path, row in standing(target).items() if path != os.fsencode(target.parent)}.keys() == {
        path: row for path, row in stood.items() if path != os.fsencode(target.parent)
    }.keys()
    assert leftovers(target) == []
    assert signal.getsignal(signal.SIGSYS) == signal.SIG_DFL
