"""The rules for a manifest: each broken once, by hand, beside a twin that keeps it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from protocol.replay import leaves_nothing, run_data
from protocol.stream import Stream, add_directory, add_file, digest_of, root_segment

from sandlift.errors import HostLimit, InvalidManifest
from sandlift.gathering import Gathering
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.manifest import Manifest
from sandlift.store import Store
from sandlift.validate import ISSUES_MAX
from sandlift_helper import table
from sandlift_helper.table import Segment
from sandlift_helper.wire import BLOCK_MAX

Change = Callable[[Segment], None]
ONE, TWO, STRAY, FULL = b"one", b"the second", b"of a file that changed", bytes(range(256)) * 4096
SENT = {digest_of(block): len(block) for block in (ONE, TWO, STRAY, FULL)}


def base() -> Segment:
    """A valid manifest of everything; segments keep path order, so rows are added in it."""
    segment = root_segment()
    add_file(segment, b"a", ONE)
    add_directory(segment, b"d")
    add_file(segment, b"d/b", FULL, TWO)
    add_file(segment, b"d/hard1", ONE, group=7)
    segment.add_file(b"d/hard2", 0o644, 1, 0, 0, len(ONE), group=7)
    segment.add_link(b"d/link", 0o777, 1, 0, 0, b"../a", b"/w/a")
    segment.add_file(b"d/sparse", 0o600, 1, 0, 0, 3 * BLOCK_MAX, digests=[digest_of(FULL)], positions=[1])
    add_directory(segment, b"m")
    segment.exclude(b"d/pipe", table.FIFO, table.REASON_FIFO)
    segment.exclude(b"m", table.DIRECTORY, table.MOUNT, b"proc")
    segment.flag(b"a", table.CHANGED)
    segment.flag(b"d/gone", table.VANISHED)
    segment.orphans += digest_of(STRAY)
    return segment


def accept(*segments: Segment, sent: Mapping[bytes, int] = SENT, limits: Limits = DEFAULT_LIMITS) -> Manifest:
    gathering = Gathering(limits)
    for segment in segments:
        gathering.add(memoryview(table.encode(segment)))
    return gathering.accept(sent)


def row(segment: Segment, path: bytes) -> int:
    return segment.paths.index(path)


def rename(path: bytes, to: bytes) -> Change:
    def change(segment: Segment) -> None:
        segment.paths[row(segment, path)] = to
        segment.sort()

    return change


def column(name: str, path: bytes, value: int) -> Change:
    def change(segment: Segment) -> None:
        getattr(segment, name)[row(segment, path)] = value

    return change


def text(to: bytes, original: bytes = b"") -> Change:
    def change(segment: Segment) -> None:
        segment.texts[0], segment.originals[0] = to, original

    return change


def both(*changes: Change) -> Change:
    def change(segment: Segment) -> None:
        for one in changes:
            one(segment)

    return change


def excluded(path: bytes, kind: int, reason: int, detail: bytes = b"") -> Change:
    def change(segment: Segment) -> None:
        segment.exclude(path, kind, reason, detail)
        segment.sort()

    return change


def flagged(path: bytes, flag: int) -> Change:
    def change(segment: Segment) -> None:
        segment.flag(path, flag)
        segment.sort()

    return change


def no_root(segment: Segment) -> None:
    segment.root = None


def root_mode(mode: int) -> Change:
    def change(segment: Segment) -> None:
        assert segment.root is not None
        segment.root.mode = mode

    return change


def directory(path: bytes, **values: int) -> Change:
    """A directory whose columns of content are not empty."""

    def change(segment: Segment) -> None:
        add_directory(segment, path)
        for name, value in values.items():
            getattr(segment, name)[-1] = value
        if values.get("counts"):
            segment.digests += digest_of(ONE)
        segment.sort()

    return change


def file(path: bytes, *blocks: bytes, size: int = -1, group: int = 0) -> Change:
    def change(segment: Segment) -> None:
        add_file(segment, path, *blocks, size=size, group=group)
        segment.sort()

    return change


def sparse(path: bytes, size: int, *positions: int) -> Change:
    def change(segment: Segment) -> None:
        segment.add_file(
            path, 0o600, 1, 0, 0, size, digests=[digest_of(FULL)] * len(positions), positions=list(positions)
        )
        segment.sort()

    return change


def no_orphans(segment: Segment) -> None:
    del segment.orphans[:]


def link_up(segment: Segment) -> None:
    segment.add_link(b"d/up", 0o777, 1, 0, 0, b"..")
    segment.sort()


def nothing(segment: Segment) -> None:
    """The manifest as it is."""


MOUNTED = excluded(b"x", table.DIRECTORY, table.PATTERN)

# rule -> (what the refusal says, what breaks the rule, the twin that keeps it)
RULES: dict[str, tuple[str, Change, Change]] = {
    "root": ("has no root", no_root, nothing),
    "root mode": ("has no root", root_mode(0o10000), root_mode(0o7777)),
    "path: absolute": ("path is not allowed: /z", file(b"/z"), file(b"z")),
    "path: empty": ("path is not allowed: ", file(b""), file(b"z")),
    "path: dot": ("path is not allowed: d/.", file(b"d/."), file(b"d/.z")),
    "path: dot first": ("path is not allowed: ./z", file(b"./z"), file(b"..z")),
    "path: dotdot": ("path is not allowed: d/../z", file(b"d/../z"), file(b"d/...")),
    "path: dotdot alone": ("path is not allowed: ..", file(b".."), file(b"...")),
    "path: empty component": ("path is not allowed: d//z", file(b"d//z"), file(b"d/z")),
    "path: slash at the end": ("path is not allowed: z/", directory(b"z/"), directory(b"z")),
    "path: shown harmlessly": (r"path is not allowed: \\x1b\[2J\\n/", file(b"\x1b[2J\n/"), file(b"\x1b[2J\n")),
    "parent: missing": (
        "parent is no directory of the manifest: z/y",
        file(b"z/y"),
        both(directory(b"z"), file(b"z/y")),
    ),
    "parent: a file": ("parent is no directory of the manifest: a/y", file(b"a/y"), file(b"d/y")),
    "parent: a link": ("parent is no directory of the manifest: d/link/y", file(b"d/link/y"), file(b"d/link2")),
    "parent: missing above": ("parent is no directory", directory(b"y/z"), both(directory(b"y"), directory(b"y/z"))),
    "mode": ("more than twelve bits", column("modes", b"a", 0o10644), column("modes", b"a", 0o7644)),
    "directory with a size": ("no file has content: z", directory(b"z", sizes=5), directory(b"z")),
    "directory with a group": ("no file has content: z", directory(b"z", groups=7), directory(b"z")),
    "directory with blocks": ("no file has content: z", directory(b"z", counts=1), directory(b"z")),
    "link with a size": ("no file has content: d/link", column("sizes", b"d/link", 4), nothing),
    "link text: empty": ("text is empty or absolute: d/link", text(b""), text(b".")),
    "link text: absolute": ("text is empty or absolute: d/link", text(b"/a"), text(b"../a")),
    "link text: outside": ("leaves the workspace: d/link", text(b"../../a"), text(b"../d/../a")),
    "link text: outside by another link": (
        "leaves the workspace: d/link",
        both(text(b"up/../x"), link_up),
        both(text(b"up/x"), link_up),
    ),
    "original text: relative": ("original text is not absolute: d/link", text(b"../a", b"w/a"), text(b"../a", b"/w/a")),
    "hard link with blocks": ("hard link differs", file(b"d/hard3", ONE, group=7), file(b"d/hard3", ONE, group=8)),
    "hard link of another mode": ("hard link differs", column("modes", b"d/hard2", 0o600), nothing),
    "hard link of another time": ("hard link differs", column("mtimes_ns", b"d/hard2", 2), nothing),
    "hard link of another owner": ("hard link differs", column("uids", b"d/hard2", 2), nothing),
    "hard link of another group": ("hard link differs", column("gids", b"d/hard2", 2), nothing),
    "hard link of another size": ("hard link differs", column("sizes", b"d/hard2", 2), nothing),
    "more blocks than the size allows": (
        "more blocks than its size allows: z",
        file(b"z", FULL, ONE, size=BLOCK_MAX),
        file(b"z", FULL),
    ),
    "blocks of an empty file": ("more blocks than its size allows: z", file(b"z", ONE, size=0), file(b"z")),
    "positions that repeat": (
        "positions are not allowed: z",
        sparse(b"z", 3 * BLOCK_MAX, 1, 1),
        sparse(b"z", 3 * BLOCK_MAX, 0, 1),
    ),
    "positions that fall": (
        "positions are not allowed: z",
        sparse(b"z", 3 * BLOCK_MAX, 1, 0),
        sparse(b"z", 3 * BLOCK_MAX, 0, 2),
    ),
    "position beyond the end": (
        "positions are not allowed: z",
        sparse(b"z", 3 * BLOCK_MAX, 3),
        sparse(b"z", 3 * BLOCK_MAX, 2),
    ),
    "block that was not sent": ("was never sent: z", file(b"z", b"what else"), file(b"z", TWO)),
    "block larger than the file": ("has another size: z", file(b"z", TWO, size=3), file(b"z", TWO)),
    "block smaller than the file": ("has another size: z", file(b"z", TWO, size=30), file(b"z", TWO)),
    "short block in the middle": (
        "has another size: z",
        file(b"z", ONE, TWO, size=BLOCK_MAX + len(TWO)),
        file(b"z", FULL, TWO),
    ),
    "block that nothing names": (
        "1 blocks were sent that nothing",
        no_orphans,
        both(no_orphans, file(b"z", STRAY)),
    ),
    "excluded: path": ("excluded row's path is not allowed: ../x", excluded(b"../x", 1, table.PATTERN), MOUNTED),
    "excluded: root": ("excluded row's path is not allowed: ", excluded(b"", 0, table.PATTERN), MOUNTED),
    "excluded: parent": ("excluded row's path is not allowed: x/y", excluded(b"x/y", 1, table.PATTERN), MOUNTED),
    "excluded: parent is a file": ("row's path is not allowed: a/y", excluded(b"a/y", 1, table.PATTERN), MOUNTED),
    "excluded: below excluded": (
        "excluded row's path is not allowed: x/y",
        both(MOUNTED, excluded(b"x/y", table.FILE, table.PATTERN)),
        both(MOUNTED, excluded(b"y", table.FILE, table.PATTERN)),
    ),
    "excluded: kind": ("kind or reason is unknown: x", excluded(b"x", 8, table.PATTERN), MOUNTED),
    "excluded: reason 0": ("kind or reason is unknown: x", excluded(b"x", 1, 0), MOUNTED),
    "excluded: reason 10": ("kind or reason is unknown: x", excluded(b"x", 1, 10), MOUNTED),
    "excluded: reason 38": ("kind or reason is unknown: x", excluded(b"x", 1, 38), MOUNTED),
    "excluded: an entry by policy": ("names an entry: a", excluded(b"a", table.FILE, table.PATTERN), MOUNTED),
    "excluded: an entry as lost": ("names an entry: a", excluded(b"a", table.FILE, table.UNREADABLE), MOUNTED),
    "excluded: an entry of another kind": (
        "names an entry: d",
        excluded(b"d", table.FILE, table.LIMIT),
        excluded(b"d", table.DIRECTORY, table.LIMIT),
    ),
    "excluded: unstable but not changed": (
        "names an entry: d/b",
        excluded(b"d/b", table.FILE, table.UNSTABLE),
        both(flagged(b"d/b", table.CHANGED), excluded(b"d/b", table.FILE, table.UNSTABLE)),
    ),
    "excluded: kept directory, pattern": (
        "names an entry: d",
        excluded(b"d", table.DIRECTORY, table.PATTERN),
        excluded(b"d", table.DIRECTORY, table.UNREADABLE),
    ),
    "excluded: kept directory, unstable": (
        "names an entry: d",
        excluded(b"d", table.DIRECTORY, table.UNSTABLE),
        excluded(b"d", table.DIRECTORY, table.IO_ERROR),
    ),
    "excluded: link": ("names an entry: d/link", excluded(b"d/link", table.LINK, table.OUTSIDE_LINK), MOUNTED),
    "flag: unknown": ("a flag is unknown: x", flagged(b"x", 4), flagged(b"x", table.VANISHED)),
    "flag: 0": ("a flag is unknown: x", flagged(b"x", 0), flagged(b"x", table.VANISHED)),
    "changed: no entry": ("changed file is no file", flagged(b"x", table.CHANGED), flagged(b"d/b", table.CHANGED)),
    "changed: a directory": ("changed file is no file", flagged(b"d", table.CHANGED), flagged(b"d/b", table.CHANGED)),
    "changed: a link": ("changed file is no file", flagged(b"d/link", table.CHANGED), flagged(b"d/b", table.CHANGED)),
    "vanished: an entry": ("vanished path is not allowed: d/b", flagged(b"d/b", 2), flagged(b"d/b2", 2)),
    "vanished: excluded": ("vanished path is not allowed: d/pipe", flagged(b"d/pipe", 2), flagged(b"d/pipe2", 2)),
    "vanished: parent": ("vanished path is not allowed: y/z", flagged(b"y/z", 2), flagged(b"z", 2)),
    "vanished: path": ("vanished path is not allowed: ../z", flagged(b"../z", 2), flagged(b"z", 2)),
    "vanished: root": ("vanished path is not allowed: ", flagged(b"", 2), flagged(b"z", 2)),
}
for _reason, _kind in (
    (table.OUTSIDE_LINK, table.LINK),
    (table.REASON_FIFO, table.FIFO),
    (table.REASON_SOCKET, table.SOCKET),
    (table.REASON_CHAR_DEVICE, table.CHAR_DEVICE),
    (table.REASON_BLOCK_DEVICE, table.BLOCK_DEVICE),
    (table.WHITEOUT, table.CHAR_DEVICE),
    (table.MOUNT, table.DIRECTORY),
    (table.OWN, table.DIRECTORY),
):
    RULES[f"excluded: kind of {table.REASON_NAMES[_reason]}"] = (
        "kind does not fit its reason: x",
        excluded(b"x", table.FILE if _kind == table.LINK else table.LINK, _reason),
        excluded(b"x", _kind, _reason),
    )


def changed(change: Change) -> Segment:
    segment = base()
    change(segment)
    return segment


@pytest.mark.parametrize("name", RULES)
def test_a_rule_broken_and_kept(name: str) -> None:
    says, breaks, keeps = RULES[name]
    with pytest.raises(InvalidManifest, match=says) as caught:
        accept(changed(breaks))
    assert caught.value.issues
    assert caught.value.issues[0] in caught.value.message
    assert accept(changed(keeps)).rows.root is not None


def test_the_base_is_accepted_as_it_is() -> None:
    manifest = accept(base())
    assert manifest.rows.paths == base().paths
    # Hard links are numbered anew, from one.
    assert list(manifest.rows.groups) == [0, 0, 0, 1, 1, 0, 0, 0]
    assert manifest.counts.files == 5
    assert manifest.counts.changed == manifest.counts.vanished == 1
    assert manifest.counts.excluded == 2


# cases: openclaw/openclaw#123672
@pytest.mark.parametrize("name", RULES)
def test_nothing_is_stored_of_what_breaks_a_rule(name: str, store: Store, tmp_path: Path) -> None:
    says, breaks, keeps = RULES[name]

    def stream(change: Change) -> bytes:
        made = Stream().hello()
        for block in (ONE, TWO, STRAY, FULL):
            made.content(block)
        return made.manifest(changed(change)).end().data

    with leaves_nothing(store), pytest.raises(InvalidManifest, match=says) as caught:
        run_data(stream(breaks), store, tmp_path)
    assert caught.value.exit == 4
    assert run_data(stream(keeps), store, tmp_path).number == 2
    assert store.verify().is_sound


# Limits: what the request allowed, one more, and by how much.


def many(count: int) -> Segment:
    segment = root_segment()
    for number in range(count):
        add_file(segment, b"%05d" % number)
    return segment


def deep(depth: int) -> Segment:
    segment = root_segment()
    for level in range(depth + 1):
        add_directory(segment, b"/".join([b"d"] * (level + 1)))
    return segment


def long_path(size: int, where: str) -> Segment:
    """A path of *size* bytes, made of directories as deep as needed."""
    segment = root_segment()
    path = b"d" * 200
    while len(path) < size - 201:
        add_directory(segment, path)
        path += b"/" + b"d" * 200
    add_directory(segment, path)
    path += b"/" + b"x" * (size - len(path) - 1)
    assert len(path) == size
    if where == "entry":
        add_file(segment, path)
    elif where == "excluded":
        segment.exclude(path, table.FILE, table.PATTERN)
    elif where == "flag":
        segment.flag(path, table.VANISHED)
    else:
        segment.exclude(b"z", table.FILE, table.PATTERN, path + b"y" * 4096)
    return segment


def sized(size: int) -> Segment:
    segment = root_segment()
    segment.add_file(b"z", 0o600, 1, 0, 0, size, digests=[], positions=[])
    return segment


def linked(size: int) -> Segment:
    segment = root_segment()
    segment.add_link(b"z", 0o777, 1, 0, 0, b"x" * size)
    return segment


def rebased(size: int) -> Segment:
    segment = root_segment()
    segment.add_link(b"z", 0o777, 1, 0, 0, b"x", b"/" + b"x" * (size - 1))
    return segment


LIMITS: dict[str, tuple[str, int, Callable[[int], Segment]]] = {
    "entries": ("entries", 40, many),
    "depth": ("depth", 30, deep),
    "path of an entry": ("path_bytes", 1000, lambda size: long_path(size, "entry")),
    "path of an excluded row": ("path_bytes", 1000, lambda size: long_path(size, "excluded")),
    "path of a flag": ("path_bytes", 1000, lambda size: long_path(size, "flag")),
    "detail": ("path_bytes", 1000, lambda size: long_path(size, "detail")),
    "file size": ("file_bytes", 1 << 21, sized),
    "link text": ("link_text_bytes", 300, linked),
    "original link text": ("link_text_bytes", 300, rebased),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_exact(name: str) -> None:
    limit, allowed, make = LIMITS[name]
    limits = replace(DEFAULT_LIMITS, **{limit: allowed})
    assert accept(make(allowed), sent={}, limits=limits).rows.root is not None
    with pytest.raises(HostLimit, match=f"the limit {limit}") as caught:
        accept(make(allowed + 1), sent={}, limits=limits)
    assert caught.value.context["limit"] == limit
    assert caught.value.exit == 4
    # It is this limit that stands in the way.
    assert accept(make(allowed + 1), sent={}, limits=replace(limits, **{limit: allowed + 1})).rows.root is not None


@pytest.mark.parametrize("rows", ["excluded", "flags"])
def test_excluded_rows_and_flags_count_as_entries(rows: str) -> None:
    segment = root_segment()
    for number in range(41):
        if rows == "excluded":
            segment.exclude(b"%05d" % number, table.FILE, table.PATTERN)
        else:
            segment.flag(b"%05d" % number, table.VANISHED)
    with pytest.raises(HostLimit, match="the limit entries"):
        accept(segment, sent={}, limits=replace(DEFAULT_LIMITS, entries=40))


def test_entries_are_counted_over_all_segments_before_the_end() -> None:
    gathering = Gathering(replace(DEFAULT_LIMITS, entries=40))
    for start in range(0, 40, 10):
        segment = Segment()
        for number in range(start, start + 10):
            add_file(segment, b"%05d" % number)
        gathering.add(memoryview(table.encode(segment)))
    with pytest.raises(HostLimit, match="the limit entries"):
        gathering.add(memoryview(table.encode(many(1))))


def test_all_segments_together_have_a_limit() -> None:
    encoded = memoryview(table.encode(many(10)))
    gathering = Gathering(replace(DEFAULT_LIMITS, manifest_bytes=2 * len(encoded) - 1))
    gathering.add(encoded)
    with pytest.raises(HostLimit, match="the limit manifest_bytes") as caught:
        gathering.add(encoded)
    assert caught.value.context["found"] == 2 * len(encoded)


def test_a_link_text_of_linux_s_own_length() -> None:
    assert accept(linked(4095), sent={}).rows.texts == [b"x" * 4095]
    with pytest.raises(HostLimit, match="the limit link_text_bytes"):
        accept(linked(4096), sent={})


def test_an_original_text_of_linux_s_own_length() -> None:
    assert len(accept(rebased(4095), sent={}).rows.originals[0]) == 4095
    with pytest.raises(HostLimit, match="the limit link_text_bytes"):
        accept(rebased(4096), sent={})


def test_a_rebased_text_may_be_longer_than_the_limit() -> None:
    segment = root_segment()
    segment.add_link(b"z", 0o777, 1, 0, 0, b"./" * 200, b"/w/a")
    assert accept(segment, sent={}, limits=Limits(link_text_bytes=10)).counts.links == 1


def test_a_limit_stores_nothing(store: Store, tmp_path: Path) -> None:
    data = Stream().hello().manifest(many(41)).end().data
    with leaves_nothing(store), pytest.raises(HostLimit):
        run_data(data, store, tmp_path, limits=Limits(entries=40))
    assert run_data(data, store, tmp_path, limits=Limits(entries=41)).counts.files == 41


# Segments: how they are put together.


def test_segments_come_in_any_order() -> None:
    first, second, third = Segment(), Segment(), root_segment()
    add_file(first, b"d/b", ONE)
    add_directory(second, b"d")
    add_file(third, b"a", TWO)
    sent = {digest_of(ONE): len(ONE), digest_of(TWO): len(TWO)}
    identities = {accept(*order, sent=sent).identity for order in ((first, second, third), (third, first, second))}
    assert len(identities) == 1


def test_hard_link_groups_keep_apart_over_segments() -> None:
    first, second = root_segment(), Segment()
    add_file(first, b"a1", ONE, group=5)
    first.add_file(b"a2", 0o644, 1, 0, 0, 3, group=5)
    add_file(second, b"b1", TWO, group=3)
    second.add_file(b"b2", 0o644, 1, 0, 0, len(TWO), group=3)
    add_file(second, b"c", group=9)
    manifest = accept(first, second, sent={digest_of(ONE): len(ONE), digest_of(TWO): len(TWO)})
    assert list(manifest.rows.groups) == [1, 1, 2, 2, 0]


def test_two_roots() -> None:
    with pytest.raises(InvalidManifest, match="two roots"):
        accept(root_segment(), root_segment())


@pytest.mark.parametrize("same", [False, True])
def test_an_unsorted_segment(same: bool) -> None:
    segment = root_segment()
    add_file(segment, b"b")
    add_file(segment, b"b" if same else b"a")
    with pytest.raises(InvalidManifest, match="not sorted, or names a path twice"):
        accept(segment, sent={})


def test_order_is_by_components() -> None:
    segment = root_segment()
    add_directory(segment, b"a")
    add_file(segment, b"a/z")
    add_file(segment, b"a.txt")
    assert accept(segment, sent={}).rows.paths == [b"a", b"a/z", b"a.txt"]
    segment = root_segment()
    add_directory(segment, b"a")
    add_file(segment, b"a.txt")
    add_file(segment, b"a/z")
    with pytest.raises(InvalidManifest, match="not sorted"):
        accept(segment, sent={})


@pytest.mark.parametrize("columns", ["excluded", "flags"])
def test_unsorted_excluded_rows_and_flags(columns: str) -> None:
    segment = root_segment()
    for path in (b"b", b"a"):
        if columns == "excluded":
            segment.exclude(path, table.FILE, table.PATTERN)
        else:
            segment.flag(path, table.VANISHED)
    with pytest.raises(InvalidManifest, match="not sorted"):
        accept(segment, sent={})


def _twice(what: str) -> Segment:
    segment = Segment()
    if what == "entries":
        add_file(segment, b"a")
    elif what == "excluded rows":
        segment.exclude(b"a", table.FILE, table.PATTERN)
    else:
        segment.flag(b"a", table.VANISHED)
    return segment


@pytest.mark.parametrize(
    ("what", "says"),
    [("entries", "two entries"), ("excluded rows", "two excluded rows"), ("flags", "two flags")],
)
def test_the_same_path_in_two_segments(what: str, says: str) -> None:
    assert accept(root_segment(), _twice(what), sent={}).rows.root is not None
    with pytest.raises(InvalidManifest, match=f"{says} have the same path"):
        accept(root_segment(), _twice(what), _twice(what), sent={})


def test_a_segment_that_is_no_table() -> None:
    with pytest.raises(InvalidManifest, match="cannot be read"):
        Gathering(DEFAULT_LIMITS).add(memoryview(b"\x01nothing of the kind"))


def test_issues_are_gathered_and_bounded() -> None:
    segment = root_segment()
    for number in range(ISSUES_MAX + 30):
        add_file(segment, b"x%03d/y" % number)
    with pytest.raises(InvalidManifest) as caught:
        accept(segment, sent={})
    assert len(caught.value.issues) == ISSUES_MAX
    assert caught.value.message.endswith(f"(and {ISSUES_MAX + 29} more)")


def test_kinds_that_are_no_entries_are_not_read() -> None:
    segment = root_segment()
    segment.paths, segment.kinds = [b"p"], bytearray([table.FIFO])
    segment.modes, segment.mtimes_ns = array("H", [0o644]), array("q", [1])
    for name in ("uids", "gids", "groups", "counts"):
        setattr(segment, name, array("I", [0]))
    segment.sizes = array("Q", [0])
    with pytest.raises(InvalidManifest, match="unknown kind"):
        accept(segment, sent={})
