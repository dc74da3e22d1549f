"""Random trees full of links, and the kernel's verdict on the rule that decides which of them are kept.

A tree is made, scanned and judged as the helper does it, and what is kept is restored under another root.  Then
the kernel is asked, with ``openat2`` and ``RESOLVE_BENEATH`` (Linux 5.6): whether a walk leaves the root is
answered there with EXDEV, whatever links, loops and missing names lie on its way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from sandlift_helper import links, table, workspace
from sandlift_helper.ignore import compile_rules
from sandlift_helper.mounts import read_mounts
from sandlift_helper.scan import Limits, Scan

_OPENAT2 = 437
_RESOLVE_BENEATH = 0x08
LINKS_MAX = 40
"""Links that the kernel follows on one way (path_resolution(7)); the next one is ELOOP."""
LINKS_ALLOWED = 20
NAME_MAX = 255

DECLARED = b"/old/place/w"
"""A further name of the root, which only the request knows."""

LONG, TOO_LONG = b"l" * NAME_MAX, b"l" * (NAME_MAX + 1)
_CHAINS = (*(0,) * 44, 2, 3, 5, 5, 10, 19, 20, 20, 21, 39, 40, 41, 42)
_NAMES = (*(b"a", b"b", b"c", b"d") * 4, b"a.b", b"...", LONG)
_PARTS = (*(b"a", b"b", b"c", b"d") * 3, *(b"..",) * 10, b".", b"", b"c00", b"missing", b"a.b", LONG, TOO_LONG)
# {w} is the root resolved, {a} its spelling, {d} a declared one, {u} its parent; near misses and odd forms beside them.
_STARTS = (
    *(b"",) * 30,
    *(b"{w}/", b"{a}/", b"{d}/", b"{w}", b"{a}//", b"//{w}/./", b"/.{a}/", b"{d}"),
    *(b"{w}2/", b"{w}/../", b"{u}/", b"{u}/x/../w/", b"/", b"/etc/", b"/old/place/"),
)
_KINDS = "ttttttttttfffd"
CODE_BYTES = 56
"""How many bytes describe a tree of middling size."""

Way = bytes | None
"""A link's text; None is a directory and empty text a file."""


@dataclass(frozen=True, slots=True)
class LinkedTree:
    """Entries by path, and the paths that a rule leaves out; in texts ``{w}`` and the like stand for the root."""

    entries: dict[bytes, Way] = field(default_factory=dict)
    left_out: tuple[bytes, ...] = ()


def linked_tree(entries: Iterable[tuple[bytes, Way]], left_out: Iterable[bytes] = ()) -> LinkedTree:
    """The tree of those *entries* that have room: what is named again or lies below no directory is dropped."""
    made: dict[bytes, Way] = {}
    for path, entry in entries:
        parts = path.split(b"/")
        parents = [b"/".join(parts[:end]) for end in range(1, len(parts))]
        if path in made or any(made.get(parent) is not None for parent in parents):
            continue
        made.update(dict.fromkeys(parents))
        made[path] = entry
    return LinkedTree(entries=dict(sorted(made.items())), left_out=tuple(sorted(set(left_out) & set(made))))


def tree_of(code: bytes) -> LinkedTree:
    """The tree that some bytes describe.

    Its names are few, so links meet each other, loops and chains are many, and ``..`` finds its way out.  Fewer
    and smaller bytes describe smaller trees.
    """
    left = list(code[::-1])

    def number(below: int) -> int:
        return left.pop() % below if left else 0

    def path() -> bytes:
        return b"/".join([_NAMES[number(len(_NAMES))] for _ in range(1 + number(8) // 2)])

    def text() -> bytes:
        start = _STARTS[number(len(_STARTS))]
        parts = [_PARTS[number(len(_PARTS))] for _ in range(number(7))]
        return (start + b"/".join(parts))[: table.TEXT_MAX] or b"."

    entries: list[tuple[bytes, Way]] = []
    if length := _CHAINS[number(len(_CHAINS))]:
        entries += [(b"c%02d" % link, b"c%02d" % (link + 1)) for link in range(length - 1)]
        entries.append((b"c%02d" % (length - 1), text()))
    left_out: list[bytes] = []
    while left:
        here = path()
        kind = _KINDS[number(len(_KINDS))]
        entries.append((here, text() if kind == "t" else None if kind == "d" else b""))
        if number(12) == 11:
            left_out.append(here)
    return linked_tree(entries, left_out)


def linked_trees() -> st.SearchStrategy[LinkedTree]:
    """Trees from one draw each: a strategy of many draws would cost more than all the rest."""
    return st.binary(min_size=CODE_BYTES // 2, max_size=2 * CODE_BYTES).map(tree_of)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_HOW = _How(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH)


def open_beneath(root_fd: int, path: bytes) -> int:
    """Opens *path* below the root and closes it again; returns 0, or the number of the error."""
    while True:
        fd = _libc.syscall(_OPENAT2, root_fd, path, ctypes.byref(_HOW), ctypes.sizeof(_HOW))
        if fd >= 0:
            os.close(fd)
            return 0
        if (number := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
            return number


def knows_openat2() -> bool:
    """Whether the kernel can be asked."""
    fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        return open_beneath(fd, b"..") == errno.EXDEV
    finally:
        os.close(fd)


def _identity(name: bytes, directory_fd: int) -> tuple[int, int] | int:
    """Device and inode of what a name leads to, or the number of the error."""
    try:
        status = os.stat(name, dir_fd=directory_fd)
    except OSError as error:
        return error.errno or 0
    return status.st_dev, status.st_ino


def _word(number: int) -> str:
    return errno.errorcode.get(number, "success")


@dataclass(slots=True)
class _Met:
    """What a walk met on its way."""

    links: int = 0
    below_a_file: bool = False
    too_long: bool = False
    loop: bool = False

    def may_fail_with(self, number: int) -> bool:
        """Whether the error that a link which leaves may give, beside EXDEV, is accounted for."""
        return (
            (number == errno.ENOTDIR and self.below_a_file)
            # A loop leads nowhere, so links that end in one are kept.
            or (number == errno.ELOOP and self.links >= LINKS_ALLOWED and not self.loop)
            or (number == errno.ENAMETOOLONG and self.too_long)
        )


class Playground:
    """Two roots on a fast file system, used again for tree after tree.  Use it as a context manager.

    ``examined`` counts trees, ``answers`` what the kernel said of links, as (kept or left out, word) pairs.
    """

    def __init__(self) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        # Resolved, so that a text with the resolved root is one.
        self._folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-links-", dir=memory)))
        self._source = os.fsencode(self._folder / "real" / "w")
        self._spelled = os.fsencode(self._folder / "alias" / "w")
        os.makedirs(self._source)
        os.symlink("real", self._folder / "alias")
        target = self._folder / "set" / "down" / "elsewhere"
        os.makedirs(target)
        self._source_fd, self._target_fd = (os.open(path, os.O_RDONLY) for path in (self._source, target))
        self._mounts = read_mounts(self._source)
        self._spellings = [links.components(name) for name in (self._spelled, DECLARED, self._source)]
        self.examined = 0
        self.answers: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._source_fd)
        os.close(self._target_fd)
        shutil.rmtree(self._folder)

    def examine(self, tree: LinkedTree) -> None:
        """Makes the tree, takes it, sets it down, and asks the kernel.  Raises AssertionError."""
        with _built(self._source_fd, {path: self._filled(entry) for path, entry in tree.entries.items()}):
            scan = self._scan(tree.left_out)
            kept = workspace.judge_links(scan, self._spellings)
            for path, _, text, original in kept:
                if original:
                    self._check_rebased(path, text, original)
        rows = zip(scan.left.excluded_paths, scan.left.excluded_reasons, scan.left.details, strict=True)
        outside = {path: text for path, reason, text in rows if reason == table.OUTSIDE_LINK}
        assert len(kept) + len(outside) == len(scan.links), "a link is neither kept nor left out"
        texts = {path: text for path, _, text, _ in kept}
        assert all(links.judge(list(texts), list(texts.values()))), "what was kept is not kept again"
        restored: dict[bytes, Way] = {path: None for path, _ in scan.directories}
        restored.update(dict.fromkeys(scan.files.paths, b""))
        restored.update(texts)
        with _built(self._target_fd, restored):
            self._check_kept(restored, texts)
            for path, text in outside.items():
                self._check_left(restored, path, text)
        self.examined += 1

    def _filled(self, entry: Way) -> Way:
        if not entry or b"{" not in entry:
            return entry
        places = {b"{w}": self._source, b"{a}": self._spelled, b"{d}": DECLARED, b"{u}": os.path.dirname(self._source)}
        for mark, place in places.items():
            entry = entry.replace(mark, place)
        return entry[: table.TEXT_MAX]

    def _scan(self, left_out: tuple[bytes, ...]) -> Scan:
        rules = compile_rules([], left_out) if left_out else None
        limits = Limits(1000, 4096, 100, table.TEXT_MAX, 1 << 40)
        scan = Scan(self._source_fd, limits, rules, self._mounts, frozenset(), None, lambda entries, size: None)
        scan.run()
        return scan

    def _check_rebased(self, path: bytes, text: bytes, original: bytes) -> None:
        """A rebased text leads where the original led, or fails as it did; but for ELOOP, since the way differs."""
        if DECLARED in original:
            return  # that name of the root is not known here
        directory = os.open(path.rpartition(b"/")[0] or b".", os.O_PATH, dir_fd=self._source_fd)
        try:
            found = [_identity(name, directory) for name in (original, text)]
        finally:
            os.close(directory)
        assert found[0] == found[1] or errno.ELOOP in found, f"{path!r}: {original!r} and {text!r} differ: {found}"

    def _check_kept(self, restored: dict[bytes, Way], texts: dict[bytes, bytes]) -> None:
        """No kept link leaves: as restored, with the names missing on its way made, and with those of all ways."""
        with self._ways(restored) as make_way:
            for path in (*texts, *texts):
                assert open_beneath(self._target_fd, path) != errno.EXDEV, f"{path!r} is kept and leaves"
                make_way(path)
                number = open_beneath(self._target_fd, path)
                assert number != errno.EXDEV, f"{path!r} is kept and leaves by a name that was missing"
                self.answers["kept", _word(number)] += 1

    def _check_left(self, restored: dict[bytes, Way], path: bytes, text: bytes) -> None:
        """A link that was left out leaves when it is put back alone, as it was found and, if it can be, rebased."""
        rebased = links.rebase(text, path.count(b"/"), self._spellings) if text.startswith(b"/") else None
        for put_back in (text, rebased):
            if put_back is None:
                continue
            with self._ways(restored) as make_way, _built(self._target_fd, {path: put_back}):
                met = make_way(path, put_back) if put_back[:1] != b"/" else _Met()
                number = open_beneath(self._target_fd, path)
                fine = number == errno.EXDEV or met.may_fail_with(number)
                assert fine, f"{path!r} -> {put_back!r} is left out, but opening it gives {_word(number)} ({met})"
                self.answers["left out", _word(number)] += 1

    @contextmanager
    def _ways(self, restored: dict[bytes, Way]) -> Iterator[Callable[..., _Met]]:
        """Gives a function that makes what is missing on a link's way; all of it is removed in the end."""
        there, made = dict(restored), list[bytes]()

        def make_way(path: bytes, text: Way = None) -> _Met:
            met, here, inside = _Met(), list[bytes](), list[bytes]()
            todo: list[Way] = [*path.split(b"/")[::-1]]
            while todo:
                part = todo.pop()
                if part is None:
                    inside.pop()
                    continue
                if part in (b"", b"."):
                    continue
                if part == b"..":
                    if not here:
                        break
                    here.pop()
                    continue
                if len(part) > NAME_MAX:
                    met.too_long = True
                    break
                name = b"/".join([*here, part])
                if name not in there and not (text and name == path):
                    os.mkdir(name, dir_fd=self._target_fd)
                    there[name] = None
                    made.append(name)
                entry = text if text and name == path else there[name]
                if entry:
                    met.links += 1
                    met.loop = met.loop or name in inside
                    if met.links > LINKS_MAX:
                        break
                    inside.append(name)
                    todo += [None, *entry.split(b"/")[::-1]]
                elif entry is None:
                    here.append(part)
                else:
                    met.below_a_file = any(part is not None for part in todo)
                    break
            return met

        try:
            yield make_way
        finally:
            for name in reversed(made):
                os.rmdir(name, dir_fd=self._target_fd)


@contextmanager
def _built(root_fd: int, entries: dict[bytes, Way]) -> Iterator[None]:
    """Makes entries below a root, parents before what is in them, and removes them in the end."""
    made: list[tuple[bytes, Way]] = []
    try:
        for path, entry in sorted(entries.items()):
            if entry is None:
                os.mkdir(path, dir_fd=root_fd)
            elif entry:
                os.symlink(entry, path, dir_fd=root_fd)
            else:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=root_fd))
            made.append((path, entry))
        yield
    finally:
        for path, entry in reversed(made):
            (os.rmdir if entry is None else os.unlink)(path, dir_fd=root_fd)


def examine_many(playground: Playground, count: int, number: int) -> None:
    """Examines about *count* trees that the seed *number* gives.

    Raises AssertionError for the smallest tree that breaks the rule; its notes hold the tree.
    """

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @seed(number)
    @given(linked_trees())
    def examine(tree: LinkedTree) -> None:
        try:
            playground.examine(tree)
        except AssertionError as error:
            error.add_note(repr(tree).replace(repr(TOO_LONG)[2:-1], "{256}").replace(repr(LONG)[2:-1], "{255}"))
            raise

    examine()
