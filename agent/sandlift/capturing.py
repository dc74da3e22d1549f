"""A capture, seen from the host: run the helper, prove what comes, store it, and commit it by one ref.

The caller's thread reads the stream; a second thread proves the content frames and appends them to the pack,
then grants credit for as many more.  So a slow disk holds the sandbox back, never the reader, and the memory
in use is bounded by the credit.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from sandlift import session
from sandlift.deadline import Deadline
from sandlift.errors import RemoteProtocolError, StrictLoss
from sandlift.helper_run import HelperRun
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.model import Capture, Rules
from sandlift.targets import Target
from sandlift.transports.base import Transport
from sandlift.watch import OnEvent, Watch
from sandlift_helper import table

if TYPE_CHECKING:
    from sandlift.content import Run
    from sandlift.manifest import Manifest
    from sandlift.store import PackWriter, Store
    from sandlift.validate import Gathering

StoreSource = Union["Store", Callable[[], "Store"]]
"""A store, or what opens one: then it is opened while the connection is made."""

CREDIT_FRAMES = 32
"""Content frames that may be under way: at most 2 MiB each, and the bound of the memory in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSpec:
    """What to capture, and how."""

    target: Target
    workspace: str
    rules: Rules = field(default_factory=Rules)
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    strict: bool = False
    limits: Limits = DEFAULT_LIMITS
    aliases: tuple[bytes, ...] = ()
    """Other absolute names of the root."""
    python: str | None = None


def opened(store: StoreSource) -> Store:
    """Returns the store itself."""
    return store() if callable(store) else store


def sandbox_request(spec: CaptureSpec, transport: Transport, own: tuple[bytes, ...] = ()) -> dict[str, object]:
    """Returns the fields that a capture's and a survey's request share."""
    rules = spec.rules
    cheap = transport.capabilities.link_cost == "cheap"
    return {
        "root": spec.target.root,
        "home": spec.target.home,
        "aliases": list(spec.aliases),
        "own": list(own),
        # Where a byte is dear, slow compression still beats none.
        "codecs": ["zstd", "none"] if cheap else ["zstd", "zlib", "none"],
        "patterns": [list(pattern) for pattern in rules.patterns],
        "literals": list(rules.paths),
        "ignore_file": rules.ignore_file,
        "exclude_caches": rules.caches,
        "limits": spec.limits.for_helper(),
    }


def capture(
    transport: Transport,
    store: StoreSource,
    spec: CaptureSpec,
    *,
    deadline: Deadline,
    on_event: OnEvent | None = None,
) -> Capture:
    """Captures a workspace into *store* and returns what it gave.

    Raises any error of `sandlift.errors`; then the store is as it was, but for objects that nothing names.
    """
    watch = Watch(on_event)
    watch.progress("connect")
    own: tuple[bytes, ...] = ()
    if spec.target.scheme == "local":
        # A store inside the workspace would be captured into itself, so its place must be known.
        store = opened(store)
        own = (os.fsencode(os.path.abspath(store.location)),)
    with HelperRun(transport, "capture", limits=spec.limits, deadline=deadline, python=spec.python) as run:
        run.start(sandbox_request(spec, transport, own))
        run.grant(CREDIT_FRAMES)
        # Only now what takes long to import: meanwhile the connection is made.
        from sandlift.committing import Provenance, captured, commit
        from sandlift.store import check_name
        from sandlift.validate import Gathering, shown

        check_name(spec.workspace)
        store = opened(store)
        capture_id = secrets.token_hex(16)
        with store.begin_pack(capture_id) as pack, _Shelf(run, pack) as shelf:
            gathering = Gathering(spec.limits)
            blocks = _listen(run, shelf, gathering, watch)
            watch.progress("store")
            sizes = shelf.finish(blocks)
            manifest = gathering.accept(sizes)
            _check_strict(spec, manifest)
            if table.UNFINISHED in manifest.rows.flags:
                watch.warn("a restore to this workspace was not finished, so it may be partly an older tree")
            for path in manifest.torn_databases():
                watch.warn(
                    f"the database {shown(path)} was written to meanwhile: it and its journal may not fit together"
                )
            provenance = Provenance(
                capture_id=capture_id,
                workspace=spec.workspace,
                source=spec.target.source(),
                started=watch.started,
                rules=spec.rules.described(),
                labels=spec.labels,
                note=spec.note,
            )
            record = commit(store, pack, manifest, shelf.offsets, provenance, deadline)
        wire = run.wire
    return captured(record, manifest.counts, wire, watch.end())


def _listen(run: HelperRun, shelf: _Shelf, gathering: Gathering, watch: Watch) -> int:
    """Passes the stream's parts on until its end; returns how many blocks the helper says it sent."""
    from sandlift.content import Prover

    prover = Prover()
    blocks = -1
    for event in run.events(shelf.check):
        match event:
            case session.Hello():
                watch.warn_of_noise(run.session.noise)
            case session.Content():
                shelf.put(event.payload)
            case session.ManifestSegment():
                gathering.add(prover.unpack_segment(event.payload))
            case session.Progress():
                counts = event.counts
                watch.progress(
                    event.phase if event.phase in ("scan", "read") else "read",
                    entries=counts.get("files", counts.get("entries", 0)),
                    bytes=counts.get("bytes", 0),
                    total_entries=counts.get("total_files"),
                    total_bytes=counts.get("total_bytes"),
                )
            case session.End():
                blocks = event.counts.get("blocks", -1)
            case _:
                pass
        shelf.check()
    return blocks


class _Shelf:
    """Proves content frames and appends them to a pack, in a thread of its own.

    ``sizes`` and ``offsets`` give each block's size and place in the pack, by its digest.
    """

    def __init__(self, run: HelperRun, pack: PackWriter) -> None:
        self.sizes: dict[bytes, int] = {}
        self.offsets: dict[bytes, int] = {}
        self._run = run
        self._pack = pack
        self._blocks = 0
        self._queue: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="sandlift-prover", daemon=True)

    def __enter__(self) -> _Shelf:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._abandoned = True
        self._queue.put(None)
        self._thread.join()

    def put(self, frame: bytearray) -> None:
        """Takes one content frame; the credit bounds how many wait."""
        self._queue.put(frame)

    def check(self) -> None:
        """Raises what the thread has met."""
        if self._failure is not None:
            raise self._failure

    def finish(self, blocks: int) -> dict[bytes, int]:
        """Waits for the last frame; returns the sizes.  Raises RemoteProtocolError when blocks are missing."""
        self._queue.put(None)
        while self._thread.is_alive():
            self._run.deadline.check("storing")
            self._thread.join(0.1)
        self.check()
        if self._blocks != blocks:
            raise RemoteProtocolError(f"the stream's end counts {blocks} blocks, {self._blocks} came")
        return self.sizes

    def _work(self) -> None:
        try:
            from sandlift.content import Prover

            prover = Prover()
            while (frame := self._queue.get()) is not None and not self._abandoned:
                self._append(prover.prove(frame))
                self._run.grant(1)
        except BaseException as error:
            self._failure = error

    def _append(self, run: Run) -> None:
        offset = self._pack.append(run.stored, run.size_bytes)
        for digest, start, size in run.blocks:
            self._blocks += 1
            # A block may come twice, when two of the helper's workers met it at once; the first place counts.
            if digest not in self.sizes:
                self.sizes[digest] = size
                self.offsets[digest] = offset + start


def _check_strict(spec: CaptureSpec, manifest: Manifest) -> None:
    counts = manifest.counts
    unfinished = table.UNFINISHED in manifest.rows.flags
    if spec.strict and (counts.lost or counts.changed or counts.vanished or unfinished):
        what = f"{counts.lost} entries lost, {counts.changed} changed and {counts.vanished} vanished"
        if unfinished:
            what = "a restore was not finished there"
        raise StrictLoss(
            f"{what} while the workspace was captured, so nothing was stored",
            hint="without --strict it is stored and marked",
            lost=counts.lost,
            changed=counts.changed,
            vanished=counts.vanished,
        )
