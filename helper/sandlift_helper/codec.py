"""Compression of packed payloads: zstd through libzstd.so.1, zlib, or none.

Each payload is compressed on its own, so any process can unpack any frame.  libzstd is loaded with ctypes
(most Debian, Ubuntu and Fedora images carry it for their package manager); zlib and ctypes are imported only
when they are used.  Level 1 with minMatch 6 is on zstd's front for source trees: smaller and no slower than
plain level 1.  Noise costs zstd next to nothing (0.2 ms a MiB up to level 3, text 3), so it is not looked for.
"""

from sandlift_helper.wire import CODEC_NONE, CODEC_ZLIB, CODEC_ZSTD, split_packed

MYPY = False
if MYPY:
    import ctypes

_ZSTD_NAMES = ("libzstd.so.1", "libzstd.1.dylib", "libzstd.so")
_ZSTD_LEVEL_PARAMETER = 100
_ZSTD_MIN_MATCH_PARAMETER = 105


class CodecError(ValueError):
    """A payload does not decode to what it states."""


def load_zstd() -> "ctypes.CDLL | None":
    """Returns libzstd with its signatures set, or None where it is missing or older than 1.4."""
    import ctypes

    for name in _ZSTD_NAMES:
        try:
            library = ctypes.CDLL(name)
            size, pointer = ctypes.c_size_t, ctypes.c_void_p
            library.ZSTD_createCCtx.restype = pointer
            library.ZSTD_createDCtx.restype = pointer
            library.ZSTD_CCtx_setParameter.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
            library.ZSTD_CCtx_setParameter.restype = size
            library.ZSTD_compress2.argtypes = [pointer, pointer, size, pointer, size]
            library.ZSTD_compress2.restype = size
            library.ZSTD_decompressDCtx.argtypes = [pointer, pointer, size, pointer, size]
            library.ZSTD_decompressDCtx.restype = size
            library.ZSTD_isError.argtypes = [size]
            library.ZSTD_isError.restype = ctypes.c_uint
        except (OSError, AttributeError):
            continue
        return library
    return None


class Packer:
    """Compresses buffers with one codec; one for each process, with one context that is used again."""

    def __init__(self, codec: int, level: int = 1) -> None:
        self.codec = codec
        self._level = level
        if codec == CODEC_ZSTD:
            library = load_zstd()
            if library is None:
                raise CodecError("this machine has no libzstd")
            self._zstd = library
            self._context = library.ZSTD_createCCtx()
            library.ZSTD_CCtx_setParameter(self._context, _ZSTD_LEVEL_PARAMETER, level)
            if level == 1:
                library.ZSTD_CCtx_setParameter(self._context, _ZSTD_MIN_MATCH_PARAMETER, 6)

    def pack(self, source: bytearray, size: int, target: bytearray, offset: int) -> int:
        """Writes the first *size* bytes of *source*, encoded, into *target* at *offset*; returns how many bytes.

        *target* must have room for *size* and the codec's overhead (`wire.PACKED_SLACK`).
        """
        if self.codec == CODEC_NONE:
            target[offset : offset + size] = memoryview(source)[:size]
            return size
        if self.codec == CODEC_ZLIB:
            import zlib

            packed = zlib.compress(memoryview(source)[:size], min(self._level, 9))
            target[offset : offset + len(packed)] = packed
            return len(packed)
        import ctypes

        room = len(target) - offset
        written = self._zstd.ZSTD_compress2(
            self._context,
            ctypes.byref((ctypes.c_char * room).from_buffer(target, offset)),
            room,
            ctypes.byref((ctypes.c_char * size).from_buffer(source)),
            size,
        )
        if self._zstd.ZSTD_isError(written):
            raise CodecError("zstd could not compress %d bytes" % size)
        return int(written)

    def wrote(self, size: int, seconds: float) -> None:
        """Is told how long the output took to take a frame of *size* bytes."""


class Unpacker:
    """Decompresses packed payloads of any codec into one buffer that is used again."""

    def __init__(self, capacity: int) -> None:
        self._buffer = bytearray(capacity)
        self._zstd: "ctypes.CDLL | None" = None
        self._context: "object" = None

    def unpack(self, codec: int, size: int, encoded: memoryview) -> memoryview:
        """Returns the *size* decoded bytes, valid until the next call.  Raises CodecError if they are not that."""
        if size > len(self._buffer):
            raise CodecError("a payload of %d bytes" % size)
        if codec == CODEC_NONE:
            if len(encoded) != size:
                raise CodecError("a payload states %d bytes and has %d" % (size, len(encoded)))
            return encoded
        if codec == CODEC_ZLIB:
            return self._unpack_zlib(size, encoded)
        if codec == CODEC_ZSTD:
            return self._unpack_zstd(size, encoded)
        raise CodecError("unknown codec %d" % codec)

    def _unpack_zlib(self, size: int, encoded: memoryview) -> memoryview:
        import zlib

        stream = zlib.decompressobj()
        try:
            decoded = stream.decompress(bytes(encoded), size + 1)
        except zlib.error as error:
            raise CodecError("damaged zlib data: %s" % error)
        if len(decoded) != size or not stream.eof or stream.unused_data:
            raise CodecError("zlib data does not decode to the %d bytes that it states" % size)
        return memoryview(decoded)

    def _unpack_zstd(self, size: int, encoded: memoryview) -> memoryview:
        import ctypes

        if self._zstd is None:
            self._zstd = load_zstd()
            if self._zstd is None:
                raise CodecError("this machine has no libzstd")
            self._context = self._zstd.ZSTD_createDCtx()
        source = encoded if not encoded.readonly else memoryview(bytearray(encoded))
        written = self._zstd.ZSTD_decompressDCtx(
            self._context,
            ctypes.byref((ctypes.c_char * len(self._buffer)).from_buffer(self._buffer)),
            len(self._buffer),
            ctypes.byref((ctypes.c_char * len(source)).from_buffer(source)),
            len(source),
        )
        if self._zstd.ZSTD_isError(written) or written != size:
            raise CodecError("zstd data does not decode to the %d bytes that it states" % size)
        return memoryview(self._buffer)[:size]


def available() -> "list[str]":
    """Returns the names of the codecs that work on this machine, best first."""
    names = ["zstd"] if load_zstd() is not None else []
    try:
        import zlib  # noqa: F401
    except ImportError:
        return names + ["none"]
    return names + ["zlib", "none"]


def unpack_payload(payload: "bytes | bytearray | memoryview", cap: int) -> memoryview:
    """Returns what a packed payload decodes to.  Raises CodecError, wire.FrameError when it states more than *cap*."""
    codec, size, encoded = split_packed(payload, cap)
    return Unpacker(size).unpack(codec, size, encoded)
