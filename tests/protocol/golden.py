"""The stream of a capture of one fixed tree, both directions, as text that people can read and compare.

What differs from run to run (ids, versions, owners, the nonce, the digest at the end, progress) is left out or named.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from helper.drive import request

from sandlift import payload
from sandlift.limits import DEFAULT_LIMITS
from sandlift.session import Session
from sandlift_helper import members, messages, table, wire

GOLDEN = Path(__file__).with_name("golden.txt")
TIME_NS = 1_500_000_000_123_456_789
VOLATILE = {"python", "executable", "pid", "digest", "root", "instance"}


def make_tree(root: Path) -> None:
    """A tree with something for each column of the manifest."""
    root.mkdir()
    (root / "d").mkdir()
    (root / "a.txt").write_bytes(b"hello\n")
    (root / "d" / "empty").touch()
    (root / "d" / "run").write_bytes(b"#!/bin/sh\n" * 60)
    os.chmod(root / "d" / "run", 0o755)
    with (root / "sparse").open("wb") as file:
        # Below 2 MiB in all, so that one process reads the files, in one order.
        file.truncate(3 << 19)
        file.seek(1 << 20)
        file.write(b"island")
    os.link(root / "a.txt", root / "d" / "hard")
    os.symlink("../a.txt", root / "d" / "link")
    os.symlink("/alias/d", root / "absolute")
    os.symlink("/etc/passwd", root / "outside")
    os.mkfifo(root / "pipe")
    for path in sorted(root.rglob("*"), reverse=True) + [root]:
        if not path.is_symlink() and path.name not in ("run", "pipe"):
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
        os.utime(path, ns=(TIME_NS, TIME_NS), follow_symlinks=False)


def transcript(root: Path) -> str:
    """Captures *root* with the real helper and describes every frame of both directions."""
    session = Session("capture", DEFAULT_LIMITS)
    to_helper = session.request(request(root, codecs=["none"], aliases=[b"/alias"])) + session.grant(32)
    process = subprocess.Popen(payload.local_argv(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(payload.opening(session.nonce, "capture") + to_helper)
        process.stdin.flush()
        output = process.stdout.read()
    mark = wire.MAGIC + session.nonce
    assert output.startswith(mark)
    lines = ["host to helper", *described(to_helper), "", "helper to host", f"  mark {wire.MAGIC!r} + nonce"]
    return "\n".join([*lines, *described(output[len(mark) :]), ""])


def described(data: bytes) -> Iterator[str]:
    reader = wire.Reader()
    for kind, body in reader.feed(data):
        name = wire.KIND_NAMES[kind]
        if kind in (wire.MANIFEST, wire.CONTENT):
            codec, size, encoded = wire.split_packed(body, wire.SEGMENT_MAX)
            yield f"  {name} kind={kind} length={len(body)} codec={codec} decoded={size}"
            yield from (_segment(encoded) if kind == wire.MANIFEST else _run(encoded))
        elif kind != wire.PROGRESS:
            yield f"  {name} kind={kind}"
            yield from _message(messages.decode(body), "    ")
    assert not reader.trailer


def _message(message: Mapping[str, object], indent: str) -> Iterator[str]:
    for key, value in sorted(message.items()):
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _message(value, indent + "  ")
        else:
            yield f"{indent}{key}: " + (f"({type(value).__name__})" if key in VOLATILE else repr(value))


def _run(run: memoryview) -> Iterator[str]:
    for digest, start, size in members.parse_run(run):
        head = bytes(run[start - members.HEADER_SIZE : start])
        yield f"    member {digest.hex()} offset={start} size={size}"
        yield f"      header ...{head[100:156]!r}..."


def _segment(encoded: memoryview) -> Iterator[str]:
    rows = table.decode(encoded)
    if rows.root is not None:
        yield f"    root mode={rows.root.mode:o} mtime_ns={rows.root.mtime_ns}"
    links = iter(zip(rows.texts, rows.originals, strict=True))
    for row, (digest, position, count) in enumerate(rows.contents()):
        kind = table.KIND_NAMES[rows.kinds[row]]
        line = f"    {kind} {rows.paths[row]!r} mode={rows.modes[row]:o} mtime_ns={rows.mtimes_ns[row]}"
        if rows.kinds[row] == table.LINK:
            text, original = next(links)
            line += f" text={text!r} original={original!r}"
        elif rows.kinds[row] == table.FILE:
            line += f" size={rows.sizes[row]} group={'(number)' if rows.groups[row] else 0}"
            places = list(rows.positions[position : position + count]) if position >= 0 else "all"
            digests = [bytes(rows.digests[32 * at : 32 * at + 4]).hex() for at in range(digest, digest + count)]
            line += f" positions={places} digests={digests}"
        yield line
    columns = rows.excluded_paths, rows.excluded_kinds, rows.excluded_reasons, rows.details
    for path, entry_kind, reason, detail in zip(*columns, strict=True):
        yield f"    excluded {path!r} {table.KIND_NAMES[entry_kind]} {table.REASON_NAMES[reason]} {detail!r}"
    for path, flag in zip(rows.flag_paths, rows.flags, strict=True):
        yield f"    flag {path!r} {table.FLAG_NAMES[flag]}"
    for name in ("settled", "awaited", "claims"):
        if len(getattr(rows, name)):
            yield f"    {name} {bytes(getattr(rows, name))!r}"
    if rows.inodes:
        yield f"    stamps of {len(rows.inodes)} files"
    if rows.orphans:
        yield f"    orphans {bytes(rows.orphans).hex()}"
