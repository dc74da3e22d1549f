"""A snapshot as a portable tar, which strict extractors take as well as ordinary ones.

**Members.**  First ``./``, then directories and files by path, then all symbolic links.  Every directory has a
member, before anything in it; names begin with ``./``.  Of files with several names each is a file, or with
``hard_links="keep"`` the first is, and the others are hard links, whose text is the first one's name to the letter.
Holes are written out as zeros.  Nothing but directories, files and links is ever in it: what a capture left out is
left out here, and a snapshot holds no link that leaves it.

**Bytes.**  The archive follows from the snapshot's identity and the spec alone, wherever its blocks lie.  Headers
are those of `sandlift.archive.ustar`; the end is two blocks of zeros, then zeros up to 10 KiB.

**Trust.**  Every block is hashed before it is written.  When one is damaged, or the time is over, the archive ends in
the middle of a member: it has no end, and no reader takes it for a whole one, not even those that do not look for
the end.

Links stand last so that no extractor can write through one, on file systems that fold names either.  The price is
that GNU tar, unless it is told ``--delay-directory-restore``, has by then set the times and modes of directories:
those with links in them keep the time of the extraction, and one that is read-only takes no link from a user who is
not root (GNU tar 1.34, measured; bsdtar and Python's tarfile set directories last).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from sandlift.archive import ustar
from sandlift.archive.sinks import Compression, Sink, Write
from sandlift.deadline import Deadline
from sandlift.errors import SandliftError, StoreDamaged, UnknownPath, UnsafeLink
from sandlift.model import Outcome
from sandlift.restoring.wanted import clean
from sandlift.validate import shown
from sandlift.watch import OnEvent, Watch
from sandlift_helper import links, table
from sandlift_helper.wire import BLOCK_MAX, RUN_MAX

if TYPE_CHECKING:
    from sandlift.manifest import Manifest
    from sandlift.store import Store, StoredSnapshot

FRAMES_KEPT: Final = 4
"""How many decoded frames are kept.  Small and large files rest in frames of their own, and a walk by path goes to
and fro between them: of 402 frames of an npm workspace one kept frame decodes 2,737, two 999, four 613."""
PATH_MAX: Final = 4095
"""The longest path that an extractor can give to Linux in one piece."""
_REPORT_EVERY_S: Final = 0.1
_ZEROS: Final = memoryview(bytes(BLOCK_MAX))

assert FRAMES_KEPT * RUN_MAX <= 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec:
    """How a snapshot is written."""

    paths: tuple[bytes, ...] = ()
    """Only these paths, what is below them, and the directories on the way; all when empty."""
    compression: Compression = "none"
    hard_links: Literal["copy", "keep"] = "copy"
    special_bits: bool = False
    """Keep setuid, setgid and sticky bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCounts:
    """The members of an archive; ``bytes`` is the content of its files."""

    directories: int = 0
    """The root included."""
    files: int = 0
    links: int = 0
    hard_links: int = 0
    bytes: int = 0
    bits_dropped: int = 0
    """Members whose setuid, setgid or sticky bits were not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What an export gave."""

    ref: str | None
    """The name of the capture, or None when the snapshot was named by its identity."""
    snapshot: str
    outcome: Outcome
    """The snapshot's own."""
    bytes: int
    """Size of the archive, compressed if it is."""
    counts: ExportCounts
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason to number of entries that the capture had left out, and that are therefore not in the archive."""
    seconds: float


def export(
    store: Store,
    ref: str,
    spec: ExportSpec,
    write: Write,
    *,
    deadline: Deadline | None = None,
    on_event: OnEvent | None = None,
) -> Export:
    """Writes a snapshot as a tar, piece by piece, with *write*, whose own errors pass through.

    Raises UnknownRef, UnknownPath, UnsafeLink (a chosen link needs another that was not chosen), UsageError,
    StoreDamaged, StoreNewer, Interrupted, DeadlineExceeded; what was written until then has no end.
    """
    from sandlift.manifest import Manifest

    watch = Watch(on_event)
    watch.progress("plan")
    deadline = deadline or Deadline.after(None)
    named = store.resolve(ref)
    snapshot = store.load(named)
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    name = snapshot.identity.hex()[:12] if isinstance(named, bytes) else named.name
    paths = [clean(path) for path in spec.paths]
    chosen = _choose(manifest, paths)
    skipped = _skipped(manifest, paths)
    _warn(watch, name, manifest, skipped)
    archive = _Archive(manifest, chosen, spec, Sink(write, spec.compression))
    archive.write(_Blocks(store, snapshot, manifest), deadline, watch)
    if long := archive.long_paths:
        what = "path is" if long == 1 else "paths are"
        watch.warn(f"{long:,} {what} longer than {PATH_MAX} bytes, and ordinary extractors cannot make that")
    return Export(
        ref=None if isinstance(named, bytes) else named.name,
        snapshot=snapshot.identity.hex(),
        outcome=manifest.counts.outcome,
        bytes=archive.sink.written_bytes,
        counts=archive.counts(),
        skipped=skipped,
        seconds=watch.end(),
    )


def _choose(manifest: Manifest, paths: Sequence[bytes]) -> bytearray:
    """Returns for each row whether it is wanted, 1 or 0.  Raises UnknownPath, UnsafeLink."""
    rows = manifest.rows
    if not paths or b"" in paths:
        return bytearray(b"\1") * len(rows)
    chosen = bytearray(len(rows))
    for path in paths:
        try:
            for row in manifest.below(path):
                chosen[row] = 1
        except KeyError:
            raise _unknown(manifest, path) from None
        while path := path.rpartition(b"/")[0]:
            chosen[manifest.find(path)] = 1
    wanted = [(rows.paths[row], text) for row, text in _texts(manifest) if chosen[row]]
    names = [path for path, _ in wanted]
    for path, inside in zip(names, links.judge(names, [text for _, text in wanted]), strict=True):
        if not inside:
            raise UnsafeLink(
                f"the link {shown(path)} would leave the archive's tree, because a link on its way is not in it",
                hint="export the whole snapshot, or name the other link with --path as well",
                path=shown(path),
            )
    return chosen


def _unknown(manifest: Manifest, path: bytes) -> UnknownPath:
    rows = manifest.rows
    for excluded, reason in zip(rows.excluded_paths, rows.excluded_reasons, strict=True):
        if path == excluded or path.startswith(excluded + b"/"):
            why = table.REASON_NAMES[reason]
            return UnknownPath(
                f"the snapshot has no {shown(path)}: {shown(excluded)} was left out ({why})",
                hint="sandlift show lists what was left out",
                reason=why,
            )
    return UnknownPath(f"the snapshot has no {shown(path)}", hint="sandlift ls lists what it has")


def _texts(manifest: Manifest) -> Iterator[tuple[int, bytes]]:
    """Yields (row, text) of the symbolic links."""
    link_rows = (row for row, kind in enumerate(manifest.rows.kinds) if kind == table.LINK)
    return zip(link_rows, manifest.rows.texts, strict=True)


def _skipped(manifest: Manifest, paths: Sequence[bytes]) -> dict[str, int]:
    """Counts by reason what the capture had left out at or below *paths*."""
    rows = manifest.rows
    found: dict[str, int] = {}
    for path, reason in zip(rows.excluded_paths, rows.excluded_reasons, strict=True):
        if not paths or any(not top or path == top or path.startswith(top + b"/") for top in paths):
            name = table.REASON_NAMES[reason]
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def _warn(watch: Watch, name: str, manifest: Manifest, skipped: Mapping[str, int]) -> None:
    if manifest.counts.outcome == "incomplete":
        watch.warn(f"{name} is incomplete: something was lost when it was captured; see sandlift show {name}")
    if skipped:
        total = sum(skipped.values())
        which = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        entries = "entry that the capture left out is" if total == 1 else "entries that the capture left out are"
        watch.warn(f"{total:,} {entries} not in the archive ({which})")


class _Blocks:
    """The blocks of a snapshot, each proved by its digest; the last few decoded frames are kept."""

    def __init__(self, store: Store, snapshot: StoredSnapshot, manifest: Manifest) -> None:
        self._numbers = {digest: number for number, digest in enumerate(manifest.blocks)}
        # Each reader keeps one frame; the one that was used last stands last.
        self._readers = [store.blocks(snapshot) for _ in range(FRAMES_KEPT)]
        self._places: list[tuple[int, int]] = [(-1, -1)] * FRAMES_KEPT

    def read(self, digest: bytes) -> bytes:
        """Returns a block.  Raises StoreDamaged, StoreNewer."""
        number = self._numbers[digest]
        place = self._readers[-1].place(number)
        if place != self._places[-1]:
            at = self._places.index(place) if place in self._places else 0
            self._readers.append(self._readers.pop(at))
            self._places.append(self._places.pop(at))
            self._places[-1] = place
        return self._readers[-1].read(number, digest)


class _Archive:
    """Writes the chosen rows of a manifest as members, and counts them."""

    def __init__(self, manifest: Manifest, chosen: bytearray, spec: ExportSpec, sink: Sink) -> None:
        self.sink = sink
        self.long_paths = 0
        self._manifest = manifest
        self._chosen = chosen
        self._keep_hard_links = spec.hard_links == "keep"
        self._mode_mask = 0o7777 if spec.special_bits else 0o777
        # Content that the member being written still lacks.
        self._owed_bytes = 0
        self._members = dict.fromkeys((ustar.DIRECTORY, ustar.FILE, ustar.LINK, ustar.HARD_LINK), 0)
        self._content_bytes = 0
        self._bits_dropped = 0
        self._reported_s = 0.0

    def counts(self) -> ExportCounts:
        """What was written so far."""
        return ExportCounts(
            directories=self._members[ustar.DIRECTORY],
            files=self._members[ustar.FILE],
            links=self._members[ustar.LINK],
            hard_links=self._members[ustar.HARD_LINK],
            bytes=self._content_bytes,
            bits_dropped=self._bits_dropped,
        )

    def write(self, blocks: _Blocks, deadline: Deadline, watch: Watch) -> None:
        """Writes everything; after an error of sandlift's what was written is visibly cut off."""
        try:
            self._write_root()
            self._write_directories_and_files(blocks, deadline, watch)
            rows = self._manifest.rows
            for row, text in _texts(self._manifest):
                if self._chosen[row]:
                    deadline.check("exporting")
                    self._begin(ustar.LINK, row, b"./" + rows.paths[row], 0o777, text=text)
            self.sink.put(ustar.END)
            self.sink.put(bytes(-self.sink.taken_bytes % ustar.RECORD))
        except SandliftError:
            with suppress(SandliftError, OSError):
                if not self._owed_bytes:
                    # Some readers take an archive that ends between two members, none a header without its body.
                    self.sink.put(ustar.pax_header([(b"comment", b"the export failed here")])[: ustar.BLOCK])
                self.sink.break_off()
            raise
        self.sink.end()

    def _write_root(self) -> None:
        root = self._manifest.rows.root
        assert root is not None
        self._put(
            ustar.Member(
                name=b"./",
                kind=ustar.DIRECTORY,
                mode=self._mode(root.mode),
                mtime_ns=root.mtime_ns,
                uid=root.uid,
                gid=root.gid,
            )
        )

    def _write_directories_and_files(self, blocks: _Blocks, deadline: Deadline, watch: Watch) -> None:
        rows = self._manifest.rows
        total_bytes = sum(size for size, wanted in zip(rows.sizes, self._chosen, strict=True) if wanted)
        carried: dict[int, tuple[int, int, int]] = {}
        first_names: dict[int, bytes] = {}
        for row, content in enumerate(rows.contents()):
            group = rows.groups[row]
            if group:
                content = carried.setdefault(group, content)
            if not self._chosen[row] or rows.kinds[row] == table.LINK:
                continue
            deadline.check("exporting")
            name = b"./" + rows.paths[row]
            if rows.kinds[row] == table.DIRECTORY:
                self._begin(ustar.DIRECTORY, row, name + b"/", self._mode(rows.modes[row]))
            elif group and self._keep_hard_links and first_names.setdefault(group, name) != name:
                text = first_names[group]
                self._begin(ustar.HARD_LINK, row, name, rows.modes[row] & self._mode_mask, text=text)
            else:
                self._begin(ustar.FILE, row, name, self._mode(rows.modes[row]), size_bytes=rows.sizes[row])
                for piece in self._content(blocks, row, *content):
                    deadline.check("exporting")
                    self._owed_bytes -= len(piece)
                    self._content_bytes += len(piece)
                    self.sink.put(piece)
                    self._report(watch, total_bytes)
                self.sink.put(ustar.padding(rows.sizes[row]))
            self._report(watch, total_bytes)

    def _content(
        self, blocks: _Blocks, row: int, first: int, position: int, count: int
    ) -> Iterator[bytes | memoryview]:
        """Yields a file's bytes; holes are zeros.  Raises StoreDamaged."""
        rows = self._manifest.rows
        size = rows.sizes[row]
        used = 0
        for index in range(table.block_count(size)):
            length = min(BLOCK_MAX, size - index * BLOCK_MAX)
            if used == count or (position >= 0 and rows.positions[position + used] != index):
                yield _ZEROS[:length]
                continue
            at = 32 * (first + used)
            digest = bytes(rows.digests[at : at + 32])
            used += 1
            try:
                block = blocks.read(digest)
                if len(block) != length:
                    raise StoreDamaged(f"a block has {len(block)} bytes instead of {length}")
            except StoreDamaged as error:
                raise StoreDamaged(
                    f"{shown(rows.paths[row])} cannot be exported: {error.message}",
                    hint="what was written is no whole archive; sandlift verify shows what is damaged",
                    path=shown(rows.paths[row]),
                ) from error
            yield block

    def _mode(self, mode: int) -> int:
        if mode & ~self._mode_mask:
            self._bits_dropped += 1
        return mode & self._mode_mask

    def _begin(self, kind: bytes, row: int, name: bytes, mode: int, *, size_bytes: int = 0, text: bytes = b"") -> None:
        rows = self._manifest.rows
        self.long_paths += len(rows.paths[row]) > PATH_MAX
        self._put(
            ustar.Member(
                name=name,
                kind=kind,
                mode=mode,
                mtime_ns=rows.mtimes_ns[row],
                uid=rows.uids[row],
                gid=rows.gids[row],
                size_bytes=size_bytes,
                text=text,
            )
        )

    def _put(self, member: ustar.Member) -> None:
        self.sink.put(ustar.encode(member))
        self._members[member.kind] += 1
        self._owed_bytes = member.size_bytes

    def _report(self, watch: Watch, total_bytes: int) -> None:
        if watch.seconds - self._reported_s < _REPORT_EVERY_S:
            return
        self._reported_s = watch.seconds
        files = self._members[ustar.FILE] + self._members[ustar.HARD_LINK]
        watch.progress("write", entries=files, bytes=self._content_bytes, total_bytes=total_bytes)
