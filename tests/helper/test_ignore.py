"""The ignore rules, with git itself as the judge of what gitignore's language means."""

from __future__ import annotations

import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pathspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandlift_helper import ignore
from sandlift_helper.ignore import Rules, compile_rules, parse_lines
from support.pythons import PYTHONS, Interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

PLACE = b".gitignore"
PROPERTY = settings(max_examples=300, deadline=None)

# A path and whether it is a directory.
Asked = tuple[bytes, bool]


def asked(text: str) -> Asked:
    """``a/b`` is a file, ``a/b/`` a directory."""
    return text.rstrip("/").encode(), text.endswith("/")


def walk(rules: Rules, path: bytes, is_dir: bool) -> bytes | None:
    """What a walk finds: parents are asked first, and nothing below an excluded one is asked."""
    at = path.find(b"/")
    while at >= 0:
        detail = rules.excluded(path[:at], True)
        if detail is not None:
            return detail
        at = path.find(b"/", at + 1)
    return rules.excluded(path, is_dir)


def lines_found(text: bytes, questions: Sequence[Asked]) -> list[int | None]:
    """The number of the line that excludes each path, by our rules."""
    rules = compile_rules(parse_lines(text, PLACE), [])
    details = [walk(rules, path, is_dir) for path, is_dir in questions]
    return [None if detail is None else int(detail.rpartition(b":")[2].rstrip(b")")) for detail in details]


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """A repository in which git is asked; nothing of the user's own configuration reaches it."""

    top: Path

    def run(self, *words: str, stdin: bytes = b"", ok: tuple[int, ...] = (0,)) -> bytes:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.top),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "LC_ALL": "C",
        }
        command = ["git", "-c", "core.ignorecase=false", *words]
        done = subprocess.run(command, cwd=self.top, env=environment, input=stdin, capture_output=True, timeout=60)
        assert done.returncode in ok, done.stderr
        assert done.stderr == b""
        return done.stdout

    def lines_found(self, text: bytes, questions: Sequence[Asked]) -> list[int | None]:
        """The number of the line that excludes each path, by git, for the text of a file of rules.

        A path is a directory for git only if there is one, so directories and the rest are asked in two places.
        """
        for place in (b"d", b"f"):
            (self.top / place.decode() / ".gitignore").write_bytes(text)
        for path, is_dir in questions:
            if is_dir:
                os.makedirs(os.fsencode(self.top / "d") + b"/" + path, exist_ok=True)
        names = [(b"d/" if is_dir else b"f/") + path for path, is_dir in questions]
        command = ("check-ignore", "-z", "--stdin", "--no-index", "--verbose", "--non-matching")
        fields = self.run(*command, stdin=b"\0".join(names) + b"\0", ok=(0, 1)).split(b"\0")
        assert fields[3::4] == names
        found = zip(fields[1::4], fields[2::4], strict=False)
        return [int(line) if line and not rule.startswith(b"!") else None for line, rule in found]


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Git:
    if shutil.which("git") is None:
        pytest.skip("ignore rules are not compared with git: apt-get install git")
    git = Git(top=tmp_path_factory.mktemp("repository"))
    git.run("init", "--quiet")
    for place in ("d", "f"):
        (git.top / place).mkdir()
    return git


# id, rules in order, then what is excluded and what is kept by them. A slash at the end: a directory.
TRAPS: list[tuple[str, list[str], str, str]] = [
    ("name-at-any-depth", ["foo"], "foo foo/ a/foo a/b/foo/ foo/below", "foox xfoo a/foo.c Foo"),
    ("slash-at-start-anchors", ["/foo"], "foo foo/ foo/a", "a/foo"),
    ("slash-in-middle-anchors", ["a/foo"], "a/foo a/foo/x", "b/a/foo foo"),
    ("slash-at-end-does-not-anchor", ["foo/"], "foo/ a/foo/ a/foo/x foo/x", "foo a/foo"),
    ("middle-and-end", ["a/foo/"], "a/foo/ a/foo/x", "a/foo b/a/foo/"),
    ("only-directories-anchored", ["/foo/"], "foo/", "foo a/foo/"),
    ("two-slashes-at-start", ["//foo"], "", "foo a/foo foo/"),
    ("two-slashes-in-middle", ["a//b"], "", "a/b"),
    ("two-slashes-at-end", ["foo//"], "", "foo foo/"),
    ("only-a-slash", ["/", "//", "///"], "", "a a/ a/b"),
    ("dot-components-are-names", ["./a", "b/./c", "d/../e"], "", "a b/c e"),
    ("star-stays-in-component", ["a/*/c"], "a/b/c a/b/c/d", "a/c a/b/x/c"),
    ("star-matches-nothing-too", ["a*b"], "ab aXb aXXb x/ab", "ab.c a"),
    ("star-star-without-slash", ["a**b"], "ab axxb x/ab", "a/b"),
    ("star-star-inside-component", ["x/a**b"], "x/ab x/aXb", "x/a/b x/aX/b"),
    ("star-matches-hidden", ["*"], ".a a .a/ a/.b", ""),
    ("star-slash", ["*/"], "a/ a/b", "a"),
    ("slash-star", ["/*"], "a a/ a/b", ""),
    ("slash-star-slash-star", ["/*/*"], "a/b a/b/ a/b/c", "a a/"),
    ("anchored-star-star", ["/**"], "a a/b", ""),
    ("star-star-slash-name", ["**/foo"], "foo a/foo a/b/foo", "xfoo a/xfoo foox"),
    ("star-star-slash-two", ["**/a/b"], "a/b x/a/b x/y/a/b/", "ab xa/b a/x/b"),
    ("star-star-slash-glob", ["**/*.o"], "x.o a/x.o", "x.oo"),
    ("name-slash-star-star", ["foo/**"], "foo/a foo/a/b foo/a/", "foo foo/ x/foo/a"),
    ("name-slash-star-star-slash", ["foo/**/"], "foo/a/ foo/a/b", "foo/ foo/a"),
    ("star-star-in-middle", ["a/**/b"], "a/b a/x/b a/x/y/b a/x/b/c", "ab a/xb x/a/b a/bx"),
    ("star-star-twice", ["a/**/b/**/c"], "a/b/c a/x/b/y/z/c a/b/b/c", "a/c a/b a/bc"),
    ("star-star-star-star", ["**/**/a"], "a x/a x/y/a", "xa"),
    ("star-star-slash-star-star", ["a/**/**"], "a/b a/b/c", "a a/"),
    ("star-star-then-star", ["a/**/*"], "a/b a/b/c", "a a/"),
    ("three-stars", ["a/***/b", "***/c"], "a/b a/x/y/b c x/c", "ab"),
    ("star-star-behind-plain-start", ["foo**/bar"], "foobar fooz/bar foo/x/bar foo/bar foox/y/bar", "xfoo/bar"),
    ("star-star-ends-plain-start", ["/foo**", "!foox"], "foo fooz foox/a foox/a/b", "foox xfoo"),
    ("star-star-behind-start-takes-none", ["foo**/*"], "foo foox foo/x", "fo"),
    ("star-star-behind-escape-is-star", ["\\foo**/bar"], "foox/bar foo/bar", "foobar foo/x/bar"),
    ("star-star-behind-wildcard-is-star", ["?oo**/bar"], "foox/bar foo/bar", "foobar foo/x/bar"),
    ("star-star-escaped-slash", ["a/**\\/b"], "a/x/b a/x/y/b", "a/b"),
    ("question-is-one-byte", ["a?c"], "abc x/abc a\\c", "ac abbc"),
    ("question-is-no-slash", ["x/a?c"], "x/abc", "x/a/c"),
    ("question-is-a-byte-not-a-letter", ["?", "x??"], "a xé", "é"),
    ("class", ["[ab]c"], "ac bc", "cc c abc [ab]c"),
    ("class-range", ["[a-c]x"], "ax bx cx", "dx -x Bx"),
    ("class-range-reversed-is-its-start", ["[c-a]x"], "cx", "ax bx -x"),
    ("class-range-of-one", ["[a-a-c]x"], "ax cx -x", "bx"),
    ("class-range-then-dash", ["[a-c-e]x"], "ax bx cx ex -x", "dx"),
    ("class-dash-first-and-last", ["[-a]x", "[b-]y"], "-x ax -y by", "bx ay"),
    ("class-dash-ranges-from-dash", ["[--0]x"], "-x .x 0x", "1x ,x"),
    ("class-negated", ["[!a]x", "[^b]y"], "bx ay !x ^y", "ax by"),
    ("class-negated-is-no-slash", ["a[!x]b", "c/d[!x]e"], "aZb c/dZe", "a/b c/d/e"),
    ("class-bracket-first", ["[]a]x", "[!]a]y"], "]x ax by", "bx ]y ay"),
    ("class-escapes", ["[\\]]x", "[a\\-c]y"], "]x ay -y cy", "\\x by"),
    ("class-range-to-escape", ["[\\[-\\]]x"], "[x \\x ]x", "ax"),
    ("class-named", ["[[:digit:]]x", "[[:upper:]_]y"], "1x Ay _y", "ax ay :x"),
    ("class-named-negated", ["[![:digit:]]x"], "ax", "1x"),
    ("class-named-unknown", ["[[:word:]]x", "[[:Digit:]]y"], "", "wx :x 1y :]x"),
    ("class-named-empty", ["[[::]]x"], "", ":x []x :]x"),
    ("class-colon-is-plain", ["[[:a]x", "[[:]y"], "[x :x ax [y :y", "by"),
    ("class-range-to-named-is-plain", ["[X-[:x:]]y"], "X]y []y :]y x]y", "Xy"),
    ("class-with-slash", ["a[/]b", "c[x/]d", "e[.-0]f"], "cxd e.f e0f", "a/b c/d e/f x/cxd"),
    ("class-unclosed", ["[a", "b[", "c[!", "[]", "d[]", "e[[:alpha:]", "f[a\\", "g[a-"], "", "[a a b[ b c[! [] d[] ea"),
    ("class-unclosed-behind-star", ["*[a", "x/**/y["], "", "[a b[a x/y["),
    ("class-cut-by-slash", ["[a/", "[/a"], "", "[a/ a/ [/a a"),
    ("class-not-empty", ["[!]x", "[]x"], "", "ax ]x [!]x []x"),
    ("escaped-star", ["\\*", "a\\?"], "* a? x/*", "b ab a\\? \\*"),
    ("escaped-hash-and-bang", ["\\#a", "\\!b"], "#a !b", "a b \\#a"),
    ("escaped-letter", ["\\a\\b"], "ab", "\\a\\b"),
    ("escaped-backslash", ["a\\\\b"], "a\\b", "ab a\\\\b"),
    ("escaped-slash-does-anchor", ["a\\/b"], "a/b", "x/a/b a\\/b"),
    ("escaped-slash-first", ["\\/a"], "", "a x/a"),
    ("escaped-slash-last", ["a\\/"], "", "a a/ a\\/ a\\"),
    ("backslash-last", ["a\\", "b*\\", "\\"], "", "a a\\ b b\\ \\ bc\\"),
    ("escaped-in-path", ["x/\\*/y"], "x/*/y", "x/a/y"),
    ("hash-is-comment", ["#a", " #b"], "", "#a a b #b"),
    ("hash-inside", ["a#b"], "a#b", "a"),
    ("bang-alone", ["*", "!"], "a !", ""),
    ("bang-brings-back", ["*.o", "!keep.o"], "a.o x/a.o", "keep.o x/keep.o"),
    ("bang-then-again", ["*.o", "!k*.o", "keep.o"], "a.o keep.o", "k.o"),
    ("bang-last-match-wins", ["!keep.o", "*.o"], "keep.o", "keep"),
    ("bang-not-below-excluded", ["a/", "!a/b", "!a/b/c"], "a/ a/b a/b/c", "a"),
    ("bang-below-contents-rule", ["a/*", "!a/b"], "a/c a/c/b", "a/ a/b a/b/c"),
    ("bang-directory-only", ["x", "!x/"], "x y/x", "x/ x/y"),
    ("bang-whitelist", ["*", "!*/", "!*.c"], "a x/a", "a.c x/a.c x/ x/y/"),
    ("bang-path-over-name", ["x", "!/x", "!a/x"], "b/x", "x a/x a/x/y"),
    ("bang-glob-over-path", ["a/*/c", "!**/c"], "", "a/b/c"),
    ("bang-bang", ["!!a", "*b", "!\\!b"], "cb", "!a !b"),
    ("two-bangs-is-a-name", ["*", "!!a"], "a", "!a"),
    ("literal-wins-over-glob", ["!log", "lo*", "!l*g"], "lo", "log"),
    ("suffix-is-whole", ["*.o"], ".o a.o a.b.o", "a.ob o"),
    ("suffix-and-directory", ["*.d/"], "a.d/ a.d/x", "a.d"),
    ("suffix-anchored", ["/*.o"], "a.o", "x/a.o"),
    ("suffixes-of-a-class", ["*.py[co]"], "a.pyc x/a.pyo", "a.py a.pyd"),
    ("prefix", ["core.*", "tmp*"], "core.1 core. tmp tmpx x/tmpx", "core atmp"),
    ("class-in-path", ["[Bb]in/[Dd]ebug"], "bin/debug Bin/Debug", "bin/xebug x/bin/debug bin"),
    ("glob-needs-both-ends", ["ab*ba"], "abba abxba", "aba ab ba"),
    ("segment-needs-both-ends", ["?/ab*ba"], "x/abba x/abxba", "x/aba x/ab"),
    ("glob-middle", ["a*b*c"], "abc aXbXc abbc abcc", "ac acb abcx"),
    ("glob-middle-overlap", ["*ab*ba*"], "abba xabxbax", "aba"),
    ("path-glob-middle", ["x/*b*/y"], "x/b/y x/aba/y", "x/a/y x/b/b/y"),
    ("path-backtracks", ["**/a/*/b/**/c"], "a/a/b/c a/x/a/b/b/x/c a/a/x/b/c", "a/b/c a/x/y/b/c"),
    ("case-counts", ["abc", "*.O", "[a-c]D"], "abc x.O aD", "ABC x.o AD ad"),
]
TRAP_IDS = [trap[0] for trap in TRAPS]


@pytest.mark.parametrize(("lines", "excluded", "kept"), [pytest.param(*trap[1:], id=trap[0]) for trap in TRAPS])
def test_trap(git: Git, lines: list[str], excluded: str, kept: str) -> None:
    text = "\n".join(lines).encode()
    questions = [asked(name) for name in (excluded + " " + kept).split()]
    found = lines_found(text, questions)
    count = len(excluded.split())
    assert [question for question, line in zip(questions, found, strict=True) if line] == questions[:count]
    assert found == git.lines_found(text, questions)


# Reads texts of rules with questions, as one literal, and prints the lines that answer; runs on 3.6.
PROBE = """
import ast, sys
sys.path.insert(0, sys.argv[1])
from sandlift_helper.ignore import compile_rules, parse_lines
answers = []
for text, questions in ast.literal_eval(sys.stdin.read()):
    rules = compile_rules(parse_lines(text, b"x"), [b"li/te[r]al"])
    answers.append([rules.excluded(path, is_dir) for path, is_dir in questions])
print(answers)
"""


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_every_python_answers_alike(interpreter: Interpreter) -> None:
    cases: list[tuple[bytes, list[Asked]]] = []
    for _, lines, excluded, kept in TRAPS:
        cases.append(("\n".join(lines).encode(), [asked(name) for name in (excluded + " " + kept).split()]))
    cases.append((b"a/*[!b]\n", [(b"li/te[r]al", True), (b"a/\xff", False), (b"a/b", False)]))
    ours = []
    for text, questions in cases:
        rules = compile_rules(parse_lines(text, b"x"), [b"li/te[r]al"])
        ours.append([rules.excluded(path, is_dir) for path, is_dir in questions])
    helper = str(Path(ignore.__file__).parent.parent)
    command = [interpreter.path, "-I", "-S", "-B", "-W", "error", "-c", PROBE, helper]
    done = subprocess.run(command, input=repr(cases), capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert ast.literal_eval(done.stdout) == ours


CLASSES = ["alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "xdigit"]
SETS = [f"[[:{name}:]]" for name in CLASSES]
SETS += ["[!a]", "[^a]", "[a-z]", "[!a-z]", "[Z-a]", "[\\a-\\z]", "[]-a]", "[!]-a]", "[-]", "[+--]", "[a\\]b]", "[--]"]
SETS += ["?", "*", "[![:space:][:cntrl:]]", "[[:alpha:]-z]", "[a-[:alpha:]]", "[a[:digit:]-z]", "[[:digit:]--]"]


def test_sets_hold_the_bytes_that_git_says(git: Git) -> None:
    """Every byte there is, against every class: what "space" means is nowhere written."""
    questions = [(b"x" + bytes((byte,)), False) for byte in range(1, 256) if byte != ord("/")]
    questions += [(b"p/x" + bytes((byte,)), False) for byte in range(1, 256) if byte != ord("/")]
    for text in [*map(str.encode, SETS), b"[\x80-\xfe]", b"[!\xff]", b"[\xc3\xa9]"]:
        for rule in (b"x" + text, b"p/x" + text):
            assert lines_found(rule, questions) == git.lines_found(rule, questions), rule


# Rules in which everything is likely to matter, and paths that are likely to be met by them.
ATOMS = ["a", "a", "b", "b", "ab", "c", "*", "*", "**", "?", "/", "/", "/", "**/", "/**", "/**/", "***", ".", "-"]
ODD = [
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-b]",
    "[]a]",
    "[a/b]",
    "[[:alpha:]]",
    "[[:digit:]a]",
    "[",
    "]",
    "!",
    "^",
    "[!",
    "[[:a",
    ":]",
]
ESCAPES = ["\\", "\\a", "\\*", "\\/", "\\\\", "\\ ", " ", "\\[", "\\!", "\\#", "#", "**\\/"]
COMPONENTS = ["a", "a", "b", "b", "ab", "ba", "aa", "abc", "c", "aba", ".a", "-"]
ODD_COMPONENTS = ["]", "[", "*", "!a", "#a", "\\", "a\\", "a b", "a ", "^", "b]", "[a", ":", "é"]


def rule_lines(atoms: Sequence[str]) -> st.SearchStrategy[str]:
    body = st.lists(st.sampled_from(atoms), min_size=1, max_size=7).map("".join)
    return st.tuples(st.sampled_from(["", "", "", "!", "/"]), body, st.sampled_from(["", "", "/"])).map("".join)


def files_of(atoms: Sequence[str]) -> st.SearchStrategy[str]:
    return st.lists(rule_lines(atoms), min_size=1, max_size=5).map("\n".join)


def path_lists(components: Sequence[str], depths: Sequence[int]) -> st.SearchStrategy[list[Asked]]:
    """Some of a few hundred paths; they are fixed, so that the directories among them are made once."""
    chance = random.Random(7)
    paths = ["/".join(chance.choices(components, k=chance.choice(depths))) for _ in range(400)]
    questions = sorted({asked(path + chance.choice(["", "", "/"])) for path in paths})
    return st.lists(st.sampled_from(questions), min_size=10, max_size=40)


def compare_with_git(git: Git, text: str, questions: Sequence[Asked]) -> None:
    assert lines_found(text.encode(), questions) == git.lines_found(text.encode(), questions)


@PROPERTY
@given(files_of(ATOMS), path_lists(COMPONENTS, [1, 2, 2, 3, 3, 4]))
def test_like_git_common(git: Git, text: str, questions: list[Asked]) -> None:
    compare_with_git(git, text, questions)


@PROPERTY
@given(files_of(ATOMS + ODD * 2 + ESCAPES), path_lists(COMPONENTS + ODD_COMPONENTS, [1, 2, 2, 3]))
def test_like_git_odd(git: Git, text: str, questions: list[Asked]) -> None:
    compare_with_git(git, text, questions)


@PROPERTY
@given(
    st.lists(st.sampled_from(["a", "b", "ab", "*", "**", "**/", "/**/", "/", "[ab]", "?b"]), min_size=4, max_size=12),
    path_lists(["a", "b", "ab", "ba", "aab", "bab"], [3, 5, 8]),
)
def test_like_git_long(git: Git, atoms: list[str], questions: list[Asked]) -> None:
    """One long rule against deep paths: here a wrong choice of where a star ends would show."""
    compare_with_git(git, "".join(atoms), questions)


@PROPERTY
@given(
    st.lists(
        st.sampled_from(
            ["a", "b*", " ", "  ", "\\", "\\ ", "#", "!", "\n", "\n", "\r\n", "\r", "\t", "\0", "\ufeff", "/"]
        ),
        max_size=14,
    ).map("".join)
)
@example("\ufeffa\n\ufeffb\n")
@example("a\\  \na\\\\ \n#a\n \n\r\n\\#a")
def test_files_are_read_like_git(git: Git, text: str) -> None:
    """Blanks, comments, spaces and line ends, as git counts lines."""
    names = [
        b"a",
        b"b",
        b"bb",
        b"a ",
        b"a  ",
        b"a\\",
        b"#a",
        b"!a",
        b"#",
        b" ",
        b" a",
        b"\r",
        b"a\r",
        b"a\t",
        b"\t",
        b"aa",
    ]
    names += ["\ufeffa".encode(), "\ufeffb".encode(), "\ufeff".encode()]
    compare_with_git(git, text, [(name, False) for name in names])


def test_lines_of_a_file() -> None:
    text = b"\xef\xbb\xbf*.log\n\n# a comment\n  \nbuild/  \r\na\\  \n!keep\\\\ \n\\#x"
    assert parse_lines(text, b"rules.txt") == [
        (b"*.log", b"rules.txt:1"),
        (b"build/", b"rules.txt:5"),
        (b"a\\ ", b"rules.txt:6"),
        (b"!keep\\\\", b"rules.txt:7"),
        (b"\\#x", b"rules.txt:8"),
    ]
    assert parse_lines(b"", b"empty") == []


@pytest.mark.parametrize("pattern", ["#a", "a ", " a", "\ufeffa", "a\\ ", "!a", " "])
def test_pattern_of_the_command_line_is_taken_as_it_stands(git: Git, pattern: str) -> None:
    """Only a file has comments and spaces that do not count; git's own option is the judge."""
    names = [b"#a", b"a", b"a ", b" a", "\ufeffa".encode(), b"!a", b" "]
    home = git.top / "options"
    home.mkdir(exist_ok=True)
    for name in names:
        (home / os.fsdecode(name)).touch()
    listed = git.run("ls-files", "-z", "--others", "--ignored", "--exclude=" + pattern, "options")
    rules = compile_rules([(pattern.encode(), b"--exclude")], [])
    ours = {b"options/" + name for name in names if rules.excluded(name, False)}
    assert set(listed.split(b"\0")) - {b""} == ours


@PROPERTY
@given(
    st.lists(
        st.lists(
            st.sampled_from(["a", "a", "b", "ab", "c", "*", "*", "?", "/", "/", ".", "-"]), min_size=1, max_size=7
        ),
        min_size=1,
        max_size=5,
    ),
    path_lists(COMPONENTS, [1, 2, 2, 3, 3, 4]),
)
def test_like_pathspec(atoms: list[list[str]], questions: list[Asked]) -> None:
    """A second oracle, where it is right: without ``!``, ``**`` and brackets."""
    text = "\n".join(re.sub(r"\*+", "*", "".join(line)) for line in atoms)
    spec = pathspec.GitIgnoreSpec.from_lines(text.splitlines())
    theirs = [spec.match_file(path.decode() + "/" * is_dir) for path, is_dir in questions]
    assert [line is not None for line in lines_found(text.encode(), questions)] == theirs


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("a/**", "a/", id="star-star-needs-something"),
        pytest.param("a/**/", "a/b", id="directories-only"),
        pytest.param("a/b**/c", "a/bc", id="star-star-behind-plain-start"),
        pytest.param("a[!x]b", "a/b", id="set-is-no-slash"),
        pytest.param("a\n!a/b", "a/b", id="nothing-back-below-excluded"),
        pytest.param("?", "é", id="bytes"),
    ],
)
def test_git_wins_over_pathspec(git: Git, text: str, name: str) -> None:
    """Where the two differ, ours is what git does. A row that fails at its end has been mended there: drop it."""
    ours = lines_found(text.encode(), [asked(name)])
    assert ours == git.lines_found(text.encode(), [asked(name)])
    assert pathspec.GitIgnoreSpec.from_lines(text.splitlines()).match_file(name) != (ours != [None])


def test_detail_is_the_rule_and_its_place() -> None:
    rules = compile_rules(
        [(b"*.log", b"--exclude"), (b"build/", b".sandliftignore:3"), (b"!b.log", b"rules.txt:1")], [b"a/b/", b"./c//d"]
    )
    assert rules.excluded(b"x/a.log", False) == b"*.log (--exclude)"
    assert rules.excluded(b"x/build", True) == b"build/ (.sandliftignore:3)"
    assert rules.excluded(b"b.log", False) is None
    assert rules.excluded(b"a/b", True) == b"a/b (--exclude-path)"
    assert rules.excluded(b"c/d", False) == b"c/d (--exclude-path)"


def test_answer_is_about_the_path_alone() -> None:
    rules = compile_rules([(b"a/", b"--exclude")], [b"b"])
    assert rules.excluded(b"a/x", False) is None
    assert rules.excluded(b"b/x", False) is None


@pytest.mark.parametrize("name", ["a[1]", "*.log", "a?", "**", "!a", "#a", "a\\b", "a "])
def test_literal_is_never_a_glob(name: str) -> None:
    literal = name.encode()
    rules = compile_rules([], [b"x/" + literal])
    assert rules.excluded(b"x/" + literal, False) is not None
    for other in (b"a1", b"a.log", b"ab", b"a", literal + b"x", literal[1:] or b"y", literal.strip()):
        if other != literal:
            assert rules.excluded(b"x/" + other, False) is None, other
    assert rules.excluded(literal, False) is None
    assert rules.excluded(b"y/x/" + literal, False) is None
    assert rules.excluded(b"x", True) is None


def test_literals_are_not_brought_back() -> None:
    rules = compile_rules([(b"!a", b"--exclude"), (b"!**", b"--exclude")], [b"a"])
    assert rules.excluded(b"a", False) == b"a (--exclude-path)"


def test_literal_is_any_bytes() -> None:
    rules = compile_rules([], [b"\xff\n/\x01"])
    assert rules.excluded(b"\xff\n/\x01", False) == b"\xff\n/\x01 (--exclude-path)"
    assert rules.excluded(b"\xff\n/\x02", False) is None


@pytest.mark.parametrize("literal", [b"", b".", b"/", b"./", b"/a", b"..", b"../a", b"a/../b"])
def test_literal_that_names_nothing_below_the_root(literal: bytes) -> None:
    with pytest.raises(ValueError, match="no path below the root"):
        compile_rules([], [b"fine", literal])


def test_nothing_is_excluded_by_default() -> None:
    """Hidden files, version control and dependencies are work as any other."""
    rules = compile_rules([], [])
    for path in (b".env", b".git", b".gitkeep", b"node_modules", b"a/.cache/x", b"core", b"x~", b".sandliftignore"):
        assert rules.excluded(path, False) is None
        assert rules.excluded(path, True) is None


def test_one_name_of_a_file_does_not_decide_for_another() -> None:
    rules = compile_rules([(b"a/.gitkeep", b"--exclude"), (b"/*.c", b"--exclude")], [])
    names = [b"a/.gitkeep", b"b/.gitkeep", b"nothing.c", b"c/nothing.c"]
    assert [name for name in names if rules.excluded(name, False) is None] == [b"b/.gitkeep", b"c/nothing.c"]


def test_order_of_questions_does_not_matter() -> None:
    lines = [b"a/b/*.o", b"!a/b/k*", b"a/*/x", b"c*d/e?", b"/*.t", b"**/b/*/z"]
    paths = [
        b"a/b/k.o",
        b"a/b/x.o",
        b"a/x",
        b"a/c/x",
        b"cd/ef",
        b"ccd/e",
        b"q.t",
        b"a/q.t",
        b"b/1/z",
        b"a/b/2/z",
        b"a/b/k/z",
    ]
    rules = compile_rules([(line, b"--exclude") for line in lines], [])
    found = {path: rules.excluded(path, False) for path in paths}
    assert [path for path in paths if found[path] is None] == [b"a/b/k.o", b"a/x", b"ccd/e", b"a/q.t"]
    for first, second in itertools.permutations(paths, 2):
        for path in (first, second):
            assert rules.excluded(path, False) == found[path]


class Steps:
    """Counts what a question costs: comparisons of a piece of a pattern with a piece of a path, lines, searches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.comparisons = self.lines = self.searches = 0
        for name in ("_accepts", "_applies"):
            monkeypatch.setattr(ignore, name, self._counted(getattr(ignore, name)))

    def _counted(self, accepts: Callable[..., bool]) -> Callable[..., bool]:
        def counted(element: object, item: object) -> bool:
            self.comparisons += 1
            return accepts(element, item)

        return counted

    def _trace(self, frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename != ignore.__file__:
            return None
        self.lines += event == "line"
        return self._trace

    def _profile(self, _: FrameType, event: str, called: object) -> None:
        self.searches += event == "c_call" and getattr(called, "__name__", "") == "find"

    def ask(self, rules: Rules, path: bytes) -> bytes | None:
        with self.tracing():
            return rules.excluded(path, False)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Counts from nought what runs inside."""
        self.comparisons = self.lines = self.searches = 0
        before = sys.gettrace(), sys.getprofile()
        sys.settrace(self._trace)  # type: ignore[arg-type]
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


# Each grows with its number; a matcher that tries every choice of every star needs exponential or cubic time.
HOSTILE: list[tuple[str, Callable[[int], tuple[bytes, bytes]]]] = [
    ("stars-in-name", lambda n: (b"*a" * n + b"*b", b"a" * 4 * n)),
    ("stars-and-sets-in-name", lambda n: (b"*[ac]" * n + b"b", b"a" * 4 * n)),
    ("one-long-part", lambda n: (b"*" + b"[ac]" * n + b"[bc]*", b"a" * 4 * n)),
    ("questions", lambda n: (b"*?" * n + b"[bc]", b"a" * 4 * n)),
    ("stars-in-path", lambda n: (b"x/" + b"*[ac]" * n + b"b", b"x/" + b"a" * 4 * n)),
    ("star-stars", lambda n: (b"**/a/" * n + b"b", b"a/" * 4 * n + b"c")),
    ("star-stars-and-stars", lambda n: (b"**/*[ac]*[ac]/" * n + b"b", b"aaa/" * 2 * n + b"c")),
    ("star-stars-long-block", lambda n: (b"**/" + b"[ac]*/" * n + b"b/**", b"aa/" * 3 * n + b"c")),
    ("all-but-the-end", lambda n: (b"**/" + b"*/" * n + b"*a*a*a*[bc]", b"aaaaaaa/" * 2 * n + b"aaaaaaaa")),
    ("behind-plain-start", lambda n: (b"a**/" + b"**/a*[ac]/" * n + b"b", b"aa/" * 4 * n + b"c")),
    ("no-stars", lambda n: (b"x/" + b"[a-z]/" * n + b"[bc]", b"x/" + b"a/" * n + b"a")),
]


@pytest.mark.parametrize("grow", [pytest.param(grow, id=name) for name, grow in HOSTILE])
def test_cost_is_bounded_by_pattern_times_path(steps: Steps, grow: Callable[[int], tuple[bytes, bytes]]) -> None:
    for size in (1, 4, 16, 40):
        pattern, path = grow(size)
        bound = (len(pattern) + 1) * (len(path) + 1)
        assert steps.ask(compile_rules([(pattern, b"--exclude")], []), path) is None
        assert steps.comparisons <= bound
        assert steps.lines <= 60 + 8 * bound


def test_steps_are_counted(steps: Steps) -> None:
    """What the bound is tested with does count: one long part is tried at every place."""
    rules = compile_rules([(b"*" + b"[ac]" * 50 + b"[bc]*", b"--exclude")], [])
    assert steps.ask(rules, b"a" * 200) is None
    assert steps.comparisons == (200 - 50) * 51


@PROPERTY
@given(
    st.lists(
        st.sampled_from(["*", "**/", "/", "a", "[ab]", "[a-c]", "?", "/**/", "*[ab]"]), min_size=1, max_size=40
    ).map("".join),
    st.lists(st.sampled_from(["a", "a", "b", "aaaa", "/"]), min_size=1, max_size=60),
)
def test_cost_of_any_pattern(pattern: str, pieces: list[str]) -> None:
    path = b"/".join(part for part in "".join(pieces).encode().split(b"/") if part)
    with pytest.MonkeyPatch.context() as monkeypatch:
        steps = Steps(monkeypatch)
        steps.ask(compile_rules([(pattern.encode(), b"--exclude")], []), path)
    bound = (len(pattern) + 1) * (len(path) + 1)
    assert steps.comparisons <= bound
    assert steps.lines <= 60 + 8 * bound


@pytest.mark.parametrize(
    "line", ["name%d", "dir/name%d", "*.ext%d", "start%d*", "[Nn]ame%d", "name%d/", "d%d/*/x*", "dir/d%d/*.x"]
)
def test_many_plain_rules_cost_as_few(steps: Steps, line: str) -> None:
    """Those that people write are looked up, not tried one after the other."""
    costs = []
    for count in (20, 2000):
        rules = compile_rules(
            [(b"%s" % (line % (1000 + number)).encode(), b"--exclude") for number in range(count)], []
        )
        for path in (b"dir/other", b"dir/other2"):
            assert steps.ask(rules, path) is None
        costs.append(steps.lines)
    assert costs[0] == costs[1] < 60


@pytest.mark.parametrize(
    "piece", ["[[:a", "[[", "[", "[]", "[a]", "[!-]", "*", "**/", "/**", "\\", "?", "a", "a/", "[[:alpha:]]", "!"]
)
def test_reading_a_pattern_costs_its_length(steps: Steps, piece: str) -> None:
    lines = []
    for size in (500, 1000):
        with steps.tracing():
            rules = compile_rules([(b"x*/" + piece.encode() * size + b"]b", b"--exclude")], [])
        lines.append(steps.lines)
        assert steps.searches <= 1 + (piece.encode() * size).count(b"]")
        assert rules.excluded(b"x/a", False) is None
    assert lines[1] <= 2 * lines[0]
