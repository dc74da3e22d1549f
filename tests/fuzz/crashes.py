"""Inputs that broke an invariant once, each with its target.  Made in code: what matters of each is then readable."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import zstandard
from archive import archives
from archive.archives import GNU, GNU_LINK, LINK, PAX_GLOBAL, Member
from fuzz import seeds


def _snapshot(**changes: object) -> bytes:
    """A stored snapshot with other fields."""
    frame = seeds.seeds("snapshot")[0]
    options = {"raw": False, "unicode_errors": "surrogateescape"}
    fields = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(frame), **options) | changes
    return zstandard.ZstdCompressor(level=1).compress(msgpack.packb(fields, use_bin_type=True))


def _stating(size: int) -> bytes:
    """A zstd frame of one block of four bytes that states a size (RFC 8878, 3.1.1: no window, a size of 8 bytes)."""
    return zstandard.FRAME_HEADER + b"\xe0" + size.to_bytes(8, "little") + b"\x0b\0\0x"


CRASHES: dict[str, tuple[str, bytes]] = {
    "original-texts-without-their-last-nul": ("snapshot", _snapshot(originals=b"/w/a\0x")),
    "snapshot-that-states-gigabytes": ("snapshot", _stating((4 << 30) - 1)),
    "device-number-of-a-file-that-is-no-number": (
        "archive",
        archives.archive(Member(b"a", b"x", raw={"devmajor": b"1 2"})),
    ),
    "link-text-that-goes-on-in-the-padding": (
        "archive",
        archives.archive(
            Member(b"././@LongLink", b"t", kind=GNU_LINK, magic=GNU, pad=b"u" * 9 + bytes(502)),
            Member(b"l", kind=LINK, link=b"t", magic=GNU),
        ),
    ),
    "records-that-go-on-in-the-padding": (
        "archive",
        archives.archive(
            archives.pax_header(b"7 x.y=\n", pad=archives.record(b"path", b"b").ljust(505, b"\0")), Member(b"a", b"x")
        ),
    ),
    "global-header-before-the-end": (
        "archive",
        archives.archive(Member(b"a", b"x"), archives.pax_header({b"comment": b"c"}, kind=PAX_GLOBAL)),
    ),
}
