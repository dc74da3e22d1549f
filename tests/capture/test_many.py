"""Many captures at once from one process: none fails, none waits for ever, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandlift
from sandlift import aio
from sandlift.results import Capture
from support.many import Connect, Traces, make_tree, with_threads
from support.needs import require
from support.sshd import Sshd

OVER_SSH = 24
IN_FLIGHT = 200
LONG_S = 120.0


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    """A server with OpenSSH's own limits: ten logins at once before it drops some, ten sessions a connection."""
    require("sshd", "ssh", "ssh-keygen")
    with Sshd(max_startups=None) as server:
        yield server


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("many") / "w", 10, 2000)


@pytest.fixture
def many_store(tmp_path: Path) -> Iterator[sandlift.Store]:
    with sandlift.Store.open(tmp_path / "store", create=True) as opened:
        yield opened


def connect_by(way: str, server: Sshd, root: Path) -> Connect:
    if way == "paramiko":
        url = server.url(str(root), scheme="paramiko")
        return lambda: sandlift.connect(url, host_key_file=server.host_key_file, key_files=[server.key_file])
    return lambda: sandlift.connect(server.url(str(root)), ssh_options=server.ssh_options, reuse=False)


@pytest.mark.parametrize("way", ["ssh", "paramiko"])
def test_each_over_a_connection_of_its_own(way: str, sshd: Sshd, root: Path, many_store: sandlift.Store) -> None:
    connect = connect_by(way, sshd, root)
    with_threads([connect], many_store)
    before, dropped = Traces.now(), sshd.log.count("drop connection")
    burst = with_threads([connect] * OVER_SSH, many_store, deadline_s=LONG_S)
    assert burst.failures == []
    assert {taken.content for taken in burst.done} == {burst.done[0].content}
    assert len(burst.done) == OVER_SSH
    assert before.settles(), (before, Traces.now())
    # The queue kept within what the server takes, so it never had to begin with dropping.
    assert sshd.log.count("drop connection") == dropped
    assert list((Path(many_store.location) / "tmp").iterdir()) == []


def test_two_hundred_coroutines_are_in_flight_at_once(root: Path, many_store: sandlift.Store, tmp_path: Path) -> None:
    """Each far side says that it has begun, and goes on when all the others have."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    begun.mkdir()
    os.mkfifo(gate)
    prefix = tmp_path / "prefix"
    # Opening the gate to read waits for who opens it to write.
    prefix.write_text(f'#!/bin/sh\n: > {shlex.quote(str(begun))}/$$\nread _ < {shlex.quote(str(gate))}\nexec "$@"\n')
    prefix.chmod(0o755)
    before, seen = Traces.now(), list[int]()

    def open_gate() -> None:
        end = time.monotonic() + LONG_S
        while len(os.listdir(begun)) < IN_FLIGHT and time.monotonic() < end:
            time.sleep(0.05)
        seen.append(len(os.listdir(begun)))
        seen.append(sum(thread.name == "sandlift-call" for thread in threading.enumerate()))
        os.close(os.open(gate, os.O_WRONLY))

    async def capture_all() -> list[Capture]:
        async with aio.connect(str(root), via=str(prefix)) as box:
            return await asyncio.gather(
                *(box.capture(many_store, f"w{number}", deadline_s=2 * LONG_S) for number in range(IN_FLIGHT))
            )

    opener = threading.Thread(target=open_gate)
    opener.start()
    taken = asyncio.run(capture_all())
    opener.join()
    assert seen == [IN_FLIGHT, IN_FLIGHT]
    assert sorted(many_store.workspaces()) == sorted(f"w{number}" for number in range(IN_FLIGHT))
    assert {each.content for each in taken} == {taken[0].content}
    assert before.settles(), (before, Traces.now())
