"""Chance changes: after each round of them, a capture from the last one equals a capture without a base."""

from __future__ import annotations

import pytest
from incremental.again import Repeated
from incremental.mutations import PART_ROWS, play

ROUNDS = 20


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rounds(seed: int, repeated: Repeated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlift.tracking.PART_ROWS", PART_ROWS)
    rows = list(play(repeated, ROUNDS, seed))
    assert len(rows) == ROUNDS
    # It was no comparison of captures that read everything.
    trusting = [row for row in rows if not row.settle_s]
    assert sum(row.files_read < row.files for row in trusting) > len(trusting) // 2
    assert sum(row.received for row in rows) < sum(row.received_fresh for row in rows) * 2 // 3
    assert repeated.store.verify().is_sound
