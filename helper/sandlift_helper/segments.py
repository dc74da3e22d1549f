"""Rows of a table on their way to the host: collected, and sent as manifest frames of bounded size."""

import time

from sandlift_helper import table, wire
from sandlift_helper.channel import Channel
from sandlift_helper.scan import Scan, clean_mode

MYPY = False
if MYPY:
    import os
    from collections.abc import Iterable

    from sandlift_helper.codec import Packer

    # Path, status, text, and the text as it was found where it was rebased.
    KeptLink = tuple[bytes, os.stat_result, bytes, bytes]

# A segment is sent once it has about this many bytes, or has waited this long.
SEGMENT_TARGET = 4 << 20
SEGMENT_INTERVAL_S = 0.25


class Segments:
    """Collects rows and sends them as manifest frames of bounded size; without a *packer* it only collects."""

    def __init__(self, channel: Channel, packer: "Packer | None") -> None:
        self._channel = channel
        self._packer = packer
        self._sent_at = time.monotonic()
        self.rows = table.Segment()

    def add_scan(self, scan: Scan, kept: "Iterable[KeptLink]") -> None:
        """Adds what a scan found but its files: the root, directories, the links that are kept, what is left out."""
        top = scan.root_status
        self.rows.root = table.Root(clean_mode(top.st_mode), top.st_mtime_ns, top.st_uid, top.st_gid)
        for path, status in scan.directories:
            if status is None:
                # A foreign mount was not asked for its attributes: it may hang.
                self.rows.add(path, table.DIRECTORY, 0o755, 0, top.st_uid, top.st_gid)
            else:
                mode = clean_mode(status.st_mode)
                self.rows.add(path, table.DIRECTORY, mode, status.st_mtime_ns, status.st_uid, status.st_gid)
            self.send_if_full()
        for path, link, text, original in kept:
            mode = clean_mode(link.st_mode)
            self.rows.add_link(path, mode, link.st_mtime_ns, link.st_uid, link.st_gid, text, original)
            self.send_if_full()
        left = scan.left
        for row, path in enumerate(left.excluded_paths):
            self.rows.exclude(path, left.excluded_kinds[row], left.excluded_reasons[row], left.details[row])
            self.send_if_full()
        for path, flag in zip(left.flag_paths, left.flags):
            self.rows.flag(path, flag)
            self.send_if_full()

    def send_if_full(self) -> None:
        if self.rows.size_estimate() >= SEGMENT_TARGET and self._packer is not None:
            self.send()

    def send_if_due(self) -> None:
        if time.monotonic() > self._sent_at + SEGMENT_INTERVAL_S:
            self.send()
        else:
            self.send_if_full()

    def send(self) -> None:
        rows, self.rows = self.rows, table.Segment()
        self._sent_at = time.monotonic()
        if self._packer is None or (rows.root is None and not rows.size_estimate()):
            return
        rows.sort()
        encoded = bytearray(table.encode(rows))
        target = bytearray(len(encoded) + (len(encoded) >> 8) + 1024)
        size = self._packer.pack(encoded, len(encoded), target, 0)
        header = wire.packed_header(self._packer.codec, len(encoded))
        self._channel.send(wire.MANIFEST, header + bytes(target[:size]))
