"""Names that another file system takes for one another, or that a terminal or a person takes for something else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from sandlift.audit.findings import Finding, clip
from sandlift.repositories import fold, git_name
from sandlift_helper import table
from sandlift_helper.table import Segment

# Names that Windows reserves, whatever suffix they have (Microsoft, "Naming Files, Paths, and Namespaces").
_RESERVED = re.compile(
    rb"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)(?:[0-9]|\xc2[\xb9\xb2\xb3]))(?:[ .]|\Z)", re.IGNORECASE
)
_FIRST_LETTERS = re.compile(rb"[cpanlCPANL]")
_ODD = re.compile(rb"[\x00-\x1f\x7f-\xff\\:<>\"|?*~]|[. ]\Z|\A ")
_WINDOWS = re.compile(rb"[\\:<>\"|?*]")
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSEEN: Final = frozenset("Cf Zl Zp".split())


def findings(rows: Segment) -> Iterator[Finding]:
    """Yields what there is to say about the names of a table, excluded rows too, in no order."""
    # Folded path -> the names that fold to it.  A name that is its own fold needs no place here unless another clashes.
    clashing: dict[bytes, list[bytes]] = {}
    for paths in (rows.paths, rows.excluded_paths):
        for path in paths:
            parent, _, name = path.rpartition(b"/")
            yield from _odd_name(path, name)
            folded = windows_fold(name)
            if folded != name:
                key = parent + b"/" + folded if parent else folded
                clashing.setdefault(key, []).append(path)
    for paths in (rows.paths, rows.excluded_paths):
        for path in paths:
            if path in clashing and windows_fold(path.rpartition(b"/")[2]) == path.rpartition(b"/")[2]:
                clashing[path].append(path)
    for paths in clashing.values():
        if len(paths) > 1:
            paths.sort(key=table.sort_key)
            for path in paths:
                other = next(one for one in paths if one != path).rpartition(b"/")[2]
                yield _finding(path, "clashes with another name where case or forms of Unicode do not count", other)


def windows_fold(name: bytes) -> bytes:
    """Returns the name that another one must not have beside it: folded, and without dots and spaces at the end."""
    return fold(name).rstrip(b". ") or name


def _odd_name(path: bytes, name: bytes) -> Iterator[Finding]:
    """Yields what is odd about a name by itself."""
    if _FIRST_LETTERS.match(name) is not None and _RESERVED.match(name) is not None:
        yield _finding(path, "a name that Windows keeps for a device")
    if _ODD.search(name) is None:
        return
    if name.lower() != b".git" and git_name(name) == b".git":
        yield _finding(path, "on some file systems this is .git")
    if _WINDOWS.search(name) is not None:
        yield _finding(path, "holds a character that Windows takes for something else")
    if name.endswith((b".", b" ")) or name.startswith(b" "):
        yield _finding(path, "begins or ends with a space or a dot, which is not seen, and not kept on Windows")
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        yield _finding(path, "is not UTF-8; some file systems do not take it")
        text = name.decode("utf-8", "replace")
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in text):
        yield _finding(path, "holds control characters, which a terminal obeys")
    if text.isascii():
        return
    if not _BIDI.isdisjoint(text):
        yield _finding(path, "holds marks that turn the direction of writing, so it reads as another name")
    elif any(unicodedata.category(letter) in _UNSEEN for letter in text):
        yield _finding(path, "holds characters that are not seen, so it reads as another name")


def _finding(path: bytes, what: str, detail: bytes = b"") -> Finding:
    return Finding(category="names", severity="name", path=path, what=what, detail=clip(detail))
