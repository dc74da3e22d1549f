"""Takes archives into a store and looks at what came of it; and says what a store holds, down to the last file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlift.archive.importing import ImportSpec, import_archive
from sandlift.deadline import Deadline
from sandlift.manifest import Manifest
from sandlift.model import Event
from sandlift.results import Capture
from sandlift.store import Store
from sandlift_helper import table

ROOT = b"/srv/work"
"""Where the archives of these tests were made, unless they say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What an import gave."""

    capture: Capture
    manifest: Manifest
    store: Path
    events: tuple[Event, ...]

    def paths(self) -> list[bytes]:
        """All entries' paths."""
        return list(self.manifest.rows.paths)

    def kinds(self) -> dict[bytes, str]:
        """Path to kind of each entry."""
        rows = self.manifest.rows
        return {path: table.KIND_NAMES[kind] for path, kind in zip(rows.paths, rows.kinds, strict=True)}

    def excluded(self) -> dict[bytes, tuple[str, bytes]]:
        """Path to reason and detail of what was left out."""
        rows = self.manifest.rows
        reasons = (table.REASON_NAMES[reason] for reason in rows.excluded_reasons)
        return dict(zip(rows.excluded_paths, zip(reasons, rows.details, strict=True), strict=True))

    def links(self) -> dict[bytes, tuple[bytes, bytes]]:
        """Path to text and original text of each link."""
        rows = self.manifest.rows
        paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
        return dict(zip(paths, zip(rows.texts, rows.originals, strict=True), strict=True))

    def metadata(self, path: bytes) -> tuple[int, int, int, int]:
        """Mode, time, owner and group; of the root for the empty path."""
        rows = self.manifest.rows
        if not path:
            assert rows.root is not None
            return rows.root.mode, rows.root.mtime_ns, rows.root.uid, rows.root.gid
        row = self.manifest.find(path)
        return rows.modes[row], rows.mtimes_ns[row], rows.uids[row], rows.gids[row]

    def content(self, path: bytes) -> bytes:
        """A file's bytes, each block verified."""
        manifest, rows = self.manifest, self.manifest.rows
        row = manifest.carrier(manifest.find(path))
        digest, position, count = list(rows.contents())[row]
        content = bytearray(rows.sizes[row])
        numbers = {name: index for index, name in enumerate(manifest.blocks)}
        with Store.open(self.store) as store:
            blocks = store.blocks(store.load(manifest.identity))
            for index in range(count):
                name = bytes(rows.digests[32 * (digest + index) : 32 * (digest + index + 1)])
                at = (rows.positions[position + index] if position >= 0 else index) << 20
                block = blocks.read(numbers[name], name)
                content[at : at + len(block)] = block
        return bytes(content)

    def warnings(self) -> list[str]:
        """What was warned of."""
        return [event.message for event in self.events if event.kind == "warning"]


def take(store: Path, archive: bytes | Any, *, deadline: Deadline | None = None, **spec: Any) -> Taken:
    """Imports bytes, or a stream, as ``demo``; *spec* changes fields of the ImportSpec."""
    stream = io.BytesIO(archive) if isinstance(archive, bytes) else archive
    wanted = ImportSpec(**{"workspace": "demo", "root": ROOT, "source": "import:-", **spec})
    events: list[Event] = []
    with Store.open(store, create=True) as opened:
        capture = import_archive(
            opened, stream, wanted, deadline=deadline or Deadline.after(None), on_event=events.append
        )
        snapshot = opened.load(bytes.fromhex(capture.snapshot))
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    return Taken(capture=capture, manifest=manifest, store=store, events=tuple(events))


def files(store: Path) -> list[str]:
    """Every file of a store but its mark, unfinished ones too: empty where nothing was stored."""
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file() and path.name != "format")
