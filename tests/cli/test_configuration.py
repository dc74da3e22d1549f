"""The configuration: what counts before what, and which files and words are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import platformdirs
import pytest
from cli.program import Place, environment, expect, run, run_on_terminal

from sandlift.cli.configuration import configuration_path, limit_names, read_configuration
from sandlift.cli.sandbox_options import read_limits
from sandlift.errors import UsageError
from sandlift.limits import DEFAULT_LIMITS
from support.needs import lacking


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file that is not there yet."""
    return tmp_path / "folder" / "config.toml"


def write(file: Path, text: str | bytes, mode: int = 0o600) -> dict[str, str]:
    """Writes the file; returns the environment that names it."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return {"SANDLIFT_CONFIG": str(file)}


def refused(environ: Mapping[str, str]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_configuration(environ)
    assert (caught.value.code, caught.value.exit) == ("options", 2)
    assert caught.value.message.isprintable()
    return caught.value


# What counts before what.


def test_nothing_is_set() -> None:
    found = read_configuration({"SANDLIFT_CONFIG": ""})
    assert (found.store, found.limits) == ("", {})


def test_a_file_sets_store_and_limits(file: Path) -> None:
    text = 'store = "/srv/x"\n[limits]\nentries = 7\nfile_bytes = "20G"\nsilence_s = 2.5\nnoise_bytes = "5k"\n'
    found = read_configuration(write(file, text))
    assert found.store == "/srv/x"
    assert found.limits == {"entries": 7, "file_bytes": 20 << 30, "silence_s": 2.5, "noise_bytes": 5 << 10}


def test_every_limit_can_be_set(file: Path) -> None:
    lines = "".join(f"{name} = {number}\n" for number, name in enumerate(limit_names(), 2))
    assert list(read_configuration(write(file, "[limits]\n" + lines)).limits) == list(type(DEFAULT_LIMITS).__slots__)
    words = " , ".join(f"{name}=1{number}" for number, name in enumerate(limit_names()))
    found = read_configuration({"SANDLIFT_CONFIG": "", "SANDLIFT_LIMITS": f",{words},\n"}).limits
    assert found == {name: int(f"1{number}") for number, name in enumerate(limit_names())}


def test_the_environment_counts_before_the_file_and_flags_before_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = write(file, 'store = "/file"\n[limits]\nentries = 1\ndepth = 1\npath_bytes = 1000\n')
    environ |= {"SANDLIFT_STORE": "/environment", "SANDLIFT_LIMITS": "entries=2,depth=2 depth=3"}
    found = read_configuration(environ)
    assert (found.store, found.limits) == ("/environment", {"entries": 2, "depth": 3, "path_bytes": 1000})
    assert read_configuration({**environ, "SANDLIFT_STORE": ""}).store == "/file"
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    limits = read_limits(["entries=4K"])
    assert (limits.entries, limits.depth, limits.path_bytes) == (4096, 3, 1000)
    assert limits.link_text_bytes == DEFAULT_LIMITS.link_text_bytes


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("/home/me/conf", " ", ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        expected = platformdirs.user_config_path("sandlift", appauthor=False) / "config.toml"
        assert configuration_path({"XDG_CONFIG_HOME": folder}) == expected
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert configuration_path({}) == Path("/home/me/.config/sandlift/config.toml")
    assert configuration_path({"SANDLIFT_CONFIG": "/x"}) == Path("/x")
    assert configuration_path({"SANDLIFT_CONFIG": ""}) is None


def test_the_stores_of_a_run(tmp_path: Path) -> None:
    """The place of the file that nobody named, and the whole order, as a user meets it."""
    (tmp_path / "w").mkdir()
    config = tmp_path / "conf" / "sandlift"
    config.mkdir(parents=True)
    write(config / "config.toml", 'store = "~/from-file"\n', mode=0o644)
    env: dict[str, str | None] = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "conf"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "SANDLIFT_CONFIG": None,
    }
    words = ("capture", tmp_path / "w", "--as", "x", "--json")

    def stores() -> set[str]:
        return {str(found.parent.relative_to(tmp_path)) for found in tmp_path.rglob("format")}

    assert run(*words, env=env).status == 0
    assert stores() == {"from-file"}
    assert run(*words, env={**env, "SANDLIFT_STORE": str(tmp_path / "from-env")}).status == 0
    assert stores() == {"from-file", "from-env"}
    more = ("--store", tmp_path / "from-flag")
    assert run(*words, *more, env={**env, "SANDLIFT_STORE": str(tmp_path / "from-env")}).status == 0
    assert stores() == {"from-file", "from-env", "from-flag"}
    assert run(*words, env={**env, "SANDLIFT_CONFIG": ""}).status == 0
    assert stores() == {"from-file", "from-env", "from-flag", "data/sandlift/store"}
    assert run("log", "--json", env=env).object["ref"] == "x@1"


def test_the_limits_of_a_run(place: Place, file: Path, tmp_path: Path) -> None:
    words = ("capture", place.root / "src", "--as", "x", "--json", "--store", tmp_path / "store")
    env = write(file, "[limits]\nfile_bytes = 10\n")
    assert run(*words, env=env).object["counts"]["lost"] == 3
    assert run(*words, env={**env, "SANDLIFT_LIMITS": "file_bytes=2K"}).object["counts"]["lost"] == 1
    assert run(*words, "--limit", "file_bytes=1G", env={**env, "SANDLIFT_LIMITS": "file_bytes=2K"}).status == 0


def test_a_file_of_the_user_s_or_root_s_may_be_read_by_all(file: Path) -> None:
    assert read_configuration(write(file, 'store = "/x"', mode=0o644)).store == "/x"
    link = file.with_name("link.toml")
    link.symlink_to(file)
    assert read_configuration({"SANDLIFT_CONFIG": str(link)}).store == "/x"


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("/srv/x", "/srv/x"),
        ("~/x", "/home/me/x"),
        ("file:/srv/x", "file:/srv/x"),
        ("s3://bucket/x", "s3://bucket/x"),
    ],
)
def test_stores(text: str, store: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert read_configuration(write(file, f'store = "{text}"')).store == store


# What is refused; each of these words stands in a file that would else be right.

REFUSED: dict[str, tuple[str | bytes, str, str]] = {
    # text -> (what the message says, what the hint says)
    "key": ('store_dir = "/x"', "the key 'store_dir' is not known", "there are store, limits"),
    "limit": ("[limits]\nentrys = 5", "the key 'limits.entrys' is not known", "limits.entries, limits.path_bytes"),
    "table": ("[limit]\nentries = 5", "the key 'limit' is not known", "there are store, limits"),
    "key with control characters": ('"\\u001b[2J" = 1', r"the key '\x1b[2J' is not known", "store"),
    "limits no table": ("limits = 5", "limits is no table", "[limits]"),
    "limits twice": ("[[limits]]\nentries = 5", "limits is no table", "[limits]"),
    "limit below a limit": ("[limits.entries]\nx = 1", "limits.entries: the value is no number", "20G"),
    "limit of zero": ("[limits]\nentries = 0", "limits.entries: the value is no number above 0", "20G"),
    "negative limit": ("[limits]\nentries = -1", "limits.entries: the value is no number above 0", "20G"),
    "half a limit": ("[limits]\nentries = 1.5", "limits.entries: the value is no number above 0", "20G"),
    "true limit": ("[limits]\nentries = true", "limits.entries: the value is no number above 0", "20G"),
    "limit in words": ('[limits]\nentries = "many"', "limits.entries: the value is no number above 0", "20G"),
    "limit beyond 63 bits": ("[limits]\nentries = 9223372036854775808", "limits.entries: the value", "20G"),
    "endless limit": ('[limits]\nfile_bytes = "99999999999999999999999"', "limits.file_bytes: the value", "20G"),
    "true seconds": ("[limits]\nsilence_s = true", "limits.silence_s: the value is no number of seconds", ""),
    "no seconds": ("[limits]\nsilence_s = nan", "limits.silence_s: the value is no number of seconds", ""),
    "too many seconds": ("[limits]\nsilence_s = 86401", "from 0.1 to 86400", ""),
    "list of seconds": ("[limits]\nsilence_s = [5]", "limits.silence_s: the value is no number of seconds", ""),
    "empty store": ('store = ""', "store is no text", "for example"),
    "store of another type": ("store = 5", "store is no text", "for example"),
    "relative store": ('store = "x/y"', "store is no absolute path: 'x/y'", "begin it with / or ~/"),
    "no TOML": ("store", "is not valid TOML", "https://toml.io"),
    "key twice": ('store = "/x"\nstore = "/y"', "is not valid TOML", "https://toml.io"),
    "no UTF-8": (b'store = "/\xff"', "is not valid TOML", "https://toml.io"),
    "NUL": (b'store = "/x\0"', "is not valid TOML", "https://toml.io"),
    "nested without end": (b"x = " + b"[" * 100_000, "is not valid TOML", "https://toml.io"),
    "over 1 MiB": (b"#" * ((1 << 20) + 1), "is over 1 MiB", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_refused(name: str, file: Path) -> None:
    text, says, hint = REFUSED[name]
    error = refused(write(file, text))
    assert str(file) in error.message
    assert says in error.message
    assert hint in error.hint


def test_a_file_of_1_mib(file: Path) -> None:
    text = b'store = "/x"\n'
    assert read_configuration(write(file, text + b"#" * ((1 << 20) - len(text)))).store == "/x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("entries", "SANDLIFT_LIMITS takes NAME=VALUE, not 'entries'"),
        ("size=1", "SANDLIFT_LIMITS takes NAME=VALUE, not 'size=1'"),
        ("depth=5,entries=x", "SANDLIFT_LIMITS 'entries=x': the value is no number above 0"),
        ("silence_s=0", "SANDLIFT_LIMITS 'silence_s=0': the value is no number of seconds"),
        ("\x1b[2J=1", r"not '\x1b[2J=1'"),
    ],
)
def test_a_variable_that_is_refused(text: str, says: str) -> None:
    assert says in refused({"SANDLIFT_CONFIG": "", "SANDLIFT_LIMITS": text}).message


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_can_write(mode: int, file: Path) -> None:
    error = refused(write(file, 'store = "/x"', mode))
    assert "can be written by others" in error.message
    assert "chmod go-w" in error.hint
    file.chmod(mode & ~0o022)
    assert read_configuration({"SANDLIFT_CONFIG": str(file)}).store == "/x"


def test_a_file_of_another_user(file: Path) -> None:
    if os.geteuid() != 0:
        lacking("only root can give a file away: run the tests as root")
    environ = write(file, 'store = "/x"')
    os.chown(file, 1234, 1234)
    assert "belongs to another user" in refused(environ).message
    # Whoever runs the program may own it, and root may.
    code = "import os, tomllib; import sandlift.limits; from sandlift.cli.configuration import read_configuration\n"
    code += "os.setuid(1234); print(read_configuration().store)"
    for owner in (1234, 0):
        os.chown(file, owner, owner)
        file.chmod(0o644)
        with open(file, "rb") as opened:
            done = subprocess.run(
                [sys.executable, "-c", code],
                stdin=opened,
                capture_output=True,
                text=True,
                # Other users do not reach the folder of the tests.
                env=environment(SANDLIFT_CONFIG="/proc/self/fd/0"),
            )
        assert done.stdout == "/x\n", done.stderr


def test_files_that_cannot_be_read(tmp_path: Path, file: Path) -> None:
    error = refused({"SANDLIFT_CONFIG": str(file)})
    assert "cannot be read: No such file or directory" in error.message
    assert "SANDLIFT_CONFIG" in error.hint
    assert "is no file" in refused({"SANDLIFT_CONFIG": str(tmp_path)}).message
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in refused({"SANDLIFT_CONFIG": str(tmp_path / "pipe")}).message
    assert "cannot be read" in refused({"SANDLIFT_CONFIG": str(tmp_path / "pipe" / "x")}).message
    assert "cannot be read" in refused({"SANDLIFT_CONFIG": "a\0b"}).message


def test_the_program_refuses_before_it_does_anything(place: Place, file: Path, tmp_path: Path) -> None:
    env = write(file, "[limits]\nentrys = 5\n")
    for words in (["capture", place.root, "--as", "x"], ["log"], ["restore", "demo", tmp_path / "out"]):
        error = expect(place.run(*words, "--json", env=env), 2, "options", "limits.entrys", str(file))
        assert error["retryable"] is False
    assert not (tmp_path / "out").exists()
    # What needs neither store nor limits does not read it.
    assert place.run("--version", env=env).status == 0
    assert place.run("capture", "--help", env=env).status == 0
    shown = run_on_terminal("log", env={**env, "SANDLIFT_STORE": str(place.store)})
    assert shown.status == 2


def test_the_version_does_not_read_it() -> None:
    code = "import sys; from sandlift.cli import run; run(['--version'])\n"
    code += "print([name for name in ('tomllib', 'platformdirs', 'sandlift.cli.configuration') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[1] == "[]"


def test_toml_is_imported_for_a_file_alone(file: Path) -> None:
    code = "import sys; from sandlift.cli.configuration import read_configuration as read; read()\n"
    code += "print('tomllib' in sys.modules)"
    for environ, imported in (({"SANDLIFT_CONFIG": ""}, False), (write(file, ""), True)):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(**environ), check=True)
        assert done.stdout == f"{imported}\n"
