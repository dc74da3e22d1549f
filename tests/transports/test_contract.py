"""The contract on every transport there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transports.conftest import paramiko_to
from transports.contract import TransportContract, Way, settles

from sandlift.targets import parse_target
from sandlift.transports import Transport, open_transport

SUBJECTS = ["local", "ssh", "ssh-reuse", "paramiko", "paramiko-asyncssh", "via", "via-shell"]


@pytest.fixture(scope="module", params=SUBJECTS)
def way(request: pytest.FixtureRequest) -> Way:
    subject = request.param
    if subject == "local":
        return lambda: open_transport(parse_target("/tmp"))
    if subject == "via":
        return lambda: open_transport(parse_target("/tmp", via="env SANDLIFT_TEST=1"))
    if subject == "via-shell":
        return lambda: open_transport(parse_target("/tmp", via_shell="sh -c"))
    if subject == "paramiko-asyncssh":
        server = request.getfixturevalue("asyncssh_server")

        def quiet_way() -> Transport:
            # The server lives in this process, and ends the commands of earlier tests in its own time.
            assert settles(lambda: server.is_idle, within_s=30)
            return paramiko_to(server)

        return quiet_way
    sshd = request.getfixturevalue("sshd")
    if subject == "paramiko":
        return lambda: paramiko_to(sshd)
    target, reuse = parse_target(sshd.url("/tmp")), subject == "ssh-reuse"
    return lambda: open_transport(target, ssh_options=sshd.ssh_options, reuse=reuse)


@pytest.fixture(scope="module")
def transport(way: Way) -> Iterator[Transport]:
    made = way()
    yield made
    made.close()


class TestContract(TransportContract):
    pass
