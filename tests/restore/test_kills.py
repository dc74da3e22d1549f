"""Restores that are killed at chance instants, host or helper or both: old or new, and a rerun completes them.

A few of them here; ``scripts/restore-kills`` does 200 a mode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import kills
from support.world import MODES

KILLS = 12
SEED = 1


# security: 77 (a crash in the middle)
@pytest.mark.parametrize("mode", MODES)
def test_a_restore_is_killed(mode: str, tmp_path: Path) -> None:
    output = subprocess.run(
        [sys.executable, kills.__file__, tmp_path, str(KILLS), str(SEED), mode],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=240,
        check=True,
        text=True,
    ).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    assert len(rows) == KILLS
    bad = [row for row in rows if row["problems"]]
    assert not bad, "\n".join(json.dumps(row)[:1500] for row in bad)
    # A late kill may come after the end; most must not.
    assert sum(row["survived"] for row in rows) <= KILLS / 2
    assert any("helper" in row["killed"] for row in rows)
    assert any("host" in row["killed"] for row in rows)
