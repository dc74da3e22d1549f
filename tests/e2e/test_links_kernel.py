"""The rule for links against the kernel: what is kept never leaves a restored tree, what is left out would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from sandlift_helper import links
from support.linked_trees import (
    LONG,
    TOO_LONG,
    Playground,
    examine_many,
    knows_openat2,
    linked_tree,
    tree_of,
)
from support.needs import lacking

TREES = 1500


@pytest.fixture
def playground() -> Iterator[Playground]:
    if not knows_openat2():
        lacking("the kernel has no openat2 that this program may call: run the tests on Linux 5.6 or newer")
    with Playground() as made:
        yield made


def test_random_trees(playground: Playground) -> None:
    examine_many(playground, TREES, 20261130)
    assert playground.examined >= TREES
    # Each kind of answer was given, so each part of the rule was asked about.
    for word in ("success", "ELOOP", "ENOTDIR", "ENAMETOOLONG"):
        assert playground.answers["kept", word] >= 20
    for word in ("EXDEV", "ENOTDIR", "ENAMETOOLONG"):
        assert playground.answers["left out", word] >= 1


def test_random_trees_that_differ_each_time(playground: Playground) -> None:
    import secrets

    examine_many(playground, TREES // 6, secrets.randbelow(1 << 32))


TREE = {b"a.txt": b"", b"data.txt": b"", b"sub/data.txt": b"", b"sub/deep": None, b"alias": b"sub/deep"}

# Links beside that tree -> those of them that leave.
WRITTEN: dict[str, tuple[dict[bytes, bytes], set[bytes]]] = {
    "up": ({b"l": b"../x", b"m": b"../w/a.txt"}, {b"l", b"m"}),
    "up-through-a-link": (
        {b"l": b"alias/../data.txt", b"m": b"alias/../../data.txt", b"n": b"alias/../../../x"},
        {b"n"},
    ),
    "up-through-nothing": ({b"l": b"missing/../x", b"m": b"missing/../../x"}, {b"m"}),
    "up-through-a-file": ({b"l": b"a.txt/../x", b"m": b"a.txt/../../x"}, {b"m"}),
    "up-through-what-is-left-out": ({b"e": b"/etc", b"x": b"e/passwd", b"y": b"e/../../x"}, {b"e", b"y"}),
    "up-through-a-link-up": ({b"a/up": b"..", b"v": b"a/up/../x"}, {b"v"}),
    "loop": ({b"p": b"q", b"q": b"p", b"r": b"p/../../x"}, set()),
    "self": ({b"s": b"s/..", b"t": b"s/../../../x"}, set()),
    "spellings": ({b"l": b"{w}//a.txt", b"m": b"/.{a}/", b"n": b"{d}", b"sub/deep/o": b"{a}/alias/../.."}, set()),
    "near-misses": ({b"l": b"{w}2/a.txt", b"m": b"{w}/../w/a.txt", b"n": b"{u}"}, {b"l", b"m", b"n"}),
    "long-names": ({b"l": TOO_LONG + b"/..", b"m": TOO_LONG + b"/../..", LONG: b"../x"}, {b"m", LONG}),
    "chain-of-41": ({b"c%02d" % n: b"c%02d" % (n + 1) for n in range(41)} | {b"z": b"c00/../.."}, {b"z"}),
    "chain-of-41-from-outside": (
        {b"c%02d" % n: b"c%02d" % (n + 1) for n in range(41)} | {b"c41": b"../x"},
        {b"c41"},
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written_trees(name: str, playground: Playground) -> None:
    made, leaving = WRITTEN[name]
    tree = linked_tree({**TREE, **made}.items())
    assert made.items() <= tree.entries.items()
    playground.examine(tree)
    asked = {what: sum(n for (w, _), n in playground.answers.items() if w == what) for what in ("kept", "left out")}
    assert asked["kept"] == 2 * (len(made) + 1 - len(leaving))
    assert asked["left out"] >= len(leaving)


# A rule that is broken is found: each of these is what somebody might write instead.


def everything(paths: Sequence[bytes], texts: Sequence[bytes]) -> list[bool]:
    return [True] * len(paths)


def by_text_alone(paths: Sequence[bytes], texts: Sequence[bytes]) -> list[bool]:
    """``..`` folded lexically, no link looked at."""
    verdicts = []
    for path, text in zip(paths, texts, strict=True):
        depth = path.count(b"/")
        for part in text.split(b"/"):
            depth += {b"..": -1, b".": 0, b"": 0}.get(part, 1)
            if depth < 0:
                break
        verdicts.append(depth >= 0)
    return verdicts


def nothing_that_climbs(paths: Sequence[bytes], texts: Sequence[bytes]) -> list[bool]:
    return [b".." not in text.split(b"/") for text in texts]


@pytest.mark.parametrize("rule", [everything, by_text_alone, nothing_that_climbs])
def test_a_wrong_rule_is_found(
    rule: Callable[..., list[bool]], playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "judge", rule)
    with pytest.raises(AssertionError, match="kept and leaves|is left out, but") as caught:
        examine_many(playground, TREES, 1)
    assert "LinkedTree(" in caught.value.__notes__[0]


def one_too_many(text: bytes, depth: int, spellings: Sequence[Sequence[bytes]]) -> bytes | None:
    """A rebase that climbs one directory too far."""
    return rebase(text, depth + 1, spellings)


rebase = links.rebase


def test_a_wrong_rebase_is_found(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = linked_tree([(b"a/b", b"{w}/c"), (b"c", b"")])
    playground.examine(tree)
    monkeypatch.setattr(links, "rebase", one_too_many)
    monkeypatch.setattr(links, "judge", everything)
    with pytest.raises(AssertionError, match="b'a/b': .* differ"):
        playground.examine(tree)


def test_bytes_become_trees() -> None:
    assert tree_of(b"").entries == {}
    assert tree_of(b"\0\0\0\0\0\x02\x0c\x0d").entries == {b"a": b"../.."}
    assert tree_of(bytes([44, 0, 1, 0])).entries == {b"c00": b"c01", b"c01": b"a"}
