"""Files read, cut into blocks of at most 1 MiB, and sent as packed runs.

A file is read straight into the run that it will travel in, behind a slot for its member's header, hashed
there, and kept only if no block with that digest was sent before.  A file that changes while it is read is
read again; what it is in the end goes into the rows that `Cutter.cut` returns.
"""

import errno
import os
import stat
from hashlib import sha256

from sandlift_helper import members, table, wire
from sandlift_helper.codec import Packer
from sandlift_helper.ladder import Ladder
from sandlift_helper.scan import Files, clean_mode, loss_reason

MYPY = False
if MYPY:
    from collections.abc import Callable

    from sandlift_helper.base import Known

TRIES = 3
# Slots of 16 bytes; sparse files can make the number of possible blocks exceed any memory.
SEEN_SLOTS_MAX = 1 << 24
UNIT_FILES_MAX = 2048

FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SEEK_DATA = getattr(os, "SEEK_DATA", None)
_EMPTY = bytes(16)
_PADDING = bytes(511)
_PROBES_MAX = 64


class Seen:
    """The digests that were sent, in memory shared by all workers; 16 bytes of a digest tell it apart.

    Workers use it without a lock: the worst that a race or a full table does is that a block is sent twice,
    which the receiver accepts.
    """

    def __init__(self, blocks: int) -> None:
        import mmap

        self._slots = min(1 << max(10, (2 * blocks + 1023).bit_length()), SEEN_SLOTS_MAX)
        self._cells: "mmap.mmap" = mmap.mmap(-1, 16 * self._slots)

    def add(self, digest: bytes) -> bool:
        """Notes *digest*; returns False when it was noted before."""
        cells, key = self._cells, digest[:16]
        slot = int.from_bytes(digest[16:24], "little") % self._slots
        for _ in range(_PROBES_MAX):
            at = 16 * slot
            cell = cells[at : at + 16]
            if cell == key:
                return False
            if cell == _EMPTY:
                cells[at : at + 16] = key
                return True
            slot = (slot + 1) % self._slots
        return True


class Unstable(Exception):
    """A file is not what the scan saw, and what it is now cannot be kept; *reason* and *detail* go into its row."""

    def __init__(self, reason: int, detail: bytes) -> None:
        Exception.__init__(self)
        self.reason = reason
        self.detail = detail


class _Content:
    """What one reading of a file gave."""

    __slots__ = ("size", "digests", "positions")

    def __init__(self, size: int) -> None:
        self.size = size
        self.digests: "list[bytes]" = []
        self.positions: "list[int]" = []

    def sparse_positions(self) -> "list[int]":
        return self.positions if len(self.digests) < table.block_count(self.size) else []


def _stamp(status: os.stat_result) -> "tuple[int, int, int, int]":
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


class Cutter:
    """Reads *files* below *root_fd* and passes packed runs to *send*; without *seen*, it hashes and sends nothing.

    ``send(frame)`` takes a whole content frame and blocks until it is written.  Blocks that the host may hold are
    *known*, and claimed instead of sent.  Files whose change time is at most *settled_before_ns* are settled.
    ``frames``, ``blocks``, ``bytes`` and ``claimed`` count what was sent, read and claimed since the start.
    """

    def __init__(
        self,
        root_fd: int,
        files: Files,
        seen: "Seen | None",
        packer: Packer,
        file_bytes_max: int,
        send: "Callable[[memoryview], None]",
        known: "Known | None" = None,
        settled_before_ns: int = 0,
    ) -> None:
        self.frames = self.blocks = self.bytes = self.claimed = 0
        self._known = known
        self._settled_before_ns = settled_before_ns
        self._claims = bytearray()
        self._files = files
        self._seen = seen
        self._packer = packer
        self._file_bytes_max = file_bytes_max
        self._send = send
        self._ladder = Ladder(root_fd)
        self._run = bytearray(wire.RUN_MAX)
        self._view = memoryview(self._run)
        self._fill = 0
        self._frame = bytearray(wire.HEADER_SIZE + wire.PACKED_HEADER_SIZE + wire.RUN_MAX + wire.PACKED_SLACK)
        # Blocks that went into a run for the file at hand; those that its last reading does not name are orphans.
        # They cannot be taken back: once a digest is noted as seen, other workers count on its being sent.
        self._for_file: "set[bytes]" = set()

    def cut(self, rows: "list[int]") -> table.Segment:
        """Reads the files of *rows*; returns their part of the manifest, unsorted, once all their blocks are sent.

        A row that leads a hard-link group stands for all its names.
        """
        segment = table.Segment()
        for row in rows:
            names = self._files.members.get(self._files.groups[row]) or [row]
            self._cut_file(names, segment)
        self.flush()
        segment.claims, self._claims = self._claims, segment.claims
        return segment

    def cut_span(self, row: int, first: int, count: int) -> "tuple[bool, table.Segment]":
        """Reads *count* blocks of one file from block *first* on, and sends them.

        Returns whether the file was as the scan saw it, before and after, and a row of the blocks found, all
        with their positions.  They were sent, so they must be named even if the file was not.
        """
        content = _Content(0)
        sound = False
        try:
            directory, _, name = self._files.paths[row].rpartition(b"/")
            fd = self._open(directory, name)
        except (FileNotFoundError, Unstable):
            fd = -1
        if fd >= 0:
            try:
                stamp = self._files.stamp(row)
                start = first * wire.BLOCK_MAX
                stop = min(stamp[0], start + count * wire.BLOCK_MAX)
                if _stamp(os.fstat(fd)) == stamp:
                    os.lseek(fd, start, os.SEEK_SET)
                    self._read_blocks(fd, start, stop, False, content)
                    sound = content.size == stop and _stamp(os.fstat(fd)) == stamp
                    self.bytes += content.size - start
            except OSError:
                pass
            finally:
                os.close(fd)
        self.flush()
        self._for_file.clear()
        span = table.Segment()
        # One byte over the blocks found makes the row one with holes, so that it takes their positions.
        size = (len(content.digests) + 1) * wire.BLOCK_MAX
        span.add_file(b"", 0, 0, 0, 0, size, 0, content.digests, content.positions)
        span.claims, self._claims = self._claims, span.claims
        return sound, span

    def flush(self) -> None:
        """Sends the run that has begun."""
        if not self._fill:
            return
        prefix = wire.HEADER_SIZE + wire.PACKED_HEADER_SIZE
        size = self._packer.pack(self._run, self._fill, self._frame, prefix)
        self._frame[: wire.HEADER_SIZE] = wire.frame_header(wire.CONTENT, wire.PACKED_HEADER_SIZE + size)
        self._frame[wire.HEADER_SIZE : prefix] = wire.packed_header(self._packer.codec, self._fill)
        self._send(memoryview(self._frame)[: prefix + size])
        self.frames += 1
        self._fill = 0

    def _cut_file(self, names: "list[int]", segment: table.Segment) -> None:
        """Reads one file by the first of its names that can be opened, and what its other names are by now."""
        files = self._files
        named: "list[bytes]" = []
        while names:
            path = files.paths[names[0]]
            try:
                status, content, trouble = self._read_row(names[0])
            except FileNotFoundError:
                segment.flag(path, table.VANISHED)
                names = names[1:]
                continue
            except Unstable as refusal:
                segment.exclude(path, table.FILE, refusal.reason, refusal.detail)
                names = names[1:]
                continue
            if trouble:
                segment.flag(path, table.CHANGED)
            if trouble == table.UNSTABLE:
                segment.exclude(path, table.FILE, table.UNSTABLE, b"changed while it was read")
            same, names = self._split_names(names, status) if len(names) > 1 else (names, [])
            self._add_names(same, status, content, not trouble, segment)
            named += content.digests
        if self._for_file:
            segment.orphans += b"".join(sorted(self._for_file.difference(named)))
            self._for_file.clear()

    def _split_names(self, names: "list[int]", status: os.stat_result) -> "tuple[list[int], list[int]]":
        """Returns the names of the file with this status, the first one among them, and the others."""
        same, others = names[:1], []
        for row in names[1:]:
            directory, _, name = self._files.paths[row].rpartition(b"/")
            try:
                other = os.stat(name, dir_fd=self._ladder.open(directory), follow_symlinks=False)
            except OSError:
                others.append(row)
                continue
            known = (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino)
            (same if known else others).append(row)
        return same, others

    def _add_names(
        self, names: "list[int]", status: os.stat_result, content: _Content, calm: bool, segment: table.Segment
    ) -> None:
        files = self._files
        settled = calm and status.st_ctime_ns <= self._settled_before_ns and not files.elsewhere[names[0]]
        for row in names:
            first = row == names[0]
            segment.add_file(
                files.paths[row],
                clean_mode(status.st_mode),
                status.st_mtime_ns,
                status.st_uid,
                status.st_gid,
                content.size,
                # The first row's number names the group: one group of the scan may have come apart.
                files.offset + names[0] + 1 if len(names) > 1 else 0,
                content.digests if first else (),
                content.sparse_positions() if first else (),
            )
            segment.stamp(status.st_ctime_ns, status.st_ino, settled)

    def _read_row(self, row: int) -> "tuple[os.stat_result, _Content, int]":
        """Returns (status, content, trouble) of one file; trouble is 0, CHANGED (it only grew) or UNSTABLE.

        Raises FileNotFoundError when the name is gone, Unstable when it is no file that can be kept.
        """
        directory, _, name = self._files.paths[row].rpartition(b"/")
        for attempt in range(1, TRIES + 1):
            fd = self._open(directory, name)
            try:
                # Before anything is read: what stands in a pipe's place would be gone from it.
                before = os.fstat(fd)
                self._check_kind(before)
                # The first time, the scan's own look is the one before.
                stamp = self._files.stamp(row) if attempt == 1 else _stamp(before)
                content = _Content(stamp[0])
                # Holes are skipped if there are any.
                sparse = _SEEK_DATA is not None and before.st_blocks * 512 < stamp[0]
                self._read_blocks(fd, 0, stamp[0], sparse, content)
                after = os.fstat(fd)
            except OSError as error:
                raise Unstable(table.IO_ERROR, os.fsencode(error.strerror or "error"))
            finally:
                os.close(fd)
            self.bytes += content.size
            if content.size == stamp[0] and _stamp(after) == stamp:
                return after, content, 0
        grew = after.st_size > before.st_size and content.size == before.st_size
        return before, content, table.CHANGED if grew else table.UNSTABLE

    def _open(self, directory: bytes, name: bytes) -> int:
        try:
            return os.open(name, FILE_FLAGS, dir_fd=self._ladder.open(directory))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                raise FileNotFoundError()
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV):
                raise Unstable(table.UNSTABLE, b"no longer a file")
            raise Unstable(loss_reason(error), os.fsencode(error.strerror or "error"))

    def _check_kind(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise Unstable(table.UNSTABLE, b"no longer a file")
        if status.st_size > self._file_bytes_max:
            raise Unstable(table.TOO_LARGE, b"%d bytes" % status.st_size)

    def _read_blocks(self, fd: int, position: int, stop: int, sparse: bool, content: _Content) -> None:
        """Reads from *position* up to *stop*; ``content.size`` is then where the reading ended."""
        content.size = stop
        while position < stop:
            if sparse:
                start = _next_data(fd, position, stop)
                if start >= stop:
                    break
                if start > position:
                    position = start - start % wire.BLOCK_MAX
                    os.lseek(fd, position, os.SEEK_SET)
            wanted = min(wire.BLOCK_MAX, stop - position)
            got = self._read_block(fd, wanted, position // wire.BLOCK_MAX, content)
            if got < wanted:
                content.size = position + got
                return
            position += wanted

    def _read_block(self, fd: int, wanted: int, index: int, content: _Content) -> int:
        """Reads one block into the run; returns how many bytes the file still had."""
        start = self._fill + members.HEADER_SIZE
        got = count = os.readv(fd, [self._view[start : start + wanted]])
        while count and got < wanted:
            count = os.readv(fd, [self._view[start + got : start + wanted]])
            got += count
        if not got:
            return 0
        block = self._view[start : start + got]
        if not block[0] and not block[-1] and not bytes(block).strip(b"\0"):
            return got
        digest = sha256(block).digest()
        content.positions.append(index)
        content.digests.append(digest)
        if self._seen is not None and self._seen.add(digest):
            claim = self._known.claim(digest, block) if self._known is not None else None
            if claim is not None:
                self.claimed += 1
                self._claims += claim
                return got
            end = start + members.padded(got)
            self._run[self._fill : start] = members.header(digest, got)
            self._run[start + got : end] = _PADDING[: end - start - got]
            self._fill = end
            self.blocks += 1
            self._for_file.add(digest)
            if self._fill >= wire.RUN_TARGET:
                self.flush()
        return got


def _next_data(fd: int, position: int, size: int) -> int:
    try:
        return os.lseek(fd, position, _SEEK_DATA)  # type: ignore[arg-type]
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        os.lseek(fd, position, os.SEEK_SET)
        return position
