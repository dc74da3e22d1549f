"""Whoever sends, asks, plants and is looked at: classes 78 to 90."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from archive import archives as a
from archive.archives import Member, archive
from protocol.replay import MARK, contents
from protocol.stream import Stream, add_file, digest_of, member, message, root_segment
from security.ground import Ground, Lie, directory, file, no_process, sending, try_lie

from sandlift import errors
from sandlift.errors import RemoteProtocolError, SandliftError
from sandlift_helper import wire
from sandlift_helper.table import Segment
from support.needs import require
from support.tree import Dir, assert_equal, read, tree

ONE, TWO = b"one block", b"another block"


def of(*blocks: bytes, size: int = -1) -> Segment:
    """A manifest of a file for each block."""
    segment = root_segment()
    for number, block in enumerate(blocks):
        add_file(segment, b"%d" % number, block, size=size)
    return segment


LIES = {
    "manifest-size-larger-than-the-block": Lie(
        row=80,
        attack=lambda: [of(ONE, size=len(ONE) + 1)],
        twin=lambda: [of(ONE)],
        says="block of a file has another size",
        names="0",
        blocks=(ONE,),
    ),
    "manifest-size-smaller-than-the-block": Lie(
        row=80,
        attack=lambda: [of(ONE, size=len(ONE) - 1)],
        twin=lambda: [of(ONE)],
        says="block of a file has another size",
        names="0",
        blocks=(ONE,),
    ),
    "a-block-that-is-missing": Lie(
        row=80,
        attack=lambda: [of(ONE, TWO)],
        twin=lambda: [of(ONE)],
        says="block of a file was never sent",
        names="1",
        blocks=(ONE,),
    ),
    "a-block-that-nothing-names": Lie(
        row=80,
        attack=lambda: [of(ONE)],
        twin=lambda: [of(ONE, TWO)],
        says="blocks were sent that nothing names",
        blocks=(ONE, TWO),
    ),
    "Dropship-a-block-of-somebody-else": Lie(
        # The store has it, of the snapshot that was there before.
        row=82,
        attack=lambda: [of(b"stored before the attack")],
        twin=lambda: [of(b"stored before the attack")],
        says="block of a file was never sent",
        names="0",
        twin_blocks=(b"stored before the attack",),
    ),
}


@pytest.mark.parametrize("slug", LIES)
def test_lies(slug: str, ground: Ground) -> None:
    try_lie(ground, LIES[slug])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """What comes behind the mark, and its harmless twin."""

    row: int
    attack: bytes
    twin: bytes
    says: str
    error: type[SandliftError] = RemoteProtocolError


def opening(*blocks: bytes) -> Stream:
    """A hello and some blocks."""
    made = Stream().hello()
    for block in blocks:
        made.content(block)
    return made


def named(algorithm: str) -> bytes:
    """A capture whose one block is named by another hash of 32 bytes."""
    name = hashlib.new(algorithm, ONE).digest()
    assert len(name) == 32
    segment = root_segment()
    segment.add_file(b"f", 0o644, 1, 0, 0, len(ONE), 0, [name])
    return Stream().hello().run(member(ONE, name=name), 1).manifest(segment).end().data


HONEST = sending([of(ONE)], [ONE])
OTHER_NAME = opening().run(member(ONE, name=digest_of(TWO)), 1).manifest(of(TWO)).end().data
CUT_OFF = opening(ONE).manifest(of(ONE)).data

FRAMES = {
    "a-block-that-is-not-what-it-is-called": Frames(
        row=80, attack=OTHER_NAME, twin=sending([of(TWO)], [TWO]), says="does not hash to its name"
    ),
    "a-wrong-digest-at-the-end": Frames(
        row=80, attack=opening(ONE).manifest(of(ONE)).end(digest=bytes(32)).data, twin=HONEST, says="digest at the end"
    ),
    "a-wrong-count-at-the-end": Frames(
        row=80, attack=opening(ONE).manifest(of(ONE)).end(blocks=2).data, twin=HONEST, says="counts 2 blocks, 1 came"
    ),
    "a-manifest-after-the-end": Frames(
        row=80, attack=HONEST + opening().manifest(of(TWO)).frames[1], twin=HONEST, says="goes on after its end"
    ),
    **{
        f"SHAttered-a-name-by-{algorithm}": Frames(
            row=83, attack=named(algorithm), twin=named("sha256"), says="does not hash to its name"
        )
        for algorithm in ("sha3_256", "blake2s", "sm3")
        if algorithm in hashlib.algorithms_available
    },
    **{
        f"CVE-2024-12086-the-sandbox-sends-{wire.KIND_NAMES[kind]}": Frames(
            row=90, attack=Stream().hello().add(kind, payload).data, twin=HONEST, says=says
        )
        for kind, payload, says in (
            (wire.REQUEST, message(root=b"/", limits={}), "request frame"),
            (wire.BASE, bytes(32), "base frame"),
            (wire.WANT, digest_of(b"stored before the attack"), "want frame"),
            (wire.HAVE, message(codecs=[]), "answer to the base lacks a field"),
            (wire.CREDIT, message(frames=1), "credit frame"),
        )
    },
}


@pytest.mark.parametrize("slug", FRAMES)
def test_frames(slug: str, ground: Ground) -> None:
    """Refused at once, nothing stored, one harmless line; the twin is a capture."""
    case = FRAMES[slug]
    before = ground.stored()
    said = ground.send(case.attack)
    assert said.status == case.error.exit == 4, said
    assert said.out == ""
    assert case.says in said.err
    assert all(line.isprintable() for line in said.err.splitlines())
    assert ground.stored() == before
    assert ground.send(case.twin).status == 0
    ground.assert_unharmed()


def around_the_stream(ground: Ground, before: bytes, after: bytes = b"", mark: bytes = MARK) -> int:
    """Captures with something printed around an honest stream; returns the exit status."""
    path = ground.folder / "in" / "stream"
    path.write_bytes(before + mark + HONEST + after)
    return ground.run("capture", "/w", "--via", f"sh -c 'exec cat {path}'", "--as", "demo", "--timeout", "20").status


CONTAMINATED: dict[str, tuple[bytes, bytes, bytes, bytes]] = {
    # before the stream and after it: the attack's, the twin's
    "a-banner-without-end": (b"x" * ((1 << 20) + 1), b"", b"x" * (1 << 20), b""),
    "a-farewell-without-end": (b"", b"x" * ((64 << 10) + 1), b"", b"x" * (64 << 10)),
    "a-frame-after-the-end": (b"", wire.frame(wire.PROGRESS, b"\x80"), b"", b"logout\n"),
}


@pytest.mark.parametrize("slug", CONTAMINATED)
def test_contamination(slug: str, ground: Ground) -> None:
    before, after, twin_before, twin_after = CONTAMINATED[slug]
    stored = ground.stored()
    assert around_the_stream(ground, before, after) == 4
    assert ground.stored() == stored
    assert around_the_stream(ground, twin_before, twin_after) == 0
    ground.assert_unharmed()


def test_the_stream_of_another_run(ground: Ground) -> None:
    """Recorded yesterday: whole and right, with yesterday's nonce; nothing of it is believed."""
    stored = ground.stored()
    yesterday = wire.MAGIC + bytes(16)
    assert around_the_stream(ground, b"", mark=yesterday) == errors.HelperStart.exit
    assert ground.stored() == stored
    assert around_the_stream(ground, b"") == 0
    # And before today's it is noise.
    assert around_the_stream(ground, yesterday + HONEST) == 0
    ground.assert_unharmed()


def test_CVE_2019_11251_a_stream_without_an_end(ground: Ground) -> None:
    """All that it names has come; only the end is missing.  It is no snapshot, and is kept for the next capture."""
    stored = ground.stored()
    said = ground.send(CUT_OFF)
    assert said.status == errors.Truncated.exit
    left = ground.stored()
    assert {name: left.get(name) for name in stored} == stored
    assert {name.partition("/")[0] for name in left.keys() - stored.keys()} == {"packs", "partials"}
    assert ground.send(HONEST).status == 0
    ground.assert_unharmed()


def test_SHAttered_names_are_sha256(ground: Ground) -> None:
    """Of blocks in a pack, of a snapshot, and of no other algorithm."""
    assert ground.send(HONEST).status == 0
    said = json.loads(ground.run("show", "demo", "--json").out)
    manifest = ground.manifest()
    assert said["snapshot"] == hashlib.sha256(manifest.encoded).hexdigest() == manifest.identity.hex()
    assert manifest.blocks == [hashlib.sha256(ONE).digest()]
    before = ground.stored()
    assert ground.send(HONEST).status == 0
    assert {name for name in ground.stored() if name not in before} == {
        name for name in ground.stored() if name.startswith("refs/") and name not in before
    }
    ground.assert_unharmed()


# What stands in a tree, and who might run it.

PLANTED = ("python3", "python", "tar", "sh", "git", "zstd", "gzip", "ssh", "sandlift")
MODULES = ("os.py", "click.py", "zstandard.py", "msgpack.py", "sitecustomize.py", "usercustomize.py", "conftest.py")


def traps(mark: Path) -> bytes:
    """An archive full of programs and modules that make *mark* when they run."""
    shell = f"#!/bin/sh\ntouch {mark}\n".encode()
    python = f"open({os.fspath(mark)!r}, 'w').close()\n".encode()
    members = [Member(name.encode(), shell, mode=0o755) for name in PLANTED]
    members += [Member(name.encode(), python) for name in MODULES]
    members += [Member(b"%b/__init__.py" % name, python) for name in (b"sandlift_helper", b"encodings", b"ctypes")]
    return archive(*members)


def test_CVE_2026_41567_tools_planted_in_a_tree(ground: Ground) -> None:
    """The real program, started in the tree, does its work with the host's tools."""
    mark = ground.folder / "in" / "ran"
    program = os.path.join(os.path.dirname(sys.executable), "sandlift")
    assert ground.take(traps(mark)).status == 0
    trapped = ground.target()
    assert ground.restore(trapped).status == 0
    harmless = ground.target()
    harmless.mkdir()
    for tree_root in (trapped, harmless):
        store = ("--store", os.fspath(ground.store))
        for words in (
            ("capture", ".", "--as", "again", *store),
            ("restore", "again", os.fspath(ground.target()), *store),
            ("audit", "again", *store),
            ("export", "again", "--zstd", "-o", os.fspath(ground.folder / "in" / "exported"), *store),
            ("verify", *store),
        ):
            done = subprocess.run([program, *words], cwd=tree_root, capture_output=True, timeout=60, check=False)
            assert done.returncode == 0, done
            assert not mark.exists(), words
    # They do run when somebody runs them.
    subprocess.run([trapped / "tar"], check=True, timeout=20)
    assert mark.exists()
    ground.assert_unharmed()


REPOSITORY = {
    "CVE-2022-24765-fsmonitor": (b"[core]\n\tfsmonitor = %b\n", b""),
    "CVE-2024-32002-a-hook": (b"", b"hooks/post-index-change"),
}


def repository(folder: Path, mark: Path, slug: str) -> bytes:
    """An archive of a repository that makes *mark* when git looks at it."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-C", os.fspath(folder)]
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"text\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True, timeout=30)
    script = folder / "run"
    script.write_text(f"#!/bin/sh\ntouch {mark}\n")
    script.chmod(0o755)
    config, hook = REPOSITORY.get(slug, (b"", b""))
    if config:
        with open(folder / ".git" / "config", "ab") as file_:
            file_.write(config % b"./run")
    if hook:
        script.rename(folder / ".git" / os.fsdecode(hook))
    return subprocess.run(["tar", "c", "-C", folder, "."], check=True, capture_output=True, timeout=30).stdout


@pytest.mark.parametrize("slug", REPOSITORY)
def test_content_that_host_tools_execute(slug: str, ground: Ground) -> None:
    """No command of ours runs it, whatever is done with the snapshot; git does where it was kept, not where inert."""
    require("git", "tar")
    mark = ground.folder / "in" / "ran"
    content = repository(ground.folder / "in" / "repository", mark, slug)
    mark.unlink(missing_ok=True)
    assert ground.take(content).status == 0
    for words in (("ls", "demo"), ("show", "demo"), ("log",), ("audit", "demo"), ("verify",)):
        with no_process():
            assert ground.run(*words).status == 0
    kept, inert = ground.target(), ground.target()
    assert ground.restore(kept, "--git", "keep").status == 0
    assert ground.restore(inert, "--git", "inert").status == 0
    assert ground.run("export", "demo", "-o", ground.folder / "in" / "exported").status == 0
    assert ground.run("capture", kept, "--as", "again").status == 0
    assert ground.restore(kept, "--mode", "exact").status == 0
    assert not mark.exists()

    def status(tree_root: Path) -> None:
        env = {**os.environ, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        os.utime(tree_root / "a.txt")
        subprocess.run(["git", "status"], cwd=tree_root, env=env, check=True, capture_output=True, timeout=30)

    status(inert)
    assert not mark.exists()
    status(kept)
    assert mark.exists()
    ground.assert_unharmed()


def test_CVE_2026_54572_what_a_link_of_a_workspace_leads_to_is_not_taken(ground: Ground) -> None:
    """A secret that links lead to, files, directories and rule files, against the same secret inside."""
    secret = b"a secret of this machine, %d" % os.getpid()
    (ground.outside / "victim").write_bytes(secret)
    (ground.outside / "rules").write_bytes(b"*\n")
    ground.remember()
    root = ground.folder / "in" / "w"
    root.mkdir()
    (root / "plain").write_bytes(b"plain")
    for name, text in (("l", "victim"), ("d", "."), (".sandliftignore", "rules")):
        (root / name).symlink_to(ground.outside / text)
    assert ground.run("capture", root, "--as", "demo").status == 0
    assert list(ground.manifest().rows.paths) == [b"plain"]
    assert hashlib.sha256(secret).digest() not in ground.manifest().blocks
    assert ground.excluded() == dict.fromkeys((b"l", b"d", b".sandliftignore"), "outside-link")
    (root / "inside").write_bytes(secret)
    assert ground.run("capture", root, "--as", "demo").status == 0
    assert hashlib.sha256(secret).digest() in ground.manifest().blocks
    ground.assert_unharmed()


# Reports.

REPORTED = (
    b"=cmd|' /C calc'!A1", b"+1+1", b"@SUM(A1)", b"<script>alert(1)</script>", b"<img src=x onerror=y>", b"`id`",
    b"$(id)", b"[click](http:x)", b"[bold]x", b"{{7*7}}", b"%s%n", b"a,b", b'a"b', b"a;b", b"a\tb", b"demo@9: 0 files",
    b'","error":{"code":"x"}', b"\xff\xfe",
)  # fmt: skip


@pytest.mark.parametrize("words", [("ls", "demo"), ("show", "demo"), ("audit", "demo")], ids=lambda words: words[0])
def test_report_injection(words: tuple[str, ...], ground: Ground) -> None:
    """Names are one string of JSON each, and stay on their own line of text; HTML and CSV are not written at all."""
    members = [
        Member(name, kind=a.LINK, link=b"/out/" + name) if words[0] == "show" else Member(name) for name in REPORTED
    ]
    for made in (members, [Member(b"plain", kind=a.LINK, link=b"/x") if words[0] == "show" else Member(b"plain")]):
        assert ground.take(archive(*made)).status == 0
        said = ground.run(*words, "--json")
        assert said.status == 0
        assert said.out.isascii()
        text = ground.run(*words).out
        assert all(line.isprintable() for line in text.split("\n"))
        found: set[bytes] = set()
        for line in said.out.splitlines():
            value = json.loads(line)
            assert value["schema"] == 1
            found |= set(_paths(value))
        if words[0] != "audit":
            assert {member.name for member in made} <= found
        if words[0] == "ls":
            assert len(text.splitlines()) == len(said.out.splitlines())
    ground.assert_unharmed()


def _paths(value: object) -> list[bytes]:
    """The paths in an answer, as bytes."""
    if isinstance(value, list):
        return [path for item in value for path in _paths(item)]
    if not isinstance(value, dict):
        return []
    found = [path for item in value.values() for path in _paths(item)]
    if "path_b64" in value:
        return [*found, base64.b64decode(value["path_b64"])]
    if isinstance(value.get("path"), str):
        return [*found, value["path"].encode()]
    return found


def test_an_accepted_archive_is_set_down_by_our_own_bytes(ground: Ground) -> None:
    """What leaves the store is encoded anew: an export holds no byte of the archive's own headers."""
    odd = Member(b"f", b"data", raw={"uname": b"strange-user", "tail": b"covert"}, pad=b"s" * 508)
    for member_ in (odd, Member(b"f", b"data")):
        assert ground.take(archive(member_)).status == 0
        out = ground.folder / "in" / "exported"
        assert ground.run("export", "demo", "-o", out).status == 0
        assert not any(word in out.read_bytes() for word in (b"strange-user", b"covert", b"s" * 100))
        target = ground.target()
        assert ground.restore(target).status == 0
        assert_equal(tree({b"f": file()}, root=Dir(mtime_ns=directory().mtime_ns)), read(target))
        out.unlink()
    assert contents(ground.store)
    ground.assert_unharmed()
