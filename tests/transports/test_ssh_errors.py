"""What goes wrong between here and a sandbox has the same name with both ssh clients."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from transports.contract import far, read_some, running, settles, traces

from sandlift.deadline import Cancel, Deadline
from sandlift.errors import (
    AuthFailed,
    DeadlineExceeded,
    HostKeyChanged,
    HostKeyUnknown,
    Interrupted,
    Refused,
    SandliftError,
    Truncated,
    Unreachable,
    UsageError,
)
from sandlift.transports import Transport
from sandlift.transports.handshakes import RETRIES_MAX
from sandlift.transports.openssh import OpenSSH, explain_ssh
from sandlift.transports.paramiko_ssh import ParamikoTransport
from support.needs import require
from support.sshd import HOST, Sshd, free_port, make_key

LIMIT_S = 15.0


class Client:
    """Makes transports of one kind to a server, with single settings changed."""

    def __init__(self, kind: str, server: Sshd) -> None:
        self.kind = kind
        self.server = server

    def to(
        self, *, host: str | None = None, port: int | None = None, key: str | None = None, known: str | None = None
    ) -> Transport:
        server = self.server
        host, port = host or server.host, port or server.port
        key, known = key or server.key_file, known or server.known_hosts_file
        if self.kind == "paramiko":
            return ParamikoTransport(
                host, user=server.user, port=port, key_files=[key], known_hosts_files=[known], config_file=None
            )
        options = ["-F", "/dev/null", "-i", key, "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"]
        options += ["-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=/dev/null"]
        reuse = self.kind == "ssh-reuse"
        return OpenSSH(host, user=server.user, port=port, ssh_options=options, reuse=reuse)


@pytest.fixture(params=["ssh", "ssh-reuse", "paramiko"])
def client(request: pytest.FixtureRequest, sshd: Sshd) -> Client:
    return Client(request.param, sshd)


def failure(transport: Transport, deadline: Deadline | None = None) -> SandliftError:
    """The error that a try to run something ends with."""
    with contextlib.closing(transport), pytest.raises(SandliftError) as caught:
        run_to_the_end(transport, deadline or Deadline.after(LIMIT_S))
    return caught.value


def run_to_the_end(transport: Transport, deadline: Deadline) -> None:
    with contextlib.closing(transport.open(far("exit", 0), deadline=deadline)) as channel:
        while channel.read(100, deadline.slice_s()) is None:
            deadline.check("waiting for the command")
        if channel.wait(5) != 0 and (error := transport.explain(channel)) is not None:
            raise error


@pytest.fixture(autouse=True)
def leaves_nothing(sshd: Sshd) -> Iterator[None]:
    before = traces()
    yield
    assert settles(lambda: traces() == before), (before, traces())


def test_nobody_listens(client: Client) -> None:
    assert type(failure(client.to(port=free_port()))) is Refused


def test_the_name_is_unknown(client: Client) -> None:
    error = failure(client.to(host="host.invalid"))
    assert type(error) is Unreachable
    assert "host.invalid" in str(error)
    assert "name" in str(error)


def test_the_key_is_not_accepted(client: Client, tmp_path: Path) -> None:
    make_key(tmp_path / "other", "ed25519")
    error = failure(client.to(key=str(tmp_path / "other")))
    assert type(error) is AuthFailed
    assert error.retryable is False
    assert error.hint


def test_the_host_key_is_unknown(client: Client, tmp_path: Path) -> None:
    error = failure(client.to(known=str(tmp_path / "none")))
    assert type(error) is HostKeyUnknown
    assert "--host-key-file" in error.hint
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("key_type", ["ed25519", "rsa"], ids=["same-type", "other-type"])
def test_the_host_key_has_changed(client: Client, tmp_path: Path, key_type: str) -> None:
    make_key(tmp_path / "key", key_type)
    words = (tmp_path / "key.pub").read_text().split()
    known = tmp_path / "known"
    known.write_text(f"[{HOST}]:{client.server.port} {words[0]} {words[1]}\n")
    assert type(failure(client.to(known=str(known)))) is HostKeyChanged


def test_a_server_that_never_answers(client: Client) -> None:
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        begin = time.monotonic()
        error = failure(client.to(port=silent.getsockname()[1]), Deadline.after(1))
        assert time.monotonic() - begin < 5
        assert type(error) in (Unreachable, DeadlineExceeded)


def test_a_cancel_ends_connecting(client: Client) -> None:
    cancel = Cancel()
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        deadline = Deadline.after(LIMIT_S, cancel)
        transport = client.to(port=silent.getsockname()[1])
        begin = time.monotonic()
        cancelled_at = begin + 0.2

        def watch() -> None:
            time.sleep(max(0.0, cancelled_at - time.monotonic()))
            cancel.cancel(2)

        thread = threading.Thread(target=watch)
        thread.start()
        error = failure(transport, deadline)
        thread.join()
        assert type(error) is Interrupted
        assert error.context["signal"] == 2
        assert time.monotonic() - begin < 3


def test_a_server_that_is_none(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server, say: it talks, but not SSH, so each try looks like a handshake that was dropped."""
    monkeypatch.setattr("sandlift.transports.handshakes.PAUSE_S", 0.01)
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()

        tries = []

        def answer() -> None:
            for number in range(1 + RETRIES_MAX):
                connection, _ = server.accept()
                tries.append(number)
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        error = failure(client.to(port=server.getsockname()[1]))
        thread.join()
        assert len(tries) == 1 + RETRIES_MAX
        assert type(error) in (Unreachable, Truncated)
        assert error.retryable


def test_the_connection_is_lost_while_running() -> None:
    require("sshd", "ssh", "ssh-keygen")
    for kind in ("ssh", "paramiko"):
        with Sshd() as server, contextlib.closing(Client(kind, server).to()) as transport:
            with running(transport, "deaf") as channel:
                assert read_some(channel) == b"started"
                server.stop()
                assert channel.read(100, LIMIT_S) == b""
                error = transport.explain(channel)
                assert type(error) in (Unreachable, Truncated), kind
                with pytest.raises(Truncated):
                    channel.write(bytes(64 << 20), 5)


# cases: rsnapshot/rsnapshot#102
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh: connect to host h port 22: No route to host", Unreachable),
        ("ssh: connect to host h port 22: Network is unreachable", Unreachable),
        ("ssh: connect to host h port 22: Connection timed out", Unreachable),
        ("Connection timed out during banner exchange\nConnection to UNKNOWN port 65535 timed out", Unreachable),
        ("kex_exchange_identification: Connection closed by remote host", Unreachable),
        ("Timeout, server h not responding.", Unreachable),
        ("Received disconnect from ::1 port 22:2: Too many authentication failures", AuthFailed),
        ("me@h: Permission denied (publickey,password).", AuthFailed),
        ("Load key /k: Permission denied\nme@h: Permission denied (publickey).", AuthFailed),
        ("bind [127.0.0.1]:1: Permission denied", Unreachable),
        ("@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.", HostKeyChanged),
        ("No ED25519 host key is known for h and you have requested strict checking.", HostKeyUnknown),
        ("command-line: line 0: Bad configuration option: x", UsageError),
        ("", Unreachable),
    ],
)
def test_what_ssh_says(text: str, expected: type[SandliftError]) -> None:
    error = explain_ssh(255, text.encode(), host="h")
    assert type(error) is expected
    assert error.context["stderr"] == text


@pytest.mark.parametrize("status", [None, 0, 1, 126, 127, 254])
def test_a_command_may_say_what_it_likes(status: int | None) -> None:
    assert explain_ssh(status, b"me@h: Permission denied (publickey).", host="h") is None


def test_a_token_does_not_show() -> None:
    token = "tok-0123456789abcdef0123456789"
    error = explain_ssh(255, f"{token}@gate: Permission denied (publickey).".encode(), host="gate", secret=token)
    assert error is not None
    assert token not in str(error) + str(error.context) + error.hint
    assert "***@gate" in str(error.context["stderr"])
