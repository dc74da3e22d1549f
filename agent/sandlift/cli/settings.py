"""What all commands share: where the store is, how to answer, and how to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandlift.cli.interrupts import Interrupts

if TYPE_CHECKING:
    from sandlift.store import Store

Function = TypeVar("Function", bound=Callable[..., Any])


class Settings:
    """The settings of one run of the program; ``--store``, ``--json`` and ``-v`` stand before or after the command.

    ``seems_json`` says that the words of the command line hold ``--json``; it counts when they cannot be parsed.
    """

    def __init__(self, *, seems_json: bool = False) -> None:
        self.json = False
        self.seems_json = seems_json
        self.verbose = False
        self.store: str | None = None
        self.interrupts = Interrupts()

    def open_store(self, *, create: bool = False) -> Store:
        """Opens the store of this run.  Raises what `Store.open` raises."""
        from sandlift.cli.configuration import read_configuration
        from sandlift.store import Store, default_store_path

        return Store.open(self.store or read_configuration().store or default_store_path(), create=create)


pass_settings = click.make_pass_decorator(Settings)


def _keep(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    if value:
        assert parameter.name is not None
        setattr(ctx.find_root().obj, parameter.name, value)


def _start_logging(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    _keep(ctx, parameter, value)
    if value:
        import logging

        log = logging.getLogger("sandlift")
        if not log.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("sandlift: %(message)s"))
            log.addHandler(handler)
        log.setLevel(logging.DEBUG)


def common_options(function: Function) -> Function:
    """Gives a command the options that every command has."""
    options = (
        click.option(
            "--store",
            metavar="DIR",
            expose_value=False,
            callback=_keep,
            help="Where snapshots are kept (else SANDLIFT_STORE, the configuration, a folder of the user's).",
        ),
        click.option(
            "--json", is_flag=True, is_eager=True, expose_value=False, callback=_keep, help="Answer in JSON on stdout."
        ),
        click.option(
            "-v", "--verbose", is_flag=True, expose_value=False, callback=_start_logging, help="Show more on stderr."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
