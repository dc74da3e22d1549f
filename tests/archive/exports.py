"""Trees to export, the programs that extract tars, and what each of them cannot do."""

from __future__ import annotations

import dataclasses
import os
import posixpath
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from e2e.lift import Lift, Taken

from sandlift.archive.exporting import Export, ExportSpec, export
from support.tree import Dir, Entry, Fifo, File, HardLink, Link, Socket, Tree, make, read, restored, tree

SECOND_NS = 1_000_000_000
NOON_NS = 1_500_000_000 * SECOND_NS
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A workspace, its capture, and what an export of it must extract to, hard links kept."""

    lift: Lift
    source: Tree
    taken: Taken
    expected: Tree

    def archive(self, **spec: object) -> bytes:
        """The exported tar."""
        return self.exported(**spec)[0]

    def exported(self, **spec: object) -> tuple[bytes, Export]:
        """The exported tar and what the export gave."""
        pieces: list[bytes] = []
        done = export(self.lift.store, self.taken.capture.ref, ExportSpec(**spec), pieces.append)  # type: ignore[arg-type]
        return b"".join(pieces), done


def take(lift: Lift) -> Exported:
    """Capture the workspace of *lift*."""
    source = read(lift.root)
    taken = lift.capture()
    assert taken.capture.outcome == "complete"
    rebased = {path: taken.links[path] for path in taken.originals}
    left = [path for path, reason in taken.reasons.items() if reason == "outside-link"]
    return Exported(lift=lift, source=source, taken=taken, expected=restored(source.without(*left), links=rebased))


def copied(wanted: Tree) -> Tree:
    """The tree with a file for each name of a hard-link group."""
    entries = wanted.entries
    whole = {path: entries[entry.to] if isinstance(entry, HardLink) else entry for path, entry in entries.items()}
    return tree(whole, root=wanted.root)


# Trees.


def ordinary(root: Path) -> None:
    make(
        tree(
            {
                b"README": File(b"read me\n"),
                b"empty": Dir(mtime_ns=NOON_NS),
                b"nothing": File(b"", mtime_ns=NOON_NS),
                b"bin/run": File(b"#!/bin/sh\n", mode=0o755),
                b"src/deep/er/data": File(bytes(range(256)) * 40),
                b"src/just-a-block": File(bytes(range(1, 129)) * 4, mtime_ns=NOON_NS + 1),
                b"src/many-blocks": File(os.urandom(3 * MIB + 17)),
                b"src/current": Link(b"deep/er"),
            },
            root=Dir(mode=0o750),
        ),
        root,
    )


def hard_links(root: Path) -> None:
    make(
        tree(
            {
                b"a/first": File(b"shared\n" * 1000, mode=0o640),
                b"a/second": HardLink(b"a/first"),
                b"b/third": HardLink(b"a/first"),
                b"x" * 120: HardLink(b"a/first"),
                b"long/" + b"n" * 200: File(b"both names are long\n"),
                b"long/" + b"o" * 200: HardLink(b"long/" + b"n" * 200),
                b"\xe9" * 110: File(b"neither is text\n"),
                b"\xea" * 110: HardLink(b"\xe9" * 110),
                b"empty/one": File(b""),
                b"empty/two": HardLink(b"empty/one"),
            }
        ),
        root,
    )


def links(root: Path) -> None:
    make(
        tree(
            {
                b"a.txt": File(b"a\n"),
                b"data.txt": File(b"data\n"),
                b"sub/data.txt": File(b"sub\n"),
                b"sub/deep/l": Link(b"../../data.txt"),
                b"alias": Link(b"sub/deep"),
                b"by-alias": Link(b"alias/../data.txt"),
                b"dangling": Link(b"nowhere/at/all"),
                b"loop/p": Link(b"q"),
                b"loop/q": Link(b"p"),
                b"slashes": Link(b"sub//data.txt"),
                b"dotted": Link(b"./sub/./data.txt"),
                b"behind": Link(b"sub/"),
                b"self": Link(b"."),
                b"text-of-100": Link(b"t" * 100),
                b"text-of-101": Link(b"t" * 101),
                b"text-of-4000": Link(b"./" * 1995 + b"data.txt"),
                b"odd-text": Link(b"caf\xe9 \n=" + b"\xff" * 120),
                b"decomposed": Link("e\u0301".encode() * 50),
                b"n" * 150: Link(b"m" * 150),
            }
        ),
        root,
    )


def absolute_links(root: Path) -> None:
    at = os.fsencode(root)
    make(
        tree(
            {
                b"data.txt": File(b"data\n"),
                b"sub/deep/up": Link(at + b"/data.txt"),
                b"folder": Link(at + b"/sub/"),
                b"top": Link(at),
                b"run": Link(at + b"//data.txt"),
                b"dangling": Link(at + b"/nope"),
            }
        ),
        root,
    )


def specials(root: Path) -> None:
    make(
        tree(
            {
                b"file": File(b"kept\n"),
                b"pipe": Fifo(),
                b"run/socket": Socket(),
                b"outside": Link(b"/etc/passwd"),
                b"run/above": Link(b"../../x"),
            }
        ),
        root,
    )


def long_names(root: Path) -> None:
    # With ./ in front a name of 98 bytes is the longest that fits the plain field; a directory has a slash behind it.
    lengths = {b"%03d-" % length + b"f" * (length - 4): File(b"%d" % length) for length in (97, 98, 99, 100, 255)}
    folders: dict[bytes, Entry] = {}
    for length in (96, 97, 98, 150, 151, 152, 153, 154, 155, 156, 255):
        folder = b"%03d-" % length + b"d" * (length - 4)
        folders[folder + b"/leaf"] = File(b"below %d" % length, mtime_ns=NOON_NS)
        folders[folder + b"/" + b"l" * 100] = File(b"", mtime_ns=NOON_NS)
        folders[folder + b"/" + b"m" * 101] = File(b"", mtime_ns=NOON_NS)
    deep = b"/".join(b"%02d-" % n + b"component" * 20 for n in range(16))
    make(tree({**lengths, **folders, deep + b"/end": File(b"deep\n"), deep + b"/..end": File(b"dots\n")}), root)


def odd_names(root: Path) -> None:
    names = [
        b"caf\xe9",
        b"\xe9" * 120,
        b"\xff\xfe/" + b"\xe9" * 200,
        "caf\u00e9".encode(),
        "composed-\u00e9".encode() * 20,
        "decomposed-e\u0301".encode() * 15,
        "\u1112\u1161\u11ab".encode() * 12,
        b"\xed\xa0\x80" * 60,
        b"\xc0\xaf" * 60,
        "\U0001f600".encode() * 45,
        b"new\nline",
        b"record\n20 path=elsewhere\n" * 8,
        b" leading and trailing ",
        b"tab\tand\x1b[31mcontrol\x01",
        b"quote'\"`$(x)",
        b"-rf",
        b"--checkpoint-action=exec=x",
        b"C:x",
        b"a:b.txt",
        b"...",
        b"..x",
        b"*?[a-z]{b,c}",
        b"GNU.sparse.0/x",
        b"PaxHeaders/x",
        b"~",
        b"#x#",
    ]
    make(tree({name: File(b"%d\n" % number) for number, name in enumerate(names)}), root)


def backslashes(root: Path) -> None:
    make(tree({b"a\\b": File(b"one name\n"), b"..\\..\\x": File(b"another\n"), b"l": Link(b"a\\b")}), root)


def times(root: Path) -> None:
    moments_ns = {
        b"epoch": 0,
        b"nanosecond": 1,
        b"whole": NOON_NS,
        b"half": NOON_NS + SECOND_NS // 2,
        b"before": -SECOND_NS,
        b"long-before": -1_000_000_000 * SECOND_NS,
        b"last-octal": ((1 << 33) - 1) * SECOND_NS,
        b"first-beyond": (1 << 33) * SECOND_NS,
        b"far": 9_000_000_000 * SECOND_NS + 125_000_000,
        b"before-half": -3 * SECOND_NS // 2,
    }
    files: dict[bytes, Entry] = {name: File(name, mtime_ns=ns) for name, ns in moments_ns.items()}
    folders: dict[bytes, Entry] = {b"d-" + name: Dir(mtime_ns=ns) for name, ns in moments_ns.items()}
    link: dict[bytes, Entry] = {b"l-" + name: Link(name, mtime_ns=ns) for name, ns in moments_ns.items()}
    make(tree({**files, **folders, **link}, root=Dir(mtime_ns=-1)), root)


def modes(root: Path) -> None:
    numbers = (0o400, 0o444, 0o500, 0o600, 0o622, 0o666, 0o711, 0o755, 0o777)
    files: dict[bytes, Entry] = {b"f%03o" % mode: File(b"x", mode=mode) for mode in numbers}
    folders: dict[bytes, Entry] = {b"d%03o" % mode: Dir(mode=mode) for mode in (0o500, 0o700, 0o711, 0o777)}
    make(tree({**files, **folders, b"d700/inside": File(b"y")}), root)


def sparse(root: Path) -> None:
    make(
        tree(
            {
                b"all-hole": File(size=3 * MIB),
                b"island": File(size=5 * MIB + 3, pieces=((2 * MIB + 5, b"data"),)),
                b"ends": File(b"head", size=4 * MIB, pieces=((4 * MIB - 4, b"tail"),)),
                b"short": File(size=100),
            }
        ),
        root,
    )


def virtual_environment(root: Path) -> None:
    root.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True, timeout=60)
    (root / "main.py").write_text("print('hello')\n")


TREES: dict[str, Callable[[Path], None]] = {
    "ordinary": ordinary,
    "hard-links": hard_links,
    "links": links,
    "absolute-links": absolute_links,
    "specials": specials,
    "long-names": long_names,
    "odd-names": odd_names,
    "backslashes": backslashes,
    "times": times,
    "modes": modes,
    "sparse": sparse,
    "virtual-environment": virtual_environment,
}


# Extractors.


@dataclass(frozen=True, slots=True, kw_only=True)
class Extractor:
    """A program that extracts a tar file into a folder; ``loses`` is applied to what is expected and what is found."""

    extract: Callable[[Path, Path], None]
    loses: Callable[[Tree], Tree] = dataclasses.field(default=lambda seen: seen)
    makes: Callable[[Tree], Tree] = dataclasses.field(default=lambda expected: expected)
    """What it makes of what is expected, where that is another thing."""


def _program(*words: str) -> Callable[[Path, Path], None]:
    def extract(archive: Path, target: Path) -> None:
        done = subprocess.run(
            [word.replace("ARCHIVE", str(archive)) for word in words],
            cwd=target,
            env={**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            capture_output=True,
            timeout=60,
            check=False,
            # BusyBox takes it from every mode, unless root runs it.
            umask=0,
        )
        if done.returncode:
            raise Unextracted(f"{words[0]} exits with {done.returncode}: {os.fsdecode(done.stderr[-500:])}")

    return extract


class Unextracted(Exception):
    """An extractor said that the archive is no good."""


def _tarfile(extraction_filter: Literal["fully_trusted", "data"]) -> Callable[[Path, Path], None]:
    def extract(archive: Path, target: Path) -> None:
        try:
            with tarfile.open(archive) as opened:
                opened.extractall(target, filter=extraction_filter)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise Unextracted(f"tarfile: {error}") from error

    return extract


def each(change: Callable[[Entry], Entry]) -> Callable[[Tree], Tree]:
    """What changes every entry of a tree, the root too."""

    def changed(seen: Tree) -> Tree:
        root = change(seen.root)
        assert isinstance(root, Dir)
        return tree({path: change(entry) for path, entry in seen.entries.items()}, root=root)

    return changed


def _busybox_loses(entry: Entry) -> Entry:
    """BusyBox knows no parts of seconds, no times of links, and sets a directory's time before its content is there."""
    if isinstance(entry, (Dir, Link)):
        return replace(entry, mtime_ns=0)
    return replace(entry, mtime_ns=entry.mtime_ns // SECOND_NS * SECOND_NS) if isinstance(entry, File) else entry


def _busybox_tree_loses(seen: Tree) -> Tree:
    """Only root's BusyBox sets the mode of a directory that was there before, as the target is."""
    seen = each(_busybox_loses)(seen)
    return seen if os.geteuid() == 0 else replace(seen, root=replace(seen.root, mode=0))


def _tarfile_loses(entry: Entry) -> Entry:
    """Python's tarfile keeps times as binary floating point, and sets none for links."""
    if isinstance(entry, Link):
        return replace(entry, mtime_ns=0)
    return replace(entry, mtime_ns=entry.mtime_ns // 1_000_000 * 1_000_000) if isinstance(entry, (Dir, File)) else entry


def _data_filter_loses(entry: Entry) -> Entry:
    """The data filter leaves directories the modes that they are made with, and newer ones fold link texts."""
    entry = _tarfile_loses(entry)
    if isinstance(entry, Dir):
        return replace(entry, mode=0o755)
    return replace(entry, text=posixpath.normpath(entry.text)) if isinstance(entry, Link) else entry


def _data_filter_makes(entry: Entry) -> Entry:
    """The data filter takes write from group and others, and gives the owner read and write."""
    if not isinstance(entry, File):
        return entry
    mode = entry.mode & 0o755 | 0o600
    return replace(entry, mode=mode if mode & 0o100 else mode & ~0o111)


def _bsdtar_makes(entry: Entry) -> Entry:
    """libarchive 3.6.2 takes the fraction of a time before 1970 for one that points to the future."""
    if isinstance(entry, (Dir, File, Link)) and entry.mtime_ns < 0:
        seconds, fraction_ns = divmod(-entry.mtime_ns, SECOND_NS)
        return replace(entry, mtime_ns=-seconds * SECOND_NS + fraction_ns)
    return entry


def _without_root_time(seen: Tree) -> Tree:
    """libarchive sets the time of a directory that was there before, as the target is, before its content."""
    return replace(seen, root=replace(seen.root, mtime_ns=0))


EXTRACTORS = {
    "gnu-tar": Extractor(extract=_program("tar", "-xpf", "ARCHIVE", "--delay-directory-restore")),
    "bsdtar": Extractor(
        extract=_program("bsdtar", "-xpf", "ARCHIVE"), loses=_without_root_time, makes=each(_bsdtar_makes)
    ),
    "busybox": Extractor(extract=_program("busybox", "tar", "-xpf", "ARCHIVE"), loses=_busybox_tree_loses),
    "tarfile": Extractor(extract=_tarfile("fully_trusted"), loses=each(_tarfile_loses)),
    "tarfile-data": Extractor(extract=_tarfile("data"), loses=each(_data_filter_loses), makes=each(_data_filter_makes)),
}
