"""The command that writes a snapshot as a tar, to standard output or into a file."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from sandlift.cli import output
from sandlift.cli.progress import reporter
from sandlift.cli.settings import Settings, common_options, pass_settings
from sandlift.errors import SandliftError, TargetFull, TargetUnusable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlift.archive.exporting import Export

_FULL = (errno.ENOSPC, errno.EDQUOT)


@click.command("export")
@click.argument("ref")
@click.option("-o", "--output", "file", metavar="FILE", help="Write FILE, which appears whole or not at all.")
@click.option("--path", "paths", metavar="PATH", multiple=True, help="Only this path and what is below it.")
@click.option("--gzip", "compression", flag_value="gzip", help="Compress with gzip.")
@click.option("--zstd", "compression", flag_value="zstd", help="Compress with zstd.")
@click.option(
    "--hardlinks",
    type=click.Choice(["copy", "keep"]),
    default="copy",
    show_default=True,
    help="Write each name of a file as a file, or the later ones as hard links.",
)
@click.option("--special-bits", is_flag=True, help="Keep setuid, setgid and sticky bits.")
@common_options
@pass_settings
def export(
    settings: Settings,
    /,
    ref: str,
    file: str | None,
    paths: tuple[str, ...],
    compression: str | None,
    hardlinks: str,
    special_bits: bool,
) -> None:
    """Write the snapshot REF as a portable tar to stdout, or to FILE.

    Equal snapshots give equal bytes.  Holes are written out as zeros, so a sparse file takes its whole size.
    Symbolic links come last; to keep the times of directories that hold some, extract with bsdtar, or with
    GNU tar's --delay-directory-restore.  Each block is hashed before it is written; damage ends the output with an
    error, and then the archive has no end.
    """
    from sandlift.archive import exporting

    to_stdout = file in (None, "-")
    if to_stdout:
        _check_stdout(settings)
    spec = exporting.ExportSpec(
        paths=tuple(os.fsencode(path) for path in paths),
        compression="gzip" if compression == "gzip" else "zstd" if compression == "zstd" else "none",
        hard_links="keep" if hardlinks == "keep" else "copy",
        special_bits=special_bits,
    )
    with settings.open_store() as store, reporter(settings) as on_event:
        if to_stdout:
            exporting.export(store, ref, spec, _stdout_writer(), on_event=on_event)
            return
        assert file is not None
        with OutputFile(file) as target:
            result = exporting.export(store, ref, spec, target.write, on_event=on_event)
            target.commit()
    if settings.json:
        output.write_json(export_fields(result, file))
    else:
        output.write(export_line(result, ref, file) + "\n")


def export_fields(result: Export, file: str) -> dict[str, object]:
    """Returns what an export gave, for JSON."""
    return {
        "ref": result.ref,
        "snapshot": result.snapshot,
        "outcome": result.outcome,
        **output.text_fields("file", os.fsencode(file)),
        "bytes": result.bytes,
        "counts": output.fields_of(result.counts),
        "skipped": dict(result.skipped),
        "seconds": float(result.seconds),
    }


def export_line(result: Export, ref: str, file: str) -> str:
    """Returns what an export gave, for people."""
    counts = result.counts
    held = output.number_of(counts.files + counts.hard_links, "file")
    name = result.ref or output.harmless(ref)
    size, spent = output.size_text(result.bytes), output.seconds_text(result.seconds)
    return f"{name}: {held}, {size} to {output.quoted(os.fsencode(file))} in {spent}"


def _check_stdout(settings: Settings) -> None:
    if settings.json:
        raise UsageError(
            "with --json the archive needs a file, because the answer goes to stdout", hint="name one with -o FILE"
        )
    if sys.stdout is not None and sys.stdout.isatty():
        raise UsageError(
            "an archive is not written to a terminal", hint="redirect the output, or name a file with -o FILE"
        )


def _stdout_writer() -> Callable[[bytes], None]:
    """Returns what writes to standard output without a buffer: one would be left full when the reader stalls."""
    if sys.stdout is None:
        raise BrokenPipeError
    output.flush()
    fd = sys.stdout.fileno()

    def write(data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SandliftError(f"cannot write the output: {error.strerror}") from error

    return write


class OutputFile:
    """A file that appears whole, by a rename, when it is committed; a device or a pipe is simply written to.

    Raises TargetUnusable, TargetFull.  The file is private to its owner; the target of a link is replaced, not the
    link.
    """

    def __init__(self, file: str) -> None:
        self._shown = output.quoted(os.fsencode(file))
        self._given = file
        self._path = os.path.realpath(file)
        self._fd = -1
        self._temporary: str | None = None

    def __enter__(self) -> Self:
        try:
            if self._is_stream():
                self._fd = os.open(self._given, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
            else:
                name = f".sandlift-export-{secrets.token_hex(8)}"
                path = os.path.join(os.path.dirname(self._path), name)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(path, flags, 0o600)
                self._temporary = path
        except OSError as error:
            raise self._error(error) from error
        return self

    def write(self, data: bytes) -> None:
        """Appends all of *data*."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._error(error) from error

    def commit(self) -> None:
        """Makes the file durable and gives it its name."""
        if self._temporary is None:
            return
        try:
            os.fsync(self._fd)
            os.rename(self._temporary, self._path)
            self._temporary = None
            folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._error(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._temporary is not None:
            with suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_stream(self) -> bool:
        """Whether something is there that a rename would destroy."""
        try:
            kind = stat.S_IFMT(os.stat(self._given).st_mode)
        except FileNotFoundError:
            return False
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return kind != stat.S_IFREG

    def _error(self, error: OSError) -> TargetFull | TargetUnusable:
        message = f"cannot write {self._shown}: {error.strerror}"
        if error.errno in _FULL:
            return TargetFull(message, hint="make room, or name a file elsewhere")
        return TargetUnusable(message, hint="name a file in a folder that exists and that you may write")
