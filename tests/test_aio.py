"""The library's calls as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sandlift
from sandlift import aio, errors
from sandlift.deadline import Cancel
from sandlift.model import Event
from support.many import Traces, make_tree
from support.needs import require
from support.sshd import Sshd, descendants

SOON_S = 5.0
PACKAGE = str(Path(sandlift.__file__).parent)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "w", 30, 3000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sandlift.Store]:
    with sandlift.Store.open(tmp_path / "store", create=True) as opened:
        yield opened


def test_importing_sandlift_imports_no_asyncio() -> None:
    script = "import sys, sandlift; sandlift.connect; print('asyncio' in sys.modules); sandlift.aio.connect"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("name", ["connect", "capture", "restore"])
def test_the_functions_take_the_same_arguments(name: str) -> None:
    assert inspect.signature(getattr(aio, name)) == inspect.signature(getattr(sandlift, name))


def test_a_box_has_the_same_calls() -> None:
    calls = [name for name in vars(sandlift.Box) if not name.startswith("_")]
    assert sorted(calls) == ["capture", "close", "restore", "survey"]
    for name in calls:
        assert inspect.iscoroutinefunction(getattr(aio.Box, name))
        ours, theirs = inspect.signature(getattr(aio.Box, name)), inspect.signature(getattr(sandlift.Box, name))
        assert list(ours.parameters) == list(theirs.parameters)


def test_there_and_back(root: Path, store: sandlift.Store, tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.connect(str(root)) as box:
            assert (await box.survey()).entries > 30
            taken = await box.capture(store, "demo", note="said")
            assert (taken.ref, taken.note, box.target.root) == ("demo@1", "said", os.fsencode(root))
        box = await aio.connect(str(tmp_path / "out"))
        assert (await box.restore(store, "demo")).counts.created > 30
        await box.close()
        await box.close()
        assert (await aio.capture(str(tmp_path / "out"), store, "again")).content == taken.content
        await aio.restore(store, "again", str(tmp_path / "out2"))
        with pytest.raises(errors.RootMissing):
            await aio.capture(str(tmp_path / "gone"), store, "gone")
        with pytest.raises(errors.BadURL):
            await aio.connect("box:/w")

    before = Traces.quiet()
    asyncio.run(main())
    assert before.settles(), (before, Traces.now())


def test_events_come_in_the_loops_thread_in_order_and_before_the_end(root: Path, store: sandlift.Store) -> None:
    events: list[Event] = []
    threads = set[int]()

    def take(event: Event) -> None:
        threads.add(threading.get_ident())
        events.append(event)

    async def main() -> list[Event]:
        await aio.capture(str(root), store, "demo", on_event=take)
        return list(events)

    at_return = asyncio.run(main())
    assert threads == {threading.get_ident()}
    assert at_return == events
    assert [event.kind for event in events].count("end") == 1
    assert events[-1].kind == "end"
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)


def test_what_a_callback_raises_ends_the_run(root: Path, store: sandlift.Store) -> None:
    def fail(event: Event) -> None:
        raise LookupError(event.phase)

    async def main() -> None:
        with pytest.raises(LookupError, match="connect"):
            await aio.capture(str(root), store, "demo", on_event=fail)

    before = Traces.quiet()
    asyncio.run(main())
    assert before.settles()


def test_a_cancel_token_still_works(root: Path, store: sandlift.Store) -> None:
    cancel = Cancel()
    cancel.cancel(15)

    async def main() -> None:
        with pytest.raises(errors.Interrupted) as caught:
            await aio.capture(str(root), store, "demo", cancel=cancel)
        assert caught.value.context["signal"] == 15

    asyncio.run(main())


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("way", ["ssh", "paramiko"])
def test_cancelling_a_task_leaves_nothing(way: str, again: bool, tmp_path: Path, store: sandlift.Store) -> None:
    require("sshd", "ssh", "ssh-keygen")
    endless = tmp_path / "endless"
    endless.mkdir()
    for number in range(8):
        (endless / f"{number}").write_bytes(os.urandom(1 << 20))
    with open(endless / "huge", "wb") as file:
        file.truncate(1 << 39)
        for offset in range(0, 1 << 39, 1 << 28):
            os.pwrite(file.fileno(), b"x", offset)

    async def main(server: Sshd) -> None:
        url = server.url(str(endless), scheme=way)
        options: dict[str, Any] = {"ssh_options": server.ssh_options, "reuse": False}
        if way == "paramiko":
            options = {"host_key_file": server.host_key_file, "key_files": [server.key_file]}
        async with aio.connect(url, **options) as box:
            reading = asyncio.Event()
            task = asyncio.create_task(
                box.capture(store, "demo", on_event=lambda event: reading.set() if event.bytes else None)
            )
            await asyncio.wait_for(reading.wait(), 60)
            assert descendants(server_pid)
            began = time.monotonic()
            task.cancel()
            if again:
                await asyncio.sleep(0.05)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - began < SOON_S
            # All is in order already, not soon.
            assert list((Path(store.location) / "tmp").iterdir()) == []
            assert store.workspaces() == []

    with Sshd() as server:
        assert server._process is not None
        server_pid = server._process.pid
        idle = len(descendants(server_pid))
        before = Traces.quiet()
        asyncio.run(main(server))
        assert before.settles(), (before, Traces.now())
        end = time.monotonic() + SOON_S
        while len(descendants(server_pid)) > idle and time.monotonic() < end:
            time.sleep(0.02)
        assert len(descendants(server_pid)) <= idle


def test_a_time_out_of_asyncio_cancels(root: Path, store: sandlift.Store, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\nsleep 20\nexec "$@"\n')
    slow.chmod(0o755)

    async def capture() -> None:
        async with aio.connect(str(root), via=str(slow)) as box:
            await box.capture(store, "demo")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(capture(), 0.3)

    before, began = Traces.quiet(), time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < SOON_S
    assert before.settles()


def test_the_loops_thread_does_nothing_but_begin_and_take(root: Path, store: sandlift.Store) -> None:
    """No call of the other modules happens there, and nothing that could wait for a disk, a process or a lock."""
    entered, events, loop_thread, watching = set[str](), set[str](), threading.get_ident(), False

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.add(os.path.relpath(frame.f_code.co_filename, PACKAGE))

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        # A hook stays for ever, so it must cost nothing afterwards.
        if watching and threading.get_ident() == loop_thread and not event.startswith(("sys.", "object.", "code.")):
            events.add(event)

    async def main() -> None:
        nonlocal watching
        # What each loop and the first call do once is not looked at.
        await aio.capture(str(root), store, "first")
        watching = True
        sys.setprofile(profile)
        try:
            boxes = await asyncio.gather(*(aio.connect(str(root)) for _ in range(20)))
            taken = await asyncio.gather(
                *(box.capture(store, f"w{number}", on_event=lambda _: None) for number, box in enumerate(boxes))
            )
            await asyncio.gather(*(box.close() for box in boxes))
        finally:
            sys.setprofile(None)
            watching = False
        assert len(taken) == 20

    sys.addaudithook(audit)
    asyncio.run(main())
    assert entered <= {"aio.py", "deadline.py"}
    assert "aio.py" in entered
    # The second is the name from 3.13 on.
    assert events <= {"_thread.start_new_thread", "_thread.start_joinable_thread"}
