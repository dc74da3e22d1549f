"""Sparse files of GNU tar: which pieces of a file an archive holds, in all four of its formats.

*old* (type ``S``: up to four regions in the header, 21 in each block after it), *0.0* (pairs of pax records), *0.1*
(one pax record) and *1.0* (a map of decimal lines before the data).  A region is an (offset, size) pair.  Regions must
rise, not overlap, reach the end of the file and not beyond, and together be as large as the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sandlift.archive.extensions import whole_number
from sandlift.archive.headers import BLOCK, HeaderError, read_number

Region = tuple[int, int]

_SLOT = 24
_CARRIER = b"GNUSparseFile."
_LINE_MAX = 20


def read_old(header: bytes, next_block: Callable[[], bytes], regions_max: int) -> tuple[int, list[Region]]:
    """Returns (size of the file, regions) of a type ``S`` header and the blocks after it.

    More than *regions_max* regions are not read on.  Raises HeaderError.
    """
    regions, is_open = _slots(header[386:482])
    is_extended = header[482:483]
    while is_extended != b"\0":
        if is_extended != b"\1" or not is_open:
            raise HeaderError("a sparse file's list of regions goes on after its end")
        if len(regions) > regions_max:
            break
        block = next_block()
        more, is_open = _slots(block[:504])
        regions += more
        is_extended = block[504:505]
    return read_number(header[483:495], "size"), regions


def _slots(table: bytes) -> tuple[list[Region], bool]:
    """Returns the regions of a table, and whether all its slots are used."""
    regions: list[Region] = []
    for at in range(0, len(table), _SLOT):
        slot = table[at : at + _SLOT]
        if not slot.strip(b"\0"):
            if table[at:].strip(b"\0"):
                raise HeaderError("a sparse file's list of regions has a gap")
            return regions, False
        regions.append((read_number(slot[:12], "offset"), read_number(slot[12:], "size")))
    return regions, True


def read_pax(
    sparse: Mapping[bytes, bytes], read_block: Callable[[], bytes], regions_max: int
) -> tuple[int, list[Region], int]:
    """Returns (size of the file, regions, bytes of the map before the data) of a pax sparse file.

    More than *regions_max* regions are not read on.  Raises HeaderError.
    """
    keys = frozenset(sparse)
    if b"major" in keys or b"minor" in keys:
        if keys != {b"major", b"minor", b"name", b"realsize"} or (sparse[b"major"], sparse[b"minor"]) != (b"1", b"0"):
            raise HeaderError("a sparse file is of no known version")
        regions, map_bytes = _read_map(read_block, regions_max)
        return whole_number(sparse[b"realsize"], "size"), regions, map_bytes
    if not {b"size", b"numblocks", b"map"} <= keys <= {b"size", b"numblocks", b"map", b"name"}:
        raise HeaderError("a sparse file's records do not fit together")
    numbers = sparse[b"map"].split(b",")
    if len(numbers) % 2 or len(numbers) // 2 != whole_number(sparse[b"numblocks"], "number of regions"):
        raise HeaderError("a sparse file has another number of regions than it says")
    return whole_number(sparse[b"size"], "size"), _pairs(numbers), 0


def _read_map(read_block: Callable[[], bytes], regions_max: int) -> tuple[list[Region], int]:
    """Reads the map of format 1.0: the number of regions, then offset and size of each, a number a line."""
    rest, read_bytes = b"", 0
    numbers: list[bytes] = []
    wanted = 1
    while len(numbers) < wanted:
        line, newline, after = rest.partition(b"\n")
        if not newline:
            if len(rest) > _LINE_MAX:
                raise HeaderError("a sparse file's map is no list of numbers")
            rest += read_block()
            read_bytes += BLOCK
            continue
        numbers.append(line)
        rest = after
        if len(numbers) == 1:
            # One region more than is allowed tells the caller enough.
            wanted += 2 * min(whole_number(line, "number of regions"), regions_max + 1)
    return _pairs(numbers[1:]), read_bytes


def _pairs(numbers: list[bytes]) -> list[Region]:
    values = [whole_number(number, "offset or size") for number in numbers]
    return list(zip(values[::2], values[1::2], strict=True))


def check_regions(regions: Iterable[Region], size_bytes: int, data_bytes: int) -> None:
    """Raises HeaderError unless the regions are those of a file of *size_bytes* with so much data."""
    end = total = 0
    for offset, length in regions:
        if offset < end or offset + length > size_bytes:
            raise HeaderError("a sparse file's regions overlap, fall back, or lie beyond its end")
        end = offset + length
        total += length
    if total != data_bytes:
        raise HeaderError(f"a sparse file's regions have {total} bytes, its data {data_bytes}")
    if end != size_bytes:
        # Writers end with an empty region there; without it GNU tar makes a shorter file than others.
        raise HeaderError("a sparse file's regions do not reach its end")


def check_carrier(carrier: bytes, name: bytes, *, is_cut: bool) -> None:
    """Raises HeaderError unless *carrier* is the name under which a reader that knows no sparse files sees *name*.

    That is the file's own name, or with a component ``GNUSparseFile.<number>`` before the last; GNU tar cuts it off
    where a header's field ends (*is_cut*), and a leading ``./`` may come or go.  With any other, two readers would
    make two files.
    """
    seen, wanted = _undotted(carrier), _undotted(name)
    directory, slash, base = wanted.rpartition(b"/")
    before = directory + slash + _CARRIER
    number, slash, rest = seen.removeprefix(before).partition(b"/")
    if is_cut:
        is_carrier = before.startswith(seen) or (seen.startswith(before) and number.isdigit() and base.startswith(rest))
    else:
        is_carrier = seen.startswith(before) and number.isdigit() and rest == base
    if not is_carrier and seen != wanted:
        raise HeaderError("a sparse file's member does not bear the file's name")


def _undotted(name: bytes) -> bytes:
    return name.removeprefix(b"./")
