"""One tree with every plant, captured once and set down twice: as it was, and inert."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from audit.planting import PLANTS, Planting, make_marker, make_repository, write_tree

from sandlift.box import connect
from sandlift.manifest import Manifest
from sandlift.restoring.git import Treated, inert
from sandlift.small_files import SIZE_MAX, SmallFiles
from sandlift.store import Store
from sandlift_helper import table
from support.needs import require
from support.tree import remove

ROOM_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """A captured tree."""

    root: Path
    store: Path
    manifest: Manifest
    contents: SmallFiles
    rows_by_digest: Mapping[bytes, int]
    """A small file for each block."""

    def block(self, digest: bytes) -> bytes:
        """Reads a block that is a whole file."""
        return self.contents.read(self.rows_by_digest[digest])


def lift(root: Path, store_path: Path, name: str = "demo") -> Lifted:
    """Captures *root*; its contents stay readable for as long as the process lives."""
    store = Store.open(store_path, create=True)
    with connect(os.fspath(root)) as box:
        taken = box.capture(store, name, deadline_s=120)
    snapshot = store.load(store.resolve(taken.ref))
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    rows, contents = manifest.rows, SmallFiles(manifest, store.blocks(snapshot))
    small = (row for row, size in enumerate(rows.sizes) if rows.kinds[row] == table.FILE and 0 < size <= SIZE_MAX)
    return Lifted(
        root=root,
        store=store_path,
        manifest=manifest,
        contents=contents,
        rows_by_digest={contents.digest(row): row for row in small},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """The tree of all plants, as it was and inert."""

    source: Lifted
    log: Path
    keep: Path
    inert: Path
    treated: Treated

    def ran(self) -> list[str]:
        """The plants that ran since the last call."""
        names = self.log.read_text().split()
        self.log.write_text("")
        return names


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A private folder, in memory if there is room: thousands of small files are made and removed."""
    memory = Path("/dev/shm")
    status = os.statvfs(memory) if memory.is_dir() else None
    fits = status and status.f_bavail * status.f_bsize > ROOM_BYTES and not status.f_flag & os.ST_NOEXEC
    made = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-audit-", dir=memory if fits else None)))
    yield made
    remove(made)


@pytest.fixture(scope="session")
def planted(folder: Path) -> Planted:
    """All plants, captured and set down."""
    require("git")
    marker, log = make_marker(folder)
    root = folder / "w"
    template = make_repository(folder / "template")
    root.mkdir()
    for name, plant in PLANTS.items():
        place = root / name
        shutil.copytree(template, place, symlinks=True)
        plant.plant(Planting(place, marker, name))
    log.write_text("")
    source = lift(root, folder / "store")
    treated = inert(source.manifest.rows, source.contents.read)
    return Planted(
        source=source,
        log=log,
        keep=write_tree(source.manifest.rows, source.block, folder / "keep"),
        inert=write_tree(
            treated.rows, lambda digest: treated.blocks.get(digest) or source.block(digest), folder / "inert"
        ),
        treated=treated,
    )
