"""Workspaces that are captured more than once, directly and over a real sshd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.conftest import local, no_identity_of_the_user, place, sshd
from incremental.again import Repeated

from support.needs import lacking

__all__ = ["no_identity_of_the_user", "place", "sshd"]


@pytest.fixture
def repeated(place: Path) -> Iterator[Repeated]:
    """A workspace that is reached directly."""
    with closing(Repeated(place, local)) as made:
        made.root.mkdir()
        yield made


@pytest.fixture
def as_root() -> None:
    """What only root can set up."""
    if os.geteuid() != 0:
        lacking("owners and mounts can be set by root alone: run the tests as root as well")
