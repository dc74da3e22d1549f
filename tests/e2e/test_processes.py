"""A sandbox in which no further process can be had: one does it all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.conftest import NOBODY, give_to_nobody, local
from e2e.lift import Lift

from sandlift.box import Box, connect
from sandlift_helper import table
from support.needs import require
from support.tree import File, assert_equal, tree

# More names than one process scans, and more bytes than one reads, where others can help.
SOURCE = tree({b"%d/%d" % (number % 30, number): File(b"%d" % number * 999) for number in range(2000)})


WRAPPER = """#!/bin/sh
PATH=/usr/local/bin:/usr/bin:/bin exec prlimit --nproc=0:0 python3 "$@"
"""


@pytest.fixture
def limited(place: Path) -> Iterator[Lift]:
    """A workspace in a sandbox where the helper may start no other process."""
    require("setpriv", "prlimit")
    words = "env HOME=/nowhere"
    if os.geteuid() == 0:
        words = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {words}"
    wrapper = place / "python"
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)

    def road(path: Path | str) -> Box:
        return connect(os.fspath(path), via=words, python=str(wrapper))

    with closing(Lift(place, road)) as lifted:
        lifted.make(SOURCE)
        give_to_nobody(place)
        yield lifted


def test_a_capture_by_one_process(limited: Lift) -> None:
    taken = limited.capture()
    assert taken.capture.outcome == "complete"
    assert taken.paths == sorted(SOURCE.entries, key=table.sort_key)
    limited.road = local
    assert_equal(SOURCE, limited.restore(taken))
