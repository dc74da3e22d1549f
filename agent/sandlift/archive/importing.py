"""A foreign tar taken in: one pass over its bytes, and in the end an ordinary snapshot with its ref.

Members are judged one by one before their content is read, content is cut into blocks and goes straight into a pack,
and what the members make as a whole is proved by the same validator as a capture.  So memory grows with the number of
members and never with their bytes, and the only scratch is the pack's own unfinished file.  Until the pack is
complete nothing can be seen in the store, and a refused archive leaves nothing there.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zstandard

from sandlift.archive import headers
from sandlift.archive.bounds import DEFAULT_BOUNDS, ArchiveBounds, over
from sandlift.archive.compression import ByteStream, Compression, Source, open_plain
from sandlift.archive.members import Member, Members
from sandlift.archive.tree import Tree
from sandlift.committing import Provenance, captured, commit
from sandlift.content import PARAMETERS
from sandlift.deadline import Deadline
from sandlift.errors import StrictLoss, UsageError
from sandlift.gathering import Gathering
from sandlift.holding import Brought
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.results import Capture, Counts, Wire
from sandlift.store import check_name
from sandlift.watch import OnEvent, Watch
from sandlift_helper import members as block_members
from sandlift_helper import table
from sandlift_helper.wire import BLOCK_MAX, RUN_MAX, RUN_TARGET

if TYPE_CHECKING:
    from sandlift.capturing import StoreSource
    from sandlift.manifest import Manifest
    from sandlift.store import PackWriter

PROGRESS_EVERY = 64
"""Members between two events; a file's blocks make events too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSpec:
    """What an archive is, and what becomes of it."""

    workspace: str
    root: bytes
    """The workspace's absolute path where the archive was made: absolute names and links are taken relative to it."""
    source: str
    """Where the archive comes from, for the record: ``import:`` and a path, or ``import:-``."""
    prefix: bytes | None = None
    """What all names begin with; ``.`` for nothing, None to find out (see `sandlift.archive.tree`)."""
    aliases: tuple[bytes, ...] = ()
    """Other absolute names of the root."""
    compression: Compression = "auto"
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    strict: bool = False
    limits: Limits = DEFAULT_LIMITS
    bounds: ArchiveBounds = DEFAULT_BOUNDS
    size_bytes: int | None = None
    """The archive's own size if it is known, for progress."""

    def __post_init__(self) -> None:
        for name in (self.root, *self.aliases):
            if not name.startswith(b"/") or b"\0" in name or b".." in name.split(b"/"):
                raise UsageError(
                    f"the root {ascii(name)[1:]} is no absolute path without ..",
                    hint="name the workspace's directory where the archive was made, such as /workspace",
                )
        if self.prefix is not None and b".." in self.prefix.split(b"/"):
            raise UsageError(f"the prefix {ascii(self.prefix)[1:]} has the component ..")

    def described(self) -> tuple[str, ...]:
        """What decides about paths and links, as text for the record."""
        lines = [(self.root, "--root"), *((alias, "--alias") for alias in self.aliases)]
        if self.prefix is not None:
            lines.append((self.prefix, "--prefix"))
        return tuple(f"{value.decode('utf-8', 'surrogateescape')} ({place})" for value, place in lines)


def import_archive(
    store: StoreSource,
    stream: ByteStream,
    spec: ImportSpec,
    *,
    deadline: Deadline,
    on_event: OnEvent | None = None,
) -> Capture:
    """Reads one archive from *stream* to its end and stores it as the next snapshot of a workspace.

    *stream* is a raw one (`io.FileIO`) where the deadline is to hold while nothing comes; others are read as they
    are.  *store* may be a function that opens one, which is done once the archive has begun like one.  Raises
    UnsafeArchive, HostLimit, StrictLoss and what a capture's storing raises; then nothing of it is in the store.
    """
    watch = Watch(on_event)
    watch.progress("read")
    check_name(spec.workspace)
    source = Source(stream, deadline, spec.limits.silence_s)
    plain = open_plain(source, spec.compression, spec.bounds, headers.looks_like_header)
    members = Members(plain, spec.bounds)
    members.check_first()
    opened = store() if callable(store) else store
    capture_id = secrets.token_hex(16)
    tree = Tree(spec.root, spec.aliases, spec.prefix, spec.limits, spec.bounds)
    with opened.begin_pack(capture_id) as pack:
        shelf = _Shelf(pack, members.read_into)

        def tell() -> None:
            deadline.check("reading the archive")
            watch.progress("read", entries=tree.entries, bytes=source.count_bytes, total_bytes=spec.size_bytes)

        _take_in(members, tree, shelf, tell)
        _warn_of_attributes(members, watch)
        watch.progress("store", entries=tree.entries, bytes=source.count_bytes)
        shelf.flush()
        manifest = _accept(tree, shelf, spec)
        _check_strict(spec, manifest.counts)
        provenance = Provenance(
            capture_id=capture_id,
            workspace=spec.workspace,
            source=spec.source,
            started=watch.started,
            rules=spec.described(),
            labels=spec.labels,
            note=spec.note,
        )
        record, _ = commit(opened, pack, manifest, shelf.brought, provenance, deadline)
    return captured(record, manifest.counts, Wire(received=source.count_bytes), watch.end())


def _take_in(members: Members, tree: Tree, shelf: _Shelf, tell: Callable[[], None]) -> None:
    """Passes every member to the tree, and files' content to the shelf."""
    for count, member in enumerate(members):
        if not count % PROGRESS_EVERY:
            tell()
        path = tree.place(member)
        if member.kind == table.FILE:
            digests, positions = shelf.cut(member, tell)
            tree.add_file(path, member, digests, positions)
        else:
            tree.add(path, member)


class _Shelf:
    """Cuts files into blocks and appends those that are new to a pack, a run at a time.

    ``brought`` are the blocks in the pack; it is whole after `flush`.
    """

    def __init__(self, pack: PackWriter, read_into: Callable[[memoryview], None]) -> None:
        self.brought = Brought()
        self._pack = pack
        self._read_into = read_into
        self._encoder = zstandard.ZstdCompressor(compression_params=PARAMETERS)
        self._run = memoryview(bytearray(RUN_MAX))
        self._fill = 0
        self._begun: dict[bytes, tuple[int, int]] = {}
        """Size and offset in the run of the blocks in the run, by their digests."""

    def cut(self, member: Member, tell: Callable[[], None]) -> tuple[list[bytes], list[int]]:
        """Reads one file's content; returns the digests and positions of its blocks that are not all zeros."""
        digests: list[bytes] = []
        positions: list[int] = []
        regions = ((0, member.size_bytes),) if member.regions is None else member.regions
        index, block = -1, self._run[:0]
        for offset, size in regions:
            while size:
                if offset // BLOCK_MAX != index:
                    self._keep(index, block, digests, positions)
                    tell()
                    index = offset // BLOCK_MAX
                    block = self._begin(min(BLOCK_MAX, member.size_bytes - index * BLOCK_MAX), member)
                at = offset % BLOCK_MAX
                part = block[at : at + size]
                self._read_into(part)
                offset += len(part)
                size -= len(part)
        self._keep(index, block, digests, positions)
        return digests, positions

    def flush(self) -> None:
        """Appends the run that has begun."""
        if self._fill:
            base = self._pack.append(self._encoder.compress(self._run[: self._fill]), self._fill)
            for digest, (size, start) in self._begun.items():
                self.brought.add(digest, size, base + start)
            self._begun.clear()
            self._fill = 0

    def _begin(self, size: int, member: Member) -> memoryview:
        """Returns the room of the next block in the run; zeros where a sparse file may leave gaps."""
        start = self._fill + block_members.HEADER_SIZE
        block = self._run[start : start + size]
        if member.regions is not None:
            block[:] = bytes(size)
        return block

    def _keep(self, index: int, block: memoryview, digests: list[bytes], positions: list[int]) -> None:
        """Names the block that was read, and keeps it in the run if it is new."""
        size = len(block)
        if not size or (not block[0] and not block[-1] and not bytes(block).strip(b"\0")):
            return
        digest = hashlib.sha256(block).digest()
        digests.append(digest)
        positions.append(index)
        if digest in self._begun or digest in self.brought:
            return
        start = self._fill + block_members.HEADER_SIZE
        end = start + block_members.padded(size)
        self._run[self._fill : start] = block_members.header(digest, size)
        self._run[start + size : end] = bytes(end - start - size)
        self._begun[digest] = size, self._fill
        self._fill = end
        if self._fill >= RUN_TARGET:
            self.flush()


def _accept(tree: Tree, shelf: _Shelf, spec: ImportSpec) -> Manifest:
    """Returns the workspace's manifest, proved as a capture's is."""
    encoded = table.encode(tree.finish())
    if len(encoded) > spec.limits.manifest_bytes:
        raise over("manifest_bytes", spec.limits.manifest_bytes, len(encoded))
    gathering = Gathering(spec.limits)
    gathering.add(memoryview(encoded))
    return gathering.accept(shelf.brought)


def _warn_of_attributes(members: Members, watch: Watch) -> None:
    if members.unkept:
        families = ", ".join(f"{family} ({count:,})" for family, count in sorted(members.unkept.items()))
        watch.warn(f"attributes of members are not kept: {families}")


def _check_strict(spec: ImportSpec, counts: Counts) -> None:
    if spec.strict and counts.lost:
        raise StrictLoss(
            f"{counts.lost} entries of the archive cannot be kept, so nothing was stored",
            hint="without --strict it is stored and marked",
            lost=counts.lost,
        )
