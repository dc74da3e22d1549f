"""Fixtures of the store's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandlift.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new, empty store."""
    with Store.open(tmp_path / "store", create=True) as opened:
        yield opened


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``worker.py`` with arguments as a process of its own; whatever still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()
