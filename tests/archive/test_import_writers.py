"""What real writers make is taken in as it was meant: the snapshot is the very one that a capture gives."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from archive.importer import take

import sandlift
from support.needs import lacking, require
from support.tree import Device, Dir, Entry, Fifo, File, HardLink, Link, assert_equal, make, read, restored, tree

SECOND_NS = 1_600_000_000_000_000_000
EXACT_NS = SECOND_NS + 123_456_789
NODE_TAR = "/usr/lib/node_modules/npm/node_modules/tar"

Write = Callable[[Path], bytes]


def plain(ns: int = SECOND_NS) -> dict[bytes, Entry]:
    """What every format can hold."""
    return {
        b"a": File(b"hello", mode=0o640, mtime_ns=ns),
        b"d": Dir(mode=0o700, mtime_ns=ns),
        b"d/" + b"n" * 60: File(b"xyz" * 1_000_000, mtime_ns=ns),
        b"empty": File(mtime_ns=ns),
        b"hard": HardLink(b"a"),
        b"link": Link(b"d/x", mtime_ns=ns),
        b"readonly": Dir(mode=0o555, mtime_ns=ns),
        b"readonly/run": File(b"#!/bin/sh\n", mode=0o755, mtime_ns=ns),
        b"setuid": File(b"s", mode=0o4755, mtime_ns=ns),
        b"sparse": File(pieces=((2 << 20, b"tail"),), mtime_ns=ns),
    }


def rich(ns: int = SECOND_NS, *, root: bytes = b"/ROOT") -> dict[bytes, Entry]:
    """What needs long names, odd bytes, special files; and links of all kinds."""
    deep = b"d/" + b"e" * 90
    return {
        **plain(ns),
        b"d/" + b"L" * 150: File(b"long", mtime_ns=ns),
        deep: Dir(mtime_ns=ns),
        deep + b"/" + b"f" * 120: File(b"deep", mtime_ns=ns),
        b"d/" + "é".encode() * 60: File(b"two bytes each", mtime_ns=ns),
        b"far": Link(b"t" * 200, mtime_ns=ns),
        b"new\nline": File(b"odd", mtime_ns=ns),
        b" sp ace ": File(b"odd", mtime_ns=ns),
        b"-dash": File(b"odd", mtime_ns=ns),
        b"fifo": Fifo(mtime_ns=ns),
        b"inside": Link(root + b"/d", mtime_ns=ns),
        b"outside": Link(b"/etc/passwd", mtime_ns=ns),
        b"climbs": Link(b"../../x", mtime_ns=ns),
    }


def raw_bytes(ns: int = SECOND_NS) -> dict[bytes, Entry]:
    """Names that are no UTF-8."""
    return {b"r\xff\xfe": File(b"raw", mtime_ns=ns), b"d/l\xe9": Link(b"r\xff\xfe", mtime_ns=ns), **plain(ns)}


def odd_times(*, fraction: bool = True) -> dict[bytes, Entry]:
    """Times before 1970, and of all digits."""
    return {
        b"old": File(mtime_ns=-2_500_000_000 if fraction else -2_000_000_000),
        b"older": File(mtime_ns=-1 if fraction else -1_000_000_000),
        b"new": File(mtime_ns=EXACT_NS),
        b"later": File(mtime_ns=4_102_444_800_000_000_001),
        b"d": Dir(mtime_ns=EXACT_NS),
    }


def holes(ns: int = SECOND_NS) -> dict[bytes, Entry]:
    """Sparse files: few regions and many, at the start and the end, none at all, and far more than fits a disk."""
    many = tuple((index << 16, bytes([65 + index % 26]) * 4096) for index in range(1, 100))
    return {
        b"few": File(pieces=((1 << 20, b"x" * 4096), (5 << 20, b"y" * 4096)), size=20 << 20, mtime_ns=ns),
        b"few2": HardLink(b"few"),
        b"many": File(pieces=many, size=30 << 20, mtime_ns=ns),
        b"none": File(size=3 << 20, mtime_ns=ns),
        b"start": File(b"s" * 5000, size=4 << 20, mtime_ns=ns),
        b"end": File(pieces=((3 << 20, b"tail"),), mtime_ns=ns),
        b"huge": File(pieces=((5 << 30, b"far"),), size=100 << 30, mtime_ns=ns),
        b"d" * 90: Dir(mtime_ns=ns),
        b"d" * 90 + b"/" + b"s" * 120: File(pieces=many[:5], size=9 << 20, mtime_ns=ns),
    }


def command(*words: str) -> Write:
    """What a program writes to its standard output, started in the workspace."""

    def write(root: Path) -> bytes:
        require(words[0])
        # bsdtar turns names into UTF-8, and complains where it cannot.
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        return subprocess.run(words, cwd=root, env=env, capture_output=True, check=False, timeout=60).stdout

    return write


def above(*words: str) -> Write:
    """The same, started above the workspace; WORK is its name, ROOT its path."""

    def write(root: Path) -> bytes:
        filled = [word.replace("WORK", root.name).replace("ROOT", str(root)) for word in words]
        return command(*filled)(root.parent)

    return write


def python(format: int) -> Write:
    """What Python's tarfile writes."""

    def write(root: Path) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
            archive.add(root, ".")
        return buffer.getvalue()

    return write


WRITERS: dict[str, tuple[Mapping[bytes, Entry], Write]] = {
    "gnu-v7": (plain(), command("tar", "c", "--format=v7", ".")),
    "gnu-ustar": (plain(), command("tar", "c", "--format=ustar", ".")),
    "gnu-oldgnu": (rich(), command("tar", "c", "--format=oldgnu", ".")),
    "gnu-gnu": (rich(), command("tar", "c", "--format=gnu", ".")),
    "gnu-pax": (rich(EXACT_NS), command("tar", "c", "--format=pax", ".")),
    "gnu-pax-attributes": (rich(EXACT_NS), command("tar", "c", "--format=pax", "--xattrs", "--acls", ".")),
    "gnu-bytes": (raw_bytes(), command("tar", "c", ".")),
    "gnu-pax-bytes": (raw_bytes(EXACT_NS), command("tar", "c", "--format=pax", ".")),
    "gnu-pax-times": (odd_times(), command("tar", "c", "--format=pax", ".")),
    "gnu-large-records": (rich(), command("tar", "c", "-b", "2048", ".")),
    "gnu-absolute": (rich(), above("tar", "cP", "ROOT")),
    "gnu-slash-removed": (rich(), above("tar", "c", "ROOT")),
    "gnu-one-directory": (rich(), above("tar", "c", "WORK")),
    "gnu-gzip": (rich(), command("tar", "cz", ".")),
    "gnu-zstd": (rich(), command("sh", "-c", "tar c . | zstd -q -T0")),
    "gnu-zstd-long": (rich(), command("sh", "-c", "tar c . | zstd -q --ultra -22 --long=27")),
    "gnu-xz": (rich(), command("sh", "-c", "tar c . | xz -T0 -1")),
    "bsd-v7": (plain(), command("bsdtar", "c", "--format=v7tar", "-f", "-", ".")),
    "bsd-ustar": (plain(), command("bsdtar", "c", "--format=ustar", "-f", "-", ".")),
    "bsd-pax": (rich(EXACT_NS), command("bsdtar", "c", "--format=pax", "-f", "-", ".")),
    "bsd-restricted": (rich(), command("bsdtar", "c", "--format=paxr", "-f", "-", ".")),
    "bsd-gnu": (rich(), command("bsdtar", "c", "--format=gnutar", "-f", "-", ".")),
    "bsd-pax-bytes": (raw_bytes(EXACT_NS), command("bsdtar", "c", "--format=pax", "-f", "-", ".")),
    # It writes the whole second below a negative time with a fraction, so such times are another test's.
    "bsd-pax-times": (odd_times(fraction=False), command("bsdtar", "c", "--format=pax", "-f", "-", ".")),
    "busybox": (rich(), command("busybox", "tar", "c", ".")),
    "busybox-bytes": (raw_bytes(), command("busybox", "tar", "c", ".")),
    "python-ustar": (plain(), python(tarfile.USTAR_FORMAT)),
    "python-gnu": (rich(), python(tarfile.GNU_FORMAT)),
    "python-pax": (rich(), python(tarfile.PAX_FORMAT)),
    "python-pax-bytes": (raw_bytes(), python(tarfile.PAX_FORMAT)),
    "sparse-gnu": (holes(), command("tar", "cS", "--format=gnu", ".")),
    "sparse-oldgnu": (holes(), command("tar", "cS", "--format=oldgnu", ".")),
    "sparse-0.0": (holes(), command("tar", "cS", "--format=pax", "--sparse-version=0.0", ".")),
    "sparse-0.1": (holes(), command("tar", "cS", "--format=pax", "--sparse-version=0.1", ".")),
    "sparse-1.0": (holes(), command("tar", "cS", "--format=pax", "--sparse-version=1.0", ".")),
    "sparse-bsd": (holes(), command("bsdtar", "c", "--format=pax", "-f", "-", ".")),
}


def made(entries: Mapping[bytes, Entry], root: Path, ns: int) -> None:
    """Makes a workspace; what says /ROOT in links is its own path."""
    text = os.fsencode(root)
    placed = {
        path: Link(entry.text.replace(b"/ROOT", text), mtime_ns=entry.mtime_ns) if isinstance(entry, Link) else entry
        for path, entry in entries.items()
    }
    make(tree(placed, root=Dir(mode=0o750, mtime_ns=ns)), root)


@pytest.mark.parametrize("name", WRITERS)
def test_import_equals_capture(name: str, tmp_path: Path) -> None:
    entries, write = WRITERS[name]
    root, store = tmp_path / "work", tmp_path / "store"
    # A format that holds whole seconds shows in the tree that it is given.
    exact = any(isinstance(entry, Dir) and entry.mtime_ns == EXACT_NS for entry in entries.values())
    made(entries, root, EXACT_NS if exact else SECOND_NS)
    with sandlift.Store.open(store, create=True) as opened:
        captured = sandlift.capture(str(root), opened, "demo")
    taken = take(store, write(root), root=os.fsencode(root))
    assert taken.capture.content == captured.content
    assert taken.capture.counts == captured.counts
    assert taken.capture.snapshot == captured.snapshot
    assert taken.capture.reused


@pytest.mark.parametrize("name", ["gnu-pax", "sparse-1.0"])
def test_import_restores_to_the_tree(name: str, tmp_path: Path) -> None:
    entries, write = WRITERS[name]
    root = tmp_path / "work"
    made(entries, root, SECOND_NS)
    wanted = read(root)
    archive = write(root)
    root.rename(tmp_path / "gone")
    taken = take(tmp_path / "store", archive, root=os.fsencode(root))
    with sandlift.Store.open(tmp_path / "store") as store:
        sandlift.restore(store, taken.capture.ref, str(tmp_path / "out"))
    left = [path for path in (b"outside", b"climbs") if path in wanted.entries]
    links = {b"inside": b"d"} if b"inside" in wanted.entries else {}
    assert_equal(restored(wanted, links=links).without(*left), read(tmp_path / "out"))


def test_node_tar(tmp_path: Path) -> None:
    """npm's tar writes times into the name's second part, half of its pax records without a value, no special files."""
    require("node")
    if not os.path.isdir(NODE_TAR):
        lacking("npm is not installed: apt-get install npm")
    root, store = tmp_path / "work", tmp_path / "store"
    entries = {path: entry for path, entry in rich().items() if not isinstance(entry, (Fifo, Device))}
    made(entries, root, SECOND_NS)
    with sandlift.Store.open(store, create=True) as opened:
        captured = sandlift.capture(str(root), opened, "demo")
    script = (
        f"const tar = require('{NODE_TAR}'), options = {{cwd: process.cwd(), sync: true}};"
        "tar.c({...options, file: '../plain.tar'}, ['.']);"
        "tar.c({...options, file: '../portable.tgz', portable: true, gzip: true}, ['.']);"
    )
    subprocess.run(["node", "-e", script], cwd=root, check=True, timeout=60)
    taken = take(store, (tmp_path / "plain.tar").read_bytes(), root=os.fsencode(root))
    assert taken.capture.snapshot == captured.snapshot
    portable = take(store, (tmp_path / "portable.tgz").read_bytes(), root=os.fsencode(root))
    # It leaves out directories' times and makes all directories writable.
    assert portable.capture.content == captured.content


def test_perl(tmp_path: Path) -> None:
    """Archive::Tar pads numbers with spaces and has GNU's long names, without their NUL, in ustar headers."""
    require("perl")
    if subprocess.run(["perl", "-MArchive::Tar", "-e1"], capture_output=True, timeout=60).returncode:
        lacking("perl has no Archive::Tar: apt-get install perl")
    root, store = tmp_path / "work", tmp_path / "store"
    # It writes neither hard links nor special bits.
    entries = {path: entry for path, entry in plain().items() if path not in (b"hard", b"setuid")}
    made({**entries, b"n" * 120: File(b"long", mtime_ns=SECOND_NS)}, root, SECOND_NS)
    with sandlift.Store.open(store, create=True) as opened:
        captured = sandlift.capture(str(root), opened, "demo")
    script = "use File::Find; my @all; find(sub { push @all, $File::Find::name }, '.');"
    script += "my $tar = Archive::Tar->new; $tar->add_files(@all); $tar->write('../perl.tar')"
    subprocess.run(["perl", "-MArchive::Tar", "-e", script], cwd=root, check=True, timeout=60)
    taken = take(store, (tmp_path / "perl.tar").read_bytes(), root=os.fsencode(root))
    assert taken.capture.content == captured.content
    assert taken.capture.snapshot == captured.snapshot


def test_git_archive(tmp_path: Path) -> None:
    """git writes a global header with a comment."""
    require("git")
    root = tmp_path / "work"
    make(tree({b"a": File(b"hello"), b"d/run": File(b"x", mode=0o755), b"l": Link(b"d/run")}), root)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=root, check=True, timeout=60)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, check=True, capture_output=True, timeout=60).stdout
    assert b"52 comment=" in archive[:1024]
    taken = take(tmp_path / "store", archive)
    assert taken.kinds() == {b"a": "file", b"d": "directory", b"d/run": "file", b"l": "link"}
    assert taken.content(b"a") == b"hello"
    prefixed = subprocess.run(
        ["git", "archive", "--prefix=work/", "HEAD"], cwd=root, check=True, capture_output=True, timeout=60
    ).stdout
    assert take(tmp_path / "store", prefixed).capture.content == taken.capture.content


def test_attributes_are_warned_of(tmp_path: Path) -> None:
    root = tmp_path / "work"
    make(tree({b"a": File(b"hello")}), root)
    try:
        os.setxattr(root / "a", "user.note", b"line\nbin\0ary")
    except OSError:
        lacking("this file system has no user attributes: run the tests on ext4, xfs, btrfs or a recent tmpfs")
    for write in (command("tar", "c", "--format=pax", "--xattrs", "."), command("bsdtar", "c", "-f", "-", ".")):
        taken = take(tmp_path / "store", write(root))
        (warning,) = taken.warnings()
        assert "attributes of members are not kept" in warning
        assert "SCHILY.xattr (1)" in warning
        assert taken.content(b"a") == b"hello"
