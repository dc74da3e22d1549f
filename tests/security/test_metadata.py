"""Types, modes, owners, attributes and times: classes 34 to 41."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence

import pytest
from archive import archives as a
from archive.archives import GNU, Member, archive, base256
from protocol.stream import add_directory, add_file, root_segment
from security.ground import Ground, Kept, Lie, Refused, directory, file, try_kept, try_lie, try_refused

from sandlift_helper import table
from sandlift_helper.table import Segment

X = Member(b"x", b"data")
HIDDEN = Member(b"hidden", b"never seen by who takes a link for empty").encoded()


def typed(kind: bytes, data: bytes = b"", **changes: object) -> bytes:
    """An archive with one member of that type behind a plain file."""
    return archive(X, Member(b"m", data, kind=kind, **changes))  # type: ignore[arg-type]


def pax(**records: bytes) -> bytes:
    """An archive with a file that has these pax records."""
    return archive(Member(b"f", b"data", pax={key.encode(): value for key, value in records.items()}))


def payload(kind: bytes, **changes: object) -> Refused:
    """Data where a member of that type has none."""
    return Refused(
        row=34,
        attack=archive(X, Member(b"m", HIDDEN, kind=kind, **changes)),  # type: ignore[arg-type]
        twin=archive(X, Member(b"m", kind=kind, **changes)),  # type: ignore[arg-type]
        says="can have no data has 1024 bytes",
        names="m",
    )


def unknown(kind: bytes, data: bytes = b"", **changes: object) -> Refused:
    """A type that readers treat in different ways."""
    return Refused(
        row=36,
        attack=typed(kind, data, **changes),
        twin=typed(a.FILE, data, **changes),
        says=f"the type '{kind.decode()}' is not taken in",
    )


REFUSED = {
    "a-link-with-data": payload(a.LINK, link=b"x"),
    "a-hard-link-with-data": payload(a.HARD_LINK, link=b"x"),
    "a-directory-with-data": payload(a.DIRECTORY),
    "a-pipe-with-data": payload(a.FIFO),
    "a-device-with-data": payload(a.BLOCK_DEVICE, device=(7, 200)),
    "CVE-2026-5704-an-unknown-type": unknown(b"Z", b"data"),
    "GNU-dumpdir": unknown(b"D", b"Yx\0\0", magic=GNU),
    "GNU-names-to-rename": unknown(b"N", b"Rename x to ../y\n", magic=GNU),
    "GNU-rest-of-another-volume": unknown(b"M", b"data", magic=GNU),
    "GNU-label": unknown(b"V", magic=GNU),
    "Solaris-extension": unknown(b"X", b"17 path=../escape\n"),
    "dumpdir-by-pax": Refused(
        row=36,
        attack=archive(Member(b"f", pax={b"GNU.dumpdir": b"Rx\0Ty\0\0"})),
        twin=archive(Member(b"f", pax={b"comment": b"Rx Ty"})),
        says="some readers act on it",
    ),
    "a-link-text-for-a-file": Refused(
        row=36,
        attack=archive(X, Member(b"f", b"data", link=b"x")),
        twin=archive(X, Member(b"f", b"data")),
        says="no link has a link's text",
        names="f",
    ),
    "owner-minus-1": Refused(
        row=39,
        attack=archive(Member(b"f", b"data", raw={"uid": base256(-1, 8)})),
        twin=archive(Member(b"f", b"data", raw={"uid": base256(1, 8)})),
        says="the owner is -1, which is out of range",
    ),
    "owner-that-chown-takes-for-none": Refused(
        row=39, attack=pax(uid=b"4294967295"), twin=pax(uid=b"4294967294"), says="out of range", names="f"
    ),
    "group-over-64-bits": Refused(
        row=39, attack=pax(gid=b"18446744073709551616"), twin=pax(gid=b"1844674407"), says="no number as all readers"
    ),
    **{
        f"time-{slug}": Refused(row=41, attack=pax(mtime=text), twin=pax(mtime=b"1.5"), says="no decimal number")
        for slug, text in {
            "nan": b"nan",
            "inf": b"inf",
            "minus-inf": b"-inf",
            "1e400": b"1e400",
            "hexadecimal": b"0x10",
            "two-points": b"1.2.3",
            "plus": b"+1",
            "5000-digits": b"1" * 5000,
            "arabic-digits": "٣".encode(),
        }.items()
    },
    "time-field-that-is-no-number": Refused(
        row=41,
        attack=archive(Member(b"f", b"data", mtime=b"1.5\0")),
        twin=archive(Member(b"f", b"data", mtime=b"15\0")),
        says="the time .* is no octal number",
    ),
}


@pytest.mark.parametrize("slug", REFUSED)
def test_refused(slug: str, ground: Ground) -> None:
    try_refused(ground, REFUSED[slug])


def left_out(kind: bytes, reason: str, **changes: object) -> Kept:
    """A special file, which is left out as by a capture."""
    return Kept(
        row=35,
        attack=archive(X, Member(b"m", kind=kind, **changes)),  # type: ignore[arg-type]
        twin=archive(X, Member(b"m", kind=a.FILE)),
        tree={b"x": file()},
        twin_tree={b"x": file(), b"m": file(b"")},
        excluded={b"m": reason},
    )


def with_mode(mode: int, kept: int, kind: bytes = a.FILE) -> Kept:
    """A mode of which a part is recorded and not set down."""
    data = b"" if kind == a.DIRECTORY else b"data"
    entry = directory(kept) if kind == a.DIRECTORY else file(mode=kept)
    return Kept(
        row=37,
        attack=archive(Member(b"m", data, kind=kind, mode=mode)),
        twin=archive(Member(b"m", data, kind=kind, mode=kept)),
        tree={b"m": entry},
    )


def attributes(**records: bytes) -> Kept:
    """Attributes that are not kept, and warned of."""
    found = {key.replace("__", ".").encode(): value for key, value in records.items()}
    (family,) = {key.decode() for key in found}
    return Kept(
        row=40,
        attack=archive(Member(b"f", b"data", pax=found)),
        twin=archive(Member(b"f", b"data", pax={b"comment": b"none"})),
        tree={b"f": file()},
        warns=f"attributes of members are not kept: {'.'.join(family.split('.')[:2])}",
    )


def timed(text: bytes, mtime_ns: int) -> Kept:
    """A time beyond what is recorded, moved to where the range ends; as far as the target's file system goes."""
    return Kept(
        row=41,
        attack=archive(Member(b"d", kind=a.DIRECTORY, mode=0o755), Member(b"d/f", b"data", pax={b"mtime": text})),
        twin=archive(Member(b"d", kind=a.DIRECTORY, mode=0o755), Member(b"d/f", b"data")),
        tree={b"d": directory(), b"d/f": file(mtime_ns=mtime_ns)},
        twin_tree={b"d": directory(), b"d/f": file()},
    )


KEPT = {
    "a-pipe": left_out(a.FIFO, "fifo"),
    "a-char-device": left_out(a.CHAR_DEVICE, "char-device", device=(1, 1)),
    "a-block-device": left_out(a.BLOCK_DEVICE, "block-device", device=(8, 0)),
    "a-whiteout-of-an-overlay": left_out(a.CHAR_DEVICE, "whiteout", device=(0, 0)),
    "CVE-2005-2541-setuid": with_mode(0o4755, 0o755),
    "CVE-2005-2541-setgid-and-setuid": with_mode(0o6777, 0o777),
    "setgid-directory": with_mode(0o2775, 0o775, a.DIRECTORY),
    "sticky-directory": with_mode(0o1777, 0o777, a.DIRECTORY),
    "type-bits-in-a-mode": Kept(
        row=37,
        attack=archive(Member(b"m", b"data", raw={"mode": b"120644\0"})),
        twin=archive(Member(b"m", b"data", raw={"mode": b"000644\0"})),
        tree={b"m": file()},
    ),
    "a-read-only-directory-before-what-is-in-it": Kept(
        row=38,
        attack=archive(Member(b"ro", kind=a.DIRECTORY, mode=0o555), Member(b"ro/d/x", b"data")),
        twin=archive(Member(b"ro", kind=a.DIRECTORY, mode=0o755), Member(b"ro/d/x", b"data")),
        tree={b"ro": directory(0o555), b"ro/d": directory(), b"ro/d/x": file()},
        twin_tree={b"ro": directory(), b"ro/d": directory(), b"ro/d/x": file()},
    ),
    # cases: podman-container-tools/buildah#4625, borgbackup/borg#921, jdx/mise#10978
    "CVE-2014-9644-xattr": attributes(SCHILY__xattr__user__x=b"v"),
    "umoci-trusted-xattr": attributes(SCHILY__xattr__trusted__overlay__opaque=b"y"),
    "capability": attributes(SCHILY__xattr__security__capability=b"\x01\0\0\2\0\x20\0\0"),
    "acl": attributes(SCHILY__acl__access=b"user::rwx,user:0:rwx,group::r-x,other::r-x"),
    "immutable-flag": attributes(SCHILY__fflags=b"schg"),
    "selinux-label": attributes(RHT__security__selinux=b"system_u:object_r:shadow_t:s0"),
    "time-far-in-the-future": timed(b"99999999999999999999", (1 << 63) - 1),
    "time-before-all": timed(b"-99999999999", -(1 << 63)),
}


@pytest.mark.parametrize("slug", KEPT)
def test_kept(slug: str, ground: Ground) -> None:
    case = KEPT[slug]
    if slug.startswith("time-"):
        case = within_the_file_system(ground, case)
    try_kept(ground, case)
    for base, folders, files in os.walk(ground.folder / "out0"):
        for path in (os.path.join(base, name) for name in [*folders, *files]):
            status = os.lstat(path)
            # Nothing but what the tree says: no attribute, no owner but ours, no special bit.
            assert os.listxattr(path, follow_symlinks=False) == []
            assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
            assert not status.st_mode & 0o7000
            assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)


def within_the_file_system(ground: Ground, case: Kept) -> Kept:
    """A case whose times are what this file system makes of them."""
    probe = ground.folder / "in" / "probe"
    probe.touch()
    entries = {}
    for path, entry in case.tree.items():
        if path == b"d/f":
            os.utime(probe, ns=(0, entry.mtime_ns))  # type: ignore[union-attr]
            entry = file(mtime_ns=probe.stat().st_mtime_ns)
        entries[path] = entry
    return Kept(**{**{name: getattr(case, name) for name in Kept.__slots__}, "tree": entries})


def test_a_locked_directory_before_what_is_in_it(ground: Ground) -> None:
    """Its mode comes last, wherever it is set down and whoever does it."""
    for mode in (0, 0o755):
        members = [Member(b"locked", kind=a.DIRECTORY, mode=mode), Member(b"locked/x", b"data", mode=mode)]
        assert ground.take(archive(*members)).status == 0
        new, trapped = ground.target(), ground.target()
        trapped.mkdir()
        (trapped / "locked").symlink_to(ground.outside / "inner")
        for target, words in ((new, ()), (trapped, ("--mode", "exact"))):
            assert ground.restore(target, *words).status == 0
            assert stat.S_IMODE((target / "locked").lstat().st_mode) == mode
            (target / "locked").chmod(0o700)
            assert stat.S_IMODE((target / "locked" / "x").lstat().st_mode) == mode
            (target / "locked" / "x").chmod(0o600)
            assert (target / "locked" / "x").read_bytes() == b"data"
    ground.assert_unharmed()


def test_kaniko_owners_are_recorded_and_not_given(ground: Ground) -> None:
    """Root's files belong to whoever restores them, and so do nobody's; the numbers stay in the snapshot."""
    owners = {b"root": (0, 0), b"nobody": (65534, 65534), b"last": ((1 << 32) - 2, (1 << 32) - 2)}
    members = [
        Member(name, b"data", pax={b"uid": b"%d" % uid, b"gid": b"%d" % gid}) for name, (uid, gid) in owners.items()
    ]
    for content in (archive(*members), archive(*(Member(name, b"data") for name in owners))):
        assert ground.take(content).status == 0
        out = ground.target()
        assert ground.restore(out).status == 0
        for path in out.iterdir():
            assert (path.stat().st_uid, path.stat().st_gid) == (os.geteuid(), os.getegid())
        rows = ground.manifest().rows
        known = (
            owners
            if content != archive(*(Member(name, b"data") for name in owners))
            else dict.fromkeys(owners, (1000, 1000))
        )
        assert dict(zip(rows.paths, zip(rows.uids, rows.gids, strict=True), strict=True)) == known
    ground.assert_unharmed()


# What a hostile sandbox can say of the same.


def of(path: bytes, columns: Mapping[str, int], kind: int = table.FILE) -> Callable[[], Sequence[Segment]]:
    """A manifest of one entry with these values in its columns."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        if kind == table.DIRECTORY:
            add_directory(segment, path)
        elif kind == table.LINK:
            segment.add_link(path, 0o777, 1, 0, 0, b"x")
        else:
            add_file(segment, path)
        for name, value in columns.items():
            getattr(segment, name)[-1] = value
        return [segment]

    return made


def row_of(kind: int, reason: int) -> Callable[[], Sequence[Segment]]:
    """A manifest with one excluded row."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        segment.exclude(b"p", kind, reason)
        return [segment]

    return made


def two_links(group: int) -> Callable[[], Sequence[Segment]]:
    """A manifest of two links, in one hard-link group or in none."""

    def made() -> Sequence[Segment]:
        segment = root_segment()
        for path in (b"l", b"m"):
            segment.add_link(path, 0o777, 1, 0, 0, b"x")
            segment.groups[-1] = group
        return [segment]

    return made


CONTENT = "an entry that is no file has content"

LIES = {
    "a-link-with-a-size": Lie(
        row=34, attack=of(b"l", {"sizes": 9}, table.LINK), twin=of(b"l", {}, table.LINK), says=CONTENT, names="l"
    ),
    "a-directory-with-a-size": Lie(
        row=34,
        attack=of(b"d", {"sizes": 9}, table.DIRECTORY),
        twin=of(b"d", {}, table.DIRECTORY),
        says=CONTENT,
        names="d",
    ),
    "links-in-a-hard-link-group": Lie(row=34, attack=two_links(9), twin=two_links(0), says=CONTENT, names="l"),
    "a-pipe-among-the-entries": Lie(
        row=35, attack=of(b"p", {"kinds": table.FIFO}), twin=of(b"p", {}), says="cannot be read"
    ),
    "a-device-among-the-entries": Lie(
        row=35, attack=of(b"p", {"kinds": table.BLOCK_DEVICE}), twin=of(b"p", {}), says="cannot be read"
    ),
    "a-pipe-that-was-left-out-as-a-link": Lie(
        row=35,
        attack=row_of(table.LINK, table.REASON_FIFO),
        twin=row_of(table.FIFO, table.REASON_FIFO),
        says="kind does not fit its reason",
        names="p",
    ),
    "CVE-2026-5704-an-unknown-kind": Lie(
        row=36, attack=of(b"p", {"kinds": 200}), twin=of(b"p", {}), says="cannot be read"
    ),
    "an-unknown-reason": Lie(
        row=36, attack=row_of(table.FIFO, 99), twin=row_of(table.FIFO, table.REASON_FIFO), says="reason is unknown"
    ),
    "CVE-2005-2541-a-mode-of-more-than-twelve-bits": Lie(
        row=37,
        attack=of(b"f", {"modes": 0o104755}),
        twin=of(b"f", {"modes": 0o4755}),
        says="more than twelve bits",
    ),
}


@pytest.mark.parametrize("slug", LIES)
def test_lies(slug: str, ground: Ground) -> None:
    try_lie(ground, LIES[slug])


def test_CVE_2005_2541_a_sandbox_s_setuid_program_is_not_one_here(ground: Ground) -> None:
    """Both the capture's record of it and what a restore makes of it."""
    said = ground.send(_sent(0o6755))
    assert said.status == 0
    assert list(ground.manifest().rows.modes) == [0o6755]
    for mode in (0o6755, 0o755):
        assert ground.send(_sent(mode)).status == 0
        out = ground.target()
        assert ground.restore(out).status == 0
        assert stat.S_IMODE((out / "f").stat().st_mode) == 0o755
    ground.assert_unharmed()


def _sent(mode: int) -> bytes:
    from security.ground import sending

    return sending(of(b"f", {"modes": mode})(), ())
