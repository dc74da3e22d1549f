"""Several targets on one command line: how they are written, and which exit status stands for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

CONCURRENCY = 8
CONCURRENCY_MAX = 1000

# The further to the left, the less would come of trying the same again.  Interrupted: the user ended it.  4: what
# arrived is refused.  2: the request is wrong.  6: the helper does not run there.  1: it cannot be met as things are.
# 5: not reached, or lost.  3: all are stored, some incomplete.
WORST_FIRST = (143, 130, 4, 2, 6, 1, 5, 3, 0)

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]*)=(.+)", re.ASCII | re.DOTALL)


def concurrency_option(function: Function) -> Function:
    """Gives a command the number of targets that it works on at once."""
    return click.option(
        "--concurrency",
        metavar="N",
        type=click.IntRange(1, CONCURRENCY_MAX),
        default=CONCURRENCY,
        show_default=True,
        help="With several targets, work on so many at once.",
    )(function)


def is_several(texts: tuple[str, ...]) -> bool:
    """Whether the targets have names of their own: NAME=TARGET."""
    return len(texts) > 1 or named(texts[0]) is not None


def named(text: str) -> tuple[str, str] | None:
    """Returns name and target of NAME=TARGET; None where no name can stand before the first equals sign."""
    match = _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else None


def worst(statuses: Iterable[int]) -> int:
    """Returns the exit status for all: that of the one that is farthest from done; 0 only if all are 0."""
    found = set(statuses)
    unknown = found - set(WORST_FIRST)
    return max(unknown) if unknown else next((status for status in WORST_FIRST if status in found), 0)
