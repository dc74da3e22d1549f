"""What a capture's or a listing's segments say together: gathered as they come, judged as a whole in the end."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Self

import zstandard

from sandlift.errors import InvalidManifest
from sandlift.limits import Limits
from sandlift.manifest import Manifest, number_groups
from sandlift.selection import select
from sandlift.validate import (
    Issues,
    bad_components,
    check_excluded,
    check_files,
    check_flags,
    check_limits,
    check_links,
    check_paths,
    is_rising,
    is_rising_below,
    over,
    shown,
)
from sandlift_helper import table
from sandlift_helper.table import Segment, split_digests

# What a row with an empty name takes in a table: its end in each column of names, and its numbers.
ENTRY_BYTES = 36
EXCLUDED_BYTES = 4
FLAG_BYTES = 2


class Gathering:
    """Takes the segments of one stream as they come, within the limits, and accepts them in the end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rows = Segment()
        self._kept = Segment()
        self._asked: list[bytes] = []
        self._bytes = 0
        # Asked for only after a break, and until then as much as all names: so they are kept small.
        self._awaited: list[bytes] = []

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
    def awaited(self) -> bytes:
        """The names that the helper announced, each followed by a NUL."""
        return b"".join(map(zstandard.decompress, self._awaited))

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
            raise over("manifest_bytes", self._limits.manifest_bytes, self._bytes)
        for count, room in _stated_rows(decoded):
            if count > room:
                raise InvalidManifest("a segment of the manifest cannot be read: it states more rows than it can hold")
            if count > self._limits.entries:
                raise over("entries", self._limits.entries, count)
        try:
            segment = table.decode(decoded)
        except ValueError as error:
            raise InvalidManifest(f"a segment of the manifest cannot be read: {error}") from None
        if segment.root is not None and self._rows.root is not None:
            raise InvalidManifest("the manifest has two roots")
        for paths in (segment.paths, segment.excluded_paths, segment.flag_paths):
            if not is_rising(paths):
                raise InvalidManifest("a segment of the manifest is not sorted, or names a path twice")
        if segment.awaited:
            self._awaited.append(zstandard.compress(bytes(segment.awaited), 1))
        claims = bytes(segment.claims)
        segment.awaited, segment.claims = bytearray(), bytearray()
        self._rows.extend(segment)
        for paths in (self._rows.paths, self._rows.excluded_paths, self._rows.flag_paths):
            if len(paths) > self._limits.entries:
                raise over("entries", self._limits.entries, len(paths))
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
        """Returns the manifest; the rows keep their stamps here.

        *sent* gives the size of each block that came, by its digest, *size_of* also that of blocks that are held.
        Raises InvalidManifest with all issues, HostLimit.
        """
        of_content = self._check_content(sent, size_of or sent.get)
        self._join()
        rows = self._rows
        issues = Issues()
        if rows.root is None or rows.root.mode > 0o7777:
            issues.add("the manifest has no root")
        check_limits(rows, self._limits)
        directories = check_paths(rows, issues)
        # Parents of links that are no entries would be beyond what the limit of entries bounds.
        issues.raise_if_any()
        check_links(rows, issues)
        issues.extend(of_content)
        check_excluded(rows, issues, directories)
        check_flags(rows, issues, directories)
        issues.raise_if_any()
        return Manifest(self._without_stamps())

    def _check_content(self, sent: Mapping[bytes, int], size_of: Callable[[bytes], int | None]) -> Issues:
        """Sorts what came, and returns what is wrong with its files and blocks; what was kept is accepted already."""
        rows, issues = self._rows, Issues()
        orphans = set(split_digests(rows.orphans))
        rows.orphans = bytearray()
        rows.sort()
        rows.groups = number_groups(rows.groups)
        check_files(rows, issues, size_of)
        strays = set(sent)
        strays.difference_update(split_digests(rows.digests), orphans)
        if strays:
            issues.add(f"{len(strays)} blocks were sent that nothing names")
        told = {*rows.paths, *rows.excluded_paths, *rows.flag_paths} if self._asked else set()
        for path in self._asked:
            if path not in told:
                issues.add(f"a file that had to be sent after all was not: {shown(path)}")
        return issues

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
                raise over("entries", self._limits.entries, len(paths))

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
        issues = Issues("the listing of the target")
        if rows.root is None or rows.root.mode > 0o7777:
            issues.add("it has no root")
        check_limits(rows, self._limits)
        directories = check_paths(rows, issues)
        if not is_rising(rows.excluded_paths) or not is_rising(rows.flag_paths):
            issues.add("two rows have the same path")
        for path in (*rows.excluded_paths, *rows.flag_paths):
            if path and (bad_components(path) or path.rpartition(b"/")[0] not in directories):
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
        issues = Issues("the digests of the target")
        check_limits(rows, self._limits)
        if rows.kinds.count(table.FILE) != len(rows):
            issues.add("something else than a file has content")
        for path, size, (_, position, count) in zip(rows.paths, rows.sizes, rows.contents(), strict=True):
            blocks = table.block_count(size)
            places = rows.positions[position : position + count] if position >= 0 else range(count)
            if count > blocks or not is_rising_below(places, blocks):
                issues.add(f"a file's blocks are not allowed: {shown(path)}")
        issues.raise_if_any()
        return rows


def _stated_rows(decoded: memoryview) -> Iterator[tuple[int, int]]:
    """Yields how many rows of each kind a segment's head states, and how many its size has room for.

    Lists are made for as many as are stated, whatever follows.
    """
    if len(decoded) < 13:
        return
    for at, row_bytes in ((1, ENTRY_BYTES), (5, EXCLUDED_BYTES), (9, FLAG_BYTES)):
        yield int.from_bytes(decoded[at : at + 4], "little"), len(decoded) // row_bytes
