"""Deadlines and cancel tokens."""

from __future__ import annotations

import math
import signal
import threading
import time

import pytest

from sandlift.deadline import SLICE_S, Cancel, Deadline
from sandlift.errors import DeadlineExceeded, Interrupted


def test_no_limit() -> None:
    deadline = Deadline.after(None)
    assert deadline.remaining_s() == math.inf
    assert deadline.remaining_s(3) == 3
    assert deadline.slice_s() == SLICE_S
    assert not deadline.over
    deadline.check()


# cases: vm0-ai/vm0#117
def test_zero_is_over_already() -> None:
    deadline = Deadline.after(0)
    assert deadline.remaining_s(5) == 0
    assert deadline.over
    with pytest.raises(DeadlineExceeded, match="time limit of 0 s ran out while connecting"):
        deadline.check("connecting")


def test_it_runs_out() -> None:
    deadline = Deadline.after(0.1)
    assert 0 < deadline.remaining_s() <= 0.1
    deadline.check()
    time.sleep(0.11)
    with pytest.raises(DeadlineExceeded) as caught:
        deadline.check()
    assert caught.value.context["limit_s"] == 0.1


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan])
def test_nonsense_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Deadline.after(seconds)


def test_the_sooner_of_two() -> None:
    cancel = Cancel()
    deadline = Deadline.after(10, cancel)
    assert deadline.sooner(20) is deadline
    assert deadline.sooner(1).remaining_s() <= 1
    assert deadline.sooner(1).cancel is cancel


def test_a_cancel_comes_before_the_limit() -> None:
    cancel = Cancel()
    deadline = Deadline.after(0, cancel)
    cancel.cancel(signal.SIGTERM)
    cancel.cancel(signal.SIGINT)
    assert (cancel.cancelled, cancel.signal) == (True, signal.SIGTERM)
    with pytest.raises(Interrupted) as caught:
        deadline.check("reading")
    assert caught.value.context["signal"] == signal.SIGTERM


def test_a_token_is_cancelled_with_its_parent_and_never_the_other_way_round() -> None:
    parent = Cancel()
    child, other = Cancel(parent), Cancel(parent)
    child.cancel(signal.SIGINT)
    assert (child.cancelled, parent.cancelled, other.cancelled) == (True, False, False)
    parent.cancel(signal.SIGTERM)
    assert (child.signal, other.cancelled, other.signal) == (signal.SIGINT, True, signal.SIGTERM)


def test_a_pause_ends_with_the_work() -> None:
    cancel = Cancel()
    threading.Timer(0.1, cancel.cancel).start()
    began = time.monotonic()
    with pytest.raises(Interrupted, match="while resting"):
        Deadline.after(None, cancel).pause(20, "resting")
    assert time.monotonic() - began < 5
    with pytest.raises(DeadlineExceeded):
        Deadline.after(0.05).pause(20)
    Deadline.after(None).pause(0.01)


def test_a_cancel_from_a_signal_handler() -> None:
    cancel = Cancel()
    old = signal.signal(signal.SIGUSR1, lambda number, frame: cancel.cancel(number))
    try:
        deadline = Deadline.after(5, cancel)
        threading.Timer(0.1, signal.raise_signal, (signal.SIGUSR1,)).start()
        while not deadline.over:
            time.sleep(deadline.slice_s(0.01))
        assert cancel.signal == signal.SIGUSR1
    finally:
        signal.signal(signal.SIGUSR1, old)
