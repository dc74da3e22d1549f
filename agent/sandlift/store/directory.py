"""Objects in a directory of the host.

Every object is a file of its own, readable by its owner alone whatever the umask.  A file is written under a
random name in ``tmp/``, flushed, and only then renamed (or, for *create if absent*, linked) to its key, and the
folders on the way to it are flushed before the call returns: so a name that can be seen stands for a whole
object, and one that was reported as stored survives a power cut.

Everything is reached by descriptor from the store's root, and no symbolic link is followed on the way, so a
link planted in the store leads nowhere.  Only the root itself may be reached through links: it is the user's.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sandlift.errors import StoreDamaged, StoreError, StoreFull, StoreMissing, StoreUnusable
from sandlift.store.flush import flush_file, flush_folder, start_writeback
from sandlift.store.objects import ObjectInfo, UnknownObject, check_key, is_component
from sandlift.store.temporary import Temporary, sweep

TMP: Final = "tmp"
"""The folder of unfinished files; it is no part of the key space."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, so that a fifo planted in the store cannot hold a reader.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITEBACK_STEP = 8 << 20

_HINTS = {
    errno.EACCES: "the store must belong to the user that runs sandlift",
    errno.EPERM: "the store needs a file system with hard links and POSIX permissions",
    errno.ENOTSUP: "the store needs a file system with hard links and POSIX permissions",
    errno.ENOLCK: "the store needs a file system with file locks",
    errno.EROFS: "the file system is mounted read-only: remount it, or name another store",
    errno.EIO: "the disk reports errors: look at the kernel's log, and copy the store away",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of the whole machine (fs.file-max)",
}


class DirectoryObjects:
    """The six operations on a directory; see `sandlift.store.objects.Objects` for their contract."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Opens *path*, or with *create* makes it (parents too).  Raises StoreMissing, StoreUnusable, StoreFull."""
        self.path = path
        self._sweep_lock = threading.Lock()
        self._is_swept = False
        with self._trouble("cannot open the store"):
            if create:
                _make_folders(path)
            try:
                self._root = os.open(path, _FOLDER & ~os.O_NOFOLLOW)
            except FileNotFoundError:
                raise StoreMissing(f"there is no store at {path}", hint="a first capture makes it") from None
            except NotADirectoryError:
                raise StoreMissing(f"{path} is no directory", hint="name a directory as the store") from None

    def close(self) -> None:
        """Closes the root; a second call does nothing."""
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)

    def is_vacant(self, *, but: str) -> bool:
        """Whether the directory holds nothing at all, or only unfinished files and the object *but*."""
        with self._trouble("cannot list"):
            return set(os.listdir(self._root)) <= {TMP, but}

    def make_private(self) -> None:
        """Takes every right on the root from everybody but its owner."""
        with self._trouble("cannot set the mode of"):
            os.fchmod(self._root, 0o700)

    def put(self, key: str) -> DirectoryWriter:
        """See `Objects.put`."""
        check_key(key)
        with self._trouble("cannot write", key):
            return DirectoryWriter(self, key, self._temporary())

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """See `Objects.get`."""
        with self._trouble("cannot read", key), self._opened(key) as (fd, size):
            if size > max_bytes:
                raise StoreDamaged(f"{self.path}/{key} has {size} bytes, at most {max_bytes} can be right")
            return self._read(fd, key, 0, size)

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """See `Objects.get_range`."""
        with self._trouble("cannot read", key), self._opened(key) as (fd, total):
            if offset < 0 or size < 0 or offset + size > total:
                raise StoreDamaged(f"{self.path}/{key} ends at {total}, bytes up to {offset + size} are missing")
            return self._read(fd, key, offset, size)

    def open_file(self, key: str) -> int:
        """See `Objects.open_file`."""
        with self._trouble("cannot read", key), self._opened(key) as (fd, _):
            return os.dup(fd)

    def size(self, key: str) -> int:
        """See `Objects.size`."""
        with self._trouble("cannot read", key), self._opened(key) as (_, size):
            return size

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Objects.list`."""
        if prefix and not prefix.endswith("/"):
            raise ValueError(f"not a prefix of the store: {prefix!r}")
        # The root is opened anew for a listing: one descriptor's reading position cannot serve two threads.
        names = check_key(prefix[:-1]) if prefix else ["."]
        with self._trouble("cannot list", prefix), suppress(FileNotFoundError):
            with self._folders(names, create=False) as fds:
                yield from self._walk(prefix, fds[-1])

    def delete(self, key: str) -> None:
        """See `Objects.delete`; a power cut may bring the object back."""
        *folders, name = check_key(key)
        with self._trouble("cannot delete", key), suppress(FileNotFoundError):
            with self._folders(folders, create=False) as fds:
                os.unlink(name, dir_fd=fds[-1])

    def create_if_absent(self, key: str, data: bytes) -> bool:
        """See `Objects.create_if_absent`."""
        *folders, name = check_key(key)
        with self._trouble("cannot create", key):
            temporary = self._temporary()
            try:
                temporary.write(data)
                flush_file(temporary.fd)
                with self._folders(folders, create=True) as fds:
                    try:
                        os.link(
                            temporary.name,
                            name,
                            src_dir_fd=temporary.folder,
                            dst_dir_fd=fds[-1],
                            follow_symlinks=False,
                        )
                        is_new = True
                    except FileExistsError:
                        is_new = False
                    # An older one is flushed too: whoever made it may have been killed before that.
                    for fd in reversed(fds):
                        flush_folder(fd)
                    return is_new
            finally:
                temporary.discard()

    def publish(self, key: str, temporary: Temporary) -> None:
        """Flushes *temporary*, renames it to *key*, and flushes the folders down to it."""
        *folders, name = check_key(key)
        with self._trouble("cannot write", key):
            flush_file(temporary.fd)
            with self._folders(folders, create=True) as fds:
                temporary.rename(name, fds[-1])
                # All of them, not only those made here: another process may have made one and not flushed it yet.
                for fd in reversed(fds):
                    flush_folder(fd)

    @contextmanager
    def trouble(self, key: str) -> Iterator[None]:
        """Turns an OSError of writing *key* into a StoreError."""
        with self._trouble("cannot write", key):
            yield

    def _temporary(self) -> Temporary:
        with self._folders([TMP], create=True) as fds:
            with self._sweep_lock:
                if not self._is_swept:
                    sweep(fds[-1])
                    self._is_swept = True
            return Temporary(fds[-1])

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        *folders, name = check_key(key)
        try:
            with self._folders(folders, create=False) as fds:
                fd = os.open(name, _READ, dir_fd=fds[-1])
        except FileNotFoundError:
            raise UnknownObject(key) from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
                raise StoreDamaged(f"{self.path}/{key} is no regular file") from error
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise StoreDamaged(f"{self.path}/{key} is no regular file")
            yield fd, status.st_size
        finally:
            os.close(fd)

    def _read(self, fd: int, key: str, offset: int, size: int) -> bytes:
        # One read is the rule; the kernel stops at 2 GiB, and where the file was cut off meanwhile.
        data = os.pread(fd, size, offset)
        if len(data) == size:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            part = os.pread(fd, size - have, offset + have)
            if not part:
                raise StoreDamaged(f"{self.path}/{key} became shorter while it was read")
            parts.append(part)
            have += len(part)
        return b"".join(parts)

    @contextmanager
    def _folders(self, names: Sequence[str], *, create: bool) -> Iterator[Sequence[int]]:
        """Yields descriptors of the root and of each folder below it, outermost first."""
        fds = [self._root]
        try:
            for name in names:
                fds.append(_enter(fds[-1], name, create=create))
            yield fds
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _walk(self, prefix: str, folder: int) -> Iterator[ObjectInfo]:
        with os.scandir(folder) as rows:
            # A folder sorts as its name and a slash: that is the order of whole keys.
            names = sorted(
                (row.name + "/" if row.is_dir(follow_symlinks=False) else row.name)
                for row in rows
                if is_component(row.name) and (prefix or row.name != TMP)
            )
        for name in names:
            # What another process deletes meanwhile is left out.  A link or a special file is listed, so that
            # whoever reads it says that it is damaged.
            if not name.endswith("/"):
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    yield ObjectInfo(key=prefix + name, size_bytes=status.st_size)
                continue
            with suppress(FileNotFoundError):
                inner = _enter(folder, name[:-1], create=False)
                try:
                    yield from self._walk(prefix + name, inner)
                finally:
                    os.close(inner)

    @contextmanager
    def _trouble(self, doing: str, key: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _store_error(error, f"{doing} {self.path}{'/' if key else ''}{key}") from error


class DirectoryWriter:
    """A file in ``tmp/`` that becomes an object; see `sandlift.store.objects.Writer` for its contract."""

    def __init__(self, objects: DirectoryObjects, key: str, temporary: Temporary) -> None:
        self._objects = objects
        self._key = key
        self._temporary = temporary
        self._size_bytes = 0
        self._started_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What has been written so far."""
        return self._size_bytes

    def write(self, data: bytes | memoryview) -> None:
        """See `Writer.write`; write-back begins while the object grows, so that the flush at the end is short."""
        with self._objects.trouble(self._key):
            self._size_bytes += self._temporary.write(data)
        if self._size_bytes - self._started_bytes >= _WRITEBACK_STEP:
            start_writeback(self._temporary.fd, self._started_bytes, self._size_bytes - self._started_bytes)
            self._started_bytes = self._size_bytes

    def commit(self) -> None:
        """See `Writer.commit`."""
        try:
            self._objects.publish(self._key, self._temporary)
        finally:
            self.abort()

    def abort(self) -> None:
        """See `Writer.abort`."""
        self._temporary.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _enter(folder: int, name: str, *, create: bool) -> int:
    """Opens the folder *name* in *folder*; makes it, private, when it is missing and *create* is set."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
        # Only a umask that takes rights from the owner gets here; nobody else can write into the parent.
        if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777 != 0o700:
            os.chmod(name, 0o700, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def _make_folders(path: Path) -> None:
    """Makes *path* and its missing parents, private, and flushes each one's parent."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
            os.chmod(folder, 0o700)
        except FileExistsError:
            continue
        parent = os.open(folder.parent, _FOLDER & ~os.O_NOFOLLOW)
        try:
            flush_folder(parent)
        finally:
            os.close(parent)


def _store_error(error: OSError, doing: str) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{doing}: {reason}", hint="make room there, or name another store", errno=error.errno)
    return StoreUnusable(f"{doing}: {reason}", hint=_HINTS.get(error.errno or 0, ""), errno=error.errno)
