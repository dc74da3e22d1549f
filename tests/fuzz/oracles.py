"""The rules told a second time, slowly and plainly, for fuzz targets to compare with."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from sandlift_helper import table
from sandlift_helper.table import Segment
from sandlift_helper.wire import BLOCK_MAX

STEPS_MAX = 20_000
"""The resolver remembers nothing, so it may need exponentially many steps; beyond this it gives up."""

Place = tuple[bytes, ...]

_LOOP: Place = (b"a loop",)
_BEYOND: Place = (b"beyond the workspace",)


class TooManySteps(Exception):
    """The resolver gave up, so there is nothing to compare with."""


class Resolver:
    """Where each link ends, found from nothing each time: no memory of other links, no order among them."""

    def __init__(
        self,
        paths: Sequence[bytes],
        texts: Sequence[bytes],
        beyond: Collection[int] = (),
        present: bool = False,
    ) -> None:
        places = [tuple(path.split(b"/")) for path in paths]
        self._texts = dict(zip(places, texts, strict=True))
        self._beyond = {place for link, place in enumerate(places) if link in beyond}
        self._present = present
        self._steps = 0

    def is_inside(self, path: bytes) -> bool:
        """Whether the link at *path* stays inside.  Raises TooManySteps, RecursionError."""
        self._steps = 0
        place = tuple(path.split(b"/"))
        return self._end(place, frozenset((place,))) is not None

    def _end(self, link: Place, active: frozenset[Place]) -> Place | None:
        text = self._texts[link]
        if text.startswith(b"/"):
            return _BEYOND if link in self._beyond else None
        here = link[:-1]
        for part in text.split(b"/"):
            self._steps += 1
            if self._steps > STEPS_MAX:
                raise TooManySteps
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not here or here is _BEYOND:
                    return None
                here = here[:-1]
                continue
            if here is _BEYOND:
                continue
            below = (*here, part)
            if below in active:
                return _LOOP
            end = self._end(below, active | {below}) if below in self._texts else below
            if end is _LOOP or (end is None and self._present):
                return end
            # A link that is outside is left out, and then its name is like any other.
            here = below if end is None else end
        return here


def are_plain_paths(paths: Sequence[bytes]) -> bool:
    """Whether each path is relative, of plain components, and there once."""
    return len(set(paths)) == len(paths) and all(
        part not in (b"", b".", b"..") and b"\0" not in part for path in paths for part in path.split(b"/")
    )


def _rising(paths: Sequence[bytes]) -> bool:
    split = [path.split(b"/") for path in paths]
    return all(first < second for first, second in pairwise(split))


def wrong_paths(rows: Segment, *others: Sequence[bytes]) -> str | None:
    """Says what is wrong with the paths of entries, or of other rows beside them, or None."""
    kinds = dict(zip(rows.paths, rows.kinds, strict=True))
    for paths in (rows.paths, *others):
        if not are_plain_paths(paths):
            return "a path is not plain"
        if not _rising(paths):
            return "paths are not in order"
        for path in paths:
            parent = path.rpartition(b"/")[0]
            if parent and kinds.get(parent) != table.DIRECTORY:
                return f"the parent of {path!r} is no directory"
    return None


def wrong_in_manifest(rows: Segment, sent: Mapping[bytes, int]) -> str | None:
    """Says what in an accepted manifest breaks the rules, or None."""
    if rows.root is None:
        return "there is no root"
    flagged = rows.flag_paths
    if flagged[:1] == [b""] and rows.flags[0] == table.UNFINISHED:
        flagged = flagged[1:]
    wrong = wrong_paths(rows, rows.excluded_paths, flagged)
    if wrong:
        return wrong
    kinds = dict(zip(rows.paths, rows.kinds, strict=True))
    if rows.root.mode > 0o7777 or any(mode > 0o7777 for mode in rows.modes):
        return "a mode has too many bits"
    return _wrong_links(rows) or _wrong_files(rows, sent) or _wrong_groups(rows) or _wrong_notes(rows, kinds)


def _wrong_links(rows: Segment) -> str | None:
    paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
    resolver = Resolver(paths, rows.texts)
    for path, text, original in zip(paths, rows.texts, rows.originals, strict=True):
        if not 0 < len(text) < 4096 or text.startswith(b"/"):
            return f"the text of the link {path!r} is empty, long or absolute"
        if original and not original.startswith(b"/"):
            return f"the original text of the link {path!r} is relative"
        try:
            if not resolver.is_inside(path):
                return f"the link {path!r} leaves the workspace"
        except (TooManySteps, RecursionError):
            continue
    return None


def _wrong_files(rows: Segment, sent: Mapping[bytes, int]) -> str | None:
    digests = list(table.split_digests(rows.digests))
    positions = list(rows.positions)
    for path, kind, size, count in zip(rows.paths, rows.kinds, rows.sizes, rows.counts, strict=True):
        if kind != table.FILE:
            if size or count:
                return f"{path!r} is no file and has content"
            continue
        blocks = -(-size // BLOCK_MAX)
        if count > blocks:
            return f"{path!r} has more blocks than its size allows"
        places = list(range(count))
        if 0 < count < blocks:
            places, positions = positions[:count], positions[count:]
        own, digests = digests[:count], digests[count:]
        if sorted(set(places)) != places or (places and places[-1] >= blocks):
            return f"the blocks of {path!r} are not in order"
        for digest, place in zip(own, places, strict=True):
            if sent.get(digest) != min(BLOCK_MAX, size - place * BLOCK_MAX):
                return f"a block of {path!r} was not sent, or has another size"
    return "blocks or positions are left over" if digests or positions else None


def _wrong_groups(rows: Segment) -> str | None:
    members: dict[int, list[int]] = {}
    for row, group in enumerate(rows.groups):
        if group:
            members.setdefault(group, []).append(row)
    if list(members) != list(range(1, len(members) + 1)):
        return "groups are not numbered in order"
    for group, found in members.items():
        if len(found) < 2:
            return f"the group {group} has one member"
        if len({_metadata(rows, row) for row in found}) != 1:
            return f"the names of group {group} differ"
        if any(rows.counts[row] for row in found[1:]):
            return f"a later name of group {group} has blocks"
    return None


def _metadata(rows: Segment, row: int) -> tuple[int, ...]:
    columns = (rows.kinds, rows.modes, rows.mtimes_ns, rows.uids, rows.gids, rows.sizes)
    return tuple(column[row] for column in columns)


def _wrong_notes(rows: Segment, kinds: Mapping[bytes, int]) -> str | None:
    changed = {path for path, flag in zip(rows.flag_paths, rows.flags, strict=True) if flag == table.CHANGED}
    for path, kind, reason in zip(rows.excluded_paths, rows.excluded_kinds, rows.excluded_reasons, strict=True):
        if reason not in table.REASON_NAMES or kind >= len(table.KIND_NAMES):
            return f"the reason or kind of the excluded {path!r} is unknown"
        entry = kinds.get(path)
        if entry == table.FILE:
            if reason != table.UNSTABLE or path not in changed or kind != table.FILE:
                return f"{path!r} is an entry and excluded"
        elif entry is not None and (entry != table.DIRECTORY or kind != table.DIRECTORY):
            return f"{path!r} is an entry and excluded"
    for path, flag in zip(rows.flag_paths, rows.flags, strict=True):
        if flag not in table.FLAG_NAMES or (flag == table.UNFINISHED) != (not path):
            return f"the flag of {path!r} is unknown"
        if (kinds.get(path) == table.FILE) != (flag == table.CHANGED) or (flag == table.VANISHED and path in kinds):
            return f"the flag of {path!r} does not fit what it is"
    return None


def canonical_run(run: bytes, found: Sequence[tuple[bytes, int, int]]) -> bytes:
    """The run of these members, written by the letter of POSIX.1-1988 ustar, without `members.header`."""
    out = []
    for digest, start, size in found:
        block = run[start : start + size]
        head = bytearray(512)
        fields = {0: digest.hex().encode(), 100: b"0000600", 108: b"0000000", 116: b"0000000"}
        fields |= {124: b"%011o" % size, 136: b"00000000000", 148: b" " * 8, 156: b"0", 257: b"ustar\x0000"}
        for at, text in fields.items():
            head[at : at + len(text)] = text
        head[148:156] = b"%06o\0 " % sum(head)
        out += [bytes(head), block, bytes(-size % 512)]
    return b"".join(out)


def blocks_hash(run: bytes, blocks: Sequence[tuple[bytes, int, int]]) -> bool:
    """Whether each (digest, offset of the member, size) of a proved run names the bytes that lie there."""
    return all(
        hashlib.sha256(run[offset + 512 : offset + 512 + size]).digest() == digest for digest, offset, size in blocks
    )
