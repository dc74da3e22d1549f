"""What is in the wheel and in the source distribution, built as they would be published."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"sandlift": ROOT / "agent" / "sandlift", "sandlift_helper": ROOT / "helper" / "sandlift_helper"}
BUILD_TIMEOUT_S = 120

pytestmark = pytest.mark.xdist_group("distribution")


def package_files() -> set[str]:
    """Every file of both packages, by the name that it is imported under."""
    return {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution; the wheel is made from the latter."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_both_packages_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == package_files()
    assert {"sandlift/py.typed", "sandlift_helper/py.typed"} <= names


def test_the_wheel_is_pure_and_names_the_command(distributions: tuple[Path, Path]) -> None:
    path = distributions[0]
    assert path.name == "sandlift-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        assert b"sandlift = sandlift.cli:main" in wheel.read("sandlift-0.1.0.dist-info/entry_points.txt")
        metadata = BytesParser().parsebytes(wheel.read("sandlift-0.1.0.dist-info/METADATA"))
        assert "sandlift-0.1.0.dist-info/licenses/LICENSE" in wheel.namelist()
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    always = {line.split(">")[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert always == {"click", "msgpack", "platformdirs", "rich", "zstandard"}


def test_the_source_distribution_can_be_tested(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[1]) as sdist:
        names = {name.removeprefix("sandlift-0.1.0/") for name in sdist.getnames()}
    expected = {
        *(name.replace("sandlift/", "agent/sandlift/", 1) for name in package_files() if name.startswith("sandlift/")),
        *(f"helper/{name}" for name in package_files() if name.startswith("sandlift_helper/")),
        "constraints.txt",
        "helper/ruff.toml",
        "pyproject.toml",
        "scripts/check",
        "scripts/setup",
        "tests/conftest.py",
    }
    assert expected <= names
    assert {name.split("/")[0] for name in names if "/" in name} == {"agent", "helper", "scripts", "tests"}


def test_both_packages_are_imported_from_the_wheel_alone(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    code = "import sandlift, sandlift_helper as h; print(sandlift.__version__, sandlift.__file__, h.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(distributions[0])}
    done = subprocess.run(
        [str(tmp_path / "env" / "bin" / "python"), "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    wheel = distributions[0]
    assert done.stdout.split() == ["0.1.0", f"{wheel}/sandlift/__init__.py", f"{wheel}/sandlift_helper/__init__.py"]


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 20
    for line in pins:
        name, _, version = line.partition("==")
        assert name and version, line
        assert not set(line) & set("/@: "), line
