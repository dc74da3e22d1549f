"""What a restore writes and sends, as a pure function of a snapshot and what was asked for."""

from __future__ import annotations

import posixpath
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandlift.errors import UnknownPath, UnsafeLink, UsageError
from sandlift.manifest import Manifest, number_groups
from sandlift.validate import shown
from sandlift_helper import links, table
from sandlift_helper.table import Segment, split_digests
from sandlift_helper.wire import SEGMENT_MAX

SEGMENT_TARGET = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write, and which blocks it takes."""

    rows: Segment
    """The entries to create, in canonical form."""
    blocks: tuple[int, ...]
    """For each distinct block of ``rows``, in order of first appearance, its number in the snapshot."""


def make_plan(manifest: Manifest, paths: Sequence[bytes] = ()) -> Plan:
    """Returns the plan for all of a snapshot, or for *paths* in it, their directories included.

    The links are proved again on the tree that will be there.  Raises UnknownPath, UnsafeLink, UsageError.
    """
    rows = subset(manifest, [clean(path) for path in paths]) if paths else manifest.rows
    link_paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
    for path, inside in zip(link_paths, links.judge(link_paths, rows.texts), strict=True):
        if not inside:
            raise UnsafeLink(
                f"the link {shown(path)} would leave the restored tree, because a link on its way is not restored",
                hint="restore the whole snapshot, or name the other link with --path as well",
                path=shown(path),
            )
    numbers = {digest: number for number, digest in enumerate(manifest.blocks)}
    distinct = dict.fromkeys(split_digests(rows.digests))
    return Plan(rows=rows, blocks=tuple(numbers[digest] for digest in distinct))


def clean(path: bytes) -> bytes:
    """Returns a path below the root as entries spell it.  Raises UsageError when it cannot be one."""
    if path.startswith(b"/") or b".." in path.split(b"/"):
        raise UsageError(f"a path in a snapshot is relative to its root: {shown(path)}")
    spelled = posixpath.normpath(path)
    return b"" if spelled == b"." else spelled


def subset(manifest: Manifest, paths: Sequence[bytes]) -> Segment:
    """Returns the rows of *paths*, of all below them, and of the directories on the way.  Raises UnknownPath."""
    wanted: set[int] = set()
    for path in paths:
        try:
            wanted.update(manifest.below(path))
        except KeyError:
            raise UnknownPath(f"the snapshot has no {shown(path)}", hint="sandlift ls lists what it has") from None
        while path := path.rpartition(b"/")[0]:
            wanted.add(manifest.find(path))
    return take_rows(manifest.rows, sorted(wanted))


def take_rows(rows: Segment, wanted: Sequence[int]) -> Segment:
    """Returns a canonical table of some rows; the first name of a hard-link group carries its blocks."""
    taken = Segment()
    taken.root = rows.root
    contents = list(rows.contents())
    carriers = rows.first_of_groups()
    text_of = {row: text for text, row in enumerate(r for r, kind in enumerate(rows.kinds) if kind == table.LINK)}
    started: set[int] = set()
    for row in wanted:
        fields = (rows.paths[row], rows.modes[row], rows.mtimes_ns[row], rows.uids[row], rows.gids[row])
        kind, group = rows.kinds[row], rows.groups[row]
        if kind == table.DIRECTORY:
            taken.add(fields[0], kind, *fields[1:])
        elif kind == table.LINK:
            taken.add_link(*fields, rows.texts[text_of[row]])
        else:
            first = not group or group not in started
            started.add(group)
            digest, position, count = contents[carriers.get(group, row)] if first else (0, -1, 0)
            taken.add_file(
                *fields,
                rows.sizes[row],
                group,
                list(split_digests(rows.digests[32 * digest : 32 * (digest + count)])),
                list(rows.positions[position : position + count]) if position >= 0 else [],
            )
    taken.groups = number_groups(taken.groups)
    return taken


def segments(rows: Segment) -> Iterator[bytes]:
    """Yields the encodings of *rows* without what was left out, cut to fit the stream's frames."""
    whole = Segment()
    for name, _ in table.COLUMNS:
        if name not in ("excluded_paths", "excluded_kinds", "excluded_reasons", "details", "flag_paths", "flags"):
            setattr(whole, name, getattr(rows, name))
    whole.originals = [b""] * len(whole.texts)
    whole.orphans = bytearray()
    if rows.size_estimate() + len(rows.positions) < SEGMENT_MAX // 2:
        yield table.encode(whole)
        return
    start, size = 0, 0
    for row, count in enumerate(rows.counts):
        size += len(rows.paths[row]) + 48 + 36 * count
        if size >= SEGMENT_TARGET:
            yield table.encode(_slice(whole, start, row + 1))
            start, size = row + 1, 0
    yield table.encode(_slice(whole, start, len(rows)))


def _slice(rows: Segment, start: int, stop: int) -> Segment:
    """Returns rows *start* to *stop* as they stand, group numbers included."""
    part = Segment()
    part.root = rows.root if not start else None
    for name in ("paths", "kinds", "modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts"):
        setattr(part, name, getattr(rows, name)[start:stop])
    links_before = rows.kinds[:start].count(table.LINK)
    part.texts = rows.texts[links_before : links_before + part.kinds.count(table.LINK)]
    part.originals = [b""] * len(part.texts)
    before = sum(rows.counts[:start])
    part.digests = rows.digests[32 * before : 32 * (before + sum(part.counts))]
    holes = [
        sum(n for size, n in zip(sizes, counts, strict=True) if n < table.block_count(size))
        for sizes, counts in ((rows.sizes[:start], rows.counts[:start]), (part.sizes, part.counts))
    ]
    part.positions = rows.positions[holes[0] : holes[0] + holes[1]]
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Which stored frames travel, in order, and which of them brings each block."""

    frames: tuple[tuple[int, int], ...]
    """(number of the pack in the snapshot, frame in the pack)."""
    frame_of: array[int]
    """For each distinct block of the plan, the number of its frame."""


def deliver(places: Sequence[tuple[int, int]]) -> Delivery:
    """Returns the delivery for blocks that rest at *places*, (pack, frame) pairs; frames in order of the packs."""
    frames = sorted(set(places))
    number = {place: index for index, place in enumerate(frames)}
    return Delivery(frames=tuple(frames), frame_of=array("I", [number[place] for place in places]))
