"""What may be wrong with a sandbox or the way to it: each has its own word, and leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from cli.program import Place, expect, run, store_files

import sandlift_helper
from sandlift import payload
from support.needs import lacking, require
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


# cases: onyx-dot-app/onyx#11892
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


# cases: vm0-ai/vm0#117
def test_the_time_limit(place: Place) -> None:
    before = store_files(place.store)
    error = expect(place.run("capture", place.root, "--as", "demo", "--timeout", "0", "--json"), 1, "deadline")
    assert error["context"] == {"limit_s": 0.0}
    assert store_files(place.store) == before


def recorder(tmp_path: Path) -> tuple[str, Path]:
    """A prefix that runs what follows it, and the file in which it writes down the words, one a line."""
    script, words = tmp_path / "recorder", tmp_path / "words"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{shlex.quote(str(words))}\nexec "$@"\n')
    script.chmod(0o755)
    return str(script), words


# cases: earendil-works/gondolin#130, truefoundry/trueforge#416, agentscope-ai/agentscope-java#2618
# cases: langchain-ai/deepagents#872, langchain-ai/deepagents#1402, orka-agents/orka#134
def test_nothing_of_a_request_stands_on_a_command_line(place: Place, tmp_path: Path) -> None:
    """300 KiB of rules, and a root whose name nobody else should see, go in by the input."""
    root = tmp_path / "secret-root"
    root.mkdir()
    for name in ("secret-rule-0", "secret-rule-1499", "kept"):
        (root / name.ljust(200, "x")).touch()
    via, words = recorder(tmp_path)
    rules = [word for n in range(1500) for word in ("--exclude-path", f"secret-rule-{n}".ljust(200, "x"))]
    done = place.run("capture", root, "--as", "long", "--note", "secret-note", "--via", via, "--json", *rules)
    assert (done.status, done.object["counts"]["files"], done.object["counts"]["excluded"]) == (0, 1, 2)
    assert words.read_text() == "\n".join([*payload.sandbox_argv(), ""])
    assert "secret" not in words.read_text()
    assert len(words.read_bytes()) < 2000


# cases: ansible/community-ansible-dev-tools-image#26, konica/ai-sandbox-manager#90, openai/openai-agents-js#1501
def test_a_sandbox_with_nothing_but_a_python(place: Place, tmp_path: Path) -> None:
    """Neither tar nor anything else is needed; where Python is missing too, the message says what was looked for."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    (programs / "only-python").symlink_to(os.path.realpath(sys.executable))
    way = ("--via", f"/usr/bin/env PATH={programs}", "--json")
    known = place.run("capture", place.root, "--as", "known", "--exclude", "*.log", "--json").object["content"]
    words = ("capture", place.root, "--as", "bare", "--exclude", "*.log", *way, "--python")
    done = place.run(*words, "only-python")
    assert (done.status, done.object["content"]) == (0, known)
    back = place.run("restore", "bare", tmp_path / "out", *way, "--python", "only-python")
    assert (back.status, back.object["counts"]["created"]) == (0, 12)
    error = expect(place.run(*words, "python3"), 6, "no-python", "no Python 3", "install python3")
    assert error["context"] == {"tried": ["python3"]}


# cases: actions/cache#1658
def test_a_sandbox_whose_disk_is_full(place: Place, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lacking("a small file system can only be mounted by root: run the tests as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = tmp_path / "full"
    script.write_text(
        'mount -t tmpfs -o size=64k,nr_inodes=10 tmpfs "$DISK" && cd "$DISK" || exit 1\n'
        'echo kept >file; cat /dev/zero >filler 2>/dev/null; test "$(stat -fc %a .)" = 0 || exit 1\n'
        'HOME=$DISK TMPDIR=$DISK; export HOME TMPDIR; exec "$@"\n'
    )
    prefix = shlex.join(["unshare", "-m", "env", f"DISK={disk}", "sh", str(script)])
    done = place.run("capture", disk, "--as", "full", "--via", prefix, "--json")
    assert (done.status, done.object["outcome"], done.object["counts"]["files"]) == (0, "complete", 2)
    assert place.run("cat", "full", "file").stdout == b"kept\n"
    assert place.run("cat", "full", "filler").stdout == bytes((64 << 10) - 4096)


# cases: NVIDIA/NemoClaw#1901, kubernetes/kubernetes#112834
@pytest.mark.parametrize("status", [0, 1])
def test_a_sandbox_that_does_nothing_is_no_success(place: Place, tmp_path: Path, status: int) -> None:
    before = store_files(place.store)
    via = ("--via", f"sh -c 'exit {status}'", "--json")
    for words in (("restore", "demo", tmp_path / "out"), ("capture", place.root, "--as", "demo")):
        expect(place.run(*words, *via), 6, "helper-start", f"exit status {status}")
    assert not (tmp_path / "out").exists()
    assert store_files(place.store) == before


# cases: NVIDIA/NemoClaw#1901
def test_a_restore_to_a_sandbox_that_is_stopped(place: Place, tmp_path: Path) -> None:
    require("ssh")
    wrapper = tmp_path / "ssh"
    wrapper.write_text('#!/bin/sh\nexec ssh -F /dev/null "$@"\n')
    wrapper.chmod(0o755)
    for name in ("demo", "empty"):
        if name == "empty":
            assert place.run("capture", place.root / "empty", "--as", name).status == 0
        url = f"ssh://me@127.0.0.1:{free_port()}{tmp_path}/out"
        expect(place.run("restore", name, url, "--json", env={"SANDLIFT_SSH": str(wrapper)}), 5, "refused")
