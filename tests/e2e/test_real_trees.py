"""Trees as package managers make them, installed for the test, lifted over a real sshd, and still at work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.conftest import roads_over
from e2e.lift import Lift

from support.needs import find_program, lacking
from support.sshd import Sshd
from support.tree import Link, Tree, assert_equal, read, restored

PACKAGES = ("lodash@4.17.21", "express@4.21.2", "typescript@5.7.3", "esbuild@0.24.2", "semver@7.6.3")

pytestmark = pytest.mark.skipif(
    os.environ.get("SANDLIFT_REQUIRE_ALL") != "1",
    reason="packages are not downloaded in every run: SANDLIFT_REQUIRE_ALL=1 scripts/check",
)


@pytest.fixture
def lifted(place: Path, sshd: Sshd) -> Iterator[Lift]:
    """A workspace over ssh."""
    with closing(Lift(place, roads_over(sshd)["ssh"])) as lift:
        yield lift


def run(*words: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{words[0]} failed: {done.stderr[-2000:]}"
    return done.stdout


def outside_links(source: Tree, root: Path) -> dict[bytes, bytes]:
    """The links that the kernel resolves to a place outside the root."""
    found = {}
    for path, entry in source.entries.items():
        if isinstance(entry, Link):
            directory = os.path.realpath(os.path.join(os.fsencode(root), os.path.dirname(path)))
            end = os.path.realpath(os.path.join(directory, entry.text))
            if end != os.fsencode(root) and not end.startswith(os.fsencode(root) + b"/"):
                found[path] = entry.text
    return found


def lift_and_compare(lifted: Lift) -> tuple[Path, dict[bytes, bytes]]:
    """Lift the workspace, set it down, and compare; returns the place and the links that were left out."""
    source = read(lifted.root)
    taken = lifted.capture()
    assert {(kind, reason) for kind, reason, _ in taken.excluded.values()} <= {("link", "outside-link")}
    assert taken.flags == {}
    assert taken.capture.outcome == "complete"
    left = {path: text for path, (_, _, text) in taken.excluded.items()}
    target = lifted.target()
    lifted.restore_to(taken, target)
    rebased = {path: taken.links[path] for path in taken.originals}
    assert_equal(restored(source.without(*left), links=rebased), read(target))
    return target, left


# cases: npm/cli#7608, NVIDIA/NemoClaw#2268, joliss/node-walk-sync#30
def test_an_npm_tree(lifted: Lift) -> None:
    if find_program("npm") is None:
        lacking("npm is not installed: apt-get install npm")
    lifted.root.mkdir()
    (lifted.root / "package.json").write_text('{"name": "w", "version": "1.0.0", "private": true}')
    cache = str(lifted.folder / "npm-cache")
    run("npm", "install", "--no-audit", "--no-fund", *PACKAGES, cwd=lifted.root, npm_config_cache=cache)
    target, left = lift_and_compare(lifted)
    assert left == {}
    script = "console.log(require('lodash').add(1, 2), require('express').name, require('typescript').version)"
    assert run("node", "-e", script, cwd=target) == run("node", "-e", script, cwd=lifted.root)
    assert run(str(target / "node_modules/.bin/semver"), "1.2.3", cwd=target) == "1.2.3\n"
    assert run(str(target / "node_modules/.bin/esbuild"), "--version", cwd=target) == "0.24.2\n"


# cases: totara/totara-docker-dev#55
def test_a_python_virtual_environment(lifted: Lift) -> None:
    lifted.root.mkdir()
    venv = lifted.root / ".venv"
    run(sys.executable, "-m", "venv", str(venv), cwd=lifted.root)
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--no-cache-dir")
    run(*pip, "--disable-pip-version-check", "click==8.1.8", "msgpack==1.1.0", cwd=lifted.root)
    source = read(lifted.root)
    target, left = lift_and_compare(lifted)
    # Of the chain python3 -> python -> /usr/bin/python3.11 only what leaves is left out; the rest dangles until then.
    direct = {p: t for p, t in outside_links(source, lifted.root).items() if t.startswith(b"/")}
    assert left == direct
    assert left
    for path, text in left.items():
        os.symlink(text, os.path.join(os.fsencode(target), path))
    # Put back by hand, the interpreter works in its new place.
    found = run(str(target / ".venv/bin/python"), "-c", "import click, sys; print(click.__file__)", cwd=target)
    assert found.startswith(str(target))
