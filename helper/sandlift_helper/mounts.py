"""Which mounts inside a workspace belong to it.

The root's own file system does, and so do tmpfs and other local file systems; pseudo file systems and network
or FUSE mounts do not, unless they are of the root's own type and source.  The table of mounts is read once,
before the walk, so that a hanging network mount is never even asked for its attributes.
"""

MYPY = False
if MYPY:
    from collections.abc import Iterable

# What holds files on this machine: memory, or a local disk.
LOCAL_TYPES = frozenset(
    (
        b"tmpfs ramfs ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs nilfs2 bcachefs overlay aufs squashfs erofs "
        b"vfat exfat ntfs3 iso9660 udf hfsplus apfs ufs"
    ).split()
)


class Mounts:
    """The mounts below *root* (an absolute, resolved path), as /proc/self/mountinfo lists them (proc(5)).

    Where several mounts lie on one point, the last one is visible.  ``points`` are all of them, relative to the
    root, which is one itself when they hold the empty path.
    """

    def __init__(self, root: bytes, mountinfo: "Iterable[bytes]") -> None:
        self.points: "set[bytes]" = set()
        self._foreign: "dict[bytes, bytes]" = {}
        self._known = False
        rows = []
        home = (b"", b"", b"")
        for line in mountinfo:
            self._known = True
            fields, _, rest = line.partition(b" - ")
            words = fields.split(b" ")
            parent, point = words[1], _unescape(words[4])
            kind, source = (rest.split(b" ") + [b"", b""])[:2]
            rows.append((parent, point, kind, source))
            if _within(root, point) and len(point) >= len(home[0]):
                home = (point, kind, source)
        self.root_type = home[1]
        self.points.update(point[len(root.rstrip(b"/")) + 1 :] for _, point, _, _ in rows if _within(point, root))
        for parent, point, kind, source in rows:
            if point == root or not _within(point, root):
                continue
            relative = point[len(root.rstrip(b"/")) + 1 :]
            if kind in LOCAL_TYPES or (kind, source) == home[1:]:
                self._foreign.pop(relative, None)
            elif not any(up == parent and point != over and _within(point, over) for up, over, _, _ in rows):
                # A mount beside it in the kernel's tree but above it in the file system's would hide it.
                self._foreign[relative] = kind + b" " + source

    def foreign(self, path: bytes) -> "bytes | None":
        """Returns "type source" when *path* (relative to the root) is a mount that does not belong to the workspace."""
        return self._foreign.get(path)

    @property
    def known(self) -> bool:
        """Whether the table of mounts could be read at all."""
        return self._known


def _within(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def _unescape(field: bytes) -> bytes:
    """Undoes the octal escapes of mountinfo (space, tab, newline, backslash)."""
    first, *pieces = field.split(b"\\")
    return first + b"".join(bytes([int(piece[:3], 8)]) + piece[3:] for piece in pieces)


def read_mounts(root: bytes) -> Mounts:
    """Returns the mounts below *root*; where there is no table of mounts, an empty `Mounts` that knows nothing."""
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            return Mounts(root, [line.rstrip(b"\n") for line in table])
    except OSError:
        return Mounts(root, [])
