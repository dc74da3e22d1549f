"""Runs commands as whole processes, and samples the memory of what they start."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmark import BenchError
from benchmark.machine import descendants_of

Command = list[str] | str
STEP_TIMEOUT_S = 1_800
SAMPLE_S = 0.02
KIB = 1024


class CommandError(BenchError):
    """A command failed; the text holds what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a command took, and what it wrote to stdout."""

    wall_s: float
    stdout: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks of proportional set sizes, each summed over its processes at one instant."""

    helper_bytes: int
    host_bytes: int
    samples: int


def run(command: Command, *, env: Mapping[str, str] | None = None, sampler: Sampler | None = None) -> Finished:
    """Run a command, or a pipeline if it is text.  Raises CommandError with its stderr when it fails."""
    argv = ["bash", "-o", "pipefail", "-c", command] if isinstance(command, str) else command
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                argv, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
            )
        except FileNotFoundError as error:
            raise CommandError(f"{argv[0]} is missing: scripts/setup --services") from error
        with process, sampler.watching(process.pid) if sampler else contextlib.nullcontext():
            try:
                await_end(process.pid, STEP_TIMEOUT_S)
                wall_s = time.monotonic() - started
                status = process.wait()
            except BaseException as error:
                for pid in (*descendants_of(process.pid), process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if isinstance(error, TimeoutError):
                    raise CommandError(f"after {STEP_TIMEOUT_S} s still running: {command}") from error
                raise
        out.seek(0)
        errors.seek(0)
        if status != 0:
            text = (errors.read() + out.read(4096)).decode(errors="replace").strip()
            raise CommandError(f"exit status {status}: {command}\n{text[-2000:]}")
        return Finished(wall_s=wall_s, stdout=out.read())


def await_end(pid: int, timeout_s: float) -> None:
    """Wait for the end of a child to the millisecond: `subprocess` looks only every 50 ms.  Raises TimeoutError."""
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], timeout_s)[0]:
            raise TimeoutError
    finally:
        os.close(fd)


class Sampler:
    """Reads memory every 20 ms while a command runs: of the command itself, and of the helpers it has started.

    A helper is a Python without its site folder (``-S``), which nothing else here starts: below the command for a
    target on this machine, below the ssh server for one in a sandbox.
    """

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._pid = 0
        self._peak = {"helper": 0, "host": 0}
        self._samples = 0

    @property
    def memory(self) -> Memory:
        return Memory(helper_bytes=self._peak["helper"], host_bytes=self._peak["host"], samples=self._samples)

    @contextlib.contextmanager
    def watching(self, pid: int) -> Iterator[None]:
        """Sample from another thread until the block ends."""
        self._pid = pid
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(SAMPLE_S):
            self.sample()

    def sample(self) -> None:
        """Take one look, and keep what is larger than all before."""
        sums = {"helper": 0, "host": 0, "other": 0}
        for pid in (self._pid, *descendants_of(self._pid), *descendants_of(self._server_pid)):
            with contextlib.suppress(OSError):
                role = role_of(Path(f"/proc/{pid}/cmdline").read_bytes(), is_command=pid == self._pid)
                if role != "other":
                    sums[role] += pss_bytes(Path(f"/proc/{pid}/smaps_rollup").read_text())
        self._samples += 1
        for role, peak in self._peak.items():
            self._peak[role] = max(peak, sums[role])


def role_of(command_line: bytes, *, is_command: bool) -> str:
    """``helper``, ``host`` or ``other``, by the words of a process as the kernel shows them."""
    words = command_line.split(b"\0")
    if b"python" in os.path.basename(words[0]) and b"-S" in words:
        return "helper"
    return "host" if is_command else "other"


def pss_bytes(text: str) -> int:
    """The proportional set size in the text of smaps_rollup."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * KIB
    return 0
