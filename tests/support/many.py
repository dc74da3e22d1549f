"""Many captures at once in this process, and what they take: time, threads, descriptors, memory."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

import sandlift
from sandlift import aio

SAMPLE_S = 0.05
TICK_S = 0.005

Connect = Callable[[], sandlift.Box]
AioConnect = Callable[[], Awaitable[aio.Box]]


@dataclass(slots=True, kw_only=True)
class Burst:
    """What came of captures that ran together."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of this process and of the children that it has waited for."""
    failures: list[BaseException] = field(default_factory=list)
    done: list[sandlift.Capture] = field(default_factory=list)
    peak_threads: int = 0
    peak_descriptors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What this process holds now."""

    threads: tuple[str, ...]
    descriptors: int

    @classmethod
    def now(cls) -> Traces:
        """As of this instant."""
        threads = tuple(sorted(thread.name for thread in threading.enumerate()))
        return cls(threads=threads, descriptors=len(os.listdir("/proc/self/fd")) - 1)

    @classmethod
    def quiet(cls) -> Traces:
        """As soon as the threads of earlier calls, which end just behind them, are gone."""
        end = time.monotonic() + 5
        while any(thread.name.startswith("sandlift") for thread in threading.enumerate()):
            assert time.monotonic() < end, threading.enumerate()
            time.sleep(0.01)
        return cls.now()

    def settles(self, within_s: float = 5.0) -> bool:
        """Whether this process comes to hold the same again."""
        end = time.monotonic() + within_s
        while Traces.now() != self:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


def make_tree(root: Path, files: int, file_bytes: int) -> Path:
    """A small tree whose bytes do not compress, the same for the same arguments."""
    chance = random.Random(files * file_bytes)
    for number in range(files):
        path = root / f"d{number % 7}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(file_bytes))
    return root


def cpu_s() -> float:
    """Processor time of this process and its children so far."""
    whole = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in whole)


def peak_rss_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def measured() -> Iterator[Burst]:
    """Fills a burst's times and peaks while the block runs."""
    burst, over = Burst(), threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            # This thread is not one of theirs, nor is the descriptor of the listing.
            burst.peak_threads = max(burst.peak_threads, threading.active_count() - 1)
            burst.peak_descriptors = max(burst.peak_descriptors, len(os.listdir("/proc/self/fd")) - 1)

    sampler = threading.Thread(target=sample, name="sampler")
    began, cpu_began = time.monotonic(), cpu_s()
    sampler.start()
    try:
        yield burst
    finally:
        burst.seconds, burst.cpu_s = time.monotonic() - began, cpu_s() - cpu_began
        over.set()
        sampler.join()


def with_threads(
    connects: Sequence[Connect], store: sandlift.Store, *, at_once: int | None = None, deadline_s: float = 300
) -> Burst:
    """Captures once over each of *connects*, all at once or so many; every box is closed behind its capture."""
    numbers: SimpleQueue[int] = SimpleQueue()
    for number in range(len(connects)):
        numbers.put(number)
    with measured() as burst:

        def work() -> None:
            while True:
                try:
                    number = numbers.get_nowait()
                except Empty:
                    return
                try:
                    with connects[number]() as box:
                        burst.done.append(box.capture(store, f"w{number}", deadline_s=deadline_s))
                except BaseException as error:
                    burst.failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(at_once or len(connects))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return burst


async def with_coroutines(connects: Sequence[AioConnect], store: sandlift.Store) -> tuple[Burst, float]:
    """The same in one event loop; also returns the longest time for which the loop did not turn."""
    longest_s, over = 0.0, False

    async def tick() -> None:
        nonlocal longest_s
        last = time.monotonic()
        while not over:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            longest_s, last = max(longest_s, now - last - TICK_S), now

    async def one(number: int) -> None:
        box = await connects[number]()
        try:
            burst.done.append(await box.capture(store, f"a{number}", deadline_s=300))
        except Exception as error:
            burst.failures.append(error)
        finally:
            await box.close()

    with measured() as burst:
        ticker = asyncio.create_task(tick())
        await asyncio.gather(*(one(number) for number in range(len(connects))))
        over = True
        await ticker
    return burst, longest_s
