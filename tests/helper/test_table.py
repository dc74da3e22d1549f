"""The manifest's table: one encoding for each segment, one segment for each encoding."""

from __future__ import annotations

import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlift_helper import table
from sandlift_helper.table import Root, Segment
from sandlift_helper.wire import BLOCK_MAX

names = st.binary(max_size=12).map(lambda raw: raw.replace(b"\0", b"/"))
u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63)
i64 = st.integers(-(2**63), 2**63 - 1)
bytes8 = st.integers(0, 255)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Any segment that can be written, sensible or not."""
    segment = Segment()
    if draw(st.booleans()):
        segment.root = Root(draw(u16), draw(i64), draw(u32), draw(u32))
    for path in draw(st.lists(names, max_size=6)):
        common = (path, draw(u16), draw(i64), draw(u32), draw(u32))
        kind = draw(st.sampled_from((table.DIRECTORY, table.FILE, table.LINK)))
        if kind == table.DIRECTORY:
            segment.add(path, kind, *common[1:])
        elif kind == table.LINK:
            segment.add_link(*common, draw(names), draw(names))
        else:
            size = draw(st.integers(0, 5 * BLOCK_MAX))
            blocks = table.block_count(size)
            places = sorted(draw(st.sets(st.integers(0, max(0, blocks - 1)), max_size=blocks)))
            digests = [bytes([draw(bytes8)]) * 32 for _ in places]
            segment.add_file(*common, size, draw(u32), digests, places if len(places) < blocks else [])
    for path in draw(st.lists(names, max_size=4)):
        segment.exclude(path, draw(bytes8), draw(bytes8), draw(names))
    for path in draw(st.lists(names, max_size=4)):
        segment.flag(path, draw(bytes8))
    segment.orphans += bytes([7]) * 32 * draw(st.integers(0, 3))
    return segment


def columns(segment: Segment) -> list[object]:
    root = segment.root
    return [root and (root.mode, root.mtime_ns, root.uid, root.gid)] + [
        getattr(segment, name) for name, _ in table.COLUMNS[1:]
    ]


def rows(segment: Segment) -> list[tuple[object, ...]]:
    """Each entry with all that is its own, in any order."""
    texts = iter(zip(segment.texts, segment.originals, strict=True))
    found: list[tuple[object, ...]] = []
    for row, (digest, position, count) in enumerate(segment.contents()):
        places = list(segment.positions[position : position + count]) if position >= 0 else None
        found.append(
            (
                segment.paths[row],
                segment.kinds[row],
                segment.modes[row],
                segment.mtimes_ns[row],
                segment.uids[row],
                segment.gids[row],
                segment.sizes[row],
                segment.groups[row],
                bytes(segment.digests[32 * digest : 32 * (digest + count)]),
                places,
                next(texts) if segment.kinds[row] == table.LINK else None,
            )
        )
    return found


def excluded_rows(segment: Segment) -> list[tuple[object, ...]]:
    columns = segment.excluded_paths, segment.excluded_kinds, segment.excluded_reasons, segment.details
    return list(zip(*columns, strict=True))


@settings(deadline=None)
@given(segments())
def test_what_is_written_is_read(segment: Segment) -> None:
    encoded = table.encode(segment)
    found = table.decode(encoded)
    assert columns(found) == columns(segment)
    assert table.encode(found) == encoded
    assert len(encoded) < segment.size_estimate() + 200 + 20 * len(segment)


@settings(max_examples=400, deadline=None)
@given(segments().map(table.encode), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_mutation_is_refused_or_is_another_segment(encoded: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(encoded)
    for place, value in changes:
        data[place % len(data)] = value
    try:
        found = table.decode(data)
    except ValueError:
        return
    assert table.encode(found) == data


@settings(max_examples=300)
@given(st.binary(max_size=300).map(lambda raw: b"\x01" + raw))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        table.decode(data)


@settings(deadline=None)
@given(segments(), st.integers(0))
def test_every_cut_is_refused(segment: Segment, cut: int) -> None:
    encoded = table.encode(segment)
    with pytest.raises(ValueError):
        table.decode(encoded[: cut % len(encoded)])
    with pytest.raises(ValueError, match="bytes after the table"):
        table.decode(encoded + b"\0")


@settings(deadline=None)
@given(segments())
def test_sorting_keeps_rows_whole(segment: Segment) -> None:
    before = sorted(rows(segment), key=repr)
    excluded, flags = sorted(excluded_rows(segment)), sorted(zip(segment.flag_paths, segment.flags, strict=True))
    segment.sort()
    assert sorted(rows(segment), key=repr) == before
    assert [path.split(b"/") for path in segment.paths] == sorted(path.split(b"/") for path in segment.paths)
    assert sorted(excluded_rows(segment)) == excluded
    assert sorted(zip(segment.flag_paths, segment.flags, strict=True)) == flags
    assert segment.flag_paths == sorted(segment.flag_paths, key=lambda path: path.split(b"/"))
    # A sorted segment is written and read like any other.
    assert columns(table.decode(table.encode(segment))) == columns(segment)


@settings(deadline=None)
@given(segments(), segments())
def test_joining_keeps_rows_whole(first: Segment, second: Segment) -> None:
    expected = rows(first) + rows(second)
    first.extend(second)
    assert rows(first) == expected


def test_the_layout() -> None:
    segment = Segment()
    segment.root = Root(0o755, -1, 1, 2)
    segment.add_file(b"a", 0o644, 5, 3, 4, 6, digests=[b"\x11" * 32])
    segment.add_link(b"b", 0o777, 7, 3, 4, b"a", b"/w/a")
    segment.exclude(b"p", table.FIFO, table.REASON_FIFO)
    segment.flag(b"a", table.CHANGED)

    def column(data: bytes) -> bytes:
        return len(data).to_bytes(4, "little") + data

    def numbers(size: int, *values: int) -> bytes:
        return column(b"".join(value.to_bytes(size, "little") for value in values))

    assert table.encode(segment) == b"".join(
        [
            b"\x01" + b"\x02\0\0\0" + b"\x01\0\0\0" + b"\x01\0\0\0",
            column(b"\xed\x01" + b"\xff" * 8 + b"\x01\0\0\0" + b"\x02\0\0\0"),
            column(b"a\0b\0"),
            column(b"\x01\x02"),
            numbers(2, 0o644, 0o777),
            numbers(8, 5, 7),
            numbers(4, 3, 3),
            numbers(4, 4, 4),
            numbers(8, 6, 0),
            numbers(4, 0, 0),
            column(b"a\0"),
            column(b"/w/a\0"),
            numbers(4, 1, 0),
            column(b""),
            column(b"\x11" * 32),
            column(b"p\0"),
            column(b"\x03"),
            column(b"\x02"),
            column(b"\0"),
            column(b"a\0"),
            column(b"\x01"),
            column(b""),
        ]
    )


def broken(name: str, value: object) -> bytes:
    segment = Segment()
    segment.add_file(b"a", 0, 0, 0, 0, 1, digests=[bytes(32)])
    segment.add_link(b"b", 0, 0, 0, 0, b"x")
    segment.exclude(b"c", 1, 7)
    segment.flag(b"d", 2)
    assert table.decode(table.encode(segment)).paths == [b"a", b"b"]
    setattr(segment, name, value)
    return table.encode(segment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kinds", bytearray([1])),
        ("kinds", bytearray([1, 3])),
        ("kinds", bytearray([1, 1])),
        ("kinds", bytearray([2, 2])),
        ("modes", array("H", [1])),
        ("mtimes_ns", array("q", [1, 2, 3])),
        ("uids", array("I")),
        ("gids", array("I", [1])),
        ("sizes", array("Q", [1])),
        ("groups", array("I", [1])),
        ("texts", []),
        ("texts", [b"x", b"y"]),
        ("originals", []),
        ("counts", array("I", [1])),
        ("counts", array("I", [2, 0])),
        ("positions", array("I", [1])),
        ("digests", bytearray(31)),
        ("digests", bytearray(64)),
        ("excluded_paths", []),
        ("excluded_kinds", bytearray(2)),
        ("excluded_reasons", bytearray()),
        ("details", []),
        ("flag_paths", []),
        ("flags", bytearray(2)),
        ("orphans", bytearray(33)),
    ],
    ids=str,
)
def test_columns_that_do_not_fit(name: str, value: object) -> None:
    with pytest.raises(ValueError):
        table.decode(broken(name, value))


@pytest.mark.parametrize("version", [0, 3, 255])
def test_another_version(version: int) -> None:
    encoded = bytearray(table.encode(Segment()))
    encoded[0] = version
    with pytest.raises(ValueError, match="version that is known"):
        table.decode(encoded)


def test_a_column_of_names_that_does_not_end() -> None:
    segment = Segment()
    segment.flag(b"ab", 2)
    encoded = table.encode(segment)
    assert encoded.count(b"ab\0") == 1
    with pytest.raises(ValueError, match="flag_paths does not end"):
        table.decode(encoded.replace(b"ab\0", b"abc"))


def _names_alone(column: str, count: int) -> bytearray:
    """A table of no rows, whose one column holds so many empty names."""
    data = bytearray(b"\x01" + bytes(12))
    for name, _ in table.COLUMNS:
        size = count if name == column else 0
        data += size.to_bytes(4, "little") + bytes(size)
    return data


@pytest.mark.parametrize("column", ["paths", "texts", "originals", "excluded_paths", "details", "flag_paths"])
def test_names_without_rows_are_not_made(column: str) -> None:
    """A list takes eight bytes for each name of one byte, so names are counted before they are cut."""
    data = _names_alone(column, 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"the column {column} has over 0 names"):
            table.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_lengths_beyond_the_data_allocate_nothing() -> None:
    data = bytearray(table.encode(Segment()))
    data[13:17] = b"\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="cut off"):
            table.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 65536
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (BLOCK_MAX, 1), (BLOCK_MAX + 1, 2), (10 * BLOCK_MAX, 10)])
def test_block_count(size: int, count: int) -> None:
    assert table.block_count(size) == count
