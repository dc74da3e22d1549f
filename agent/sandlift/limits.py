"""The caps on everything that a sandbox may send, as one value that the user can set."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sandlift.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps of one run.  The request carries them, so an honest helper stays within; who does not is refused."""

    entries: int = 5_000_000
    """Entries of a workspace, and rows of what is left out."""
    path_bytes: int = 64 << 10
    """A path below the root."""
    depth: int = 10_000
    """Directories on the way to an entry."""
    link_text_bytes: int = 4095
    """A link's text; what Linux takes."""
    file_bytes: int = 1 << 40
    """One file's apparent size."""
    manifest_bytes: int = 4 << 30
    """All segments of a manifest, decoded."""
    noise_bytes: int = 1 << 20
    """What may come before the stream."""
    trailer_bytes: int = 64 << 10
    """What may come after its end."""
    silence_s: float = 60.0
    """How long either side may give no sign of life: a frame, or much of one; what is printed before is none."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise UsageError(f"the limit {field.name} must be above 0")

    def for_helper(self) -> dict[str, int]:
        """Returns the limits that a request carries: what the helper itself must stay within."""
        return {name: getattr(self, name) for name in _OF_HELPER}


_OF_HELPER = ("entries", "path_bytes", "depth", "link_text_bytes", "file_bytes")
DEFAULT_LIMITS = Limits()
