"""Inputs to begin with, made in code: valid ones, and some that are slightly broken, for each target."""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from functools import cache
from pathlib import Path
from random import Random

import zstandard
from fuzz.archive_seeds import archive_seeds
from fuzz.manifest_mutators import digest_of_size, join_chunks
from fuzz.manifest_targets import GATHERING_LIMITS, sent_size
from fuzz.store_targets import PACK, WORKSPACE
from protocol import stream
from store import samples

from sandlift.gathering import Gathering
from sandlift.store import Store, StoredSnapshot, packs, records, refs, snapshots
from sandlift_helper import messages, table, wire

BLOCKS = (b"one", b"the second", bytes(range(256)) * 3, b"z" * 512)


def _reader() -> list[bytes]:
    whole = stream.small().data
    failure = stream.Stream().hello().failure("root-missing", "gone", "trace").data
    return [
        b"\x04" + whole,
        b"\0" + whole[:200],
        b"\x07" + failure + b"bye\n",
        b"\x01\x63",
        b"\x01\x01\xff\xff\xff\xff",
    ]


def _session() -> list[bytes]:
    whole = stream.small()
    ended = stream.Stream().hello().progress("apply", files=1).end().data
    have = stream.Stream().hello().add(wire.HAVE, stream.message(codecs=["zstd", "none"])).end().data
    failure = stream.Stream().hello().failure("root-missing", "no /w", "").data
    credit = 3 * 7
    return [
        bytes((credit, 5, 0)) + whole.data,
        bytes((credit, 1, 7)) + b"motd \x00\n" + whole.data,
        bytes((credit, 16, 0)) + whole.data[:-9],
        bytes((2, 3, 0)) + ended + b"logout\n",
        bytes((1, 3, 0)) + have,
        bytes((1, 9, 3)) + b"abc" + failure + b"\x09\x00\x00\x00\x00",
        bytes((0, 0, 70)) + b"n" * 70 + whole.data,
        bytes((0, 0, 0)) + b"".join(reversed(whole.frames)),
    ]


def _message() -> list[bytes]:
    nested: object = 1
    for _ in range(14):
        nested = [nested]
    return [
        messages.encode({"phase": "read", "files": 4, "bytes": 1 << 40, "neg": -70_000, "ok": True, "none": None}),
        messages.encode({"digest": bytes(32), "name": "caf\udce9", "list": [1, [b"x", {"k": "v"}], -1]}),
        messages.encode({"deep": nested}),
        messages.encode({"long": "t" * 300, "bin": b"b" * 70_000, "many": list(range(20))}),
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81\xa1a\xcb" + bytes(8),
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xc4\x01a\x01",
    ]


def _run() -> list[bytes]:
    good = stream.run_of(BLOCKS)
    return [good, stream.member(b"x"), good[:-1], good[:512], b"\1".join((good[:1024], good[1025:])), bytes(1024)]


def _content() -> list[bytes]:
    good = stream.run_of(BLOCKS)
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(wire.RUN_MAX))
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0four"
    packed = [stream.pack(good, name) for name in (wire.CODEC_NONE, wire.CODEC_ZLIB, wire.CODEC_ZSTD)]
    return [
        *packed,
        packed[2] + skippable,
        packed[1] + b"x",
        wire.packed_header(wire.CODEC_ZSTD, 512) + bomb,
        wire.packed_header(wire.CODEC_ZSTD, wire.RUN_MAX + 1) + bomb,
        stream.pack(stream.member(b"other", name=bytes(32)), wire.CODEC_ZSTD),
        wire.packed_header(7, 3) + b"abc",
    ]


def _packed() -> list[bytes]:
    encoded = table.encode(everything())
    return [stream.pack(encoded, name) for name in (wire.CODEC_NONE, wire.CODEC_ZLIB, wire.CODEC_ZSTD)]


def everything() -> table.Segment:
    """A valid manifest with one of each: holes, hard links, links, excluded rows and flags."""
    random = Random(1)
    small, block = digest_of_size(3, random), digest_of_size(1 << 20, random)
    rows = stream.root_segment()
    rows.add_file(b"a", 0o644, 1, 0, 0, 3, digests=[small])
    stream.add_directory(rows, b"d")
    rows.add_file(b"d/a", 0o644, 1, 0, 0, 3, group=4, digests=[small])
    rows.add_file(b"d/b", 0o644, 1, 0, 0, 3, group=4)
    rows.add_file(b"d/hole", 0o755, -1, 1, 2, (3 << 20) + 3, digests=[block, small], positions=[1, 3])
    rows.add_file(b"d/holes", 0o600, 1, 0, 0, 9 << 20, digests=[block] * 4, positions=[0, 2, 3, 7])
    rows.add_link(b"d/l", 0o777, 1, 0, 0, b"../a", b"/w/a")
    rows.add_link(b"l", 0o777, 1, 0, 0, b"d/l")
    stream.add_directory(rows, b"m")
    rows.add_file(b"z", 0o644, 1, 0, 0, 1 << 20, digests=[block])
    rows.exclude(b"d/pipe", table.FIFO, table.REASON_FIFO)
    rows.exclude(b"m", table.DIRECTORY, table.MOUNT, b"proc")
    rows.exclude(b"z", table.FILE, table.UNSTABLE)
    rows.flag(b"", table.UNFINISHED)
    rows.flag(b"d/gone", table.VANISHED)
    rows.flag(b"z", table.CHANGED)
    rows.orphans += digest_of_size(9, random)
    return rows


def _segments() -> list[table.Segment]:
    other = table.Segment()
    stream.add_directory(other, b"e")
    other.add_link(b"e/up", 0o777, 1, 0, 0, b"..")
    other.add_link(b"e/v", 0o777, 1, 0, 0, b"up/a")
    empty = table.Segment()
    sparse = stream.root_segment()
    sparse.add_file(b"s", 0o644, 1, 0, 0, 5 << 20, positions=[])
    return [everything(), other, empty, sparse]


def _segment() -> list[bytes]:
    encoded = [table.encode(rows) for rows in _segments()]
    return [*encoded, encoded[0][:-1], encoded[0] + b"\0", b"\2" + encoded[0][1:]]


def _gathering() -> list[bytes]:
    whole, other, _, sparse = (table.encode(rows) for rows in _segments())
    return [
        join_chunks([whole]),
        join_chunks([other, whole]),
        join_chunks([sparse]),
        join_chunks([sparse], digest_of_size(7, Random(2))),
        join_chunks([other, sparse]),
    ]


def _listing() -> list[bytes]:
    target = stream.root_segment()
    stream.add_directory(target, b"d")
    target.add_link(b"d/out", 0o777, 1, 0, 0, b"/etc/passwd")
    target.add_file(b"f", 0o600, 1, 0, 0, 9)
    target.exclude(b"pipe", table.FIFO, table.REASON_FIFO)
    target.flag(b"", table.UNFINISHED)
    target.flag(b"d", table.MOUNT_POINT)
    digests = table.Segment()
    stream.add_file(digests, b"f", b"123456789")
    digests.add_file(b"g", 0o600, 1, 0, 0, 3 << 20, digests=[bytes(32)], positions=[2])
    return [join_chunks([table.encode(target)]), join_chunks([table.encode(digests)]), *_gathering()]


def _link() -> list[bytes]:
    chain = b"\n".join(b"l%d\0l%d/x" % (number, number + 1) for number in range(30))
    return [
        b"2e\0/etc\nx\0e/passwd\ny\0e/..\nz\0e/../../x",
        b"3out\0/etc\nin\0x\nvia\0in2/a\nin2\0/usr\nback\0out/..",
        b"1e\0../x\nx\0e/a\ny\0x/b",
        b"0a/up\0..\nv\0a/up/../x\nw\0a/up/v",
        b"0p\0q\nq\0p\nr\0p/../../x",
        b"0e\0/etc\nx\0e/passwd\ny\0e/../../x",
        b"0alias\0sub/deep\nd\0alias/../data.txt\nb\0alias/../../data.txt\nc\0alias/../../../data.txt",
        b"0s/l\0/w/sub//data.txt\nt\0/srv/./w/\nu\0/w2/a",
        b"0same\0a\nsame\0..\nsame/x\0..",
        b"0" + chain,
        b"0\0",
    ]


def _rules() -> list[bytes]:
    return [
        b"*.log\n!keep.log\n/build/\n\xfea/b\n./c\xfex.log\nkeep.log\nbuild\na/b\nd/build",
        b"**/node_modules/\nfoo**/bar\na/**/b\nd/**\n\xfe\xfea/b\na/x/b\nd/e\nfoo/bar\nfoox/bar",
        b"[a-c]*\n[!a]?\n[[:alpha:]]x\n\\#a\n# no\n\\!b \n\xfe\xfea\nbb\n#a\n!b\nax",
        b"*a*a*a*b\n**/a/**/a/b\n*[ab]*[ab]c\n\xfe\xfeaaaaaaaaaa\na/a/a/a/a/c\nababab",
        b"[\n[a\n\\\n*\\\n!\n/\n//\n\xfe..\n\xfea\n[",
        b"\xef\xbb\xbfa\r\nb\0c\n \xfe/abs\xfea\nb",
    ]


@cache
def _store_objects() -> tuple[bytes, bytes, bytes]:
    """A pack, a snapshot and a ref, as a store wrote them."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store", create=True) as store:
        info, offsets = samples.put_pack(store, [BLOCKS[:2], BLOCKS[2:]], PACK)
        rows = everything()
        sent = {digest: sent_size(digest) or 0 for digest in table.split_digests(rows.digests + rows.orphans)}
        gathering = Gathering(GATHERING_LIMITS)
        gathering.add(memoryview(table.encode(rows)))
        manifest = gathering.accept(sent)
        stored = StoredSnapshot(
            identity=manifest.identity,
            manifest=manifest.encoded,
            originals=manifest.encoded_originals,
            packs=(info.name,),
            pack_index=array("I", [0] * len(manifest.blocks)),
            offsets=array("Q", list(offsets.values())[: len(manifest.blocks)]),
        )
        store.put_snapshot(stored)
        record = store.create_ref(samples.record_of(stored, WORKSPACE, capture_id="cd" * 16))
        keys = (
            packs.key_of(info.name),
            snapshots.key_of(stored.identity),
            refs.key_of(record.workspace, record.number),
        )
        pack, snapshot, ref = (store.objects.get(key, max_bytes=1 << 20) for key in keys)
        return pack, snapshot, ref


def _pack() -> list[bytes]:
    good = _store_objects()[0]
    return [good, good[:-1], good[:-40], good[:20] + b"\xff" + good[21:], good[-17:]]


def _snapshot() -> list[bytes]:
    good = _store_objects()[1]
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 20))
    return [good, good[:-4], bomb, hashlib.sha256(good).digest()]


def _ref() -> list[bytes]:
    good = _store_objects()[2]
    tombstone = {
        "format": 1,
        "sealed": None,
        "workspace": WORKSPACE,
        "number": 1,
        "pruned": "2026-01-02T03:04:05Z",
    }
    return [good, records.encode(tombstone), records.encode({"format": 2}), good[:-1], good[1:]]


MAKERS = {
    "reader": _reader,
    "session": _session,
    "message": _message,
    "run": _run,
    "content": _content,
    "packed": _packed,
    "segment": _segment,
    "gathering": _gathering,
    "listing": _listing,
    "link": _link,
    "rules": _rules,
    "pack": _pack,
    "snapshot": _snapshot,
    "ref": _ref,
    "archive": archive_seeds,
}


def seeds(target: str) -> list[bytes]:
    """Returns the inputs to begin with for one target."""
    return MAKERS[target]()
