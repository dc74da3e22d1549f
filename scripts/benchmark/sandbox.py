"""The sandbox of the measurements, an sshd of our own on loopback, and the command lines that reach it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmark import BIN, ROOT, BenchError
from benchmark.processes import run

if TYPE_CHECKING:
    from support.sshd import Sshd

SYSTEM_PYTHON = "/usr/bin/python3"
WANTED_FLAGS = ("--base", "--like", "--rehash", "--codec", "--level")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Where commands go, and what they need in their environment."""

    ssh: Path
    """A program that is ssh with this server's keys and port."""
    account: str
    server_pid: int
    place: Path
    _sshd: Sshd

    @property
    def environment(self) -> dict[str, str]:
        """For every command: our ssh, and nothing of the user's configuration."""
        return {
            "SANDLIFT_SSH": str(self.ssh),
            "SANDLIFT_CONFIG": "",
            "RESTIC_PASSWORD": "bench",
            "RESTIC_CACHE_DIR": str(self.place / "restic-cache"),
            "BORG_BASE_DIR": str(self.place / "borg-base"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }

    def url(self, path: Path) -> str:
        return self._sshd.url(str(path))

    def remote(self, *words: str) -> str:
        """The text of a command that runs *words* in the sandbox, for a pipeline."""
        return shlex.join([str(self.ssh), self.account, shlex.join(words)])

    def without_zstd(self) -> str:
        """The path of a Python that finds no libzstd.  Raises CommandError where it would find one all the same."""
        folder = self.place / "no-zstd"
        wrapper = folder / "python3"
        if not wrapper.exists():
            folder.mkdir()
            for name in ("libzstd.so.1", "libzstd.so"):
                # The loader meets this first, and gives up at what is no library.
                (folder / name).write_text("no library\n")
            wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={folder} exec {SYSTEM_PYTHON} "$@"\n')
            wrapper.chmod(0o755)
        code = "import ctypes\ntry: ctypes.CDLL('libzstd.so.1')\nexcept OSError: pass\nelse: raise SystemExit('found')"
        run([str(wrapper), "-I", "-S", "-c", code])
        return str(wrapper)


@contextlib.contextmanager
def started(place: Path) -> Iterator[Sandbox]:
    """Run a server until the block ends."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.sshd import Sshd

    # An account's shell start-up files are not what is compared: bash leaves them out at this depth.
    with Sshd(config=["SetEnv SHLVL=1"]) as sshd:
        ssh = place / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec ssh {shlex.join(sshd.ssh_options)} -p {sshd.port} "$@"\n')
        ssh.chmod(0o700)
        yield Sandbox(
            ssh=ssh,
            account=f"{sshd.user}@{urlsplit(sshd.url('/')).hostname}",
            server_pid=int((sshd.folder / "pid").read_text()),
            place=place,
            _sshd=sshd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The command lines of sandlift, and which options its capture knows."""

    flags: frozenset[str]

    @classmethod
    def found(cls) -> Program:
        """Ask the installed program for its options."""
        return cls(flags=option_names(run([str(BIN / "sandlift"), "capture", "--help"]).stdout.decode()))

    @property
    def missing(self) -> list[str]:
        return [flag for flag in WANTED_FLAGS if flag not in self.flags]

    def capture(self, store: Path, target: str, *options: str, name: str = "bench") -> list[str]:
        words = ["capture", "--json", "--store", str(store), "--as", name]
        return [str(BIN / "sandlift"), *words, *options, target]

    def restore(self, store: Path, target: str, *options: str, ref: str = "bench") -> list[str]:
        return [str(BIN / "sandlift"), "restore", "--json", "--store", str(store), *options, ref, target]


def option_names(help_text: str) -> frozenset[str]:
    """The long options that a help text lists."""
    return frozenset(re.findall(r"^\s+(?:-\w, )?(--[a-z][a-z-]*)", help_text, re.MULTILINE))


# What a contestant says about the bytes it moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes on the wire, seen from the host."""

    sent: int
    received: int

    @property
    def total(self) -> int:
        return self.sent + self.received


def sandlift_traffic(output: bytes) -> Traffic:
    """From the answer of ``capture --json`` or ``restore --json``."""
    wire = json.loads(output)["wire"]
    return Traffic(sent=wire["sent"], received=wire["received"])


def rsync_traffic(output: bytes) -> Traffic:
    """From what ``rsync --stats`` prints, whose numbers are grouped by commas or, in some locales, by points."""
    found = {}
    for way in ("sent", "received"):
        match = re.search(rb"^Total bytes " + way.encode() + rb": ([\d,.]+)", output, re.MULTILINE)
        if match is None:
            raise BenchError(f"rsync --stats told no bytes {way}")
        found[way] = int(re.sub(rb"\D", b"", match[1]))
    return Traffic(sent=found["sent"], received=found["received"])


def rsync(sandbox: Sandbox, source: Path, destination: Path, *options: str) -> list[str]:
    """The command that copies a tree out of the sandbox."""
    words = ["rsync", "-a", "--stats", *options, "-e", str(sandbox.ssh)]
    return [*words, f"{sandbox.account}:{source}/", f"{destination}/"]


def check_equal(tree: Path, restored: Path) -> None:
    """Raises BenchError unless content, modes, times, links and owners are those of ``tree``."""
    command = ["rsync", "-a", "-n", "-c", "-i", "--delete", f"{tree}/", f"{restored}/"]
    lines = run(command).stdout.decode(errors="replace").splitlines()
    if lines:
        raise BenchError(f"what was restored is not what was captured, {len(lines)} entries: " + "; ".join(lines[:5]))
