"""The README says what is: commands, options, exit codes, reasons, limits, fields, and the example runs."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from sandlift import errors
from sandlift.cli import COMMANDS, program
from sandlift.cli.sandbox_options import read_limits
from sandlift.cli.settings import Settings
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift_helper import table
from support.needs import require

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """What stands under a heading, subsections included."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, heads and rules apart."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        row
        for index, row in enumerate(found)
        if not set(row[0]) <= {"-"} and not (index + 1 < len(found) and set(found[index + 1][0]) == {"-"})
    ]


def words(cell: str) -> list[str]:
    """The words in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def sandlift_lines() -> Iterator[list[str]]:
    """The words of every sandlift command in the shell blocks."""
    for block in blocks("sh"):
        for line in block.splitlines():
            for command in re.findall(r"\bsandlift [^;|)\"]*", line.split("  #")[0]):
                yield shlex.split(command)[1:]


def command_of(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found is not None, name
    return found


def all_options() -> set[str]:
    """Every option of every command and of the program."""
    commands = [command_of(name) for name in COMMANDS]
    return {name for item in (program, *commands) for parameter in item.params for name in parameter.opts}


@pytest.mark.parametrize("line", list(sandlift_lines()), ids=" ".join)
def test_every_command_line_can_be_parsed(line: list[str]) -> None:
    top = click.Context(program, obj=Settings())
    command_of(line[0]).make_context(line[0], line[1:], parent=top)


def test_every_command_is_shown() -> None:
    shown = {line[0] for line in sandlift_lines()} | set(re.findall(r"`sandlift ([a-z]+)", TEXT))
    assert shown == set(COMMANDS)


def test_every_option_that_is_named_exists() -> None:
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose)) - {"--services"}
    assert named <= all_options()
    assert {"--via", "--strict", "--limit", "--json", "--store"} <= named


def test_the_exit_codes_are_those_of_the_errors() -> None:
    expected: dict[int, set[str]] = {}
    todo: list[type[errors.SandliftError]] = [errors.SandliftError]
    while todo:
        kind = todo.pop()
        todo += [known for known in kind.__subclasses__() if known.__module__ == errors.__name__]
        if not kind.__subclasses__() or "code" in kind.__dict__:
            expected.setdefault(kind.exit, set()).add(kind.code)
    expected[1].discard("error")
    stated = {int(row[0]): set(words(row[1])) for row in rows(section("When something fails"))}
    assert {code: named for code, named in stated.items() if named} == expected
    assert {code for code, named in stated.items() if not named} == {0, 3, 141}


def test_the_reasons_are_those_of_the_manifest() -> None:
    policy, lost = section("What is kept").partition("Lost, which")[::2]
    named = [[word for row in rows(text) for word in words(row[0])] for text in (policy, lost.partition("###")[0])]
    names = table.REASON_NAMES
    assert named[0] == [name for reason, name in names.items() if reason < table.LOST]
    assert named[1] == [name for reason, name in names.items() if reason >= table.LOST]


def test_the_limits_are_the_defaults() -> None:
    stated = [(words(row[0])[0], row[1]) for row in rows(section("Limits"))]
    assert [name for name, _ in stated] == [field.name for field in dataclasses.fields(Limits)]
    assert read_limits([f"{name}={value}" for name, value in stated]) == DEFAULT_LIMITS


def test_the_fields_of_json_are_those_that_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from sandlift.cli import run

    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "file").write_bytes(b"x")
    (tmp_path / "w" / "name").hardlink_to(tmp_path / "w" / "file")
    os.symlink(tmp_path / "w" / "file", tmp_path / "w" / "link")
    lines = {
        "capture": [str(tmp_path / "w"), "--as", "demo"],
        "show": ["demo"],
        "log": [],
        "ls": ["demo"],
        "restore": ["demo", str(tmp_path / "out")],
        "restore --dry-run": ["demo", str(tmp_path / "planned")],
        "audit": ["demo"],
        "export": ["demo", "-o", str(tmp_path / "demo.tar")],
        "import": [str(tmp_path / "demo.tar"), "--as", "other", "--root", "/w"],
        "verify": [],
        "doctor": [str(tmp_path / "w")],
        "prune": ["--partials", "7d"],
    }
    stated = {words(row[0])[0]: words(row[1]) for row in rows(section("For programs: JSON"))}
    assert list(stated) == list(lines)
    for name, line in lines.items():
        assert run([*name.split(), *line, "--json", "--store", str(tmp_path / "store")]) == 0
        written: dict[str, Any] = {}
        for row in capsys.readouterr().out.splitlines():
            written |= json.loads(row)
        fields = stated["capture"] if stated[name] == ["capture"] else stated[name]
        assert sorted(written) == sorted(["schema", *fields])


def test_the_error_object_is_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from sandlift.cli import run

    (shown,) = (json.loads(block) for block in blocks("json"))
    missing = str(tmp_path / "none")
    assert run(["capture", missing, "--as", "x", "--json", "--store", str(tmp_path / "store")]) == 1
    written = json.loads(capsys.readouterr().out.replace(missing, "/srv/work"))
    assert written == shown


def test_the_library_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks("python")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_bytes(b"content")
    (tmp_path / "work" / "x.log").write_bytes(b"log")
    monkeypatch.chdir(tmp_path)
    assert example.count("ssh://me@box/srv/work") == 1
    exec(compile(example.replace("ssh://me@box/srv/work", "work"), "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "demo@1 complete 0"
    assert os.listdir(tmp_path / "out") == ["file"]


def test_every_script_and_file_that_is_named_exists() -> None:
    scripts = set(re.findall(r"scripts/[a-z-]+", TEXT))
    assert {"scripts/demo", "scripts/check", "scripts/setup"} <= scripts
    assert [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []
    for name in re.findall(r"`((?:agent|helper)/[\w/.]+)`", TEXT):
        assert (ROOT / name).exists()


@pytest.mark.parametrize("server", ["sshd", "asyncssh"])
def test_the_demo_runs(tmp_path: Path, server: str) -> None:
    if server == "sshd":
        require("sshd", "ssh", "ssh-keygen")
    else:
        (tmp_path / "ssh").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "home").mkdir()
    # An environment that has to be brought up to date runs pip, which leaves its traces in a home.
    subprocess.run([ROOT / "scripts" / "setup"], stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=True)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        [ROOT / "scripts" / "demo"],
        cwd="/",
        env={**os.environ, "HOME": str(tmp_path / "home"), "PATH": path, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\ndemo: ok\n")
    assert ("a real sshd listens" in done.stdout, "an asyncssh server listens" in done.stdout) == (
        server == "sshd",
        server == "asyncssh",
    )
    assert "compared 8 entries: 0 differ" in done.stdout
    # Nothing stays behind, and nothing was put into the home.
    assert os.listdir(tmp_path / "home") == []
    assert sorted(os.listdir(tmp_path)) == ["home"] + (["ssh"] if server == "asyncssh" else [])


def test_it_holds_no_path_of_a_machine() -> None:
    assert re.findall(r"/(?:home|root|Users|work)/\w+", TEXT) == []
    assert max(map(len, (line for line in TEXT.splitlines() if not line.startswith(("|", "{"))))) <= 120
