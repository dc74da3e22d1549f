"""The heartbeats of all runs of a process, and the one thread that sends them."""

from __future__ import annotations

import threading
import time

from sandlift.heartbeat import Heart

SOON_S = 20.0


def heart_threads() -> int:
    return sum(thread.name == "sandlift-heartbeat" for thread in threading.enumerate())


def test_one_thread_sends_all_and_ends_with_the_last() -> None:
    heart, names = Heart(), set[str]()
    arrived = [threading.Semaphore(0) for _ in range(50)]

    def sender(number: int) -> None:
        names.add(threading.current_thread().name)
        arrived[number].release()

    beats = [heart.add(0.01 + number / 1000, lambda number=number: sender(number)) for number in range(50)]  # type: ignore[misc]
    assert heart_threads() == 1
    for beat in arrived:
        for _ in range(3):
            assert beat.acquire(timeout=SOON_S)
    assert names == {"sandlift-heartbeat"}
    for beat_of in beats:
        heart.remove(beat_of)
    assert heart_threads() == 0


def test_a_sooner_beat_does_not_wait_for_a_later_one() -> None:
    heart, came = Heart(), threading.Event()
    slow = heart.add(1000, lambda: None)
    quick = heart.add(0.01, came.set)
    assert came.wait(SOON_S)
    heart.remove(quick)
    heart.remove(slow)


def test_a_beat_that_was_removed_is_not_sent_and_one_removed_twice_is_harmless() -> None:
    heart, sent = Heart(), []
    beat = heart.add(0.01, lambda: sent.append(1))
    heart.remove(beat)
    heart.remove(beat)
    count = len(sent)
    other, came = heart.add(0.05, lambda: came.set()), threading.Event()  # noqa: PLW0108
    assert came.wait(SOON_S)
    heart.remove(other)
    assert len(sent) == count


def test_begun_and_ended_by_many_threads() -> None:
    heart = Heart()

    def run() -> None:
        for _ in range(50):
            beat = heart.add(0.001, lambda: None)
            time.sleep(0)
            heart.remove(beat)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert not any(thread.is_alive() for thread in threads)
    assert heart_threads() == 0
