"""The process dies before the N-th system call of an operation, for every N; then the store is opened again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("operation", "at_least"),
    [("create", 25), ("pack", 28), ("snapshot", 25), ("ref", 45), ("capture", 75), ("delete", 8)],
)
def test_a_crash_leaves_the_old_state_or_the_new(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], operation: str, at_least: int
) -> None:
    output, _ = start("crash", operation, tmp_path).communicate(timeout=60)
    rows = [json.loads(line) for line in output.splitlines()]
    assert len(rows) >= at_least, "the seam sees too few calls"
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["survived"] for row in rows] == [False] * (len(rows) - 1) + [True]
    for row in rows:
        assert row["sound"], row
        assert row["again"], row
        assert row["left"] == 0, row
        assert row["old"] or operation == "create", row
    # Old up to the commit point, new from there on, and both were seen.
    done = [row["done"] for row in rows]
    assert done == sorted(done)
    assert set(done) == {False, True}
    if operation == "create":
        return
    # Each row ran the operation twice in effect; one capture id makes one ref.
    expected = {"ref": 2, "capture": 2}.get(operation, 1)
    assert {row["refs"] for row in rows} == {expected}
