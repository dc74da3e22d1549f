"""Fixtures of the tests of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol.replay import fix_nonce, run_data
from protocol.stream import small

from sandlift.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with one snapshot; the host's nonce is a constant from here on."""
    fix_nonce(monkeypatch)
    with Store.open(tmp_path / "store", create=True) as opened:
        run_data(small().data, opened, tmp_path)
        yield opened
