"""Mutators of the stream: frames, messages, runs of blocks, packed payloads."""

from __future__ import annotations

import hashlib
import zlib
from random import Random

import zstandard
from fuzz.changes import NUMBERS, Mutate, change_value, shuffle_items

from sandlift_helper import members, messages, wire


def _split_frames(stream: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    frames = []
    while len(stream) >= wire.HEADER_SIZE:
        size = int.from_bytes(stream[1:5], "little")
        if size > len(stream) - wire.HEADER_SIZE:
            break
        frames.append((stream[0], stream[5 : 5 + size]))
        stream = stream[5 + size :]
    return frames, stream


def _join_frames(frames: list[tuple[int, bytes]]) -> bytes:
    return b"".join(wire.frame_header(kind, len(payload)) + payload for kind, payload in frames)


def _change_frames(frames: list[tuple[int, bytes]], random: Random, mutate: Mutate) -> None:
    if not frames or random.randrange(4) == 0:
        shuffle_items(frames, random)
        return
    at = random.randrange(len(frames))
    kind, payload = frames[at]
    if random.randrange(5) == 0:
        kind = random.choice(list(wire.CAPS))
    elif random.randrange(3) == 0 and wire.CAPS.get(kind, 1 << 20) < 5000:
        payload = bytes(wire.CAPS[kind] + random.choice((-1, 0, 1)))
    elif random.randrange(2) and kind not in (wire.CONTENT, wire.MANIFEST):
        payload = message(payload, random, mutate) or mutate(payload)
    else:
        payload = mutate(payload)
    frames[at] = kind, payload


def reader(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    frames, rest = _split_frames(data[1:])
    _change_frames(frames, random, mutate)
    return data[:1] + _join_frames(frames) + (mutate(rest) if random.randrange(4) == 0 else rest)


def session(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    """As `reader`; three times in four the end states the right digest and count."""
    if len(data) < 3:
        return None
    head, noise, stream = data[:3], data[3 : 3 + data[2]], data[3 + data[2] :]
    frames, rest = _split_frames(stream)
    if random.randrange(5) == 0:
        head = bytes((random.randrange(256), random.randrange(256), len(noise)))
    else:
        _change_frames(frames, random, mutate)
    if random.randrange(4):
        frames = _ended(frames)
    return head + noise + _join_frames(frames) + (mutate(rest)[:80] if random.randrange(4) == 0 else rest)


def _ended(frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    digest = hashlib.sha256()
    count = 0
    for at, (kind, payload) in enumerate(frames):
        if kind == wire.END:
            try:
                fields = messages.decode(payload)
            except ValueError:
                continue
            fields |= {"digest": digest.digest(), "frames": count}
            frames[at] = kind, messages.encode(fields)
        elif kind == wire.CONTENT:
            count += 1
        else:
            digest.update(wire.frame_header(kind, len(payload)) + payload)
    return frames


def message(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    try:
        value = change_value(messages.decode(data), random, mutate)
        return messages.encode(value)
    except (ValueError, TypeError, OverflowError):
        return None


# --- content ------------------------------------------------------------------------------------------------------


def run(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    try:
        found = members.parse_run(memoryview(data))
    except ValueError:
        return None
    blocks = [data[start : start + size] for _, start, size in found]
    if not blocks or random.randrange(2):
        shuffle_items(blocks, random)
    else:
        at = random.randrange(len(blocks))
        blocks[at] = random.choice((mutate(blocks[at])[:2000], b"x" * random.choice((511, 512, 513)), blocks[at]))
    out = []
    for block in blocks:
        digest = hashlib.sha256(block).digest() if random.randrange(8) else random.randbytes(32)
        size = len(block) if random.randrange(16) else random.choice(NUMBERS)
        out += [members.header(digest, size), block, bytes(-len(block) % 512)]
    return b"".join(out)


def pack_payload(decoded: bytes, random: Random) -> bytes:
    """A packed payload, in some codec, as a hostile peer may choose its options."""
    which = random.randrange(6)
    if which == 0:
        name, encoded = wire.CODEC_NONE, decoded
    elif which == 1:
        name, encoded = wire.CODEC_ZLIB, zlib.compress(decoded, random.randrange(10))
    else:
        name = wire.CODEC_ZSTD
        encoded = zstandard.ZstdCompressor(
            level=random.choice((-5, 1, 3, 19)),
            write_checksum=random.randrange(2) == 0,
            write_content_size=random.randrange(6) != 0,
        ).compress(decoded)
        if random.randrange(8) == 0:
            encoded += random.choice((encoded, b"\x50\x2a\x4d\x18\x01\0\0\0x", b"\0"))
    size = len(decoded) if random.randrange(8) else random.choice(NUMBERS)
    return wire.packed_header(name, size) + encoded


def _unpack_payload(data: bytes) -> bytes | None:
    try:
        name, _, encoded = wire.split_packed(data, 1 << 20)
        if name == wire.CODEC_ZLIB:
            return zlib.decompressobj().decompress(bytes(encoded), 1 << 20)
        if name == wire.CODEC_ZSTD:
            return unzstd(bytes(encoded))
        return bytes(encoded)
    except (ValueError, zlib.error, zstandard.ZstdError):
        return None


def unzstd(frame: bytes) -> bytes:
    # The decoder reserves what a frame states, whatever it is told of a largest size.
    if zstandard.frame_content_size(frame) > 1 << 20:
        raise ValueError("a frame states too much")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=1 << 20)


def content(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    decoded = _unpack_payload(data)
    if decoded is None:
        return None
    return pack_payload(run(decoded, random, mutate) or decoded, random)


def packed(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    decoded = _unpack_payload(data)
    return None if decoded is None else pack_payload(mutate(decoded), random)
