"""Sizes, holes, hard links, modes, owners and times: what must come back to the bit."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from e2e.conftest import NOBODY, give_to_nobody, local
from e2e.lift import Lift

from sandlift.limits import Limits
from sandlift.model import Rules
from support.tree import BLOCK, Dir, File, HardLink, Link, Tree, assert_equal, read, remove, restored, tree

GIB = 1 << 30
SECOND = 1_000_000_000


def random_pieces(*offsets: int) -> tuple[tuple[int, bytes], ...]:
    return tuple((offset, os.urandom(4096)) for offset in offsets)


SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 3]


# cases: e2b-dev/E2B#256
def test_sizes(lift: Lift) -> None:
    source = tree({b"%d" % size: File(os.urandom(size)) for size in SIZES})
    lift.make(source)
    taken = lift.capture()
    assert taken.capture.counts.bytes == sum(SIZES)
    assert_equal(source, lift.restore(taken))


HOLES = {
    "none": File(os.urandom(2 * BLOCK)),
    "only-small": File(size=1000),
    "only": File(size=7 * BLOCK + 12),
    "front": File(pieces=random_pieces(3 * BLOCK), size=3 * BLOCK + 4096),
    "middle": File(b"start", pieces=random_pieces(5 * BLOCK), size=5 * BLOCK + 4096),
    "end": File(os.urandom(BLOCK), size=6 * BLOCK + 1),
    "small-end": File(b"x", size=BLOCK),
    "within-a-block": File(b"x", pieces=((BLOCK - 1, b"y"),), size=2 * BLOCK),
    "across-blocks": File(pieces=((2 * BLOCK - 2, b"four"),), size=4 * BLOCK),
    "comb": File(pieces=random_pieces(*range(BLOCK // 2, 12 * BLOCK, 2 * BLOCK)), size=12 * BLOCK),
    "last-byte": File(pieces=((9 * BLOCK, b"z"),), size=9 * BLOCK + 1),
    "zeros": File(bytes(3 * BLOCK)),
}


# cases: borgbackup/borg#4886
def test_holes(lift: Lift) -> None:
    source = tree({name.encode(): file for name, file in HOLES.items()})
    lift.make(source)
    # Zeros that take room in the source are a hole afterwards as well.
    with open(lift.root / "zeros", "r+b") as file:
        file.write(bytes(3 * BLOCK))
    os.utime(lift.root / "zeros", ns=(source.root.mtime_ns, source.root.mtime_ns))
    assert os.stat(lift.root / "zeros").st_blocks * 512 >= 3 * BLOCK
    taken = lift.capture()
    back = lift.restore(taken)
    assert_equal(source, back)
    zeros = back.entries[b"zeros"]
    assert isinstance(zeros, File)
    assert zeros.allocated == 0


# cases: borgbackup/borg#4886, kubernetes/kubernetes#109474
@pytest.mark.parametrize("road", ["local", "ssh"], indirect=True)
def test_huge_and_nearly_empty(far_lift: Lift) -> None:
    source = tree(
        {
            b"lastlog": File(pieces=random_pieces(1 << 39), size=1 << 40),
            b"over-8-gib": File(pieces=random_pieces(8 * GIB), size=8 * GIB + 8192 + 1),
        }
    )
    far_lift.make(source)
    started = time.monotonic()
    taken = far_lift.capture()
    assert time.monotonic() - started < 20
    assert taken.excluded == {}
    assert taken.capture.counts.bytes == (1 << 40) + 8 * GIB + 8193
    assert taken.capture.wire.received < 64 << 10
    assert_equal(source, far_lift.restore(taken))


def test_more_apparent_bytes_than_any_memory(lift: Lift) -> None:
    """What the helper sets aside must follow the data, not the apparent sizes."""
    source = tree({b"%d" % number: File(size=1 << 40) for number in range(3000)})
    lift.make(source)
    taken = lift.capture()
    assert taken.capture.counts.bytes == 3000 << 40
    assert taken.excluded == {}


def test_a_file_over_the_limit_is_lost(lift: Lift) -> None:
    source = tree({b"large": File(size=5000), b"fits": File(size=4999)})
    lift.make(source)
    taken = lift.capture(limits=Limits(file_bytes=4999))
    assert taken.excluded == {b"large": ("file", "too-large", b"5000 bytes")}
    assert taken.capture.outcome == "incomplete"
    assert_equal(source.without(b"large"), lift.restore(taken))


def test_equal_content_travels_once(lift: Lift) -> None:
    data = os.urandom(3 * BLOCK)
    source = tree({b"%d" % number: File(data) for number in range(5)} | {b"p": File(data[:BLOCK])})
    lift.make(source)
    taken = lift.capture()
    assert 3 * BLOCK < taken.capture.wire.received < 4 * BLOCK
    assert taken.capture.counts.bytes == 16 * BLOCK
    assert_equal(source, lift.restore(taken))


def test_hard_links_whose_first_name_is_found_last(lift: Lift) -> None:
    # A directory's own files are found before those of the directories in it, whatever the order of their paths.
    large = os.urandom(BLOCK + 1)
    source = tree(
        {
            b"z": File(b"small"),
            b"a/b/x": HardLink(b"z"),
            b"a/y": HardLink(b"z"),
            b"q/last": File(large),
            b"q/c/first": HardLink(b"q/last"),
            b"y-empty": File(b""),
            b"e/empty": HardLink(b"y-empty"),
        }
    )
    lift.make(source)
    assert_equal(restored(source), lift.restore(lift.capture()))


# cases: npm/cli#7608, isaacs/node-tar#448, borgbackup/borg#2324
def test_hard_links(lift: Lift) -> None:
    large = os.urandom(2 * BLOCK + 1)
    source = tree(
        {
            b"a/one": File(b"one"),
            b"a/two": HardLink(b"a/one"),
            b"b/c/three": HardLink(b"a/one"),
            b"empty1": File(b""),
            b"z/empty2": HardLink(b"empty1"),
            b"large1": File(large),
            b"z/large2": HardLink(b"large1"),
            b"holes1": File(b"x", size=9 * BLOCK),
            b"z/holes2": HardLink(b"holes1"),
            b"equal-but-apart": File(b"one"),
            b"link1": Link(b"a/one"),
            b"z/link2": HardLink(b"link1"),
        }
    )
    lift.make(source)
    taken = lift.capture()
    assert taken.capture.counts.bytes == 3 + len(large) + 9 * BLOCK + 3
    assert_equal(restored(source), lift.restore(taken))
    # A second name outside the workspace makes no group.
    os.link(lift.root / "equal-but-apart", lift.folder / "outside")
    assert_equal(restored(source), lift.restore(lift.capture()))


# cases: cdxgen/cdxgen#1355
@pytest.mark.parametrize("data", [b"", b"content", bytes(range(256)) * 4200], ids=["empty", "small", "large"])
def test_the_next_name_carries_what_an_excluded_one_had(lift: Lift, data: bytes) -> None:
    source = tree(
        {b"a/first": File(data), b"b/second": HardLink(b"a/first"), b"c/third": HardLink(b"a/first"), b"d": Dir()}
    )
    lift.make(source)
    taken = lift.capture(rules=Rules(paths=(b"a/first",)))
    assert taken.reasons == {b"a/first": "pattern"}
    assert_equal(source.without(b"a/first"), lift.restore(taken))
    taken = lift.capture(rules=Rules(paths=(b"a", b"b")))
    assert_equal(source.without(b"a", b"b"), lift.restore(taken))


MODES = (0o000, 0o111, 0o200, 0o400, 0o444, 0o555, 0o600, 0o644, 0o666, 0o700, 0o751, 0o755, 0o777)


# cases: actions/upload-artifact#20, smol-machines/smolvm#925
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777], ids=oct)
def test_modes_do_not_depend_on_the_umask(lift: Lift, umask: int) -> None:
    modes = [mode for mode in MODES if mode & 0o400 or os.geteuid() == 0]
    entries: dict[bytes, File | Dir] = {b"f%04o" % mode: File(b"x", mode=mode) for mode in modes}
    source = tree({**entries, **{b"d%04o" % mode: Dir(mode=mode) for mode in modes}})
    lift.make(source)
    before = os.umask(umask)
    try:
        taken = lift.capture()
        target = lift.target()
        lift.restore_to(taken, target)
    finally:
        os.umask(before)
    assert_equal(source, read(target))


# cases: zlib-ng/minizip-ng#1026, LanternOps/breeze#5395
def test_special_bits_are_recorded_and_not_restored(lift: Lift) -> None:
    bits = {b"suid": 0o4755, b"sgid": 0o2755, b"both": 0o6711, b"sticky": 0o1644}
    entries: dict[bytes, File | Dir] = {name: File(b"x", mode=mode) for name, mode in bits.items()}
    source = tree({**entries, b"tmp": Dir(mode=0o1777), b"shared": Dir(mode=0o2775)}, root=Dir(mode=0o3755))
    lift.make(source)
    taken = lift.capture()
    for name, mode in {**bits, b"tmp": 0o1777, b"shared": 0o2775}.items():
        assert taken.mode(name) == mode
    assert taken.manifest.rows.root is not None
    assert taken.manifest.rows.root.mode == 0o3755
    assert_equal(restored(source), lift.restore(taken))


# cases: restic/restic#656, RsyncProject/rsync#609
def test_read_only_directories_by_who_is_not_root(nobodys_lift: Lift) -> None:
    source = tree(
        {
            b"ro/one": File(b"1", mode=0o444),
            b"ro/sub/two": File(os.urandom(BLOCK + 5), mode=0o400),
            b"ro/sub/twin": HardLink(b"ro/sub/two"),
            b"ro/link": Link(b"sub/two"),
            b"ro/sub": Dir(mode=0o555),
            b"ro": Dir(mode=0o555, mtime_ns=12345),
            b"ro/empty": Dir(mode=0o500),
        },
        root=Dir(mode=0o555),
    )
    nobodys_lift.make(source)
    give_to_nobody(nobodys_lift.root)
    taken = nobodys_lift.capture()
    assert taken.excluded == {}
    assert_equal(source, nobodys_lift.restore(taken))


# cases: moby/moby#21651, microsoft/vscode-remote-release#10179, aws/aws-lambda-python-runtime-interface-client#39
@pytest.mark.usefixtures("as_root")
def test_owners_are_recorded_and_the_restorer_owns(lift: Lift) -> None:
    lift.make(tree({b"d/file": File(b"x"), b"d/link": Link(b"file")}))
    owners = {b"d": (1000, 1001), b"d/file": (1_515_433_866, 4_294_967_294), b"d/link": (7, 8)}
    for path, (uid, gid) in owners.items():
        os.chown(os.path.join(os.fsencode(lift.root), path), uid, gid, follow_symlinks=False)
    taken = lift.capture()
    assert {path: taken.owner(path) for path in owners} == owners
    target = lift.target()
    lift.restore_to(taken, target)
    for name in (".", "d", "d/file", "d/link"):
        status = os.lstat(target / name)
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


# cases: paperclipai/paperclip#8903
@pytest.mark.usefixtures("as_root")
def test_a_target_that_somebody_else_owns(nobodys_lift: Lift) -> None:
    source = tree({b"file": File(b"x")})
    nobodys_lift.make(source)
    give_to_nobody(nobodys_lift.root)
    taken = nobodys_lift.capture()
    target = nobodys_lift.target()
    target.mkdir()  # it is root's, in a folder that is nobody's
    target.chmod(0o777)
    nobodys_lift.restore_to(taken, target)
    assert read(target).entries == source.entries
    assert os.stat(target / "file").st_uid == NOBODY


TIMES = {
    "1902": -2_145_916_800 * SECOND,
    "1902-and-a-bit": -2_145_916_800 * SECOND + 1,
    "before-1970": -1,
    "1970": 0,
    "one": 1,
    "cargo": 1_468_471_990_914_840_077,
    "2038": (1 << 31) * SECOND + 999_999_999,
    "2106": (1 << 32) * SECOND + 5,
    "2262": 9_223_372_036 * SECOND + 854_775_807,
}


@contextmanager
def memory_folder() -> Iterator[Lift]:
    """A folder in shared memory, whose times have 64 bits; not all file systems go back to 1902."""
    folder = Path(tempfile.mkdtemp(prefix="sl-e2e-", dir="/dev/shm"))
    try:
        with closing(Lift(folder, local)) as lifted:
            yield lifted
    finally:
        remove(folder)


# cases: libarchive/libarchive#2562, rust-lang/cargo#2874, ITISFoundation/osparc-simcore#4391
def test_times_to_the_nanosecond() -> None:
    with memory_folder() as folder:
        entries: dict[bytes, File | Dir | Link] = {}
        for name, mtime_ns in TIMES.items():
            entries[b"f" + name.encode()] = File(b"x", mtime_ns=mtime_ns)
            entries[b"d" + name.encode()] = Dir(mtime_ns=mtime_ns)
            entries[b"l" + name.encode()] = Link(b"x", mtime_ns=mtime_ns)
        source = tree(dict(entries), root=Dir(mtime_ns=TIMES["1902-and-a-bit"]))
        made = folder.make(source)
        assert_equal(source, read(made))
        taken = folder.capture()
        for name, mtime_ns in TIMES.items():
            assert taken.mtime_ns(b"f" + name.encode()) == mtime_ns
        assert_equal(source, folder.restore(taken))


# cases: plougher/squashfs-tools#315
@pytest.mark.parametrize("mtime_ns", [10**20 + 7, -(10**19)], ids=["year-5138", "year-1653"])
def test_times_that_no_field_holds(mtime_ns: int) -> None:
    """They are brought to the nearest time that can be recorded, and do not end the capture."""
    nearest = max(-(1 << 63), min(mtime_ns, (1 << 63) - 1))

    def timed(time_ns: int) -> Tree:
        return tree(
            {
                b"file": File(b"x", mtime_ns=time_ns),
                b"twin": HardLink(b"file"),
                b"large": File(b"x" * (BLOCK + 1), mtime_ns=time_ns),
                b"dir": Dir(mtime_ns=time_ns),
                b"link": Link(b"x", mtime_ns=time_ns),
                b"after": File(b"y"),
            },
            root=Dir(mtime_ns=time_ns),
        )

    with memory_folder() as folder:
        folder.make(timed(mtime_ns))
        taken = folder.capture()
        assert taken.excluded == {}
        assert_equal(timed(nearest), folder.restore(taken))


# cases: dust-tt/dust#28081, theexperiencecompany/gaia#758
@pytest.mark.parametrize("road", ["ssh", "paramiko"], indirect=True)
def test_what_travels_is_compressed_and_raw(far_lift: Lift) -> None:
    text, noise = b"".join(b"line %d of many\n" % number for number in range(200_000)), os.urandom(4 * BLOCK)
    source = tree({b"text": File(text)})
    far_lift.make(source)
    taken = far_lift.capture()
    assert taken.capture.wire.received < len(text) // 4
    assert_equal(source, far_lift.restore(taken))
    remove(far_lift.root)
    far_lift.make(tree({b"noise": File(noise)}))
    assert len(noise) < far_lift.capture().capture.wire.received < len(noise) + (64 << 10)
