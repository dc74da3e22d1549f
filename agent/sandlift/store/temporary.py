"""Unfinished files of a directory store.

The writer of a temporary file holds an exclusive ``flock`` on it.  A process that is killed drops the lock, and
the first write of a later process removes what nobody locks.  A sweeper may see a file between its creation and
its lock; the writer notices, because the file has then lost its name, and takes another.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# For writing, because a network file system grants exclusive locks only then; a fifo must not hold the sweeper.
_SWEEP = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Temporary:
    """A private file under a random name, locked for as long as it is open; OSErrors pass through."""

    def __init__(self, folder: int) -> None:
        """Makes a file in *folder*, a descriptor, which is duplicated."""
        self.folder = os.dup(folder)
        self.name = ""
        self.fd = -1
        try:
            while not self._make():
                pass
        except BaseException:
            self.discard()
            raise

    def _make(self) -> bool:
        self.name = os.urandom(16).hex()
        self.fd = os.open(self.name, _CREATE, 0o600, dir_fd=self.folder)
        status = os.fstat(self.fd)
        if status.st_mode & 0o777 != 0o600:
            os.fchmod(self.fd, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self.fd).st_nlink:
                return True
        except BlockingIOError:
            pass
        # A sweeper was quicker than the lock.
        self._remove()
        return False

    def write(self, data: bytes | memoryview) -> int:
        """Appends all of *data* and returns its size in bytes."""
        view = memoryview(data).cast("B")
        total = len(view)
        while view:
            view = view[os.write(self.fd, view) :]
        return total

    def rename(self, name: str, folder: int) -> None:
        """Moves the file to *name* in *folder*, over whatever is there; it is no temporary file any more."""
        os.rename(self.name, name, src_dir_fd=self.folder, dst_dir_fd=folder)
        self.name = ""

    def discard(self) -> None:
        """Removes the temporary name, if it still has one, and closes everything; never raises an OSError."""
        self._remove()
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1

    def _remove(self) -> None:
        if self.name:
            # What cannot be removed now is swept by a later process: the lock goes with the descriptor.
            with suppress(OSError):
                os.unlink(self.name, dir_fd=self.folder)
            self.name = ""
        if self.fd >= 0:
            with suppress(OSError):
                os.close(self.fd)
            self.fd = -1


def sweep(folder: int) -> None:
    """Removes temporary files that no living process holds; best effort."""
    for name in os.listdir(folder):
        with suppress(OSError):
            fd = os.open(name, _SWEEP, dir_fd=folder)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(fd)
