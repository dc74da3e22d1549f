"""What an attack would make us spend: classes 63 to 72, 87 and 89."""

from __future__ import annotations

import bz2
import os
import random
import resource
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgpack  # type: ignore[import-untyped]
import pytest
from archive import archives as a
from archive.archives import GNU, Member, archive, base256, gz, long_name, pax_header, xz, zst
from archive.test_import_compression import raw_block, raw_frame, run_block
from protocol.stream import Stream, add_file, message, root_segment
from security.ground import Ground, Kept, Lie, Refused, directory, file, try_kept, try_lie, try_refused

from sandlift.errors import HostLimit
from sandlift_helper import wire
from sandlift_helper.table import Segment
from support.needs import lacking

X = Member(b"x", b"data")
PLAIN = archive(X)
ZEROS = archive(Member(b"zeros", bytes(12 << 20)))
"""Beyond the first 8 MiB, in which any ratio is allowed."""


def bomb(pack: Callable[[bytes], bytes]) -> Refused:
    """A file of zeros, compressed a thousand times and more; its twin is as large and does not compress."""
    noise = random.Random(1).randbytes(1 << 20)
    return Refused(
        row=63,
        attack=pack(ZEROS),
        twin=pack(archive(*(Member(b"%d" % number, noise) for number in range(2)), Member(b"zeros", bytes(9 << 20)))),
        says="the limit ratio",
        error=HostLimit,
    )


def run_length(blocks: int) -> bytes:
    """A zstd frame whose blocks are each one byte that stands for 128 KiB."""
    first = archive(Member(b"f", b"", size=blocks << 17), end=b"")
    return raw_frame(
        raw_block(first), *(run_block(b"\0", 128 << 10) for _ in range(blocks)), raw_block(bytes(1024), last=True)
    )


def xz_dictionary(bits: bytes) -> bytes:
    """An xz stream whose header asks for a dictionary of that size (the .xz file format, 5.3.1)."""
    packed = bytearray(xz(PLAIN))
    packed[16:17] = bits
    packed[20:24] = zlib.crc32(packed[12:20]).to_bytes(4, "little")
    return bytes(packed)


def in_window(exponent: int) -> bytes:
    """A zstd frame that asks for a window of 2 to that power."""
    return raw_frame(raw_block(PLAIN, last=True), head=bytes([exponent - 10 << 3]))


def many(count: int) -> bytes:
    """So many empty files."""
    return archive(*(Member(b"%05d" % number) for number in range(count)))


def claims(header: bytes) -> bytes:
    """A header whose data never come."""
    return PLAIN[:1024] + header


def comment(size: int) -> bytes:
    """A file whose pax header is a comment of that size."""
    return archive(Member(b"f", b"data", pax={b"comment": b"c" * size}))


def hole(name: bytes, size: int) -> Member:
    """A file that is one hole."""
    raw = {"sparse": base256(size, 12) + a.octal(0, 12), "real_size": base256(size, 12)}
    return Member(name, kind=a.GNU_SPARSE, magic=GNU, size=0, raw=raw)


REFUSED = {
    "CVE-2026-59873-gzip": bomb(gz),
    "xz-bomb": bomb(xz),
    "zstd-bomb": bomb(zst),
    "zstd-run-length-bomb": Refused(
        row=63, attack=run_length(8000), twin=run_length(60), says="the limit ratio", error=HostLimit
    ),
    "bzip2-bomb": Refused(row=63, attack=bz2.compress(ZEROS), twin=gz(PLAIN), says="is bzip2, which is not read"),
    "zstd-window-of-2-to-the-41": Refused(
        row=64, attack=in_window(41), twin=in_window(27), says="a window of 2199023255552 bytes"
    ),
    "zstd-window-of-2-to-the-28": Refused(
        row=64, attack=in_window(28), twin=in_window(20), says="a window of 268435456 bytes"
    ),
    "zstd-one-segment-of-2-to-the-40": Refused(
        row=64,
        attack=raw_frame(raw_block(PLAIN, last=True), flags=0b11100000, head=(1 << 40).to_bytes(8, "little")),
        twin=raw_frame(raw_block(PLAIN, last=True), flags=0b11100000, head=len(PLAIN).to_bytes(8, "little")),
        says="a window of 1099511627776 bytes",
    ),
    "xz-dictionary-of-1-GiB": Refused(
        row=64, attack=xz_dictionary(b"\x24"), twin=xz_dictionary(b"\x12"), says="Memory usage limit"
    ),
    "gzip-in-gzip": Refused(row=65, attack=gz(gz(PLAIN)), twin=gz(PLAIN), says="compressed twice"),
    "gzip-in-zstd": Refused(row=65, attack=zst(gz(PLAIN)), twin=zst(PLAIN), says="compressed twice"),
    "zstd-in-gzip": Refused(row=65, attack=gz(zst(PLAIN)), twin=gz(PLAIN), says="compressed twice"),
    "CVE-2022-2879-more-entries-than-allowed": Refused(
        row=66,
        attack=xz(many(2001)),
        twin=xz(many(2000)),
        says="the limit entries",
        names="02000",
        error=HostLimit,
        words=("--limit", "entries=2000"),
    ),
    "CVE-2022-2879-an-extension-of-8-GiB": Refused(
        row=67,
        attack=claims(Member(b"x", kind=a.PAX, size=b"77777777777\0").header()),
        twin=comment(30_000),
        says="the limit member_metadata_bytes: 8589934591",
        error=HostLimit,
    ),
    "a-long-name-of-8-GiB": Refused(
        row=67,
        attack=claims(Member(b"x", kind=a.GNU_NAME, magic=GNU, size=b"77777777777\0").header()),
        twin=archive(long_name(b"n" * 200), Member(b"n", b"data", magic=GNU)),
        says="the limit member_metadata_bytes",
        error=HostLimit,
    ),
    "a-comment-of-48-KiB": Refused(
        row=67,
        attack=comment(48 << 10),
        twin=comment(31 << 10),
        says="the limit member_metadata_bytes",
        error=HostLimit,
    ),
    "3000-keys": Refused(
        row=67,
        attack=archive(Member(b"f", b"data", pax=[(b"VENDOR.%d" % number, b"") for number in range(3000)])),
        twin=archive(Member(b"f", b"data", pax=[(b"VENDOR.%d" % number, b"") for number in range(1000)])),
        says="the limit member_metadata_bytes",
        error=HostLimit,
    ),
    "all-extensions-together": Refused(
        row=67,
        attack=archive(*(Member(b"%d" % number, pax={b"comment": b"c" * 900}) for number in range(12))),
        twin=archive(*(Member(b"%d" % number, pax={b"comment": b"c" * 900}) for number in range(10))),
        says="the limit metadata_bytes",
        error=HostLimit,
        words=("--limit", "metadata_bytes=10K"),
    ),
    "global-headers-without-end": Refused(
        row=67,
        attack=archive(*[pax_header({b"comment": b"c" * 900}, kind=a.PAX_GLOBAL)] * 12, X),
        twin=archive(*[pax_header({b"comment": b"c" * 900}, kind=a.PAX_GLOBAL)] * 10, X),
        says="the limit metadata_bytes",
        error=HostLimit,
        words=("--limit", "metadata_bytes=10K"),
    ),
    "directories-by-one-deep-name": Refused(
        row=68,
        attack=archive(*(Member(b"f", pax={b"path": b"%d/" % number + b"d/" * 900 + b"f"}) for number in range(20))),
        twin=archive(*(Member(b"f", pax={b"path": b"d/" * 900 + b"%d" % number}) for number in range(20))),
        says="the limit metadata_bytes",
        error=HostLimit,
        words=("--limit", "metadata_bytes=1M"),
    ),
    "a-storm-of-duplicates": Refused(row=68, attack=archive(*[X] * 5000), twin=many(5000), says="same name", names="x"),
    "a-file-of-8-EiB": Refused(
        row=69,
        attack=claims(Member(b"x2", size=base256((1 << 63) - 1, 12)).header()),
        twin=archive(X, Member(b"x2", b"data", magic=GNU, size=base256(4, 12))),
        says="the limit file_bytes: 9223372036854775807",
        names="x2",
        error=HostLimit,
    ),
    "a-hole-of-8-EiB": Refused(
        row=69,
        attack=archive(hole(b"s", (1 << 63) - 1)),
        twin=archive(hole(b"s", 4096)),
        says="the limit file_bytes",
        names="s",
        error=HostLimit,
    ),
    "holes-together": Refused(
        row=69,
        attack=archive(*(hole(b"%d" % number, 7 << 30) for number in range(4))),
        twin=archive(*(hole(b"%d" % number, 4096) for number in range(4))),
        says="the limit total_bytes",
        names="2",
        error=HostLimit,
        words=("--limit", "total_bytes=20G"),
    ),
    "a-stream-longer-than-allowed": Refused(
        row=69,
        attack=archive(Member(b"f", bytes(100_000))),
        twin=archive(Member(b"f", bytes(50_000))),
        says="the limit stream_bytes",
        error=HostLimit,
        words=("--limit", "stream_bytes=80000"),
    ),
}


@contextmanager
def within(seconds: float, mebibytes: int) -> Iterator[None]:
    """Fails when what happens inside takes more of the processor, or more memory than there was before."""
    began = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - began < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < mebibytes << 10


@pytest.mark.parametrize("slug", REFUSED)
def test_refused(slug: str, ground: Ground) -> None:
    case = REFUSED[slug]
    made = ground.made(case.attack)
    with within(3.0, 200):
        said = ground.take(made, *case.words)
    assert said.status == 4
    try_refused(ground, case)


KEPT = {
    "a-deep-tree-of-many-names": Kept(
        row=68,
        attack=archive(*(Member(b"f", b"", pax={b"path": b"d/" * 60 + b"%d" % number}) for number in range(300))),
        twin=archive(Member(b"d/0", b"")),
        tree={
            **{b"/".join([b"d"] * (depth + 1)): directory() for depth in range(60)},
            **{b"d/" * 60 + b"%d" % number: file(b"") for number in range(300)},
        },
        twin_tree={b"d": directory(), b"d/0": file(b"")},
    ),
}


@pytest.mark.parametrize("slug", KEPT)
def test_kept(slug: str, ground: Ground) -> None:
    try_kept(ground, KEPT[slug])


def test_names_that_hash_alike(ground: Ground) -> None:
    """Names that Java's and PHP's hashes take for one: ours is keyed anew in every process."""
    colliding = [b""]
    for _ in range(11):
        colliding = [name + pair for name in colliding for pair in (b"Aa", b"BB")]
    assert len({_java_hash(name) for name in colliding}) == 1
    taken_s = []
    for names in ([b"%022d" % number for number in range(len(colliding))], colliding):
        content = archive(*(Member(name) for name in names))
        began = time.process_time()
        assert ground.take(content).status == 0
        taken_s.append(time.process_time() - began)
    assert taken_s[1] < 3 * taken_s[0] + 0.3
    ground.assert_unharmed()


def _java_hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = 31 * value + byte & 0xFFFFFFFF
    return value


def test_quadratic_paths_cost_what_they_are_long(ground: Ground) -> None:
    """Four times as many names, four times as deep: no more than about as much time for each byte."""
    costs = []
    for count, depth in ((100, 50), (400, 200)):
        content = archive(*(Member(b"f", pax={b"path": b"d/" * depth + b"%d" % number}) for number in range(count)))
        began = time.process_time()
        assert ground.take(content).status == 0
        costs.append((time.process_time() - began) / (count * depth))
    assert costs[1] < 4 * costs[0] + 1e-5
    ground.assert_unharmed()


# Silence.


@pytest.mark.parametrize("data", [b"", PLAIN[:700], PLAIN[:-1]], ids=["nothing", "half-a-member", "all-but-a-byte"])
def test_CVE_stall_an_archive_that_stops(data: bytes, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader gives up by itself; what is only slow arrives."""
    before = ground.stored()
    saved = os.dup(0)
    try:
        for rest in (b"", PLAIN[len(data) :]):
            theirs, ours = os.pipe()
            os.dup2(theirs, 0)
            os.close(theirs)
            os.write(ours, data)
            slow = threading.Timer(0.2, finish, (ours, rest))
            if rest:
                slow.start()
            began = time.monotonic()
            said = ground.run("import", "-", "--as", "demo", "--root", "/srv/work", "--limit", "silence_s=1")
            if rest:
                slow.join()
                assert said.status == 0, said
            else:
                assert (said.status, time.monotonic() - began < 5) == (4, True)
                assert "brought nothing for 1 s" in said.err
                assert ground.stored() == before
                os.close(ours)
    finally:
        os.dup2(saved, 0)
        os.close(saved)
    ground.assert_unharmed()


def finish(fd: int, data: bytes) -> None:
    """Sends the rest, and no more."""
    os.write(fd, data)
    os.close(fd)


# What a hostile sandbox can say of the same.


def entries(count: int) -> Callable[[], Sequence[Segment]]:
    """A manifest of so many empty files."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        for number in range(count):
            add_file(segment, b"%05d" % number)
        return [segment]

    return made


def of_size(size: int) -> Callable[[], Sequence[Segment]]:
    """A manifest of a file that is one hole."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        add_file(segment, b"hole", size=size)
        return [segment]

    return made


LIES = {
    "CVE-2022-2879-more-entries-than-allowed": Lie(
        row=66,
        attack=entries(301),
        twin=entries(300),
        says="the limit entries: 301, allowed are 300",
        error=HostLimit,
        words=("--limit", "entries=300"),
    ),
    "a-hole-of-8-EiB": Lie(
        row=69, attack=of_size((1 << 63) - 1), twin=of_size(1 << 40), says="the limit file_bytes", error=HostLimit
    ),
    "a-manifest-larger-than-allowed": Lie(
        row=67,
        attack=entries(400),
        twin=entries(10),
        says="the limit manifest_bytes",
        error=HostLimit,
        words=("--limit", "manifest_bytes=9000"),
    ),
}


@pytest.mark.parametrize("slug", LIES)
def test_lies(slug: str, ground: Ground) -> None:
    try_lie(ground, LIES[slug])


def nested(depth: int) -> bytes:
    """A msgpack map in a map, and so on."""
    return b"\x81\xa1a" * depth + b"\xc0"


# What stands in the place of the map of a control frame.
MAPS = {
    "CVE-2020-5234-nested-20000-deep": nested(20_000),
    "nested-beyond-what-is-read": b"\x82\xa8protocol\x01\xa1x" + nested(100),
    "array32-that-claims-4-billion": b"\x82\xa8protocol\x01\xa1x\xdd\xff\xff\xff\xff",
    "map32-that-claims-4-billion": b"\xdf\xff\xff\xff\xff\xa1a\x01",
    "bin32-that-claims-4-gigabytes": b"\x82\xa8protocol\x01\xa1x\xc6\xff\xff\xff\xff",
    "str32-that-claims-4-gigabytes": b"\x82\xa8protocol\x01\xa1x\xdb\xff\xff\xff\xff",
    "true-for-1": b"\x81\xa8protocol\xc3",
    "1.0-for-1": msgpack.packb({"protocol": 1.0}),
    "a-string-for-1": msgpack.packb({"protocol": "1"}),
    "nan": msgpack.packb({"protocol": float("nan")}),
    "64-bits": msgpack.packb({"protocol": (1 << 64) - 1}),
    "an-extension-type": b"\x81\xa8protocol\xc7\x04\x05abcd",
    "a-timestamp": b"\x81\xa8protocol\xd6\xff\0\0\0\0",
    "no-map": msgpack.packb([1, 2, 3]),
    "more-behind-the-map": message(protocol=1) + b"\xc0",
    "cut-off": message(protocol=1, python="3.6")[:-1],
    "nothing": b"",
    "JSON": b'{"protocol": 1}',
}


@pytest.mark.parametrize("slug", MAPS)
def test_messages(slug: str, ground: Ground) -> None:
    """Each in the place of a hello: refused, typed, at once, and without the memory that it claims."""
    before = ground.stored()
    rest = Stream().manifest(entries(1)()[0]).end().data
    with within(2.0, 100):
        said = ground.send(wire.frame(wire.HELLO, MAPS[slug]) + rest)
    assert said.status == 4, said
    assert said.err.startswith("sandlift: error: ")
    assert "unexpected" not in said.err
    assert ground.stored() == before
    assert ground.send(Stream().hello().manifest(entries(1)()[0]).end().data).status == 0
    ground.assert_unharmed()


# Decoders and disks.


def test_native_parsers_only_decode(ground: Ground) -> None:
    """Bytes that are damaged anywhere end as an error of ours or as the archive itself, with each decoder."""
    chance = random.Random(7)
    before = ground.stored()
    whole = archive(Member(b"f", bytes(range(256)) * 40), Member(b"g", b"text " * 900))
    seen = 0
    for pack in (gz, zst, xz):
        packed = pack(whole)
        for _ in range(40):
            damaged = bytearray(packed)
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            said = ground.take(bytes(damaged[: chance.randrange(1, len(damaged) + 1)]))
            assert said.status == 4, said
            assert "unexpected" not in said.err
            seen += 1
        assert ground.stored() == before
    for pack in (gz, zst, xz):
        assert ground.take(pack(whole)).status == 0
    assert seen == 120
    ground.assert_unharmed()


def test_a_store_on_a_full_disk(ground: Ground) -> None:
    """The archive does not fit: an error of its own kind, and what was there before is sound."""
    if os.geteuid() != 0:
        lacking("a small file system can only be mounted by root: run the tests as root")
    import subprocess

    (ground.folder / "in" / "disk").mkdir()
    big, small = ground.folder / "in" / "big", ground.folder / "in" / "small"
    big.write_bytes(archive(Member(b"noise", random.Random(1).randbytes(2 << 20))))
    small.write_bytes(PLAIN)
    script = (
        'mount -t tmpfs -o size=1m tmpfs "$DISK"; S="$DISK/store"; P="$1 import --root /srv/work --as demo --store $S";'
        ' $P "$3"; $P "$2"; echo "status $?"; "$1" verify --store "$S" && find "$S" -name ".*" -type f; $P "$3"'
    )
    program = os.path.join(os.path.dirname(sys.executable), "sandlift")
    done = subprocess.run(
        ["unshare", "-m", "env", f"DISK={big.parent / 'disk'}", "sh", "-c", script, "sh", program, big, small],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "status 1" in done.stdout
    assert done.stdout.count("demo@") == 2
    assert "no space left" in done.stderr.lower() or "full" in done.stderr.lower()
    ground.assert_unharmed()
