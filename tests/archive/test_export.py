"""Exports: what is in them, and that every extractor makes the same tree of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from archive.conftest import Exporting
from archive.exports import EXTRACTORS, MIB, TREES, Exported, Unextracted, copied, take
from e2e.lift import Lift

from sandlift.archive import exporting as module
from sandlift.archive import ustar
from sandlift.archive.exporting import ExportSpec, export
from sandlift.archive.importing import ImportSpec, import_archive
from sandlift.box import connect
from sandlift.deadline import Cancel, Deadline
from sandlift.errors import Interrupted, StoreDamaged, UnknownPath, UnsafeLink, UsageError
from sandlift.store import Store
from sandlift.store.packs import PackReader
from support.needs import lacking, require
from support.tree import File, HardLink, Link, assert_equal, make, read, tree

NEEDED = {"gnu-tar": "tar", "bsdtar": "bsdtar", "busybox": "busybox"}
PAX_KEYS = {b"path", b"linkpath", b"mtime", b"size", b"uid", b"gid", b"hdrcharset"}


def need(extractor: str) -> None:
    """Skip unless the program is here."""
    if extractor in NEEDED:
        require(NEEDED[extractor])
    elif not hasattr(tarfile, "data_filter"):
        lacking("this Python's tarfile has no filters: use a newer one")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An empty folder to extract to."""
    folder = tmp_path / "extracted"
    folder.mkdir(mode=0o755)
    return folder


def extract(extractor: str, archive: bytes, target: Path) -> None:
    """Extract, or raise Unextracted."""
    need(extractor)
    path = target.parent / "archive.tar"
    path.write_bytes(archive)
    EXTRACTORS[extractor].extract(path, target)


# What it extracts to.


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize("name", TREES)
def test_extractors_agree(exporting: Exporting, target: Path, name: str, extractor: str) -> None:
    exported = exporting(name)
    extract(extractor, exported.archive(), target)
    loses, makes = EXTRACTORS[extractor].loses, EXTRACTORS[extractor].makes
    assert_equal(loses(makes(copied(exported.expected))), loses(read(target)), holes=False)


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_extractors_agree_on_hard_links(exporting: Exporting, target: Path, extractor: str) -> None:
    exported = exporting("hard-links")
    extract(extractor, exported.archive(hard_links="keep"), target)
    loses, makes = EXTRACTORS[extractor].loses, EXTRACTORS[extractor].makes
    assert_equal(loses(makes(exported.expected)), loses(read(target)), holes=False)


def test_what_gnu_tar_needs_its_option_for(exporting: Exporting, target: Path) -> None:
    """Without it, directories that hold links, and nothing else, have the time of the extraction."""
    require("tar")
    exported = exporting("links")
    (target.parent / "archive.tar").write_bytes(exported.archive())
    subprocess.run(["tar", "-xpf", "../archive.tar"], cwd=target, check=True)
    found = read(target)
    late = {path for path, entry in found.entries.items() if entry != exported.expected.entries[path]}
    assert late == {b"loop", b"sub/deep"}
    restamped = {path: exported.expected.entries[path] for path in late}
    assert_equal(exported.expected, tree({**found.entries, **restamped}, root=exported.expected.root), holes=False)


# How it looks.


def headers(archive: bytes) -> Iterator[tuple[bytes, bytes, bytes, dict[bytes, bytes], bytes]]:
    """(kind, name, link, pax records, whole header) of each member, by a reader of the test's own."""
    position = 0
    records: dict[bytes, bytes] = {}
    while (header := archive[position : position + 512]) != bytes(512):
        assert len(header) == 512
        assert int(header[148:154], 8) == sum(header) - sum(header[148:156]) + 8 * 32
        kind, name, link = header[156:157], header[:100].rstrip(b"\0"), header[157:257].rstrip(b"\0")
        if prefix := header[345:500].rstrip(b"\0"):
            name = prefix + b"/" + name
        size = int.from_bytes(header[125:136], "big") if header[124] & 0x80 else int(header[124:135], 8)
        position += 512
        if kind == b"x":
            assert not records, "two extended headers before one member"
            rest = archive[position : position + size]
            while rest:
                length = int(rest[: rest.index(b" ")])
                record, rest = rest[:length], rest[length:]
                key, _, value = record[record.index(b" ") + 1 :].partition(b"=")
                assert value.endswith(b"\n")
                assert key not in records
                records[key] = value[:-1]
        else:
            yield kind, records.get(b"path", name), records.get(b"linkpath", link), records, header
            records = {}
        position += -(-size // 512) * 512
    assert len(archive) - position >= 1024
    assert len(archive) % 10240 == 0
    assert not archive[position:].strip(b"\0")


@pytest.mark.parametrize("hard_links", ["copy", "keep"])
@pytest.mark.parametrize("name", TREES)
def test_the_shape(exporting: Exporting, name: str, hard_links: str) -> None:
    exported = exporting(name)
    members = list(headers(exported.archive(hard_links=hard_links)))
    kinds = b"".join(kind for kind, *_ in members)
    names = [member for _, member, *_ in members]
    assert names[0] == b"./"
    assert len(set(names)) == len(names)
    assert all(member.startswith(b"./") for member in names)
    assert set(kinds) <= set(b"0251")
    assert b"2" not in kinds.rstrip(b"2"), "a link before something else"
    directories: set[bytes] = set()
    files: set[bytes] = set()
    for kind, member, link, records, header in members:
        assert member == b"./" or member.rstrip(b"/").rpartition(b"/")[0] + b"/" in directories
        assert records.keys() <= PAX_KEYS
        assert header[257:265] == b"ustar\x0000"
        if kind == b"5":
            directories.add(member)
        elif kind == b"0":
            files.add(member)
        elif kind == b"1":
            assert hard_links == "keep"
            assert link in files
        if b"hdrcharset" in records:
            assert next(iter(records)) == b"hdrcharset"
            assert not (records.get(b"path", b"") + records.get(b"linkpath", b"")).isascii()
    expected = exported.expected if hard_links == "keep" else copied(exported.expected)
    assert sorted(names) == sorted(
        [b"./", *(b"./" + p + b"/" * (b"./" + p + b"/" in directories) for p in expected.entries)]
    )
    assert {n[2:]: link for k, n, link, *_ in members if k == b"2"} == {
        path: entry.text for path, entry in expected.entries.items() if isinstance(entry, Link)
    }
    assert {n[2:]: link[2:] for k, n, link, *_ in members if k == b"1"} == {
        path: entry.to for path, entry in expected.entries.items() if isinstance(entry, HardLink)
    }


def test_what_does_not_need_a_pax_header_has_none(exporting: Exporting) -> None:
    members = list(headers(exporting("ordinary").archive()))
    plain = {member for _, member, _, records, _ in members if not records}
    assert plain == {b"./empty/", b"./nothing"}
    assert all(records.keys() <= {b"mtime"} for *_, records, _ in members)


def test_plain_headers_of_long_texts_lead_nowhere(exporting: Exporting) -> None:
    """A reader without pax must not see the beginning of a path, which may be another path."""
    for name in ("long-names", "links", "odd-names"):
        for kind, _, _, records, header in headers(exporting(name).archive()):
            if b"path" in records:
                assert (
                    header[:100].rstrip(b"\0")
                    == b"./@LongName/" + hashlib.sha256(records[b"path"]).hexdigest()[:32].encode()
                )
                assert not header[345:500].strip(b"\0")
            if b"linkpath" in records:
                assert kind == b"2"
                assert header[157:257].rstrip(b"\0") == b"@LongLink"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"./" + b"n" * 98, (b"", b"./" + b"n" * 98)),
        (b"./" + b"n" * 99, (b".", b"n" * 99)),
        (b"./" + b"n" * 100, (b".", b"n" * 100)),
        (b"./" + b"n" * 101, None),
        (b"./" + b"n" * 99 + b"/", (b".", b"n" * 99 + b"/")),
        (b"./" + b"n" * 100 + b"/", None),
        (b"./" + b"d" * 153 + b"/" + b"n" * 100, (b"./" + b"d" * 153, b"n" * 100)),
        (b"./" + b"d" * 154 + b"/" + b"n" * 100, None),
        (b"./" + b"d" * 60 + b"/e/" + b"n" * 60, (b"./" + b"d" * 60, b"e/" + b"n" * 60)),
    ],
)
def test_names_are_split_where_they_can_be(name: bytes, expected: tuple[bytes, bytes] | None) -> None:
    assert ustar.split(name) == expected


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, b"0"),
        (1, b"0.000000001"),
        (-1, b"-0.000000001"),
        (-1_500_000_000, b"-1.5"),
        (1_600_000_000_123_456_789, b"1600000000.123456789"),
        (-(1 << 63), b"-9223372036.854775808"),
    ],
)
def test_times_are_exact_decimals(time_ns: int, text: bytes) -> None:
    assert ustar.decimal_time(time_ns) == text


def member_of(**changes: object) -> ustar.Member:
    """A plain file's member."""
    fields = {"name": b"./f", "kind": ustar.FILE, "mode": 0o644, "mtime_ns": 0, "uid": 0, "gid": 0, **changes}
    return ustar.Member(**fields)  # type: ignore[arg-type]


def test_records_count_their_own_length() -> None:
    for length in range(1, 1100):
        header = ustar.pax_header([(b"path", b"p" * length)])
        size = int(header[124:135], 8)
        record = header[512 : 512 + size]
        assert record == b"%d path=%b\n" % (size, b"p" * length)
        assert len(header) % 512 == 0


LISTERS = {
    "gnu-tar": ("tar", "--numeric-owner", "-tvf"),
    "bsdtar": ("bsdtar", "--numeric-owner", "-tvf"),
    "busybox": ("busybox", "tar", "-tvf"),
}


@pytest.mark.parametrize("lister", [*LISTERS, "tarfile"])
def test_files_over_8_gib_and_large_owners(tmp_path: Path, lister: str) -> None:
    """Also BusyBox, which ignores the size and the owner of a pax header, sees the member's own end and owner."""
    size = (8 << 30) + 700
    path = tmp_path / "big.tar"
    inner = ustar.encode(member_of(name=b"./smuggled"))
    with open(path, "wb") as file:
        file.write(ustar.encode(member_of(name=b"./big", size_bytes=size, uid=3_000_000_000, gid=1 << 21)))
        file.write(inner)
        file.seek(size - len(inner) + -size % 512, os.SEEK_CUR)
        file.write(ustar.encode(member_of(name=b"./after", uid=ustar.ID_MAX)) + ustar.END)
    if lister == "tarfile":
        with tarfile.open(path) as opened:
            found = [(m.name, m.size, m.uid, m.gid) for m in opened.getmembers()]
        assert found == [("./big", size, 3_000_000_000, 1 << 21), ("./after", 0, ustar.ID_MAX, 0)]
        return
    require(LISTERS[lister][0])
    words = subprocess.run([*LISTERS[lister], path], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[-1] for line in words] == ["./big", "./after"]
    big, after = (line.replace("/", " ").split() for line in words)
    assert {str(size), "3000000000", "2097152"} <= set(big)
    assert {"0", "2097151"} <= set(after)


# Counting and choosing.


def test_counts_and_what_was_skipped(exporting: Exporting) -> None:
    archive, done = exporting("specials").exported()
    assert done.skipped == {"fifo": 1, "outside-link": 2, "socket": 1}
    assert (done.counts.directories, done.counts.files, done.counts.links, done.counts.bytes) == (2, 1, 0, 5)
    assert done.bytes == len(archive)
    assert (done.ref, done.outcome) == ("demo@1", "complete")
    assert done.snapshot == exporting("specials").taken.capture.snapshot


def test_hard_links_are_counted(exporting: Exporting) -> None:
    copies, kept = (exporting("hard-links").exported(hard_links=how)[1].counts for how in ("copy", "keep"))
    assert (copies.files, copies.hard_links) == (10, 0)
    assert (kept.files, kept.hard_links) == (4, 6)
    assert copies.bytes - kept.bytes == 3 * 7000 + len(b"both names are long\n") + len(b"neither is text\n")


def test_a_choice_of_paths(exporting: Exporting, target: Path) -> None:
    exported = exporting("ordinary")
    archive, done = exported.exported(paths=(b"src/deep", b"./bin//run"))
    extract("tarfile", archive, target)
    loses = EXTRACTORS["tarfile"].loses
    assert_equal(loses(exported.expected.below(b"src/deep", b"bin/run")), loses(read(target)), holes=False)
    assert (done.counts.directories, done.counts.files) == (5, 2)
    assert exporting("specials").exported(paths=(b"run",))[1].skipped == {"outside-link": 1, "socket": 1}


def test_a_choice_without_the_first_name_of_a_file(exporting: Exporting, target: Path) -> None:
    exported = exporting("hard-links")
    extract("tarfile", exported.archive(paths=(b"b", b"a/second"), hard_links="keep"), target)
    loses = EXTRACTORS["tarfile"].loses
    assert_equal(loses(exported.expected.below(b"b", b"a/second")), loses(read(target)), holes=False)
    assert os.stat(target / "b/third").st_nlink == 2


def test_a_choice_that_needs_another_link_is_refused(exporting: Exporting, lift: Lift) -> None:
    make(tree({b"x/y/f": File(b""), b"a": Link(b"x/y"), b"l": Link(b"a/../../f2")}), lift.root)
    exported = take(lift)
    assert exported.taken.reasons == {}
    with pytest.raises(UnsafeLink, match="the link l would leave"):
        exported.archive(paths=(b"l",))
    assert {n for _, n, *_ in headers(exported.archive(paths=(b"l", b"a")))} == {b"./", b"./a", b"./l"}


def test_paths_that_are_not_there(exporting: Exporting) -> None:
    with pytest.raises(UnknownPath, match="has no nothing/here"):
        exporting("ordinary").archive(paths=(b"nothing/here",))
    with pytest.raises(UnknownPath, match=r"has no run/socket: run/socket was left out \(socket\)"):
        exporting("specials").archive(paths=(b"run/socket",))
    with pytest.raises(UsageError, match="relative"):
        exporting("ordinary").archive(paths=(b"../x",))


def test_special_bits_are_kept_on_request_alone(lift: Lift) -> None:
    make(tree({b"f": File(b"x", mode=0o6755), b"g": File(b"y")}), lift.root)
    (lift.root / "shared").mkdir()
    (lift.root / "shared").chmod(0o1777)
    os.link(lift.root / "f", lift.root / "h")
    exported = take(lift)

    def modes(archive: bytes) -> dict[bytes, int]:
        return {name: int(header[100:107], 8) for _, name, _, _, header in headers(archive)}

    cleared, done = exported.exported()
    assert modes(cleared) == {b"./": 0o755, b"./f": 0o755, b"./g": 0o644, b"./h": 0o755, b"./shared/": 0o777}
    assert done.counts.bits_dropped == 3
    kept, done = exported.exported(special_bits=True)
    assert modes(kept) == {b"./": 0o755, b"./f": 0o6755, b"./g": 0o644, b"./h": 0o6755, b"./shared/": 0o1777}
    assert done.counts.bits_dropped == 0


def test_an_empty_workspace(lift: Lift) -> None:
    make(tree({}), lift.root)
    assert [(kind, name) for kind, name, *_ in headers(take(lift).archive())] == [(b"5", b"./")]


def test_paths_that_no_extractor_can_make_are_told(lift: Lift) -> None:
    names = [b"/".join([b"d" * 250] * 16 + [b"n" * length]) for length in (78, 79, 80)]
    assert [len(name) for name in names] == [4094, 4095, 4096]
    make(tree({name: File(b"x") for name in names}), lift.root)
    take(lift)
    warnings: list[str] = []
    pieces: list[bytes] = []
    export(lift.store, "demo", ExportSpec(), pieces.append, on_event=lambda event: warnings.append(event.message))
    assert [text for text in warnings if text] == [
        "1 path is longer than 4095 bytes, and ordinary extractors cannot make that"
    ]
    assert {b"./" + name for name in names} <= {name for _, name, *_ in headers(b"".join(pieces))}


# Bytes.


def test_equal_snapshots_give_equal_bytes(exporting: Exporting, tmp_path: Path) -> None:
    """Wherever the blocks lie: the other store had half of them before."""
    exported = exporting("ordinary")
    half = tmp_path / "half"
    shutil.copytree(exported.lift.root / "src", half, symlinks=True)
    with Store.open(tmp_path / "other", create=True) as other:
        for root, name in ((half, "half"), (exported.lift.root, "whole")):
            with connect(os.fspath(root)) as box:
                taken = box.capture(other, name)
        snapshot = other.load(other.resolve(taken.ref))
        assert taken.snapshot == exported.taken.capture.snapshot
        for compression in ("none", "gzip", "zstd"):
            pieces: list[bytes] = []
            export(other, taken.snapshot, ExportSpec(compression=compression), pieces.append)
            assert b"".join(pieces) == exported.archive(compression=compression)
    assert snapshot.identity.hex() == taken.snapshot


def test_compression_is_one_plain_stream(exporting: Exporting) -> None:
    exported = exporting("ordinary")
    plain, zipped = exported.archive(), exported.archive(compression="gzip")
    assert gzip.decompress(zipped) == plain
    assert zipped[:10] == bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3)), "a name or a time"
    inflate = zlib.decompressobj(31)
    assert inflate.decompress(zipped) == plain
    assert inflate.eof
    assert inflate.unused_data == b""
    packed = exported.archive(compression="zstd")
    parameters = zstandard.get_frame_parameters(packed)
    assert parameters.has_checksum
    assert parameters.window_size <= 8 << 20
    decoder = zstandard.ZstdDecompressor().decompressobj()
    assert decoder.decompress(packed) == plain
    assert decoder.eof
    assert decoder.unused_data == b""


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("extractor", ["gnu-tar", "bsdtar"])
def test_extractors_decompress(exporting: Exporting, target: Path, extractor: str, compression: str) -> None:
    require("zstd", "gzip")
    exported = exporting("ordinary")
    extract(extractor, exported.archive(compression=compression), target)
    loses, makes = EXTRACTORS[extractor].loses, EXTRACTORS[extractor].makes
    assert_equal(loses(makes(exported.expected)), loses(read(target)), holes=False)


def test_few_frames_are_decoded_twice(lift: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small and large files lie in frames of their own; a walk by path goes between them, and some are kept."""
    entries = {b"%03d-large" % n: File(os.urandom(MIB + n)) for n in range(8)}
    entries |= {b"%03d-small" % n: File(b"%d" % n) for n in range(8)}
    make(tree(entries), lift.root)
    exported = take(lift)
    snapshot = exported.lift.store.load(exported.lift.store.resolve("demo"))
    frames = sum(len(exported.lift.store.pack(name)) for name in snapshot.packs)
    decoded: list[int] = []
    decode = PackReader.decode_frame

    def counted(self: PackReader, index: int) -> bytes:
        decoded.append(index)
        return decode(self, index)

    monkeypatch.setattr(PackReader, "decode_frame", counted)
    exported.archive()
    assert len(decoded) == frames
    assert frames > module.FRAMES_KEPT


@pytest.mark.parametrize("name", TREES)
def test_an_import_of_an_export_is_the_same_snapshot(exporting: Exporting, tmp_path: Path, name: str) -> None:
    """Times, owners and groups of names included, unless the capture had left something out."""
    exported = exporting(name)
    spec = ImportSpec(workspace="again", root=b"/nowhere", source="import:-", prefix=b".")
    stream = io.BytesIO(exported.archive(hard_links="keep"))
    with Store.open(tmp_path / "other", create=True) as other:
        taken = import_archive(other, stream, spec, deadline=Deadline.after(60))
    assert taken.content == exported.taken.capture.content
    assert (taken.snapshot == exported.taken.capture.snapshot) == (not exported.taken.excluded)


# Damage and interruption.


def refuses(extractor: str, archive: bytes, target: Path) -> None:
    """The extractor must say that the archive is no good."""
    with pytest.raises(Unextracted):
        extract(extractor, archive, target)


def damaged(exported: Exported, tmp_path: Path) -> Store:
    """A copy of the store whose last frame of blocks is spoilt."""
    shutil.copytree(exported.lift.folder / "store", tmp_path / "damaged")
    (pack,) = (tmp_path / "damaged" / "packs").glob("*/*")
    data = bytearray(pack.read_bytes())
    with Store.open(tmp_path / "damaged") as store:
        reader = store.pack(pack.name)
        at = reader.compressed_offset[-1] + reader.compressed_size[-1] // 2
    data[at : at + 64] = bytes(64)
    pack.write_bytes(data)
    return Store.open(tmp_path / "damaged")


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_a_damaged_store_gives_no_archive(
    exporting: Exporting, tmp_path: Path, target: Path, compression: str, extractor: str
) -> None:
    pieces: list[bytes] = []
    with damaged(exporting("ordinary"), tmp_path) as store:
        with pytest.raises(StoreDamaged, match="src/many-blocks cannot be exported"):
            export(store, "demo", ExportSpec(compression=compression), pieces.append)  # type: ignore[arg-type]
    archive = b"".join(pieces)
    whole = exporting("ordinary").archive(compression=compression)
    assert 0 < len(archive) < len(whole)
    if compression == "gzip":
        inflate = zlib.decompressobj(31)
        archive = inflate.decompress(archive)
        assert not inflate.eof
    elif compression == "zstd":
        decoder = zstandard.ZstdDecompressor().decompressobj()
        archive = decoder.decompress(archive)
        assert not decoder.eof
    refuses(extractor, archive, target)


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_an_archive_that_ends_between_members_is_refused(lift: Lift, target: Path, extractor: str) -> None:
    """Some readers do not look for the end of an archive, so a header without its body follows."""
    make(tree({b"a": File(os.urandom(MIB // 2)), b"b": File(b"b"), b"c": File(b"c")}), lift.root)
    take(lift)
    cancel, pieces = Cancel(), []

    def write(piece: bytes) -> None:
        pieces.append(piece)
        cancel.cancel(2)

    with pytest.raises(Interrupted):
        export(lift.store, "demo", ExportSpec(), write, deadline=Deadline.after(None, cancel))
    archive = b"".join(pieces)
    assert len(archive) > MIB // 2
    assert b"./b" not in archive
    refuses(extractor, archive, target)
    assert os.listdir(target) in ([], ["a"])
