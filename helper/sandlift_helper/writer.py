"""Files written from runs: each block is proved by its digest, then put wherever the manifest names it.

Blocks that the target itself holds do not travel: they are read where the listing found them, and proved as well.
"""

import errno
import os
import stat
from array import array
from hashlib import sha256

from sandlift_helper import members, table, wire
from sandlift_helper.blocks import FILE_FLAGS
from sandlift_helper.channel import Failure, read_exactly
from sandlift_helper.codec import CodecError, Unpacker
from sandlift_helper.ladder import Ladder

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

NO_USE = 0xFFFFFFFF
# Blocks that a worker copies within the target at a time.
LOCAL_CHUNK = 64

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
        self._give(rows.uids[row], rows.gids[row], fd, None)
        os.fchmod(fd, rows.modes[row] & self._mask)
        os.utime(fd, ns=(rows.mtimes_ns[row], rows.mtimes_ns[row]))

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
    """Where each block of a manifest goes.

    A *use* is one place that names a block, numbered in the order of the digest column.  ``first_use`` maps a
    digest to its first use, ``next_use`` chains further ones, ``row_of`` and ``index_of`` give the file and the
    index of the block in it; ``frame_of`` is the number of the content frame that brings the block, by use.
    """

    def __init__(self, rows: table.Segment, frames: "array[int]") -> None:
        self.rows = rows
        self.first_use: "dict[bytes, int]" = {}
        # First uses of the blocks that the target holds.
        self.local: "list[int]" = []
        self.next_use = array("I")
        self.row_of = array("I")
        self.index_of = array("I")
        self.frame_of = array("I")
        last_use: "dict[bytes, int]" = {}
        digests = bytes(rows.digests)
        for row, (digest, position, count) in enumerate(rows.contents()):
            for index in range(count):
                use = digest + index
                name = digests[32 * use : 32 * use + 32]
                self.row_of.append(row)
                self.index_of.append(rows.positions[position + index] if position >= 0 else index)
                self.next_use.append(NO_USE)
                if name in last_use:
                    self.next_use[last_use[name]] = use
                    self.frame_of.append(NO_USE)
                else:
                    number = len(self.first_use)
                    if number >= len(frames):
                        raise Failure("protocol", "the manifest names more blocks than the host places")
                    self.first_use[name] = use
                    if frames[number] == wire.LOCAL:
                        self.local.append(use)
                    self.frame_of.append(frames[number])
                last_use[name] = use

    def use(self, digest: bytes, frame: int) -> int:
        """Returns the first use of a block, or NO_USE if it is not this *frame* that has to bring it."""
        use = self.first_use.get(digest, NO_USE)
        return use if use != NO_USE and self.frame_of[use] == frame else NO_USE


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
        self._unpacker = Unpacker(wire.RUN_MAX)
        self._large_row = -1
        self._large_fd = -1

    def write_frame(self, number: int, payload: "bytes | memoryview") -> None:
        """Writes what content frame *number* brings.  Raises Failure for a block that is not what it claims."""
        try:
            codec, size, encoded = wire.split_packed(payload, wire.RUN_MAX)
            run = self._unpacker.unpack(codec, size, encoded)
            found = members.parse_run(run)
        except (ValueError, CodecError) as error:
            raise Failure("store-damaged", "content frame %d: %s" % (number, error))
        layout = self._layout
        done = set()
        for digest, start, length in found:
            use = layout.use(digest, number)
            if use == NO_USE or use in done:
                continue
            done.add(use)
            block = run[start : start + length]
            if sha256(block).digest() != digest:
                raise Failure("store-damaged", "a block in content frame %d does not hash to its name" % number)
            self._write_uses(use, block)

    def copy_local(self, chunk: int) -> None:
        """Writes one chunk of the blocks that the target holds.  Raises Failure when one is no longer there."""
        digests = self._layout.rows.digests
        for use in self._layout.local[chunk * LOCAL_CHUNK : (chunk + 1) * LOCAL_CHUNK]:
            digest = bytes(digests[32 * use : 32 * use + 32])
            block = self._held.read(digest) if self._held else b""
            if sha256(block).digest() != digest:
                raise Failure("conflict", "a file of the target was changed by somebody else meanwhile")
            self._write_uses(use, memoryview(block))

    def _write_uses(self, use: int, block: memoryview) -> None:
        while use != NO_USE:
            self._write_block(use, block)
            use = self._layout.next_use[use]

    def _write_block(self, use: int, block: memoryview) -> None:
        rows, row = self._layout.rows, self._layout.row_of[use]
        offset = self._layout.index_of[use] * wire.BLOCK_MAX
        size = rows.sizes[row]
        if len(block) != min(wire.BLOCK_MAX, size - offset):
            raise Failure("store-damaged", "a block of %s has a wrong size" % os.fsdecode(rows.paths[row]))
        if size <= wire.BLOCK_MAX:
            fd = create_file(rows, row, self._ladder)
            try:
                if os.write(fd, block) != size:
                    _write_at(fd, block, 0)
                self._metadata.set(rows, row, fd)
            finally:
                os.close(fd)
            self.files += 1
        else:
            _write_at(self._open_large(row), block, offset)
        self.uses += 1
        self.bytes += len(block)

    def _open_large(self, row: int) -> int:
        if row != self._large_row:
            self.close()
            self._large_fd = reopen_file(self._layout.rows, row, self._ladder)
            self._large_row = row
        return self._large_fd

    def close(self) -> None:
        if self._large_fd >= 0:
            os.close(self._large_fd)
        self._large_row = self._large_fd = -1


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        count = os.pwrite(fd, data, offset)
        data = data[count:]
        offset += count
