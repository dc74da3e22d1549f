"""Commands that look into a sandbox: capture, and doctor, which only says what a capture would find."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from sandlift.cli import output
from sandlift.cli.progress import reporter
from sandlift.cli.sandbox_options import (
    OrderedCommand,
    connect_box,
    connection_options,
    read_aliases,
    read_limits,
    read_rules,
    read_timeout,
    rule_options,
)
from sandlift.cli.settings import Settings, common_options
from sandlift.cli.several import concurrency_option, is_several
from sandlift.codecs import CODECS, LEVELS
from sandlift.errors import UsageError

if TYPE_CHECKING:
    from sandlift.results import Capture, Survey
    from sandlift.targets import Target

EXIT_INCOMPLETE = 3
OF_A_CAPTURE = ("note", "base", "like", "rehash", "trust_ctime", "strict", "codec", "level")
"""Options that go to `Box.capture` as they are, under the same names."""


@click.command("capture", cls=OrderedCommand)
@click.argument("targets", metavar="TARGET | NAME=TARGET...", nargs=-1, required=True)
@click.option("--as", "name", metavar="NAME", help="The workspace's name in the store, such as demo or team/web.")
@concurrency_option
@click.option("--label", "label_texts", metavar="K=V", multiple=True, help="Put a label on the snapshot.")
@click.option("--note", metavar="TEXT", default="", help="Put a note on the snapshot.")
@click.option("--strict", is_flag=True, help="Store nothing if anything was lost, changed or vanished.")
@click.option(
    "--base",
    metavar="auto|none|REF",
    default="auto",
    help="Read and send only what changed since: the newest snapshot of this target, none, or a ref of it.",
)
@click.option(
    "--like", metavar="REF", multiple=True, help="Do not send what the sandbox proves to have of this snapshot."
)
@click.option("--rehash", is_flag=True, help="Read every file, whatever its times say.")
@click.option("--trust-ctime", is_flag=True, help="Believe change times on tmpfs, NFS and the like too.")
@click.option("--codec", type=click.Choice(CODECS), default="auto", help="Compress content on its way by this alone.")
@click.option("--level", type=click.IntRange(*LEVELS), help="Compress so hard; 1 is fast and the default.")
@rule_options
@connection_options
@common_options
@click.pass_context
def capture(context: click.Context, /, targets: tuple[str, ...], name: str | None, **options: Any) -> int:
    """Save the workspace at TARGET as a snapshot of NAME.

    With several NAME=TARGET, save all of them, some at once; one that fails does not stop the others.  The store is
    made when it is missing.  Exit status 3 says that a snapshot is stored but incomplete.
    """
    settings: Settings = context.obj
    if name is None and is_several(targets):
        from sandlift.cli.capture_several import capture_several

        return capture_several(context, targets, options)
    if len(targets) > 1:
        raise UsageError("with --as there is one TARGET", hint="without it, name each one: NAME=TARGET NAME=TARGET")
    box = connect_box(targets[0], options)
    with ExitStack() as stack:
        stack.enter_context(box)
        if name is None:
            raise UsageError("the snapshot needs a name", hint=f"for example --as {proposed_name(box.target)}")
        choices, timeout_s = read_choices(context, options), read_timeout(options["timeout_text"])
        with settings.interrupts.cancelling() as cancel, reporter(settings) as on_event:
            result = box.capture(
                lambda: stack.enter_context(settings.open_store(create=True)),
                name,
                deadline_s=timeout_s,
                cancel=cancel,
                on_event=on_event,
                **choices,
            )
    return tell(settings, result)


def read_choices(context: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `Box.capture` that the options give, the same for each target.  Raises UsageError."""
    return {
        "rules": read_rules(context, options),
        "aliases": read_aliases(options),
        "labels": read_labels(options["label_texts"]),
        "limits": read_limits(options["limit_texts"]),
        **{name: options[name] for name in OF_A_CAPTURE},
    }


def tell(settings: Settings, result: Capture) -> int:
    """Writes what a capture or an import gave; returns the exit status."""
    if settings.json:
        output.write_json(capture_fields(result))
    else:
        output.write(capture_line(result) + "\n")
    return EXIT_INCOMPLETE if result.outcome == "incomplete" else 0


def proposed_name(target: Target) -> str:
    """Returns a workspace's name that resembles the root's."""
    from sandlift.store import propose_name

    root = target.root
    if target.scheme == "local":
        root = os.path.realpath(root)
    base = os.path.basename(root.rstrip(b"/"))
    return propose_name(os.fsdecode(base) if base else target.host or "")


def read_labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--label takes K=V, not {text!a}")
        labels[key] = value
    return labels


def capture_fields(result: Capture) -> dict[str, object]:
    """Returns what a capture gave, for JSON."""
    return {
        "snapshot": result.snapshot,
        "content": result.content,
        "ref": result.ref,
        "workspace": result.workspace,
        "number": result.number,
        "outcome": result.outcome,
        "reused": result.reused,
        "created": result.created,
        "source": result.source,
        "labels": dict(result.labels),
        "note": result.note,
        "counts": output.fields_of(result.counts),
        "wire": output.fields_of(result.wire),
        "seconds": float(result.seconds),
    }


def capture_line(result: Capture) -> str:
    """Returns what a capture gave as one line: what is kept, what is not, and where that is told."""
    counts = result.counts
    parts = [
        f"{result.ref}: {output.number_of(counts.files, 'file')}, {output.size_text(counts.bytes)}"
        f" in {output.seconds_text(result.seconds)}" + (", same as before" if result.reused else "")
    ]
    by_policy = counts.excluded - counts.lost
    missing = [
        f"{by_policy:,} left out by policy" if by_policy else "",
        f"{counts.lost:,} LOST" if counts.lost else "",
        f"{counts.changed:,} changed while read" if counts.changed else "",
        f"{counts.vanished:,} vanished" if counts.vanished else "",
    ]
    said = [text for text in missing if text]
    parts += [", ".join(said), f"why: sandlift show {result.ref}"] if said else ["nothing left out"]
    return "; ".join(parts)


@click.command("doctor", cls=OrderedCommand)
@click.argument("target")
@rule_options
@connection_options
@common_options
@click.pass_context
def doctor(context: click.Context, /, target: str, **options: Any) -> int:
    """Say what a capture of TARGET would find.

    That is whether it can be captured at all, what would be left out, and what would be lost.  Nothing is taken
    and nothing is stored.  The exit status is the one that a capture would give.
    """
    settings: Settings = context.obj
    with connect_box(target, options) as box:
        rules, limits = read_rules(context, options), read_limits(options["limit_texts"])
        aliases, timeout_s = read_aliases(options), read_timeout(options["timeout_text"])
        with settings.interrupts.cancelling() as cancel, reporter(settings) as on_event:
            found = box.survey(
                rules=rules,
                aliases=aliases,
                limits=limits,
                deadline_s=timeout_s,
                cancel=cancel,
                on_event=on_event,
            )
    if settings.json:
        output.write_json(survey_fields(found))
    else:
        _write_survey(found, settings)
    return EXIT_INCOMPLETE if found.would_lose else 0


def survey_fields(found: Survey) -> dict[str, object]:
    """Returns what a survey found, for JSON."""
    return {
        "target": found.target,
        "ok": not found.would_lose,
        "python": {"path": found.python_path, "version": found.python_version},
        "codecs": list(found.codecs),
        "root": {**output.text_fields("path", found.root), "filesystem": found.filesystem},
        "entries": found.entries,
        "bytes": found.bytes,
        "largest": [{**output.text_fields("path", path), "bytes": size} for path, size in found.largest],
        "would_exclude": dict(found.would_exclude),
        "would_lose": dict(found.would_lose),
        **output.text_fields("noise", found.noise),
    }


def _write_survey(found: Survey, settings: Settings) -> None:
    verdict = "a capture would be incomplete" if found.would_lose else "a capture would be complete"
    noise = f"{len(found.noise):,} bytes before the stream" if found.noise else ""
    rows = [
        ("target", output.harmless(found.target)),
        ("python", output.harmless(f"{found.python_version} {found.python_path}")),
        ("codecs", output.harmless(", ".join(found.codecs))),
        ("root", f"{output.quoted(found.root)} ({output.harmless(found.filesystem)})"),
        ("holds", f"{output.number_of(found.entries, 'entry', 'entries')}, {output.size_text(found.bytes)}"),
        ("left out", _reasons(found.would_exclude)),
        ("LOST", _reasons(found.would_lose)),
        ("noise", noise + ("" if settings.verbose or not noise else " (-v shows it)")),
    ]
    output.write("".join(f"{name:9} {text}\n" for name, text in rows if text))
    if settings.verbose and found.noise:
        output.write(output.harmless_lines(found.noise.decode("utf-8", "surrogateescape")) + "\n")
    if found.largest:
        output.write("\n")
        largest = [(output.size_text(size), output.quoted(path)) for path, size in found.largest]
        output.write_table(("SIZE", "LARGEST FILES"), largest, "><")
        output.write("\n")
    output.write(verdict + "\n")


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
