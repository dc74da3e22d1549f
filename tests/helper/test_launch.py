"""The helper as it runs in a sandbox: on every interpreter, beside hostile files, on strange descriptors."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helper.drive import CREDIT, HELPER_FOLDER, TIMEOUT_S, Outcome, make_workspace, request, run

import sandlift_helper
from sandlift import payload
from sandlift.limits import DEFAULT_LIMITS
from sandlift.session import End, Event, Failure, Session
from support.pythons import PYTHONS, Interpreter

every_python = pytest.mark.parametrize("python", PYTHONS, ids=str)
OLDEST, NEWEST = PYTHONS[0], PYTHONS[-1]
both_ends = pytest.mark.parametrize("python", [OLDEST, NEWEST], ids=str)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("launch") / "w"
    root.mkdir()
    make_workspace(root)
    return root


@pytest.fixture(scope="module")
def identity(workspace: Path) -> bytes:
    """The workspace's identity, by the helper's files run in place on this test's own interpreter."""
    code = f"import sys; sys.path.insert(0, {str(HELPER_FOLDER)!r}); import runpy; sys.argv[0] = 'sandlift_helper'"
    code += "; runpy.run_module('sandlift_helper', run_name='__main__')"
    argv = [sys.executable, "-I", "-S", "-c", code, "NONCE"]
    outcome = run(argv, request(workspace), with_opening=False)
    assert outcome.status == 0, outcome.stderr
    return outcome.manifest.identity


def test_the_fixture_has_something_of_everything(workspace: Path) -> None:
    manifest = run(payload.local_argv(sys.executable), request(workspace)).manifest
    counts = manifest.counts
    assert (counts.files, counts.directories, counts.links, counts.excluded) == (208, 4, 2, 2)
    assert len(manifest.rows.positions) == 1
    assert sorted(set(manifest.rows.groups)) == [0, 1]
    assert manifest.rows.originals.count(os.fsencode(workspace / "d")) == 1
    assert b"not \xff text" in manifest.rows.paths


@every_python
def test_the_installed_modules_give_the_same_identity(python: Interpreter, workspace: Path, identity: bytes) -> None:
    outcome = run(payload.local_argv(python.path), request(workspace), installed=True)
    assert (outcome.noise, outcome.stderr, outcome.status, outcome.complete) == (b"", b"", 0, True)
    assert outcome.manifest.identity == identity


@pytest.mark.parametrize("keeps", [True, False])
def test_compiled_modules_are_kept_where_the_host_keeps_its_own(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    package = tmp_path / os.fsdecode(b"not \xff text") / "sandlift_helper"
    shutil.copytree(HELPER_FOLDER / "sandlift_helper", package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sandlift_helper, "__path__", [str(package)])
    monkeypatch.setattr(sys, "dont_write_bytecode", not keeps)
    outcome = run(payload.local_argv(sys.executable), request(workspace), installed=True)
    assert (outcome.stderr, outcome.complete) == (b"", True)
    assert (package / "__pycache__").exists() == keeps


def test_modules_in_an_archive_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandlift_helper, "__path__", ["/archive.zip/sandlift_helper"])
    assert payload.local_opening(b"n" * 16, "capture") == payload.opening(b"n" * 16, "capture")


@every_python
def test_the_same_identity_on_every_python(python: Interpreter, workspace: Path, identity: bytes) -> None:
    outcome = run(payload.local_argv(python.path), request(workspace))
    assert (outcome.noise, outcome.stderr, outcome.status, outcome.complete) == (b"", b"", 0, True)
    assert outcome.manifest.identity == identity


@every_python
def test_the_files_themselves_on_every_python(python: Interpreter, workspace: Path, identity: bytes) -> None:
    argv = [python.path, "-S", "-B", "-m", "sandlift_helper", "NONCE"]
    outcome = run(argv, request(workspace), with_opening=False, cwd=HELPER_FOLDER)
    assert (outcome.stderr, outcome.status) == (b"", 0)
    assert outcome.manifest.identity == identity


@pytest.mark.parametrize("codec", ["none", "zlib", "zstd"])
@both_ends
def test_the_same_identity_with_every_codec(python: Interpreter, codec: str, workspace: Path, identity: bytes) -> None:
    outcome = run(payload.local_argv(python.path), request(workspace, codecs=[codec]))
    assert outcome.manifest.identity == identity


@pytest.mark.parametrize("env", [{}, {"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LC_ALL": "C.UTF-8"}], ids=str)
@both_ends
def test_names_are_bytes_in_every_locale(
    python: Interpreter, env: dict[str, str], workspace: Path, identity: bytes
) -> None:
    outcome = run(payload.local_argv(python.path), request(workspace), env=env)
    assert (outcome.stderr, outcome.status) == (b"", 0)
    assert outcome.manifest.identity == identity


@both_ends
def test_a_failure_s_text_in_every_locale(python: Interpreter, tmp_path: Path) -> None:
    missing = Path(os.fsdecode(os.fsencode(tmp_path) + b"/na\xc3\xafve \xff"))
    outcome = run(payload.local_argv(python.path), request(missing), env={"LC_ALL": "C"})
    (failure,) = outcome.events[1:]
    assert failure == Failure("root-missing", f"{os.fsdecode(os.fsencode(missing))} does not exist", "")
    assert (outcome.status, outcome.stderr) == (0, b"")


# Shadowing.

SHADOWS = """
    abc binascii bz2 codecs collections ctypes encodings enum errno genericpath hashlib heapq importlib io linecache
    lzma mmap os posixpath re select signal site sitecustomize socket stat struct sys tarfile time traceback types
    usercustomize zlib zstandard sandlift sandlift_helper msgpack array
""".split()


def shadowed(root: Path) -> Path:
    """Puts modules into a directory that would leave a trace if they were imported."""
    trace = root.parent / "trace"
    for name in SHADOWS:
        text = f"open({str(trace)!r}, 'a').write({name!r} + ' ')\nraise SystemExit(77)\n"
        (root / f"{name}.py").write_text(text)
    for name in ("sandlift_helper", "encodings", "ctypes", "collections", "importlib"):
        (root / name).mkdir()
        (root / name / "__init__.py").write_text((root / f"{name}.py").read_text())
    (root / "pyvenv.cfg").write_text("home = /nowhere\n")
    (root / "python311._pth").write_text(".\n")
    return trace


@every_python
def test_the_workspace_is_not_the_standard_library(python: Interpreter, tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    trace = shadowed(root)
    env = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONHOME": str(root),
        "PYTHONSTARTUP": str(root / "os.py"),
        "PYTHONINSPECT": "1",
        "PYTHONUSERBASE": str(root),
    }
    outcome = run(payload.local_argv(python.path), request(root), cwd=root, env=env)
    assert not trace.exists(), trace.read_text()
    assert (outcome.stderr, outcome.status) == (b"", 0)
    assert outcome.manifest.counts.files == len(SHADOWS) + 5 + 2


def test_the_trap_would_work(tmp_path: Path) -> None:
    """Without its options the interpreter does import from the folder that it is started in."""
    trace = shadowed(tmp_path)
    subprocess.run([sys.executable, "-c", "import tarfile"], cwd=tmp_path, capture_output=True, check=False)
    # Python 3.13 takes linecache before that, and from there as well.
    assert {"tarfile", "linecache"} & set(trace.read_text().split())


# What goes wrong inside.


def altered(module: str, text: str) -> dict[str, bytes]:
    """The sources of a bundle with one module changed by something that goes before it."""
    sources = dict(payload.sources())
    sources[f".{module}"] = text.encode() + sources[f".{module}"]
    return sources


CRASH = "def explode():\n    raise RuntimeError('no such luck')\n\nexplode()\n"


@every_python
def test_a_crash_is_told_with_its_source_lines(python: Interpreter, workspace: Path) -> None:
    outcome = run(payload.local_argv(python.path), request(workspace), sources=altered("capture", CRASH))
    failure = outcome.events[-1]
    assert isinstance(failure, Failure)
    assert failure.code == "helper-crashed"
    assert 'File "<sandlift_helper.capture>.py", line 2, in explode' in failure.report
    assert "    raise RuntimeError('no such luck')\n" in failure.report
    assert failure.report.endswith("RuntimeError: no such luck\n")
    assert (outcome.status, outcome.complete) == (0, True)


@both_ends
def test_a_crash_of_a_worker_is_told_too(python: Interpreter, workspace: Path) -> None:
    text = payload.sources()[".blocks"].decode()
    assert text.count("  digest=sha256(block).digest()\n") == 1
    broken = text.replace("  digest=sha256(block).digest()\n", "  digest = sha256(no_such_name)\n")
    outcome = run(
        payload.local_argv(python.path), request(workspace), sources={**payload.sources(), ".blocks": broken.encode()}
    )
    failure = outcome.events[-1]
    assert isinstance(failure, Failure)
    assert failure.code == "helper-crashed"
    assert failure.message == "a worker of the helper failed"
    assert "    digest = sha256(no_such_name)\n" in failure.report
    assert 'File "<sandlift_helper.blocks>.py"' in failure.report


STRAY = (
    "import os, sys\nprint('stray print')\nsys.stdout.flush()\nos.write(1, b'stray write\\n')\n"
    "os.system('echo stray command')\nprint('to the original', file=sys.__stdout__, flush=True)\n"
    "assert not os.read(0, 1)\n"
)


@every_python
def test_what_is_printed_does_not_enter_the_stream(python: Interpreter, workspace: Path, identity: bytes) -> None:
    outcome = run(payload.local_argv(python.path), request(workspace), sources=altered("capture", STRAY))
    assert outcome.manifest.identity == identity
    lines = outcome.stderr.decode().splitlines()
    assert sorted(lines) == ["stray command", "stray print", "stray write", "to the original"]


def test_a_request_that_makes_no_sense(workspace: Path) -> None:
    wrong = {"root": "text", "codecs": None, "patterns": [b"x"], "limits": [], "silence_ms": None, "own": ["text"]}
    for key, value in wrong.items():
        outcome = run(payload.local_argv(sys.executable), {**request(workspace), key: value})
        failure = outcome.events[-1]
        assert isinstance(failure, Failure), key
        assert failure.code == "protocol", (key, failure)


# Descriptors.


@contextmanager
def strange_pipes(kind: str) -> Iterator[tuple[int, int, int, int]]:
    """(the helper's stdin, its stdout, our end for writing, our end for reading)"""
    if kind == "one socket for both":
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield theirs.fileno(), theirs.fileno(), ours.fileno(), ours.fileno()
        return
    if kind == "two sockets":
        our_in, their_in = socket.socketpair()
        our_out, their_out = socket.socketpair()
        with our_in, their_in, our_out, their_out:
            yield their_in.fileno(), their_out.fileno(), our_in.fileno(), our_out.fileno()
        return
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    if kind == "non-blocking stdout":
        os.set_blocking(out_write, False)
    try:
        yield in_read, out_write, in_write, out_read
    finally:
        for fd in (in_read, in_write, out_read, out_write):
            os.close(fd)


@pytest.mark.parametrize("kind", ["one socket for both", "two sockets", "non-blocking stdout", "pipes"])
@both_ends
def test_kinds_of_descriptors(python: Interpreter, kind: str, workspace: Path, identity: bytes) -> None:
    session = Session("capture", DEFAULT_LIMITS)
    output = bytearray()
    with strange_pipes(kind) as (their_in, their_out, our_in, our_out):
        process = subprocess.Popen(
            payload.local_argv(python.path), stdin=their_in, stdout=their_out, stderr=subprocess.PIPE
        )
        with process:
            opening = payload.opening(session.nonce, "capture") + session.request(request(workspace))
            opening += session.grant(CREDIT)
            writer = threading.Thread(target=_write, args=(our_in, opening))
            writer.start()
            # Slower than the helper at first, so that its output is full more than once.
            events: list[Event] = []
            while not (events and type(events[-1]) in (End, Failure)):
                if len(output) < 1 << 18:
                    threading.Event().wait(0.02)
                piece = os.read(our_out, 1 << 15)
                assert piece, process.stderr and process.stderr.read()
                output += piece
                events += session.receive(piece)
            writer.join()
            assert process.wait(TIMEOUT_S) == 0
            assert process.stderr is not None
            stderr = process.stderr.read()
    outcome = Outcome(events=events, noise=session.noise, stderr=stderr, status=0, complete=session.ended())
    assert stderr == b""
    assert outcome.manifest.identity == identity


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def test_no_stderr_at_all(workspace: Path, identity: bytes) -> None:
    """A closed stderr must not become the number of something else."""
    command = 'exec "$0" "$@" 2>&-'
    outcome = run(["sh", "-c", command, *payload.local_argv(sys.executable)], request(workspace))
    assert outcome.manifest.identity == identity


# cases: paperclipai/paperclip#9814, paperclipai/paperclip#12187
def test_no_file_is_left_behind(workspace: Path, tmp_path: Path) -> None:
    """Nothing is written in the sandbox, wherever a program usually writes."""
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    before = [(path, path.lstat().st_mtime_ns) for path in sorted(workspace.rglob("*"))]
    outcome = run(payload.local_argv(sys.executable), request(workspace), cwd=tmp_path, env=env)
    assert outcome.manifest.counts.files == 208
    assert list(tmp_path.iterdir()) == []
    assert [(path, path.lstat().st_mtime_ns) for path in sorted(workspace.rglob("*"))] == before
