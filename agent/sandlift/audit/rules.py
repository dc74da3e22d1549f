"""Rules that know files by their names, and what a rule makes of a file.

A pattern is one of these, always in lower case and compared with the folded path:

    name            a file of that name, anywhere
    folder/name     one whose path ends so
    *.suffix        one whose name ends so, after at least one other character
    name*           one whose name begins so
    folder/*        one directly in a folder whose path ends so; likewise folder/*.suffix
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sandlift.audit.findings import Category, Severity
from sandlift.repositories import fold

Hit = tuple[str, bytes]
"""(what it means, or nothing for the rule's own words; what in the file says so)."""
Check = Callable[[bytes], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """What files of some names do."""

    patterns: tuple[str, ...]
    category: Category
    severity: Severity
    what: str
    check: Check | None = None
    """Looks into the file; without one the name is enough."""
    but: tuple[str, ...] = ()
    """Ends of names that are harmless."""


def rule(
    patterns: str,
    category: Category,
    what: str,
    check: Check | None = None,
    *,
    severity: Severity = "runs-code",
    but: str = "",
) -> Rule:
    """Returns a rule; patterns and exceptions are separated by spaces."""
    return Rule(
        patterns=tuple(patterns.split()),
        category=category,
        severity=severity,
        what=what,
        check=check,
        but=tuple(but.split()),
    )


class Rulebook:
    """Finds the rules for a path, in a few look-ups."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        # The last component that is known for sure -> (what the path must end with, the rule).
        self._by_name: dict[bytes, list[tuple[bytes, Rule]]] = {}
        self._by_suffix: dict[bytes, list[Rule]] = {}
        self._by_prefix: dict[bytes, list[Rule]] = {}
        # The name of the folder -> (what its path must end with, what the name must end with, the rule).
        self._by_folder: dict[bytes, list[tuple[bytes, bytes, Rule]]] = {}
        for one in rules:
            for pattern in one.patterns:
                self._add(pattern.encode(), one)
        self._prefix_sizes = sorted({len(prefix) for prefix in self._by_prefix})

    def _add(self, pattern: bytes, one: Rule) -> None:
        folder, slash, name = pattern.rpartition(b"/")
        if slash and name.startswith(b"*"):
            last = folder.rpartition(b"/")[2]
            self._by_folder.setdefault(last, []).append((b"/" + folder, name[1:], one))
        elif name.startswith(b"*"):
            self._by_suffix.setdefault(name[1:], []).append(one)
        elif name.endswith(b"*"):
            self._by_prefix.setdefault(name[:-1], []).append(one)
        else:
            self._by_name.setdefault(name, []).append((b"/" + pattern, one))

    def rules_for(self, path: bytes) -> list[Rule]:
        """Returns the rules that a file's path fits."""
        parent, _, name = path.rpartition(b"/")
        name = fold(name)
        found: list[Rule] = []
        named = self._by_name.get(name)
        if named is not None:
            whole = b"/" + fold(path)
            found += [one for end, one in named if whole.endswith(end)]
        dot = name.find(b".", 1)
        while dot > 0:
            found += self._by_suffix.get(name[dot:], ())
            dot = name.find(b".", dot + 1)
        for size in self._prefix_sizes:
            found += self._by_prefix.get(name[:size], ())
        foldered = self._by_folder.get(fold(parent.rpartition(b"/")[2]))
        if foldered is not None:
            whole = b"/" + fold(parent)
            found += [one for end, suffix, one in foldered if whole.endswith(end) and name.endswith(suffix)]
        return [one for one in found if not (one.but and name.decode("utf-8", "replace").endswith(one.but))]
