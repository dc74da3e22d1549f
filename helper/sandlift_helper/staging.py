"""The private directory beside a target, in which a tree is built before it becomes visible by one rename."""

import errno
import os
import signal

from sandlift_helper.channel import Failure
from sandlift_helper.ladder import DIRECTORY_FLAGS
from sandlift_helper.mounts import read_mounts
from sandlift_helper.removal import Mounted, remove_tree
from sandlift_helper.rename import NoExchange, exchange, rename_new
from sandlift_helper.target import PARENT_FLAGS, Target, same_file, target_failure, try_lock, unlock

MYPY = False
if MYPY:
    from collections.abc import Callable

NEW = b".sandlift-new"
OLD = b".sandlift-old"

# Who cannot lock the parent within a second does without, and then sweeps nothing.
PARENT_LOCK_TRIES = 20

_NO_RENAME = {
    errno.EXDEV: "it belongs to a lower layer of an overlay, or to another mount",
    errno.EBUSY: "it is a mount point",
}


class Staging:
    """Creates the staging directory for *target*; ``fd`` is open on it.

    *wait* is called again and again while another restore is at work.  Raises Failure.
    """

    def __init__(self, target: Target, wait: "Callable[[], None]") -> None:
        self._target = target
        self._made: "list[bytes]" = []
        if not target.name:
            raise Failure("target-unusable", "%s is the root of the file system, so nothing can stand beside it" % "/")
        try:
            if target.parent_fd < 0:
                self._make_parents()
                target.parent_fd = os.open(target.parent, PARENT_FLAGS)
            # From here on modes are ours: private until they are set.
            os.umask(0o077)
            self._parent_fd = target.parent_fd
            # Two restores may start at once: neither may sweep what the other has made and not locked yet.
            alone = await_others(self._parent_fd, target.name, wait)
            if target.fd < 0 and _is_there(self._parent_fd, target.name):
                raise Failure("target-not-empty", "%s was made by somebody else meanwhile" % target.shown)
            self._id = os.urandom(8).hex().encode()
            self._name = _prefix(target.name) + self._id + NEW
            self._make()
            # Held until the last process that writes here has ended: the sign of a living restore.
            try_lock(self.fd, 1)
            if alone:
                unlock(self._parent_fd)
        except OSError as error:
            raise Failure(*_beside(target_failure(error, os.fsdecode(target.parent))))

    def _make(self) -> None:
        os.mkdir(self._name, 0o700, dir_fd=self._parent_fd)
        try:
            self.fd = os.open(self._name, DIRECTORY_FLAGS, dir_fd=self._parent_fd)
        except OSError:
            os.rmdir(self._name, dir_fd=self._parent_fd)
            raise

    def _make_parents(self) -> None:
        path = self._target.parent
        while not os.path.lexists(path):
            self._made.append(path)
            path = os.path.dirname(path)
        for path in reversed(self._made):
            os.mkdir(path)

    def check_rename(self, replaces: bool) -> None:
        """Raises Failure unless the target can be renamed, or exchanged, when the time comes; changes nothing.

        A rename onto a directory that is not empty always fails, and how it fails says what else is in the way.
        """
        if not replaces:
            return
        try:
            probe = b"probe"
            os.mkdir(probe, 0o700, dir_fd=self.fd)
            try:
                os.rename(self._target.name, self._name, src_dir_fd=self._parent_fd, dst_dir_fd=self._parent_fd)
            finally:
                os.rmdir(probe, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return
            why = _NO_RENAME.get(error.errno or 0, error.strerror)
            raise Failure(
                "target-unusable", "%s cannot be renamed: %s; the mode exact works in place" % (self._target.shown, why)
            )

    def publish(self, replaces: bool) -> bytes:
        """Flushes the tree and gives it the target's name; returns the name of an old tree that stays, or nothing.

        Raises Failure.
        """
        target = self._target
        fd = self._parent_fd
        try:
            sync_file_system(self.fd)
            if not same_file(self.fd, self._name, fd):
                raise Failure("conflict", "%s was exchanged by somebody else meanwhile" % os.fsdecode(self._name))
            if not replaces:
                os.rename(self._name, target.name, src_dir_fd=fd, dst_dir_fd=fd)
                os.fsync(fd)
                return b""
            try:
                exchange(fd, self._name, target.name)
                old = self._name
            except NoExchange:
                # The name of the old tree is the journal: whoever finds it and no target puts it back.
                old = _prefix(target.name) + self._id + OLD
                os.rename(target.name, old, src_dir_fd=fd, dst_dir_fd=fd)
                os.fsync(fd)
                os.rename(self._name, target.name, src_dir_fd=fd, dst_dir_fd=fd)
            os.fsync(fd)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise Failure("target-not-empty", "%s was filled meanwhile" % target.shown)
            raise target_failure(error, target.shown)
        # What is not the tree that was listed is nothing of ours, and stays under the telling name.
        return b"" if target.is_at(old) and _remove_beside(fd, target.parent, old) else old

    def remove(self) -> None:
        """Removes the staging directory and all in it; what cannot be removed stays, under its telling name."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        try:
            remove_tree(self._parent_fd, self._name)
            for path in self._made:
                os.rmdir(path)
        except (OSError, Mounted):
            pass


def _beside(failure: Failure) -> "tuple[str, str]":
    hint = "" if failure.code == "target-full" else "; the mode exact needs nothing beside the target"
    return failure.code, failure.message + hint


def _prefix(name: bytes) -> bytes:
    return b".%s." % name[:100]


def _names_of_ours(fd: int, target: bytes) -> "list[bytes]":
    """Returns the names in a directory that our staging directories and replaced trees for a *target* have there."""
    prefix = _prefix(target)
    found = []
    for text in os.listdir(fd):
        name = os.fsencode(text)
        middle = name[len(prefix) : -len(NEW)]
        known = name.startswith(prefix) and name[-len(NEW) :] in (NEW, OLD)
        known = known and len(middle) == 16 and not middle.strip(b"0123456789abcdef")
        if known and os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid == os.geteuid():
            found.append(name)
    return found


def await_others(parent_fd: int, target: bytes, wait: "Callable[[], None]") -> bool:
    """Waits until no other restore is at work beside *target*; returns whether the parent is locked now.

    A directory that a restore is at work in is locked.
    """
    while try_lock(parent_fd, PARENT_LOCK_TRIES):
        living = False
        for name in _names_of_ours(parent_fd, target):
            try:
                fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent_fd)
            except OSError:
                continue
            living = living or not try_lock(fd, 1)
            os.close(fd)
        if not living:
            return True
        unlock(parent_fd)
        wait()
    return False


def put_right(path: bytes, wait: "Callable[[], None]") -> None:
    """Waits for other restores beside the target at *path*, then puts right what killed ones have left there.

    A target that is missing gets its old tree back, where a replacement by two renames was cut off between them;
    all else is removed.
    """
    parent, name = os.path.split(os.path.realpath(path))
    try:
        fd = os.open(parent, PARENT_FLAGS)
    except OSError:
        return
    try:
        if not name or not await_others(fd, name, wait):
            return
        for left in sorted(_names_of_ours(fd, name), key=lambda left: left.endswith(NEW)):
            if left.endswith(OLD) and not _is_there(fd, name):
                rename_new(fd, left, name)
            else:
                _remove_beside(fd, parent, left)
    except OSError:
        pass
    finally:
        os.close(fd)


def _is_there(parent_fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_beside(parent_fd: int, parent: bytes, name: bytes) -> bool:
    """Removes a tree beside a target, unless something is mounted in it; returns whether it is gone."""
    try:
        if read_mounts(os.path.join(parent, name)).points:
            return False
        remove_tree(parent_fd, name)
    except (OSError, Mounted):
        return False
    return True


def sync_file_system(fd: int) -> None:
    """Flushes the file system that *fd* lies on, or all of them where syncfs(2) cannot be reached."""
    try:
        import ctypes

        number = 0 if ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0 else ctypes.get_errno()
    except (ImportError, OSError, AttributeError):
        number = errno.ENOSYS
    if number in (errno.ENOSYS, errno.EPERM):
        os.sync()
    elif number:
        raise OSError(number, os.strerror(number))
