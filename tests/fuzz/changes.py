"""Small changes that the mutators of all formats share."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from random import Random
from typing import Any

Mutate = Callable[[bytes], bytes]
"""The fuzzer's own mutation of bytes."""

NAMES = (b"a", b"b", b"d", b"l", b"m", b"..", b".", b"", b"w", b"a b", b"\xff", b"n" * 90, b"\n", b"A")
NUMBERS = (0, 1, 2, 7, 31, 127, 128, 255, 256, 512, 0o7777, 0o10000, 65535, (1 << 20) - 1, 1 << 20, (1 << 20) + 1)
LARGE_NUMBERS = (1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)


def shuffle_items(items: MutableSequence[Any], random: Random) -> None:
    """Drops, repeats, moves or swaps items."""
    if not items:
        return
    at, other = random.randrange(len(items)), random.randrange(len(items))
    what = random.randrange(4)
    if what == 0:
        del items[at]
    elif what == 1:
        items.insert(other, items[at])
    elif what == 2:
        items.insert(other, items.pop(at))
    else:
        items[at], items[other] = items[other], items[at]


def change_value(value: object, random: Random, mutate: Mutate) -> object:
    """Changes one thing in a value of msgpack's kinds."""
    what = random.randrange(8)
    if isinstance(value, dict) and value and what < 7:
        key = random.choice(list(value))
        if what == 0:
            return {name: item for name, item in value.items() if name != key}
        if what == 1:
            return {**value, random.choice(("format", "sealed", "pruned", "x")): random.choice((None, 1, 2, "t"))}
        return {**value, key: change_value(value[key], random, mutate)}
    if isinstance(value, list) and value and what < 7:
        items = list(value)
        if what < 3:
            shuffle_items(items, random)
        else:
            at = random.randrange(len(items))
            items[at] = change_value(items[at], random, mutate)
        return items
    if isinstance(value, bytes) and what < 6:
        return mutate(value)
    if isinstance(value, str) and what < 6:
        return mutate(value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    return random.choice((None, True, False, b"", "", [], {}, -1, *NUMBERS, *LARGE_NUMBERS, [value], {"k": value}))


def change_line(line: bytes, pieces: tuple[bytes, ...], random: Random) -> bytes:
    """Puts a piece into a line, or in place of a few bytes."""
    at = random.randrange(len(line) + 1)
    stop = at if random.randrange(2) else min(len(line), at + random.randrange(4))
    return line[:at] + random.choice(pieces) + line[stop:]
