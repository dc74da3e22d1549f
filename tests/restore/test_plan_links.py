"""The proof of links beside barriers, against a walk that remembers nothing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from random import Random

import pytest

from sandlift_helper import links

INSIDE, OUTSIDE, BEYOND, LOOP = "inside", "outside", "beyond", "loop"
HOPS_MAX = 60


def walk(path: bytes, there: Mapping[bytes, bytes], wanted_beyond: frozenset[bytes]) -> str:
    """Where the link at *path* leads, name by name as a kernel does it, among the links that are *there*.

    An absolute text leads outside, or, for a link that is wanted all the same, beyond: any name may follow there,
    but ``..`` could lead anywhere.
    """
    if there[path].startswith(b"/"):
        return BEYOND if path in wanted_beyond else OUTSIDE
    here, rest = path.split(b"/")[:-1], there[path].split(b"/")
    beyond, hops = False, 0
    while rest:
        name = rest.pop(0)
        if name in (b"", b"."):
            continue
        if name == b"..":
            if beyond or not here:
                return OUTSIDE
            here.pop()
        elif not beyond:
            found = b"/".join([*here, name])
            text = there.get(found)
            if text is None:
                here.append(name)
            elif text.startswith(b"/"):
                if found not in wanted_beyond:
                    return OUTSIDE
                beyond = True
            else:
                hops += 1
                if hops > HOPS_MAX:
                    return LOOP
                rest[:0] = text.split(b"/")
    return BEYOND if beyond else INSIDE


TEXTS = [
    b"a",
    b"b",
    b"c",
    b"..",
    b"a/..",
    b"b/x",
    b"b/..",
    b"c/../..",
    b"d/a",
    b"../a",
    b"../b/..",
    b"d",
    b"/e",
    b"/f/g",
]
PATHS = [b"a", b"b", b"c", b"d/a", b"d/b"]


def trees() -> list[tuple[list[bytes], list[bytes]]]:
    """All trees of two links, and many of more."""
    found = [
        (list(paths), list(texts))
        for paths in itertools.combinations(PATHS, 2)
        for texts in itertools.product(TEXTS, repeat=2)
    ]
    chance = Random(7)
    for _ in range(6000):
        paths = chance.sample(PATHS, chance.randint(3, 5))
        found.append((paths, [chance.choice(TEXTS) for _ in paths]))
    return found


TREES = trees()


def test_links_that_are_there_all_the_same() -> None:
    """With ``present``, a link is outside exactly when the walk among all links leaves."""
    outside = 0
    for paths, texts in TREES:
        there = dict(zip(paths, texts, strict=True))
        chosen = {number for number, text in enumerate(texts) if text == b"/e"}
        beyond = frozenset(paths[number] for number in chosen)
        expected = [walk(path, there, beyond) != OUTSIDE for path in paths]
        assert links.judge(paths, texts, chosen, present=True) == expected, there
        outside += expected.count(False)
    assert outside > 1000


def test_links_that_are_left_out() -> None:
    """Without it, what is outside is left out: the rest stays inside, and each link left out would leave again."""
    left_beyond = 0
    for paths, texts in TREES:
        there = dict(zip(paths, texts, strict=True))
        chosen = {number for number, text in enumerate(texts) if text == b"/e"}
        beyond = frozenset(paths[number] for number in chosen)
        verdicts = dict(zip(paths, links.judge(paths, texts, chosen), strict=True))
        kept = {path: text for path, text in there.items() if verdicts[path]}
        for path in paths:
            end = walk(path, {**kept, path: there[path]}, beyond)
            assert (end == OUTSIDE) is not verdicts[path], (there, path)
        left_beyond += bool(beyond) and not all(verdicts.values())
    assert left_beyond > 100


@pytest.mark.parametrize("present", [False, True])
def test_the_order_does_not_matter(present: bool) -> None:
    for paths, texts in TREES[::60]:
        there = dict(zip(paths, texts, strict=True))
        verdicts = set()
        for order in itertools.permutations(paths):
            chosen = {number for number, path in enumerate(order) if there[path] == b"/e"}
            found = links.judge(order, [there[path] for path in order], chosen, present)
            verdicts.add(tuple(sorted(zip(order, found, strict=True))))
        assert len(verdicts) == 1, there


def test_a_long_chain_takes_no_recursion_and_no_limit() -> None:
    count = 20_000
    paths = [b"%05d" % number for number in range(count)]
    texts = [*(b"%05d" % (number + 1) for number in range(count - 1)), b"/e"]
    assert links.judge(paths, texts, {count - 1}) == [True] * count
    assert links.judge(paths, texts, present=True) == [False] * count
    assert links.judge(paths, texts) == [True] * (count - 1) + [False]
