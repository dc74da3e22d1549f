"""A small language for directory trees: a value describes a tree, makes it, reads it back, and tells two apart.

Paths are bytes, relative to the root, with ``/`` between names; directories on the way need no mention.  Every
entry has its times and modes stated, so a comparison is exact to the bit and the nanosecond::

    wanted = tree({b"bin/run": File(b"#!/bin/sh\\n", mode=0o755), b"run": Link(b"bin/run")})
    make(wanted, path)
    assert_equal(wanted, read(path))

Nothing is followed, paths may be longer than PATH_MAX, and trees deeper than Python's recursion.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

MTIME_NS = 1_600_000_000_123_456_789
"""The time of entries that do not state another."""

PAGE = 4096
BLOCK = 1 << 20
"""What is zero in a whole block must be a hole after a restore."""
SLACK = 64 << 10
"""What a file system may allocate for itself beside a file's data."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DIFFERENCES_SHOWN = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Dir:
    """A directory."""

    mode: int = 0o755
    mtime_ns: int = MTIME_NS


@dataclass(frozen=True, slots=True)
class File:
    """A regular file: *data* at its start, *pieces* (offset, bytes) further in, and holes up to *size*.

    ``readable`` is False for one that was read back without the right to.  ``allocated`` is what it takes on
    disk, known for a file that was read, and no part of a comparison of values.
    """

    data: bytes = b""
    mode: int = field(default=0o644, kw_only=True)
    mtime_ns: int = field(default=MTIME_NS, kw_only=True)
    pieces: tuple[tuple[int, bytes], ...] = field(default=(), kw_only=True)
    size: int = field(default=-1, kw_only=True)
    readable: bool = field(default=True, kw_only=True)
    allocated: int | None = field(default=None, kw_only=True, compare=False, repr=False)

    def canonical(self) -> File:
        """The same file with the content as pieces: maximal runs of pages that are not all zero."""
        given = ((0, self.data), *self.pieces) if self.data else self.pieces
        end = max((offset + len(data) for offset, data in given), default=0)
        size = end if self.size < 0 else self.size
        if size < end:
            raise ValueError(f"a file of {size} bytes has data up to {end}")
        return replace(self, data=b"", pieces=_runs_of_pages(given), size=size)

    def data_blocks(self) -> int:
        """How many blocks hold data, for a canonical file."""
        blocks: set[int] = set()
        for offset, data in self.pieces:
            blocks.update(range(offset // BLOCK, (offset + len(data) - 1) // BLOCK + 1))
        return len(blocks)


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    text: bytes
    mtime_ns: int = field(default=MTIME_NS, kw_only=True)


@dataclass(frozen=True, slots=True)
class HardLink:
    """A further name of the file, or of the symbolic link, at path *to*."""

    to: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """A named pipe."""

    mode: int = 0o644
    mtime_ns: int = MTIME_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """A socket's name; nobody listens."""

    mode: int = 0o755
    mtime_ns: int = MTIME_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device; only root can make one."""

    block: bool = False
    number: tuple[int, int] = (1, 3)
    mode: int = 0o644
    mtime_ns: int = MTIME_NS


Entry = Dir | File | Link | HardLink | Fifo | Socket | Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A whole tree in canonical form: every directory named, the first name of a group carries its file."""

    entries: Mapping[bytes, Entry]
    root: Dir = Dir()

    def without(self, *paths: bytes) -> Tree:
        """This tree less some paths and all below them; a hard-link group goes on with its next name."""
        gone = {path for path in self.entries for top in paths if path == top or path.startswith(top + b"/")}
        return tree(_carried(self.entries, gone), root=self.root)

    def below(self, *paths: bytes) -> Tree:
        """Only these paths, what is below them, and the directories on the way."""
        kept = {path for path in self.entries for top in paths if path == top or path.startswith(top + b"/")}
        kept.update(parent for path in list(kept) for parent in _parents(path))
        return tree(_carried(self.entries, self.entries.keys() - kept), root=self.root)

    def changed(self, entries: Mapping[bytes, Entry]) -> Tree:
        """This tree with some entries exchanged or added."""
        return tree({**self.entries, **entries}, root=self.root)


def tree(entries: Mapping[bytes, Entry], *, root: Dir | None = None) -> Tree:
    """The canonical tree of *entries*; directories on the way are added.  Raises ValueError for no tree."""
    whole: dict[bytes, Entry] = {}
    for path, entry in entries.items():
        if not path or any(part in (b"", b".", b"..") for part in path.split(b"/")) or b"\0" in path:
            raise ValueError(f"no path of a tree: {path!r}")
        whole[path] = entry.canonical() if isinstance(entry, File) else entry
    for path in list(whole):
        for parent in _parents(path):
            known = parent in whole
            if not isinstance(whole.setdefault(parent, Dir()), Dir):
                raise ValueError(f"{parent!r} is no directory, and {path!r} is below it")
            if known:
                break  # its own parents are looked at for its own sake
    return Tree(entries=_grouped(whole), root=root or Dir())


def make(wanted: Tree, path: str | bytes | os.PathLike[str]) -> None:
    """Make the tree at *path*, which must not exist or be an empty directory."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    names = list(wanted.entries)
    with _Cursor(path) as cursor:
        for name in names:
            entry = wanted.entries[name]
            if not isinstance(entry, HardLink):
                _make_entry(cursor, name, entry)
        for name in names:
            entry = wanted.entries[name]
            if isinstance(entry, HardLink):
                _make_hard_link(cursor, entry.to, name)
        for name in reversed(names):
            entry = wanted.entries[name]
            if isinstance(entry, Dir):
                # By its name in its parent: who is not root cannot leave what he has just locked.
                directory, _, own = name.rpartition(b"/")
                fd = cursor.go(directory)
                os.utime(own, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd)
                os.chmod(own, entry.mode, dir_fd=fd)
        fd = cursor.go(b"")
        os.fchmod(fd, wanted.root.mode)
        os.utime(fd, ns=(wanted.root.mtime_ns, wanted.root.mtime_ns))


def read(path: str | bytes | os.PathLike[str]) -> Tree:
    """Read the tree at *path* without following anything; a directory that cannot be read looks empty."""
    entries: dict[bytes, Entry] = {}
    first_names: dict[tuple[int, int], bytes] = {}
    with _Cursor(path) as cursor:
        status = os.fstat(cursor.go(b""))
        root = Dir(mode=stat.S_IMODE(status.st_mode), mtime_ns=status.st_mtime_ns)
        pending = [b""]
        while pending:
            directory = pending.pop()
            try:
                fd = cursor.go(directory)
                names = sorted(os.fsencode(name) for name in os.listdir(fd))
            except PermissionError:
                continue
            below = []
            for name in names:
                whole = directory + b"/" + name if directory else name
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except PermissionError:
                    continue
                entry = _read_entry(fd, name, status)
                if isinstance(entry, Dir):
                    below.append(whole)
                elif status.st_nlink > 1:
                    first = first_names.setdefault((status.st_dev, status.st_ino), whole)
                    entry = entry if first == whole else HardLink(first)
                entries[whole] = entry
            pending += reversed(below)
    return tree(entries, root=root)


def differences(expected: Tree, actual: Tree, *, holes: bool = True) -> list[str]:
    """What differs, a line each; empty when *actual* is *expected* and holds nothing else.

    With *holes*, a file must not take more room than the blocks of *expected* that hold data.
    """
    lines = _compare("the root", expected.root, actual.root)
    for path in sorted(expected.entries.keys() | actual.entries.keys(), key=_sort_key):
        shown, wanted, found = ascii(path)[1:], expected.entries.get(path), actual.entries.get(path)
        if found is None:
            lines.append(f"{shown}: is missing ({type(wanted).__name__})")
        elif wanted is None:
            lines.append(f"{shown}: should not be there ({type(found).__name__})")
        else:
            lines += _compare(shown, wanted, found)
            if holes:
                lines += _compare_room(shown, wanted, found)
    return lines


def assert_equal(expected: Tree, actual: Tree, *, holes: bool = True) -> None:
    """Fail with the differences unless *actual* equals *expected* and holds nothing else."""
    lines = differences(expected, actual, holes=holes)
    if lines:
        more = f"\n  and {len(lines) - DIFFERENCES_SHOWN} more" if len(lines) > DIFFERENCES_SHOWN else ""
        raise AssertionError("the trees differ:\n  " + "\n  ".join(lines[:DIFFERENCES_SHOWN]) + more)


def restored(source: Tree, *, links: Mapping[bytes, bytes] | None = None) -> Tree:
    """What a restore makes of *source*: no special bits, no special files, one link a name; *links* are new texts."""
    entries: dict[bytes, Entry] = {}
    for path, entry in source.entries.items():
        if isinstance(entry, HardLink) and isinstance(source.entries[entry.to], Link):
            entry = source.entries[entry.to]
        if isinstance(entry, HardLink) and isinstance(source.entries[entry.to], (Fifo, Socket, Device)):
            continue
        if isinstance(entry, Link) and links and path in links:
            entry = replace(entry, text=links[path])
        elif isinstance(entry, (Dir, File)):
            entry = replace(entry, mode=entry.mode & 0o777)
        elif isinstance(entry, (Fifo, Socket, Device)):
            continue
        entries[path] = entry
    return tree(entries, root=replace(source.root, mode=source.root.mode & 0o777))


def remove(path: str | bytes | os.PathLike[str]) -> None:
    """Remove a tree of any depth, read-only directories included; a missing one is no error."""
    with contextlib.suppress(FileNotFoundError):
        with _Cursor(path) as cursor:
            pending, emptied = [b""], []
            while pending:
                directory = pending.pop()
                fd = cursor.go(directory, force=True)
                os.fchmod(fd, 0o700)
                emptied.append(directory)
                for name in map(os.fsencode, os.listdir(fd)):
                    if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                        pending.append(directory + b"/" + name if directory else name)
                    else:
                        os.unlink(name, dir_fd=fd)
            for directory in reversed(emptied[1:]):
                parent, _, name = directory.rpartition(b"/")
                os.rmdir(name, dir_fd=cursor.go(parent))
        os.rmdir(path)


class _Cursor:
    """One open directory that is moved about in a tree, a component at a time and never through a link."""

    def __init__(self, root: str | bytes | os.PathLike[str]) -> None:
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fd = os.dup(self._root_fd)
        self._parts: list[bytes] = []

    def go(self, path: bytes, *, force: bool = False) -> int:
        """Move to the directory *path* and return its descriptor, valid until the next move.

        With *force*, a directory is made accessible before it is entered.
        """
        wanted = path.split(b"/") if path else []
        keep = 0
        while keep < min(len(wanted), len(self._parts)) and wanted[keep] == self._parts[keep]:
            keep += 1
        try:
            while len(self._parts) > keep:
                self._move(b"..")
                self._parts.pop()
        except PermissionError:
            # Listed, but not to be searched, not even for its parent.
            os.close(self._fd)
            self._fd, self._parts, keep = os.dup(self._root_fd), [], 0
        for part in wanted[keep:]:
            if force:
                os.chmod(part, 0o700, dir_fd=self._fd)
            self._move(part)
            self._parts.append(part)
        return self._fd

    def _move(self, name: bytes) -> None:
        fd = os.open(name, DIRECTORY, dir_fd=self._fd)
        os.close(self._fd)
        self._fd = fd

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        os.close(self._root_fd)


def _sort_key(path: bytes) -> bytes:
    return path.replace(b"/", b"\0")


def _parents(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path


def _grouped(entries: Mapping[bytes, Entry]) -> dict[bytes, Entry]:
    """The entries in path order, each hard-link group led by its first name."""
    members: dict[bytes, list[bytes]] = {}
    for path in sorted(entries, key=_sort_key):
        entry = entries[path]
        if isinstance(entry, HardLink):
            if isinstance(entries.get(entry.to), (HardLink, Dir, type(None))):
                raise ValueError(f"{path!r} is a further name of {entry.to!r}, which is no file or link")
            members.setdefault(entry.to, []).append(path)
    changed = dict(entries)
    for carrier, names in members.items():
        first, *others = sorted([carrier, *names], key=_sort_key)
        changed.update({name: HardLink(first) for name in others})
        changed[first] = entries[carrier]
    return {path: changed[path] for path in sorted(changed, key=_sort_key)}


def _carried(entries: Mapping[bytes, Entry], gone: Iterable[bytes]) -> dict[bytes, Entry]:
    """The entries without those that are *gone*; what a group's first name carried goes to the next."""
    gone = set(gone)
    heirs: dict[bytes, bytes] = {}
    kept: dict[bytes, Entry] = {}
    for path, entry in entries.items():
        if path in gone:
            continue
        if isinstance(entry, HardLink) and entry.to in gone:
            if entry.to in heirs:
                entry = HardLink(heirs[entry.to])
            else:
                heirs[entry.to] = path
                entry = entries[entry.to]
        kept[path] = entry
    return kept


def _runs_of_pages(pieces: Iterable[tuple[int, bytes]]) -> tuple[tuple[int, bytes], ...]:
    pages: dict[int, bytearray] = {}
    for offset, data in pieces:
        position = 0
        while position < len(data):
            number, start = divmod(offset + position, PAGE)
            part = data[position : position + PAGE - start]
            page = pages.setdefault(number, bytearray())
            page.extend(bytes(max(0, start + len(part) - len(page))))
            page[start : start + len(part)] = part
            position += len(part)
    runs: list[tuple[int, list[bytes]]] = []
    last = -2
    for number in sorted(pages):
        data = bytes(pages[number]).ljust(PAGE, b"\0")
        if not data.strip(b"\0"):
            continue
        if number == last + 1:
            runs[-1][1].append(data)
        else:
            runs.append((number * PAGE, [data]))
        last = number
    return tuple((offset, b"".join(parts).rstrip(b"\0")) for offset, parts in runs)


def _make_entry(cursor: _Cursor, path: bytes, entry: Entry) -> None:
    directory, _, name = path.rpartition(b"/")
    fd = cursor.go(directory)
    if isinstance(entry, Dir):
        os.mkdir(name, 0o700, dir_fd=fd)
        return
    if isinstance(entry, Link):
        os.symlink(entry.text, name, dir_fd=fd)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)
        return
    assert not isinstance(entry, HardLink)
    if isinstance(entry, File):
        _make_file(fd, name, entry)
    elif isinstance(entry, Fifo):
        os.mkfifo(name, dir_fd=fd)
    elif isinstance(entry, Socket):
        _make_socket(fd, name)
    else:
        kind = stat.S_IFBLK if entry.block else stat.S_IFCHR
        os.mknod(name, kind | 0o600, os.makedev(*entry.number), dir_fd=fd)
    os.chmod(name, entry.mode, dir_fd=fd)
    os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)


def _make_file(directory_fd: int, name: bytes, entry: File) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
    try:
        for offset, data in entry.pieces:
            while data:
                count = os.pwrite(fd, data, offset)
                offset, data = offset + count, data[count:]
        os.ftruncate(fd, entry.size)
    finally:
        os.close(fd)


def _make_socket(directory_fd: int, name: bytes) -> None:
    # An address holds 107 bytes, so the name is made by a short one and a rename.
    with tempfile.TemporaryDirectory(dir="/proc/self/fd/%d" % directory_fd, prefix=".s") as folder:
        short = os.path.join("/proc/self/fd/%d" % directory_fd, os.path.basename(folder), "s")
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(short)
        os.rename(os.fsencode(short), name, dst_dir_fd=directory_fd)


def _make_hard_link(cursor: _Cursor, to: bytes, path: bytes) -> None:
    directory, _, name = to.rpartition(b"/")
    old_fd = os.dup(cursor.go(directory))
    try:
        directory, _, new = path.rpartition(b"/")
        os.link(name, new, src_dir_fd=old_fd, dst_dir_fd=cursor.go(directory), follow_symlinks=False)
    finally:
        os.close(old_fd)


def _read_entry(fd: int, name: bytes, status: os.stat_result) -> Entry:
    mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    if stat.S_ISDIR(status.st_mode):
        return Dir(mode=mode, mtime_ns=mtime_ns)
    if stat.S_ISLNK(status.st_mode):
        return Link(os.fsencode(os.readlink(name, dir_fd=fd)), mtime_ns=mtime_ns)
    if stat.S_ISFIFO(status.st_mode):
        return Fifo(mode=mode, mtime_ns=mtime_ns)
    if stat.S_ISSOCK(status.st_mode):
        return Socket(mode=mode, mtime_ns=mtime_ns)
    if not stat.S_ISREG(status.st_mode):
        number = os.major(status.st_rdev), os.minor(status.st_rdev)
        return Device(block=stat.S_ISBLK(status.st_mode), number=number, mode=mode, mtime_ns=mtime_ns)
    pieces, readable = _read_pieces(fd, name, status.st_size)
    return File(
        pieces=pieces,
        size=status.st_size,
        mode=mode,
        mtime_ns=mtime_ns,
        readable=readable,
        allocated=512 * status.st_blocks,
    )


def _read_pieces(directory_fd: int, name: bytes, size: int) -> tuple[tuple[tuple[int, bytes], ...], bool]:
    """The data of a file, its holes left out, and whether it could be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    except PermissionError:
        return (), False
    pieces = []
    try:
        position = 0
        while position < size:
            try:
                position = os.lseek(fd, position, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(fd, position, os.SEEK_HOLE)
            while position < end:
                data = os.pread(fd, min(end - position, BLOCK), position)
                if not data:
                    break
                pieces.append((position, data))
                position += len(data)
    finally:
        os.close(fd)
    return tuple(pieces), True


def _compare(shown: str, wanted: Entry, found: Entry) -> list[str]:
    if type(wanted) is not type(found):
        return [f"{shown}: is a {type(found).__name__}, not a {type(wanted).__name__}"]
    lines = []
    for name in wanted.__dataclass_fields__:
        old, new = getattr(wanted, name), getattr(found, name)
        if name == "allocated" or old == new:
            continue
        if name == "mode":
            lines.append(f"{shown}: mode is {new:04o}, not {old:04o}")
        elif name == "pieces":
            lines.append(f"{shown}: content differs, first {_first_difference(old, new)}")
        else:
            lines.append(f"{shown}: {name} is {new!r}, not {old!r}")
    return lines


def _first_difference(wanted: tuple[tuple[int, bytes], ...], found: tuple[tuple[int, bytes], ...]) -> str:
    for (old_at, old), (new_at, new) in zip(wanted, found, strict=False):
        if old_at != new_at:
            return f"at byte {min(old_at, new_at)}"
        if old != new:
            pairs = zip(old, new, strict=False)
            same = next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(old), len(new)))
            return f"at byte {old_at + same}: {new[same : same + 16]!r}, not {old[same : same + 16]!r}"
    longer = wanted if len(wanted) > len(found) else found
    return f"at byte {longer[min(len(wanted), len(found))][0]}"


def _compare_room(shown: str, wanted: Entry, found: Entry) -> list[str]:
    if not isinstance(wanted, File) or not isinstance(found, File) or found.allocated is None:
        return []
    allowed = wanted.data_blocks() * BLOCK + SLACK
    if found.allocated <= allowed:
        return []
    return [f"{shown}: takes {found.allocated} bytes on disk where holes leave at most {allowed}"]
