"""Nothing, or one file, changed since the last capture of the same target: what is read, sent and stored for it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from e2e.conftest import roads_over, unprivileged
from incremental.again import Repeated, fill, objects_of
from incremental.tracing import Trace

from support.sshd import Sshd

FEW, MANY = 100, 3000
ANSWER_MAX = 400
"""Bytes of a whole stream that says that all is as it was."""


def test_nothing_changed(repeated: Repeated) -> None:
    """One new ref and the scan cache anew, and as few bytes for many files as for few."""
    received = []
    for count in (FEW, MANY):
        fill(repeated.root, count)
        first = repeated.again()
        assert first.new == {"packs": 1, "snapshots": 1, "refs": 1, "scans": 1}
        second = repeated.again()
        assert second.identity == first.identity
        assert (second.capture.reused, first.capture.reused) == (True, False)
        assert second.new == {"refs": 1, "scans": 1}
        assert second.capture.counts == first.capture.counts
        assert second.capture.content == first.capture.content
        assert (second.capture.number, second.files_read) == (first.capture.number + 1, 0)
        received.append(second.received)
    assert max(received) < ANSWER_MAX
    assert received[1] < received[0] + 80


def test_the_third_goes_from_the_second(repeated: Repeated) -> None:
    """A capture that found nothing is a base as good as the one before it, whose ref may go."""
    fill(repeated.root, FEW)
    first = repeated.again()
    repeated.again()
    ref = next(path for path in Path(repeated.store.location).rglob("refs/demo/*1"))
    ref.unlink()
    third = repeated.again()
    assert (third.identity, third.capture.reused, third.files_read) == (first.identity, True, 0)
    assert third.received < ANSWER_MAX


def test_settled_files_are_not_opened(repeated: Repeated) -> None:
    fill(repeated.root, FEW)
    trace = Trace(repeated.folder)
    repeated.again(via=trace.via)
    assert len(trace.opened) == FEW
    repeated.again(via=trace.via)
    assert trace.opened == []
    (repeated.root / "d003" / "f00023").write_bytes(b"changed")
    (repeated.root / "d004" / "new").write_bytes(b"new")
    repeated.again(via=trace.via)
    assert trace.opened == ["f00023", "new"]
    repeated.again(via=trace.via, rehash=True)
    assert len(trace.opened) == FEW + 1
    # The next knows again what is settled.
    repeated.again(via=trace.via)
    assert trace.opened == []


def test_the_cost_is_that_of_the_change(repeated: Repeated) -> None:
    """One file of 3,000: its block, its row, and one bit for each neighbour in its part."""
    fill(repeated.root, MANY)
    first = repeated.again()
    (repeated.root / "d007" / "f00007").write_bytes(os.urandom(2000))
    second = repeated.checked()
    assert (second.files_read, second.bytes_read) == (1, 2000)
    assert 2000 < second.received < 2000 + 2048
    assert second.new == {"packs": 1, "snapshots": 1, "refs": 1, "scans": 1}
    assert first.received > 50 * second.received
    # A directory under another name: its rows travel again, its blocks do not.
    os.rename(repeated.root / "d005", repeated.root / "e005")
    third = repeated.checked()
    assert third.files_read == MANY // 20
    assert third.received < 100 * (MANY // 20)
    assert third.new == {"snapshots": 1, "refs": 1, "scans": 1}


def test_rehash_reads_all_and_sends_nothing(repeated: Repeated) -> None:
    fill(repeated.root, FEW)
    first = repeated.again()
    second = repeated.again(rehash=True)
    assert (second.identity, second.capture.reused) == (first.identity, True)
    assert (second.files_read, second.new) == (FEW, {"refs": 1, "scans": 1})


def test_base_none_and_an_older_ref(repeated: Repeated) -> None:
    fill(repeated.root, FEW)
    first = repeated.again()
    (repeated.root / "d001" / "f00001").write_bytes(b"second")
    second = repeated.again()
    whole = repeated.again(base="none")
    assert whole.identity == second.identity
    assert whole.received > second.received + FEW * 32
    # From demo@1, whose scan cache is gone: every file is read, its content need not travel.
    (repeated.root / "d001" / "f00001").write_bytes(b"third")
    third = repeated.checked(base="demo@1")
    assert third.files_read == FEW
    assert third.received < whole.received
    assert first.identity != third.identity != second.identity


def test_unreadable_files_are_tried_each_time(place: Path) -> None:
    """What could not be read is lost again, and found once it can be; what could be is not read again."""
    with closing(Repeated(place, unprivileged)) as repeated:
        if os.geteuid() == 0:
            os.chown(place, 65534, 65534)
        repeated.root.mkdir()
        repeated.root.chmod(0o755)
        place.chmod(0o755)
        for name in ("a", "b", "c"):
            (repeated.root / name).write_bytes(name.encode())
            (repeated.root / name).chmod(0o644)
        (repeated.root / "b").chmod(0o000)
        for _ in range(3):
            taken = repeated.checked()
            assert taken.reasons == {b"b": "unreadable"}
            assert taken.capture.outcome == "incomplete"
            assert taken.paths == [b"a", b"c"]
        assert taken.capture.reused
        if os.geteuid() == 0:
            os.chown(repeated.root / "b", 65534, 65534)
        (repeated.root / "b").chmod(0o444)
        taken = repeated.checked()
        assert (taken.reasons, taken.paths) == ({}, [b"a", b"b", b"c"])
        assert taken.capture.outcome == "complete"


@pytest.mark.parametrize("name", ["ssh", "paramiko"])
def test_over_ssh(name: str, place: Path, sshd: Sshd) -> None:
    with closing(Repeated(place, roads_over(sshd)[name])) as repeated:
        repeated.root.mkdir()
        fill(repeated.root, FEW)
        first = repeated.again()
        second = repeated.again()
        assert (second.identity, second.capture.reused, second.files_read) == (first.identity, True, 0)
        (repeated.root / "d001" / "f00001").write_bytes(b"second")
        third = repeated.checked()
        assert third.files_read == 1
        assert third.received < 2048


def test_a_command_line(repeated: Repeated) -> None:
    """The options of the program, on files that are not yet settled: they are read, and nothing is sent."""
    from cli.program import run

    fill(repeated.root, FEW)
    store = repeated.folder / "cli"
    words = ("capture", repeated.root, "--as", "demo", "--store", store, "--json")
    first = run(*words).object
    for more in ([], ["--rehash"], ["--base", "demo@1"], ["--trust-ctime"], ["--like", "demo@1", "--base", "none"]):
        done = run(*words, *more).object
        assert (done["snapshot"], done["reused"]) == (first["snapshot"], True)
        assert done["wire"]["received"] < first["wire"]["received"] * 3 // 4
    done = run(*words, "--base", "none").object
    assert done["wire"]["received"] > first["wire"]["received"] * 3 // 4
    refused = run(*words, "--base", "other@1")
    assert (refused.status, refused.error["code"]) == (1, "unknown-ref")


def test_two_targets_of_one_workspace(repeated: Repeated) -> None:
    """A workspace's name is no proof: another target is offered nothing, and each keeps a base of its own."""
    fill(repeated.root, FEW)
    other = repeated.folder / "w2"
    repeated.again()
    (other / "d000").mkdir(parents=True)
    fill(other, FEW)
    before = objects_of(repeated.store)
    second = repeated.again(other)
    assert second.files_read == FEW
    assert second.new == {"packs": 1, "snapshots": 1, "refs": 1, "scans": 1}
    assert before <= objects_of(repeated.store)
    for root in (repeated.root, other):
        again = repeated.again(root)
        assert (again.capture.reused, again.files_read) == (True, 0)
