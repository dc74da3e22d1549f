"""What is wanted of a snapshot: paths, links put back or left out, bits, repositories, and what is protected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from restore.planned import FIFO, PATTERN, REST, D, F, L, Tree, X, digests, manifest, no_read, want

from sandlift.errors import UnknownPath, UnsafeLink, UsageError
from sandlift.model import RestoreOptions
from sandlift.restoring.wanted import Wanted, wanted
from sandlift_helper import table
from sandlift_helper.table import Segment
from sandlift_helper.wire import BLOCK_MAX

A = F(b"a")


def outside(text: bytes) -> X:
    return X(table.LINK, table.OUTSIDE_LINK, text)


def texts(found: Wanted) -> dict[bytes, bytes]:
    """The links that are wanted, by path."""
    rows = found.rows
    paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
    return dict(zip(paths, rows.texts, strict=True))


def test_all_of_a_snapshot() -> None:
    tree: Tree = {b"d/f": A, b"d/l": L(b"f"), b"p": FIFO, b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)}
    found = want(tree)
    rows = found.rows
    assert rows.paths == [b"d", b"d/f", b"d/l", b"x", b"y"]
    assert (rows.excluded_paths, rows.flag_paths, rows.texts) == ([], [], [b"f"])
    assert list(rows.groups) == [0, 0, 0, 1, 1]
    assert found.root and found.scope == ()
    assert found.protected == found.excluded_paths == (b"p",)
    assert not found.incomplete
    assert (found.left, dict(found.blocks)) == ((), {})
    assert found.lossy.bits_dropped == found.lossy.links_left == found.lossy.git_changed == 0
    # What travels is encoded from it as it is.
    assert table.decode(table.encode(rows)).paths == rows.paths
    assert rows.size_estimate() >= table.decode(table.encode(rows)).size_estimate()


def test_the_snapshot_is_not_changed() -> None:
    source = manifest({b"f": F(b"a", 0o4755), b"l": outside(b"/etc"), b"m": L(b"f")}, D(0o2755))
    before = source.encoded
    wanted(source, RestoreOptions(relink=(b"/**",)), no_read)
    wanted(source, RestoreOptions(no_links=True, paths=(b"m",)), no_read)
    assert source.encoded == before


def test_special_bits() -> None:
    tree: Tree = {b"a": F(b"a", 0o4755), b"b": D(0o2775), b"c": D(0o1777), b"d": F(b"a", 0o777)}
    found = want(tree, D(0o3755))
    assert list(found.rows.modes) == [0o755, 0o775, 0o777, 0o777]
    assert found.rows.root is not None and found.rows.root.mode == 0o755
    assert found.lossy.bits_dropped == 3
    kept = want(tree, D(0o3755), special_bits=True)
    assert list(kept.rows.modes) == [0o4755, 0o2775, 0o1777, 0o777]
    assert kept.rows.root is not None and kept.rows.root.mode == 0o3755
    assert kept.lossy.bits_dropped == 0
    assert want(tree, paths=(b"b",)).lossy.bits_dropped == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    paths: tuple[bytes, ...]
    rows: list[bytes]
    scope: tuple[bytes, ...]


SCOPES = {
    "file": Scope(paths=(b"d/e/f",), rows=[b"d", b"d/e", b"d/e/f"], scope=(b"d/e/f",)),
    "directory": Scope(paths=(b"d/e",), rows=[b"d", b"d/e", b"d/e/f", b"d/e/g"], scope=(b"d/e",)),
    "spelling": Scope(paths=(b"./d//e/", b"d/e"), rows=[b"d", b"d/e", b"d/e/f", b"d/e/g"], scope=(b"d/e",)),
    "order": Scope(paths=(b"d.x", b"d/e/f"), rows=[b"d", b"d/e", b"d/e/f", b"d.x"], scope=(b"d/e/f", b"d.x")),
    "top": Scope(paths=(b".",), rows=[b"d", b"d/e", b"d/e/f", b"d/e/g", b"d.x"], scope=()),
}


@pytest.mark.parametrize("case", SCOPES.values(), ids=SCOPES)
def test_paths(case: Scope) -> None:
    found = want({b"d/e/f": F(b"1", inode=3), b"d/e/g": F(b"1", inode=3), b"d.x": A, b"q": PATTERN}, paths=case.paths)
    assert found.rows.paths == case.rows
    assert found.scope == case.scope
    assert found.root is (not case.scope)
    assert found.protected == (b"q",)


def test_a_group_of_which_a_part_is_wanted() -> None:
    found = want({b"a": F(b"1", inode=3), b"b": F(b"1", inode=3), b"c": F(b"1", inode=3)}, paths=(b"b", b"c"))
    assert list(found.rows.groups) == [1, 1]
    assert list(found.rows.counts) == [1, 0]
    assert bytes(found.rows.digests) == digests(b"1")[0][0]
    assert list(want({b"a": F(b"1", inode=3), b"b": F(b"1", inode=3)}, paths=(b"b",)).rows.groups) == [0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"paths": (b"nope",)}, UnknownPath),
        ({"paths": (b"p",)}, UnknownPath),
        ({"paths": (b"/d",)}, UsageError),
        ({"paths": (b"../d",)}, UsageError),
        ({"paths": (b"d",), "mode": "replace"}, UsageError),
        ({"discard_excluded": True, "mode": "exact"}, UsageError),
        ({"discard_excluded": True}, UsageError),
        ({"relink": (b"usr/**",)}, UsageError),
        ({"relink": (b"/usr/**",), "no_links": True}, UsageError),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        want({b"d/f": A, b"p": FIFO}, **options)


def test_what_can_be_asked_for() -> None:
    tree: Tree = {b"d/f": A}
    assert want(tree, mode="replace", discard_excluded=True).rows.paths == [b"d", b"d/f"]
    assert want(tree, mode="exact", paths=(b"d",)).scope == (b"d",)


def test_what_was_lost() -> None:
    assert want({b"x": X(table.FILE, table.TOO_LARGE)}).incomplete
    assert not want({b"x": X(table.DIRECTORY, table.OWN), b"y": outside(b"/etc")}).incomplete


def test_a_capture_that_was_cut_short() -> None:
    found = want(
        {b"d/b": REST, b"e": X(table.FILE, table.LIMIT, b"entries"), b"f": X(table.UNKNOWN, table.LIMIT, b"depth")}
    )
    assert found.siblings_protected == (b"d/b",)
    assert found.protected == (b"d/b", b"e", b"f")


def test_protected_paths_are_sorted_by_components() -> None:
    assert want({b"a.b": FIFO, b"a/c": FIFO, b"a!": FIFO}).protected == (b"a/c", b"a!", b"a.b")


def test_holes_stay_with_their_files() -> None:
    block, hole = b"x" * BLOCK_MAX, b"\0" * BLOCK_MAX
    tree: Tree = {b"a": F(hole + block), b"b": F(block + hole + block), b"c": F(block), b"e": outside(b"/etc")}
    for options, positions in (
        ({"paths": (b"b", b"c")}, [0, 2]),
        ({"no_links": True}, [1, 0, 2]),
        ({"relink": (b"/**",)}, [1, 0, 2]),
    ):
        rows = want(tree, **options).rows
        assert list(rows.positions) == positions
        assert len(rows.digests) == 32 * sum(rows.counts) == 32 * (len(positions) + 1)
    assert list(want({**tree, b"l": L(b"a")}, no_links=True).rows.positions) == [1, 0, 2]


# Links put back.
MATCHES = {
    "below": (b"/usr/**", b"/usr/bin/env", True),
    "far-below": (b"/usr/**", b"/usr/lib/x/y/z", True),
    "itself": (b"/usr/**", b"/usr", False),
    "other-start": (b"/usr/**", b"/usr2/bin", False),
    "not-the-root": (b"/bin/**", b"/usr/bin/env", False),
    "all": (b"/**", b"/etc", True),
    "star-in-a-name": (b"/usr/bin/py*", b"/usr/bin/python3.11", True),
    "star-is-no-slash": (b"/usr/*", b"/usr/bin/env", False),
    "star-for-one": (b"/opt/*/bin/x", b"/opt/y/bin/x", True),
    "two-stars-at-the-end-of-a-name": (b"/opt/py**", b"/opt/python/bin/x", True),
    "two-stars-between": (b"/opt/**/x", b"/opt/a/b/x", True),
    "question": (b"/usr/bin/pytho?", b"/usr/bin/python", True),
    "question-is-no-slash": (b"/usr?bin", b"/usr/bin", False),
    "set": (b"/usr/[bs]in/x", b"/usr/sbin/x", False),
    "set-of-one": (b"/usr/[bs]/x", b"/usr/s/x", True),
    "case": (b"/USR/**", b"/usr/bin/env", False),
    "literal": (b"/usr/bin/env", b"/usr/bin/env", True),
    "bytes": (b"/\xff/*", b"/\xff/\xfe", True),
    "slash-behind": (b"/usr/**", b"/usr/bin/", False),
    "two-slashes": (b"/usr/**", b"/usr//bin", False),
    "two-slashes-first": (b"/**", b"//usr/bin", False),
    "dot": (b"/usr/**", b"/usr/./bin", False),
    "dot-dot": (b"/usr/**", b"/usr/../etc", False),
    "dot-dot-at-the-end": (b"/usr/**", b"/usr/lib/..", False),
    "the-root": (b"/**", b"/", False),
    "relative": (b"/**", b"../x", False),
    "hidden": (b"/**", b"/...", True),
    "long": (b"/**", b"/" + b"x" * 4095, False),
    "just-not-too-long": (b"/**", b"/" + b"x" * 4094, True),
}


@pytest.mark.parametrize(("glob", "text", "matches"), MATCHES.values(), ids=MATCHES)
def test_which_links_are_put_back(glob: bytes, text: bytes, matches: bool) -> None:
    found = want({b"d": D(mtime=5, owner=6), b"d/l": outside(text)}, relink=(b"/other", glob))
    assert texts(found) == ({b"d/l": text} if matches else {})
    assert found.protected == found.excluded_paths == (() if matches else (b"d/l",))


def test_a_link_that_is_put_back() -> None:
    tree: Tree = {
        b"a": outside(b"/etc/a"),
        b"d": D(mtime=5, owner=6),
        b"d/l": outside(b"/usr/bin"),
        b"e": F(b"\0\1"),
        b"f": A,
    }
    found = want(tree, D(mtime=7, owner=8), relink=(b"/**",))
    rows = found.rows
    assert rows.paths == [b"a", b"d", b"d/l", b"e", b"f"]
    assert rows.texts == [b"/etc/a", b"/usr/bin"]
    assert [(rows.modes[row], rows.mtimes_ns[row], rows.uids[row], rows.gids[row]) for row in (0, 2)] == [
        (0o777, 7, 8, 8),
        (0o777, 5, 6, 6),
    ]
    assert bytes(rows.digests) == digests(b"\0\1")[0][0] + digests(b"a")[0][0]
    assert want(tree, relink=(b"/**",), paths=(b"d/l",)).rows.paths == [b"d", b"d/l"]
    with pytest.raises(UnknownPath):
        want(tree, paths=(b"d/l",))


def test_no_link_is_put_back_below_what_is_no_directory() -> None:
    assert want({b"f": A, b"f/l": outside(b"/etc")}, relink=(b"/**",)).rows.paths == [b"f"]


def test_only_outside_links_are_put_back() -> None:
    tree: Tree = {b"a": X(table.LINK, table.PATTERN, b"/etc"), b"b": X(table.LINK, table.LIMIT, b"/etc")}
    assert want(tree, relink=(b"/**",)).rows.paths == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """Links kept at capture, and those of them that are left out beside ``e``, a link put back."""

    kept: Mapping[bytes, bytes]
    left: tuple[bytes, ...]
    tree: Tree = field(default_factory=dict)


PASSING = {
    "passes": Passing(kept={b"x": b"e/passwd", b"y": b"e", b"z": b"./e//"}, left=()),
    "climbs": Passing(kept={b"x": b"e/../f"}, left=(b"x",)),
    "climbs-later": Passing(kept={b"x": b"e/a/b/../c"}, left=(b"x",)),
    "climbs-before": Passing(kept={b"d/x": b"../e/passwd"}, left=()),
    "climbs-in-a-link-on-the-way": Passing(kept={b"x": b"e/a", b"y": b"x/..", b"z": b"x/b"}, left=(b"y",)),
    # Without y, z would climb from the top: it is outside because of the link that was put back.
    "without-a-link-another-one-leaves": Passing(
        kept={b"y": b"e/a/../../d/d/d", b"z": b"y/../../../d"}, left=(b"y", b"z"), tree={b"d/d/d": D()}
    ),
    # Without y, z no longer climbs from outside, and stays.
    "without-a-link-another-one-stays": Passing(kept={b"y": b"e/../d", b"z": b"y/../f"}, left=(b"y",)),
    "loop": Passing(kept={b"p": b"q", b"q": b"p", b"x": b"p/../../e/.."}, left=()),
    "dangles-no-more": Passing(kept={b"python3": b"e", b"bin": b"python3/../x"}, left=(b"bin",)),
}


@pytest.mark.parametrize("case", PASSING.values(), ids=PASSING)
def test_links_beside_one_that_is_put_back(case: Passing) -> None:
    tree: Tree = {**case.tree, **{path: L(text) for path, text in case.kept.items()}, b"e": outside(b"/etc")}
    assert texts(want(tree)) == dict(case.kept)
    found = want(tree, relink=(b"/etc",))
    assert texts(found) == {path: text for path, text in {**case.kept, b"e": b"/etc"}.items() if path not in case.left}
    assert tuple(action.path for action in found.left) == case.left
    assert all(action.action == "leave" and action.kind == "link" and action.why for action in found.left)
    assert found.lossy.links_left == len(case.left)
    assert found.protected == case.left
    assert found.excluded_paths == ()


def test_an_unsafe_link_is_never_just_left_out() -> None:
    tree: Tree = {b"d/l": L(b"../s/../.."), b"s": L(b"a/b"), b"e": outside(b"/etc"), b"a/b": D()}
    with pytest.raises(UnsafeLink, match="d/l") as caught:
        want(tree, paths=(b"d", b"e"), relink=(b"/**",))
    assert "--path" in caught.value.hint
    assert want(tree, paths=(b"d", b"s", b"e"), relink=(b"/**",)).left == ()
    with pytest.raises(UnsafeLink, match="x"):
        want({b"x": L(b"../y")})
    with pytest.raises(UnsafeLink, match="x"):
        want({b"x": L(b"/etc")}, relink=(b"/**",))


def test_no_links() -> None:
    found = want({b"d/f": A, b"d/l": L(b"f"), b"m": L(b"../x"), b"q": outside(b"/etc")}, no_links=True)
    assert found.rows.paths == [b"d", b"d/f"]
    assert found.rows.texts == []
    assert [(action.path, action.action) for action in found.left] == [(b"d/l", "leave"), (b"m", "leave")]
    assert found.lossy.links_left == 2
    assert found.protected == (b"d/l", b"m", b"q")


# Repositories.
REPOSITORY: dict[bytes, Any] = {
    b".git/HEAD": F(b"ref: refs/heads/main\n"),
    b".git/config": F(b"[core]\n\tbare = false\n\tfsmonitor = evil\n"),
    b".git/hooks/post-checkout": F(b"#!/bin/sh\n"),
    b".git/objects": D(),
    b".git/refs": D(),
    b"f": A,
}


def reader(tree: Tree) -> Callable[[int], bytes]:
    rows: Segment = manifest(tree).rows

    def read(row: int) -> bytes:
        node = tree[rows.paths[row]]
        assert isinstance(node, F)
        return node.content

    return read


def test_a_repository_is_dropped() -> None:
    found = wanted(manifest(REPOSITORY), RestoreOptions(git="drop"), no_read)
    assert found.rows.paths == [b"f"]
    assert found.protected == (b".git",)
    assert [(action.action, action.path, action.kind) for action in found.left] == [("leave", b".git", "directory")]
    assert found.lossy.git_changed == 7


def test_a_repository_is_made_inert() -> None:
    found = wanted(manifest(REPOSITORY), RestoreOptions(git="inert"), reader(REPOSITORY))
    assert b".git/config" in found.rows.paths and b".git/hooks" not in found.rows.paths
    assert all(b"evil" not in content for content in found.blocks.values()) and len(found.blocks) == 1
    assert found.protected == ()
    assert [action.path for action in found.left] == [b".git/hooks"]
    assert found.lossy.git_changed == 3


def test_repositories_out_of_scope_are_not_told_of() -> None:
    tree: Tree = {**REPOSITORY, b"sub/f": A}
    found = wanted(manifest(tree), RestoreOptions(git="drop", paths=(b"sub",)), no_read)
    assert (found.left, found.lossy.git_changed) == ((), 0)


def test_links_into_a_dropped_repository_are_proved_again() -> None:
    tree: Tree = {**REPOSITORY, b".git/l": L(b"../d/e"), b"d/e": D(), b"x": L(b".git/l/../../y")}
    assert texts(want(tree)) == {b".git/l": b"../d/e", b"x": b".git/l/../../y"}
    # Without the link that leads down, .git/l is a plain name, and the text still ends inside.
    assert texts(wanted(manifest(tree), RestoreOptions(git="drop"), no_read)) == {b"x": b".git/l/../../y"}
    deeper: Tree = {**REPOSITORY, b".git/l": L(b"../d/e/g"), b"d/e/g": D(), b"x": L(b".git/l/../../../y")}
    with pytest.raises(UnsafeLink, match="x") as caught:
        wanted(manifest(deeper), RestoreOptions(git="drop"), no_read)
    assert "--git keep" in caught.value.hint


def test_no_link_is_put_back_into_a_repository_made_inert() -> None:
    tree: Tree = {
        **REPOSITORY,
        b".git/hooks/evil": outside(b"/bin/sh"),
        b".git/l": outside(b"/bin/sh"),
        b"m": outside(b"/bin/sh"),
    }
    options = RestoreOptions(git="inert", relink=(b"/**",))
    assert texts(wanted(manifest(tree), options, reader(tree))) == {b"m": b"/bin/sh"}
