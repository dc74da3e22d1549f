"""A workspace and a store with captures of it, made once a module and only read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cli.program import Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A workspace that was captured twice as ``demo``, with a label and a note the second time."""
    made = Place.make(tmp_path_factory.mktemp("place"))
    assert made.run("capture", made.root, "--as", "demo").status == 0
    (made.root / "added").write_bytes(b"second\n")
    words = ("--exclude", "*.log", "--label", "who=me", "--label", "n=1=2", "--note", "a note")
    assert made.run("capture", made.root, "--as", "demo", *words).status == 0
    return made


@pytest.fixture
def own_place(place: Place, tmp_path: Path) -> Place:
    """The same store, copied: to be written to, or broken."""
    copy = Place(root=place.root, store=tmp_path / "own-store")
    shutil.copytree(place.store, copy.store)
    os.chmod(copy.store, 0o700)
    return copy
