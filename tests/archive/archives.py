"""A small language for tar archives, honest and hostile: values describe members, `archive` makes the bytes.

A `Member` is one header with its data.  By default it is what a plain ustar writer emits; every field can be set
raw, so that nothing a header could say is out of reach::

    archive(Member(b"./", kind=DIRECTORY), Member(b"./a", b"text"))
    archive(Member(b"a", b"text", pax={b"mtime": b"1.5"}))                  # an x header before it
    archive(long_name(b"n" * 200), Member(b"n" * 100, b"text", magic=GNU))  # GNU's L header
    archive(Member(b"a", b"text", size=b"+4"))                              # a raw size field
    archive(Member(b"a", raw={"uid": base256(-1, 8)}, checksum=b"0000000\\0"))
    archive(Member(b"a"), end=b"")                                          # no end marker

`archive` takes bytes among the members, which stand as they are.  Whole archives are packed by `gz`, `zst`, `xz`.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import zstandard

FILE, OLD_FILE, HARD_LINK, LINK, CHAR_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO, CONTIGUOUS = (
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

USTAR = b"ustar\x0000"
GNU = b"ustar  \0"
V7 = bytes(8)
"""What stands in magic and version, 8 bytes."""

END = bytes(1024)
"""The end marker; `padded_end` is what GNU tar writes."""

FIELDS = {
    "name": (0, 100),
    "mode": (100, 8),
    "uid": (108, 8),
    "gid": (116, 8),
    "size": (124, 12),
    "mtime": (136, 12),
    "checksum": (148, 8),
    "kind": (156, 1),
    "link": (157, 100),
    "magic": (257, 8),
    "uname": (265, 32),
    "gname": (297, 32),
    "devmajor": (329, 8),
    "devminor": (337, 8),
    "prefix": (345, 155),
    # GNU's use of what follows the device numbers.
    "sparse": (386, 96),
    "is_extended": (482, 1),
    "real_size": (483, 12),
    "tail": (500, 12),
}
"""Name of a field to its offset and width, for `Member.raw`."""

Records = Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]


def octal(value: int, width: int) -> bytes:
    """A number as ustar has it: leading zeros, and a NUL at the end."""
    return b"%0*o\0" % (width - 1, value)


def base256(value: int, width: int) -> bytes:
    """A number as GNU tar has it where octal does not suffice."""
    if value < 0:
        return b"\xff" + (value + (1 << (8 * (width - 1)))).to_bytes(width - 1, "big")
    return b"\x80" + value.to_bytes(width - 1, "big")


def padding(data: bytes) -> bytes:
    """The zeros after *data* up to a whole block."""
    return bytes(-len(data) % 512)


@dataclass(frozen=True, slots=True)
class Member:
    """One member: what its extension header says, its header, its data.

    ``name`` is split into ustar's prefix and name only by `split`.  ``size`` and ``mtime`` are numbers, or bytes that
    stand in the field as they are; a size that is None is that of ``data``.  ``raw`` sets fields of `FIELDS` byte
    for byte, after all others; ``checksum`` the checksum, else the right one is computed last.  ``pad`` is what
    follows the data, by default zeros up to a whole block.
    """

    name: bytes
    data: bytes = b""
    kind: bytes = field(default=FILE, kw_only=True)
    link: bytes = field(default=b"", kw_only=True)
    mode: int = field(default=0o644, kw_only=True)
    uid: int = field(default=1000, kw_only=True)
    gid: int = field(default=1000, kw_only=True)
    size: int | bytes | None = field(default=None, kw_only=True)
    mtime: int | bytes = field(default=1_600_000_000, kw_only=True)
    magic: bytes = field(default=USTAR, kw_only=True)
    prefix: bytes = field(default=b"", kw_only=True)
    device: tuple[int, int] = field(default=(0, 0), kw_only=True)
    pax: Records | None = field(default=None, kw_only=True)
    raw: Mapping[str, bytes] = field(default_factory=dict, kw_only=True)
    checksum: bytes | None = field(default=None, kw_only=True)
    pad: bytes | None = field(default=None, kw_only=True)

    def header(self) -> bytes:
        """The 512 bytes of the header."""
        block = bytearray(512)
        size = len(self.data) if self.size is None else self.size
        fields = {
            "name": self.name[:100],
            "mode": octal(self.mode, 8),
            "uid": octal(self.uid, 8),
            "gid": octal(self.gid, 8),
            "size": size if isinstance(size, bytes) else octal(size, 12),
            "mtime": self.mtime if isinstance(self.mtime, bytes) else octal(self.mtime, 12),
            "kind": self.kind,
            "link": self.link[:100],
            "magic": self.magic,
            "prefix": self.prefix,
        }
        if self.kind in (CHAR_DEVICE, BLOCK_DEVICE):
            fields |= {"devmajor": octal(self.device[0], 8), "devminor": octal(self.device[1], 8)}
        for name, value in (*fields.items(), *self.raw.items()):
            offset, width = FIELDS[name]
            if len(value) > width:
                raise ValueError(f"{name} has {width} bytes, not {len(value)}")
            block[offset : offset + len(value)] = value
        if "checksum" not in self.raw:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block) if self.checksum is None else self.checksum
        return bytes(block)

    def encoded(self) -> bytes:
        """Extension header, header, data, padding."""
        before = pax_header(self.pax).encoded() if self.pax is not None else b""
        pad = padding(self.data) if self.pad is None else self.pad
        return before + self.header() + self.data + pad


def archive(*members: Member | bytes, end: bytes = END) -> bytes:
    """The bytes of an archive."""
    return b"".join(m if isinstance(m, bytes) else m.encoded() for m in members) + end


def padded_end(size_bytes: int, record_bytes: int = 10240) -> bytes:
    """The end marker after *size_bytes* of members, up to whole records as GNU tar writes them."""
    return bytes(1024 + -(size_bytes + 1024) % record_bytes)


def record(key: bytes, value: bytes) -> bytes:
    """One pax record: its own length, the key, the value."""
    rest = b" " + key + b"=" + value + b"\n"
    size = len(rest) + 1
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d" % size + rest


def records(pairs: Records) -> bytes:
    """Pax records in the order given; pairs may repeat a key."""
    return b"".join(record(key, value) for key, value in (pairs.items() if isinstance(pairs, Mapping) else pairs))


def pax_header(content: Records | bytes, *, kind: bytes = PAX, **changes: object) -> Member:
    """An x header (or a g one) with these records, or with these very bytes."""
    data = content if isinstance(content, bytes) else records(content)
    return Member(b"PaxHeaders/x", data, kind=kind, **changes)  # type: ignore[arg-type]


def long_name(name: bytes, **changes: object) -> Member:
    """GNU's L header: the name of the member after it."""
    return Member(b"././@LongLink", name + b"\0", **{"kind": GNU_NAME, "magic": GNU, "mtime": 0, **changes})  # type: ignore[arg-type]


def long_link(text: bytes, **changes: object) -> Member:
    """GNU's K header: the link text of the member after it."""
    return Member(b"././@LongLink", text + b"\0", **{"kind": GNU_LINK, "magic": GNU, "mtime": 0, **changes})  # type: ignore[arg-type]


def sparse_fields(regions: Iterable[tuple[int, int]], real_size: int, *, extended: bool = False) -> dict[str, bytes]:
    """``raw`` of an old GNU sparse member (kind `GNU_SPARSE`, magic `GNU`): up to four regions (offset, size)."""
    table = b"".join(octal(offset, 12) + octal(size, 12) for offset, size in regions)
    return {"sparse": table, "is_extended": b"\1" if extended else b"\0", "real_size": octal(real_size, 12)}


def sparse_extension(regions: Iterable[tuple[int, int]], *, extended: bool = False) -> bytes:
    """A block of up to 21 further regions, which follows such a header."""
    table = b"".join(octal(offset, 12) + octal(size, 12) for offset, size in regions)
    return table.ljust(504, b"\0") + (b"\1" if extended else b"\0") + bytes(7)


def sparse_map(regions: Iterable[tuple[int, int]]) -> bytes:
    """The map that GNU's sparse format 1.0 puts before the data."""
    pairs = list(regions)
    text = b"%d\n" % len(pairs) + b"".join(b"%d\n%d\n" % pair for pair in pairs)
    return text + padding(text)


def gz(data: bytes) -> bytes:
    """One gzip member."""
    return gzip.compress(data, 6, mtime=0)


def zst(data: bytes, **parameters: int) -> bytes:
    """One zstd frame; *parameters* are those of ``ZstdCompressionParameters``."""
    chosen = zstandard.ZstdCompressionParameters.from_level(3, write_content_size=1, **parameters)
    return zstandard.ZstdCompressor(compression_params=chosen).compress(data)


def xz(data: bytes) -> bytes:
    """One xz stream."""
    return lzma.compress(data, preset=1)
