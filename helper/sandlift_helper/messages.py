"""The payloads of control frames: msgpack maps, in a small encoder and decoder.

The subset is what both sides use: nil, booleans, 64-bit integers, binary, text, arrays, maps.  Text is UTF-8
with surrogate escapes, so any bytes that an operating system gave as text come back the same.  The decoder
allocates nothing that the bytes at hand do not hold, and stops at a nesting of 16.
"""

import struct

DEPTH_MAX = 16


def encode(value: object) -> bytes:
    """Returns *value* as msgpack.  Raises TypeError or OverflowError for what the subset cannot hold."""
    out: "list[bytes]" = []
    _encode(value, out, 0)
    return b"".join(out)


def _encode(value: object, out: "list[bytes]", depth: int) -> None:
    if depth > DEPTH_MAX:
        raise TypeError("nested too deeply")
    if value is None:
        out.append(b"\xc0")
    elif value is False:
        out.append(b"\xc2")
    elif value is True:
        out.append(b"\xc3")
    elif isinstance(value, int):
        out.append(_encode_int(value))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out.append(_length(len(value), b"\xc4", b"\xc5", b"\xc6"))
        out.append(bytes(value))
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        out.append(bytes([0xA0 | len(raw)]) if len(raw) < 32 else _length(len(raw), b"\xd9", b"\xda", b"\xdb"))
        out.append(raw)
    elif isinstance(value, (list, tuple)):
        out.append(bytes([0x90 | len(value)]) if len(value) < 16 else _length(len(value), b"", b"\xdc", b"\xdd"))
        for item in value:
            _encode(item, out, depth + 1)
    elif isinstance(value, dict):
        out.append(bytes([0x80 | len(value)]) if len(value) < 16 else _length(len(value), b"", b"\xde", b"\xdf"))
        for key, item in value.items():
            _encode(key, out, depth + 1)
            _encode(item, out, depth + 1)
    else:
        raise TypeError("cannot encode %s" % type(value).__name__)


def _encode_int(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if -32 <= value < 0:
        return struct.pack("b", value)
    if value >= 0:
        return b"\xcf" + value.to_bytes(8, "big")
    return b"\xd3" + value.to_bytes(8, "big", signed=True)


def _length(size: int, one: bytes, two: bytes, four: bytes) -> bytes:
    if one and size < 1 << 8:
        return one + bytes([size])
    if size < 1 << 16:
        return two + struct.pack(">H", size)
    return four + struct.pack(">I", size)


def decode(data: "bytes | bytearray | memoryview") -> "dict[str, object]":
    """Returns the one map that *data* holds.  Raises ValueError for anything else."""
    decoder = _Decoder(bytes(data))
    value = decoder.value(0)
    if decoder.position != len(decoder.data):
        raise ValueError("bytes after the message")
    if not isinstance(value, dict):
        raise ValueError("a message must be a map")
    return value


_INTS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LENGTHS = {
    0xC4: ">B",
    0xC5: ">H",
    0xC6: ">I",
    0xD9: ">B",
    0xDA: ">H",
    0xDB: ">I",
    0xDC: ">H",
    0xDD: ">I",
    0xDE: ">H",
    0xDF: ">I",
}


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        start = self.position
        if size > len(self.data) - start:
            raise ValueError("the message is cut off")
        self.position = start + size
        return self.data[start : self.position]

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def value(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            raise ValueError("the message is nested too deeply")
        tag = self.take(1)[0]
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 256
        if tag < 0x90:
            return self.mapping(tag & 15, depth)
        if tag < 0xA0:
            return self.array(tag & 15, depth)
        if tag < 0xC0:
            return self.text(tag & 31)
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if tag in _INTS:
            return self.number(_INTS[tag])
        if tag not in _LENGTHS:
            raise ValueError("unknown tag 0x%02x in a message" % tag)
        size = self.number(_LENGTHS[tag])
        if tag <= 0xC6:
            return self.take(size)
        if tag <= 0xDB:
            return self.text(size)
        if tag <= 0xDD:
            return self.array(size, depth)
        return self.mapping(size, depth)

    def text(self, size: int) -> str:
        return self.take(size).decode("utf-8", "surrogateescape")

    def array(self, size: int, depth: int) -> "list[object]":
        if size > len(self.data) - self.position:
            raise ValueError("the message is cut off")
        return [self.value(depth + 1) for _ in range(size)]

    def mapping(self, size: int, depth: int) -> "dict[str, object]":
        if size > len(self.data) - self.position:
            raise ValueError("the message is cut off")
        found: "dict[str, object]" = {}
        for _ in range(size):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in found:
                raise ValueError("a message's keys must be texts, each once")
            found[key] = self.value(depth + 1)
        return found
