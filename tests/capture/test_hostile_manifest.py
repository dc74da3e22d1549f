"""Attacks by a manifest that its rules, broken one by one elsewhere, do not cover: each beside a harmless twin."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from capture.refusal import accept, refuse, stream
from protocol.replay import contents, run_prefix
from protocol.stream import Stream, add_directory, add_file, digest_of, pack, root_segment, small

from sandlift.errors import HelperStart, InvalidManifest, SandliftError
from sandlift.gathering import Gathering
from sandlift.limits import DEFAULT_LIMITS
from sandlift.store import Store
from sandlift_helper import table, wire
from sandlift_helper.table import Segment
from support.hostile import Play

ONE = b"one"
Make = Callable[[], list[Segment]]


def sending(*segments: Segment, blocks: tuple[bytes, ...] = (ONE,)) -> bytes:
    made = Stream().hello()
    for block in blocks:
        made.content(block)
    for segment in segments:
        made.manifest(segment)
    return made.end().data


def base() -> Segment:
    segment = root_segment()
    add_file(segment, b"a", ONE)
    add_directory(segment, b"d")
    segment.exclude(b"e", table.DIRECTORY, table.PATTERN, b"e (rules:1)")
    return segment


def with_file(path: bytes) -> Segment:
    segment = base()
    add_file(segment, path)
    segment.sort()
    return segment


def with_link(path: bytes, text: bytes) -> Segment:
    segment = base()
    segment.add_link(path, 0o777, 1, 0, 0, text)
    segment.sort()
    return segment


def with_row(path: bytes, detail: bytes = b"") -> Segment:
    segment = base()
    segment.exclude(path, table.FILE, table.UNREADABLE)
    segment.details[-1] = detail
    segment.sort()
    return segment


def with_flag(path: bytes) -> Segment:
    segment = base()
    segment.flag(path, table.VANISHED)
    return segment


def swapped() -> Segment:
    segment = with_file(b"b")
    segment.paths[0], segment.paths[1] = segment.paths[1], segment.paths[0]
    return segment


def twice() -> Segment:
    segment = with_file(b"b")
    segment.paths[1] = segment.paths[0]
    return segment


def later(path: bytes) -> Segment:
    segment = Segment()
    add_file(segment, path)
    return segment


def rows_later(path: bytes) -> Segment:
    segment = Segment()
    segment.exclude(path, table.FILE, table.PATTERN)
    return segment


# attack -> (the segments, the twin's, what the refusal says)
ATTACKS: dict[str, tuple[list[Segment], list[Segment], str]] = {
    # NUL ends a name in the table, so a name that holds one is one too many.
    "nul-in-a-name": ([with_file(b"b\0c")], [with_file(b"bc")], "cannot be read: the column paths has over 3 names"),
    "nul-in-a-link": ([with_link(b"l", b"a\0b")], [with_link(b"l", b"ab")], "column texts has 2 items, not 1"),
    "nul-in-a-row": ([with_row(b"r\0s")], [with_row(b"rs")], "column excluded_paths has over 2 names"),
    "nul-in-a-detail": ([with_row(b"r", b"x\0y")], [with_row(b"r", b"xy")], "column details has over 2 names"),
    "nul-in-a-flag": ([with_flag(b"f\0g")], [with_flag(b"fg")], "column flag_paths has over 1 names"),
    "file-below-what-is-left-out": ([with_file(b"e/x")], [with_file(b"d/x")], "parent is no directory.*: e/x"),
    "file-under-a-file": ([with_file(b"a/x")], [with_file(b"d/x")], "parent is no directory.*: a/x"),
    "file-in-place-of-what-is-left-out": ([with_file(b"e")], [with_file(b"f")], "excluded row names an entry: e"),
    "link-up-through-what-is-left-out": (
        [with_link(b"l", b"e/../../x")],
        [with_link(b"l", b"e/../x")],
        "leaves the workspace: l",
    ),
    "link-up-through-a-file": (
        [with_link(b"l", b"a/../../x")],
        [with_link(b"l", b"a/../x")],
        "leaves the workspace: l",
    ),
    "link-up-through-nothing": (
        [with_link(b"d/l", b"q/../../../x")],
        [with_link(b"d/l", b"q/../../x")],
        "leaves.*: d/l",
    ),
    "unsorted": ([swapped()], [with_file(b"b")], "not sorted, or names a path twice"),
    "twice-in-a-segment": ([twice()], [with_file(b"b")], "not sorted, or names a path twice"),
    "twice-in-two-segments": ([base(), later(b"a")], [base(), later(b"b")], "two entries have the same path"),
    "row-twice": ([base(), rows_later(b"e")], [base(), rows_later(b"f")], "two excluded rows have the same path"),
    "two-roots": ([base(), root_segment()], [base(), Segment()], "the manifest has two roots"),
    "no-root": ([Segment(), later(b"b")], [base(), later(b"b")], "the manifest has no root"),
    "shown-harmlessly": (
        [with_file(b"\x1b]0;x\x07\r\n\xe2\x80\xae\xff/x")],
        [with_file(b"\x1b]0;x\x07\r\n\xe2\x80\xae\xff")],
        r"manifest: \\x1b\]0;x\\x07\\r\\n\\u202e\\\\xff/x",
    ),
    "shown-shortly": ([with_file(b"x\n" * 30_000 + b"/y")], [with_file(b"x\n" * 100)], r": x\\nx\\n"),
}


@pytest.mark.parametrize("slug", ATTACKS)
def test_attacks(slug: str, tmp_path: Path) -> None:
    attack, twin, says = ATTACKS[slug]
    blocks = (ONE,) if slug != "no-root" else ()
    refuse(sending(*attack, blocks=blocks), tmp_path, InvalidManifest, says)
    assert accept(sending(*twin), tmp_path).number == 1


@pytest.mark.parametrize("name", [name for name, _ in table.COLUMNS])
def test_a_column_of_another_length(name: str, tmp_path: Path) -> None:
    """Each column with one byte more, its length stated as it is."""
    encoded = table.encode(with_link(b"l", b"a"))
    at = 13
    for column, _ in table.COLUMNS:
        size = int.from_bytes(encoded[at : at + 4], "little")
        if column == name:
            break
        at += 4 + size
    longer = encoded[:at] + (size + 1).to_bytes(4, "little") + encoded[at + 4 : at + 4 + size] + b"\0"
    made = Stream().hello().content(ONE).add(wire.MANIFEST, pack(longer + encoded[at + 4 + size :]))
    refuse(made.end().data, tmp_path, InvalidManifest, "a segment of the manifest cannot be read: ")


# Content that a sandbox does not have.


# cases: Dropship 2011, the class 82
def test_a_block_that_the_store_holds_is_not_had_by_naming_it(tmp_path: Path) -> None:
    """Whether the store has it makes no difference to what the sandbox is told."""
    secret, unknown = b"a secret of somebody's", b"what nobody knows"
    told = []
    with Store.open(tmp_path / "store", create=True) as store:
        honest = root_segment()
        add_file(honest, b"secret", secret)
        prefix = stream(sending(honest, blocks=(secret,))).save(tmp_path / "play")
        run_prefix(prefix, store, workspace="other")
        before = contents(tmp_path / "store")
        for block in (secret, unknown):
            claiming = root_segment()
            add_file(claiming, b"f", block)
            prefix = stream(sending(claiming, blocks=())).save(tmp_path / "play")
            with pytest.raises(InvalidManifest, match="a block of a file was never sent: f") as caught:
                run_prefix(prefix, store)
            told.append((caught.value.message, caught.value.issues, caught.value.context))
        assert contents(tmp_path / "store") == before
        # Who has it sends it.
        assert run_prefix(stream(sending(honest, blocks=(secret,))).save(tmp_path / "play"), store).counts.files == 1
    assert told[0] == told[1]


# cases: the class 81
def test_a_stream_of_yesterday(tmp_path: Path) -> None:
    """It is whole and right, and bears another run's nonce."""
    error = refuse(Play().false_mark().send(small().data).exit(0), tmp_path, HelperStart, "did not start")
    assert error.context["exit_status"] == 0
    assert accept(small().data, tmp_path).number == 1


# Memory: what is small on the wire stays in proportion to what it is decoded to.


def refused_within(segment: Segment, extra_bytes: int) -> None:
    """Asserts that a segment is refused with no more memory than a few times its own size."""
    encoded = table.encode(segment)
    gathering = Gathering(DEFAULT_LIMITS)
    tracemalloc.start()
    try:
        gathering.add(memoryview(encoded))
        with pytest.raises(SandliftError):
            gathering.accept({})
        assert tracemalloc.get_traced_memory()[1] < 4 * len(encoded) + extra_bytes
    finally:
        tracemalloc.stop()


def test_digests_of_blocks_that_never_came() -> None:
    """64 MiB of one digest are 2 KiB on the wire."""
    segment = root_segment()
    for number in range(4):
        add_file(segment, b"%d" % number, size=(1 << 16) * wire.BLOCK_MAX)
        segment.counts[-1] = 1 << 16
        segment.digests += bytes(32 << 16)
    refused_within(segment, 1 << 20)


def test_names_that_are_nothing() -> None:
    """A head that states rows without end, and a column of as many empty names."""
    encoded = bytearray(table.encode(root_segment()))
    encoded[1:5] = b"\xff" * 4
    at = encoded.index((18).to_bytes(4, "little")) + 4 + 18
    encoded[at : at + 4] = (8 << 20).to_bytes(4, "little")
    encoded[at + 4 : at + 4] = bytes(8 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(SandliftError, match="more rows than it can hold"):
            Gathering(DEFAULT_LIMITS).add(memoryview(encoded))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_links_below_no_directory() -> None:
    """They are refused before their places are looked at."""
    segment = root_segment()
    for number in range(200):
        segment.add_link(b"%03d/" % number + b"a/" * 9000 + b"l", 0o777, 1, 0, 0, b"x")
    refused_within(segment, 1 << 20)


def test_links_to_many_places() -> None:
    """Texts may name any number of places where nothing is; 20 MB of such texts are 30 KB on the wire."""
    segment = root_segment()
    for number in range(200):
        segment.add_link(b"%04d" % number, 0o777, 1, 0, 0, b"m%04d/" % number + b"a/" * 2040)
    segment.add_link(b"x", 0o777, 1, 0, 0, b"..")
    refused_within(segment, 1 << 20)


def test_the_memory_of_an_honest_manifest_is_of_that_kind_too() -> None:
    """The bound of these tests is none that only an empty manifest meets."""
    segment = root_segment()
    for number in range(20_000):
        add_file(segment, b"%08d" % number, ONE)
    gathering = Gathering(DEFAULT_LIMITS)
    gathering.add(memoryview(table.encode(segment)))
    assert gathering.accept({digest_of(ONE): len(ONE)}).counts.files == 20_000
