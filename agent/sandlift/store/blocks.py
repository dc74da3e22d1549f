"""Reading single blocks of a snapshot, hashed on the way."""

from __future__ import annotations

import hashlib

from sandlift.errors import StoreDamaged
from sandlift.store.objects import Objects
from sandlift.store.packs import PackReader
from sandlift.store.snapshots import StoredSnapshot
from sandlift_helper import members


class BlockReader:
    """Reads blocks of one snapshot; it keeps the packs' tables and the last decoded frame.

    Blocks asked for in the order of their places cost one decompression a frame.  For one thread.
    """

    def __init__(self, objects: Objects, snapshot: StoredSnapshot) -> None:
        self._objects = objects
        self._snapshot = snapshot
        self._packs: dict[int, PackReader] = {}
        self._at = (-1, -1)
        self._run = memoryview(b"")
        # The decoded offset of a member's header -> start and size of its block in the run.
        self._members: dict[int, tuple[int, int]] = {}

    def pack(self, index: int) -> PackReader:
        """Returns the reader of the snapshot's pack of that index.  Raises StoreDamaged, StoreNewer."""
        if index not in self._packs:
            self._packs[index] = PackReader(self._objects, self._snapshot.packs[index])
        return self._packs[index]

    def place(self, index: int) -> tuple[int, int]:
        """Returns (pack, frame in the pack) of the distinct block of that *index*.  Raises StoreDamaged, StoreNewer."""
        pack_index = self._snapshot.pack_index[index]
        return pack_index, self.pack(pack_index).frame_index(self._snapshot.offsets[index])

    def read(self, index: int, digest: bytes) -> bytes:
        """Returns the distinct block of that *index*, whose SHA-256 must be *digest*.

        Raises StoreDamaged when the place holds anything else, IndexError when there is no such block.
        """
        block = bytes(self.read_unproved(index))
        if hashlib.sha256(block).digest() != digest:
            pack = self.pack(self._snapshot.pack_index[index])
            offset = self._snapshot.offsets[index]
            raise StoreDamaged(f"the pack {pack.key} does not hold the block {digest.hex()} at {offset}")
        return block

    def read_unproved(self, index: int) -> memoryview:
        """Returns what lies where the distinct block of that *index* should, for who proves it otherwise.

        It is valid until the next call, and empty where no block begins.  Raises StoreDamaged, IndexError.
        """
        offset = self._snapshot.offsets[index]
        pack_index = self._snapshot.pack_index[index]
        pack = self.pack(pack_index)
        frame = pack.frame_index(offset)
        if self._at != (pack_index, frame):
            self._load(pack, frame)
            self._at = (pack_index, frame)
        start, size = self._members.get(offset, (0, 0))
        return self._run[start : start + size]

    def _load(self, pack: PackReader, frame: int) -> None:
        self._at = (-1, -1)
        self._run = memoryview(pack.decode_frame(frame))
        base = pack.decoded_offset[frame]
        try:
            found = members.parse_run(self._run)
        except ValueError as error:
            raise StoreDamaged(f"the pack {pack.key}: frame {frame} is no run of blocks: {error}") from error
        self._members = {base + start - members.HEADER_SIZE: (start, size) for _, start, size in found}
