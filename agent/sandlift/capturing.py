"""A capture, seen from the host: run the helper, prove what comes, store it, and commit it by one ref.

The caller's thread reads the stream, and the shelf proves and stores its content meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Union

from sandlift import session
from sandlift.codecs import codec_fields
from sandlift.deadline import Deadline
from sandlift.errors import RemoteProtocolError, SandboxGone, SandliftError, StoreDamaged, StrictLoss, Truncated
from sandlift.helper_run import HelperRun
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.model import Codec, Rules
from sandlift.targets import Target
from sandlift.transports.base import Transport
from sandlift.watch import OnEvent, Watch
from sandlift_helper import table, wire

if TYPE_CHECKING:
    from sandlift.base import Base
    from sandlift.results import Capture, Counts
    from sandlift.shelf import Shelf
    from sandlift.store import PackWriter, RefRecord, Store

StoreSource = Union["Store", Callable[[], "Store"]]
"""A store, or what opens one: then it is opened while the connection is made."""

CREDIT_FRAMES = 32
"""Content frames that may be under way: at most 2 MiB each, and the bound of the memory in use."""
ASKED_MAX = wire.SEGMENT_MAX
"""The most bytes of the names of files that are asked for again."""
SETTLE_S = 60.0
"""The kernel writes a page back at most twice its dirty expiry (30 s) after a shared mapping changed it."""


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
    codec: Codec = "auto"
    level: int | None = None
    """How hard to compress, from 1 to 22; None leaves it to the codec."""
    python: str | None = None
    base: str = "auto"
    """``auto``: the newest snapshot of this very target; ``none``; or a ref of this target."""
    like: tuple[str, ...] = ()
    """Snapshots that hold much of the same; what the sandbox proves to have of them does not travel."""
    rehash: bool = False
    """Read every file, whatever its times say."""
    trust_ctime: bool = False
    """Believe change times on file systems that are known to forget them, such as tmpfs and NFS."""
    settle_s: float = SETTLE_S
    """The age from which on a change can no longer be hidden by a write that is under way."""


def opened(store: StoreSource) -> Store:
    """Returns the store itself."""
    return store() if callable(store) else store


def own_places(store: Store, target: Target) -> tuple[bytes, ...]:
    """Returns the places of *target*'s machine that are sandlift's own: of the store, if it is this machine."""
    return (os.fsencode(os.path.abspath(store.location)),) if target.scheme == "local" else ()


def sandbox_request(spec: CaptureSpec, transport: Transport, own: tuple[bytes, ...] = ()) -> dict[str, object]:
    """Returns the fields that a capture's and a survey's request share.  Raises UsageError."""
    rules = spec.rules
    return {
        "root": spec.target.root,
        "home": spec.target.home,
        "aliases": list(spec.aliases),
        "own": list(own),
        **codec_fields(spec.codec, spec.level, transport.capabilities.link_cost),
        "patterns": [list(pattern) for pattern in rules.patterns],
        "literals": list(rules.paths),
        "ignore_file": rules.ignore_file,
        "exclude_caches": rules.caches,
        "limits": spec.limits.for_helper(),
        "base": {},
        "settle_ms": int(spec.settle_s * 1000),
        "trust_ctime": spec.trust_ctime,
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

    Raises any error of `sandlift.errors`; then the store is as it was, but for objects that nothing names, and for
    what the sandbox had sent when the connection broke, which the next capture of the target goes on from.
    """
    watch = Watch(on_event)
    watch.progress("connect")
    with HelperRun(transport, "capture", limits=spec.limits, deadline=deadline, python=spec.python) as run:
        offered: list[tuple[Store, Base]] = []

        def request() -> dict[str, object]:
            # Only now what takes long to import: meanwhile the connection is made.
            offered.append(_offer(opened(store), spec))
            there, base = offered[0]
            # A store inside the workspace would be captured into itself, so its place must be known.
            return {
                **sandbox_request(spec, transport, own_places(there, spec.target)),
                "base": base.fields(rehash=spec.rehash),
            }

        run.start(request)
        return _Capturing(run, *offered[0], spec, watch).result()


def _offer(store: Store, spec: CaptureSpec) -> tuple[Store, Base]:
    """Returns the open store and what it has to offer.  Raises UsageError, UnknownRef, StoreDamaged."""
    from sandlift.base import Base, find_like, find_own
    from sandlift.store import check_name

    check_name(spec.workspace)
    partial = store.read_partial(spec.workspace, spec.target.key()) if spec.base != "none" else None
    own = find_own(store, spec.workspace, spec.target, spec.base)
    return store, Base(store, own, find_like(store, spec.like), partial)


class _Capturing:
    """One capture, from its request on."""

    def __init__(self, run: HelperRun, store: Store, base: Base, spec: CaptureSpec, watch: Watch) -> None:
        from sandlift.claims import Claims
        from sandlift.committing import Provenance
        from sandlift.content import Prover
        from sandlift.gathering import Gathering

        self._run = run
        self._store = store
        self._base = base
        self._spec = spec
        self._watch = watch
        self._gathering = Gathering(spec.limits)
        self._prover = Prover()
        self._claims = Claims(lambda claims: base.take_claims(claims, run.session.nonce), run.deadline)
        self._end: Mapping[str, int] = {}
        self._missed = False
        self._provenance = Provenance(
            capture_id=os.urandom(16).hex(),
            workspace=spec.workspace,
            source=spec.target.source(),
            started=watch.started,
            rules=spec.rules.described(),
            labels=spec.labels,
            note=spec.note,
        )

    def result(self) -> Capture:
        """Takes all that comes, commits it, and returns what the capture gave."""
        from sandlift.committing import captured
        from sandlift.shelf import Shelf

        for frame in self._base.offers():
            self._run.tell(frame)
        self._run.grant(CREDIT_FRAMES)
        begun = self._store.begin_pack(self._provenance.capture_id)
        with begun as pack, Shelf(pack, self._run.grant, self._run.deadline) as shelf, self._claims:
            try:
                self._listen(shelf)
            except (Truncated, SandboxGone) as error:
                self._keep_partial(shelf, pack, error)
                raise
            self._watch.progress("store")
            shelf.finish(self._end.get("blocks", -1))
            self._claims.drain()
            if self._base.is_whole and self._gathering.is_empty and not shelf.brought:
                record, counts = self._commit_again()
            else:
                record, counts = self._commit(pack, shelf)
        if self._base.partial:
            self._store.remove_partial(self._base.partial)
        return captured(record, counts, self._run.wire, self._watch.end())

    def _listen(self, shelf: Shelf) -> None:
        """Passes the stream's parts on until its end."""
        watch = self._watch
        for event in self._run.events(shelf.check):
            match event:
                case session.Hello():
                    watch.warn_of_noise(self._run.session.noise)
                case session.Content():
                    shelf.put(event.payload)
                case session.ManifestSegment():
                    claims = self._gathering.add(self._prover.unpack_segment(event.payload))
                    if claims:
                        self._claims.put(claims)
                case session.Want():
                    for frame in self._base.wanted_parts(event.message):
                        self._run.tell(frame)
                case session.Have():
                    self._take_have(event.message, shelf)
                case session.Progress():
                    self._progress(event)
                case session.End():
                    self._end = event.counts
                case _:
                    pass
            shelf.check()

    def _progress(self, event: session.Progress) -> None:
        counts = event.counts
        self._watch.progress(
            event.phase if event.phase in ("scan", "read") else "read",
            entries=counts.get("files", counts.get("entries", 0)),
            bytes=counts.get("bytes", 0),
            total_entries=counts.get("total_files"),
            total_bytes=counts.get("total_bytes"),
        )

    def _take_have(self, message: Mapping[str, object], shelf: Shelf) -> None:
        """Takes the answer to the base, or the word that blocks were not sent because they may be held."""
        if "claimed" not in message:
            kept = self._base.take_answer(message)
            if kept is not None:
                self._gathering.keep(kept)
            return
        if self._missed:
            raise RemoteProtocolError("the helper counts what it did not send twice")
        self._missed = True
        self._claims.drain()
        shelf.drain()
        paths = self._gathering.missing(self._size_of(shelf))
        data = b"".join(path + b"\0" for path in paths)
        if len(data) > ASKED_MAX:
            raise RemoteProtocolError(f"the helper names blocks of {len(paths)} files that are not there")
        self._run.tell(wire.frame(wire.WANT, wire.packed_header(wire.CODEC_NONE, len(data)) + data))

    def _size_of(self, shelf: Shelf) -> Callable[[bytes], int | None]:
        brought, base = shelf.brought, self._base

        def size_of(digest: bytes) -> int | None:
            size = brought.size_bytes(digest)
            return base.size_bytes(digest) if size is None else size

        return size_of

    def _commit_again(self) -> tuple[RefRecord, Counts]:
        """Commits what is as the base has it."""
        from sandlift.committing import commit_again
        from sandlift.results import Counts

        own = self._base.own
        assert own is not None
        assert own.cache is not None
        counts = Counts(**own.record.counts)
        _check_strict(self._spec, counts, unfinished=False)
        self._run.deadline.check("storing")
        if not self._store.has_packs(own.cache.packs) or not self._store.has_snapshot(own.cache.identity):
            raise StoreDamaged("the base of this capture was removed meanwhile", hint="try again")
        record = commit_again(self._store, own.record, self._provenance)
        self._store.write_scan(replace(own.cache, number=record.number))
        return record, counts

    def _commit(self, pack: PackWriter, shelf: Shelf) -> tuple[RefRecord, Counts]:
        from sandlift.committing import commit
        from sandlift.tracking import scan_cache
        from sandlift.validate import shown

        if self._base.is_whole:
            self._gathering.keep(self._base.all_rows())
        manifest = self._gathering.accept(shelf.brought, self._size_of(shelf))
        unfinished = table.UNFINISHED in manifest.rows.flags
        _check_strict(self._spec, manifest.counts, unfinished=unfinished)
        if unfinished:
            self._watch.warn("a restore to this workspace was not finished, so it may be partly an older tree")
        for path in manifest.torn_databases():
            self._watch.warn(
                f"the database {shown(path)} was written to meanwhile: it and its journal may not fit together"
            )
        record, packs = commit(
            self._store, pack, manifest, shelf.brought, self._provenance, self._run.deadline, self._base.place
        )
        counts = manifest.counts
        rows = self._gathering.rows
        if not self._end.get("steady"):
            # The clock was set meanwhile, so no age is known.
            rows.settled = bytearray(len(rows.settled))
        if self._gathering.has_stamps:
            self._store.write_scan(
                scan_cache(rows, record, target=self._spec.target.key(), instance=self._base.instance, packs=packs)
            )
        return record, counts

    def _keep_partial(self, shelf: Shelf, pack: PackWriter, error: SandliftError) -> None:
        """Keeps what came, for the next capture of the same target."""
        from sandlift.salvaging import keep

        shelf.drain()
        shelf.check()
        target = self._spec.target.key()
        if keep(self._store, self._base, self._gathering, pack, shelf.brought, self._provenance, target):
            error.hint = (
                "what had come is kept: the same capture goes on from there, and"
                f" sandlift salvage {self._spec.workspace} makes a snapshot of it"
            )


def _check_strict(spec: CaptureSpec, counts: Counts, *, unfinished: bool) -> None:
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
