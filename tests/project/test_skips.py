"""The report of skips, and its strict form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

CASES = """
import pytest

def test_passes():
    assert 1 + 1 == 2

@pytest.mark.parametrize("number", [1, 2])
def test_wants_a_server(number):
    pytest.skip("no sshd: apt-get install openssh-server")
"""
MODULE = 'import pytest\npytest.skip("no  docker:\\n start it", allow_module_level=True)\n'


def run(folder: Path, *arguments: str, require_all: bool) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SANDLIFT"))}
    if require_all:
        environment["SANDLIFT_REQUIRE_ALL"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", *arguments]
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_bytes(CONFTEST.read_bytes())
    (tmp_path / "test_cases.py").write_text(CASES)
    return tmp_path


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_reasons_are_grouped_and_counted(folder: Path, workers: list[str]) -> None:
    (folder / "test_module.py").write_text(MODULE)
    done = run(folder, *workers, require_all=False)
    assert done.returncode == 0, done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("skipped:")] == [
        "skipped: no docker: start it [1 test]",
        "skipped: no sshd: apt-get install openssh-server [2 tests]",
    ]


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_skip_is_a_failure_when_all_is_required(folder: Path, workers: list[str]) -> None:
    done = run(folder, *workers, require_all=True)
    assert done.returncode == 1, done.stdout
    assert "skipped: no sshd" in done.stdout


def test_without_a_skip_all_is_well_when_all_is_required(folder: Path) -> None:
    done = run(folder, "-k", "passes", require_all=True)
    assert done.returncode == 0, done.stdout
    assert "skipped:" not in done.stdout
