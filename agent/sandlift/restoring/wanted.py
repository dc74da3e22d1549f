"""The tree that a restore shall make: a snapshot, and what a person asked to be different.

Repositories are treated first, on the whole snapshot; then links are put back, paths chosen and links left out, and in
the end the links that remain are proved on the tree that they will stand in.
"""

from __future__ import annotations

import posixpath
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandlift.errors import UnknownPath, UnsafeLink, UsageError
from sandlift.manifest import Manifest, number_groups
from sandlift.model import RestoreOptions
from sandlift.restoring.ground import marks
from sandlift.results import Action, Lossy
from sandlift.selection import select
from sandlift.validate import shown
from sandlift_helper import links, table
from sandlift_helper.table import Root, Segment

if TYPE_CHECKING:
    from sandlift.restoring.git import Treated

PERMISSIONS = 0o777
SPECIAL_BITS = 0o7000
_COLUMNS_OF_ROWS = ("paths", "kinds", "modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts")
_COLUMNS_OF_CONTENT = ("texts", "originals", "positions", "digests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What shall be at the target afterwards, whatever is there now.  Paths are sorted as rows are."""

    rows: Segment
    """The entries, canonical, with the modes that they shall have, their links proved."""
    root: bool
    """Whether the root's own metadata is wanted too."""
    protected: tuple[bytes, ...]
    """Paths at or below which *exact* leaves everything alone: the snapshot does not hold what belongs there."""
    siblings_protected: tuple[bytes, ...]
    """Names that stand for themselves and all that follow in their directories: the capture looked no further."""
    scope: tuple[bytes, ...]
    """The paths that were asked for; all when empty.  Outside of them only missing parents are made."""
    incomplete: bool
    """Whether the capture lost something."""
    excluded_paths: tuple[bytes, ...]
    """What the capture left out and this restore does not put back."""
    blocks: Mapping[bytes, bytes]
    """Digest to bytes of the blocks that the snapshot lacks."""
    left: tuple[Action, ...]
    """What is left out although the snapshot has it."""
    lossy: Lossy


@dataclass(slots=True)
class _LeftOut:
    """Entries that are not made, and why; by the path that stands for all below it."""

    actions: dict[bytes, Action] = field(default_factory=dict)
    protected: set[bytes] = field(default_factory=set)
    links: int = 0
    git_entries: int = 0

    def link(self, path: bytes, why: str) -> None:
        self.actions[path] = Action(action="leave", path=path, kind="link", why=why)
        self.protected.add(path)
        self.links += 1


def wanted(manifest: Manifest, options: RestoreOptions, read: Callable[[int], bytes]) -> Wanted:
    """Returns the tree to make; *read* gives the bytes of a file, by its row in the manifest.

    Raises UnknownPath, UnsafeLink, UsageError.
    """
    _check(options)
    whole = manifest.rows
    scope = tuple(sorted({clean(path) for path in options.paths}, key=table.sort_key))
    if b"" in scope:
        scope = ()
    treated = _treat_git(whole, options.git, read)
    rows = treated.rows if treated else whole
    put_back = _matching(whole, rows, options.relink, treated.barred if treated else ())
    if put_back:
        rows = _with_links(rows, whole, put_back)
    if scope:
        rows = subset(Manifest(rows), scope)
    left = _LeftOut()
    if treated:
        _leave_git(whole, treated, scope, options.git, left)
    relinked = {whole.excluded_paths[row] for row in put_back}
    if options.no_links:
        for path in _links(rows):
            left.link(path, "links are left out")
    else:
        _prove(rows, relinked, left, _hint(options))
    if left.links:
        rows = take_rows(rows, [row for row, path in enumerate(rows.paths) if path not in left.protected])
    excluded = tuple(path for path in whole.excluded_paths if path not in relinked)
    return Wanted(
        rows=_final(rows, special_bits=options.special_bits),
        root=not scope,
        protected=tuple(sorted({*excluded, *left.protected}, key=table.sort_key)),
        siblings_protected=_cut_short(whole),
        scope=scope,
        incomplete=any(reason >= table.LOST for reason in whole.excluded_reasons),
        excluded_paths=excluded,
        blocks=treated.blocks if treated else {},
        left=tuple(left.actions[path] for path in sorted(left.actions, key=table.sort_key)),
        lossy=Lossy(
            bits_dropped=0 if options.special_bits else sum(mode > PERMISSIONS for mode in rows.modes),
            links_left=left.links,
            git_changed=left.git_entries,
        ),
    )


def _check(options: RestoreOptions) -> None:
    """Raises UsageError for options that do not go together."""
    if options.mode == "replace" and options.paths:
        raise UsageError(
            "replace exchanges the whole target, so it takes no paths", hint="exact restores paths, and only those"
        )
    if options.discard_excluded and options.mode != "replace":
        raise UsageError(
            f"only replace can discard what the snapshot does not hold, not {options.mode}",
            hint="leave out discard-excluded",
        )
    if options.no_links and options.relink:
        raise UsageError("links cannot be put back while all links are left out", hint="choose relink or no-links")
    for glob in options.relink:
        if not glob.startswith(b"/"):
            raise UsageError(
                f"relink takes globs of absolute targets: {shown(glob)}", hint="such as /usr/** or /opt/*/bin/*"
            )


def _treat_git(rows: Segment, treatment: str, read: Callable[[int], bytes]) -> Treated | None:
    if treatment == "keep":
        return None
    from sandlift.restoring import git

    return git.drop(rows, read) if treatment == "drop" else git.inert(rows, read)


def _leave_git(whole: Segment, treated: Treated, scope: Sequence[bytes], treatment: str, left: _LeftOut) -> None:
    """Notes what of the repositories in *scope* is left out or changed."""
    dropped, changed = set(treated.dropped), set(treated.changed)
    gone, chosen = marks(whole.paths, dropped), marks(whole.paths, scope or (b"",))
    for path, kind, is_gone, is_chosen in zip(whole.paths, whole.kinds, gone, chosen, strict=True):
        if is_chosen and (is_gone or path in changed):
            left.git_entries += 1
        if is_chosen and path in dropped:
            why = treated.reasons.get(path, "a git repository")
            left.actions[path] = Action(action="leave", path=path, kind=table.KIND_NAMES[kind], why=why)
    if treatment == "drop":
        # Made inert, a repository shall lose at the target too what could run; dropped, it is none of our business.
        left.protected |= dropped


def _matching(whole: Segment, rows: Segment, globs: Sequence[bytes], barred: Iterable[bytes]) -> list[int]:
    """Returns the excluded rows of outside links that *globs* put back, in the language of exclusion patterns.

    Only absolute targets without empty, ``.`` and ``..`` components match.
    """
    if not globs:
        return []
    from sandlift_helper.ignore import compile_rules

    rules = compile_rules([(glob, b"") for glob in globs], ())
    taken, refused = dict(zip(rows.paths, rows.kinds, strict=True)), set(barred)
    found = []
    for row, (path, reason, text) in enumerate(
        zip(whole.excluded_paths, whole.excluded_reasons, whole.details, strict=True)
    ):
        if reason != table.OUTSIDE_LINK or path in refused or path in taken or len(text) > table.TEXT_MAX:
            continue
        parent = path.rpartition(b"/")[0]
        if parent and taken.get(parent) != table.DIRECTORY:
            continue
        root, *names = text.split(b"/")
        if not root and not {b"", b".", b".."} & set(names) and rules.excluded(text[1:], False) is not None:
            found.append(row)
    return found


def _with_links(rows: Segment, whole: Segment, put_back: Sequence[int]) -> Segment:
    """Returns *rows* and the links of some excluded rows, each with the owner and time of its directory."""
    made = _columns(rows, whole=False)
    directories = {path: row for row, path in enumerate(rows.paths) if rows.kinds[row] == table.DIRECTORY}
    for row in put_back:
        path = whole.excluded_paths[row]
        parent = directories.get(path.rpartition(b"/")[0])
        if parent is not None:
            fields = rows.mtimes_ns[parent], rows.uids[parent], rows.gids[parent]
        else:
            assert rows.root is not None
            fields = rows.root.mtime_ns, rows.root.uid, rows.root.gid
        made.add_link(path, PERMISSIONS, *fields, whole.details[row])
    made.sort()
    return made


def _prove(rows: Segment, relinked: set[bytes], left: _LeftOut, hint: str) -> None:
    """Proves the links, first as they were captured, then with the links that are put back.

    Raises UnsafeLink for one that is outside without their doing; one that is outside because of them is left out.
    A link that is left out is as one that is outside to `links.judge`, so its verdict is of the tree that remains.
    """
    paths = _links(rows)
    own = [number for number, path in enumerate(paths) if path not in relinked]
    own_paths = [paths[number] for number in own]
    for path, inside in zip(own_paths, links.judge(own_paths, [rows.texts[number] for number in own]), strict=True):
        if not inside:
            raise UnsafeLink(f"the link {shown(path)} would leave the restored tree", hint=hint, path=shown(path))
    if len(own) == len(paths):
        return
    beyond = set(range(len(paths))) - set(own)
    for path, inside in zip(paths, links.judge(paths, rows.texts, beyond), strict=True):
        if not inside:
            left.link(path, "with a link on its way put back, it could lead anywhere")


def _hint(options: RestoreOptions) -> str:
    if options.paths:
        return "a link on its way is not restored: restore the whole snapshot, or name that link with --path as well"
    if options.git != "keep":
        return "a link on its way is part of a git repository: restore with --git keep"
    return "the snapshot is not to be trusted; --no-links restores it without links"


def _links(rows: Segment) -> list[bytes]:
    return [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]


def _cut_short(whole: Segment) -> tuple[bytes, ...]:
    columns = zip(whole.excluded_paths, whole.excluded_kinds, whole.excluded_reasons, whole.details, strict=True)
    return tuple(
        path
        for path, kind, reason, detail in columns
        if (kind, reason, detail) == (table.UNKNOWN, table.LIMIT, b"entries")
    )


def _columns(rows: Segment, *, whole: bool) -> Segment:
    """Returns the entries of *rows* without original texts, excluded rows and flags; *whole*: columns are shared."""
    made = Segment()
    made.root = rows.root
    for name in (*_COLUMNS_OF_ROWS, *_COLUMNS_OF_CONTENT):
        column = getattr(rows, name)
        setattr(made, name, column if whole else column[:])
    made.originals = [b""] * len(rows.texts)
    made.count_names()
    return made


def _final(rows: Segment, *, special_bits: bool) -> Segment:
    """Returns the entries with the modes that they shall have."""
    made = _columns(rows, whole=True)
    if special_bits:
        return made
    if max(made.modes, default=0) > PERMISSIONS:
        made.modes = array("H", [mode & PERMISSIONS for mode in made.modes])
    if made.root is not None:
        made.root = Root(made.root.mode & PERMISSIONS, made.root.mtime_ns, made.root.uid, made.root.gid)
    return made


def clean(path: bytes) -> bytes:
    """Returns a path below the root as entries spell it.  Raises UsageError when it cannot be one."""
    if path.startswith(b"/") or b".." in path.split(b"/"):
        raise UsageError(f"a path in a snapshot is relative to its root: {shown(path)}")
    spelled = posixpath.normpath(path)
    return b"" if spelled == b"." else spelled


def subset(manifest: Manifest, paths: Sequence[bytes]) -> Segment:
    """Returns the rows of *paths*, of all below them, and of the directories on the way.  Raises UnknownPath."""
    chosen: set[int] = set()
    for path in paths:
        try:
            chosen.update(manifest.below(path))
        except KeyError:
            raise UnknownPath(f"the snapshot has no {shown(path)}", hint="sandlift ls lists what it has") from None
        while path := path.rpartition(b"/")[0]:
            chosen.add(manifest.find(path))
    return take_rows(manifest.rows, sorted(chosen))


def take_rows(rows: Segment, chosen: Sequence[int], *, content: bool = True) -> Segment:
    """Returns a canonical table of some rows, in order; the first name of a hard-link group carries its blocks.

    Without *content* the files are empty and in no group.
    """
    taken = select(rows, chosen)
    taken.originals = [b""] * len(taken.texts)
    if content:
        taken.groups = number_groups(taken.groups)
    else:
        taken.sizes, taken.groups, taken.counts = (array(code, [0]) * len(taken) for code in "QII")
        taken.digests, taken.positions = bytearray(), array("I")
    return taken
