"""What is paramiko's own: keys, host keys, configuration, errors, a network that hangs."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pkgutil
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import paramiko
import pytest
from transports.conftest import paramiko_to
from transports.contract import far, read_all, read_some, running, settles, traces

from sandlift.deadline import Deadline
from sandlift.errors import (
    AuthFailed,
    BadURL,
    HostKeyChanged,
    HostKeyUnknown,
    MissingExtra,
    Refused,
    SandboxGone,
    SandliftError,
    Truncated,
    Unreachable,
    UsageError,
)
from sandlift.targets import parse_target
from sandlift.transports import Transport, open_transport
from sandlift.transports.known_hosts import KnownHosts
from sandlift.transports.paramiko_errors import ERRORS, map_error
from support.needs import require
from support.sshd import HOST, Sshd, make_key

LIMIT_S = 15.0


def output(transport: Transport, *argv: str) -> bytes:
    with contextlib.closing(transport):
        channel = transport.open(argv or ["echo", "in"], deadline=Deadline.after(LIMIT_S))
        with contextlib.closing(channel):
            return read_all(channel)


def failure(transport: Transport) -> SandliftError:
    with contextlib.closing(transport), pytest.raises(SandliftError) as caught:
        transport.open(["true"], deadline=Deadline.after(LIMIT_S))
    return caught.value


def exception_classes() -> set[type[BaseException]]:
    """All that paramiko defines."""
    found: set[type[BaseException]] = set()
    for module in pkgutil.iter_modules(paramiko.__path__):
        if module.name == "win_pageant" or module.name.startswith(("_win", "win_")):
            continue
        for _, value in inspect.getmembers(importlib.import_module(f"paramiko.{module.name}"), inspect.isclass):
            if issubclass(value, BaseException) and value.__module__.startswith("paramiko"):
                found.add(value)
    return found


def test_every_exception_of_paramiko_is_mapped_by_its_own_name() -> None:
    names = {kind.__name__ for kind in exception_classes()}
    assert {"SSHException", "ChannelException", "SFTPError", "ConfigParseError"} <= names
    assert names - set(ERRORS) == set()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EOFError(), Truncated),
        (ConnectionResetError(104, "reset"), Truncated),
        (BrokenPipeError(32, "pipe"), Truncated),
        (ConnectionRefusedError(111, "refused"), Refused),
        (TimeoutError("slow"), Unreachable),
        (OSError(113, "No route to host"), Unreachable),
        (socket.gaierror(-2, "Name or service not known"), Unreachable),
        (paramiko.SSHException("SSH session not active"), Unreachable),
        (paramiko.AuthenticationException("no"), AuthFailed),
        (paramiko.BadAuthenticationType("no", ["password"]), AuthFailed),
        (paramiko.PasswordRequiredException("locked"), AuthFailed),
        (paramiko.ChannelException(1, "Administratively prohibited"), Refused),
        (paramiko.ssh_exception.NoValidConnectionsError({("h", 22): OSError()}), Refused),
        (RuntimeError("strange"), Unreachable),
        (UsageError("ours"), UsageError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_errors_become_ours(error: BaseException, expected: type[SandliftError]) -> None:
    assert type(map_error(error, "box")) is expected


@pytest.mark.parametrize("key_type", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("passphrase", ["", "correct horse"], ids=["open", "passphrase"])
def test_kinds_of_keys(sshd: Sshd, key_type: str, passphrase: str) -> None:
    name = f"id_{key_type}_{len(passphrase)}"
    key = sshd.add_user_key(name, key_type, passphrase=passphrase)
    transport = paramiko_to(sshd, key_files=[key], passphrase=lambda path: passphrase if path == key else None)
    assert output(transport) == b"in\n"


@pytest.mark.parametrize("key_type", ["ecdsa", "rsa"])
def test_kinds_of_host_keys(key_type: str) -> None:
    require("sshd", "ssh-keygen")
    with Sshd(host_key_type=key_type) as server:
        assert output(paramiko_to(server)) == b"in\n"


def test_a_known_type_is_asked_for_when_the_server_has_several(tmp_path: Path) -> None:
    require("sshd", "ssh-keygen")
    make_key(tmp_path / "rsa", "rsa")
    with Sshd(config=[f"HostKey {tmp_path}/rsa"]) as server:
        words = (tmp_path / "rsa.pub").read_text().split()
        known = tmp_path / "known"
        known.write_text(f"[{HOST}]:{server.port} {words[0]} {words[1]}\n")
        assert output(paramiko_to(server, known_hosts_files=[str(known)])) == b"in\n"


def test_the_passphrase_of_the_environment(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    key = sshd.add_user_key("id_env", passphrase="from the environment")
    error = failure(paramiko_to(sshd, key_files=[key]))
    assert type(error) is AuthFailed
    assert "SANDLIFT_SSH_PASSPHRASE" in error.hint
    monkeypatch.setenv("SANDLIFT_SSH_PASSPHRASE", "wrong-passphrase")
    error = failure(paramiko_to(sshd, key_files=[key]))
    assert type(error) is AuthFailed
    assert "wrong-passphrase" not in str(error) + error.hint + str(error.context)
    monkeypatch.setenv("SANDLIFT_SSH_PASSPHRASE", "from the environment")
    assert output(paramiko_to(sshd, key_files=[key])) == b"in\n"


def test_a_file_that_is_no_key(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "id").write_text("not a key\n")
    error = failure(paramiko_to(sshd, key_files=[str(tmp_path / "id")]))
    assert type(error) is AuthFailed
    assert str(tmp_path / "id") in str(error)


def test_the_agent_is_asked(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("ssh-agent")
    key = sshd.add_user_key("id_agent")
    locked = sshd.add_user_key("id_agent_locked", passphrase="only the agent knows")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "a")], stdout=subprocess.DEVNULL)
    try:
        assert settles((tmp_path / "a").exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "a"))
        monkeypatch.setenv("HOME", str(tmp_path))
        subprocess.run(["ssh-add", "-q", key], check=True, capture_output=True, timeout=10)
        assert output(paramiko_to(sshd, key_files=[])) == b"in\n"
        # A named key that is locked on disk is found in the agent by its public half, and no other key is offered.
        assert type(failure(paramiko_to(sshd, key_files=[locked]))) is AuthFailed
        asker = tmp_path / "ask"
        asker.write_text("#!/bin/sh\necho only the agent knows\n")
        asker.chmod(0o700)
        environment = {**os.environ, "SSH_ASKPASS": str(asker), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", locked], env=environment, check=True, capture_output=True, timeout=10)
        assert output(paramiko_to(sshd, key_files=[locked])) == b"in\n"
    finally:
        agent.kill()
        agent.wait(10)


def test_no_key_at_all(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    error = failure(paramiko_to(sshd, key_files=[]))
    assert type(error) is AuthFailed
    assert "no key to offer" in str(error)


def test_a_pinned_host_key(sshd: Sshd, tmp_path: Path) -> None:
    for pin in (sshd.host_key_file, sshd.known_hosts_file):
        assert output(paramiko_to(sshd, known_hosts_files=[], host_key_file=pin)) == b"in\n"
    make_key(tmp_path / "other", "ed25519")
    assert type(failure(paramiko_to(sshd, host_key_file=str(tmp_path / "other.pub")))) is HostKeyChanged


def test_a_new_host_is_written_down_only_on_request(sshd: Sshd, tmp_path: Path) -> None:
    known = str(tmp_path / "ssh" / "known_hosts")
    error = failure(paramiko_to(sshd, known_hosts_files=[known]))
    assert type(error) is HostKeyUnknown
    assert str(error.context["fingerprint"]).startswith("SHA256:")
    assert not os.path.exists(known)
    assert output(paramiko_to(sshd, known_hosts_files=[known], accept_new_host_key=True)) == b"in\n"
    assert [key.names for key in KnownHosts.load([known]).keys] == [f"[{HOST}]:{sshd.port}"]
    assert output(paramiko_to(sshd, known_hosts_files=[known])) == b"in\n"


def test_a_changed_key_is_refused_also_to_who_accepts_new_ones(sshd: Sshd, tmp_path: Path) -> None:
    make_key(tmp_path / "other", "ed25519")
    words = (tmp_path / "other.pub").read_text().split()
    known = tmp_path / "known"
    text = f"[{HOST}]:{sshd.port} {words[0]} {words[1]}\n"
    known.write_text(text)
    error = failure(paramiko_to(sshd, known_hosts_files=[str(known)], accept_new_host_key=True))
    assert type(error) is HostKeyChanged
    assert known.read_text() == text


def test_the_ssh_configuration(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (home / ".ssh" / "known_hosts").write_text(Path(sshd.known_hosts_file).read_text())
    (home / ".ssh" / "config").write_text(
        f"Host sandbox\n  HostName {sshd.host}\n  Port {sshd.port}\n  User {sshd.user}\n"
        f"  IdentityFile {sshd.key_file}\nHost jumpy\n  ProxyJump gate\n"
        f"Host aliased\n  HostName {sshd.host}\n  Port {sshd.port}\n  HostKeyAlias other-name\n"
    )
    assert output(open_transport(parse_target("paramiko://sandbox/w"))) == b"in\n"
    assert type(failure(open_transport(parse_target("paramiko://aliased/w")))) is HostKeyUnknown
    error = failure(open_transport(parse_target("paramiko://jumpy/w")))
    assert type(error) is BadURL
    assert "ssh://jumpy" in error.hint
    (home / ".ssh" / "config").write_text("this is = not = a configuration\nHost\n")
    assert type(failure(open_transport(parse_target("paramiko://sandbox/w")))) is UsageError


def test_paramiko_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", None)
    with pytest.raises(MissingExtra) as caught:
        open_transport(parse_target("paramiko://box/w"))
    assert "pip install 'sandlift[ssh]'" in caught.value.hint


def test_no_algorithm_in_common() -> None:
    """A handshake that fails half-way leaves no timer behind."""
    require("sshd", "ssh-keygen")
    with Sshd(config=["Ciphers chacha20-poly1305@openssh.com"]) as server:
        before = traces()
        error = failure(paramiko_to(server))
        assert type(error) is Unreachable
        assert "algorithm" in str(error)
        assert "ssh://" in error.hint
        assert settles(lambda: traces() == before, 1), (before, traces())


def test_more_sessions_than_the_server_allows() -> None:
    """A refused session gets a connection of its own, and later ones use what stands."""
    require("sshd", "ssh-keygen")
    with Sshd(max_sessions=1) as server, contextlib.closing(paramiko_to(server)) as transport:
        with running(transport, "cat") as first, running(transport, "cat") as second:
            for channel in (first, second):
                channel.write(b"x", 5)
                assert channel.read(1, LIMIT_S) == b"x"
        assert server.log.count("Accepted publickey") == 2


def test_a_server_that_allows_no_session_at_all() -> None:
    require("sshd", "ssh-keygen")
    with Sshd(max_sessions=0) as server, contextlib.closing(paramiko_to(server)) as transport:
        assert type(failure(transport)) is Refused


def test_one_connection_serves_threads_that_come_at_once() -> None:
    require("sshd", "ssh-keygen")
    with Sshd() as server, contextlib.closing(paramiko_to(server)) as transport:
        got: list[bytes] = []

        def run(number: int) -> None:
            channel = transport.open(["echo", str(number)], deadline=Deadline.after(LIMIT_S))
            with contextlib.closing(channel):
                got.append(read_all(channel))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == [b"%d\n" % number for number in range(5)]
        assert server.log.count("Accepted publickey") == 1


def test_a_lost_connection_is_made_anew() -> None:
    require("sshd", "ssh-keygen")
    with Sshd() as server, contextlib.closing(paramiko_to(server)) as transport:
        with running(transport, "deaf") as channel:
            assert read_some(channel) == b"started"
            transport._connections[0].connection.sock.shutdown(socket.SHUT_RDWR)
            assert channel.read(100, LIMIT_S) == b""
            assert type(transport.explain(channel)) is Truncated
            assert type(transport.explain(channel)) is Truncated
        channel = transport.open(["echo", "again"], deadline=Deadline.after(LIMIT_S))
        with contextlib.closing(channel):
            assert read_all(channel) == b"again\n"


@pytest.mark.parametrize("buffers", ["wide", "narrow"])
def test_a_network_that_hangs_does_not_hold_us(buffers: str) -> None:
    """The server is stopped: with wide buffers SSH's own window fills, with narrow ones the kernel takes no more."""
    require("sshd", "ssh-keygen")
    with Sshd() as server:
        before = traces()
        transport = paramiko_to(server)
        channel = transport.open(far("cat"), deadline=Deadline.after(LIMIT_S))
        channel.write(b"x", 5)
        assert channel.read(1, LIMIT_S) == b"x"
        if buffers == "narrow":
            sock = transport._connections[0].connection.sock
            assert isinstance(sock, socket.socket)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        server.signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(SandboxGone, match="network" if buffers == "narrow" else "command"):
            channel.write(bytes(64 << 20), 0.5)
        assert time.monotonic() - begin < 4
        begin = time.monotonic()
        channel.close()
        transport.close()
        assert time.monotonic() - begin < 2
        server.signal(signal.SIGCONT)
        assert settles(lambda: traces() == before), (before, traces())


def test_closing_a_silent_connection_takes_no_longer_than_said() -> None:
    require("sshd", "ssh-keygen")
    with Sshd() as server:
        before = traces()
        transport = paramiko_to(server)
        channel = transport.open(far("deaf"), deadline=Deadline.after(LIMIT_S))
        assert read_some(channel) == b"started"
        server.signal(signal.SIGSTOP)
        begin = time.monotonic()
        channel.close()
        transport.close()
        assert time.monotonic() - begin < 2
        # A new try on a server that hangs ends by its deadline.
        begin = time.monotonic()
        transport = paramiko_to(server)
        with pytest.raises(SandliftError):
            transport.open(["true"], deadline=Deadline.after(1))
        transport.close()
        assert time.monotonic() - begin < 3
        server.signal(signal.SIGCONT)
        assert settles(lambda: traces() == before), (before, traces())


def test_nothing_is_printed(sshd: Sshd, tmp_path: Path) -> None:
    """paramiko logs errors with tracebacks, which Python would print where nobody set up logging."""
    script = (
        "import sys; from sandlift.deadline import Deadline; from sandlift.errors import SandliftError\n"
        "from sandlift.transports.paramiko_ssh import ParamikoTransport\n"
        "import socket, threading\n"
        "import sandlift.transports.handshakes as handshakes; handshakes.PAUSE_S = 0.01\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "def serve():\n while True:\n"
        "  c, _ = s.accept(); c.sendall(b'HTTP/1.1 400 Bad Request' + bytes([13, 10]) * 2); c.close()\n"
        "threading.Thread(target=serve, daemon=True).start()\n"
        "t = ParamikoTransport('127.0.0.1', port=s.getsockname()[1], config_file=None)\n"
        "try: t.open(['true'], deadline=Deadline.after(10))\n"
        "except SandliftError as e: print(e.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert re.fullmatch(r"(unreachable|truncated)\n", done.stdout)
