"""Ctrl-C, SIGTERM and the time limit: within two seconds everything is over, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cli.program import PROGRAM, Place, descendants, environment, is_running, run, store_files

AT_MOST_S = 2.0


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that takes far longer than these tests to capture: files that keep coming, one of them without end."""
    root = tmp_path_factory.mktemp("endless")
    for number in range(60):
        (root / f"{number}").write_bytes(os.urandom(1 << 20))
    # All zeros and no hole, as far as anybody can tell without reading it.
    with open(root / "huge", "wb") as file:
        file.truncate(1 << 39)
        for offset in range(0, 1 << 39, 1 << 28):
            os.pwrite(file.fileno(), b"x", offset)
    return root


@contextmanager
def started(store: Path, *words: str | Path, **options: int) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the program that is killed in the end, whatever happens."""
    process = subprocess.Popen(
        [PROGRAM, *map(str, words)],
        env=environment(SANDLIFT_STORE=str(store)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_reading(process: subprocess.Popen[bytes], store: Path) -> None:
    """Until the capture is in full swing: content has arrived in the store's unfinished file."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        if any(path.stat().st_size > 2 << 20 for path in (store / "tmp").glob("*")):
            return
        time.sleep(0.02)
    raise AssertionError("the capture does not begin")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 130)], ids=str
)
def test_a_signal_ends_a_capture(own_place: Place, endless: Path, number: int, status: int) -> None:
    before = store_files(own_place.store)
    with started(own_place.store, "capture", endless, "--as", "demo", "--json") as process:
        wait_until_reading(process, own_place.store)
        far = descendants(process.pid)
        assert far
        began = time.monotonic()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
        took_s = time.monotonic() - began
    assert (process.returncode, stderr) == (status, b"")
    error = json.loads(stdout)["error"]
    assert (error["code"], error["exit"], error["retryable"]) == ("interrupted", status, True)
    assert error["context"] == {"signal": number}
    assert took_s < AT_MOST_S
    assert not [pid for pid in far if is_running(pid)]
    assert store_files(own_place.store) == before


def test_the_time_limit_ends_a_capture(own_place: Place, endless: Path) -> None:
    before = store_files(own_place.store)
    with started(own_place.store, "capture", endless, "--as", "demo", "--timeout", "1.5") as process:
        far: set[int] = set()
        while process.poll() is None:
            far |= descendants(process.pid)
            time.sleep(0.05)
        _, stderr = process.communicate()
    assert process.returncode == 1
    assert stderr.startswith(b"sandlift: error: the time limit of 1.5 s ran out")
    assert far
    assert not [pid for pid in far if is_running(pid)]
    assert store_files(own_place.store) == before


def test_a_second_signal_ends_at_once(own_place: Place, tmp_path: Path) -> None:
    # A far side that neither ends nor listens keeps the orderly end busy for more than a second.
    stubborn = tmp_path / "stubborn"
    stubborn.write_text("#!/bin/sh\ntrap '' TERM HUP INT\ni=0\nwhile [ $i -lt 600 ]; do i=$((i+1)); sleep 0.05; done\n")
    stubborn.chmod(0o755)
    with started(own_place.store, "capture", "/x", "--as", "demo", "--via", str(stubborn)) as process:
        end = time.monotonic() + 20
        while not descendants(process.pid) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.3)
        far = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        time.sleep(0.25)
        assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert time.monotonic() - began < 0.7
    assert process.returncode == 130
    # Nobody was left to end the far side.
    for pid in far:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# cases: Gitlawb/zero#993, ATAC-Helicopter/VaultSync#594, actions/cache#504, votingworks/vxsuite#9270
def test_a_restore_that_is_interrupted_leaves_no_target(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "store"
    root.mkdir()
    for number in range(40):
        (root / f"{number}").write_bytes(os.urandom(4 << 20))
    assert run("capture", root, "--as", "w", "--store", store).status == 0
    before = store_files(store)
    folder = tmp_path / "targets"
    folder.mkdir()
    with started(store, "restore", "w", folder / "out", "--json") as process:
        end = time.monotonic() + 20
        while not os.listdir(folder) and time.monotonic() < end:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        stdout, _ = process.communicate(timeout=30)
        assert time.monotonic() - began < AT_MOST_S
    assert process.returncode == 143, stdout
    assert json.loads(stdout)["error"]["code"] == "interrupted"
    assert os.listdir(folder) == []
    assert store_files(store) == before


def test_a_signal_ends_commands_that_only_read(own_place: Place, tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    with open(root / "big", "wb") as file:
        file.truncate(1 << 40)
    assert own_place.run("capture", root, "--as", "big").status == 0
    with started(own_place.store, "cat", "big", "big") as process:
        assert process.stdout is not None
        assert process.stdout.read(1 << 20) == bytes(1 << 20)
        drain = threading.Thread(target=process.stdout.read, args=(1 << 30,), daemon=True)
        drain.start()
        process.send_signal(signal.SIGINT)
        assert process.wait(AT_MOST_S) == 130
        drain.join()
        assert process.stderr is not None
        assert process.stderr.read() == b"sandlift: error: interrupted\n"


def test_signals_that_were_ignored_stay_ignored(own_place: Place, tmp_path: Path) -> None:
    """As nohup and a shell's background jobs have it."""
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\nsleep 1\nexec "$@"\n')
    slow.chmod(0o755)
    words = ("capture", own_place.root, "--as", "demo", "--via", str(slow), "--json")
    with started(own_place.store, *words, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:  # type: ignore[arg-type]
        time.sleep(0.7)
        process.send_signal(signal.SIGHUP)
        stdout, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(stdout)["ref"]) == (0, "demo@3")
