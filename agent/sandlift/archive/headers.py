"""One header of a tar: 512 bytes, read so that no other reader can see something else in them.

Three styles exist, told apart by magic and version: *ustar* (POSIX.1-1988), *gnu* (``ustar`` and spaces) and *v7*
(nothing).  Numbers have one octal spelling, or GNU's base-256; all that other parsers accept besides (signs,
underscores, ``0o``, other digits, a half-read field) is refused before anything is converted.  A header whose checksum
is wrong is an error, never the end of an archive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Style = Literal["ustar", "gnu", "v7"]

BLOCK: Final = 512
ZERO_BLOCK: Final = bytes(BLOCK)

FILE, OLD_FILE, HARD_LINK, SYMBOLIC_LINK, CHAR_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO, CONTIGUOUS = (
    b"0",
    b"\0",
    b"1",
    b"2",
    b"3",
    b"4",
    b"5",
    b"6",
    b"7",
)
PAX, PAX_GLOBAL, GNU_NAME, GNU_LINK, GNU_SPARSE = b"x", b"g", b"L", b"K", b"S"
FILE_KINDS: Final = frozenset((FILE, OLD_FILE, CONTIGUOUS, GNU_SPARSE))
LINK_KINDS: Final = frozenset((HARD_LINK, SYMBOLIC_LINK))
DEVICE_KINDS: Final = frozenset((CHAR_DEVICE, BLOCK_DEVICE))
KINDS: Final = frozenset((*FILE_KINDS, *LINK_KINDS, *DEVICE_KINDS, DIRECTORY, FIFO))
EXTENSIONS: Final = frozenset((PAX, PAX_GLOBAL, GNU_NAME, GNU_LINK))
REFUSED_KINDS: Final = {
    b"D": "a directory's listing, which GNU tar's --listed-incremental writes",
    b"M": "the rest of a file of another volume",
    b"N": "a list of names to rename, which old GNU tar wrote",
    b"V": "a volume's label",
    b"X": "an extension header of Solaris",
    b"A": "an access control list of Solaris",
    b"E": "extended attributes of Solaris",
    b"I": "an inode's metadata alone",
}
"""Types that some readers act on and others take for a file."""

_STYLES: Final[dict[bytes, Style]] = {b"ustar\x0000": "ustar", b"ustar  \0": "gnu", bytes(8): "v7"}
# Spaces before, digits, then NULs and spaces to the end; a field may be full of digits.
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*", re.ASCII)
_STAR_MARK = b"tar\0"


class HeaderError(ValueError):
    """The bytes are no header that every reader reads alike; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What one header says by itself."""

    style: Style
    kind: bytes
    name: bytes
    """With ustar's prefix; as it is spelled."""
    link: bytes
    mode: int
    uid: int
    gid: int
    size_bytes: int
    """Of the data that follows."""
    mtime_s: int
    device: tuple[int, int]


def read_octal(field: bytes, name: str) -> int:
    """Returns the number of an octal field.  Raises HeaderError."""
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise HeaderError(f"the {name} {ascii(field)[1:]} is no octal number as all readers read it")
    return int(match[1], 8)


def read_number(field: bytes, name: str, *, signed: bool = False) -> int:
    """Returns the number of an octal or base-256 field, below 2**63; at least 0 unless *signed*.

    Raises HeaderError.
    """
    if field[0] < 0x80:
        return read_octal(field, name)
    if field[0] not in (0x80, 0xFF):
        raise HeaderError(f"the {name} {ascii(field)[1:]} is in a form that not all readers know")
    # The first byte is a mark (0x80) or a sign (0xff), and both leave the value to the others.
    value = int.from_bytes(field[1:], "big") - ((1 << 8 * (len(field) - 1)) if field[0] == 0xFF else 0)
    if (value < 0 and not signed) or not -(1 << 63) <= value < 1 << 63:
        raise HeaderError(f"the {name} is {value}, which is out of range")
    return value


def looks_like_header(block: bytes) -> bool:
    """Whether a block has the checksum and a magic of a header."""
    try:
        _check_sum(block)
    except HeaderError:
        return False
    return block[257:265] in _STYLES


def parse_header(block: bytes) -> Header:
    """Returns what a header says.  Raises HeaderError."""
    _check_sum(block)
    style = _STYLES.get(block[257:265])
    if style is None:
        raise HeaderError(f"the magic {ascii(block[257:265])[1:]} is of no known format")
    kind = block[156:157]
    if kind not in KINDS and kind not in EXTENSIONS:
        what = REFUSED_KINDS.get(kind, "which readers treat in different ways")
        raise HeaderError(f"the type {ascii(kind)[1:]} is not taken in: {what}")
    # GNU tar writes device numbers into v7's headers as well.
    if style == "v7" and (block[257:329] + block[345:]).strip(b"\0"):
        raise HeaderError("a header without magic has more fields than it may")
    # Judged in every header, as some readers do.
    device = _device(block)
    name = _text(block[:100])
    if style == "ustar":
        name = _joined(block, name)
    elif style == "gnu" and kind != GNU_SPARSE and block[345:] != bytes(BLOCK - 345):
        raise HeaderError("GNU's fields for volumes and other times are set, which other readers take for a name")
    return Header(
        style=style,
        kind=kind,
        name=name,
        link=_text(block[157:257]),
        mode=_blank_or_number(block[100:108], "mode"),
        uid=_blank_or_number(block[108:116], "owner"),
        gid=_blank_or_number(block[116:124], "group"),
        size_bytes=read_number(block[124:136], "size"),
        mtime_s=_blank_or_number(block[136:148], "time", signed=True),
        device=device if kind in DEVICE_KINDS else (0, 0),
    )


def _check_sum(block: bytes) -> None:
    stated = read_octal(block[148:156], "checksum")
    # The field itself counts as eight spaces; old tars that summed signed bytes are refused with the damaged ones.
    found = sum(block) - sum(block[148:156]) + 8 * 32
    if stated != found:
        raise HeaderError(f"the header's checksum is {found:o}, and it says {stated:o}")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _joined(block: bytes, name: bytes) -> bytes:
    prefix = _text(block[345:500])
    if block[508:] == _STAR_MARK and block[475]:
        # In star's headers the prefix has 131 bytes, and times follow it.
        raise HeaderError("the name's first part is longer than star's headers allow, and readers cut it differently")
    if prefix and not name:
        raise HeaderError("the name has a first part and no second")
    return prefix + b"/" + name if prefix else name


def _blank_or_number(field: bytes, name: str, *, signed: bool = False) -> int:
    """Some writers leave what does not matter to them blank, and every reader takes that for 0."""
    return read_number(field, name, signed=signed) if field.strip(b"\0") else 0


def _device(block: bytes) -> tuple[int, int]:
    return _blank_or_number(block[329:337], "device"), _blank_or_number(block[337:345], "device")
