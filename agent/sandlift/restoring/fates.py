"""What becomes of each wanted entry in a restore in place, given what is at the target.

One pass in path order decides each entry beside its parent; a second one settles what hard links tie together: the
names of a file share content and metadata, so they are kept, updated or made anew together.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate

from sandlift.errors import Conflict
from sandlift.model import RestoreOptions
from sandlift.restoring.ground import MOUNTED, OWN, Ground, Listing, following, marks, span
from sandlift.restoring.wanted import Wanted
from sandlift.validate import shown
from sandlift_helper import table
from sandlift_helper.table import Segment

CONFLICTS_MAX = 20


class Fate(IntEnum):
    """What becomes of one wanted entry.  The first four leave what is there, the next three begin a unit."""

    KEPT = 0
    """As wanted already."""
    TOUCHED = 1
    """As wanted, but to be set again: its time moves, or only the target knows whether its owner is right."""
    UPDATED = 2
    """Gets mode, time or owner."""
    LEFT = 3
    """What is there is none of this restore's business."""
    CREATED = 4
    REPLACED = 5
    """A non-directory takes the place of another."""
    EXCHANGED = 6
    """Takes the place of something, and one of the two is a directory."""
    BELOW = 7
    """Made as part of a directory that is made."""
    REFUSED = 8
    """In conflict, or below what is."""


MADE = frozenset((Fate.CREATED, Fate.REPLACED, Fate.EXCHANGED, Fate.BELOW))
_STAYS = frozenset((Fate.KEPT, Fate.UPDATED))
_IS_NO_DIRECTORY = -1


class Conflicts:
    """Gathers why a target cannot take a snapshot, and raises it once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self._hint = ""
        self._path = b""

    def add(self, path: bytes, why: str, hint: str = "") -> None:
        """Adds a conflict at *path*."""
        if not self._count:
            self._path, self._hint = path, hint
        self._count += 1
        if self._count <= CONFLICTS_MAX:
            self.lines.append(f"{shown(path) or 'the target'}: {why}")

    def raise_if_any(self) -> None:
        """Raises Conflict when there is one."""
        if self._count:
            more = f" (and {self._count - 1} more)" if self._count > 1 else ""
            raise Conflict(
                f"the target cannot take the snapshot: {self.lines[0]}{more}",
                conflicts=tuple(self.lines),
                hint=self._hint,
                path=shown(self._path),
            )


class Fates:
    """The fate of each wanted row, in ``of``, and what that means for what is there."""

    def __init__(
        self, wanted: Wanted, ground: Ground, listing: Listing, options: RestoreOptions, conflicts: Conflicts
    ) -> None:
        self.rows = wanted.rows
        self.ground = ground
        self.exact = options.mode == "exact"
        self.owner = options.owner
        self.conflicts = conflicts
        self.contents = Contents(self.rows, listing)
        self.of = bytearray(len(self.rows))
        self.why: dict[int, str] = {}
        """Why a row is made anew, where it is not plain."""
        at = {path: here for here, path in enumerate(ground.paths)}
        self.here_of = array("q", [at.get(path, -1) for path in self.rows.paths])
        """For each wanted row the item of the ground at its path, or -1."""
        del at
        self.wanted_at = array("q", [-1]) * len(ground)
        """For each item of the ground the wanted row at its path, or -1."""
        for row, here in enumerate(self.here_of):
            if here >= 0:
                self.wanted_at[here] = row
        tops = wanted.scope or (b"",)
        self.in_scope = marks(self.rows.paths, tops)
        self.here_in_scope = marks(ground.paths, tops)
        self.protected = marks(ground.paths, wanted.protected if self.exact else ())
        for path in wanted.siblings_protected if self.exact else ():
            start, stop = following(ground.paths, path)
            self.protected[start:stop] = b"\1" * (stop - start)
        self.gone = bytearray(len(ground))
        """Marks what is below a directory that something takes the place of."""
        self._parents: dict[bytes, int] = {}
        """Fates of directories below which nothing is looked at one by one."""
        self._texts_there = dict(ground.texts())

    def decide(self) -> None:
        """Decides all fates; conflicts are gathered."""
        is_same = self._same()
        for row, path in enumerate(self.rows.paths):
            # Nearly all of a tree is often as it shall be; then nothing else needs to be known.
            if not is_same[row]:
                self.of[row] = self._decide(row, path)
        _HardLinks(self).tie()
        for row, here in enumerate(self.here_of):
            if self.of[row] in (Fate.REPLACED, Fate.EXCHANGED) and self.ground.mounts[here]:
                self.conflicts.add(self.rows.paths[row], f"{MOUNTED}, so nothing can take its place")

    def _same(self) -> bytearray:
        """Marks the rows that are there as wanted, and in no way special."""
        ground, there, equal = self.ground, self.ground.rows, self.contents.equal
        calm = bytearray(self.here_in_scope)
        for here in range(len(ground)):
            if self.protected[here] or ground.row_of[here] < 0:
                calm[here] = 0
        for path in ground.closed:
            start, _ = span(ground.paths, path)
            calm[start : start + 1] = bytes(len(calm[start : start + 1]))
        is_same = bytearray(len(self.rows))
        columns = zip(self.here_of, self.rows.kinds, self.rows.modes, self.rows.mtimes_ns, strict=True)
        for row, (here, kind, mode, mtime_ns) in enumerate(columns):
            if here < 0 or not calm[here]:
                continue
            entry = ground.row_of[here]
            if (
                kind == there.kinds[entry]
                and mtime_ns == there.mtimes_ns[entry]
                and kind != table.LINK
                and mode == there.modes[entry]
                and (self.owner != "keep" or not self.differing(row, here))
                and (kind == table.DIRECTORY or equal(row, entry))
            ):
                is_same[row] = 1
        return is_same

    def _decide(self, row: int, path: bytes) -> int:
        parent = path.rpartition(b"/")[0]
        above = self._parents.get(parent)
        here = self.here_of[row]
        if above is None:
            fate = self._meet(row, path, here) if here >= 0 else self._create(path, parent)
        elif above == Fate.BELOW:
            fate = Fate.BELOW
        else:
            if above == _IS_NO_DIRECTORY:
                self.conflicts.add(parent, "it is left alone and is no directory, so nothing can be made in it")
                self._parents[parent] = Fate.REFUSED
            fate = Fate.REFUSED
        if self.rows.kinds[row] == table.DIRECTORY:
            if fate in MADE:
                self._parents[path] = Fate.BELOW
            elif fate == Fate.REFUSED:
                self._parents[path] = Fate.REFUSED
            elif self.ground.kinds[here] != table.DIRECTORY:
                self._parents[path] = _IS_NO_DIRECTORY
        return fate

    def _create(self, path: bytes, parent: bytes) -> Fate:
        why = self.ground.closed.get(parent)
        if why is None:
            return Fate.CREATED
        self.conflicts.add(parent, f"{why}, so nobody knows what is at {shown(path)}")
        self._parents[parent] = Fate.REFUSED
        return Fate.REFUSED

    def _meet(self, row: int, path: bytes, here: int) -> Fate:
        """Decides an entry where something is."""
        kind, there = self.rows.kinds[row], self.ground.kinds[here]
        if not self.in_scope[row]:
            if there != table.DIRECTORY:
                self.conflicts.add(path, f"a {table.KIND_NAMES[there]} is in the way, and no path that was asked for")
                return Fate.REFUSED
            return Fate.LEFT
        if self.protected[here]:
            return Fate.LEFT
        if kind == there == table.DIRECTORY:
            return self._meet_directory(row, path, here)
        if table.DIRECTORY in (kind, there) or there == table.UNKNOWN:
            return self._exchange(path, kind, here)
        entry = self.ground.row_of[here]
        if kind == there == table.FILE and entry >= 0:
            if not self.contents.equal(row, entry):
                self.why[row] = "its content differs"
                return Fate.REPLACED
        elif kind == there == table.LINK:
            if self._texts_there[here] != self.contents.text(row):
                self.why[row] = "its target differs"
                return Fate.REPLACED
        else:
            what = "file that cannot be read" if kind == there else table.KIND_NAMES[there]
            self.why[row] = f"a {what} is there"
            return Fate.REPLACED
        return self._compare(row, here)

    def _meet_directory(self, row: int, path: bytes, here: int) -> Fate:
        why = self.ground.closed.get(path)
        if why in (MOUNTED, OWN):
            return Fate.LEFT
        if why is not None:
            if self.exact:
                self.conflicts.add(path, f"{why}, so nobody knows what would be removed")
                return Fate.REFUSED
            if self.ground.row_of[here] < 0:
                return Fate.LEFT
        return self._compare(row, here)

    def _compare(self, row: int, here: int) -> Fate:
        return Fate.UPDATED if self.differing(row, here) else Fate.KEPT

    def differing(self, row: int, here: int) -> list[str]:
        """Returns in what the metadata of a wanted row differs from what is there, as far as the plan can tell."""
        there, entry = self.ground.rows, self.ground.row_of[here]
        found = []
        if self.rows.kinds[row] != table.LINK and self.rows.modes[row] != there.modes[entry]:
            found.append("mode")
        if self.rows.mtimes_ns[row] != there.mtimes_ns[entry]:
            found.append("time")
        if self.owner == "keep" and (self.rows.uids[row], self.rows.gids[row]) != (
            there.uids[entry],
            there.gids[entry],
        ):
            found.append("owner")
        return found

    def _exchange(self, path: bytes, kind: int, here: int) -> Fate:
        """Decides an entry of which it or what is there is a directory, or may be one."""
        ground = self.ground
        there = ground.kinds[here]
        if there == table.UNKNOWN:
            self.conflicts.add(path, "it cannot be read, so nobody knows what would be removed")
            return Fate.REFUSED
        if not self.exact:
            self.conflicts.add(
                path,
                f"a {table.KIND_NAMES[there]} is where a {table.KIND_NAMES[kind]} shall be, and merge removes nothing",
                "exact and replace exchange what is in the way",
            )
            return Fate.REFUSED
        if there == table.DIRECTORY:
            start, stop = span(ground.paths, path)
            for marked, why in (
                (ground.held, "cannot be removed"),
                (ground.mounted, "is on a mount, and nothing is removed from one"),
                (self.protected, "is not in the snapshot, so it is left alone"),
            ):
                found = marked.find(1, start, stop)
                if found >= 0:
                    kind_name = table.KIND_NAMES[kind]
                    self.conflicts.add(path, f"a {kind_name} shall be there, but {shown(ground.paths[found])} {why}")
                    return Fate.REFUSED
            self.gone[start + 1 : stop] = b"\1" * (stop - start - 1)
        return Fate.EXCHANGED


class Contents:
    """The content of wanted files and links beside that of a listing."""

    def __init__(self, rows: Segment, listing: Listing) -> None:
        self._rows = rows
        self._there = listing.rows
        self._hashed = listing.hashed
        self._starts = _Starts(rows)
        self._starts_there = _Starts(listing.rows)
        self._carriers = rows.first_of_groups()
        self._carriers_there: dict[int, int] = {}
        if any(listing.rows.groups):
            for row in sorted(listing.hashed):
                self._carriers_there.setdefault(listing.rows.groups[row], row)
        link_rows = (row for row, kind in enumerate(rows.kinds) if kind == table.LINK)
        self._texts = dict(zip(link_rows, rows.texts, strict=True))

    def text(self, row: int) -> bytes:
        """Returns the text of a wanted link."""
        return self._texts[row]

    def equal(self, row: int, there: int) -> bool:
        """Whether a wanted file and a file of the listing have the same content, for certain."""
        size = self._rows.sizes[row]
        if size != self._there.sizes[there]:
            return False
        if not size:
            return True
        group = self._there.groups[there]
        if group:
            there = self._carriers_there.get(group, -1)
        if there not in self._hashed:
            return False
        group = self._rows.groups[row]
        if group:
            row = self._carriers[group]
        mine, its = self._starts.digests, self._starts_there.digests
        return (
            self._rows.digests[32 * mine[row] : 32 * mine[row + 1]]
            == self._there.digests[32 * its[there] : 32 * its[there + 1]]
        ) and self._starts.positions(row) == self._starts_there.positions(there)


class _Starts:
    """Where the content of each row begins in the columns of digests and positions."""

    def __init__(self, rows: Segment) -> None:
        self._rows = rows
        self.digests = array("Q", accumulate(rows.counts, initial=0))
        """For each row its first digest, and in the end how many there are."""
        self._positions: dict[int, int] = {}
        if rows.positions:
            self._positions = {row: position for row, (_, position, _) in enumerate(rows.contents()) if position >= 0}

    def positions(self, row: int) -> Sequence[int] | None:
        """Returns the positions of a row's blocks, or None when there are no holes."""
        if row not in self._positions:
            return None
        return self._rows.positions[self._positions[row] : self._positions[row] + self._rows.counts[row]]


class _HardLinks:
    """Decides again for files whose inode has several names, here or there.

    The inode of a name may be kept only if it is no other wanted file's as well; its metadata may be set only if
    its names are exactly those of one wanted file.
    """

    def __init__(self, fates: Fates) -> None:
        self._fates = fates
        self._ground = fates.ground
        self._rows = fates.rows
        self._sets_all = fates.owner not in (None, "keep")

    def tie(self) -> None:
        of, rows, ground = self._fates.of, self._rows, self._ground
        # No link crosses a mount: names on either side of one are copies, however often they are restored.
        groups: dict[tuple[int, bytes], list[int]] = {}
        for row, group in enumerate(rows.groups) if any(rows.groups) else ():
            if group and of[row] not in (Fate.LEFT, Fate.REFUSED):
                groups.setdefault((group, ground.mount_of(rows.paths[row])), []).append(row)
        for members in groups.values():
            if all(of[row] in _STAYS for row in members):
                self._tie(members)
            else:
                self._rebuild(members, "its hard links differ")
        shared = {here for names in ground.names.values() for here in names}
        shared.update(here for here, path in enumerate(ground.paths) if path in ground.elsewhere)
        for here in sorted(shared):
            row = self._fates.wanted_at[here]
            if row >= 0 and not rows.groups[row] and of[row] in _STAYS and rows.kinds[row] != table.DIRECTORY:
                self._tie([row])

    def _tie(self, members: list[int]) -> None:
        """Decides for the names of one wanted file, all of which are there with the right content."""
        fates, ground = self._fates, self._ground
        here = fates.here_of[members[0]]
        entry = ground.row_of[here]
        inode = ground.rows.groups[entry]
        names = ground.names[inode] if inode else [here]
        heres = {fates.here_of[row] for row in members}
        if not heres <= set(names):
            self._rebuild(members, "its hard links differ")
            return
        own_group = self._rows.groups[members[0]]
        for name in names:
            row = fates.wanted_at[name]
            if name in heres or row < 0 or self._rows.kinds[row] != table.FILE:
                continue
            if not own_group or self._rows.groups[row] != own_group:
                self._rebuild(members, f"it is one file with {shown(ground.paths[name])}")
                return
        changes = any(fates.of[row] == Fate.UPDATED for row in members)
        if not changes and not self._sets_all:
            return
        if heres != set(names) or any(ground.paths[name] in ground.elsewhere for name in names):
            self._rebuild(members, "its inode has other names, which must not change")
        elif changes:
            for row in members:
                fates.of[row] = Fate.UPDATED

    def _rebuild(self, members: list[int], why: str) -> None:
        for row in members:
            if self._fates.of[row] in _STAYS:
                self._fates.of[row] = Fate.REPLACED
                self._fates.why.setdefault(row, why)
