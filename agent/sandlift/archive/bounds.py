"""What a foreign archive may cost beyond the `Limits` that bound every workspace, and the words of a refusal.

The defaults are what surveys of tar bombs suggest: an ordinary source tree stays below each by a factor of ten or
more, and no published bomb does.  Whoever knows an archive to be honest may raise any of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sandlift.errors import HostLimit, UnsafeArchive, UsageError
from sandlift.validate import shown

NAME_BYTES_MAX = 255
"""One component of a name: Linux's NAME_MAX on every ordinary file system."""
WINDOW_MAX = 1 << 27
"""What a zstd frame may ask the reader to remember: ``zstd --long``, and the strongest level, ask for that much."""
XZ_MEMORY_MAX = 160 << 20
"""What an xz stream may take: ``xz -9`` asks for 65 MiB, a dictionary of `WINDOW_MAX` for a little over that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveBounds:
    """Caps of one import; each is a name that ``--limit`` takes."""

    total_bytes: int = 256 << 30
    """The apparent sizes of all files together."""
    stream_bytes: int = 256 << 30
    """The archive, decompressed."""
    ratio: int = 200
    """How many times larger than its compressed form an archive may be, beyond its first 8 MiB."""
    member_metadata_bytes: int = 32 << 10
    """All extension headers of one member."""
    metadata_bytes: int = 256 << 20
    """All extension headers, and the names of directories that no member names."""
    sparse_regions: int = 4096
    """Pieces of data in one sparse file."""
    tail_bytes: int = 1 << 20
    """Zeros after the end marker: writers fill up to a record, which GNU tar's ``-b 2048`` makes this large."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise UsageError(f"the limit {field.name} must be above 0")


DEFAULT_BOUNDS = ArchiveBounds()


def refusal(why: str, name: bytes = b"", *, offset: int | None = None, hint: str = "") -> UnsafeArchive:
    """Returns the error for an archive that is not taken in: one line, and the member's name harmless."""
    place = f", at byte {offset}" if offset is not None else ""
    where = shown(name) if name else None
    return UnsafeArchive(
        f"the archive is refused{place}: {why}" + (f": {where}" if where else ""),
        hint=hint,
        member=where,
        offset=offset,
    )


def over(name: str, allowed: int, found: int, member: bytes = b"") -> HostLimit:
    """Returns the error for an archive that exceeds a limit."""
    where = shown(member)
    return HostLimit(
        f"the archive exceeds the limit {name}: {found}, allowed are {allowed}" + (f": {where}" if where else ""),
        hint=f"if you know the archive to be honest, --limit {name}=... allows more",
        limit=name,
        allowed=allowed,
        found=found,
    )
