"""What a sandbox prints around the stream: banners, login shells, farewells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helper.drive import make_workspace
from protocol.replay import leaves_nothing, run_prefix
from protocol.stream import small

from sandlift.box import Box, connect
from sandlift.errors import HostLimit
from sandlift.limits import Limits
from sandlift.store import Store
from sandlift.targets import parse_target
from sandlift.transports.paramiko_ssh import ParamikoTransport
from support.hostile import MAGIC, Play
from support.needs import require
from support.sshd import Sshd

BANNER = "\n*** Authorised use only ***\n\tLast login: never\x1b[0m\n"


@pytest.mark.parametrize(
    "noise",
    [b"\n", BANNER.encode(), b"x" * 10240, bytes(range(256)) * 40, MAGIC, MAGIC * 500, b"x" * (1 << 20)],
    ids=["1 byte", "banner", "10 KiB", "binary", "mark without nonce", "many marks", "1 MiB"],
)
def test_noise_before_the_stream(noise: bytes, store: Store, tmp_path: Path) -> None:
    play = Play().send(noise).mark().send(small().data)
    assert run_prefix(play.save(tmp_path / "play"), store).number == 2


def test_a_mark_with_another_nonce_is_noise(store: Store, tmp_path: Path) -> None:
    play = Play().false_mark().send(small().data).mark().send(small().data)
    assert run_prefix(play.save(tmp_path / "play"), store).number == 2


def test_noise_over_the_cap(store: Store, tmp_path: Path) -> None:
    play = Play().send(b"x" * 1001).mark().send(small().data)
    with leaves_nothing(store), pytest.raises(HostLimit, match="over 1000 bytes before the stream") as caught:
        run_prefix(play.save(tmp_path / "play"), store, limits=Limits(noise_bytes=1000))
    assert "start-up files" in caught.value.hint
    assert run_prefix(play.save(tmp_path / "play"), store, limits=Limits(noise_bytes=1001)).number == 2


@pytest.mark.parametrize(
    "trailer", [b"logout\n", b"\n", b"\x09\xff", b"x" * 65536], ids=["logout", "line", "half", "64 KiB"]
)
def test_a_trailer(trailer: bytes, store: Store, tmp_path: Path) -> None:
    play = Play().mark().send(small().data).send(trailer)
    assert run_prefix(play.save(tmp_path / "play"), store).number == 2


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_a_trailer_over_the_cap(pause_s: float, store: Store, tmp_path: Path) -> None:
    play = Play().mark().send(small().data).sleep(pause_s).send(b"x" * 65537)
    with leaves_nothing(store), pytest.raises(HostLimit, match="over 65536 bytes after the stream") as caught:
        run_prefix(play.save(tmp_path / "play"), store)
    assert caught.value.context["limit"] == "trailer_bytes"


# Over a real server, with both clients.


@pytest.fixture(scope="module")
def talkative() -> Iterator[Sshd]:
    """A server with a banner whose login shells print something."""
    require("sshd", "ssh", "ssh-keygen")
    with Sshd(banner=BANNER.replace("\x1b", ""), noise=BANNER * 100) as server:
        yield server


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("noise") / "w"
    root.mkdir()
    make_workspace(root)
    return root


def box_of(client: str, server: Sshd, root: Path) -> Box:
    if client == "ssh":
        options = server.ssh_options
        return connect(server.url(str(root)), ssh_options=options, reuse=False)
    transport = ParamikoTransport(
        server.host,
        user=server.user,
        port=server.port,
        key_files=[server.key_file],
        known_hosts_files=[server.known_hosts_file],
        config_file=None,
    )
    return Box(parse_target(server.url(str(root), scheme="paramiko")), transport)


# cases: rust-lang/rustup#498, chriskempson/base16-shell#40
# cases: ChrisTitusTech/mybash#122, ansible/ansible#2268, MichaIng/DietPi#1703
@pytest.mark.parametrize("client", ["ssh", "paramiko"])
def test_login_noise_over_ssh(client: str, talkative: Sshd, tree: Path, store: Store) -> None:
    with connect(f"local:{tree}") as box:
        expected = box.capture(store, "here").snapshot
    with box_of(client, talkative, tree) as box:
        result = box.capture(store, "there")
    assert result.snapshot == expected
    assert result.reused


@pytest.mark.parametrize("client", ["ssh", "paramiko"])
def test_login_noise_over_the_cap_over_ssh(client: str, talkative: Sshd, tree: Path, store: Store) -> None:
    with box_of(client, talkative, tree) as box:
        with pytest.raises(HostLimit, match="before the stream"):
            box.capture(store, "there", limits=Limits(noise_bytes=1000))
    assert store.workspaces() == ["demo"]
