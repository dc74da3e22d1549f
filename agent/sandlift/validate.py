"""The checks that a table from a sandbox must pass before it is a manifest.

What they find is collected, at most `ISSUES_MAX` lines, and raised once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

from sandlift.errors import HostLimit, InvalidManifest
from sandlift.limits import Limits
from sandlift_helper import links, table
from sandlift_helper.table import Segment
from sandlift_helper.wire import BLOCK_MAX

ISSUES_MAX = 20

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


class Issues:
    """What is wrong with *what*: at most `ISSUES_MAX` lines, and how many there are."""

    def __init__(self, what: str = "the sandbox's manifest") -> None:
        self._what = what
        self._lines: list[str] = []
        self._count = 0

    def add(self, line: str) -> None:
        """Adds one."""
        self._count += 1
        if self._count <= ISSUES_MAX:
            self._lines.append(line)

    def extend(self, other: Issues) -> None:
        """Adds all of *other*."""
        self._count += other._count
        self._lines = [*self._lines, *other._lines][:ISSUES_MAX]

    def raise_if_any(self) -> None:
        """Raises InvalidManifest with all of them."""
        if self._count:
            more = f" (and {self._count - 1} more)" if self._count > 1 else ""
            raise InvalidManifest(f"{self._what} is not valid: {self._lines[0]}{more}", issues=tuple(self._lines))


def over(name: str, allowed: int, found: int) -> HostLimit:
    """Returns the error that says that a limit of the request was exceeded."""
    return HostLimit(
        f"the sandbox's stream exceeds the limit {name}: {found}, allowed are {allowed}",
        hint="its helper was told the limit, so it is not to be trusted",
        limit=name,
        allowed=allowed,
        found=found,
    )


def check_limits(rows: Segment, limits: Limits) -> None:
    """Raises HostLimit for the first row that exceeds a limit of the request."""
    path_bytes = max(limits.path_bytes, 255)
    for paths in (rows.paths, rows.excluded_paths, rows.flag_paths):
        longest = max(map(len, paths), default=0)
        if longest > path_bytes:
            raise over("path_bytes", path_bytes, longest)
    deepest = max((path.count(b"/") for path in rows.paths), default=0)
    if deepest > limits.depth:
        raise over("depth", limits.depth, deepest)
    longest = max(map(len, rows.details), default=0)
    if longest > path_bytes + 4096:
        raise over("path_bytes", path_bytes, longest)
    largest = max(rows.sizes, default=0)
    if largest > limits.file_bytes:
        raise over("file_bytes", limits.file_bytes, largest)
    # The limit is for a text as it was found; one that was rebased may be as long as Linux takes.
    found = (original or text for text, original in zip(rows.texts, rows.originals, strict=True))
    for texts, allowed in ((found, min(limits.link_text_bytes, table.TEXT_MAX)), (iter(rows.texts), table.TEXT_MAX)):
        longest = max(map(len, texts), default=0)
        if longest > allowed:
            raise over("link_text_bytes", allowed, longest)


def is_rising(paths: list[bytes]) -> bool:
    """Whether paths are sorted and unique."""
    return all(first < second for first, second in pairwise(map(table.sort_key, paths)))


def bad_components(path: bytes) -> bool:
    """Whether a path has an empty, ``.`` or ``..`` component, or a NUL."""
    wrapped = b"/" + path + b"/"
    return b"//" in wrapped or b"/./" in wrapped or b"/../" in wrapped or b"\0" in path


def check_paths(rows: Segment, issues: Issues) -> Collection[bytes]:
    """Checks names, order and parents of entries; returns the set of directories, the root included."""
    directories = {path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.DIRECTORY}
    directories.add(b"")
    if not is_rising(rows.paths):
        issues.add("two entries have the same path")
    for path in rows.paths:
        parent, slash, name = path.rpartition(b"/")
        # The parent is an entry too, so of a path whose parent is there only the last component is left to check.
        if parent in directories and name not in _NO_NAMES and (parent or not slash):
            continue
        what = "path is not allowed" if bad_components(path) else "parent is no directory of the manifest"
        issues.add(f"an entry's {what}: {shown(path)}")
    if max(rows.modes, default=0) > 0o7777:
        issues.add("an entry's mode has more than twelve bits")
    return directories


def check_links(rows: Segment, issues: Issues) -> None:
    """Checks the texts of links, and proves that each stays inside."""
    paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
    for path, text, original in zip(paths, rows.texts, rows.originals, strict=True):
        if not text or text.startswith(b"/"):
            issues.add(f"a link's text is empty or absolute: {shown(path)}")
        if original and not original.startswith(b"/"):
            issues.add(f"a link's original text is not absolute: {shown(path)}")
    for path, inside in zip(paths, links.judge(paths, rows.texts), strict=True):
        if not inside:
            issues.add(f"a link leaves the workspace: {shown(path)}")


def check_files(rows: Segment, issues: Issues, size_of: Callable[[bytes], int | None]) -> None:
    """Checks sizes, groups and blocks of files; *size_of* gives the size of a block that came or is held."""
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
        if position >= 0 and not is_rising_below(places, blocks):
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


def is_rising_below(places: array[int] | range, end: int) -> bool:
    """Whether block positions rise and stay below *end*."""
    last = -1
    for place in places:
        if place <= last:
            return False
        last = place
    return last < end


def check_excluded(rows: Segment, issues: Issues, directories: Collection[bytes]) -> None:
    """Checks excluded rows against the entries and each other."""
    kinds = _kinds_of(rows, set(rows.excluded_paths))
    changed = {path for path, flag in zip(rows.flag_paths, rows.flags, strict=True) if flag == table.CHANGED}
    if not is_rising(rows.excluded_paths):
        issues.add("two excluded rows have the same path")
    for path, kind, reason in _excluded(rows):
        if bad_components(path) or path.rpartition(b"/")[0] not in directories:
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


def check_flags(rows: Segment, issues: Issues, directories: Collection[bytes]) -> None:
    """Checks flags against entries and excluded rows."""
    kinds = _kinds_of(rows, set(rows.flag_paths))
    excluded = set(rows.excluded_paths)
    if not is_rising(rows.flag_paths):
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
        elif path in kinds or path in excluded or bad_components(path) or path.rpartition(b"/")[0] not in directories:
            issues.add(f"a vanished path is not allowed: {shown(path)}")
