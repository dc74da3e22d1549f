"""What may be said about compression, and what becomes of it in a request."""

from __future__ import annotations

import pytest

from sandlift.codecs import codec_fields
from sandlift.errors import UsageError


def test_left_to_itself_zstd_comes_first_and_a_dear_link_never_measures() -> None:
    assert codec_fields("auto", None, "cheap") == {"codecs": ["zstd", "none", "zlib"]}
    assert codec_fields("auto", None, "dear") == {"codecs": ["zstd", "zlib", "none"]}


@pytest.mark.parametrize("cost", ["cheap", "dear"])
@pytest.mark.parametrize("name", ["zstd", "zlib", "none"])
def test_a_name_stands_alone(name: str, cost: str) -> None:
    assert codec_fields(name, None, cost) == {"codecs": [name]}  # type: ignore[arg-type]


@pytest.mark.parametrize(("codec", "level"), [("auto", 1), ("auto", 22), ("zstd", 19), ("zlib", 9)])
def test_a_level(codec: str, level: int) -> None:
    assert codec_fields(codec, level, "cheap")["level"] == level  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("codec", "level"),
    [("auto", 0), ("auto", 23), ("zstd", -5), ("zlib", 10), ("none", 1), ("zstd", True), ("zstd", "3")],
)
def test_a_level_that_there_is_not(codec: str, level: int) -> None:
    with pytest.raises(UsageError, match=f"the codec {codec} has no level") as caught:
        codec_fields(codec, level, "cheap")  # type: ignore[arg-type]
    assert "levels are 1 to 22, of zlib to 9" in caught.value.hint


def test_an_unknown_codec() -> None:
    with pytest.raises(UsageError, match="no codec 'lz4'"):
        codec_fields("lz4", None, "cheap")  # type: ignore[arg-type]
