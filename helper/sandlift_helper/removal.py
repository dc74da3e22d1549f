"""Trees removed by descriptor: nothing is followed, no mount is crossed, and there is no recursion."""

import os
import stat

from sandlift_helper.ladder import DIRECTORY_FLAGS


class Mounted(Exception):
    """Something is mounted inside; what was not removed yet stays."""


def remove(parent_fd: int, name: bytes) -> None:
    """Removes *name*, whatever it is, and all below it.  Raises Mounted, OSError."""
    if stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
        remove_tree(parent_fd, name)
    else:
        os.unlink(name, dir_fd=parent_fd)


def remove_tree(parent_fd: int, name: bytes) -> None:
    """Removes the directory *name* and all below it.  Raises Mounted, OSError."""
    # Each level: its descriptor, its name in the level above, and the subdirectories still to be removed.
    levels = [(parent_fd, b"", [name])]
    device = -1
    try:
        while True:
            fd, own_name, rest = levels[-1]
            if rest:
                below = _open_writable(fd, rest[-1])
                levels.append((below, rest.pop(), []))
                here = os.fstat(below).st_dev
                if device not in (-1, here):
                    raise Mounted()
                device = here
                levels[-1][2].extend(_unlink_files(below))
                continue
            levels.pop()
            if not levels:
                return
            os.close(fd)
            # A mount of the same device cannot be told by its number, but its directory cannot be removed.
            os.rmdir(own_name, dir_fd=levels[-1][0])
    finally:
        for fd, _, _ in levels[1:]:
            os.close(fd)


def _open_writable(parent_fd: int, name: bytes) -> int:
    """Opens a directory and lets its owner in; its mode is set by descriptor, since a name may become a link."""
    try:
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent_fd)
    except PermissionError:
        open_up(parent_fd, name)
        return os.open(name, DIRECTORY_FLAGS, dir_fd=parent_fd)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def open_up(parent_fd: int, name: bytes, mode: int = 0o700) -> None:
    """Sets the mode of what cannot be opened to read.  Raises OSError, PermissionError where there is no O_PATH."""
    if not hasattr(os, "O_PATH"):
        raise PermissionError(13, os.strerror(13), name)
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise PermissionError(13, os.strerror(13), name)
        os.chmod("/proc/self/fd/%d" % handle, mode)
    finally:
        os.close(handle)


def _unlink_files(fd: int) -> "list[bytes]":
    directories = []
    for text in os.listdir(fd):
        name = os.fsencode(text)
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            directories.append(name)
        else:
            os.unlink(name, dir_fd=fd)
    return directories
