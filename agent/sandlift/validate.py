"""From the sandbox's claims to an accepted manifest, or to a refusal that lists what is wrong.

All segments of a stream are joined, sorted and numbered into the canonical form, and judged as a whole.  What
the checks find is gathered, at most `ISSUES_MAX` lines, and raised once.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Self

from sandlift.errors import HostLimit, InvalidManifest
from sandlift.limits import Limits
from sandlift.manifest import Manifest, number_groups
from sandlift.selection import select
from sandlift_helper import links, table
from sandlift_helper.table import Segment, split_digests
from sandlift_helper.wire import BLOCK_MAX

ISSUES_MAX = 20

# What a row with an empty name takes in a table: its end in each column of names, and its numbers.
ENTRY_BYTES = 36
EXCLUDED_BYTES = 4
FLAG_BYTES = 2

# Rows that may name a directory which is kept: it was not descended, or not wholly.
_KEPT_DIRECTORY_REASONS = frozenset((table.MOUNT, table.UNREADABLE, table.IO_ERROR, table.LIMIT))
_KIND_OF_REASON = {
    table.OUTSIDE_LINK: table.LINK,
    table.REASON_FIFO: table.FIFO,
    table.REASON_SOCKET: table.SOCKET,
    table.REASON_CHAR_DEVICE: table.CHAR_DEVICE,
    table.REASON_BLOCK_DEVICE: table.BLOCK_DEVICE,
    table.WHITEOUT: table.CHAR_DEVICE,
}
_PLAIN_REASONS = frozenset((table.MOUNT, table.OWN))
_NO_NAMES = frozenset((b"", b".", b".."))


def shown(path: bytes) -> str:
    """Returns a path for a message: control characters and what is no text are escaped."""
    return ascii(path.decode("utf-8", "backslashreplace"))[1:-1][:200]


class Gathering:
    """Takes the segments of one stream as they come, within the limits, and accepts them in the end.

    ``awaited`` are the names that the helper announced, in pieces that each end with a NUL.
    """

    def __init__(self, limits: Limits) -> None:
        self.awaited: list[bytes] = []
        self._limits = limits
        self._rows = Segment()
        self._kept = Segment()
        self._asked: list[bytes] = []
        self._bytes = 0

    @classmethod
    def of(cls, rows: Segment, kept: Segment, limits: Limits) -> Self:
        """Returns what a capture that broke off had gathered, all rows together.  Raises InvalidManifest."""
        gathering = cls(limits)
        gathering._rows, gathering._kept = rows, kept
        rows.sort()
        rows.groups = number_groups(rows.groups)
        gathering._join()
        return gathering

    def miss(self, paths: Iterable[bytes]) -> None:
        """Adds a row for each file of *paths* that was not told of otherwise: it was not reached."""
        rows = self._rows
        told = {*rows.paths, *rows.excluded_paths, *rows.flag_paths}
        for path in paths:
            if path not in told:
                rows.exclude(path, table.FILE, table.NOT_REACHED)

    @property
    def rows(self) -> Segment:
        """What has come so far."""
        return self._rows

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come, and nothing was asked for."""
        return self._rows.root is None and not self._rows.size_estimate() and not self._asked

    @property
    def has_stamps(self) -> bool:
        """Whether each file has its stamp."""
        return len(self._rows.inodes) == self._rows.kinds.count(table.FILE)

    @property
    def kept(self) -> Segment:
        """What was kept of the base."""
        return self._kept

    def keep(self, rows: Segment) -> None:
        """Adds rows of an accepted manifest, whose blocks are held; their stamps come with them."""
        self._kept = rows

    def add(self, decoded: memoryview) -> bytes:
        """Adds one segment; returns its claims.  Raises InvalidManifest, HostLimit."""
        self._bytes += len(decoded)
        if self._bytes > self._limits.manifest_bytes:
            raise _over("manifest_bytes", self._limits.manifest_bytes, self._bytes)
        for count, room in _stated_rows(decoded):
            if count > room:
                raise InvalidManifest("a segment of the manifest cannot be read: it states more rows than it can hold")
            if count > self._limits.entries:
                raise _over("entries", self._limits.entries, count)
        try:
            segment = table.decode(decoded)
        except ValueError as error:
            raise InvalidManifest(f"a segment of the manifest cannot be read: {error}") from None
        if segment.root is not None and self._rows.root is not None:
            raise InvalidManifest("the manifest has two roots")
        for paths in (segment.paths, segment.excluded_paths, segment.flag_paths):
            if not _is_rising(paths):
                raise InvalidManifest("a segment of the manifest is not sorted, or names a path twice")
        if segment.awaited:
            self.awaited.append(bytes(segment.awaited))
        claims = bytes(segment.claims)
        segment.awaited, segment.claims = bytearray(), bytearray()
        self._rows.extend(segment)
        for paths in (self._rows.paths, self._rows.excluded_paths, self._rows.flag_paths):
            if len(paths) > self._limits.entries:
                raise _over("entries", self._limits.entries, len(paths))
        return claims

    def missing(self, size_of: Callable[[bytes], int | None]) -> list[bytes]:
        """Drops the rows of files that have a block of no known size, and returns their paths.

        They are to be read again; all names of a hard-link group go together.
        """
        rows = self._rows
        digests = bytes(rows.digests)
        lacking: set[int] = set()
        groups: set[int] = set()
        for row, (digest, _, count) in enumerate(rows.contents()):
            if any(size_of(digests[32 * use : 32 * use + 32]) is None for use in range(digest, digest + count)):
                lacking.add(row)
                groups.add(rows.groups[row])
        groups.discard(0)
        lacking |= {row for row, group in enumerate(rows.groups) if group in groups}
        if not lacking:
            return []
        paths = {rows.paths[row] for row in lacking}
        kept = select(rows, [row for row in range(len(rows)) if row not in lacking])
        kept.orphans = rows.orphans
        for index, path in enumerate(rows.excluded_paths):
            if path not in paths:
                kept.exclude(path, rows.excluded_kinds[index], rows.excluded_reasons[index], rows.details[index])
        for path, flag in zip(rows.flag_paths, rows.flags, strict=True):
            if path not in paths:
                kept.flag(path, flag)
        self._rows = kept
        self._asked = sorted(paths)
        return self._asked

    def accept(self, sent: Mapping[bytes, int], size_of: Callable[[bytes], int | None] | None = None) -> Manifest:
        """Returns the manifest; `stamps` is there from then on.

        *sent* gives the size of each block that came, by its digest, *size_of* also that of blocks that are held.
        Raises InvalidManifest with all issues, HostLimit.
        """
        rows = self._rows
        orphans = set(split_digests(rows.orphans))
        rows.orphans = bytearray()
        rows.sort()
        rows.groups = number_groups(rows.groups)
        issues = _Issues()
        _check_files(rows, issues, size_of or sent.get)
        strays = set(sent)
        strays.difference_update(split_digests(rows.digests), orphans)
        if strays:
            issues.add(f"{len(strays)} blocks were sent that nothing names")
        del strays
        told = {*rows.paths, *rows.excluded_paths, *rows.flag_paths} if self._asked else set()
        for path in self._asked:
            if path not in told:
                issues.add(f"a file that had to be sent after all was not: {shown(path)}")
        self._join()
        rows = self._rows
        if rows.root is None or rows.root.mode > 0o7777:
            issues.add("the manifest has no root")
        check_limits(rows, self._limits)
        directories = _check_paths(rows, issues)
        # Parents of links that are no entries would be beyond what the limit of entries bounds.
        issues.raise_if_any()
        _check_links(rows, issues)
        _check_excluded(rows, issues, directories)
        _check_flags(rows, issues, directories)
        issues.raise_if_any()
        return Manifest(self._without_stamps())

    def _join(self) -> None:
        """Puts what was kept of the base among what came.  Raises InvalidManifest, HostLimit."""
        rows, kept = self._rows, self._kept
        self._kept = Segment()
        if not (len(kept) or kept.excluded_paths):
            return
        shift = max(rows.groups, default=0)
        kept.groups = array("I", [group + shift if group else 0 for group in kept.groups])
        if rows.root is not None:
            kept.root = None
        if not self.has_stamps:
            raise InvalidManifest("the sandbox's manifest has no stamps")
        rows.extend(kept)
        rows.sort()
        rows.groups = number_groups(rows.groups)
        for paths in (rows.paths, rows.excluded_paths):
            if len(paths) > self._limits.entries:
                raise _over("entries", self._limits.entries, len(paths))

    def _without_stamps(self) -> Segment:
        """Returns the rows alone; their stamps stay here."""
        rows = self._rows
        plain = copy.copy(rows)
        plain.ctimes_ns, plain.inodes, plain.settled = array("q"), array("Q"), bytearray()
        return plain

    def listing(self) -> Segment:
        """Returns the rows as the listing of a restore's target: their form is checked, links may lead anywhere.

        Raises InvalidManifest, HostLimit.
        """
        rows = self._rows
        rows.orphans = bytearray()
        rows.sort()
        rows.groups = number_groups(rows.groups)
        issues = _Issues("the listing of the target")
        if rows.root is None or rows.root.mode > 0o7777:
            issues.add("it has no root")
        check_limits(rows, self._limits)
        directories = _check_paths(rows, issues)
        if not _is_rising(rows.excluded_paths) or not _is_rising(rows.flag_paths):
            issues.add("two rows have the same path")
        for path in (*rows.excluded_paths, *rows.flag_paths):
            if path and (_bad_components(path) or path.rpartition(b"/")[0] not in directories):
                issues.add(f"a row's path is not allowed: {shown(path)}")
        if max(rows.excluded_kinds, default=0) > table.UNKNOWN:
            issues.add("a row's kind is unknown")
        issues.raise_if_any()
        return rows

    def digests(self) -> Segment:
        """Returns the rows as files of a listing with their content.  Raises InvalidManifest, HostLimit."""
        rows = self._rows
        rows.orphans = bytearray()
        rows.sort()
        issues = _Issues("the digests of the target")
        check_limits(rows, self._limits)
        if rows.kinds.count(table.FILE) != len(rows):
            issues.add("something else than a file has content")
        for path, size, (_, position, count) in zip(rows.paths, rows.sizes, rows.contents(), strict=True):
            blocks = table.block_count(size)
            places = rows.positions[position : position + count] if position >= 0 else range(count)
            if count > blocks or not _is_rising_below(places, blocks):
                issues.add(f"a file's blocks are not allowed: {shown(path)}")
        issues.raise_if_any()
        return rows


class _Issues:
    def __init__(self, what: str = "the sandbox's manifest") -> None:
        self._what = what
        self._lines: list[str] = []
        self._count = 0

    def add(self, line: str) -> None:
        self._count += 1
        if self._count <= ISSUES_MAX:
            self._lines.append(line)

    def raise_if_any(self) -> None:
        if self._count:
            more = f" (and {self._count - 1} more)" if self._count > 1 else ""
            raise InvalidManifest(f"{self._what} is not valid: {self._lines[0]}{more}", issues=tuple(self._lines))


def _over(name: str, allowed: int, found: int) -> HostLimit:
    return HostLimit(
        f"the sandbox's stream exceeds the limit {name}: {found}, allowed are {allowed}",
        hint="its helper was told the limit, so it is not to be trusted",
        limit=name,
        allowed=allowed,
        found=found,
    )


def _stated_rows(decoded: memoryview) -> Iterator[tuple[int, int]]:
    """Yields how many rows of each kind a segment's head states, and how many its size has room for.

    Lists are made for as many as are stated, whatever follows.
    """
    if len(decoded) < 13:
        return
    for at, row_bytes in ((1, ENTRY_BYTES), (5, EXCLUDED_BYTES), (9, FLAG_BYTES)):
        yield int.from_bytes(decoded[at : at + 4], "little"), len(decoded) // row_bytes


def check_limits(rows: Segment, limits: Limits) -> None:
    """Raises HostLimit for the first row that exceeds a limit of the request."""
    path_bytes = max(limits.path_bytes, 255)
    for paths in (rows.paths, rows.excluded_paths, rows.flag_paths):
        longest = max(map(len, paths), default=0)
        if longest > path_bytes:
            raise _over("path_bytes", path_bytes, longest)
    deepest = max((path.count(b"/") for path in rows.paths), default=0)
    if deepest > limits.depth:
        raise _over("depth", limits.depth, deepest)
    longest = max(map(len, rows.details), default=0)
    if longest > path_bytes + 4096:
        raise _over("path_bytes", path_bytes, longest)
    largest = max(rows.sizes, default=0)
    if largest > limits.file_bytes:
        raise _over("file_bytes", limits.file_bytes, largest)
    # The limit is for a text as it was found; one that was rebased may be as long as Linux takes.
    found = (original or text for text, original in zip(rows.texts, rows.originals, strict=True))
    for texts, allowed in ((found, min(limits.link_text_bytes, table.TEXT_MAX)), (iter(rows.texts), table.TEXT_MAX)):
        longest = max(map(len, texts), default=0)
        if longest > allowed:
            raise _over("link_text_bytes", allowed, longest)


def _is_rising(paths: list[bytes]) -> bool:
    return all(first < second for first, second in pairwise(map(table.sort_key, paths)))


def _bad_components(path: bytes) -> bool:
    wrapped = b"/" + path + b"/"
    return b"//" in wrapped or b"/./" in wrapped or b"/../" in wrapped or b"\0" in path


def _check_paths(rows: Segment, issues: _Issues) -> Collection[bytes]:
    """Checks names, order and parents of entries; returns the set of directories, the root included."""
    directories = {path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.DIRECTORY}
    directories.add(b"")
    if not _is_rising(rows.paths):
        issues.add("two entries have the same path")
    for path in rows.paths:
        parent, slash, name = path.rpartition(b"/")
        # The parent is an entry too, so of a path whose parent is there only the last component is left to check.
        if parent in directories and name not in _NO_NAMES and (parent or not slash):
            continue
        what = "path is not allowed" if _bad_components(path) else "parent is no directory of the manifest"
        issues.add(f"an entry's {what}: {shown(path)}")
    if max(rows.modes, default=0) > 0o7777:
        issues.add("an entry's mode has more than twelve bits")
    return directories


def _check_links(rows: Segment, issues: _Issues) -> None:
    paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
    for path, text, original in zip(paths, rows.texts, rows.originals, strict=True):
        if not text or text.startswith(b"/"):
            issues.add(f"a link's text is empty or absolute: {shown(path)}")
        if original and not original.startswith(b"/"):
            issues.add(f"a link's original text is not absolute: {shown(path)}")
    for path, inside in zip(paths, links.judge(paths, rows.texts), strict=True):
        if not inside:
            issues.add(f"a link leaves the workspace: {shown(path)}")


def _check_files(rows: Segment, issues: _Issues, size_of: Callable[[bytes], int | None]) -> None:
    # Taken one by one: a list of them would be several times as large as the column.
    digests = memoryview(rows.digests)
    first_of_group: dict[int, int] = {}
    columns = zip(rows.kinds, rows.sizes, rows.groups, rows.contents(), strict=True)
    for row, (kind, size, group, (digest, position, count)) in enumerate(columns):
        # Nearly every file: one block, as large as the file.
        one_block = kind == table.FILE and count == 1 and not group and position < 0
        if one_block and size_of(_digest(digests, digest)) == size:
            continue
        if kind != table.FILE:
            if size or group or count:
                issues.add(f"an entry that is no file has content: {shown(rows.paths[row])}")
            continue
        if group and first_of_group.setdefault(group, row) != row:
            if count or _metadata(rows, row) != _metadata(rows, first_of_group[group]):
                issues.add(f"a hard link differs from the first name of its file: {shown(rows.paths[row])}")
            continue
        blocks = table.block_count(size)
        if count > blocks:
            issues.add(f"a file has more blocks than its size allows: {shown(rows.paths[row])}")
            continue
        places = rows.positions[position : position + count] if position >= 0 else range(count)
        if position >= 0 and not _is_rising_below(places, blocks):
            issues.add(f"a file's block positions are not allowed: {shown(rows.paths[row])}")
            continue
        for index, place in enumerate(places):
            name = _digest(digests, digest + index)
            found_bytes = size_of(name)
            if found_bytes != min(BLOCK_MAX, size - place * BLOCK_MAX):
                found = "was never sent" if found_bytes is None else "has another size"
                issues.add(f"a block of a file {found}: {shown(rows.paths[row])}")
                break


def _digest(joined: memoryview, index: int) -> bytes:
    return bytes(joined[32 * index : 32 * index + 32])


def _metadata(rows: Segment, row: int) -> tuple[int, ...]:
    return rows.modes[row], rows.mtimes_ns[row], rows.uids[row], rows.gids[row], rows.sizes[row]


def _is_rising_below(places: array[int] | range, end: int) -> bool:
    last = -1
    for place in places:
        if place <= last:
            return False
        last = place
    return last < end


def _check_excluded(rows: Segment, issues: _Issues, directories: Collection[bytes]) -> None:
    kinds = _kinds_of(rows, set(rows.excluded_paths))
    changed = {path for path, flag in zip(rows.flag_paths, rows.flags, strict=True) if flag == table.CHANGED}
    if not _is_rising(rows.excluded_paths):
        issues.add("two excluded rows have the same path")
    for path, kind, reason in _excluded(rows):
        if _bad_components(path) or path.rpartition(b"/")[0] not in directories:
            issues.add(f"an excluded row's path is not allowed: {shown(path)}")
        elif kind > table.UNKNOWN or reason not in table.REASON_NAMES:
            issues.add(f"an excluded row's kind or reason is unknown: {shown(path)}")
        elif _KIND_OF_REASON.get(reason, kind) != kind or (reason in _PLAIN_REASONS and kind > table.FILE):
            issues.add(f"an excluded row's kind does not fit its reason: {shown(path)}")
        elif path in kinds and not _may_be_kept(kinds[path], kind, reason, path in changed):
            issues.add(f"an excluded row names an entry: {shown(path)}")


def _kinds_of(rows: Segment, paths: set[bytes]) -> dict[bytes, int]:
    """Returns the kinds of those entries that bear one of these paths."""
    if not paths:
        return {}
    return {path: kind for path, kind in zip(rows.paths, rows.kinds, strict=True) if path in paths}


def _may_be_kept(entry_kind: int, kind: int, reason: int, changed: bool) -> bool:
    if entry_kind == kind == table.DIRECTORY:
        return reason in _KEPT_DIRECTORY_REASONS
    return entry_kind == kind == table.FILE and reason == table.UNSTABLE and changed


def _excluded(rows: Segment) -> Iterator[tuple[bytes, int, int]]:
    return zip(rows.excluded_paths, rows.excluded_kinds, rows.excluded_reasons, strict=True)


def _check_flags(rows: Segment, issues: _Issues, directories: Collection[bytes]) -> None:
    kinds = _kinds_of(rows, set(rows.flag_paths))
    excluded = set(rows.excluded_paths)
    if not _is_rising(rows.flag_paths):
        issues.add("two flags have the same path")
    for path, flag in zip(rows.flag_paths, rows.flags, strict=True):
        if flag == table.CHANGED:
            if kinds.get(path) != table.FILE:
                issues.add(f"a changed file is no file of the manifest: {shown(path)}")
        elif flag == table.UNFINISHED:
            if path:
                issues.add(f"an unfinished restore is no flag of {shown(path)}")
        elif flag != table.VANISHED:
            issues.add(f"a flag is unknown: {shown(path)}")
        elif path in kinds or path in excluded or _bad_components(path) or path.rpartition(b"/")[0] not in directories:
            issues.add(f"a vanished path is not allowed: {shown(path)}")
