"""The stream between host and helper: format, kinds, caps, and the one reader of it.

Format (integers little-endian)::

    helper to host:  noise* MAGIC nonce frame* end        host to helper:  frame*
    frame:           kind (1 byte)  length (4 bytes)  payload (length bytes)
    packed payload:  codec (1 byte)  decoded size (4 bytes)  encoded bytes     manifest, content
    other payloads:  one msgpack map                                           see `messages`

The host invents the 16-byte nonce for each run and sends it on the helper's standard input only, so what
a login shell prints before the stream cannot be taken for it.  ``content`` decodes to a run of whole block
members (see `members`), ``manifest`` to one segment of the manifest's table (see `table`).  Content frames
may come in any order and a block may come twice.  Each content frame uses up one credit that the receiver
granted.  Exactly one ``end`` or ``failure`` closes the stream; a stream that stops without either is
truncated.  ``end`` carries the counts of content frames and blocks, and the SHA-256 over all other frames
before it (kind, length and payload), among them the manifest segments that name every block.

Each operation's module says which frames come when: `capture`, `survey`, `apply`.  A capture's ``base`` frames
hold packed payloads: at first one for each of the request's ``offers``, a byte that says whose blocks they are (0
own, 1 like) and 8 bytes of each digest; then an answer to each part that the helper's ``want`` asks for (see
`parts.encode_known`).

A frame's length is checked against its kind's cap before anything is allocated, and a packed payload's
decoded size against the cap of what it decodes to.
"""

import struct

PROTOCOL = 1

MAGIC = b"\x00sandlift\x00\x01\n"
NONCE_SIZE = 16

HELLO = 1
REQUEST = 2
BASE = 3
CREDIT = 4
WANT = 5
HAVE = 6
MANIFEST = 7
CONTENT = 8
PROGRESS = 9
END = 10
FAILURE = 11

KIND_NAMES = {
    HELLO: "hello",
    REQUEST: "request",
    BASE: "base",
    CREDIT: "credit",
    WANT: "want",
    HAVE: "have",
    MANIFEST: "manifest",
    CONTENT: "content",
    PROGRESS: "progress",
    END: "end",
    FAILURE: "failure",
}

BLOCK_MAX = 1 << 20
# A run is closed once it holds 1 MiB, so it is at most one byte short of that plus one whole member.
RUN_TARGET = 1 << 20
RUN_MAX = RUN_TARGET + 512 + BLOCK_MAX
SEGMENT_MAX = 64 << 20
# What a codec may add to content that it cannot compress: zstd 1/256 + 64, zlib 5 bytes for each 16 KiB.
PACKED_SLACK = (RUN_MAX >> 8) + 1024

CAPS = {
    HELLO: 64 << 10,
    REQUEST: 8 << 20,
    BASE: SEGMENT_MAX,
    CREDIT: 64,
    WANT: SEGMENT_MAX,
    HAVE: SEGMENT_MAX,
    MANIFEST: SEGMENT_MAX + (SEGMENT_MAX >> 8) + 1024,
    CONTENT: RUN_MAX + PACKED_SLACK,
    PROGRESS: 128 << 10,
    END: 4 << 10,
    FAILURE: 256 << 10,
}

# In the column that says where the content of a restore has a block: nowhere, for the target holds it.
LOCAL = 0xFFFFFFFFFFFFFFFF

CODEC_NONE = 0
CODEC_ZLIB = 1
CODEC_ZSTD = 2
CODEC_NAMES = {"none": CODEC_NONE, "zlib": CODEC_ZLIB, "zstd": CODEC_ZSTD}

# Exit statuses of the start, so that "it just exited" is never the diagnosis.
EXIT_NO_PYTHON = 97
EXIT_PYTHON_OLD = 96
EXIT_SHORT_PAYLOAD = 95
EXIT_HOST_GONE = 94
EXIT_TERMINAL = 93

_HEADER = struct.Struct("<BI")
_PACKED = struct.Struct("<BI")
HEADER_SIZE = _HEADER.size
PACKED_HEADER_SIZE = _PACKED.size


class FrameError(ValueError):
    """The bytes are no frames of this format."""


def frame_header(kind: int, length: int) -> bytes:
    """Returns the five bytes that stand before a payload of *length* bytes."""
    return _HEADER.pack(kind, length)


def frame(kind: int, payload: bytes) -> bytes:
    """Returns a whole frame.  Raises ValueError when the payload is over its kind's cap."""
    if len(payload) > CAPS[kind]:
        raise ValueError("a %s frame of %d bytes" % (KIND_NAMES[kind], len(payload)))
    return _HEADER.pack(kind, len(payload)) + payload


def packed_header(codec: int, decoded_size: int) -> bytes:
    """Returns the five bytes that stand before the encoded bytes of a packed payload."""
    return _PACKED.pack(codec, decoded_size)


def split_packed(payload: "bytes | bytearray | memoryview", cap: int) -> "tuple[int, int, memoryview]":
    """Returns (codec, decoded size, encoded bytes).  Raises FrameError when it states more than *cap* bytes."""
    if len(payload) < _PACKED.size:
        raise FrameError("a packed payload of %d bytes" % len(payload))
    codec, size = _PACKED.unpack_from(payload)
    if size > cap:
        raise FrameError("a packed payload states %d bytes, at most %d are allowed" % (size, cap))
    return codec, size, memoryview(payload)[_PACKED.size :]


class Reader:
    """Turns bytes into whole frames, however they are split.

    `feed` takes any number of bytes and returns the frames that are complete now, as (kind, payload) pairs.
    Raises FrameError at the first header that no peer of ours writes; after that the reader is of no use.
    ``end`` or ``failure`` closes the stream: what follows is no frame, and collects in ``trailer``.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._kind = 0
        self._payload: "bytearray | None" = None
        self._filled = 0
        self.closed = False
        self.trailer = bytearray()

    def feed(self, data: "bytes | bytearray | memoryview") -> "list[tuple[int, bytearray]]":
        frames = []
        view = memoryview(data)
        while True:
            if self.closed:
                self.trailer += view
                break
            if self._payload is None:
                if not len(view):
                    break
                wanted = HEADER_SIZE - len(self._head)
                self._head += view[:wanted]
                view = view[wanted:]
                if len(self._head) < HEADER_SIZE:
                    break
                kind, length = _HEADER.unpack(bytes(self._head))
                cap = CAPS.get(kind)
                if cap is None:
                    raise FrameError("unknown frame kind %d" % kind)
                if length > cap:
                    raise FrameError("a %s frame of %d bytes, at most %d are allowed" % (KIND_NAMES[kind], length, cap))
                self._kind = kind
                self._payload = bytearray(length)
                self._filled = 0
                del self._head[:]
            wanted = len(self._payload) - self._filled
            piece = view[:wanted]
            self._payload[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled < len(self._payload):
                break
            frames.append((self._kind, self._payload))
            self._payload = None
            self.closed = self._kind in (END, FAILURE)
        return frames
