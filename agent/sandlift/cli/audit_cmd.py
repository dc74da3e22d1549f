"""The command that tells what would run code on a host that opens the restored tree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sandlift.cli import output
from sandlift.cli.settings import Settings, common_options, pass_settings
from sandlift.errors import UnknownPath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandlift.audit import Audit, Finding
    from sandlift.manifest import Manifest

ROWS_MAX = 40
"""An area with more findings is cut short for people."""

HEADS = {
    "git": "git: what git runs, or reaches, in here",
    "editor": "Editors",
    "agent": "Coding agents",
    "environment": "When a directory is entered, or an interpreter started in it",
    "packages": "When packages are installed or built, or tests run",
    "build": "When something is built on request",
    "shell": "Shells, where this is a home",
    "startup": "At start-up or on a schedule, where this is a home or a system",
    "access": "Access, where this is a home or a system",
    "modes": "Rights of files",
    "secrets": "Secrets; none is shown",
    "links": "Links that led out of the workspace",
    "names": "Names",
}


@click.command("audit")
@click.argument("ref")
@click.option("--path", "paths", metavar="PATH", multiple=True, help="Only this path and what is below it.")
@common_options
@pass_settings
def audit(settings: Settings, ref: str, paths: tuple[str, ...]) -> None:
    """List what in the snapshot REF would run code, once its restored tree is opened.

    That is: settings and hooks of git, tasks of editors, scripts of packages, start-up files and the like.  Rights,
    secrets and names that deceive are listed, too.  Nothing is run; findings do not change the exit status.
    """
    from sandlift.audit.auditor import audit_manifest
    from sandlift.manifest import Manifest
    from sandlift.restoring.wanted import clean
    from sandlift.store import RefRecord

    with settings.open_store() as store:
        named = store.resolve(ref)
        snapshot = store.load(named)
        manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
        wanted = [clean(os.fsencode(path)) for path in paths]
        for path in wanted:
            _check_known(manifest, path, ref)
        found = audit_manifest(manifest, store.blocks(snapshot), paths=wanted)
    name = named.name if isinstance(named, RefRecord) else None
    if settings.json:
        output.write_json(audit_fields(found, name, snapshot.identity.hex()))
    else:
        _write_audit(found, name or snapshot.identity.hex())


def _check_known(manifest: Manifest, path: bytes, ref: str) -> None:
    """Raises UnknownPath for a path that is neither an entry nor was left out."""
    try:
        if path and path not in manifest.rows.excluded_paths:
            manifest.find(path)
    except KeyError:
        raise UnknownPath(
            f"{ref} holds no {output.quoted(path)}", hint=f"sandlift ls {ref} lists what it holds"
        ) from None


def audit_fields(found: Audit, ref: str | None, snapshot: str) -> dict[str, object]:
    """Returns an audit, for JSON."""
    return {
        "ref": ref,
        "snapshot": snapshot,
        "counts": dict(found.counts),
        "left_off": found.left_off,
        "files_read": found.files_read,
        "too_large": found.too_large,
        "findings": [_finding_fields(finding) for finding in found.findings],
    }


def _finding_fields(finding: Finding) -> dict[str, object]:
    return {
        "category": finding.category,
        "severity": finding.severity,
        **output.text_fields("path", finding.path),
        "what": finding.what,
        **output.text_fields("detail", finding.detail),
    }


def _write_audit(found: Audit, name: str) -> None:
    by_category: dict[str, list[Finding]] = {}
    for finding in found.findings:
        by_category.setdefault(finding.category, []).append(finding)
    for category, findings in by_category.items():
        output.write(f"{HEADS[category]} ({len(findings):,})\n")
        output.write("".join(_lines(findings[:ROWS_MAX])))
        if len(findings) > ROWS_MAX:
            output.write(f"  and {len(findings) - ROWS_MAX:,} more; --json lists them all, --path those in one place\n")
        output.write("\n")
    words = ", ".join(f"{count:,} {severity}" for severity, count in found.counts.items())
    read = output.number_of(found.files_read, "file")
    output.write(f"{name}: {words or 'nothing found'} ({read} looked into)\n")
    if found.left_off:
        output.write(f"{found.left_off:,} findings are counted only, because there are too many of their kind\n")
    if found.too_large:
        large = output.number_of(found.too_large, "file is", "files are")
        output.write(f"{large} too large to be looked into, though the name calls for it\n")


def _lines(findings: Sequence[Finding]) -> list[str]:
    """Returns the findings of one area: a path once, what there is to say about it below."""
    lines: list[str] = []
    last: bytes | None = None
    for finding in findings:
        if finding.path != last:
            lines.append(f"  {output.quoted(finding.path) if finding.path else '(the root itself)'}\n")
            last = finding.path
        text = f": {output.quoted(finding.detail)}" if finding.detail else ""
        lines.append(f"      {finding.severity}: {finding.what}{text}\n")
    return lines
