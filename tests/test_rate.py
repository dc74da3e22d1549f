"""The limit in bytes a second: its arithmetic with a clock of ours, and what it does to real runs."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

import pytest

import sandlift
from sandlift.errors import DeadlineExceeded, Interrupted
from sandlift.rate import PIECE_MAX_BYTES, PIECE_MIN_BYTES, RateLimit, TokenBucket


def test_bytes_are_paid_for_in_the_order_in_which_they_are_taken() -> None:
    bucket = TokenBucket(1000, burst_s=0)
    assert bucket.take(500, 10.0) == 0.5
    assert bucket.take(500, 10.0) == 1.0
    assert bucket.take(1000, 10.5) == 1.5
    assert bucket.take(100, 20.0) == pytest.approx(0.1)


def test_what_was_left_unused_is_kept_for_a_moment_only() -> None:
    bucket = TokenBucket(1000, burst_s=0.25)
    assert bucket.take(250, 100.0) == 0
    assert bucket.take(100, 100.0) == pytest.approx(0.1)
    # However long it rests, no more than the burst is free.
    assert bucket.take(350, 5000.0) == pytest.approx(0.1)


def test_over_any_time_no_more_moves_than_the_rate_and_one_burst() -> None:
    bucket, now, moved = TokenBucket(10_000, burst_s=0.1), 0.0, 0
    sizes = [1, 4096, 700, 65536, 3] * 20
    for size in sizes:
        wait_s = bucket.take(size, now)
        moved += size
        now += wait_s
        assert moved <= 10_000 * (now + 0.1) + 1e-6
    assert now == pytest.approx(sum(sizes) / 10_000 - 0.1)


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_nonsense_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        RateLimit(rate)
    with pytest.raises(ValueError, match="cannot be"):
        sandlift.connect("/tmp", limit_rate=rate)


def test_pieces_are_small_where_the_rate_is_low_and_never_tiny_or_huge() -> None:
    assert [RateLimit(rate).piece_bytes for rate in (1, 100, 1 << 20, 1 << 40)] == [
        PIECE_MIN_BYTES,
        PIECE_MIN_BYTES,
        (1 << 20) // 20,
        PIECE_MAX_BYTES,
    ]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    root.mkdir()
    for number in range(3):
        (root / f"f{number}").write_bytes(os.urandom(300_000))
    return root


def test_captures_and_restores_keep_to_it(workspace: Path, tmp_path: Path) -> None:
    """Never faster than the rate: a machine that is slow only makes it slower."""
    rate = 600_000
    with sandlift.Store.open(tmp_path / "store", create=True) as store:
        began = time.monotonic()
        with sandlift.connect(str(workspace), limit_rate=rate) as box:
            taken = box.capture(store, "demo", deadline_s=60)
        took_s = time.monotonic() - began
        moved = taken.wire.received + taken.wire.sent
        assert moved > 900_000
        # The last piece is paid for by nobody.
        assert took_s > (moved - PIECE_MAX_BYTES // 16) / rate - 0.2
        began = time.monotonic()
        with sandlift.connect(str(tmp_path / "out"), limit_rate=rate) as box:
            done = box.restore(store, "demo", deadline_s=60)
        assert done.wire.sent > 900_000
        assert time.monotonic() - began > (done.wire.sent - PIECE_MAX_BYTES // 16) / rate - 0.2
    assert sorted(os.listdir(tmp_path / "out")) == ["f0", "f1", "f2"]


def test_one_limit_for_several_boxes(workspace: Path, tmp_path: Path) -> None:
    limit = RateLimit(900_000)
    moved: list[int] = []
    with sandlift.Store.open(tmp_path / "store", create=True) as store:

        def capture(name: str) -> None:
            with sandlift.connect(str(workspace), limit_rate=limit) as box:
                moved.append(box.capture(store, name, deadline_s=60).wire.received)

        threads = [threading.Thread(target=capture, args=(name,)) for name in ("a", "b")]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - began
    assert sum(moved) > 1_800_000
    assert took_s > (sum(moved) - PIECE_MAX_BYTES // 8) / 900_000 - 0.2


def test_a_wait_of_ours_is_not_the_sandboxs_silence(workspace: Path, tmp_path: Path) -> None:
    """Hundreds of others may share the limit, so that a piece is long in coming."""
    limit, silence_s = RateLimit(2_000_000), 1.0
    with sandlift.Store.open(tmp_path / "store", create=True) as store:
        with sandlift.connect(str(workspace), limit_rate=limit) as box:
            limit.take(int(2_000_000 * 2.5 * silence_s))
            box.capture(store, "demo", limits=sandlift.Limits(silence_s=silence_s), deadline_s=60)
            limit.take(int(2_000_000 * 2.5 * silence_s))
        with sandlift.connect(str(tmp_path / "out"), limit_rate=limit) as box:
            box.restore(store, "demo", limits=sandlift.Limits(silence_s=silence_s), deadline_s=60)


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_a_run_that_waits_for_its_rate_can_be_stopped(workspace: Path, tmp_path: Path, how: str) -> None:
    cancel = sandlift.Cancel()
    with sandlift.Store.open(tmp_path / "store", create=True) as store:
        with sandlift.connect(str(workspace), limit_rate=1000) as box:
            began = time.monotonic()
            if how == "cancel":
                threading.Timer(0.5, cancel.cancel).start()
            with pytest.raises(Interrupted if how == "cancel" else DeadlineExceeded):
                box.capture(store, "demo", cancel=cancel, deadline_s=0.5 if how == "deadline" else 60)
            assert time.monotonic() - began < 5
        assert store.workspaces() == []
