"""The one place where an error becomes an exit status and words: text on stderr, or the JSON object on stdout.

The statuses are those of the classes in `sandlift.errors`; besides there are 143 for SIGTERM, 141 for an output
that was closed, and 1 with the code ``internal`` for a fault of sandlift itself.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress

import click

from sandlift.cli import output
from sandlift.cli.interrupts import Stopped
from sandlift.cli.settings import Settings
from sandlift.errors import Conflict, Interrupted, InvalidManifest, SandliftError, UsageError

EXIT_TERMINATED = 143
EXIT_CLOSED_OUTPUT = 141

# What a sandbox said, under these names of an error's context; shown with -v.
_SAID = {
    "noise": "printed before the stream",
    "stderr": "its standard error",
    "report": "the helper's report",
}


class InternalError(SandliftError):
    """A fault of sandlift itself: the wrapping of an exception that nobody foresaw."""

    code = "internal"
    retryable = None


def report(error: BaseException, settings: Settings) -> int:
    """Tells what went wrong, and returns the exit status."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, BrokenPipeError):
        close_output()
        return EXIT_CLOSED_OUTPUT
    known = as_error(error, settings)
    try:
        if settings.json or (settings.seems_json and isinstance(error, click.ClickException)):
            _print_json(known)
        else:
            _print_text(known, settings)
        if settings.verbose and isinstance(known, InternalError):
            sys.stderr.write(output.harmless_lines("".join(traceback.format_exception(error))) + "\n")
    except (OSError, SandliftError):
        # Standard output cannot be written, so whoever looks at the other one is told at least.
        close_output()
        with suppress(OSError, SandliftError, AttributeError):
            _print_text(known, settings)
    return exit_status(known)


def exit_status(error: SandliftError) -> int:
    """Returns the exit status that stands for *error*."""
    if isinstance(error, Interrupted) and error.context.get("signal") == signal.SIGTERM:
        return EXIT_TERMINATED
    return error.exit


def as_error(error: BaseException, settings: Settings) -> SandliftError:
    """Returns *error* as one of ours."""
    cancel = settings.interrupts.cancel
    if isinstance(error, SandliftError):
        if cancel.cancelled and not isinstance(error, Interrupted):
            # A terminal's Ctrl-C reaches ssh as well, so its end may be seen before our own token.
            return Interrupted("interrupted", signal=cancel.signal)
        return error
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "sandlift"
        message = error.format_message().rstrip(".")
        return UsageError(message[:1].lower() + message[1:], hint=f"{command} --help lists the options")
    if isinstance(error, click.ClickException):
        return UsageError(error.format_message())
    if isinstance(error, Stopped):
        return Interrupted("interrupted", signal=error.signal)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("interrupted", signal=int(signal.SIGINT))
    said = f": {error}" if str(error) else ""
    return InternalError(
        f"unexpected {type(error).__name__}{said}",
        hint="this is a fault of sandlift; please report it with what -v prints",
    )


def close_output() -> None:
    """Points standard output, whose reader has gone or whose disk is full, at nothing: its buffer must not speak up."""
    with suppress(OSError, ValueError, AttributeError):
        fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(fd, sys.stdout.fileno())
        os.close(fd)


def _print_json(error: SandliftError) -> None:
    value = {"error": error_fields(error)}
    # An object in the middle of a file's bytes would be taken for some of them.
    if output.raw_bytes_written():
        sys.stderr.write(output.json_line(value))
    else:
        output.write_json(value)
        output.flush()


def error_fields(error: SandliftError) -> dict[str, object]:
    """Returns the error object of JSON."""
    return {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
        "exit": exit_status(error),
        "context": output.plain(_context(error)),
    }


def _context(error: SandliftError) -> dict[str, object]:
    if isinstance(error, InvalidManifest) and error.issues:
        return {**error.context, "issues": list(error.issues)}
    if isinstance(error, Conflict) and error.conflicts:
        return {**error.context, "conflicts": list(error.conflicts)}
    return error.context


def _print_text(error: SandliftError, settings: Settings) -> None:
    try:
        output.flush()
    except (OSError, SandliftError):
        # What could not be written is lost already, and may be what the error is about.
        close_output()
    sys.stderr.write(error_text(error, verbose=settings.verbose))


def error_text(error: SandliftError, *, verbose: bool, whose: str = "") -> str:
    """Returns the lines that tell a person of an error, of what *whose* names where there are several."""
    said = {name: text for name in _SAID if (text := error.context.get(name))}
    lines = [f"sandlift: error: {output.harmless(whose + error.message)}"]
    if error.hint:
        lines.append(f"hint: {output.harmless(error.hint)}")
    elif isinstance(error, Conflict) and len(error.conflicts) > 1 and not verbose:
        lines.append("hint: -v lists all conflicts")
    elif said and not verbose:
        lines.append("hint: -v shows what the sandbox said")
    if verbose:
        if isinstance(error, Conflict):
            lines += [f"sandlift: conflict: {output.harmless(text)}" for text in error.conflicts]
        for name, text in said.items():
            lines += [f"sandlift: {_SAID[name]}:", output.harmless_lines(str(text))]
    return "\n".join(lines) + "\n"
