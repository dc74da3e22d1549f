"""Files written from runs: each block is proved by its digest, then put wherever the manifest names it.

Blocks that the target itself holds do not travel: they are read where the listing found them, and proved as well.
"""

import errno
import os
import stat
from array import array
from bisect import bisect_left
from hashlib import sha256

from sandlift_helper import table, wire
from sandlift_helper.blocks import FILE_FLAGS
from sandlift_helper.channel import Failure, read_exactly
from sandlift_helper.codec import CodecError, Unpacker
from sandlift_helper.ladder import Ladder

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Blocks that a worker copies within the target at a time.
LOCAL_CHUNK = 64
# Descriptors of directories that a worker keeps beside those of its ladder; some systems allow 256 in all.
FOLDERS_MAX = 64

_NOT_OURS = (errno.EPERM, errno.EINVAL, errno.EOVERFLOW)


class Metadata:
    """Modes, times and owners as they are to be; *mask* are the bits of a mode that are set.

    *owner* is None where nothing is given to anybody, a fixed (user, group), each -1 for "as it is", or True for
    those that were recorded.  ``refused`` counts entries that could not be given away.
    """

    def __init__(self, mask: int, owner: "tuple[int, int] | bool | None") -> None:
        self.refused = 0
        self._mask = mask
        self._owner = owner

    def set(self, rows: table.Segment, row: int, fd: int) -> None:
        """Sets all that the row says of the open file or directory."""
        # A change of owner clears bits of the mode, so it comes first (chown(2)).
        if self._owner is not None:
            self._give(rows.uids[row], rows.gids[row], fd, None)
        os.fchmod(fd, rows.modes[row] & self._mask)
        mtime_ns = rows.mtimes_ns[row]
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def set_root(self, root: table.Root, fd: int) -> bool:
        """The same for the root; returns False where it belongs to somebody else."""
        status = os.fstat(fd)
        if self._owner is None and (status.st_mode & 0o7777, status.st_mtime_ns) == (
            root.mode & self._mask,
            root.mtime_ns,
        ):
            return True
        try:
            self._give(root.uid, root.gid, fd, None)
            os.fchmod(fd, root.mode & self._mask)
            os.utime(fd, ns=(root.mtime_ns, root.mtime_ns))
        except PermissionError:
            return False
        return True

    def set_link(self, rows: table.Segment, row: int, directory_fd: int, name: bytes) -> None:
        self._give(rows.uids[row], rows.gids[row], directory_fd, name)
        os.utime(name, ns=(rows.mtimes_ns[row], rows.mtimes_ns[row]), dir_fd=directory_fd, follow_symlinks=False)

    def _give(self, uid: int, gid: int, fd: int, name: "bytes | None") -> None:
        if self._owner is None:
            return
        if isinstance(self._owner, tuple):
            uid, gid = self._owner
        try:
            if name is None:
                os.fchown(fd, uid, gid)
            else:
                os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
        except (OSError, OverflowError) as error:
            # Ids that this user namespace does not have.
            if isinstance(error, OSError) and error.errno not in _NOT_OURS:
                raise
            self.refused += 1


class Layout:
    """Where each block of a manifest comes from, and where it goes.

    A *use* is one place that names a block, numbered in the order of the digest column.  *column* counts the content
    frames, says at which place each begins, then at which place each use's block is (`wire.LOCAL`: the target holds
    it); both rise as the frames do.  ``order`` has the uses by place, and ``bounds`` where in it each frame begins
    and, last, the blocks that the target holds.  ``row_of`` and ``index_of`` give a use's file and block in it.
    """

    def __init__(self, rows: table.Segment, column: "array[int]") -> None:
        frames = column[0] if column else 0
        self.rows = rows
        self.starts = column[1 : frames + 1]
        self.places = places = column[frames + 1 :]
        if len(self.starts) != frames or 32 * len(places) != len(rows.digests):
            raise Failure("protocol", "the host does not place each block")
        self.order = array("I", sorted(range(len(places)), key=places.__getitem__))
        ranked = array("Q", sorted(places))
        self.bounds = [bisect_left(ranked, start) for start in self.starts]
        self.bounds.append(bisect_left(ranked, wire.LOCAL))
        self.row_of = array("I")
        self.index_of = array("I", bytes(4 * len(places)))
        position = 0
        for row, count in enumerate(rows.counts):
            if not count:
                continue
            if rows.sizes[row] > wire.BLOCK_MAX:
                use = len(self.row_of)
                if count < table.block_count(rows.sizes[row]):
                    self.index_of[use : use + count] = rows.positions[position : position + count]
                    position += count
                else:
                    self.index_of[use : use + count] = array("I", range(count))
            self.row_of.extend([row] * count)

    def uses(self, frame: int) -> "array[int]":
        """Returns the uses of what one content frame brings, by place."""
        return self.order[self.bounds[frame] : self.bounds[frame + 1]]

    def local(self, chunk: int) -> "array[int]":
        """Returns one chunk of the uses of blocks that the target holds."""
        start = self.bounds[-1] + chunk * LOCAL_CHUNK
        return self.order[start : start + LOCAL_CHUNK]


def create_file(rows: table.Segment, row: int, ladder: Ladder) -> int:
    """Creates the file of *row*, which must not exist, and returns its descriptor; private until it is finished."""
    directory, _, name = rows.paths[row].rpartition(b"/")
    return os.open(name, CREATE_FLAGS, 0o600, dir_fd=ladder.open(directory))


def reopen_file(rows: table.Segment, row: int, ladder: Ladder) -> int:
    """Returns a descriptor to write to the file of *row*, which was created before."""
    directory, _, name = rows.paths[row].rpartition(b"/")
    return os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=ladder.open(directory))


class Held:
    """The blocks that the tree at *root_fd* held when it was listed, by digest."""

    def __init__(self, root_fd: int, rows: table.Segment) -> None:
        self._ladder = Ladder(root_fd)
        self._paths = rows.paths
        self._places: "dict[bytes, tuple[int, int]]" = {}
        for row, (digest, position, count) in enumerate(rows.contents()):
            for index in range(count):
                name = bytes(rows.digests[32 * (digest + index) : 32 * (digest + index) + 32])
                self._places[name] = row, rows.positions[position + index] if position >= 0 else index

    def read(self, digest: bytes) -> bytes:
        """Returns what is now where the block was; nothing where there is no file any more."""
        row, index = self._places.get(digest, (-1, 0))
        if row < 0:
            return b""
        directory, _, name = self._paths[row].rpartition(b"/")
        try:
            fd = os.open(name, FILE_FLAGS, dir_fd=self._ladder.open(directory))
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return b""
            os.lseek(fd, index * wire.BLOCK_MAX, os.SEEK_SET)
            return read_exactly(fd, wire.BLOCK_MAX)
        finally:
            os.close(fd)


class Writer:
    """Writes the blocks of content frames into the tree whose root is open as *root_fd*.

    A file of one block is created, written and finished at once; larger ones must exist already, at their full
    size, and are finished by somebody else.
    """

    def __init__(self, root_fd: int, layout: Layout, metadata: Metadata, held: "Held | None") -> None:
        self.files = 0
        self.bytes = 0
        self.uses = 0
        self._layout = layout
        self._metadata = metadata
        self._held = held
        self._ladder = Ladder(root_fd)
        # Directories that were written to of late: the blocks of several lie side by side.
        self._folders: "dict[bytes, int]" = {}
        self._unpacker = Unpacker(wire.RUN_MAX)
        self._large_row = -1
        self._large_fd = -1

    def write_frame(self, number: int, payload: "bytes | memoryview") -> None:
        """Writes what content frame *number* brings.  Raises Failure for a block that is not what it claims."""
        try:
            codec, size, encoded = wire.split_packed(payload, wire.RUN_MAX)
            run = self._unpacker.unpack(codec, size, encoded)
        except (ValueError, CodecError) as error:
            raise Failure("store-damaged", "content frame %d: %s" % (number, error))
        layout = self._layout
        places, digests = layout.places, layout.rows.digests
        base = layout.starts[number]
        before = digest = None
        for use in layout.uses(number):
            at, length = places[use] - base, self._length(use)
            # A block that is at several places is hashed once.
            if (at, length) != before:
                before = at, length
                block = run[at : at + length]
                digest = sha256(block).digest()
            if digest != digests[32 * use : 32 * use + 32]:
                raise Failure("store-damaged", "a block in content frame %d does not hash to its name" % number)
            self._write(use, block)

    def copy_local(self, chunk: int) -> None:
        """Writes one chunk of the blocks that the target holds.  Raises Failure when one is no longer there."""
        digests = self._layout.rows.digests
        for use in self._layout.local(chunk):
            digest = bytes(digests[32 * use : 32 * use + 32])
            block = self._held.read(digest) if self._held else b""
            if sha256(block).digest() != digest or len(block) != self._length(use):
                raise Failure("conflict", "a file of the target was changed by somebody else meanwhile")
            self._write(use, memoryview(block))

    def _length(self, use: int) -> int:
        """Returns how many bytes the block of a use has."""
        layout = self._layout
        return min(wire.BLOCK_MAX, layout.rows.sizes[layout.row_of[use]] - layout.index_of[use] * wire.BLOCK_MAX)

    def _write(self, use: int, block: memoryview) -> None:
        rows, row = self._layout.rows, self._layout.row_of[use]
        if rows.sizes[row] > wire.BLOCK_MAX:
            _write_at(self._open_large(row), block, self._layout.index_of[use] * wire.BLOCK_MAX)
        else:
            directory, _, name = rows.paths[row].rpartition(b"/")
            folder = self._folders.get(directory, -1)
            fd = os.open(name, CREATE_FLAGS, 0o600, dir_fd=self._open_folder(directory) if folder < 0 else folder)
            try:
                if os.write(fd, block) != len(block):
                    _write_at(fd, block, 0)
                self._metadata.set(rows, row, fd)
            finally:
                os.close(fd)
            self.files += 1
        self.uses += 1
        self.bytes += len(block)

    def _open_folder(self, path: bytes) -> int:
        if len(self._folders) == FOLDERS_MAX:
            self._close_folders()
        fd = self._folders[path] = os.dup(self._ladder.open(path))
        return fd

    def _close_folders(self) -> None:
        while self._folders:
            os.close(self._folders.popitem()[1])

    def _open_large(self, row: int) -> int:
        if row != self._large_row:
            self._close_large()
            self._large_fd = reopen_file(self._layout.rows, row, self._ladder)
            self._large_row = row
        return self._large_fd

    def _close_large(self) -> None:
        if self._large_fd >= 0:
            os.close(self._large_fd)
        self._large_row = self._large_fd = -1

    def close(self) -> None:
        self._close_large()
        self._close_folders()


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        count = os.pwrite(fd, data, offset)
        data = data[count:]
        offset += count
