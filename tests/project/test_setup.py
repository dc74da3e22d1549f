"""scripts/setup: what it asks for, when it works and when it does nothing.

Package installation itself is stood in for: the interpreter here is real, but its ``-m pip`` writes down how
it was called.  The gate runs the real thing before every test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "cat", "dirname", "id", "mktemp", "rm", "sed")

PYTHON = """#!/bin/sh
case "$*" in
    *"-m venv --clear "*) for dir; do :; done; mkdir -p "$dir/bin"; : >"$dir/pyvenv.cfg"; cp "$0" "$dir/bin/python" ;;
    *"-m pip --version") ;;
    *"-m pip "*) echo "$PWD: $*" >>"$CALLS"; [ -z "$PIP_FAILS" ] || { echo "no route to host"; exit 1; } ;;
    *) exec "$REAL_PYTHON" "$@" ;;
esac
"""


class Project:
    """A copy of what scripts/setup reads, in a folder whose name has a space in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a project"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        self.home = folder / "home"
        (self.root / "scripts").mkdir(parents=True)
        for path in (self.bin, self.home):
            path.mkdir()
        for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
            shutil.copy2(ROOT / name, self.root / name)
        for tool in (*TOOLS, "mkdir", "cp"):
            (self.bin / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")

    def program(self, name: str, text: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "scripts" / "setup"), *arguments],
            cwd="/",
            env={
                "PATH": str(self.bin),
                "HOME": str(self.home),
                "CALLS": str(self.calls),
                "REAL_PYTHON": sys.executable,
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def installs(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_installs_once_then_does_nothing(project: Project) -> None:
    project.program("python3", PYTHON)
    first = project.setup()
    assert first.returncode == 0, first.stderr
    assert project.installs() == [f"{project.root}: -I -m pip install -q -c constraints.txt -e .[dev]"]
    second = project.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert len(project.installs()) == 1
    assert list(project.home.iterdir()) == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_installs_again_when_the_packages_change(project: Project, name: str) -> None:
    project.program("python3", PYTHON)
    project.setup()
    with (project.root / name).open("a") as file:
        file.write("# more\n")
    assert project.setup().returncode == 0
    assert len(project.installs()) == 2
    assert project.setup().stderr == ""


def test_makes_the_environment_anew_when_the_folder_moves(project: Project) -> None:
    project.program("python3", PYTHON)
    project.setup()
    project.root = project.root.rename(project.root.with_name("elsewhere"))
    moved = project.setup()
    assert "making .venv" in moved.stderr
    assert project.installs()[1].startswith(f"{project.root}: ")


def test_a_failed_install_is_shown_and_tried_again(project: Project) -> None:
    project.program("python3", PYTHON)
    failed = project.setup(PIP_FAILS="1")
    assert failed.returncode == 1
    assert "no route to host" in failed.stderr
    assert "run scripts/setup again" in failed.stderr
    assert project.setup().returncode == 0
    assert len(project.installs()) == 2


def test_a_folder_that_is_no_environment_is_left_alone(project: Project) -> None:
    project.program("python3", PYTHON)
    (project.root / ".venv").mkdir()
    (project.root / ".venv" / "mine").write_text("keep")
    refused = project.setup()
    assert refused.returncode == 1
    assert "move it away" in refused.stderr
    assert (project.root / ".venv" / "mine").read_text() == "keep"


def test_a_newer_name_that_does_not_run_is_passed_over(project: Project) -> None:
    project.program("python3.13", "#!/bin/sh\nexit 127\n")
    project.program("python3.12", '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec "$REAL_PYTHON" "$@"\n')
    project.program("python3.11", PYTHON)
    done = project.setup()
    assert done.returncode == 0, done.stderr
    assert len(project.installs()) == 1


def test_the_named_python_is_used_alone(project: Project, tmp_path: Path) -> None:
    project.program("python3", PYTHON)
    assert project.setup(SANDLIFT_PYTHON=str(tmp_path / "none such")).returncode == 1
    assert project.installs() == []
    named = tmp_path / "my python"
    named.write_text(PYTHON)
    named.chmod(0o755)
    (project.bin / "python3").unlink()
    assert project.setup(SANDLIFT_PYTHON=str(named)).returncode == 0


SUDO = "" if os.geteuid() == 0 else "sudo "


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", f"{SUDO}apt-get install -y python3 python3-venv"),
        ("dnf", f"{SUDO}dnf install -y python3.12"),
        ("apk", f"{SUDO}apk add python3"),
        ("brew", "brew install python@3.12"),
        (None, "install Python 3.11 or later with its venv module, and put it on PATH"),
    ],
)
def test_without_python_it_says_how_to_get_one(project: Project, manager: str | None, command: str) -> None:
    if manager:
        project.program(manager, "#!/bin/sh\nexit 1\n")
    done = project.setup()
    assert done.returncode == 1
    assert done.stderr == f"setup: no Python 3.11 or later with venv was found. Next: {command}\n"
    assert not (project.root / ".venv").exists()


def test_apt_is_asked_for_the_version_that_it_has(project: Project) -> None:
    project.program("apt-get", "#!/bin/sh\nexit 1\n")
    project.program("apt-cache", '#!/bin/sh\n[ "$2" = python3.11-venv ]\n')
    assert project.setup().stderr.endswith("apt-get install -y python3.11 python3.11-venv\n")


def test_services_are_installed_once_by_root(project: Project) -> None:
    project.program("python3", PYTHON)
    project.program("id", "#!/bin/sh\necho 0\n")
    # Installing puts the programs where they are found, as the real one does.
    project.program(
        "apt-get",
        '#!/bin/sh\necho "apt-get $*" >>"$CALLS"\n'
        "for name in sshd ssh rsync zstd git shellcheck bsdtar busybox xz strace;"
        f' do cp "$0" "{project.bin}/$name"; done\n',
    )
    assert project.setup("--services").returncode == 0
    apt = [call for call in project.installs() if call.startswith("apt-get")]
    assert len(apt) == 1
    assert apt[0].startswith("apt-get install -y --no-install-recommends ")
    wanted = "openssh-client rsync zstd git shellcheck libarchive-tools busybox xz-utils strace"
    assert set(wanted.split()) <= set(apt[0].split())
    again = project.setup("--services")
    assert (again.returncode, again.stderr) == (0, "")
    assert len(project.installs()) == 2


def test_services_are_named_to_others_than_root(project: Project) -> None:
    project.program("python3", PYTHON)
    project.program("id", "#!/bin/sh\necho 1000\n")
    project.program("apt-get", "#!/bin/sh\nexit 1\n")
    done = project.setup("--services")
    assert done.returncode == 1
    assert "Next: sudo apt-get install -y " in done.stderr
    assert "rsync zstd git shellcheck" in done.stderr
    assert project.installs() == []


def test_an_unknown_option_is_refused(project: Project) -> None:
    done = project.setup("--service")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--service" in done.stderr
