"""The command that sets a snapshot down."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from sandlift.cli import output
from sandlift.cli.progress import reporter
from sandlift.cli.sandbox_options import connect_box, connection_options, read_limits, read_timeout
from sandlift.cli.settings import Settings, common_options, pass_settings

if TYPE_CHECKING:
    from sandlift.model import RestoreOptions
    from sandlift.results import Action, Lossy, Restore

EXIT_INCOMPLETE = 3
ACTIONS_SHOWN = 20
"""Of what was left as it was, so many lines are shown without -v."""


@click.command("restore")
@click.argument("ref")
@click.argument("target")
@click.option("--path", "paths", metavar="PATH", multiple=True, help="Only this path and what is below it.")
@click.option(
    "--mode",
    type=click.Choice(["new", "replace", "exact", "merge"]),
    default="new",
    show_default=True,
    help="new: TARGET is absent or empty; replace: exchange the whole tree; exact: change it in place until it equals"
    " the snapshot; merge: in place, delete nothing.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--owner", metavar="WHO", help="keep, UID, UID:GID, or a user's name there (else: who restores).")
@click.option("--special-bits", is_flag=True, help="Restore setuid, setgid and sticky bits.")
@click.option(
    "--relink", metavar="GLOB", multiple=True, help="Put links to outside back whose target matches, as '/usr/**'."
)
@click.option(
    "--git",
    type=click.Choice(["keep", "inert", "drop"]),
    default="keep",
    show_default=True,
    help="Repositories as they were, without settings and hooks that could run something, or not at all.",
)
@click.option("--no-links", is_flag=True, help="Leave out symbolic links.")
@click.option("--discard-excluded", is_flag=True, help="Let replace remove what the snapshot does not hold.")
@click.option("--strict", is_flag=True, help="Exit with 3 when the snapshot is incomplete.")
@connection_options
@common_options
@pass_settings
def restore(settings: Settings, /, ref: str, target: str, dry_run: bool, strict: bool, **options: Any) -> int:
    """Set the snapshot REF down at TARGET.

    With --mode new the tree appears whole or not at all.  No mode destroys what the snapshot does not hold, and every
    conflict is found before anything is changed.
    """
    limits, timeout_s = read_limits(options["limit_texts"]), read_timeout(options["timeout_text"])
    chosen = _read_options(options)
    with ExitStack() as stack:
        box = stack.enter_context(connect_box(target, options))
        with settings.interrupts.cancelling() as cancel, reporter(settings) as on_event:
            result = box.restore(
                lambda: stack.enter_context(settings.open_store()),
                ref,
                options=chosen,
                dry_run=dry_run,
                limits=limits,
                deadline_s=timeout_s,
                cancel=cancel,
                on_event=on_event,
            )
    if dry_run:
        _write_plan(settings, result)
    elif settings.json:
        output.write_json(restore_fields(result))
    else:
        _write_result(result, verbose=settings.verbose)
    return EXIT_INCOMPLETE if strict and result.outcome == "incomplete" else 0


def _read_options(options: dict[str, Any]) -> RestoreOptions:
    from sandlift.model import RestoreOptions

    return RestoreOptions(
        mode=options["mode"],
        paths=tuple(os.fsencode(path) for path in options["paths"]),
        owner=options["owner"],
        special_bits=options["special_bits"],
        relink=tuple(os.fsencode(glob) for glob in options["relink"]),
        git=options["git"],
        no_links=options["no_links"],
        discard_excluded=options["discard_excluded"],
    )


def restore_fields(result: Restore) -> dict[str, object]:
    """Returns what a restore did, for JSON."""
    return {
        "ref": result.ref,
        "snapshot": result.snapshot,
        **output.text_fields("target", result.target.encode("utf-8", "surrogateescape")),
        "mode": result.mode,
        "outcome": result.outcome,
        "counts": output.fields_of(result.counts),
        "excluded": result.excluded,
        "lossy": output.fields_of(result.lossy),
        "left": [action_fields(action) for action in result.actions],
        "wire": output.fields_of(result.wire),
        "seconds": float(result.seconds),
    }


def action_fields(action: Action) -> dict[str, object]:
    """Returns one action for JSON."""
    return {
        "action": action.action,
        **output.text_fields("path", action.path),
        "kind": action.kind,
        "why": action.why,
    }


def _write_plan(settings: Settings, result: Restore) -> None:
    if settings.json:
        for action in result.actions:
            output.write_json(action_fields(action))
        return
    output.write(f"{_name(result)} would be restored to {output.quoted(result.target)}: {_counted(result)}\n")
    for line in _action_lines(result.actions):
        output.write(line)


def _action_lines(actions: tuple[Action, ...]) -> Iterator[str]:
    for action in actions:
        path = output.quoted(action.path) if action.path else "."
        why = f"  ({output.harmless(action.why)})" if action.why else ""
        yield f"{action.action:7}  {action.kind:9}  {path}{why}\n"


def _name(result: Restore) -> str:
    return result.ref or result.snapshot


def _counted(result: Restore) -> str:
    counts = result.counts
    words = [(counts.created, "created")] if result.mode == "new" else []
    words = words or [
        (counts.created, "created"),
        (counts.replaced, "replaced"),
        (counts.updated, "updated"),
        (counts.removed, "removed"),
        (counts.kept, "kept"),
    ]
    shown = [f"{count:,} {word}" for count, word in words if count]
    return ", ".join(shown) or "nothing to do"


def _write_result(result: Restore, *, verbose: bool) -> None:
    name = _name(result)
    line = f"{name} restored to {output.quoted(result.target)}:"
    if result.mode == "new":
        line += f" {output.number_of(result.counts.created, 'entry', 'entries')}"
    else:
        line += f" {_counted(result)}"
    line += f" in {output.seconds_text(result.seconds)}"
    if result.excluded:
        line += f"; {result.excluded:,} had been left out: sandlift show {name}"
    output.write(line + "\n")
    if sys.stderr is None:
        return
    warnings = []
    if result.outcome == "incomplete":
        warnings.append(f"{name} is incomplete: something was lost when it was captured; see sandlift show {name}")
    warnings += _lossy_lines(result.lossy)
    sys.stderr.write("".join(f"sandlift: warning: {text}\n" for text in warnings))
    shown = result.actions if verbose else result.actions[:ACTIONS_SHOWN]
    sys.stderr.write("".join(f"sandlift: {line}" for line in _action_lines(shown)))
    if len(shown) < len(result.actions):
        more = output.number_of(
            len(result.actions) - len(shown), "more was left as it is", "more were left as they are"
        )
        sys.stderr.write(f"sandlift: {more}; -v shows all\n")


def _lossy_lines(lossy: Lossy) -> list[str]:
    """Returns what did not come back as it was recorded, each as a sentence."""
    lines = []
    if lossy.links_copied:
        copied = output.number_of(lossy.links_copied, "hard link became a copy", "hard links became copies")
        lines.append(f"{copied}, because the target has none")
    if lossy.bits_dropped:
        count = output.number_of(lossy.bits_dropped, "entry", "entries")
        lines.append(f"setuid, setgid and sticky bits of {count} were not set; --special-bits sets them")
    if lossy.owners_refused:
        count = output.number_of(lossy.owners_refused, "entry", "entries")
        lines.append(f"{count} could not be given to the owner that was asked for")
    if lossy.links_left:
        lines.append(f"{output.number_of(lossy.links_left, 'symbolic link was', 'symbolic links were')} left out")
    if lossy.git_changed:
        count = output.number_of(lossy.git_changed, "entry of a git repository was", "entries of git repositories were")
        lines.append(f"{count} left out or made harmless")
    return lines
