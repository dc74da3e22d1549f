"""Large files: what is sent is the blocks that changed, however large the rest is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from incremental.again import Repeated, noise

from sandlift_helper.wire import BLOCK_MAX

SIZE = 64 << 20
PIECE = noise(42, BLOCK_MAX)


@pytest.fixture
def large(repeated: Repeated) -> Path:
    """A workspace of one file of 64 MiB, every block of its own, captured once."""
    path = repeated.root / "large"
    with open(path, "wb") as file:
        file.writelines(b"%08d" % number + PIECE[8:] for number in range(SIZE // BLOCK_MAX))
    taken = repeated.again()
    assert taken.received > SIZE
    return path


def write(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def punch(path: Path) -> None:
    """Zeros from the middle of one block to the middle of another, far on: they become holes."""
    with open(path, "r+b") as file:
        file.seek(9 * BLOCK_MAX + BLOCK_MAX // 2)
        file.writelines(bytes(BLOCK_MAX) for _ in range(20))


CHANGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "one byte": (lambda path: write(path, 40_000_000, b"!"), 1),
    "appended": (lambda path: write(path, SIZE, b"one more"), 0),
    "truncated": (lambda path: os.truncate(path, SIZE - BLOCK_MAX // 2 - 5), 1),
    "grown by a hole": (lambda path: os.truncate(path, 200 << 20), 1),
    "holes": (punch, 2),
}


def test_only_changed_blocks_travel(repeated: Repeated, large: Path) -> None:
    for what, (change, blocks) in CHANGES.items():
        change(large)
        taken = repeated.checked()
        assert blocks * BLOCK_MAX // 3 <= taken.received < blocks * BLOCK_MAX + 20_000, what
    assert repeated.store.verify().is_sound
    again = repeated.again()
    assert (again.capture.reused, again.files_read) == (True, 0)
    # In two places, and under another name: no block travels twice.
    os.rename(large, large.with_name("renamed"))
    taken = repeated.checked()
    assert taken.received < 20_000
    target = repeated.target()
    with repeated.road(target) as box:
        box.restore(repeated.store, "demo")
    assert (target / "renamed").stat().st_size == 200 << 20
    with open(target / "renamed", "rb") as one, open(repeated.root / "renamed", "rb") as two:
        assert all(one.read(BLOCK_MAX) == two.read(BLOCK_MAX) for _ in range(200))
