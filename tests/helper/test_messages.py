"""The small msgpack of the helper, against the real one."""

from __future__ import annotations

import tracemalloc

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlift_helper import messages

# Text may hold any byte that is no UTF-8, as the operating system's own text does.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.binary(max_size=8).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=10,
)
maps = st.dictionaries(texts, values, max_size=5)


def packb(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return packed


def unpackb(data: bytes) -> object:
    return msgpack.unpackb(data, unicode_errors="surrogateescape")


@given(maps)
def test_it_reads_itself(message: dict[str, object]) -> None:
    assert messages.decode(messages.encode(message)) == message


@given(maps)
def test_msgpack_reads_what_it_writes(message: dict[str, object]) -> None:
    assert unpackb(messages.encode(message)) == message


@given(maps)
def test_it_reads_what_msgpack_writes(message: dict[str, object]) -> None:
    assert messages.decode(packb(message)) == message


@pytest.mark.parametrize("number", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_numbers_at_the_edges(number: int) -> None:
    for value in (number, -number if number <= 2**63 else 0, -1 - min(number, 2**63 - 1)):
        for data in (messages.encode({"n": value}), packb({"n": value})):
            assert messages.decode(data) == unpackb(data) == {"n": value}


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_lengths_at_the_edges(size: int) -> None:
    message = {
        "text": "x" * size,
        "bytes": b"y" * size,
        "list": [None] * size,
        "map": {str(number): None for number in range(size)},
    }
    data = messages.encode(message)
    assert messages.decode(data) == unpackb(data) == message
    assert messages.decode(packb(message)) == message


def test_every_integer_form_is_read() -> None:
    forms = [b"\x05", b"\xcc\x05", b"\xcd\0\x05", b"\xce\0\0\0\x05", b"\xcf" + bytes(7) + b"\x05"]
    forms += [b"\xd0\x05", b"\xd1\0\x05", b"\xd2\0\0\0\x05", b"\xd3" + bytes(7) + b"\x05"]
    for form in forms:
        assert messages.decode(b"\x81\xa1n" + form) == {"n": 5}
    assert messages.decode(b"\x81\xa1n\xd0\xfb") == messages.decode(b"\x81\xa1n\xfb") == {"n": -5}


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 1 << 200])
def test_numbers_beyond_are_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        messages.encode({"n": value})


@pytest.mark.parametrize(
    "value", [1.5, {1, 2}, object(), 1j, range(3), Exception], ids=lambda value: type(value).__name__
)
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        messages.encode({"n": value})


def nested(depth: int) -> dict[str, object]:
    """A map with lists in it, the innermost at *depth*."""
    inner: object = None
    for _ in range(depth - 1):
        inner = [inner]
    return {"n": inner}


def test_nesting_has_the_same_bound_both_ways() -> None:
    deepest = nested(messages.DEPTH_MAX)
    assert messages.decode(messages.encode(deepest)) == deepest
    deeper = nested(messages.DEPTH_MAX + 1)
    with pytest.raises(TypeError, match="nested"):
        messages.encode(deeper)
    with pytest.raises(ValueError, match="nested"):
        messages.decode(packb(deeper))


REFUSED = {
    "nothing": b"",
    "no map": b"\x90",
    "a number": b"\x05",
    "bytes after it": b"\x80\x00",
    "cut off in a text": b"\x81\xa5key",
    "cut off before a value": b"\x81\xa1k",
    "cut off in a number": b"\x81\xa1k\xcf\0\0",
    "a key that is a number": b"\x81\x01\x01",
    "a key that is bytes": b"\x81\xc4\x01k\x01",
    "a key that is a list": b"\x81\x90\x01",
    "a key twice": b"\x82\xa1k\x01\xa1k\x02",
    "a key twice further down": b"\x81\xa1m\x82\xa1k\x01\xa1k\x02",
    "never used": b"\x81\xa1k\xc1",
    "a float": b"\x81\xa1k\xcb" + bytes(8),
    "an extension": b"\x81\xa1k\xd4\x01\x01",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "a list of four billion": b"\x81\xa1k\xdd\xff\xff\xff\xff",
    "a text of four billion": b"\x81\xa1k\xdb\xff\xff\xff\xff",
    "bytes of four billion": b"\x81\xa1k\xc6\xff\xff\xff\xff",
    "nested without end": b"\x81\xa1k" + b"\x91" * 100_000,
    "nested maps without end": b"\x81\xa1k" * 100_000,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_refused(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            messages.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + 65536
    finally:
        tracemalloc.stop()


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=120)
    | st.tuples(maps.map(packb), st.integers(0), st.integers(0, 255)).map(
        lambda made: made[0][: (at := made[1] % len(made[0]))] + bytes([made[2]]) + made[0][at + 1 :]
    )
)
def test_arbitrary_bytes_are_a_map_or_refused(data: bytes) -> None:
    try:
        found = messages.decode(data)
    except ValueError:
        return
    # msgpack reads the same, where it reads this at all; its values of other kinds are refused above.
    assert unpackb(data) == found
    assert messages.decode(messages.encode(found)) == found


def test_any_kind_of_buffer() -> None:
    data = messages.encode({"k": [b"v", "t"]})
    for buffer in (data, bytearray(data), memoryview(data)):
        assert messages.decode(buffer) == {"k": [b"v", "t"]}
