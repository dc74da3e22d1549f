"""What was restored somewhere is the base of its first capture there; from the second on, nothing is read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from e2e.conftest import roads_over
from incremental.again import Repeated, fill
from incremental.tracing import Trace

from sandlift.box import connect
from support.sshd import Sshd

FILES = 80


def test_captured_where_it_was_restored(repeated: Repeated) -> None:
    fill(repeated.root, FILES, size=4000)
    first = repeated.again()
    second = repeated.folder / "second"
    trace = Trace(repeated.folder)
    with connect(str(second), via=" ".join(trace.via)) as box:
        box.restore(repeated.store, "demo")
    # The helper of a restore looked at the same root; only its own captures count from here.
    taken = repeated.again(second, via=trace.via)
    assert len(trace.opened) == FILES
    assert taken.capture.content == first.capture.content
    assert taken.received < 20_000 < first.received
    again = repeated.again(second, via=trace.via)
    assert trace.opened == []
    assert (again.identity, again.capture.reused) == (taken.identity, True)


def test_over_ssh(place: Path, sshd: Sshd) -> None:
    with closing(Repeated(place, roads_over(sshd)["ssh"])) as repeated:
        repeated.root.mkdir()
        fill(repeated.root, FILES, size=4000)
        first = repeated.again()
        second = repeated.folder / "second"
        with repeated.road(second) as box:
            box.restore(repeated.store, "demo")
        taken = repeated.again(second)
        assert taken.capture.content == first.capture.content
        assert (taken.files_read, taken.new.get("packs", 0)) == (FILES, 0)
        again = repeated.again(second)
        assert (again.files_read, again.capture.reused) == (0, True)


def test_only_a_part_was_restored(repeated: Repeated) -> None:
    """Then nothing is assumed of the target: all that it has travels."""
    from sandlift.model import RestoreOptions

    fill(repeated.root, FILES, size=4000)
    first = repeated.again()
    second = repeated.folder / "second"
    with repeated.road(second) as box:
        box.restore(repeated.store, "demo", options=RestoreOptions(paths=(b"d001",)))
    taken = repeated.again(second)
    assert taken.new["packs"] == 1
    assert taken.identity == repeated.fresh(second).identity != first.identity


def test_restored_over_what_was_captured(repeated: Repeated) -> None:
    """The scan cache is of what was set down last, never of what was there before."""
    from sandlift.model import RestoreOptions

    fill(repeated.root, FILES, size=4000)
    first = repeated.again()
    fill(repeated.root, FILES, size=8000)
    second = repeated.again()
    with repeated.road(repeated.root) as box:
        box.restore(repeated.store, "demo@1", options=RestoreOptions(mode="exact"))
    third = repeated.checked()
    assert third.capture.content == first.capture.content != second.capture.content
    assert third.received < 20_000
