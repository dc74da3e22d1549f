"""What is at the target of a restore: its entries told to the host, and the digests that the host asks for."""

from sandlift_helper import table, wire
from sandlift_helper.channel import Channel, Failure
from sandlift_helper.codec import CodecError, Packer, unpack_payload
from sandlift_helper.mounts import read_mounts
from sandlift_helper.reading import Reading
from sandlift_helper.scan import Limits, Scan, clean_mode
from sandlift_helper.segments import Segments


class Listing:
    """Scans the tree at *path*, open as *root_fd*, and sends it as manifest frames.

    Files have no digests yet; a file with names elsewhere and whatever something is mounted on are flagged.
    ``leftovers`` are the paths that a restore *leftover* left here when it broke off; they are not listed.
    """

    def __init__(
        self,
        channel: Channel,
        root_fd: int,
        path: bytes,
        limits: Limits,
        own: "frozenset[tuple[int, int]]",
        codec: int,
        leftover: bytes,
    ) -> None:
        mounts = read_mounts(path)
        scan = Scan(
            root_fd,
            limits,
            None,
            mounts,
            own,
            None,
            lambda entries, size: channel.progress("scan", entries=entries, bytes=size),
            leftover,
        )
        scan.run()
        self.leftovers = scan.leftovers
        self._channel = channel
        self._root_fd = root_fd
        self._files = scan.files
        self._packer = Packer(codec)
        self._file_bytes_max = limits.file_bytes
        self._send(scan, mounts.points)

    def _send(self, scan: Scan, points: "set[bytes]") -> None:
        files = self._files
        segments = Segments(self._channel, self._packer)
        segments.add_scan(scan, ((path, status, text, b"") for path, status, text in scan.links))
        for row, path in enumerate(files.paths):
            group = files.groups[row]
            segments.rows.add_file(
                path,
                clean_mode(files.modes[row]),
                files.mtimes_ns[row],
                files.uids[row],
                files.gids[row],
                files.sizes[row],
                group,
            )
            if path in points:
                segments.rows.flag(path, table.MOUNT_POINT)
            elif group and files.name_counts[group] > len(files.members[group]):
                segments.rows.flag(path, table.NAMED_ELSEWHERE)
            segments.send_if_full()
        for path, _ in scan.directories:
            if path in points:
                segments.rows.flag(path, table.MOUNT_POINT)
        segments.send()

    def send_digests(self) -> table.Segment:
        """Sends the rows of those files that the host wants to know, digests included; returns them.

        A file that changed meanwhile is left out or flagged, as in a capture.
        """
        files = self._files.subset(frozenset(self._read_wanted()))
        size = sum(files.sizes)
        reading = Reading(self._channel, self._root_fd, self._packer, self._file_bytes_max, hash_only=True)
        segments = Segments(self._channel, self._packer)
        known = table.Segment()
        for rows in reading.rows(files, size):
            if rows is not None:
                known.extend(rows)
                segments.rows.extend(rows)
            segments.send_if_due()
            self._channel.progress("compare", files=reading.done.files, bytes=reading.done.bytes, total_bytes=size)
        segments.send()
        return known

    def _read_wanted(self) -> "list[bytes]":
        """Reads want frames, paths joined by NUL, until an empty one."""
        paths: "list[bytes]" = []
        while True:
            kind, payload = self._channel.read_frame()
            if kind == wire.CREDIT:
                continue
            if kind != wire.WANT:
                raise Failure("protocol", "the host sent a %s frame out of turn" % wire.KIND_NAMES.get(kind))
            try:
                decoded = unpack_payload(payload, wire.SEGMENT_MAX)
            except (ValueError, CodecError) as error:
                raise Failure("protocol", "the wanted paths: %s" % error)
            if not len(decoded):
                return paths
            paths.extend(bytes(decoded).split(b"\0"))
