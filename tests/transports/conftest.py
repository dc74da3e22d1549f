"""Servers and subjects of the transport tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlift.transports.paramiko_ssh import ParamikoTransport
from support.asyncssh_server import AsyncsshServer
from support.needs import require
from support.sshd import Sshd


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """One OpenSSH server for all tests that do not change it."""
    require("sshd", "ssh", "ssh-keygen")
    # A key exchange without the costly post-quantum part: there are some hundred logins.
    with Sshd(config=["KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org"]) as server:
        yield server


@pytest.fixture(scope="session")
def asyncssh_server() -> Iterator[AsyncsshServer]:
    with AsyncsshServer() as server:
        yield server


@pytest.fixture(autouse=True)
def no_identity_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither agent nor passphrase of whoever runs the tests."""
    for name in ("SSH_AUTH_SOCK", "SANDLIFT_SSH_PASSPHRASE", "SANDLIFT_SSH"):
        monkeypatch.delenv(name, raising=False)


def paramiko_to(server: Sshd | AsyncsshServer, **options: object) -> ParamikoTransport:
    """A paramiko transport to a server, with its keys and nothing of the user's."""
    given: dict[str, object] = {
        "user": server.user,
        "port": server.port,
        "key_files": [server.key_file],
        "known_hosts_files": [server.known_hosts_file],
        "config_file": None,
        **options,
    }
    return ParamikoTransport(server.host, **given)  # type: ignore[arg-type]
