"""Whole trees lifted and set down again by every road, compared entry by entry."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from e2e.lift import Lift

from support.needs import find_program, lacking
from support.tree import BLOCK, Dir, Fifo, File, HardLink, Link, Socket, Tree, assert_equal, read, restored, tree

NANOSECONDS = 1_468_471_990_914_840_077


def everything(root: bytes) -> tuple[Tree, dict[bytes, bytes], dict[bytes, tuple[str, str, bytes]]]:
    """One of each: the tree, the texts of its rebased links, and what a capture leaves out of it."""
    outside = {
        b"links/absolute": b"/usr/bin/env",
        b"links/above": b"../../other",
        b"links/sibling": root + b"2/secret",
        b"links/through": b"../missing/../../x",
    }
    inside = {
        b"links/a": (root + b"/docs/read.me", b"../docs/read.me"),
        b"links/slash": (root + b"//docs/read.me/", b"../docs/read.me/"),
        b"links/top": (root, b".."),
    }
    kept = {
        b"links/dangling": b"-1",
        b"links/in": b"../docs",
        b"links/loop1": b"loop2",
        b"links/loop2": b"loop1",
        b"links/self": b"self",
        b"links/odd": b"C:../../../t\\x.txt",
        b"links/\xff\n": b"\xfe\n'\"$(x)",
    }
    source = tree(
        {
            b"docs/read.me": File(b"read me\n", mtime_ns=NANOSECONDS),
            b"docs/empty": Dir(mode=0o700, mtime_ns=1),
            b"docs/empty-file": File(b"", mtime_ns=0),
            b"bin/run": File(b"#!/bin/sh\n", mode=0o755),
            b"bin/key": File(b"secret", mode=0o600),
            b"bin/none": File(b"nothing for nobody", mode=0o000 if os.geteuid() == 0 else 0o400),
            b"bin/again": HardLink(b"bin/run"),
            b"zz/once-more": HardLink(b"bin/run"),
            b"zz/empty-too": HardLink(b"docs/empty-file"),
            b"copies/1": File(b"same content" * 1000),
            b"copies/2": File(b"same content" * 1000),
            b"big/mixed": File(os.urandom(2 * BLOCK + 77), mtime_ns=-2_145_916_800_000_000_001),
            b"big/holes": File(b"start", pieces=((3 * BLOCK + 5, b"middle"),), size=9 * BLOCK + 1),
            b"big/hard": HardLink(b"big/holes"),
            b"special/fifo": Fifo(),
            b"special/socket": Socket(),
            b"bits": Dir(mode=0o3775),
            b"bits/suid": File(b"x", mode=0o4755),
            b"bits/sgid": File(b"x", mode=0o2755),
            b"read-only": Dir(mode=0o555),
            b"read-only/file": File(b"x", mode=0o444),
            b"read-only/below/file": File(b"y", mode=0o400),
            **{path: Link(text, mtime_ns=NANOSECONDS + 1) for path, text in {**outside, **kept}.items()},
            **{path: Link(text) for path, (text, _) in inside.items()},
        },
        root=Dir(mode=0o751, mtime_ns=NANOSECONDS - 1),
    )
    left = {path: ("link", "outside-link", text) for path, text in outside.items()}
    left[b"special/fifo"] = ("fifo", "fifo", b"")
    left[b"special/socket"] = ("socket", "socket", b"")
    return source, {path: text for path, (_, text) in inside.items()}, left


# cases: NVIDIA/NemoClaw#2268, openai/openai-agents-python#4834, NVIDIA/OpenShell#1425, moby/moby#13157
# cases: openclaw/openclaw#141923, actions/upload-artifact#20, rust-lang/cargo#2874, NVIDIA/NemoClaw#9317
def test_everything_at_once(far_lift: Lift) -> None:
    source, rebased, left = everything(os.fsencode(far_lift.root))
    far_lift.make(source)
    taken = far_lift.capture()
    assert taken.excluded == left
    assert taken.flags == {}
    assert taken.capture.outcome == "complete"
    assert taken.mode(b"bits") == 0o3775
    assert taken.mode(b"bits/suid") == 0o4755
    assert taken.originals.keys() == rebased.keys()
    counts = taken.capture.counts
    assert (counts.directories, counts.files, counts.links) == (11, 17, 10)
    assert (counts.excluded, counts.lost, counts.changed, counts.vanished) == (6, 0, 0, 0)
    assert counts.bytes == 8 + 10 + 6 + 18 + 24_000 + 2 * BLOCK + 77 + 9 * BLOCK + 1 + 2 + 2
    assert_equal(restored(source.without(*left), links=rebased), far_lift.restore(taken))
    assert_equal(source, read(far_lift.root), holes=False)  # the sandbox's own tree is as it was


def odd_names() -> list[bytes]:
    """Every byte that a name can hold, alone and in company, and the names that trip up programs."""
    names = [bytes([byte]) for byte in range(1, 256) if byte not in b"/."]
    names += [b"n" * 254 + bytes([byte]) for byte in (0x0A, 0x20, 0x7F, 0xFF)]
    names += [b"-rf", b"--help", b"--x", b"-", b"~", b"~root", b"$HOME", b"`id`", b"$(id)", b"a b", b" a", b"a "]
    names += [b"a\nb", b"a\n", b"\nb", b"a\r\n", b"a\rb", b"a\tb", b"\x1b[31mred", b"..\\..\\outside.txt", b"C:\\x"]
    names += [b"a*", b"[a]", b"a[1]", b"{a,b}", b"a,v", b"file*", b"...", b"..a", b".a", b"a.", b".-", b"'a'", b'"a"']
    names += [b"._x", b"._proto", b".DS_Store", b"PaxHeader", b"@LongLink", b"#recycle", b"con", b"NUL", b"aux.txt"]
    names += [
        text.encode() for text in ("é", "e\u0301", "straße", "STRASSE", "Привет", "漢字", "\u202ertl", "\U0001f600")
    ]
    names += [
        b"\xed\xa0\x80",
        b"\xc3\x28",
        b"\xff\xfe",
        b"\x80" * 255,
        b"\n" * 255,
        b"a:b",
        b"a|b",
        b"a<b>",
        b"\xa2\xcc",
    ]
    return sorted(set(names))


# cases: bvanheu/pytoutv#73, graemejross/nextcloud-sync-daemon#45, computesdk/computesdk#770, unjs/pathe#240
# cases: libarchive/libarchive#900, bufbuild/buf#2504, prefix-dev/rattler-build#1621, podman-container-tools/podman#3829
# cases: mafintosh/tar-stream#90, goldmann/docker-squash#78, actions/upload-pages-artifact#102
def test_names_of_any_bytes(far_lift: Lift) -> None:
    names = odd_names()
    source = named_oddly(names)
    assert len(names) > 300
    far_lift.make(source)
    taken = far_lift.capture()
    assert taken.excluded == {}
    assert_equal(source, far_lift.restore(taken))


def named_oddly(names: list[bytes]) -> Tree:
    """A file, a directory and a link of each name."""
    entries: dict[bytes, Dir | File | Link] = {b"f/" + name: File(name) for name in names}
    entries |= {b"d/" + name: Dir(mode=0o711) for name in names}
    return tree({**entries, **{b"l/" + name: Link(name) for name in names}})


# cases: bvanheu/pytoutv#73, docker-library/python#69
@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "zh_TW.BIG5"])
def test_the_locale_means_nothing(lift: Lift, locale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    if locale == "zh_TW.BIG5":
        # Two spellings of one character are one name to who decodes names in this locale.
        make_locale("zh_TW", "BIG5", lift.folder / locale)
        monkeypatch.setenv("LOCPATH", str(lift.folder))
    source = named_oddly([*odd_names(), b"\xa4\x51"])
    lift.make(source)
    assert_equal(source, lift.restore(lift.capture()))


def make_locale(language: str, charset: str, path: Path) -> None:
    """Compile a locale of the C library."""
    if find_program("localedef") is None or not Path(f"/usr/share/i18n/charmaps/{charset}.gz").exists():
        lacking("locales cannot be compiled: apt-get install locales")
    words = ["localedef", "-i", language, "-f", charset, "--no-warnings=ascii", str(path)]
    subprocess.run(words, check=False, capture_output=True, timeout=60)
    assert (path / "LC_CTYPE").exists()


# cases: zuke-build/zuke#228, Backblaze/B2_Command_Line_Tool#779
def test_a_path_longer_than_the_system_takes(far_lift: Lift) -> None:
    long = b"/".join([b"%03d" % number + b"n" * 252 for number in range(20)])
    assert len(long) > 4096
    source = tree(
        {
            long + b"/file": File(b"at the end"),
            long + b"/twin": HardLink(long + b"/file"),
            long + b"/link": Link(b"../../file"),
            long + b"/large": File(os.urandom(BLOCK + 1)),
            long + b"/empty": Dir(mode=0o555),
            b"d" * 100 + b"/" + b"f" * 6: File(b"a hundred and six bytes"),
        }
    )
    far_lift.make(source)
    taken = far_lift.capture()
    assert taken.excluded == {}
    assert_equal(source, far_lift.restore(taken))


# cases: Backblaze/B2_Command_Line_Tool#779
def test_a_tree_of_a_thousand_levels(lift: Lift) -> None:
    entries: dict[bytes, Dir | File | Link] = {b"/".join([b"d"] * 1000 + [b"bottom"]): File(b"bottom")}
    for depth in (95, 96, 97, 500, 999):
        at = b"/".join([b"d"] * depth)
        entries[at + b"/file"] = File(b"at %d" % depth)
        entries[at + b"/side/file"] = File(b"beside %d" % depth)
        entries[at + b"/up"] = Link(b"../" * depth + b"d")
    source = tree(dict(entries))
    lift.make(source)
    taken = lift.capture()
    assert taken.excluded == {}
    assert_equal(source, lift.restore(taken))


def test_an_empty_workspace(far_lift: Lift) -> None:
    source = tree({}, root=Dir(mode=0o700, mtime_ns=5))
    far_lift.make(source)
    taken = far_lift.capture()
    assert taken.paths == []
    assert_equal(source, far_lift.restore(taken))


@pytest.mark.parametrize("road", ["local", "ssh"], indirect=True)
def test_three_thousand_small_files(far_lift: Lift) -> None:
    source = tree({b"%02d/%04d" % (n % 37, n): File(b"%d" % (n % 700) * (n % 50)) for n in range(3000)})
    far_lift.make(source)
    taken = far_lift.capture()
    assert taken.capture.counts.files == 3000
    assert_equal(source, far_lift.restore(taken))


@pytest.mark.parametrize("road", ["local", "ssh"], indirect=True)
def test_the_same_tree_gives_the_same_snapshot(far_lift: Lift) -> None:
    far_lift.make(tree({b"a": File(b"1"), b"b": HardLink(b"a"), b"l": Link(b"a")}))
    first, second = far_lift.capture(), far_lift.capture()
    assert first.capture.snapshot == second.capture.snapshot
    assert (first.capture.reused, second.capture.reused) == (False, True)
    far_lift.restore(first, far_lift.folder / "again")
    again = far_lift.capture(far_lift.folder / "again")
    assert again.capture.content == first.capture.content
    assert again.capture.snapshot == first.capture.snapshot


@pytest.mark.parametrize("road", ["local", "ssh"], indirect=True)
def test_a_part_of_a_snapshot(far_lift: Lift) -> None:
    source = tree(
        {
            b"a/1": File(b"shared"),
            b"b/2": HardLink(b"a/1"),
            b"b/sub/3": HardLink(b"a/1"),
            b"b/sub/large": File(os.urandom(BLOCK + 9)),
            b"c": File(b"not wanted"),
        }
    )
    far_lift.make(source)
    taken = far_lift.capture()
    assert_equal(source.below(b"b"), far_lift.restore(taken, paths=(b"b",)))
    assert_equal(source.below(b"b/sub/3"), far_lift.restore(taken, paths=(b"b/sub/3",)))


# cases: NousResearch/hermes-agent#48441
def test_the_store_is_private_and_holds_what_was_taken(lift: Lift) -> None:
    umask = os.umask(0)
    try:
        lift.make(tree({b"a": File(b"x")}))
        lift.capture()
    finally:
        os.umask(umask)
    for folder, _, files in os.walk(lift.folder / "store"):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert {stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) for name in files} <= {0o600}
    assert lift.store.verify().damaged == ()
