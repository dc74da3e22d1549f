"""Fixtures of the tests of whole captures."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlift.box import connect
from sandlift.store import PackWriter, Store


def make_files(root: Path, files: int, total_bytes: int) -> None:
    """Files of mixed sizes whose bytes do not compress and differ among all files, the same for every call."""
    chance = random.Random(files)
    root.mkdir(parents=True, exist_ok=True)
    left = total_bytes
    for number in range(files):
        size = min(left, int(chance.expovariate(files / total_bytes)))
        left -= size
        path = root / f"d{number % 10}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(chance.randbytes(size))


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 300 files and 20 MB."""
    root = tmp_path_factory.mktemp("workspace") / "w"
    make_files(root, 300, 20_000_000)
    return root


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first snapshot of every store holds."""
    root = tmp_path_factory.mktemp("earlier") / "w"
    make_files(root, 20, 200_000)
    return root


@pytest.fixture
def store(tmp_path: Path, earlier: Path) -> Iterator[Store]:
    """A store with one snapshot."""
    with Store.open(tmp_path / "store", create=True) as opened:
        with connect(f"local:{earlier}") as box:
            assert box.capture(opened, "demo").number == 1
        yield opened


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> float:
    """A store that takes its time, and a host that lets little be under way: the least time that `workspace` takes."""
    append, seconds = PackWriter.append, 0.05

    def slow(self: PackWriter, frame: bytes | memoryview, decoded_size_bytes: int) -> int:
        time.sleep(seconds)
        return append(self, frame, decoded_size_bytes)

    monkeypatch.setattr(PackWriter, "append", slow)
    monkeypatch.setattr(importlib.import_module("sandlift.capturing"), "CREDIT_FRAMES", 2)
    # A frame holds at most 2 MiB.
    return seconds * 20_000_000 / (2 << 20)
