"""The marker of a restore in place: a file at the root that is there from before its first change to after its last.

It holds the restore's id.  What the restore makes under temporary names bears that id too, so whoever finds the
marker later can tell what was left behind: the next restore removes it, and a capture leaves it out and says so.
"""

import os
import stat

from sandlift_helper.channel import Failure

MARKER = b".sandlift-restoring"

_BEGIN = b"sandlift restore "
_ID_SIZE = 16
# Of a restore that was killed while it wrote its marker: nothing else was changed by then.
_TORN = b"0" * _ID_SIZE


def temporary_prefix(run_id: bytes) -> bytes:
    """Returns how every temporary name of a restore begins."""
    return b".sandlift-%s-" % run_id


def new_id() -> bytes:
    return os.urandom(_ID_SIZE // 2).hex().encode()


def read_marker(root_fd: int) -> bytes:
    """Returns the id of the restore that was not finished below *root_fd*; empty where there is no marker of ours."""
    try:
        fd = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root_fd)
    except OSError:
        return b""
    try:
        text = os.read(fd, 64) if stat.S_ISREG(os.fstat(fd).st_mode) else b"no file"
    finally:
        os.close(fd)
    run_id = text[len(_BEGIN) :]
    if run_id.strip(b"0123456789abcdef\n") or not _BEGIN.startswith(text[: len(_BEGIN)]):
        return b""
    if len(run_id) == _ID_SIZE + 1 and run_id.find(b"\n") == _ID_SIZE:
        return run_id[:_ID_SIZE]
    return _TORN if len(run_id) <= _ID_SIZE and b"\n" not in run_id else b""


def write_marker(root_fd: int, run_id: bytes) -> None:
    """Writes the marker, for good before anything else is changed.  Raises OSError, Failure."""
    try:
        fd = os.open(MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root_fd)
    except FileExistsError:
        raise Failure("conflict", "%s is there and was not made by sandlift" % os.fsdecode(MARKER))
    try:
        text = _BEGIN + run_id + b"\n"
        while text:
            text = text[os.write(fd, text) :]
        os.fsync(fd)
        os.fsync(root_fd)
    except OSError:
        os.unlink(MARKER, dir_fd=root_fd)
        raise
    finally:
        os.close(fd)
