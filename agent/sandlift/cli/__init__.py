"""The command line, the first user of the library.

One file a command group; each is imported when its command runs, so that ``sandlift --version`` costs little
more than click.  Only this package prints or exits, and only `sandlift.cli.failures` knows how an error becomes
an exit status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

import click

from sandlift import __version__
from sandlift.cli.interrupts import Interrupts
from sandlift.cli.settings import Settings, common_options

__all__ = ["main", "program"]

PROGRAM = "sandlift"
COMPLETION_VARIABLE = "_SANDLIFT_COMPLETE"

# Command -> the module that holds it, in the order of the help.
COMMANDS = {
    "capture": "capture_cmd",
    "doctor": "capture_cmd",
    "restore": "restore_cmd",
    "log": "records_cmd",
    "show": "records_cmd",
    "ls": "files_cmd",
    "cat": "files_cmd",
    "audit": "audit_cmd",
    "import": "import_cmd",
    "export": "export_cmd",
    "verify": "verify_cmd",
    "salvage": "salvage_cmd",
    "prune": "salvage_cmd",
    "helper": "helper_cmd",
    "completion": "helper_cmd",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, unimported."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module."""
        if cmd_name not in COMMANDS:
            return None
        # The function behind ``import`` cannot have that name.
        attribute = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command = getattr(import_module(f"sandlift.cli.{COMMANDS[cmd_name]}"), attribute)
        assert isinstance(command, click.Command)
        return command


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from sandlift.cli import output

        settings = ctx.find_root().obj
        if settings.json or settings.seems_json:
            output.write_json({"version": __version__})
        else:
            output.write(f"{PROGRAM} {__version__}\n")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
)
@common_options
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def program() -> None:
    """Lift a workspace out of a sandbox, keep it, and set it down again.

    A TARGET is ssh://[user@]host[:port]/path, paramiko://..., local:PATH or a bare path.  A REF names a snapshot:
    demo (the newest), demo@7, demo~1 (the one before the newest), or six or more digits of its identity.
    """


def run(words: Sequence[str], interrupts: Interrupts | None = None) -> int:
    """Runs one command line and returns its exit status; *interrupts* are those that are installed, if any."""
    settings = Settings(seems_json=_seems_json(words))
    if interrupts is not None:
        settings.interrupts = interrupts
    try:
        if instruction := os.environ.get(COMPLETION_VARIABLE):
            from click.shell_completion import shell_complete

            return shell_complete(program, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
        if not words:
            sys.stderr.write(
                program.get_help(click.Context(program, info_name=PROGRAM, **program.context_settings)) + "\n"
            )
            return 2
        with program.make_context(PROGRAM, list(words), obj=settings) as context:
            status = program.invoke(context)
        from sandlift.cli import output

        output.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except BaseException as error:
        from sandlift.cli import failures

        return failures.report(error, settings)


def _seems_json(words: Sequence[str]) -> bool:
    """Whether ``--json`` stands anywhere: a command line that cannot be parsed is answered in JSON too."""
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options


def main() -> None:
    """The console script."""
    _guard_descriptors()
    for stream in (sys.stdout, sys.stderr):
        # What a terminal's encoding lacks is escaped, rather than an error after the work is done.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    interrupts = Interrupts()
    interrupts.install()
    sys.exit(_finish(run(sys.argv[1:], interrupts)))


def _guard_descriptors() -> None:
    """Fills closed standard descriptors, so that no file of a store can become standard output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _finish(status: int) -> int:
    """Flushes what is left; a reader that has gone is no news, and no traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            status = status or 1
    return status
