"""The target of a restore: what is there now, and the lock that keeps other restores away from it meanwhile."""

import errno
import fcntl
import os
import stat
import time

from sandlift_helper.channel import Failure
from sandlift_helper.ladder import DIRECTORY_FLAGS

MYPY = False
if MYPY:
    from collections.abc import Callable

LOCK_INTERVAL_S = 0.05
# Parents may be links; what is beside the target is reached by this descriptor alone.
PARENT_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Target:
    """The directory at *path*, or the name where one will be; its parents are the operator's own and may be links.

    The path is resolved once: from then on the target is ``name`` in the directory open as ``parent_fd`` (-1 where
    that is missing).  ``fd`` is the open target, locked for this restore, or -1 where there is none; ``status`` is
    its status or None, ``mounted`` whether it is a mount point.  *wait* is called again and again while another
    restore holds the lock.  The lock is the system's own (flock(2)), so it ends with its last holder.  Raises
    Failure.
    """

    def __init__(self, path: bytes, wait: "Callable[[], None]") -> None:
        self.path = os.path.realpath(path)
        self.shown = os.fsdecode(self.path)
        self.parent, self.name = os.path.split(self.path)
        self.parent_fd = self.fd = -1
        self.status: "os.stat_result | None" = None
        try:
            self.parent_fd = os.open(self.parent, PARENT_FLAGS)
            while self.status is None:
                self._open(wait)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise target_failure(error, self.shown)
        self.mounted = self.fd >= 0 and os.path.ismount(self.path)

    def _open(self, wait: "Callable[[], None]") -> None:
        name = self.name or b"."
        if not stat.S_ISDIR(os.stat(name, dir_fd=self.parent_fd, follow_symlinks=False).st_mode):
            raise Failure("target-not-empty", "%s exists and is no directory" % self.shown)
        self.fd = os.open(name, DIRECTORY_FLAGS, dir_fd=self.parent_fd)
        while not try_lock(self.fd, 1):
            wait()
        # Whoever held the lock may have put another directory in its place.
        if self.is_at(name):
            self.status = os.fstat(self.fd)
        else:
            os.close(self.fd)
            self.fd = -1

    def is_at(self, name: bytes) -> bool:
        """Whether *name* beside the target is the directory that was opened as the target."""
        return same_file(self.fd, name, self.parent_fd)

    def is_empty(self) -> bool:
        """Whether nothing is there, or an empty directory."""
        try:
            return self.fd < 0 or not os.listdir(self.fd)
        except OSError as error:
            raise target_failure(error, self.shown)

    def folds(self) -> bool:
        """Whether names that differ in case alone are one, as far as what is there shows."""
        try:
            if self.fd >= 0:
                names = [os.fsencode(name) for name in os.listdir(self.fd)]
                if names:
                    return _folds_names(self.fd, names)
            if self.parent_fd < 0:
                return False
            return _folds_names(self.parent_fd, [os.fsencode(name) for name in os.listdir(self.parent_fd)])
        except OSError:
            return False


def same_file(fd: int, name: bytes, directory_fd: int) -> bool:
    """Whether *name* in a directory is the open file *fd*."""
    try:
        status, own = os.stat(name, dir_fd=directory_fd, follow_symlinks=False), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)


def try_lock(fd: int, tries: int) -> bool:
    """Returns whether *fd* is locked now, within *tries* tries; where the file system has no locks, it always is."""
    for left in range(tries - 1, -1, -1):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _HELD:
                return True
            if left:
                time.sleep(LOCK_INTERVAL_S)
    return False


def unlock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        pass


def check_room(fd: int, size: int, inodes: int, shown: str) -> None:
    """Raises Failure when the file system of *fd* has no room for *size* bytes and *inodes* files."""
    room = os.fstatvfs(fd)
    free = room.f_bavail * room.f_frsize
    if size > free:
        raise Failure("target-full", "%s needs %d bytes, its file system has %d" % (shown, size, free))
    if room.f_files and inodes > room.f_favail:
        raise Failure("target-full", "%s needs %d inodes, its file system has %d" % (shown, inodes, room.f_favail))


def _folds_names(fd: int, names: "list[bytes]") -> bool:
    """Whether the directory takes names for one that differ in case alone, by one of its own *names*."""
    known = frozenset(names)
    for name in names:
        other = name.swapcase()
        if other == name or other in known:
            continue
        try:
            first, second = (os.stat(text, dir_fd=fd, follow_symlinks=False) for text in (name, other))
        except FileNotFoundError:
            return False
        except OSError:
            continue
        return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
    return False


def target_failure(error: OSError, shown: str) -> Failure:
    """Returns the failure that an OSError of the target means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure("target-full", "%s: %s" % (shown, error.strerror))
    name = error.filename
    where = os.fsdecode(name) if isinstance(name, (bytes, str)) and os.fsdecode(name) not in shown else ""
    return Failure("target-unusable", "%s%s: %s" % (shown, where and " (%s)" % where, error.strerror))
