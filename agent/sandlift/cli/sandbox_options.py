"""The options of the commands that reach into a sandbox: the way in, the rules, the limits, the time."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandlift.errors import UsageError

if TYPE_CHECKING:
    from sandlift.box import Box
    from sandlift.limits import Limits
    from sandlift.model import Rules
    from sandlift.rate import RateLimit

Function = TypeVar("Function", bound=Callable[..., Any])

RULES_FILE_MAX_BYTES = 1 << 20
_ORDER = "sandlift.cli.order"
# The words stand unquoted in the shell line that looks for Python.
_PYTHON_WORD = re.compile(r"[A-Za-z0-9_./+@~-]+", re.ASCII)


class OrderedCommand(click.Command):
    """A command that remembers in which order its options stood, occurrence by occurrence."""

    def make_parser(self, ctx: click.Context) -> Any:
        """The parser, whose result is looked at on its way."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            options, rest, order = parse(args)
            ctx.meta[_ORDER] = [parameter.name for parameter in order]
            return options, rest, order

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser


def connection_options(function: Function) -> Function:
    """Gives a command the options of `connect_box`."""
    return _apply(
        function,
        click.option("--python", metavar="PATH", help="The Python to use in the sandbox."),
        click.option("--via", metavar="PREFIX", help="Reach the sandbox by this command, as in 'docker exec -i c1'."),
        click.option("--via-shell", metavar="PREFIX", help="The same; the command is appended as one shell word."),
        click.option("--host-key-file", metavar="FILE", help="The only host key to accept (ssh, paramiko)."),
        click.option("--accept-new-host-key", is_flag=True, help="Accept the key of a host never seen before."),
        click.option("--key-file", "key_files", metavar="FILE", multiple=True, help="The only keys to offer."),
        click.option(
            "--limit-rate",
            "rate_text",
            metavar="RATE",
            help="Move at most so many bytes a second, both directions together; K, M or G may follow.",
        ),
        click.option("--timeout", "timeout_text", metavar="S", help="Give up after so many seconds."),
        click.option(
            "--limit",
            "limit_texts",
            metavar="NAME=VALUE",
            multiple=True,
            help="Change a limit (else SANDLIFT_LIMITS, the configuration): entries, path_bytes, depth,"
            " link_text_bytes, file_bytes, manifest_bytes, noise_bytes, trailer_bytes, silence_s;"
            " a number may end in K, M, G or T.",
        ),
    )


def rule_options(function: Function) -> Function:
    """Gives a command the options of `read_rules`, and ``--alias``."""
    return _apply(
        function,
        click.option("--exclude", metavar="PATTERN", multiple=True, help="Leave out what matches, as in .gitignore."),
        click.option("--exclude-from", metavar="FILE", multiple=True, help="Read such patterns from a file here."),
        click.option("--exclude-path", metavar="PATH", multiple=True, help="Leave out this very path."),
        click.option("--exclude-caches", is_flag=True, help="Leave out directories marked by a CACHEDIR.TAG."),
        click.option("--no-ignore-file", is_flag=True, help="Do not read .sandliftignore at the root."),
        click.option(
            "--alias", "aliases", metavar="PATH", multiple=True, help="Another absolute name of the root, for links."
        ),
    )


def _apply(function: Function, *options: Callable[[Function], Function]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def connect_box(target: str, options: Mapping[str, Any], *, rate: RateLimit | None = None) -> Box:
    """Returns the box of *target* for one call; *rate* is one that several boxes share, else the options' own.

    Raises BadURL, UsageError, MissingExtra.
    """
    from sandlift.box import connect

    python = options["python"]
    box = connect(
        target,
        via=options["via"],
        via_shell=options["via_shell"],
        python=python,
        host_key_file=options["host_key_file"],
        accept_new_host_key=options["accept_new_host_key"],
        key_files=options["key_files"],
        reuse=False,
        limit_rate=rate or read_rate(options["rate_text"]),
    )
    if python is not None and box.target.scheme != "local" and not _PYTHON_WORD.fullmatch(python):
        box.close()
        raise UsageError("--python takes a name or a path of letters, digits and ./_+@~-", python=python)
    return box


def read_timeout(text: str | None) -> float | None:
    """Returns the seconds of ``--timeout``.  Raises UsageError."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--timeout takes a number of seconds, not {text!a}")
    return seconds


def read_rate(text: str | None) -> RateLimit | None:
    """Returns the limit of ``--limit-rate``.  Raises UsageError."""
    if text is None:
        return None
    from sandlift.cli.configuration import size_value
    from sandlift.rate import RateLimit

    size = size_value(text)
    if size is None:
        raise UsageError(f"--limit-rate takes a number of bytes, not {text!a}", hint="for example 500K, or 2M")
    return RateLimit(size)


def read_limits(texts: Sequence[str]) -> Limits:
    """Returns the limits of this run: the defaults, changed by configuration and by *texts*.  Raises UsageError."""
    from sandlift.cli.configuration import parse_limit, read_configuration
    from sandlift.limits import DEFAULT_LIMITS

    changes: dict[str, Any] = dict(read_configuration().limits)
    changes.update(parse_limit(text, "--limit") for text in texts)
    return dataclasses.replace(DEFAULT_LIMITS, **changes)


def read_rules(context: click.Context, options: Mapping[str, Any]) -> Rules:
    """Returns the rules that the options name, in their order on the command line.  Raises UsageError."""
    from sandlift.model import Rules

    values = {"exclude": iter(options["exclude"]), "exclude_from": iter(options["exclude_from"])}
    patterns: list[tuple[bytes, bytes]] = []
    for name in context.meta[_ORDER]:
        if name == "exclude":
            patterns.append((os.fsencode(next(values[name])), b"--exclude"))
        elif name == "exclude_from":
            patterns += _read_patterns(next(values[name]))
    return Rules(
        patterns=tuple(patterns),
        paths=tuple(_literal(path) for path in options["exclude_path"]),
        caches=options["exclude_caches"],
        ignore_file=not options["no_ignore_file"],
    )


def read_aliases(options: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Returns the other names of the root.  Raises UsageError."""
    for path in options["aliases"]:
        if not path.startswith("/"):
            raise UsageError(f"--alias takes an absolute path, not {path!a}")
    return tuple(os.fsencode(path) for path in options["aliases"])


def _read_patterns(name: str) -> list[tuple[bytes, bytes]]:
    from sandlift_helper.ignore import parse_lines

    try:
        with open(name, "rb") as file:
            text = file.read(RULES_FILE_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--exclude-from {name!a} cannot be read: {reason}") from None
    if len(text) > RULES_FILE_MAX_BYTES:
        raise UsageError(f"--exclude-from {name!a} is over 1 MiB")
    return parse_lines(text, os.fsencode(name))


def _literal(path: str) -> bytes:
    parts = [part for part in os.fsencode(path).split(b"/") if part not in (b"", b".")]
    if path.startswith("/") or not parts or b".." in parts:
        raise UsageError(
            f"--exclude-path takes a path below the root, not {path!a}", hint="write it relative to the root"
        )
    return b"/".join(parts)
