"""Several targets on one command line: one line for each as it ends, and one exit status for all."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
from cli.program import Place, descendants, is_running, run, store_files
from cli.test_interrupts import AT_MOST_S, started

from sandlift.cli.several import WORST_FIRST, named, worst
from sandlift.store import Store


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    made = []
    for number in range(6):
        root = tmp_path / f"root{number}"
        root.mkdir()
        (root / "file").write_bytes(b"%d\n" % number)
        made.append(root)
    return made


def pairs(roots: list[Path]) -> list[str]:
    return [f"team/w{number}={root}" for number, root in enumerate(roots)]


def test_what_is_a_name_and_what_is_a_path() -> None:
    assert named("demo=ssh://box/w") == ("demo", "ssh://box/w")
    assert named("team/web-1.x=./a=b") == ("team/web-1.x", "./a=b")
    assert [named(text) for text in ("./a=b", "/srv/a=b", "=x", "demo=", "demo", "ssh://box/a=b")] == [None] * 6


def test_the_status_for_all() -> None:
    assert worst([]) == worst([0, 0]) == 0
    assert worst([0, 3, 0]) == 3
    # What trying again may cure comes after what it does not.
    assert worst([5, 3, 0]) == 5
    assert worst([5, 1, 3]) == 1
    assert worst([1, 6, 5]) == 6
    assert worst([4, 130, 2]) == 130
    assert worst([0, 77]) == 77
    assert sorted(WORST_FIRST) == [0, 1, 2, 3, 4, 5, 6, 130, 143]


def test_all_are_stored_with_a_line_each(roots: list[Path], tmp_path: Path) -> None:
    done = run("capture", *pairs(roots), "--concurrency", "3", "--store", tmp_path / "s", "--label", "a=b")
    assert (done.status, done.stderr) == (0, b"")
    assert sorted(line.split(b":")[0] for line in done.stdout.splitlines()) == [b"team/w%d@1" % n for n in range(6)]
    with Store.open(tmp_path / "s") as store:
        assert store.workspaces() == [f"team/w{number}" for number in range(6)]
        assert [next(iter(store.log(f"team/w{n}"))).labels for n in range(6)] == [{"a": "b"}] * 6


def test_one_with_a_name_is_one_of_several(roots: list[Path], tmp_path: Path) -> None:
    done = run("capture", f"demo={roots[0]}", "--json", "--store", tmp_path / "s")
    assert (done.status, json.loads(done.stdout)["ref"]) == (0, "demo@1")


def test_one_that_fails_does_not_stop_the_others(roots: list[Path], tmp_path: Path) -> None:
    words = [*pairs(roots[:2]), f"gone={tmp_path}/gone", f"part={roots[2]}", *pairs(roots)[3:]]
    (roots[2] / "huge").write_bytes(bytes(5000))
    limits = ("--limit", "file_bytes=1000", "--concurrency", "2", "--store", tmp_path / "s")
    done = run("capture", *words, *limits, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.status, done.stderr, len(rows)) == (1, b"", 7)
    failed = [row for row in rows if "error" in row]
    assert [(row["workspace"], row["source"], row["error"]["code"], row["error"]["exit"]) for row in failed] == [
        ("gone", f"local:{tmp_path}/gone", "root-missing", 1)
    ]
    outcomes = {row["workspace"]: row["outcome"] for row in rows if "error" not in row}
    assert outcomes == {"part": "incomplete", **{f"team/w{n}": "complete" for n in (0, 1, 3, 4, 5)}}
    done = run("capture", *words, *limits)
    assert done.status == 1
    assert len(done.stdout.splitlines()) == 6
    assert done.stderr.startswith(f"sandlift: error: gone (local:{tmp_path}/gone): ".encode())
    assert done.stderr.endswith(b"sandlift: 6 of 7 stored, 1 incomplete\n")
    del words[2]
    assert run("capture", *words, *limits).status == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["a=/x", "a=/y"], "options"),
        (["a=/x", "/y"], "options"),
        (["a=/x", "b=/y", "--as", "c"], "options"),
        (["a=/x", "b=box:/y"], "url"),
        (["a=/x", "b=/y", "--concurrency", "0"], "options"),
        (["a=/x", "b=/y", "--limit-rate", "fast"], "options"),
        (["a=/x", f"{'b' * 201}=/y"], "name"),
    ],
)
def test_a_wrong_command_line_captures_nothing(words: list[str], code: str, tmp_path: Path) -> None:
    done = run("capture", *words, "--json", "--store", tmp_path / "s")
    assert (done.status, json.loads(done.stdout)["error"]["code"]) == (2, code)
    assert not (tmp_path / "s").exists()


def test_no_more_at_once_than_was_asked_for(roots: list[Path], tmp_path: Path) -> None:
    """Each start leaves a mark while it runs, and counts those that are there."""
    marks, counts = tmp_path / "marks", tmp_path / "counts"
    marks.mkdir()
    script = tmp_path / "counted"
    script.write_text(
        f'#!/bin/sh\nm={shlex.quote(str(marks))}/$$\n: > $m\nls {shlex.quote(str(marks))} | wc -l >> {counts}\n"$@"\n'
        "s=$?\nrm $m\nexit $s\n"
    )
    script.chmod(0o755)
    done = run("capture", *pairs(roots), "--via", str(script), "--concurrency", "2", "--store", tmp_path / "s")
    assert done.status == 0
    seen = [int(word) for word in counts.read_text().split()]
    assert len(seen) == 6
    assert max(seen) <= 2


def test_a_signal_ends_all_of_them(roots: list[Path], tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", create=True):
        pass
    before = store_files(tmp_path / "s")
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\nsleep 20\nexec "$@"\n')
    slow.chmod(0o755)
    words = ("capture", *pairs(roots), "--via", str(slow), "--concurrency", "3", "--json")
    with started(tmp_path / "s", *words) as process:
        end = time.monotonic() + 20
        while len(far := descendants(process.pid)) < 6 and time.monotonic() < end:
            time.sleep(0.02)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)
        assert time.monotonic() - began < AT_MOST_S
    assert (process.returncode, stderr) == (143, b"")
    rows = [json.loads(line) for line in stdout.splitlines()]
    assert sorted(row["workspace"] for row in rows) == [f"team/w{number}" for number in range(6)]
    assert {row["error"]["code"] for row in rows} == {"interrupted"}
    assert far
    assert not [pid for pid in far if is_running(pid)]
    assert store_files(tmp_path / "s") == before


def test_a_reader_that_has_gone_ends_all_of_them(roots: list[Path], tmp_path: Path) -> None:
    with started(tmp_path / "s", "capture", *pairs(roots), "--concurrency", "1") as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        assert process.wait(30) == 141


def test_a_rate_is_one_for_all(roots: list[Path], own_place: Place) -> None:
    for root in roots[:3]:
        (root / "random").write_bytes(os.urandom(300_000))
    began = time.monotonic()
    done = own_place.run("capture", *pairs(roots[:3]), "--limit-rate", "500K", "--json")
    took_s = time.monotonic() - began
    moved = sum(json.loads(line)["wire"]["received"] for line in done.stdout.splitlines())
    assert (done.status, moved > 900_000) == (0, True)
    assert took_s > (moved - 100_000) / 512_000 - 0.2
