"""What is taken in means the same to other readers: archives that are nearly right, extracted by GNU tar and bsdtar.

Valid archives are changed in a few bytes or blocks, checksums put right again.  Where the import takes one and a
program extracts it without an error, the program's tree must be the one that the import saw.
"""

from __future__ import annotations

import os
import random
import stat
import subprocess
from pathlib import Path

import pytest
from archive import archives as a
from archive.archives import FIELDS, GNU, Member, archive, long_link, long_name
from archive.importer import Taken, take

from sandlift.archive import sparse
from sandlift.errors import SandliftError
from sandlift_helper import table
from support.needs import require
from support.tree import remove

READERS = {"tar": ("tar", "xPf"), "bsdtar": ("bsdtar", "xf")}
SPARSE = {
    b"GNU.sparse.major": b"1",
    b"GNU.sparse.minor": b"0",
    b"GNU.sparse.name": b"t",
    b"GNU.sparse.realsize": b"4096",
}
SEEDS = (
    archive(
        Member(b"./", kind=a.DIRECTORY, mode=0o755),
        Member(b"./a", b"x" * 700, pax={b"mtime": b"1600000000.5", b"path": b"./a"}),
        long_name(b"n" * 120),
        Member(b"n" * 100, b"t", magic=GNU),
        long_link(b"t" * 120),
        Member(b"l", kind=a.LINK, link=b"t" * 100, magic=GNU),
        Member(b"h", kind=a.HARD_LINK, link=b"./a"),
    ),
    archive(
        Member(b"p", b"1", prefix=b"d/e"),
        Member(b"s", b"x" * 512, kind=a.GNU_SPARSE, magic=GNU, raw=a.sparse_fields([(0, 512), (4096, 0)], 4096)),
        Member(b"GNUSparseFile.1/t", a.sparse_map([(512, 512), (4096, 0)]) + b"y" * 512, pax=SPARSE),
    ),
)
CASES = 160
# Any of 256 bytes is seldom interesting.
VALUES = b"\0 0179\x80\xff./xL"


def summed(content: bytearray) -> bytes:
    """The same blocks with right checksums, where they look like headers."""
    for at in range(0, len(content) - 511, 512):
        if content[at + 257 : at + 262] == b"ustar":
            content[at + 148 : at + 156] = b" " * 8
            content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    return bytes(content)


def changed(seed: bytes, chance: random.Random) -> bytes:
    content = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2))):
        block = chance.randrange(len(content) // 512) * 512
        if chance.random() < 0.2:
            content[block:block] = content[(at := chance.randrange(len(content) // 512) * 512) : at + 512]
            continue
        offset, width = chance.choice(list(FIELDS.values()))
        content[block + offset + chance.randrange(min(width, 16))] = chance.choice(VALUES)
    return summed(content)


def seen(taken: Taken) -> dict[bytes, tuple[object, ...]]:
    """What the import saw: kind, mode, time in seconds and content of files; texts of links, also of those left out."""
    rows, links = taken.manifest.rows, taken.links()
    found: dict[bytes, tuple[object, ...]] = {}
    for row, path in enumerate(rows.paths):
        if rows.kinds[row] == table.FILE:
            time_s = rows.mtimes_ns[row] // 1_000_000_000
            found[path] = ("file", rows.modes[row] & 0o777, time_s, taken.content(path))
        elif rows.kinds[row] == table.LINK:
            text, original = links[path]
            found[path] = ("link", original or text)
        else:
            found[path] = ("directory",)
    for path, (reason, detail) in taken.excluded().items():
        if reason == "outside-link":
            found[path] = ("link", detail)
    return found


def content_of(path: bytes, status: os.stat_result) -> bytes:
    """What is in a file that its owner may not read; its mode stays, since another name may lead to it."""
    os.chmod(path, 0o600)
    try:
        return Path(os.fsdecode(path)).read_bytes()
    finally:
        os.chmod(path, stat.S_IMODE(status.st_mode))


def extracted(reader: str, content: bytes, folder: Path) -> dict[bytes, tuple[object, ...]] | None:
    """What a program makes of it, special files apart; None where it fails."""
    remove(folder)
    folder.mkdir()
    archive_file = folder.with_suffix(".tar")
    archive_file.write_bytes(content)
    # Who is not root gets modes less the umask.
    done = subprocess.run(
        [*READERS[reader], archive_file, "--no-same-owner"], cwd=folder, capture_output=True, timeout=60, umask=0
    )
    if done.returncode:
        return None
    top = os.fsencode(folder)
    found: dict[bytes, tuple[object, ...]] = {}
    folder.chmod(0o700)
    for directory, names, others in os.walk(top):
        for name in names + others:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            key = os.path.relpath(path, top)
            if stat.S_ISLNK(status.st_mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("directory",)
                os.chmod(path, 0o700)
            elif stat.S_ISREG(status.st_mode):
                time_s = status.st_mtime_ns // 1_000_000_000
                found[key] = ("file", status.st_mode & 0o777, time_s, content_of(path, status))
    return found


@pytest.mark.parametrize("reader", READERS)
def test_accepted_means_the_same(reader: str, tmp_path: Path) -> None:
    require(reader)
    chance = random.Random(7)
    agreed = refused = 0
    for number in range(CASES):
        content = SEEDS[number % 2] if number < 2 else changed(SEEDS[number % 2], chance)
        try:
            taken = take(tmp_path / "store", content)
        except SandliftError:
            refused += 1
            continue
        theirs = extracted(reader, content, tmp_path / "out")
        if theirs is not None:
            assert theirs == seen(taken), f"case {number}"
            agreed += 1
    assert agreed > CASES // 5
    assert refused > CASES // 5


def test_a_disagreement_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GNU tar makes a shorter file where no region stands at the end; without that rule it is seen here."""
    require("tar")
    content = archive(Member(b"GNUSparseFile.1/t", a.sparse_map([(512, 512)]) + b"y" * 512, pax=SPARSE))
    with pytest.raises(SandliftError, match="do not reach its end"):
        take(tmp_path / "store", content)
    monkeypatch.setattr(sparse, "check_regions", lambda *_: None)
    theirs = extracted("tar", content, tmp_path / "out")
    assert theirs is not None
    assert theirs != seen(take(tmp_path / "store", content))
