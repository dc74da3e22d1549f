"""Roads to this machine: direct, over a real sshd through both clients, by a command prefix, as another user."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.lift import Lift, Road

from sandlift.box import Box, connect
from support.needs import lacking, require
from support.sshd import Sshd
from support.tree import remove

NOBODY = 65534


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """One OpenSSH server for all tests."""
    require("sshd", "ssh", "ssh-keygen")
    with Sshd() as server:
        yield server


@pytest.fixture(autouse=True)
def no_identity_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither home, agent nor passphrase of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SSH_AUTH_SOCK", "SANDLIFT_SSH_PASSPHRASE", "SANDLIFT_SSH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place() -> Iterator[Path]:
    """A private folder with a short path, removed at the end whatever is in it."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-e2e-")))
    yield folder
    remove(folder)


def local(path: Path | str) -> Box:
    """Straight to a path of this machine."""
    return connect(os.fspath(path))


def via_env(path: Path | str) -> Box:
    """Through a command prefix that does nothing."""
    return connect(os.fspath(path), via="env")


def unprivileged(path: Path | str) -> Box:
    """To a path of this machine as somebody who is not root."""
    if os.geteuid() != 0:
        return connect(os.fspath(path))
    require("setpriv")
    return connect(os.fspath(path), via=f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups env HOME=/nowhere")


def roads_over(server: Sshd) -> dict[str, Road]:
    """The roads that lead over a server of this machine."""
    words = ["ssh", *server.ssh_options, "-p", str(server.port), f"{server.user}@{server.host}"]
    return {
        "ssh": lambda path: connect(server.url(os.fspath(path)), ssh_options=server.ssh_options),
        "paramiko": lambda path: connect(
            server.url(os.fspath(path), scheme="paramiko"),
            host_key_file=server.host_key_file,
            key_files=[server.key_file],
        ),
        "via-shell": lambda path: connect(os.fspath(path), via_shell=shlex.join(words)),
    }


@pytest.fixture(params=["local", "ssh", "paramiko", "via", "via-shell"])
def road(request: pytest.FixtureRequest) -> Road:
    """Each road in turn."""
    if request.param == "local":
        return local
    if request.param == "via":
        return via_env
    return roads_over(request.getfixturevalue("sshd"))[request.param]


@pytest.fixture
def lift(place: Path) -> Iterator[Lift]:
    """A workspace that is reached directly."""
    with closing(Lift(place, local)) as lifted:
        yield lifted


@pytest.fixture
def far_lift(place: Path, road: Road) -> Iterator[Lift]:
    """A workspace that is reached by each road in turn."""
    with closing(Lift(place, road)) as lifted:
        yield lifted


@pytest.fixture
def nobodys_lift(place: Path) -> Iterator[Lift]:
    """A workspace captured and restored by somebody who is not root, in a folder that is his."""
    with closing(Lift(place, unprivileged)) as lifted:
        if os.geteuid() == 0:
            os.chown(place, NOBODY, NOBODY)
        yield lifted


@pytest.fixture
def as_root() -> None:
    """What only root can set up."""
    if os.geteuid() != 0:
        lacking("devices and mounts can be made by root alone: run the tests as root as well")


def give_to_nobody(path: Path) -> None:
    """Make a tree the property of the user that `unprivileged` is; times and modes stay."""
    if os.geteuid() != 0:
        return
    for folder, directories, files in os.walk(os.fsencode(path)):
        for name in [*directories, *files]:
            whole = os.path.join(folder, name)
            status = os.lstat(whole)
            os.chown(whole, NOBODY, NOBODY, follow_symlinks=False)
            if not os.path.islink(whole):
                os.chmod(whole, status.st_mode & 0o7777)
    os.chown(path, NOBODY, NOBODY)
