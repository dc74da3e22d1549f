"""What a hostile sandbox says, as it reaches a person's terminal or a program's JSON."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from capture.refusal import stream
from cli.program import run, run_on_terminal, store_files
from protocol.stream import Stream, add_file, message, root_segment

from sandlift_helper import table, wire
from sandlift_helper.table import Segment
from support.hostile import Play

CLEAR, TITLE, BACKWARDS = "\x1b[2J", "\x1b]0;owned\x07", "\u202e"
BAD = f"{CLEAR}{TITLE}\r\n{BACKWARDS}\x9b"


def named(name: bytes) -> Segment:
    """A manifest that is allowed, full of that name."""
    segment = root_segment()
    add_file(segment, name)
    segment.add_link(name + b"-link", 0o777, 1, 0, 0, name)
    segment.exclude(name + b"-out", table.LINK, table.OUTSIDE_LINK, b"/" + name)
    segment.exclude(name + b"-pattern", table.FILE, table.PATTERN, name)
    segment.flag(name + b"-gone", table.VANISHED)
    return segment


def greeting() -> Stream:
    return Stream().hello(python=f"3.6{BAD}", executable=BAD).progress(BAD, files=1, bytes=1)


def clean(text: str) -> bool:
    """Whether nothing in it acts on a terminal."""
    return all(line.isprintable() for line in text.split("\n"))


def test_names_of_an_accepted_manifest(tmp_path: Path) -> None:
    made = greeting().manifest(named(BAD.encode("utf-8", "surrogateescape"))).end()
    prefix = shlex.join(Play().send(BAD.encode()).mark().send(made.data).complain(10).save(tmp_path / "play"))
    store = ("--store", tmp_path / "store")
    done = run("capture", "/w", "--as", "x", "--via", prefix, "-v", *store)
    assert done.status == 0
    assert clean(done.out) and clean(done.err)
    for words in (["show", "x"], ["ls", "x"], ["log"], ["show", "x", "-v"]):
        done = run(*words, *store)
        assert (done.status, done.err) == (0, "")
        assert clean(done.out)
        assert "owned" in done.out or words == ["log"]
    for row in run("ls", "x", "--json", *store).objects:
        assert row["path"].encode("utf-8", "surrogateescape").startswith(BAD.encode())


@pytest.mark.parametrize("as_json", [False, True])
def test_names_of_a_refused_manifest(as_json: bool, tmp_path: Path) -> None:
    segment = root_segment()
    for number in range(30):
        add_file(segment, b"%03d" % number + BAD.encode() + b"/x")
    prefix = shlex.join(stream(greeting().manifest(segment).end().data).save(tmp_path / "play"))
    words = ("capture", "/w", "--as", "x", "--via", prefix, "--store", tmp_path / "store", "-v")
    done = run(*words, *(["--json"] if as_json else []))
    assert done.status == 4
    assert clean(done.err)
    assert set(store_files(tmp_path / "store")) <= {"format", "lock"}
    if as_json:
        error = json.loads(done.stdout)["error"]
        assert error["code"] == "invalid-manifest"
        assert len(error["context"]["issues"]) == 20
        assert clean(error["message"]) and clean("".join(error["context"]["issues"]))
    else:
        assert r"\x1b[2J\x1b]0;owned\x07\r\n\u202e" in done.err


COUNTS: dict[str, dict[str, object]] = {
    "beyond-64-bits": {"files": (1 << 64) - 1, "bytes": (1 << 64) - 1, "total_bytes": 1, "total_files": 1},
    "of-almost-nothing": {"files": 0, "bytes": 1, "total_bytes": (1 << 64) - 1, "total_files": (1 << 64) - 1},
    "of-other-types": {"files": -1, "bytes": 1.5, "total_bytes": None, "total_files": [1]},
}


@pytest.mark.parametrize("slug", COUNTS)
def test_counts_on_a_terminal(slug: str, tmp_path: Path) -> None:
    made = Stream().hello()
    for phase in ("scan", "read", BAD):
        made.add(wire.PROGRESS, message(phase=phase, **COUNTS[slug]))
    made.manifest(root_segment()).end()
    play = stream(made.frames[0])
    for frame in made.frames[1:4]:
        play.sleep(0.5).send(frame)
    prefix = shlex.join(play.send(b"".join(made.frames[4:])).save(tmp_path / "play"))
    done = run_on_terminal("capture", "/w", "--as", "x", "--via", prefix, "--store", tmp_path / "store")
    assert done.status == 0
    assert b"read" in done.stdout
    assert b"owned" not in done.stdout
    assert b"\x1b[2J" not in done.stdout
