"""The line that finds a Python, the text that it runs there, and what an incomplete payload ends with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandlift import payload
from sandlift.limits import DEFAULT_LIMITS
from sandlift.session import Hello, Session
from sandlift.transports.base import Capabilities, shell_command
from sandlift_helper import wire
from support.pythons import PYTHONS, Interpreter

NONCE = bytes(range(16))
TIMEOUT_S = 20
ANY = Capabilities(duplex=True, max_argument_bytes=8000, max_command_bytes=8000, max_call_s=None, link_cost="cheap")
SHELLS = [name for name in ("sh", "bash", "dash", "zsh", "csh", "tcsh", "fish", "ksh", "mksh") if shutil.which(name)]


def fake(folder: Path, name: str, body: str) -> None:
    """An interpreter that notes its being tried."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho {name} >>"{folder}/tried"\n{body}\n')
    path.chmod(0o755)


def real(folder: Path, name: str) -> None:
    fake(folder, name, f'exec "{sys.executable}" "$@"')


def find(folder: Path, data: bytes = b"", python: str | None = None) -> tuple[int, list[str], bytes]:
    """Runs the line where *folder* is all there is; returns exit status, what was tried, and the output."""
    argv = payload.sandbox_argv(python)
    for path in (name for name in payload.PYTHONS if name.startswith("/")):
        # Where the system's own interpreters would be.
        assert python or path in argv[2]
        argv[2] = argv[2].replace(path, f"{folder}/{path.replace('/', '-')}")
    shell = shutil.which("sh")
    assert shell is not None
    done = subprocess.run(
        [shell, *argv[1:]], input=data, capture_output=True, env={"PATH": str(folder)}, timeout=TIMEOUT_S, check=False
    )
    assert b"not found" not in done.stderr
    tried = (folder / "tried").read_text().split() if (folder / "tried").exists() else []
    return done.returncode, tried, done.stdout


class TestSearch:
    def test_the_order(self, tmp_path: Path) -> None:
        order = [name.replace("/", "-") for name in payload.PYTHONS]
        assert order[:4] == ["-usr-bin-python3", "python3", "python", "python3.13"]
        assert order[-2:] == ["python3.6", "-usr-libexec-platform-python"]
        for name in order:
            fake(tmp_path, name, "exit 96")
        assert find(tmp_path) == (wire.EXIT_PYTHON_OLD, order, b"")

    # cases: konica/ai-sandbox-manager#90
    def test_no_python(self, tmp_path: Path) -> None:
        assert find(tmp_path) == (wire.EXIT_NO_PYTHON, [], b"")

    def test_a_python_that_was_named(self, tmp_path: Path) -> None:
        real(tmp_path, "python3")
        assert find(tmp_path, python="python4") == (wire.EXIT_NO_PYTHON, [], b"")
        assert find(tmp_path, python="python3") == (wire.EXIT_SHORT_PAYLOAD, ["python3"], b"")

    @pytest.mark.parametrize("status", [2, 96])
    def test_only_old_ones(self, tmp_path: Path, status: int) -> None:
        fake(tmp_path, "python", f"exit {status}")
        assert find(tmp_path) == (wire.EXIT_PYTHON_OLD, ["python"], b"")

    @pytest.mark.parametrize("status", [126, 127])
    def test_only_ones_that_cannot_run(self, tmp_path: Path, status: int) -> None:
        fake(tmp_path, "python", f"exit {status}")
        assert find(tmp_path) == (wire.EXIT_NO_PYTHON, ["python"], b"")

    def test_a_file_that_is_no_program(self, tmp_path: Path) -> None:
        (tmp_path / "python3").write_bytes(b"\x7fELF nothing of the kind")
        (tmp_path / "python3").chmod(0o755)
        (tmp_path / "python").symlink_to(tmp_path / "nowhere")
        real(tmp_path, "python3.9")
        assert find(tmp_path) == (wire.EXIT_SHORT_PAYLOAD, ["python3.9"], b"")

    @pytest.mark.parametrize("status", [2, 96, 126, 127])
    def test_the_next_one_is_taken(self, tmp_path: Path, status: int) -> None:
        fake(tmp_path, "python3", f"exit {status}")
        real(tmp_path, "python3.8")
        status_found, tried, output = find(tmp_path, payload.opening(NONCE, "capture"))
        assert tried == ["python3", "python3.8"]
        assert output.startswith(wire.MAGIC + NONCE), "the input was not left for the second one"
        assert status_found == wire.EXIT_HOST_GONE

    @pytest.mark.parametrize("status", [0, 1, 3, 94, 95, 134, 139])
    def test_any_other_end_is_the_end(self, tmp_path: Path, status: int) -> None:
        fake(tmp_path, "python3", f"exit {status}")
        real(tmp_path, "python")
        assert find(tmp_path)[:2] == (status, ["python3"])

    def test_an_old_python_says_so_itself(self) -> None:
        code = payload.START.replace("(3,6)", "(99,)")
        assert code != payload.START
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], input=b"", timeout=TIMEOUT_S, check=False)
        assert done.returncode == wire.EXIT_PYTHON_OLD


class TestQuoting:
    def test_the_start_has_no_character_that_a_shell_knows(self) -> None:
        assert not set(payload.START) & set("\"'\\$!`\n\t#&*?[]{}~^")
        assert set(payload.sandbox_argv()[2]) & set("'\\!\n`") == set()
        assert len(payload.sandbox_argv()[2].encode()) < 2000

    # cases: fish-shell/fish-shell#3473
    @pytest.mark.parametrize("shell", SHELLS)
    def test_it_survives_every_login_shell(self, shell: str, tmp_path: Path) -> None:
        command = shell_command(payload.sandbox_argv(sys.executable), ANY)
        done = subprocess.run(
            [shell, "-c", command],
            input=payload.opening(NONCE, "capture"),
            capture_output=True,
            cwd=tmp_path,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.stdout.startswith(wire.MAGIC + NONCE), done.stderr
        assert done.returncode == wire.EXIT_HOST_GONE
        assert done.stdout[len(wire.MAGIC + NONCE)] == wire.HELLO

    @pytest.mark.parametrize("shell", SHELLS)
    def test_two_shells_deep(self, shell: str) -> None:
        """As sshd and a command prefix do it: the login shell is given one word, and starts another shell with it."""
        command = shell_command(payload.sandbox_argv(sys.executable), ANY)
        done = subprocess.run(
            [shell, "-c", 'exec sh -c "$0"' if shell not in ("csh", "tcsh", "fish") else command, command],
            input=b"",
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == wire.EXIT_SHORT_PAYLOAD, done.stderr


def run_start(python: str, data: bytes) -> tuple[int, bytes, bytes]:
    done = subprocess.run(payload.local_argv(python), input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def cuts() -> list[int]:
    """Every kind of place at which an opening may end too early."""
    opening = payload.opening(NONCE, "capture")
    first = opening.index(b"\n") + 1
    second = first + len(payload.stage())
    third = opening.index(b"\n", second) + 1
    size_end = opening.index(b" ", second)
    edges = [
        0,
        1,
        first - 1,
        first,
        first + 1,
        second - 1,
        second,
        second + 1,
        size_end,
        size_end + 1,
        third - 1,
        third,
    ]
    return [*edges, len(opening) - 1]


class TestShortPayload:
    # cases: kubernetes/kubernetes#112834, opensandbox-group/OpenSandbox#1016
    @pytest.mark.parametrize("cut", cuts())
    def test_every_kind_of_cut(self, cut: int) -> None:
        assert run_start(sys.executable, payload.opening(NONCE, "capture")[:cut]) == (wire.EXIT_SHORT_PAYLOAD, b"", b"")

    @pytest.mark.parametrize("python", PYTHONS, ids=str)
    def test_on_every_python(self, python: Interpreter) -> None:
        opening = payload.opening(NONCE, "capture")
        for size in (0, len(payload.stage()), len(opening) - 1):
            assert run_start(python.path, opening[:size]) == (wire.EXIT_SHORT_PAYLOAD, b"", b"")

    @pytest.mark.parametrize("python", PYTHONS, ids=str)
    def test_a_whole_payload_and_no_request(self, python: Interpreter) -> None:
        status, output, stderr = run_start(python.path, payload.opening(NONCE, "capture"))
        assert (status, stderr) == (wire.EXIT_HOST_GONE, b"")
        assert output.startswith(wire.MAGIC + NONCE)
        kind, size = output[len(wire.MAGIC + NONCE)], int.from_bytes(output[29:33], "little")
        assert kind == wire.HELLO
        assert len(output) == len(wire.MAGIC + NONCE) + wire.HEADER_SIZE + size

    def test_a_closed_input(self) -> None:
        command = f"exec '{sys.executable}' -I -S -c '{payload.START}' <&-"
        done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode != 0
        assert done.stdout == b""

    # cases: moby/moby#29432, docker/for-linux#108
    def test_a_terminal_is_refused(self) -> None:
        master, slave = os.openpty()
        try:
            done = subprocess.run(
                payload.local_argv(sys.executable), stdin=slave, capture_output=True, timeout=TIMEOUT_S, check=False
            )
        finally:
            os.close(master)
            os.close(slave)
        assert (done.returncode, done.stdout) == (wire.EXIT_TERMINAL, b"")


def test_the_hello_says_what_runs() -> None:
    session = Session("capture", DEFAULT_LIMITS)
    _, output, _ = run_start(sys.executable, payload.opening(session.nonce, "capture"))
    assert session.receive(output) == [Hello("%d.%d.%d" % sys.version_info[:3], sys.executable)]


class TestAlarm:
    def test_a_start_that_gets_stuck_ends_by_itself(self) -> None:
        """The host vanishes without ending the input, before the helper's own watch over it begins."""
        assert f"signal.alarm({payload.START_LIMIT_S})" in payload.START
        start = payload.START.replace(f"signal.alarm({payload.START_LIMIT_S})", "signal.alarm(1)")
        argv = [sys.executable, *payload.PYTHON_OPTIONS, start]
        for begun in (b"", b"5000\nonly a part"):
            with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
                assert helper.stdin is not None
                helper.stdin.write(begun)
                helper.stdin.flush()
                assert helper.wait(TIMEOUT_S) == -signal.SIGALRM
