"""Names that clash where names are folded, and names that deceive."""

from __future__ import annotations

import pytest

from sandlift.audit.names import findings
from sandlift_helper import table
from sandlift_helper.table import Segment


def told(*names: bytes, excluded: tuple[bytes, ...] = ()) -> dict[bytes, list[str]]:
    rows = Segment()
    for name in sorted(names, key=table.sort_key):
        rows.add(name, table.DIRECTORY, 0o755, 0, 0, 0)
    for name in excluded:
        rows.exclude(name, table.LINK, table.OUTSIDE_LINK)
    found: dict[bytes, list[str]] = {}
    for finding in findings(rows):
        assert (finding.category, finding.severity) == ("names", "name")
        found.setdefault(finding.path, []).append(finding.what)
    return found


CLASH = "clashes with another name where case or forms of Unicode do not count"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"README", b"readme"),
        (b"ReadMe", b"README"),
        ("é.png".encode(), "e\u0301.png".encode()),
        ("É.png".encode(), "e\u0301.png".encode()),
        ("straße".encode(), b"STRASSE"),
        ("\u212a".encode(), b"k"),
        (b"file", b"file."),
        (b"file", b"file "),
        (b"a\xe2\x80\x8bb".replace(b"\x8b", b"\x8c"), b"ab"),
    ],
)
def test_clashes(one: bytes, other: bytes) -> None:
    found = told(b"d", b"d/" + one, b"d/" + other)
    assert CLASH in found[b"d/" + one]
    assert CLASH in found[b"d/" + other]
    # In different directories they are two.
    found = told(b"d", b"d/" + one, b"e", b"e/" + other)
    assert CLASH not in [what for whats in found.values() for what in whats]


def test_what_was_left_out_clashes_too() -> None:
    assert told(b"Cache", excluded=(b"cache",)) == {b"Cache": [CLASH], b"cache": [CLASH]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (b"CON", "device"),
        (b"nul.txt", "device"),
        (b"com1", "device"),
        (b"LPT9.tar.gz", "device"),
        ("COM\u00b9".encode(), "device"),
        (b"aux ", "device"),
        (b"a\\b", "Windows takes"),
        (b"a:b", "Windows takes"),
        (b"what?", "Windows takes"),
        (b"end.", "ends with"),
        (b"end ", "ends with"),
        (b" begin", "begins"),
        (b"a\nb", "control"),
        (b"a\x1b[31m", "control"),
        (b"a\x7f", "control"),
        ("a\u0085b".encode(), "control"),
        (b"caf\xe9", "UTF-8"),
        ("a\u202egpj.exe".encode(), "direction"),
        ("a\u2067b".encode(), "direction"),
        ("a\u200bb".encode(), "not seen"),
        ("a\u00adb".encode(), "not seen"),
        (b"GIT~1", "this is .git"),
        (b".g\xe2\x80\x8cit", "this is .git"),
        (b".git.", "this is .git"),
    ],
)
def test_odd_names(name: bytes, words: str) -> None:
    found = told(name)
    assert list(found) == [name]
    assert any(words in what for what in found[name]), found


ORDINARY = (
    "README.md src console aux_file nullable.py com10 .git .gitignore x~ auxiliary com price$ Makefile 日本語 naïve"
).split()


def test_ordinary_names_are_not_told() -> None:
    assert told(*(name.encode() for name in ORDINARY), b"a b") == {}
