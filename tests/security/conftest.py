"""The ground of each test, copied from one that was made once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol.replay import fix_nonce
from security.ground import HARMLESS, Ground

from support.tree import remove

# In memory, where there is such a place: stores and restores are flushed a thousand times.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


@pytest.fixture(autouse=True)
def settings_of_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the configuration nor the variables of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("SANDLIFT_") and name != "SANDLIFT_REQUIRE_ALL"]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def first_store() -> Iterator[Path]:
    """A store with one snapshot."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-sec-", dir=MEMORY)))
    made = Ground(folder)
    assert made.take(HARMLESS).status == 0
    yield made.store
    remove(folder)


@pytest.fixture
def ground(first_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """A ground whose store has one snapshot; the nonce of a capture is a constant from here on."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sl-sec-", dir=MEMORY)))
    shutil.copytree(first_store, folder / "store")
    (folder / "store").chmod(0o700)
    fix_nonce(monkeypatch)
    yield Ground(folder)
    remove(folder)
