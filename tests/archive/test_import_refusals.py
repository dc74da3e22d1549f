"""Each rule by which an archive is refused, once; and that nothing of a refused one is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from archive import archives as a
from archive.archives import END, GNU, V7, Member, archive, base256, long_link, long_name, octal, pax_header
from archive.importer import files, take

from sandlift.errors import UnsafeArchive

FIRST = Member(b"first", b"stored before the refusal " * 100)
"""Something in every archive that is in order."""
LAST = Member(b"last", b"never seen")


def around(*members: Member | bytes, end: bytes = END) -> bytes:
    """An archive with these members between two that are in order."""
    return archive(FIRST, *members, LAST, end=end)


def directory(name: bytes, **changes: object) -> Member:
    return Member(name, kind=a.DIRECTORY, **{"mode": 0o755, **changes})  # type: ignore[arg-type]


def link(name: bytes, text: bytes, **changes: object) -> Member:
    return Member(name, kind=a.LINK, link=text, **changes)  # type: ignore[arg-type]


def hard(name: bytes, to: bytes, **changes: object) -> Member:
    return Member(name, kind=a.HARD_LINK, link=to, **changes)  # type: ignore[arg-type]


def sized(size: bytes) -> bytes:
    return around(Member(b"f", b"x" * 512, size=size))


def pax(**records: bytes) -> bytes:
    return around(Member(b"f", b"data", pax={key.encode(): value for key, value in records.items()}))


def records(data: bytes) -> bytes:
    return around(pax_header(data), Member(b"f", b"data"))


def sparse(
    *, name: bytes = b"s", carrier: bytes = b"./GNUSparseFile.1/s", data: bytes = b"x" * 512, **keys: bytes
) -> bytes:
    """A pax sparse file; keys are those of GNU.sparse."""
    pairs = {b"GNU.sparse." + key.encode(): value for key, value in keys.items()}
    return around(Member(carrier, data, pax={b"GNU.sparse.name": name, **pairs}))


def old_sparse(
    regions: list[tuple[int, int]], *, real: int = 4096, data: bytes = b"x" * 512, more: bytes = b"", **raw: bytes
) -> bytes:
    fields = {**a.sparse_fields(regions, real, extended=bool(more)), **raw}
    member = Member(b"s", kind=a.GNU_SPARSE, magic=GNU, size=len(data), raw=fields)
    return around(member.header() + more + data + a.padding(data))


VERSION_1 = {
    b"GNU.sparse.major": b"1",
    b"GNU.sparse.minor": b"0",
    b"GNU.sparse.name": b"s",
    b"GNU.sparse.realsize": b"4096",
}

NAMES = {
    "dotdot": (around(Member(b"../x")), "component .."),
    "dotdot-inside": (around(Member(b"a/../b")), "component .."),
    "dotdot-from-prefix": (around(Member(b"x", prefix=b"..")), "component .."),
    "dotdot-pax": (pax(path=b"a/../../x"), "component .."),
    "absolute-outside": (archive(Member(b"/etc/passwd")), "not below the root"),
    "absolute-beside-root": (archive(Member(b"/srv/work2/x")), "not below the root"),
    "double-slash": (archive(Member(b"//etc/passwd")), "not below the root"),
    "absolute-and-relative": (archive(Member(b"/srv/work/a"), Member(b"b")), "mixed"),
    "empty": (around(Member(b"")), "empty name"),
    "empty-second-part": (around(Member(b"", prefix=b"a")), "first part and no second"),
    "root-is-a-link": (archive(link(b"./", b"/etc")), "root is no directory"),
    "root-is-a-file": (archive(Member(b".")), "root is no directory"),
    "only-entry-is-a-link-named-like-the-root": (archive(link(b"work", b"/etc")), "root alone"),
    "component-too-long": (pax(path=b"n" * 256), "over 255 bytes"),
    "nul-in-pax-path": (pax(path=b"ok\0/../x"), "NUL"),
    "nul-in-gnu-name": (around(long_name(b"ok\0x"), Member(b"ok", magic=GNU)), "NUL"),
    "file-with-slash": (around(Member(b"f/")), "ends like a directory's"),
    "file-with-dot": (around(Member(b"f/.")), "ends like a directory's"),
    "link-with-slash": (around(link(b"l/", b"x")), "ends like a directory's"),
    "star-prefix": (around(Member(b"x", prefix=b"p" * 140, raw={"tail": b"\0" * 8 + b"tar\0"})), "star"),
    "stated-prefix-missing": (archive(Member(b"other/x")), "stated prefix"),
}

TOGETHER = {
    "duplicate": (around(Member(b"f", b"1"), Member(b"f", b"2")), "same name"),
    "duplicate-spelled-differently": (around(Member(b"d/f", b"1"), Member(b"./d//./f", b"2")), "same name"),
    "duplicate-directory": (around(directory(b"d/"), directory(b"d")), "same name"),
    "duplicate-root": (around(directory(b"./"), directory(b".")), "same name"),
    "link-then-file": (around(link(b"f", b"../victim"), Member(b"f", b"x")), "same name"),
    "link-then-directory": (around(link(b"f", b"/etc"), directory(b"f")), "same name"),
    "file-then-fifo": (around(Member(b"f"), Member(b"f", kind=a.FIFO)), "same name"),
    "below-a-file": (around(Member(b"f", b"x"), Member(b"f/g", b"y")), "no directory"),
    "below-a-link": (around(link(b"l", b".."), Member(b"l/x", b"y")), "no directory"),
    "below-a-fifo": (around(Member(b"p", kind=a.FIFO), Member(b"p/x", b"y")), "no directory"),
    "below-a-hard-link": (around(hard(b"h", b"first"), Member(b"h/x", b"y")), "no directory"),
    "file-above": (around(Member(b"d/f", b"x"), Member(b"d", b"y")), "below it"),
    "link-above": (around(Member(b"d/f", b"x"), link(b"d", b"/etc")), "below it"),
    "hard-forward": (around(hard(b"h", b"last")), "no member that came before"),
    "hard-missing": (around(hard(b"h", b"nowhere")), "no member that came before"),
    "hard-itself": (around(hard(b"h", b"./h")), "itself"),
    "hard-to-implied": (around(Member(b"d/x"), hard(b"h", b"d")), "no member that came before"),
    "hard-to-directory": (around(directory(b"d"), hard(b"h", b"d")), "no regular file"),
    "hard-to-link": (around(link(b"l", b"first"), hard(b"h", b"l")), "no regular file"),
    # cases: libarchive/libarchive#724
    "hard-to-fifo": (around(Member(b"p", kind=a.FIFO), hard(b"h", b"p")), "no regular file"),
    "hard-through-link": (around(link(b"l", b"."), hard(b"h", b"l/first")), "no member that came before"),
    "hard-outside": (around(hard(b"h", b"../../etc/passwd")), "component .."),
    "hard-absolute": (around(hard(b"h", b"/etc/passwd")), "not below the root"),
    "hard-with-data": (around(hard(b"h", b"first", data=b"payload")), "no data"),
}

CONTENT = {
    "link-with-data": (around(link(b"l", b"x", data=LAST.encoded())), "no data"),
    "directory-with-data": (around(directory(b"d", data=b"x")), "no data"),
    "fifo-with-data": (around(Member(b"p", b"x", kind=a.FIFO)), "no data"),
    "device-with-data": (around(Member(b"p", b"x", kind=a.CHAR_DEVICE)), "no data"),
    "file-with-link-text": (around(Member(b"f", b"x", link=b"y")), "no link"),
    "link-without-text": (around(link(b"l", b"")), "no text"),
    "hard-link-without-text": (around(hard(b"h", b"")), "no text"),
    "nul-in-link-text": (around(link(b"l", b"x", pax={b"linkpath": b"x\0y"})), "NUL"),
}

EXTENSIONS = {
    "pax-twice": (around(pax_header({b"path": b"p"}), Member(b"f", pax={b"path": b"q"})), "several extension headers"),
    "gnu-name-twice": (around(long_name(b"p"), long_name(b"q"), Member(b"f", magic=GNU)), "several extension headers"),
    "gnu-link-twice": (
        around(long_link(b"p"), long_link(b"q"), link(b"l", b"x", magic=GNU)),
        "several extension headers",
    ),
    "gnu-name-then-pax": (around(long_name(b"p"), Member(b"f", pax={b"path": b"q"})), "several extension headers"),
    "pax-then-gnu-name": (
        around(pax_header({b"path": b"q"}), long_name(b"p"), Member(b"f")),
        "several extension headers",
    ),
    "pax-then-gnu-link": (around(pax_header({b"mtime": b"1"}), long_link(b"p"), link(b"l", b"x")), "several extension"),
    "pax-size-on-gnu-name": (
        around(pax_header({b"size": b"1024"}), long_name(b"p"), Member(b"f")),
        "several extension",
    ),
    "dangling-pax": (archive(FIRST, pax_header({b"path": b"p"})), "no member after it"),
    "dangling-gnu-name": (archive(FIRST, long_name(b"p")), "no member after it"),
    "dangling-without-end": (archive(FIRST, long_name(b"p"), end=b""), "no end marker"),
    "global-path": (around(pax_header({b"path": b"p"}, kind=a.PAX_GLOBAL)), "global pax header sets path"),
    "global-size": (around(pax_header({b"size": b"0"}, kind=a.PAX_GLOBAL)), "global pax header sets size"),
    "global-between": (
        around(pax_header({b"path": b"p"}), pax_header({b"comment": b"c"}, kind=a.PAX_GLOBAL), Member(b"f")),
        "between",
    ),
    "repeated-key": (around(Member(b"f", pax=[(b"path", b"p"), (b"path", b"q")])), "stands twice"),
    "empty-path": (pax(path=b""), "no value"),
    "empty-size": (pax(size=b""), "no value"),
    "unknown-key": (pax(pathname=b"x"), "not known"),
    "unknown-charset": (pax(hdrcharset=b"EBCDIC"), "character set"),
    "dumpdir": (around(Member(b"f", pax={b"GNU.dumpdir": b"Yx\0\0"})), "some readers act on it"),
    "star-sparse": (around(Member(b"f", pax={b"SCHILY.realsize": b"9"})), "some readers act on it"),
    "solaris-sparse": (around(Member(b"f", pax={b"SUN.holesdata": b" 0 9"})), "some readers act on it"),
    "record-length-0": (records(b"0 path=p\n"), "record's length"),
    "record-too-long": (records(b"99 path=p\n"), "record's length"),
    "record-too-short": (records(b"9 path=pq\n"), "record's length"),
    "record-leading-zero": (records(b"010 path=p\n"), "record's length"),
    "record-sign": (records(b"+10 path=p\n"), "record's length"),
    "record-without-equals": (records(b"9 path p\n"), "no proper key"),
    "record-without-key": (records(b"5 =p\n"), "no proper key"),
    "record-without-newline": (records(b"9 path=pq"), "record's length"),
    "record-nul-tail": (records(a.record(b"path", b"p") + bytes(20)), "record's length"),
    "record-key-with-nul": (records(a.record(b"pa\0th", b"p")), "no proper key"),
    "empty-pax": (records(b""), "empty"),
    "empty-gnu-name": (around(long_name(b""), Member(b"f", magic=GNU)), "long name is empty"),
    "pax-before-v7": (around(Member(b"f", magic=V7, pax={b"path": b"p"})), "has none"),
    "gnu-name-before-v7": (around(long_name(b"p"), Member(b"f", magic=V7)), "has none"),
    "pax-in-gnu-style": (around(pax_header({b"path": b"p"}, magic=GNU), Member(b"f")), "no ustar header"),
    "link-text-for-a-file": (around(Member(b"f", b"x", pax={b"linkpath": b"first"})), "no link"),
    "long-link-for-a-file": (around(long_link(b"first"), Member(b"f", b"x", magic=GNU)), "no link"),
}

NUMBERS = {
    "size-plus": (sized(b"+00000001000"), "octal"),
    "size-minus": (sized(b"-00000001000"), "octal"),
    "size-underscore": (sized(b"0000_1000\0"), "octal"),
    "size-0o": (sized(b"0o1000\0"), "octal"),
    "size-decimal": (sized(b"00000000009\0"), "octal"),
    "size-empty": (sized(bytes(12)), "octal"),
    "size-half-read": (sized(b"1000\0001000"), "octal"),
    "size-arabic": (sized("٠١٠٠٠".encode()), "out of range|form|octal"),
    "size-base256-negative": (sized(base256(-512, 12)), "out of range"),
    "size-base256-huge": (sized(base256(1 << 63, 12)), "out of range"),
    "size-base256-other-mark": (sized(b"\x81" + base256(512, 12)[1:]), "form that not all"),
    "owner-minus-1": (around(Member(b"f", raw={"uid": base256(-1, 8)})), "out of range"),
    "owner-leave-it": (pax(uid=b"4294967295"), "out of range"),
    "group-huge": (pax(gid=b"18446744073709551616"), "no number"),
    "pax-size-plus": (pax(size=b"+4"), "no number"),
    "pax-size-space": (pax(size=b" 4"), "no number"),
    "pax-size-underscore": (pax(size=b"4_0"), "no number"),
    "pax-size-leading-zero": (pax(size=b"04"), "no number"),
    "pax-size-minus": (pax(size=b"-4"), "no number"),
    "pax-size-arabic": (pax(size="٤".encode()), "no number"),
    "pax-size-5000-digits": (pax(size=b"4" * 5000), "no number"),
    "time-nan": (pax(mtime=b"nan"), "no decimal"),
    "time-inf": (pax(mtime=b"-inf"), "no decimal"),
    "time-exponent": (pax(mtime=b"1e400"), "no decimal"),
    "time-two-points": (pax(mtime=b"1.2.3"), "no decimal"),
    "pax-size-other-than-header": (pax(size=b"512"), "pax header says 512 bytes, its own 4"),
    "CVE-2025-62518": (
        around(pax_header({b"size": b"1024"}), Member(b"f", size=0), Member(b"hidden").header() + bytes(512)),
        "pax header says 1024 bytes, its own 0",
    ),
    "CVE-2026-33055": (around(Member(b"f", LAST.encoded(), pax={b"size": b"0"})), "pax header says 0 bytes"),
    "checksum-wrong": (around(Member(b"f", checksum=b"0000000\0")), "checksum"),
    "checksum-signed": (around(Member(b"\xff\xff", checksum=b"%06o\0 " % 0o5555)), "checksum"),
    "checksum-spelling": (around(Member(b"f", checksum=b"0o7777\0 ")), "checksum"),
    "type-unknown": (around(Member(b"f", kind=b"Z")), "type 'Z'"),
    "type-dumpdir": (around(Member(b"f", b"Yx\0\0", kind=b"D")), "type 'D'"),
    "type-volume-rest": (around(Member(b"f", kind=b"M")), "type 'M'"),
    "type-names": (around(Member(b"f", kind=b"N")), "type 'N'"),
    "type-label": (archive(Member(b"label", kind=b"V", magic=GNU), FIRST), "type 'V'"),
    "type-solaris": (around(Member(b"f", kind=b"X")), "type 'X'"),
    "magic": (around(Member(b"f", magic=b"ustar\0\0\0")), "magic"),
    "v7-with-more": (around(Member(b"f", magic=V7, raw={"uname": b"root"})), "more fields"),
    "gnu-with-prefix": (around(Member(b"f", magic=GNU, prefix=b"elsewhere")), "GNU's fields"),
}

FRAMING = {
    "nothing": (b"", "empty"),
    "no-members": (archive(), "no member"),
    "no-end": (archive(FIRST, end=b""), "no end marker"),
    "single-zero-block": (archive(FIRST, end=bytes(512)), "single block"),
    "single-zero-block-then-more": (archive(FIRST, bytes(512), LAST), "single block"),
    "concatenated": (archive(FIRST) + archive(LAST), "follows its end"),
    "garbage": (archive(FIRST) + b"x" * 512, "follows its end"),
    "unaligned": (archive(FIRST) + bytes(100), "whole block"),
    "cut-in-header": (archive(FIRST)[:300], "header|begin"),
    "cut-in-second-header": (archive(FIRST, LAST)[: len(FIRST.encoded()) + 300], "cut off in a header"),
    "cut-in-data": (archive(FIRST)[:1000], "member's data"),
    "cut-in-padding": (archive(LAST)[:600], "padding"),
    "cut-in-extension": (archive(pax_header(b"x" * 1000))[:900], "extension header"),
    "no-tar": (b"hello, world\n" * 100, "does not begin with a tar header"),
    "first-header-damaged": (b"\1" + archive(FIRST)[1:], "does not begin with a tar header"),
}

SPARSE = {
    "overlap": (sparse(size=b"4096", numblocks=b"2", map=b"0,256,128,256"), "overlap"),
    "falling": (sparse(size=b"4096", numblocks=b"2", map=b"1024,256,0,256"), "overlap"),
    "beyond": (sparse(size=b"4096", numblocks=b"1", map=b"4000,512"), "beyond"),
    "less-than-data": (sparse(size=b"4096", numblocks=b"1", map=b"0,256"), "regions have 256 bytes"),
    "short-of-the-end": (sparse(size=b"4096", numblocks=b"1", map=b"0,512"), "do not reach its end"),
    "no-regions": (sparse(size=b"4096", numblocks=b"0", map=b",", data=b""), "number of regions"),
    "negative": (sparse(size=b"4096", numblocks=b"1", map=b"-1,512"), "no number"),
    "count": (sparse(size=b"4096", numblocks=b"2", map=b"0,512"), "number of regions"),
    "odd": (sparse(size=b"4096", numblocks=b"1", map=b"0,512,1"), "number of regions"),
    "twice": (
        around(
            Member(
                b"s",
                b"x" * 512,
                pax=[
                    (b"GNU.sparse.size", b"4096"),
                    (b"GNU.sparse.numblocks", b"1"),
                    (b"GNU.sparse.map", b"0,512"),
                    (b"GNU.sparse.offset", b"0"),
                    (b"GNU.sparse.numbytes", b"512"),
                ],
            )
        ),
        "twice",
    ),
    "unpaired": (around(Member(b"s", b"x", pax=[(b"GNU.sparse.offset", b"0")])), "pairs"),
    "pairs-swapped": (
        around(Member(b"s", b"x", pax=[(b"GNU.sparse.numbytes", b"1"), (b"GNU.sparse.offset", b"0")])),
        "pairs",
    ),
    "size-missing": (sparse(numblocks=b"1", map=b"0,512"), "fit together"),
    "version": (sparse(major=b"2", minor=b"0", realsize=b"4096"), "version"),
    "mixed-versions": (sparse(major=b"1", minor=b"0", realsize=b"4096", map=b"0,512"), "version"),
    "name-of-another-file": (
        sparse(carrier=b"other", size=b"512", numblocks=b"1", map=b"0,512"),
        "does not bear the file's name",
    ),
    "name-outside": (
        sparse(name=b"../s", carrier=b"../GNUSparseFile.1/s", size=b"512", numblocks=b"1", map=b"0,512"),
        "component ..",
    ),
    "directory": (
        around(
            directory(b"d", pax={b"GNU.sparse.size": b"0", b"GNU.sparse.numblocks": b"0", b"GNU.sparse.map": b"0,0"})
        ),
        "no file",
    ),
    "map-larger-than-data": (
        sparse(major=b"1", minor=b"0", realsize=b"4096", data=b"9\n" + b"0\n0\n" * 4),
        "larger than its data",
    ),
    "map-no-numbers": (sparse(major=b"1", minor=b"0", realsize=b"4096", data=b"x" * 1024), "list of numbers"),
    "map-sign": (
        sparse(major=b"1", minor=b"0", realsize=b"4096", data=b"1\n0\n+512\n".ljust(1024, b"\0")),
        "no number",
    ),
    "name-with-nul": (
        sparse(
            name=b"s" * 84 + b"\0x", carrier=b"GNUSparseFile.1/" + b"s" * 84, size=b"512", numblocks=b"1", map=b"0,512"
        ),
        "name holds a NUL",
    ),
    "cut-in-map": (
        archive(FIRST, Member(b"GNUSparseFile.1/s", b"999\n" + b"0\n" * 254, size=1024, pax=VERSION_1), end=b""),
        "cut off in a list of regions",
    ),
    "old-cut": (
        archive(
            Member(
                b"s", kind=a.GNU_SPARSE, magic=GNU, raw=a.sparse_fields([(i, 1) for i in range(4)], 99, extended=True)
            ),
            end=bytes(100),
        ),
        "cut off in a list of regions",
    ),
    "old-gap": (old_sparse([], sparse=bytes(24) + octal(0, 12) + octal(512, 12)), "gap"),
    "old-extended-flag": (old_sparse([(0, 512)], is_extended=b"\2"), "goes on"),
    "old-extended-not-full": (old_sparse([(0, 512)], more=a.sparse_extension([])), "goes on"),
    "old-total": (old_sparse([(0, 100)]), "regions have 100 bytes"),
    "old-in-ustar": (around(Member(b"s", b"x", kind=a.GNU_SPARSE)), "another format"),
}

RULES = {
    f"{group}-{slug}": case
    for group, cases in {
        "name": NAMES,
        "together": TOGETHER,
        "content": CONTENT,
        "extension": EXTENSIONS,
        "number": NUMBERS,
        "framing": FRAMING,
        "sparse": SPARSE,
    }.items()
    for slug, case in cases.items()
}


@pytest.mark.parametrize("slug", RULES)
def test_refused(slug: str, tmp_path: Path) -> None:
    content, words = RULES[slug]
    options: dict[str, Any] = {"prefix": b"work"} if "stated-prefix" in slug else {}
    with pytest.raises(UnsafeArchive, match=words) as caught:
        take(tmp_path / "store", content, **options)
    assert caught.value.exit == 4
    assert caught.value.message.isprintable()
    assert caught.value.message.isascii()
    assert files(tmp_path / "store") == []


def test_harmless_twin(tmp_path: Path) -> None:
    """What stands around the attacks is taken in."""
    taken = take(tmp_path / "store", around(Member(b"f", b"data")))
    assert taken.paths() == [b"f", b"first", b"last"]
    assert taken.content(b"first") == FIRST.data


def test_name_is_shown_harmless(tmp_path: Path) -> None:
    """A terminal would carry out what a hostile name says."""
    with pytest.raises(UnsafeArchive) as caught:
        take(tmp_path / "store", archive(Member(b"\x1b]52;c;aGk=\x07\n\xe2\x80\xae/../x")))
    assert "\\x1b]52" in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.message.isascii()
    assert "\n" not in str(caught.value.context["member"])


def test_refused_after_much_was_read(tmp_path: Path) -> None:
    """Packs are begun before an archive is known to be sound; nothing of them stays."""
    content = b"".join(Member(b"f%d" % index, bytes([index + 1]) * (1 << 20)).encoded() for index in range(6))
    with pytest.raises(UnsafeArchive, match="no end marker"):
        take(tmp_path / "store", content)
    assert files(tmp_path / "store") == []
