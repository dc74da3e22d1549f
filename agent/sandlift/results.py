"""The values that sandlift gives: frozen, typed, the same for the library and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandlift.model import Mode, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much a snapshot holds.  Files and links count names; bytes are apparent sizes, hard links once."""

    directories: int = 0
    files: int = 0
    links: int = 0
    bytes: int = 0
    excluded: int = 0
    """Left out by policy, or lost."""
    lost: int = 0
    changed: int = 0
    vanished: int = 0

    @property
    def outcome(self) -> Outcome:
        """Incomplete when something was lost; what changed or vanished does not count."""
        return "incomplete" if self.lost else "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Bytes that a run moved over the transport."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a capture gave."""

    snapshot: str
    """The snapshot's identity, 64 hex digits."""
    content: str
    """Digest of paths, kinds, execute bits, bytes and link texts alone: equal on any sandbox."""
    ref: str
    workspace: str
    number: int
    outcome: Outcome
    reused: bool
    """Whether the store had this snapshot before."""
    created: str
    """RFC 3339 in UTC."""
    source: str
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    counts: Counts
    wire: Wire
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that a restore does, or leaves undone, at one path."""

    action: Literal["create", "replace", "update", "remove", "leave"]
    """``update`` sets mode, time or owner only; ``leave`` keeps something as it is, or does not make it."""
    path: bytes
    """Relative to the target; empty for the target itself."""
    kind: str
    """A name of `table.KIND_NAMES`."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCounts:
    """How many entries a restore created, replaced, updated, removed, and left as they were."""

    created: int = 0
    replaced: int = 0
    updated: int = 0
    removed: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lossy:
    """What a restore could not, or was asked not to, bring back as it was recorded; counts of entries."""

    links_copied: int = 0
    """Hard links that became copies because the target has none."""
    bits_dropped: int = 0
    """Entries whose setuid, setgid or sticky bits were not set."""
    owners_refused: int = 0
    """Entries that could not be given the owner that was asked for."""
    links_left: int = 0
    """Symbolic links that were left out: ``no_links``, or no longer safe beside a link that was put back."""
    git_changed: int = 0
    """Entries of git repositories that were left out or made harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What a restore did, or with ``dry_run`` would do."""

    ref: str | None
    """The name of the capture, or None when the snapshot was named by its identity."""
    snapshot: str
    target: str
    mode: Mode = "new"
    dry_run: bool = False
    outcome: Outcome
    """The restored snapshot's own outcome."""
    counts: RestoreCounts
    lossy: Lossy = field(default_factory=Lossy)
    actions: tuple[Action, ...] = ()
    """All of them for a dry run; else only what was left."""
    excluded: int = 0
    """Rows that the capture had left out, and that are not there now."""
    wire: Wire
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a capture would find in a sandbox."""

    target: str
    python_path: str
    python_version: str
    codecs: tuple[str, ...]
    root: bytes
    filesystem: str
    entries: int
    largest: tuple[tuple[bytes, int], ...]
    """(path, size in bytes), largest first."""
    would_exclude: Mapping[str, int]
    """Reason to number of entries, for what policy leaves out."""
    would_lose: Mapping[str, int]
    """Reason to number of entries, for what would be lost."""
    noise: bytes
    """What the sandbox printed before the stream."""
    bytes: int
