"""Ways to this machine for the restore tests, and what stands at a path to the last inode."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.lift import Lift, Road, Taken

from sandlift.box import Box, connect
from support.needs import require
from support.sshd import Sshd
from support.tree import Tree, make

NOBODY = 65534

Status = tuple[int, ...]


def local(path: Path | str) -> Box:
    """Straight to a path of this machine."""
    return connect(os.fspath(path))


def unprivileged(path: Path | str) -> Box:
    """To a path of this machine as somebody who is not root."""
    if os.geteuid() != 0:
        return connect(os.fspath(path))
    require("setpriv")
    return connect(os.fspath(path), via=f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups env HOME=/nowhere")


def with_python(program: str) -> Road:
    """The road on which the helper runs on *program*."""
    return lambda path: connect(os.fspath(path), python=program)


def roads_over(server: Sshd) -> dict[str, Road]:
    """The roads that lead over a server of this machine."""
    words = ["ssh", *server.ssh_options, "-p", str(server.port), f"{server.user}@{server.host}"]
    return {
        "ssh": lambda path: connect(server.url(os.fspath(path)), ssh_options=server.ssh_options),
        "paramiko": lambda path: connect(
            server.url(os.fspath(path), scheme="paramiko"),
            host_key_file=server.host_key_file,
            key_files=[server.key_file],
        ),
        "via": lambda path: connect(os.fspath(path), via="env"),
        "via-shell": lambda path: connect(os.fspath(path), via_shell=shlex.join(words)),
    }


def give_to_nobody(path: Path) -> None:
    """Make a tree the property of the user that `unprivileged` is; times and modes stay."""
    if os.geteuid() != 0:
        return
    for folder, directories, files in os.walk(os.fsencode(path)):
        for name in [*directories, *files]:
            whole = os.path.join(folder, name)
            status = os.lstat(whole)
            os.chown(whole, NOBODY, NOBODY, follow_symlinks=False)
            if not os.path.islink(whole):
                os.chmod(whole, status.st_mode & 0o7777)
    os.chown(path, NOBODY, NOBODY)


def standing(*tops: Path) -> dict[bytes, Status]:
    """Everything at and below *tops* and the folders that hold them: what a change of any kind would move.

    Path to device, inode, mode, names, owner, size, time, and the time of the last change of the inode itself.
    """
    found: dict[bytes, Status] = {}
    for top in map(os.fsencode, tops):
        found[os.path.dirname(top)] = _status(os.path.dirname(top))
        found[top] = _status(top)
        if not os.path.islink(top):
            for folder, directories, files in os.walk(top):
                found |= {
                    os.path.join(folder, name): _status(os.path.join(folder, name)) for name in directories + files
                }
    return found


def _status(path: bytes) -> Status:
    status = os.lstat(path)
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def inode(path: Path | bytes) -> tuple[int, int]:
    """Which inode a name has, and when that was last changed in any way."""
    status = os.lstat(path)
    return status.st_ino, status.st_ctime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What came about between two standings of one tree, by paths below it."""

    created: frozenset[bytes]
    replaced: frozenset[bytes]
    """The same name for another inode."""
    updated: frozenset[bytes]
    """The same inode with another mode, owner or time; of directories, not those whose entries changed."""
    removed: frozenset[bytes]


def change(top: Path, before: dict[bytes, Status], after: dict[bytes, Status]) -> Change:
    """Tell what happened below *top*, which is ``b""`` itself."""
    start = os.fsencode(top)
    old, new = (
        {path[len(start) + 1 :]: row for path, row in side.items() if path.startswith(start)}
        for side in (before, after)
    )
    both = old.keys() & new.keys()

    def of(row: Status) -> Status:
        return (row[2], row[4], row[5], row[7])

    replaced = {path for path in both if old[path][:2] != new[path][:2]}
    return Change(
        created=frozenset(new.keys() - old.keys()),
        replaced=frozenset(replaced),
        updated=frozenset(path for path in both - replaced if of(old[path]) != of(new[path])),
        removed=frozenset(old.keys() - new.keys()),
    )


class Shelf(Lift):
    """A store in which each workspace is captured once, however many tests restore it."""

    def __init__(self, folder: Path, road: Road) -> None:
        super().__init__(folder, road)
        self._known: list[tuple[Tree, dict[str, Any], Taken]] = []

    def taken(self, source: Tree, **options: Any) -> Taken:
        """The capture of a workspace that is *source*, with the options of `Lift.capture`."""
        for known, how, taken in self._known:
            if known == source and how == options:
                return taken
        root = self.target()
        make(source, root)
        taken = self.capture(root, **options)
        self._known.append((source, options, taken))
        return taken


class Namespace:
    """A private mount namespace, with commands in it and a road into it; seen from here through ``/proc``."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()

    def run(self, script: str, *words: Path | str) -> None:
        """Run a shell script there."""
        enter = [
            "nsenter",
            "-t",
            str(self._holder.pid),
            "-m",
            "sh",
            "-ec",
            script,
            "sh",
            *(os.fspath(word) for word in words),
        ]
        subprocess.run(enter, check=True, capture_output=True, timeout=30)

    def road(self, path: Path | str) -> Box:
        """To a path as it is seen there."""
        return connect(os.fspath(path), via=f"nsenter -t {self._holder.pid} -m")

    def seen(self, path: Path) -> Path:
        """The path from here to what *path* is there."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def close(self) -> None:
        """End it; all its mounts go with it."""
        self._holder.communicate(timeout=10)


def kind_of(path: Path) -> str:
    """What is at a path, as `Action.kind` says it."""
    mode = os.lstat(path).st_mode
    kinds: dict[str, Callable[[int], bool]] = {
        "directory": stat.S_ISDIR,
        "file": stat.S_ISREG,
        "link": stat.S_ISLNK,
        "fifo": stat.S_ISFIFO,
        "socket": stat.S_ISSOCK,
        "char-device": stat.S_ISCHR,
        "block-device": stat.S_ISBLK,
    }
    return next(name for name, is_one in kinds.items() if is_one(mode))
