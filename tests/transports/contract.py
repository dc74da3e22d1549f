"""What every duplex transport must do; one class of cases, run on all of them.

A subject supplies two fixtures: ``way``, a function that makes a new transport to a place where the same
file system is seen, so that ``far.py`` can be run there, and ``transport``, one that is already made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transports.far import pattern

from sandlift.deadline import Cancel, Deadline
from sandlift.errors import Interrupted, LocalProtocolError, Refused, SandboxGone, Truncated
from sandlift.transports import Channel, Transport

Way = Callable[[], Transport]
MIB = 1 << 20
LONG_S = 20.0
FAR = str(Path(__file__).with_name("far.py"))


def far(*words: object) -> list[str]:
    """The command that runs ``far.py`` with these words."""
    return [sys.executable, "-I", "-S", FAR, *map(str, words)]


@contextlib.contextmanager
def running(transport: Transport, *words: object, cancel: Cancel | None = None) -> Iterator[Channel]:
    """``far.py`` on an open channel, which is closed at the end, with a short grace to save time."""
    channel = transport.open(far(*words), deadline=Deadline.after(LONG_S, cancel))
    try:
        yield channel
    finally:
        channel.close(0.2)


def read_all(channel: Channel) -> bytes:
    """Everything up to the end of the output."""
    pieces = []
    end = time.monotonic() + LONG_S
    while (piece := channel.read(MIB, 1.0)) != b"":
        assert time.monotonic() < end, "the output does not end"
        pieces.append(piece or b"")
    return b"".join(pieces)


def read_some(channel: Channel) -> bytes:
    """The first bytes that come."""
    piece = channel.read(MIB, LONG_S)
    assert piece is not None
    return piece


def traces() -> tuple[int, list[str], list[str]]:
    """What a channel may leave behind in this process: descriptors, threads, children."""
    children = []
    for task in os.listdir("/proc/self/task"):
        # A thread may end between the two.
        with contextlib.suppress(FileNotFoundError):
            children += Path(f"/proc/self/task/{task}/children").read_text().split()
    # The threads of a server that runs in this process are not the channel's.
    threads = sorted(t.name for t in threading.enumerate() if not t.name.startswith("asyncssh-server"))
    return len(os.listdir("/proc/self/fd")), threads, sorted(children)


def settles(condition: Callable[[], bool], within_s: float = 3.0) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class TransportContract:
    """The cases."""

    def test_states_what_it_can_do(self, transport: Transport) -> None:
        can = transport.capabilities
        assert can.duplex
        assert can.max_argument_bytes >= 8_000
        assert can.max_command_bytes is None or can.max_command_bytes >= 8_000
        assert can.link_cost in ("cheap", "dear")
        assert transport.name

    # cases: kubernetes-client/python#1471, kubernetes-client/python-base#88, kubernetes-client/python-base#192
    def test_twenty_mebibytes_come_out_unchanged(self, transport: Transport) -> None:
        with running(transport, "pattern", 20 * MIB) as channel:
            out = read_all(channel)
            assert len(out) == 20 * MIB
            assert hashlib.sha256(out).digest() == hashlib.sha256(pattern(20 * MIB)).digest()
            assert channel.wait(5) == 0
            assert transport.explain(channel) is None

    # cases: kubernetes/kubernetes#89899
    def test_twenty_mebibytes_go_in_unchanged_without_end_of_input(self, transport: Transport) -> None:
        data = pattern(20 * MIB)
        with running(transport, "digest", len(data)) as channel:
            channel.write(memoryview(data), LONG_S)
            assert read_some(channel) == hashlib.sha256(data).hexdigest().encode()

    def test_both_ways_at_once(self, transport: Transport) -> None:
        data = pattern(8 * MIB)
        with running(transport, "cat") as channel:
            writer = threading.Thread(target=channel.write, args=(data, LONG_S))
            writer.start()
            got = bytearray()
            while len(got) < len(data):
                piece = channel.read(MIB, LONG_S)
                assert piece
                got += piece
            writer.join()
            assert got == data

    def test_writes_of_several_threads_are_whole(self, transport: Transport) -> None:
        size = 256 * 1024
        with running(transport, "cat") as channel:
            writers = [
                threading.Thread(target=channel.write, args=(bytes([value]) * size, LONG_S)) for value in (1, 2, 3)
            ]
            for writer in writers:
                writer.start()
            got = bytearray()
            while len(got) < 3 * size:
                piece = channel.read(MIB, LONG_S)
                assert piece
                got += piece
            for writer in writers:
                writer.join()
        runs = {bytes(got[i * size : (i + 1) * size]) for i in range(3)}
        assert runs == {bytes([value]) * size for value in (1, 2, 3)}

    def test_a_few_bytes_are_written_at_once_or_not_at_all(self, transport: Transport) -> None:
        with running(transport, "cat") as channel:
            channel.write(b"x", LONG_S)
            assert read_some(channel) == b"x"
            assert channel.write_now(b"alive")
            assert read_some(channel) == b"alive"
            with pytest.raises(LocalProtocolError):
                channel.write_now(bytes(513))
            channel.close(0.2)
            with pytest.raises(Truncated):
                channel.write_now(b"late")

    def test_a_command_that_takes_no_input_is_not_waited_for(self, transport: Transport) -> None:
        with running(transport, "deaf") as channel:
            assert read_some(channel) == b"started"
            with pytest.raises(SandboxGone):
                channel.write(bytes(64 * MIB), 0.25)
            written = 0
            # What is left of the last piece's room is less than a few hundred of these.
            while channel.write_now(bytes(512)) and written < 64 * MIB:
                written += 512
            assert written < MIB

    # cases: kubernetes/kubernetes#58692
    def test_four_mebibytes_of_stderr_do_not_block_and_the_tail_is_bounded(self, transport: Transport) -> None:
        with running(transport, "stderr", 4 * MIB) as channel:
            assert read_all(channel) == b"written"
            assert channel.wait(5) == 0
            tail = channel.stderr_tail()
            assert len(tail) == 64 * 1024
            assert tail.endswith(b"eeethe end of stderr")

    def test_exit_status(self, transport: Transport) -> None:
        for status in (0, 254):
            with running(transport, "exit", status) as channel:
                assert read_all(channel) == b""
                assert channel.wait(5) == status
                assert transport.explain(channel) is None

    def test_words_arrive_as_they_are(self, transport: Transport) -> None:
        words = [
            "",
            " ",
            "a b",
            "$HOME",
            "`id`",
            "*",
            "~",
            '"',
            "#",
            ";|&",
            "=x",
            "%s",
            "{a,b}",
            "é",
            "-n",
            "\t",
            "(x)",
        ]
        with running(transport, "words", *words) as channel:
            assert read_all(channel).decode() == "\0".join(words)

    def test_an_impossible_command_is_our_fault(self, transport: Transport) -> None:
        long = "x" * (transport.capabilities.max_argument_bytes + 1)
        for argv in ([], [""], ["x\0y"], ["true", long]):
            with pytest.raises(LocalProtocolError):
                transport.open(argv, deadline=Deadline.after(LONG_S))

    def test_reading_nothing_returns_none_in_time(self, transport: Transport) -> None:
        with running(transport, "deaf") as channel:
            assert read_some(channel) == b"started"
            for timeout_s in (0.0, 0.05, 0.3):
                begin = time.monotonic()
                assert channel.read(100, timeout_s) is None
                took_s = time.monotonic() - begin
                assert timeout_s * 0.9 <= took_s < timeout_s + 0.3
            assert channel.wait(0.1) is None

    def test_a_cancel_ends_a_read_and_a_write(self, transport: Transport) -> None:
        cancel = Cancel()
        with running(transport, "deaf", cancel=cancel) as channel:
            assert read_some(channel) == b"started"
            threading.Timer(0.15, cancel.cancel, (15,)).start()
            begin = time.monotonic()
            assert channel.read(100, LONG_S) is None
            with pytest.raises(Interrupted) as caught:
                channel.write(bytes(64 * MIB), LONG_S)
            assert caught.value.context["signal"] == 15
            assert 0.1 < time.monotonic() - begin < 2

    def test_a_command_that_does_not_read_is_given_up(self, transport: Transport) -> None:
        with running(transport, "deaf") as channel:
            assert read_some(channel) == b"started"
            begin = time.monotonic()
            with pytest.raises(SandboxGone):
                channel.write(bytes(64 * MIB), 0.25)
            assert 0.2 < time.monotonic() - begin < 5

    def test_writing_to_a_dead_command_raises(self, transport: Transport) -> None:
        with running(transport, "exit", 3) as channel:
            assert channel.wait(10) == 3
            # One write is more than all buffers on the way hold.
            with pytest.raises(Truncated):
                channel.write(bytes(64 * MIB), 5)

    def test_closing_from_another_thread_ends_a_read(self, transport: Transport) -> None:
        with running(transport, "deaf") as channel:
            assert read_some(channel) == b"started"
            closer = threading.Timer(0.1, channel.close, (0.1,))
            closer.start()
            begin = time.monotonic()
            assert channel.read(100, LONG_S) == b""
            assert time.monotonic() - begin < 2
            closer.join()
            assert channel.read(100, 0) == b""

    def test_closing_from_another_thread_ends_a_write(self, transport: Transport) -> None:
        with running(transport, "deaf") as channel:
            assert read_some(channel) == b"started"
            closer = threading.Timer(0.1, channel.close, (0.1,))
            closer.start()
            with pytest.raises(Truncated):
                channel.write(bytes(64 * MIB), LONG_S)
            closer.join()

    def test_closing_ends_a_command_that_reads(self, transport: Transport, tmp_path: Path) -> None:
        mark = tmp_path / "ended"
        with running(transport, "until-eof", mark) as channel:
            assert read_some(channel) == b"started"
        assert settles(mark.exists)

    def test_closing_twice_is_harmless(self, transport: Transport) -> None:
        with running(transport, "exit", 0) as channel:
            assert read_all(channel) == b""
            channel.close()
            channel.close()
            assert channel.wait(0) == 0
            assert channel.stderr_tail() == b""
        transport.close()

    def test_closing_takes_no_longer_than_said(self, transport: Transport) -> None:
        channel = transport.open(far("deaf"), deadline=Deadline.after(LONG_S))
        assert read_some(channel) == b"started"
        begin = time.monotonic()
        channel.close(0.2)
        assert time.monotonic() - begin < 1.0

    def test_a_missing_command_is_told(self, transport: Transport) -> None:
        try:
            channel = transport.open(["/nonexistent/program"], deadline=Deadline.after(LONG_S))
        except Refused as error:
            assert "/nonexistent/program" in str(error)
            return
        try:
            assert read_all(channel) == b""
            assert channel.wait(5) == 127
            assert b"/nonexistent/program" in channel.stderr_tail()
            assert transport.explain(channel) is None
        finally:
            channel.close()

    def test_nothing_is_left_behind(self, way: Way) -> None:
        transport = way()
        before = traces()
        for words in (("exit", 0), ("pattern", MIB), ("deaf",)):
            channel = transport.open(far(*words), deadline=Deadline.after(LONG_S))
            channel.read(100, LONG_S)
            channel.close(0.2)
        transport.close()
        assert settles(lambda: traces() == before), (before, traces())

    def test_an_over_deadline_starts_nothing(self, way: Way) -> None:
        transport = way()
        before = traces()
        cancel = Cancel()
        cancel.cancel()
        with pytest.raises(Interrupted):
            transport.open(far("exit", 0), deadline=Deadline.after(None, cancel))
        transport.close()
        assert settles(lambda: traces() == before)

    def test_several_commands_at_once(self, transport: Transport) -> None:
        with contextlib.ExitStack() as stack:
            channels = [stack.enter_context(running(transport, "cat")) for _ in range(4)]
            for number, channel in enumerate(channels):
                channel.write(b"%d" % number, LONG_S)
            assert [read_some(channel) for channel in channels] == [b"0", b"1", b"2", b"3"]
