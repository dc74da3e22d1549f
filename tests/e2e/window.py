"""The window between the look at a tree and the reading of its files, held open: what falls into it is deterministic.

The helper's own scan and cutter run here, in this process; what they give is then accepted by the host's own
checks, exactly as if it had come over a stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from e2e.lift import Taken

from sandlift.content import Prover
from sandlift.gathering import Gathering
from sandlift.limits import DEFAULT_LIMITS
from sandlift.manifest import Manifest
from sandlift_helper import members, table, wire
from sandlift_helper.blocks import Cutter, Seen
from sandlift_helper.codec import Packer
from sandlift_helper.links import components
from sandlift_helper.mounts import read_mounts
from sandlift_helper.scan import Limits, Scan
from sandlift_helper.workspace import judge_links


class Window:
    """A workspace that was looked at, and is not read yet."""

    def __init__(self, root: Path) -> None:
        self.contents: dict[bytes, bytes] = {}
        """Digest to bytes of every block that was sent."""
        self._sizes: dict[bytes, int] = {}
        self._root = os.fsencode(root)
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        limits = Limits(
            DEFAULT_LIMITS.entries,
            DEFAULT_LIMITS.path_bytes,
            DEFAULT_LIMITS.depth,
            DEFAULT_LIMITS.link_text_bytes,
            DEFAULT_LIMITS.file_bytes,
        )
        self.scan = Scan(self._root_fd, limits, None, read_mounts(self._root), frozenset(), None, lambda *_: None)
        self.scan.run()

    def read(self) -> Manifest:
        """Read the files as they are by now, and have the host accept what comes of it."""
        gathering = Gathering(DEFAULT_LIMITS)
        gathering.add(memoryview(table.encode(self._first())))
        seen = Seen(len(self.scan.files.paths))
        cutter = Cutter(
            self._root_fd, self.scan.files, seen, Packer(wire.CODEC_NONE), DEFAULT_LIMITS.file_bytes, self._take
        )
        files = self.scan.files
        for row, group in enumerate(files.groups):
            if not group or files.members[group][0] == row:
                rows = cutter.cut([row])
                rows.sort()
                gathering.add(memoryview(table.encode(rows)))
        os.close(self._root_fd)
        return gathering.accept(self._sizes)

    def _first(self) -> table.Segment:
        top = self.scan.root_status
        rows = self.scan.left
        rows.root = table.Root(top.st_mode & 0o7777, top.st_mtime_ns, top.st_uid, top.st_gid)
        for path, status in self.scan.directories:
            assert status is not None
            rows.add(path, table.DIRECTORY, status.st_mode & 0o7777, status.st_mtime_ns, status.st_uid, status.st_gid)
        for path, status, text, original in judge_links(self.scan, [components(self._root)]):
            rows.add_link(path, 0o777, status.st_mtime_ns, status.st_uid, status.st_gid, text, original)
        rows.sort()
        return rows

    def _take(self, frame: memoryview) -> None:
        payload = bytes(frame[wire.HEADER_SIZE :])
        prover = Prover()
        prover.prove(payload)
        codec, size, encoded = wire.split_packed(payload, wire.RUN_MAX)
        decoded = prover.decode(codec, size, encoded)
        for digest, start, length in members.parse_run(memoryview(decoded)):
            self.contents[digest] = decoded[start : start + length]
            self._sizes[digest] = length

    def content(self, manifest: Manifest, path: bytes) -> bytes:
        """A file's bytes, as a snapshot would hold them."""
        row = manifest.carrier(manifest.find(path))
        digest, position, count = list(manifest.rows.contents())[row]
        names = list(table.split_digests(manifest.rows.digests))[digest : digest + count]
        places = manifest.rows.positions[position : position + count] if position >= 0 else range(count)
        whole = bytearray(manifest.rows.sizes[row])
        for place, name in zip(places, names, strict=True):
            block = self.contents[name]
            whole[place * wire.BLOCK_MAX : place * wire.BLOCK_MAX + len(block)] = block
        assert len(whole) == manifest.rows.sizes[row]
        return bytes(whole)


def taken_after(root: Path, change: Callable[[], object]) -> tuple[Taken, Window]:
    """Look at a workspace, let something happen, and read it."""
    window = Window(root)
    change()
    return Taken(manifest=window.read()), window
