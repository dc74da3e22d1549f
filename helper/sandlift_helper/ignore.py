"""Which paths the user's rules exclude: gitignore's language, on bytes.

The rules are those of gitignore(5) as git itself applies them, its undocumented corners included: where a text
of git's and its behaviour differ, the behaviour is the rule, for people check their rules with git.

Parsing turns a pattern into *segments*, the pieces between slashes.  A segment is a list of *parts*, the pieces
between its stars; a part is a list with one element for each byte of a name that it stands for: the bytes that
are accepted there.  A segment with no part stands for ``**``, any number of directories, none included.

Cost.  A rule costs one path at most (bytes of the pattern + 1) x (bytes of the path + 1) comparisons, whatever
both look like; `_spread` says why.  Most rules cost less: names, ``*.ext`` and ``start*`` are found by looking
the name up, plain paths by looking the path up, and a rule that begins with the name of another directory is
set aside once for each directory.
"""

from itertools import product

from sandlift_helper.links import components

MYPY = False
if MYPY:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    Element = TypeVar("Element")
    Item = TypeVar("Item")
    Part = list[bytes]
    Segment = list[Part]
    Matcher = Callable[[bytes], bool]
    Glob = tuple[int, bytes, Matcher]

_STAR, _QUESTION, _SLASH, _BACKSLASH, _OPEN, _CLOSE, _MINUS, _COLON = b"*?/\\[]-:"
_SPECIAL_TO_NUL = bytes.maketrans(b"*?[\\", bytes(4))
_ANY = bytes(range(1, 256)).replace(b"/", b"")

# A pattern such as [Bb]in or *.py[cod] is looked up under each text that it stands for, up to this many.
_TEXTS_MAX = 16

# The first and last bytes of the ranges of each class, as git reads them: ASCII only, and no vertical tab or form
# feed in "space".
_CLASSES = {
    b"alnum": b"09AZaz",
    b"alpha": b"AZaz",
    b"blank": b"\t\t  ",
    b"cntrl": b"\0\x1f\x7f\x7f",
    b"digit": b"09",
    b"graph": b"!~",
    b"lower": b"az",
    b"print": b" ~",
    b"punct": b"!/:@[`{~",
    b"space": b"\t\n\r\r  ",
    b"upper": b"AZ",
    b"xdigit": b"09AFaf",
}


class Rules:
    """The exclusion rules of one capture, gitignore language on bytes.  Made by `compile_rules`."""

    def __init__(self, patterns: "Iterable[tuple[bytes, bytes]]", literals: "Iterable[bytes]") -> None:
        self._literals = {}  # type: dict[bytes, bytes]
        for literal in literals:
            parts = components(literal)
            if not parts or b".." in parts or literal.startswith(b"/"):
                raise ValueError("no path below the root: %r" % literal)
            path = b"/".join(parts)
            self._literals[path] = path + b" (--exclude-path)"
        self._details = []  # type: list[bytes | None]
        self._files = _Index()
        self._directories = _Index()
        for number, (line, place) in enumerate(patterns):
            negated = line.startswith(b"!")
            self._details.append(None if negated else b"%s (%s)" % (line, place))
            pattern = line[1:] if negated else line
            if pattern.endswith(b"/"):
                _compile(number, pattern[:-1], (self._directories,))
            else:
                _compile(number, pattern, (self._files, self._directories))

    def excluded(self, path: bytes, is_dir: bool) -> "bytes | None":
        """Says why *path* (relative to the root, no slash at its ends) is excluded, or None when it is kept.

        The answer is the text of the rule and its place, such as ``*.log (--exclude)``.  It is about *path*
        alone: whoever walks asks for a directory before anything in it and never enters one that is excluded,
        and that makes git's rule that nothing below an excluded directory comes back.  A symbolic link is no
        directory, wherever it leads.
        """
        detail = self._literals.get(path)
        if detail is not None or not self._details:
            return detail
        number = (self._directories if is_dir else self._files).last(path)
        return None if number < 0 else self._details[number]


def compile_rules(patterns: "Iterable[tuple[bytes, bytes]]", literals: "Iterable[bytes]") -> Rules:
    """Prepares the rules of one capture.

    *patterns* are (line, place), later ones overrule earlier ones; a place is for people, such as
    ``.sandliftignore:3``.  A line is taken as it stands, as git takes a pattern of its command line: what only
    files have (comments, spaces at the end) is the business of `parse_lines`.  A malformed pattern excludes
    nothing, as with git.  *literals* are paths relative to the root, compared by components, in which nothing is
    special; no pattern brings them back.

    Raises ValueError for a literal that can name nothing below the root.
    """
    return Rules(patterns, literals)


def parse_lines(text: bytes, place: bytes) -> "list[tuple[bytes, bytes]]":
    """Reads a file of rules: the (line, ``place:number``) of every line that is neither blank nor a comment.

    As git reads it: a byte order mark is skipped, a line may end with CR LF and ends at a NUL, and spaces at its
    end count only behind a backslash.
    """
    rules = []
    if text.startswith(b"\xef\xbb\xbf"):
        text = text[3:]
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.endswith(b"\r"):
            line = line[:-1]
        line = line.partition(b"\0")[0]
        trimmed = line.rstrip(b" ")
        backslashes = len(trimmed) - len(trimmed.rstrip(b"\\"))
        if backslashes % 2 and len(trimmed) < len(line):
            trimmed += b" "
        if trimmed and not trimmed.startswith(b"#"):
            rules.append((trimmed, b"%s:%d" % (place, number)))
    return rules


class _Index:
    """The rules for directories, or for all else, by how they are found.  A rule is its number.

    A glob is a rule that must be tried: with the plain text that it begins with, and what judges the rest.
    """

    def __init__(self) -> None:
        self.paths = {}  # type: dict[bytes, int]
        # By where in a name the texts stand: all of it, or so many bytes of its start or its end.
        self.names = {}  # type: dict[tuple[int | None, int | None], tuple[slice, dict[bytes, int]]]
        self.name_globs = []  # type: list[Glob]
        self.path_globs = []  # type: list[Glob]
        self._directory = None  # type: bytes | None
        self._near = []  # type: list[Glob]

    def last(self, path: bytes) -> int:
        """Returns the last rule that matches *path*, or -1."""
        directory, _, name = path.rpartition(b"/")
        if directory != self._directory:
            self._enter(directory)
        best = self.paths.get(path, -1)
        for where, numbers in self.names.values():
            number = numbers.get(name[where], -1)
            if number > best:
                best = number
        best = _last(self.name_globs, name, best)
        return _last(self._near, path, best)

    def _enter(self, directory: bytes) -> None:
        """Keeps at hand the globs that can match in *directory*: a walk asks for all its names in a row."""
        base = directory + b"/" if directory else b""
        self._directory = directory
        self._near = [
            glob
            for glob in self.path_globs
            if base.startswith(glob[1]) or (glob[1].startswith(base) and glob[1].rfind(b"/") < len(base))
        ]


def _last(globs: "Sequence[Glob]", text: bytes, best: int) -> int:
    """Returns the last of the globs that matches, if it comes after the rule *best*, else *best*."""
    for number, start, matches in reversed(globs):
        if number < best:
            break
        if text.startswith(start) and matches(text[len(start) :]):
            return number
    return best


def _compile(number: int, pattern: bytes, indexes: "Sequence[_Index]") -> None:
    """Enters a pattern, without its ``!`` and its last slash, where the indexes will find it."""
    anchored = b"/" in pattern
    if pattern.startswith(b"/"):
        pattern = pattern[1:]
    # git compares the plain start of an anchored pattern apart from the rest.  That can be seen: a ** behind it
    # counts as the first thing in its pattern, so that foo**/bar is foo and then **/bar.
    start = pattern.translate(_SPECIAL_TO_NUL).partition(b"\0")[0]
    segments = _segments(pattern[len(start) :], anchored)
    if not start and segments[:1] == [[]] and len(segments) == 2:
        del segments[0]  # **/name
        anchored = False
    if not segments:
        return
    parts = segments[-1]
    texts = None
    if anchored:
        if all(len(segment) == 1 for segment in segments):
            texts = _texts(start, [accepted for segment in segments for accepted in [b"/"] + segment[0]][1:])
    elif len(parts) == 1 or parts[1:] == [[]]:
        texts = _texts(start, parts[0])
    elif len(parts) == 2 and not start and not parts[0]:
        texts = _texts(start, parts[1])
    for index in indexes:
        if texts is None:
            globs = index.path_globs if anchored else index.name_globs
            globs.append((number, start, _path_matcher(segments)))
        elif anchored:
            index.paths.update(dict.fromkeys(texts, number))
        else:
            for text in texts:
                begin = -len(text) if len(parts) == 2 and parts[1] else None
                end = len(text) if len(parts) == 2 and not parts[1] else None
                index.names.setdefault((begin, end), (slice(begin, end), {}))[1][text] = number


def _segments(pattern: bytes, anchored: bool) -> "list[Segment]":
    """Takes a pattern apart; a malformed one, which matches nothing, has no segments.

    Without *anchored* it stands for one name, in which ``**`` is a star as any other.
    """
    pattern += b"\0"
    segments = []  # type: list[Segment]
    parts = [[]]  # type: Segment
    at = 0
    while pattern[at]:
        byte, begin = pattern[at], at
        at += 1
        if byte == _STAR:
            while pattern[at] == _STAR:
                at += 1
            starts = not begin or pattern[begin - 1] == _SLASH
            ends = pattern[at] in b"/\0" or pattern.startswith(b"\\/", at)
            if anchored and at - begin > 1 and starts and ends:
                segments.append([])
                if pattern[at] == _SLASH:
                    at += 1
                    continue
                # At the end, and before an escaped slash, ** stands for at least one component.
            parts.append([])
            continue
        accepted = bytes((byte,))
        if byte == _QUESTION:
            accepted = _ANY
        elif byte == _OPEN:
            mask, at = _bracket(pattern, at)
            if not at:
                return []
            accepted = bytes(member for member in _ANY if mask >> member & 1)
        elif byte == _BACKSLASH:
            if not pattern[at]:
                return []
            accepted = pattern[at : at + 1]
            at += 1
        if accepted == b"/":
            segments.append(parts)
            parts = [[]]
        else:
            parts[-1].append(accepted)
    segments.append(parts)
    return segments


def _bracket(pattern: bytes, at: int) -> "tuple[int, int]":
    """Reads a set whose ``[`` stands before *at*: its bytes as a mask, and where it ends (0: malformed).

    *pattern* ends with a NUL.
    """
    negated = pattern[at] in b"!^"
    at += negated
    first = close = at
    mask = previous = 0
    while pattern[at] != _CLOSE or at == first:
        byte, low = pattern[at], 0
        if byte == _BACKSLASH:
            at += 1
            byte = pattern[at]
        elif byte == _MINUS and previous and pattern[at + 1] not in b"]\0":
            at += 2 if pattern[at + 1] == _BACKSLASH else 1
            byte, low = pattern[at], previous
        elif byte == _OPEN and pattern[at + 1] == _COLON:
            # Looked for again only when passed, so that many "[:" cost no more than their length.
            if close < at + 2:
                close = pattern.find(b"]", at + 2)
            if close < 0:
                return 0, 0
            if close > at + 2 and pattern[close - 1] == _COLON:
                ranges = _CLASSES.get(pattern[at + 2 : close - 1])
                if ranges is None:
                    return 0, 0
                for start, end in zip(ranges[::2], ranges[1::2]):
                    mask |= _span(start, end)
                at, previous = close + 1, 0
                continue
        if not byte:
            return 0, 0
        mask |= _span(low or byte, byte)
        previous = 0 if low else byte
        at += 1
    return (~mask if negated else mask), at + 1


def _span(low: int, high: int) -> int:
    return (1 << high + 1) - (1 << low) if low <= high else 0


def _texts(start: bytes, part: "Part") -> "list[bytes] | None":
    """Returns every text that *start* and then the part stand for, or None when they are too many."""
    count = 1
    for accepted in part:
        count *= len(accepted)
        if count > _TEXTS_MAX:
            return None
    return [start + bytes(text) for text in product(*part)]


def _path_matcher(segments: "Sequence[Segment]") -> "Matcher":
    """Returns what says whether a path matches: ``**`` between blocks of components."""
    blocks = [[]]  # type: list[list[Matcher]]
    for segment in segments:
        if segment:
            blocks[-1].append(_name_matcher(segment))
        else:
            blocks.append([])
    last = blocks[-1].pop()

    def matches(path: bytes) -> bool:
        directory, slash, name = path.rpartition(b"/")
        # The last component first: it decides most often.
        return last(name) and _spread(blocks, directory.split(b"/") if slash else [], _applies)

    return matches


def _name_matcher(parts: "Segment") -> "Matcher":
    """Returns what says whether a name matches: stars between parts."""
    if any(len(accepted) != 1 for part in parts for accepted in part):
        return lambda name: _spread(parts, name, _accepts)
    texts = [b"".join(part) for part in parts]
    first, middle, last = texts[0], texts[1:-1], texts[-1]
    if len(texts) == 1:
        return first.__eq__

    def matches(name: bytes) -> bool:
        start, stop = len(first), len(name) - len(last)
        if start > stop or not name.startswith(first) or not name.endswith(last):
            return False
        for text in middle:
            start = name.find(text, start, stop)
            if start < 0:
                return False
            start += len(text)
        return True

    return matches


_accepts = bytes.__contains__


def _applies(matches: "Matcher", name: bytes) -> bool:
    return matches(name)


def _spread(
    blocks: "Sequence[Sequence[Element]]", items: "Sequence[Item]", accepts: "Callable[[Element, Item], bool]"
) -> bool:
    """Says whether *items* are the blocks in order, the first at the start, the last at the end, gaps between.

    It serves both levels: parts over the bytes of a name, and blocks of segments over the components of a path.
    A block between gaps is set at the first place where it fits: any other choice leaves less for the rest.  So
    no place is tried twice, and since an element and the place of its block determine the item, no element meets
    an item twice: at most elements x items comparisons.  Of bytes with bytes that is pattern x name; a segment
    meets a component at most once too, and these costs, summed over all pairs, are pattern x path.
    """
    first, last = blocks[0], blocks[-1]
    start, stop = len(first), len(items) - len(last)
    if len(blocks) == 1:
        return not stop and _fits(first, items, 0, accepts)
    if start > stop or not _fits(first, items, 0, accepts) or not _fits(last, items, stop, accepts):
        return False
    for block in blocks[1:-1]:
        while start + len(block) <= stop and not _fits(block, items, start, accepts):
            start += 1
        start += len(block)
        if start > stop:
            return False
    return True


def _fits(
    block: "Sequence[Element]", items: "Sequence[Item]", start: int, accepts: "Callable[[Element, Item], bool]"
) -> bool:
    return all(map(accepts, block, items[start : start + len(block)]))
