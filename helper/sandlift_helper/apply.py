"""A restore, seen from the target: build the tree in a staging directory, then give it the target's name.

Order: directories (private), files, hard links, links, then directories' modes and times from the deepest up,
one flush, one rename.  So links exist only after the last write, and nothing can be written through one.
"""

import errno
import mmap
import os
import struct
import sys
import time
from array import array

from sandlift_helper import messages, table, wire
from sandlift_helper.channel import Channel, Failure, Token
from sandlift_helper.codec import CodecError, Unpacker, available
from sandlift_helper.ladder import Ladder, place
from sandlift_helper.staging import Staging, target_failure
from sandlift_helper.workers import WORKERS_MAX, Workers, usable_cores
from sandlift_helper.writer import PERMISSIONS, Layout, Writer, create_file, finish_file, reopen_file

MYPY = False
if MYPY:
    from collections.abc import Callable

FORK_FRAMES_MIN = 4

# Files, uses and bytes written by one frame.
_COUNTS = struct.Struct("<IIQ")
# Frames read so far, and when (seconds of the monotonic clock) the input last gave something.
_SHARED = struct.Struct("<Qd")

_NO_HARD_LINK = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV)


def apply(channel: Channel, message: "dict[str, object]") -> None:
    """Does one restore of mode *new* and ends the stream."""
    target = message.get("target")
    if not isinstance(target, bytes) or message.get("mode") != "new":
        raise Failure("protocol", "the request names no target or no known mode")
    target = place(target, message.get("home") is True)
    channel.send(wire.HAVE, messages.encode({"codecs": available()}))
    rows, places = _read_manifest(channel)
    layout = Layout(rows, places)
    staging = Staging(target)
    channel.clean_up = staging.remove
    try:
        staging.check_room(rows.data_size(), len(rows))
        tree = _Tree(staging.fd, rows)
        tree.make_directories()
        tree.make_large_files()
        # Each frame brings at least one block, so the highest number tells how many come.
        _write_all(channel, staging.fd, layout, max(places, default=-1) + 1, os.fsdecode(target))
        tree.finish(keep_root=staging.existing)
        channel.poll()
        staging.publish()
    except BaseException as error:
        channel.kill_children()
        staging.remove()
        if isinstance(error, OSError):
            raise target_failure(error, os.fsdecode(target))
        raise
    finally:
        channel.clean_up = None
    channel.end(created=len(rows), copied=tree.copied)


def _read_manifest(channel: Channel) -> "tuple[table.Segment, array[int]]":
    """Reads manifest frames until the frame of places: for each distinct block, the number of its content frame."""
    rows = table.Segment()
    while True:
        kind, payload = channel.read_frame()
        if kind == wire.CREDIT:
            continue
        if kind not in (wire.MANIFEST, wire.HAVE):
            raise Failure("protocol", "the host sent a %s frame out of turn" % wire.KIND_NAMES.get(kind))
        try:
            codec, size, encoded = wire.split_packed(payload, wire.SEGMENT_MAX)
            decoded = Unpacker(size).unpack(codec, size, encoded)
            if kind == wire.MANIFEST:
                rows.extend(table.decode(decoded))
                continue
        except (ValueError, CodecError) as error:
            raise Failure("protocol", "the manifest: %s" % error)
        places = array("I")
        places.frombytes(decoded)
        if sys.byteorder == "big":
            places.byteswap()
        return rows, places


class _Tree:
    """The parts of the tree that one process makes: everything but the files' content."""

    def __init__(self, root_fd: int, rows: table.Segment) -> None:
        self.copied = 0
        self._rows = rows
        self._firsts = rows.first_of_groups()
        self._ladder = Ladder(root_fd)
        self._root_fd = root_fd

    def make_directories(self) -> None:
        for path, kind in zip(self._rows.paths, self._rows.kinds):
            if kind == table.DIRECTORY:
                directory, _, name = path.rpartition(b"/")
                os.mkdir(name, 0o700, dir_fd=self._ladder.open(directory))

    def make_large_files(self) -> None:
        """Creates the files that several workers write to, at their full size; what stays unwritten is a hole."""
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

    def finish(self, keep_root: "os.stat_result | None") -> None:
        """Makes what is left once all content is written; *keep_root* is the status of a root that keeps its own."""
        self._finish_files()
        self._make_hard_links()
        self._make_links()
        self._finish_directories()
        self._finish_root(keep_root)

    def _finish_files(self) -> None:
        rows = self._rows
        for row, size in enumerate(rows.sizes):
            if rows.kinds[row] != table.FILE or self._is_further_name(row):
                continue
            if size > wire.BLOCK_MAX:
                fd = reopen_file(rows, row, self._ladder)
            elif not rows.counts[row]:
                fd = create_file(rows, row, self._ladder)
                os.ftruncate(fd, size)
            else:
                continue
            try:
                finish_file(rows, row, fd)
            finally:
                os.close(fd)

    def _make_hard_links(self) -> None:
        rows = self._rows
        second = Ladder(self._root_fd)
        for row, group in enumerate(rows.groups):
            if not group or not self._is_further_name(row):
                continue
            first = rows.paths[self._firsts[group]]
            old_directory, _, old = first.rpartition(b"/")
            directory, _, name = rows.paths[row].rpartition(b"/")
            old_fd, fd = self._ladder.open(old_directory), second.open(directory)
            try:
                os.link(old, name, src_dir_fd=old_fd, dst_dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_HARD_LINK:
                    raise
                self._copy(old, old_fd, row, second)
                self.copied += 1
        second.close()

    def _copy(self, old: bytes, old_fd: int, row: int, ladder: Ladder) -> None:
        source = os.open(old, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=old_fd)
        fd = create_file(self._rows, row, ladder)
        try:
            while True:
                piece = os.read(source, 1 << 20)
                if not piece:
                    break
                while piece:
                    piece = piece[os.write(fd, piece) :]
            finish_file(self._rows, row, fd)
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
                times = (rows.mtimes_ns[row], rows.mtimes_ns[row])
                os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)

    def _finish_directories(self) -> None:
        rows = self._rows
        for row in range(len(rows) - 1, -1, -1):
            if rows.kinds[row] == table.DIRECTORY:
                fd = self._ladder.open(rows.paths[row])
                os.fchmod(fd, rows.modes[row] & PERMISSIONS)
                os.utime(fd, ns=(rows.mtimes_ns[row], rows.mtimes_ns[row]))
        self._ladder.close()

    def _finish_root(self, keep: "os.stat_result | None") -> None:
        if keep is not None:
            if (keep.st_uid, keep.st_gid) != (os.geteuid(), os.getegid()):
                try:
                    os.fchown(self._root_fd, keep.st_uid, keep.st_gid)
                except PermissionError:
                    # Who may exchange somebody else's directory cannot make him the owner of the new one.
                    pass
            os.fchmod(self._root_fd, keep.st_mode & 0o7777)
            os.utime(self._root_fd, ns=(keep.st_atime_ns, keep.st_mtime_ns))
        elif self._rows.root is not None:
            root = self._rows.root
            os.fchmod(self._root_fd, root.mode & PERMISSIONS)
            os.utime(self._root_fd, ns=(root.mtime_ns, root.mtime_ns))


class _Input:
    """The content frames, read by several processes in turn: who holds the token reads one frame."""

    def __init__(self, channel: Channel, frames: int) -> None:
        self._fd = channel.in_fd
        self._frames = frames
        self._token = Token()
        self._shared = mmap.mmap(-1, _SHARED.size)
        # Each process has its own after the fork; a frame stays in it until the next one is read.
        self._buffer = memoryview(bytearray(wire.CAPS[wire.CONTENT]))
        self._note(0)

    def _note(self, number: int) -> None:
        self._shared[:] = _SHARED.pack(number, time.monotonic())

    def silent_s(self) -> float:
        """Returns for how long the input has given nothing, or 0 when all of it has come."""
        number, heard = _SHARED.unpack(self._shared[:])
        return 0.0 if number >= self._frames else time.monotonic() - heard

    def next(self) -> "tuple[int, memoryview] | None":
        """Returns (number, payload) of the next content frame, or None after the last; valid until the next call."""
        with self._token:
            number = _SHARED.unpack(self._shared[:])[0]
            while number < self._frames:
                head = self._read(wire.HEADER_SIZE, number)
                kind, length = head[0], int.from_bytes(head[1:], "little")
                if kind not in (wire.CONTENT, wire.CREDIT) or length > wire.CAPS[kind]:
                    raise Failure("protocol", "the host sent a frame of kind %d and %d bytes" % (kind, length))
                payload = self._read(length, number)
                if kind == wire.CONTENT:
                    self._note(number + 1)
                    return number, payload
        return None

    def _read(self, size: int, number: int) -> memoryview:
        filled = 0
        while filled < size:
            count = os.readv(self._fd, [self._buffer[filled:size]])
            if not count:
                raise Failure("protocol", "the host's stream is cut off")
            self._note(number)
            filled += count
        return self._buffer[:size]


def _write_all(channel: Channel, root_fd: int, layout: Layout, frames: int, shown: str) -> None:
    """Writes all content, in several processes where that pays.  Raises Failure unless every use was written."""
    source = _Input(channel, frames)
    count = min(WORKERS_MAX, usable_cores()) if frames >= FORK_FRAMES_MIN else 1

    def job(report: "Callable[[bytes], None]") -> None:
        writer = Writer(root_fd, layout)
        while True:
            item = source.next()
            if item is None:
                writer.close()
                return
            before = writer.files, writer.uses, writer.bytes
            try:
                writer.write_frame(*item)
            except OSError as error:
                raise target_failure(error, shown)
            after = writer.files, writer.uses, writer.bytes
            report(_COUNTS.pack(*(new - old for new, old in zip(after, before))))

    done = [0, 0, 0]

    def take(report: bytes) -> None:
        for index, count in enumerate(_COUNTS.unpack(report)):
            done[index] += count
        channel.progress("write", files=done[0], bytes=done[2], total_frames=frames)

    if count < 2:
        job(take)
    else:
        for report in Workers(channel, count, job).results():
            if report:
                take(report)
            elif source.silent_s() > channel.silence_s:
                channel.host_gone()
    if done[1] != len(layout.row_of):
        raise Failure("protocol", "%d of %d blocks never came" % (len(layout.row_of) - done[1], len(layout.row_of)))
