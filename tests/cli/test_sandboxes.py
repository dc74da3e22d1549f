"""What may be wrong with a sandbox or the way to it: each has its own word, and leaves nothing behind."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from cli.program import Place, expect, run, store_files

import sandlift_helper
from support.needs import require
from support.sshd import free_port

FAR_SIDE = """
import sys
sys.path.insert(0, {helper!r})
from sandlift_helper import messages, wire
read, out = sys.stdin.buffer, sys.stdout.buffer
read.read(int(read.readline()))
nonce = bytes.fromhex(read.readline().split()[1].decode())
hello = wire.frame(wire.HELLO, messages.encode({{"protocol": wire.PROTOCOL, "python": "3.9.1", "executable": ""}}))
failure = {{"code": "helper-crashed", "message": "it failed", "report": "Traceback: \\x1b[31moh"}}
def begin(data=b""):
    out.write(wire.MAGIC + nonce + data)
    out.flush()
"""

MISBEHAVIOUR = {
    "protocol": (4, False, "begin(hello + b'\\xff' * 64)"),
    "truncated": (5, True, "begin(hello)"),
    "sandbox-gone": (5, None, "begin(hello); import time; time.sleep(20)"),
    "host-limit": (4, False, "out.write(b'welcome ' * 1000); out.flush(); sys.stdin.buffer.read()"),
    "helper-start": (6, None, "sys.stderr.write('no way in\\n'); sys.exit(3)"),
    "helper-crashed": (
        6,
        None,
        "begin(hello + wire.frame(wire.FAILURE, messages.encode(failure)))",
    ),
}


def via_script(tmp_path: Path, text: str) -> str:
    """A prefix that leads to a far side which does *text* in place of starting a helper."""
    helper = str(Path(sandlift_helper.__file__).parents[1])
    script = tmp_path / "far.py"
    script.write_text(FAR_SIDE.format(helper=helper) + text + "\n")
    return shlex.join([sys.executable, str(script)])


@pytest.mark.parametrize("code", MISBEHAVIOUR)
def test_what_a_sandbox_does_wrong(place: Place, tmp_path: Path, code: str) -> None:
    status, retryable, text = MISBEHAVIOUR[code]
    before = store_files(place.store)
    words = ["--via", via_script(tmp_path, text), "--limit", "silence_s=1", "--limit", "noise_bytes=4K"]
    error = expect(place.run("capture", "/work", "--as", "demo", "--json", *words), status, code)
    assert error["retryable"] is retryable
    assert store_files(place.store) == before
    assert not list((place.store / "tmp").iterdir())


def test_verbose_shows_what_the_sandbox_said_made_harmless(place: Place, tmp_path: Path) -> None:
    words = ["capture", "/work", "--as", "demo", "--via"]
    crashed = via_script(tmp_path, MISBEHAVIOUR["helper-crashed"][2])
    quiet = place.run(*words, crashed)
    assert quiet.status == 6
    assert quiet.err == "sandlift: error: it failed\nhint: -v shows what the sandbox said\n"
    loud = place.run(*words, crashed, "-v")
    assert "sandlift: the helper's report:\n  | Traceback: \\x1b[31moh\n" in loud.err
    started = place.run(*words, via_script(tmp_path, MISBEHAVIOUR["helper-start"][2]), "-v")
    assert "sandlift: its standard error:\n  | no way in\n" in started.err


def test_pythons_of_a_sandbox(place: Place, tmp_path: Path) -> None:
    words = ("capture", place.root, "--as", "demo", "--via", "env", "--json", "--python")
    expect(place.run(*words, "no-such-python"), 6, "no-python", "--python")
    for name, body in {"two": "exit 2", "old": "exit 96"}.items():
        fake = tmp_path / name
        fake.write_text(f"#!/bin/sh\n{body}\n")
        fake.chmod(0o755)
        expect(place.run(*words, str(fake)), 6, "python-old", "3.6")


def test_ways_that_do_not_lead_anywhere(place: Place, tmp_path: Path) -> None:
    capture = ("--as", "demo", "--json")
    expect(place.run("capture", "/x", "--via", str(tmp_path / "none"), *capture), 2, "options", "none")
    env: dict[str, str | None] = {"SANDLIFT_SSH": str(tmp_path / "no-ssh")}
    expect(place.run("capture", "ssh://box/x", *capture, env=env), 2, "missing-extra", "SANDLIFT_SSH")
    require("ssh")
    url = f"ssh://me@127.0.0.1:{free_port()}/x"
    wrapper = tmp_path / "ssh"
    wrapper.write_text('#!/bin/sh\nexec ssh -F /dev/null "$@"\n')
    wrapper.chmod(0o755)
    error = expect(place.run("capture", url, *capture, env={"SANDLIFT_SSH": str(wrapper)}), 5, "refused")
    assert error["retryable"] is True


def test_a_failed_connection_makes_no_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = run("capture", "/x", "--as", "x", "--via", str(tmp_path / "none"), "--store", store)
    assert done.status == 2
    assert not store.exists()


def test_the_time_limit(place: Place) -> None:
    before = store_files(place.store)
    error = expect(place.run("capture", place.root, "--as", "demo", "--timeout", "0", "--json"), 1, "deadline")
    assert error["context"] == {"limit_s": 0.0}
    assert store_files(place.store) == before
