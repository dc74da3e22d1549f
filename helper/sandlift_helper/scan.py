"""The walk over a workspace: every entry looked at once, nothing followed, nothing opened but directories.

Directories are reached by descriptor (see `ladder`) and listed; each name is looked at with ``lstat``, in path
order: where a directory comes up, the walk goes down before it looks at the next name.  What the rules exclude
is not opened.  The result is three lists, directories, links and files, plus the rows of what is left out; links
are judged and files are read later.
"""

import os
import stat
from array import array

from sandlift_helper import table
from sandlift_helper.channel import Failure
from sandlift_helper.ladder import Ladder
from sandlift_helper.marker import MARKER, temporary_prefix

MYPY = False
if MYPY:
    from collections.abc import Callable, Sequence

    from sandlift_helper.ignore import Rules
    from sandlift_helper.mounts import Mounts

_SPECIAL = {
    stat.S_IFIFO: (table.FIFO, table.REASON_FIFO),
    stat.S_IFSOCK: (table.SOCKET, table.REASON_SOCKET),
    stat.S_IFCHR: (table.CHAR_DEVICE, table.REASON_CHAR_DEVICE),
    stat.S_IFBLK: (table.BLOCK_DEVICE, table.REASON_BLOCK_DEVICE),
}
_ENTRY_KINDS = {stat.S_IFDIR: table.DIRECTORY, stat.S_IFREG: table.FILE, stat.S_IFLNK: table.LINK}

# What an OSError of a directory or a file means for its row; anything else is an input/output error.
_DENIED = frozenset((1, 13))  # EPERM, EACCES
_GONE = frozenset((2, 116))  # ENOENT, ESTALE


def loss_reason(error: OSError) -> int:
    """Returns the reason for a row that an OSError of an entry which is there means."""
    return table.UNREADABLE if error.errno in _DENIED else table.IO_ERROR


def clean_mode(mode: int) -> int:
    return mode & 0o7777


class Limits:
    """What an honest helper leaves out as *lost: limit* to stay within what its request allows."""

    def __init__(self, entries: int, path_bytes: int, depth: int, link_text_bytes: int, file_bytes: int) -> None:
        self.entries = entries
        # A name directly below the root always fits.
        self.path_bytes = max(path_bytes, 255)
        self.depth = depth
        self.link_text_bytes = min(link_text_bytes, table.TEXT_MAX)
        self.file_bytes = file_bytes


def read_limits(message: "dict[str, int]") -> Limits:
    """Returns the limits that a request states."""
    return Limits(
        message["entries"], message["path_bytes"], message["depth"], message["link_text_bytes"], message["file_bytes"]
    )


def identities(paths: "list[bytes]") -> "frozenset[tuple[int, int]]":
    """Returns (device, inode) of what is at the *paths*."""
    found = set()
    for path in paths:
        try:
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
        except OSError:
            pass
    return frozenset(found)


COLUMNS = "paths modes mtimes_ns ctimes_ns inodes uids gids sizes groups sparse elsewhere".split()


class Files:
    """The regular files that were found, as columns in path order.

    ``groups`` numbers hard-link groups from 1, 0 is none; ``elsewhere`` is 1 for a file that is not on the root's
    own file system.
    """

    def __init__(self, device: int = 0) -> None:
        self.device = device
        # What numbers of groups are counted from, so that those of two readings differ.
        self.offset = 0
        self.paths: "list[bytes]" = []
        self.modes = array("H")
        self.mtimes_ns = array("q")
        self.ctimes_ns = array("q")
        self.inodes = array("Q")
        self.uids = array("I")
        self.gids = array("I")
        self.sizes = array("Q")
        self.groups = array("I")
        self.sparse = bytearray()
        self.elsewhere = bytearray()
        # Group to its rows: the first one carries the content.
        self.members: "dict[int, list[int]]" = {}
        # Group to the number of names that the file system counts, inside and outside.
        self.name_counts: "dict[int, int]" = {}

    def add(self, path: bytes, status: os.stat_result, group: int) -> None:
        if group:
            self.members.setdefault(group, []).append(len(self.paths))
            self.name_counts[group] = status.st_nlink
        self.paths.append(path)
        self.modes.append(clean_mode(status.st_mode))
        try:
            self.mtimes_ns.append(status.st_mtime_ns)
        except OverflowError:
            self.mtimes_ns.append(table.clamp_ns(status.st_mtime_ns))
        self.ctimes_ns.append(status.st_ctime_ns)
        self.inodes.append(status.st_ino)
        self.uids.append(status.st_uid)
        self.gids.append(status.st_gid)
        self.sizes.append(status.st_size)
        self.groups.append(group)
        self.sparse.append(status.st_blocks * 512 < status.st_size)
        self.elsewhere.append(status.st_dev != self.device)

    def subset(self, paths: "frozenset[bytes]") -> "Files":
        """Returns the files with these paths."""
        return self.select([row for row, path in enumerate(self.paths) if path in paths])

    def select(self, rows: "Sequence[int]") -> "Files":
        """Returns the files in these *rows*, which rise."""
        part = Files(self.device)
        for name in COLUMNS:
            column = getattr(self, name)
            getattr(part, name).extend([column[row] for row in rows])
        for row, group in enumerate(part.groups):
            if group:
                part.members.setdefault(group, []).append(row)
        return part

    def stamp(self, row: int) -> "tuple[int, int, int, int]":
        """Returns (size, mtime, ctime, inode) as the scan saw them."""
        return self.sizes[row], self.mtimes_ns[row], self.ctimes_ns[row], self.inodes[row]


class Scan:
    """Walks the workspace whose root is open as *root_fd*.

    ``directories`` are (path, status) pairs, ``links`` (path, status, text) triples, both in path order; status
    is None for a foreign mount, which is not even asked.  ``left`` holds excluded rows and flags.
    *skip* says of a directory, by its names and its descriptor, why its content excludes it, if it does.
    *own* are (device, inode) pairs of directories that belong to sandlift itself; *leftover* is the id of a restore
    that was not finished here, or empty, and the paths that it left are ``leftovers``.  *tick* is called with the
    numbers of entries and bytes after each directory.
    """

    def __init__(
        self,
        root_fd: int,
        limits: Limits,
        rules: "Rules | None",
        mounts: "Mounts",
        own: "frozenset[tuple[int, int]]",
        skip: "Callable[[list[bytes], int], bytes | None] | None",
        tick: "Callable[[int, int], None]",
        leftover: bytes = b"",
    ) -> None:
        self.directories: "list[tuple[bytes, os.stat_result | None]]" = []
        self.links: "list[tuple[bytes, os.stat_result, bytes]]" = []
        self.left = table.Segment()
        self.leftovers: "list[bytes]" = []
        self.bytes = 0
        self.root_status = os.fstat(root_fd)
        self.files = Files(self.root_status.st_dev)
        self._root_fd = root_fd
        self._limits = limits
        self._rules = rules
        self._mounts = mounts
        self._own = own
        self._skip = skip
        self._tick = tick
        self._temporary = temporary_prefix(leftover) if leftover else b""
        self._ladder = Ladder(root_fd)
        self._groups: "dict[tuple[int, int], int]" = {}
        # The directories on the way down: path, depth, and the names that are still to be looked at.
        self._way: "list[tuple[bytes, int, list[bytes]]]" = []
        self._with_long_paths: "set[bytes]" = set()
        self._looked = 0

    def run(self) -> None:
        """Does the walk.  Raises Failure when the root itself cannot be listed."""
        self._walk(b"", 0, self.root_status)
        self._ladder.close()

    def _walk(self, path: bytes, depth: int, status: os.stat_result) -> None:
        """Walks the directory *path*."""
        self._enter(path, depth, status)
        way = self._way
        while way:
            path, depth, names = way[-1]
            prefix = path + b"/" if path else b""
            height = len(way)
            if names:
                try:
                    self._fd = self._ladder.open(path)
                except OSError as error:
                    # It was closed, so far down was the walk since, and is not there any more.
                    while names:
                        self._lose(prefix + names.pop(), table.UNKNOWN, error)
            while names and len(way) == height:
                name = names.pop()
                self._look(prefix + name, name, depth)
            if len(way) == height:
                way.pop()
                self.tell()

    def tell(self) -> None:
        """Calls *tick* with what was found so far."""
        self._tick(len(self.files.paths) + len(self.directories) + len(self.links), self.bytes)

    def _enter(self, path: bytes, depth: int, status: os.stat_result) -> None:
        """Lists a directory, so that its names are the next to be looked at."""
        try:
            fd = self._ladder.open(path)
            names = os.fsencode("\0".join(os.listdir(fd))).split(b"\0")
        except OSError as error:
            if not path:
                raise Failure("root-unreadable", "the root cannot be listed: %s" % error.strerror)
            self._not_entered(path, status, error)
            return
        if path:
            detail = self._skip(names, fd) if self._skip else None
            if detail:
                self.left.exclude(path, table.DIRECTORY, table.PATTERN, detail)
                return
            self.directories.append((path, status))
        # The next one comes last; of no names, the split makes an empty one.
        names.sort(reverse=True)
        if not names[-1]:
            names.pop()
        room = self._room(path, len(names))
        if room < len(names):
            # One row for this name and all that follow it in the directory.
            beyond = names[-1 - room]
            self.left.exclude(path + b"/" + beyond if path else beyond, table.UNKNOWN, table.LIMIT, b"entries")
            del names[: len(names) - room]
        self._way.append((path, depth, names))

    def _room(self, path: bytes, count: int) -> int:
        """Returns how many of *count* names in a directory may be looked at, to stay within the limit of entries.

        Each name that is looked at becomes at most one entry and, itself or in what is below it, one row of what
        is left out.  Only the root has no such name, so it gives one up for the row of the names beyond the limit.
        """
        room = self._limits.entries - self._looked
        if count > room and not path:
            room -= 1
        room = min(room, count)
        self._looked += room
        return room

    def _not_entered(self, path: bytes, status: os.stat_result, error: OSError) -> None:
        if error.errno in _GONE:
            self.left.flag(path, table.VANISHED)
        elif error.errno in (20, 40):  # ENOTDIR, ELOOP: exchanged for something else since it was looked at
            self.left.exclude(path, table.DIRECTORY, table.UNSTABLE, b"no longer a directory")
        else:
            self.directories.append((path, status))
            self.left.exclude(path, table.DIRECTORY, loss_reason(error), _strerror(error))

    def _lose(self, path: bytes, kind: int, error: OSError, reason: int = 0) -> None:
        if error.errno in _GONE:
            self.left.flag(path, table.VANISHED)
        else:
            self.left.exclude(path, kind, reason or loss_reason(error), _strerror(error))

    def _look(self, path: bytes, name: bytes, depth: int) -> None:
        """Records one name of the directory that is open as ``self._fd``."""
        if len(path) > self._limits.path_bytes:
            # Whatever it is: no row may hold a path over the limit.
            self._leave_long_path(path)
            return
        if self._temporary and (path == MARKER or name.startswith(self._temporary)):
            self.leftovers.append(path)
            return
        foreign = self._mounts.foreign(path)
        if foreign is not None:
            kind = self._listed_kind(name)
            if not self._excluded_by_rule(path, kind):
                if kind == table.DIRECTORY:
                    self.directories.append((path, None))
                self.left.exclude(path, kind, table.MOUNT, foreign)
            return
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError as error:
            self._lose(path, table.UNKNOWN, error)
            return
        kind = _ENTRY_KINDS.get(status.st_mode & 0o170000, -1)
        if self._rules and self._excluded_by_rule(path, kind if kind >= 0 else _special(status)[0]):
            return
        if kind == table.DIRECTORY:
            self._look_directory(path, status, depth)
        elif kind == table.LINK:
            self._look_link(path, name, status)
        elif kind == table.FILE:
            self._look_file(path, status)
        else:
            special, reason = _special(status)
            self.left.exclude(path, special, reason)

    def _listed_kind(self, name: bytes) -> int:
        """Returns the kind of a mount point, a directory or a file, as its directory lists it."""
        with os.scandir(b"/proc/self/fd/%d" % self._fd) as listed:
            directories = {entry.name: entry.is_dir(follow_symlinks=False) for entry in listed}
        return table.DIRECTORY if directories.get(name, True) else table.FILE

    def _excluded_by_rule(self, path: bytes, kind: int) -> bool:
        detail = self._rules.excluded(path, kind == table.DIRECTORY) if self._rules else None
        if detail is None:
            return False
        self.left.exclude(path, kind, table.PATTERN, detail)
        return True

    def _leave_long_path(self, path: bytes) -> None:
        # The row must obey the limit as well, so it names the directory.
        directory = path.rpartition(b"/")[0]
        if directory not in self._with_long_paths:
            self._with_long_paths.add(directory)
            self.left.exclude(directory, table.DIRECTORY, table.LIMIT, b"path")

    def _look_directory(self, path: bytes, status: os.stat_result, depth: int) -> None:
        if (status.st_dev, status.st_ino) in self._own:
            self.left.exclude(path, table.DIRECTORY, table.OWN)
        elif depth + 1 >= self._limits.depth:
            self.directories.append((path, status))
            self.left.exclude(path, table.DIRECTORY, table.LIMIT, b"depth")
        elif status.st_dev != self.root_status.st_dev and not self._mounts.known:
            self.directories.append((path, status))
            self.left.exclude(path, table.DIRECTORY, table.MOUNT, b"unknown")
        else:
            self._enter(path, depth + 1, status)

    def _look_link(self, path: bytes, name: bytes, status: os.stat_result) -> None:
        try:
            text = os.readlink(name, dir_fd=self._fd)
        except OSError as error:
            self._lose(path, table.LINK, error, table.UNSTABLE)
            return
        if len(text) > self._limits.link_text_bytes:
            self.left.exclude(path, table.LINK, table.LIMIT, b"link text")
            return
        self.links.append((path, status, text))

    def _look_file(self, path: bytes, status: os.stat_result) -> None:
        if status.st_size > self._limits.file_bytes:
            self.left.exclude(path, table.FILE, table.TOO_LARGE, b"%d bytes" % status.st_size)
            return
        group = 0
        if status.st_nlink > 1:
            key = (status.st_dev, status.st_ino)
            group = self._groups.setdefault(key, len(self._groups) + 1)
        if group not in self.files.members:
            self.bytes += status.st_size
        self.files.add(path, status, group)


def _special(status: os.stat_result) -> "tuple[int, int]":
    kind, reason = _SPECIAL.get(stat.S_IFMT(status.st_mode), (table.UNKNOWN, table.IO_ERROR))
    if kind == table.CHAR_DEVICE and status.st_rdev == 0:
        # A character device 0/0 is how overlayfs marks a deleted name (kernel documentation, overlayfs).
        return kind, table.WHITEOUT
    return kind, reason


def _strerror(error: OSError) -> bytes:
    return os.fsencode(error.strerror or "error %s" % error.errno)
