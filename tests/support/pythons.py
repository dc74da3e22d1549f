"""The CPython interpreters of this machine, one for each minor version from 3.6 on."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

OLDEST = (3, 6)
NEWEST_LOOKED_FOR = 14
ASK_TIMEOUT_S = 20
ASK = "import sys, platform; print(platform.python_implementation(), *sys.version_info[:3])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython that said itself which version it is."""

    path: str
    version: tuple[int, int, int]

    @property
    def minor(self) -> str:
        """As in ``3.6``."""
        return f"{self.version[0]}.{self.version[1]}"

    def __str__(self) -> str:
        return self.minor


def pyenv_root() -> Path:
    """Where pyenv keeps its versions, whether or not it is installed."""
    if os.environ.get("PYENV_ROOT"):
        return Path(os.environ["PYENV_ROOT"])
    home, program = Path.home() / ".pyenv", shutil.which("pyenv")
    return Path(program).resolve().parent.parent if program and not home.is_dir() else home


def candidates() -> list[str]:
    """Paths that may be interpreters, those to be preferred first.

    pyenv's shims are left out: they cost a shell for each start, run something else when the folder changes,
    and what they could run is found where it is installed.
    """
    shims = str(pyenv_root() / "shims")
    minors = range(OLDEST[1], NEWEST_LOOKED_FOR + 1)
    named = [shutil.which(f"python3.{minor}") for minor in minors]
    installed = sorted(glob.glob(str(pyenv_root() / "versions" / "*" / "bin" / "python")))
    found = [sys.executable, *installed, "/usr/bin/python3", *filter(None, named)]
    return list(dict.fromkeys(path for path in found if os.access(path, os.X_OK) and os.path.dirname(path) != shims))


def ask(path: str) -> Interpreter | None:
    """Which CPython ``path`` is, by its own word; None for what is none, is too old or does not run."""
    try:
        answer = subprocess.run(
            [path, "-I", "-S", "-c", ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = answer.stdout.split()
    if answer.returncode != 0 or len(words) != 4 or words[0] != "CPython":
        return None
    major, minor, patch = (int(word) for word in words[1:])
    return Interpreter(path=path, version=(major, minor, patch)) if (major, minor) >= OLDEST else None


def find() -> list[Interpreter]:
    """One interpreter for each minor version, oldest first.

    Raises RuntimeError under ``SANDLIFT_REQUIRE_ALL=1`` when pyenv is installed and 3.6 or 3.11 is not found:
    then the machine is meant to have them, and tests over interpreters must not shrink unseen.
    """
    with ThreadPoolExecutor(max_workers=4) as pool:
        answers = list(pool.map(ask, candidates()))
    by_minor: dict[tuple[int, int], Interpreter] = {}
    for interpreter in filter(None, answers):
        by_minor.setdefault(interpreter.version[:2], interpreter)
    if os.environ.get("SANDLIFT_REQUIRE_ALL") == "1" and pyenv_root().is_dir():
        missing = [f"{major}.{minor}" for major, minor in ((3, 6), (3, 11)) if (major, minor) not in by_minor]
        if missing:
            raise RuntimeError(f"no CPython {' and '.join(missing)} found. Next: pyenv install {' '.join(missing)}")
    return [by_minor[version] for version in sorted(by_minor)]


PYTHONS: list[Interpreter] = find()
