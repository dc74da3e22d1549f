"""The headers of a portable tar: ustar where a value fits, one pax header before the member where it does not.

Every number that is too large for its octal field stands in that field in base-256 and again in the pax header:
readers that ignore pax sizes (BusyBox 1.35 does) and readers that take nothing else then agree on where a member
ends and whose it is.  A name or link text that needs a pax record is replaced in the plain header by one that leads
nowhere, so a reader without pax never sees a cut-off text, which could be another path.

A text that is not ASCII is announced with ``hdrcharset=BINARY``.  Measured: GNU tar 1.34 (which says that it
ignores the keyword), bsdtar 3.6.2, BusyBox 1.35 and Python's tarfile then extract its very bytes.  Without it
bsdtar exits with 1 for text that is not UTF-8, or for any in the C locale, and composes decomposed UTF-8.

Formats: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; base-256 is GNU tar's.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
"""The end of an archive."""
RECORD: Final = 20 * BLOCK
"""What an archive is filled up to with zeros, as by `tar` without a blocking factor."""

FILE: Final = b"0"
HARD_LINK: Final = b"1"
LINK: Final = b"2"
DIRECTORY: Final = b"5"
_PAX: Final = b"x"

NAME_MAX: Final = 100
PREFIX_MAX: Final = 155
SIZE_MAX: Final = (1 << 33) - 1
"""The largest number of eleven octal digits."""
ID_MAX: Final = (1 << 21) - 1

_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_BLANK = b" " * 8
_MAGIC = b"ustar\x0000"
_DEVICE = b"0000000\0"
_PAX_NAME = b"././@PaxHeader"
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What the header of one member says."""

    name: bytes
    """With ``./`` in front, and a slash behind a directory's."""
    kind: bytes
    """`FILE`, `HARD_LINK`, `LINK` or `DIRECTORY`."""
    mode: int
    mtime_ns: int
    uid: int
    gid: int
    size_bytes: int = 0
    text: bytes = b""
    """A link's text, or for a hard link the name of the member that it is another name of."""


def encode(member: Member) -> bytes:
    """Returns the headers of a member, whole blocks; its content and `padding` follow."""
    records: list[tuple[bytes, bytes]] = []
    named = split(member.name)
    if named is None:
        records.append((b"path", member.name))
        # Nothing below it is ever named, and two long names stay two.
        named = b"", b"./@LongName/" + hashlib.sha256(member.name).hexdigest()[:32].encode()
    text = member.text
    if len(text) > NAME_MAX:
        records.append((b"linkpath", text))
        text = b"@LongLink"
    if not all(value.isascii() for _, value in records):
        records.insert(0, (b"hdrcharset", b"BINARY"))
    seconds, fraction_ns = divmod(member.mtime_ns, _NS)
    if fraction_ns or not 0 <= seconds <= SIZE_MAX:
        records.append((b"mtime", decimal_time(member.mtime_ns)))
    for key, value, most in (
        (b"size", member.size_bytes, SIZE_MAX),
        (b"uid", member.uid, ID_MAX),
        (b"gid", member.gid, ID_MAX),
    ):
        if value > most:
            records.append((key, b"%d" % value))
    header = _plain(
        *named, member.kind, member.mode, seconds, member.uid, member.gid, size_bytes=member.size_bytes, text=text
    )
    return pax_header(records) + header if records else header


def pax_header(records: list[tuple[bytes, bytes]]) -> bytes:
    """Returns an extended header that holds *records*, whole blocks."""
    body = b"".join(_record(key, value) for key, value in records)
    return _plain(b"", _PAX_NAME, _PAX, 0o644, 0, 0, 0, size_bytes=len(body)) + body + padding(len(body))


def padding(size_bytes: int) -> bytes:
    """Returns the zeros that fill up the last block of so many bytes."""
    return bytes(-size_bytes % BLOCK)


def split(name: bytes) -> tuple[bytes, bytes] | None:
    """Returns a name as (prefix, name) of a plain header, or None when it does not fit."""
    if len(name) <= NAME_MAX:
        return b"", name
    # The slash between the two is not stored; neither may be empty, nor the last slash of a directory be lost.
    at = name.find(b"/", max(1, len(name) - NAME_MAX - 1), min(PREFIX_MAX + 1, len(name) - 1))
    return (name[:at], name[at + 1 :]) if at > 0 else None


def decimal_time(time_ns: int) -> bytes:
    """Returns a time as a pax record has it: seconds, with as many digits behind the point as it takes."""
    seconds, fraction_ns = divmod(abs(time_ns), _NS)
    text = b"-%d" % seconds if time_ns < 0 else b"%d" % seconds
    return text + b"." + (b"%09d" % fraction_ns).rstrip(b"0") if fraction_ns else text


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" %b=%b\n" % (key, value)
    size = len(rest) + 1
    # The length counts its own digits.
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d" % size + rest


def _plain(
    prefix: bytes,
    name: bytes,
    kind: bytes,
    mode: int,
    mtime_s: int,
    uid: int,
    gid: int,
    *,
    size_bytes: int = 0,
    text: bytes = b"",
) -> bytes:
    header = bytearray(
        _HEADER.pack(
            name,
            b"%07o\0" % mode,
            _number(uid, 8),
            _number(gid, 8),
            _number(size_bytes, 12),
            _number(mtime_s, 12),
            _BLANK,
            kind,
            text,
            _MAGIC,
            b"",
            b"",
            _DEVICE,
            _DEVICE,
            prefix,
        )
    )
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def _number(value: int, width: int) -> bytes:
    """Returns a number in octal, or in base-256 where it is negative or too large."""
    if 0 <= value < 1 << 3 * (width - 1):
        return b"%0*o\0" % (width - 1, value)
    encoded = value.to_bytes(width, "big", signed=True)
    return bytes((0xFF if value < 0 else 0x80,)) + encoded[1:]
