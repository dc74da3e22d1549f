"""Members: the one form of a block, written and read to the byte."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlift_helper import members
from sandlift_helper.wire import BLOCK_MAX

blocks_of_any_size = st.lists(st.binary(min_size=1, max_size=1500), max_size=6)


def encode(blocks: list[tuple[bytes, bytes]]) -> bytes:
    """A run of (digest, block) pairs."""
    return b"".join(
        members.header(digest, len(block)) + block + bytes(members.padded(len(block)) - len(block))
        for digest, block in blocks
    )


def named(*blocks: bytes) -> list[tuple[bytes, bytes]]:
    return [(hashlib.sha256(block).digest(), block) for block in blocks]


def decode(run: bytes) -> list[tuple[bytes, bytes]]:
    return [(digest, run[start : start + size]) for digest, start, size in members.parse_run(memoryview(run))]


@given(blocks_of_any_size)
def test_what_is_written_is_read(blocks: list[bytes]) -> None:
    assert decode(encode(named(*blocks))) == named(*blocks)


@given(st.binary(max_size=2000) | blocks_of_any_size.map(lambda blocks: encode(named(*blocks))))
def test_what_is_read_is_exactly_what_would_be_written(run: bytes) -> None:
    try:
        found = decode(run)
    except ValueError:
        return
    assert encode(found) == run


def test_every_changed_byte_is_refused_or_is_another_block() -> None:
    blocks = named(b"the first", b"x" * 512, bytes(700))
    run = encode(blocks)
    refused = other = 0
    for place in range(len(run)):
        for change in (1, 0x20, 0x80, 0xFF):
            data = bytearray(run)
            data[place] ^= change
            try:
                found = decode(bytes(data))
            except ValueError:
                refused += 1
                continue
            assert encode(found) == data
            assert [digest for digest, block in found] != [hashlib.sha256(block).digest() for _, block in found]
            other += 1
    # Every byte of header and padding counts; those of the blocks are proved by their hash.
    assert other == 4 * (9 + 512 + 700)
    assert refused == 4 * len(run) - other


def test_every_cut_inside_a_member_is_refused() -> None:
    run = encode(named(b"the first", b"x" * 513))
    whole = {0, 1024, len(run)}
    for size in range(len(run) + 1):
        if size in whole:
            assert len(decode(run[:size])) == sorted(whole).index(size)
            continue
        with pytest.raises(ValueError, match="cut off|fixed form"):
            members.parse_run(memoryview(run[:size]))


@pytest.mark.parametrize("size", [1, 511, 512, 513, BLOCK_MAX - 1, BLOCK_MAX])
def test_sizes_at_the_edges(size: int) -> None:
    (block,) = named(b"\xff" * size)
    run = encode([block])
    assert len(run) == 512 + (size + 511) // 512 * 512
    assert decode(run) == [block]


@pytest.mark.parametrize("size", [0, BLOCK_MAX + 1, 0o77777777777])
def test_sizes_beyond_are_refused(size: int) -> None:
    run = members.header(bytes(32), size) + bytes(members.padded(min(size, 2 * BLOCK_MAX)))
    with pytest.raises(ValueError, match=f"a block of {size} bytes"):
        members.parse_run(memoryview(run))


def test_a_standard_tar_reader_agrees() -> None:
    blocks = named(b"the first", b"x" * 512, b"y" * 70000)
    with tarfile.open(fileobj=io.BytesIO(encode(blocks) + bytes(1024))) as archive:
        infos = archive.getmembers()
        assert [info.name for info in infos] == [digest.hex() for digest, _ in blocks]
        assert [info.size for info in infos] == [len(block) for _, block in blocks]
        assert {(info.type, info.mode, info.uid, info.gid, info.mtime, info.linkname) for info in infos} == {
            (tarfile.REGTYPE, 0o600, 0, 0, 0, "")
        }
        for info, (_, block) in zip(infos, blocks, strict=True):
            extracted = archive.extractfile(info)
            assert extracted is not None
            assert extracted.read() == block


def foreign(**fields: object) -> bytes:
    """A header of the standard library's for a name of 64 hex digits, changed in some fields."""
    info = tarfile.TarInfo("ab" * 32)
    info.size, info.mode = 3, 0o600
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.USTAR_FORMAT) + b"abc" + bytes(509)


def test_the_standard_library_writes_the_same_header() -> None:
    assert members.parse_run(memoryview(foreign())) == [(b"\xab" * 32, 512, 3)]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../../etc/passwd"},
        {"name": "AB" * 32},
        {"name": "ab" * 31},
        {"name": "ab" * 32 + "/x"},
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"type": tarfile.LNKTYPE, "linkname": "x"},
        {"type": tarfile.DIRTYPE},
        {"type": tarfile.XHDTYPE},
        {"type": tarfile.GNUTYPE_LONGNAME},
        {"type": tarfile.GNUTYPE_SPARSE},
        {"type": tarfile.CHRTYPE},
        {"type": tarfile.FIFOTYPE},
        {"type": tarfile.AREGTYPE},
        {"mode": 0o644},
        {"uid": 1},
        {"gid": 1},
        {"uname": "root"},
        {"gname": "root"},
        {"mtime": 1},
        {"linkname": "x"},
    ],
    ids=str,
)
def test_nothing_but_blocks_can_be_said(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a member"):
        members.parse_run(memoryview(foreign(**fields)))


@pytest.mark.parametrize(
    "octal", [b"00000000003 ", b"        003\0", b"+0000000003\0", b"0_000000003\0", b"\x80" + bytes(11)]
)
def test_another_spelling_of_a_size_is_refused(octal: bytes) -> None:
    run = bytearray(encode(named(b"abc")))
    run[124:136] = octal
    total = sum(run[:512]) - sum(run[148:156]) + 8 * 32
    run[148:156] = b"%06o\0 " % total
    with pytest.raises(ValueError, match="a member|a block"):
        members.parse_run(memoryview(run))
