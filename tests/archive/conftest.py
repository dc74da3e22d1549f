"""Workspaces that are captured once a session and exported again and again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from archive.exports import TREES, Exported, take
from e2e.lift import Lift

from sandlift.box import connect
from support.tree import remove

Exporting = Callable[[str], Exported]


@pytest.fixture(scope="session")
def exporting() -> Iterator[Exporting]:
    """Gives the captured workspace of that name in `TREES`."""
    taken: dict[str, Exported] = {}
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-archive-")))
    with ExitStack() as stack:
        stack.callback(remove, folder)

        def exported(name: str) -> Exported:
            if name not in taken:
                place = folder / name
                place.mkdir()
                lift = stack.enter_context(closing(Lift(place, lambda path: connect(os.fspath(path)))))
                TREES[name](lift.root)
                taken[name] = take(lift)
            return taken[name]

        yield exported


@pytest.fixture
def lift(tmp_path: Path) -> Iterator[Lift]:
    """An empty place for a workspace of the test's own."""
    with closing(Lift(tmp_path, lambda path: connect(os.fspath(path)))) as made:
        yield made
