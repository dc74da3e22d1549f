"""Pax records: what an extension header says about the member after it.

Records are cut by their stated lengths, each of which must end at a newline (POSIX.1-2001, pax).  A key may stand
once.  Values are bytes; numbers are matched before they are converted.  What a record means for a name, a size or
the content is taken or refused; times and names of users are not kept, nor are attributes, access lists and flags,
which are listed for a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlift.archive.headers import HeaderError
from sandlift_helper.table import clamp_ns

ID_MAX = (1 << 32) - 2
"""The largest owner or group: the next number says "leave it" to chown(2)."""

_LENGTH = re.compile(rb"([1-9][0-9]{0,9}) ", re.ASCII)
_WHOLE = re.compile(rb"0|[1-9][0-9]{0,18}", re.ASCII)
_TIME = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]{1,40}))?", re.ASCII)
_BAD_KEY = re.compile(rb"[^\x21-\x7e]", re.ASCII)

_UNKEPT = frozenset((b"atime", b"ctime", b"uname", b"gname", b"comment"))
_CHARSETS = frozenset((b"BINARY", b"ISO-IR 10646 2000 UTF-8"))
# What some readers let change a member's content or kind, and others do not know.
_REFUSED = frozenset((b"SCHILY.realsize", b"SCHILY.offset", b"SCHILY.filetype", b"SUN.holesdata"))
_ATTRIBUTES = (
    b"SCHILY.xattr.",
    b"LIBARCHIVE.xattr.",
    b"SCHILY.acl.",
    b"SCHILY.fflags",
    b"RHT.security.",
    b"MSWINDOWS.",
)
_REPEATED = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What the records of one member say; None where they say nothing."""

    path: bytes | None = None
    link: bytes | None = None
    size_bytes: int | None = None
    mtime_ns: int | None = None
    uid: int | None = None
    gid: int | None = None
    sparse: Mapping[bytes, bytes] = field(default_factory=dict)
    """GNU.sparse keys without that prefix; ``map`` also for regions that came as pairs of records."""
    unkept: frozenset[str] = frozenset()
    """Families of attributes that a snapshot does not hold."""


def split_records(data: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the (key, value) pairs of a pax header's data.  Raises HeaderError."""
    pairs = []
    position = 0
    while position < len(data):
        match = _LENGTH.match(data, position)
        end = position + int(match[1]) if match else 0
        if match is None or end <= match.end() or end > len(data) or data[end - 1 : end] != b"\n":
            raise HeaderError("a pax record's length is wrong")
        key, equals, value = data[match.end() : end - 1].partition(b"=")
        if not equals or not key or _BAD_KEY.search(key):
            raise HeaderError("a pax record has no proper key")
        pairs.append((key, value))
        position = end
    return pairs


def check_global(data: bytes) -> None:
    """Accepts a global header that holds a comment alone, as ``git archive`` writes.  Raises HeaderError."""
    for key, _ in split_records(data):
        if key != b"comment":
            raise HeaderError(f"a global pax header sets {_shown(key)}, and readers differ about what it applies to")


def read_extension(data: bytes) -> Extension:
    """Returns what a member's pax header says.  Raises HeaderError."""
    values: dict[bytes, bytes] = {}
    pairs: list[bytes] = []
    unkept: set[str] = set()
    for key, value in split_records(data):
        if key in _REPEATED:
            if key != _REPEATED[len(pairs) % 2]:
                raise HeaderError("the regions of a sparse file are not in pairs")
            pairs.append(value)
            continue
        if key in values:
            raise HeaderError(f"the pax key {_shown(key)} stands twice")
        values[key] = value
        unkept.update(family.decode().rstrip(".") for family in _ATTRIBUTES if key.startswith(family))
        _check_known(key, value)
    if len(pairs) % 2:
        raise HeaderError("the regions of a sparse file are not in pairs")
    return Extension(
        path=_name(values, b"path"),
        link=_name(values, b"linkpath"),
        size_bytes=whole_number(values[b"size"], "size") if b"size" in values else None,
        mtime_ns=_time_ns(values[b"mtime"]) if b"mtime" in values else None,
        uid=whole_number(values[b"uid"], "owner") if b"uid" in values else None,
        gid=whole_number(values[b"gid"], "group") if b"gid" in values else None,
        sparse=_sparse(values, pairs),
        unkept=frozenset(unkept),
    )


def whole_number(value: bytes, name: str) -> int:
    """Returns a decimal number below 2**63.  Raises HeaderError."""
    if not _WHOLE.fullmatch(value) or (number := int(value)) >= 1 << 63:
        raise HeaderError(f"the {name} {ascii(value[:40])[1:]} is no number as all readers read it")
    return number


def _check_known(key: bytes, value: bytes) -> None:
    is_posix = b"." not in key
    if not value and (is_posix or key.startswith(b"GNU.")) and key not in _UNKEPT:
        # An empty value takes back an earlier one, for readers that know of it.
        raise HeaderError(f"the pax key {_shown(key)} has no value")
    if key in (b"hdrcharset", b"charset"):
        if value not in _CHARSETS:
            raise HeaderError(f"the character set {ascii(value[:40])[1:]} is not known")
    elif is_posix:
        if key not in _UNKEPT and key not in (b"path", b"linkpath", b"size", b"mtime", b"uid", b"gid"):
            raise HeaderError(f"the pax key {_shown(key)} is not known")
    elif key in _REFUSED or (key.startswith(b"GNU.") and not key.startswith(b"GNU.sparse.")):
        raise HeaderError(f"the pax key {_shown(key)} is not taken in: some readers act on it, and others do not")


def _name(values: Mapping[bytes, bytes], key: bytes) -> bytes | None:
    value = values.get(key)
    if value is not None and b"\0" in value:
        raise HeaderError(f"the pax key {_shown(key)} holds a NUL")
    return value


def _time_ns(value: bytes) -> int:
    """Returns a time in nanoseconds, rounded down as file systems do, and within what a snapshot holds."""
    match = _TIME.fullmatch(value)
    if match is None:
        raise HeaderError(f"the time {ascii(value[:40])[1:]} is no decimal number")
    fraction = (match[3] or b"").ljust(9, b"0")
    time_ns = int(match[2]) * 1_000_000_000 + int(fraction[:9])
    if match[1]:
        time_ns = -time_ns - (1 if fraction[9:].strip(b"0") else 0)
    return clamp_ns(time_ns)


def _sparse(values: Mapping[bytes, bytes], pairs: list[bytes]) -> dict[bytes, bytes]:
    prefix = b"GNU.sparse."
    found = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    if pairs:
        if b"map" in found:
            raise HeaderError("a sparse file has its regions twice")
        found[b"map"] = b",".join(pairs)
    return found


def _shown(key: bytes) -> str:
    return ascii(key[:60].decode("ascii", "replace"))[1:-1]
