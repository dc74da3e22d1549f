"""The other scripts: what they refuse, what they find, and the arithmetic of scripts/bench."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_bench_ratios_are_medians_of_the_rounds() -> None:
    bench = runpy.run_path(str(ROOT / "scripts" / "bench"))
    times_s = {
        "capture": [1.0, 8.0, 3.0],
        "ssh tar c | zstd -1": [2.0, 10.0, 3.0],
        "rsync -a": [4.0, 4.0, 4.0],
        "tar x": [1.0, 1.0, 1.0],
    }
    rows = bench["ratio_rows"](times_s)
    assert [(row["against"], row["ratio"], row["budget"], row["kept"]) for row in rows] == [
        ("ssh tar c | zstd -1", 0.8, 0.85, True),
        ("rsync -a", 0.75, 0.95, True),
    ]
    assert (rows[0]["lowest"], rows[0]["highest"]) == (0.5, 1.0)
    times_s["capture"] = [2.0, 2.0, 9.0]
    assert [row["kept"] for row in bench["ratio_rows"](times_s)] == [False, True]


def snapshot(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_bench_changes_one_file_in_a_hundred_and_no_size(tmp_path: Path) -> None:
    bench = runpy.run_path(str(ROOT / "scripts" / "bench"))
    for number in range(300):
        (tmp_path / f"f{number:03}").write_bytes(b"x" * number)
    before = snapshot(tmp_path)
    bench["change_some"](tmp_path)
    after = snapshot(tmp_path)
    # f000 is empty and cannot change.
    assert [name for name in sorted(before) if before[name] != after[name]] == ["f100", "f200"]
    assert {name: len(data) for name, data in before.items()} == {name: len(data) for name, data in after.items()}


@pytest.mark.parametrize("spoil", ["content", "mode", "time", "extra", "missing", "link"])
def test_bench_notices_a_restore_that_is_not_equal(tmp_path: Path, spoil: str) -> None:
    bench: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "bench"))
    tree, restored = tmp_path / "tree", tmp_path / "restored"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "a").write_bytes(b"abc")
    (tree / "link").symlink_to("sub/a")
    shutil.copytree(tree, restored, symlinks=True)
    bench["check_equal"](tree, restored)
    file = restored / "sub" / "a"
    status = file.stat()
    if spoil == "content":
        file.write_bytes(b"abd")
        os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
    elif spoil == "mode":
        file.chmod(0o600)
    elif spoil == "time":
        os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns - 1_000_000_000))
    elif spoil == "extra":
        (restored / "more").write_bytes(b"")
    elif spoil == "missing":
        file.unlink()
    else:
        (restored / "link").unlink()
        (restored / "link").symlink_to("sub")
    with pytest.raises(bench["BenchError"], match="not what was captured"):
        bench["check_equal"](tree, restored)
