"""The target for foreign archives: one that is taken in means the same to another reader, and to us again."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import shutil
import tarfile
from collections.abc import Mapping

import zstandard
from fuzz import oracles
from fuzz.invariants import Broken, hold
from fuzz.store_targets import WORKSPACE, store

from sandlift.archive.bounds import ArchiveBounds
from sandlift.archive.exporting import ExportSpec, export
from sandlift.archive.importing import ImportSpec, import_archive
from sandlift.deadline import Deadline
from sandlift.errors import HostLimit, UnsafeArchive
from sandlift.limits import Limits
from sandlift.manifest import Manifest
from sandlift_helper import table
from sandlift_helper.wire import BLOCK_MAX

ROOT = b"/srv/w"
IMPLIED = (0o755, 0, 0)
"""Mode, owner and group of a directory that has no member."""
LIMITS = Limits(entries=40, path_bytes=300, depth=8, link_text_bytes=300, file_bytes=3 << 20, manifest_bytes=64 << 10)
BOUNDS = ArchiveBounds(
    total_bytes=6 << 20,
    stream_bytes=8 << 20,
    member_metadata_bytes=4096,
    metadata_bytes=16 << 10,
    sparse_regions=64,
    tail_bytes=64 << 10,
)

Meaning = dict[bytes, tuple[str, bytes, tuple[int, ...]]]
"""Path to kind, a file's content or a link's text, and mode, owner and group where a member of its own states them."""


def archive(data: bytes) -> None:
    """A tar, compressed or not: refused without a trace, or taken as tarfile reads it, and the same after an export."""
    try:
        first = _take(data)
        if first is None:
            return
        manifest, contents = first
        _check_meaning(data, manifest, contents)
        pieces: list[bytes] = []
        export(store(), WORKSPACE, ExportSpec(hard_links="keep", special_bits=True), pieces.append)
        again = _take(b"".join(pieces))
        hold(again is not None, "an export is refused")
        assert again is not None
        hold(_kept(again[0]) == _kept(manifest), "an export is taken in as something else")
        hold(again[1] == contents and again[0].content == manifest.content, "an export has other content")
    finally:
        for folder in ("packs", "snapshots", "refs"):
            shutil.rmtree(store().objects.path / folder, ignore_errors=True)


def _files() -> list[str]:
    """All files of the store, unfinished ones too."""
    return sorted(os.path.join(top, name) for top, _, names in os.walk(store().objects.path) for name in names)


def _take(data: bytes) -> tuple[Manifest, Mapping[bytes, bytes]] | None:
    spec = ImportSpec(workspace=WORKSPACE, root=ROOT, source="import:-", limits=LIMITS, bounds=BOUNDS)
    before = _files()
    try:
        capture = import_archive(store(), io.BytesIO(data), spec, deadline=Deadline.after(None))
    except (UnsafeArchive, HostLimit):
        hold(_files() == before, "a refused archive left something")
        return None
    snapshot = store().load(bytes.fromhex(capture.snapshot))
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    reader = store().blocks(snapshot)
    blocks = {digest: reader.read(index, digest) for index, digest in enumerate(manifest.blocks)}
    wrong = oracles.wrong_in_manifest(manifest.rows, {digest: len(block) for digest, block in blocks.items()})
    hold(wrong is None, f"an archive was taken in although {wrong}")
    hold(len(manifest.rows) <= LIMITS.entries, "more entries than allowed")
    return manifest, _contents(manifest, blocks)


def _contents(manifest: Manifest, blocks: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    rows = manifest.rows
    places = list(rows.contents())
    found = {}
    for row, path in enumerate(rows.paths):
        if rows.kinds[row] != table.FILE:
            continue
        digest, position, count = places[manifest.carrier(row)]
        content = bytearray(rows.sizes[row])
        for index in range(count):
            at = (rows.positions[position + index] if position >= 0 else index) * BLOCK_MAX
            block = blocks[bytes(rows.digests[32 * (digest + index) : 32 * (digest + index + 1)])]
            content[at : at + len(block)] = block
        found[path] = bytes(content)
    return found


def _kept(manifest: Manifest) -> bytes:
    """What an export keeps of a manifest: all but rows of what was left out, and links' original texts."""
    rows = table.decode(manifest.encoded)
    rows.excluded_paths, rows.excluded_kinds, rows.excluded_reasons, rows.details = [], bytearray(), bytearray(), []
    return table.encode(rows)


def _check_meaning(data: bytes, manifest: Manifest, contents: Mapping[bytes, bytes]) -> None:
    ours = _ours(manifest, contents)
    theirs = _theirs(_decompressed(data))
    readings: list[Meaning | None] = [theirs]
    readings += [_below(theirs, prefix) for prefix in (ROOT[1:], ROOT.rpartition(b"/")[2])]
    for reading in filter(None, readings):
        for path in reading.keys() & ours.keys():
            if not ours[path][2]:
                # Of what was left out a snapshot has no metadata.
                reading[path] = (*reading[path][:2], ())
    if ours not in readings:
        odd = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
        raise Broken(f"tarfile reads another tree: {[(path, ours.get(path), theirs.get(path)) for path in odd][:4]}")


def _ours(manifest: Manifest, contents: Mapping[bytes, bytes]) -> Meaning:
    rows = manifest.rows
    texts = iter(zip(rows.texts, rows.originals, strict=True))
    found: Meaning = {}
    columns = zip(rows.paths, rows.kinds, rows.modes, rows.uids, rows.gids, strict=True)
    for path, kind, *metadata in columns:
        payload = contents.get(path, b"")
        if kind == table.LINK:
            text, original = next(texts)
            payload = original or text
            metadata[0] = 0o777
        found[path] = table.KIND_NAMES[kind], payload, tuple(metadata)
    for path, kind, detail in zip(rows.excluded_paths, rows.excluded_kinds, rows.details, strict=True):
        found[path] = table.KIND_NAMES[kind], detail if kind == table.LINK else b"", ()
    return found


def _theirs(plain: bytes) -> Meaning:
    found: Meaning = {}
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:", encoding="utf-8", errors="surrogateescape") as opened:
        for member in opened:
            path, text = _clean(member.name), member.linkname.encode("utf-8", "surrogateescape")
            metadata = member.mode & 0o7777, member.uid, member.gid
            if member.isreg():
                file = opened.extractfile(member)
                assert file is not None
                found[path] = "file", file.read(), metadata
            elif member.islnk():
                found[path] = found[_clean(member.linkname)]
            elif member.issym():
                found[path] = "link", text, (0o777, *metadata[1:])
            else:
                kinds = {tarfile.DIRTYPE: 0, tarfile.FIFOTYPE: 3, tarfile.CHRTYPE: 5, tarfile.BLKTYPE: 6}
                kind = table.KIND_NAMES[kinds[member.type]]
                found[path] = kind, b"", metadata if member.isdir() else ()
    for path in list(found):
        while path := path.rpartition(b"/")[0]:
            found.setdefault(path, ("directory", b"", IMPLIED))
    found.pop(b"", None)
    return found


def _clean(name: str) -> bytes:
    parts = name.encode("utf-8", "surrogateescape").split(b"/")
    if name.startswith("/"):
        # An absolute name stands below the root, or the archive is refused.
        parts = [part for part in parts if part not in (b"", b".")][ROOT.count(b"/") :]
    return b"/".join(part for part in parts if part not in (b"", b"."))


def _below(meaning: Meaning, prefix: bytes) -> Meaning | None:
    """The entries below a directory that all others are at, below or above."""
    if not all(path == prefix or path.startswith(prefix + b"/") or prefix.startswith(path + b"/") for path in meaning):
        return None
    return {path[len(prefix) + 1 :]: entry for path, entry in meaning.items() if path.startswith(prefix + b"/")}


def _decompressed(data: bytes) -> bytes:
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.decompress(data)
    if data.startswith(zstandard.FRAME_HEADER):
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj().decompress(data)
    return data
