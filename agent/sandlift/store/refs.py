"""Refs: the record of each capture of a workspace, numbered from 1.

An object ``refs/<workspace>/@<number>`` (ten digits) is a record (`sandlift.store.records`).  No part of a name
begins with ``@``, so a workspace ``a/0000000001`` has nothing in common with a ref of ``a``.

A ref is created whole and only if its number is free; whoever loses the race takes the next one.  A pruned ref
leaves a *tombstone* under its key, a record that says when, so no number ever means two captures.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from sandlift.errors import AmbiguousPrefix, BadName, StoreDamaged, StoreNewer, StoreUnusable, UnknownRef, UsageError
from sandlift.store import records, snapshots
from sandlift.store.names import check_name
from sandlift.store.objects import Objects, UnknownObject

REF_MAX: Final = 16 << 20
"""The most bytes of a ref."""
PREFIX_MIN: Final = 6
"""The fewest hex digits of an identity that may stand for it."""

_NUMBER_MAX = 9_999_999_999
_KEY = re.compile(r"refs/(?P<workspace>.+)/@(?P<number>[0-9]{10})", re.ASCII | re.DOTALL)
_SPEC = re.compile(r"(?P<workspace>[^@~]+)(?:@(?P<number>[0-9]{1,10})|~(?P<back>[0-9]{1,10}))?", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{1,64}", re.ASCII)
_LOOK_BACK_MIN = 16
_RACES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RefRecord:
    """One capture: which snapshot, when, from where, with what outcome."""

    capture_id: str
    """32 hex digits, invented for each capture; also the name of its pack."""
    snapshot: str
    """Identity of the snapshot, 64 hex digits."""
    content: str
    """Digest of path, kind, execute bit, bytes and link text alone, 64 hex digits."""
    workspace: str
    number: int = 0
    """From 1; 0 until the ref was created."""
    source: str
    """Where it came from, a URL without credentials."""
    started: str
    """RFC 3339 in UTC, with a trailing Z; so is ``ended``."""
    ended: str
    outcome: Literal["complete", "incomplete"]
    flags: Mapping[str, int] = field(default_factory=dict)
    """How many entries bear each flag, for example ``changed``."""
    counts: Mapping[str, int] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    policy_version: int
    helper_digest: str
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    reused: bool = False
    """Whether the snapshot was in the store before this capture."""
    format: int = records.FORMAT
    sealed: None = None

    @property
    def name(self) -> str:
        """``demo@7``."""
        return f"{self.workspace}@{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What is left of a pruned ref."""

    workspace: str
    number: int
    pruned: str
    """When, as in `RefRecord.started`."""


def key_of(workspace: str, number: int) -> str:
    """Returns the key of a ref.  Raises BadName, ValueError."""
    if not 0 < number <= _NUMBER_MAX:
        raise ValueError(f"no ref can have the number {number}")
    return f"refs/{check_name(workspace)}/@{number:010d}"


def create(objects: Objects, record: RefRecord) -> RefRecord:
    """Stores *record* under the next free number and returns it with that number.

    A ref that carries the same capture id already is returned as it stands: repeating a call whose answer was
    lost makes no second ref.  Raises BadName, UsageError, StoreFull, StoreUnusable.
    """
    numbers = _numbers(objects, record.workspace)
    if (earlier := _find_own(objects, record, numbers)) is not None:
        return earlier
    first = numbers[-1] + 1 if numbers else 1
    for number in range(first, first + _RACES_MAX):
        numbered = dataclasses.replace(record, number=number)
        data = _encode(numbered)
        if objects.create_if_absent(key_of(record.workspace, number), data):
            return numbered
        other = _read_if_sound(objects, record.workspace, number)
        if isinstance(other, RefRecord) and other.capture_id == record.capture_id:
            return other
    raise StoreUnusable(f"no free number for {record.workspace} after {_RACES_MAX} tries", hint="try again")


def read(objects: Objects, workspace: str, number: int) -> RefRecord | Tombstone:
    """Returns a ref or its tombstone.  Raises UnknownRef, StoreDamaged, StoreNewer."""
    key = key_of(workspace, number)
    try:
        data = objects.get(key, max_bytes=REF_MAX)
    except UnknownObject:
        raise UnknownRef(f"there is no {workspace}@{number}", hint=f"sandlift log {workspace} lists what is") from None
    what = f"the ref {workspace}@{number} ({key})"
    fields = records.decode(data, what)
    records.check_format(fields, what)
    stored = records.Fields(fields, what)
    if stored.text("workspace") != workspace or stored.count("number") != number:
        raise StoreDamaged(f"{what} is the record of another capture")
    if "pruned" in fields:
        return Tombstone(workspace=workspace, number=number, pruned=stored.time("pruned"))
    return _record(stored)


def log(objects: Objects, workspace: str) -> Iterator[RefRecord]:
    """Yields the refs of a workspace, newest first, without the pruned ones.

    Raises BadName, UnknownRef when there was never one, StoreDamaged when it comes to a damaged one.
    """
    numbers = _numbers(objects, workspace)
    if not numbers:
        raise _unknown(objects, workspace)
    for number in reversed(numbers):
        stored = read(objects, workspace, number)
        if isinstance(stored, RefRecord):
            yield stored


def newest(objects: Objects, workspace: str, looked_at: int) -> Iterator[RefRecord]:
    """Yields the refs among the newest *looked_at* numbers, newest first, but for pruned and damaged ones.

    There may be none.  Raises BadName.
    """
    for number in reversed(_numbers(objects, workspace)[-looked_at:]):
        if (found := find(objects, workspace, number)) is not None:
            yield found


def find(objects: Objects, workspace: str, number: int) -> RefRecord | None:
    """Returns a ref, or None for one that is pruned, unknown, damaged or of a newer format."""
    try:
        found = _read_if_sound(objects, workspace, number)
    except (StoreNewer, ValueError):
        return None
    return found if isinstance(found, RefRecord) else None


def workspaces(objects: Objects) -> list[str]:
    """Returns the names of all workspaces that ever had a ref, sorted."""
    return sorted({place[0] for info in objects.list("refs/") if (place := place_of(info.key)) is not None})


def resolve(objects: Objects, text: str) -> RefRecord | bytes:
    """Returns what *text* names: a ref, or the identity of a snapshot.

    ``demo`` is the newest ref, ``demo@7`` the one of that number, ``demo~1`` the one before the newest, and six
    or more hex digits are the beginning of an identity; a workspace of that name wins.  Raises UnknownRef,
    AmbiguousPrefix, StoreDamaged, StoreNewer.
    """
    match = _SPEC.fullmatch(text)
    workspace = match["workspace"] if match else ""
    try:
        numbers = _numbers(objects, workspace)
    except BadName:
        raise UnknownRef(
            f"{text!a} names no snapshot", hint="write demo, demo@7, demo~1 or the first digits of an identity"
        ) from None
    assert match is not None
    if numbers and match["number"] is not None:
        return _numbered(objects, workspace, int(match["number"]))
    if numbers:
        return _nth_newest(objects, workspace, int(match["back"] or 0), numbers)
    if workspace == text and _HEX.fullmatch(text):
        return _identity(objects, text.lower())
    raise _unknown(objects, workspace)


def place_of(key: str) -> tuple[str, int] | None:
    """Returns workspace and number of a ref's key, or None when it is no such key."""
    match = _KEY.fullmatch(key)
    try:
        return (check_name(match["workspace"]), int(match["number"])) if match and int(match["number"]) else None
    except BadName:
        return None


def _numbers(objects: Objects, workspace: str) -> list[int]:
    """Returns all numbers that are in use, pruned ones too, ascending."""
    prefix = f"refs/{check_name(workspace)}/"
    places = (place_of(info.key) for info in objects.list(prefix))
    return [place[1] for place in places if place is not None and place[0] == workspace]


def _find_own(objects: Objects, record: RefRecord, numbers: list[int]) -> RefRecord | None:
    """Returns the ref that this same capture made in an earlier try, if any.

    Numbers are given in order of time, so one that ended before this capture began ends the search; a few more
    are looked at, because the hosts of one store may have different clocks.
    """
    for seen, number in enumerate(reversed(numbers), start=1):
        other = _read_if_sound(objects, record.workspace, number)
        if isinstance(other, RefRecord):
            if other.capture_id == record.capture_id:
                return other
            if other.ended[:19] < record.started[:19] and seen >= _LOOK_BACK_MIN:
                return None
    return None


def _read_if_sound(objects: Objects, workspace: str, number: int) -> RefRecord | Tombstone | None:
    # A damaged ref must not keep a workspace from being captured: it keeps its number, and that is all.
    try:
        return read(objects, workspace, number)
    except (StoreDamaged, UnknownRef):
        return None


def _numbered(objects: Objects, workspace: str, number: int) -> RefRecord:
    if not 0 < number <= _NUMBER_MAX:
        raise UnknownRef(f"there is no {workspace}@{number}", hint="refs are numbered from 1")
    stored = read(objects, workspace, number)
    if isinstance(stored, Tombstone):
        raise UnknownRef(
            f"{workspace}@{number} was pruned at {stored.pruned}", hint=f"sandlift log {workspace} lists what is left"
        )
    return stored


def _nth_newest(objects: Objects, workspace: str, back: int, numbers: list[int]) -> RefRecord:
    alive = 0
    for number in reversed(numbers):
        stored = read(objects, workspace, number)
        if isinstance(stored, RefRecord):
            if alive == back:
                return stored
            alive += 1
    what = f"{workspace}~{back}" if back else workspace
    raise UnknownRef(
        f"there is no {what}: {workspace} has {alive} snapshot{'' if alive == 1 else 's'}",
        hint=f"sandlift log {workspace} lists them" if alive else "its refs were pruned",
    )


def _identity(objects: Objects, prefix: str) -> bytes:
    if len(prefix) < PREFIX_MIN:
        raise _unknown(objects, prefix)
    found = snapshots.find(objects, prefix)
    if not found:
        raise _unknown(objects, prefix)
    if len(found) > 1:
        shown = ", ".join(identity.hex()[: len(prefix) + 6] for identity in found[:4])
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise AmbiguousPrefix(f"{prefix} begins {len(found)} identities: {shown}{more}", hint="give more digits")
    return found[0]


def _unknown(objects: Objects, name: str) -> UnknownRef:
    import difflib

    known = workspaces(objects)
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif not known:
        hint = "the store holds no snapshot yet"
    else:
        hint = f"there are {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
    if _HEX.fullmatch(name) and len(name) < PREFIX_MIN:
        hint += f"; an identity needs at least {PREFIX_MIN} digits"
    return UnknownRef(f"no workspace or snapshot is named {name!a}", hint=hint)


def _encode(record: RefRecord) -> bytes:
    fields = {item.name: getattr(record, item.name) for item in dataclasses.fields(record)}
    fields["rules"] = list(record.rules)
    fields |= {name: dict(fields[name]) for name in ("flags", "counts", "labels")}
    try:
        _record(records.Fields(fields, "a new ref"))
    except StoreDamaged as error:
        # What could not be read back must not be written.
        raise ValueError(error.message) from error
    data = records.encode(fields)
    if len(data) > REF_MAX:
        raise UsageError(
            f"rules, labels and note of this capture take {len(data)} bytes, a ref holds {REF_MAX}",
            hint="shorten them",
        )
    return data


def _record(stored: records.Fields) -> RefRecord:
    outcome = stored.text("outcome")
    if outcome not in ("complete", "incomplete"):
        raise stored.wrong("outcome")
    return RefRecord(
        capture_id=stored.digits("capture_id", 32),
        snapshot=stored.digits("snapshot", 64),
        content=stored.digits("content", 64),
        workspace=stored.text("workspace"),
        number=stored.count("number"),
        source=stored.text("source"),
        started=stored.time("started"),
        ended=stored.time("ended"),
        outcome=cast(Literal["complete", "incomplete"], outcome),
        flags=stored.counts("flags"),
        counts=stored.counts("counts"),
        rules=stored.texts("rules"),
        policy_version=stored.count("policy_version"),
        helper_digest=stored.text("helper_digest"),
        labels=stored.text_map("labels"),
        note=stored.text("note"),
        reused=stored.truth("reused"),
    )
