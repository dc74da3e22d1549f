"""Targets for the stream that a sandbox sends: frames, events, messages, content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import msgpack  # type: ignore[import-untyped]
import zstandard
from fuzz import oracles
from fuzz.invariants import hold

from sandlift.content import WINDOW_MAX, Prover
from sandlift.errors import HostLimit, RemoteProtocolError
from sandlift.limits import Limits
from sandlift.session import End, Event, Failure, Session, State
from sandlift.store import packs
from sandlift_helper import codec, members, messages, wire


def cut(data: bytes, step: int) -> list[bytes]:
    """*data* in pieces of *step* bytes."""
    return [data[at : at + step] for at in range(0, len(data), step)]


def _read(pieces: Sequence[bytes]) -> tuple[list[tuple[int, bytearray]], bytes, bool] | str:
    reader = wire.Reader()
    frames: list[tuple[int, bytearray]] = []
    try:
        for piece in pieces:
            frames += reader.feed(piece)
    except wire.FrameError as error:
        return str(error)
    return frames, bytes(reader.trailer), reader.closed


def reader(data: bytes) -> None:
    """``step (1) stream``: frames do not depend on the pieces they come in, and together they are the stream."""
    step, stream = 1 + data[0] % 16 if data else 1, data[1:]
    whole = _read([stream])
    hold(whole == _read(cut(stream, step)), "frames depend on how the stream is cut")
    if isinstance(whole, str):
        return
    frames, trailer, closed = whole
    written = b"".join(wire.frame(kind, bytes(payload)) for kind, payload in frames) + trailer
    hold(stream.startswith(written), "frames are not the bytes that came")
    rest = stream[len(written) :]
    if closed:
        hold(not rest and frames[-1][0] in (wire.END, wire.FAILURE), "a closed stream has a rest")
    elif len(rest) >= wire.HEADER_SIZE:
        size = int.from_bytes(rest[1 : wire.HEADER_SIZE], "little")
        hold(len(rest) - wire.HEADER_SIZE < size <= wire.CAPS[rest[0]], "a whole frame was kept back")


SESSION_LIMITS = Limits(noise_bytes=64, trailer_bytes=64)
OPERATIONS = ("capture", "survey", "apply")


def _receive(setting: int, noise: bytes, frames: bytes, step: int) -> tuple[list[Event], Session] | None:
    session = Session(OPERATIONS[setting % 3], SESSION_LIMITS)
    session.grant(setting // 3 % 8)
    stream = noise + wire.MAGIC + session.nonce + frames
    events: list[Event] = []
    try:
        for piece in cut(stream, step or len(stream)):
            events += session.receive(piece)
    except (RemoteProtocolError, HostLimit):
        return None
    return events, session


def session(data: bytes) -> None:
    """``setting (1) step (1) noise size (1) noise frames``: events, or a refusal, whatever the pieces."""
    setting, step, noise_size = data[:3].ljust(3, b"\0")
    noise, frames = data[3 : 3 + noise_size], data[3 + noise_size :]
    whole, pieces = _receive(setting, noise, frames, 0), _receive(setting, noise, frames, 1 + step % 32)
    hold((whole is None) == (pieces is None), "whether a stream is refused depends on how it is cut")
    if whole is None or pieces is None:
        return
    events, met = whole
    hold(events == pieces[0] and met.state == pieces[1].state, "events depend on how a stream is cut")
    is_over = bool(events) and isinstance(events[-1], End | Failure)
    hold((met.state is State.ENDED) == is_over, "the stream's end and its last event do not fit")
    read = _read([frames])
    assert not isinstance(read, str)
    kinds = [kind for kind, _ in read[0]]
    hold(len(kinds) == len(events), "a frame without an event")
    hold(kinds[:1] in ([], [wire.HELLO]) and wire.HELLO not in kinds[1:], "the hello frame is not the first")
    hold(not {wire.END, wire.FAILURE} & set(kinds[:-1]), "the stream went on after its end")
    hold(kinds.count(wire.CONTENT) <= setting // 3 % 8, "more content than credit")
    hold(OPERATIONS[setting % 3] == "capture" or wire.CONTENT not in kinds, "content outside of a capture")
    hold(OPERATIONS[setting % 3] != "survey" or wire.MANIFEST not in kinds, "a manifest in a survey")
    if is_over and isinstance(events[-1], End):
        _check_end(read[0])
    try:
        hold(met.ended() == is_over, "a stream without an end passes as complete")
    except RemoteProtocolError:
        hold(len(read[1]) >= wire.HEADER_SIZE, "too short a trailer was taken for a frame")


def _check_end(frames: Sequence[tuple[int, bytearray]]) -> None:
    covered = (
        wire.frame_header(kind, len(payload)) + payload
        for kind, payload in frames
        if kind not in (wire.CONTENT, wire.END)
    )
    stated = messages.decode(frames[-1][1]).get("digest")
    hold(stated == hashlib.sha256(b"".join(covered)).digest(), "the end states another digest than the stream's")


def message(data: bytes) -> None:
    """A control frame's payload: helper and host read the same value, and what is written is read."""
    try:
        value = messages.decode(data)
    except ValueError:
        return
    options = {"raw": False, "unicode_errors": "surrogateescape", "strict_map_key": True}
    hold(repr(msgpack.unpackb(data, **options)) == repr(value), "the host reads another value")
    written = messages.encode(value)
    hold(repr(messages.decode(written)) == repr(value), "what was written reads as another value")
    hold(repr(msgpack.unpackb(written, **options)) == repr(value), "the host reads another value of what was written")


def run(data: bytes) -> None:
    """A run of block members: what is accepted is exactly what ustar calls for."""
    try:
        found = members.parse_run(memoryview(data))
    except ValueError:
        return
    hold(oracles.canonical_run(data, found) == data, "a run is not the canonical one of its members")
    hold(all(0 < size <= wire.BLOCK_MAX for _, _, size in found), "a block has a size that none can have")


@cache
def _prover() -> Prover:
    return Prover()


@cache
def _unpacker() -> codec.Unpacker:
    return codec.Unpacker(wire.RUN_MAX)


@cache
def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX)


def content(data: bytes) -> None:
    """A content frame's payload: what is proved decodes alike everywhere, and every block hashes to its name."""
    try:
        proved = _prover().prove(data)
    except RemoteProtocolError:
        return
    name, size, encoded = wire.split_packed(data, wire.RUN_MAX)
    decoded = packs.decompress(_decompressor(), bytes(proved.stored), "a run", lambda stated: stated == size)
    hold(proved.size_bytes == size == len(decoded), "a run has another size than it states")
    hold(len(proved.stored) <= packs.FRAME_MAX and size % 512 == 0, "a pack would not take the run")
    hold(zstandard.frame_header_size(proved.stored) > 0, "a run is not stored as a standard frame")
    hold(oracles.blocks_hash(decoded, proved.blocks), "a block does not hash to its name")
    found = [(digest, offset + 512, length) for digest, offset, length in proved.blocks]
    hold(oracles.canonical_run(decoded, found) == decoded, "a run is not the canonical one of its members")
    if name != wire.CODEC_ZSTD or "zstd" in codec.available():
        hold(bytes(_unpacker().unpack(name, size, encoded)) == decoded, "the helper decodes another run")


def packed(data: bytes) -> None:
    """A manifest frame's payload: it decodes to what it states, or is refused."""
    try:
        decoded = _prover().unpack_segment(data)
    except RemoteProtocolError:
        return
    hold(len(decoded) == int.from_bytes(data[1:5], "little"), "a payload has another size than it states")
