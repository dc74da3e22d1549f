"""Compressed archives: exactly one stream of one known format, bounded in what it gives and in what it takes."""

from __future__ import annotations

import bz2
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from archive.archives import END, Member, archive, gz, xz, zst
from archive.importer import files, take

from sandlift.archive.bounds import ArchiveBounds
from sandlift.errors import HostLimit, UnsafeArchive
from support.needs import require

PLAIN = archive(Member(b"f", b"some data " * 1000), Member(b"random", zlib.compress(b"noise" * 9)))
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gz, "zstd": zst, "xz": xz}


def raw_frame(*blocks: bytes, flags: int = 0, head: bytes = b"\x50") -> bytes:
    """A zstd frame of these blocks; *head* is what follows the flags, here a window of 1 MiB (RFC 8878)."""
    return b"\x28\xb5\x2f\xfd" + bytes([flags]) + head + b"".join(blocks)


def raw_block(data: bytes, *, last: bool = False) -> bytes:
    return (len(data) << 3 | last).to_bytes(3, "little") + data


def run_block(byte: bytes, size: int, *, last: bool = False) -> bytes:
    """A block of one byte repeated."""
    return (size << 3 | 1 << 1 | last).to_bytes(3, "little") + byte


class Drip:
    """Gives one byte at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, size: int, /) -> bytes:
        piece, self._data = self._data[:1], self._data[1:]
        return bytes(piece)


@pytest.mark.parametrize("name", PACK)
def test_one_stream(name: str, tmp_path: Path) -> None:
    plain = take(tmp_path / "store", PLAIN)
    packed = PACK[name](PLAIN)
    found = take(tmp_path / "store", packed)
    stated = take(tmp_path / "store", packed, compression=name)
    assert plain.capture.snapshot == found.capture.snapshot == stated.capture.snapshot
    assert found.capture.wire.received == len(packed)


@pytest.mark.parametrize("name", ["none", *PACK])
def test_one_byte_at_a_time(name: str, tmp_path: Path) -> None:
    plain = take(tmp_path / "store", PLAIN)
    dripped = take(tmp_path / "store", Drip(PACK[name](PLAIN) if name in PACK else PLAIN))
    assert dripped.capture.snapshot == plain.capture.snapshot


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("after", ["another", "garbage", "zero", "zeros"])
def test_nothing_follows(name: str, after: str, tmp_path: Path) -> None:
    packed = PACK[name](PLAIN)
    more = {"another": PACK[name](archive(Member(b"hidden"))), "garbage": b"x", "zero": b"\0", "zeros": bytes(512)}
    with pytest.raises(UnsafeArchive, match=f"more than one {name} stream") as caught:
        take(tmp_path / "store", packed + more[after])
    assert "-dc FILE" in caught.value.hint
    assert files(tmp_path / "store") == []


@pytest.mark.parametrize("name", PACK)
def test_split_into_two_streams(name: str, tmp_path: Path) -> None:
    """Together they are one tar, which some readers see and others do not."""
    packed = PACK[name](PLAIN[:5120]) + PACK[name](PLAIN[5120:])
    with pytest.raises(UnsafeArchive, match=f"more than one {name} stream"):
        take(tmp_path / "store", packed)


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_cut_off(name: str, kept: float, tmp_path: Path) -> None:
    packed = PACK[name](PLAIN)
    with pytest.raises(UnsafeArchive, match="cut off|no end marker"):
        take(tmp_path / "store", packed[: int(kept * len(packed))])
    with pytest.raises(UnsafeArchive, match="cut off"):
        take(tmp_path / "store", packed[:-1])
    assert files(tmp_path / "store") == []


@pytest.mark.parametrize("name", PACK)
def test_damaged(name: str, tmp_path: Path) -> None:
    packed = bytearray(PACK[name](PLAIN))
    packed[-12 if name == "xz" else -5] ^= 0x40
    with pytest.raises(UnsafeArchive, match="damaged|cut off"):
        take(tmp_path / "store", bytes(packed))
    assert files(tmp_path / "store") == []


def test_pzstd(tmp_path: Path) -> None:
    require("pzstd")
    (tmp_path / "a.tar").write_bytes(PLAIN)
    packed = subprocess.run(
        ["pzstd", "-q", "-c", tmp_path / "a.tar"], check=True, capture_output=True, timeout=60
    ).stdout
    with pytest.raises(UnsafeArchive, match="skippable frame") as caught:
        take(tmp_path / "store", packed)
    assert caught.value.hint.endswith("zstd -dc FILE | sandlift import ...")


WHOLE = raw_block(PLAIN, last=True)
SINGLE_8, SINGLE_4 = 0b11100000, 0b10100000
"""Flags of a frame that is one segment, with a content size of so many bytes."""

ZSTD = {
    "skippable-first": (b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note" + zst(PLAIN), "skippable frame"),
    "skippable-last": (zst(PLAIN) + b"\x5f\x2a\x4d\x18" + bytes(4), "more than one zstd stream"),
    "dictionary": (raw_frame(WHOLE, flags=1, head=b"\x50\x07"), "dictionary"),
    "reserved-bit": (raw_frame(WHOLE, flags=0b1000), "not a standard frame"),
    "reserved-block": (raw_frame(b"\x07\0\0"), "damaged"),
    "block-too-large": (raw_frame((200_000 << 3 | 2 | 1).to_bytes(3, "little") + b"\0"), "damaged"),
    "window-2-28": (raw_frame(WHOLE, head=bytes([18 << 3])), "window of 268435456"),
    "window-over-2-27": (raw_frame(WHOLE, head=bytes([17 << 3 | 1])), "window of 150994944"),
    "window-2-41": (raw_frame(WHOLE, head=b"\xf8"), "window of 2199023255552"),
    "content-2-40": (raw_frame(WHOLE, flags=SINGLE_8, head=(1 << 40).to_bytes(8, "little")), "window of 1099511627776"),
    "content-size-lie": (raw_frame(WHOLE, flags=SINGLE_4, head=(9).to_bytes(4, "little")), "damaged"),
}


@pytest.mark.parametrize("slug", ZSTD)
def test_zstd_frame(slug: str, tmp_path: Path) -> None:
    content, words = ZSTD[slug]
    with pytest.raises(UnsafeArchive, match=words):
        take(tmp_path / "store", content)
    assert files(tmp_path / "store") == []


@pytest.mark.parametrize("head", [b"\x50", bytes([17 << 3])], ids=["1-MiB", "128-MiB"])
def test_zstd_frame_twin(head: bytes, tmp_path: Path) -> None:
    content = raw_frame(raw_block(PLAIN[:700]), run_block(b"\0", 0), raw_block(PLAIN[700:], last=True), head=head)
    assert take(tmp_path / "store", content).content(b"f") == b"some data " * 1000


def test_xz_memory(tmp_path: Path) -> None:
    """A dictionary of 1 GiB is a number of one byte in the header."""
    packed = bytearray(xz(PLAIN))
    packed[16] = 36
    packed[20:24] = zlib.crc32(packed[12:20]).to_bytes(4, "little")
    with pytest.raises(UnsafeArchive, match=r"damaged: Memory usage limit"):
        take(tmp_path / "store", bytes(packed))


@pytest.mark.parametrize("name", PACK)
def test_ratio(name: str, tmp_path: Path) -> None:
    """A file of zeros is a legitimate one, so the cap can be raised."""
    packed = PACK[name](archive(Member(b"zeros", bytes(20 << 20))))
    with pytest.raises(HostLimit, match="ratio") as caught:
        take(tmp_path / "store", packed)
    assert caught.value.context["limit"] == "ratio"
    assert "--limit ratio=" in caught.value.hint
    assert files(tmp_path / "store") == []
    raised = take(tmp_path / "store", packed, bounds=ArchiveBounds(ratio=100_000))
    assert raised.capture.counts.bytes == 20 << 20
    assert raised.manifest.blocks == []


def test_small_archives_have_no_ratio(tmp_path: Path) -> None:
    packed = zst(archive(Member(b"zeros", bytes(8_000_000))))
    assert 8_000_000 // len(packed) > 2000
    assert take(tmp_path / "store", packed).capture.counts.bytes == 8_000_000


def test_run_length_bomb(tmp_path: Path) -> None:
    """32 KiB that give 1 GiB: refused after 8 MiB."""
    blocks = [run_block(b"\0", 128 << 10) for _ in range(8191)]
    first = archive(Member(b"f", b"", size=b"077777777777"), end=b"")
    packed = raw_frame(raw_block(first), *blocks, run_block(b"\0", 128 << 10, last=True))
    assert len(packed) < 40_000
    with pytest.raises(HostLimit, match="ratio"):
        take(tmp_path / "store", packed)


def test_compressed_twice(tmp_path: Path) -> None:
    for packed in (gz(gz(PLAIN)), zst(gz(PLAIN)), gz(xz(PLAIN))):
        with pytest.raises(UnsafeArchive, match="compressed twice"):
            take(tmp_path / "store", packed)


@pytest.mark.parametrize(
    ("name", "like"), [(b"\x1f\x8b\x08name", "gzip"), (b"\x28\xb5\x2f\xfdname", "zstd"), (b"\xfd7zXZ", "xz")]
)
def test_name_that_looks_like_a_magic(name: bytes, like: str, tmp_path: Path) -> None:
    content = archive(Member(name, b"data"))
    with pytest.raises(UnsafeArchive, match=f"begins both like a tar and like {like}") as caught:
        take(tmp_path / "store", content)
    assert "--compression none" in caught.value.hint
    assert files(tmp_path / "store") == []
    assert take(tmp_path / "store", content, compression="none").paths()[-1] == name


@pytest.mark.parametrize("stated", PACK)
def test_other_than_stated(stated: str, tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchive, match="damaged"):
        take(tmp_path / "store", PLAIN, compression=stated)
    with pytest.raises(UnsafeArchive, match="compressed twice"):
        take(tmp_path / "store", PACK[stated](PLAIN), compression="none")


@pytest.mark.parametrize(
    ("content", "name"),
    [(bz2.compress(PLAIN), "bzip2"), (b"PK\x03\x04" + bytes(600), "zip"), (b"\x04\x22\x4d\x18" + bytes(600), "lz4")],
)
def test_formats_that_are_not_read(content: bytes, name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchive, match=f"the archive is {name}") as caught:
        take(tmp_path / "store", content)
    assert caught.value.hint


def test_end_marker_is_looked_for_in_the_decoded_archive(tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchive, match="follows its end marker"):
        take(tmp_path / "store", gz(PLAIN + archive(Member(b"hidden"))))
    with pytest.raises(UnsafeArchive, match="no end marker"):
        take(tmp_path / "store", gz(PLAIN.removesuffix(END)))
