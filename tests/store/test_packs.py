"""Packs: written by us, read by us, by zstd and by tar; and what a damaged one looks like."""

from __future__ import annotations

import random
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard
from store.samples import digest, frame_of, put_pack, run_of

from sandlift.errors import StoreDamaged, StoreNewer
from sandlift.store import PackReader, Store, records
from sandlift.store.packs import FRAME_MAX, PackWriter, key_of
from sandlift_helper import members
from sandlift_helper.wire import BLOCK_MAX, RUN_MAX

RUNS = [
    [b"one", b"two" * 300],
    [secrets.token_bytes(BLOCK_MAX)],
    [random.Random(n).randbytes(n + 1) for n in range(40)],
    [b"x" * BLOCK_MAX, b"last"],
]
BLOCKS = [block for blocks in RUNS for block in blocks]


def path_of(store: Store, name: str) -> Path:
    return Path(store.location) / key_of(name)


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: scripts/setup --services installs it")


def test_every_block_is_found_by_its_offset(store: Store) -> None:
    info, offsets = put_pack(store, RUNS)
    pack = store.pack(info.name)
    assert len(pack) == info.frames == 4
    assert pack.blocks_bytes == info.blocks_bytes == sum(len(run_of(blocks)) for blocks in RUNS)
    assert pack.size_bytes == info.size_bytes == path_of(store, info.name).stat().st_size
    for block in BLOCKS:
        offset = offsets[digest(block)]
        index = pack.frame_index(offset)
        start = offset - pack.decoded_offset[index]
        run = pack.decode_frame(index)
        assert run[start : start + 512] == members.header(digest(block), len(block))
        assert run[start + 512 : start + 512 + len(block)] == block


def test_frames_are_stored_as_they_came(store: Store) -> None:
    info, _ = put_pack(store, RUNS)
    pack = store.pack(info.name)
    assert [pack.read_frame(index) for index in range(4)] == [frame_of(run_of(blocks)) for blocks in RUNS]
    assert [pack.decode_frame(index) for index in range(4)] == [run_of(blocks) for blocks in RUNS]
    assert list(pack.compressed_size) == [len(frame_of(run_of(blocks))) for blocks in RUNS]
    pack.check_tail()


def test_frame_index_at_the_edges(store: Store) -> None:
    info, _ = put_pack(store, [[b"a"], [b"b"], [b"c"]])
    pack = store.pack(info.name)
    assert [pack.frame_index(offset) for offset in (0, 1023, 1024, 2047, 2048, 3071)] == [0, 0, 1, 1, 2, 2]
    for offset in (-1, 3072, 1 << 63):
        with pytest.raises(StoreDamaged, match="no block at"):
            pack.frame_index(offset)


def test_a_table_longer_than_the_first_read(store: Store) -> None:
    count = 10_000
    frame = frame_of(run_of([b"same"]))
    pack = store.begin_pack("ab" * 16)
    offsets = [pack.append(frame, 1024) for _ in range(count)]
    info = pack.commit()
    assert info is not None
    assert offsets == list(range(0, 1024 * count, 1024))
    reader = store.pack(info.name)
    assert len(reader) == count
    assert reader.decode_frame(count - 1) == run_of([b"same"])
    assert reader.frame_index(1024 * count - 1) == count - 1


def test_a_pack_without_frames_is_none(store: Store) -> None:
    with store.begin_pack("ab" * 16) as pack:
        assert pack.size_bytes == 0
        assert pack.commit() is None
    assert list(store.objects.list("packs/")) == []
    assert list((Path(store.location) / "tmp").iterdir()) == []


def test_an_aborted_pack_leaves_nothing(store: Store) -> None:
    with store.begin_pack("ab" * 16) as pack:
        pack.append(frame_of(run_of([b"a"])), 1024)
        assert pack.blocks_bytes == 1024
        assert pack.size_bytes > 0
    assert [info.key for info in store.objects.list("")] == ["format"]
    assert list((Path(store.location) / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("frame", "decoded"),
    [(b"x", 0), (b"x", 511), (b"x", 513), (b"x", RUN_MAX + 512), (b"", 512), (bytes(FRAME_MAX + 1), 512), (b"x", -512)],
)
def test_a_frame_of_no_possible_size_is_our_fault(store: Store, frame: bytes, decoded: int) -> None:
    with store.begin_pack("ab" * 16) as pack, pytest.raises(ValueError, match="no run of blocks"):
        pack.append(frame, decoded)


@pytest.mark.parametrize("name", ["", "x" * 32, "AB" * 16, "ab" * 15, "../" + "a" * 29, "ab" * 16 + "\n"])
def test_a_packs_name_is_32_hex_digits(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="not the name"):
        PackWriter(store.objects, name)


# --- other people's tools -----------------------------------------------------------------------------------------


def test_zstd_and_tar_list_the_blocks(store: Store) -> None:
    need("zstd", "tar")
    info, _ = put_pack(store, RUNS)
    path = path_of(store, info.name)
    done = subprocess.run(
        ["sh", "-c", 'zstd -q -dc -- "$1" | tar t', "sh", path], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [digest(block).hex() for block in BLOCKS]
    assert done.stderr == ""


def test_zstd_and_tar_extract_the_blocks(store: Store, tmp_path: Path) -> None:
    need("zstd", "tar")
    info, _ = put_pack(store, RUNS)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(
        ["sh", "-c", 'zstd -q -dc -- "$1" | tar x -C "$2"', "sh", path_of(store, info.name), out], check=True
    )
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {digest(block).hex(): block for block in BLOCKS}


def test_zstd_knows_the_frames(store: Store) -> None:
    need("zstd")
    info, _ = put_pack(store, RUNS)
    path = path_of(store, info.name)
    subprocess.run(["zstd", "-q", "-t", "--", path], check=True)
    listed = subprocess.run(["zstd", "-lv", "--", path], capture_output=True, text=True, check=True).stdout
    values = dict(line.split(":", 1) for line in listed.splitlines() if line.count(":") == 1)
    assert {name.strip(): value.split()[0] for name, value in values.items()}.items() >= {
        "# Zstandard Frames": "5",
        "# Skippable Frames": "2",
    }.items()
    assert f"({info.blocks_bytes + 1024} B)" in listed


# --- damage -------------------------------------------------------------------------------------------------------


def small_pack(store: Store) -> Path:
    info, _ = put_pack(store, [[b"one", b"two"], [b"three"]], "ab" * 16)
    return path_of(store, info.name)


def read_all(store: Store) -> list[bytes]:
    pack = store.pack("ab" * 16)
    runs = [pack.decode_frame(index) for index in range(len(pack))]
    pack.check_tail()
    return runs


def test_every_cut_is_damage(store: Store) -> None:
    path = small_pack(store)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(StoreDamaged):
            read_all(store)


def test_a_flipped_bit_never_raises_anything_but_damage(store: Store) -> None:
    """Frames carry no checksum: that their blocks hash to their names is what `verify` and every reader check."""
    path = small_pack(store)
    data = path.read_bytes()
    right = read_all(store)
    changed = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            runs = read_all(store)
        except StoreDamaged:
            continue
        assert [len(run) for run in runs] == [len(run) for run in right]
        changed += 1
    assert changed < len(data) // 2


@pytest.mark.parametrize("part", ["magic", "count", "descriptor", "table magic", "decoded", "compressed", "swap"])
def test_a_wrong_seek_table_is_damage(store: Store, part: str) -> None:
    path = small_pack(store)
    data = bytearray(path.read_bytes())
    table = len(data) - 9 - 8 * 4
    if part == "magic":
        data[-1] ^= 1
    elif part == "count":
        data[-9:-5] = (0xFFFFFFFF).to_bytes(4, "little")
    elif part == "descriptor":
        data[-5] |= 0x80
    elif part == "table magic":
        data[table - 8] ^= 1
    elif part == "decoded":
        data[table + 12 : table + 16] = (RUN_MAX + 1).to_bytes(4, "little")
    elif part == "compressed":
        data[table + 8] += 1
    else:
        data[table + 8], data[table + 16] = data[table + 8] + 1, data[table + 16] - 1
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match="seek table" if part != "swap" else "frame 0"):
        read_all(store)


def test_a_frame_that_claims_gigabytes_costs_nothing(store: Store) -> None:
    """The size that a frame states is compared before the decoder may reserve it."""
    path = small_pack(store)
    data = path.read_bytes()
    pack = store.pack("ab" * 16)
    start, size = pack.compressed_offset[0], pack.compressed_size[0]
    huge = b"\x28\xb5\x2f\xfd\xe0" + (1 << 46).to_bytes(8, "little") + bytes(size - 13)
    assert zstandard.frame_content_size(huge) == 1 << 46
    path.write_bytes(data[:start] + huge + data[start + size :])
    with pytest.raises(StoreDamaged, match="states a size"):
        store.pack("ab" * 16).decode_frame(0)


def test_a_missing_pack_is_damage(store: Store) -> None:
    with pytest.raises(StoreDamaged, match="is missing"):
        store.pack("ab" * 16)
    path = small_pack(store)
    pack = store.pack("ab" * 16)
    path.unlink()
    with pytest.raises(StoreDamaged, match="is missing"):
        pack.decode_frame(0)


def test_a_newer_pack_is_refused_by_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(records, "FORMAT", 2)
        small_pack(store)
    with pytest.raises(StoreNewer, match=r"pack packs/ab/.* has format 2, this sandlift reads up to 1"):
        PackReader(store.objects, "ab" * 16)
