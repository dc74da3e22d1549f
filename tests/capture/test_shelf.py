"""The shelf: content is proved by shared threads, stored in the order in which it came, and paid for with credit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from protocol.replay import settles
from protocol.stream import digest_of, member, pack, run_of

from sandlift.box import connect
from sandlift.deadline import Cancel, Deadline
from sandlift.errors import DeadlineExceeded, Interrupted, RemoteProtocolError, StoreFull
from sandlift.provers import Frame, Provers
from sandlift.shelf import Shelf
from sandlift.store import PackWriter, Store
from sandlift_helper import members, wire
from sandlift_helper.workers import usable_cores

CODECS = [wire.CODEC_NONE, wire.CODEC_ZLIB, wire.CODEC_ZSTD]
BAD = pack(member(b"one", name=digest_of(b"two")))


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[PackWriter]:
    """An empty pack."""
    with Store.open(tmp_path / "shelf-store", create=True) as store, store.begin_pack("0" * 32) as opened:
        yield opened


class Gate(PackWriter):
    """A pack on a disk that stands still until it is opened."""

    def __init__(self) -> None:
        self.name = "0" * 32
        self.open = threading.Event()
        self.frames = 0

    def append(self, frame: bytes | memoryview, decoded_size_bytes: int) -> int:
        assert self.open.wait(30)
        self.frames += 1
        return 0


def provers() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("sandlift-prover", "sandlift-sh"))
    ]


def forever() -> Deadline:
    return Deadline.after(60)


def nothing(_frames: int) -> None:
    pass


def waits(thread: threading.Thread) -> bool:
    """Whether a thread is still at it after a while."""
    thread.join(0.3)
    return thread.is_alive()


@pytest.mark.parametrize("codec", CODECS)
def test_places_follow_the_order_of_arrival(writer: PackWriter, codec: int) -> None:
    """Large frames take long to prove, and small ones behind them are ready first."""
    runs = [[os.urandom(1 << 20 if number % 5 == 0 else 100)] for number in range(40)]
    paid: list[int] = []
    with Shelf(writer, paid.append, forever(), provers=Provers(threads_max=4)) as shelf:
        for blocks in runs:
            shelf.put(pack(run_of(blocks), codec))
        shelf.finish(len(runs))
        sizes = dict(shelf.brought)
    digests = [digest_of(block) for blocks in runs for block in blocks]
    assert sizes == {digest_of(block): len(block) for blocks in runs for block in blocks}
    place = 0
    for digest in digests:
        assert shelf.brought.offset(digest) == place
        place += members.HEADER_SIZE + members.padded(sizes[digest])
    assert writer.blocks_bytes == place
    assert paid == [1] * len(runs)


def test_the_first_place_of_a_block_counts(writer: PackWriter) -> None:
    with Shelf(writer, nothing, forever()) as shelf:
        for blocks in ([b"a", b"b"], [b"b", b"c"], [b"a"]):
            shelf.put(pack(run_of(blocks)))
        shelf.finish(5)
        assert len(shelf.brought) == 3
    assert [shelf.brought.offset(digest_of(block)) for block in (b"a", b"b", b"c")] == [0, 1024, 3072]


@pytest.mark.parametrize("counted", [0, 1, 3])
def test_blocks_that_are_missing(writer: PackWriter, counted: int) -> None:
    with Shelf(writer, nothing, forever()) as shelf:
        shelf.put(pack(run_of([b"a", b"b"])))
        with pytest.raises(RemoteProtocolError, match=f"counts {counted} blocks, 2 came"):
            shelf.finish(counted)


def test_a_refusal_is_told_and_nothing_is_stored_or_paid_after_it(writer: PackWriter) -> None:
    paid: list[int] = []
    with Shelf(writer, paid.append, forever()) as shelf:
        shelf.put(pack(run_of([b"before"])))
        shelf.put(BAD)
        for number in range(20):
            shelf.put(pack(run_of([b"%d" % number])))
        with pytest.raises(RemoteProtocolError, match="does not hash to its name"):
            shelf.finish(22)
        with pytest.raises(RemoteProtocolError, match="does not hash to its name"):
            shelf.check()
    assert list(shelf.brought) == [digest_of(b"before")]
    assert paid == [1]


def test_the_earliest_refusal_is_the_one_that_is_told(writer: PackWriter) -> None:
    """The second frame is refused at a glance, the first only when its last block was hashed."""
    late = run_of([os.urandom(1 << 20), os.urandom(1000)]) + member(b"one", name=digest_of(b"two"))
    for _ in range(10):
        with Shelf(writer, nothing, forever(), provers=Provers(threads_max=4)) as shelf:
            shelf.put(pack(late))
            shelf.put(b"")
            with pytest.raises(RemoteProtocolError, match="does not hash"):
                shelf.finish(0)


def test_what_storing_meets_is_told(writer: PackWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise StoreFull("no room")

    monkeypatch.setattr(writer, "append", full)
    with Shelf(writer, nothing, forever()) as shelf:
        shelf.put(pack(run_of([b"a"])))
        with pytest.raises(StoreFull):
            shelf.finish(1)


def test_what_granting_meets_is_told(writer: PackWriter) -> None:
    def gone(_frames: int) -> None:
        raise Interrupted("interrupted while sending")

    with Shelf(writer, gone, forever()) as shelf:
        shelf.put(pack(run_of([b"a"])))
        with pytest.raises(Interrupted):
            shelf.finish(1)


def test_what_was_put_so_far_is_stored_when_it_is_drained(writer: PackWriter) -> None:
    with Shelf(writer, nothing, forever()) as shelf:
        shelf.drain()
        for count in range(1, 6):
            shelf.put(pack(run_of([os.urandom(300_000)])))
            shelf.drain()
            assert len(shelf.brought) == count
        shelf.put(BAD)
        shelf.put(pack(run_of([b"late"])))
        shelf.drain()
        assert len(shelf.brought) == 5
        with pytest.raises(RemoteProtocolError, match="does not hash"):
            shelf.check()


def test_draining_ends_with_the_deadline() -> None:
    gate = Gate()
    with Shelf(gate, nothing, Deadline.after(0.3)) as shelf:
        shelf.put(pack(run_of([b"a"])))
        with pytest.raises(DeadlineExceeded):
            shelf.drain()
        gate.open.set()


# The bound of what is under way


def puts(shelf: Shelf, frames: int, met: list[BaseException]) -> threading.Thread:
    """Puts frames of 100 KiB from a thread of its own; what that raises is added to *met*."""

    def put() -> None:
        try:
            for _ in range(frames):
                shelf.put(pack(run_of([os.urandom(100_000)])))
        except BaseException as error:
            met.append(error)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    return thread


def test_who_reads_waits_while_too_much_is_under_way() -> None:
    gate, met = Gate(), list[BaseException]()
    pool = Provers(under_way_bytes_max=350_000)
    with Shelf(gate, nothing, forever(), provers=pool) as shelf:
        three = puts(shelf, 3, met)
        assert not waits(three)
        more = puts(shelf, 5, met)
        assert waits(more)
        gate.open.set()
        assert not waits(more)
        shelf.finish(8)
        assert len(shelf.brought) == 8
    assert (gate.frames, met) == (8, [])
    assert pool._under_way_bytes == 0


def test_no_capture_starves_because_another_holds_all_the_room() -> None:
    stuck, free, met = Gate(), Gate(), list[BaseException]()
    free.open.set()
    pool = Provers(under_way_bytes_max=250_000)
    with ExitStack() as stack:
        first = stack.enter_context(Shelf(stuck, nothing, forever(), provers=pool))
        assert waits(puts(first, 3, met))
        second = stack.enter_context(Shelf(free, nothing, forever(), provers=pool))
        # One at a time, each when the one before is stored.
        for count in range(1, 4):
            assert not waits(puts(second, 1, met))
            end = time.monotonic() + 10
            while free.frames < count and time.monotonic() < end:
                time.sleep(0.001)
        second.finish(3)
        assert second.brought
        stuck.open.set()
    assert met == []


@pytest.mark.parametrize(
    ("deadline", "kind"),
    [
        (lambda: Deadline.after(0.3), DeadlineExceeded),
        (lambda: Deadline.after(60, cancelled()), Interrupted),
    ],
)
def test_the_wait_for_room_ends_with_the_deadline(deadline: Callable[[], Deadline], kind: type[BaseException]) -> None:
    gate, met = Gate(), list[BaseException]()
    with Shelf(gate, nothing, deadline(), provers=Provers(under_way_bytes_max=1)) as shelf:
        puts(shelf, 2, met).join(10)
        assert [type(error) for error in met] == [kind]
        gate.open.set()


def cancelled() -> Cancel:
    token = Cancel()
    token.cancel()
    return token


def test_the_wait_for_room_ends_with_a_failure() -> None:
    gate, met = Gate(), list[BaseException]()
    with Shelf(gate, nothing, forever(), provers=Provers(under_way_bytes_max=1)) as shelf:
        shelf.put(BAD)
        end = time.monotonic() + 10
        while not met and time.monotonic() < end:
            puts(shelf, 2, met).join(10)
        assert [type(error) for error in met] == [RemoteProtocolError]
        gate.open.set()


def test_what_is_abandoned_is_given_back_and_no_thread_stays(writer: PackWriter) -> None:
    pool = Provers(threads_max=3)
    for _ in range(20):
        with Shelf(writer, nothing, forever(), provers=pool) as shelf:
            for _ in range(10):
                shelf.put(pack(run_of([os.urandom(50_000)]), wire.CODEC_ZLIB))
        assert pool._under_way_bytes == 0
        assert settles(lambda: provers() == [])


def test_a_frame_that_comes_after_the_end_starts_nothing() -> None:
    """As from a thread that waited for room while the capture was given up."""
    pool = Provers()
    with pool:
        pass
    frame = Frame(pack(run_of([b"late"])), lambda: False)
    pool.take(frame, alone=lambda: True, check=lambda: None)
    assert frame.result() is None
    assert settles(lambda: provers() == [])


# Whole captures


def test_many_captures_at_once_share_the_threads(tmp_path: Path) -> None:
    captures = 12
    for number in range(captures):
        root = tmp_path / f"w{number}"
        root.mkdir()
        for name in range(20):
            (root / f"f{name}").write_bytes(os.urandom(60_000))
    seen: set[int] = set()

    def look(_event: object) -> None:
        seen.add(provers().count("sandlift-prover"))

    def take(number: int) -> int:
        with connect(f"local:{tmp_path / f'w{number}'}") as box:
            return box.capture(store, f"w{number}", on_event=look, deadline_s=120).counts.files

    with Store.open(tmp_path / "many", create=True) as store:
        with ThreadPoolExecutor(captures) as pool:
            assert list(pool.map(take, range(captures))) == [20] * captures
        assert store.verify().damaged == ()
    assert max(seen) <= usable_cores()
    assert settles(lambda: provers() == [])
