"""A capture that is cancelled, or out of time, at any instant: over within two seconds, and without a trace."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from protocol.replay import leaves_nothing

from sandlift.box import connect
from sandlift.deadline import Cancel
from sandlift.errors import DeadlineExceeded, Interrupted
from sandlift.store import PackWriter, Store

SOON_S = 2.0
INSTANTS = 12


def assert_as_before(store: Store) -> None:
    assert [record.number for record in store.log("demo")] == [1]
    assert not list((Path(store.location) / "tmp").iterdir())
    assert store.verify().is_sound


@pytest.mark.parametrize("number", range(INSTANTS))
def test_a_cancel_at_any_instant(number: int, workspace: Path, store: Store, slow_store: float) -> None:
    cancel = Cancel()
    called: list[float] = []

    def stop() -> None:
        called.append(time.monotonic())
        cancel.cancel(2)

    delay_s = slow_store * (number + random.Random(number).random()) / INSTANTS
    timer = threading.Timer(delay_s, stop)
    with leaves_nothing(store), connect(f"local:{workspace}") as box:
        timer.start()
        with pytest.raises(Interrupted) as caught:
            box.capture(store, "demo", cancel=cancel)
        assert time.monotonic() - called[0] < SOON_S
        timer.join()
    assert caught.value.context["signal"] == 2
    assert caught.value.exit == 130
    assert_as_before(store)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_deadline_at_any_instant(share: float, workspace: Path, store: Store, slow_store: float) -> None:
    with leaves_nothing(store), connect(f"local:{workspace}") as box:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            box.capture(store, "demo", deadline_s=slow_store * share)
        assert time.monotonic() - began < slow_store * share + SOON_S
    assert caught.value.exit == 1
    assert_as_before(store)


def cancel_by(cancel: Cancel) -> bool:
    cancel.cancel()
    return True


@pytest.mark.parametrize("kind", ["cancel", "deadline"])
def test_while_the_store_stalls(kind: str, workspace: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that hangs is waited for, since half of it must not remain; nothing else is."""
    append, began = PackWriter.append, threading.Event()

    def stall(self: PackWriter, frame: bytes | memoryview, decoded_size_bytes: int) -> int:
        began.set()
        time.sleep(0.5)
        return append(self, frame, decoded_size_bytes)

    monkeypatch.setattr(PackWriter, "append", stall)
    cancel = Cancel()
    with leaves_nothing(store), connect(f"local:{workspace}") as box:
        canceller = threading.Thread(target=lambda: began.wait(5) and kind == "cancel" and cancel_by(cancel))
        canceller.start()
        start = time.monotonic()
        with pytest.raises(Interrupted if kind == "cancel" else DeadlineExceeded):
            box.capture(store, "demo", cancel=cancel, deadline_s=1)
        assert time.monotonic() - start < 1 + SOON_S
        canceller.join()
    assert_as_before(store)


def test_after_a_cancel_the_same_box_captures(workspace: Path, store: Store) -> None:
    cancel = Cancel()
    cancel.cancel()
    with connect(f"local:{workspace}") as box:
        with pytest.raises(Interrupted):
            box.capture(store, "demo", cancel=cancel)
        assert box.capture(store, "demo").number == 2
