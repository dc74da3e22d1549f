"""Files written from runs: each block is proved by its digest, then put wherever the manifest names it."""

import os
from array import array
from hashlib import sha256

from sandlift_helper import members, table, wire
from sandlift_helper.channel import Failure
from sandlift_helper.codec import CodecError, Unpacker
from sandlift_helper.ladder import Ladder

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Setuid, setgid and sticky bits are recorded, but not restored unasked.
PERMISSIONS = 0o777

NO_USE = 0xFFFFFFFF


class Layout:
    """Where each block of a manifest goes.

    A *use* is one place that names a block, numbered in the order of the digest column.  ``first_use`` maps a
    digest to its first use, ``next_use`` chains further ones, ``row_of`` and ``index_of`` give the file and the
    index of the block in it; ``frame_of`` is the number of the content frame that brings the block, by use.
    """

    def __init__(self, rows: table.Segment, frames: "array[int]") -> None:
        self.rows = rows
        self.first_use: "dict[bytes, int]" = {}
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


def finish_file(rows: table.Segment, row: int, fd: int) -> None:
    """Sets mode and time of an open file."""
    os.fchmod(fd, rows.modes[row] & PERMISSIONS)
    os.utime(fd, ns=(rows.mtimes_ns[row], rows.mtimes_ns[row]))


class Writer:
    """Writes the blocks of content frames into the tree whose root is open as *root_fd*.

    A file of one block is created, written and finished at once; larger ones must exist already, at their full
    size, and are finished by somebody else.
    """

    def __init__(self, root_fd: int, layout: Layout) -> None:
        self.files = 0
        self.bytes = 0
        self.uses = 0
        self._layout = layout
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
            while use != NO_USE:
                self._write_block(use, block)
                use = layout.next_use[use]

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
                finish_file(rows, row, fd)
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
