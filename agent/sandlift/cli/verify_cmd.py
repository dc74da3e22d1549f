"""The command that reads the whole store again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sandlift.cli import output
from sandlift.cli.progress import reporter
from sandlift.cli.settings import Settings, common_options, pass_settings

if TYPE_CHECKING:
    from sandlift.store import VerifyReport

EXIT_DAMAGED = 1


@click.command("verify")
@common_options
@pass_settings
def verify(settings: Settings) -> int:
    """Read and hash everything in the store again.

    Exit status 1 says that something is damaged.
    """
    from sandlift.watch import Watch

    with settings.open_store() as store, reporter(settings) as on_event:
        watch = Watch(on_event)
        report = store.verify(lambda done, total: watch.progress("verify", bytes=done, total_bytes=total))
        watch.end()
    if settings.json:
        output.write_json(report_fields(report))
    else:
        _write_report(report)
    return 0 if report.is_sound else EXIT_DAMAGED


def report_fields(report: VerifyReport) -> dict[str, object]:
    """Returns a report, for JSON."""
    return {
        "packs": report.packs,
        "snapshots": report.snapshots,
        "refs": report.refs,
        "bytes": report.bytes,
        "damaged": [
            {"object": damage.object, "reason": damage.reason, "refs": list(damage.refs)} for damage in report.damaged
        ],
    }


def _write_report(report: VerifyReport) -> None:
    if report.damaged:
        rows = [
            (output.harmless(damage.object), ", ".join(damage.refs) or "-", output.harmless(damage.reason))
            for damage in report.damaged
        ]
        output.write_table(("DAMAGED", "NEEDED BY", "HOW"), rows, "<<<")
        output.write("\n")
    read = ", ".join(
        (
            output.number_of(report.refs, "ref"),
            output.number_of(report.snapshots, "snapshot"),
            output.number_of(report.packs, "pack"),
            output.size_text(report.bytes),
        )
    )
    verdict = f"{output.number_of(len(report.damaged), 'object')} DAMAGED" if report.damaged else "no damage"
    output.write(f"read {read}: {verdict}\n")
