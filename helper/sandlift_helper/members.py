"""The one form in which a block travels and rests: a plain ustar member.

A *run* is a sequence of whole members.  A member is a 512-byte header in a fixed form (name = the 64 hex
digits of the block's SHA-256, type ``0``, size 1 byte to 1 MiB, everything else constant), the block's
bytes, and zeros up to the next multiple of 512.  The reader compares every byte of a header with the one that
name and size call for, so nothing but blocks can be expressed: no path, no link, no extension header.
"""

from binascii import hexlify, unhexlify

from sandlift_helper.wire import BLOCK_MAX

HEADER_SIZE = 512

_ZEROS = bytes(512)
_HEX = b"0123456789abcdef"
_OCTAL = b"01234567"

# name, mode, uid, gid | size | mtime | checksum | type, linkname, magic, version | the rest is NUL
_AFTER_NAME = bytes(36) + b"0000600\0" + b"0000000\0" + b"0000000\0"
_AFTER_OCTAL = b"\0" + b"00000000000\0"
_AFTER_SUM = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
# The checksum field counts as eight spaces (POSIX.1-1988 ustar).
_BASE_SUM = sum(_AFTER_NAME) + sum(_AFTER_OCTAL) + sum(_AFTER_SUM) + 8 * 32


def header(digest: bytes, size: int) -> bytes:
    """Returns the 512-byte header of the block with this SHA-256 *digest* (32 bytes) and *size* in bytes."""
    name = hexlify(digest)
    octal = b"%011o" % size
    total = _BASE_SUM + sum(name) + sum(octal)
    return b"".join((name, _AFTER_NAME, octal, _AFTER_OCTAL, b"%06o\0 " % total, _AFTER_SUM))


def padded(size: int) -> int:
    """Returns *size* rounded up to a whole number of 512-byte records."""
    return (size + 511) & ~511


def parse_run(run: "memoryview") -> "list[tuple[bytes, int, int]]":
    """Returns (digest, start, size) for each member of *run*; ``start`` is where the block's bytes begin.

    Raises ValueError for anything that `header` would not have written, or a member that is cut off.  The
    digests are claims: hashing the bytes is the caller's part.
    """
    found = []
    position = 0
    end = len(run)
    while position < end:
        head = bytes(run[position : position + HEADER_SIZE])
        if head[64:124] != _AFTER_NAME or head[135:148] != _AFTER_OCTAL or head[156:] != _AFTER_SUM:
            raise ValueError("a member's header is not in the fixed form")
        name, octal = head[:64], head[124:135]
        if name.strip(_HEX) or octal.strip(_OCTAL):
            raise ValueError("a member is not a block")
        size = int(octal, 8)
        if not 0 < size <= BLOCK_MAX:
            raise ValueError("a block of %d bytes" % size)
        if head[148:156] != b"%06o\0 " % (_BASE_SUM + sum(name) + sum(octal)):
            raise ValueError("a member's checksum is wrong")
        digest = unhexlify(name)
        start = position + HEADER_SIZE
        stop = start + size
        position = start + padded(size)
        if position > end:
            raise ValueError("a block is cut off")
        if run[stop:position] != _ZEROS[: position - stop]:
            raise ValueError("a member's padding is not zero")
        found.append((digest, start, size))
    return found
