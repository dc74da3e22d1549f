"""The command that takes in a tar which something else made."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from sandlift.cli.capture_cmd import read_labels, tell
from sandlift.cli.progress import reporter
from sandlift.cli.sandbox_options import read_aliases, read_limits, read_timeout
from sandlift.cli.settings import Settings, common_options
from sandlift.errors import UsageError

if TYPE_CHECKING:
    from sandlift.archive.bounds import ArchiveBounds

_COMPRESSIONS = ("auto", "none", "gzip", "zstd", "xz")
_NUMBER = re.compile(r"([0-9]{1,19})([KMGT]?)", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@click.command("import")
@click.argument("file", default="-")
@click.option("--as", "name", metavar="NAME", help="The workspace's name in the store, such as demo or team/web.")
@click.option("--root", metavar="PATH", help="The workspace's absolute path where the archive was made.")
@click.option(
    "--prefix",
    metavar="DIR",
    help="What all names in the archive begin with ('.' for nothing), where sandlift should not find out.",
)
@click.option("--alias", "aliases", metavar="PATH", multiple=True, help="Another absolute name of the root, for links.")
@click.option(
    "--compression",
    type=click.Choice(_COMPRESSIONS),
    default="auto",
    show_default=True,
    help="How the archive is compressed; auto goes by its first bytes.",
)
@click.option("--label", "label_texts", metavar="K=V", multiple=True, help="Put a label on the snapshot.")
@click.option("--note", metavar="TEXT", default="", help="Put a note on the snapshot.")
@click.option("--strict", is_flag=True, help="Store nothing if anything was lost.")
@click.option("--timeout", "timeout_text", metavar="S", help="Give up after so many seconds.")
@click.option(
    "--limit",
    "limit_texts",
    metavar="NAME=VALUE",
    multiple=True,
    help="Change a limit: those of capture, and total_bytes, stream_bytes, ratio, member_metadata_bytes,"
    " metadata_bytes, sparse_regions, tail_bytes; a number may end in K, M, G or T.",
)
@common_options
@click.pass_context
def import_(context: click.Context, /, file: str, name: str | None, root: str | None, **options: Any) -> int:
    """Save a tar archive as a snapshot of NAME: FILE, or standard input when it is - or missing.

    The archive may be plain or compressed with gzip, zstd or xz.  It is read once and brought under the rules of a
    capture; an archive that could mean different things to different programs is refused with exit status 4, and
    nothing of it is stored.  Exit status 3 says that the snapshot is stored but incomplete.
    """
    settings: Settings = context.obj
    if name is None:
        raise UsageError("the snapshot needs a name", hint="for example --as demo")
    if root is None:
        raise UsageError(
            "the workspace's path where the archive was made is needed", hint="for example --root /workspace"
        )
    from sandlift.archive.importing import ImportSpec, import_archive
    from sandlift.deadline import Deadline

    bounds, limit_texts = _read_bounds(options["limit_texts"])
    spec = ImportSpec(
        workspace=name,
        root=os.fsencode(root),
        source="import:-" if file == "-" else f"import:{os.path.abspath(file)}",
        prefix=None if options["prefix"] is None else os.fsencode(options["prefix"]),
        aliases=read_aliases(options),
        compression=options["compression"],
        labels=read_labels(options["label_texts"]),
        note=options["note"],
        strict=options["strict"],
        limits=read_limits(limit_texts),
        bounds=bounds,
    )
    timeout_s = read_timeout(options["timeout_text"])
    with ExitStack() as stack:
        stream = stack.enter_context(_open(file))
        status = os.fstat(stream.fileno())
        if stat.S_ISREG(status.st_mode):
            spec = dataclasses.replace(spec, size_bytes=status.st_size)
        with settings.interrupts.cancelling() as cancel, reporter(settings) as on_event:
            result = import_archive(
                lambda: stack.enter_context(settings.open_store(create=True)),
                stream,
                spec,
                deadline=Deadline.after(timeout_s, cancel),
                on_event=on_event,
            )
    return tell(settings, result)


def _open(file: str) -> io.FileIO:
    """Opens the archive unbuffered.  Raises UsageError for what is no archive to read."""
    try:
        if file == "-":
            stream = io.FileIO(0, closefd=False)
        else:
            # A pipe that nobody writes to must not hold us: waiting is done later, under the time limit.
            extra = os.O_NONBLOCK | os.O_NOCTTY
            stream = io.FileIO(file, opener=lambda name, flags: os.open(name, flags | extra))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"the archive {file!a} cannot be read: {reason}") from None
    if stream.isatty():
        stream.close()
        raise UsageError(
            "an archive is not read from a terminal",
            hint="name a file, or send it: docker cp c1:/work - | sandlift import --as demo --root /work",
        )
    return stream


def _read_bounds(texts: Sequence[str]) -> tuple[ArchiveBounds, list[str]]:
    """Returns the bounds that ``--limit`` changes, and its other texts.  Raises UsageError."""
    from sandlift.archive.bounds import DEFAULT_BOUNDS

    names = [field.name for field in dataclasses.fields(DEFAULT_BOUNDS)]
    changes: dict[str, int] = {}
    others = []
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names:
            others.append(text)
            continue
        match = _NUMBER.fullmatch(value)
        number = int(match[1]) * _FACTORS[match[2].upper()] if match else 0
        if not 0 < number < 1 << 63:
            raise UsageError(f"--limit {text!a}: the value is no number above 0", hint="for example 20G, or 500")
        changes[name] = number
    return dataclasses.replace(DEFAULT_BOUNDS, **changes), others
