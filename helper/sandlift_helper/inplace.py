"""A tree changed in place, so that each entry is old or new at every instant, and a rerun completes what broke off.

Order: the marker; new parts under temporary names in the directories where they will be; a flush; their renames;
removals, the deepest first; modes and times of what stays, the deepest first; the marker's removal.  The content of
an inode that was there before is never altered.
"""

import errno
import os
import stat

from sandlift_helper import table
from sandlift_helper.blocks import FILE_FLAGS
from sandlift_helper.channel import Failure
from sandlift_helper.ladder import DIRECTORY_FLAGS, Ladder
from sandlift_helper.marker import MARKER, new_id, temporary_prefix, write_marker
from sandlift_helper.removal import Mounted, open_up, remove
from sandlift_helper.rename import NoExchange, exchange, rename_new
from sandlift_helper.staging import sync_file_system

MYPY = False
if MYPY:
    from collections.abc import Iterable

    from sandlift_helper.writer import Metadata

_MEANWHILE = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


class InPlace:
    """The changes to the tree whose root is open as *root_fd*; *leftover* is the id of a restore that broke off here.

    *rows* are what is built; its flags say where new parts begin and how each gets its name (`table.CREATE` and the
    others).  After `begin` the paths of *rows* are the temporary ones.
    """

    def __init__(self, root_fd: int, rows: table.Segment, leftover: bytes, shown: str) -> None:
        self._root_fd = root_fd
        self._shown = shown
        self._run_id = leftover or new_id()
        self._marked = bool(leftover)
        self._before = os.fstat(root_fd)
        # Directories that the owner was let into, and their modes.
        self._opened: "list[tuple[bytes, int]]" = []
        self._units: "list[tuple[bytes, bytes, bytes, int]]" = []
        prefix = temporary_prefix(self._run_id)
        for number, (path, way) in enumerate(zip(rows.flag_paths, rows.flags)):
            directory, _, name = path.rpartition(b"/")
            self._units.append((directory, prefix + b"%d" % number, name, way))
        self._rename_rows(rows)

    def _rename_rows(self, rows: table.Segment) -> None:
        """Gives all rows the paths at which they are built; rows and units are both in path order."""
        unit = -1
        top = below = b""
        for row, path in enumerate(rows.paths):
            if unit < 0 or (path != top and not path.startswith(below)):
                unit += 1
                if unit >= len(self._units):
                    raise Failure("protocol", "an entry belongs to no new part")
                directory, temporary, name, _ = self._units[unit]
                top = directory + b"/" + name if directory else name
                below = top + b"/"
                start = directory + b"/" + temporary if directory else temporary
                if path != top:
                    raise Failure("protocol", "a new part does not begin with its top")
            rows.paths[row] = start + path[len(top) :]

    def remove_leftovers(self, paths: "Iterable[bytes]") -> None:
        """Removes what a restore that broke off left under temporary names."""
        ladder = Ladder(self._root_fd)
        for path in paths:
            if path != MARKER:
                directory, _, name = path.rpartition(b"/")
                remove(ladder.open(directory), name)
        ladder.close()

    def begin(self, removals: table.Segment) -> None:
        """Writes the marker, and lets the owner into the directories in which something will change."""
        directories = {directory for directory, _, _, _ in self._units}
        directories.update(path.rpartition(b"/")[0] for path in removals.excluded_paths)
        if os.geteuid() and self._before.st_mode & 0o700 != 0o700:
            os.fchmod(self._root_fd, self._before.st_mode & 0o7777 | 0o700)
        if not self._marked:
            write_marker(self._root_fd, self._run_id)
        if not os.geteuid():
            return
        ladder = Ladder(self._root_fd)
        for path in sorted(directories - {b""}, key=table.sort_key):
            directory, _, name = path.rpartition(b"/")
            fd = ladder.open(directory)
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                open_up(fd, name, mode & 0o7777 | 0o700)
                self._opened.append((path, mode & 0o7777))
        ladder.close()

    def publish(self, removals: table.Segment) -> None:
        """Flushes the new parts, gives them their names, and removes what *removals* leaves out.  Raises Failure."""
        sync_file_system(self._root_fd)
        ladder = Ladder(self._root_fd)
        path = b""
        try:
            for directory, temporary, name, way in self._units:
                path = directory + b"/" + name if directory else name
                self._rename(ladder.open(directory), temporary, name, way)
            for path, kind in zip(removals.excluded_paths, removals.excluded_kinds):
                directory, _, name = path.rpartition(b"/")
                self._remove(ladder.open(directory), name, kind)
        except OSError as error:
            if error.errno in _MEANWHILE:
                raise Failure(
                    "conflict", "%s: %s was changed by somebody else meanwhile" % (self._shown, os.fsdecode(path))
                )
            raise
        except Mounted:
            raise Failure("conflict", "%s: something is mounted below %s" % (self._shown, os.fsdecode(path)))
        ladder.close()

    def _rename(self, fd: int, temporary: bytes, name: bytes, way: int) -> None:
        if way == table.CREATE:
            rename_new(fd, temporary, name)
        elif way == table.REPLACE:
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        else:
            try:
                old = self._exchange(fd, temporary, name)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # A directory of an overlay's lower layer cannot be renamed, only emptied.
                remove(fd, name)
                os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
            else:
                remove(fd, old)

    def _exchange(self, fd: int, temporary: bytes, name: bytes) -> bytes:
        """Gives a new part its name; returns the name that the old one has now."""
        try:
            exchange(fd, temporary, name)
            return temporary
        except NoExchange:
            # Until the second rename the name is free; a rerun would fill it.
            aside = temporary + b"-old"
            os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
            return aside

    def _remove(self, fd: int, name: bytes, kind: int) -> None:
        try:
            if kind == table.DIRECTORY:
                os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass

    def settle(self, rows: table.Segment, metadata: "Metadata") -> None:
        """Sets modes, times and owners of what stays, the deepest first."""
        ladder = Ladder(self._root_fd)
        for row in range(len(rows) - 1, -1, -1):
            directory, _, name = rows.paths[row].rpartition(b"/")
            fd = ladder.open(directory)
            if rows.kinds[row] == table.LINK:
                metadata.set_link(rows, row, fd, name)
                continue
            flags = DIRECTORY_FLAGS if rows.kinds[row] == table.DIRECTORY else FILE_FLAGS
            try:
                entry = os.open(name, flags, dir_fd=fd)
            except PermissionError:
                # A file that its owner may not read; what it will be in the end is set below.
                open_up(fd, name, 0o600 if rows.kinds[row] == table.FILE else 0o700)
                entry = os.open(name, flags, dir_fd=fd)
            try:
                if stat.S_ISDIR(os.fstat(entry).st_mode) != (rows.kinds[row] == table.DIRECTORY):
                    raise Failure(
                        "conflict", "%s was changed by somebody else meanwhile" % os.fsdecode(rows.paths[row])
                    )
                metadata.set(rows, row, entry)
            finally:
                os.close(entry)
        ladder.close()

    def end(self, removals: table.Segment, keeps_time: bool) -> None:
        """Flushes, and removes the marker: the tree is what it is to be; the root has the mode that it had.

        It has its old time, too, if it *keeps_time*, or unless something directly in it came or went.
        """
        sync_file_system(self._root_fd)
        os.unlink(MARKER, dir_fd=self._root_fd)
        os.fsync(self._root_fd)
        self._close_up(frozenset(removals.paths))
        before = self._before
        if os.fstat(self._root_fd).st_mode != before.st_mode:
            os.fchmod(self._root_fd, before.st_mode & 0o7777)
        changed = any(not directory for directory, _, _, _ in self._units)
        if keeps_time or (not changed and all(b"/" in path for path in removals.excluded_paths)):
            try:
                os.utime(self._root_fd, ns=(before.st_atime_ns, before.st_mtime_ns))
            except PermissionError:
                # Somebody else's directory: its time says that something was here.
                pass

    def _close_up(self, settled: "frozenset[bytes]") -> None:
        """Gives directories that were opened their modes back, but for those that got theirs already."""
        ladder = Ladder(self._root_fd)
        for path, mode in reversed(self._opened):
            if path not in settled:
                try:
                    os.fchmod(ladder.open(path), mode)
                except FileNotFoundError:
                    # It was one of those to be removed.
                    pass
        ladder.close()

    def abandon(self) -> None:
        """Removes what was made under temporary names, before anything got its own, and this restore's marker."""
        ladder = Ladder(self._root_fd)
        for directory, temporary, _, _ in self._units:
            try:
                remove(ladder.open(directory), temporary)
            except (OSError, Mounted):
                pass
        ladder.close()
        if self._marked:
            # The tree is still what an earlier restore left half done.
            return
        try:
            self._close_up(frozenset())
            os.unlink(MARKER, dir_fd=self._root_fd)
        except OSError:
            pass
