"""What an archive may cost: each limit at its edge, time, memory, and the scratch that is used."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive import archives as a
from archive.archives import GNU, Member, archive, long_name
from archive.importer import files, take

from sandlift.archive.bounds import ArchiveBounds
from sandlift.deadline import Cancel, Deadline
from sandlift.errors import DeadlineExceeded, HostLimit, Interrupted
from sandlift.limits import Limits

TWO = [Member(b"a/b", b"12345"), Member(b"c", b"678")]


def pax_of(size: int) -> Member:
    """A member whose extension header has so many bytes of data."""
    return Member(b"f", pax={b"comment": b"x" * (size - len(a.record(b"comment", b"x" * (size - 20))) + size - 20)})


def sparse(count: int) -> bytes:
    """A file with so many regions of one byte."""
    regions = [(2 * index + 1, 1) for index in range(count)]
    data = a.sparse_map(regions) + b"x" * count
    keys = {b"major": b"1", b"minor": b"0", b"name": b"s", b"realsize": b"%d" % (2 * count)}
    return archive(Member(b"GNUSparseFile.0/s", data, pax={b"GNU.sparse." + key: value for key, value in keys.items()}))


def limits(**changes: Any) -> dict[str, Any]:
    return {"limits": Limits(**changes)}


def bounds(**changes: Any) -> dict[str, Any]:
    return {"bounds": ArchiveBounds(**changes)}


DEEP = archive(long_name(b"/".join([b"d"] * 40)), Member(b"d", magic=GNU))
LONG = archive(long_name(b"/".join([b"d" * 99] * 4)), Member(b"d", magic=GNU))

# limit -> an archive, the least value that takes it, how a value is set
EDGES: dict[str, tuple[bytes, int, Callable[..., dict[str, Any]]]] = {
    "entries": (archive(*TWO), 3, limits),
    "path_bytes": (LONG, 399, limits),
    "depth": (DEEP, 39, limits),
    "link_text_bytes": (archive(Member(b"l", kind=a.LINK, link=b"t" * 50)), 50, limits),
    "file_bytes": (archive(*TWO), 5, limits),
    "total_bytes": (archive(*TWO), 8, bounds),
    "stream_bytes": (archive(*TWO), 4 * 512 + 1024, bounds),
    "member_metadata_bytes": (archive(pax_of(500)), 500, bounds),
    "metadata_bytes": (archive(pax_of(500), Member(b"g", pax=[(b"comment", b"y" * 300)])), 500 + 313, bounds),
    "sparse_regions": (sparse(30), 30, bounds),
    "tail_bytes": (archive(*TWO) + bytes(10240), 10240, bounds),
}


@pytest.mark.parametrize("name", EDGES)
def test_limit_at_its_edge(name: str, tmp_path: Path) -> None:
    content, least, changed = EDGES[name]
    with pytest.raises(HostLimit, match=f"the limit {name}:") as caught:
        take(tmp_path / "store", content, **changed(**{name: least - 1}))
    assert caught.value.context["limit"] == name
    assert f"--limit {name}=" in caught.value.hint
    assert files(tmp_path / "store") == []
    assert take(tmp_path / "store", content, **changed(**{name: least})).capture.outcome == "complete"


MANY: dict[str, Callable[[bytes], Member]] = {
    "files": Member,
    "directories": lambda name: Member(name, kind=a.DIRECTORY),
    "links": lambda name: Member(name, kind=a.LINK, link=b"x"),
    "special-files": lambda name: Member(name, kind=a.FIFO),
}


@pytest.mark.parametrize("kind", MANY)
def test_manifest_bytes(kind: str, tmp_path: Path) -> None:
    """Counted while the archive is read, not when all of it is in memory."""
    content = archive(*(MANY[kind](b"n" * 80 + b"%05d" % index) for index in range(500)), end=b"")
    with pytest.raises(HostLimit, match="manifest_bytes") as caught:
        take(tmp_path / "store", content, limits=Limits(manifest_bytes=20_000))
    assert "nnn00" in caught.value.message
    assert files(tmp_path / "store") == []


def test_limits_are_for_paths_below_the_root(tmp_path: Path) -> None:
    content = archive(Member(b"d" * 90 + b"/x", prefix=b"srv/work/" + b"e" * 99 + b"/" + b"f" * 40 + b"/g"))
    path = b"e" * 99 + b"/" + b"f" * 40 + b"/g/" + b"d" * 90 + b"/x"
    assert take(tmp_path / "store", content, limits=Limits(path_bytes=len(path), depth=4)).paths()[-1] == path
    with pytest.raises(HostLimit, match="depth"):
        take(tmp_path / "other", content, limits=Limits(depth=3))


HUGE = a.base256((1 << 63) - 1, 12)


def hole(name: bytes, real_size: bytes) -> Member:
    """A sparse file without any data: one empty region at its end."""
    return Member(
        name, kind=a.GNU_SPARSE, magic=GNU, size=0, raw={"sparse": real_size + a.octal(0, 12), "real_size": real_size}
    )


def mapped(data: bytes) -> Member:
    """A sparse file of format 1.0 with this map."""
    keys = {b"major": b"1", b"minor": b"0", b"name": b"s", b"realsize": b"9"}
    return Member(b"GNUSparseFile.0/s", data, pax={b"GNU.sparse." + key: value for key, value in keys.items()})


CLAIMS = {
    "extension-of-8-gib": (archive(Member(b"x", kind=a.PAX, size=b"77777777777\0"), end=b""), "member_metadata_bytes"),
    "name-of-8-gib": (archive(long_name(b"x", size=b"77777777777\0"), end=b""), "member_metadata_bytes"),
    "file-of-8-eib": (archive(Member(b"x", size=HUGE), end=b""), "file_bytes"),
    "hole-of-8-eib": (archive(hole(b"x", HUGE)), "file_bytes"),
    "holes-together": (archive(*(hole(b"%d" % index, a.base256(1 << 36, 12)) for index in range(5))), "total_bytes"),
    "regions": (archive(mapped(b"999999999\n" + b"0\n" * 20_000)), "sparse_regions: 4097"),
    "directories-by-one-name": (
        archive(*(Member(b"f", pax={b"path": b"%d/" % index + b"d/" * 8000 + b"f"}) for index in range(5))),
        "metadata_bytes",
    ),
}


@pytest.mark.parametrize("slug", CLAIMS)
def test_claims_cost_nothing(slug: str, tmp_path: Path) -> None:
    content, words = CLAIMS[slug]
    began = time.process_time()
    with pytest.raises(Exception, match=words):
        take(tmp_path / "store", content)
    assert time.process_time() - began < 5
    assert files(tmp_path / "store") == []


@pytest.fixture
def pipe() -> Any:
    """The raw reading end of a pipe, and what writes into it."""
    theirs, ours = os.pipe()
    with open(theirs, "rb", buffering=0) as reader, open(ours, "wb", buffering=0) as writer:
        yield reader, writer


def test_silence(pipe: Any, tmp_path: Path) -> None:
    reader, writer = pipe
    writer.write(archive(*TWO)[:700])
    began = time.monotonic()
    with pytest.raises(HostLimit, match="brought nothing for 0.3 s"):
        take(tmp_path / "store", reader, limits=Limits(silence_s=0.3))
    assert 0.3 <= time.monotonic() - began < 5
    assert files(tmp_path / "store") == []


def test_deadline(pipe: Any, tmp_path: Path) -> None:
    reader, writer = pipe
    writer.write(archive(*TWO)[:700])
    with pytest.raises(DeadlineExceeded, match="while reading the archive"):
        take(tmp_path / "store", reader, deadline=Deadline.after(0.3))
    assert files(tmp_path / "store") == []


def test_cancel(pipe: Any, tmp_path: Path) -> None:
    reader, _ = pipe
    cancel = Cancel()
    threading.Timer(0.3, cancel.cancel).start()
    with pytest.raises(Interrupted):
        take(tmp_path / "store", reader, deadline=Deadline.after(None, cancel))
    assert files(tmp_path / "store") == []


CHILD = """
import resource, sys
from pathlib import Path
from archive.archives import Member, END
from archive.importer import take

class Stream:
    '''Files of 8 MiB, each block of them another one.'''
    def __init__(self, files):
        self.pieces = self.make(files)
        self.size = 0
    def make(self, files):
        for number in range(files):
            yield Member(b'f%d' % number, size=8 << 20).header()
            for block in range(8):
                yield (b'%08d' % (8 * number + block)) * (1 << 17)
        yield END
    def read(self, size, /):
        piece = next(self.pieces, b'')
        self.size += len(piece)
        return piece

take(Path(sys.argv[1]), Stream(1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream = Stream(64)
taken = take(Path(sys.argv[1]), stream)
print(stream.size, taken.capture.counts.bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_bytes(tmp_path: Path) -> None:
    """512 MiB of distinct blocks in files of 8 MiB, after one such file."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "store"], env=env, check=True, capture_output=True, timeout=120
    )
    streamed_bytes, content_bytes, grown_kib = map(int, done.stdout.split())
    assert streamed_bytes == 64 * (512 + (8 << 20)) + 1024
    assert content_bytes == 512 << 20
    assert grown_kib < 8 << 10


def test_scratch_is_the_pack_alone(tmp_path: Path) -> None:
    """While an archive is read there is one unfinished file, no larger than the archive."""
    seen: list[int] = []

    class Stream:
        def __init__(self) -> None:
            members = [Member(b"f%d" % index, os.urandom(3 << 20)) for index in range(4)]
            self.rest = memoryview(archive(*members))
            self.size = len(self.rest)

        def read(self, size: int, /) -> bytes:
            scratch = [path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file()]
            seen.append(sum(scratch))
            piece, self.rest = self.rest[:100_000], self.rest[100_000:]
            return bytes(piece)

    stream = Stream()
    take(tmp_path / "store", stream)
    assert 8 << 20 < max(seen) < stream.size + (1 << 16)
    assert {name.partition("/")[0] for name in files(tmp_path / "store")} == {"packs", "snapshots", "refs"}
