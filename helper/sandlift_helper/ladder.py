"""Directories reached by descriptor, one component at a time, never through a link.

A `Ladder` keeps the directories on the way to the last one that was asked for open, so the next one nearby
costs one call.  Every step is an ``openat`` with ``O_NOFOLLOW``: whatever is exchanged for a link meanwhile,
nothing outside the root is reached.
"""

import os

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Deep trees must not use up the process's descriptors (often 1,024, 256 on some systems): so many of the
# uppermost directories stay open, and as many of the lowest.
RUNGS_HALF = 48


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
        # Names and descriptors on the way down; those from RUNGS_HALF up to the gap's end are closed, and -1.
        self._rungs: "list[tuple[bytes, int]]" = []
        self._gap_end = RUNGS_HALF
        self._last_path = b""
        self._last_fd = root_fd

    def open(self, path: bytes) -> int:
        """Returns a descriptor of the directory *path* (relative to the root; empty for the root itself)."""
        if path == self._last_path:
            return self._last_fd
        # Until it is opened, nothing is the last one.
        self._last_path, self._last_fd = b"", self._root_fd
        parts = path.split(b"/") if path else []
        keep = 0
        for (name, _), part in zip(self._rungs, parts):
            if name != part:
                break
            keep += 1
        # What is left must end with an open directory.
        self._cut(keep if keep <= RUNGS_HALF or keep > self._gap_end else RUNGS_HALF)
        rungs = self._rungs
        here = rungs[-1][1] if rungs else self._root_fd
        for part in parts[len(rungs) :]:
            here = os.open(part, DIRECTORY_FLAGS, dir_fd=here)
            rungs.append((part, here))
            if len(rungs) > self._gap_end + RUNGS_HALF:
                name, fd = rungs[self._gap_end]
                rungs[self._gap_end] = name, -1
                self._gap_end += 1
                os.close(fd)
        self._last_path, self._last_fd = path, here
        return here

    def _cut(self, length: int) -> None:
        while len(self._rungs) > length:
            fd = self._rungs.pop()[1]
            if fd >= 0:
                os.close(fd)
        if length <= RUNGS_HALF:
            self._gap_end = RUNGS_HALF

    def close(self) -> None:
        self._cut(0)
        self._last_path, self._last_fd = b"", self._root_fd
