"""Content frames and manifest segments, unpacked within their caps and proved."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.stream import digest_of, member, pack, run_of

from sandlift.content import WINDOW_MAX, Prover
from sandlift.errors import RemoteProtocolError
from sandlift_helper import members, wire
from sandlift_helper.codec import Packer, load_zstd

CODECS = [wire.CODEC_NONE, wire.CODEC_ZLIB, wire.CODEC_ZSTD]
BLOCKS = [b"one", b"x" * 512, bytes(range(256)) * 300]
RUN = run_of(BLOCKS)
MIB = 1 << 20


def zstd(data: bytes, **parameters: int) -> bytes:
    """A frame made with compression parameters of the wire format's own names."""
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(1, **parameters)
    ).compress(data)


def framed(codec: int, size: int, encoded: bytes) -> bytes:
    return wire.packed_header(codec, size) + encoded


@pytest.mark.parametrize("codec", CODECS)
def test_a_run_is_proved_and_stored_as_one_zstd_frame(codec: int) -> None:
    run = Prover().prove(pack(RUN, codec))
    assert run.size_bytes == len(RUN)
    assert [block[0] for block in run.blocks] == [digest_of(block) for block in BLOCKS]
    assert [block[2] for block in run.blocks] == [len(block) for block in BLOCKS]
    for block, (_, offset, size) in zip(BLOCKS, run.blocks, strict=True):
        assert RUN[offset : offset + 512 + size] == members.header(digest_of(block), size) + block
    assert zstandard.frame_content_size(run.stored) == len(RUN)
    assert zstandard.ZstdDecompressor().decompress(run.stored, allow_extra_data=False) == RUN


def test_zstd_is_stored_as_it_came() -> None:
    payload = pack(RUN, wire.CODEC_ZSTD)
    assert Prover().prove(payload).stored == payload[wire.PACKED_HEADER_SIZE :]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fill", ["zeros", "noise"])
def test_the_largest_run(codec: int, fill: str) -> None:
    # One byte short of full, and then one whole block: the most that a helper puts into a run.
    first, last = (bytes(size) if fill == "zeros" else os.urandom(size) for size in (MIB - 1024, MIB))
    run = run_of([first, last])
    assert len(run) == wire.RUN_MAX - 512
    assert [block[2] for block in Prover().prove(pack(run, codec)).blocks] == [len(first), len(last)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_run_over_the_cap_is_refused(codec: int) -> None:
    run = run_of([bytes(MIB), bytes(MIB), b"x"])
    with pytest.raises(RemoteProtocolError, match="at most"):
        Prover().prove(pack(run, codec))


@pytest.mark.parametrize("codec", CODECS)
def test_a_segment_of_any_size_up_to_the_cap(codec: int) -> None:
    """Windows of 8 MiB are the most for content; a segment is one frame whatever its size."""
    data = os.urandom(1 << 16) * 352
    assert len(data) > 2 * WINDOW_MAX
    assert bytes(Prover().unpack_segment(pack(data, codec))) == data


@pytest.mark.skipif(load_zstd() is None, reason="libzstd is not installed: apt-get install libzstd1")
def test_a_large_segment_of_the_helper_s_own_packer() -> None:
    data = bytearray(os.urandom(1 << 16) * 352)
    target = bytearray(len(data) + (len(data) >> 8) + 1024)
    size = Packer(wire.CODEC_ZSTD).pack(data, len(data), target, 0)
    assert Prover().unpack_segment(framed(wire.CODEC_ZSTD, len(data), bytes(target[:size]))) == data


def _skippable(size: int) -> bytes:
    return struct.pack("<II", 0x184D2A50, size) + bytes(size)


def _lying(size: int, stated: int) -> bytes:
    """A frame of *size* zeros whose head states another size (RFC 8878 3.1.1.1)."""
    frame = bytearray(zstd(bytes(size)))
    assert frame[4] >> 6 == 2, "the content size has four bytes"
    at = 5 if frame[4] & 0x20 else 6
    assert int.from_bytes(frame[at : at + 4], "little") == size
    frame[at : at + 4] = stated.to_bytes(4, "little")
    assert zstandard.frame_content_size(bytes(frame)) == stated
    return bytes(frame)


FRAME = zstd(RUN)
DICTIONARY = zstandard.train_dictionary(4096, [os.urandom(64) + b"same words over and over" * 9 for _ in range(200)])
# Found in the dictionary for the most part.
WORDY = run_of([b"same words over and over" * 9])
WITH_DICTIONARY = zstandard.ZstdCompressor(level=1, dict_data=DICTIONARY).compress(RUN)
WITH_UNNAMED_DICTIONARY = zstandard.ZstdCompressor(level=1, dict_data=DICTIONARY, write_dict_id=False).compress(WORDY)
CHECKED = zstd(RUN, write_checksum=1)
MAGICLESS = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters(compression_level=1, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
).compress(RUN)
DEFLATED = zlib.compress(RUN)

REFUSED = {
    "empty payload": b"",
    "header cut off": b"\0\0\0\0",
    "nothing in it": framed(wire.CODEC_NONE, 0, b""),
    "nothing in it, zlib": framed(wire.CODEC_ZLIB, 0, zlib.compress(b"")),
    "nothing in it, zstd": framed(wire.CODEC_ZSTD, 0, zstd(b"")),
    "unknown codec 3": framed(3, len(RUN), RUN),
    "unknown codec 255": framed(255, len(RUN), RUN),
    "states less": framed(wire.CODEC_NONE, len(RUN) - 512, RUN),
    "states more": framed(wire.CODEC_NONE, len(RUN) + 512, RUN),
    "states four gibibytes": framed(wire.CODEC_NONE, (1 << 32) - 1, RUN),
    "zlib states less": framed(wire.CODEC_ZLIB, len(RUN) - 512, DEFLATED),
    "zlib states more": framed(wire.CODEC_ZLIB, len(RUN) + 512, DEFLATED),
    "zlib cut off": framed(wire.CODEC_ZLIB, len(RUN), DEFLATED[:-1]),
    "zlib with a tail": framed(wire.CODEC_ZLIB, len(RUN), DEFLATED + b"x"),
    "zlib with a wrong checksum": framed(wire.CODEC_ZLIB, len(RUN), DEFLATED[:-1] + bytes([DEFLATED[-1] ^ 1])),
    "two zlib streams": framed(wire.CODEC_ZLIB, 2 * len(RUN), DEFLATED * 2),
    "no zlib": framed(wire.CODEC_ZLIB, len(RUN), RUN),
    "raw deflate": framed(wire.CODEC_ZLIB, len(RUN), DEFLATED[2:-4]),
    "zlib bomb": framed(wire.CODEC_ZLIB, wire.RUN_MAX, zlib.compress(bytes(64 * MIB))),
    "zstd as zlib": framed(wire.CODEC_ZLIB, len(RUN), FRAME),
    "zstd states less": framed(wire.CODEC_ZSTD, len(RUN) - 512, FRAME),
    "zstd states more": framed(wire.CODEC_ZSTD, len(RUN) + 512, FRAME),
    "zstd cut off": framed(wire.CODEC_ZSTD, len(RUN), FRAME[:-1]),
    "zstd head alone": framed(wire.CODEC_ZSTD, len(RUN), FRAME[:5]),
    "zstd with a tail": framed(wire.CODEC_ZSTD, len(RUN), FRAME + b"x"),
    "two zstd frames": framed(wire.CODEC_ZSTD, 2 * len(RUN), FRAME * 2),
    "two zstd frames that state one": framed(wire.CODEC_ZSTD, len(RUN), FRAME * 2),
    "skippable frame first": framed(wire.CODEC_ZSTD, len(RUN), _skippable(4) + FRAME),
    "skippable frame last": framed(wire.CODEC_ZSTD, len(RUN), FRAME + _skippable(4)),
    "skippable frame alone": framed(wire.CODEC_ZSTD, len(RUN), _skippable(len(RUN))),
    "zstd without content size": framed(wire.CODEC_ZSTD, len(RUN), zstd(RUN, write_content_size=0)),
    "zstd with a dictionary": framed(wire.CODEC_ZSTD, len(RUN), WITH_DICTIONARY),
    "zstd with a dictionary that it does not name": framed(wire.CODEC_ZSTD, len(WORDY), WITH_UNNAMED_DICTIONARY),
    "zstd with the reserved bit": framed(wire.CODEC_ZSTD, len(RUN), FRAME[:4] + bytes([FRAME[4] | 8]) + FRAME[5:]),
    "zstd with a wrong checksum": framed(wire.CODEC_ZSTD, len(RUN), CHECKED[:-1] + bytes([CHECKED[-1] ^ 1])),
    "zstd without magic": framed(wire.CODEC_ZSTD, len(RUN), MAGICLESS),
    "zstd of format 0.7": framed(wire.CODEC_ZSTD, len(RUN), b"\x27\xb5\x2f\xfd" + FRAME[4:]),
    "zstd bomb": framed(wire.CODEC_ZSTD, wire.RUN_MAX, zstd(bytes(256 * MIB))),
    "zstd that holds more than it states": framed(wire.CODEC_ZSTD, wire.RUN_MAX, _lying(64 * MIB, wire.RUN_MAX)),
    "zstd that holds less than it states": framed(wire.CODEC_ZSTD, wire.RUN_MAX, _lying(1 * MIB, wire.RUN_MAX)),
    "zlib as zstd": framed(wire.CODEC_ZSTD, len(RUN), DEFLATED),
    "plain as zstd": framed(wire.CODEC_ZSTD, len(RUN), RUN),
    "no member": pack(bytes(512)),
    "half a header": pack(RUN[:300]),
    "member cut off": pack(RUN[:-512]),
    "block that is not its name": pack(member(b"one", name=digest_of(b"two"))),
    "second block that is not its name": pack(member(b"one") + member(b"two", name=digest_of(b"one"))),
    "padding that is not zero": pack(run_of([b"one"])[:-1] + b"x"),
    "end of archive": pack(RUN + bytes(1024)),
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_refused_content(payload: bytes) -> None:
    prover = Prover()
    with pytest.raises(RemoteProtocolError, match="not allowed|does not hash to its name"):
        prover.prove(payload)
    # The prover goes on to be of use.
    assert prover.prove(pack(RUN, wire.CODEC_ZSTD)).size_bytes == len(RUN)


@pytest.mark.parametrize("name", [name for name in REFUSED if "block" not in name and "member" not in name])
def test_the_same_of_a_segment(name: str) -> None:
    unpacked = name in ("half a header", "padding that is not zero", "end of archive") or name.startswith("nothing")
    if unpacked:
        assert len(Prover().unpack_segment(REFUSED[name])) == int.from_bytes(REFUSED[name][1:5], "little")
        return
    with pytest.raises(RemoteProtocolError, match="not allowed"):
        Prover().unpack_segment(REFUSED[name])


def _with_window(window_log: int) -> bytes:
    """A frame that is not of a single segment, so that it states a window."""
    frame = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=window_log, compression_level=1)
    ).compress(bytes(RUN))
    descriptor = frame[4]
    assert descriptor & 0x20, "a single segment"
    # RFC 8878 3.1.1.1: without the single-segment flag a window descriptor follows, and the size is as it was.
    assert descriptor >> 6 in (1, 2)
    return frame[:4] + bytes([descriptor & ~0x20, (window_log - 10) << 3]) + frame[5:]


@pytest.mark.parametrize("window_log", [17, 20, 23])
def test_a_window_of_up_to_8_mib(window_log: int) -> None:
    frame = _with_window(window_log)
    assert zstandard.get_frame_parameters(frame).window_size == 1 << window_log
    assert Prover().prove(framed(wire.CODEC_ZSTD, len(RUN), frame)).stored == frame


@pytest.mark.parametrize("window_log", [24, 27, 31])
def test_a_larger_window_is_refused(window_log: int) -> None:
    with pytest.raises(RemoteProtocolError, match="not allowed"):
        Prover().prove(framed(wire.CODEC_ZSTD, len(RUN), _with_window(window_log)))


def test_bombs_allocate_no_more_than_a_run() -> None:
    prover = Prover()
    for name in ("zlib bomb", "zstd bomb", "zstd that holds more than it states", "states four gibibytes"):
        tracemalloc.start()
        try:
            with pytest.raises(RemoteProtocolError):
                prover.prove(REFUSED[name])
            assert tracemalloc.get_traced_memory()[1] < 8 * MIB, name
        finally:
            tracemalloc.stop()


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([0, 1, 2, 3]), st.integers(0, 5000), st.binary(max_size=600))
def test_arbitrary_payloads_are_refused(codec: int, size: int, encoded: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Prover().prove(framed(codec, size, encoded))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CODECS), st.integers(0, 1 << 20), st.integers(1, 255))
def test_no_flipped_byte_changes_a_block(codec: int, place: int, change: int) -> None:
    payload = bytearray(pack(RUN, codec))
    payload[place % len(payload)] ^= change
    try:
        run = Prover().prove(payload)
    except RemoteProtocolError:
        return
    # A bit that an encoding does not use; what comes out is the same to the last byte.
    assert zstandard.ZstdDecompressor().decompress(run.stored) == RUN
