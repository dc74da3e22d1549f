"""Archives that two readers read in two ways: classes 42 to 62."""

from __future__ import annotations

import pytest
from archive import archives as a
from archive.archives import GNU, V7, Member, archive, base256, gz, long_link, long_name, octal, pax_header, xz, zst
from security.ground import Ground, Kept, Make, Refused, directory, file, try_kept, try_refused

from sandlift.errors import HostLimit, SandliftError, UnsafeArchive
from support.tree import File

X = Member(b"x", b"data")
LAST = Member(b"last", b"seen by all readers")
SMUGGLED = Member(b"smuggled", b"seen by some readers").encoded()
"""A whole member, to be taken for content, or content to be taken for one."""
PLAIN = archive(X, LAST)


def f(data: bytes = b"data", **changes: object) -> Member:
    """A file named f."""
    return Member(b"f", data, **changes)  # type: ignore[arg-type]


def around(*members: Member | bytes) -> bytes:
    """An archive with these members between two others."""
    return archive(X, *members, LAST)


def refused(
    row: int,
    attack: Make,
    twin: Make,
    says: str,
    names: str = "",
    *,
    error: type[SandliftError] = UnsafeArchive,
    words: tuple[str, ...] = (),
    twin_words: tuple[str, ...] | None = None,
) -> Refused:
    """A row of the table, short."""
    return Refused(
        row=row, attack=attack, twin=twin, says=says, names=names, error=error, words=words, twin_words=twin_words
    )


def pax(twin: dict[bytes, bytes], *records: tuple[bytes, bytes], row: int, says: str) -> Refused:
    """Pax records on a file, and those that its twin has."""
    return refused(row, around(f(pax=list(records))), around(f(pax=twin)), says)


def raw_pax(row: int, data: bytes, says: str) -> Refused:
    """A pax header with these very bytes."""
    return refused(row, around(pax_header(data), f()), around(pax_header(a.record(b"path", b"p")), f()), says)


def sized(row: int, size: bytes, says: str = "octal", *, twin: bytes = octal(512, 12)) -> Refused:
    """A size field spelled like this, where others spell it plainly."""
    return refused(row, around(f(b"x" * 512, size=size)), around(f(b"x" * 512, size=twin)), f"the size .*{says}")


def pax_sized(row: int, size: bytes, says: str = "no number as all readers") -> Refused:
    """A pax size spelled like this."""
    return pax({b"size": b"4"}, (b"size", size), row=row, says=says)


CHAINED = "several extension headers"
FOLLOWS = "something follows its end marker"
MANY = "more than one {} stream"

SIZES = {
    "CVE-2025-62518-pax-size-over-a-header-of-0": refused(
        42,
        around(pax_header({b"size": b"1024"}), f(b"", size=0), SMUGGLED),
        around(pax_header({b"size": b"1024"}), f(SMUGGLED)),
        "pax header says 1024 bytes, its own 0",
        "f",
    ),
    "CVE-2026-33055-pax-size-of-0": refused(
        42, around(f(SMUGGLED, pax={b"size": b"0"})), around(f(SMUGGLED)), "pax header says 0 bytes, its own 1024", "f"
    ),
    "pax-size-larger-than-the-header-s": refused(
        42,
        around(pax_header({b"size": b"1024"}), f(b"x" * 512), b"y" * 512),
        around(pax_header({b"size": b"512"}), f(b"x" * 512)),
        "pax header says 1024 bytes, its own 512",
        "f",
    ),
    "CVE-2026-53655-pax-size-on-a-long-name": refused(
        43, around(pax_header({b"size": b"1024"}), long_name(b"p"), f()), around(long_name(b"p"), f(magic=GNU)), CHAINED
    ),
    "GHSA-3cv2-h65g-fgmm-pax-name-on-a-long-name": refused(
        43,
        around(pax_header({b"path": b"q"}), long_name(b"p"), f()),
        around(pax_header({b"path": b"q"}), f()),
        CHAINED,
    ),
    "RUSTSEC-2026-0112-pax-on-a-long-link": refused(
        43,
        around(pax_header({b"mtime": b"1"}), long_link(b"x"), Member(b"l", kind=a.LINK, link=b"y")),
        around(pax_header({b"mtime": b"1"}), Member(b"l", kind=a.LINK, link=b"y")),
        CHAINED,
    ),
    "inspect-ai-5390-two-long-links": refused(
        44,
        around(long_link(b"x"), long_link(b"../y"), Member(b"l", kind=a.LINK, link=b"z", magic=GNU)),
        around(long_link(b"x"), Member(b"l", kind=a.LINK, link=b"z", magic=GNU)),
        CHAINED,
    ),
    "two-long-names": refused(
        44, around(long_name(b"p"), long_name(b"q"), f(magic=GNU)), around(long_name(b"p"), f(magic=GNU)), CHAINED
    ),
    "two-pax-headers": refused(
        44,
        around(pax_header({b"path": b"p"}), pax_header({b"path": b"q"}), f()),
        around(pax_header({b"path": b"p"}), f()),
        CHAINED,
    ),
    # cases: UKGovernmentBEIS/inspect_ai#5390
    "a-chain-of-60-pax-headers": refused(
        44, around(*[pax_header({b"mtime": b"1"})] * 60, f()), around(pax_header({b"mtime": b"1"}), f()), CHAINED
    ),
    "tokio-tar-013-gnu-name-then-pax-name": refused(
        45, around(long_name(b"p"), f(pax={b"path": b"q"})), around(f(pax={b"path": b"q"})), CHAINED
    ),
    "tokio-tar-018-gnu-name-and-pax-size": refused(
        45, around(long_name(b"p"), f(pax={b"size": b"4"})), around(f(pax={b"size": b"4"})), CHAINED
    ),
}

RECORDS = {
    "a-pax-key-twice": pax({b"path": b"p"}, (b"path", b"p"), (b"path", b"q"), row=46, says="path stands twice"),
    "a-pax-name-taken-back": pax({b"path": b"p"}, (b"path", b""), row=46, says="path has no value"),
    "a-pax-size-taken-back": pax({b"size": b"4"}, (b"size", b""), row=46, says="size has no value"),
    "an-unknown-charset": pax(
        {b"hdrcharset": b"BINARY"}, (b"hdrcharset", b"EBCDIC"), row=46, says="character set .* not known"
    ),
    "an-unknown-pax-key": pax({b"comment": b"x"}, (b"pathname", b"x"), row=46, says="pathname is not known"),
    "CVE-2019-20907-record-of-length-0": raw_pax(47, b"0 path=p\n", "record's length is wrong"),
    "record-longer-than-its-header": raw_pax(47, b"99 path=p\n", "record's length is wrong"),
    "record-shorter-than-it-is": raw_pax(47, b"9 path=pq\n", "record's length is wrong"),
    "record-with-a-leading-zero": raw_pax(47, b"010 path=p\n", "record's length is wrong"),
    "record-with-a-sign": raw_pax(47, b"+10 path=p\n", "record's length is wrong"),
    "record-without-an-equals-sign": raw_pax(47, b"9 path p\n", "no proper key"),
    "tokio-tar-014-record-without-a-newline": raw_pax(47, b"9 path=pq", "record's length is wrong"),
    "record-and-zeros": raw_pax(47, a.record(b"path", b"p") + bytes(20), "record's length is wrong"),
    "no-record": raw_pax(47, b"", "extension header is empty"),
    "CVE-2020-10735-5000-digits": pax_sized(48, b"4" * 5000),
    "CVE-2026-59874-plus": pax_sized(48, b"+4"),
    "pax-size-with-a-space": pax_sized(48, b" 4"),
    "pax-size-with-an-underscore": pax_sized(48, b"4_0"),
    "pax-size-with-a-leading-zero": pax_sized(48, b"04"),
    "CVE-2025-8194-pax-size-below-0": pax_sized(48, b"-4"),
    "pax-size-in-arabic-digits": pax_sized(48, "٤".encode()),
    "size-plus": sized(48, b"+00000001000"),
    "size-minus": sized(48, b"-00000001000"),
    "size-underscore": sized(48, b"0000_1000\0"),
    "size-0o": sized(48, b"0o1000\0"),
    "size-decimal": sized(48, b"00000000512\0"[:9] + b"8\0\0"),
    "size-blank": sized(48, bytes(12)),
    "size-with-more-behind-its-end": sized(48, b"1000\0001000"),
    "CVE-2025-8194-base-256-below-0": sized(49, base256(-512, 12), "-512, which is out of range"),
    "base-256-over-63-bits": sized(49, base256(1 << 63, 12), "out of range", twin=base256(512, 12)),
    "base-256-with-another-mark": sized(
        49, b"\x81" + base256(512, 12)[1:], "form that not all readers know", twin=base256(512, 12)
    ),
    "a-global-name": refused(
        51,
        around(pax_header({b"path": b"p"}, kind=a.PAX_GLOBAL), f()),
        around(pax_header({b"comment": b"p"}, kind=a.PAX_GLOBAL), f()),
        "global pax header sets path",
    ),
    "a-global-size": refused(
        51,
        around(pax_header({b"size": b"0"}, kind=a.PAX_GLOBAL), f()),
        around(pax_header({b"comment": b"0"}, kind=a.PAX_GLOBAL), f()),
        "global pax header sets size",
    ),
    "a-global-link": refused(
        51,
        around(pax_header({b"linkpath": b"/etc"}, kind=a.PAX_GLOBAL), Member(b"l", kind=a.LINK, link=b"x")),
        around(pax_header({b"comment": b"/etc"}, kind=a.PAX_GLOBAL), Member(b"l", kind=a.LINK, link=b"x")),
        "global pax header sets linkpath",
    ),
    "a-global-header-between": refused(
        51,
        around(pax_header({b"path": b"p"}), pax_header({b"comment": b"c"}, kind=a.PAX_GLOBAL), f()),
        around(pax_header({b"comment": b"c"}, kind=a.PAX_GLOBAL), pax_header({b"path": b"p"}), f()),
        "stands between",
    ),
    "pax-before-a-v7-header": refused(
        52, around(f(magic=V7, pax={b"path": b"p"})), around(f(pax={b"path": b"p"})), "format that has none", "f"
    ),
    "gnu-name-before-a-v7-header": refused(
        52, around(long_name(b"p"), f(magic=V7)), around(long_name(b"p"), f(magic=GNU)), "format that has none", "f"
    ),
    "pax-in-a-gnu-header": refused(
        52,
        around(pax_header({b"path": b"p"}, magic=GNU), f()),
        around(pax_header({b"path": b"p"}), f()),
        "no ustar header",
    ),
    "ustar-with-another-version": refused(
        52, around(f(magic=b"ustar\0\0\0")), around(f(magic=a.USTAR)), "magic .* no known format"
    ),
    "v7-with-a-first-part": refused(
        52, around(f(magic=V7, prefix=b"../p")), around(f(magic=V7)), "more fields than it may"
    ),
    "pax-before-the-end": refused(
        53,
        archive(X, pax_header({b"path": b"p"})),
        archive(X, pax_header({b"path": b"p"}), f()),
        "has no member after it",
    ),
    "tokio-tar-024-pax-across-the-end": refused(
        53,
        archive(X, pax_header({b"path": b"p"})) + f().encoded() + a.END,
        archive(X, pax_header({b"path": b"p"}), f()),
        "has no member after it",
    ),
    "long-name-before-the-end": refused(
        53, archive(X, long_name(b"p")), archive(X, long_name(b"p"), f(magic=GNU)), "has no member after it"
    ),
}

WRONG = Member(b"f", b"data", checksum=b"0000001\0")
LATIN = Member(b"\xff\xff\xff", b"data")
LATIN_SUM = sum(LATIN.header()) - sum(LATIN.header()[148:156]) + 8 * 32

FRAMES = {
    "a-wrong-checksum": refused(54, archive(WRONG, LAST), archive(f(), LAST), "does not begin with a tar header"),
    "inspect-ai-5390-a-wrong-checksum-later": refused(54, around(WRONG), around(f()), "checksum is .*, and it says 1"),
    "a-signed-checksum": refused(
        54,
        around(Member(LATIN.name, b"data", checksum=b"%06o\0 " % (LATIN_SUM - 3 * 256))),
        around(LATIN),
        "checksum is",
    ),
    "a-checksum-0o": refused(54, around(f(checksum=b"0o7777\0 ")), around(f()), "the checksum .* no octal number"),
    "a-checksum-plus": refused(54, around(f(checksum=b"+07777\0 ")), around(f()), "the checksum .* no octal number"),
    "a-checksum-in-base-256": refused(
        54, around(f(checksum=base256(4000, 8))), around(f()), "the checksum .* no octal number"
    ),
    "no-end": refused(55, archive(X, LAST, end=b""), PLAIN, "no end marker"),
    "half-an-end": refused(55, archive(X, LAST, end=bytes(512)), PLAIN, "single block of zeros"),
    "half-an-end-then-more": refused(
        55,
        archive(X, bytes(512), Member(b"hidden"), LAST),
        archive(X, Member(b"hidden"), LAST),
        "single block of zeros",
    ),
    "two-archives": refused(56, archive(X) + archive(LAST), PLAIN, FOLLOWS),
    # cases: UKGovernmentBEIS/inspect_ai#5390
    "inspect-ai-5390-two-gzip-members": refused(56, gz(archive(X)) + gz(archive(LAST)), gz(PLAIN), MANY.format("gzip")),
    "one-tar-in-two-gzip-members": refused(56, gz(PLAIN[:700]) + gz(PLAIN[700:]), gz(PLAIN), MANY.format("gzip")),
    "two-zstd-frames": refused(56, zst(archive(X)) + zst(archive(LAST)), zst(PLAIN), MANY.format("zstd")),
    "two-xz-streams": refused(56, xz(archive(X)) + xz(archive(LAST)), xz(PLAIN), MANY.format("xz")),
    "a-skippable-zstd-frame-first": refused(
        56, b"\x50\x2a\x4d\x18" + (512).to_bytes(4, "little") + bytes(512) + zst(PLAIN), zst(PLAIN), "skippable frame"
    ),
    "a-skippable-zstd-frame-last": refused(
        56, zst(PLAIN) + b"\x5f\x2a\x4d\x18" + bytes(4), zst(PLAIN), MANY.format("zstd")
    ),
    "garbage-behind-the-end": refused(57, PLAIN + b"x" * 512, PLAIN + bytes(512), FOLLOWS),
    "half-a-block-behind-the-end": refused(57, PLAIN + bytes(100), PLAIN + bytes(512), "end with a whole block"),
    "node-tar-zeros-without-end": refused(
        57, PLAIN + bytes((1 << 20) + 512), PLAIN + bytes(1 << 20), "the limit tail_bytes", error=HostLimit
    ),
    # cases: gitpod-io/gitpod#12900, brainlife/warehouse#139
    "cut-off-in-a-header": refused(58, PLAIN[: 1024 + 300], PLAIN, "cut off in a header"),
    "cut-off-in-data": refused(58, PLAIN[: 1024 + 512 + 7], PLAIN, "cut off in a member's data", "last"),
    "cut-off-in-padding": refused(58, PLAIN[: 1024 + 512 + 100], PLAIN, "cut off in a member's padding", "last"),
    "cut-off-at-a-member": refused(58, PLAIN[:1024], PLAIN, "no end marker, so it may be cut off"),
    "tokio-tar-039-cut-off-in-an-extension": refused(
        58,
        archive(pax_header(a.record(b"comment", b"x" * 900)), f())[:900],
        archive(pax_header(a.record(b"comment", b"x" * 900)), f()),
        "cut off in an extension header",
    ),
    "cut-off-in-gzip": refused(58, gz(PLAIN)[:-9], gz(PLAIN), "cut off"),
    "cut-off-in-zstd": refused(58, zst(PLAIN)[:-5], zst(PLAIN), "cut off"),
    "cut-off-in-xz": refused(58, xz(PLAIN)[:-13], xz(PLAIN), "cut off"),
    "a-wrong-gzip-checksum": refused(58, gz(PLAIN)[:-8] + bytes(4) + gz(PLAIN)[-4:], gz(PLAIN), "gzip data is damaged"),
    "modelaudit-1665-a-name-that-is-a-gzip-magic": refused(
        60,
        archive(Member(b"\x1f\x8b\x08name", b"data")),
        archive(Member(b"\x1f\x8b\x08name", b"data")),
        "begins both like a tar and like gzip",
        words=("--compression", "auto"),
        twin_words=("--compression", "none"),
    ),
    "a-tar-that-is-said-to-be-compressed": refused(
        60, PLAIN, gz(PLAIN), "gzip data is damaged", words=("--compression", "gzip")
    ),
    "a-compressed-tar-that-is-said-to-be-plain": refused(
        60, gz(PLAIN), PLAIN, "compressed twice", words=("--compression", "none")
    ),
    "a-file-twice": refused(62, around(f(b"1"), f(b"2")), around(f(b"1"), Member(b"g", b"2")), "same name", "f"),
    "CVE-2021-32803-a-directory-then-a-file": refused(
        62,
        around(Member(b"f", kind=a.DIRECTORY, mode=0o755), f()),
        around(Member(b"d", kind=a.DIRECTORY, mode=0o755), f()),
        "same name",
        "f",
    ),
    "a-file-then-a-directory": refused(
        62,
        around(f(), Member(b"f", kind=a.DIRECTORY, mode=0o755)),
        around(f(), Member(b"d", kind=a.DIRECTORY, mode=0o755)),
        "same name",
        "f",
    ),
    # cases: opencontainers/umoci#546, JuliaIO/ZipArchives.jl#25
    "umoci-546-below-a-file": refused(
        62, around(f(), Member(b"f/g", b"data")), around(f(), Member(b"d/g", b"data")), "no directory", "f/g"
    ),
    "a-file-above-what-came-before": refused(
        62,
        around(Member(b"d/g", b"data"), Member(b"d", b"data")),
        around(Member(b"d/g", b"data"), f()),
        "below it",
        "d",
    ),
    "CVE-2025-54368-a-left-out-file-then-another": refused(
        62, around(Member(b"f", kind=a.FIFO), f()), around(Member(b"p", kind=a.FIFO), f()), "same name", "f"
    ),
}


def sparse(
    data: bytes = b"x" * 512, *, name: bytes = b"s", carrier: bytes = b"./GNUSparseFile.1/s", **keys: bytes
) -> bytes:
    """A pax sparse file; *keys* are those of GNU.sparse."""
    pairs = {b"GNU.sparse." + key.encode(): value for key, value in keys.items()}
    return archive(Member(carrier, data, pax={b"GNU.sparse.name": name, **pairs}))


def old_sparse(regions: list[tuple[int, int]], more: bytes = b"", **raw: bytes) -> bytes:
    """GNU's older form, with further regions behind the header."""
    fields = {**a.sparse_fields(regions, 4096, extended=bool(more)), **raw}
    member = Member(b"s", kind=a.GNU_SPARSE, magic=GNU, size=512, raw=fields)
    return archive(member.header() + more + b"x" * 512)


HUGE = b"%d" % ((1 << 63) - 1)
# Writers end with an empty region where the file ends.
SOUND = sparse(size=b"4096", numblocks=b"2", map=b"0,512,4096,0")
SOUND_1_0 = sparse(a.sparse_map([(0, 512), (4096, 0)]) + b"x" * 512, major=b"1", minor=b"0", realsize=b"4096")
SOUND_OLD = old_sparse([(0, 512), (4096, 0)])
MANY_MAP = b",".join(b"%d,1" % (2 * number) for number in range(4097))

SPARSE = {
    "CVE-2025-58183-a-count-without-end": refused(
        61,
        sparse(b"999999999999\n".ljust(1024, b"\0"), major=b"1", minor=b"0", realsize=b"4096"),
        SOUND_1_0,
        "map is larger than its data|no list of numbers|no number",
    ),
    "CVE-2026-32288-more-regions-than-allowed": refused(
        61,
        sparse(b"x" * 4097, size=b"8193", numblocks=b"4097", map=MANY_MAP),
        SOUND,
        "the limit sparse_regions",
        error=HostLimit,
        words=("--limit", "member_metadata_bytes=64K"),
    ),
    "CVE-2025-8194-a-region-below-0": refused(
        61, sparse(size=b"4096", numblocks=b"1", map=b"-1,512"), SOUND, "no number as all readers"
    ),
    "8-EiB-of-holes": refused(
        61,
        sparse(size=HUGE, numblocks=b"2", map=b"0,512,%b,0" % HUGE),
        SOUND,
        "the limit file_bytes",
        "s",
        error=HostLimit,
    ),
    "regions-that-overlap": refused(
        61, sparse(size=b"4096", numblocks=b"2", map=b"0,256,128,256"), SOUND, "overlap, fall back, or lie beyond"
    ),
    "regions-that-fall-back": refused(
        61, sparse(size=b"4096", numblocks=b"2", map=b"1024,256,0,256"), SOUND, "overlap, fall back, or lie beyond"
    ),
    "a-region-beyond-the-end": refused(
        61, sparse(size=b"4096", numblocks=b"1", map=b"4000,512"), SOUND, "overlap, fall back, or lie beyond"
    ),
    "regions-that-do-not-reach-the-end": refused(
        61, sparse(size=b"4096", numblocks=b"1", map=b"0,512"), SOUND, "do not reach its end"
    ),
    "less-data-than-regions": refused(
        61,
        sparse(b"x" * 256, size=b"4096", numblocks=b"1", map=b"0,512"),
        SOUND,
        "regions have 512 bytes, its data 256",
    ),
    "another-count-of-regions": refused(
        61, sparse(size=b"4096", numblocks=b"2", map=b"0,512"), SOUND, "another number of regions"
    ),
    "tokio-tar-023-the-name-of-another-file": refused(
        61,
        sparse(carrier=b"other", size=b"4096", numblocks=b"2", map=b"0,512,4096,0"),
        SOUND,
        "does not bear the file's name",
        "other",
    ),
    "a-name-outside": refused(
        61,
        sparse(name=b"../s", carrier=b"../GNUSparseFile.1/s", size=b"4096", numblocks=b"2", map=b"0,512,4096,0"),
        SOUND,
        "component ..",
        "../s",
    ),
    "CVE-2026-59875-nul-in-a-name": refused(
        61,
        sparse(name=b"s\0/../x", carrier=b"s\0", size=b"4096", numblocks=b"2", map=b"0,512,4096,0"),
        SOUND,
        "does not bear the file's name|NUL",
    ),
    "tokio-tar-030-a-slot-after-an-empty-one": refused(
        61, old_sparse([], sparse=bytes(24) + octal(0, 12) + octal(512, 12)), SOUND_OLD, "has a gap"
    ),
    "a-list-that-goes-on-before-its-end": refused(
        61,
        old_sparse([(0, 512)], more=a.sparse_extension([])),
        old_sparse([(0, 128), (128, 128), (256, 128), (384, 128)], more=a.sparse_extension([(4096, 0)])),
        "goes on after its end",
    ),
    "an-old-sparse-file-in-a-ustar-header": refused(
        61,
        archive(Member(b"s", b"x" * 512, kind=a.GNU_SPARSE)),
        archive(Member(b"s", b"x" * 512)),
        "another format's header",
        "s",
    ),
}
REFUSED = {**SIZES, **RECORDS, **FRAMES, **SPARSE}
assert len(REFUSED) == len(SIZES) + len(RECORDS) + len(FRAMES) + len(SPARSE)


@pytest.mark.parametrize("slug", REFUSED)
def test_refused(slug: str, ground: Ground) -> None:
    try_refused(ground, REFUSED[slug])


HOLES = {b"s": File(b"x" * 512, size=4096, mtime_ns=1_600_000_000_000_000_000)}

KEPT = {
    "base-256-that-all-readers-know": Kept(
        row=49,
        attack=archive(f(magic=GNU, raw={"size": base256(4, 12), "mtime": base256(1_600_000_000, 12)})),
        twin=archive(f(magic=GNU)),
        tree={b"f": file()},
    ),
    "CVE-2026-59871-a-name-that-looks-like-a-number": Kept(
        row=50,
        attack=archive(f(pax={b"path": b"12345"}), f(pax={b"path": b"true"}), f(pax={b"path": b"null"})),
        twin=archive(f(pax={b"path": b"name"})),
        tree={b"12345": file(), b"true": file(), b"null": file()},
        twin_tree={b"name": file()},
    ),
    "covert-data-in-padding": Kept(
        row=59,
        attack=archive(f(pad=b"s" * 508, raw={"tail": b"secret"})),
        twin=archive(f()),
        tree={b"f": file()},
    ),
    "holes-0.1": Kept(
        row=61, attack=SOUND, twin=archive(Member(b"s", b"x" * 512)), tree=HOLES, twin_tree={b"s": file(b"x" * 512)}
    ),
    "holes-1.0": Kept(row=61, attack=SOUND_1_0, twin=SOUND, tree=HOLES),
    "holes-of-old": Kept(row=61, attack=SOUND_OLD, twin=SOUND, tree=HOLES),
    "a-directory-member-after-its-content": Kept(
        row=62,
        attack=archive(Member(b"d/g", b"data"), Member(b"d", kind=a.DIRECTORY, mode=0o700)),
        twin=archive(Member(b"d", kind=a.DIRECTORY, mode=0o700), Member(b"d/g", b"data")),
        tree={b"d": directory(0o700), b"d/g": file()},
    ),
}


@pytest.mark.parametrize("slug", KEPT)
def test_kept(slug: str, ground: Ground) -> None:
    try_kept(ground, KEPT[slug])


def test_covert_data_is_in_no_snapshot(ground: Ground) -> None:
    """What stands in padding is neither stored nor exported: both archives are one snapshot."""
    assert ground.take(KEPT["covert-data-in-padding"].twin).status == 0
    before = {name: digest for name, digest in ground.stored().items() if not name.startswith("refs/")}
    assert ground.take(KEPT["covert-data-in-padding"].attack).status == 0
    assert {name: digest for name, digest in ground.stored().items() if not name.startswith("refs/")} == before
    exported = ground.folder / "in" / "exported"
    assert ground.run("export", "demo", "-o", exported).status == 0
    assert b"data" in exported.read_bytes()
    assert b"secret" not in exported.read_bytes()
    ground.assert_unharmed()


def test_tokio_tar_039_an_archive_is_cut_off_anywhere(ground: Ground) -> None:
    """At every block, and at some bytes beside: only the whole of it is one."""
    before = ground.stored()
    whole = archive(X, pax_header({b"path": b"p" * 150}), f(b"x" * 700), long_name(b"q" * 150), f(magic=GNU), LAST)
    for size in sorted({*range(0, len(whole), 512), *range(100, len(whole), 700), len(whole) - 1}):
        said = ground.take(whole[:size])
        assert said.status == 4, size
        assert ground.stored() == before
    assert ground.take(whole).status == 0
    ground.assert_unharmed()


def test_a_stream_s_own_checksum_counts(ground: Ground) -> None:
    """Each byte of a compressed archive that is flipped is noticed by somebody, and told as one of ours."""
    before = ground.stored()
    for packed in (gz(PLAIN), xz(PLAIN)):
        for at in range(12, len(packed), 11):
            said = ground.take(packed[:at] + bytes([packed[at] ^ 0x20]) + packed[at + 1 :])
            assert said.status == 4, (at, said)
    assert ground.stored() == before
    assert ground.take(gz(PLAIN)).status == 0
    ground.assert_unharmed()
