"""The private directory beside a target, in which a tree is built before it becomes visible by one rename."""

import errno
import fcntl
import os
import signal
import stat
import time

from sandlift_helper.channel import Failure
from sandlift_helper.ladder import DIRECTORY_FLAGS

SUFFIX = b".sandlift-new"

# Who cannot lock the parent within a second does without, and then sweeps nothing.
PARENT_LOCK_TRIES = 20


class Staging:
    """Creates the staging directory for *target*, a path that is absent or an empty directory.

    ``fd`` is the open staging directory, ``existing`` the status of the target that was there before, or None.
    Raises Failure.
    """

    def __init__(self, target: bytes) -> None:
        # Parents of the target are the operator's own and may be links; below the target nothing is followed.
        self._target = os.path.realpath(target)
        parent, name = os.path.split(self._target)
        if not name:
            raise Failure("target-not-empty", "%s is the root of the file system" % os.fsdecode(target))
        self._name = name
        self.existing = self._look()
        try:
            os.makedirs(parent, exist_ok=True)
            # From here on modes are ours: private until they are set.
            os.umask(0o077)
            self._parent_fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            prefix = b".%s." % name[:100]
            # Two restores may start at once: neither may sweep what the other has made and not locked yet.
            alone = _try_lock(self._parent_fd, PARENT_LOCK_TRIES)
            if alone:
                self._sweep(prefix)
            self._stage = prefix + os.urandom(8).hex().encode() + SUFFIX
            os.mkdir(self._stage, 0o700, dir_fd=self._parent_fd)
            self.fd = os.open(self._stage, DIRECTORY_FLAGS, dir_fd=self._parent_fd)
            # Held until the last process that writes here has ended: the sign of a living restore.
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if alone:
                fcntl.flock(self._parent_fd, fcntl.LOCK_UN)
        except OSError as error:
            raise target_failure(error, os.fsdecode(parent))

    def _look(self) -> "os.stat_result | None":
        shown = os.fsdecode(self._target)
        try:
            status = os.lstat(self._target)
            if not stat.S_ISDIR(status.st_mode):
                raise Failure("target-not-empty", "%s exists and is no directory" % shown)
            if os.listdir(self._target):
                raise Failure("target-not-empty", "%s is not empty" % shown)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise target_failure(error, shown)
        if os.path.ismount(self._target):
            raise Failure("target-unusable", "%s is a mount point, so nothing can be renamed onto it" % shown)
        return status

    def _sweep(self, prefix: bytes) -> None:
        """Removes staging directories for the same target that killed restores of ours have left."""
        for text in os.listdir(self._parent_fd):
            name = os.fsencode(text)
            middle = name[len(prefix) : -len(SUFFIX)]
            if name != prefix + middle + SUFFIX or len(middle) != 16 or middle.strip(b"0123456789abcdef"):
                continue
            try:
                fd = os.open(name, DIRECTORY_FLAGS, dir_fd=self._parent_fd)
            except OSError:
                continue
            try:
                # A directory that another restore is at work in is locked.
                if os.fstat(fd).st_uid == os.geteuid() and _try_lock(fd, 1):
                    remove_tree(self._parent_fd, name)
            except OSError:
                # What cannot be removed stays, under its telling name.
                pass
            finally:
                os.close(fd)

    def check_room(self, size: int, inodes: int) -> None:
        """Raises Failure when the file system has no room for *size* bytes and *inodes* files."""
        room = os.fstatvfs(self.fd)
        free = room.f_bavail * room.f_frsize
        shown = os.fsdecode(self._target)
        if size > free:
            raise Failure("target-full", "%s needs %d bytes, its file system has %d" % (shown, size, free))
        if room.f_files and inodes > room.f_favail:
            raise Failure("target-full", "%s needs %d inodes, its file system has %d" % (shown, inodes, room.f_favail))

    def publish(self) -> None:
        """Flushes the tree and gives it the target's name.  Raises Failure."""
        try:
            sync_file_system(self.fd)
            os.rename(self._stage, self._name, src_dir_fd=self._parent_fd, dst_dir_fd=self._parent_fd)
            os.fsync(self._parent_fd)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise Failure("target-not-empty", "%s was filled meanwhile" % os.fsdecode(self._target))
            raise target_failure(error, os.fsdecode(self._target))

    def remove(self) -> None:
        """Removes the staging directory and all in it; what cannot be removed stays, under its telling name."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        try:
            remove_tree(self._parent_fd, self._stage)
        except OSError:
            pass


def _try_lock(fd: int, tries: int) -> bool:
    """Returns whether *fd* could be locked, within *tries* tries 50 ms apart."""
    for left in range(tries - 1, -1, -1):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if left:
                time.sleep(0.05)
    return False


def target_failure(error: OSError, shown: str) -> Failure:
    """Returns the failure that an OSError of the target means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure("target-full", "%s: %s" % (shown, error.strerror))
    name = error.filename
    where = os.fsdecode(name) if isinstance(name, (bytes, str)) and os.fsdecode(name) not in shown else ""
    return Failure("target-unusable", "%s%s: %s" % (shown, where and " (%s)" % where, error.strerror))


def sync_file_system(fd: int) -> None:
    """Flushes the file system that *fd* lies on, or all of them where syncfs(2) cannot be reached."""
    try:
        import ctypes

        if ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0:
            return
        number = ctypes.get_errno()
    except (ImportError, OSError, AttributeError):
        os.sync()
        return
    raise OSError(number, os.strerror(number))


def remove_tree(parent_fd: int, name: bytes) -> None:
    """Removes the directory *name* and all below it, by descriptor, without recursion, following nothing."""
    # Each level: its descriptor, its name in the level above, and the subdirectories still to be removed.
    levels = [(parent_fd, b"", [name])]
    while True:
        fd, own_name, rest = levels[-1]
        if rest:
            below = _open_writable(fd, rest[-1])
            levels.append((below, rest.pop(), _unlink_files(below)))
            continue
        levels.pop()
        if not levels:
            return
        os.close(fd)
        os.rmdir(own_name, dir_fd=levels[-1][0])


def _open_writable(parent_fd: int, name: bytes) -> int:
    """Opens a directory and lets its owner in; its mode is set by descriptor, since a name may become a link."""
    try:
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent_fd)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            os.chmod("/proc/self/fd/%d" % handle, 0o700)
        finally:
            os.close(handle)
        return os.open(name, DIRECTORY_FLAGS, dir_fd=parent_fd)
    os.fchmod(fd, 0o700)
    return fd


def _unlink_files(fd: int) -> "list[bytes]":
    directories = []
    for text in os.listdir(fd):
        name = os.fsencode(text)
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            directories.append(name)
        else:
            os.unlink(name, dir_fd=fd)
    return directories
