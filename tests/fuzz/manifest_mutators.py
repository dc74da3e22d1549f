"""Mutators of the manifest's table: rows with all that belongs to them, or whole columns."""

from __future__ import annotations

from copy import copy
from random import Random

from fuzz.changes import LARGE_NUMBERS, NAMES, NUMBERS, Mutate, shuffle_items
from fuzz.manifest_targets import split_chunks

from sandlift_helper import table


class _Row:
    """An entry with all that belongs to it."""

    def __init__(self, rows: table.Segment, row: int, link: int, digest: int, position: int, count: int) -> None:
        self.path, self.kind = rows.paths[row], rows.kinds[row]
        self.mode, self.mtime_ns = rows.modes[row], rows.mtimes_ns[row]
        self.uid, self.gid, self.size, self.group = rows.uids[row], rows.gids[row], rows.sizes[row], rows.groups[row]
        self.digests = list(table.split_digests(rows.digests[32 * digest : 32 * (digest + count)]))
        self.positions = list(rows.positions[position : position + count]) if position >= 0 else []
        is_link = rows.kinds[row] == table.LINK
        self.text, self.original = (rows.texts[link], rows.originals[link]) if is_link else (b"a", b"")


def digest_of_size(size: int, random: Random) -> bytes:
    """A digest that says that a block of this size was sent (`fuzz.manifest_targets.sent_size`)."""
    return size.to_bytes(3, "little") + bytes((random.randrange(3),)) * 28 + b"\x01"


def _path(random: Random) -> bytes:
    return b"/".join(random.choices(NAMES, k=random.choice((1, 1, 2, 2, 3, 8))))


def _rename(path: bytes, random: Random) -> bytes:
    parent, slash, _ = path.rpartition(b"/")
    return parent + slash + random.choice(NAMES) if random.randrange(3) else _path(random)


def _change_row(row: _Row, random: Random, mutate: Mutate) -> None:
    what = random.randrange(8)
    if what == 0:
        row.path = _rename(row.path, random)
    elif what == 1:
        row.kind = random.randrange(4) if random.randrange(8) else random.choice((table.FIFO, 9, 255))
    elif what < 4:
        name = random.choice(("mode", "uid", "gid", "mtime_ns", "size", "group"))
        setattr(row, name, random.choice(NUMBERS if name in ("mode", "group") else NUMBERS + LARGE_NUMBERS[:2]))
        row.mode &= 0xFFFF
    elif row.kind == table.LINK:
        climb = b"../" * random.randrange(5)
        row.text = random.choice((_path(random), climb + _path(random), climb + row.text, mutate(row.text)))
        row.text = row.text.replace(b"\0", b"")
        row.original = random.choice((b"", b"/w/a", b"rel", row.original))
    elif row.kind == table.FILE:
        _change_content(row, random)
    else:
        row.kind, row.size, row.group, row.digests, row.positions = random.choice((0, 2)), 0, 0, [], []


def _change_content(row: _Row, random: Random) -> None:
    blocks = table.block_count(row.size)
    what = random.randrange(4)
    if what < 2 and len(row.positions) > 1:
        shuffle_items(row.positions, random)
    elif what == 0 and row.digests:
        shuffle_items(row.digests, random)
    elif what == 1 and row.positions:
        row.positions[random.randrange(len(row.positions))] = random.choice((0, blocks - 1, blocks, *NUMBERS))
    else:
        row.group = random.choice((0, 0, 1, 2))
        row.size = random.choice((0, 3, 1 << 20, (1 << 20) + 5, 3 << 20, 9 << 20))
        row.positions = [at for at in range(table.block_count(row.size)) if random.randrange(4)]
        row.digests = [digest_of_size(min(1 << 20, row.size - (at << 20)), random) for at in row.positions]


def _add_hard_link(rows: list[_Row], random: Random) -> None:
    """Another name for a file, behind it in the order of paths."""
    files = [row for row in rows if row.kind == table.FILE]
    if files:
        first = random.choice(files)
        first.group = first.group or random.randrange(1, 9)
        other = copy(first)
        other.path, other.digests, other.positions = first.path + b"~", [], []
        rows.append(other)


def _write_rows(rows: list[_Row], old: table.Segment) -> table.Segment:
    new = table.Segment()
    new.root = old.root
    for name in ("excluded_paths", "excluded_kinds", "excluded_reasons", "details", "flag_paths", "flags", "orphans"):
        setattr(new, name, getattr(old, name))
    for row in rows:
        new.paths.append(row.path)
        new.kinds.append(row.kind)
        new.modes.append(row.mode)
        new.mtimes_ns.append(row.mtime_ns)
        new.uids.append(row.uid & 0xFFFFFFFF)
        new.gids.append(row.gid & 0xFFFFFFFF)
        new.sizes.append(row.size)
        new.groups.append(row.group)
        new.counts.append(len(row.digests))
        new.digests += b"".join(row.digests)
        if row.digests and len(row.digests) < table.block_count(row.size):
            new.positions.extend((row.positions + [0] * len(row.digests))[: len(row.digests)])
        if row.kind == table.LINK:
            new.texts.append(row.text)
            new.originals.append(row.original)
    return new


def _change_notes(rows: table.Segment, random: Random) -> None:
    path = random.choice([*rows.paths, *rows.excluded_paths, b"x"])
    path = path if random.randrange(2) else _rename(path, random)
    if random.randrange(2):
        rows.exclude(path, random.randrange(9), random.choice([*table.REASON_NAMES, 0, 255]), random.choice(NAMES))
    else:
        rows.flag(path if random.randrange(8) else b"", random.randrange(1, 5))


def segment(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    """Changes rows, or one column; rows are mostly sorted again."""
    try:
        rows = table.decode(data)
    except ValueError:
        return None
    what = random.randrange(8)
    if what == 0:
        return _change_column(data, random, mutate)
    if what == 1:
        _change_notes(rows, random)
    elif what == 2 and random.randrange(2):
        rows.root = random.choice((None, rows.root, table.Root(random.choice(NUMBERS) & 0xFFFF, -1, 0, 1)))
    else:
        links = iter(range(len(rows.texts)))
        entries = [
            _Row(rows, row, next(links) if rows.kinds[row] == table.LINK else 0, *place)
            for row, place in enumerate(rows.contents())
        ]
        if what == 2 or not entries:
            shuffle_items(entries, random)
        elif what == 3:
            _add_hard_link(entries, random)
        if what > 2 and entries:
            weights = [
                1 + 4 * (row.kind == table.LINK) + 4 * (len(row.positions) > 1) + 4 * (row.group > 0) for row in entries
            ]
            _change_row(random.choices(entries, weights)[0], random, mutate)
        rows = _write_rows(entries, rows)
    if random.randrange(16):
        rows.sort()
    return table.encode(rows)


def _change_column(data: bytes, random: Random, mutate: Mutate) -> bytes:
    head, columns, position = data[:13], [], 13
    for _ in table.COLUMNS:
        size = int.from_bytes(data[position : position + 4], "little")
        columns.append(data[position + 4 : position + 4 + size])
        position += 4 + size
    at = random.randrange(len(columns))
    columns[at] = mutate(columns[at])
    return head + b"".join(len(column).to_bytes(4, "little") + column for column in columns)


def join_chunks(chunks: list[bytes], strays: bytes = b"") -> bytes:
    """The input of the target `gathering` for these segments."""
    rest = bytes(4) + strays if strays else b""
    return b"".join(len(chunk).to_bytes(4, "little") + chunk for chunk in chunks) + rest


def gathering(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    chunks, strays = split_chunks(data)
    what = random.randrange(10)
    if what == 0:
        shuffle_items(chunks, random)
    elif what == 1:
        strays = random.choice((b"", strays, strays + digest_of_size(7, random)))
    elif chunks:
        at = random.randrange(len(chunks))
        chunks[at] = segment(chunks[at], random, mutate) or mutate(chunks[at])
    return join_chunks(chunks, strays)
