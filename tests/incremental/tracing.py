"""Which files of a workspace a helper opens, by what the kernel saw."""

from __future__ import annotations

import re
from pathlib import Path

from support.needs import require

_OPENED = re.compile(r'openat\(\d+, "((?:[^"\\]|\\.)*)", [A-Z_|]*O_NOCTTY')


class Trace:
    """A command prefix under which the helper runs, and what it opened in its last run.

    Only the opening of a workspace's files has O_NOCTTY.
    """

    def __init__(self, folder: Path) -> None:
        require("strace")
        self._log = folder / "trace"
        self.via = ("strace", "-f", "-qq", "-e", "trace=openat", "-e", "signal=none", "-o", str(self._log))

    @property
    def opened(self) -> list[str]:
        """The names of the files, sorted."""
        return sorted(_OPENED.findall(self._log.read_text(errors="replace")))
