"""A restore, run: the helper says what is there and does what the plan says, the host plans and sends what is missing.

The caller's thread listens to the helper, a second one sends (see `sender`).  The helper proves every block by its
digest before it is written.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from sandlift import session
from sandlift.capturing import StoreSource, opened, own_places
from sandlift.deadline import Deadline
from sandlift.errors import RemoteProtocolError, SandliftError
from sandlift.helper_run import HelperRun
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.model import RestoreOptions
from sandlift.restoring.sender import Sender
from sandlift.targets import Target
from sandlift.transports.base import Transport
from sandlift.watch import OnEvent, Watch
from sandlift_helper import table, wire
from sandlift_helper.table import Segment

if TYPE_CHECKING:
    from sandlift.content import Prover
    from sandlift.gathering import Gathering
    from sandlift.manifest import Manifest
    from sandlift.restoring.delivery import Delivery
    from sandlift.restoring.plan import Listing, Plan
    from sandlift.restoring.wanted import Wanted
    from sandlift.results import Action, Lossy, Restore
    from sandlift.small_files import SmallFiles
    from sandlift.store import BlockReader, Store, StoredSnapshot

_PHASES = ("wait", "scan", "compare", "write")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSpec:
    """What to restore, where, and how."""

    ref: str
    """A name of a snapshot: ``demo``, ``demo@7``, ``demo~1``, or a prefix of its identity."""
    target: Target
    options: RestoreOptions = field(default_factory=RestoreOptions)
    dry_run: bool = False
    """Plan only; nothing at the target is changed."""
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
    """Restores a snapshot, or with ``dry_run`` plans it.

    Raises any error of `sandlift.errors`.  Every conflict is found before the first write; after an error the target
    of the modes *new* and *replace* is as it was, and one that was changed in place bears the marker and is completed
    by running the same again.
    """
    watch = Watch(on_event)
    watch.progress("plan")
    with HelperRun(transport, "apply", limits=spec.limits, deadline=deadline, python=spec.python) as run:
        opened_stores: list[Store] = []

        def request() -> dict[str, object]:
            # Only now what takes long to import: meanwhile the helper starts.
            opened_stores.append(opened(store))
            # A store at the target must not be taken for something that can go.
            return _request(spec, own_places(opened_stores[0], spec.target))

        run.start(request)
        from sandlift.manifest import Manifest
        from sandlift.restoring.wanted import wanted
        from sandlift.results import Restore
        from sandlift.store import RefRecord, ScanCache

        source = opened_stores[0]
        named = source.resolve(spec.ref)
        snapshot = source.load(named)
        manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
        blocks = source.blocks(snapshot)
        tree = wanted(manifest, spec.options, _reader(manifest, blocks))
        # Between processes of one machine, copying a table costs less than compressing it.
        codec = wire.CODEC_NONE if transport.name == "local" else wire.CODEC_ZLIB
        restoring = _Restoring(run, spec, snapshot, manifest, blocks, tree, watch, codec)
        end = restoring.listen()
        wire_bytes = run.wire
        if isinstance(named, RefRecord) and not spec.dry_run and _is_whole(spec.options):
            # The next capture of the target under this name has an own base: what was set down here.
            source.write_scan(
                ScanCache(
                    workspace=named.workspace,
                    target=spec.target.key(),
                    source=spec.target.source(),
                    identity=snapshot.identity,
                    number=named.number,
                    packs=snapshot.packs,
                )
            )
    return Restore(
        ref=None if isinstance(named, bytes) else named.name,
        snapshot=snapshot.identity.hex(),
        target=os.fsdecode(spec.target.root) if spec.target.scheme == "local" else spec.target.source(),
        mode=spec.options.mode,
        dry_run=spec.dry_run,
        outcome=manifest.counts.outcome,
        counts=restoring.plan.counts,
        lossy=_lossy(restoring.wanted.lossy, end),
        actions=_reported(restoring.plan.actions, end, dry_run=spec.dry_run),
        excluded=len(restoring.wanted.excluded_paths),
        wire=wire_bytes,
        seconds=watch.end(),
    )


def _is_whole(options: RestoreOptions) -> bool:
    """Whether all content of the snapshot is at the target afterwards."""
    return not options.paths and not options.no_links and options.git == "keep"


def _reader(manifest: Manifest, blocks: BlockReader) -> Callable[[int], bytes]:
    """Returns what reads a small file; most restores read none."""

    @cache
    def files() -> SmallFiles:
        from sandlift.small_files import SmallFiles

        return SmallFiles(manifest, blocks)

    return lambda row: files().read(row)


def _request(spec: RestoreSpec, own: tuple[bytes, ...]) -> dict[str, object]:
    return {
        "target": spec.target.root,
        "home": spec.target.home,
        "mode": spec.options.mode,
        "dry_run": spec.dry_run,
        "owner": spec.options.owner or "",
        "special_bits": spec.options.special_bits,
        "own": list(own),
        "limits": spec.limits.for_helper(),
    }


def _lossy(planned: Lossy, end: dict[str, int]) -> Lossy:
    return replace(planned, links_copied=end.get("copied", 0), owners_refused=end.get("refused", 0))


def _reported(actions: tuple[Action, ...], end: dict[str, int], *, dry_run: bool) -> tuple[Action, ...]:
    """Returns all actions of a dry run, else what was left as it was."""
    if dry_run:
        return actions
    from sandlift.results import Action

    left = [action for action in actions if action.action == "leave"]
    if end.get("root_kept"):
        left.insert(0, Action(action="leave", path=b"", kind="directory", why="its mode and time: it is not yours"))
    if end.get("old_kept"):
        why = "the tree that was replaced stands beside the target: something is mounted in it, or may not be removed"
        left.insert(0, Action(action="leave", path=b"", kind="directory", why=why))
    return tuple(left)


class _Restoring:
    """One restore's talk with the helper; ``plan`` is there once the helper has said what is at the target."""

    def __init__(
        self,
        run: HelperRun,
        spec: RestoreSpec,
        snapshot: StoredSnapshot,
        manifest: Manifest,
        blocks: BlockReader,
        wanted: Wanted,
        watch: Watch,
        codec: int,
    ) -> None:
        self.wanted = wanted
        self._run = run
        self._spec = spec
        self._snapshot = snapshot
        self._manifest = manifest
        self._blocks = blocks
        self._watch = watch
        self._codec = codec
        self._plan: Plan | None = None
        self._gathering: Gathering | None = None
        self._prover: Prover | None = None
        self._told: dict[str, object] = {}
        self._listed: Segment | None = None
        self._sender: Sender | None = None
        self._total_bytes = 0
        self._waits = False

    @property
    def plan(self) -> Plan:
        """What the restore does."""
        if self._plan is None:
            raise RemoteProtocolError("the helper ended without saying what is at the target")
        return self._plan

    def listen(self) -> dict[str, int]:
        """Follows the helper to its end; returns the end's counts."""
        end: dict[str, int] = {}
        try:
            for event in self._run.events():
                match event:
                    case session.Hello():
                        self._watch.warn_of_noise(self._run.session.noise)
                    case session.ManifestSegment():
                        self._gather(event.payload)
                    case session.Have():
                        self._told_more(dict(event.message))
                    case session.Progress():
                        self._progress(event)
                    case session.End():
                        end = dict(event.counts)
                    case _:
                        pass
                self._check_sender()
        except SandliftError:
            # A fault of the store cuts the stream off, so it comes first.
            self._check_sender()
            raise
        finally:
            self._run.close()
            if self._sender is not None:
                self._sender.join()
        if not self._spec.dry_run:
            self._check_end(end)
        return end

    def _check_end(self, end: dict[str, int]) -> None:
        """Raises RemoteProtocolError unless the helper had the whole plan, and says that it did all of it."""
        done = end.get("built", -1), end.get("settled", -1)
        if self._sender is None or not self._sender.done or done != (len(self.plan.build), len(self.plan.settle)):
            raise RemoteProtocolError(
                f"the helper ended before its work was done: {max(done[0], 0)} of {len(self.plan.build)} entries built",
                hint="look at what is at the target; a restore in place can be run again",
            )

    def _progress(self, event: session.Progress) -> None:
        counts = event.counts
        if event.phase == "wait":
            if not self._waits:
                self._waits = True
                self._watch.warn("another restore is at work at the target; this one waits for its end")
            self._watch.progress("wait")
            return
        phase = event.phase if event.phase in _PHASES else "write"
        self._watch.progress(
            phase,
            entries=counts.get("files", counts.get("entries", 0)),
            bytes=counts.get("bytes", 0),
            total_bytes=self._total_bytes if phase == "write" else counts.get("total_bytes"),
        )

    def _gather(self, payload: bytearray) -> None:
        from sandlift.content import Prover
        from sandlift.gathering import Gathering

        if self._plan is not None:
            raise RemoteProtocolError("the helper sent a listing after the plan")
        if self._gathering is None:
            self._gathering = Gathering(self._spec.limits)
        if self._prover is None:
            self._prover = Prover()
        self._gathering.add(self._prover.unpack_segment(payload))

    def _told_more(self, message: dict[str, object]) -> None:
        """Takes a have frame: the end of the listing, or of the digests that were asked for."""
        from sandlift.restoring.plan import Listing, candidates

        if self._plan is not None:
            raise RemoteProtocolError("the helper sent a have frame after the plan")
        if self._listed is not None:
            self._make_plan(self._with_digests(self._listed))
            return
        self._told = message
        if message.get("listed") is not True:
            rows = Segment()
            if message.get("in_place") is True:
                # An empty mount point takes the new tree inside it; one where that was cut off is listed.
                rows.flag(b"", table.MOUNT_POINT)
            absent = message.get("exists") is not True
            self._make_plan(Listing(rows=rows, hashed=frozenset(), folds=message.get("folds") is True, absent=absent))
            return
        if self._gathering is None:
            raise RemoteProtocolError("the helper's listing of the target is missing")
        self._listed = self._gathering.listing()
        self._gathering = None
        if self._spec.options.mode == "new":
            self._listed.flag_paths.insert(0, b"")
            self._listed.flags.insert(0, table.MOUNT_POINT)
        from sandlift.restoring.delivery import wanted_frames

        rows = self._listed
        for frame in wanted_frames([rows.paths[row] for row in candidates(self.wanted, rows)], self._codec):
            self._run.write(frame)

    def _with_digests(self, rows: Segment) -> Listing:
        """Returns the listing with the content of those files that were asked for and have not changed since.

        One name of a file was asked for; as everywhere, the first one in the listing carries the content.
        """
        from sandlift.restoring.plan import Listing

        known = self._gathering.digests() if self._gathering is not None else Segment()
        self._gathering = None
        content_of = dict(zip(known.paths, zip(known.sizes, known.contents(), strict=True), strict=True))
        firsts = rows.first_of_groups()
        hashed = set()
        counts = array("I", bytes(4 * len(rows)))
        digests, positions = bytearray(), array("I")
        for row, (kind, size, group) in enumerate(zip(rows.kinds, rows.sizes, rows.groups, strict=True)):
            first = firsts.get(group, row)
            found_size, (digest, position, count) = content_of.get(rows.paths[first], (-1, (0, -1, 0)))
            if kind != table.FILE or found_size != size:
                continue
            hashed.add(row)
            if row == first:
                counts[row] = count
                digests += known.digests[32 * digest : 32 * (digest + count)]
                if position >= 0:
                    positions += known.positions[position : position + count]
        rows.counts, rows.digests, rows.positions = counts, digests, positions
        return Listing(rows=rows, hashed=frozenset(hashed), folds=self._told.get("folds") is True, absent=False)

    def _make_plan(self, listing: Listing) -> None:
        """Plans, and begins to send what the plan takes.  Raises Conflict."""
        from sandlift.restoring.delivery import column_frames, deliver, table_frames
        from sandlift.restoring.plan import make_plan

        self._plan = plan = make_plan(self.wanted, listing, self._spec.options, all_actions=self._spec.dry_run)
        if self._spec.dry_run:
            return
        blocks = self._manifest.blocks, self._snapshot, self._blocks, plan.local, self.wanted.blocks

        def head() -> Generator[bytes, None, Delivery]:
            yield from table_frames(_built(plan), self._codec)
            yield from table_frames(_settled(plan), self._codec)
            # Meanwhile the helper makes directories.
            delivery = deliver(plan.build, *blocks)
            yield from column_frames(delivery.column, self._codec)
            return delivery

        codecs = self._told.get("codecs")
        zstd = isinstance(codecs, list) and "zstd" in codecs
        self._sender = Sender(self._run, head(), self._blocks, zstd=zstd)
        self._total_bytes = plan.build.data_size()

    def _check_sender(self) -> None:
        if self._sender is not None:
            self._sender.check()


def _built(plan: Plan) -> Segment:
    """Returns the rows to build as they travel: original texts stay here, flags say where new parts begin."""
    rows = Segment()
    for name, _ in table.COLUMNS:
        if name not in ("originals", "excluded_paths", "excluded_kinds", "excluded_reasons", "details", "orphans"):
            setattr(rows, name, getattr(plan.build, name))
    rows.names_size = plan.build.names_size
    rows.originals = [b""] * len(rows.texts)
    rows.flag_paths, rows.flags = [], bytearray()
    for path, way in plan.units:
        rows.flag(path, way)
    if not plan.set_root:
        rows.root = None
    return rows


def _settled(plan: Plan) -> Segment:
    """Returns what stays and what goes as it travels."""
    rows = plan.settle
    rows.root = None
    for path, kind in plan.removals:
        rows.exclude(path, kind, 0)
    return rows
