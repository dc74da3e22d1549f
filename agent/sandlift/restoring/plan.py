"""What a restore does at its target, as a pure function of the tree that is wanted and what is there.

A tree is built beside the target, whole, or in place: then each wanted entry has a fate (`sandlift.restoring.fates`),
and for *exact* what is not wanted goes.  No mode destroys what the snapshot does not hold: what the capture left out
stays as it is, and nothing is removed from a mount.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from sandlift.model import RestoreOptions
from sandlift.restoring.fates import MADE, Conflicts, Fate, Fates
from sandlift.restoring.ground import MOUNTED, OWN, Ground, Listing, fold, span
from sandlift.restoring.wanted import Wanted, take_rows
from sandlift.results import Action, RestoreCounts
from sandlift.validate import shown
from sandlift_helper import links, table
from sandlift_helper.marker import MARKER
from sandlift_helper.table import Segment, split_digests
from sandlift_helper.wire import BLOCK_MAX

__all__ = ["Listing", "Plan", "Way", "candidates", "make_plan"]

_Done = Literal["create", "replace", "update", "remove", "leave"]
_UNTOLD = frozenset((Fate.KEPT, Fate.TOUCHED, Fate.LEFT))
_EXCLUDED = "the snapshot does not hold it: it was left out when captured"
_HOLDS = "something in it is left alone"


class Way(IntEnum):
    """How a finished entry takes its place; the values are the flags of its row as they travel."""

    CREATE = table.CREATE
    """Nothing is there."""
    REPLACE = table.REPLACE
    """A rename of a non-directory over another."""
    EXCHANGE = table.EXCHANGE
    """A directory takes part, on either side."""


_WAYS: dict[int, Way] = {Fate.CREATED: Way.CREATE, Fate.REPLACED: Way.REPLACE, Fate.EXCHANGED: Way.EXCHANGE}
_SETTLED = frozenset((Fate.TOUCHED, Fate.UPDATED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do at the target.  Paths are sorted component by component."""

    in_place: bool
    build: Segment
    """The entries to make, canonical, under their final paths."""
    units: tuple[tuple[bytes, Way], ...]
    """In place: the top of each new subtree, or a single entry; its parent is there and stays.  Every row of
    ``build`` is at or below exactly one."""
    settle: Segment
    """Entries that stay and get mode, time or owner; without content."""
    set_root: bool
    """Whether the target itself gets the metadata of ``build.root``."""
    removals: tuple[tuple[bytes, int], ...]
    """(path, kind) of what goes, children before parents; not what is below a directory that is exchanged."""
    local: frozenset[bytes]
    """Blocks of ``build`` that the listing has as well."""
    actions: tuple[Action, ...]
    """Everything that is done, and what is left alone or not made, by the path that stands for all below it.

    Setting a directory's time again after a change in it is no action.
    """
    counts: RestoreCounts
    """Created, replaced, updated and kept count wanted entries; removed counts all that goes, also what is below a
    directory that is exchanged."""


def candidates(wanted: Wanted, rows: Segment) -> list[int]:
    """Returns the file rows of a listing that are worth hashing, once for each inode.

    Only a file as large as a wanted one can be equal, or spare a transfer wherever it is; of a large file an older
    or a newer version at the same place has most of the blocks.  Empty ones are equal by their size.
    """
    sizes = {size for size, kind in zip(wanted.rows.sizes, wanted.rows.kinds, strict=True) if kind == table.FILE}
    sizes.discard(0)
    large = {path for path, size in zip(wanted.rows.paths, wanted.rows.sizes, strict=True) if size > BLOCK_MAX}
    firsts = rows.first_of_groups()
    return [
        row
        for row, (path, size, kind, group) in enumerate(
            zip(rows.paths, rows.sizes, rows.kinds, rows.groups, strict=True)
        )
        if kind == table.FILE and firsts.get(group, row) == row and (size in sizes or (size and path in large))
    ]


def make_plan(wanted: Wanted, listing: Listing, options: RestoreOptions, *, all_actions: bool = True) -> Plan:
    """Returns the plan; without *all_actions* it tells only of what is left, which is all that most runs need.

    Raises Conflict, with all that stands against it.
    """
    ground = Ground(listing)
    conflicts = Conflicts()
    if listing.folds:
        _find_clashes(wanted.rows.paths, wanted.rows.paths, conflicts)
    if options.mode in ("exact", "merge"):
        in_place = not listing.absent
    else:
        # The helper takes no mount that holds something else than what such a restore has begun.
        in_place = options.mode == "new" and ground.root_is_mount
    if in_place:
        return _InPlace(wanted, listing, ground, options, conflicts).plan(all_actions)
    if options.mode == "replace":
        _check_replace(wanted, ground, options, conflicts)
    if listing.folds:
        _prove_links(dict(_links_of(wanted.rows)), {}, {}, conflicts, folds=True)
    conflicts.raise_if_any()
    return _beside(wanted, listing, ground, options, all_actions)


def _beside(wanted: Wanted, listing: Listing, ground: Ground, options: RestoreOptions, all_actions: bool) -> Plan:
    """Returns the plan to build the whole tree beside the target, or where nothing is."""
    rows = wanted.rows
    actions = [
        Action(action="create", path=path, kind=table.KIND_NAMES[kind], why="the tree is built anew")
        for path, kind in (zip(rows.paths, rows.kinds, strict=True) if all_actions else ())
    ]
    removed = 0
    if options.mode == "replace" and not listing.absent:
        removed = len(ground)
        why = f"exchanged for the snapshot's tree, and its {removed} entries removed"
        if all_actions:
            actions.append(Action(action="replace", path=b"", kind="directory", why=why))
    return Plan(
        in_place=False,
        build=rows,
        units=(),
        settle=Segment(),
        set_root=True,
        removals=(),
        local=_local(rows, listing),
        actions=_sorted([*actions, *wanted.left]),
        counts=RestoreCounts(created=len(rows), removed=removed),
    )


def _check_replace(wanted: Wanted, ground: Ground, options: RestoreOptions, conflicts: Conflicts) -> None:
    """Gathers what a replacement would destroy although the snapshot does not hold it."""
    in_place = "exact restores in place"
    if ground.root_is_mount:
        conflicts.add(b"", "it is a mount point, and cannot be exchanged", in_place)
    for path, is_mount in zip(ground.paths, ground.mounts, strict=True):
        if is_mount:
            conflicts.add(path, f"{MOUNTED}, and would be removed with the old tree", in_place)
    for path, why in ground.closed.items():
        if why == OWN:
            conflicts.add(path, f"{why}, and would be removed with the old tree", in_place)
        elif path in ground.unreadable:
            conflicts.add(path, f"{why}, so nobody knows what would be removed")
    if options.discard_excluded:
        return
    discard = "--discard-excluded removes it"
    if wanted.incomplete:
        conflicts.add(b"", "the snapshot is incomplete, so the old tree may hold what it lost", discard)
    for path in wanted.excluded_paths:
        start, stop = span(ground.paths, path)
        if start < stop:
            conflicts.add(path, "the snapshot does not hold it, and it would be removed with the old tree", discard)


class _InPlace:
    """Makes the plan of a restore into what is there."""

    def __init__(
        self, wanted: Wanted, listing: Listing, ground: Ground, options: RestoreOptions, conflicts: Conflicts
    ) -> None:
        self._wanted = wanted
        self._listing = listing
        self._ground = ground
        self._options = options
        self._conflicts = conflicts
        self._exact = options.mode == "exact"
        self._fates = Fates(wanted, ground, listing, options, conflicts)
        self._removals: list[tuple[bytes, int]] = []
        self._removed = bytearray(len(ground))
        self._actions: list[Action] = []
        self._changed: set[bytes] = set()
        """Directories directly in which something is made or removed: their times move."""

    def plan(self, all_actions: bool) -> Plan:
        """Returns the plan.  Raises Conflict."""
        rows, ground, of = self._wanted.rows, self._ground, self._fates.of
        if MARKER in rows.paths:
            self._conflicts.add(MARKER, "the snapshot has an entry of the name that marks a restore in progress")
        if MARKER in ground.paths:
            # A marker of our own, of a restore that broke off, is not listed.
            self._conflicts.add(MARKER, "it is there, but no restore of sandlift's made it", "move it away")
        if self._listing.folds:
            _find_clashes(rows.paths, ground.paths, self._conflicts)
        self._fates.decide()
        if self._exact:
            self._remove()
        self._prove()
        self._conflicts.raise_if_any()
        counts = self._count()
        build = [row for row, fate in enumerate(of) if fate in MADE]
        units = [row for row in build if of[row] in _WAYS]
        self._touch(units)
        settle = [row for row, fate in enumerate(of) if fate in _SETTLED]
        built = take_rows(rows, build)
        set_root = self._wanted.root if self._exact else self._options.mode == "new"
        if all_actions:
            self._tell(set_root)
        return Plan(
            in_place=True,
            build=built,
            units=tuple((rows.paths[row], _WAYS[of[row]]) for row in units),
            settle=take_rows(rows, settle, content=False),
            set_root=set_root,
            removals=tuple(self._removals),
            local=_local(built, self._listing),
            actions=self._all_actions(),
            counts=counts,
        )

    def _remove(self) -> None:
        """Finds what goes, from the last path to the first, so children before parents; and what is left alone."""
        ground, fates = self._ground, self._fates
        holders: set[bytes] = set()
        for here in reversed([here for here, row in enumerate(fates.wanted_at) if row < 0]):
            path = ground.paths[here]
            if fates.gone[here] or not fates.here_in_scope[here]:
                continue
            parent = path.rpartition(b"/")[0]
            if fates.protected[here] or ground.mounted[here] or ground.closed.get(path) == OWN or path in holders:
                holders.add(parent)
            elif path in ground.closed:
                why = ground.closed[path]
                self._conflicts.add(path, f"{why}, so nobody knows what would be removed")
                holders.add(parent)
            else:
                self._removals.append((path, ground.kinds[here]))
                self._removed[here] = 1
                self._changed.add(parent)
        root_why = ground.closed.get(b"")
        if root_why is not None and not self._wanted.scope:
            self._conflicts.add(b"", f"{root_why}, so nobody knows what would be removed")
        self._leave(holders)

    def _leave(self, holders: set[bytes]) -> None:
        """Notes what is left alone, by the path that stands for what is below it."""
        ground, fates = self._ground, self._fates
        above = b"\0"
        if not holders and Fate.LEFT not in fates.of:
            return
        for here, (path, row) in enumerate(zip(ground.paths, fates.wanted_at, strict=True)):
            if row >= 0 and fates.of[row] != Fate.LEFT:
                continue
            if not fates.here_in_scope[here]:
                continue
            reason = self._why_left(here, row, path, holders)
            if not reason or path.startswith(above):
                continue
            if reason != _HOLDS:
                above = path + b"/"
            self._act("leave", path, ground.kinds[here], reason)

    def _why_left(self, here: int, row: int, path: bytes, holders: set[bytes]) -> str:
        fates, ground = self._fates, self._ground
        if fates.protected[here]:
            return _EXCLUDED
        if ground.mounted[here]:
            return MOUNTED
        if ground.closed.get(path) == OWN:
            return OWN
        return _HOLDS if row < 0 and path in holders else ""

    def _prove(self) -> None:
        """Proves the links of the tree that will be there: those that are wanted, and those that stay."""
        ground, fates = self._ground, self._fates
        before = {ground.paths[here]: text for here, text in ground.texts()}
        staying = dict[bytes, bytes]()
        for here, text in ground.texts():
            row = fates.wanted_at[here]
            if not self._removed[here] and not fates.gone[here] and (row < 0 or fates.of[row] == Fate.LEFT):
                staying[ground.paths[here]] = text
        left = {self._wanted.rows.paths[row] for row, fate in enumerate(fates.of) if fate == Fate.LEFT}
        made = {path: text for path, text in _links_of(self._wanted.rows) if path not in left}
        if staying or len(made) < len(self._wanted.rows.texts) or self._listing.folds:
            _prove_links(made, staying, before, self._conflicts, folds=self._listing.folds)

    def _count(self) -> RestoreCounts:
        of = self._fates.of
        return RestoreCounts(
            created=of.count(Fate.CREATED) + of.count(Fate.BELOW),
            replaced=of.count(Fate.REPLACED) + of.count(Fate.EXCHANGED),
            updated=of.count(Fate.UPDATED),
            removed=len(self._removals) + self._fates.gone.count(1),
            kept=of.count(Fate.KEPT) + of.count(Fate.LEFT),
        )

    def _touch(self, units: Sequence[int]) -> None:
        """Has the metadata set again where it moves, or where only the target can compare it."""
        fates, rows = self._fates, self._wanted.rows
        self._changed.update(rows.paths[row].rpartition(b"/")[0] for row in units)
        sets_all = self._options.owner not in (None, "keep")
        for row, kind in enumerate(rows.kinds if self._changed or sets_all else ()):
            if (sets_all or (kind == table.DIRECTORY and rows.paths[row] in self._changed)) and not fates.of[row]:
                fates.of[row] = Fate.TOUCHED

    def _tell(self, set_root: bool) -> None:
        """Notes what is done."""
        fates, rows, ground = self._fates, self._wanted.rows, self._ground
        for row, fate in enumerate(fates.of):
            if fate in _UNTOLD:
                continue
            path, kind, here = rows.paths[row], rows.kinds[row], fates.here_of[row]
            if fate in (Fate.CREATED, Fate.BELOW):
                self._act("create", path, kind, "it is not there")
            elif fate == Fate.REPLACED:
                self._act("replace", path, kind, fates.why[row])
            elif fate == Fate.EXCHANGED:
                start, stop = span(ground.paths, path)
                below = stop - start - 1
                holding = f" with {below} {'entry' if below == 1 else 'entries'}" if below else ""
                self._act("replace", path, kind, f"a {table.KIND_NAMES[ground.kinds[here]]}{holding} is there")
            elif fate == Fate.UPDATED:
                differing = fates.differing(row, here) or ["time"]
                self._act("update", path, kind, f"{' and '.join(differing)} differ{'s' * (len(differing) == 1)}")
        for path, kind in self._removals:
            self._act("remove", path, kind, "the snapshot has no such entry")
        root, there = rows.root, ground.rows.root
        if set_root and root is not None and there is not None:
            same = (root.mode, root.mtime_ns) == (there.mode, there.mtime_ns)
            if self._options.owner == "keep":
                same = same and (root.uid, root.gid) == (there.uid, there.gid)
            if not same:
                self._act("update", b"", table.DIRECTORY, "the root's own mode, time or owner differs")

    def _all_actions(self) -> tuple[Action, ...]:
        """Returns what is told, each path once: what goes is not left, and why something is not made comes first."""
        removed = {path for path, _ in self._removals}
        left = [action for action in self._wanted.left if action.path not in removed]
        known = {action.path for action in left}
        told = [action for action in self._actions if action.action != "leave" or action.path not in known]
        return _sorted(told + left)

    def _act(self, action: _Done, path: bytes, kind: int, why: str) -> None:
        self._actions.append(Action(action=action, path=path, kind=table.KIND_NAMES[kind], why=why))


def _sorted(actions: list[Action]) -> tuple[Action, ...]:
    return tuple(sorted(actions, key=lambda action: table.sort_key(action.path)))


def _local(build: Segment, listing: Listing) -> frozenset[bytes]:
    """Returns the blocks to build that files of the listing have."""
    if not listing.hashed:
        return frozenset()
    needed = frozenset(split_digests(build.digests))
    return needed.intersection(split_digests(listing.rows.digests)) if needed else needed


def _links_of(rows: Segment) -> list[tuple[bytes, bytes]]:
    paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
    return list(zip(paths, rows.texts, strict=True))


def _find_clashes(names: Sequence[bytes], others: Sequence[bytes], conflicts: Conflicts) -> None:
    """Gathers the names that the target takes for one with another of the same directory."""
    spelled: dict[bytes, bytes] = {}
    for path in others:
        spelled.setdefault(fold(path), path)
    for path in names:
        other = spelled.get(fold(path), path)
        if other != path and other.rpartition(b"/")[0] == path.rpartition(b"/")[0]:
            conflicts.add(path, f"the target takes this name and {shown(other)} for one")


def _prove_links(
    made: dict[bytes, bytes],
    staying: dict[bytes, bytes],
    before: dict[bytes, bytes],
    conflicts: Conflicts,
    *,
    folds: bool,
) -> None:
    """Gathers the links that would leave the tree of those *made* and those *staying*.

    Links that left the tree *before* are there and stay so; but no wanted link may pass one.
    """

    def judge(found: dict[bytes, bytes], beyond: set[int]) -> dict[bytes, bool]:
        paths, texts = list(found), list(found.values())
        spelled = ([fold(path) for path in paths], [fold(text) for text in texts]) if folds else (paths, texts)
        return dict(zip(paths, links.judge(*spelled, beyond, present=True), strict=True))

    after = judge({**made, **staying}, {number for number, text in enumerate(made.values()) if text.startswith(b"/")})
    was_inside = judge(before, set()) if staying else {}
    for path, inside in after.items():
        if inside:
            continue
        if path in made:
            conflicts.add(path, "the link would leave the tree: one on its way is not the snapshot's")
        elif was_inside[path]:
            conflicts.add(path, "the link stays, and would lead out of the tree afterwards")
