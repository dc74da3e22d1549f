"""Renames that Python lacks: two names exchanged at once, and one that takes no name that is in use (renameat2(2))."""

import errno
import os

_NOREPLACE, _EXCHANGE = 1, 2
# What a kernel or a file system says that does not know a flag of renameat2.
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class NoExchange(Exception):
    """This kernel or this file system cannot exchange two names."""


def _renameat2(old_fd: int, old: bytes, new_fd: int, new: bytes, flags: int) -> int:
    """Returns 0, or the number of the error."""
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        call = library.renameat2
    except (ImportError, OSError, AttributeError):
        return errno.ENOSYS
    if call(old_fd, old, new_fd, new, flags) == 0:
        return 0
    return ctypes.get_errno()


def exchange(fd: int, first: bytes, second: bytes) -> None:
    """Exchanges two names of one directory at once.  Raises NoExchange, OSError."""
    number = _renameat2(fd, first, fd, second, _EXCHANGE)
    if number in _UNKNOWN:
        raise NoExchange()
    if number:
        raise OSError(number, os.strerror(number), second)


def rename_new(fd: int, old: bytes, new: bytes) -> None:
    """Renames within a directory to a name that must be free.  Raises FileExistsError, OSError.

    Where the kernel cannot say so at once, the name is looked at first.
    """
    number = _renameat2(fd, old, fd, new, _NOREPLACE)
    if number in _UNKNOWN:
        try:
            os.stat(new, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(old, new, src_dir_fd=fd, dst_dir_fd=fd)
            return
        number = errno.EEXIST
    if number:
        raise OSError(number, os.strerror(number), new)
