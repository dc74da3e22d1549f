"""Names that lead elsewhere, fool a reader or fool a terminal: classes 1 to 12."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from archive import archives as a
from archive.archives import GNU, Member, archive, long_name
from protocol.stream import add_directory, add_file, root_segment
from security.ground import Ground, Kept, Lie, Refused, directory, file, try_kept, try_lie, try_refused

from sandlift.errors import HostLimit
from sandlift_helper.table import Segment
from support.tree import Dir, Entry, assert_equal, read, tree

ROOT_LINK = Member(b"./", kind=a.LINK, link=b"../outside")
ROOT_DIRECTORY = Member(b"./", kind=a.DIRECTORY, mode=0o755)


def one(name: bytes, **changes: Any) -> bytes:
    """An archive with a file of that name."""
    return archive(Member(name, b"data", **changes))


def by_pax(name: bytes) -> bytes:
    """The same, with the name in a pax header."""
    return one(b"plain", pax={b"path": name})


REFUSED = {
    "CVE-2001-1267-dotdot": Refused(
        row=1, attack=one(b"../escape"), twin=one(b"escape"), says="component ..", names="../escape"
    ),
    "CVE-2007-4559-dotdot-to-a-file": Refused(
        row=1,
        attack=one(b"../outside/victim"),
        twin=one(b"outside/victim"),
        says="component ..",
        names="../outside/victim",
    ),
    "CVE-2016-6321-dotdot-in-the-middle": Refused(
        row=1, attack=one(b"a/../../outside/x"), twin=one(b"a/outside/x"), says="component ..", names="a/../../outside"
    ),
    "CVE-2018-1002100-dotdot-that-stays-inside": Refused(
        row=1, attack=one(b"a/../b"), twin=one(b"a/b"), says="component ..", names="a/../b"
    ),
    "CVE-2018-1002101-dotdot-in-a-long-name": Refused(
        row=1,
        attack=archive(long_name(b"a/" * 60 + b"../" * 61 + b"x"), Member(b"a", b"data", magic=GNU)),
        twin=archive(long_name(b"a/" * 60 + b"x"), Member(b"a", b"data", magic=GNU)),
        says="component ..",
        names="a/a/a/",
    ),
    "CVE-2026-19672-leave-and-return": Refused(
        row=2,
        attack=one(b"../evil/../dest/sub/f"),
        twin=one(b"evil/dest/sub/f"),
        says="component ..",
        names="../evil/../dest",
    ),
    "CVE-2021-32804-absolute": Refused(
        row=3,
        attack=lambda out: one(out + b"/victim"),
        twin=lambda out: one(out[1:] + b"/victim"),
        says="not below the root",
        names="/outside/victim",
    ),
    "CVE-2021-32804-two-slashes": Refused(
        row=3,
        attack=lambda out: one(b"/" + out + b"/victim"),
        twin=lambda out: one(out[1:] + b"/victim"),
        says="not below the root",
        names="//",
    ),
    "absolute-by-pax": Refused(
        row=3, attack=by_pax(b"/etc/x"), twin=by_pax(b"etc/x"), says="not below the root", names="/etc/x"
    ),
    "dotdot-by-the-first-part-of-a-name": Refused(
        row=4,
        attack=one(b"x", prefix=b"../outside"),
        twin=one(b"x", prefix=b"outside"),
        says="component ..",
        names="../outside/x",
    ),
    "absolute-by-the-first-part-of-a-name": Refused(
        row=4, attack=one(b"x", prefix=b"/etc"), twin=one(b"x", prefix=b"etc"), says="not below the root", names="/etc"
    ),
    "first-part-in-a-header-that-has-none": Refused(
        row=4,
        attack=one(b"x", magic=GNU, prefix=b"elsewhere"),
        twin=one(b"x", magic=GNU),
        says="GNU's fields .* which other readers take for a name",
    ),
    # cases: python/cpython#149486
    "gh-149486-the-root-is-a-link": Refused(
        row=5,
        attack=archive(ROOT_LINK, Member(b"x", b"data")),
        twin=archive(ROOT_DIRECTORY, Member(b"x", b"data")),
        says="root is no directory",
        names="./",
    ),
    "CVE-2021-29136-no-name": Refused(
        row=5,
        attack=archive(Member(b"", kind=a.LINK, link=b"../outside"), Member(b"x", b"data")),
        twin=archive(Member(b"l", kind=a.LINK, link=b"x"), Member(b"x", b"data")),
        says="empty name",
    ),
    "the-root-is-a-file": Refused(
        row=5, attack=one(b"."), twin=archive(Member(b".", kind=a.DIRECTORY)), says="root is no directory", names="."
    ),
    "CVE-2025-54368-one-file-spelled-twice": Refused(
        row=6,
        attack=archive(Member(b"a/b", b"seen"), Member(b"a/./b", b"set down")),
        twin=archive(Member(b"a/b", b"seen"), Member(b"a/./c", b"set down")),
        says="same name",
        names="a/./b",
    ),
    "one-file-spelled-with-two-slashes": Refused(
        row=6,
        attack=archive(Member(b"a/b", b"seen"), Member(b"a//b", b"set down")),
        twin=archive(Member(b"a/b", b"seen"), Member(b"a//c", b"set down")),
        says="same name",
        names="a//b",
    ),
    "CVE-2026-59875-nul-in-a-pax-name": Refused(
        row=7, attack=by_pax(b"ok\0/../../x"), twin=by_pax(b"ok/x"), says="holds a NUL"
    ),
    "nul-in-a-gnu-name": Refused(
        row=7,
        attack=archive(long_name(b"ok\0/../x"), Member(b"ok", magic=GNU)),
        twin=archive(long_name(b"ok/x"), Member(b"ok", magic=GNU)),
        says="NUL",
    ),
    "CVE-2026-73566-12000-components": Refused(
        row=8,
        attack=by_pax(b"d/" * 12_000 + b"f"),
        twin=by_pax(b"d/" * 1200 + b"f"),
        says="the limit depth",
        names="d/d/d/",
        error=HostLimit,
    ),
    "component-over-255-bytes": Refused(
        row=8, attack=by_pax(b"n" * 256), twin=by_pax(b"n" * 255), says="over 255 bytes", names="nnnn"
    ),
    "path-over-its-limit": Refused(
        row=8,
        attack=by_pax(b"/".join([b"n" * 99] * 5) + b"/x"),
        twin=by_pax(b"/".join([b"n" * 99] * 5)),
        says="the limit path_bytes",
        names="nnnn",
        error=HostLimit,
        words=("--limit", "path_bytes=499"),
    ),
    "CVE-2025-46394-a-name-that-a-terminal-obeys": Refused(
        # The attack is on whoever reads the refusal.
        row=10,
        attack=one(b"\x1b]52;c;aGk=\x07\r\n\xe2\x80\xae\x9b2J/../x"),
        twin=one(b"\x1b]52;c;aGk=\x07\r\n\xe2\x80\xae\x9b2J/x"),
        says="component ..",
        names="\\x1b]52;c;aGk=\\x07\\r\\n\\u202e",
    ),
}


@pytest.mark.parametrize("slug", REFUSED)
def test_refused(slug: str, ground: Ground) -> None:
    try_refused(ground, REFUSED[slug])


def kept(row: int, *names: bytes, twin: bytes = b"twin") -> Kept:
    """Names that are data: kept byte for byte."""
    return Kept(
        row=row,
        attack=archive(*(Member(name, b"data", pax={b"path": name}) for name in names)),
        twin=archive(Member(twin, b"data")),
        tree={name: file() for name in names},
        twin_tree={twin: file()},
    )


DEEP = b"/".join([b"d"] * 150)

KEPT = {
    "name-dot-absolute": Kept(
        row=3, attack=one(b".//etc/x"), twin=one(b"./etc/x"), tree={b"etc/x": file(), b"etc": directory()}
    ),
    "CVE-2025-54368-odd-spelling-alone": Kept(
        row=6, attack=one(b"a/.//./b"), twin=one(b"a/b"), tree={b"a/b": file(), b"a": directory()}
    ),
    "root-member-with-special-bits": Kept(
        row=5,
        attack=archive(Member(b"./", kind=a.DIRECTORY, mode=0o6777), Member(b"./x", b"data")),
        twin=archive(Member(b"./", kind=a.DIRECTORY, mode=0o777), Member(b"./x", b"data")),
        tree={b"x": file()},
        root=directory(0o777),
    ),
    "CVE-2026-73566-deep-and-allowed": Kept(
        row=8,
        attack=by_pax(DEEP + b"/f"),
        twin=one(b"d/f"),
        tree={DEEP + b"/f": file(), **{DEEP[: 2 * depth + 1]: directory() for depth in range(150)}},
        twin_tree={b"d/f": file(), b"d": directory()},
    ),
    "bytes-that-are-no-text": kept(9, b"caf\xe9", b"over\xc0\xaflong", b"cesu\xed\xa0\x80", b"\xff\xfe", b"tab\there"),
    "CVE-2025-46394-terminal": kept(10, b"\x1b]52;c;aGk=\x07", b"\x1b[2J", b"over\b\b\bwritten\r", b"del\x7f\x9b1m"),
    "CVE-2021-42574-direction-of-writing": kept(10, "\u202egnp.exe".encode(), "a\u200bb".encode(), b"line\nerror: x"),
    "GNU-checkpoint-action-options": kept(
        11, b"--checkpoint=1", b"--checkpoint-action=exec=sh x", b"-rf", b"-", b"--", b"--help", b"@file"
    ),
    "CVE-2021-37713-drives-and-devices": kept(
        12, b"C:x", b"C:", b"..\\outside\\victim", b"\\\\host\\share", b"CON", b"aux.txt", b"f:stream", b"dot."
    ),
    "CVE-2014-9390-other-names-of-git": kept(12, ".g\u200cit/config".encode(), b"GIT~1", b".GIT ", twin=b"twin"),
}


def with_parents(entries: dict[bytes, Entry]) -> dict[bytes, Entry]:
    """The entries, and directories on the way as members imply them."""
    parents = {path[:at] for path in entries for at in range(len(path)) if path[at : at + 1] == b"/"}
    return {**{path: directory() for path in parents}, **entries}


@pytest.mark.parametrize("slug", KEPT)
def test_kept(slug: str, ground: Ground) -> None:
    case = KEPT[slug]
    changed = {name: getattr(case, name) for name in Kept.__slots__}
    try_kept(ground, Kept(**{**changed, "tree": with_parents(dict(case.tree))}))


# What a hostile sandbox can say of the same.


def files(*paths: bytes) -> Callable[[], Sequence[Segment]]:
    """A manifest with empty files of these paths, and a directory d."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        add_directory(segment, b"d")
        for path in paths:
            add_file(segment, path)
        segment.sort()
        return [segment]

    return made


def directories(path: bytes, count: int) -> Callable[[], Sequence[Segment]]:
    """A manifest of directories, each in the one before."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        for depth in range(count):
            add_directory(segment, b"/".join([path] * (depth + 1)))
        return [segment]

    return made


PATH = "entry's path is not allowed"

LIES = {
    "CVE-2001-1267-dotdot": Lie(row=1, attack=files(b"../x"), twin=files(b"..x"), says=PATH, names="../x"),
    "CVE-2016-6321-dotdot-in-the-middle": Lie(
        row=1, attack=files(b"d/../x"), twin=files(b"d/..x"), says=PATH, names="d/../x"
    ),
    "CVE-2026-19672-leave-and-return": Lie(
        row=2, attack=files(b"../w/x"), twin=files(b"d/x"), says=PATH, names="../w/x"
    ),
    "CVE-2021-32804-absolute": Lie(row=3, attack=files(b"/etc"), twin=files(b"etc"), says=PATH, names="/etc"),
    "CVE-2021-32804-two-slashes": Lie(row=3, attack=files(b"//etc"), twin=files(b"etc"), says=PATH, names="//etc"),
    "CVE-2021-29136-no-name": Lie(row=5, attack=files(b""), twin=files(b"x"), says=PATH),
    "the-root-is-a-file": Lie(row=5, attack=files(b"."), twin=files(b"..."), says=PATH, names="."),
    "CVE-2025-54368-odd-spelling": Lie(row=6, attack=files(b"d/./x"), twin=files(b"d/.x"), says=PATH, names="d/./x"),
    "two-slashes-inside": Lie(row=6, attack=files(b"d//x"), twin=files(b"d/x"), says=PATH, names="d//x"),
    "CVE-2026-59875-nul": Lie(row=7, attack=files(b"ok\0x"), twin=files(b"okx"), says="column paths has over"),
    "CVE-2026-73566-deeper-than-allowed": Lie(
        row=8,
        attack=directories(b"d", 42),
        twin=directories(b"d", 41),
        says="the limit depth",
        error=HostLimit,
        words=("--limit", "depth=40"),
    ),
    "path-over-its-limit": Lie(
        row=8,
        attack=files(b"n" * 301),
        twin=files(b"n" * 300),
        says="the limit path_bytes",
        error=HostLimit,
        words=("--limit", "path_bytes=300"),
    ),
    "CVE-2025-46394-a-name-that-a-terminal-obeys": Lie(
        row=10,
        attack=files(b"\x1b[2J\r\n\x9b/x"),
        twin=files(b"\x1b[2J\r\n\x9b"),
        says="parent",
        names="\\x1b[2J\\r\\n",
    ),
}


@pytest.mark.parametrize("slug", LIES)
def test_lies(slug: str, ground: Ground) -> None:
    try_lie(ground, LIES[slug])


# Whoever looks at such names, and whatever is started for them.

NASTY = (
    b"\x1b]0;x\x07",
    b"\x1b[31mred",
    b"over\rwritten",
    b"li\nne",
    "\u202egnp".encode(),
    b"\xff\x9b2J",
    b"zero\xe2\x80\x8bwidth",
)
VIEWS = (("ls", "demo"), ("show", "demo"), ("log",), ("audit", "demo"), ("restore", "demo", "OUT", "--dry-run"))


@pytest.mark.parametrize("words", VIEWS, ids=lambda words: words[0])
def test_CVE_2025_46394_no_command_passes_a_name_on_to_the_terminal(words: tuple[str, ...], ground: Ground) -> None:
    """Text of each command, its JSON, and the same for plain names."""
    links = [Member(name + b"l", kind=a.LINK, link=b"/out" + name, pax={b"path": name + b"l"}) for name in NASTY]
    for members in ([*(Member(name, pax={b"path": name}) for name in NASTY), *links], [Member(b"plain")]):
        assert ground.take(archive(*members), "--note", "n\x1b[31m", "--label", "k=\x1b]0;x\x07").status == 0
        # A restore that is only planned finds something to say about each name.
        target = ground.target()
        target.mkdir()
        filled = [os.fspath(target) if word == "OUT" else word for word in words]
        extra = ["--mode", "exact"] if words[0] == "restore" else []
        said = ground.run(*filled, *extra)
        assert said.status == 0, said
        assert all(line.isprintable() for line in (said.out + said.err).split("\n"))
        said = ground.run(*filled, *extra, "--json")
        assert said.err == ""
        assert said.out.isascii()
        assert all(line.isprintable() for line in said.out.split("\n"))
        for line in said.out.splitlines():
            json.loads(line)
    ground.assert_unharmed()


def test_GNU_checkpoint_action_no_name_reaches_a_command_line(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of every process that a restore, a capture and an export of such names start."""
    started: list[str] = []
    popen = subprocess.Popen.__init__

    def note(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        started.extend(map(os.fsdecode, [args] if isinstance(args, (str, bytes)) else args))
        popen(self, args, *rest, **named)

    names = [b"--checkpoint-action=exec=sh x", b"-rf", b"--use-compress-program=x"]
    for entries in (names, [b"plain"]):
        assert ground.take(archive(*(Member(name, b"data") for name in entries))).status == 0
        out = ground.target()
        monkeypatch.setattr(subprocess.Popen, "__init__", note)
        assert ground.restore(out).status == 0
        assert ground.run("capture", out, "--as", "again").status == 0
        assert ground.run("export", "again", "-o", ground.folder / "in" / "exported").status == 0
        monkeypatch.setattr(subprocess.Popen, "__init__", popen)
        assert_equal(tree({name: file() for name in entries}, root=Dir(mtime_ns=directory().mtime_ns)), read(out))
    assert started
    assert not any(os.fsdecode(name) in word for name in names for word in started)


def test_the_sentinel_would_notice(ground: Ground) -> None:
    """Python's own extraction, all checks off, is lost to these very archives."""
    # Before 3.11.4 there were no checks to turn off.
    named: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    for slug in ("CVE-2001-1267-dotdot", "CVE-2007-4559-dotdot-to-a-file", "CVE-2021-32804-absolute"):
        with tarfile.open(fileobj=io.BytesIO(ground.made(REFUSED[slug].attack))) as opened:
            opened.extractall(ground.dest, **named)
        with pytest.raises(AssertionError):
            ground.assert_unharmed()
        Path(ground.folder / "escape").unlink(missing_ok=True)
        ground.remember()
