"""Compression on the helper's side, against the host's own libraries."""

from __future__ import annotations

import os
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlift_helper import wire
from sandlift_helper.codec import CodecError, Packer, Unpacker, available, load_zstd

CODECS = [wire.CODEC_NONE, wire.CODEC_ZLIB]
if load_zstd() is not None:
    CODECS.append(wire.CODEC_ZSTD)
NAMES = {number: name for name, number in wire.CODEC_NAMES.items()}
MIB = 1 << 20
TEXT = b"all work and no play\n" * 5000

codecs = pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)


def pack(data: bytes, codec: int, *, room: int | None = None) -> bytes:
    """Packs with the room that the helper's own buffers give."""
    target = bytearray(7 + (len(data) + wire.PACKED_SLACK if room is None else room))
    size = Packer(codec).pack(bytearray(data) or bytearray(1), len(data), target, 7)
    assert target[:7] == bytes(7)
    return bytes(target[7 : 7 + size])


def unpack(encoded: bytes, codec: int, size: int, capacity: int = 4 * MIB) -> bytes:
    return bytes(Unpacker(capacity).unpack(codec, size, memoryview(encoded)))


@codecs
@settings(deadline=None, max_examples=60)
@given(data=st.binary(min_size=1, max_size=5000))
def test_what_is_packed_is_unpacked(codec: int, data: bytes) -> None:
    assert unpack(pack(data, codec), codec, len(data)) == data


@codecs
@pytest.mark.parametrize("kind", ["zeros", "text", "noise"])
def test_a_full_run_fits_into_its_slack(codec: int, kind: str) -> None:
    source = {"zeros": bytes(1), "text": TEXT, "noise": os.urandom(wire.RUN_MAX)}[kind]
    data = (source * (wire.RUN_MAX // len(source) + 1))[: wire.RUN_MAX]
    encoded = pack(data, codec)
    assert len(encoded) <= wire.RUN_MAX + wire.PACKED_SLACK
    assert wire.PACKED_HEADER_SIZE + len(encoded) <= wire.CAPS[wire.CONTENT]
    assert unpack(encoded, codec, len(data)) == data


def test_the_host_s_libraries_read_it() -> None:
    assert zlib.decompress(pack(TEXT, wire.CODEC_ZLIB)) == TEXT
    assert pack(TEXT, wire.CODEC_NONE) == TEXT
    if wire.CODEC_ZSTD in CODECS:
        frame = pack(TEXT, wire.CODEC_ZSTD)
        assert zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False) == TEXT
        head = zstandard.get_frame_parameters(frame)
        assert (head.content_size, head.dict_id, head.has_checksum) == (len(TEXT), 0, False)


def test_it_reads_what_the_host_s_libraries_write() -> None:
    assert unpack(zlib.compress(TEXT, 9), wire.CODEC_ZLIB, len(TEXT)) == TEXT
    if wire.CODEC_ZSTD in CODECS:
        assert unpack(zstandard.ZstdCompressor(level=19).compress(TEXT), wire.CODEC_ZSTD, len(TEXT)) == TEXT


@codecs
def test_one_packer_and_one_unpacker_serve_many_payloads(codec: int) -> None:
    packer, unpacker = Packer(codec), Unpacker(MIB)
    source, target = bytearray(MIB), bytearray(2 * MIB)
    for number in range(50):
        data = b"%d" % number * (1 + 997 * number)
        source[: len(data)] = data
        size = packer.pack(source, len(data), target, 0)
        assert unpacker.unpack(codec, len(data), memoryview(target)[:size]) == data


@codecs
@pytest.mark.parametrize("error", [-1, 1, 1000, -len(TEXT)])
def test_a_size_that_is_not_so_is_refused(codec: int, error: int) -> None:
    with pytest.raises(CodecError):
        unpack(pack(TEXT, codec), codec, len(TEXT) + error)


@codecs
def test_a_size_over_the_buffer_is_refused(codec: int) -> None:
    encoded = pack(TEXT, codec)
    assert unpack(encoded, codec, len(TEXT), capacity=len(TEXT)) == TEXT
    with pytest.raises(CodecError):
        unpack(encoded, codec, len(TEXT), capacity=len(TEXT) - 1)


@codecs
def test_cut_off_and_damaged_data_is_refused_or_differs(codec: int) -> None:
    encoded = pack(TEXT, codec)
    for cut in {1, 2, len(encoded) // 2, len(encoded) - 1}:
        with pytest.raises(CodecError):
            unpack(encoded[:cut], codec, len(TEXT))
    if codec != wire.CODEC_NONE:
        with pytest.raises(CodecError):
            unpack(b"\xff" + encoded[1:], codec, len(TEXT))


@pytest.mark.parametrize("codec", CODECS[1:], ids=NAMES.get)
def test_bombs_stop_at_the_size_that_they_state(codec: int) -> None:
    bomb = zlib.compress(bytes(64 * MIB)) if codec == wire.CODEC_ZLIB else zstandard.compress(bytes(64 * MIB))
    assert len(bomb) < 100_000
    with pytest.raises(CodecError):
        unpack(bomb, codec, MIB, capacity=MIB)


@pytest.mark.parametrize("codec", CODECS[1:], ids=NAMES.get)
def test_nothing_may_follow(codec: int) -> None:
    encoded = pack(TEXT, codec)
    for tail in (b"x", encoded):
        with pytest.raises(CodecError):
            unpack(encoded + tail, codec, len(TEXT))


def test_an_unknown_codec() -> None:
    with pytest.raises(CodecError, match="unknown codec 9"):
        unpack(TEXT, 9, len(TEXT))


def test_what_works_here_is_told_best_first() -> None:
    assert available() == [NAMES[codec] for codec in reversed(CODECS)]


@settings(deadline=None)
@given(st.sampled_from(CODECS), st.binary(max_size=200), st.integers(0, 300))
def test_arbitrary_data_is_refused(codec: int, data: bytes, size: int) -> None:
    try:
        decoded = unpack(data, codec, size)
    except CodecError:
        return
    assert len(decoded) == size
