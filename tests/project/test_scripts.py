"""The other scripts: what they refuse, and what they find."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), *arguments],
        cwd="/",
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project of one helper module, with the environment of this one."""
    helper = tmp_path / "helper" / "sandlift_helper"
    helper.mkdir(parents=True)
    (helper / "__init__.py").write_text("")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "support").mkdir(parents=True)
    shutil.copy2(ROOT / "tests" / "support" / "pythons.py", tmp_path / "tests" / "support")
    return tmp_path


def test_check_refuses_an_unknown_step_before_doing_anything() -> None:
    done = run(ROOT / "scripts" / "check", "types", "typos")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown step: typos" in done.stderr


@pytest.mark.parametrize("name", ["bundle-size", "helper-pythons"])
def test_an_unknown_argument_is_refused(name: str) -> None:
    done = run(ROOT / "scripts" / name, "--frobnicate")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"usage: scripts/{name}" in done.stderr


@pytest.mark.parametrize("name", ["bench", "bundle-size", "helper-pythons"])
def test_python_scripts_say_when_there_is_no_environment(copy: Path, name: str) -> None:
    (copy / ".venv").unlink()
    done = run(copy / "scripts" / name)
    assert (done.returncode, done.stderr) == (1, f"{name}: there is no .venv yet. Next: scripts/setup\n")


def test_helper_pythons_names_the_interpreters_that_fail(copy: Path) -> None:
    helper = copy / "helper" / "sandlift_helper"
    assert run(copy / "scripts" / "helper-pythons").returncode == 0
    (helper / "odd.py").write_text("import sys\nassert sys.version_info[:2] != (3, 11), 'odd'\n")
    done = run(copy / "scripts" / "helper-pythons")
    assert done.returncode == 1
    failed = [line.split()[0] for line in done.stdout.splitlines() if "FAILED" in line]
    assert [version.rpartition(".")[0] for version in failed] == ["3.11"]
    assert "AssertionError: odd" in done.stdout
