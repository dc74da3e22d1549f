"""Git repositories in a tree that is set down: made inert, or left out.

A repository runs what its configuration, hooks and attributes say, on nothing more than ``git status``.  Both
functions are pure: from a table of entries they make the table of the tree that shall be there.  They want the whole
table of a snapshot; of a part, a repository's layout might not be recognised.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from sandlift.audit.git_config import CONFIG_MAX, safe_config
from sandlift.manifest import number_groups
from sandlift.repositories import Pointer, Read, Tree, find_repositories, git_name
from sandlift_helper import table
from sandlift_helper.table import Segment, split_digests

_FILE_MODE = 0o644
"""Of a file in the place of something else."""
_DROPPED_IN_REPOSITORY = {
    b"hooks": "git hooks",
    b"config.worktree": "configuration of one working tree",
    b"rebase-merge": "a rebase in progress, whose steps may run commands",
}
_POINTER_REASONS = {
    "gitdir": "names a git directory that is not in the tree",
    "commondir": "names a common git directory that is not in the tree",
    "worktree": "names a working tree that is not in the tree",
    "alternates": "names object stores that are not in the tree",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """A table without what git could run, and what became of it."""

    rows: Segment
    """Canonical: sorted, hard-link groups numbered anew, without excluded rows and flags."""
    blocks: Mapping[bytes, bytes]
    """Digest to bytes of the blocks that the given table does not name."""
    dropped: tuple[bytes, ...]
    """Sorted paths that are left out; each stands for all below it as well."""
    changed: tuple[bytes, ...]
    """Sorted paths of files whose content was exchanged, and of files that took the place of something else."""
    barred: tuple[bytes, ...] = ()
    """Sorted paths of excluded rows that must not be put back: they lie in a repository, or are one."""
    reasons: Mapping[bytes, str] = field(default_factory=dict)
    """Why, for each path of ``dropped`` and ``changed``."""
    left_out: int = 0
    """How many entries of the given table are not in ``rows``."""


@dataclass(slots=True)
class _Edits:
    """What shall become of some entries."""

    dropped: dict[bytes, str] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    """Row of a file to its new content."""
    created: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """Path of a new file to the row that it takes owner and time from, and its content."""
    reasons: dict[bytes, str] = field(default_factory=dict)


def inert(rows: Segment, read: Read) -> Treated:
    """Returns the table with every repository made harmless: git can read it, and runs nothing of it.

    In each repository that `find_repositories` finds,

    - ``config`` is replaced by one that holds only what git needs to read the repository (`safe_config`); a link or
      a directory in its place is replaced by such a file;
    - ``config.worktree``, ``hooks``, ``info/attributes`` and a rebase in progress are dropped;
    - files ``.git``, ``commondir`` and a working tree's ``gitdir`` are dropped unless they lead to something in the
      tree by a relative path, and so are the lines of ``objects/info/alternates``.

    ``.gitattributes`` in a working tree stay: what they name is defined in configuration alone.  A replaced file
    keeps its mode, owner and time, and leaves its hard-link group.
    """
    found = find_repositories(rows, read)
    tree = Tree(rows)
    edits = _Edits()
    paths = found.paths
    configs: dict[bytes, list[int]] = {}
    for row, path in enumerate(rows.paths):
        parent, _, name = path.rpartition(b"/")
        if parent in paths:
            known = git_name(name)
            if known in (b"config", b"config.worktree"):
                configs.setdefault(parent, []).append(row)
            if known in _DROPPED_IN_REPOSITORY:
                edits.dropped[path] = _DROPPED_IN_REPOSITORY[known]
        # A repository may pose as a folder of another one, so what lies in a repository is looked at here, too.
        if git_name(name) == b"attributes":
            outer, _, folder = parent.rpartition(b"/")
            if folder and outer in paths and git_name(folder) == b"info":
                edits.dropped[path] = "attributes that are in no commit"
    for repository, its_rows in configs.items():
        _treat_config(tree, read, repository, its_rows, edits)
    for pointer in found.pointers:
        if not pointer.is_inside:
            _treat_pointer(pointer, edits)
    barred = [path for path in rows.excluded_paths if _is_within(path, paths)]
    return _rebuild(rows, edits, barred)


def drop(rows: Segment, read: Read) -> Treated:
    """Returns the table without any ``.git``, of whatever kind, and what is in it.

    Names that some file system takes for ``.git`` go too.  Bare repositories under other names are data and stay,
    as they are.  *read* is not called.
    """
    edits = _Edits()
    for path in rows.paths:
        if git_name(path.rpartition(b"/")[2]) == b".git":
            edits.dropped[path] = "a git repository"
    barred = [path for path in rows.excluded_paths if _is_within(path, frozenset())]
    return _rebuild(rows, edits, barred)


def _is_within(path: bytes, repositories: frozenset[bytes]) -> bool:
    """Whether a path is in a repository, or has a component ``.git``."""
    if any(git_name(part) == b".git" for part in path.split(b"/")):
        return True
    while path:
        path = path.rpartition(b"/")[0]
        if path in repositories:
            return True
    return False


def _treat_config(tree: Tree, read: Read, repository: bytes, its_rows: Sequence[int], edits: _Edits) -> None:
    """Exchanges the configuration of one repository, given the rows of all that git may take for it."""
    rows = tree.rows
    path = repository + b"/config" if repository else b"config"
    main = [row for row in its_rows if git_name(rows.paths[row].rpartition(b"/")[2]) == b"config"]
    exact = next((row for row in main if rows.paths[row] == path), None)
    first = exact if exact is not None else main[0] if main else None
    if first is None:
        return
    others = [row for row in its_rows if row not in main]
    texts = [tree.content(row, read, CONFIG_MAX) for row in (first, *others)]
    content = safe_config(text for text in texts if text is not None)
    for row in main:
        if row != exact:
            edits.dropped[rows.paths[row]] = "another name of the configuration"
    if exact is not None and rows.kinds[exact] == table.FILE:
        if content != texts[0] or rows.groups[exact]:
            edits.contents[exact] = content
            edits.reasons[path] = "configuration reduced to what git needs to read the repository"
        return
    if exact is not None:
        edits.dropped[path] = f"a {table.KIND_NAMES[rows.kinds[exact]]} in the place of the configuration"
    edits.created[path] = first, content
    edits.reasons[path] = "a configuration of what git needs to read the repository"


def _treat_pointer(pointer: Pointer, edits: _Edits) -> None:
    """Drops what leads out of the tree; of several object stores those in the tree stay."""
    inside = [text for text, target in zip(pointer.texts, pointer.targets, strict=True) if target is not None]
    reason = _POINTER_REASONS[pointer.kind]
    if inside:
        edits.contents[pointer.row] = b"".join(text + b"\n" for text in inside)
        edits.reasons[pointer.path] = reason
    else:
        edits.dropped[pointer.path] = reason


def _rebuild(rows: Segment, edits: _Edits, barred: Sequence[bytes]) -> Treated:
    """Returns the table after the edits."""
    kept = _kept(rows, edits)
    made, blocks = Segment(), dict[bytes, bytes]()
    made.root = rows.root
    copier = _Copier(rows)
    alone = copier.changed_alone(kept, edits.contents)
    for start, stop in _runs(kept, alone):
        if start in alone:
            _add_file(made, rows, start, rows.paths[start], edits.contents.get(start), copier, blocks)
        else:
            made.extend(copier.part(start, stop))
    for path, (row, data) in edits.created.items():
        _add_file(made, rows, row, path, data, copier, blocks)
    made.sort()
    made.groups = number_groups(made.groups)
    for known in split_digests(rows.digests) if blocks else ():
        blocks.pop(known, None)
    there = set(made.paths)
    changed = {rows.paths[row] for row in edits.contents if rows.paths[row] in there} | edits.created.keys()
    dropped = _tops(edits.dropped)
    return Treated(
        rows=made,
        blocks=blocks,
        dropped=tuple(path for path in dropped if path not in edits.created),
        changed=tuple(sorted(changed, key=table.sort_key)),
        barred=tuple(sorted(barred, key=table.sort_key)),
        reasons={**{path: edits.dropped[path] for path in dropped}, **{path: edits.reasons[path] for path in changed}},
        left_out=sum(path not in there for path in rows.paths),
    )


class _Copier:
    """Copies rows of a table, run by run: of a million rows few are touched."""

    def __init__(self, rows: Segment) -> None:
        self._rows = rows
        self._carriers = rows.first_of_groups()
        self._started: set[int] = set()
        sparse = (
            count if count < table.block_count(size) else 0 for size, count in zip(rows.sizes, rows.counts, strict=True)
        )
        self._blocks = array("Q", accumulate(rows.counts, initial=0))
        self._positions = array("Q", accumulate(sparse, initial=0))
        self._links = array("Q", (row for row, kind in enumerate(rows.kinds) if kind == table.LINK))

    def changed_alone(self, kept: Sequence[int], contents: Mapping[int, bytes]) -> set[int]:
        """Returns the rows that cannot be copied as they stand: new contents, and groups whose first name is gone."""
        groups = self._rows.groups
        there = set(kept) - contents.keys()
        broken = {group for group, row in self._carriers.items() if row not in there}
        return set(contents) | {row for row in kept if groups[row] in broken}

    def part(self, start: int, stop: int) -> Segment:
        """Returns some rows as they stand."""
        rows, part = self._rows, Segment()
        for name in ("paths", "kinds", "modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts"):
            setattr(part, name, getattr(rows, name)[start:stop])
        part.texts = rows.texts[bisect_left(self._links, start) : bisect_left(self._links, stop)]
        part.originals = [b""] * len(part.texts)
        part.digests = rows.digests[32 * self._blocks[start] : 32 * self._blocks[stop]]
        part.positions = rows.positions[self._positions[start] : self._positions[stop]]
        part.names_size = sum(sum(map(len, names)) + len(names) for names in (part.paths, part.texts, part.originals))
        return part

    def content(self, row: int) -> tuple[list[bytes], list[int]]:
        """Returns digests and positions of a file, once for each group: for the first of its names that asks."""
        group = self._rows.groups[row]
        if group in self._started:
            return [], []
        if group:
            self._started.add(group)
        part = self.part(self._carriers.get(group, row), self._carriers.get(group, row) + 1)
        return list(split_digests(part.digests)), list(part.positions)


def _add_file(
    made: Segment,
    rows: Segment,
    row: int,
    path: bytes,
    data: bytes | None,
    copier: _Copier,
    blocks: dict[bytes, bytes],
) -> None:
    """Adds a file with new content, or for None with its own; owner and time are those of *row*."""
    mode = rows.modes[row] if rows.kinds[row] == table.FILE else _FILE_MODE
    fields = (path, mode, rows.mtimes_ns[row], rows.uids[row], rows.gids[row])
    if data is None:
        digests, positions = copier.content(row)
        made.add_file(*fields, rows.sizes[row], rows.groups[row], digests, positions)
        return
    digests = [hashlib.sha256(data).digest()] if data else []
    made.add_file(*fields, len(data), 0, digests)
    blocks.update(dict.fromkeys(digests, data))


def _runs(kept: Sequence[int], alone: set[int]) -> Iterator[tuple[int, int]]:
    """Yields (start, stop) of rows that are kept and lie side by side; those of *alone* by themselves."""
    start = stop = -1
    for row in kept:
        if row != stop or row in alone or start in alone:
            if stop > start:
                yield start, stop
            start = row
        stop = row + 1
    if stop > start:
        yield start, stop


def _kept(rows: Segment, edits: _Edits) -> list[int]:
    """Returns the rows that stay; files to be made below a dropped directory are forgotten."""
    kept, gone = [], b"\0"
    for row, path in enumerate(rows.paths):
        if path.startswith(gone):
            continue
        if path in edits.dropped:
            gone = path + b"/"
            continue
        kept.append(row)
    tops = edits.dropped.keys()
    for path in list(edits.created):
        if any(parent in tops for parent in _parents(path)):
            del edits.created[path]
            edits.reasons.pop(path, None)
    return kept


def _tops(paths: Mapping[bytes, str]) -> list[bytes]:
    """Returns the paths that are not below another one, sorted."""
    return sorted((path for path in paths if not any(up in paths for up in _parents(path))), key=table.sort_key)


def _parents(path: bytes) -> list[bytes]:
    found = []
    while path := path.rpartition(b"/")[0]:
        found.append(path)
    return found
