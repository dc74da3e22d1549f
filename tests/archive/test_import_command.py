"""`sandlift import` as its users run it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest
from archive import archives as a
from archive.archives import Member, archive, gz
from archive.importer import files
from cli.program import PROGRAM, Place, environment, expect, run

CONTENT = archive(
    Member(b"./", kind=a.DIRECTORY, mode=0o755),
    Member(b"./a.txt", b"text"),
    Member(b"./same", kind=a.HARD_LINK, link=b"./a.txt"),
    Member(b"./abs", kind=a.LINK, link=b"/work/a.txt"),
    Member(b"./out", kind=a.LINK, link=b"/etc/passwd"),
    Member(b"./fifo", kind=a.FIFO),
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def lost() -> bytes:
    """An archive with a link that cannot be kept."""
    records = {b"path": b"d/" * 200 + b"l", b"linkpath": b"/work/" + b"t" * 4000}
    return archive(Member(b"l", kind=a.LINK, link=b"x", pax=records))


def take(store: Path, *words: str | Path, stdin: bytes = CONTENT) -> subprocess.CompletedProcess[bytes]:
    done = run("import", "--store", store, "--as", "demo", "--root", "/work", *words, stdin=stdin)
    return subprocess.CompletedProcess([], done.status, done.stdout, done.stderr)


def test_from_standard_input_and_from_a_file(store: Path, tmp_path: Path) -> None:
    done = take(store)
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.decode().startswith("demo@1: 2 files, 4 B in ")
    assert done.stdout.endswith(b"; 2 left out by policy; why: sandlift show demo@1\n")
    (tmp_path / "work.tgz").write_bytes(gz(CONTENT))
    done = take(store, tmp_path / "work.tgz")
    assert done.returncode == 0
    assert b"demo@2" in done.stdout
    assert b"same as before" in done.stdout


def test_what_it_made_is_an_ordinary_snapshot(store: Path, tmp_path: Path) -> None:
    assert take(store, "--label", "run=7", "--note", "from the provider").returncode == 0
    shown = run("show", "demo", "--store", store, "--json").object
    assert (shown["source"], shown["labels"], shown["note"]) == ("import:-", {"run": "7"}, "from the provider")
    assert shown["rules"] == ["/work (--root)"]
    reasons = {row["path"]: row["reason"] for row in shown["excluded"]}
    assert reasons == {"fifo": "fifo", "out": "outside-link"}
    assert run("restore", "demo", tmp_path / "out", "--store", store).status == 0
    assert os.readlink(tmp_path / "out" / "abs") == "a.txt"
    assert (tmp_path / "out" / "same").stat().st_ino == (tmp_path / "out" / "a.txt").stat().st_ino
    assert run("verify", "--store", store).status == 0


def test_json_is_that_of_a_capture(store: Path, tmp_path: Path) -> None:
    place = Place.make(tmp_path)
    captured = run("capture", place.root, "--as", "other", "--store", store, "--json").object
    imported = json.loads(take(store, "--json").stdout)
    assert list(imported) == list(captured)
    assert list(imported["counts"]) == list(captured["counts"])
    assert imported["wire"] == {"sent": 0, "received": len(CONTENT)}
    assert imported["source"] == "import:-"


def test_source_names_the_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "w.tar").write_bytes(CONTENT)
    done = run("import", "w.tar", "--as", "d", "--root", "/work", "--store", store, "--json", cwd=tmp_path)
    assert done.object["source"] == f"import:{tmp_path}/w.tar"


def test_refusal(store: Path) -> None:
    hostile = archive(Member(b"first", b"x"), Member(b"\x1b[31m\n/../x"))
    done = take(store, stdin=hostile)
    assert done.returncode == 4
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line == "sandlift: error: the archive is refused: a name has the component ..: \\x1b[31m\\n/../x"
    assert files(store) == []
    error = json.loads(take(store, "--json", stdin=hostile).stdout)["error"]
    assert error["code"] == "unsafe-archive"
    assert error["exit"] == 4
    assert error["retryable"] is False
    assert error["context"]["member"] == "\\x1b[31m\\n/../x"


def test_refusal_makes_no_store_of_what_is_no_tar(store: Path) -> None:
    assert take(store, stdin=b"no tar at all").returncode == 4
    assert not store.exists()


def test_incomplete(store: Path) -> None:
    done = take(store, stdin=lost())
    assert done.returncode == 3
    assert b"1 LOST" in done.stdout
    strict = take(store, "--strict", "--json", stdin=lost())
    assert strict.returncode == 1
    assert json.loads(strict.stdout)["error"]["code"] == "strict-loss"
    assert len(files(store)) == 2


def test_limits(store: Path) -> None:
    zeros = archive(Member(b"a", b"1"), Member(b"z", bytes(9 << 20)), end=bytes(4096))
    for limit, content in (("entries=1", zeros), ("ratio=1", gz(zeros)), ("tail_bytes=1K", zeros)):
        done = take(store, "--limit", limit, "--json", stdin=content)
        assert done.returncode == 4
        error = json.loads(done.stdout)["error"]
        assert (error["code"], error["context"]["limit"]) == ("host-limit", limit.partition("=")[0])
    assert files(store) == []
    raised = ("--limit", "ratio=2K", "--limit", "entries=2")
    assert take(store, *raised, stdin=gz(zeros)).returncode == 0
    expect(run("import", "--as", "d", "--root", "/w", "--limit", "ratio=0", "--json"), 2, "options", "ratio=0")
    expect(run("import", "--as", "d", "--root", "/w", "--limit", "nothing=1", "--json"), 2, "options", "nothing=1")


def test_options(store: Path, tmp_path: Path) -> None:
    expect(run("import", "--root", "/work", "--json"), 2, "options", "--as demo")
    expect(run("import", "--as", "demo", "--json"), 2, "options", "--root /workspace")
    expect(run("import", "--as", "demo", "--root", "work", "--json"), 2, "options", "no absolute path")
    expect(run("import", "--as", "..", "--root", "/work", "--json", "--store", store), 2, "name")
    expect(run("import", "--as", "d", "--root", "/w", "--compression", "lzo", "--json"), 2, "options", "lzo")
    expect(run("import", tmp_path / "none.tar", "--as", "d", "--root", "/w", "--json"), 2, "options", "No such file")
    expect(run("import", tmp_path, "--as", "d", "--root", "/w", "--json"), 2, "options", "directory")
    assert not store.exists()


def test_prefix_and_compression(store: Path) -> None:
    content = archive(Member(b"work/a", b"1"))
    assert take(store, "--prefix", ".", stdin=content).returncode == 0
    assert run("ls", "demo", "--store", store, "--json").objects[0]["path"] == "work"
    assert take(store, stdin=content).returncode == 0
    assert run("ls", "demo", "--store", store, "--json").objects[0]["path"] == "a"
    odd = archive(Member(b"\x1f\x8b", b"1"))
    assert take(store, stdin=odd).returncode == 4
    assert take(store, "--compression", "none", stdin=odd).returncode == 0


def test_terminal_is_refused() -> None:
    ours, theirs = pty.openpty()
    try:
        words = [PROGRAM, "import", "--as", "demo", "--root", "/work"]
        done = subprocess.run(words, stdin=theirs, capture_output=True, env=environment(), timeout=60, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert b"not read from a terminal" in done.stderr
    assert b"hint: name a file, or send it: docker cp c1:/work - |" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt(number: signal.Signals, status: int, store: Path) -> None:
    words = [PROGRAM, "import", "--as", "demo", "--root", "/work", "--store", str(store)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None
        process.stdin.write(CONTENT[:2048])
        process.stdin.flush()
        end = time.monotonic() + 20
        while not (store / "format").exists() and time.monotonic() < end:
            time.sleep(0.02)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == status
        assert time.monotonic() - began < 2
    assert files(store) == []


def test_timeout(store: Path) -> None:
    words = [PROGRAM, "import", "--as", "demo", "--root", "/work", "--store", str(store), "--timeout", "0.5", "--json"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.wait(20) == 1
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["error"]["code"] == "deadline"


def test_named_pipe(store: Path, tmp_path: Path) -> None:
    """A pipe may be opened before anybody writes to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = [PROGRAM, "import", str(pipe), "--as", "demo", "--root", "/work", "--store", str(store)]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE) as process:
        time.sleep(0.5)
        assert process.poll() is None
        pipe.write_bytes(CONTENT)
        assert process.wait(20) == 0


def test_progress_and_warnings(store: Path) -> None:
    attributes = archive(Member(b"f", b"1", pax={b"SCHILY.xattr.user.k": b"v", b"SCHILY.fflags": b"schg"}))
    done = take(store, "-v", stdin=attributes)
    assert done.returncode == 0
    assert b"warning: attributes of members are not kept: SCHILY.fflags (1), SCHILY.xattr (1)" in done.stderr
    assert b"read 0." in done.stderr
