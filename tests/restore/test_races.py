"""Names that are exchanged for links and pipes while a workspace is captured or restored: nothing outside is touched.

By hand first, in every gap between a look and a use; then by somebody who does it as fast as he may.
``scripts/races`` does more of both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.races import MARK, Arena, Result, captures, naive_capture, naive_restore, restores
from support.world import Mode

STRIKES = Path(__file__).with_name("strikes.py")
OPERATIONS = 400
PAUSE_US = 1000


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    """A workspace, a target and a victim."""
    with Arena(tmp_path / "arena") as made:
        yield made


# security: 73 (a concurrent writer), 74 (chmod by path), 75 (staging)
@pytest.mark.parametrize(
    ("work", "where", "step"),
    [
        ("capture", "directory", 4),
        ("capture", "file", 5),
        ("capture", "pipe", 5),
        ("new", "parent", 6),
        ("new", "in-staging", 5),
        ("new", "staging", 7),
        ("replace", "in-staging", 11),
        ("replace", "staging", 17),
        ("replace", "target", 19),
        ("replace", "parent", 17),
        ("exact", "directory", 13),
        ("exact", "file", 13),
        ("exact", "pipe", 19),
        ("exact", "target", 19),
        ("exact", "parent", 19),
        ("merge", "directory", 13),
        ("merge", "pipe", 17),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_strike_in_every_gap(work: str, where: str, step: int, tmp_path: Path) -> None:
    output = subprocess.run(
        [sys.executable, str(STRIKES), work, where, str(tmp_path), str(step)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=240,
        check=True,
        text=True,
    ).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    assert sum(row["struck"] for row in rows) >= 5, "hardly a strike has hit"
    bad = [row for row in rows if row["problems"]]
    assert not bad, f"{len(bad)} of {len(rows)}: " + "\n".join(json.dumps(row)[:1500] for row in bad[:6])


def assert_unharmed(result: Result) -> None:
    assert result.operations == OPERATIONS
    assert result.rounds
    assert result.escapes == []
    assert result.problems == []


# security: 73 (a name exchanged for a link, as in CVE-2018-15664)
def test_a_capture_is_raced(arena: Arena) -> None:
    assert_unharmed(captures(arena, OPERATIONS, PAUSE_US))


@pytest.mark.parametrize("mode", ["new", "replace", "exact", "merge"])
def test_a_restore_is_raced(mode: Mode, arena: Arena) -> None:
    assert_unharmed(restores(arena, mode, OPERATIONS, PAUSE_US))


# The twins: what goes by path and looks first is lost.


def test_a_naive_capture_loses(arena: Arena) -> None:
    def strike() -> None:
        path = arena.workspace / "f"
        path.unlink(missing_ok=True)
        path.symlink_to(arena.victim / "f")

    assert not any(MARK in data for data in naive_capture(arena.workspace).values())
    assert any(MARK in data for data in naive_capture(arena.workspace, strike).values())


def test_a_naive_restore_loses(arena: Arena) -> None:
    def strike() -> None:
        path = arena.target / "d"
        if not path.is_symlink():
            path.rename(arena.lair / "d")
            path.symlink_to(arena.victim / "d")

    arena.begin("exact")
    naive_restore(arena.target, arena.new)
    assert arena.harm() == []
    naive_restore(arena.target, arena.old, strike)
    assert any("victim/d/" in line for line in arena.harm())
