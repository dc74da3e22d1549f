"""The interpreters that tests of the helper run on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import pythons


def test_each_minor_version_is_there_once_and_oldest_first() -> None:
    minors = [interpreter.version[:2] for interpreter in pythons.PYTHONS]
    assert minors == sorted(set(minors))
    assert sys.version_info[:2] in minors
    assert min(minors) >= (3, 6)


def test_versions_are_what_the_interpreters_are() -> None:
    for interpreter in pythons.PYTHONS:
        answer = subprocess.run([interpreter.path, "--version"], capture_output=True, text=True, check=True, timeout=20)
        assert answer.stdout.split()[1] == ".".join(map(str, interpreter.version))


@pytest.mark.parametrize(
    "text",
    ["exit 1", "echo PyPy 3 9 1", "echo CPython 2 7 18", "echo CPython 3 5 10", "echo nonsense", ""],
)
def test_what_is_not_such_an_interpreter_is_passed_over(tmp_path: Path, text: str) -> None:
    program = tmp_path / "python3.9"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    assert pythons.ask(str(program)) is None
    assert pythons.ask(str(tmp_path / "none")) is None


def test_an_installed_pyenv_must_have_the_oldest_when_all_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("SANDLIFT_REQUIRE_ALL", "1")
    with pytest.raises(RuntimeError, match=r"no CPython 3\.6.*pyenv install 3\.6"):
        pythons.find()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert sys.version_info[:2] in [interpreter.version[:2] for interpreter in pythons.find()]
