"""Two restores to one target at once: the second waits, says so, and then does its work."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.program import expect, run
from restore.roads import Shelf

from sandlift.errors import SandliftError, TargetNotEmpty
from sandlift.limits import DEFAULT_LIMITS
from sandlift.model import Event, Mode, RestoreOptions
from sandlift.restoring.sender import Sender
from sandlift.results import Restore
from support.sshd import descendants
from support.tree import Dir, File, assert_equal, make, read, tree

MODES: tuple[Mode, ...] = ("new", "replace", "exact", "merge")
PATIENCE_S = 30.0
WAITS = "another restore is at work at the target; this one waits for its end"

FIRST = tree({b"f": File(b"the first's"), b"d/g": File(b"g")}, root=Dir(mode=0o755))
SECOND = tree({b"f": File(b"the second's, and longer"), b"d/g": File(b"g"), b"d/h": File(b"h")}, root=Dir(mode=0o750))


@pytest.fixture(scope="module")
def lift(shelf: Shelf) -> Shelf:
    """One store for all tests, in which each workspace is captured once."""
    return shelf


class Restoring:
    """A restore in a thread of its own, and what it told."""

    def __init__(self, lift: Shelf, ref: str, target: Path, mode: Mode) -> None:
        self.warnings: list[str] = []
        self.result: Restore | SandliftError | None = None
        self._lift, self._ref, self._target, self._mode = lift, ref, target, mode
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            with self._lift.road(self._target) as box:
                self.result = box.restore(
                    self._lift.store,
                    self._ref,
                    options=RestoreOptions(mode=self._mode),
                    deadline_s=PATIENCE_S,
                    on_event=self._note,
                )
        except SandliftError as error:
            self.result = error

    def _note(self, event: Event) -> None:
        if event.kind == "warning":
            self.warnings.append(event.message)

    def end(self) -> Restore | SandliftError:
        """What it gave."""
        self._thread.join(PATIENCE_S)
        assert self.result is not None
        return self.result


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    assert is_so()


class Gate:
    """Holds a restore in the middle of its work: the helper waits for the blocks that are not sent yet."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def pass_through(self) -> None:
        """Wait at the gate."""
        self.reached.set()
        self.open.wait(PATIENCE_S)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate for the first restore that sends content; the others pass."""
    made = Gate()
    send = Sender._send_stored

    def gated(self: Sender, pack: int, index: int) -> None:
        if not made.reached.is_set():
            made.pass_through()
        send(self, pack, index)

    monkeypatch.setattr(Sender, "_send_stored", gated)
    yield made
    made.open.set()


@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES)
def test_the_second_waits_and_then_does_its_work(lift: Shelf, gate: Gate, first: Mode, second: Mode) -> None:
    refs = [lift.taken(source).capture.ref for source in (FIRST, SECOND)]
    target = lift.target()
    if first != "new":
        make(tree({b"f": File(b"before"), b"old": File(b"old")}), target)
    one = Restoring(lift, refs[0], target, first)
    assert gate.reached.wait(PATIENCE_S)
    other = Restoring(lift, refs[1], target, second)
    until(lambda: other.warnings == [WAITS] or other.result is not None)
    assert other.result is None, other.result
    gate.open.set()
    assert isinstance(one.end(), Restore)
    done = other.end()
    after = read(target)
    if second == "new":
        # What the first has set down is there now.
        assert isinstance(done, TargetNotEmpty)
        assert (target / "f").read_bytes() == b"the first's"
    else:
        assert isinstance(done, Restore), done
        if second == "merge":
            kept = {b"old": File(b"old").canonical()} if first == "merge" else {}
            assert after.entries == {**kept, **SECOND.entries}
        else:
            assert_equal(SECOND, after)
    assert one.warnings == []
    assert other.warnings == [WAITS]
    assert not [name for name in os.listdir(target.parent) if name.startswith(f".{target.name}.")]


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_ends_with_its_holder(lift: Shelf, gate: Gate, mode: Mode) -> None:
    """Killed, so that nothing can be taken back: the next one does not wait, and puts things right."""
    refs = [lift.taken(source).capture.ref for source in (FIRST, SECOND)]
    target = lift.target()
    if mode != "new":
        make(tree({b"f": File(b"before")}), target)
    others = set(descendants(os.getpid()))
    one = Restoring(lift, refs[0], target, mode)
    assert gate.reached.wait(PATIENCE_S)
    for pid in set(descendants(os.getpid())) - others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gate.open.set()
    assert isinstance(one.end(), SandliftError)
    other = Restoring(lift, refs[1], target, mode)
    assert isinstance(other.end(), Restore), other.result
    assert other.warnings == []
    after = read(target)
    assert after.entries == SECOND.entries
    assert not [name for name in os.listdir(target.parent) if name.startswith(f".{target.name}.")]


@pytest.mark.parametrize("mode", ["new", "exact"])
def test_a_time_limit_ends_the_wait(lift: Shelf, mode: Mode) -> None:
    ref = lift.taken(SECOND).capture.ref
    target = lift.target()
    target.mkdir()
    held = os.open(target, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        words: list[str | Path] = ["restore", ref, target, "--mode", mode, "--timeout", "1", "--json"]
        began = time.monotonic()
        expect(run(*words, env={"SANDLIFT_STORE": os.fspath(lift.folder / "store")}), 1, "deadline")
        assert 0.9 < time.monotonic() - began < 15
    finally:
        os.close(held)
    assert os.listdir(target) == []


def test_a_wait_is_told_to_people(lift: Shelf) -> None:
    ref = lift.taken(SECOND).capture.ref
    target = lift.target()
    target.mkdir()
    held = os.open(target, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        done = run("restore", ref, target, "--timeout", "1", env={"SANDLIFT_STORE": os.fspath(lift.folder / "store")})
    finally:
        os.close(held)
    assert done.status == 1
    assert f"sandlift: warning: {WAITS}\n" in done.err


def test_a_wait_is_no_silence(lift: Shelf, gate: Gate) -> None:
    """Who waits says that he lives, longer than the silence that a host would accept."""
    refs = [lift.taken(source).capture.ref for source in (FIRST, SECOND)]
    target = lift.target()
    target.mkdir()
    one = Restoring(lift, refs[0], target, "exact")
    assert gate.reached.wait(PATIENCE_S)
    results: list[Restore] = []

    def wait() -> None:
        from dataclasses import replace

        with lift.road(target) as box:
            limits = replace(DEFAULT_LIMITS, silence_s=1)
            results.append(box.restore(lift.store, refs[1], options=RestoreOptions(mode="exact"), limits=limits))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(2.5)
    assert thread.is_alive()
    gate.open.set()
    thread.join(PATIENCE_S)
    assert isinstance(one.end(), Restore)
    assert len(results) == 1
    assert_equal(SECOND, read(target))


def test_two_targets_in_one_folder_do_not_wait(lift: Shelf, gate: Gate) -> None:
    refs = [lift.taken(source).capture.ref for source in (FIRST, SECOND)]
    one = Restoring(lift, refs[0], lift.target(), "new")
    assert gate.reached.wait(PATIENCE_S)
    target = lift.target()
    other = Restoring(lift, refs[1], target, "new")
    assert isinstance(other.end(), Restore)
    assert other.warnings == []
    assert_equal(SECOND, read(target))
    gate.open.set()
    assert isinstance(one.end(), Restore)


# cases: paperclipai/paperclip#12187
def test_a_lock_leaves_no_file(lift: Shelf, gate: Gate) -> None:
    """Neither in the target nor beside it: the folder may be read-only."""
    ref = lift.taken(FIRST).capture.ref
    target = lift.target()
    make(tree({b"f": File(b"before")}), target)
    beside = set(os.listdir(target.parent))
    one = Restoring(lift, ref, target, "merge")
    assert gate.reached.wait(PATIENCE_S)
    assert set(os.listdir(target.parent)) == beside
    gate.open.set()
    assert isinstance(one.end(), Restore)
    assert sorted(os.listdir(target)) == ["d", "f"]
