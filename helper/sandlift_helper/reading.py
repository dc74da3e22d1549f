"""All files of a scan read, by several processes where that pays, and their rows collected.

Work is dealt out in *units*: some small files, a whole file, or a span of a large one, so that the last large
file does not keep one process busy while the others wait.  A file read in spans counts only if it stayed as
the scan saw it through all of them; else it is read again as a whole, by the rules for files that change.
"""

import os
import struct

from sandlift_helper import members, table, wire
from sandlift_helper.blocks import UNIT_FILES_MAX, Cutter, Seen
from sandlift_helper.channel import Channel, Token
from sandlift_helper.codec import Packer
from sandlift_helper.scan import Files, clean_mode
from sandlift_helper.workers import WORKERS_MAX, Workers, usable_cores

MYPY = False
if MYPY:
    from array import array
    from collections.abc import Callable, Iterator

    from sandlift_helper.base import Known

# Below this many bytes of content a second process costs more than it saves.
FORK_BYTES_MIN = 2 << 20

# Files from two spans on are cut into spans of this many blocks.
SPAN_BLOCKS = 8

# A unit's result: frames, blocks, bytes read and blocks claimed since the last one, the row of the file of a span,
# the span's first block, and whether the file was as the scan saw it; then encoded rows, a span's in one row.
_RESULT = struct.Struct("<IIQIiI?")
_NO_ROW = -1


class Unit:
    """One piece of work: whole files by their rows, or *count* blocks of one file from block *first* on."""

    def __init__(self, rows: "list[int]", first: int = 0, count: int = 0) -> None:
        self.rows = rows
        self.first = first
        self.count = count


def units(files: Files, spans: bool) -> "list[Unit]":
    """Deals the files out: small ones by about 1 MiB, then each larger one by rising size, with *spans* in spans.

    A hard-link group appears once, by the row of its first name.  Sparse files are not cut into spans: most of
    a span would be a hole.
    """
    dealt: "list[Unit]" = []
    large: "list[int]" = []
    unit: "list[int]" = []
    unit_size = 0
    for row, size in enumerate(files.sizes):
        group = files.groups[row]
        if group and files.members[group][0] != row:
            continue
        if size > wire.BLOCK_MAX:
            large.append(row)
            continue
        unit.append(row)
        unit_size += members.HEADER_SIZE + members.padded(size)
        if unit_size >= wire.RUN_TARGET or len(unit) >= UNIT_FILES_MAX:
            dealt.append(Unit(unit))
            unit, unit_size = [], 0
    if unit:
        dealt.append(Unit(unit))
    large.sort(key=lambda row: files.sizes[row])
    for row in large:
        blocks = table.block_count(files.sizes[row])
        if spans and blocks >= 2 * SPAN_BLOCKS and not files.groups[row] and not files.sparse[row]:
            dealt.extend(Unit([row], first, SPAN_BLOCKS) for first in range(0, blocks, SPAN_BLOCKS))
        else:
            dealt.append(Unit([row]))
    return dealt


class Progress:
    """What has been read, sent and claimed so far."""

    def __init__(self) -> None:
        self.files = self.frames = self.blocks = self.bytes = self.claimed = 0


class Reading:
    """Reads files below *root_fd*; ``done`` counts.

    Their blocks are sent, or with ``hash_only`` only hashed.
    """

    def __init__(
        self, channel: Channel, root_fd: int, packer: Packer, file_bytes_max: int, hash_only: bool = False
    ) -> None:
        self.done = Progress()
        self.settled_before_ns = 0
        self._channel = channel
        self._root_fd = root_fd
        self._packer = packer
        self._file_bytes_max = file_bytes_max
        self._hash_only = hash_only

    def rows(self, files: Files, size: int, known: "Known | None" = None) -> "Iterator[table.Segment | None]":
        """Reads *files* of *size* bytes; blocks that are *known* are claimed instead of sent.

        Yields parts of the manifest, each once its blocks are sent, and nothing (None) now and then while it waits.
        """
        self._files = files
        self._known = known
        self._seen = None if self._hash_only else Seen(size // wire.BLOCK_MAX + len(files.paths))
        count = min(WORKERS_MAX, usable_cores()) if size >= FORK_BYTES_MIN else 1
        if count < 2 or not hasattr(os, "fork"):
            return self._read_alone()
        return self._read_shared(count)

    def _cutter(self, send: "Callable[[memoryview], None]") -> Cutter:
        return Cutter(
            self._root_fd,
            self._files,
            self._seen,
            self._packer,
            self._file_bytes_max,
            send,
            self._known,
            self.settled_before_ns,
        )

    def _send(self, frame: memoryview) -> None:
        # Waiting for credit says nothing about the link: the host reads on while it proves and stores.
        self._packer.wrote(len(frame), self._channel.write(frame))

    def _read_alone(self) -> "Iterator[table.Segment | None]":
        def send(frame: memoryview) -> None:
            self._channel.spend_credit()
            self._send(frame)

        cutter = self._cutter(send)
        for unit in units(self._files, spans=False):
            _, _, _, rows = self._take(_cut_unit(cutter, unit))
            self.done.files += len(rows)
            yield rows

    def _read_shared(self, count: int) -> "Iterator[table.Segment | None]":
        work = units(self._files, spans=True)
        units_fd, units_in = os.pipe()
        credit_fd, credit_in = os.pipe()
        self._channel.token = Token()

        def job(report: "Callable[[bytes], None]") -> None:
            os.close(units_in)
            os.close(credit_in)

            def send(frame: memoryview) -> None:
                if not os.read(credit_fd, 1):
                    os._exit(wire.EXIT_HOST_GONE)
                self._send(frame)

            cutter = self._cutter(send)
            while True:
                number = os.read(units_fd, 4)
                if not number:
                    return
                index = int.from_bytes(number, "little")
                # Numbers beyond the units are rows of files that must be read again as a whole.
                report(_cut_unit(cutter, work[index] if index < len(work) else Unit([index - len(work)])))

        try:
            workers = Workers(self._channel, count, job)
        except OSError:
            # No more processes can be had here.
            for fd in (units_fd, units_in, credit_fd, credit_in):
                os.close(fd)
            self._channel.token = None
            yield from self._read_alone()
            return
        self._channel.pass_credit_to(credit_in)
        feed = _Feed(units_in, len(work))
        spans = _Spans(self._files, self.settled_before_ns)
        feed.write()
        for result in workers.results():
            if not result:
                yield None
                continue
            row, first, sound, rows = self._take(result)
            feed.finished += 1
            if row != _NO_ROW:
                again = spans.add(row, first, sound, rows)
                if again:
                    feed.add(len(work) + row)
                rows = spans.rows
                spans.rows = table.Segment()
            feed.write()
            self.done.files += len(rows)
            yield rows
        self._channel.token = None
        # Files may have to be read again after all.
        self._channel.take_credit_back(credit_fd)

    def _take(self, result: bytes) -> "tuple[int, int, bool, table.Segment]":
        """Counts a unit's result; returns (row of a span's file or -1, its first block, soundness, rows)."""
        frames, blocks, size, claimed, row, first, sound = _RESULT.unpack_from(result)
        self.done.frames += frames
        self.done.blocks += blocks
        self.done.bytes += size
        self.done.claimed += claimed
        return row, first, sound, table.decode(memoryview(result)[_RESULT.size :])


class _Feed:
    """Writes the numbers of units into a pipe, as many as it takes at a time; closes it when all are finished."""

    def __init__(self, fd: int, count: int) -> None:
        self.finished = 0
        self._fd = fd
        self._next = 0
        self._count = count
        self._added: "list[int]" = []
        self._again = 0
        os.set_blocking(fd, False)

    def add(self, number: int) -> None:
        """Adds one more unit, to be dealt out before those that wait."""
        self._added.append(number)
        self._again += 1

    def write(self) -> None:
        """Writes what fits; to be called again after each result."""
        while self._added or self._next < self._count:
            number = self._added[-1] if self._added else self._next
            try:
                os.write(self._fd, number.to_bytes(4, "little"))
            except BlockingIOError:
                return
            if self._added:
                self._added.pop()
            else:
                self._next += 1
        if self.finished == self._count + self._again:
            os.close(self._fd)


class _Spans:
    """Puts files together that were read in spans; ``rows`` collects those that are whole."""

    def __init__(self, files: Files, settled_before_ns: int) -> None:
        self.rows = table.Segment()
        self._files = files
        self._settled_before_ns = settled_before_ns
        self._parts: "dict[int, dict[int, tuple[bool, list[bytes], array[int]]]]" = {}

    def add(self, row: int, first: int, sound: bool, part: table.Segment) -> bool:
        """Takes one span of the file in *row*; returns whether the file must be read again as a whole."""
        self.rows.claims += part.claims
        parts = self._parts.setdefault(row, {})
        parts[first] = sound, list(table.split_digests(part.digests)), part.positions
        files = self._files
        blocks = table.block_count(files.sizes[row])
        if len(parts) < (blocks + SPAN_BLOCKS - 1) // SPAN_BLOCKS:
            return False
        del self._parts[row]
        found = [parts[key] for key in sorted(parts)]
        all_names = [name for _, span, _ in found for name in span]
        if not all(span_sound for span_sound, _, _ in found):
            # Its blocks travelled already, so they are named here whatever the file holds in the end.
            self.rows.orphans += b"".join(sorted(set(all_names)))
            return True
        positions = [position for _, _, span in found for position in span]
        self.rows.add_file(
            files.paths[row],
            clean_mode(files.modes[row]),
            files.mtimes_ns[row],
            files.uids[row],
            files.gids[row],
            files.sizes[row],
            0,
            all_names,
            positions if len(all_names) < blocks else (),
        )
        settled = files.ctimes_ns[row] <= self._settled_before_ns and not files.elsewhere[row]
        self.rows.stamp(files.ctimes_ns[row], files.inodes[row], settled)
        return False


def _cut_unit(cutter: Cutter, unit: Unit) -> bytes:
    before = cutter.frames, cutter.blocks, cutter.bytes, cutter.claimed
    row, sound = _NO_ROW, True
    if unit.count:
        row = unit.rows[0]
        sound, rows = cutter.cut_span(row, unit.first, unit.count)
    else:
        rows = cutter.cut(unit.rows)
    after = cutter.frames, cutter.blocks, cutter.bytes, cutter.claimed
    counts = [new - old for new, old in zip(after, before)]
    return _RESULT.pack(*counts, row, unit.first, sound) + table.encode(rows)
