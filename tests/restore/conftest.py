"""Workspaces and targets for the restore tests: direct, over a real sshd, as another user, among mounts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.lift import Lift
from restore.roads import NOBODY, Namespace, Shelf, local, unprivileged

from support.needs import lacking, require
from support.sshd import Sshd
from support.tree import remove


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """One OpenSSH server for all tests."""
    require("sshd", "ssh", "ssh-keygen")
    with Sshd() as server:
        yield server


@pytest.fixture
def no_identity_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither home, agent nor passphrase of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SSH_AUTH_SOCK", "SANDLIFT_SSH_PASSPHRASE", "SANDLIFT_SSH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(no_identity_of_the_user: None) -> Iterator[Path]:
    """A private folder with a short path, removed at the end whatever is in it."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-restore-")))
    yield folder
    remove(folder)


@pytest.fixture
def lift(place: Path) -> Iterator[Lift]:
    """A workspace that is reached directly."""
    with closing(Lift(place, local)) as lifted:
        yield lifted


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    """A store for a whole module, reached directly."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-restore-")))
    with closing(Shelf(folder, local)) as made:
        yield made
    remove(folder)


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
        lacking("devices, mounts and other owners need root: run the tests as root as well")


@pytest.fixture
def namespace(as_root: None) -> Iterator[Namespace]:
    """A private mount namespace."""
    require("unshare", "nsenter", "mount")
    with closing(Namespace()) as made:
        yield made
