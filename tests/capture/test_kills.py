"""Either side killed or stopped at any instant: the store stays sound, the other side ends by itself."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helper.drive import request
from protocol.replay import Before, children_of, contents, is_alive, leaves_a_partial, leaves_nothing, settles

from sandlift import errors, payload
from sandlift.box import connect
from sandlift.deadline import Deadline
from sandlift.helper_run import HelperRun
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.model import Rules
from sandlift.session import Content, Session
from sandlift.store import PackWriter, Store
from sandlift.targets import parse_target
from sandlift.transports import open_transport

WORKER = Path(__file__).with_name("worker.py")
SEED = 1
KILLS = 50


needs_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one processor, so the helper has no workers: run on a machine with two"
)


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for child in children_of(pid):
            found += [child, *descendants(child)]
    return found


class Captures:
    """Captures in processes of their own, one after the other; use it as a context manager."""

    def __init__(self, store: Store, target: Path, silence_s: float = 60) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), store.location, "demo", f"local:{target}", str(silence_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = 0

    def begin(self) -> int:
        """Starts one; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.pid = self._read()
        return self.pid

    def kill(self) -> None:
        """Kills it, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Waits for its end; returns the exit status, a signal's number as a negative one."""
        status, self.pid = self._read(), 0
        return status

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def __enter__(self) -> Captures:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            self.kill()
        with self._process:
            self._process.kill()
        self.errors.close()


def test_the_host_is_killed_at_fifty_instants(workspace: Path, earlier: Path, store: Store, tmp_path: Path) -> None:
    before = contents(Path(store.location))
    chance = random.Random(SEED)
    running: set[int] = set()
    survived = 0
    with Store.open(tmp_path / "other", create=True) as other, Captures(other, workspace) as captures:
        captures.begin()
        began = time.monotonic()
        assert captures.wait() == 0
        whole_s = time.monotonic() - began
    with Captures(store, workspace) as captures:
        for number in range(KILLS):
            pid = captures.begin()
            instant_s = whole_s * (number + chance.random()) / KILLS
            time.sleep(instant_s)
            running |= set(descendants(pid))
            captures.kill()
            if captures.wait() == 0:
                survived += 1
                # The machine has become quicker than it was when the whole was measured.
                whole_s = instant_s
            if number % 10 == 9:
                assert_sound(store)
    assert survived < KILLS / 2
    assert len(running) > KILLS / 2, "hardly a helper was seen running"
    assert settles(lambda: not any(map(is_alive, running)), 3), [pid for pid in running if is_alive(pid)]
    # What was there is there, to the byte; a later capture sweeps what the killed ones left.
    now = contents(Path(store.location))
    assert {name: now.get(name) for name in before} == before
    with Store.open(store.location) as again, connect(f"local:{workspace}") as box:
        box.capture(again, "demo")
        assert not list((Path(store.location) / "tmp").iterdir())
        assert_sound(again)
    with connect(f"local:{tmp_path / 'out'}") as box:
        box.restore(store, "demo@1")
    assert tree(tmp_path / "out") == tree(earlier)


def assert_sound(store: Store) -> None:
    report = store.verify()
    assert report.is_sound, report.damaged
    for record in store.log("demo"):
        assert store.packs_of(bytes.fromhex(record.snapshot)) is not None


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class _Killer(threading.Thread):
    """Kills the helper that this process starts next, or one of its workers, at a stage and some time later."""

    def __init__(self, victim: str, stage: str, delay_s: float = 0.0) -> None:
        super().__init__()
        self.victim, self.stage, self.delay_s, self.killed = victim, stage, delay_s, 0
        self._before = set(children_of(os.getpid()))

    def run(self) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end and not self.killed:
            helpers = [pid for pid in children_of(os.getpid()) if pid not in self._before]
            workers = [worker for pid in helpers for worker in descendants(pid)]
            if helpers and (workers or self.stage == "at once"):
                time.sleep(self.delay_s)
                self.killed = (workers if self.victim == "worker" else helpers)[0]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.killed, signal.SIGKILL)
            time.sleep(0.001)


@pytest.mark.parametrize(
    ("stage", "delay_s"),
    [
        ("at once", 0.0),
        ("at once", 0.05),
        pytest.param("with workers", 0.0, marks=needs_cores),
        pytest.param("with workers", 0.1, marks=needs_cores),
    ],
)
def test_the_helper_is_killed(stage: str, delay_s: float, workspace: Path, store: Store, slow_store: float) -> None:
    assert slow_store > 2 * delay_s
    leaves = leaves_a_partial if delay_s == 0.1 else contextlib.nullcontext
    with leaves(store), connect(f"local:{workspace}") as box:
        killer = _Killer("helper", stage, delay_s)
        killer.start()
        with pytest.raises((errors.Truncated, errors.HelperStart)) as caught:
            box.capture(store, "demo")
        killer.join()
    assert caught.value.context["exit_status"] == 137
    assert type(caught.value) is errors.Truncated or stage == "at once"
    assert_sound(store)
    assert settles(lambda: not is_alive(killer.killed))


@needs_cores
@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1])
def test_a_worker_of_the_helper_is_killed(delay_s: float, workspace: Path, store: Store, slow_store: float) -> None:
    """As the kernel does it where memory runs out: the rest must neither hang nor go on."""
    assert slow_store > 2 * delay_s
    began = time.monotonic()
    before = Before(store)
    with connect(f"local:{workspace}") as box:
        killer = _Killer("worker", "with workers", delay_s)
        killer.start()
        with pytest.raises((errors.HelperCrashed, errors.Truncated, errors.RemoteProtocolError)) as caught:
            box.capture(store, "demo", limits=Limits(silence_s=10))
        killer.join()
    if isinstance(caught.value, errors.Truncated) and store.partials():
        # It died within a frame, and nothing can be said behind that; what had come is kept.
        before.assert_partial()
    else:
        before.assert_same()
    assert killer.killed
    assert time.monotonic() - began < 8
    assert_sound(store)


@needs_cores
@pytest.mark.parametrize("delay_s", [0.0, 0.1])
def test_a_scanner_of_the_helper_is_killed(delay_s: float, tmp_path: Path, store: Store) -> None:
    """No blocks are read yet, and there is no manifest: nothing is kept, not even a part."""
    for number in range(3000):
        (tmp_path / "w" / f"{number % 100}" / "d").mkdir(parents=True, exist_ok=True)
        (tmp_path / "w" / f"{number % 100}" / "d" / f"{number}").touch()
    # It takes a second to look at so many names by so many rules.
    rules = Rules(patterns=tuple((b"*[0-9]a*%d" % number, b"test") for number in range(200)))
    with leaves_nothing(store), connect(f"local:{tmp_path / 'w'}") as box:
        killer = _Killer("worker", "with workers", delay_s)
        killer.start()
        with pytest.raises(errors.HelperCrashed, match="worker of the helper died with status 9"):
            box.capture(store, "demo", rules=rules, limits=Limits(silence_s=10))
        killer.join()
    assert killer.killed
    assert_sound(store)


@needs_cores
@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_is_killed_in_the_middle_of_a_write(number: int, workspace: Path) -> None:
    """It takes its right to write with it; the helper notices nevertheless, and ends."""
    with stalled_helper(workspace, silence_s=30) as process:
        workers = children_of(process.pid)
        assert len(workers) > 1
        # One waits for the output to take more, the others for their turn; which is which cannot be seen.
        os.kill(workers[number], signal.SIGKILL)
        assert process.stdout is not None
        began = time.monotonic()
        while os.read(process.stdout.fileno(), 1 << 20):
            assert time.monotonic() - began < 10
        assert process.wait(10) == 0
        assert time.monotonic() - began < 5
        assert settles(lambda: not any(map(is_alive, workers)))


# The host stops.


@contextlib.contextmanager
def stalled_helper(workspace: Path, silence_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """A helper with its workers, whose output nobody reads, and which has credit for everything."""
    session = Session("capture", DEFAULT_LIMITS)
    process = subprocess.Popen(
        payload.local_argv(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process:
        try:
            assert process.stdin is not None
            fields = session.request(request(workspace, silence_ms=int(1000 * silence_s)))
            process.stdin.write(payload.opening(session.nonce, "capture") + fields + session.grant(10_000))
            process.stdin.flush()
            assert settles(lambda: len(children_of(process.pid)) >= 2, 5), "it has no workers"
            time.sleep(0.2)
            yield process
        finally:
            process.kill()


@needs_cores
def test_the_helper_ends_when_the_host_falls_silent(workspace: Path) -> None:
    with stalled_helper(workspace, silence_s=1) as process:
        workers = children_of(process.pid)
        began = time.monotonic()
        assert process.wait(6) == 94
        assert time.monotonic() - began < 4
        assert settles(lambda: not any(map(is_alive, workers)))


@needs_cores
def test_the_helper_ends_when_its_input_ends(workspace: Path) -> None:
    with stalled_helper(workspace, silence_s=60) as process:
        workers = children_of(process.pid)
        assert process.stdin is not None
        began = time.monotonic()
        process.stdin.close()
        assert process.wait(6) == 94
        assert time.monotonic() - began < 2
        assert settles(lambda: not any(map(is_alive, workers)), 0.5)


# cases: onyx-dot-app/onyx#11892, Kilo-Org/cloud#2433
@needs_cores
def test_the_helper_ends_when_its_output_ends(workspace: Path) -> None:
    with stalled_helper(workspace, silence_s=60) as process:
        workers = children_of(process.pid)
        assert process.stdout is not None
        process.stdout.close()
        assert settles(lambda: process.poll() is not None, 3)
        assert settles(lambda: not any(map(is_alive, workers)), 2)


@needs_cores
def test_workers_end_when_the_helper_is_killed(workspace: Path) -> None:
    with stalled_helper(workspace, silence_s=60) as process:
        workers = children_of(process.pid)
        process.kill()
        assert settles(lambda: not any(map(is_alive, workers)), 3), "workers outlive the helper"


@needs_cores
def test_a_host_that_is_stopped_loses_its_helper_and_says_so(workspace: Path, store: Store) -> None:
    """SIGSTOP, as a laptop that sleeps: the far side ends after its silence, and the host reports it when it wakes."""
    with Captures(store, workspace, silence_s=1) as captures:
        pid = captures.begin()
        assert settles(lambda: len(descendants(pid)) > 2, 5), "no workers were seen"
        os.kill(pid, signal.SIGSTOP)
        found = descendants(pid)
        assert settles(lambda: not any(map(is_alive, found)), 5)
        os.kill(pid, signal.SIGCONT)
        status = captures.wait()
        captures.errors.seek(0)
        # It may have had everything already when it was stopped.
        assert status == 0 or b"errors.Truncated" in captures.errors.read()
    assert_sound(store)


def test_a_heartbeat_keeps_the_helper_alive(workspace: Path) -> None:
    """Nobody grants credit and nobody reads for three silences; then the capture goes on to its end."""
    target = parse_target(f"local:{workspace}")
    run = HelperRun(
        open_transport(target),
        "capture",
        limits=Limits(silence_s=1),
        deadline=Deadline.after(20),
        python=sys.executable,
    )
    with run:
        run.start(lambda: request(workspace))
        time.sleep(3.2)
        run.grant(10_000)
        contents_seen = 0
        for event in run.events():
            contents_seen += isinstance(event, Content)
    assert contents_seen >= 15
    assert run.session.ended()


def test_a_store_that_stalls_for_three_silences(workspace: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append, slept = PackWriter.append, threading.Event()

    def stall(self: PackWriter, frame: bytes | memoryview, decoded_size_bytes: int) -> int:
        if not slept.is_set():
            slept.set()
            time.sleep(3.2)
        return append(self, frame, decoded_size_bytes)

    monkeypatch.setattr(PackWriter, "append", stall)
    with connect(f"local:{workspace}") as box:
        result = box.capture(store, "demo", limits=Limits(silence_s=1))
    assert slept.is_set()
    assert result.counts.files == 300
    assert_sound(store)
