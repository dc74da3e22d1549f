"""Every cap on what a sandbox sends, met by a real capture: what is exactly at it is accepted, one more is refused."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest
from capture.refusal import accept, refuse, stream
from protocol.stream import Stream, add_file, member, message, pack, root_segment, small
from protocol.test_validate import LIMITS, many

from sandlift import errors, gathering
from sandlift.errors import HostLimit, RemoteProtocolError, SandliftError
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.session import HAVE_MAX
from sandlift_helper import table, wire
from sandlift_helper.table import Segment
from support.hostile import Play

MIB = 1 << 20


def of(segment: Segment) -> bytes:
    return Stream().hello().manifest(segment).end().data


def alone(make: Callable[[int], Segment]) -> Callable[[int], bytes]:
    """What gives the stream of the one segment that *make* gives."""
    return lambda size: of(make(size))


def excluded(count: int) -> Segment:
    segment = root_segment()
    for number in range(count):
        segment.exclude(b"%05d" % number, table.FILE, table.PATTERN)
    return segment


def flagged(count: int) -> Segment:
    segment = root_segment()
    for number in range(count):
        segment.flag(b"%05d" % number, table.VANISHED)
    return segment


def in_two(count: int) -> bytes:
    """As many files, in two segments."""
    second = Segment()
    for row in range(count // 2, count):
        add_file(second, b"%05d" % row)
    return Stream().hello().manifest(many(count // 2)).manifest(second).end().data


def padded(size: int) -> bytes:
    """A manifest of one segment whose table has *size* bytes."""
    segment = root_segment()
    rest = size - len(table.encode(segment))
    segment.orphans += bytes(32 * (rest // 32))
    segment.exclude(b"x", table.FILE, table.PATTERN)
    rest = size - len(table.encode(segment))
    segment.details[0] = b"d" * rest
    assert len(table.encode(segment)) == size
    return of(segment)


def noisy(size: int) -> Play:
    return Play().send(b"x" * size).mark().send(small().data)


def trailing(size: int) -> Play:
    return stream(small().data + b"x" * size)


# limit -> (its value here, what a capture of so much is)
ALLOWED: dict[str, tuple[str, int, Callable[[int], bytes | Play]]] = {
    **{name: (limit, allowed, alone(make)) for name, (limit, allowed, make) in LIMITS.items()},
    "entries-of-what-is-left-out": ("entries", 40, lambda count: of(excluded(count))),
    "entries-flagged": ("entries", 40, lambda count: of(flagged(count))),
    "entries-of-all-segments": ("entries", 40, in_two),
    "manifest": ("manifest_bytes", 4096, padded),
    "noise": ("noise_bytes", 1000, noisy),
    "noise-more-than-is-shown": ("noise_bytes", 100_000, noisy),
    "trailer": ("trailer_bytes", 1000, trailing),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_limits(name: str, tmp_path: Path) -> None:
    limit, allowed, make = ALLOWED[name]
    limits = replace(DEFAULT_LIMITS, **{limit: allowed})
    assert accept(make(allowed), tmp_path, limits=limits).number == 1
    says = limit if limit not in ("noise_bytes", "trailer_bytes") else f"over {allowed} bytes (before|after) the stream"
    error = refuse(make(allowed + 1), tmp_path, HostLimit, says, limits=limits)
    assert (error.context["limit"], error.context["allowed"]) == (limit, allowed)


def test_the_limit_of_silence(tmp_path: Path) -> None:
    def pausing(seconds: float) -> Play:
        return stream(Stream().hello().data).sleep(seconds).send(b"".join(small().frames[1:]))

    assert accept(pausing(0.3), tmp_path, limits=Limits(silence_s=1)).number == 1
    refuse(pausing(2.5), tmp_path, errors.SandboxGone, "nothing for 1 s", limits=Limits(silence_s=1))


def test_every_limit_is_met_here() -> None:
    assert {limit for limit, _, _ in ALLOWED.values()} | {"silence_s"} == {field.name for field in fields(Limits)}


HEADS: dict[str, tuple[int, int, Callable[[int], Segment]]] = {
    "entries": (1, gathering.ENTRY_BYTES, many),
    "excluded": (5, gathering.EXCLUDED_BYTES, excluded),
    "flags": (9, gathering.FLAG_BYTES, flagged),
}


@pytest.mark.parametrize("rows", HEADS)
def test_a_head_that_states_more_rows_than_there_are(rows: str, tmp_path: Path) -> None:
    """Refused before a list is made for so many: by what the segment can hold, and by what is allowed."""
    at, row_bytes, make = HEADS[rows]
    encoded = bytearray(table.encode(make(40)))

    def stating(count: int) -> bytes:
        encoded[at : at + 4] = count.to_bytes(4, "little")
        return Stream().hello().add(wire.MANIFEST, pack(bytes(encoded))).end().data

    # A row as it is, less its name of five bytes.
    assert len(table.encode(make(41))) - len(encoded) == row_bytes + 5
    room = len(encoded) // row_bytes
    assert room > 41
    for count in (room + 1, (1 << 32) - 1):
        refuse(stating(count), tmp_path, errors.InvalidManifest, "more rows than it can hold")
    refuse(stating(room), tmp_path, errors.InvalidManifest, "has 40 items, not")
    refuse(stating(41), tmp_path, HostLimit, "the limit entries: 41", limits=Limits(entries=40))
    assert accept(stating(40), tmp_path, limits=Limits(entries=40)).number == 1


# The caps of the wire, which nobody sets.


@pytest.mark.parametrize("kind", sorted(wire.CAPS), ids=wire.KIND_NAMES.get)
def test_the_length_of_a_frame(kind: int, tmp_path: Path) -> None:
    """It is refused by its header, before a byte of it has come."""
    name, cap = wire.KIND_NAMES[kind], wire.CAPS[kind]
    head = b"" if kind == wire.HELLO else Stream().hello().data
    refuse(stream(head + wire.frame_header(kind, cap)).exit(0), tmp_path, errors.Truncated, "before its end")
    says = f"a {name} frame of {cap + 1} bytes, at most {cap} are allowed"
    refuse(stream(head + wire.frame_header(kind, cap + 1)).stay(), tmp_path, RemoteProtocolError, says)


def filled(size: int, **message_fields: object) -> bytes:
    """A msgpack map of *size* bytes."""
    fill = size - len(msgpack.packb({**message_fields, "fill": b""}))
    # A binary that is longer states its length in more bytes.
    sizes = [fill - more for more in (0, 1, 3) if fill >= more]
    packed: list[bytes] = [msgpack.packb({**message_fields, "fill": bytes(rest)}) for rest in sizes]
    (whole,) = (made for made in packed if len(made) == size)
    return whole


def test_the_largest_control_frames(tmp_path: Path) -> None:
    hello = filled(wire.CAPS[wire.HELLO], protocol=1, python="3.6.0", executable="/p")
    made = Stream().add(wire.HELLO, hello).add(wire.PROGRESS, filled(wire.CAPS[wire.PROGRESS], phase="read", files=1))
    made.manifest(root_segment())
    digest = made._digest.digest()
    made.add(wire.END, filled(wire.CAPS[wire.END], frames=0, blocks=0, digest=digest))
    assert accept(made.data, tmp_path).number == 1
    failure = filled(wire.CAPS[wire.FAILURE], code="root-missing", message="gone", report="")
    refuse(Stream().hello().add(wire.FAILURE, failure).data, tmp_path, errors.RootMissing, "^gone$")


def test_words_of_any_length_are_cut(tmp_path: Path) -> None:
    for size, shown in ((200_000, 1000), (999, 999)):
        data = Stream().hello().failure("root-missing", "y" * size).data
        refuse(data, tmp_path, errors.RootMissing, f"^y{{{shown}}}$")


@pytest.mark.parametrize("codec", [wire.CODEC_NONE, wire.CODEC_ZLIB, wire.CODEC_ZSTD], ids=["none", "zlib", "zstd"])
def test_the_largest_block_and_run(codec: int, tmp_path: Path) -> None:
    """A run as large as it may be, of a block as large as it may be and what fits beside it."""
    full, rest = bytes(range(256)) * 4096, os.urandom(MIB - 512)
    segment = root_segment()
    add_file(segment, b"a", full)
    add_file(segment, b"b", rest)
    run = member(full) + member(rest)
    assert len(run) == wire.RUN_MAX
    made = Stream().hello().run(run, 2, codec).manifest(segment).end()
    assert accept(made.data, tmp_path).counts.bytes == 2 * MIB - 512
    more = Stream().hello().run(run + member(b"x"), 3, codec).data
    refuse(
        stream(more).stay(), tmp_path, RemoteProtocolError, f"at most {wire.RUN_MAX} are allowed|of at most|frame of"
    )


def test_a_block_that_is_too_large(tmp_path: Path) -> None:
    block = bytes(MIB + 1)
    over = Stream().hello().run(member(block), 1, wire.CODEC_ZSTD).data
    refuse(over, tmp_path, RemoteProtocolError, "content that is not allowed: a block of 1048577 bytes")
    assert accept(Stream().hello().content(block[1:]).manifest(_one(block[1:])).end().data, tmp_path).counts.files == 1


def _one(block: bytes) -> Segment:
    segment = root_segment()
    add_file(segment, b"a", block)
    return segment


def test_the_largest_segment(tmp_path: Path) -> None:
    """64 MiB are unpacked, and then found to be no table; one byte more is not."""
    encoded = zlib.compress(bytes(wire.SEGMENT_MAX), 1)
    at = Stream().hello().add(wire.MANIFEST, wire.packed_header(wire.CODEC_ZLIB, wire.SEGMENT_MAX) + encoded)
    refuse(at.data, tmp_path, errors.InvalidManifest, "not a table of a version that is known")
    over = Stream().hello().add(wire.MANIFEST, wire.packed_header(wire.CODEC_ZLIB, wire.SEGMENT_MAX + 1) + encoded)
    says = f"states {wire.SEGMENT_MAX + 1} bytes, at most {wire.SEGMENT_MAX} are allowed"
    refuse(over.data, tmp_path, RemoteProtocolError, says)


@pytest.mark.parametrize("size", [HAVE_MAX, HAVE_MAX + 1])
def test_the_largest_answer(size: int, tmp_path: Path) -> None:
    from sandlift.capturing import CaptureSpec
    from sandlift.deadline import Deadline
    from sandlift.survey import survey
    from sandlift.targets import Target
    from sandlift.transports.command import via

    answer = {"python": "/p", "codecs": [], "root": b"/w", "filesystem": b"ext4", "entries": 1, "bytes": 1}
    have = filled(size, **answer, largest=[], reasons={})
    made = Stream().hello().add(wire.HAVE, have)
    prefix = stream(made.end(frames=None, blocks=None).data).save(tmp_path / "play")
    spec = CaptureSpec(target=Target(scheme="via", root=b"/w", via=tuple(prefix)), workspace="")

    def look() -> int:
        return survey(via(prefix, shell=False), spec, deadline=Deadline.after(10)).entries

    if size == HAVE_MAX:
        assert look() == 1
        return
    with pytest.raises(SandliftError, match=f"a have frame of {size} bytes, at most {HAVE_MAX}") as caught:
        look()
    assert type(caught.value) is RemoteProtocolError


def test_messages_are_maps_of_their_own_form(tmp_path: Path) -> None:
    """A map is read once; what it holds otherwise is nothing."""
    for payload in (message(protocol=1) + b"\xc0", b"\x81\xa1a", b"\xc7\x01\x05x"):
        refuse(stream(wire.frame(wire.HELLO, payload)).stay(), tmp_path, RemoteProtocolError, "no msgpack map")
