"""What a fuzz target says when a promise is not kept."""

from __future__ import annotations


class Broken(Exception):
    """An invariant does not hold; the text says which."""


def hold(is_true: bool, what: str) -> None:
    """Raises Broken unless the invariant *what* holds."""
    if not is_true:
        raise Broken(what)
