"""The rule for links, row by row: captured by the helper, proved by the host, restored and compared."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.lift import Lift

from sandlift.errors import InvalidManifest, TargetNotEmpty, UnsafeLink
from sandlift.gathering import Gathering
from sandlift.limits import DEFAULT_LIMITS
from sandlift_helper import links, table
from support.tree import File, HardLink, Link, assert_equal, make, read, restored, tree

PLAIN = {
    b"a.txt": File(b"a"),
    b"data.txt": File(b"data"),
    b"sub/data.txt": File(b"sub data"),
    b"sub/deep/file": File(b"deep"),
}
ALIAS = {b"alias": Link(b"sub/deep")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Links by path, and the texts of those that are kept.

    ``{w}`` stands for the root, ``{n}`` for its name, ``{u}`` for its parent.
    """

    links: dict[bytes, bytes]
    kept: dict[bytes, bytes]


def one(text: bytes, kept: bytes | None, at: bytes = b"l") -> Row:
    """A single link beside ``alias``, kept with that text or left out."""
    return Row(links={b"alias": b"sub/deep", at: text}, kept={b"alias": b"sub/deep"} | ({at: kept} if kept else {}))


def verbatim(links: dict[bytes, bytes], *left: bytes) -> Row:
    """Links that are all kept as they are, but for those that leave."""
    return Row(links=links, kept={path: text for path, text in links.items() if path not in left})


ROWS = {
    # Kept as they stand.
    "into-a-directory": one(b"sub/data.txt", b"sub/data.txt"),
    "to-nothing": one(b"nope", b"nope"),
    "jenkins-moby#13157": one(b"-1", b"-1"),
    "up-again-through-a-link": one(b"alias/../data.txt", b"alias/../data.txt"),
    "up-twice-through-a-link": one(b"alias/../../data.txt", b"alias/../../data.txt"),
    "nothing-on-the-way": one(b"missing/../a.txt", b"missing/../a.txt"),
    "below-a-file": one(b"a.txt/x/../..", b"a.txt/x/../.."),
    "the-top": one(b".", b"."),
    "drive-relative-CVE-2026-31802": one(b"C:../../t.txt", b"C:../../t.txt", b"sub/deep/l"),
    "up-to-the-top": one(b"../..", b"../..", b"sub/deep/l"),
    "odd-slashes": one(b".//sub///./data.txt/", b".//sub///./data.txt/"),
    "own-directory-upload-artifact#628": one(b"../jest/bin/jest.js", b"../jest/bin/jest.js", b".bin/jest"),
    # Left out.
    "above": one(b"../x", None),
    "above-and-back": one(b"../{n}/a.txt", None),
    "system-openclaw#136326": one(b"/nix/store/h-conf/conf.json", None),
    "program-mutagen#99": one(b"/usr/bin/env", None),
    "same-beginning-GHSA-vj76-c3g6-qr5v": one(b"{w}2/a.txt", None),
    "parent-of-the-root": one(b"{u}", None),
    "absolute-up": one(b"{w}/../etc", None),
    "absolute-up-and-back": one(b"{w}/../{n}/a.txt", None),
    "dots-before-the-root": one(b"{u}/x/../{n}/a.txt", None),
    "missing-then-out": one(b"missing/../../x", None),
    "file-then-out": one(b"a.txt/../../x", None),
    "alias-then-out": one(b"alias/../../../x", None),
    "up-from-below-NemoClaw#9317": one(b"../../config.json", None, b"sub/l"),
    # d/l -> ../../ws/a.txt climbs over the root in its text, so it depends on the root's name.
    "leaves-and-re-enters": one(b"../../{n}/a.txt", None, b"sub/l"),
    # Absolute and inside: relative afterwards, the rest untouched.
    "absolute-NemoClaw#2268": one(b"{w}/a.txt", b"a.txt"),
    "absolute-two-slashes": one(b"{w}//a.txt", b"a.txt"),
    "absolute-slashes-first": one(b"//{w}/a.txt", b"a.txt"),
    "absolute-dot-first": one(b"/.{w}/a.txt", b"a.txt"),
    "absolute-dot-after": one(b"{w}/./a.txt", b"./a.txt"),
    "absolute-inner-slashes": one(b"{w}/sub//data.txt", b"sub//data.txt"),
    "absolute-slash-openai-agents-python#4834": one(b"{w}/a.txt/", b"a.txt/"),
    "absolute-directory-slash": one(b"{w}/sub/", b"sub/"),
    "absolute-root-cpython#149486": one(b"{w}", b"."),
    "absolute-root-slash": one(b"{w}/", b"."),
    "absolute-root-from-below": one(b"{w}", b"../..", b"sub/deep/l"),
    "absolute-from-below": one(b"{w}/sub/data.txt", b"../../sub/data.txt", b"sub/deep/l"),
    "absolute-through-a-link": one(b"{w}/alias/../data.txt", b"alias/../data.txt"),
    "absolute-dangling": one(b"{w}/nope", b"nope"),
    # Several together.
    "up-of-a-link": verbatim({b"a/up": b"..", b"v": b"a/up/../x"}, b"v"),
    "venv": verbatim({b"python3": b"python", b"python": b"/usr/bin/python3.11"}, b"python"),
    "through-what-is-left-out-CVE-2019-11246": verbatim(
        {b"e": b"/etc", b"x": b"e/passwd", b"y": b"e/../../x"}, b"e", b"y"
    ),
    "loop": verbatim({b"p": b"q", b"q": b"p", b"r": b"p/../../x"}),
    "self-kubernetes#58049": verbatim({b"d": b".", b"s": b"s", b"t": b"s/../../x"}),
    "workspaces-walk-sync#30": verbatim(
        {b"node_modules/a": b"../packages/a", b"packages/a/node_modules/b": b"../../../node_modules/a"}
    ),
    "chain": verbatim({b"1": b"2", b"2": b"3", b"3": b"sub/deep", b"4": b"1/../..", b"5": b"1/../../.."}, b"5"),
    "link-before-its-target": verbatim({b"a": b"z/../..", b"z": b"sub/deep"}),
    "link-before-a-shallow-target": verbatim({b"a": b"z/../..", b"z": b"sub"}, b"a"),
    "cafe-CVE-2021-37712": verbatim({"cafe\u0301".encode(): b"/etc", "café".encode(): b"sub"}, "cafe\u0301".encode()),
    "star-podman#3829": verbatim({b"t": b"file*", b"*": b"a.txt", b"u": b"/file*"}, b"u"),
    "long-node-tar#81": verbatim({b"101": b"x" * 101, b"300": b"sub/" * 75, b"4095": (b"./" * 2048)[:4095]}),
    "backslash": verbatim({b"l": b"..\\..\\x", b"m": b"\xff\xfe\n"}),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_table(lift: Lift, row: Row) -> None:
    def filled(text: bytes) -> bytes:
        names = {b"{w}": str(lift.root), b"{u}": str(lift.folder), b"{n}": lift.root.name}
        for mark, value in names.items():
            text = text.replace(mark, value.encode())
        return text

    texts = {path: filled(text) for path, text in row.links.items()}
    source = tree({**PLAIN, **{path: Link(text) for path, text in texts.items()}})
    (lift.folder / "w2").mkdir()
    (lift.folder / "w2" / "a.txt").write_text("a sentinel that nothing may take")
    lift.make(source)
    taken = lift.capture()
    left = {path: text for path, text in texts.items() if path not in row.kept}
    assert taken.links == row.kept
    assert taken.excluded == {path: ("link", "outside-link", text) for path, text in left.items()}
    assert taken.capture.outcome == "complete"
    assert taken.originals == {p: t for p, t in texts.items() if p in row.kept and t.startswith(b"/")}
    assert_equal(restored(source.without(*left), links=row.kept), lift.restore(taken))
    assert_equal(source, read(lift.root))


RELATIVE = {
    name: row
    for name, row in ROWS.items()
    if len(row.links) < 6 and not any(b"{" in text or text.startswith(b"/") for text in row.links.values())
}


@pytest.mark.parametrize("row", RELATIVE.values(), ids=RELATIVE)
def test_the_verdict_does_not_depend_on_the_order(row: Row) -> None:
    for paths in itertools.permutations(row.links):
        verdicts = links.judge(paths, [row.links[path] for path in paths])
        assert dict(zip(paths, verdicts, strict=True)) == {path: path in row.kept for path in paths}


# cases: openai/openai-agents-python#3093, CVE-2019-11251
@pytest.mark.parametrize(
    "texts",
    [
        {b"s": b"../secret"},
        {b"a/l": b"x", b"s": b"../secret"},
        {b"a/b/l": b"x", b"s": b"../secret"},
        {b"a/l": b"../s/../x", b"s": b"."},
        {b"a/l": b"x", b"s": b"/secret"},
        {b"a/l": b"x", b"s": b""},
    ],
    ids=str,
)
def test_the_host_believes_no_helper(texts: dict[bytes, bytes]) -> None:
    """A manifest that names an outside link is refused, wherever in it the link stands."""

    def manifest(chosen: dict[bytes, bytes]) -> Gathering:
        segment = table.Segment()
        segment.root = table.Root(0o755, 0, 0, 0)
        for directory in (b"a", b"a/b"):
            segment.add(directory, table.DIRECTORY, 0o755, 0, 0, 0)
        for path, text in chosen.items():
            segment.add_link(path, 0o777, 0, 0, 0, text)
        segment.sort()
        gathering = Gathering(DEFAULT_LIMITS)
        gathering.add(memoryview(table.encode(segment)))
        return gathering

    with pytest.raises(InvalidManifest, match="a link"):
        manifest(texts).accept({})
    assert manifest(dict.fromkeys(texts, b"x")).accept({}).counts.links == len(texts)


# cases: openai/openai-agents-python#4834
def test_a_slash_behind_a_file_still_fails(lift: Lift) -> None:
    root = os.fsencode(lift.root)
    lift.make(tree({b"a.txt": File(b"a"), b"l": Link(root + b"/a.txt/"), b"m": Link(root + b"/a.txt")}))
    target = lift.target()
    lift.restore_to(lift.capture(), target)
    assert (target / "m").read_text() == "a"
    with pytest.raises(NotADirectoryError):
        (target / "l").read_text()


def test_an_absolute_link_that_grows_too_long_is_lost(lift: Lift) -> None:
    root = os.fsencode(lift.root)
    rest = b"x" * 200 + b"/"
    text = root + b"/" + (rest * 30)[: 4095 - len(root) - 1]
    assert len(text) == 4095
    deep = b"d/" * 30 + b"l"
    lift.make(tree({deep: Link(text), b"l": Link(text)}))
    taken = lift.capture()
    assert taken.excluded == {deep: ("link", "limit", b"link text")}
    assert taken.links == {b"l": text[len(root) + 1 :]}
    assert taken.capture.outcome == "incomplete"


# cases: openai/openai-agents-python#4833, moby/moby#31816
@pytest.mark.parametrize("given", ["alias", "real", "alias-slash", "relative", "dots"])
def test_every_spelling_of_the_root_is_inside(lift: Lift, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (lift.folder / "private").mkdir()
    (lift.folder / "tmp").symlink_to("private")
    real, alias = lift.folder / "private" / "w", lift.folder / "tmp" / "w"
    source = tree({b"x": File(b"x"), b"a": Link(os.fsencode(alias) + b"/x"), b"b": Link(os.fsencode(real) + b"/x")})
    make(source, real)
    monkeypatch.chdir(lift.folder / "tmp")
    roots: dict[str, Path | str] = {
        "alias": alias,
        "real": real,
        "alias-slash": f"{alias}/",
        "relative": "./w",
        "dots": f"{lift.folder}/tmp//./w/.",
    }
    taken = lift.capture(roots[given])
    # The real spelling is always known, another one when it was the one that was used.
    assert taken.links[b"b"] == b"x"
    if given in ("alias", "alias-slash", "dots"):
        assert taken.links == {b"a": b"x", b"b": b"x"}
        assert_equal(restored(source, links={b"a": b"x", b"b": b"x"}), lift.restore(taken))


# cases: openclaw/openclaw#141923, a5c-ai/babysitter#1757, kubernetes/kubernetes#82143
def test_one_link_never_decides_for_the_rest(lift: Lift) -> None:
    entries: dict[bytes, File | Link] = {b"%04d" % number: File(b"%d" % number) for number in range(1000)}
    source = tree({**entries, b"0500-link": Link(b"/usr/bin/python3"), b"node_modules/@x/sdk": Link(b"/usr/lib/sdk")})
    lift.make(source)
    for _ in range(2):
        taken = lift.capture()
        assert taken.capture.counts.files == 1000
        assert taken.capture.counts.excluded == 2
        assert taken.reasons == {b"0500-link": "outside-link", b"node_modules/@x/sdk": "outside-link"}
        assert taken.capture.outcome == "complete"
    assert_equal(source.without(b"0500-link", b"node_modules/@x/sdk"), lift.restore(taken))


# cases: borgbackup/borg#2324
def test_a_hard_linked_link_that_leaves(lift: Lift) -> None:
    lift.make(tree({b"a": Link(b"../x"), b"sub/b": HardLink(b"a"), b"sub/c": HardLink(b"a")}))
    taken = lift.capture()
    # Each name is judged from its own directory.
    assert taken.links == {b"sub/b": b"../x", b"sub/c": b"../x"}
    assert taken.excluded == {b"a": ("link", "outside-link", b"../x")}


def test_a_part_is_judged_as_the_tree_that_it_will_be(lift: Lift) -> None:
    lift.make(tree({b"d/l": Link(b"../s/../.."), b"s": Link(b"sub/deep/deeper"), b"sub/deep/deeper/f": File(b"f")}))
    taken = lift.capture()
    assert taken.excluded == {}
    target = lift.target()
    with pytest.raises(UnsafeLink):
        lift.restore_to(taken, target, paths=(b"d",))
    assert not target.exists()
    lift.restore_to(taken, target, paths=(b"d", b"s"))


@pytest.mark.parametrize("existing", ["link", "link-to-empty-directory"])
# cases: quirq-ai/xo-space#42, bytedance/deer-flow#5578
def test_the_target_is_looked_up_once(lift: Lift, existing: str) -> None:
    """The target may be a link of the user's own; what is there is never written through."""
    lift.make(tree({b"sub/f": File(b"f")}))
    taken = lift.capture()
    outside = lift.folder / "outside"
    outside.mkdir()
    if existing == "link":
        (outside / "sub").mkdir()
    (lift.folder / "target").symlink_to("outside")
    if existing == "link":
        with pytest.raises(TargetNotEmpty):
            lift.restore_to(taken, lift.folder / "target")
        assert os.listdir(outside / "sub") == []
    else:
        lift.restore_to(taken, lift.folder / "target")
        assert (outside / "sub" / "f").read_text() == "f"
        assert (lift.folder / "target").is_symlink()
