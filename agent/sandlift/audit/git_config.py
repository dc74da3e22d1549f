"""Git's configuration language, read leniently and written minimally.

The language is that of git-config(1), "Syntax".  Git refuses a file with a line that it cannot read; here such a
line is noted and reading goes on with the next one, because what another version of git would make of it is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

CONFIG_MAX = 1 << 20
"""A larger configuration is not looked into, and nothing of it is kept."""

_BOM = b"\xef\xbb\xbf"
_SECTION = re.compile(rb'\[[ \t]*([A-Za-z0-9.-]+)[ \t]*(?:"((?:[^"\\\n]|\\.)*)"[ \t]*)?\]')
_KEY = re.compile(rb"([A-Za-z][A-Za-z0-9-]*)[ \t\r]*")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"b": b"\b", b"\\": b"\\", b'"': b'"'}
_TRUE = (b"true", b"yes", b"on", b"1")
_FALSE = (b"false", b"no", b"off", b"0", b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: ``[section "subsection"] key = value``."""

    section: bytes
    """In lower case."""
    subsection: bytes | None
    key: bytes
    """In lower case."""
    value: bytes | None
    """None where there is no ``=``, which git takes for true."""
    line: int

    @property
    def name(self) -> bytes:
        """The setting's name, as git prints it."""
        middle = b"" if self.subsection is None else b"." + self.subsection
        return self.section + middle + b"." + self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a file says, in order, and the lines that make no sense."""

    settings: tuple[Setting, ...]
    unreadable_lines: tuple[int, ...] = ()


def parse(data: bytes) -> Configuration:
    """Returns what a configuration file says; never raises."""
    return _Parser(data).run()


class _Parser:
    def __init__(self, data: bytes) -> None:
        self._data = data.removeprefix(_BOM).replace(b"\r\n", b"\n")
        self._at = 0
        self._line = 1
        self._section: tuple[bytes, bytes | None] = (b"", None)
        self._settings: list[Setting] = []
        self._unreadable: list[int] = []

    def run(self) -> Configuration:
        data, size = self._data, len(self._data)
        while self._at < size:
            letter = data[self._at : self._at + 1]
            if letter == b"\n":
                self._line += 1
                self._at += 1
            elif letter.isspace():
                self._at += 1
            elif letter in b"#;":
                self._skip_line()
            elif letter == b"[":
                self._read_section()
            else:
                self._read_setting()
        return Configuration(settings=tuple(self._settings), unreadable_lines=tuple(self._unreadable))

    def _skip_line(self) -> None:
        end = self._data.find(b"\n", self._at)
        self._at = len(self._data) if end < 0 else end

    def _give_up_line(self) -> None:
        self._unreadable.append(self._line)
        self._skip_line()

    def _read_section(self) -> None:
        head = _SECTION.match(self._data, self._at)
        if head is None:
            self._give_up_line()
            return
        name, subsection = head[1].lower(), head[2]
        if subsection is not None:
            self._section = name, re.sub(rb"\\(.)", rb"\1", subsection)
        else:
            # The old form, [section.subsection], which is in lower case throughout.
            section, dot, rest = name.partition(b".")
            self._section = section, rest if dot else None
        self._at = head.end()

    def _read_setting(self) -> None:
        key = _KEY.match(self._data, self._at)
        after = self._data[key.end() : key.end() + 1] if key else b""
        # A comment may follow a key without a value in no version of git, but it cannot hurt to read it so.
        if key is None or after not in (b"=", b"\n", b"#", b";", b""):
            self._give_up_line()
            return
        line = self._line
        self._at = key.end()
        value: bytes | None = None
        if after == b"=":
            self._at += 1
            value = self._read_value()
        section, subsection = self._section
        self._settings.append(
            Setting(section=section, subsection=subsection, key=key[1].lower(), value=value, line=line)
        )

    def _read_value(self) -> bytes:
        """Reads up to the end of the line, continued lines included."""
        data, out = self._data, bytearray()
        is_quoted, kept = False, 0
        while self._at < len(data):
            letter = data[self._at : self._at + 1]
            if letter == b"\n":
                break
            self._at += 1
            if letter == b"\\":
                following = data[self._at : self._at + 1]
                self._at += 1
                if following == b"\n":
                    self._line += 1
                    continue
                out += _ESCAPES.get(following, b"\\" + following)
                kept = len(out)
            elif letter == b'"':
                is_quoted = not is_quoted
                kept = len(out)
            elif letter in b"#;" and not is_quoted:
                self._skip_line()
                break
            elif is_quoted or not letter.isspace():
                out += letter
                kept = len(out)
            elif out:
                out += letter
        return bytes(out[:kept])


def truth(value: bytes | None) -> bool | None:
    """Returns what a value means as a boolean, or None when it is none."""
    if value is None or value.lower() in _TRUE:
        return True
    return False if value.lower() in _FALSE else None


def _boolean(value: bytes | None) -> bytes | None:
    meant = truth(value)
    return None if meant is None else b"true" if meant else b"false"


def _one_of(*words: bytes) -> Callable[[bytes | None], bytes | None]:
    return lambda value: value.lower() if value is not None and value.lower() in words else _boolean_of(value, words)


def _boolean_of(value: bytes | None, words: tuple[bytes, ...]) -> bytes | None:
    meant = _boolean(value)
    return meant if meant in words else None


def _number(value: bytes | None) -> bytes | None:
    return value if value is not None and len(value) <= 3 and value.isdigit() else None


# What a repository needs to be read: its format, and what its index and working tree were made under.  Each with
# the values that are let through, in the spelling that is written.
_SAFE: Mapping[tuple[bytes, bytes], Callable[[bytes | None], bytes | None]] = {
    (b"core", b"repositoryformatversion"): _number,
    (b"core", b"filemode"): _boolean,
    (b"core", b"bare"): _boolean,
    (b"core", b"logallrefupdates"): _one_of(b"true", b"false", b"always"),
    (b"core", b"ignorecase"): _boolean,
    (b"core", b"precomposeunicode"): _boolean,
    (b"core", b"symlinks"): _boolean,
    (b"core", b"autocrlf"): _one_of(b"true", b"false", b"input"),
    (b"core", b"eol"): _one_of(b"lf", b"crlf", b"native"),
    (b"core", b"sparsecheckout"): _boolean,
    (b"core", b"sparsecheckoutcone"): _boolean,
    (b"index", b"sparse"): _boolean,
    (b"extensions", b"objectformat"): _one_of(b"sha1", b"sha256"),
    (b"extensions", b"compatobjectformat"): _one_of(b"sha1", b"sha256"),
    (b"extensions", b"refstorage"): _one_of(b"files", b"reftable"),
    (b"extensions", b"preciousobjects"): _boolean,
    (b"extensions", b"relativeworktrees"): _boolean,
    (b"extensions", b"noop"): _boolean,
}


def safe_config(sources: Iterable[bytes]) -> bytes:
    """Returns a configuration with which git can read the repository and runs nothing.

    Of *sources*, the contents of ``config`` and ``config.worktree``, only settings of a short list survive, and of
    their values only those that are known to be harmless; a later value of the same setting wins, as in git.
    Remotes, branches and ``partialclone`` are not among them: git would fetch, by a command of their choice, what is
    missing.  Nothing is taken over as it is spelled, so that a reader that parses otherwise finds nothing either.
    """
    kept: dict[tuple[bytes, bytes], bytes] = {}
    for data in sources:
        for setting in parse(data[:CONFIG_MAX]).settings:
            allowed = _SAFE.get((setting.section, setting.key)) if setting.subsection is None else None
            value = allowed(setting.value) if allowed else None
            if value is not None:
                kept[setting.section, setting.key] = value
    lines = []
    for section in dict.fromkeys(section for section, _ in kept):
        lines.append(b"[%s]\n" % section)
        lines += [b"\t%s = %s\n" % (key, value) for (name, key), value in kept.items() if name == section]
    return b"".join(lines)
