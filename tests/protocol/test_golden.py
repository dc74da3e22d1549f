"""The wire has not changed unseen: what travels for a fixed tree is what is written down."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

from protocol.golden import GOLDEN, make_tree, transcript

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make-golden"


def test_the_stream_is_the_golden_one(tmp_path: Path) -> None:
    make_tree(tmp_path / "w")
    now = transcript(tmp_path / "w").splitlines()
    written = GOLDEN.read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(written, now, "golden.txt", "now", lineterm=""))
    assert not difference, f"{difference}\n\nif that is on purpose: scripts/make-golden"


def test_the_script_writes_the_same(tmp_path: Path) -> None:
    out = tmp_path / "golden.txt"
    subprocess.run([sys.executable, str(SCRIPT), str(out)], check=True, timeout=30)
    assert out.read_bytes() == GOLDEN.read_bytes()


def test_the_script_refuses_what_it_does_not_know() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--nonsense", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: scripts/make-golden" in done.stderr
