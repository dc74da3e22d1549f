"""Commands that read the records of captures: log and show."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from sandlift.cli import output
from sandlift.cli.settings import Settings, common_options, pass_settings
from sandlift.errors import StoreDamaged

if TYPE_CHECKING:
    from sandlift.manifest import Manifest
    from sandlift.store import RefRecord, Store


@click.command("log")
@click.argument("name", required=False)
@common_options
@pass_settings
def log(settings: Settings, name: str | None) -> None:
    """List the snapshots of the workspace NAME, newest first.

    Without NAME, the newest snapshot of every workspace.
    """
    with settings.open_store() as store:
        if name is not None:
            records = list(store.log(name))
            damage = None
        else:
            records, damage = _newest_of_each(store)
    if settings.json:
        for record in records:
            output.write_json(log_fields(record))
    elif records:
        _write_log(records)
    elif damage is None and sys.stderr is not None:
        sys.stderr.write("sandlift: there is no snapshot\n")
    if damage is not None:
        raise damage


def _newest_of_each(store: Store) -> tuple[list[RefRecord], StoreDamaged | None]:
    """Returns the newest ref of each workspace, newest first, and the first damage: it must not hide the others."""
    records, damage = [], None
    for workspace in store.workspaces():
        try:
            record = next(store.log(workspace), None)
        except StoreDamaged as error:
            damage = damage or error
        else:
            records += [record] if record is not None else []
    return sorted(records, key=lambda record: record.ended, reverse=True), damage


def log_fields(record: RefRecord) -> dict[str, object]:
    """Returns one record, for JSON."""
    return {
        "ref": record.name,
        "snapshot": record.snapshot,
        "created": record.ended,
        "outcome": record.outcome,
        "counts": _counts(record.counts),
        "source": record.source,
        "labels": dict(record.labels),
        "note": record.note,
    }


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    from sandlift.results import Counts

    return {name: counts.get(name, 0) for name in Counts.__slots__}


def _write_log(records: list[RefRecord]) -> None:
    folded = 1
    heads, align = ["REF", "CREATED", "FILES", "SIZE", "LOST", "SOURCE"], "<<>>><"
    rows = []
    for record in records:
        counts = _counts(record.counts)
        rows.append(
            [
                record.name,
                output.local_time(record.ended),
                f"{counts['files']:,}",
                output.size_text(counts["bytes"]),
                f"{counts['lost']:,}" if counts["lost"] else "-",
                output.harmless(record.source),
            ]
        )
    if any(record.note or record.labels for record in records):
        heads, align, folded = [*heads, "NOTE"], align + "<", 2
        for row, record in zip(rows, records, strict=True):
            row.append("; ".join(text for text in (_labels(record.labels), output.harmless(record.note)) if text))
    output.write_table(heads, rows, align, folded=folded)


def _labels(labels: Mapping[str, str]) -> str:
    return output.harmless(", ".join(f"{key}={value}" for key, value in sorted(labels.items())))


@click.command("show")
@click.argument("ref")
@common_options
@pass_settings
def show(settings: Settings, ref: str) -> None:
    """Show what a snapshot holds, and what it lacks and why."""
    from sandlift.manifest import Manifest
    from sandlift.store import RefRecord

    with settings.open_store() as store:
        named = store.resolve(ref)
        snapshot = store.load(named)
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    record = named if isinstance(named, RefRecord) else None
    if settings.json:
        output.write_json(show_fields(record, manifest))
    else:
        _write_record(record, manifest)
        _write_rows(manifest)


def show_fields(record: RefRecord | None, manifest: Manifest) -> dict[str, object]:
    """Returns a snapshot's record, for JSON; a snapshot that was named by its identity has no record of its own."""
    from sandlift_helper import table

    rows = manifest.rows
    excluded = [
        {
            **output.text_fields("path", rows.excluded_paths[row]),
            "kind": table.KIND_NAMES[rows.excluded_kinds[row]],
            "reason": table.REASON_NAMES[rows.excluded_reasons[row]],
            **output.text_fields("detail", rows.details[row]),
        }
        for row in excluded_order(manifest)
    ]
    flagged = [
        {**output.text_fields("path", path), "flag": table.FLAG_NAMES[flag]}
        for path, flag in zip(rows.flag_paths, rows.flags, strict=True)
    ]
    return {
        "snapshot": manifest.identity.hex(),
        "content": manifest.content.hex(),
        "ref": record.name if record else None,
        "workspace": record.workspace if record else None,
        "number": record.number if record else None,
        "outcome": manifest.counts.outcome,
        "created": record.ended if record else None,
        "source": record.source if record else None,
        "labels": dict(record.labels) if record else {},
        "note": record.note if record else "",
        "counts": output.fields_of(manifest.counts),
        "excluded": excluded,
        "flagged": flagged,
        "rules": list(record.rules) if record else [],
        "policy_version": record.policy_version if record else None,
        "helper_digest": record.helper_digest if record else None,
    }


def excluded_order(manifest: Manifest) -> list[int]:
    """Returns the excluded rows in the order in which they are told: mounts, what was lost, all else; each by path."""
    from sandlift_helper import table

    rows = manifest.rows

    def rank(row: int) -> tuple[int, bytes]:
        reason = rows.excluded_reasons[row]
        return (0 if reason == table.MOUNT else 1 if reason >= table.LOST else 2), rows.excluded_paths[row]

    return sorted(range(len(rows.excluded_paths)), key=rank)


def _write_record(record: RefRecord | None, manifest: Manifest) -> None:
    counts = manifest.counts
    holds = ", ".join(
        (
            output.number_of(counts.directories, "directory", "directories"),
            output.number_of(counts.files, "file"),
            output.number_of(counts.links, "link"),
            output.size_text(counts.bytes),
        )
    )
    missing = [f"{counts.excluded - counts.lost:,} left out by policy", f"{counts.lost:,} lost"]
    missing += [f"{count:,} {name}" for name, count in (("changed", counts.changed), ("vanished", counts.vanished))]
    lines = [
        ("snapshot", manifest.identity.hex()),
        ("content", manifest.content.hex()),
        ("outcome", counts.outcome),
        ("holds", holds),
        ("missing", ", ".join(text for text in missing if not text.startswith("0 ")) or "nothing"),
    ]
    if record is not None:
        lines[:0] = [("ref", record.name), ("created", f"{record.ended} ({output.local_time(record.ended)} here)")]
        lines += [
            ("source", output.harmless(record.source)),
            ("labels", _labels(record.labels)),
            ("note", output.harmless(record.note)),
            *(("rule", output.harmless(rule)) for rule in record.rules),
            ("policy", str(record.policy_version)),
            ("helper", output.harmless(record.helper_digest)),
        ]
    output.write("".join(f"{name:9} {text}\n" for name, text in lines if text))


def _write_rows(manifest: Manifest) -> None:
    from sandlift_helper import table

    rows = manifest.rows
    left = []
    for row in excluded_order(manifest):
        reason = rows.excluded_reasons[row]
        detail = output.quoted(rows.details[row]) if rows.details[row] else ""
        path = output.quoted(rows.excluded_paths[row])
        if reason == table.OUTSIDE_LINK:
            path, detail = f"{path} -> {detail}", ""
        word = table.REASON_NAMES[reason]
        name = f"lost: {word}" if reason >= table.LOST else word
        left.append((name, table.KIND_NAMES[rows.excluded_kinds[row]], path + (f"  {detail}" if detail else "")))
    if left:
        output.write("\n")
        output.write_table(("REASON", "KIND", "LEFT OUT"), left, "<<<")
    if rows.flag_paths:
        flagged = [
            (table.FLAG_NAMES[flag], output.quoted(path))
            for path, flag in zip(rows.flag_paths, rows.flags, strict=True)
        ]
        output.write("\n")
        output.write_table(("FLAG", "PATH"), flagged, "<<")
