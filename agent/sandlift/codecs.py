"""What the user may say about compression on the wire, as fields of a request."""

from __future__ import annotations

from typing import Final, Literal, get_args

from sandlift.errors import UsageError
from sandlift.model import Codec

CODECS: Final[tuple[Codec, ...]] = get_args(Codec)
LEVELS: Final = (1, 22)
"""The least and the most; the most that zstd knows."""
ZLIB_LEVEL_MAX: Final = 9

# The helper takes the first that it has.  Where zlib follows none, it tells them apart by measuring the link.
_CHEAP = ("zstd", "none", "zlib")
# Where a byte is dear, slow compression still beats none.
_DEAR = ("zstd", "zlib", "none")


def codec_fields(codec: Codec, level: int | None, link_cost: Literal["cheap", "dear"]) -> dict[str, object]:
    """Returns ``codecs``, names in order of preference, and ``level`` if there is one.

    Raises UsageError for an unknown codec and for a level that the codec does not have.
    """
    if codec not in CODECS:
        raise UsageError(f"there is no codec {codec!a}", hint=f"codecs are {', '.join(CODECS)}")
    fields: dict[str, object] = {"codecs": list(_DEAR if link_cost == "dear" else _CHEAP)}
    if codec != "auto":
        fields["codecs"] = [codec]
    if level is not None:
        least, most = LEVELS[0], ZLIB_LEVEL_MAX if codec == "zlib" else LEVELS[1]
        if codec == "none" or type(level) is not int or not least <= level <= most:
            raise UsageError(
                f"the codec {codec} has no level {level}",
                hint=f"levels are {least} to {LEVELS[1]}, of zlib to {ZLIB_LEVEL_MAX}",
            )
        fields["level"] = level
    return fields
