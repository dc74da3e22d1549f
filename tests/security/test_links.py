"""Links that lead out, or that something is written through: classes 13 to 33, and 91."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from archive import archives as a
from archive.archives import Member, archive
from protocol.stream import add_directory, add_file, root_segment
from security.ground import Ground, Kept, Lie, Refused, directory, file, link, try_kept, try_lie, try_refused

from sandlift.errors import HostLimit
from sandlift_helper.table import Segment
from support.tree import Entry, HardLink

X = Member(b"x", b"data")


def to(name: bytes, text: bytes) -> Member:
    """A symbolic link; long names and texts stand in a pax header."""
    pax = {key: value for key, value in ((b"path", name), (b"linkpath", text)) if len(value) > 100}
    return Member(name, kind=a.LINK, link=text, mode=0o777, pax=pax or None)


def hard(name: bytes, target: bytes) -> Member:
    """A hard link."""
    return Member(name, kind=a.HARD_LINK, link=target)


def folder(name: bytes, mode: int = 0o755) -> Member:
    """A directory."""
    return Member(name, kind=a.DIRECTORY, mode=mode, pax={b"path": name} if len(name) > 100 else None)


def put(name: bytes) -> Member:
    """A file whose content would be bad to find elsewhere."""
    return Member(name, b"written by an attack", pax={b"path": name} if len(name) > 100 else None)


STEPS = [bytes([step]) for step in b"abcdefghijklmnop"]
SHORT = b"/".join(STEPS)
LONG = b"d" * 247


def overflow(*last: Member) -> bytes:
    """Sixteen directories with names of 247 bytes and a short link to each: followed, they nearly fill PATH_MAX."""
    members: list[Member] = []
    at = b""
    for step in STEPS:
        members += [folder(at + LONG), to(at + step, LONG)]
        at += LONG + b"/"
    return archive(*members, *last)


def long_tree(*links: tuple[bytes, bytes]) -> dict[bytes, Entry]:
    """What is set down of it."""
    entries: dict[bytes, Entry] = {}
    at = b""
    for step in STEPS:
        entries |= {at + LONG: directory(), at + step: link(LONG)}
        at += LONG + b"/"
    return {**entries, **{path: link(text) for path, text in links}}


BELOW = "below something that is no directory"
TWICE = "same name"

REFUSED = {
    "CVE-2018-1002100-through-an-absolute-link": Refused(
        row=13,
        attack=lambda out: archive(to(b"l", out), put(b"l/victim")),
        twin=archive(folder(b"l"), put(b"l/victim")),
        says=BELOW,
        names="l/victim",
    ),
    "CVE-2019-11246-through-a-relative-link": Refused(
        row=13,
        attack=archive(to(b"l", b"../outside"), put(b"l/victim")),
        twin=archive(folder(b"l"), put(b"l/victim")),
        says=BELOW,
        names="l/victim",
    ),
    "CVE-2026-17106-through-a-link-that-stays-inside": Refused(
        row=13,
        attack=archive(folder(b"d"), to(b"l", b"d"), put(b"l/x")),
        twin=archive(folder(b"d"), to(b"l", b"d"), put(b"d/x")),
        says=BELOW,
        names="l/x",
    ),
    "CVE-2019-11249-a-directory-through-a-link": Refused(
        row=13,
        attack=archive(to(b"l", b"../outside"), folder(b"l/made")),
        twin=archive(to(b"l", b"outside"), folder(b"m/made")),
        says=BELOW,
        names="l/made",
    ),
    "jwilk-dirsymlink2-two-links-that-look-inside": Refused(
        row=14,
        attack=archive(to(b"current", b"."), to(b"parent", b"current/.."), put(b"parent/outside/victim")),
        twin=archive(to(b"current", b"."), folder(b"parent"), put(b"parent/outside/victim")),
        says=BELOW,
        names="parent/outside/victim",
    ),
    "CVE-2026-26960-dotdot-after-a-link": Refused(
        row=15,
        attack=archive(
            folder(b"a/x/y"), to(b"a/b", b"x/y"), to(b"a/esc", b"b/../../../.."), put(b"a/esc/outside/victim")
        ),
        twin=archive(folder(b"a/x/y"), to(b"a/b", b"x/y"), folder(b"a/esc"), put(b"a/esc/outside/victim")),
        says=BELOW,
        names="a/esc/outside/victim",
    ),
    "CVE-2025-4517-realpath-overflow": Refused(
        row=16,
        # The published one goes on through a link of 254 letters that nobody's realpath resolves any more.
        attack=overflow(
            to(SHORT + b"/" + b"l" * 254, b"../" * 16),
            to(b"escape", SHORT + b"/" + b"l" * 254 + b"/../outside"),
            put(b"escape/victim"),
        ),
        twin=overflow(put(b"escape/victim")),
        says=BELOW,
        names="a/b/c/d/",
    ),
    "CVE-2025-4330-realpath-overflow-hard": Refused(
        row=16,
        attack=archive(to(b"escape", b"../outside"), hard(b"flag", b"escape/victim"), put(b"flag")),
        twin=archive(put(b"escape/victim"), hard(b"flag", b"escape/victim")),
        says="hard link names no member",
        names="flag",
    ),
    "CVE-2021-32803-a-link-then-a-file": Refused(
        row=17,
        attack=archive(to(b"f", b"../outside/victim"), put(b"f")),
        twin=archive(to(b"l", b"f"), put(b"f")),
        says=TWICE,
        names="f",
    ),
    "CVE-2021-37701-a-directory-then-a-link": Refused(
        row=17,
        attack=archive(folder(b"d"), to(b"d", b"../outside"), put(b"d/victim")),
        twin=archive(folder(b"d"), to(b"e", b"d"), put(b"d/victim")),
        says=TWICE,
        names="d",
    ),
    "CVE-2021-37712-a-link-above-what-came-before": Refused(
        row=17,
        attack=archive(put(b"d/victim"), to(b"d", b"../outside")),
        twin=archive(put(b"d/victim"), to(b"e", b"d")),
        says="below it came before",
        names="d",
    ),
    "CVE-2025-26625-a-link-then-a-link": Refused(
        row=17,
        attack=archive(X, to(b"l", b"x"), to(b"l", b"../outside")),
        twin=archive(X, to(b"l", b"x"), to(b"m", b"x")),
        says=TWICE,
        names="l",
    ),
    "CVE-2026-33056-a-link-then-a-directory-s-mode": Refused(
        row=18,
        attack=lambda out: archive(to(b"foo", out), folder(b"foo", 0o777)),
        twin=archive(folder(b"foo", 0o777)),
        says=TWICE,
        names="foo",
    ),
    "CVE-2024-12718-a-link-then-a-directory-with-a-slash": Refused(
        row=18,
        attack=archive(to(b"foo", b"../outside"), folder(b"foo/", 0o777)),
        twin=archive(to(b"bar", b"foo"), folder(b"foo/", 0o777)),
        says=TWICE,
        names="foo/",
    ),
    "CVE-2025-59343-a-sibling-whose-name-begins-alike": Refused(
        row=19,
        attack=archive(to(b"s", b"../dest-evil"), put(b"s/x")),
        twin=archive(folder(b"s"), put(b"s/x")),
        says=BELOW,
        names="s/x",
    ),
    "absolute-name-of-a-sibling-of-the-root": Refused(
        row=19,
        attack=archive(put(b"/srv/work-evil/x")),
        twin=archive(put(b"/srv/work/evil/x")),
        says="not below the root",
        names="/srv/work-evil/x",
    ),
    "CVE-2026-39822-a-link-with-a-slash": Refused(
        row=20,
        attack=archive(to(b"s/", b"../outside"), X),
        twin=archive(to(b"s", b"x"), X),
        says="ends like a directory's",
        names="s/",
    ),
    "CVE-2025-22873-a-file-with-a-slash": Refused(
        row=20,
        attack=archive(Member(b"s/", b"data")),
        twin=archive(Member(b"s", b"data")),
        says="ends like a directory's",
        names="s/",
    ),
    "CVE-2026-53784-the-expected-top-is-a-link": Refused(
        row=23,
        attack=archive(to(b"work", b"../outside")),
        twin=archive(folder(b"work"), put(b"work/x")),
        says="root alone, which is no directory",
        names="work",
    ),
    "CVE-2026-41579-below-a-top-that-is-a-link": Refused(
        row=23,
        attack=archive(to(b"work", b".."), put(b"work/outside/victim")),
        twin=archive(folder(b"work"), put(b"work/outside/victim")),
        says=BELOW,
        names="work/outside/victim",
    ),
    "an-absolute-root-that-is-a-link": Refused(
        row=23,
        attack=archive(to(b"/srv/work", b"/etc"), put(b"/srv/work/passwd")),
        twin=archive(folder(b"/srv/work"), put(b"/srv/work/passwd")),
        says="root is no directory",
        names="/srv/work",
    ),
    "CVE-2026-59875-nul-in-a-link": Refused(
        row=26,
        attack=archive(X, Member(b"l", kind=a.LINK, link=b"x", pax={b"linkpath": b"x\0/../../y"})),
        twin=archive(X, Member(b"l", kind=a.LINK, link=b"x", pax={b"linkpath": b"x"})),
        says="linkpath holds a NUL",
    ),
    "a-link-to-nothing": Refused(
        row=26, attack=archive(to(b"l", b""), X), twin=archive(to(b"l", b"x"), X), says="a link has no text", names="l"
    ),
    "a-link-of-4096-bytes": Refused(
        row=26,
        attack=archive(to(b"l", b"x" * 4096)),
        twin=archive(to(b"l", b"x" * 4095)),
        says="the limit link_text_bytes",
        names="l",
        error=HostLimit,
    ),
    "CVE-2026-23745-an-absolute-hard-link": Refused(
        row=28,
        attack=lambda out: archive(X, hard(b"leak", out + b"/victim")),
        twin=archive(X, hard(b"leak", b"x")),
        says="not below the root",
        names="/outside/victim",
    ),
    "CVE-2026-24842-a-hard-link-by-dotdot": Refused(
        row=28,
        attack=archive(X, hard(b"leak", b"../outside/victim")),
        twin=archive(X, hard(b"leak", b"x")),
        says="component ..",
        names="../outside/victim",
    ),
    "oras-50163-a-hard-link-to-the-working-directory": Refused(
        row=28,
        attack=archive(X, hard(b"leak", b"local")),
        twin=archive(Member(b"local", b"data"), hard(b"leak", b"local")),
        says="no member that came before",
        names="leak",
    ),
    "CVE-2018-20990-a-hard-link-and-a-file-over-it": Refused(
        row=29,
        attack=archive(X, hard(b"leak", b"x"), put(b"leak")),
        twin=archive(X, hard(b"leak", b"x"), put(b"other")),
        says=TWICE,
        names="leak",
    ),
    "node-tar-poisoning-a-hard-link-outside-then-a-file": Refused(
        row=29,
        attack=archive(hard(b"leak", b"../outside/victim"), put(b"leak")),
        twin=archive(X, hard(b"leak", b"x")),
        says="component ..",
        names="../outside/victim",
    ),
    "CVE-2025-48387-a-hard-link-through-links": Refused(
        row=30,
        attack=archive(folder(b"a/b/c"), to(b"a/b/c/up", b"../../../.."), hard(b"leak", b"a/b/c/up/outside/victim")),
        twin=archive(folder(b"a/b/c/up"), put(b"a/b/c/up/victim"), hard(b"leak", b"a/b/c/up/victim")),
        says="no member that came before",
        names="leak",
    ),
    "a-hard-link-through-a-link-that-stays-inside": Refused(
        row=30,
        attack=archive(folder(b"d"), put(b"d/x"), to(b"l", b"d"), hard(b"leak", b"l/x")),
        twin=archive(folder(b"d"), put(b"d/x"), to(b"l", b"d"), hard(b"leak", b"d/x")),
        says="no member that came before",
        names="leak",
    ),
    # cases: python/cpython#151558, python/cpython#151987
    "gh-157190-a-hard-link-to-a-link": Refused(
        row=31,
        attack=archive(folder(b"a/b"), to(b"a/b/s", b"../../x"), hard(b"s2", b"a/b/s"), X),
        twin=archive(folder(b"a/b"), put(b"a/b/s"), hard(b"s2", b"a/b/s"), X),
        says="no regular file",
        names="s2",
    ),
    "gh-151558-a-hard-link-to-a-dangling-link": Refused(
        row=31,
        attack=archive(to(b"s", b"../outside/victim"), hard(b"s2", b"s")),
        twin=archive(put(b"s"), hard(b"s2", b"s")),
        says="no regular file",
        names="s2",
    ),
    "CVE-2025-4138-no-copy-instead-of-a-hard-link": Refused(
        # A reader that copies where it cannot link would take the host's file of that name.
        row=32,
        attack=archive(to(b"d", b"."), hard(b"leak", b"d/local")),
        twin=archive(put(b"local"), hard(b"leak", b"local")),
        says="no member that came before",
        names="leak",
    ),
    "a-hard-link-to-what-comes-later": Refused(
        row=33, attack=archive(hard(b"b", b"x"), X), twin=archive(X, hard(b"b", b"x")), says="no member", names="b"
    ),
    "a-hard-link-to-itself": Refused(
        row=33,
        attack=archive(X, hard(b"b", b"./b")),
        twin=archive(X, hard(b"b", b"./x")),
        says="names itself",
        names="b",
    ),
    "hard-links-in-a-circle": Refused(
        row=33,
        attack=archive(X, hard(b"b", b"c"), hard(b"c", b"b")),
        twin=archive(X, hard(b"b", b"x"), hard(b"c", b"b")),
        says="no member that came before",
        names="b",
    ),
}


@pytest.mark.parametrize("slug", REFUSED)
def test_refused(slug: str, ground: Ground) -> None:
    try_refused(ground, REFUSED[slug])


def left_out(row: int, *attack: Member, twin: Member, gone: Sequence[bytes]) -> Kept:
    """Links that are left out; the twin's, named ``l``, stays, and so does the file that is beside them."""
    return Kept(
        row=row,
        attack=archive(X, *attack),
        twin=archive(X, twin),
        tree={b"x": file()},
        twin_tree={b"x": file(), b"l": link(twin.link)},
        excluded=dict.fromkeys(gone, "outside-link"),
    )


LURE = (b"/etc/shadow", b"/proc/self/fd/0", b"/proc/self/root/etc", b"/dev/stdin", b"../../../../etc/passwd")
CHAIN = {b"%02d" % number: link(b"%02d" % (number + 1)) for number in range(41)}

KEPT = {
    "jwilk-dirsymlink2-links-alone": Kept(
        row=14,
        attack=archive(X, to(b"current", b"."), to(b"parent", b"current/..")),
        twin=archive(X, to(b"current", b"."), to(b"parent", b"current/x")),
        tree={b"x": file(), b"current": link(b".")},
        twin_tree={b"x": file(), b"current": link(b"."), b"parent": link(b"current/x")},
        excluded={b"parent": "outside-link"},
    ),
    "CVE-2026-26960-links-alone": Kept(
        row=15,
        attack=archive(folder(b"x"), folder(b"x/y"), to(b"b", b"x/y"), to(b"esc", b"b/../../..")),
        twin=archive(folder(b"x"), folder(b"x/y"), to(b"b", b"x/y"), to(b"esc", b"b/../..")),
        tree={b"x": directory(), b"x/y": directory(), b"b": link(b"x/y")},
        twin_tree={b"x": directory(), b"x/y": directory(), b"b": link(b"x/y"), b"esc": link(b"b/../..")},
        excluded={b"esc": "outside-link"},
    ),
    "CVE-2025-4517-links-alone": Kept(
        row=16,
        attack=overflow(to(b"escape", SHORT + b"/.." * 17 + b"/outside")),
        twin=overflow(to(b"escape", SHORT + b"/.." * 16 + b"/outside")),
        tree=long_tree(),
        twin_tree=long_tree((b"escape", SHORT + b"/.." * 16 + b"/outside")),
        excluded={b"escape": "outside-link"},
    ),
    "CVE-2025-59343-a-sibling-s-link-alone": left_out(
        19, to(b"s", b"../work-evil"), to(b"t", b"/srv/work-evil"), twin=to(b"l", b"work-evil"), gone=[b"s", b"t"]
    ),
    "CVE-2019-18466-lures-for-later-readers": left_out(
        24,
        *(to(b"%d" % number, text) for number, text in enumerate(LURE)),
        twin=to(b"l", b"x"),
        gone=[b"%d" % number for number in range(len(LURE))],
    ),
    "CVE-2024-21626-the-working-directory-by-descriptor": left_out(
        24, to(b"cwd", b"/proc/self/cwd"), to(b"d", b"/proc/1/root"), twin=to(b"l", b"x"), gone=[b"cwd", b"d"]
    ),
    "CVE-2026-44740-loops": Kept(
        row=25,
        attack=archive(to(b"p", b"q"), to(b"q", b"p"), to(b"r", b"p/../../x"), to(b"s", b"s")),
        twin=archive(to(b"p", b"q"), to(b"q", b"r")),
        tree={b"p": link(b"q"), b"q": link(b"p"), b"r": link(b"p/../../x"), b"s": link(b"s")},
        twin_tree={b"p": link(b"q"), b"q": link(b"r")},
    ),
    "a-chain-of-41-links": Kept(
        row=25,
        attack=archive(*(to(name, entry.text) for name, entry in CHAIN.items()), Member(b"41", b"data")),
        twin=archive(to(b"40", b"41"), Member(b"41", b"data")),
        tree={**CHAIN, b"41": file()},
        twin_tree={b"40": link(b"41"), b"41": file()},
    ),
    "CVE-2021-37701-a-link-whose-name-folds-to-a-directory-s": Kept(
        row=27,
        attack=archive(to(b"Link", b".."), put(b"lINK/x")),
        twin=archive(put(b"lINK/x")),
        tree={b"lINK": directory(), b"lINK/x": file(b"written by an attack")},
        excluded={b"Link": "outside-link"},
    ),
    "CVE-2026-23950-sharp-s": Kept(
        row=27,
        attack=archive(folder(b"d"), to("straße".encode(), b"d"), put(b"STRASSE/x")),
        twin=archive(folder(b"d"), put(b"STRASSE/x")),
        tree={
            b"d": directory(),
            "straße".encode(): link(b"d"),
            b"STRASSE": directory(),
            b"STRASSE/x": file(b"written by an attack"),
        },
        twin_tree={b"d": directory(), b"STRASSE": directory(), b"STRASSE/x": file(b"written by an attack")},
    ),
    "a-hard-link-of-an-archive-is-one-file": Kept(
        row=28,
        attack=archive(X, hard(b"same", b"./x")),
        twin=archive(X, Member(b"same", b"data")),
        tree={b"x": file(), b"same": HardLink(b"x")},
        twin_tree={b"x": file(), b"same": file()},
    ),
    "CVE-2024-12087-a-link-inside-another-link-s-text": Kept(
        row=91,
        attack=archive(folder(b"d"), to(b"d/e", b".."), to(b"m", b"d/e/../outside")),
        twin=archive(folder(b"d"), to(b"d/e", b".."), to(b"m", b"d/e/outside")),
        tree={b"d": directory(), b"d/e": link(b"..")},
        twin_tree={b"d": directory(), b"d/e": link(b".."), b"m": link(b"d/e/outside")},
        excluded={b"m": "outside-link"},
    ),
    "CVE-2024-12088-dotdot-after-a-name-that-is-missing": left_out(
        91, to(b"m", b"missing/../../outside"), twin=to(b"l", b"missing/../x"), gone=[b"m"]
    ),
}


@pytest.mark.parametrize("slug", KEPT)
def test_kept(slug: str, ground: Ground) -> None:
    try_kept(ground, KEPT[slug])


# What a hostile sandbox can say of the same.


def having(*links: tuple[bytes, bytes], files: Sequence[bytes] = ()) -> Callable[[], Sequence[Segment]]:
    """A manifest with a directory d, a file x, these links and files."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        add_directory(segment, b"d")
        for path in (b"x", *files):
            add_file(segment, path)
        for path, text in links:
            segment.add_link(path, 0o777, 1, 0, 0, text)
        segment.sort()
        return [segment]

    return made


def grouped(second: bytes = b"same", **other: int) -> Callable[[], Sequence[Segment]]:
    """A manifest in which a and *second* are one file; *other* is what the second name says else."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        add_file(segment, b"a", b"data", group=1)
        add_file(segment, second, size=4, group=1)
        for name, value in other.items():
            getattr(segment, name)[-1] = value
        segment.sort()
        return [segment]

    return made


def twice(path: bytes) -> Callable[[], Sequence[Segment]]:
    """A manifest whose second segment has one path, as a file."""

    def made() -> Sequence[Segment]:
        second = Segment()
        add_file(second, path)
        return [*having((b"f", b"x"))(), second]

    return made


LEAVES = "a link leaves the workspace"
PARENT = "parent is no directory"
TEXT = "text is empty or absolute"

LIES = {
    "CVE-2018-1002100-through-a-link": Lie(
        row=13,
        attack=having((b"l", b"d"), files=[b"l/x"]),
        twin=having((b"l", b"d"), files=[b"d/x"]),
        says=PARENT,
        names="l/x",
    ),
    "jwilk-dirsymlink2-two-links-that-look-inside": Lie(
        row=14,
        attack=having((b"current", b"."), (b"parent", b"current/..")),
        twin=having((b"current", b"."), (b"parent", b"current/x")),
        says=LEAVES,
        names="parent",
    ),
    "CVE-2026-26960-dotdot-after-a-link": Lie(
        row=15,
        attack=having((b"d/b", b".."), (b"esc", b"d/b/../x")),
        twin=having((b"d/b", b".."), (b"esc", b"d/b/x")),
        says=LEAVES,
        names="esc",
    ),
    "CVE-2021-32803-a-link-then-a-file": Lie(
        row=17, attack=twice(b"f"), twin=twice(b"g"), says="two entries have the same path"
    ),
    "CVE-2025-59343-a-sibling-whose-name-begins-alike": Lie(
        row=19, attack=having((b"l", b"../w-evil")), twin=having((b"l", b"w-evil")), says=LEAVES, names="l"
    ),
    "CVE-2026-39822-a-link-with-a-slash": Lie(
        row=20, attack=having((b"l/", b"x")), twin=having((b"l", b"x")), says="path is not allowed", names="l/"
    ),
    "CVE-2019-18466-a-lure": Lie(
        row=24, attack=having((b"l", b"/etc/shadow")), twin=having((b"l", b"etc/shadow")), says=TEXT, names="l"
    ),
    "CVE-2026-59875-nul-in-a-link": Lie(
        row=26, attack=having((b"l", b"x\0y")), twin=having((b"l", b"xy")), says="column texts has"
    ),
    "a-link-to-nothing": Lie(row=26, attack=having((b"l", b"")), twin=having((b"l", b".")), says=TEXT, names="l"),
    "a-link-of-4096-bytes": Lie(
        row=26,
        attack=having((b"l", b"x" * 4096)),
        twin=having((b"l", b"x" * 4095)),
        says="the limit link_text_bytes",
        error=HostLimit,
    ),
    "CVE-2026-23745-a-hard-link-to-what-is-not-there": Lie(
        # A name of a group is a name in the manifest, so one outside breaks the rule of names.
        row=28,
        attack=grouped(b"../outside"),
        twin=grouped(b"outside"),
        says="path is not allowed",
        names="../outside",
        blocks=(b"data",),
    ),
    "CVE-2018-20990-a-hard-link-with-content-of-its-own": Lie(
        row=29,
        attack=lambda: [with_content()],
        twin=grouped(),
        says="hard link differs",
        names="same",
        blocks=(b"data", b"evil"),
        twin_blocks=(b"data",),
    ),
    "CVE-2025-48387-a-hard-link-below-a-link": Lie(
        row=30,
        attack=having((b"l", b"d"), files=[b"l/same"]),
        twin=having((b"l", b"d"), files=[b"d/same"]),
        says=PARENT,
        names="l/same",
    ),
    "a-hard-link-with-another-mode": Lie(
        row=31, attack=grouped(modes=0o777), twin=grouped(), says="hard link differs", blocks=(b"data",)
    ),
    "CVE-2024-12087-a-link-inside-another-link-s-text": Lie(
        row=91,
        attack=having((b"d/e", b".."), (b"m", b"d/e/../outside")),
        twin=having((b"d/e", b".."), (b"m", b"d/e/outside")),
        says=LEAVES,
        names="m",
    ),
}


def with_content() -> Segment:
    """One group whose second name brings other content."""
    segment = root_segment()
    add_file(segment, b"a", b"data", group=1)
    add_file(segment, b"same", b"evil", group=1)
    return segment


@pytest.mark.parametrize("slug", LIES)
def test_lies(slug: str, ground: Ground) -> None:
    try_lie(ground, LIES[slug])
