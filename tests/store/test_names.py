"""Workspace names."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandlift.errors import BadName
from sandlift.store import refs
from sandlift.store.names import check_name, propose_name
from sandlift.store.objects import check_key

_FIRST = set(string.ascii_letters + string.digits)
_REST = _FIRST | set("._-")
_PART = st.builds(
    lambda first, rest: first + rest, st.sampled_from(sorted(_FIRST)), st.text(sorted(_REST), max_size=10)
)
NAMES = st.lists(_PART, min_size=1, max_size=5).map("/".join)


def is_valid(name: str) -> bool:
    """The rule once more, in other words."""
    if len(name.encode("utf-8", "surrogatepass")) > 200:
        return False
    return all(part and part[0] in _FIRST and set(part) <= _REST for part in name.split("/"))


@pytest.mark.parametrize("name", ["demo", "a", "7", "team/web-2", "issue.41", "a/0000000001", "x_y", "a-", "a" * 200])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/..", "a//b", "/a", "a/", "-a", ".a", "_a", "a@7", "@7", "a~1", "a b", "a\n", "a\0", "é", "١"]
    + ["a" * 201, "a/" * 100 + "a"],
)
def test_bad_names_are_refused_with_a_proposal(name: str) -> None:
    with pytest.raises(BadName) as caught:
        check_name(name)
    assert is_valid(caught.value.hint.removeprefix("for example "))
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("My Project!", "My-Project"),
        ("/home/me/work", "home/me/work"),
        ("café", "cafe"),
        ("../../etc", "etc"),
        ("me@box", "me-box"),
        ("???", "workspace"),
        ("", "workspace"),
        (".hidden", "hidden"),
        ("Straße 7", "Stra-e-7"),
    ],
)
def test_proposals(text: str, name: str) -> None:
    assert propose_name(text) == name


@given(st.text(max_size=300))
@example("a/" * 150)
@example("a" * 199 + "/b")
@example("½")
def test_any_text_has_a_valid_proposal(text: str) -> None:
    name = propose_name(text)
    assert is_valid(name)
    assert check_name(name) == name


@given(st.one_of(NAMES, st.text(sorted(_REST | {"/", "@", "é"}), max_size=12)))
def test_exactly_the_valid_names_are_accepted(name: str) -> None:
    if is_valid(name):
        assert check_name(name) == name
        assert propose_name(name) == name
    else:
        with pytest.raises(BadName):
            check_name(name)


@given(NAMES, st.integers(1, 9_999_999_999))
def test_a_refs_key_means_one_ref(name: str, number: int) -> None:
    key = refs.key_of(name, number)
    check_key(key)
    assert refs.place_of(key) == (name, number)
