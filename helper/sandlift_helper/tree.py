"""A tree made from a table: the parts of it that one process makes, everything but the files' content."""

import errno
import os
import struct

from sandlift_helper import table, wire
from sandlift_helper.inplace import InPlace
from sandlift_helper.ladder import Ladder
from sandlift_helper.writer import Metadata, create_file, reopen_file

# Hard links that became copies, refused owners, and whether the root took its metadata.
FINISHED = struct.Struct("<II?")

_NO_HARD_LINK = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV)


class Tree:
    """Makes *rows* below *root_fd*: `begin`, then somebody writes the content, then `finish`."""

    def __init__(self, root_fd: int, rows: table.Segment, metadata: Metadata) -> None:
        self._copied = 0
        self._rows = rows
        self._firsts = rows.first_of_groups()
        self._ladder = Ladder(root_fd)
        self._root_fd = root_fd
        self._metadata = metadata

    def begin(self) -> bytes:
        """Makes directories, and the files that several workers write to."""
        for path, kind in zip(self._rows.paths, self._rows.kinds):
            if kind == table.DIRECTORY:
                directory, _, name = path.rpartition(b"/")
                os.mkdir(name, 0o700, dir_fd=self._ladder.open(directory))
        self._make_large_files()
        return b""

    def _make_large_files(self) -> None:
        """Creates the large files at their full size; what stays unwritten is a hole."""
        rows = self._rows
        for row, size in enumerate(rows.sizes):
            if size > wire.BLOCK_MAX and not self._is_further_name(row):
                fd = create_file(rows, row, self._ladder)
                try:
                    os.ftruncate(fd, size)
                finally:
                    os.close(fd)

    def _is_further_name(self, row: int) -> bool:
        group = self._rows.groups[row]
        return bool(group) and self._firsts[group] != row

    def finish(self, keep_root: "os.stat_result | None", in_place: "InPlace | None") -> bytes:
        """Makes what is left once all content is written; *keep_root* is the status of a root that keeps its own."""
        self._finish_files()
        self._make_hard_links()
        self._make_links()
        self._finish_directories()
        root_set = True
        if in_place is None:
            if keep_root is not None:
                self._keep_root(keep_root)
            elif self._rows.root is not None:
                root_set = self._metadata.set_root(self._rows.root, self._root_fd)
        return FINISHED.pack(self._copied, self._metadata.refused, root_set)

    def settle(self, in_place: InPlace, settled: table.Segment, keeps_time: bool) -> bytes:
        """Gives the new parts their names and brings what stays to what it is to be."""
        in_place.publish(settled)
        in_place.settle(settled, self._metadata)
        in_place.end(settled, keeps_time)
        # Last of all, since the marker's removal moves the root's time.
        root_set = self._rows.root is None or self._metadata.set_root(self._rows.root, self._root_fd)
        return FINISHED.pack(0, self._metadata.refused, root_set)

    def _finish_files(self) -> None:
        rows = self._rows
        for row, (kind, size, count) in enumerate(zip(rows.kinds, rows.sizes, rows.counts)):
            # A file of one block was finished with it.
            if kind != table.FILE or (count and size <= wire.BLOCK_MAX) or self._is_further_name(row):
                continue
            if size > wire.BLOCK_MAX:
                fd = reopen_file(rows, row, self._ladder)
            else:
                fd = create_file(rows, row, self._ladder)
                os.ftruncate(fd, size)
            try:
                self._metadata.set(rows, row, fd)
            finally:
                os.close(fd)

    def _make_hard_links(self) -> None:
        rows = self._rows
        second = Ladder(self._root_fd)
        # The name that a group's next one is linked to: a copy, once there had to be one.
        carriers = dict(self._firsts)
        for row, group in enumerate(rows.groups):
            if not group or not self._is_further_name(row):
                continue
            directory, _, name = rows.paths[row].rpartition(b"/")
            fd = second.open(directory)
            # Beyond a mount the first name can be linked to again.
            if not (self._link(carriers[group], fd, name) or self._link(self._firsts[group], fd, name)):
                self._copy(self._firsts[group], row, second)
                carriers[group] = row
                self._copied += 1
        second.close()

    def _link(self, row: int, fd: int, name: bytes) -> bool:
        """Gives the file of *row* another name; returns whether the file system can."""
        directory, _, old = self._rows.paths[row].rpartition(b"/")
        try:
            os.link(old, name, src_dir_fd=self._ladder.open(directory), dst_dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_HARD_LINK:
                raise
            return False
        return True

    def _copy(self, first: int, row: int, ladder: Ladder) -> None:
        directory, _, old = self._rows.paths[first].rpartition(b"/")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        source = os.open(old, flags, dir_fd=self._ladder.open(directory))
        fd = create_file(self._rows, row, ladder)
        try:
            while True:
                piece = os.read(source, 1 << 20)
                if not piece:
                    break
                while piece:
                    piece = piece[os.write(fd, piece) :]
            self._metadata.set(self._rows, row, fd)
        finally:
            os.close(source)
            os.close(fd)

    def _make_links(self) -> None:
        rows = self._rows
        texts = iter(rows.texts)
        for row, kind in enumerate(rows.kinds):
            if kind == table.LINK:
                directory, _, name = rows.paths[row].rpartition(b"/")
                fd = self._ladder.open(directory)
                os.symlink(next(texts), name, dir_fd=fd)
                self._metadata.set_link(rows, row, fd, name)

    def _finish_directories(self) -> None:
        rows = self._rows
        for row in range(len(rows) - 1, -1, -1):
            if rows.kinds[row] == table.DIRECTORY:
                self._metadata.set(rows, row, self._ladder.open(rows.paths[row]))
        self._ladder.close()

    def _keep_root(self, keep: os.stat_result) -> None:
        if (keep.st_uid, keep.st_gid) != (os.geteuid(), os.getegid()):
            try:
                os.fchown(self._root_fd, keep.st_uid, keep.st_gid)
            except PermissionError:
                # Who may exchange somebody else's directory cannot make him the owner of the new one.
                pass
        os.fchmod(self._root_fd, keep.st_mode & 0o7777)
        os.utime(self._root_fd, ns=(keep.st_atime_ns, keep.st_mtime_ns))
