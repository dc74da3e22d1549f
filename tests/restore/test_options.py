"""Owners, special bits, links put back, repositories, and what a person and a program are told of a restore."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cli.program import run
from e2e.lift import Lift
from restore.roads import NOBODY, Shelf, give_to_nobody, local, standing

from sandlift.box import connect
from sandlift.errors import Conflict, TargetError, UnknownPath, UsageError
from sandlift.model import Mode, RestoreOptions, Rules
from sandlift.results import Lossy, RestoreCounts
from support.needs import require
from support.pythons import PYTHONS
from support.tree import Dir, Fifo, File, HardLink, Link, Tree, assert_equal, make, read, tree

MODES: tuple[Mode, ...] = ("new", "replace", "exact", "merge")
FAR_ID = 1_515_433_866
"""As a user namespace may hand it out."""


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


def target_of(lift: Lift, there: Tree) -> Path:
    target = lift.target()
    make(there, target)
    return target


def owners(root: Path) -> dict[str, tuple[int, int]]:
    """The owner and group of everything, the root's own as ``.``."""
    found = {".": os.lstat(root)}
    for folder, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = os.lstat(path)
    return {path: (status.st_uid, status.st_gid) for path, status in found.items()}


# Owners. cases: moby/moby#21651, docker/docker-py#2577, aws/aws-lambda-python-runtime-interface-client#39

OWNED = tree({b"d/f": File(b"f"), b"d/l": Link(b"f"), b"g": File(b"g", mode=0o4755), b"h": HardLink(b"g")})
RECORDED = {".": (FAR_ID, 0), "d": (12, 34), "d/f": (1234, 5678), "d/l": (7, 8), "g": (0, FAR_ID), "h": (0, FAR_ID)}


@pytest.fixture(scope="module")
def owned(lift: Shelf) -> str:
    """The ref of a workspace in which much belongs to others."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away: run the tests as root as well")
    root = target_of(lift, OWNED)
    for path, ids in RECORDED.items():
        os.chown(root / path, *ids, follow_symlinks=False)
    os.chmod(root / "g", 0o4755)
    return lift.capture(root).capture.ref


def set_down(lift: Lift, ref: str, target: Path, **options: object) -> Lossy:
    with lift.road(target) as box:
        return box.restore(lift.store, ref, options=RestoreOptions(**options), deadline_s=60).lossy  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_keep_gives_all_to_whom_it_belonged(lift: Shelf, owned: str, mode: Mode) -> None:
    target = lift.target()
    if mode != "new":
        make(OWNED.changed({b"extra": File(b"x")}), target)
    assert set_down(lift, owned, target, mode=mode, owner="keep").owners_refused == 0
    found = owners(target)
    if mode == "merge":
        assert (found.pop("extra"), found.pop(".")) == ((0, 0), (0, 0))
        assert found == {path: ids for path, ids in RECORDED.items() if path != "."}
    else:
        assert found == RECORDED


# cases: opendatahub-io/agentic-ci#14
@pytest.mark.parametrize("mode", ["new", "exact"])
def test_without_a_wish_all_belongs_to_who_restores(lift: Shelf, owned: str, mode: Mode) -> None:
    target = lift.target()
    if mode == "exact":
        target.mkdir()
    set_down(lift, owned, target, mode=mode)
    assert set(owners(target).values()) == {(0, 0)}


@pytest.mark.parametrize(
    ("mode", "owner", "ids"),
    [
        ("new", "77:88", (77, 88)),
        ("merge", "77:88", (77, 88)),
        ("exact", "77:88", (77, 88)),
        ("exact", "77", (77, 0)),
        ("exact", f"{FAR_ID}:{FAR_ID}", (FAR_ID, FAR_ID)),
    ],
)
def test_a_number_gives_all_to_that_user(lift: Shelf, owned: str, mode: Mode, owner: str, ids: tuple[int, int]) -> None:
    """What is as wanted already is given to him, too; what is not the snapshot's is not."""
    target = lift.target()
    if mode != "new":
        make(OWNED.changed({b"extra": File(b"x")}), target)
    set_down(lift, owned, target, mode=mode, owner=owner)
    found = owners(target)
    if mode == "merge":
        assert (found.pop("extra"), found.pop(".")) == ((0, 0), (0, 0))
    assert set(found.values()) == {ids}
    assert found.keys() - {"."} == RECORDED.keys() - {"."}


def test_a_name_is_looked_up_where_the_target_is(lift: Shelf, owned: str) -> None:
    nobody = pwd.getpwnam("nobody")
    target = lift.target()
    set_down(lift, owned, target, owner="nobody")
    assert set(owners(target).values()) == {(nobody.pw_uid, nobody.pw_gid)}


@pytest.mark.parametrize("mode", ["new", "exact"])
def test_an_unknown_name_is_refused_before_anything_is_written(lift: Shelf, mode: Mode) -> None:
    taken = lift.taken(OWNED)
    target = lift.target()
    target.mkdir()
    stood = standing(target)
    with pytest.raises(UsageError, match="no user no-such-user"):
        lift.restore_to(taken, target, mode=mode, owner="no-such-user")
    assert standing(target) == stood


@pytest.mark.parametrize(("mode", "owner"), [("new", "keep"), ("replace", "0"), ("exact", "77:88"), ("merge", "root")])
def test_an_ordinary_user_can_give_nothing_away(nobodys_lift: Lift, mode: Mode, owner: str) -> None:
    lift = nobodys_lift
    lift.make(tree({b"f": File(b"f")}))
    give_to_nobody(lift.root)
    taken = lift.capture()
    target = lift.target()
    target.mkdir()
    give_to_nobody(target)
    stood = standing(target)
    with pytest.raises(TargetError, match="only root can give files to others"):
        lift.restore_to(taken, target, mode=mode, owner=owner)
    assert standing(target) == stood


@pytest.mark.parametrize("mode", ["new", "exact", "merge"])
def test_ids_that_a_user_namespace_lacks_are_told(lift: Shelf, owned: str, mode: Mode) -> None:
    """All is set down and belongs to who restores; what could not be given away is counted."""
    require("unshare")
    target = lift.target()
    if mode != "new":
        make(tree({}), target)
    lift.road = lambda path: connect(os.fspath(path), via="unshare --user --map-root-user")
    try:
        lossy = set_down(lift, owned, target, mode=mode, owner="keep")
    finally:
        lift.road = local
    assert set(owners(target).values()) == {(0, 0)}
    # Hard links are one file, and merge leaves the root its own.
    assert lossy.owners_refused == (4 if mode == "merge" else 5)


def test_an_ordinary_user_may_name_himself(nobodys_lift: Lift) -> None:
    lift = nobodys_lift
    lift.make(tree({b"f": File(b"f")}))
    give_to_nobody(lift.root)
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    target = lift.target()
    lift.restore_to(lift.capture(), target, owner=str(user))
    assert {uid for uid, _ in owners(target).values()} == {user}


# Special bits. cases: zlib-ng/minizip-ng#1026, LanternOps/breeze#5395, apple/containerization#818

BITS = tree(
    {
        b"suid": File(b"x", mode=0o4755),
        b"sgid": File(b"x", mode=0o2711),
        b"both": HardLink(b"suid"),
        b"large": File(b"x" * 1_100_000, mode=0o6755),
        b"empty": File(b"", mode=0o4700),
        b"tmp": Dir(mode=0o1777),
        b"shared": Dir(mode=0o2775),
        b"shared/f": File(b"x"),
    },
    root=Dir(mode=0o2755),
)


def plain(source: Tree) -> Tree:
    entries = {
        path: replace(entry, mode=entry.mode & 0o777) if isinstance(entry, (Dir, File)) else entry
        for path, entry in source.entries.items()
    }
    return tree(entries, root=replace(source.root, mode=source.root.mode & 0o777))


@pytest.mark.parametrize(
    ("mode", "wish"),
    [("new", False), ("new", True), ("exact", False), ("exact", True), ("replace", True), ("merge", False)],
)
def test_special_bits_come_back_on_request_alone(lift: Shelf, mode: Mode, wish: bool) -> None:
    taken = lift.taken(BITS)
    assert taken.mode(b"suid") == 0o4755
    target = lift.target()
    if mode != "new":
        make(plain(BITS) if wish else BITS, target)
    done = lift.restore_to(taken, target, mode=mode, special_bits=wish)
    after = read(target)
    wanted = BITS if wish else plain(BITS)
    assert_equal(replace(wanted, root=after.root) if mode == "merge" else wanted, after)
    assert done.lossy.bits_dropped == (0 if wish else 7)
    if mode == "exact":
        again = lift.restore_to(taken, target, mode="exact", special_bits=wish)
        assert again.counts == RestoreCounts(kept=8)


def test_an_owner_comes_before_the_bits_that_he_would_clear(lift: Shelf, owned: str) -> None:
    for mode, there in (("new", None), ("exact", OWNED), ("exact", tree({}))):
        target = lift.target()
        if there is not None:
            make(there, target)
        set_down(lift, owned, target, mode=mode, owner="77:88", special_bits=True)
        status = os.lstat(target / "g")
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o4755, 77, 88)


@pytest.mark.parametrize("mode", ["new", "exact", "merge"])
def test_below_a_folder_that_hands_its_group_on_the_bits_are_the_snapshots(lift: Shelf, mode: Mode) -> None:
    """A setgid parent would give every new directory its own bit."""
    source = tree({b"d/e/f": File(b"f"), b"g": File(b"g", mode=0o755)}, root=Dir(mode=0o755))
    taken = lift.taken(source)
    parent = target_of(lift, tree({}))
    os.chmod(parent, 0o2775)
    if mode in ("exact", "merge"):
        make(tree({b"d": Dir(mode=0o2755)}, root=Dir(mode=0o2755)), parent / "t")
    with lift.road(parent / "t") as box:
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(mode=mode))
    after = read(parent / "t")
    assert_equal(replace(source, root=after.root) if mode == "merge" else source, after)


def test_the_umask_means_nothing(lift: Shelf) -> None:
    source = tree({b"d": Dir(mode=0o777), b"d/f": File(b"f", mode=0o666), b"k": File(b"k", mode=0o600)})
    taken = lift.taken(source)
    umask = os.umask(0o077)
    try:
        assert_equal(source, lift.restore(taken))
        os.umask(0)
        assert_equal(source, lift.restore(taken))
    finally:
        os.umask(umask)


# Links that were left out, put back.


def test_a_virtual_environment_works_again(lift: Shelf) -> None:
    python = os.path.realpath(PYTHONS[-1].path)
    root = lift.target()
    root.mkdir()
    subprocess.run([python, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=60)
    (root / "venv" / "lib" / f"python{PYTHONS[-1].minor}" / "site-packages" / "mine.py").write_text("here = __file__\n")
    taken = lift.capture(root)
    assert "outside-link" in taken.reasons.values()
    target = lift.target()
    ask: list[str | Path] = [
        target / "venv" / "bin" / "python",
        "-B",
        "-c",
        "import sys, mine; print(sys.prefix, mine.here)",
    ]
    done = lift.restore_to(taken, target, relink=(os.fsencode(os.path.dirname(python)) + b"/**",))
    answer = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    assert answer[0] == str(target / "venv")
    assert answer[1].startswith(str(target / "venv"))
    assert done.excluded == 0
    assert (target / "venv" / "bin" / "python3").is_symlink()
    again = lift.restore_to(taken, target, mode="exact", relink=(os.fsencode(os.path.dirname(python)) + b"/**",))
    assert again.counts == RestoreCounts(kept=done.counts.created)


OUTSIDE = tree(
    {
        b"ext": Link(b"/usr/lib/thing"),
        b"opt": Link(b"/opt/x"),
        b"etc": Link(b"/usr/../etc/passwd"),
        b"up": Link(b"../above"),
        b"through": Link(b"ext/../secret"),
        b"deeper": Link(b"ext/below"),
        b"plain": Link(b"f"),
        b"f": File(b"f"),
    }
)


def test_only_absolute_targets_that_match_are_put_back(lift: Shelf) -> None:
    taken = lift.taken(OUTSIDE)
    assert set(taken.reasons) == {b"ext", b"opt", b"etc", b"up"}
    found = lift.restore(taken, relink=(b"/usr/**",)).entries
    assert found[b"ext"].text == b"/usr/lib/thing"  # type: ignore[union-attr]
    assert found.keys() == {b"ext", b"deeper", b"plain", b"f"}
    assert lift.restore(taken, relink=(b"/nowhere/*",)).entries.keys() == {b"through", b"deeper", b"plain", b"f"}
    both = lift.restore(taken, relink=(b"/opt/*", b"/usr/lib/*")).entries
    assert both.keys() == {b"ext", b"opt", b"deeper", b"plain", b"f"}


def test_a_link_that_a_relink_makes_unsafe_is_left_out_and_told(lift: Shelf) -> None:
    taken = lift.taken(OUTSIDE)
    target = lift.target()
    done = lift.restore_to(taken, target, relink=(b"/usr/**",))
    assert not os.path.lexists(target / "through")
    assert done.lossy.links_left == 1
    assert [(found.action, found.path, found.kind) for found in done.actions] == [("leave", b"through", "link")]
    assert "put back" in done.actions[0].why
    assert done.excluded == 3


def test_a_link_that_is_there_and_a_relink_makes_unsafe_is_a_conflict(lift: Shelf) -> None:
    taken = lift.taken(OUTSIDE)
    target = lift.target()
    lift.restore_to(taken, target)
    stood = standing(target)
    for mode in ("exact", "merge"):
        with pytest.raises(Conflict, match="through: the link stays, and would lead out of the tree"):
            lift.restore_to(taken, target, mode=mode, relink=(b"/usr/**",))
    assert standing(target) == stood


def test_no_links_leaves_links_out_and_alone(lift: Shelf) -> None:
    taken = lift.taken(OUTSIDE)
    target = lift.target()
    done = lift.restore_to(taken, target, no_links=True)
    assert read(target).entries.keys() == {b"f"}
    assert done.lossy.links_left == 3
    assert {(found.action, found.path) for found in done.actions} == {
        ("leave", b"through"),
        ("leave", b"deeper"),
        ("leave", b"plain"),
    }
    for mode in ("exact", "merge"):
        there = target_of(lift, tree({b"plain": Link(b"elsewhere"), b"deeper/mine": File(b"m"), b"f": File(b"older")}))
        lift.restore_to(taken, there, mode=mode, no_links=True)
        found = read(there).entries
        assert found.keys() == {b"plain", b"deeper", b"deeper/mine", b"f"}
        assert found[b"plain"] == Link(b"elsewhere")


# Repositories.


@pytest.fixture(scope="module")
def repository(lift: Shelf) -> tuple[str, Path]:
    """(the ref of a workspace whose repository runs a program on ``git status``, the file that this program makes)."""
    require("git")
    root, witness = lift.target(), lift.target()
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "file").write_bytes(b"one\n")
    git(root, "add", "file")
    git(root, "commit", "-q", "-m", "first")
    git(root, "config", "core.fsmonitor", f"touch {witness}; false")
    hook = root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    return lift.capture(root).capture.ref, witness


def git(folder: Path, *words: str) -> str:
    names = {f"GIT_{who}_{what}": "me@here" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", **names}
    done = subprocess.run(
        ["git", "-C", folder, *words],
        env={**os.environ, **settings},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


# cases: paperclipai/paperclip#8595
def test_git_keep_restores_a_repository_as_it_was(lift: Shelf, repository: tuple[str, Path]) -> None:
    ref, witness = repository
    target = target_of(lift, tree({b".git/index": File(b"a stale one"), b"file": File(b"two\n")}))
    lossy = set_down(lift, ref, target, mode="exact")
    assert git(target, "status", "--porcelain") == ""
    assert witness.exists()
    witness.unlink()
    assert lossy.git_changed == 0


@pytest.mark.parametrize("mode", ["new", "exact", "merge"])
def test_git_inert_restores_a_repository_that_runs_nothing(
    lift: Shelf, repository: tuple[str, Path], mode: Mode
) -> None:
    ref, witness = repository
    target = lift.target()
    if mode != "new":
        # As it was, with all that could run.
        set_down(lift, ref, target)
    lossy = set_down(lift, ref, target, mode=mode, git="inert")
    if mode != "merge":
        assert not (target / ".git" / "hooks").exists()
    assert "fsmonitor" not in (target / ".git" / "config").read_text()
    assert git(target, "status", "--porcelain") == ""
    assert git(target, "log", "--format=%s") == "first\n"
    assert not witness.exists()
    assert lossy.git_changed > 0


def test_git_drop_leaves_repositories_out_and_alone(lift: Shelf, repository: tuple[str, Path]) -> None:
    ref, _ = repository
    target = lift.target()
    assert set_down(lift, ref, target, git="drop").git_changed > 10
    assert os.listdir(target) == ["file"]
    mine = target_of(lift, tree({b".git/mine": File(b"m"), b"other": File(b"x")}))
    set_down(lift, ref, mine, mode="exact", git="drop")
    assert read(mine).entries.keys() == {b".git", b".git/mine", b"file"}


# What does not go together.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "replace", "paths": (b"f",)}, "takes no paths"),
        ({"mode": "new", "discard_excluded": True}, "only replace"),
        ({"mode": "exact", "discard_excluded": True}, "only replace"),
        ({"mode": "merge", "discard_excluded": True}, "only replace"),
        ({"relink": (b"usr/**",)}, "absolute targets"),
        ({"relink": (b"/usr/**",), "no_links": True}, "links"),
        ({"paths": (b"/f",)}, "relative to its root"),
        ({"paths": (b"d/../f",)}, "relative to its root"),
    ],
)
def test_options_that_do_not_go_together(lift: Shelf, options: dict[str, object], words: str) -> None:
    taken = lift.taken(OUTSIDE)
    target = lift.target()
    with lift.road(target) as box, pytest.raises(UsageError, match=words) as caught:
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(**options))  # type: ignore[arg-type]
    assert caught.value.exit == 2
    assert not target.exists()


def test_a_path_that_the_snapshot_lacks(lift: Shelf) -> None:
    taken = lift.taken(OUTSIDE)
    target = lift.target()
    with lift.road(target) as box, pytest.raises(UnknownPath) as caught:
        box.restore(lift.store, taken.capture.ref, options=RestoreOptions(paths=(b"nope",)))
    assert caught.value.exit == 1
    assert not target.exists()


# On the command line.

SHOWN = tree(
    {
        b"a\xff\x1b[31m": File(b"new"),
        b"d/f": File(b"f", mode=0o600),
        b"l": Link(b"d/f"),
        b"m": File(b"m"),
        b"out": Link(b"/etc/hosts"),
        b"pipe": Fifo(),
        b"suid": File(b"s", mode=0o4755),
    }
)
THERE = tree(
    {
        b"d": File(b"in the way"),
        b"extra/below": File(b"x"),
        b"m": File(b"m", mode=0o600),
        b"pipe": File(b"mine"),
        b"suid": File(b"s", mode=0o755),
    }
)
ACTIONS = [
    ("create", "a\udcff\x1b[31m", "file"),
    ("replace", "d", "directory"),
    ("create", "d/f", "file"),
    ("remove", "extra", "directory"),
    ("remove", "extra/below", "file"),
    ("create", "l", "link"),
    ("update", "m", "file"),
    ("leave", "pipe", "file"),
]


@pytest.fixture(scope="module")
def shown(lift: Shelf) -> str:
    """The ref of a workspace that has one of each."""
    return lift.taken(SHOWN).capture.ref


def program(lift: Shelf, *words: str | Path) -> tuple[int, str, str]:
    done = run(*words, env={"SANDLIFT_STORE": os.fspath(lift.folder / "store")})
    return done.status, done.out, done.err


def test_a_dry_run_is_an_object_a_line(lift: Shelf, shown: str) -> None:
    target = target_of(lift, THERE)
    stood = standing(target)
    status, out, err = program(lift, "restore", shown, target, "--mode", "exact", "--dry-run", "--json")
    assert (status, err) == (0, "")
    assert out.isascii()
    found = [json.loads(line) for line in out.splitlines()]
    for item in found:
        assert list(item) == ["schema", "action", "path", *(["path_b64"] if "path_b64" in item else []), "kind", "why"]
        assert item["schema"] == 1
        assert isinstance(item["why"], str) and item["why"]
    assert [(item["action"], item["path"], item["kind"]) for item in found] == ACTIONS
    assert [item["path_b64"] for item in found if "path_b64" in item] == ["Yf8bWzMxbQ=="]
    assert standing(target) == stood


def test_a_dry_run_for_people(lift: Shelf, shown: str) -> None:
    target = target_of(lift, THERE)
    status, out, err = program(lift, "restore", shown, target, "--mode", "exact", "--dry-run")
    first, *lines = out.splitlines()
    assert (status, err) == (0, "")
    assert first == (f"{shown} would be restored to {target}: 3 created, 1 replaced, 1 updated, 2 removed, 1 kept")
    assert [line.split()[:2] for line in lines] == [[action, kind] for action, _, kind in ACTIONS]
    assert lines[0].split()[2].startswith("$'a\\xff\\e[31m'")
    assert "\x1b" not in out
    assert "it was left out when captured" in lines[-1]


def test_a_dry_run_that_has_nothing_to_do(lift: Shelf, shown: str) -> None:
    target = lift.target()
    set_down(lift, shown, target)
    status, out, err = program(lift, "restore", shown, target, "--mode", "exact", "--dry-run")
    assert (status, out, err) == (0, f"{shown} would be restored to {target}: 6 kept\n", "")
    assert program(lift, "restore", shown, target, "--mode", "exact", "--dry-run", "--json") == (0, "", "")


def test_the_report_of_a_restore_in_json(lift: Shelf, shown: str) -> None:
    target = target_of(lift, THERE)
    status, out, err = program(lift, "restore", shown, target, "--mode", "exact", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ("schema ref snapshot target mode outcome counts excluded lossy left wire seconds".split())
    assert (found["ref"], found["target"], found["mode"], found["outcome"]) == (shown, str(target), "exact", "complete")
    assert found["counts"] == {"created": 3, "replaced": 1, "updated": 1, "removed": 2, "kept": 1}
    assert found["excluded"] == 2
    assert found["lossy"] == {
        "links_copied": 0,
        "bits_dropped": 1,
        "owners_refused": 0,
        "links_left": 0,
        "git_changed": 0,
    }
    assert [(item["action"], item["path"], item["kind"]) for item in found["left"]] == [("leave", "pipe", "file")]
    assert "schema" not in found["left"][0]
    assert list(found["wire"]) == ["sent", "received"]


def test_the_report_of_a_restore_for_people(lift: Shelf, shown: str) -> None:
    target = target_of(lift, THERE)
    status, out, err = program(lift, "restore", shown, target, "--mode", "exact")
    assert status == 0
    assert out.startswith(f"{shown} restored to {target}: 3 created, 1 replaced, 1 updated, 2 removed, 1 kept in ")
    assert out.endswith(f"; 2 had been left out: sandlift show {shown}\n")
    assert (
        "sandlift: warning: setuid, setgid and sticky bits of 1 entry were not set; --special-bits sets them\n" in err
    )
    assert "sandlift: leave    file       pipe  (the snapshot does not hold it: it was left out when captured)\n" in err


def test_a_conflict_is_one_line_and_a_hint(lift: Shelf, shown: str) -> None:
    target = target_of(lift, THERE)
    stood = standing(target)
    status, out, err = program(lift, "restore", shown, target, "--mode", "merge")
    assert (status, out) == (4, "")
    assert err == (
        "sandlift: error: the target cannot take the snapshot: d: a file is where a directory shall be,"
        " and merge removes nothing\nhint: exact and replace exchange what is in the way\n"
    )
    assert standing(target) == stood


def test_all_conflicts_are_in_json(lift: Shelf) -> None:
    ref = lift.taken(tree({b"a": Dir(), b"b": Dir()})).capture.ref
    target = target_of(lift, tree({b"a": File(b"x"), b"b": File(b"x")}))
    status, out, err = program(lift, "restore", ref, target, "--mode", "merge", "--json")
    error = json.loads(out)["error"]
    assert (status, err, error["code"], error["exit"]) == (4, "", "conflict", 4)
    assert [line.partition(":")[0] for line in error["context"]["conflicts"]] == ["a", "b"]


def test_options_of_the_command_line(lift: Shelf) -> None:
    """Each reaches the engine."""
    taken = lift.taken(OUTSIDE, rules=Rules(paths=(b"f",)))
    target = lift.target()
    words: list[str | Path] = [
        "restore",
        taken.capture.ref,
        target,
        "--relink",
        "/opt/**",
        "--path",
        "opt",
        "--path",
        "plain",
    ]
    assert program(lift, *words)[0] == 0
    assert read(target).entries.keys() == {b"opt", b"plain"}
    target = target_of(lift, tree({b"old": File(b"x")}))
    assert program(lift, "restore", taken.capture.ref, target, "--mode", "replace", "--no-links")[0] == 0
    assert read(target).entries == {}
    (target / "f").write_bytes(b"mine")
    words = ["restore", taken.capture.ref, target, "--mode", "replace"]
    assert program(lift, *words)[0] == 4
    assert program(lift, *words, "--discard-excluded")[0] == 0
    assert read(target).entries.keys() == {b"through", b"deeper", b"plain"}


@pytest.mark.parametrize("words", [("--mode", "sideways"), ("--mode", "replace", "--path", "f")])
def test_usage_errors_of_the_command_line(lift: Shelf, shown: str, words: tuple[str, ...]) -> None:
    target = lift.target()
    status, out, err = program(lift, "restore", shown, target, *words)
    assert (status, out) == (2, "")
    assert "error" in err.lower()
    assert not target.exists()


def test_a_relink_path_that_was_not_captured_needs_the_relink(lift: Shelf) -> None:
    taken = lift.taken(OUTSIDE)
    with pytest.raises(UnknownPath):
        lift.restore_to(taken, lift.target(), paths=(b"opt",))
