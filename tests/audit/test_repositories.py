"""What counts as a repository, and where what leads elsewhere leads."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sandlift.repositories import Repositories, find_repositories, fold, git_name
from sandlift_helper import table
from sandlift_helper.table import Segment

Entries = Mapping[bytes, bytes | tuple[bytes] | None]
"""Path to a file's bytes, a link's text in a tuple, or None for a directory; directories on the way need no mention."""


def find(entries: Entries, excluded: tuple[bytes, ...] = ()) -> Repositories:
    whole = dict(entries)
    for path in entries:
        while path := path.rpartition(b"/")[0]:
            whole.setdefault(path, None)
    rows, contents = Segment(), {}
    for path in sorted(whole, key=table.sort_key):
        value = whole[path]
        if value is None:
            rows.add(path, table.DIRECTORY, 0o755, 0, 0, 0)
        elif isinstance(value, tuple):
            rows.add_link(path, 0o777, 0, 0, 0, value[0])
        else:
            contents[len(rows)] = value
            rows.add_file(path, 0o644, 0, 0, 0, len(value), 0, [bytes(32)] if value else [])
    for path in excluded:
        rows.exclude(path, table.LINK, table.OUTSIDE_LINK)
    return find_repositories(rows, contents.__getitem__)


def found(entries: Entries, excluded: tuple[bytes, ...] = ()) -> dict[bytes, str]:
    return {one.path: one.why for one in find(entries, excluded).found}


LAYOUT: dict[bytes, bytes | tuple[bytes] | None] = {b"HEAD": b"x", b"objects": None, b"refs": None}


def at(folder: bytes, entries: Entries = LAYOUT) -> dict[bytes, bytes | tuple[bytes] | None]:
    return {folder + b"/" + path: value for path, value in entries.items()}


ALIASES = (
    b".git", b".GIT", b".Git", b"git~1", b"GIT~1", b"GIT~2", b".git.", b".git ", b".git . .",
    b".git::$INDEX_ALLOCATION", b".g\xe2\x80\x8cit", b".gi\xef\xbb\xbft", b"\xe2\x80\xae.git",
)  # fmt: skip
OTHERS = (b"git", b".gitignore", b".git~1", b"x.git", b".github", b".git-blame", b"git~", b"git~x", b".gi", b"digit~1")


@pytest.mark.parametrize("name", ALIASES)
def test_names_that_are_dot_git(name: bytes) -> None:
    assert git_name(name) == b".git"
    assert found({b"a/" + name: None}) == {b"a/" + name: "name"}


@pytest.mark.parametrize("name", OTHERS)
def test_names_that_are_not(name: bytes) -> None:
    assert git_name(name) != b".git"
    assert found({b"a/" + name: None}) == {}


def test_folding_is_by_case_and_by_form() -> None:
    assert fold("É.png".encode()) == fold("E\u0301.PNG".encode()) == fold("é.png".encode())
    assert fold("straße".encode()) == fold(b"STRASSE")
    assert fold(b"\xff\xfeA") != fold(b"\xff\xfdA")
    assert fold(b"a") != fold(b"b")


def test_layouts_count_under_any_name() -> None:
    assert found(at(b"data")) == {b"data": "layout"}
    assert found(LAYOUT) == {b"": "layout"}
    assert found(at(b"data", {b"head": b"", b"OBJECTS": (b"x",), b"Refs": (b"y",)})) == {b"data": "layout"}
    assert found(at(b"data", {b"HEAD": b"", b"objects": None})) == {}
    assert found(at(b"data", {b"objects": None, b"refs": None})) == {}
    # What was left out may be put back.
    assert found(at(b"data", {b"HEAD": b"", b"objects": None}), (b"data/refs",)) == {b"data": "layout"}


def test_repositories_within_repositories() -> None:
    assert found(
        {
            **at(b".git"),
            **at(b".git/modules/a/b"),
            **at(b".git/worktrees/w", {b"HEAD": b"x", b"commondir": b"../..\n", b"gitdir": b"/abs/.git\n"}),
            **at(b".git/modules/broken", {b"config": b"x"}),
            **at(b".git/refs/heads/modules", {b"config": b"x"}),
            **at(b".git/logs", {b"HEAD": b"x", b"refs": None}),
        }
    ) == {
        b".git": "name",
        b".git/modules/a/b": "layout",
        b".git/worktrees/w": "layout",
        b".git/modules/broken": "layout",
    }


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (b"gitdir: ../real\n", b"real"),
        (b"gitdir: ../real/\r\n", b"real"),
        (b"gitdir: ../via/real", b"real"),
        (b"gitdir: ./../real/../real", b"real"),
        (b"gitdir: /real\n", None),
        (b"gitdir: /inner\n", None),
        (b"gitdir: inner\n", b"a/inner"),
        (b"gitdir: ../../real\n", None),
        (b"gitdir: ../missing\n", None),
        (b"gitdir: ../file\n", None),
        (b"gitdir: ../file/../real\n", None),
        (b"gitdir: ../loop/real\n", None),
        (b"gitdir: ../real\0x\n", None),
        (b"gitdir: \n", None),
        (b"../real\n", None),
        (b"", None),
    ],
)
def test_where_a_git_file_leads(text: bytes, target: bytes | None) -> None:
    entries = {b"a/.git": text, b"real/x": b"x", b"a/inner": None, b"via": (b"./",), b"loop": (b"loop",), b"file": b"x"}
    result = find(entries)
    (pointer,) = result.pointers
    assert (pointer.path, pointer.kind, pointer.targets) == (b"a/.git", "gitdir", (target,))
    assert pointer.is_inside == (target is not None)
    assert result.paths == ({target} if target is not None else frozenset())


def test_a_common_directory_counts_as_a_repository_and_so_does_the_next_one() -> None:
    entries = {
        **at(b"a", {b"HEAD": b"x", b"commondir": b"../b\n"}),
        **at(b"b", {b"commondir": b"../c"}),
        **at(b"c", {b"config": b"x"}),
        **at(b"d", {b"commondir": b"../e"}),
        **at(b"e", {b"config": b"x"}),
    }
    assert found(entries) == {b"a": "layout", b"b": "common", b"c": "common"}


def test_links_in_the_place_of_git_and_of_pointers() -> None:
    entries: Entries = {
        b"x/.git": (b"../store",),
        b"store/HEAD": b"x",
        b"y/.git": (b"../pointer",),
        b"pointer": b"gitdir: ../store\n",
        b"z/.git": (b"nothing",),
    }
    result = find(entries)
    assert result.paths == {b"store"}
    assert found({b"w/.git": (b"../no-layout",), b"no-layout/config": b"x"}) == {b"no-layout": "name"}
    assert {one.path: one.targets for one in result.pointers} == {b"y/.git": (b"store",), b"z/.git": (None,)}


def test_alternates_line_by_line() -> None:
    text = b'# a comment\n../../b/objects\n\n/abs\n"quoted"\n../../../out\n'
    result = find({**at(b"a"), **at(b"b"), b"a/objects/info/alternates": text})
    (pointer,) = result.pointers
    assert pointer.kind == "alternates"
    assert pointer.targets == (b"b/objects", None, None, None)
    assert not pointer.is_inside
    (empty,) = find({**at(b"a"), b"a/objects/info/alternates": b"\n"}).pointers
    assert empty.is_inside


def test_many_hostile_pointers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlift.repositories._STEPS_MAX", 1000)
    entries: dict[bytes, bytes | tuple[bytes] | None] = {b"real": None}
    for number in range(200):
        entries[b"%03d/.git" % number] = b"gitdir: ../" + b"real/../" * 50 + b"real"
    result = find(entries)
    inside = [one for one in result.pointers if one.is_inside]
    assert 0 < len(inside) < 10
    assert len(result.pointers) == 200
