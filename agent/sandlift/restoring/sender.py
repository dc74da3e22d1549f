"""What a restore sends once the plan is made: tables, then stored frames, untouched where the helper can read zstd."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING

from sandlift.errors import SandliftError, StoreError, StoreUnusable
from sandlift.helper_run import HelperRun
from sandlift_helper import wire

if TYPE_CHECKING:
    from sandlift.restoring.delivery import Delivery
    from sandlift.store import BlockReader, PackReader


class Sender:
    """Sends the head frames, then the content frames, in a thread of its own; ``done`` once all is sent.

    What *head* returns says which frames follow.
    """

    def __init__(
        self, run: HelperRun, head: Generator[bytes, None, Delivery], blocks: BlockReader, *, zstd: bool
    ) -> None:
        self._run = run
        self._head = head
        self._blocks = blocks
        self._zstd = zstd
        self.done = False
        self._failure: BaseException | None = None
        self._file = -1, -1
        self._thread = threading.Thread(target=self._work, name="sandlift-sender", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises a fault of the store, or of ours, that the thread has met."""
        failure = self._failure
        if isinstance(failure, StoreError) or (failure is not None and not isinstance(failure, SandliftError)):
            raise failure

    def join(self) -> None:
        """Waits for the thread's end."""
        self._thread.join()

    def _work(self) -> None:
        try:
            delivery = self._send_head()
            for pack, index in delivery.stored:
                self._send_stored(pack, index)
            for made in delivery.made:
                self._send(wire.CODEC_NONE, len(made), made)
            self.done = True
        except BaseException as error:
            self._failure = error
            # The helper waits for frames that will not come, so its input is ended.
            if isinstance(error, StoreError) or not isinstance(error, SandliftError):
                self._run.close()
        finally:
            self._close_file()

    def _send_head(self) -> Delivery:
        while True:
            try:
                self._run.write(next(self._head))
            except StopIteration as end:
                delivery: Delivery = end.value
                return delivery

    def _send_stored(self, pack: int, index: int) -> None:
        reader = self._blocks.pack(pack)
        size = reader.decoded_size[index]
        if not self._zstd:
            self._send(wire.CODEC_NONE, size, reader.decode_frame(index))
            return
        fd = self._open_file(pack, reader)
        if fd is None:
            self._send(wire.CODEC_ZSTD, size, reader.read_frame(index))
            return
        length = reader.compressed_size[index]
        head = _head(wire.CODEC_ZSTD, size, length)
        try:
            self._run.write_file(head, fd, reader.compressed_offset[index], length)
        except OSError as error:
            raise StoreUnusable(f"cannot read {reader.key}: {error.strerror}", errno=error.errno) from error

    def _open_file(self, pack: int, reader: PackReader) -> int | None:
        """Returns a descriptor of the pack, kept until another one is asked for."""
        if self._file[0] != pack:
            self._close_file()
            fd = reader.open_file()
            self._file = pack, -1 if fd is None else fd
        return self._file[1] if self._file[1] >= 0 else None

    def _close_file(self) -> None:
        if self._file[1] >= 0:
            os.close(self._file[1])
        self._file = -1, -1

    def _send(self, codec: int, size: int, data: bytes) -> None:
        self._run.write(_head(codec, size, len(data)) + data)


def _head(codec: int, size: int, length: int) -> bytes:
    """Returns what stands before the *length* encoded bytes of a content frame that decodes to *size*."""
    head = wire.packed_header(codec, size)
    return wire.frame_header(wire.CONTENT, len(head) + length) + head
