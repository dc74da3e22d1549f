"""The mutator of foreign archives: headers with right checksums, pax records, the order of members, the ends."""

from __future__ import annotations

import gzip
import lzma
import zlib
from random import Random

import zstandard
from archive import archives
from fuzz.changes import Mutate, shuffle_items

DECODED_MAX = 1 << 20

_NUMBERS = (
    *(b"", b"0", b"1", b"7", b"000644 ", b"  644\0", b"0000010\0", b"8", b"-1", b"+1", b"0x1", b"1 2"),
    archives.base256(5, 8),
)
_LONG_NUMBERS = (
    *(b"00000000000\0", b"00000000001\0", b"00000001000\0", b"77777777777\0", b"00000000012 ", b"\xff" * 12),
    archives.base256(5, 12),
)
_PATHS = (b"a", b"./a", b"./", b".", b"/srv/w/a", b"srv/w/a", b"w/a", b"w", b"a/b", b"a/../b", b"..", b"d/", b"a\0b")
_CHOICES: dict[str, tuple[bytes, ...]] = {
    "name": (*_PATHS, b"\xff"),
    "link": (*_PATHS, b"", b"../a", b"/etc/passwd", b"d/a", b"l"),
    "kind": (*(bytes((byte,)) for byte in b"01234567xgLKSDMNVXA"), b"\0"),
    "magic": (archives.USTAR, archives.GNU, archives.V7, b"ustar\0\0\0", b"USTAR\x0000"),
    "prefix": (b"", b"p", b"srv/w", b"..", b"/srv/w"),
    "size": _LONG_NUMBERS,
    "mtime": _LONG_NUMBERS,
    "mode": _NUMBERS,
    "uid": _NUMBERS,
    "gid": _NUMBERS,
    "devmajor": _NUMBERS,
    "is_extended": (b"\0", b"\1", b"2"),
    "real_size": _LONG_NUMBERS,
}
_KEYS = (
    *(b"path", b"linkpath", b"size", b"mtime", b"atime", b"uid", b"gid", b"uname", b"comment", b"hdrcharset", b"x"),
    *(b"SCHILY.xattr.user.x", b"LIBARCHIVE.xattr.x", b"GNU.sparse.name", b"GNU.sparse.realsize", b"GNU.sparse.size"),
    *(b"GNU.sparse.major", b"GNU.sparse.minor", b"GNU.sparse.map", b"GNU.sparse.numblocks", b"charset"),
)
_VALUES = (
    *(b"", b"a", b"./a", b"..", b"0", b"1", b"5", b"512", b"1.5", b"-1", b"-0.5", b"1e3", b"nan", b"0,5", b"0,1,4,1"),
    *(b"BINARY", b"\xff", b"a\0b", b" 1", b"1\n"),
)

Piece = tuple[bytes, bytes]
"""A header, and the data behind it with its padding."""


def split(plain: bytes) -> tuple[list[Piece], bytes]:
    """The members of an archive as their sizes say, and the rest from the first block that is no header."""
    pieces = []
    while len(plain) >= 512 and any(plain[:512]):
        try:
            size = int(plain[124:136].strip(b" \0") or b"0", 8)
        except ValueError:
            break
        stop = 512 + (size + 511 & ~511)
        if not 0 <= size <= len(plain):
            break
        pieces.append((plain[:512], plain[512:stop]))
        plain = plain[stop:]
    return pieces, plain


def _checked(header: bytes) -> bytes:
    return header[:148] + b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32) + header[156:]


def _change_header(header: bytes, random: Random, mutate: Mutate) -> bytes:
    name = random.choice(list(_CHOICES))
    offset, width = archives.FIELDS[name]
    value = random.choice(_CHOICES[name]) if random.randrange(4) else mutate(header[offset : offset + width])
    header = header[:offset] + value[:width].ljust(width, b"\0") + header[offset + width :]
    return _checked(header) if random.randrange(16) else header


def _sized(header: bytes, size: int) -> bytes:
    return _checked(header[:124] + b"%011o\0" % size + header[136:])


def _change_records(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Changes pax records; their lengths are right again, mostly."""
    records = []
    rest = data.rstrip(b"\0")
    while rest:
        digits, _, _ = rest.partition(b" ")
        size = int(digits) if digits.isdigit() and len(digits) < 6 else 0
        if not 0 < size <= len(rest):
            break
        key, _, value = rest[len(digits) + 1 : size - 1].partition(b"=")
        records.append((key, value))
        rest = rest[size:]
    what = random.randrange(4)
    if what == 0 or not records:
        records.insert(random.randrange(len(records) + 1), (random.choice(_KEYS), random.choice(_VALUES)))
    elif what == 1:
        shuffle_items(records, random)
    else:
        at = random.randrange(len(records))
        key, value = records[at]
        value = random.choice((random.choice(_VALUES), mutate(value), b"%d" % random.randrange(2000)))
        records[at] = key if random.randrange(4) else random.choice(_KEYS), value
    written = archives.records(records)
    return mutate(written) if random.randrange(12) == 0 else written


def _change_piece(piece: Piece, random: Random, mutate: Mutate) -> Piece:
    header, data = piece
    kind = header[156:157]
    what = random.randrange(4)
    if kind in (b"x", b"g") and what:
        records = _change_records(data, random, mutate)
        return _sized(header, len(records)), records + archives.padding(records)
    if kind in (b"L", b"K") and what:
        name = random.choice((*_CHOICES["name"], b"n" * 120, b"d/" * 60 + b"f", mutate(data)))[:2000] + b"\0"
        return _sized(header, len(name)), name + archives.padding(name)
    if what == 1 and data:
        changed = mutate(data)[:3000]
        return _sized(header, len(changed)), changed + archives.padding(changed)
    return _change_header(header, random, mutate), data


def _added(random: Random) -> list[Piece]:
    """A new member, with what comes before it."""
    member = random.choice(
        (
            archives.archive(archives.Member(b"new", b"text"), end=b""),
            archives.archive(archives.Member(b"d/", kind=archives.DIRECTORY), end=b""),
            archives.archive(archives.Member(b"l", kind=archives.LINK, link=b"a"), end=b""),
            archives.archive(archives.Member(b"h", kind=archives.HARD_LINK, link=b"a"), end=b""),
            archives.archive(archives.long_name(b"n" * 150), archives.Member(b"n" * 100, magic=archives.GNU), end=b""),
            archives.archive(archives.Member(b"p", b"x", pax={b"mtime": b"1.25", b"path": b"pp"}), end=b""),
            archives.archive(archives.pax_header({b"comment": b"c"}, kind=archives.PAX_GLOBAL), end=b""),
        )
    )
    return split(member)[0]


def archive(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    plain = _decompressed(data)
    if plain is None:
        return None
    pieces, end = split(plain)
    what = random.randrange(8)
    if what == 0 or not pieces:
        at = random.randrange(len(pieces) + 1)
        pieces[at:at] = _added(random)
    elif what == 1:
        shuffle_items(pieces, random)
    elif what == 2:
        end = random.choice((b"", bytes(512), bytes(1024), bytes(1536), bytes(10240), bytes(1023), end + data[:1024]))
    else:
        at = random.randrange(len(pieces))
        pieces[at] = _change_piece(pieces[at], random, mutate)
    plain = b"".join(header + body for header, body in pieces) + end
    return _compressed(plain, data, random)


def _decompressed(data: bytes) -> bytes | None:
    try:
        if data.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(31).decompress(data, DECODED_MAX)
        if data.startswith(b"\xfd7zXZ\0"):
            return lzma.LZMADecompressor(memlimit=64 << 20).decompress(data, DECODED_MAX)
        if data.startswith(zstandard.FRAME_HEADER):
            if zstandard.frame_content_size(data) > DECODED_MAX:
                return None
            return zstandard.ZstdDecompressor().decompress(data, max_output_size=DECODED_MAX)
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError):
        return None
    return data


def _compressed(plain: bytes, before: bytes, random: Random) -> bytes:
    what = random.randrange(12)
    if what == 0:
        return gzip.compress(plain, random.choice((0, 1, 9)), mtime=0)
    if what == 1:
        return archives.zst(plain)
    if what == 2:
        return archives.xz(plain)
    if what == 3:
        packed = archives.zst(plain)
        return packed + random.choice((packed, b"\x50\x2a\x4d\x18\0\0\0\0", b"\0"))
    return plain
