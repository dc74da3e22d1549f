"""Targets for the two rules that decide about paths: links and exclusions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import SupportsIndex

from fuzz import oracles
from fuzz.invariants import hold

from sandlift_helper import ignore, links


class _Parts(list[bytes]):
    """The components of a link's text, which count how often they are read."""

    reads = 0

    def __getitem__(self, index: SupportsIndex | slice) -> bytes:  # type: ignore[override]
        _Parts.reads += 1
        part = super().__getitem__(index)
        assert isinstance(part, bytes)
        return part


class _Text(bytes):
    def split(self, sep: object = None, maxsplit: SupportsIndex = -1) -> list[bytes]:
        assert sep == b"/"
        return _Parts(bytes(self).split(b"/"))


ROOT_SPELLINGS = ([b"w"], [b"srv", b"w"])


def link(data: bytes) -> None:
    """``setting (1)``, lines ``path NUL text``: verdicts for anything, at a linear cost, equal to the plain rule's."""
    present, wanted = data[:1] in b"13", data[:1] in b"23"
    pairs = [line.partition(b"\0") for line in data[1:].split(b"\n") if line]
    paths, texts = [path for path, _, _ in pairs], [text for _, _, text in pairs]
    beyond = range(0, len(paths), 2) if wanted else range(0)
    _Parts.reads = 0
    verdicts = links.judge(paths, [_Text(text) for text in texts], beyond, present)
    hold(len(verdicts) == len(paths), "not one verdict for each link")
    bound = sum(text.count(b"/") + 1 for text in texts) + len(texts)
    hold(_Parts.reads <= bound, f"{_Parts.reads} components were read, at most {bound} are linear")
    for text in texts:
        _check_rebase(text)
    if not oracles.are_plain_paths(paths):
        return
    turned = {len(paths) - 1 - at for at in beyond}
    hold(
        links.judge(paths[::-1], texts[::-1], turned, present) == verdicts[::-1], "verdicts depend on the links' order"
    )
    resolver = oracles.Resolver(paths, texts, beyond, present)
    for path, inside in zip(paths, verdicts, strict=True):
        try:
            hold(resolver.is_inside(path) == inside, f"the link {path!r} is judged otherwise by the plain rule")
        except (oracles.TooManySteps, RecursionError):
            continue


def _check_rebase(text: bytes) -> None:
    for depth in range(3):
        found = links.rebase(text, depth, ROOT_SPELLINGS)
        parts = [part for part in text.split(b"/") if part not in (b"", b".")]
        is_below = any(parts[: len(spelling)] == spelling for spelling in ROOT_SPELLINGS)
        hold((found is not None) == is_below, "a text is rebased although it is outside, or is not")
        if found is not None:
            climb = b"../" * depth
            rest = found[len(climb) :] if found.startswith(climb) else b""
            hold(bool(found) and not found.startswith(b"/"), "a rebased text is empty or absolute")
            hold(found == b"/".join([b".."] * depth or [b"."]) or text.endswith(rest), "a text was changed inside")


RULES_MAX, QUESTIONS_MAX = 12, 8


def rules(data: bytes) -> None:
    """``rules 0xFE literals 0xFE paths``, by lines: the last rule that matches alone decides, at a bounded cost."""
    text, literals, names = [*data.split(b"\xfe"), b"", b""][:3]
    lines = ignore.parse_lines(text, b"file")[:RULES_MAX]
    given = [literal for literal in literals.split(b"\n") if literal][:QUESTIONS_MAX]
    try:
        compiled = ignore.compile_rules(lines, given)
    except ValueError:
        hold(any(literal[:1] == b"/" or not _plain(literal) for literal in given), "a proper literal is refused")
        return
    hold(not any(b".." in literal.split(b"/") for literal in given), "a literal climbs")
    paths = [path for path in names.split(b"\n") if path and oracles.are_plain_paths([path])][:QUESTIONS_MAX]
    questions = list(itertools.product(paths, (False, True)))
    # Asked in the other order, for what was asked before must not matter.
    matches = dict(_matches(lines, questions[::-1]))
    for path, is_directory in questions:
        with _Comparisons() as counted:
            found = compiled.excluded(path, is_directory)
        bound = sum((len(line) + 1) * (len(path) + 1) for line, _ in lines)
        hold(counted.number <= bound, f"{counted.number} comparisons, at most {bound} are allowed")
        expected = None
        for line, place in lines:
            if matches[line, path, is_directory]:
                expected = None if line.startswith(b"!") else b"%s (%s)" % (line, place)
        if path in map(_joined, given):
            expected = path + b" (--exclude-path)"
        hold(found == expected, f"{path!r}: together the rules say {found!r}, one by one {expected!r}")


def _matches(
    lines: Sequence[tuple[bytes, bytes]], questions: Sequence[tuple[bytes, bool]]
) -> Iterator[tuple[tuple[bytes, bytes, bool], bool]]:
    """Yields whether each rule matches each path, both alone: behind a rule that excludes everything."""
    for line, place in lines:
        alone = ignore.compile_rules([(b"*", b"all"), (line, place)], [])
        for path, is_directory in questions:
            yield (line, path, is_directory), alone.excluded(path, is_directory) != b"* (all)"


def _plain(literal: bytes) -> bool:
    parts = [part for part in literal.split(b"/") if part not in (b"", b".")]
    return bool(parts) and b".." not in parts


def _joined(literal: bytes) -> bytes:
    return b"/".join(part for part in literal.split(b"/") if part not in (b"", b"."))


class _Comparisons:
    """Counts comparisons of a piece of a pattern with a piece of a path while it is entered."""

    def __init__(self) -> None:
        self.number = 0
        self._before = ignore._accepts, ignore._applies

    def __enter__(self) -> _Comparisons:
        accepts, applies = self._before

        def counted_accepts(accepted: bytes, byte: int) -> bool:
            self.number += 1
            return accepts(accepted, byte)

        def counted_applies(matches: Callable[[bytes], bool], name: bytes) -> bool:
            self.number += 1
            return applies(matches, name)

        ignore._accepts, ignore._applies = counted_accepts, counted_applies  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        ignore._accepts, ignore._applies = self._before
