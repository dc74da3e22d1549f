"""A restore that is cut off, or meets a fault, at each of its system calls: nothing is half, and a rerun completes it.

`points` says what is looked at.  Here some calls are disturbed; ``scripts/restore-kills --points`` does all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.needs import lacking
from support.tree import remove

POINTS = Path(__file__).with_name("points.py")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that others may enter on the way to what is theirs."""
    folder = Path(tempfile.mkdtemp(prefix="sl-points-"))
    yield folder
    remove(folder)


def rows_of(what: str, mode: str, folder: Path, variant: str, step: int) -> list[dict[str, object]]:
    output = subprocess.run(
        [sys.executable, str(POINTS), what, mode, str(folder), variant, str(step)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=240,
        check=True,
        text=True,
    ).stdout
    return [json.loads(line) for line in output.splitlines()]


def assert_sound(rows: list[dict[str, object]]) -> None:
    bad = [row for row in rows if row["problems"]]
    assert not bad, f"{len(bad)} of {len(rows)}: " + "\n".join(json.dumps(row)[:1500] for row in bad[:8])


# security: 77 (a crash in the middle)
@pytest.mark.parametrize(
    ("mode", "variant", "step", "at_least", "states"),
    [
        ("new", "plain", 31, 100, {"absent", "new"}),
        ("new", "empty", 61, 100, {"absent", "new"}),
        ("new", "mount", 41, 120, {"old", "broken", "new"}),
        ("replace", "plain", 13, 130, {"old", "new"}),
        ("replace", "no-exchange", 31, 130, {"old", "absent", "new"}),
        ("exact", "plain", 9, 110, {"old", "broken", "new"}),
        ("exact", "no-exchange", 41, 110, {"old", "broken", "new"}),
        ("exact", "nobody", 41, 110, {"old", "broken", "new"}),
        ("merge", "plain", 13, 80, {"old", "broken", "new"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kill_at_each_call(mode: str, variant: str, step: int, at_least: int, states: set[str], place: Path) -> None:
    if variant == "mount" and os.geteuid() != 0:
        lacking("file systems can be mounted by root alone: run the tests as root as well")
    rows = rows_of("kill", mode, place, variant, step)
    seen = [row for row in rows if str(row["call"]).startswith("ahead")]
    assert len(seen) >= at_least, "the seam sees too few calls"
    assert {row["state"] for row in rows} == states
    assert len(rows) - len(seen) >= 3
    assert_sound(rows)


# security: 87 (disk full, EIO, EINTR, short write)
@pytest.mark.parametrize(
    ("mode", "variant", "step", "states"),
    [
        ("new", "plain", 29, {"absent", "new"}),
        ("replace", "plain", 23, {"old", "new"}),
        ("exact", "plain", 19, {"old", "broken", "new"}),
        ("exact", "nobody", 19, {"old", "broken", "new"}),
        ("merge", "plain", 29, {"old", "broken", "new"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_that_fails(mode: str, variant: str, step: int, states: set[str], place: Path) -> None:
    rows = rows_of("fail", mode, place, variant, step)
    assert {row["state"] for row in rows} == states
    assert len({str(row["call"]).split()[0] for row in rows}) >= 3, "too few kinds of faults"
    assert_sound(rows)


@pytest.mark.parametrize(("mode", "step"), [("exact", 23), ("merge", 37)])
def test_a_call_that_fails_while_a_broken_restore_is_completed(mode: str, step: int, place: Path) -> None:
    """The target is still broken then, and must say so."""
    rows = rows_of("again", mode, place, "plain", step)
    assert {row["state"] for row in rows} == {"broken", "new"}
    assert_sound(rows)
