"""Bombs, tricks and damage in compressed frames, each sent to a real capture as content and as a manifest."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from capture.refusal import accept, refuse, stream
from protocol.stream import Stream, add_file, digest_of, member, pack, root_segment, run_of
from protocol.test_prover import BLOCKS, CODECS, FRAME, REFUSED, RUN, _with_window, framed, zstd

from sandlift.errors import RemoteProtocolError
from sandlift_helper import members, table, wire
from sandlift_helper.table import Segment

MIB = 1 << 20
SEGMENT_BOMB = zstd(bytes(256 * MIB))


def of_blocks(*blocks: bytes) -> Segment:
    segment = root_segment()
    for number, block in enumerate(blocks):
        add_file(segment, b"%03d" % number, block)
    return segment


def content(payload: bytes, *blocks: bytes) -> bytes:
    """A stream whose one content frame has this payload, of *blocks*."""
    made = Stream().hello()
    made.content_frames, made.blocks = 1, len(blocks)
    return made.add(wire.CONTENT, payload).manifest(of_blocks(*blocks)).end().data


def segment(payload: bytes) -> bytes:
    """A stream whose one manifest frame has this payload."""
    return Stream().hello().add(wire.MANIFEST, payload).end().data


@pytest.fixture(scope="module", params=CODECS, ids=["none", "zlib", "zstd"])
def codec(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


def test_the_harmless_twins_of_all_content(codec: int, tmp_path: Path) -> None:
    assert accept(content(pack(RUN, codec), *BLOCKS), tmp_path).counts.files == len(BLOCKS)


def test_the_harmless_twins_of_all_segments(codec: int, tmp_path: Path) -> None:
    assert accept(segment(pack(table.encode(root_segment()), codec)), tmp_path).counts.files == 0


# cases: CVE-2026-59873 and the classes 63 to 65: bombs, decoder memory, nested and strange encodings
@pytest.mark.parametrize("name", REFUSED)
def test_content(name: str, tmp_path: Path) -> None:
    says = "content that is not allowed|does not hash to its name [0-9a-f]{64}"
    refuse(content(REFUSED[name], *BLOCKS), tmp_path, RemoteProtocolError, says)


SEGMENTS = {
    **{name: payload for name, payload in REFUSED.items() if name.startswith(("z", "two z", "skippable", "unknown"))},
    "window of 16 MiB": framed(wire.CODEC_ZSTD, len(RUN), _with_window(24)),
    "window of 2 GiB": framed(wire.CODEC_ZSTD, len(RUN), _with_window(31)),
    "segment bomb": framed(wire.CODEC_ZSTD, 256 * MIB, SEGMENT_BOMB),
    "segment bomb that states a little": framed(wire.CODEC_ZSTD, 64, SEGMENT_BOMB),
    "zlib segment bomb": framed(wire.CODEC_ZLIB, wire.SEGMENT_MAX, zlib.compress(bytes(80 * MIB))),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments(name: str, tmp_path: Path) -> None:
    refuse(segment(SEGMENTS[name]), tmp_path, RemoteProtocolError, "manifest that is not allowed")


@pytest.mark.parametrize(("window_log", "allowed"), [(23, True), (24, False), (31, False)])
def test_a_window_bomb(window_log: int, allowed: bool, tmp_path: Path) -> None:
    data = content(framed(wire.CODEC_ZSTD, len(RUN), _with_window(window_log)), *BLOCKS)
    if allowed:
        assert accept(data, tmp_path).counts.files == len(BLOCKS)
    else:
        refuse(data, tmp_path, RemoteProtocolError, "zstd frame's head")


def _another(head: bytes, **changes: bytes) -> bytes:
    """A member's header with one field exchanged, and the checksum made to fit (POSIX.1-1988 ustar)."""
    places = {"mode": 100, "type": 156, "link": 157, "magic": 257, "owner": 265, "prefix": 345, "size": 124, "name": 0}
    made = bytearray(head)
    for field, value in changes.items():
        made[places[field] : places[field] + len(value)] = value
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


ONE = member(b"one")
HEAD, BODY = ONE[:512], ONE[512:]
HEX = digest_of(b"one").hex().encode()
MEMBERS = {
    # What tar readers disagree about, each with a checksum that is right.
    "link": _another(HEAD, type=b"2", link=b"/etc/passwd") + BODY,
    "hard-link": _another(HEAD, type=b"1", link=HEX) + BODY,
    "directory": _another(HEAD, type=b"5") + BODY,
    "fifo": _another(HEAD, type=b"6") + BODY,
    "sparse": _another(HEAD, type=b"S") + BODY,
    "old-file-type": _another(HEAD, type=b"\0") + BODY,
    "CVE-2025-62518-pax-size": _another(HEAD, type=b"x") + b"9 size=0\n".ljust(512, b"\0") + ONE,
    "pax-global": _another(HEAD, type=b"g") + BODY,
    "gnu-long-name": _another(HEAD, type=b"L") + BODY,
    "gnu-magic": _another(HEAD, magic=b"ustar  \0") + BODY,
    "prefix": _another(HEAD, prefix=b"../..") + BODY,
    "setuid": _another(HEAD, mode=b"0004755\0") + BODY,
    "owner-name": _another(HEAD, owner=b"root") + BODY,
    "name-in-capitals": _another(HEAD, name=HEX.upper()) + BODY,
    "name-of-a-path": _another(HEAD, name=b"../" + HEX[3:]) + BODY,
    "size-in-base-256": _another(HEAD, size=b"\x80" + bytes(10) + b"\x03") + BODY,
    "size-with-spaces": _another(HEAD, size=b"         3 \0") + BODY,
    "size-without-end": _another(HEAD, size=b"000000000003") + BODY,
    "size-negative": _another(HEAD, size=b"-0000000003\0") + BODY,
    "size-zero": _another(HEAD, size=b"00000000000\0"),
    "checksum-signed": HEAD[:148] + b"%06o \0" % sum(HEAD[:148] + b" " * 8 + HEAD[156:]) + HEAD[156:] + BODY,
    "zeros-between": ONE + bytes(512) + ONE,
    "bytes-between": ONE + b"x" * 512 + ONE,
}


@pytest.mark.parametrize("slug", MEMBERS)
def test_members(slug: str, tmp_path: Path) -> None:
    refuse(content(pack(MEMBERS[slug]), b"one"), tmp_path, RemoteProtocolError, "content that is not allowed: ")


def test_the_harmless_twin_of_all_members(tmp_path: Path) -> None:
    assert _another(HEAD) == HEAD == members.header(digest_of(b"one"), 3)
    assert accept(content(pack(HEAD + BODY), b"one"), tmp_path).counts.bytes == 3


def test_a_later_frame_is_refused_as_the_first(tmp_path: Path) -> None:
    """What came before was right, and goes with the rest."""
    made = Stream().hello()
    for number in range(20):
        made.content(b"%d" % number * 1000)
    data = made.data + wire.frame(wire.CONTENT, REFUSED["zstd bomb"])
    refuse(stream(data).stay(), tmp_path, RemoteProtocolError, "content that is not allowed")
    fine = made.manifest(of_blocks(*[b"%d" % number * 1000 for number in range(20)])).end()
    assert accept(fine.data, tmp_path).counts.files == 20


def test_a_frame_that_is_stored_as_it_came_is_one_frame(tmp_path: Path) -> None:
    """The same blocks once more behind the first frame: neither stored nor passed over."""
    refuse(
        content(framed(wire.CODEC_ZSTD, len(RUN), FRAME + zstd(run_of([b"more"]))), *BLOCKS),
        tmp_path,
        RemoteProtocolError,
        "content that is not allowed",
    )
    assert accept(content(framed(wire.CODEC_ZSTD, len(RUN), FRAME), *BLOCKS), tmp_path).counts.files == len(BLOCKS)
