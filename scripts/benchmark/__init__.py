"""The parts of scripts/bench: trees, contestants, measurements, and the report."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"


class BenchError(Exception):
    """The comparison cannot be made; the text says why and what to do."""


class LeftOutError(Exception):
    """One part cannot be measured here; the text says why and what would help.  The rest goes on."""


def note(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
