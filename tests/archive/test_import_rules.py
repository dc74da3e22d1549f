"""What an import makes of names, links, special files, times and sizes: the root found, the capture's rules kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from archive import archives as a
from archive.archives import GNU, V7, Member, archive, base256, long_link, long_name, octal
from archive.importer import ROOT, files, take

from sandlift.errors import HostLimit, UnsafeArchive, UsageError
from sandlift.limits import Limits

SECOND = 1_000_000_000


def directory(name: bytes, **changes: object) -> Member:
    return Member(name, kind=a.DIRECTORY, **{"mode": 0o755, **changes})  # type: ignore[arg-type]


def link(name: bytes, text: bytes, **changes: object) -> Member:
    return Member(name, kind=a.LINK, link=text, mode=0o777, **changes)  # type: ignore[arg-type]


PREFIXES: dict[str, tuple[list[Member], list[bytes]]] = {
    "plain": ([Member(b"x"), Member(b"d/y")], [b"d", b"d/y", b"x"]),
    "dotted": ([directory(b"./"), Member(b"./x")], [b"x"]),
    "absolute": ([directory(b"/srv/work/"), Member(b"/srv/work/x"), Member(b"/srv//./work/d/y")], [b"d", b"d/y", b"x"]),
    "slash-removed": ([directory(b"srv/work/"), Member(b"srv/work/x")], [b"x"]),
    "slash-removed-without-the-root": ([Member(b"srv/work/x")], [b"x"]),
    "one-directory": ([directory(b"work/"), Member(b"work/x")], [b"x"]),
    "one-directory-without-member": ([Member(b"work/x"), Member(b"work/d/y")], [b"d", b"d/y", b"x"]),
    # Nothing is taken off unless all agree.
    "not-all-below": ([Member(b"work/x"), Member(b"y")], [b"work", b"work/x", b"y"]),
    "parent-named-too": ([directory(b"srv/"), Member(b"srv/work/x")], [b"srv", b"srv/work", b"srv/work/x"]),
    "like-the-root": ([Member(b"work2/x")], [b"work2", b"work2/x"]),
    # A name that begins with ./ says where the top is.
    "dotted-directory-of-that-name": ([Member(b"./work/x")], [b"work", b"work/x"]),
    "root-and-directory-of-that-name": ([directory(b"./"), Member(b"./work/x")], [b"work", b"work/x"]),
    "twice": ([directory(b"work/"), Member(b"work/work/x")], [b"work", b"work/x"]),
}


@pytest.mark.parametrize("slug", PREFIXES)
def test_root_in_names(slug: str, tmp_path: Path) -> None:
    members, paths = PREFIXES[slug]
    assert take(tmp_path / "store", archive(*members)).paths() == paths


# cases: onyx-dot-app/onyx#14226
def test_stated_prefix(tmp_path: Path) -> None:
    members = archive(directory(b"./work/"), Member(b"./work/x"))
    assert take(tmp_path / "store", members, prefix=b"work").paths() == [b"x"]
    assert take(tmp_path / "store", members, prefix=b"./work/").paths() == [b"x"]
    plain = archive(Member(b"work/x"))
    assert take(tmp_path / "store", plain, prefix=b".").paths() == [b"work", b"work/x"]
    alone = archive(Member(b"work", b"a program named like its directory"))
    with pytest.raises(UnsafeArchive, match="root alone") as caught:
        take(tmp_path / "store", alone)
    assert "--prefix ." in caught.value.hint
    assert take(tmp_path / "store", alone, prefix=b".").content(b"work").startswith(b"a program")


@pytest.mark.parametrize("root", [b"work", b"/srv/../work", b"/srv\0"])
def test_root_must_be_plain(root: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no absolute path"):
        take(tmp_path / "store", archive(Member(b"x")), root=root)


def test_root_of_the_file_system(tmp_path: Path) -> None:
    taken = take(tmp_path / "store", archive(directory(b"/"), Member(b"/etc/x"), link(b"/l", b"/etc/x")), root=b"/")
    assert taken.paths() == [b"etc", b"etc/x", b"l"]
    assert taken.links() == {b"l": (b"etc/x", b"/etc/x")}


# cases: openclaw/openclaw#89257, openclaw/openclaw#89328
def test_hard_links_follow_the_prefix(tmp_path: Path) -> None:
    """The first name in the table's order carries the content, whichever came first."""
    members = [
        Member(b"srv/work/z", b"shared", mode=0o600, mtime=5),
        Member(b"srv/work/a", kind=a.HARD_LINK, link=b"srv/work/z", mode=0o777, mtime=9),
        Member(b"srv/work/m", kind=a.HARD_LINK, link=b"srv//work/a"),
    ]
    taken = take(tmp_path / "store", archive(*members))
    rows = taken.manifest.rows
    assert taken.paths() == [b"a", b"m", b"z"]
    assert list(rows.groups) == [1, 1, 1]
    assert list(rows.counts) == [1, 0, 0]
    assert {taken.metadata(path)[:2] for path in (b"a", b"m", b"z")} == {(0o600, 5 * SECOND)}
    assert taken.content(b"z") == b"shared"


def test_links(tmp_path: Path) -> None:
    """Kept, rebased or left out by the rule of a capture, with the text that was found."""
    members = [
        directory(b"sub/deep/"),
        Member(b"sub/data.txt"),
        link(b"in", b"sub/data.txt"),
        link(b"gone", b"nope"),
        link(b"abs", b"/srv/work/sub//data.txt"),
        link(b"sub/deep/abs", b"/srv/work/sub/data.txt"),
        link(b"root", b"/srv/work/"),
        link(b"alias", b"/home/me/sub"),
        link(b"out", b"/usr/bin/env"),
        link(b"beside", b"/srv/work2/a"),
        link(b"climb", b"../x"),
        link(b"sub/up", b".."),
        link(b"hop", b"sub/up/../x"),
        link(b"p", b"q"),
        link(b"q", b"p"),
    ]
    taken = take(tmp_path / "store", archive(*members), aliases=(b"/home/me",))
    assert taken.links() == {
        b"abs": (b"sub//data.txt", b"/srv/work/sub//data.txt"),
        b"alias": (b"sub", b"/home/me/sub"),
        b"gone": (b"nope", b""),
        b"in": (b"sub/data.txt", b""),
        b"p": (b"q", b""),
        b"q": (b"p", b""),
        b"root": (b".", b"/srv/work/"),
        b"sub/deep/abs": (b"../../sub/data.txt", b"/srv/work/sub/data.txt"),
        b"sub/up": (b"..", b""),
    }
    assert taken.excluded() == {
        b"beside": ("outside-link", b"/srv/work2/a"),
        b"climb": ("outside-link", b"../x"),
        b"hop": ("outside-link", b"sub/up/../x"),
        b"out": ("outside-link", b"/usr/bin/env"),
    }
    assert taken.capture.outcome == "complete"


def test_link_that_grows_too_long_is_lost(tmp_path: Path) -> None:
    """Rebased from deep inside, a text can pass what Linux takes: the entry is lost, and the snapshot says so."""
    deep = b"/".join([b"d"] * 200)
    text = ROOT + b"/" + b"/".join([b"t" * 200] * 17)
    content = archive(link(b"l", b"x", pax={b"path": deep + b"/l", b"linkpath": text[:3400]}))
    taken = take(tmp_path / "store", content)
    assert taken.capture.outcome == "complete"
    content = archive(link(b"l", b"x", pax={b"path": deep + b"/l", b"linkpath": text + b"/" + b"t" * 600}))
    taken = take(tmp_path / "store", content)
    assert taken.excluded() == {deep + b"/l": ("limit", b"link text")}
    assert taken.capture.outcome == "incomplete"
    before = files(tmp_path / "store")
    with pytest.raises(Exception, match="1 entries of the archive cannot be kept"):
        take(tmp_path / "store", content, strict=True)
    assert files(tmp_path / "store") == before


def test_special_files_are_left_out(tmp_path: Path) -> None:
    members = [
        Member(b"d/fifo", kind=a.FIFO),
        Member(b"null", kind=a.CHAR_DEVICE, device=(1, 3)),
        Member(b"deleted", kind=a.CHAR_DEVICE, device=(0, 0)),
        Member(b"disk", kind=a.BLOCK_DEVICE, device=(8, 0)),
    ]
    taken = take(tmp_path / "store", archive(*members))
    assert taken.paths() == [b"d"]
    assert {path: reason for path, (reason, _) in taken.excluded().items()} == {
        b"d/fifo": "fifo",
        b"null": "char-device",
        b"deleted": "whiteout",
        b"disk": "block-device",
    }
    assert taken.capture.outcome == "complete"


def test_directories_without_a_member(tmp_path: Path) -> None:
    members = [Member(b"d/e/f", mtime=100), Member(b"d/g", mtime=300), link(b"d/h/l", b"x", mtime=200)]
    taken = take(tmp_path / "store", archive(*members))
    assert taken.metadata(b"d") == (0o755, 300 * SECOND, 0, 0)
    assert taken.metadata(b"d/e") == (0o755, 100 * SECOND, 0, 0)
    assert taken.metadata(b"d/h") == (0o755, 200 * SECOND, 0, 0)
    assert taken.metadata(b"") == (0o755, 300 * SECOND, 0, 0)
    later = take(tmp_path / "store", archive(*members, directory(b"d", mode=0o700, mtime=7, uid=5, gid=6)))
    assert later.metadata(b"d") == (0o700, 7 * SECOND, 5, 6)
    assert later.metadata(b"") == (0o755, 7 * SECOND, 0, 0)


def test_root_member_sets_the_root(tmp_path: Path) -> None:
    taken = take(tmp_path / "store", archive(directory(b"./", mode=0o2770, uid=7, gid=8, mtime=9)))
    assert taken.paths() == []
    assert taken.metadata(b"") == (0o2770, 9 * SECOND, 7, 8)


TIMES = {
    "nanoseconds": (b"1.000000001", SECOND + 1),
    "more-digits-round-down": (b"1.0000000019999", SECOND + 1),
    "negative": (b"-1.5", -1_500_000_000),
    "negative-rounds-down": (b"-0.0000000011", -2),
    "before-the-range": (b"-99999999999", -(1 << 63)),
    "after-the-range": (b"99999999999999999999.5", (1 << 63) - 1),
}


@pytest.mark.parametrize("slug", TIMES)
def test_times(slug: str, tmp_path: Path) -> None:
    text, time_ns = TIMES[slug]
    taken = take(tmp_path / "store", archive(Member(b"f", pax={b"mtime": text})))
    assert taken.metadata(b"f")[1] == time_ns


def test_numbers_that_writers_spell_differently(tmp_path: Path) -> None:
    members = [
        Member(b"bsd", b"1234", raw={"size": b"00000000004 ", "mode": b"000644 \0", "mtime": b"00000000017 "}),
        Member(b"full", b"1234", raw={"size": b"000000000004", "mtime": b"000000000017"}),
        Member(b"spaces", b"1234", raw={"size": b"          4 ", "mode": b"   644 \0", "mtime": b"17".ljust(12)}),
        Member(b"base", b"1234", magic=GNU, raw={"size": base256(4, 12), "mtime": base256(15, 12)}, uid=7),
        Member(b"old", b"1234", magic=GNU, raw={"mtime": base256(-3, 12), "uid": base256(1 << 31, 8)}),
        Member(b"blank", b"1234", raw={"mtime": bytes(12), "uid": bytes(8), "gid": bytes(8)}),
        Member(b"type bits", b"1234", raw={"mode": octal(0o100644, 8)}),
        Member(b"same size", b"1234", pax={b"size": b"4", b"uid": b"4294967294"}),
    ]  # fmt: skip
    taken = take(tmp_path / "store", archive(*members))
    assert {taken.content(path) for path in taken.paths()} == {b"1234"}
    assert {taken.metadata(path)[0] for path in taken.paths()} == {0o644}
    assert [taken.metadata(path)[1] for path in (b"bsd", b"full", b"spaces", b"base", b"old", b"blank")] == [
        15 * SECOND, 15 * SECOND, 15 * SECOND, 15 * SECOND, -3 * SECOND, 0
    ]  # fmt: skip
    assert [taken.metadata(path)[2] for path in (b"old", b"blank", b"same size")] == [1 << 31, 0, (1 << 32) - 2]


@pytest.mark.parametrize(
    "member",
    [
        Member(b"f", size=0, pax={b"size": b"8589934597"}),
        Member(b"f", size=b"100000000005", pax={b"size": b"8589934597"}),
        Member(b"f", size=base256(8589934597, 12), magic=GNU),
        Member(b"f", size=b"100000000005"),
    ],
    ids=["gnu-and-python-pax", "bsdtar-pax", "gnu", "bsdtar-ustar"],
)
def test_sizes_beyond_8_gib(member: Member, tmp_path: Path) -> None:
    """Each writer has its own way to say a size that octal digits and a NUL cannot hold."""
    with pytest.raises(HostLimit, match="file_bytes: 8589934597, allowed are 8589934596: f"):
        take(tmp_path / "store", archive(member), limits=Limits(file_bytes=8589934596))
    with pytest.raises(UnsafeArchive, match="member's data"):
        take(tmp_path / "store", archive(member))


def test_styles_and_extensions(tmp_path: Path) -> None:
    long = b"long/" + b"n" * 200
    members = [
        Member(b"contiguous", b"1", kind=a.CONTIGUOUS),
        Member(b"old", b"2", kind=a.OLD_FILE, magic=V7),
        Member(b"olddir/", kind=a.OLD_FILE, magic=V7),
        Member(b"name", b"3", prefix=b"first/part"),
        Member(b"x", b"4", prefix=b"p" * 100 + b"\0" * 31 + octal(5, 12), raw={"tail": b"\0" * 8 + b"tar\0"}),
        long_link(b"t" * 150), long_name(long), link(b"long", b"t", magic=GNU),
        # Java's writer has GNU's headers in the ustar style.
        long_name(b"java/" + b"n" * 120, magic=a.USTAR), Member(b"java", b"5"),
        # Rust's has pax headers before members in GNU's.
        Member(b"rust", b"6", magic=GNU, pax={b"path": b"rust/" + b"n" * 120, b"atime": b"nan", b"uname": b""}),
        a.pax_header({b"comment": b"anything"}, kind=a.PAX_GLOBAL),
        Member(b"bin\xff", b"7", pax={b"hdrcharset": b"BINARY", b"path": b"bin\xff\xfe=\nx"}),
        Member(b"12345", b"8", pax={b"path": b"12345", b"VENDOR.key": b"", b"SCHILY.dev": b"9"}),
    ]  # fmt: skip
    taken = take(tmp_path / "store", archive(*members))
    kinds = {path: kind for path, kind in taken.kinds().items() if kind != "directory" or path == b"olddir"}
    assert kinds == {
        b"12345": "file",
        b"bin\xff\xfe=\nx": "file",
        b"contiguous": "file",
        b"first/part/name": "file",
        b"java/" + b"n" * 120: "file",
        b"rust/" + b"n" * 120: "file",
        b"old": "file",
        b"olddir": "directory",
        b"p" * 100 + b"/x": "file",
        long: "link",
    }
    assert taken.links()[long] == (b"t" * 150, b"")


def test_padding_is_not_looked_at(tmp_path: Path) -> None:
    """What stands in padding is not taken in: everything is written anew."""
    plain = take(tmp_path / "store", archive(Member(b"f", b"data")))
    covert = take(tmp_path / "store", archive(Member(b"f", b"data", pad=b"s" * 508, raw={"tail": b"secret"})))
    assert covert.capture.snapshot == plain.capture.snapshot
    assert covert.capture.reused


def test_content_is_cut_and_kept_once(tmp_path: Path) -> None:
    block = bytes(range(256)) * 4096
    members = [
        Member(b"a", block * 2 + b"end"),
        Member(b"b", block),
        Member(b"c", bytes(3 << 20) + b"x"),
        Member(b"z", bytes(2 << 20)),
    ]
    taken = take(tmp_path / "store", archive(*members))  # fmt: skip
    assert len(taken.manifest.blocks) == 3
    assert list(taken.manifest.rows.counts) == [3, 1, 1, 0]
    for member in members:
        assert taken.content(member.name) == member.data
    (pack,) = [name for name in files(tmp_path / "store") if name.startswith("packs/")]
    assert (tmp_path / "store" / pack).stat().st_size < 100_000


def test_the_same_archive_twice(tmp_path: Path) -> None:
    content = archive(directory(b"./"), Member(b"./f", b"data"))
    first = take(tmp_path / "store", content, labels={"run": "1"}, note="a note")
    before = [name for name in files(tmp_path / "store") if not name.startswith("refs/")]
    second = take(tmp_path / "store", content)
    assert (first.capture.ref, first.capture.reused) == ("demo@1", False)
    assert (second.capture.ref, second.capture.reused) == ("demo@2", True)
    assert [name for name in files(tmp_path / "store") if not name.startswith("refs/")] == before
    assert first.capture.labels == {"run": "1"}
    assert first.capture.note == "a note"
    assert first.capture.source == "import:-"
    assert first.capture.wire.received == len(content)
