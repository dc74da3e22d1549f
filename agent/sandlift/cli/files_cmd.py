"""Commands that look into a snapshot: ls and cat."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sandlift.cli import output
from sandlift.cli.settings import Settings, common_options, pass_settings
from sandlift.errors import StoreDamaged, UnknownPath

if TYPE_CHECKING:
    from sandlift.manifest import Manifest
    from sandlift.store import Store, StoredSnapshot

LINES_AT_ONCE = 1000


@click.command("ls")
@click.argument("ref")
@click.argument("path", required=False)
@common_options
@pass_settings
def ls(settings: Settings, ref: str, path: str | None) -> None:
    """List what the snapshot REF holds, sorted by path.

    With PATH, only that entry and all below it.
    """
    with settings.open_store() as store:
        manifest, _ = _load(store, ref)
    wanted = _clean(path) if path is not None else b""
    try:
        rows = sorted(manifest.below(wanted), key=manifest.rows.paths.__getitem__)
    except KeyError:
        raise _unknown(manifest, wanted, ref) from None
    listing = Listing(manifest)
    lines: list[str] = []
    for row in rows:
        lines.append(output.json_line(listing.fields(row)) if settings.json else listing.line(row))
        if len(lines) == LINES_AT_ONCE:
            output.write("".join(lines))
            lines.clear()
    output.write("".join(lines))


class Listing:
    """The rows of a manifest, as they are listed."""

    def __init__(self, manifest: Manifest) -> None:
        from sandlift_helper import table

        self._rows = manifest.rows
        self._kind_names = table.KIND_NAMES
        self._link, self._directory = table.LINK, table.DIRECTORY
        links = (row for row, kind in enumerate(self._rows.kinds) if kind == table.LINK)
        self._texts = dict(zip(links, zip(self._rows.texts, self._rows.originals, strict=True), strict=True))
        # Hard-link group -> the name of it that is listed first.
        self._first: dict[int, bytes] = {}
        for path, group in zip(self._rows.paths, self._rows.groups, strict=True):
            if group and (group not in self._first or path < self._first[group]):
                self._first[group] = path

    def fields(self, row: int) -> dict[str, object]:
        """Returns one row, for JSON."""
        rows = self._rows
        fields: dict[str, object] = {
            **output.text_fields("path", rows.paths[row]),
            "kind": self._kind_names[rows.kinds[row]],
            "mode": rows.modes[row],
            "size": rows.sizes[row],
            "mtime_ns": rows.mtimes_ns[row],
        }
        if row in self._texts:
            text, original = self._texts[row]
            fields |= output.text_fields("target", text)
            if original:
                fields |= output.text_fields("original_target", original)
        if (first := self._first_name(row)) is not None:
            fields |= output.text_fields("hardlink_of", first)
        return fields

    def line(self, row: int) -> str:
        """Returns one row, for people."""
        rows = self._rows
        kind = rows.kinds[row]
        kind_bits = {self._directory: stat.S_IFDIR, self._link: stat.S_IFLNK}.get(kind, stat.S_IFREG)
        size = output.size_text(rows.sizes[row]) if kind_bits == stat.S_IFREG else "-"
        name = output.quoted(rows.paths[row])
        if row in self._texts:
            name += f" -> {output.quoted(self._texts[row][0])}"
        if (first := self._first_name(row)) is not None:
            name += f" (hard link of {output.quoted(first)})"
        mode = stat.filemode(kind_bits | rows.modes[row])
        return f"{mode}  {size:>9}  {output.local_time_ns(rows.mtimes_ns[row])}  {name}\n"

    def _first_name(self, row: int) -> bytes | None:
        """Returns the name that this row's file was listed under before, if it was."""
        first = self._first.get(self._rows.groups[row])
        return first if first != self._rows.paths[row] else None


@click.command("cat")
@click.argument("ref")
@click.argument("path")
@common_options
@pass_settings
def cat(settings: Settings, ref: str, path: str) -> None:
    """Write a file of the snapshot REF to stdout.

    Each block is hashed before it is written; damage ends the output with an error.
    """
    with settings.open_store() as store:
        manifest, snapshot = _load(store, ref)
        wanted = _clean(path)
        try:
            row = manifest.find(wanted)
        except KeyError:
            raise _unknown(manifest, wanted, ref) from None
        for block in _contents(store, snapshot, manifest, row, ref):
            output.write_bytes(block)


def _contents(
    store: Store, snapshot: StoredSnapshot, manifest: Manifest, row: int, ref: str
) -> Iterator[bytes | memoryview]:
    """Yields a file's bytes; holes are zeros.  Raises UnknownPath for what is no file, StoreDamaged."""
    from sandlift_helper import table
    from sandlift_helper.wire import BLOCK_MAX

    rows = manifest.rows
    if rows.kinds[row] != table.FILE:
        shown = output.quoted(rows.paths[row])
        raise UnknownPath(
            f"{shown} is a {table.KIND_NAMES[rows.kinds[row]]}, not a file", hint=f"sandlift ls {ref} {shown} shows it"
        )
    size = rows.sizes[row]
    carrier = manifest.carrier(row)
    first, position, count = next(item for index, item in enumerate(rows.contents()) if index == carrier)
    held = {rows.positions[position + index] if position >= 0 else index: first + index for index in range(count)}
    numbers = {digest: number for number, digest in enumerate(manifest.blocks)}
    reader = store.blocks(snapshot)
    zeros = memoryview(bytes(BLOCK_MAX))
    for index in range(table.block_count(size)):
        length = min(BLOCK_MAX, size - index * BLOCK_MAX)
        if index not in held:
            yield zeros[:length]
            continue
        digest = bytes(rows.digests[32 * held[index] : 32 * held[index] + 32])
        block = reader.read(numbers[digest], digest)
        if len(block) != length:
            raise StoreDamaged(
                f"a block of {output.quoted(rows.paths[row])} has {len(block)} bytes instead of {length}"
            )
        yield block


def _load(store: Store, ref: str) -> tuple[Manifest, StoredSnapshot]:
    from sandlift.manifest import Manifest

    snapshot = store.load(store.resolve(ref))
    return Manifest.decode(snapshot.manifest, snapshot.originals), snapshot


def _clean(path: str) -> bytes:
    from sandlift.restoring.wanted import clean

    return clean(os.fsencode(path))


def _unknown(manifest: Manifest, path: bytes, ref: str) -> UnknownPath:
    """Returns the error for a path that is not there; if it was left out, it says why."""
    from sandlift_helper import table

    rows = manifest.rows
    for row, excluded in enumerate(rows.excluded_paths):
        if path == excluded or path.startswith(excluded + b"/"):
            reason = table.REASON_NAMES[rows.excluded_reasons[row]]
            return UnknownPath(
                f"{output.quoted(path)} is not in {ref}: {output.quoted(excluded)} was left out ({reason})",
                hint=f"sandlift show {ref} lists what was left out",
                reason=reason,
            )
    what = output.quoted(path) if path else "the root itself"
    return UnknownPath(f"{ref} holds no file {what}", hint=f"sandlift ls {ref} lists what it holds")
