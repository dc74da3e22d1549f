"""Captures of streams that are files: the far side is a program that prints one, or a part of it.

A stream begins with the nonce of its run, so the host's nonce is made a constant here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandlift.capturing import CaptureSpec, capture
from sandlift.deadline import Cancel, Deadline
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.results import Capture
from sandlift.store import Store
from sandlift.targets import Target
from sandlift.transports.command import via
from sandlift_helper import wire

NONCE = bytes(range(16))
MARK = wire.MAGIC + NONCE
LONG_S = 20.0


def fix_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlift.session.os", SimpleNamespace(urandom=lambda size: NONCE[:size]))


def run_prefix(
    prefix: Sequence[str],
    store: Store,
    *,
    limits: Limits = DEFAULT_LIMITS,
    deadline_s: float = LONG_S,
    cancel: Cancel | None = None,
    workspace: str = "demo",
) -> Capture:
    """Captures from whatever a command prefix prints."""
    target = Target(scheme="via", root=b"/w", via=tuple(prefix))
    spec = CaptureSpec(target=target, workspace=workspace, limits=limits)
    return capture(via(prefix, shell=False), store, spec, deadline=Deadline.after(deadline_s, cancel))


def run_file(path: Path, store: Store, *, size: int | None = None, limits: Limits = DEFAULT_LIMITS) -> Capture:
    """Captures from a file that holds a whole output, or from its first *size* bytes."""
    command = ["cat"] if size is None else ["head", "-c", str(size)]
    return run_prefix(["sh", "-c", shlex.join(["exec", *command, str(path)])], store, limits=limits)


def run_data(data: bytes, store: Store, folder: Path, *, limits: Limits = DEFAULT_LIMITS) -> Capture:
    """Captures from these bytes behind the mark."""
    path = folder / "output"
    path.write_bytes(MARK + data)
    return run_file(path, store, limits=limits)


def contents(folder: Path) -> dict[str, str]:
    """Each file of a store with the SHA-256 of its bytes, unfinished ones too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def children_of(pid: int) -> list[int]:
    """The living children of all threads of a process."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            found += [int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except OSError:
            continue
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def traces() -> tuple[list[str], list[str], list[int]]:
    """What a run may leave in this process: descriptors by what they lead to, threads, children."""
    places = []
    for name in os.listdir("/proc/self/fd"):
        try:
            places.append(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return sorted(places), sorted(thread.name for thread in threading.enumerate()), children_of(os.getpid())


def settles(condition: Callable[[], bool], within_s: float = 3.0) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Before:
    """A store and this process as they are now, to compare with later."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._contents, self._traces = contents(Path(store.location)), traces()

    def assert_same(self) -> None:
        """The store is the same, byte for byte, and so is this process."""
        assert contents(Path(self._store.location)) == self._contents
        self._assert_traces()

    def assert_partial(self) -> None:
        """The store has a partial more, or another one, and packs that it names, and nothing else is new."""
        before, after = self._contents, contents(Path(self._store.location))
        assert {name: after.get(name) for name in before if not name.startswith("partials/")} == {
            name: data for name, data in before.items() if not name.startswith("partials/")
        }
        packs = {name.rpartition("/")[2] for name in after.keys() - before.keys() if not name.startswith("partials/")}
        partials = self._store.partials()
        assert partials
        assert packs <= {pack for partial in partials for pack in partial.packs}
        self._assert_traces()

    def _assert_traces(self) -> None:
        assert settles(lambda: traces() == self._traces), (self._traces, traces())


@contextlib.contextmanager
def leaves_nothing(store: Store) -> Iterator[None]:
    """Asserts that what happens inside leaves the store, byte for byte, and this process as they were."""
    before = Before(store)
    yield
    before.assert_same()


@contextlib.contextmanager
def leaves_a_partial(store: Store) -> Iterator[None]:
    """Asserts that what happens inside adds a partial and packs that it names to the store, and nothing else."""
    before = Before(store)
    yield
    before.assert_partial()
