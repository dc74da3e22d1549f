"""The reader of frames: the same frames however the bytes are split, and a cap before every allocation."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol.stream import small

from sandlift_helper import wire

Frames = list[tuple[int, bytes]]
KINDS = sorted(wire.CAPS)
OPEN_KINDS = [kind for kind in KINDS if kind not in (wire.END, wire.FAILURE)]

frames_of_any_kind = st.lists(st.tuples(st.sampled_from(OPEN_KINDS), st.binary(max_size=64)), max_size=8)


def written(frames: Frames) -> bytes:
    return b"".join(wire.frame(kind, payload) for kind, payload in frames)


def read(pieces: list[bytes]) -> tuple[Frames, bytes]:
    reader = wire.Reader()
    found = [(kind, bytes(payload)) for piece in pieces for kind, payload in reader.feed(piece)]
    return found, bytes(reader.trailer)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def test_the_format_of_a_frame() -> None:
    assert wire.frame(wire.CREDIT, b"xyz") == b"\x04\x03\x00\x00\x00xyz"
    assert wire.frame_header(wire.CONTENT, 0x01020304) == b"\x08\x04\x03\x02\x01"
    assert wire.packed_header(wire.CODEC_ZSTD, 258) == b"\x02\x02\x01\x00\x00"


def test_one_byte_at_a_time() -> None:
    data = small().data
    whole = read([data])[0]
    assert len(whole) == len(small().frames)
    assert read([data[at : at + 1] for at in range(len(data))]) == (whole, b"")


# cases: kubernetes-client/python#717
@given(frames_of_any_kind, st.lists(st.integers(min_value=0), max_size=12))
def test_any_split_gives_the_same_frames(frames: Frames, cuts: list[int]) -> None:
    assert read(split(written(frames), cuts)) == (frames, b"")


@given(frames_of_any_kind, st.sampled_from((wire.END, wire.FAILURE)), st.binary(max_size=40), st.lists(st.integers(0)))
def test_an_end_closes_the_stream_and_the_rest_is_trailer(
    frames: Frames, last: int, rest: bytes, cuts: list[int]
) -> None:
    frames = [*frames, (last, b"\x80")]
    assert read(split(written(frames) + rest, cuts)) == (frames, rest)


def test_payloads_do_not_share_memory_with_what_was_fed() -> None:
    data = bytearray(wire.frame(wire.CREDIT, b"abc"))
    ((_, payload),) = wire.Reader().feed(data)
    data[:] = bytes(len(data))
    assert payload == b"abc"


@pytest.mark.parametrize("kind", KINDS, ids=wire.KIND_NAMES.get)
def test_the_cap_of_each_kind_is_exact(kind: int) -> None:
    cap = wire.CAPS[kind]
    reader = wire.Reader()
    assert reader.feed(wire.frame_header(kind, cap)) == []
    with pytest.raises(wire.FrameError, match=rf"a {wire.KIND_NAMES[kind]} frame of {cap + 1} bytes, at most {cap}"):
        wire.Reader().feed(wire.frame_header(kind, cap + 1))
    with pytest.raises(wire.FrameError):
        wire.Reader().feed(wire.frame_header(kind, (1 << 32) - 1))


@pytest.mark.parametrize("kind", [wire.CREDIT, wire.END, wire.FAILURE, wire.CONTENT], ids=wire.KIND_NAMES.get)
def test_a_payload_as_long_as_the_cap_is_read(kind: int) -> None:
    payload = bytes(range(256)) * (wire.CAPS[kind] // 256) + bytes(wire.CAPS[kind] % 256)
    assert read([wire.frame(kind, payload)]) == ([(kind, payload)], b"")
    with pytest.raises(ValueError, match=wire.KIND_NAMES[kind]):
        wire.frame(kind, payload + b"x")


@pytest.mark.parametrize("kind", [0, 12, 13, 127, 128, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    assert kind not in KINDS
    with pytest.raises(wire.FrameError, match=f"unknown frame kind {kind}"):
        wire.Reader().feed(wire.frame_header(kind, 0))
    # Its first byte alone says nothing yet.
    assert wire.Reader().feed(bytes([kind])) == []


def test_a_refused_header_allocates_nothing() -> None:
    reader = wire.Reader()
    tracemalloc.start()
    try:
        with pytest.raises(wire.FrameError):
            reader.feed(wire.frame_header(wire.MANIFEST, (1 << 32) - 1))
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=5))
def test_arbitrary_bytes_give_frames_or_a_frame_error(data: bytes, cuts: list[int]) -> None:
    try:
        found, trailer = read(split(data, cuts))
    except wire.FrameError:
        return
    # What was read can be written again, and is where it came from.
    assert data.startswith(written(found))
    assert data.endswith(trailer)


@given(st.binary(max_size=20), st.integers(0, 100))
def test_a_packed_payload_states_its_size_within_a_cap(data: bytes, cap: int) -> None:
    try:
        codec, size, encoded = wire.split_packed(data, cap)
    except wire.FrameError:
        assert len(data) < wire.PACKED_HEADER_SIZE or int.from_bytes(data[1:5], "little") > cap
        return
    assert size <= cap
    assert wire.packed_header(codec, size) + bytes(encoded) == data
