"""A restore, run: the helper builds the tree at the target, the host sends it manifest and blocks.

The caller's thread listens to the helper; a second thread reads stored frames and sends them, untouched where
the helper can read zstd.  The helper proves every block by its digest before it is written.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandlift import session
from sandlift.capturing import StoreSource, opened
from sandlift.deadline import Deadline
from sandlift.errors import SandliftError, StoreDamaged
from sandlift.helper_run import HelperRun
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.model import Restore, RestoreCounts
from sandlift.targets import Target
from sandlift.transports.base import Transport
from sandlift.watch import OnEvent, Watch
from sandlift_helper import wire

if TYPE_CHECKING:
    from sandlift.restoring.plan import Plan
    from sandlift.store import BlockReader


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSpec:
    """What to restore, and where."""

    ref: str
    """A name of a snapshot: ``demo``, ``demo@7``, ``demo~1``, or a prefix of its identity."""
    target: Target
    paths: tuple[bytes, ...] = ()
    """Only these paths and what is below them; all when empty."""
    limits: Limits = DEFAULT_LIMITS
    python: str | None = None


def restore(
    transport: Transport,
    store: StoreSource,
    spec: RestoreSpec,
    *,
    deadline: Deadline,
    on_event: OnEvent | None = None,
) -> Restore:
    """Restores a snapshot into a target that is absent or an empty directory.

    Raises any error of `sandlift.errors`; then the target is as it was.
    """
    watch = Watch(on_event)
    watch.progress("plan")
    with HelperRun(transport, "apply", limits=spec.limits, deadline=deadline, python=spec.python) as run:
        run.start({"target": spec.target.root, "home": spec.target.home, "mode": "new"})
        # Only now what takes long to import: meanwhile the helper starts.
        from sandlift.manifest import Manifest
        from sandlift.restoring.plan import deliver, make_plan

        store = opened(store)
        named = store.resolve(spec.ref)
        snapshot = store.load(named)
        manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
        plan = make_plan(manifest, spec.paths)
        blocks = store.blocks(snapshot)
        delivery = deliver([blocks.place(number) for number in plan.blocks])
        # Between processes of one machine, copying a table costs less than compressing it.
        codec = wire.CODEC_NONE if transport.name == "local" else wire.CODEC_ZLIB
        sender = _Sender(run, _frames(plan, delivery.frame_of, codec), blocks, delivery.frames)
        end = _listen(run, sender, watch, plan.rows.data_size())
        wire_bytes = run.wire
    counts = manifest.counts
    return Restore(
        ref=None if isinstance(named, bytes) else named.name,
        snapshot=snapshot.identity.hex(),
        target=os.fsdecode(spec.target.root) if spec.target.scheme == "local" else spec.target.source(),
        outcome=counts.outcome,
        counts=RestoreCounts(created=end.get("created", 0)),
        copied=end.get("copied", 0),
        excluded=counts.excluded,
        wire=wire_bytes,
        seconds=watch.end(),
    )


def _listen(run: HelperRun, sender: _Sender, watch: Watch, total_bytes: int) -> dict[str, int]:
    """Starts the sender when the helper is ready, and follows it to its end; returns the end's counts."""
    end: dict[str, int] = {}
    try:
        for event in run.events():
            match event:
                case session.Hello():
                    watch.warn_of_noise(run.session.noise)
                case session.Have():
                    codecs = event.message.get("codecs")
                    sender.start(zstd=isinstance(codecs, list) and "zstd" in codecs)
                case session.Progress():
                    counts = event.counts
                    watch.progress(
                        "write",
                        entries=counts.get("files", 0),
                        bytes=counts.get("bytes", 0),
                        total_bytes=total_bytes,
                    )
                case session.End():
                    end = dict(event.counts)
                case _:
                    pass
            sender.check()
    except SandliftError:
        # A fault of the store cuts the stream off, so it comes first.
        sender.check()
        raise
    finally:
        run.close()
        sender.join()
    return end


def _frames(plan: Plan, frame_of: array[int], codec: int) -> Iterator[bytes]:
    """Yields the manifest frames, then the one that says which content frame brings which block."""
    from sandlift.restoring.plan import segments

    for encoded in segments(plan.rows):
        yield _packed(wire.MANIFEST, encoded, codec)
    if sys.byteorder == "big":
        frame_of = array("I", frame_of)
        frame_of.byteswap()
    yield _packed(wire.HAVE, frame_of.tobytes(), codec)


def _packed(kind: int, data: bytes, codec: int) -> bytes:
    encoded = zlib.compress(data, 1) if codec == wire.CODEC_ZLIB else data
    return wire.frame(kind, wire.packed_header(codec, len(data)) + encoded)


class _Sender:
    """Sends the head frames, then the stored content frames, in a thread of its own."""

    def __init__(
        self, run: HelperRun, head: Iterator[bytes], blocks: BlockReader, frames: tuple[tuple[int, int], ...]
    ) -> None:
        self._run = run
        self._head = head
        self._blocks = blocks
        self._frames = frames
        self._zstd = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, *, zstd: bool) -> None:
        """Begins to send; *zstd* says whether the helper can read stored frames as they are."""
        if self._thread is None:
            self._zstd = zstd
            self._thread = threading.Thread(target=self._work, name="sandlift-sender", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raises a fault of the store that the thread has met."""
        if isinstance(self._failure, StoreDamaged) or (
            self._failure is not None and not isinstance(self._failure, SandliftError)
        ):
            raise self._failure

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            for frame in self._head:
                self._run.write(frame)
            for pack, index in self._frames:
                self._send(pack, index)
        except BaseException as error:
            self._failure = error
            # The helper waits for frames that will not come, so its input is ended.
            if isinstance(error, StoreDamaged):
                self._run.close()

    def _send(self, pack: int, index: int) -> None:
        reader = self._blocks.pack(pack)
        size = reader.decoded_size[index]
        if size > wire.RUN_MAX:
            raise StoreDamaged(f"a frame of a pack has {size} bytes", hint="sandlift verify shows what is damaged")
        codec, data = wire.CODEC_ZSTD, reader.read_frame(index)
        if not self._zstd:
            codec, data = wire.CODEC_NONE, reader.decode_frame(index)
        head = wire.packed_header(codec, size)
        self._run.write(wire.frame_header(wire.CONTENT, len(head) + len(data)) + head + data)
