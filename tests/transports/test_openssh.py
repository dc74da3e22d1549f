"""What is the OpenSSH client's own: options, the shared connection, pinned keys, noise."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from transports.contract import far, is_alive, read_all, running, settles, traces

from sandlift.deadline import Deadline
from sandlift.errors import HostKeyChanged, HostKeyUnknown, MissingExtra, UsageError
from sandlift.targets import parse_target
from sandlift.transports import Transport, open_transport
from sandlift.transports.openssh import OpenSSH
from support.sshd import Sshd, make_key

LIMIT_S = 15.0


def output(transport: Transport, *argv: str) -> bytes:
    channel = transport.open(argv, deadline=Deadline.after(LIMIT_S))
    with contextlib.closing(channel):
        return read_all(channel)


def no_hosts(sshd: Sshd, known: str = "/dev/null") -> list[str]:
    """Options with the user's key and without the server's."""
    return ["-F", "/dev/null", "-i", sshd.key_file, "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known}"]


def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: OpenSSH) -> list[str]:
    """The words that ssh is started with, written down by a program in its place."""
    program = tmp_path / "ssh-recorder"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {shlex.quote(str(tmp_path))}/words\n')
    program.chmod(0o755)
    monkeypatch.setenv("SANDLIFT_SSH", str(program))
    output(transport, "true", "a b")
    return (tmp_path / "words").read_text().splitlines()


def test_the_words_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = OpenSSH("box", user="me", port=2222, ssh_options=["-o", "ServerAliveInterval=5"], key_files=["/k"])
    words = recorded(tmp_path, monkeypatch, transport)
    assert words[:2] == ["-o", "ServerAliveInterval=5"]
    assert words[-7:] == ["-p", "2222", "-l", "me", "--", "box", "exec 'true' 'a b'"]
    for word in ("-T", "-a", "-x", "BatchMode=yes", "ClearAllForwardings=yes", "RemoteCommand=none"):
        assert word in words
    assert f"ConnectTimeout={int(LIMIT_S)}" in words
    assert words[words.index("-i") + 1] == "/k"
    assert "IdentitiesOnly=yes" in words
    assert not [word for word in words if word.startswith("Control")]


def test_nothing_is_said_about_keys_that_was_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = recorded(tmp_path, monkeypatch, OpenSSH("box"))
    assert not {"-p", "-l", "-i"} & set(words)
    assert not [word for word in words if "HostKey" in word or "KnownHosts" in word]


def test_a_missing_ssh_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLIFT_SSH", "/nonexistent/ssh")
    with pytest.raises(MissingExtra, match="/nonexistent/ssh") as caught:
        OpenSSH("box").open(["true"], deadline=Deadline.after(5))
    assert "paramiko" in caught.value.hint


# cases: moby/moby#8513
def test_a_configuration_with_traps_does_no_harm(sshd: Sshd, tmp_path: Path) -> None:
    """A remote command, a terminal, a local command and a forwarded agent in the user's file."""
    config = tmp_path / "config"
    mark = tmp_path / "local-command-ran"
    config.write_text(
        f"Host sandbox\n HostName {sshd.host}\n Port {sshd.port}\n User {sshd.user}\n IdentityFile {sshd.key_file}\n"
        f" UserKnownHostsFile {sshd.known_hosts_file}\n RemoteCommand echo trap\n RequestTTY force\n"
        f" PermitLocalCommand yes\n LocalCommand touch {mark}\n ForwardAgent yes\n EscapeChar ~\n"
        f" LocalForward 127.0.0.1:1 127.0.0.1:1\n"
    )
    transport = OpenSSH("sandbox", ssh_options=["-F", str(config)])
    script = (
        "import os,sys; print(os.isatty(0), os.environ.get(str(chr(83)+chr(83)+chr(72)+chr(95)) + str(sys.argv[1])))"
    )
    assert output(transport, sys.executable, "-c", script, "AUTH_SOCK") == b"False None\n"
    assert not mark.exists()


def test_noise_and_banner(sshd: Sshd) -> None:
    with Sshd(noise="Welcome to bash\n", banner="Authorised use only\n") as noisy:
        transport = open_transport(parse_target(noisy.url("/tmp")), ssh_options=noisy.ssh_options)
        channel = transport.open(["echo", "hello"], deadline=Deadline.after(LIMIT_S))
        with contextlib.closing(channel):
            assert read_all(channel) == b"Welcome to bash\nhello\n"
            assert channel.wait(5) == 0
            assert channel.stderr_tail().startswith(b"Authorised use only")


def test_a_pinned_public_key(sshd: Sshd, tmp_path: Path) -> None:
    target = parse_target(sshd.url("/tmp"))
    before = traces()
    for pin in (sshd.host_key_file, sshd.known_hosts_file):
        with contextlib.closing(open_transport(target, ssh_options=no_hosts(sshd), host_key_file=pin)) as transport:
            assert output(transport, "echo", "in") == b"in\n"
    make_key(tmp_path / "other", "ed25519")
    transport = open_transport(target, ssh_options=no_hosts(sshd), host_key_file=str(tmp_path / "other.pub"))
    with contextlib.closing(transport), running(transport, "exit", 0) as channel:
        assert channel.wait(LIMIT_S) == 255
        assert type(transport.explain(channel)) is HostKeyChanged
    assert traces() == before


def test_a_new_host_is_accepted_only_on_request(sshd: Sshd, tmp_path: Path) -> None:
    target = parse_target(sshd.url("/tmp"))
    known = tmp_path / "known"
    transport = open_transport(target, ssh_options=no_hosts(sshd, str(known)))
    with running(transport, "exit", 0) as channel:
        assert channel.wait(LIMIT_S) == 255
        assert type(transport.explain(channel)) is HostKeyUnknown
    transport = open_transport(target, ssh_options=no_hosts(sshd, str(known)), accept_new_host_key=True)
    assert output(transport, "echo", "in") == b"in\n"
    assert f":{sshd.port} " in known.read_text()


def test_pinning_and_accepting_exclude_each_other(sshd: Sshd) -> None:
    with pytest.raises(UsageError, match="exclude"):
        open_transport(parse_target("ssh://box/w"), host_key_file=sshd.host_key_file, accept_new_host_key=True)


def test_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Sshd() as server:
        transport = open_transport(parse_target(server.url("/tmp")), ssh_options=server.ssh_options, reuse=True)
        with contextlib.closing(transport):
            for number in range(3):
                assert output(transport, "echo", str(number)) == b"%d\n" % number
            folders = [path for path in tmp_path.iterdir() if (path / "c1").exists()]
            assert [stat.S_IMODE(path.stat().st_mode) for path in folders] == [0o700]
            assert server.log.count("Accepted publickey") == 1
        assert not folders[0].exists()


def test_a_dead_shared_connection_is_made_anew() -> None:
    with Sshd() as server:
        transport = open_transport(parse_target(server.url("/tmp")), ssh_options=server.ssh_options, reuse=True)
        with contextlib.closing(transport):
            assert output(transport, "echo", "one") == b"one\n"
            assert isinstance(transport, OpenSSH)
            (master,) = transport._masters
            os.kill(master.channel._process.pid, signal.SIGKILL)
            assert master.channel.wait(5) == 128 + signal.SIGKILL
            assert output(transport, "echo", "two") == b"two\n"
            assert output(transport, "echo", "three") == b"three\n"
            assert server.log.count("Accepted publickey") == 2


def test_more_sessions_than_the_server_shares() -> None:
    with Sshd(max_sessions=1) as server:
        transport = open_transport(parse_target(server.url("/tmp")), ssh_options=server.ssh_options, reuse=True)
        with contextlib.closing(transport), running(transport, "cat"), running(transport, "cat") as second:
            second.write(b"x", 5)
            assert second.read(1, LIMIT_S) == b"x"


def test_a_long_folder_name_for_temporary_files(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    transport = open_transport(parse_target(sshd.url("/tmp")), ssh_options=sshd.ssh_options, reuse=True)
    with contextlib.closing(transport):
        assert output(transport, "echo", "in") == b"in\n"
    assert list(deep.iterdir()) == []


def test_closing_a_hung_connection_takes_no_longer_than_said() -> None:
    with Sshd() as server:
        transport = open_transport(parse_target(server.url("/tmp")), ssh_options=server.ssh_options, reuse=True)
        channel = transport.open(far("deaf"), deadline=Deadline.after(LIMIT_S))
        assert channel.read(100, LIMIT_S) == b"started"
        server.signal(signal.SIGSTOP)
        begin = time.monotonic()
        channel.close()
        transport.close()
        assert time.monotonic() - begin < 2
        server.signal(signal.SIGCONT)


def test_a_prefix_with_ssh_in_it(sshd: Sshd) -> None:
    prefix = shlex.join(["ssh", *sshd.ssh_options, "-p", str(sshd.port), sshd.host])
    transport = open_transport(parse_target("/tmp", via_shell=prefix))
    assert transport.name == "ssh"
    assert output(transport, "echo", "a  b") == b"a  b\n"


def test_a_missing_program_of_a_prefix() -> None:
    transport = open_transport(parse_target("/tmp", via="/nonexistent/docker exec -i secret-name"))
    with pytest.raises(UsageError, match="/nonexistent/docker") as caught:
        transport.open(["true"], deadline=Deadline.after(5))
    assert "secret-name" not in str(caught.value)


def test_a_server_stops_when_its_owner_dies() -> None:
    """The guard beside the test server, seen from a process that is killed."""
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from support.sshd import Sshd, descendants\n"
        "server = Sshd().__enter__()\n"
        "print(server.folder, *descendants(os.getpid()), flush=True); os.kill(os.getpid(), 9)"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", script, tests], capture_output=True, text=True, timeout=30)
    folder, *pids = done.stdout.split()
    shutil.rmtree(folder)
    assert len(pids) >= 2
    assert settles(lambda: not any(is_alive(int(pid)) for pid in pids))
