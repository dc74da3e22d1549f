"""Directories reached by descriptor, one component at a time, never through a link.

A `Ladder` keeps the directories on the way to the last one that was asked for open, so the next one nearby
costs one call.  Every step is an ``openat`` with ``O_NOFOLLOW``: whatever is exchanged for a link meanwhile,
nothing outside the root is reached.
"""

import os

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Deep trees must not use up the process's descriptors (often 1,024, 256 on some systems).
RUNGS_MAX = 96


def place(path: bytes, home: bool) -> bytes:
    """Returns *path*, below the home directory where *home* says so."""
    return os.path.join(os.path.expanduser(b"~"), path) if home else path


class Ladder:
    """Opens directories below *root_fd* (which stays the caller's).

    `open` returns a descriptor that stays valid until the next call; `close` releases all.  It raises OSError:
    ENOENT when a component is gone, ENOTDIR or ELOOP when it is no directory any more.
    """

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._rungs: "list[tuple[bytes, int]]" = []
        self._tail = -1
        self._last_path = b""
        self._last_fd = root_fd

    def open(self, path: bytes) -> int:
        """Returns a descriptor of the directory *path* (relative to the root; empty for the root itself)."""
        if path == self._last_path:
            return self._last_fd
        # Until it is opened, nothing is the last one.
        self._last_path, self._last_fd = b"", self._root_fd
        if self._tail >= 0:
            os.close(self._tail)
            self._tail = -1
        parts = path.split(b"/") if path else []
        keep = 0
        for (name, _), part in zip(self._rungs, parts):
            if name != part:
                break
            keep += 1
        while len(self._rungs) > keep:
            os.close(self._rungs.pop()[1])
        here = self._rungs[-1][1] if self._rungs else self._root_fd
        for part in parts[keep:]:
            below = os.open(part, DIRECTORY_FLAGS, dir_fd=here)
            if len(self._rungs) < RUNGS_MAX:
                self._rungs.append((part, below))
            else:
                # Beyond the rungs only the newest directory stays open.
                if self._tail >= 0:
                    os.close(self._tail)
                self._tail = below
            here = below
        self._last_path, self._last_fd = path, here
        return here

    def close(self) -> None:
        if self._tail >= 0:
            os.close(self._tail)
            self._tail = -1
        while self._rungs:
            os.close(self._rungs.pop()[1])
        self._last_path, self._last_fd = b"", self._root_fd
