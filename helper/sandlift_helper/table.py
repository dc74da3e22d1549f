"""The manifest's table: entries, excluded rows and flags, as columns.

The same encoding travels and rests.  A *segment* holds any part of a manifest; the *canonical encoding* is
the one segment that holds all of it, sorted, with hard-link groups numbered from 1 in order of first
appearance, and without original link texts, orphans or passing columns.  A snapshot's identity is the SHA-256 of
that.

Encoding (integers little-endian)::

    version (1 or 2, 1 byte)  entry count (4)  excluded count (4)  flag count (4)
    then each column of `COLUMNS`: length in bytes (4), bytes
    then, where the version is 2, each column of `PASSING` in the same way

Names and texts are each followed by a NUL, which no name or link text can hold.  Rows are sorted by path,
compared component by component; `sort_key` gives the order.

A file's content is ``counts`` data blocks.  A file of n bytes has n / 1 MiB blocks, rounded up; one that
is all zeros is a hole and has no digest.  Where a file has holes, ``positions`` holds the index of each of
its data blocks.  The first row of a hard-link group carries the blocks, the others have none.

*Passing* columns are told by a capture beside the manifest, and are no part of it: for each file its *stamp*
(change time, inode number, and whether it was settled, see `base`), and for a row's digests that were not sent
because a snapshot that is like this one holds them, the proof that they are held here.
"""

import io
import sys
from array import array
from itertools import islice
from operator import le

from sandlift_helper.wire import BLOCK_MAX, SEGMENT_MAX

MYPY = False
if MYPY:
    from collections.abc import Iterator, Sequence

VERSION = 1
# Of a segment with passing columns.
VERSION_PASSING = 2

# What Linux takes as a link's text, in bytes.
TEXT_MAX = 4095

DIRECTORY = 0
FILE = 1
LINK = 2
FIFO = 3
SOCKET = 4
CHAR_DEVICE = 5
BLOCK_DEVICE = 6
UNKNOWN = 7
KIND_NAMES = ("directory", "file", "link", "fifo", "socket", "char-device", "block-device", "unknown")

# Reasons below LOST are policy and expected, the others mean that something is missing.
OUTSIDE_LINK = 1
REASON_FIFO = 2
REASON_SOCKET = 3
REASON_CHAR_DEVICE = 4
REASON_BLOCK_DEVICE = 5
MOUNT = 6
PATTERN = 7
WHITEOUT = 8
OWN = 9
LOST = 32
UNREADABLE = 32
IO_ERROR = 33
TOO_LARGE = 34
LIMIT = 35
UNSTABLE = 36
NOT_REACHED = 37
REASON_NAMES = {
    OUTSIDE_LINK: "outside-link",
    REASON_FIFO: "fifo",
    REASON_SOCKET: "socket",
    REASON_CHAR_DEVICE: "char-device",
    REASON_BLOCK_DEVICE: "block-device",
    MOUNT: "mount",
    PATTERN: "pattern",
    WHITEOUT: "whiteout",
    OWN: "own",
    UNREADABLE: "unreadable",
    IO_ERROR: "io-error",
    TOO_LARGE: "too-large",
    LIMIT: "limit",
    UNSTABLE: "unstable",
    NOT_REACHED: "not-reached",
}

CHANGED = 1
VANISHED = 2
# The root bears the marker of a restore that was not finished (see `inplace`).
UNFINISHED = 3
FLAG_NAMES = {CHANGED: "changed", VANISHED: "vanished", UNFINISHED: "unfinished-restore"}

# Flags of the listing of a restore's target, never of a manifest: a file with names outside of it, and a directory
# or file on which something is mounted.
NAMED_ELSEWHERE = 16
MOUNT_POINT = 17

# Flags of the rows that a restore in place builds: how the top of a new part gets its name.  Nothing is there;
# a rename over what is no directory; an exchange, since a directory takes part.
CREATE = 32
REPLACE = 33
EXCHANGE = 34

# (name, array type code; "" for bytes).  A column's rows: entries, links, files with holes, blocks, and so on.
COLUMNS = (
    ("root", ""),
    ("paths", ""),
    ("kinds", ""),
    ("modes", "H"),
    ("mtimes_ns", "q"),
    ("uids", "I"),
    ("gids", "I"),
    ("sizes", "Q"),
    ("groups", "I"),
    ("texts", ""),
    ("originals", ""),
    ("counts", "I"),
    ("positions", "I"),
    ("digests", ""),
    ("excluded_paths", ""),
    ("excluded_kinds", ""),
    ("excluded_reasons", ""),
    ("details", ""),
    ("flag_paths", ""),
    ("flags", ""),
    ("orphans", ""),
)
PASSING = (
    ("ctimes_ns", "q"),
    ("inodes", "Q"),
    ("settled", ""),
    ("awaited", ""),
    ("claims", ""),
)
# A claim: the first bytes of a block's digest, and the first ones of its proof.  Nobody guesses 16 bytes.
PROOF_SIZE = 16
CLAIM_SIZE = 8 + PROOF_SIZE


def sort_key(path: bytes) -> bytes:
    """Returns a key that orders paths component by component (a NUL sorts before every byte of a name)."""
    return path.replace(b"/", b"\0")


def split_digests(joined: "bytes | bytearray") -> "Iterator[bytes]":
    """Yields each 32-byte digest of a joined column."""
    data = bytes(joined)
    return (data[at : at + 32] for at in range(0, len(data), 32))


def block_count(size: int) -> int:
    """Returns how many blocks a file of *size* bytes has."""
    return (size + BLOCK_MAX - 1) // BLOCK_MAX


def clamp_ns(time_ns: int) -> int:
    """Returns the nearest time that a column holds: years 1677 to 2262, while file systems know more."""
    return max(-(1 << 63), min(time_ns, (1 << 63) - 1))


class Root:
    """The root directory's own metadata."""

    __slots__ = ("mode", "mtime_ns", "uid", "gid")

    def __init__(self, mode: int, mtime_ns: int, uid: int, gid: int) -> None:
        self.mode = mode
        self.mtime_ns = clamp_ns(mtime_ns)
        self.uid = uid
        self.gid = gid


class Segment:
    """A part of a manifest, or all of it; the attributes are the columns.

    ``texts`` and ``originals`` have one item for each link, in row order; an original is empty where the
    text stands as it was found.  ``digests`` and ``orphans`` are joined 32-byte digests; orphans are blocks
    that were sent but belong to no entry, because their file changed while it was read.  ``awaited`` are paths of
    files whose rows are still to come, each followed by a NUL.
    """

    def __init__(self) -> None:
        self.root: "Root | None" = None
        self.paths: "list[bytes]" = []
        self.kinds = bytearray()
        self.modes = array("H")
        self.mtimes_ns = array("q")
        self.uids = array("I")
        self.gids = array("I")
        self.sizes = array("Q")
        self.groups = array("I")
        self.texts: "list[bytes]" = []
        self.originals: "list[bytes]" = []
        self.counts = array("I")
        self.positions = array("I")
        self.digests = bytearray()
        self.excluded_paths: "list[bytes]" = []
        self.excluded_kinds = bytearray()
        self.excluded_reasons = bytearray()
        self.details: "list[bytes]" = []
        self.flag_paths: "list[bytes]" = []
        self.flags = bytearray()
        self.orphans = bytearray()
        self.ctimes_ns = array("q")
        self.inodes = array("Q")
        self.settled = bytearray()
        self.awaited = bytearray()
        self.claims = bytearray()
        self.names_size = 0

    def __len__(self) -> int:
        return len(self.paths)

    def add(self, path: bytes, kind: int, mode: int, mtime_ns: int, uid: int, gid: int) -> None:
        """Adds an entry; for a file or a link, `add_file` or `add_link` adds the rest."""
        self.paths.append(path)
        self.kinds.append(kind)
        self.modes.append(mode)
        try:
            self.mtimes_ns.append(mtime_ns)
        except OverflowError:
            self.mtimes_ns.append(clamp_ns(mtime_ns))
        self.uids.append(uid)
        self.gids.append(gid)
        self.names_size += len(path) + 1
        if kind == DIRECTORY:
            self._no_content()

    def _no_content(self) -> None:
        self.sizes.append(0)
        self.groups.append(0)
        self.counts.append(0)

    def add_link(
        self, path: bytes, mode: int, mtime_ns: int, uid: int, gid: int, text: bytes, original: bytes = b""
    ) -> None:
        self.add(path, LINK, mode, mtime_ns, uid, gid)
        self._no_content()
        self.texts.append(text)
        self.originals.append(original)
        self.names_size += len(text) + len(original) + 2

    def add_file(
        self,
        path: bytes,
        mode: int,
        mtime_ns: int,
        uid: int,
        gid: int,
        size: int,
        group: int = 0,
        digests: "list[bytes] | tuple[()]" = (),
        positions: "list[int] | tuple[()]" = (),
    ) -> None:
        """Adds a file; *positions* only where the file has holes (see the module)."""
        self.add(path, FILE, mode, mtime_ns, uid, gid)
        self.sizes.append(size)
        self.groups.append(group)
        self.counts.append(len(digests))
        self.positions.extend(positions)
        for digest in digests:
            self.digests += digest

    def stamp(self, ctime_ns: int, inode: int, settled: bool) -> None:
        """Adds the stamp of the file that was added last."""
        self.ctimes_ns.append(ctime_ns)
        self.inodes.append(inode)
        self.settled.append(settled)

    def exclude(self, path: bytes, kind: int, reason: int, detail: bytes = b"") -> None:
        self.excluded_paths.append(path)
        self.excluded_kinds.append(kind)
        self.excluded_reasons.append(reason)
        self.details.append(detail.replace(b"\0", b""))
        self.names_size += len(path) + len(detail) + 2

    def flag(self, path: bytes, flag: int) -> None:
        self.flag_paths.append(path)
        self.flags.append(flag)
        self.names_size += len(path) + 1

    def size_estimate(self) -> int:
        """Returns about how many bytes the encoding has."""
        size = self.names_size + 43 * len(self.paths) + len(self.digests) + 4 * len(self.positions) + len(self.orphans)
        return size + 17 * len(self.inodes) + len(self.awaited) + len(self.claims)

    def extend(self, other: "Segment") -> None:
        """Appends all rows of *other*."""
        if other.root is not None:
            self.root = other.root
        for name, _ in COLUMNS[1:] + PASSING:
            getattr(self, name).extend(getattr(other, name))
        self.names_size += other.names_size

    def contents(self) -> "Iterator[tuple[int, int, int]]":
        """Yields (first digest, first position or -1, blocks) for each row, as indices into those columns."""
        digest = position = 0
        for size, count in zip(self.sizes, self.counts):
            sparse = count and count * BLOCK_MAX < size
            yield digest, position if sparse else -1, count
            digest += count
            if sparse:
                position += count

    def data_size(self) -> int:
        """Returns about how many bytes the files take: their sizes, but only data blocks where there are holes."""
        return sum(min(size, count * BLOCK_MAX) for size, count in zip(self.sizes, self.counts))

    def first_of_groups(self) -> "dict[int, int]":
        """Returns the row of the first name of each hard-link group, the one that carries the blocks."""
        firsts: "dict[int, int]" = {}
        for row, group in enumerate(self.groups):
            if group:
                firsts.setdefault(group, row)
        return firsts

    def sort(self) -> None:
        """Brings entries, excluded rows and flags into path order."""
        order = _order(self.paths)
        if order is not None:
            self._keep_entries(order)
        order = _order(self.excluded_paths)
        if order is not None:
            self._keep(order, "excluded_paths", "excluded_kinds", "excluded_reasons", "details")
        order = _order(self.flag_paths)
        if order is not None:
            self._keep(order, "flag_paths", "flags")

    def count_names(self) -> None:
        """Sets ``names_size`` after columns were set as a whole."""
        columns = self.paths, self.texts, self.originals, self.excluded_paths, self.details, self.flag_paths
        self.names_size = sum(sum(map(len, column)) + len(column) for column in columns)

    def _keep(self, rows: "Sequence[int]", *names: str) -> None:
        """Replaces each column of these *names* by its items in *rows*."""
        for name in names:
            column = getattr(self, name)
            items = (column[row] for row in rows)
            setattr(self, name, array(column.typecode, items) if isinstance(column, array) else type(column)(items))

    def _keep_entries(self, rows: "list[int]") -> None:
        # Arrays: a list of a million numbers takes as much memory as the table.
        starts, places = array("Q"), array("Q")
        for digest, position, _ in self.contents():
            starts.append(digest)
            places.append(position + 1)
        digests, positions = bytearray(), array("I")
        for row in rows:
            count = self.counts[row]
            if count:
                digests += self.digests[32 * starts[row] : 32 * (starts[row] + count)]
                if places[row]:
                    positions += self.positions[places[row] - 1 : places[row] - 1 + count]
        self.digests, self.positions = digests, positions
        self._keep(_of_kind(self.kinds, LINK, rows), "texts", "originals")
        if self.inodes:
            self._keep(_of_kind(self.kinds, FILE, rows), "ctimes_ns", "inodes", "settled")
        self._keep(rows, "paths", "kinds", "modes", "mtimes_ns", "uids", "gids", "sizes", "groups", "counts")


def _order(paths: "list[bytes]") -> "list[int] | None":
    keys = [sort_key(path) for path in paths]
    if all(map(le, keys, islice(keys, 1, None))):
        return None
    return sorted(range(len(keys)), key=keys.__getitem__)


def _of_kind(kinds: bytearray, kind: int, rows: "list[int]") -> "array[int]":
    """Returns for each of *rows* that is of this kind, in turn, how many rows of the kind are before it."""
    before, count = array("I"), 0
    for other in kinds:
        before.append(count)
        count += other == kind
    return array("I", (before[row] for row in rows if kinds[row] == kind))


def encode(segment: Segment) -> bytes:
    """Returns the encoding of *segment*."""
    passes = any(len(getattr(segment, name)) for name, _ in PASSING)
    # Not a list of columns, which would take their room once more when they are joined.
    out = io.BytesIO()
    out.write(bytes([VERSION_PASSING if passes else VERSION]))
    for rows in (segment.paths, segment.excluded_paths, segment.flag_paths):
        out.write(_u32(len(rows)))
    for name, code in COLUMNS + PASSING if passes else COLUMNS:
        column = getattr(segment, name)
        if name == "root":
            raw = b"" if column is None else _encode_root(column)
        elif code:
            if sys.byteorder == "big":
                column = array(code, column)
                column.byteswap()
            raw = column.tobytes()
        elif isinstance(column, list):
            # An empty name joins to nothing, so every name is followed by its NUL.
            raw = b"\0".join(column) + b"\0" if column else b""
        else:
            raw = bytes(column)
        out.write(_u32(len(raw)))
        out.write(raw)
    return out.getvalue()


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _encode_root(root: Root) -> bytes:
    return (
        root.mode.to_bytes(2, "little")
        + root.mtime_ns.to_bytes(8, "little", signed=True)
        + _u32(root.uid)
        + _u32(root.gid)
    )


def _decode_root(raw: bytes) -> "Root | None":
    if not raw:
        return None
    if len(raw) != 18:
        raise ValueError("the root's row has %d bytes" % len(raw))
    return Root(
        int.from_bytes(raw[:2], "little"),
        int.from_bytes(raw[2:10], "little", signed=True),
        int.from_bytes(raw[10:14], "little"),
        int.from_bytes(raw[14:], "little"),
    )


def decode(data: "bytes | bytearray | memoryview") -> Segment:
    """Returns the segment that *data* encodes.

    Raises ValueError unless every column has the length that the rows call for; what the values mean is
    judged elsewhere.
    """
    view = memoryview(data)
    if len(view) < 13 or view[0] not in (VERSION, VERSION_PASSING):
        raise ValueError("not a table of a version that is known")
    rows, excluded, flags = (int.from_bytes(view[at : at + 4], "little") for at in (1, 5, 9))
    segment = Segment()
    named = {"excluded_paths": excluded, "details": excluded, "flag_paths": flags}
    position = 13
    for name, code in COLUMNS + PASSING if view[0] == VERSION_PASSING else COLUMNS:
        if position + 4 > len(view):
            raise ValueError("the table is cut off")
        size = int.from_bytes(view[position : position + 4], "little")
        position += 4
        raw = view[position : position + size]
        position += size
        if len(raw) < size:
            raise ValueError("the table is cut off in its column %s" % name)
        setattr(segment, name, _decode_column(name, code, raw, named.get(name, rows)))
    if position != len(view):
        raise ValueError("bytes after the table")
    _check_lengths(segment, rows, excluded, flags)
    segment.count_names()
    return segment


def _decode_column(name: str, code: str, raw: memoryview, names_max: int) -> object:
    if name == "root":
        return _decode_root(bytes(raw))
    if code:
        column = array(code)
        if len(raw) % column.itemsize:
            raise ValueError("the column %s has %d bytes" % (name, len(raw)))
        column.frombytes(raw)
        if sys.byteorder == "big":
            column.byteswap()
        return column
    if name in ("paths", "texts", "originals", "excluded_paths", "details", "flag_paths"):
        if not raw:
            return []
        if raw[-1]:
            raise ValueError("the column %s does not end its last name" % name)
        joined = bytes(raw[:-1])
        # A list takes eight times the memory of empty names, so none is made for more of them than there are rows.
        if joined.count(0) >= names_max:
            raise ValueError("the column %s has over %d names" % (name, names_max))
        return joined.split(b"\0")
    return bytearray(raw)


def _check_lengths(segment: Segment, rows: int, excluded: int, flags: int) -> None:
    links = segment.kinds.count(LINK)
    if max(segment.kinds, default=0) > LINK:
        raise ValueError("an entry of unknown kind")
    blocks = sum(segment.counts)
    expected = {
        "paths": rows,
        "kinds": rows,
        "modes": rows,
        "mtimes_ns": rows,
        "uids": rows,
        "gids": rows,
        "sizes": rows,
        "groups": rows,
        "counts": rows,
        "texts": links,
        "originals": links,
        "digests": 32 * blocks,
        "excluded_paths": excluded,
        "excluded_kinds": excluded,
        "excluded_reasons": excluded,
        "details": excluded,
        "flag_paths": flags,
        "flags": flags,
    }
    for name, length in expected.items():
        if len(getattr(segment, name)) != length:
            raise ValueError("the column %s has %d items, not %d" % (name, len(getattr(segment, name)), length))
    sparse = sum(count for size, count in zip(segment.sizes, segment.counts) if count * BLOCK_MAX < size)
    if len(segment.positions) != sparse:
        raise ValueError("the column positions has %d items, not %d" % (len(segment.positions), sparse))
    if len(segment.orphans) % 32 or len(segment.claims) % CLAIM_SIZE:
        raise ValueError("the column orphans or claims has %d bytes" % len(segment.orphans or segment.claims))
    stamps = segment.kinds.count(FILE) if segment.inodes else 0
    if not len(segment.inodes) == len(segment.ctimes_ns) == len(segment.settled) == stamps:
        raise ValueError("the columns of stamps have %d items, not %d" % (len(segment.inodes), stamps))


assert SEGMENT_MAX < 1 << 32  # column lengths travel in four bytes
