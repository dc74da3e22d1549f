"""The values that sandlift takes and the events it tells: frozen, typed, the same for the library and the command line.

What it gives is in `results`, which is not needed before there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["complete", "incomplete"]

Codec = Literal["auto", "zstd", "zlib", "none"]
"""How content is compressed on its way out of a sandbox; ``auto`` takes what is there and what the link calls for."""

POLICY_VERSION = 1
"""The version of the capture policy: what is kept, what is left out, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a capture leaves out by the user's own wish; nothing by default."""

    patterns: tuple[tuple[bytes, bytes], ...] = ()
    """(line in gitignore's language, the place it came from), in order; the last match wins."""
    paths: tuple[bytes, ...] = ()
    """Literal paths below the root; never globs."""
    caches: bool = False
    """Leave out directories that a CACHEDIR.TAG marks."""
    ignore_file: bool = True
    """Read ``.sandliftignore`` at the root."""

    def described(self) -> tuple[str, ...]:
        """The rules as text, for the record of a capture."""
        lines = [f"{_text(line)} ({_text(place)})" for line, place in self.patterns]
        lines += [f"{_text(path)} (--exclude-path)" for path in self.paths]
        if self.caches:
            lines.append("CACHEDIR.TAG (--exclude-caches)")
        return tuple(lines)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


Mode = Literal["new", "replace", "exact", "merge"]
"""How a restore treats what is at its target: see `RestoreOptions`."""
GitTreatment = Literal["keep", "inert", "drop"]
"""What becomes of git repositories in a restored tree: as they were, without what could run, or without ``.git``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """How a snapshot is set down.

    Modes: *new*, the target is absent or empty; *replace*, the tree is built beside the target and exchanged with
    it; *exact*, in place, and afterwards the tree equals the snapshot; *merge*, in place, and nothing is deleted.
    """

    mode: Mode = "new"
    paths: tuple[bytes, ...] = ()
    """Only these paths and what is below them; all when empty."""
    owner: str | None = None
    """``keep``, ``UID``, ``UID:GID`` or a user's name there; None leaves all to who restores."""
    special_bits: bool = False
    """Restore setuid, setgid and sticky bits."""
    relink: tuple[bytes, ...] = ()
    """Globs of absolute targets: recorded outside links that match are put back."""
    git: GitTreatment = "keep"
    no_links: bool = False
    """Leave out symbolic links."""
    discard_excluded: bool = False
    """Let *replace* remove what the snapshot does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One step of a run, for whoever watches it.

    ``phase`` is connect, scan, read, store, plan, write, or the last one, end.  Counts are so far, totals None
    while they are unknown; ``rate`` is content bytes a second since the phase began.
    """

    kind: Literal["progress", "warning", "end"]
    phase: str
    seconds: float
    """Since the run began."""
    entries: int = 0
    bytes: int = 0
    total_entries: int | None = None
    total_bytes: int | None = None
    rate: float = 0.0
    message: str = ""
    detail: str = ""
    """Longer text that a warning is about: lines that the sandbox printed, without control characters."""
    durations: Mapping[str, float] = field(default_factory=dict)
    """Phase to seconds, in the end event."""
