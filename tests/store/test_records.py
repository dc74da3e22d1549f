"""Records: any damage is noticed, any newer format is named."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlift.errors import StoreDamaged, StoreNewer
from sandlift.store import records

SAMPLE = {"format": 1, "sealed": None, "text": "caf\udce9", "list": ["a", 1], "map": {"x": True}, "data": b"\xff"}


def test_a_record_comes_back_as_it_was() -> None:
    assert records.decode(records.encode(SAMPLE), "it") == SAMPLE


def test_a_record_is_a_msgpack_stream_of_map_and_digest() -> None:
    data = records.encode({"format": 1, "sealed": None})
    fields, digest = msgpack.Unpacker(None, raw=False), None
    fields.feed(data)
    assert fields.unpack() == {"format": 1, "sealed": None}
    digest = fields.unpack()
    assert digest == hashlib.sha256(data[:-34]).digest()


def test_every_flipped_bit_and_every_cut_is_damage() -> None:
    data = records.encode(SAMPLE)
    damaged = [data[:size] for size in range(len(data))] + [data + b"\0"]
    for index in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[index] ^= 1 << bit
            damaged.append(bytes(flipped))
    for wrong in damaged:
        with pytest.raises(StoreDamaged):
            records.decode(wrong, "it")


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_damage_and_nothing_else(body: bytes, is_proved: bool) -> None:
    data = body + b"\xc4\x20" + hashlib.sha256(body).digest() if is_proved else body
    try:
        fields = records.decode(data, "it")
    except StoreDamaged as error:
        assert "it" in error.message
    else:
        assert is_proved
        assert all(isinstance(name, str) for name in fields)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"format": 2, "sealed": None}, StoreNewer, "format 2"),
        ({"format": 10**12}, StoreNewer, "format 1000000000000"),
        ({"format": 1, "sealed": "age-1"}, StoreNewer, "sealed as 'age-1'"),
        ({"format": 1, "sealed": False}, StoreNewer, "sealed as False"),
        ({"format": 0, "sealed": None}, StoreDamaged, "no format number"),
        ({"format": True}, StoreDamaged, "no format number"),
        ({"format": "1"}, StoreDamaged, "no format number"),
        ({}, StoreDamaged, "no format number"),
    ],
)
def test_an_unknown_format_is_refused_by_name(fields: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        records.check_format(fields, "it")


def test_format_one_unsealed_is_read() -> None:
    records.check_format({"format": 1, "sealed": None}, "it")
    records.check_format({"sandlift-store": 1}, "it", field="sandlift-store")


@pytest.mark.parametrize(
    ("method", "right", "wrong"),
    [
        ("text", ["", "a"], [None, b"a", 1]),
        ("time", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456789Z"], ["2026-01-02 03:04:05Z", "", 1, "2026"]),
        ("count", [0, 1 << 60], [-1, True, 1.0, "1", None]),
        ("truth", [True, False], [0, 1, None]),
        ("text_map", [{}, {"a": "b"}], [None, [], {"a": 1}, {1: "a"}]),
        ("counts", [{}, {"a": 0}], [None, [], {"a": -1}, {"a": True}, {1: 1}]),
    ],
)
def test_a_field_has_one_type(method: str, right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        assert getattr(records.Fields({"it": value}, "x"), method)("it") == value
    for value in wrong:
        with pytest.raises(StoreDamaged, match="x has a wrong it"):
            getattr(records.Fields({"it": value}, "x"), method)("it")


def test_lists_and_digits() -> None:
    fields = records.Fields({"list": ["a", "b"], "mixed": ["a", 1], "hex": "00ff", "upper": "00FF"}, "x")
    assert fields.texts("list") == ("a", "b")
    assert fields.digits("hex", 4) == "00ff"
    for bad in (lambda: fields.texts("mixed"), lambda: fields.digits("hex", 6), lambda: fields.digits("upper", 4)):
        with pytest.raises(StoreDamaged):
            bad()
