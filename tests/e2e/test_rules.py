"""What a capture leaves out by the user's wish, a store inside its own workspace, and git's files, which are files."""

from __future__ import annotations

import os
import subprocess

import pytest
from e2e.lift import Lift

from sandlift.model import Rules
from sandlift.store import Store
from support.needs import require
from support.tree import Dir, File, HardLink, Link, assert_equal, read, tree

SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"


def patterns(*lines: bytes) -> Rules:
    return Rules(patterns=tuple((line, b"test:%d" % number) for number, line in enumerate(lines, 1)))


# cases: openai/openai-agents-js#1501
def test_patterns(far_lift: Lift) -> None:
    source = tree(
        {
            b"a.log": File(b"1"),
            b"keep.log": File(b"2"),
            b"node_modules/x/index.js": File(b"3"),
            b"sub/node_modules/y": File(b"4"),
            b"sub/a.log/inside": File(b"5"),
            b"build/out": File(b"6"),
            b"sub/build/out": File(b"7"),
            b"link.log": Link(b"a.log"),
            b".hidden": File(b"8"),
        }
    )
    far_lift.make(source)
    taken = far_lift.capture(rules=patterns(b"*.log", b"!keep.log", b"node_modules/", b"/build", b"# note", b""))
    assert taken.excluded == {
        b"a.log": ("file", "pattern", taken.excluded[b"a.log"][2]),
        b"link.log": ("link", "pattern", taken.excluded[b"link.log"][2]),
        # One row for a whole directory.
        b"node_modules": ("directory", "pattern", taken.excluded[b"node_modules"][2]),
        b"sub/node_modules": ("directory", "pattern", taken.excluded[b"sub/node_modules"][2]),
        b"sub/a.log": ("directory", "pattern", taken.excluded[b"sub/a.log"][2]),
        b"build": ("directory", "pattern", taken.excluded[b"build"][2]),
    }
    assert b"*.log" in taken.excluded[b"a.log"][2]
    assert b"test:1" in taken.excluded[b"a.log"][2]
    assert taken.capture.outcome == "complete"
    assert_equal(source.without(*taken.excluded), far_lift.restore(taken))


# cases: openai/openai-agents-python#2987
def test_literal_paths_are_no_globs(lift: Lift) -> None:
    odd = (b"a[1]", b"*.log", b"\xff?", b"-x", b"!y", b"#z", b"with space ")
    source = tree(
        {name: File(b"x") for name in odd}
        | {b"a1": File(b"1"), b"b.log": File(b"2"), b"sub/*.log": File(b"3"), b"y": File(b"4"), b"*.log2": File(b"5")}
    )
    lift.make(source)
    taken = lift.capture(rules=Rules(paths=odd))
    assert taken.reasons == dict.fromkeys(odd, "pattern")
    assert_equal(source.without(*odd), lift.restore(taken))


def test_the_ignore_file(lift: Lift) -> None:
    source = tree(
        {
            b".sandliftignore": File(b"*.tmp\n!keep.tmp\n/\xff*\n"),
            b"a.tmp": File(b"x"),
            b"keep.tmp": File(b"x"),
            b"\xfffile": File(b"x"),
            # Only the one at the root counts.
            b"sub/.sandliftignore": File(b"*\n"),
            b"sub/file": File(b"x"),
        }
    )
    lift.make(source)
    taken = lift.capture()
    assert taken.reasons == {b"a.tmp": "pattern", b"\xfffile": "pattern"}
    assert b".sandliftignore:1" in taken.excluded[b"a.tmp"][2]
    assert_equal(source.without(*taken.excluded), lift.restore(taken))
    # Rules of the command come later, and the last match wins.
    assert lift.capture(rules=patterns(b"!a.tmp")).reasons == {b"\xfffile": "pattern"}
    assert lift.capture(rules=Rules(ignore_file=False)).excluded == {}


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_an_ignore_file_that_is_no_file_means_nothing(lift: Lift, kind: str) -> None:
    lift.make(tree({b"real": File(b"*\n"), b"other": File(b"x")}))
    path = lift.root / ".sandliftignore"
    if kind == "link":
        path.symlink_to("real")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert b"other" in lift.capture().paths


def test_caches(lift: Lift) -> None:
    source = tree(
        {
            b"cache/CACHEDIR.TAG": File(SIGNATURE + b"\n# made by somebody\n"),
            b"cache/big": File(b"x"),
            b"not/CACHEDIR.TAG": File(b"Signature: other"),
            b"linked/CACHEDIR.TAG": Link(b"../cache/CACHEDIR.TAG"),
            b"short/CACHEDIR.TAG": File(SIGNATURE[:-1]),
            b"CACHEDIR.TAG": File(SIGNATURE),
        }
    )
    lift.make(source)
    assert lift.capture().excluded == {}
    taken = lift.capture(rules=Rules(caches=True))
    # The root is what was asked for, whatever marks it.
    assert taken.excluded == {b"cache": ("directory", "pattern", b"CACHEDIR.TAG (--exclude-caches)")}
    assert_equal(source.without(b"cache"), lift.restore(taken))


def test_an_excluded_directory_is_never_opened(nobodys_lift: Lift) -> None:
    nobodys_lift.make(tree({b"locked/x": File(b"x"), b"locked": Dir(mode=0o000), b"f": File(b"x")}))
    taken = nobodys_lift.capture(rules=Rules(paths=(b"locked",)))
    assert taken.reasons == {b"locked": "pattern"}
    assert taken.capture.outcome == "complete"


# cases: actions/upload-pages-artifact#102
def test_nothing_is_left_out_by_default(lift: Lift) -> None:
    names = (b".env", b".git/config", b"node_modules/x", b"__pycache__/x.pyc", b"core", b"x~", b".venv/bin/x", b"tmp/x")
    source = tree({name: File(b"x") for name in names})
    lift.make(source)
    assert_equal(source, lift.restore(lift.capture()))


@pytest.mark.parametrize("where", [".sandlift", "deep/below/store"])
def test_a_store_inside_the_workspace(lift: Lift, where: str) -> None:
    source = tree({b"file": File(b"x"), b"deep/below/file": File(b"y")})
    lift.make(source)
    with Store.open(lift.root / where, create=True) as store:
        for _ in range(2):
            with lift.road(lift.root) as box:
                box.capture(store, "demo")
        lift.store.close()
        lift.store = Store.open(lift.root / where)
        taken = lift.capture()
    assert taken.excluded == {where.encode(): ("directory", "own", b"")}
    assert taken.capture.outcome == "complete"
    back = lift.restore(taken)
    assert [path for path in back.entries if path == where.encode()] == []
    assert back.entries[b"file"] == source.entries[b"file"]


def git(*words: str, cwd: os.PathLike[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
    return subprocess.run(
        command, cwd=cwd, env=environment, check=True, capture_output=True, text=True, timeout=60
    ).stdout


# cases: paperclipai/paperclip#8595, novique-ai/retinue#172, NVIDIA/OpenShell#1425
def test_a_repository_with_a_worktree(lift: Lift) -> None:
    require("git")
    make_repository(lift)
    before = (lift.root / "tree" / ".git").read_bytes()
    assert os.fsencode(lift.root) in before
    status = git("status", "--porcelain", cwd=lift.root)
    taken = lift.capture()
    assert taken.excluded == {}
    target = lift.target()
    lift.restore_to(taken, target)
    # A file's content is never rewritten, though it names a place of the sandbox.
    assert (target / "tree" / ".git").read_bytes() == before
    assert git("status", "--porcelain", cwd=target) == status
    assert "?? new" in status
    assert git("log", "--format=%H", cwd=target) == git("log", "--format=%H", cwd=lift.root)
    assert os.readlink(target / "link-dir") == "real-dir"
    git("fsck", "--strict", cwd=target)


def make_repository(lift: Lift) -> None:
    lift.root.mkdir()
    git("init", "-q", "-b", "main", cwd=lift.root)
    (lift.root / "real-dir").mkdir()
    (lift.root / "real-dir" / "file").write_text("x")
    (lift.root / "link-dir").symlink_to("real-dir")
    (lift.root / "run").write_text("#!/bin/sh\n")
    (lift.root / "run").chmod(0o755)
    git("add", ".", cwd=lift.root)
    git("commit", "-q", "-m", "first", cwd=lift.root)
    git("worktree", "add", "-q", str(lift.root / "tree"), cwd=lift.root)
    (lift.root / "new").write_text("not added")


# cases: markmhendrickson/neotoma#2075
def test_a_database_and_its_journal_come_together(lift: Lift) -> None:
    source = tree({b"app.db": File(b"db"), b"app.db-wal": File(b"wal"), b"app.db-shm": HardLink(b"app.db-wal")})
    lift.make(source)
    assert_equal(source, lift.restore(lift.capture()))
    assert_equal(source, read(lift.root))
