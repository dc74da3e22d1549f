"""Runs the helper as a program of any interpreter, and plays the host's part by hand."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandlift import payload
from sandlift.content import Prover
from sandlift.gathering import Gathering
from sandlift.limits import DEFAULT_LIMITS
from sandlift.manifest import Manifest
from sandlift.session import Content, End, Event, ManifestSegment, Session
from sandlift_helper import wire

HELPER_FOLDER = Path(wire.__file__).parent.parent
CREDIT = 10_000
TIMEOUT_S = 30


def request(root: Path, **fields: object) -> dict[str, object]:
    """What a capture of *root* asks for."""
    limits = DEFAULT_LIMITS
    given: dict[str, object] = {
        "root": os.fsencode(root),
        "home": False,
        "aliases": [],
        "base": {"firsts": b"", "digests": b"", "instance": b"", "offers": 0},
        "settle_ms": 60_000,
        "trust_ctime": False,
        "own": [],
        "codecs": ["zstd", "zlib", "none"],
        "patterns": [],
        "literals": [],
        "ignore_file": True,
        "exclude_caches": False,
        "silence_ms": 20_000,
        "limits": {
            "entries": limits.entries,
            "path_bytes": limits.path_bytes,
            "depth": limits.depth,
            "link_text_bytes": limits.link_text_bytes,
            "file_bytes": limits.file_bytes,
        },
    }
    return {**given, **fields}


def opening_of(nonce: bytes, sources: Mapping[str, bytes]) -> bytes:
    """As `payload.opening`, for other sources."""
    import zlib

    plain = b"".join(b"%s\0%d\0%s" % (name.encode(), len(text), text) for name, text in sources.items())
    text, modules = payload.stage(), zlib.compress(plain)
    return b"%d\n%s%d %s\n%s" % (len(text), text, len(modules), nonce.hex().encode(), modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of the helper gave."""

    events: list[Event]
    noise: bytes
    stderr: bytes
    status: int
    complete: bool

    @property
    def manifest(self) -> Manifest:
        """The manifest, accepted with all its blocks proved."""
        assert type(self.events[-1]) is End, (self.events[-1], self.stderr)
        gathering, prover = Gathering(DEFAULT_LIMITS), Prover()
        sent: dict[bytes, int] = {}
        for event in self.events:
            if isinstance(event, ManifestSegment):
                gathering.add(prover.unpack_segment(event.payload))
            elif isinstance(event, Content):
                sent.update((digest, size) for digest, _, size in prover.prove(event.payload).blocks)
        return gathering.accept(sent)


def run(
    argv: Sequence[str],
    fields: Mapping[str, object],
    *,
    sources: Mapping[str, bytes] | None = None,
    with_opening: bool = True,
    installed: bool = False,
    operation: str = "capture",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Starts the helper with three pipes, sends opening, request and credit, and reads it to its end.

    Where *with_opening* is False, ``NONCE`` in *argv* stands for the nonce.  With *installed*, the modules are those
    of this machine.
    """
    session = Session(operation, DEFAULT_LIMITS)
    opening = b""
    if installed:
        opening = payload.local_opening(session.nonce, operation)
    elif with_opening:
        opening = payload.opening(session.nonce, operation) if sources is None else opening_of(session.nonce, sources)
    words = [word.replace("NONCE", session.nonce.hex()) for word in argv]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(opening + session.request(fields) + session.grant(CREDIT))
        process.stdin.flush()
        output = process.stdout.read()
        stderr = process.stderr.read()
    events = session.receive(output)
    return Outcome(
        events=events, noise=session.noise, stderr=stderr, status=process.returncode, complete=session.ended()
    )


def make_workspace(root: Path) -> None:
    """A tree with an entry of every kind that is kept, and enough content for several workers."""
    for name in ("d", "d/e", "empty", "many"):
        (root / name).mkdir(parents=True)
    (root / "a.txt").write_bytes(b"hello\n")
    (root / "none").touch()
    (root / "d" / "random").write_bytes(os.urandom(3 << 20))
    (root / "d" / "e" / "text").write_bytes(b"the same words over and over\n" * 60_000)
    for number in range(200):
        (root / "many" / f"{number}").write_bytes(b"%d\n" % number * number)
    with (root / "sparse").open("wb") as file:
        file.truncate(5 << 20)
        file.seek(3 << 20)
        file.write(b"island")
    os.link(root / "a.txt", root / "d" / "hard")
    os.symlink("../a.txt", root / "d" / "link")
    os.symlink(root / "d", root / "absolute")
    os.symlink("/etc/passwd", root / "outside")
    os.mkfifo(root / "pipe")
    Path(os.fsdecode(os.fsencode(root) + b"/not \xff text")).write_bytes(b"x")
    (root / "naïve ☃").write_bytes(b"y")
    os.chmod(root / "none", 0o4711)
    os.utime(root / "none", ns=(1, 1_234_567_890_123_456_789))
