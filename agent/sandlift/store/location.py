"""Where a store is: a path, a ``file:`` URL, or the default folder."""

from __future__ import annotations

import re
from pathlib import Path

from sandlift.errors import BadURL

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)


def default_store_path() -> Path:
    """Returns the private folder in the user's data directory that is the store unless another is named."""
    import platformdirs

    return Path(platformdirs.user_data_path("sandlift", appauthor=False)) / "store"


def store_path(where: str | Path) -> Path:
    """Returns the absolute directory that *where* means.  Raises BadURL.

    A path stands for itself; ``file:PATH`` is that path as it is written, without percent-decoding.  Text with
    ``://`` or a known kind of URL that is not ``file:`` is refused, so a mistyped URL never becomes a folder.
    """
    text = str(where)
    if isinstance(where, str):
        match = _SCHEME.match(text)
        if match and match[1].lower() == "file":
            text = text[match.end() :]
            if text.startswith("//") and not text.startswith("///"):
                raise BadURL(f"a store's URL has no host: {where!r}", hint="write file:/path/to/store")
        elif match and (text[match.end() :].startswith("//") or "://" in text):
            raise BadURL(f"stores of the kind {match[1]}: are not known", hint="name a directory: PATH or file:PATH")
    if not text or "\0" in text:
        raise BadURL(f"no path in {str(where)!r}", hint="name a directory: PATH or file:PATH")
    return Path(text).absolute()
