"""What an audit finds, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Severity = Literal["runs-code", "privilege", "secret", "name", "link"]
"""What it could do to a host that opens the tree: run something; give or use a right, or reach out of the tree; give
away a secret; be taken for another name; be missing because it led out of the workspace."""
Category = Literal[
    "git", "editor", "agent", "environment", "packages", "build", "shell", "startup", "access", "modes", "secrets",
    "links", "names",
]  # fmt: skip
"""The area that a finding belongs to."""

SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
DETAIL_MAX: Final = 200
PER_CATEGORY_MAX: Final = 10_000
"""What is found beyond that many in one area is counted only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know before the tree is opened."""

    category: Category
    severity: Severity
    path: bytes
    what: str
    """What it does, and when; ours, never the sandbox's text."""
    detail: bytes = b""
    """What in it says so: at most `DETAIL_MAX` bytes of the sandbox, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All that was found in a snapshot, area by area, each by path."""

    findings: tuple[Finding, ...]
    counts: Mapping[Severity, int] = field(default_factory=dict)
    """How many there are of each severity, those left off included."""
    left_off: int = 0
    """How many findings are counted only, because their area has too many."""
    files_read: int = 0
    """How many files were looked into; those of equal content count each."""
    too_large: int = 0
    """How many files were not, though their names call for it."""


class Gathering:
    """Takes findings as they come, within bounds."""

    def __init__(self) -> None:
        self._found: dict[Category, list[Finding]] = {category: [] for category in CATEGORIES}
        self._counts: dict[Severity, int] = dict.fromkeys(SEVERITIES, 0)
        self._left_off = 0

    def add(self, finding: Finding) -> None:
        """Takes one finding."""
        self._counts[finding.severity] += 1
        found = self._found[finding.category]
        if len(found) < PER_CATEGORY_MAX:
            found.append(finding)
        else:
            self._left_off += 1

    def end(self, *, files_read: int, too_large: int) -> Audit:
        """Returns all of it; equal findings, from two rules about one thing, count once."""
        unique = list(dict.fromkeys(self._sorted()))
        for finding in self._sorted():
            self._counts[finding.severity] -= 1
        for finding in unique:
            self._counts[finding.severity] += 1
        return Audit(
            findings=tuple(unique),
            counts={severity: count for severity, count in self._counts.items() if count},
            left_off=self._left_off,
            files_read=files_read,
            too_large=too_large,
        )

    def _sorted(self) -> Iterator[Finding]:
        for found in self._found.values():
            yield from sorted(found, key=lambda finding: (finding.path, finding.what, finding.detail))


def clip(text: bytes) -> bytes:
    """Returns the beginning of some text, short enough for a detail."""
    return text if len(text) <= DETAIL_MAX else text[: DETAIL_MAX - 3] + b"..."
