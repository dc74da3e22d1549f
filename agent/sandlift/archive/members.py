"""The members of a foreign tar, one after the other: names, kinds and sizes that every reader would agree on.

Extension headers bind to the one real member right after them: at most one pax header, or at most one of each of GNU's
two, and never both styles.  A chain, a conflict, or one that nothing follows is refused, and so is data on a member
that has none.  The archive ends with two blocks of zeros, and only zeros follow them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from sandlift.archive import headers, sparse
from sandlift.archive.bounds import ArchiveBounds, over, refusal
from sandlift.archive.compression import Plain, is_compressed, refuse_other_formats
from sandlift.archive.extensions import ID_MAX, Extension, check_global, read_extension
from sandlift.archive.headers import BLOCK, ZERO_BLOCK, Header, HeaderError
from sandlift.errors import UnsafeArchive
from sandlift_helper import table
from sandlift_helper.table import clamp_ns

HARD_LINK: Final = -1
"""The kind of a member that is a further name of an earlier one; others have a kind of `table`."""

_OCTAL_SIZE_MAX = 0o77777777777
_NAME_FIELD = 100
_KINDS = {
    headers.DIRECTORY: table.DIRECTORY,
    headers.SYMBOLIC_LINK: table.LINK,
    headers.HARD_LINK: HARD_LINK,
    headers.FIFO: table.FIFO,
    headers.CHAR_DEVICE: table.CHAR_DEVICE,
    headers.BLOCK_DEVICE: table.BLOCK_DEVICE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One real member, extension headers applied."""

    name: bytes
    """As it is spelled."""
    kind: int
    mode: int
    mtime_ns: int
    uid: int
    gid: int
    link: bytes = b""
    """A symbolic link's text, or the name of a hard link's other member as it is spelled."""
    size_bytes: int = 0
    """A file's apparent size."""
    regions: tuple[sparse.Region, ...] | None = None
    """The pieces that the data are, for a sparse file."""
    device: tuple[int, int] = (0, 0)


class Members:
    """Reads an archive's members in order; the data of each must be read before the next is asked for.

    ``unkept`` names the families of attributes that members had and a snapshot has not, with how many had them.
    """

    def __init__(self, plain: Plain, bounds: ArchiveBounds) -> None:
        self.unkept: dict[str, int] = {}
        self._plain = plain
        self._bounds = bounds
        self._metadata_bytes = 0
        self._member_metadata_bytes = 0
        self._name = b""
        self._at = 0
        self._left_bytes = 0
        self._data_bytes = 0

    def check_first(self) -> None:
        """Raises UnsafeArchive unless the archive begins with a header."""
        first = self._plain.peek(BLOCK)
        if not first:
            raise UnsafeArchive("the archive is empty", hint="a tar of nothing has an end marker at least")
        if len(first) == BLOCK and (first == ZERO_BLOCK or headers.looks_like_header(first)):
            return
        refuse_other_formats(first)
        if is_compressed(first):
            raise UnsafeArchive(
                "the archive is compressed twice, and one layer is taken off", hint="decompress it once before"
            )
        self._refuse("it does not begin with a tar header, or the header is damaged")

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
            if self._left_bytes:
                raise ValueError(f"{self._left_bytes} bytes of a member's data were not read")
            self._skip(-self._data_bytes % BLOCK)
        self._check_end()

    def read_into(self, target: memoryview) -> None:
        """Fills *target* with the next of the member's data.  Raises UnsafeArchive when the archive is cut off."""
        if len(target) > self._left_bytes:
            raise ValueError("more data are read than the member has")
        if self._plain.read_into(target) < len(target):
            self._refuse("it is cut off in a member's data")
        self._left_bytes -= len(target)

    def _next(self) -> Member | None:
        """Returns the next member, or None at the end marker's first block."""
        extension: Extension | None = None
        gnu: dict[bytes, bytes] = {}
        has_global = False
        self._name, self._member_metadata_bytes = b"", 0
        while True:
            self._at = self._plain.position
            block = self._plain.read(BLOCK)
            if not block:
                self._refuse("it has no end marker, so it may be cut off")
            if len(block) < BLOCK:
                self._refuse("it is cut off in a header")
            if block == ZERO_BLOCK:
                if extension or gnu or has_global:
                    self._refuse("an extension header has no member after it")
                return None
            try:
                header = headers.parse_header(block)
                if header.kind not in headers.EXTENSIONS:
                    self._name = header.name
                    return self._member(header, block, extension, gnu)
                if header.kind == headers.PAX_GLOBAL and (extension or gnu):
                    raise HeaderError("a global header stands between an extension header and its member")
                if extension or header.kind in gnu or (gnu and header.kind == headers.PAX):
                    raise HeaderError("a member has several extension headers, and readers differ about which counts")
                data = self._extension_data(header)
                if header.kind == headers.PAX:
                    extension = read_extension(data)
                    self._name = extension.path or b""
                elif header.kind == headers.PAX_GLOBAL:
                    check_global(data)
                    has_global = True
                    self._member_metadata_bytes = 0
                else:
                    gnu[header.kind] = _gnu_text(data)
            except HeaderError as error:
                self._refuse(str(error))

    def _extension_data(self, header: Header) -> bytes:
        if header.kind in (headers.PAX, headers.PAX_GLOBAL) and header.style != "ustar":
            raise HeaderError("a pax header is no ustar header")
        size = header.size_bytes
        self._count_metadata(size)
        if not size:
            raise HeaderError("an extension header is empty")
        data = self._plain.read(size)
        if len(data) < size:
            self._refuse("it is cut off in an extension header")
        padding = self._plain.read(-size % BLOCK)
        if len(padding) < -size % BLOCK:
            self._refuse("it is cut off in a member's padding")
        if padding.strip(b"\0"):
            # Python's tarfile takes what stands there for more of the name, or for more records.
            raise HeaderError("something follows an extension header's data, and some readers read it too")
        return data

    def _count_metadata(self, size: int) -> None:
        # Judged before a byte of it is read.
        self._member_metadata_bytes += size
        self._metadata_bytes += size
        bounds = self._bounds
        if self._member_metadata_bytes > bounds.member_metadata_bytes:
            raise over("member_metadata_bytes", bounds.member_metadata_bytes, self._member_metadata_bytes, self._name)
        if self._metadata_bytes > bounds.metadata_bytes:
            raise over("metadata_bytes", bounds.metadata_bytes, self._metadata_bytes, self._name)

    def _member(self, header: Header, block: bytes, stated: Extension | None, gnu: dict[bytes, bytes]) -> Member:
        extension = stated or Extension()
        if header.style == "v7" and (stated or gnu):
            raise HeaderError("an extension header stands before a member of a format that has none")
        name = extension.path if extension.path is not None else gnu.get(headers.GNU_NAME, header.name)
        self._name = name
        kind = _KINDS.get(header.kind, table.FILE)
        if header.kind == headers.OLD_FILE and header.style == "v7" and name.endswith(b"/"):
            # Before there was a type for directories, a slash said so.
            kind = table.DIRECTORY
        self._data_bytes = self._left_bytes = _size(header, extension)
        if self._data_bytes and kind != table.FILE:
            raise HeaderError(f"a member that can have no data has {self._data_bytes} bytes")
        size_bytes, regions = self._content(header, block, extension)
        if extension.sparse.get(b"name") is not None:
            is_cut = extension.path is None and len(header.name) == _NAME_FIELD
            sparse.check_carrier(name, extension.sparse[b"name"], is_cut=is_cut)
            self._name = name = extension.sparse[b"name"]
            if b"\0" in name:
                raise HeaderError("a sparse file's name holds a NUL")
        for family in extension.unkept:
            self.unkept[family] = self.unkept.get(family, 0) + 1
        return Member(
            name=name,
            kind=kind,
            mode=header.mode & 0o7777,
            mtime_ns=clamp_ns(header.mtime_s * 1_000_000_000) if extension.mtime_ns is None else extension.mtime_ns,
            uid=_identity(header.uid if extension.uid is None else extension.uid, "owner"),
            gid=_identity(header.gid if extension.gid is None else extension.gid, "group"),
            link=_link(header, extension, gnu),
            size_bytes=size_bytes,
            regions=regions,
            device=header.device,
        )

    def _content(
        self, header: Header, block: bytes, extension: Extension
    ) -> tuple[int, tuple[sparse.Region, ...] | None]:
        """Returns a file's apparent size, and its regions if it is sparse; a map before the data is read."""
        regions_max = self._bounds.sparse_regions
        if header.kind == headers.GNU_SPARSE:
            if header.style != "gnu" or extension.sparse:
                raise HeaderError("an old sparse file has another format's header")
            size_bytes, regions = sparse.read_old(block, self._read_block, regions_max)
        elif extension.sparse:
            if header.kind not in headers.FILE_KINDS:
                raise HeaderError("what is no file has a sparse file's records")
            size_bytes, regions, map_bytes = sparse.read_pax(extension.sparse, self._read_map_block, regions_max)
            if map_bytes > self._data_bytes:
                raise HeaderError("a sparse file's map is larger than its data")
        else:
            return self._data_bytes, None
        if len(regions) > regions_max:
            raise over("sparse_regions", regions_max, len(regions), self._name)
        sparse.check_regions(regions, size_bytes, self._left_bytes)
        return size_bytes, tuple(regions)

    def _read_block(self) -> bytes:
        block = self._plain.read(BLOCK)
        if len(block) < BLOCK:
            self._refuse("it is cut off in a list of regions")
        return block

    def _read_map_block(self) -> bytes:
        if self._left_bytes < BLOCK:
            raise HeaderError("a sparse file's map is larger than its data")
        self._left_bytes -= BLOCK
        return self._read_block()

    def _skip(self, size: int) -> None:
        if len(self._plain.read(size)) < size:
            self._refuse("it is cut off in a member's padding")

    def _check_end(self) -> None:
        """Checks that the second half of the end marker is there, and that nothing but zeros follows."""
        self._name = b""
        if self._plain.read(BLOCK) != ZERO_BLOCK:
            self._refuse("its end marker is a single block of zeros, which readers treat in different ways")
        tail_bytes = 0
        while piece := self._plain.read(64 << 10):
            tail_bytes += len(piece)
            if tail_bytes > self._bounds.tail_bytes:
                raise over("tail_bytes", self._bounds.tail_bytes, tail_bytes)
            if piece.strip(b"\0"):
                self._refuse("something follows its end marker: another archive, or other bytes")
        if tail_bytes % BLOCK:
            self._refuse("it does not end with a whole block")

    def _refuse(self, why: str) -> NoReturn:
        """Raises UnsafeArchive for what was met at the member that is being read."""
        raise refusal(why, self._name, offset=self._at)


def _size(header: Header, extension: Extension) -> int:
    """Returns the bytes of data that follow.

    Where a pax header states the size too, the header's own must be the same, or 0 where it cannot hold so much: GNU
    tar and Python write 0 then, bsdtar the same number.  Everything else is how one reader is led past a member that
    another one sees (CVE-2025-62518).
    """
    stated = extension.size_bytes
    if stated is None or stated == header.size_bytes:
        return header.size_bytes
    if header.size_bytes or stated <= _OCTAL_SIZE_MAX:
        raise HeaderError(f"its pax header says {stated} bytes, its own {header.size_bytes}")
    return stated


def _identity(number: int, name: str) -> int:
    if number > ID_MAX:
        raise HeaderError(f"the {name} is {number}, which is out of range")
    return number


def _link(header: Header, extension: Extension, gnu: dict[bytes, bytes]) -> bytes:
    """Returns the link text; only a link may have one."""
    text = extension.link if extension.link is not None else gnu.get(headers.GNU_LINK, header.link)
    if header.kind not in headers.LINK_KINDS:
        if text:
            raise HeaderError("what is no link has a link's text")
    elif not text:
        raise HeaderError("a link has no text")
    return text


def _gnu_text(data: bytes) -> bytes:
    """Returns the name or text of GNU's L or K header: one NUL at the end is no part of it."""
    text = data[:-1] if data.endswith(b"\0") else data
    if not text or b"\0" in text:
        raise HeaderError("a long name is empty, or holds a NUL")
    return text
