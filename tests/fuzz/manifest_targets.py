"""Targets for the manifest that a sandbox claims, and for what it tells of a restore's target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz import oracles
from fuzz.invariants import hold

from sandlift.errors import HostLimit, InvalidManifest
from sandlift.gathering import Gathering
from sandlift.limits import Limits
from sandlift.manifest import Manifest, distinct_blocks
from sandlift_helper import table, wire
from sandlift_helper.table import Segment


def segment(data: bytes) -> None:
    """A table: what is accepted encodes to the same bytes, and sorting loses nothing of it."""
    try:
        rows = table.decode(data)
    except ValueError:
        return
    hold(table.encode(rows) == data, "a table does not encode to what it was")
    before = sorted(_rows_of(rows))
    rows.sort()
    hold(sorted(_rows_of(rows)) == before, "sorting tears rows apart")
    written = table.encode(rows)
    hold(len(written) == len(data), "sorting loses something")
    hold(table.encode(table.decode(written)) == written, "a sorted table does not encode to what it was")


def _rows_of(rows: Segment) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    texts = iter(zip(rows.texts, rows.originals, strict=True))
    columns = zip(rows.paths, rows.kinds, rows.modes, rows.mtimes_ns, rows.uids, rows.gids, rows.sizes, strict=True)
    for values, group, (digest, position, count) in zip(columns, rows.groups, rows.contents(), strict=True):
        places = rows.positions[position : position + count].tolist() if position >= 0 else []
        digests = bytes(rows.digests[32 * digest : 32 * (digest + count)])
        text = next(texts) if values[1] == table.LINK else (b"", b"")
        found.append((*values, group, digests, places, text))
    return found


GATHERING_LIMITS = Limits(
    entries=40, path_bytes=256, depth=6, link_text_bytes=64, file_bytes=64 << 20, manifest_bytes=32 << 10
)


def split_chunks(data: bytes) -> tuple[list[bytes], bytes]:
    """Segments, each behind its length in four bytes; what follows an empty one stands apart."""
    chunks = []
    while data:
        size = int.from_bytes(data[:4], "little")
        chunk, data = data[4 : 4 + size], data[4 + size :]
        if not chunk:
            break
        chunks.append(chunk)
    return chunks, data


def sent_size(digest: bytes) -> int | None:
    """The size of a block that *sent* knows under this digest, or None: here a digest says it itself."""
    return int.from_bytes(digest[:3], "little") if len(digest) == 32 and digest[31] % 4 else None


def _gather(chunks: Sequence[bytes], sent: dict[bytes, int]) -> Manifest | None:
    gathering = Gathering(GATHERING_LIMITS)
    try:
        for chunk in chunks:
            gathering.add(memoryview(chunk))
        return gathering.accept(sent)
    except (InvalidManifest, HostLimit):
        return None


def _digests_of(chunks: Sequence[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    for chunk in chunks:
        try:
            rows = table.decode(chunk)
        except ValueError:
            continue
        found |= {*table.split_digests(rows.digests), *table.split_digests(rows.orphans)}
    return found


def gathering(data: bytes) -> None:
    """``segments`` (`split_chunks`) and digests of more blocks that were sent: an accepted manifest keeps all rules."""
    chunks, strays = split_chunks(data)
    named = _digests_of(chunks) | set(table.split_digests(strays[: len(strays) // 32 * 32]))
    sent = {digest: size for digest in named if (size := sent_size(digest)) is not None}
    manifest, reverse = _gather(chunks, sent), _gather(chunks[::-1], sent)
    hold((manifest is None) == (reverse is None), "whether a manifest is refused depends on its segments' order")
    if manifest is None or reverse is None:
        return
    rows = manifest.rows
    wrong = oracles.wrong_in_manifest(rows, sent)
    hold(wrong is None, f"a manifest was accepted although {wrong}")
    hold(len(rows) <= GATHERING_LIMITS.entries, "more entries than allowed")
    hold(manifest.identity == reverse.identity, "the identity depends on the segments' order")
    full = table.encode(rows)
    blocks = {digest: sent[digest] for digest in manifest.blocks}
    again = _gather([full], blocks)
    hold(again is not None and table.encode(again.rows) == full, "an accepted manifest is not accepted again as it is")
    stored = Manifest.decode(manifest.encoded, manifest.encoded_originals)
    hold(table.encode(stored.rows) == full, "a stored manifest reads as another one")
    hold(stored.content == manifest.content == reverse.content, "the content digest is not stable")
    hold(distinct_blocks(manifest.encoded) == b"".join(manifest.blocks), "blocks and encoding do not fit")
    counts = manifest.counts
    hold(counts.directories + counts.files + counts.links == len(rows), "the counts are not those of the rows")
    hold([manifest.find(path) for path in rows.paths] == list(range(len(rows))), "a path is not found")
    manifest.torn_databases()


def listing(data: bytes) -> None:
    """As `gathering`, of what a helper tells of a restore's target: paths keep all rules, blocks fit their files."""
    chunks, _ = split_chunks(data)
    rows = _listed(chunks, Gathering.listing)
    reverse = _listed(chunks[::-1], Gathering.listing)
    hold((rows is None) == (reverse is None), "whether a listing is refused depends on its segments' order")
    if rows is not None and reverse is not None:
        plain = [[path for path in paths if path] for paths in (rows.excluded_paths, rows.flag_paths)]
        wrong = oracles.wrong_paths(rows, *plain)
        hold(wrong is None, f"a listing was accepted although {wrong}")
        hold(rows.paths == reverse.paths, "a listing depends on the segments' order")
        written = table.encode(rows)
        hold(table.encode(table.decode(written)) == written, "a listing does not encode to what it is")
    rows = _listed(chunks, Gathering.digests)
    if rows is not None:
        for size, (_, position, count) in zip(rows.sizes, rows.contents(), strict=True):
            places = list(rows.positions[position : position + count]) if position >= 0 else list(range(count))
            hold(places == sorted(set(places)), "a block has two places")
            hold(not places or places[-1] * wire.BLOCK_MAX < size, "a block lies behind its file")


def _listed(chunks: Sequence[bytes], finish: Callable[[Gathering], Segment]) -> Segment | None:
    gathering = Gathering(GATHERING_LIMITS)
    try:
        for chunk in chunks:
            gathering.add(memoryview(chunk))
        return finish(gathering)
    except (InvalidManifest, HostLimit):
        return None
