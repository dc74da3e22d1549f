"""Starts at one server: so many at once, in order, and again where the server drops the handshake."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from transports.contract import far, read_all, read_some, settles, traces

from sandlift.deadline import Cancel, Deadline
from sandlift.errors import DeadlineExceeded, Interrupted, SandliftError
from sandlift.targets import parse_target
from sandlift.transports import Transport, open_transport
from sandlift.transports.handshakes import RETRIES_MAX, STARTS_MAX, Gate, Turn, gate_of, pause_s
from support.sshd import Sshd

LIMIT_S = 20.0


def test_the_width_is_kept_and_the_order_too() -> None:
    gate = Gate(3)
    turns = [gate.queue() for _ in range(10)]
    assert [turn.wait(0) for turn in turns] == [True] * 3 + [False] * 7
    turns[1].leave()
    turns[1].leave()
    assert [turn.wait(0) for turn in turns[3:]] == [True] + [False] * 6
    # One who gives up his place lets nobody in.
    turns[4].leave()
    assert not turns[5].wait(0)
    turns[0].leave()
    assert [turn.wait(0) for turn in turns[5:]] == [True] + [False] * 4


def test_nobody_starves_whatever_the_others_do() -> None:
    """Threads that come again and again: between two turns of one, each of the others has at most one."""
    gate, order, all_in = Gate(2), list[int](), threading.Barrier(7)

    def work(number: int) -> None:
        all_in.wait(LIMIT_S)
        for _ in range(40):
            turn = gate.enter(Deadline.after(LIMIT_S), "waiting")
            order.append(number)
            time.sleep(0.0002)
            turn.leave()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(order) == 280
    # The places are those of a queue; who leaves is behind all who wait, so nobody is overtaken twice by another.
    first_done = min(max(i for i, n in enumerate(order) if n == number) for number in range(7))
    assert all(order[: first_done + 1].count(number) >= 1 for number in range(7))


def test_waiting_can_be_stopped_and_leaves_no_place_taken() -> None:
    gate, cancel = Gate(1), Cancel()
    inside = gate.queue()
    with pytest.raises(DeadlineExceeded, match="while waiting for a turn"):
        gate.enter(Deadline.after(0.05), "waiting for a turn")
    threading.Timer(0.05, cancel.cancel).start()
    with pytest.raises(Interrupted):
        gate.enter(Deadline.after(None, cancel), "waiting for a turn")
    later = gate.queue()
    assert not later.wait(0)
    inside.leave()
    assert later.wait(0)


def test_a_gate_is_that_of_its_server_while_anybody_uses_it() -> None:
    turn: Turn = gate_of("box", 22).queue()
    assert gate_of("box", 22) is gate_of("box", 22)
    assert gate_of("box", 22) is not gate_of("box", 23)
    rest = [gate_of("box", 22).queue() for _ in range(STARTS_MAX)]
    assert [other.wait(0) for other in rest] == [True] * (STARTS_MAX - 1) + [False]
    turn.leave()
    assert rest[-1].wait(0)


def test_pauses_grow_and_differ() -> None:
    for tries in range(1, RETRIES_MAX + 1):
        pauses = [pause_s(tries) for _ in range(200)]
        assert 0.1 * 2 ** (tries - 1) <= min(pauses) < max(pauses) <= 0.3 * 2 ** (tries - 1)
    assert len(set(pauses)) > 100


class Door:
    """A port before a server that hangs up on the first so many connections, and hands the others on."""

    def __init__(self, server: Sshd, *, drops: int, reset: bool = False) -> None:
        self.came = 0
        self._server = server
        self._drops = drops
        self._reset = reset
        self._sockets: list[socket.socket] = []
        self._pipes: list[threading.Thread] = []
        self._listener = socket.create_server((server.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="asyncssh-server-door")

    def __enter__(self) -> Door:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.hang_up()
        for thread in self._pipes:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def hang_up(self) -> None:
        """Cuts all connections off."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            self.came += 1
            if self.came <= self._drops:
                if self._reset:
                    inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                inner.close()
                continue
            outer = socket.create_connection((self._server.host, self._server.port))
            self._sockets += [inner, outer]
            for source, sink in ((inner, outer), (outer, inner)):
                pipe = threading.Thread(target=self._pass_on, args=(source, sink), name="asyncssh-server-pipe")
                pipe.start()
                self._pipes.append(pipe)

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["ssh", "ssh-reuse", "paramiko"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def through(door: Door, sshd: Sshd, way: str) -> Iterator[Transport]:
    """A transport whose connections come to the door."""
    scheme = way.partition("-")[0]
    target = parse_target(f"{scheme}://{sshd.user}@{sshd.host}:{door.port}/tmp")
    options = (*sshd.ssh_options, "-o", f"HostKeyAlias=[{sshd.host}]:{sshd.port}")
    if scheme == "ssh":
        transport = open_transport(target, ssh_options=options, reuse=way == "ssh-reuse")
    else:
        transport = open_transport(target, host_key_file=sshd.host_key_file, key_files=[sshd.key_file])
    with contextlib.closing(transport):
        yield transport


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_dropped_handshake_is_tried_again_and_nothing_is_lost(
    sshd: Sshd, way: str, reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlift.transports.handshakes.PAUSE_S", 0.01)
    before = traces()
    with Door(sshd, drops=3, reset=reset) as door, through(door, sshd, way) as transport:
        with contextlib.closing(transport.open(far("cat"), deadline=Deadline.after(LIMIT_S))) as channel:
            # Written before anybody could know that the first handshake is dropped.
            channel.write(b"one ", LIMIT_S)
            channel.write(b"two", LIMIT_S)
            got = b""
            while len(got) < 7 and (data := channel.read(100, LIMIT_S)):
                got += data
            assert got == b"one two", channel.stderr_tail()
        assert door.came == 4
    assert settles(lambda: traces() == before), (before, traces())


def test_tries_are_bounded(sshd: Sshd, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlift.transports.handshakes.PAUSE_S", 0.01)
    with Door(sshd, drops=1000) as door, through(door, sshd, way) as transport:
        error = failure(transport)
        assert error.code in ("unreachable", "truncated")
        assert error.retryable
        assert door.came == 1 + RETRIES_MAX


def failure(transport: Transport, deadline: Deadline | None = None) -> SandliftError:
    """What opening a command, or reading from it, fails with."""
    deadline = deadline or Deadline.after(LIMIT_S)
    try:
        channel = transport.open(far("cat"), deadline=deadline)
    except SandliftError as error:
        return error
    with contextlib.closing(channel):
        while (data := channel.read(100, 0.2)) is None:
            try:
                deadline.check()
            except SandliftError as error:
                return error
        assert data == b""
        error_told = transport.explain(channel)
    assert error_told is not None
    return error_told


def test_the_deadline_ends_the_tries(sshd: Sshd, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlift.transports.handshakes.PAUSE_S", 60)
    began = time.monotonic()
    with Door(sshd, drops=1000) as door, through(door, sshd, way) as transport:
        assert type(failure(transport, Deadline.after(2))) is DeadlineExceeded
        assert door.came == 1
    assert time.monotonic() - began < 10


def test_a_connection_that_is_lost_later_is_not_made_again(sshd: Sshd, way: str) -> None:
    with Door(sshd, drops=0) as door, through(door, sshd, way) as transport:
        with contextlib.closing(transport.open(far("deaf"), deadline=Deadline.after(LIMIT_S))) as channel:
            assert read_some(channel) == b"started"
            door.hang_up()
            assert read_all(channel) == b""
        assert door.came == 1


def test_closing_between_two_tries_is_quick(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlift.transports.handshakes.PAUSE_S", 60)
    before = traces()
    with Door(sshd, drops=1000) as door, through(door, sshd, "ssh") as transport:
        channel = transport.open(far("cat"), deadline=Deadline.after(LIMIT_S))
        closer = threading.Timer(2, channel.close)
        closer.start()
        began = time.monotonic()
        assert channel.read(100, LIMIT_S) == b""
        assert time.monotonic() - began < 10
        closer.join()
        assert door.came == 1
    assert settles(lambda: traces() == before)


def test_twenty_commands_at_once_on_shared_connections(way: str) -> None:
    """Two connections for twenty sessions, where a server allows ten on each."""
    with Sshd(max_startups=None) as server:
        door_less = parse_target(server.url("/tmp", scheme=way.partition("-")[0]))
        if way == "paramiko":
            transport = open_transport(door_less, host_key_file=server.host_key_file, key_files=[server.key_file])
        else:
            transport = open_transport(door_less, ssh_options=server.ssh_options, reuse=way == "ssh-reuse")
        with contextlib.closing(transport), contextlib.ExitStack() as stack:
            channels = []
            for _ in range(20):
                channel = transport.open(far("deaf"), deadline=Deadline.after(LIMIT_S))
                stack.callback(channel.close, 0)
                assert read_some(channel) == b"started"
                channels.append(channel)
            assert server.log.count("Accepted publickey") == (20 if way == "ssh" else 2)
            assert server.log.count("drop connection") == 0
