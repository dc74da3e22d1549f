"""Every git repository in a table of entries, found by what git itself would take for one.

Git opens a directory as a repository by its name, ``.git``, or by its layout: ``HEAD`` with ``objects`` and
``refs``, or ``HEAD`` with a ``commondir`` that leads to those (gitrepository-layout(5)).  A file ``.git`` leads to
one as well.  Whatever is open to doubt counts as a repository, for who asks wants to know what git could open:

- names are compared as folding file systems compare them, so ``.GIT``, ``GIT~1``, ``.git.`` and ``.git`` with code
  points that HFS+ ignores are ``.git``, and so on for the files in it;
- what was left out of the snapshot counts towards a layout, for it may be put back;
- files that lead elsewhere are resolved in the tree alone, as a kernel would, links included.

All is judged on the table.  Content is asked for with a function, and only of small files that lead elsewhere.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from sandlift_helper import table
from sandlift_helper.table import Segment

Read = Callable[[int], bytes]
"""Gives the bytes of a file by its row."""
PointerKind = Literal["gitdir", "commondir", "worktree", "alternates"]

POINTER_MAX = 64 << 10
"""A larger file that should lead elsewhere is taken to lead nowhere."""

_TEXT_MAX = 4095
_HOPS_MAX = 40
_STEPS_MAX = 5_000_000
_HEAD, _OBJECTS, _REFS, _COMMON, _SETTINGS = 1, 2, 4, 8, 16
_MARKS = {
    b"head": _HEAD,
    b"objects": _OBJECTS,
    b"refs": _REFS,
    b"commondir": _COMMON,
    b"config": _SETTINGS,
    b"config.worktree": _SETTINGS,
    b"hooks": _SETTINGS,
}
# Code points that HFS+ leaves out of account in names (git's utf8.c, next_hfs_char).
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
_ALIAS = re.compile(rb"[:~]|[. ]\Z")
_SHORT_NAMES = re.compile(rb"(git|common)~[0-9]\Z")
_FULL_NAMES = {b"git": b".git", b"common": b"commondir"}


def fold(name: bytes) -> bytes:
    """Returns what a name is to a file system that folds case and forms of Unicode; the same for names that clash."""
    if name.isascii():
        return name.lower()
    text = unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape").translate(_IGNORED))
    return unicodedata.normalize("NFC", text.casefold()).encode("utf-8", "surrogateescape")


def git_name(name: bytes) -> bytes:
    """Returns the name that git would find *name* under on some file system, in lower case.

    Beside `fold`, NTFS drops dots and spaces at the end, takes what follows a colon for a stream, and gives ``.git``
    and ``commondir`` short names (CVE-2014-9390, CVE-2019-1352, CVE-2019-1353).
    """
    folded = fold(name)
    if _ALIAS.search(folded) is None:
        return folded
    folded = folded.partition(b":")[0].rstrip(b". ")
    short = _SHORT_NAMES.match(folded)
    return _FULL_NAMES[short[1]] if short else folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A directory that git could open, or that it would read a repository's configuration from."""

    path: bytes
    """Empty for the root itself."""
    why: Literal["name", "layout", "common"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """A file of git's, or a link in its place, that leads to another directory."""

    row: int
    path: bytes
    kind: PointerKind
    texts: tuple[bytes, ...]
    """What it names, as written; one, but for alternates.  An empty text stands for what cannot be read."""
    targets: tuple[bytes | None, ...]
    """For each text the place in the tree, or None: absolute, outside, nothing there, or in doubt."""

    @property
    def is_inside(self) -> bool:
        """Whether all that it names is in the tree."""
        return None not in self.targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """What `find_repositories` found, by path."""

    found: tuple[Repository, ...]
    pointers: tuple[Pointer, ...]

    @property
    def paths(self) -> frozenset[bytes]:
        """The paths of all repositories."""
        return frozenset(repository.path for repository in self.found)


class Tree:
    """A sorted table as a kernel would walk it: kept links are followed, and nothing is outside."""

    def __init__(self, rows: Segment) -> None:
        self.rows = rows
        self._steps = _STEPS_MAX
        self._texts: dict[bytes, bytes] | None = None

    def find(self, path: bytes) -> int | None:
        """Returns the row of a path, if there is one."""
        row = bisect_left(self.rows.paths, table.sort_key(path), key=table.sort_key)
        return row if row < len(self.rows) and self.rows.paths[row] == path else None

    def text(self, path: bytes) -> bytes:
        """Returns the text of the link at *path*."""
        if self._texts is None:
            links = (path for path, kind in zip(self.rows.paths, self.rows.kinds, strict=True) if kind == table.LINK)
            self._texts = dict(zip(links, self.rows.texts, strict=True))
        return self._texts[path]

    def resolve(self, directory: bytes, text: bytes) -> bytes | None:
        """Returns where *text* leads from a directory of the tree, or None when it is not surely in the tree.

        A hostile table cannot make this expensive: all walks together have a bounded number of steps, and whatever
        comes after them is not in the tree.
        """
        if not text or text.startswith(b"/") or len(text) > _TEXT_MAX or b"\0" in text:
            return None
        here = directory.split(b"/") if directory else []
        ahead = text.split(b"/")[::-1]
        hops = 0
        while ahead:
            part = ahead.pop()
            self._steps -= 1
            if self._steps < 0:
                return None
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not here:
                    return None
                here.pop()
                continue
            row = self.find(b"/".join((*here, part)))
            if row is None:
                return None
            kind = self.rows.kinds[row]
            if kind == table.LINK:
                hops += 1
                if hops > _HOPS_MAX:
                    return None
                ahead += self.text(self.rows.paths[row]).split(b"/")[::-1]
            elif kind == table.FILE and ahead:
                return None
            else:
                here.append(part)
        return b"/".join(here)

    def content(self, row: int, read: Read, size_max: int = POINTER_MAX) -> bytes | None:
        """Returns the bytes of a file, or of the file that a link leads to; None for all else and what is larger."""
        if self.rows.kinds[row] == table.LINK:
            path = self.rows.paths[row]
            place = self.resolve(path.rpartition(b"/")[0], self.text(path))
            target = self.find(place) if place else None
            if target is None:
                return None
            row = target
        if self.rows.kinds[row] != table.FILE or self.rows.sizes[row] > size_max:
            return None
        return read(row)

    def is_directory(self, path: bytes | None) -> bool:
        """Whether that is a directory of the tree; the root is one."""
        if path is None:
            return False
        row = self.find(path) if path else None
        return not path or (row is not None and self.rows.kinds[row] == table.DIRECTORY)


def find_repositories(rows: Segment, read: Read) -> Repositories:
    """Returns all repositories of a sorted table, and all that leads from one to another."""
    return _Finder(rows, read).run()


class _Finder:
    def __init__(self, rows: Segment, read: Read) -> None:
        self._rows = rows
        self._tree = Tree(rows)
        self._read = read
        self._found: dict[bytes, Repository] = {}
        self._pointers: list[Pointer] = []
        self._marks: dict[bytes, int] = {}
        # Rows of files and links that may be pointers.
        self._commons: dict[bytes, list[int]] = {}
        self._worktrees: list[int] = []

    def run(self) -> Repositories:
        for row, path in enumerate(self._rows.paths):
            self._look(row, path)
        for path in self._rows.excluded_paths:
            parent, _, name = path.rpartition(b"/")
            self._marks[parent] = self._marks.get(parent, 0) | _MARKS.get(git_name(name), 0)
        for path, marks in self._marks.items():
            if marks & _HEAD and (marks & _COMMON or (marks & _OBJECTS and marks & _REFS)):
                self._add(path, "layout")
        for path, marks in self._marks.items():
            if marks & (_SETTINGS | _HEAD) and path not in self._found and self._is_module(path):
                self._add(path, "layout")
        for row in self._worktrees:
            if self._rows.paths[row].rpartition(b"/")[0] in self._found:
                self._judge(row, "worktree")
        found = sorted(self._found.values(), key=lambda repository: table.sort_key(repository.path))
        return Repositories(found=tuple(found), pointers=tuple(sorted(self._pointers, key=lambda one: one.row)))

    def _look(self, row: int, path: bytes) -> None:
        """Notes what the name of one entry says about it or its directory."""
        parent, _, name = path.rpartition(b"/")
        lowered = name.lower()
        if not lowered.isascii() or _ALIAS.search(lowered) is not None:
            lowered = git_name(name)
        mark = _MARKS.get(lowered, 0)
        if mark:
            self._marks[parent] = self._marks.get(parent, 0) | mark
        kind = self._rows.kinds[row]
        if lowered == b".git":
            if kind == table.DIRECTORY:
                self._add(path, "name")
            else:
                self._judge_name(row, path, parent)
        elif kind == table.DIRECTORY:
            return
        elif mark == _COMMON:
            self._commons.setdefault(parent, []).append(row)
            if parent in self._found:
                self._judge(row, "commondir")
        elif lowered == b"gitdir":
            self._worktrees.append(row)
        elif lowered == b"alternates" and git_name(parent.rpartition(b"/")[2]) == b"info":
            self._judge(row, "alternates")

    def _add(self, path: bytes, why: Literal["name", "layout", "common"]) -> None:
        """Adds a repository, and those that its ``commondir`` leads to."""
        if path in self._found:
            return
        self._found[path] = Repository(path=path, why=why)
        for row in self._commons.get(path, ()):
            self._judge(row, "commondir")

    def _judge_name(self, row: int, path: bytes, parent: bytes) -> None:
        """Judges a ``.git`` that is no directory: a file that names one, or a link to either."""
        if self._rows.kinds[row] == table.LINK:
            place = self._tree.resolve(parent, self._tree.text(path))
            if place is not None and self._tree.is_directory(place):
                self._add(place, "name")
                return
        self._judge(row, "gitdir")

    def _judge(self, row: int, kind: PointerKind) -> None:
        path = self._rows.paths[row]
        directory = path.rpartition(b"/")[0]
        if kind == "alternates":
            directory = directory.rpartition(b"/")[0]
        data = self._tree.content(row, self._read)
        texts = tuple(_texts(data, kind)) if data is not None else (b"",)
        targets = tuple(self._tree.resolve(directory, text) for text in texts)
        if kind != "worktree":
            targets = tuple(target if self._tree.is_directory(target) else None for target in targets)
        self._pointers.append(Pointer(row=row, path=path, kind=kind, texts=texts, targets=targets))
        for target in targets:
            if kind in ("gitdir", "commondir") and target is not None:
                self._add(target, "name" if kind == "gitdir" else "common")

    def _is_module(self, path: bytes) -> bool:
        """Whether a directory is where a repository keeps another's: ``modules/...`` or ``worktrees/...``.

        Git completes such directories, so what lies in one counts before its layout is whole.
        """
        outer = path
        while outer:
            outer = outer.rpartition(b"/")[0]
            if outer in self._found:
                return git_name(path[len(outer) :].lstrip(b"/").partition(b"/")[0]) in (b"modules", b"worktrees")
        return False


def _texts(data: bytes, kind: PointerKind) -> Iterator[bytes]:
    """Yields what a file names, as git reads it; what git might read otherwise yields a text that leads nowhere."""
    if b"\0" in data:
        yield b""
    elif kind == "gitdir":
        yield data[8:].rstrip(b"\r\n") if data.startswith(b"gitdir: ") else b""
    elif kind == "alternates":
        for line in data.split(b"\n"):
            if line and not line.startswith(b"#"):
                yield b"" if line.startswith(b'"') else line
    else:
        yield data.rstrip(b"\r\n")
