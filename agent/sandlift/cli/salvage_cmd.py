"""Commands for what is left of captures that broke off: salvage makes a snapshot of it, prune removes it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from sandlift.cli import output
from sandlift.cli.capture_cmd import tell
from sandlift.cli.settings import Settings, common_options, pass_settings
from sandlift.errors import UnknownRef, UsageError

if TYPE_CHECKING:
    from sandlift.store import PartialCapture, Store

_AGE = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>[smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@click.command("salvage")
@click.argument("workspace")
@click.option("--from", "source", metavar="TARGET", help="The target whose capture broke off, where there are several.")
@common_options
@pass_settings
def salvage(settings: Settings, workspace: str, source: str | None) -> int:
    """Make a snapshot of what a broken capture of WORKSPACE had brought.

    It holds every file that had arrived whole, and records the others as lost: not-reached.  Where the sandbox still
    lives, capture again instead: that goes on from what is here.  Exit status 3 says that the snapshot is stored, and
    incomplete, as it is by nature.
    """
    from sandlift.cli.sandbox_options import read_limits
    from sandlift.committing import captured
    from sandlift.deadline import Deadline
    from sandlift.results import Wire
    from sandlift.salvaging import salvage as make
    from sandlift.watch import Watch

    with settings.open_store() as store, settings.interrupts.cancelling() as cancel:
        watch = Watch(None)
        partial = _choose(store, workspace, source)
        record, counts = make(store, partial, read_limits(()), Deadline.after(None, cancel))
    return tell(settings, captured(record, counts, Wire(), watch.end()))


def _choose(store: Store, workspace: str, source: str | None) -> PartialCapture:
    """Returns the partial to make a snapshot of.  Raises UnknownRef, UsageError."""
    found = store.partials(workspace)
    if source is not None:
        found = [partial for partial in found if partial.source == source]
    if not found:
        raise UnknownRef(
            f"no capture of {workspace} broke off" + (f" at {output.harmless(source)}" if source else ""),
            hint=f"sandlift log {workspace} lists the snapshots that there are",
        )
    if len(found) > 1:
        named = ", ".join(partial.source for partial in found)
        raise UsageError(f"captures of {workspace} broke off at several targets", hint=f"choose by --from: {named}")
    return found[0]


@click.command("prune")
@click.option(
    "--partials",
    "age_text",
    metavar="AGE",
    help="Remove what captures that broke off left, where it is older than AGE, such as 12h or 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common_options
@pass_settings
def prune(settings: Settings, age_text: str | None, dry_run: bool) -> int:
    """Remove from the store what rules say is no longer needed.

    Without a rule nothing is removed.
    """
    if age_text is None:
        raise UsageError("prune needs a rule", hint="for example --partials 7d")
    before = datetime.now(UTC) - read_age(age_text)
    with settings.open_store() as store:
        doomed = [partial for partial in store.partials() if datetime.fromisoformat(partial.ended) <= before]
        if not dry_run:
            for partial in doomed:
                store.collect_partial(partial)
    fields = [{"workspace": partial.workspace, "source": partial.source, "ended": partial.ended} for partial in doomed]
    if settings.json:
        output.write_json({"partials": fields, "dry_run": dry_run})
    else:
        verb = "would remove" if dry_run else "removed"
        for row in fields:
            what = f"what broke off of {row['workspace']} from {row['source']}, {row['ended']}"
            output.write(f"{verb} {output.harmless(what)}\n")
        output.write(f"{verb} {output.number_of(len(doomed), 'partial')}\n")
    return 0


def read_age(text: str) -> timedelta:
    """Returns the time that ``12h`` or ``7d`` stands for.  Raises UsageError."""
    match = _AGE.fullmatch(text)
    if not match:
        raise UsageError(f"no age: {text!a}", hint="a number and a unit of s, m, h, d or w, such as 7d")
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])})
