"""Runs the console program as its users do, and makes the trees and broken interpreters of its tests."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).parent / "sandlift")
TIMEOUT_S = 60
# Compiled once for all runs, and not into the source tree.
_COMPILED = tempfile.TemporaryDirectory(prefix="sl-pyc-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a run of the program gave."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def err(self) -> str:
        return self.stderr.decode()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The objects on stdout, one a line and nothing else."""
        assert not self.stdout or self.stdout.endswith(b"\n")
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def object(self) -> dict[str, Any]:
        """The one object on stdout."""
        (found,) = self.objects
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The error object on stdout, which is all that there is, on stderr too."""
        assert self.err == ""
        found = self.object
        assert list(found) == ["schema", "error"]
        assert found["schema"] == 1
        error = found["error"]
        assert list(error) == ["code", "message", "hint", "retryable", "exit", "context"]
        assert error["exit"] == self.status
        return dict(error)


def environment(**changes: str | None) -> dict[str, str]:
    """Our environment without settings of sandlift's or of the terminal, with *changes*; None removes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SANDLIFT_", "_SANDLIFT_"))}
    for name in ("PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES", "SSH_AUTH_SOCK", "NO_COLOR", "FORCE_COLOR"):
        kept.pop(name, None)
    wanted = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "SANDLIFT_CONFIG": "", "PYTHONPYCACHEPREFIX": _COMPILED.name, **changes}
    return {**kept, **{name: value for name, value in wanted.items() if value is not None}}


def run(
    *words: str | bytes | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: bytes = b"",
    stdout: Any = subprocess.PIPE,
    prefix: Sequence[str] = (),
) -> Done:
    """Runs ``sandlift WORDS`` to its end."""
    done = subprocess.run(
        [*prefix, PROGRAM, *map(os.fsencode, words)],
        cwd=cwd,
        env=environment(**(env or {})),
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Done(status=done.returncode, stdout=done.stdout or b"", stderr=done.stderr)


def run_on_terminal(*words: str | bytes | Path, columns: int = 80, env: Mapping[str, str | None] | None = None) -> Done:
    """Runs ``sandlift WORDS`` with a terminal for stdout and stderr; both come back as ``stdout``."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [PROGRAM, *map(os.fsencode, words)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm-256color", **(env or {})),
        start_new_session=True,
    )
    os.close(theirs)
    shown = bytearray()
    end = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    data = os.read(ours, 65536)
                except OSError:
                    break
                if not data:
                    break
                shown += data
        return Done(status=process.wait(10), stdout=bytes(shown), stderr=b"")
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def expect(done: Done, status: int, code: str, *words: str) -> dict[str, object]:
    """The error object, which must be of that code and say these words."""
    assert done.status == status, done
    error = done.error
    assert error["code"] == code
    for word in words:
        assert word in error["message"] + " " + error["hint"]
    return error


def descendants(pid: int) -> set[int]:
    """All processes that *pid* has started and that still run, their children too."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def store_files(store: Path) -> dict[str, bytes]:
    """Every file of a store with its content."""
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def make_workspace(root: Path) -> Path:
    """A small tree with one of everything that the commands show."""
    (root / "src" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a.txt").write_bytes(b"first file\n")
    (root / "a.txt").chmod(0o640)
    os.utime(root / "a.txt", ns=(0, 1_500_000_000_123_456_789))
    os.link(root / "a.txt", root / "src" / "same")
    (root / "src" / "main.py").write_bytes(b"print('hello')\n" * 100)
    (root / "src" / "deep" / "data").write_bytes(bytes(range(256)) * 8192 + b"end")
    (root / "src.log").write_bytes(b"log\n")
    os.symlink("src/main.py", root / "inside")
    os.symlink(str(root / "a.txt"), root / "rebased")
    os.symlink("/etc/passwd", root / "outside")
    os.mkfifo(root / "fifo")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_bytes(b"latin\n")
    with open(root / "sparse", "wb") as file:
        file.seek(3 << 20)
        file.write(b"tail")
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A workspace and a store, and a way to run commands on them."""

    root: Path
    store: Path

    @classmethod
    def make(cls, folder: Path) -> Place:
        """A new workspace, and the place of a store that is not there yet."""
        return cls(root=make_workspace(folder / "work"), store=folder / "store")

    def run(self, *words: str | bytes | Path, env: Mapping[str, str | None] | None = None) -> Done:
        """Runs a command on this store."""
        return run(*words, env={"SANDLIFT_STORE": str(self.store), **(env or {})})
