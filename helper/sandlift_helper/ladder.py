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

    `open` returns a descriptor that stays valid until the next call; so does its parent's, for that call may as
    well be for a child.  `close` releases all.  It raises OSError: ENOENT when a component is gone, ENOTDIR or
    ELOOP when it is no directory any more.
    """

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._path = b""
        # How much of the path each directory on the way down takes, and its descriptor; those from RUNGS_HALF up to
        # the gap's end are closed, and -1.
        self._rungs: "list[tuple[int, int]]" = []
        self._gap_end = RUNGS_HALF

    def open(self, path: bytes) -> int:
        """Returns a descriptor of the directory *path* (relative to the root; empty for the root itself)."""
        rungs, last, self._path = self._rungs, self._path, path
        end, here = -1, self._root_fd
        while rungs:
            end, here = rungs[-1]
            # A slash, or nothing, follows what both have in common.
            if here >= 0 and path[:end] == last[:end] and path[end : end + 1] in b"/":
                break
            self._drop()
            end, here = -1, self._root_fd
        if end == len(path) or not path:
            return here
        for name in path[end + 1 :].split(b"/"):
            here = os.open(name, DIRECTORY_FLAGS, dir_fd=here)
            end += 1 + len(name)
            rungs.append((end, here))
            if len(rungs) > self._gap_end + RUNGS_HALF:
                middle, fd = rungs[self._gap_end]
                rungs[self._gap_end] = middle, -1
                self._gap_end += 1
                os.close(fd)
        return here

    def _drop(self) -> None:
        fd = self._rungs.pop()[1]
        if fd >= 0:
            os.close(fd)
        if len(self._rungs) < self._gap_end:
            self._gap_end = max(RUNGS_HALF, len(self._rungs))

    def close(self) -> None:
        while self._rungs:
            self._drop()
