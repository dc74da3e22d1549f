"""Repositories with something planted in them, each a folder of one tree; and tables written out as trees.

What is planted runs the marker program with the plant's name, so that the log tells what ran.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandlift_helper import table
from sandlift_helper.table import Segment

READING = (
    "status", "log", "log -p", "diff", "diff HEAD", "show", "ls-files -m", "blame a.txt", "grep word", "stash list",
    "branch", "checkout -q main", "checkout -q -- a.txt",
)  # fmt: skip
"""Commands that a person gives to look at a repository."""
QUESTION = b"protocol=https\nhost=example.com\n\n"
TIMEOUT_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """Something that runs the marker program."""

    name: str
    plant: Callable[[Planting], None]
    commands: tuple[str, ...] = READING
    """Git commands that are given in ``where``; one of them must make it run."""
    where: str = "."


class Planting:
    """One repository to plant in: ``folder`` with ``.git``, and the command that marks."""

    def __init__(self, folder: Path, marker: Path, name: str) -> None:
        self.folder = folder
        self.git = folder / ".git"
        self.mark = f"{marker} {name}"
        self.marker, self.name = marker, name

    def config(self, key: str, value: str, file: Path | None = None) -> None:
        """Sets one setting."""
        git(self.folder, "config", "--file", str(file or self.git / "config"), "--add", key, value)

    def script(self, path: Path, more: str = "") -> Path:
        """Makes a program that marks."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{self.mark}\n{more}\n")
        path.chmod(0o755)
        return path

    def attributes(self, line: str, path: Path | None = None) -> None:
        """Sets attributes, in the tree or elsewhere."""
        path = path or self.folder / ".gitattributes"
        path.parent.mkdir(exist_ok=True)
        path.write_text(line + "\n")


def environment(home: Path) -> dict[str, str]:
    """What git is run with: no configuration but the repository's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_", "XDG_"))}
    dates = {f"GIT_{who}_DATE": "2020-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")}
    people = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "TERM": "xterm"}
    settings |= {"PAGER": "cat", "EDITOR": "true", "BROWSER": "true"}
    return {**kept, **dates, **people, **settings, "LC_ALL": "C", "GIT_CEILING_DIRECTORIES": str(home)}


def git(folder: Path, *words: str, check: bool = True) -> str:
    """Runs git and returns its stdout; with *check* it must succeed."""
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env=environment(folder.parent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"git {' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")


def git_on_terminal(folder: Path, *words: str) -> str:
    """Runs git with a terminal for its output, so that it uses a pager, and returns what it shows.

    Whoever reads from it gets the question that ``git credential`` wants.
    """
    ours, theirs = pty.openpty()
    shown = bytearray()

    def drain() -> None:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                return
            if not data:
                return
            shown.extend(data)

    drainer = threading.Thread(target=drain)
    try:
        process = subprocess.Popen(
            ["git", *words],
            cwd=folder,
            env=environment(folder.parent),
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        drainer.start()
        process.communicate(QUESTION, TIMEOUT_S)
        drainer.join(TIMEOUT_S)
    finally:
        os.close(ours)
    return shown.decode(errors="replace")


def make_marker(folder: Path) -> tuple[Path, Path]:
    """Makes the marker program; returns it and its log."""
    program, log = folder / "mark", folder / "log"
    program.write_text(f'#!/bin/sh\necho "$1" >> {log}\n')
    program.chmod(0o755)
    log.touch()
    return program, log


def make_repository(folder: Path, *words: str) -> Path:
    """Makes a repository with three commits on two branches, and a change in the working tree."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", *words)
    shutil.rmtree(folder / ".git" / "hooks")
    for number, text in enumerate(("one word\n", "two words\n")):
        (folder / "a.txt").write_text(text)
        git(folder, "add", "a.txt")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    git(folder, "branch", "side", "HEAD~1")
    git(folder, "checkout", "-q", "side")
    (folder / "b.txt").write_text("beside\n")
    git(folder, "add", "b.txt")
    git(folder, "commit", "-q", "-m", "beside")
    git(folder, "checkout", "-q", "main")
    (folder / "a.txt").write_text("three words\n")
    return folder


def write_tree(rows: Segment, block: Callable[[bytes], bytes], folder: Path) -> Path:
    """Writes a table of small files below *folder*; *block* gives bytes by their digest."""
    folder.mkdir(parents=True)
    firsts: dict[int, Path] = {}
    starts = list(rows.contents())
    texts = iter(rows.texts)
    for row, path in enumerate(rows.paths):
        place = folder / os.fsdecode(path)
        kind, group = rows.kinds[row], rows.groups[row]
        if kind == table.DIRECTORY:
            place.mkdir()
        elif kind == table.LINK:
            os.symlink(next(texts), os.fsencode(place))
        elif group in firsts:
            os.link(firsts[group], place)
        else:
            digest, _, count = starts[row]
            assert count == (rows.sizes[row] > 0)
            place.write_bytes(block(bytes(rows.digests[32 * digest : 32 * digest + 32])) if count else b"")
            assert place.stat().st_size == rows.sizes[row]
            place.chmod(rows.modes[row] & 0o777)
            os.utime(place, ns=(rows.mtimes_ns[row], rows.mtimes_ns[row]))
            if group:
                firsts[group] = place
    return folder


def _plants() -> dict[str, Plant]:
    found: dict[str, Plant] = {}

    def add(name: str, plant: Callable[[Planting], None], *commands: str, where: str = ".") -> None:
        found[name] = Plant(name=name, plant=plant, commands=(*commands, *READING), where=where)

    def setting(key: str, *commands: str, value: str = "{mark}") -> None:
        name = re.sub(r"\W+", "-", key).lower()

        def plant(here: Planting) -> None:
            script = here.script(here.folder / "tool") if "{script}" in value else ""
            here.config(key, value.format(mark=here.mark, script=script))

        add(name, plant, *commands)

    setting("core.fsmonitor")
    setting("core.pager")
    setting("pager.log")
    setting("core.editor", "commit --amend")
    setting("sequence.editor", "stash -q", "rebase -i HEAD~1")
    setting("diff.external")
    setting("core.sshCommand", "fetch ssh://127.0.0.1:1/x")
    setting("core.askPass", "credential fill", value="{script}")
    setting("credential.helper", "credential fill", value="!{mark}; :")
    setting("credential.https://example.com.helper", "credential fill", value="!{mark}; :")
    setting("alias.evil", "evil", value="!{mark}")
    setting("gpg.program", "commit -S --amend --no-edit", value="{script}")
    setting("interactive.diffFilter", "-c color.ui=always add -p")
    setting("trailer.sign.command", "interpret-trailers --trailer sign=x a.txt")
    setting("remote.origin.uploadpack", "fetch origin")
    setting("remote.origin.receivepack", "push origin main")
    setting("browser.evil.cmd", "web--browse -b evil http://x", value="{mark}; :")
    setting("mergetool.evil.cmd", "stash -q", "merge side", "difftool -y -t evil HEAD~1")
    setting("difftool.evil.cmd", "difftool -y -t evil HEAD~1")
    setting("core.gitProxy", "fetch git://127.0.0.1:1/x", value="{script}")
    for plant in list(found.values()):
        if plant.name.startswith("remote-"):
            found[plant.name] = Plant(name=plant.name, plant=_with_remote(plant.plant), commands=plant.commands)
    for name, planting, commands, where in _MORE:
        add(name, planting, *commands, where=where)
    return found


def _with_remote(plant: Callable[[Planting], None]) -> Callable[[Planting], None]:
    def both(here: Planting) -> None:
        here.config("remote.origin.url", ".")
        plant(here)

    return both


def _hooks_path(here: Planting) -> None:
    here.script(here.folder / "hooks" / "post-index-change")
    here.config("core.hooksPath", "hooks")


def _hook(name: str) -> Callable[[Planting], None]:
    return lambda here: _ignore(here.script(here.git / "hooks" / name))


def _ignore(_: object) -> None:
    pass


def _linked_hooks(here: Planting) -> None:
    here.script(here.folder / "ordinary" / "post-checkout")
    os.symlink("../ordinary", here.git / "hooks")


def _driver(key: str, attribute: str, value: str = "{mark}", *, private: bool = False) -> Callable[[Planting], None]:
    def plant(here: Planting) -> None:
        here.attributes(f"*.txt {attribute}", here.git / "info" / "attributes" if private else None)
        here.config(key, value.format(mark=here.mark))

    return plant


def _include(here: Planting) -> None:
    here.config("core.fsmonitor", here.mark, here.folder / "harmless.txt")
    here.config("include.path", "../harmless.txt")


def _include_if(here: Planting) -> None:
    here.config("core.fsmonitor", here.mark, here.folder / "harmless.txt")
    here.config("includeIf.gitdir:**/.git.path", "../harmless.txt")


def _worktree_config(here: Planting) -> None:
    here.config("core.repositoryformatversion", "1")
    here.config("extensions.worktreeConfig", "true")
    here.config("core.fsmonitor", here.mark, here.git / "config.worktree")


def _linked_config(here: Planting) -> None:
    here.config("core.fsmonitor", here.mark)
    (here.git / "config").rename(here.folder / "notes.txt")
    os.symlink("../notes.txt", here.git / "config")


def _hard_linked_config(here: Planting) -> None:
    here.config("core.fsmonitor", here.mark)
    os.link(here.git / "config", here.folder / "A-first-name")


def _spelled(here: Planting) -> None:
    text = f'\ufeff[CORE] FsMon\\\nitor = x\n[Core]\tFSMONITOR="{here.marker}" \\\n {here.name} ; more\n'
    text = text.replace("FsMon\\\nitor = x\n", "\n")
    (here.git / "config").write_bytes(text.encode() + b"\tbare = false\r\n")


def _submodule(here: Planting) -> None:
    """A repository in ``.git/modules`` that a ``.git`` file leads to."""
    make_repository(here.folder / "sub")
    (here.git / "modules" / "deep").mkdir(parents=True)
    (here.folder / "sub" / ".git").rename(here.git / "modules" / "deep" / "sub")
    (here.folder / "sub" / ".git").write_text("gitdir: ../.git/modules/deep/sub\n")
    config = here.git / "modules" / "deep" / "sub" / "config"
    here.config("core.worktree", "../../../../sub", config)
    here.config("core.fsmonitor", here.mark, config)
    git(here.folder, "add", "sub")


def _own_worktree(here: Planting) -> None:
    """A linked working tree in the tree, by relative paths."""
    git(here.folder, "worktree", "add", "-q", "linked", "side")
    (here.folder / "linked" / ".git").write_text("gitdir: ../.git/worktrees/linked\n")
    (here.folder / "linked" / "a.txt").write_text("more words\n")
    here.config("core.fsmonitor", here.mark)


def _separate(here: Planting) -> None:
    """``.git`` leads to a directory with another name."""
    here.config("core.fsmonitor", here.mark)
    here.git.rename(here.folder / "store.db")
    (here.folder / ".git").write_text("gitdir: store.db\n")


def _linked_git(here: Planting) -> None:
    here.config("core.fsmonitor", here.mark)
    here.git.rename(here.folder / "store.db")
    os.symlink("store.db", here.folder / ".git")


def _linked_git_file(here: Planting) -> None:
    _separate(here)
    (here.folder / ".git").rename(here.folder / "readme")
    os.symlink("readme", here.folder / ".git")


def _scattered(here: Planting) -> None:
    """A layout made of links; only HEAD must be a file."""
    here.config("core.fsmonitor", here.mark)
    here.git.rename(here.folder / "store.db")
    (here.folder / "layout").mkdir()
    shutil.copy(here.folder / "store.db" / "HEAD", here.folder / "layout")
    for name in ("objects", "refs", "config", "index"):
        os.symlink(f"../store.db/{name}", here.folder / "layout" / name)
    (here.folder / ".git").write_text("gitdir: layout\n")


def _common(here: Planting) -> None:
    """The configuration comes from a directory that is no repository by itself."""
    here.config("core.fsmonitor", here.mark)
    (here.folder / "shared").mkdir()
    for name in ("objects", "refs", "config"):
        (here.git / name).rename(here.folder / "shared" / name)
    (here.git / "commondir").write_text("../shared\n")


def _outside_common(here: Planting) -> None:
    outside = here.marker.parent / "outside-common"
    outside.mkdir()
    here.config("core.fsmonitor", here.mark)
    for name in ("objects", "refs", "config"):
        (here.git / name).rename(outside / name)
    (here.git / "commondir").write_text(f"{outside}\n")


def _outside_git(here: Planting) -> None:
    outside = here.marker.parent / "outside-git"
    here.config("core.fsmonitor", here.mark)
    here.git.rename(outside)
    (here.folder / ".git").write_text(f"gitdir: {outside}\n")


def _bare(here: Planting) -> None:
    """A bare repository under an innocent name."""
    git(here.folder, "clone", "-q", "--bare", ".", "data")
    here.config("core.pager", here.mark, here.folder / "data" / "config")


def _bare_textconv(here: Planting) -> None:
    git(here.folder, "clone", "-q", "--bare", ".", "data")
    here.config("diff.evil.textconv", here.mark, here.folder / "data" / "config")
    here.attributes("* diff=evil", here.folder / "data" / "info" / "attributes")


def _rebase(here: Planting) -> None:
    """A rebase that stopped, with a command as its next step."""
    git(here.folder, "checkout", "-q", "--", "a.txt")
    git(here.folder, "-c", "sequence.editor=sed -i 1ibreak", "rebase", "-q", "-i", "HEAD~1")
    (here.git / "rebase-merge" / "git-rebase-todo").write_text(f"exec {here.mark}\n")


def _ext(here: Planting) -> None:
    here.config("protocol.ext.allow", "always")
    here.config("remote.origin.url", f"ext::{here.mark}")


def _merge_driver(here: Planting) -> None:
    git(here.folder, "checkout", "-q", "--", "a.txt")
    git(here.folder, "checkout", "-q", "side")
    (here.folder / "a.txt").write_text("other words\n")
    git(here.folder, "commit", "-q", "-a", "-m", "other")
    git(here.folder, "checkout", "-q", "main")
    _driver("merge.evil.driver", "merge=evil")(here)


def _partial(here: Planting) -> None:
    """What is missing is fetched by a command, while it is read."""
    missing = git(here.folder, "rev-parse", "HEAD:a.txt").strip()
    (here.git / "objects" / missing[:2] / missing[2:]).unlink()
    here.config("core.repositoryformatversion", "1")
    here.config("extensions.partialClone", "origin")
    here.config("remote.origin.url", ".")
    here.config("remote.origin.promisor", "true")
    here.config("remote.origin.uploadpack", here.mark)


_MORE: tuple[tuple[str, Callable[[Planting], None], tuple[str, ...], str], ...] = (
    ("hooks-path", _hooks_path, (), "."),
    ("hook-post-index-change", _hook("post-index-change"), (), "."),
    ("hook-post-checkout", _hook("post-checkout"), (), "."),
    ("hook-pre-commit", _hook("pre-commit"), ("commit -q -a -m x",), "."),
    ("hooks-link", _linked_hooks, (), "."),
    ("diff-command", _driver("diff.evil.command", "diff=evil"), (), "."),
    ("diff-textconv", _driver("diff.evil.textconv", "diff=evil"), (), "."),
    ("filter-clean", _driver("filter.evil.clean", "filter=evil", "{mark}; cat"), (), "."),
    ("filter-smudge", _driver("filter.evil.smudge", "filter=evil", "{mark}; cat"), (), "."),
    ("filter-process", _driver("filter.evil.process", "filter=evil"), (), "."),
    ("filter-in-info", _driver("filter.evil.clean", "filter=evil", "{mark}; cat", private=True), (), "."),
    ("merge-driver", _merge_driver, ("merge side",), "."),
    ("include", _include, (), "."),
    ("include-if", _include_if, (), "."),
    ("config-worktree", _worktree_config, (), "."),
    ("config-link", _linked_config, (), "."),
    ("config-hard-link", _hard_linked_config, (), "."),
    ("config-spelling", _spelled, (), "."),
    ("submodule", _submodule, (), "sub"),
    ("submodule-from-above", _submodule, (), "."),
    ("worktree", _own_worktree, (), "linked"),
    ("git-file", _separate, (), "."),
    ("git-link", _linked_git, (), "."),
    ("git-link-to-file", _linked_git_file, (), "."),
    ("layout-of-links", _scattered, (), "."),
    ("commondir", _common, (), "."),
    ("commondir-outside", _outside_common, (), "."),
    ("git-file-outside", _outside_git, (), "."),
    ("bare", _bare, (), "data"),
    ("bare-textconv", _bare_textconv, (), "data"),
    ("rebase-exec", _rebase, ("rebase --continue",), "."),
    ("remote-ext", _ext, ("fetch origin",), "."),
    ("partial-clone", _partial, (), "."),
)

PLANTS = _plants()
