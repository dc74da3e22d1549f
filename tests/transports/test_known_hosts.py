"""Host keys as OpenSSH keeps them; ssh-keygen is the judge of what a line means."""

from __future__ import annotations

import base64
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from sandlift.errors import UsageError
from sandlift.transports.known_hosts import KnownHosts, fingerprint, host_names, parse, remember
from support.needs import require


def blob(key_type: str, text: str) -> bytes:
    name = key_type.encode()
    return struct.pack(">I", len(name)) + name + text.encode()


def line(names: str, key_type: str, data: bytes) -> str:
    return f"{names} {key_type} {base64.b64encode(data).decode()}\n"


ED, RSA = "ssh-ed25519", "ssh-rsa"
ONE, TWO = blob(ED, "one"), blob(ED, "two")


@pytest.mark.parametrize(
    ("names", "host", "port", "verdict"),
    [
        ("box", "box", 22, "known"),
        ("box", "BOX", 22, "known"),
        ("other,box", "box", 22, "known"),
        ("other", "box", 22, "unknown"),
        ("[box]:2222", "box", 2222, "known"),
        ("[box]:2222", "box", 22, "unknown"),
        ("box", "box", 2222, "known"),
        ("*.example", "a.example", 22, "known"),
        ("*.example,!b.example", "b.example", 22, "unknown"),
        ("b?x", "box", 22, "known"),
        ("b.x", "box", 22, "unknown"),
        ("[b]ox", "box", 22, "unknown"),
        ("|1|broken", "box", 22, "unknown"),
        ("@cert-authority box", "box", 22, "unknown"),
        ("# box", "box", 22, "unknown"),
    ],
)
def test_names(names: str, host: str, port: int, verdict: str) -> None:
    known = KnownHosts(parse(line(names, ED, ONE)))
    assert known.judge(host_names(host, port), ED, ONE) == verdict


def test_another_key_is_a_change() -> None:
    known = KnownHosts(parse(line("box", ED, ONE)))
    assert known.judge(["box"], ED, TWO) == "changed"
    assert known.judge(["box"], RSA, blob(RSA, "x")) == "changed"
    assert known.key_types(["box"]) == (ED,)


def test_another_key_on_the_plain_name_says_nothing_about_a_port() -> None:
    known = KnownHosts(parse(line("box", ED, ONE)))
    assert known.judge(host_names("box", 2222), ED, TWO) == "unknown"


def test_one_of_several_keys_is_enough() -> None:
    known = KnownHosts(parse(line("box", ED, ONE) + line("box", ED, TWO)))
    assert known.judge(["box"], ED, TWO) == "known"


def test_a_revoked_key_is_refused_though_it_is_known() -> None:
    known = KnownHosts(parse(line("box", ED, ONE) + line("@revoked *", ED, ONE)))
    assert known.judge(["box"], ED, ONE) == "revoked"


def test_a_key_of_another_type_than_it_says_is_passed_over() -> None:
    assert parse(line("box", RSA, ONE)) == []
    assert parse("box ssh-ed25519 not/base64=\n\n# comment\nbox\n") == []


def test_hashed_names_made_by_ssh_keygen(tmp_path: Path) -> None:
    require("ssh-keygen")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    key_type, text = Path(f"{key}.pub").read_text().split()[:2]
    data = base64.b64decode(text)
    file = tmp_path / "known_hosts"
    file.write_text(line("box", key_type, data) + line("[box]:2222", key_type, data))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "box" not in file.read_text()
    known = KnownHosts.load([file, tmp_path / "missing"])
    assert known.judge(host_names("box", 22), key_type, data) == "known"
    assert known.judge(host_names("box", 2222), key_type, data) == "known"
    assert known.judge(host_names("bax", 22), key_type, data) == "unknown"
    shown = subprocess.run(["ssh-keygen", "-l", "-f", f"{key}.pub"], check=True, capture_output=True, text=True).stdout
    assert shown.split()[1] == fingerprint(data)


def test_a_new_key_is_appended_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    remember(str(file), "[box]:2222", ED, ONE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_text("# no newline at the end")
    remember(str(file), "box", ED, ONE)
    remember(str(file), "bax", ED, TWO)
    assert file.read_text() == "# no newline at the end\n" + line("box", ED, ONE) + line("bax", ED, TWO)
    assert KnownHosts.load([file]).judge(["bax"], ED, TWO) == "known"


def test_a_pinned_file_must_hold_a_key(tmp_path: Path) -> None:
    file = tmp_path / "pin"
    with pytest.raises(UsageError, match="does not exist"):
        KnownHosts.pinned(file)
    file.write_text("nothing\n")
    with pytest.raises(UsageError, match="holds no host key"):
        KnownHosts.pinned(file)
    file.write_text(line("", ED, ONE).strip() + " comment\n")
    pinned = KnownHosts.pinned(file)
    assert pinned.judge(host_names("anything", 7), ED, ONE) == "known"
    assert pinned.judge(host_names("anything", 7), ED, TWO) == "changed"
    assert [key.line() for key in pinned.keys] == [line("*", ED, ONE).strip()]
