"""The strict archive rules of OpenAI's Agents SDK: every export passes them, what plain `tar` makes does not.

Its remote backends pass what a sandbox's own `tar` made to `validate_tar_bytes`, with links out of the archive
forbidden, before they set a workspace up again; its local backend extracts with `safe_extract_tarfile`.  Both are
called here as the backends call them.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, safe_extract_tarfile, validate_tar_bytes
from archive import exports
from archive.conftest import Exporting
from archive.exports import TREES, copied, each, take
from cli.program import Place
from e2e.lift import Lift

from sandlift.archive.exporting import ExportSpec, export
from sandlift.deadline import Cancel, Deadline
from sandlift.errors import Interrupted
from support.needs import require
from support.tree import Dir, Entry, Fifo, File, HardLink, Link, Tree, assert_equal, make, read, tree

REFUSED = {"backslashes": "windows path separator"}
"""The trees that no archive could bring through those rules: a name with a backslash is refused as a path."""


def kept(entry: Entry) -> Entry:
    """What that extractor keeps: no times, no modes of directories, and of a file's mode what is safe."""
    if isinstance(entry, Dir):
        return Dir(mode=0o755, mtime_ns=0)
    if isinstance(entry, Link):
        return replace(entry, mtime_ns=0)
    if isinstance(entry, File):
        mode = entry.mode & 0o755
        return replace(entry, mode=(mode if mode & 0o100 else mode & ~0o111) | 0o600, mtime_ns=0)
    return entry


def validate(archive: bytes) -> None:
    """Judge an archive as the remote backends do."""
    validate_tar_bytes(archive, allow_external_symlink_targets=False)


def extract(archive: bytes, target: Path) -> Tree:
    """Extract as the local backend does, and read what is there."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as opened:
        safe_extract_tarfile(opened, root=target, allow_external_symlink_targets=False)
    return read(target)


def assert_arrives(expected: Tree, found: Tree) -> None:
    """Compare what that extractor can keep."""
    assert_equal(each(kept)(copied(expected)), each(kept)(found), holes=False)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("name", [name for name in TREES if name not in REFUSED])
def test_every_export_is_taken(exporting: Exporting, tmp_path: Path, name: str, compression: str) -> None:
    exported = exporting(name)
    archive = exported.archive(compression=compression)
    validate(archive)
    if compression == "none":
        assert_arrives(exported.expected, extract(archive, tmp_path / "out"))


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_those_rules_do_not_allow(exporting: Exporting, name: str) -> None:
    with pytest.raises(UnsafeTarMemberError, match=REFUSED[name]):
        validate(exporting(name).archive())


def test_links_that_those_rules_misjudge(lift: Lift) -> None:
    """They fold ``..`` by text: a link that stays inside by way of another is refused."""
    whole: dict[bytes, Entry] = {
        b"sub/deep/f": File(b""),
        b"data": File(b"d"),
        b"alias": Link(b"sub/deep"),
        b"l": Link(b"alias/../../data"),
    }
    make(tree(whole), lift.root)
    exported = take(lift)
    assert exported.taken.reasons == {}
    with pytest.raises(UnsafeTarMemberError, match="escapes archive root"):
        validate(exported.archive())
    validate(exported.archive(paths=(b"sub", b"data", b"alias")))


def test_hard_links_that_were_asked_for_are_refused(exporting: Exporting) -> None:
    with pytest.raises(UnsafeTarMemberError, match="hardlink member not allowed"):
        validate(exporting("hard-links").archive(hard_links="keep"))


def test_the_local_backend_sets_an_export_up(exporting: Exporting, tmp_path: Path) -> None:
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxSession, UnixLocalSandboxSessionState
    from agents.sandbox.snapshot import NoopSnapshot

    exported = exporting("virtual-environment")
    identity = uuid.uuid4()
    state = UnixLocalSandboxSessionState(
        session_id=identity, manifest=Manifest(root=str(tmp_path / "w")), snapshot=NoopSnapshot(id=str(identity))
    )
    session = UnixLocalSandboxSession.from_state(state)
    asyncio.run(session.hydrate_workspace(io.BytesIO(exported.archive())))
    assert_arrives(exported.expected, read(tmp_path / "w"))


# What its remote backends refuse of a sandbox's own tar.


def hard_links(root: Path) -> None:
    make(tree({b"a/first": File(b"shared\n"), b"second": HardLink(b"a/first"), b"other": File(b"o")}), root)


def a_fifo(root: Path) -> None:
    make(tree({b"file": File(b"kept\n"), b"pipe": Fifo()}), root)


def an_absolute_link(root: Path) -> None:
    target = os.fsencode(root) + b"/data/file"
    make(tree({b"data/file": File(b"kept\n"), b"deep/down/link": Link(target)}), root)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "hard-links": (hard_links, "hardlink member not allowed"),
    "fifo": (a_fifo, "unsupported member type"),
    "absolute-link": (an_absolute_link, "absolute symlink target not allowed"),
    "virtual-environment": (exports.virtual_environment, "absolute symlink target not allowed"),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where a workspace and a store can be."""
    return Place(root=tmp_path / "workspace", store=tmp_path / "store")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_raw_arrives_through_import_and_export(place: Place, tmp_path: Path, kind: str) -> None:
    require("tar")
    fill, reason = KINDS[kind]
    fill(place.root)
    raw = subprocess.run(["tar", "-cf", "-", "-C", place.root, "."], capture_output=True, check=True).stdout
    with pytest.raises(UnsafeTarMemberError, match=reason):
        validate(raw)

    (tmp_path / "raw.tar").write_bytes(raw)
    done = place.run("import", "--as", "demo", "--root", place.root, tmp_path / "raw.tar")
    assert (done.status, done.err) == (0, "")
    archive = place.run("export", "demo").stdout
    validate(archive)
    source = read(place.root)
    expected: dict[bytes, Entry] = {}
    for path, entry in source.entries.items():
        if isinstance(entry, Fifo) or (kind == "virtual-environment" and is_outside(entry)):
            continue
        if isinstance(entry, Link) and kind == "absolute-link":
            entry = replace(entry, text=b"../../data/file")
        expected[path] = entry
    assert len(expected) == len(source.entries) - {"fifo": 1, "virtual-environment": 1}.get(kind, 0)
    assert_arrives(tree(expected, root=source.root), extract(archive, tmp_path / "out"))


def is_outside(entry: Entry) -> bool:
    """Whether it is the link of a virtual environment to the interpreter that it was made with."""
    return isinstance(entry, Link) and entry.text.startswith(b"/") and os.path.samefile(entry.text, sys.executable)


def test_a_broken_export_is_refused_where_a_broken_tar_is_taken(exporting: Exporting) -> None:
    """Their rules do not ask for the end of an archive, so a `tar` that was cut between members looks whole."""
    exported = exporting("ordinary")
    whole = exported.archive()
    validate(whole[: whole.index(b"./src/many-blocks") - 512 * 2])
    cancel = Cancel()
    cancel.cancel()
    pieces: list[bytes] = []
    with pytest.raises(Interrupted):
        export(exported.lift.store, "demo", ExportSpec(), pieces.append, deadline=Deadline.after(None, cancel))
    with pytest.raises(UnsafeTarMemberError, match="invalid tar stream"):
        validate(b"".join(pieces))
