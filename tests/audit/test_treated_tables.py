"""Whatever is left out, the rest of a table means what it meant: contents, holes, links, hard-link groups."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sandlift.manifest import number_groups
from sandlift.restoring.git import drop, inert
from sandlift_helper import table
from sandlift_helper.table import Segment
from sandlift_helper.wire import BLOCK_MAX

NAMES = st.sampled_from([b"a", b"b", b".git", b"config", b"hooks", b"HEAD", b"objects", b"refs", b"z"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
# A directory, a link, a file of its own, a file with holes, or a name of one of two groups.
KINDS = st.sampled_from(["directory", "link", "file", "file", "holes", "group 1", "group 1", "group 2", "group 2"])


def digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def build(wanted: dict[bytes, str]) -> Segment:
    """A canonical table; what lies below no directory is left out."""
    rows, groups = Segment(), {"group 1": 1, "group 2": 2}
    rows.root = table.Root(0o755, 1, 2, 3)
    started: set[str] = set()
    directories = {b""}
    for number, path in enumerate(sorted(wanted, key=table.sort_key)):
        kind = wanted[path]
        if path.rpartition(b"/")[0] not in directories:
            continue
        fields = (path, 0o600 + number % 8, number, number, number)
        if kind == "directory":
            directories.add(path)
            rows.add(path, table.DIRECTORY, *fields[1:])
        elif kind == "link":
            rows.add_link(*fields, b"to " + path)
        elif kind == "file":
            rows.add_file(*fields, 5, 0, [digest(path)])
        elif kind == "holes":
            rows.add_file(*fields, 3 * BLOCK_MAX, 0, [digest(path), digest(b"2" + path)], [0, 2])
        else:
            own = [digest(kind.encode())] if kind not in started else []
            started.add(kind)
            rows.add_file(path, 0o644, 0, 0, 0, 7, groups[kind], own)
    rows.groups = number_groups(rows.groups)
    rows.exclude(b"left-out", table.LINK, table.OUTSIDE_LINK)
    rows.flag(b"a", table.CHANGED)
    return rows


def meaning(rows: Segment) -> dict[bytes, Any]:
    """Path to all that an entry is, the contents of hard links written out and their names told."""
    contents, carriers = list(rows.contents()), rows.first_of_groups()
    texts = iter(rows.texts)
    found: dict[bytes, Any] = {}
    for row, path in enumerate(rows.paths):
        group = rows.groups[row]
        first, position, count = contents[carriers.get(group, row)]
        names = [other for other, one in zip(rows.paths, rows.groups, strict=True) if group and one == group]
        found[path] = (
            (rows.kinds[row], rows.modes[row], rows.mtimes_ns[row], rows.uids[row], rows.gids[row], rows.sizes[row]),
            bytes(rows.digests[32 * first : 32 * (first + count)]),
            list(rows.positions[position : position + count]) if position >= 0 else [],
            next(texts) if rows.kinds[row] == table.LINK else b"",
            names,
        )
    return found


def check_canonical(rows: Segment) -> None:
    assert table.encode(table.decode(table.encode(rows))) == table.encode(rows)
    assert [table.sort_key(path) for path in rows.paths] == sorted(map(table.sort_key, rows.paths))
    assert list(rows.groups) == list(number_groups(rows.groups))
    assert rows.excluded_paths == []
    assert rows.flag_paths == []
    for group, row in rows.first_of_groups().items():
        counts = [rows.counts[other] for other, one in enumerate(rows.groups) if one == group]
        assert counts == [rows.counts[row]] + [0] * (len(counts) - 1)


def check_rest(rows: Segment, made: Segment, changed: tuple[bytes, ...]) -> None:
    """Every entry that was not changed is as it was, less the names that are gone."""
    before, after = meaning(rows), meaning(made)
    for path, (fields, digests, positions, text, names) in after.items():
        if path in changed:
            continue
        left = [name for name in names if name in after]
        was = before[path]
        assert (fields, digests, positions, text) == was[:4]
        kept = [name for name in was[4] if name in after and name not in changed]
        assert left == (kept if len(kept) > 1 else [])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(wanted=st.dictionaries(PATHS, KINDS, max_size=25))
def test_drop(wanted: dict[bytes, str]) -> None:
    rows = build(wanted)
    encoded = table.encode(rows)
    treated = drop(rows, lambda row: b"")
    assert table.encode(rows) == encoded
    check_canonical(treated.rows)
    check_rest(rows, treated.rows, ())
    expected = [path for path in rows.paths if b".git" not in path.split(b"/")]
    assert treated.rows.paths == expected
    assert treated.left_out == len(rows) - len(expected)
    assert treated.blocks == {}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(wanted=st.dictionaries(PATHS, KINDS, max_size=25))
def test_inert(wanted: dict[bytes, str]) -> None:
    rows = build(wanted)
    encoded = table.encode(rows)
    treated = inert(rows, lambda row: b"[core]\n\tbare = false\n\tpager = evil\n")
    assert table.encode(rows) == encoded
    check_canonical(treated.rows)
    check_rest(rows, treated.rows, treated.changed)
    content = b"[core]\n\tbare = false\n"
    made = meaning(treated.rows)
    for path in treated.changed:
        assert made[path][0][0] == table.FILE
        assert made[path][1] in (b"", digest(content))
    assert set(treated.blocks.values()) <= {content}
    for path in made:
        parent, _, name = path.rpartition(b"/")
        assert not (name == b"hooks" and parent.endswith(b".git")), path
        if name == b"config" and parent.endswith(b".git"):
            assert path in treated.changed
