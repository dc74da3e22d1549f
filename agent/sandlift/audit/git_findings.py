"""What git would run, or reach, when it is used in the tree: repositories, hooks, attributes, and what leads away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sandlift.audit.findings import Finding, Severity, clip
from sandlift.audit.git_config import CONFIG_MAX, Setting, parse
from sandlift.audit.git_settings import judge
from sandlift.audit.secrets import redact
from sandlift.repositories import Pointer, Read, Repositories, Tree, find_repositories, git_name
from sandlift.small_files import SIZE_MAX
from sandlift_helper import table
from sandlift_helper.table import Segment

INCLUDES_MAX: Final = 10
"""How deep included files are followed, as in git."""
HOOKS: Final = frozenset(
    b"applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg"
    b" post-commit pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive"
    b" post-update reference-transaction push-to-checkout pre-auto-gc post-rewrite sendemail-validate"
    b" fsmonitor-watchman p4-changelist p4-prepare-changelist p4-post-changelist p4-pre-submit"
    b" post-index-change".split()
)
"""githooks(5)."""

# Drivers that are built into git (gitattributes(5)) and run nothing unless configuration redefines them.
_BUILTIN_DRIVERS = {
    b"diff": frozenset(
        b"ada bash bibtex cpp csharp css dts elixir fortran fountain golang html ini java kotlin markdown matlab objc"
        b" pascal perl php python r ruby rust scheme tex".split()
    ),
    b"merge": frozenset(b"text binary union".split()),
    b"filter": frozenset[bytes](),
}
_DRIVER = re.compile(rb"(filter|diff|merge)=(\S{1,200})")
_STEP = re.compile(rb"^\s{0,64}(?:exec|x)\s[^\n]{0,200}", re.MULTILINE)
_POINTERS: dict[str, tuple[Severity, str]] = {
    "gitdir": ("runs-code", "git takes the repository from outside of the tree, or from nowhere"),
    "commondir": ("runs-code", "git takes the configuration from outside of the tree, or from nowhere"),
    "worktree": ("link", "belongs to a working tree that is not in the tree; git worktree repair puts it right"),
    "alternates": ("link", "git reads objects from outside of the tree"),
}


def attributes(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields (meaning, text) of what an attributes file names that could run something."""
    drivers: dict[bytes, None] = {}
    for line in data.splitlines():
        if line.lstrip().startswith(b"#"):
            continue
        for kind, name in _DRIVER.findall(line):
            if name not in _BUILTIN_DRIVERS[kind]:
                drivers[kind + b"=" + name] = None
    if drivers:
        yield "names drivers; git runs what a configuration says for them", clip(b" ".join(drivers))


def settings(data: bytes) -> Iterator[tuple[Severity, str, bytes]]:
    """Yields (severity, meaning, text) of what a configuration file says that matters."""
    found = parse(data)
    for setting in found.settings:
        for severity, what in judge(setting):
            yield severity, what, _text_of(setting, severity)
    for line in found.unreadable_lines[:INCLUDES_MAX]:
        yield "runs-code", "a line that cannot be read; another version of git may understand it", b"line %d" % line


def _text_of(setting: Setting, severity: Severity) -> bytes:
    if severity == "secret" or setting.value is None:
        return clip(redact(setting.name))
    return clip(redact(setting.name + b"=" + setting.value))


class GitFindings:
    """The findings about all repositories of a snapshot."""

    def __init__(self, rows: Segment, read: Read) -> None:
        self._rows = rows
        self._read = read
        self._tree = Tree(rows)
        self.repositories: Repositories = find_repositories(rows, read)
        self._paths = self.repositories.paths
        self._included: set[bytes] = set()

    def all(self) -> Iterator[Finding]:
        """Yields them all, in no order."""
        yield from self._odd_repositories()
        for pointer in self.repositories.pointers:
            if not pointer.is_inside:
                yield _pointer_finding(pointer)
        for row, path in enumerate(self._rows.paths):
            parent, _, name = path.rpartition(b"/")
            if parent in self._paths:
                yield from self._in_repository(row, path, git_name(name))
            # A repository may pose as a folder of another one.
            outer, _, folder = parent.rpartition(b"/")
            if folder and outer in self._paths:
                yield from self._in_folder(row, path, git_name(folder), git_name(name))

    def _odd_repositories(self) -> Iterator[Finding]:
        for repository in self.repositories.found:
            name = repository.path.rpartition(b"/")[2]
            # Submodules and working trees keep repositories of their own inside one.
            is_inner = any(git_name(part) == b".git" for part in repository.path.split(b"/")[:-1])
            if repository.why != "name" and not is_inner:
                what = "git takes this directory for a repository, though it is not called .git"
                yield Finding(category="git", severity="runs-code", path=repository.path, what=what)
            elif name != b".git" and git_name(name) == b".git":
                what = "on some file systems this is .git"
                yield Finding(category="git", severity="runs-code", path=repository.path, what=what)

    def _in_repository(self, row: int, path: bytes, name: bytes) -> Iterator[Finding]:
        kind = self._rows.kinds[row]
        if name in (b"config", b"config.worktree"):
            yield from self._configuration(row, path)
        elif name == b"hooks" and kind == table.LINK:
            text = self._tree.text(path)
            yield self._finding(path, "git runs the hooks in the directory that this link leads to", clip(text))

    def _in_folder(self, row: int, path: bytes, folder: bytes, name: bytes) -> Iterator[Finding]:
        if folder == b"hooks" and name in HOOKS and self._rows.kinds[row] != table.DIRECTORY:
            is_executable = self._rows.kinds[row] == table.LINK or self._rows.modes[row] & 0o111
            yield self._finding(
                path, "a hook that git runs" if is_executable else "a hook that git runs once it is executable"
            )
        elif folder == b"info" and name == b"attributes":
            data = self._tree.content(row, self._read, SIZE_MAX)
            for what, detail in attributes(data) if data is not None else [("cannot be looked into", b"")]:
                yield self._finding(path, what, detail)
        elif folder == b"rebase-merge" and name in (b"git-rebase-todo", b"done"):
            data = self._tree.content(row, self._read, SIZE_MAX)
            step = _STEP.search(data) if data is not None else None
            if data is None or (step is not None and name == b"git-rebase-todo"):
                detail = clip(redact(step[0].strip())) if step else b""
                yield self._finding(path, "git rebase --continue runs what its steps say", detail)
        elif folder in (b"remotes", b"branches"):
            data = self._tree.content(row, self._read)
            if data is None or b"::" in data or b"--" in data:
                yield self._finding(path, "a remote whose address may run a program")

    def _configuration(self, row: int, path: bytes, depth: int = 0) -> Iterator[Finding]:
        """Yields what a configuration file of git's says, and those that it includes."""
        if self._rows.kinds[row] == table.LINK:
            yield self._finding(path, "configuration from where this link leads", clip(self._tree.text(path)))
        data = self._tree.content(row, self._read, CONFIG_MAX)
        if data is None:
            yield self._finding(path, "a configuration that cannot be looked into: no file, or too large")
            return
        for severity, what, detail in settings(data):
            yield self._finding(path, what, detail, severity)
        for setting in parse(data).settings:
            if setting.section in (b"include", b"includeif") and setting.key == b"path" and depth < INCLUDES_MAX:
                place = self._tree.resolve(path.rpartition(b"/")[0], setting.value or b"")
                target = self._tree.find(place) if place else None
                if place and target is not None and place not in self._included:
                    self._included.add(place)
                    yield from self._configuration(target, place, depth + 1)

    def _finding(self, path: bytes, what: str, detail: bytes = b"", severity: Severity = "runs-code") -> Finding:
        return Finding(category="git", severity=severity, path=path, what=what, detail=detail)


def _pointer_finding(pointer: Pointer) -> Finding:
    severity, what = _POINTERS[pointer.kind]
    outside = [text for text, target in zip(pointer.texts, pointer.targets, strict=True) if target is None]
    return Finding(
        category="git", severity=severity, path=pointer.path, what=what, detail=clip(redact(b" ".join(outside)))
    )
