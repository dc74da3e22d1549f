"""Captures and restores for the end-to-end tests, with what a snapshot holds as plain dictionaries."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlift.box import Box
from sandlift.manifest import Manifest
from sandlift.model import RestoreOptions, Rules
from sandlift.results import Capture, Restore
from sandlift.store import Store
from sandlift_helper import table
from support.tree import Tree, make, read

Road = Callable[[Path | str], Box]
"""A way to a path of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A capture and what its snapshot holds."""

    manifest: Manifest
    done: Capture | None = None

    @property
    def capture(self) -> Capture:
        """What the capture gave."""
        assert self.done is not None
        return self.done

    @property
    def paths(self) -> list[bytes]:
        """The entries, in order."""
        return list(self.manifest.rows.paths)

    @property
    def excluded(self) -> dict[bytes, tuple[str, str, bytes]]:
        """Path to (kind, reason, detail) of what was left out."""
        rows = self.manifest.rows
        whole = zip(rows.excluded_paths, rows.excluded_kinds, rows.excluded_reasons, rows.details, strict=True)
        return {path: (table.KIND_NAMES[kind], table.REASON_NAMES[reason], text) for path, kind, reason, text in whole}

    @property
    def reasons(self) -> dict[bytes, str]:
        """Path to reason of what was left out."""
        return {path: reason for path, (_, reason, _) in self.excluded.items()}

    @property
    def flags(self) -> dict[bytes, str]:
        """Path to flag."""
        rows = self.manifest.rows
        return {path: table.FLAG_NAMES[flag] for path, flag in zip(rows.flag_paths, rows.flags, strict=True)}

    @property
    def links(self) -> dict[bytes, bytes]:
        """Path to text of the links that were kept."""
        rows = self.manifest.rows
        paths = [path for path, kind in zip(rows.paths, rows.kinds, strict=True) if kind == table.LINK]
        return dict(zip(paths, rows.texts, strict=True))

    @property
    def originals(self) -> dict[bytes, bytes]:
        """Path to the text that a rebased link had."""
        return {path: text for path, text in zip(self.links, self.manifest.rows.originals, strict=True) if text}

    def mode(self, path: bytes) -> int:
        """The recorded mode of an entry."""
        return self.manifest.rows.modes[self.manifest.find(path)]

    def owner(self, path: bytes) -> tuple[int, int]:
        """The recorded owner and group of an entry."""
        row = self.manifest.find(path)
        return self.manifest.rows.uids[row], self.manifest.rows.gids[row]

    def mtime_ns(self, path: bytes) -> int:
        """The recorded time of an entry."""
        return self.manifest.rows.mtimes_ns[self.manifest.find(path)]


class Lift:
    """A folder with a workspace ``w``, a store, and targets to restore to."""

    def __init__(self, folder: Path, road: Road) -> None:
        self.folder = folder
        self.road = road
        self.store = Store.open(folder / "store", create=True)
        self._targets = 0

    @property
    def root(self) -> Path:
        """The workspace."""
        return self.folder / "w"

    def make(self, wanted: Tree) -> Path:
        """Make the workspace."""
        make(wanted, self.root)
        return self.root

    def capture(self, root: Path | str | None = None, *, rules: Rules | None = None, **options: Any) -> Taken:
        """Capture the workspace, or what is at *root*."""
        with self.road(self.root if root is None else root) as box:
            taken = box.capture(self.store, "demo", rules=rules, deadline_s=120, **options)
        snapshot = self.store.load(self.store.resolve(taken.ref))
        return Taken(done=taken, manifest=Manifest.decode(snapshot.manifest, snapshot.originals))

    def target(self) -> Path:
        """A path where nothing is."""
        self._targets += 1
        return self.folder / f"out{self._targets}"

    def restore(self, taken: Taken, target: Path | None = None, **options: Any) -> Tree:
        """Restore a capture to *target*, or to a new place, and read what is there then."""
        target = target or self.target()
        self.restore_to(taken, target, **options)
        return read(target)

    def restore_to(self, taken: Taken, target: Path, *, dry_run: bool = False, **options: Any) -> Restore:
        """Restore a capture to *target*, with the fields of `RestoreOptions`; nothing else must be left beside it."""
        before = set(os.listdir(self.folder))
        with self.road(target) as box:
            done = box.restore(
                self.store, taken.capture.ref, options=RestoreOptions(**options), dry_run=dry_run, deadline_s=120
            )
        assert set(os.listdir(self.folder)) == before | {target.name}
        return done

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()
