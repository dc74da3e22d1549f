"""The contract on every transport there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transports.conftest import paramiko_to
from transports.contract import LONG_S, MIB, TransportContract, Way, far, read_some, settles

from sandlift.deadline import Deadline
from sandlift.errors import SandboxGone
from sandlift.targets import parse_target
from sandlift.transports import Transport, open_transport
from support.asyncssh_server import AsyncsshServer

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
            # The server lives in this process, and gives the commands of earlier tests a second to end.
            assert settles(lambda: server.is_idle, within_s=10)
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


def test_the_asyncssh_server_ends_a_command_whose_client_has_gone(asyncssh_server: AsyncsshServer) -> None:
    """Also one that never read what was sent to it: else it and its pipes outlive the test that left it."""
    transport = paramiko_to(asyncssh_server)
    channel = transport.open(far("deaf"), deadline=Deadline.after(LONG_S))
    assert read_some(channel) == b"started"
    with pytest.raises(SandboxGone):
        channel.write(bytes(64 * MIB), 0.25)
    channel.close(0.2)
    assert settles(lambda: asyncssh_server.is_idle, within_s=10)
    transport.close()
