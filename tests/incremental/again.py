"""Captures of one workspace again and again, compared with captures that have no base."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.lift import Lift, Road, Taken

from sandlift.box import Box
from sandlift.capturing import CaptureSpec, capture
from sandlift.deadline import Deadline
from sandlift.manifest import Manifest
from sandlift.model import Event
from sandlift.store import ScanCache, Store, records
from sandlift.targets import parse_target
from sandlift.transports import open_transport

TICK_S = 0.025
"""Longer than the kernel's clock for file times takes from one value to the next."""
DEADLINE_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Again(Taken):
    """A capture, and what it cost."""

    files_read: int
    """Names of files that were read, by what the helper said last."""
    bytes_read: int
    new: dict[str, int]
    """Objects that the store has since: kind to number."""

    @property
    def received(self) -> int:
        """Bytes from the sandbox."""
        return self.capture.wire.received

    @property
    def identity(self) -> str:
        """The snapshot's."""
        return self.capture.snapshot


class Repeated(Lift):
    """A workspace whose captures go to one store; each can be compared with a fresh one in another."""

    def __init__(self, folder: Path, road: Road) -> None:
        super().__init__(folder, road)
        self.other = Store.open(folder / "other", create=True)

    def again(
        self,
        root: Path | None = None,
        *,
        workspace: str = "demo",
        store: Store | None = None,
        settle_s: float = 0.0,
        via: Sequence[str] = (),
        **options: Any,
    ) -> Again:
        """Capture the workspace, by default with files trusted as soon as they are at rest for a tick."""
        time.sleep(TICK_S)
        store = store or self.store
        before = objects_of(store)
        place = self.root if root is None else root
        events: list[Event] = []
        if via:
            target = parse_target(os.fspath(place), via=" ".join(via))
            result = self._run(target, open_transport(target), store, workspace, settle_s, events, options)
        else:
            with self.road(place) as box:
                result = self._run(box.target, _transport_of(box), store, workspace, settle_s, events, options)
        snapshot = store.load(store.resolve(result.ref))
        reads = [event for event in events if event.phase == "read"]
        return Again(
            done=result,
            manifest=Manifest.decode(snapshot.manifest, snapshot.originals),
            files_read=max((event.entries for event in reads), default=0),
            bytes_read=max((event.bytes for event in reads), default=0),
            new=counted(objects_of(store) - before),
        )

    def _run(
        self, target: Any, transport: Any, store: Store, workspace: str, settle_s: float, events: Any, options: Any
    ) -> Any:
        spec = CaptureSpec(target=target, workspace=workspace, settle_s=settle_s, **options)
        return capture(transport, store, spec, deadline=Deadline.after(DEADLINE_S), on_event=events.append)

    def fresh(self, root: Path | None = None, **options: Any) -> Again:
        """Capture the workspace with no base, into another store."""
        return self.again(root, store=self.other, workspace="fresh", base="none", **options)

    def checked(self, **options: Any) -> Again:
        """Capture again, and see that a capture without a base gives the same."""
        taken = self.again(**options)
        for name in ("like", "base", "rehash", "via", "settle_s"):
            options.pop(name, None)
        assert_same(taken, self.fresh(**options))
        return taken

    def close(self) -> None:
        """Let go of both stores."""
        super().close()
        self.other.close()


def _transport_of(box: Box) -> Any:
    return box._transport


def assert_same(taken: Taken, fresh: Taken) -> None:
    """The same snapshot; a difference is told by rows."""
    if taken.capture.snapshot == fresh.capture.snapshot:
        assert taken.manifest.rows.originals == fresh.manifest.rows.originals
        return
    told = [described(one.manifest) for one in (taken, fresh)]
    paths = sorted(told[0].keys() | told[1].keys())
    lines = [
        f"{path!r}: {told[0].get(path)} is not {told[1].get(path)}"
        for path in paths
        if told[0].get(path) != told[1].get(path)
    ]
    raise AssertionError("the incremental capture differs from a fresh one:\n  " + "\n  ".join(lines[:20]))


def described(manifest: Manifest) -> dict[bytes, list[object]]:
    """Path to all that a manifest says of it."""
    rows = manifest.rows
    told: dict[bytes, list[object]] = {}
    contents = list(rows.contents())
    for row, path in enumerate(rows.paths):
        digest, position, count = contents[row]
        told[path] = [
            rows.kinds[row],
            oct(rows.modes[row]),
            rows.mtimes_ns[row],
            rows.uids[row],
            rows.gids[row],
            rows.sizes[row],
            rows.groups[row],
            bytes(rows.digests[32 * digest : 32 * (digest + count)]).hex()[:80],
            list(rows.positions[position : position + count]) if position >= 0 else None,
        ]
    for row, path in enumerate(rows.excluded_paths):
        told.setdefault(path, []).append((rows.excluded_kinds[row], rows.excluded_reasons[row], rows.details[row]))
    for path, flag in zip(rows.flag_paths, rows.flags, strict=True):
        told.setdefault(path, []).append(("flag", flag))
    return told


def objects_of(store: Store) -> set[tuple[str, int, int]]:
    """Each object of a store that is there now, told apart from one that takes its place."""
    root = Path(store.location)
    found = set()
    for path in root.rglob("*"):
        if path.is_file():
            status = path.stat()
            found.add((str(path.relative_to(root)), status.st_ino, status.st_mtime_ns))
    return found


def counted(objects: set[tuple[str, int, int]]) -> dict[str, int]:
    """Kind to number of objects."""
    kinds: dict[str, int] = {}
    for key, _, _ in objects:
        kind = key.split("/")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def fill(root: Path, files: int, *, folders: int = 20, size: int = 300) -> None:
    """Make so many small files with content of their own, in folders."""
    for folder in range(folders):
        (root / f"d{folder:03}").mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (root / f"d{number % folders:03}" / f"f{number:05}").write_bytes(b"%08d" % number * (size // 8))


def packs(store: Store) -> list[Path]:
    """The packs of a store."""
    return sorted(path for path in (Path(store.location) / "packs").rglob("*") if path.is_file())


def scan_file(store: Store) -> Path:
    """The one scan cache of a store."""
    (found,) = (path for path in (Path(store.location) / "scans").rglob("@*") if path.is_file())
    return found


def rewrite(path: Path, data: bytes) -> None:
    """Put other bytes at the place of an object."""
    path.chmod(0o600)
    path.write_bytes(data)


def noise(seed: int, size: int) -> bytes:
    """Bytes that no codec makes smaller."""
    import random

    return random.Random(seed).randbytes(size)


def copy_tree(source: Path, to: Path) -> Path:
    """A copy with the same times, modes and hard links, as another sandbox would hold it."""
    subprocess.run(["cp", "-a", source, to], check=True)
    return to


def scan_of(store: Store) -> ScanCache | None:
    """The scan cache of the newest ref that has one."""
    found = []
    for info in store.objects.list("scans/"):
        fields = records.decode(store.objects.get(info.key, max_bytes=1 << 30), "it")
        found.append(store.read_scan(str(fields["workspace"]), str(fields["target"])))
    return max(found, key=lambda cache: cache.number if cache else 0)
