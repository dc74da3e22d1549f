"""Mutators that know the formats: what they change stays whole around the change.

Bytes flipped at random seldom get past a digest, a length or a sort order.  A mutator takes an input of its target
apart, changes a part, and puts it together again with lengths, checksums and digests that fit.  For an input that
it cannot take apart it returns None, and the fuzzer's own mutation serves.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgpack  # type: ignore[import-untyped]
import zstandard
from fuzz.archive_mutators import archive
from fuzz.changes import LARGE_NUMBERS, NAMES, NUMBERS, Mutate, change_line, change_value, shuffle_items
from fuzz.manifest_mutators import gathering, segment
from fuzz.stream_mutators import content, message, packed, reader, run, session, unzstd

from sandlift.errors import SandliftError
from sandlift.store import records

Mutator = Callable[[bytes, Random, Mutate], bytes | None]

# --- rules --------------------------------------------------------------------------------------------------------

_PIECES = (b"*", b"**", b"/", b"/**/", b"**/", b"/**", b"?", b"[a-c]", b"[!a]", b"[[:alpha:]]", b"[", b"]", b"\\", b"!")
_WORDS = (b"a", b"b", b"aa", b"a.b", b"d", b"d/a", b"d/b/a", b"aaaaaaa", b"A", b"-")


def rules(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    parts = data.split(b"\xfe")
    which = random.choices(range(min(3, len(parts))), weights=(6, 1, 4)[: min(3, len(parts))])[0]
    lines = parts[which].split(b"\n")
    if random.randrange(4) == 0:
        shuffle_items(lines, random)
    else:
        at = random.randrange(len(lines))
        lines[at] = change_line(lines[at], _PIECES + _WORDS if which == 0 else (*_WORDS, b"/", b".."), random)
    parts[which] = b"\n".join(lines)
    return b"\xfe".join(parts)


def link(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    setting = data[:1] if random.randrange(8) else random.choice((b"0", b"1", b"2", b"3"))
    lines = [line for line in data[1:].split(b"\n") if line]
    pieces = (*NAMES[:9], b"/", b"/", b"../", b"../..", b"\0", b"/w/", b"/srv/w")
    if not lines or random.randrange(4) == 0:
        names = (b"a", b"b", b"d", b"d/a", b"d/b", b"d/l", b"l", b"d/d/a", b"d/d/l")
        text = b"/".join(random.choices((b"..", b"a", b"b", b"d", b"l", b".", b""), k=random.randrange(1, 6)))
        text = text if random.randrange(6) else b"/" + text
        lines.append(random.choice(names) + b"\0" + text)
    elif random.randrange(3) == 0:
        shuffle_items(lines, random)
    else:
        at = random.randrange(len(lines))
        lines[at] = change_line(lines[at], pieces, random)
    return setting + b"\n".join(lines[:40])


# --- the store ----------------------------------------------------------------------------------------------------


def pack(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    """Changes a frame, or what the seek table says of it; the table's own lengths fit mostly."""
    if len(data) < 17:
        return None
    count = int.from_bytes(data[-9:-5], "little")
    start = len(data) - 17 - 8 * count
    if start < 0:
        return None
    frames, position = [], 0
    for at in range(start + 8, len(data) - 9, 8):
        size = int.from_bytes(data[at : at + 4], "little")
        frames.append((data[position : position + size], int.from_bytes(data[at + 4 : at + 8], "little")))
        position += size
    if not frames or random.randrange(3) == 0:
        shuffle_items(frames, random)
    else:
        at = random.randrange(len(frames))
        frame, decoded = frames[at]
        if random.randrange(3) == 0:
            frames[at] = frame, random.choice(NUMBERS + LARGE_NUMBERS[:2])
        else:
            frames[at] = _change_frame(frame, random, mutate), decoded
    sizes = b"".join(len(frame).to_bytes(4, "little") + size.to_bytes(4, "little") for frame, size in frames)
    length = len(sizes) + 9 if random.randrange(8) else random.choice(NUMBERS)
    footer = len(frames).to_bytes(4, "little") + data[-5:]
    body = b"".join(frame for frame, _ in frames)
    return body + b"\x5e\x2a\x4d\x18" + length.to_bytes(4, "little") + sizes + footer


def _change_frame(frame: bytes, random: Random, mutate: Mutate) -> bytes:
    if frame[:4] != b"\x53\x2a\x4d\x18" or random.randrange(4) == 0:
        return mutate(frame)
    record = ref(frame[8:], random, mutate) or mutate(frame[8:])
    return frame[:4] + len(record).to_bytes(4, "little") + record


def snapshot(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    try:
        decoded = unzstd(data)
        value = msgpack.unpackb(decoded, raw=False, unicode_errors="surrogateescape")
        changed = change_value(value, random, mutate)
        written = msgpack.packb(changed, use_bin_type=True, unicode_errors="surrogateescape")
    except (zstandard.ZstdError, msgpack.UnpackException, ValueError, TypeError, OverflowError):
        return None
    return zstandard.ZstdCompressor(level=1, write_checksum=random.randrange(4) != 0).compress(written)


def ref(data: bytes, random: Random, mutate: Mutate) -> bytes | None:
    try:
        changed = change_value(records.decode(data, "an input"), random, mutate)
        return records.encode(changed) if isinstance(changed, dict) else None
    except (SandliftError, ValueError, TypeError, OverflowError):
        return None


MUTATORS: dict[str, Mutator] = {
    "reader": reader,
    "session": session,
    "message": message,
    "run": run,
    "content": content,
    "packed": packed,
    "segment": segment,
    "gathering": gathering,
    "listing": gathering,
    "link": link,
    "rules": rules,
    "pack": pack,
    "snapshot": snapshot,
    "ref": ref,
    "archive": archive,
}
