"""The command that sets a snapshot down."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from sandlift.cli import output
from sandlift.cli.progress import reporter
from sandlift.cli.sandbox_options import connect_box, connection_options, read_limits, read_timeout
from sandlift.cli.settings import Settings, common_options, pass_settings

if TYPE_CHECKING:
    from sandlift.model import Restore

EXIT_INCOMPLETE = 3


@click.command("restore")
@click.argument("ref")
@click.argument("target")
@click.option("--path", "paths", metavar="PATH", multiple=True, help="Only this path and what is below it.")
@click.option("--strict", is_flag=True, help="Exit with 3 when the snapshot is incomplete.")
@connection_options
@common_options
@pass_settings
def restore(settings: Settings, /, ref: str, target: str, paths: tuple[str, ...], strict: bool, **options: Any) -> int:
    """Set the snapshot REF down at TARGET.

    TARGET must be absent, or an empty directory.  The tree appears whole or not at all.
    """
    limits, timeout_s = read_limits(options["limit_texts"]), read_timeout(options["timeout_text"])
    with ExitStack() as stack:
        box = stack.enter_context(connect_box(target, options))
        with settings.interrupts.cancelling() as cancel, reporter(settings) as on_event:
            result = box.restore(
                lambda: stack.enter_context(settings.open_store()),
                ref,
                paths=[os.fsencode(path) for path in paths],
                limits=limits,
                deadline_s=timeout_s,
                cancel=cancel,
                on_event=on_event,
            )
    if settings.json:
        output.write_json(restore_fields(result))
    else:
        _write_result(result)
    return EXIT_INCOMPLETE if strict and result.outcome == "incomplete" else 0


def restore_fields(result: Restore) -> dict[str, object]:
    """Returns what a restore did, for JSON."""
    return {
        "ref": result.ref,
        "snapshot": result.snapshot,
        **output.text_fields("target", result.target.encode("utf-8", "surrogateescape")),
        "mode": result.mode,
        "outcome": result.outcome,
        "counts": output.fields_of(result.counts),
        "wire": output.fields_of(result.wire),
        "seconds": float(result.seconds),
    }


def _write_result(result: Restore) -> None:
    name = result.ref or result.snapshot
    line = f"{name} restored to {output.quoted(result.target)}:"
    line += f" {output.number_of(result.counts.created, 'entry', 'entries')} in {output.seconds_text(result.seconds)}"
    if result.excluded:
        line += f"; {result.excluded:,} had been left out: sandlift show {name}"
    output.write(line + "\n")
    warnings = []
    if result.outcome == "incomplete":
        warnings.append(f"{name} is incomplete: something was lost when it was captured; see sandlift show {name}")
    if result.copied:
        copied = output.number_of(result.copied, "hard link became a copy", "hard links became copies")
        warnings.append(f"{copied}, because the target has none")
    if sys.stderr is not None:
        sys.stderr.write("".join(f"sandlift: warning: {text}\n" for text in warnings))
