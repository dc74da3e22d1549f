"""Partials: what a capture brought before it broke off, kept for the next one of the same target.

An object ``partials/<workspace>/@<target>`` (as in `sandlift.store.scans`) is a record with

    capture_id   of the capture that broke off
    packs        the packs that hold its blocks, stored before the partial: its own, and those of captures that
                 broke off before it
    target       64 hex digits that no other target has
    source       the target's URL without credentials, for people
    started      when that capture began
    rules        what decided about paths and links, as text
    digests      of the blocks, 32 bytes each; beside it the columns ``sizes`` (u32), ``pack_index`` (u32) and
                 ``offsets`` (u64)
    base         the identity of the own base whose rows were kept, empty where there was none
    rows, kept   the rows that came, and those that were kept: encoded tables, with stamps
    awaited      the names of files that the helper meant to read, each followed by NUL

A newer one of the same target takes its place, and a capture of the target that succeeds removes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sandlift.errors import StoreDamaged, StoreNewer
from sandlift.store import columns, records, snapshots
from sandlift.store import packs as pack_format
from sandlift.store.names import check_name
from sandlift.store.objects import Objects, UnknownObject
from sandlift.store.scans import target_digits

PARTIAL_MAX: Final = 1 << 30
"""The most bytes of a partial, its packs apart."""

_BYTES = ("digests", "rows", "kept", "base", "awaited")
_COLUMNS = {"sizes": "I", "pack_index": "I", "offsets": "Q"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialCapture:
    """What one broken capture left."""

    workspace: str
    target: str
    source: str
    capture_id: str
    packs: tuple[str, ...]
    started: str
    """RFC 3339 in UTC; so is ``ended``."""
    ended: str
    rules: tuple[str, ...] = ()
    digests: bytes = b""
    sizes: array[int] = field(default_factory=lambda: array("I"))
    pack_index: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    rows: bytes = b""
    kept: bytes = b""
    """Rows of the own base that were still true, as an encoded table; empty where there were none."""
    base: bytes = b""
    """The identity of that base."""
    awaited: bytes = b""


def key_of(workspace: str, target: str) -> str:
    """Returns the key of a target's partial.  Raises BadName, ValueError."""
    return f"partials/{check_name(workspace)}/@{target_digits(target)}"


def write(objects: Objects, partial: PartialCapture) -> None:
    """Stores a partial whose pack is stored, in place of the one before.  Raises StoreFull, StoreUnusable."""
    fields: dict[str, object] = {
        "format": records.FORMAT,
        "sealed": None,
        "rules": list(partial.rules),
        "packs": list(partial.packs),
    }
    for name in ("workspace", "target", "source", "capture_id", "started", "ended", *_BYTES):
        fields[name] = getattr(partial, name)
    for name, code in _COLUMNS.items():
        fields[name] = columns.encode(getattr(partial, name), code)
    with objects.put(key_of(partial.workspace, partial.target)) as writer:
        writer.write(records.encode(fields))
        writer.commit()


def read(objects: Objects, workspace: str, target: str) -> PartialCapture | None:
    """Returns the partial of a target, or None when there is none that can be read."""
    try:
        found = read_at(objects, key_of(workspace, target))
    except (UnknownObject, StoreDamaged, StoreNewer, ValueError):
        return None
    return found if (found.workspace, found.target) == (workspace, target) else None


def read_at(objects: Objects, key: str) -> PartialCapture:
    """Returns the partial at *key*.  Raises UnknownObject, StoreDamaged, StoreNewer."""
    what = f"the partial {key}"
    fields = records.decode(objects.get(key, max_bytes=PARTIAL_MAX), what)
    records.check_format(fields, what)
    stored = records.Fields(fields, what)
    raw = {name: fields.get(name) for name in (*_BYTES, *_COLUMNS)}
    data = {name: value for name, value in raw.items() if isinstance(value, bytes)}
    names = stored.texts("packs")
    for name in names:
        pack_format.key_of(name)
    if len(data) < len(raw) or len(data["digests"]) % 32 or len(data["base"]) not in (0, 32):
        raise StoreDamaged(f"{what} lacks a field")
    count = len(data["digests"]) // 32
    try:
        found = {name: columns.decode(data[name], code) for name, code in _COLUMNS.items()}
    except ValueError as error:
        raise StoreDamaged(f"{what} has a column that is cut off") from error
    if any(len(column) != count for column in found.values()) or max(found["pack_index"], default=-1) >= len(names):
        raise StoreDamaged(f"{what} has columns that do not fit together")
    return PartialCapture(
        workspace=stored.text("workspace"),
        target=stored.text("target"),
        source=stored.text("source"),
        capture_id=stored.digits("capture_id", 32),
        packs=names,
        started=stored.time("started"),
        ended=stored.time("ended"),
        rules=stored.texts("rules"),
        **found,
        digests=data["digests"],
        rows=data["rows"],
        kept=data["kept"],
        base=data["base"],
        awaited=data["awaited"],
    )


def log(objects: Objects, workspace: str | None = None) -> list[PartialCapture]:
    """Returns all partials that can be read, of one workspace or of all, oldest first."""
    found = []
    prefix = "partials/" if workspace is None else f"partials/{check_name(workspace)}/"
    for info in objects.list(prefix):
        try:
            partial = read_at(objects, info.key)
        except (UnknownObject, StoreDamaged, StoreNewer, ValueError):
            continue
        if info.key == key_of(partial.workspace, partial.target) and workspace in (None, partial.workspace):
            found.append(partial)
    return sorted(found, key=lambda partial: partial.ended)


def remove(objects: Objects, partial: PartialCapture) -> None:
    """Removes a partial; its packs stay, since snapshots may name them by now."""
    objects.delete(key_of(partial.workspace, partial.target))


def collect(objects: Objects, partial: PartialCapture) -> None:
    """Removes a partial, then those of its packs that nothing names."""
    remove(objects, partial)
    collect_packs(objects, partial.packs)


def collect_packs(objects: Objects, names: Iterable[str]) -> None:
    """Removes those of the packs that no snapshot and no partial names.

    A capture that was offered them and commits at the same time finds that a pack is missing, before it makes its
    ref.
    """
    doomed = set(names)
    for partial in log(objects):
        doomed.difference_update(partial.packs)
    for identity in snapshots.find(objects, "") if doomed else ():
        try:
            doomed.difference_update(snapshots.get(objects, identity).packs)
        except UnknownObject:
            continue
        except (StoreDamaged, StoreNewer):
            # What it names cannot be known.
            return
    for name in doomed:
        objects.delete(pack_format.key_of(name))
