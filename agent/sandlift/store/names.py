"""Names of workspaces: ``demo``, ``team/web-2``, ``issue.41``.

A name is one or more parts joined by ``/``; a part begins with an ASCII letter or digit and goes on with those,
dots, dashes and underscores.  So no part is ``.`` or ``..``, none looks like an option, and neither ``@`` nor
``~`` occurs, which mark what follows a name (``demo@7``, ``demo~1``).
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from sandlift.errors import BadName

NAME_MAX: Final = 200
"""The most bytes of a whole name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*", re.ASCII)
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_FALLBACK = "workspace"


def check_name(name: str) -> str:
    """Returns *name* if it may name a workspace.  Raises BadName, with a proposal, if not."""
    if len(name) > NAME_MAX:
        raise BadName(
            f"a workspace name has at most {NAME_MAX} bytes, this one has {len(name)}",
            hint=f"for example {propose_name(name)}",
        )
    if not _NAME.fullmatch(name):
        raise BadName(
            f"{name!a} cannot name a workspace: its parts, joined by '/', are letters, digits, '.', '_' and"
            " '-', and begin with a letter or digit",
            hint=f"for example {propose_name(name)}",
        )
    return name


def propose_name(text: str) -> str:
    """Returns a valid name that resembles *text*; a valid name stays as it is."""
    if len(text) <= NAME_MAX and _NAME.fullmatch(text):
        return text
    plain = unicodedata.normalize("NFKD", text)
    # An accent, taken off its letter, is dropped; whatever else is foreign becomes a dash.
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    parts = (_FOREIGN.sub("-", part).lstrip("._-").rstrip("-") for part in plain.split("/"))
    return "/".join(part for part in parts if part)[:NAME_MAX].rstrip("/") or _FALLBACK
