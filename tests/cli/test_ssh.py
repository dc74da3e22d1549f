"""The commands over a real SSH server, with both clients, and through a command prefix."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.program import Place, expect, run, store_files

from support.needs import require
from support.sshd import Sshd

NOISE = "Welcome to box!\n\x1b[31mlast login: never\n"


def wrap_ssh(server: Sshd, folder: Path) -> str:
    """A program that is ssh with the keys of *server* and nothing of the user's."""
    wrapper = folder / "ssh-wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec ssh {shlex.join(server.ssh_options)} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    require("sshd", "ssh", "ssh-keygen")
    with Sshd() as running:
        yield running


def tree(folder: Path) -> list[tuple[str, int, bytes]]:
    """Paths, modes and contents; links by their texts."""
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found.append((str(path.relative_to(folder)), status.st_mode, content))
    return found


@pytest.mark.parametrize("scheme", ["ssh", "paramiko"])
def test_a_workspace_goes_out_and_comes_back(place: Place, server: Sshd, tmp_path: Path, scheme: str) -> None:
    env: dict[str, str | None] = {
        "SANDLIFT_SSH": wrap_ssh(server, tmp_path),
        "SANDLIFT_STORE": str(tmp_path / "store"),
        "HOME": str(tmp_path),
    }
    keys = ("--key-file", server.key_file, "--host-key-file", server.host_key_file) if scheme == "paramiko" else ()
    url = server.url(str(place.root), scheme=scheme)
    done = run("capture", url, "--as", "demo", "--json", *keys, env=env)
    assert (done.status, done.err) == (0, "")
    local = run("capture", place.root, "--as", "here", "--json", env=env).object
    assert (done.object["snapshot"], done.object["counts"]) == (local["snapshot"], local["counts"])
    assert done.object["source"] == url
    assert run("doctor", url, "--json", *keys, env=env).object["ok"] is True
    back = run("restore", "demo", server.url(str(tmp_path / "back"), scheme=scheme), "--json", *keys, env=env)
    assert (back.status, back.err) == (0, "")
    assert run("restore", "demo", tmp_path / "here", env=env).status == 0
    assert tree(tmp_path / "back") == tree(tmp_path / "here")
    again = run("capture", tmp_path / "back", "--as", "demo", "--json", env=env).object
    assert again["content"] == local["content"]


def test_a_prefix_leads_into_a_sandbox(place: Place, server: Sshd, tmp_path: Path) -> None:
    prefix = shlex.join(["ssh", *server.ssh_options, "-p", str(server.port), f"{server.user}@{server.host}"])
    known = place.run("show", "demo@1", "--json").object["content"]
    words = ("capture", place.root, "--json", "--exclude-path", "added", "--as")
    for name, option in (("shell", ["--via-shell", prefix]), ("argv", ["--via", "nice -n 1"])):
        done = place.run(*words, name, *option)
        assert (done.status, done.object["content"]) == (0, known)
        assert done.object["source"].startswith("via:ssh:" if name == "shell" else "via:nice:")


def test_what_the_sandbox_prints_before_the_stream_is_shown_when_asked_for(place: Place, tmp_path: Path) -> None:
    require("sshd", "ssh", "ssh-keygen")
    with Sshd(noise=NOISE) as noisy:
        env: dict[str, str | None] = {"SANDLIFT_SSH": wrap_ssh(noisy, tmp_path)}
        url = noisy.url(str(place.root / "src"))
        words = ("capture", url, "--as", "noisy")
        warning = f"sandlift: warning: the sandbox printed {len(NOISE)} bytes before the stream"
        quiet = place.run(*words, env=env)
        assert (quiet.status, quiet.err) == (0, warning + " (-v shows it)\n")
        loud = place.run(*words, "-v", env=env)
        assert warning + "\n  | Welcome to box!\n  | \\x1b[31mlast login: never\n" in loud.err
        as_json = place.run(*words, "--json", env=env)
        assert (as_json.status, as_json.err) == (0, "")
        found = place.run("doctor", url, "--json", env=env).object
        assert found["noise"] == NOISE
        text = place.run("doctor", url, "-v", env=env).out
        assert f"noise     {len(NOISE)} bytes before the stream\n  | Welcome to box!\n  | \\e[31mlast login" in text
        back = place.run("restore", "noisy", noisy.url(str(tmp_path / "out")), env=env)
        assert (back.status, back.err) == (0, warning + " (-v shows it)\n")


def test_host_keys(place: Place, server: Sshd, tmp_path: Path) -> None:
    # A configuration, because words of the command line would count more than sandlift's.
    config, bare = tmp_path / "config", tmp_path / "ssh"
    config.write_text(f"UserKnownHostsFile {tmp_path}/known\nIdentityFile {server.key_file}\nIdentityAgent none\n")
    bare.write_text(f'#!/bin/sh\nexec ssh -F {shlex.quote(str(config))} "$@"\n')
    bare.chmod(0o755)
    env: dict[str, str | None] = {"SANDLIFT_SSH": str(bare), "HOME": str(tmp_path)}
    words = ("capture", server.url(str(place.root / "empty")), "--as", "keys", "--json")
    paramiko = ("capture", server.url(str(place.root / "empty"), scheme="paramiko"), "--as", "keys", "--json")
    expect(place.run(*words, env=env), 5, "host-key-unknown", "--host-key-file")
    expect(place.run(*paramiko, "--key-file", server.key_file, env=env), 5, "host-key-unknown")
    assert place.run(*words, "--host-key-file", server.host_key_file, env=env).status == 0
    assert not (tmp_path / "known").exists()
    assert place.run(*words, "--accept-new-host-key", env=env).status == 0
    assert "ssh-ed25519" in (tmp_path / "known").read_text()
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True, timeout=30)
    changed = (tmp_path / "known").read_text().split()[0] + " " + " ".join(Path(f"{other}.pub").read_text().split()[:2])
    (tmp_path / "known").write_text(changed + "\n")
    error = expect(place.run(*words, env=env), 5, "host-key-changed")
    assert error["retryable"] is False
    wrong = ("--key-file", str(other), "--host-key-file", server.host_key_file)
    expect(place.run(*paramiko, *wrong, env=env), 5, "auth-failed")


# cases: moby/moby#29432, moby/moby#8513, docker/for-linux#108, docker/compose#4550
def test_a_terminal_in_between_is_refused(place: Place, server: Sshd, tmp_path: Path) -> None:
    prefix = shlex.join(["ssh", "-tt", *server.ssh_options, "-p", str(server.port), f"{server.user}@{server.host}"])
    before = store_files(place.store)
    for words in (("capture", place.root, "--as", "demo"), ("restore", "demo", tmp_path / "out")):
        expect(place.run(*words, "--via-shell", prefix, "--json"), 6, "helper-start")
    assert store_files(place.store) == before
    assert not (tmp_path / "out").exists()
