"""The options: which words are refused, in which order rules count, and what a start costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from cli.program import Place, environment, expect, run, store_files

from sandlift.cli import program
from sandlift.cli.capture_cmd import capture
from sandlift.cli.sandbox_options import read_limits, read_rules, read_timeout
from sandlift.cli.settings import Settings
from sandlift.limits import DEFAULT_LIMITS


def parsed(*words: str) -> tuple[click.Context, dict[str, Any]]:
    """The context and the options of a capture's command line."""
    top = click.Context(program, obj=Settings())
    context = capture.make_context("capture", ["/x", *words], parent=top)
    return context, context.params


def test_rules_count_in_the_order_of_the_command_line(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_bytes(b"# a comment\n\n*.tmp\n!keep.tmp  \n")
    name = str(rules)
    context, options = parsed(
        *(
            "--exclude",
            "first",
            "--exclude-from",
            name,
            "--note",
            "--exclude",
            "--exclude=!last",
            "--exclude-from",
            name,
        )
    )
    place = os.fsencode(rules)
    from_file = ((b"*.tmp", place + b":3"), (b"!keep.tmp", place + b":4"))
    assert read_rules(context, options).patterns == (
        (b"first", b"--exclude"),
        *from_file,
        (b"!last", b"--exclude"),
        *from_file,
    )
    assert options["note"] == "--exclude"


def test_the_last_rule_wins(tmp_path: Path) -> None:
    root, store, rules = tmp_path / "w", tmp_path / "store", tmp_path / "rules"
    root.mkdir()
    for name in ("a.log", "b.log", "a[1]"):
        (root / name).touch()
    rules.write_text("!a.log\n")
    words = ("capture", root, "--store", store, "--as")
    run(*words, "one", "--exclude", "*.log", "--exclude-from", rules)
    run(*words, "two", "--exclude-from", rules, "--exclude", "*.log", "--exclude-path", "a[1]")
    listed = {
        name: [row["path"] for row in run("ls", name, "--json", "--store", store).objects] for name in ("one", "two")
    }
    assert listed == {"one": ["a.log", "a[1]"], "two": []}


def test_rules_are_bytes() -> None:
    context, options = parsed(
        "--exclude", "\udcff*", "--exclude-path", "./a//\udcfe/", "--exclude-caches", "--no-ignore-file"
    )
    rules = read_rules(context, options)
    assert rules.patterns == ((b"\xff*", b"--exclude"),)
    assert rules.paths == (b"a/\xfe",)
    assert rules.caches
    assert not rules.ignore_file


def test_the_ignore_file_and_caches(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "store"
    (root / "cache").mkdir(parents=True)
    (root / "cache" / "CACHEDIR.TAG").write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    (root / ".sandliftignore").write_text("*.o\n")
    (root / "x.o").touch()
    words = ("capture", root, "--store", store, "--json", "--as", "x")
    assert run(*words).object["counts"]["excluded"] == 1
    assert run(*words, "--no-ignore-file").object["counts"]["excluded"] == 0
    assert run(*words, "--exclude-caches").object["counts"]["excluded"] == 2


def test_an_alias_of_the_root_keeps_links_inside(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "store"
    root.mkdir()
    os.symlink("/old/home/file", root / "link")
    words = ("capture", root, "--store", store, "--json", "--as", "x")
    assert run(*words).object["counts"]["links"] == 0
    assert run(*words, "--alias", "/old/home").object["counts"]["links"] == 1
    assert run("ls", "x", "--json", "--store", store).object["target"] == "file"
    found = run("doctor", root, "--json", "--alias", "/old/home").object
    assert found["would_exclude"] == {}


def test_limits() -> None:
    limits = read_limits(["file_bytes=20G", "entries=5k", "depth=7", "silence_s=2.5", "depth=8"])
    assert (limits.file_bytes, limits.entries, limits.depth, limits.silence_s) == (20 << 30, 5 << 10, 8, 2.5)
    assert limits.path_bytes == DEFAULT_LIMITS.path_bytes
    assert read_limits([]) == DEFAULT_LIMITS


def test_every_limit_is_named_in_the_help() -> None:
    text = " ".join(run("capture", "--help").out.split())
    for name in type(DEFAULT_LIMITS).__slots__:
        assert name in text


def test_a_limit_reaches_the_sandbox(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "large").write_bytes(bytes(3000))
    words = ("capture", root, "--as", "x", "--store", tmp_path / "store", "--json", "--limit", "file_bytes=2K")
    done = run(*words)
    assert (done.status, done.object["counts"]["lost"]) == (3, 1)


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0)])
def test_timeouts(text: str | None, seconds: float | None) -> None:
    assert read_timeout(text) == seconds


def test_labels_may_hold_anything_and_the_last_one_counts(place: Place) -> None:
    words = ("capture", place.root / "empty", "--as", "labels", "--json")
    done = place.run(*words, "--label", "a=1", "--label", "a=2=3", "--label", "b=", "--label", b"c=\xff")
    assert done.object["labels"] == {"a": "2=3", "b": "", "c": "\udcff"}


HEAVY = "rich msgpack zstandard paramiko platformdirs logging subprocess asyncio json click.shell_completion".split()


def test_the_version_imports_nothing_heavy() -> None:
    code = "import sys; import click; before = set(sys.modules); from sandlift.cli import run; run(['--version'])\n"
    code += "print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    loaded = done.stdout.splitlines()[1]
    assert "'sandlift.cli.output'" in loaded
    assert [name for name in HEAVY if f"'{name}'" in loaded] == []
    assert loaded.count("sandlift") < 12


def test_rich_is_imported_for_terminals_alone(place: Place) -> None:
    code = "import sys; from sandlift.cli import run; run(sys.argv[1:]); print('rich' in sys.modules, file=sys.stderr)"
    for words in (["show", "demo"], ["log"], ["capture", str(place.root), "--as", "demo3"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            env=environment(SANDLIFT_STORE=str(place.store)),
            check=True,
        )
        assert done.stderr == "False\n", words


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["capture", "ftp://box/x", "--as", "x"], "url", "ftp"),
        (["capture", "box:/work", "--as", "x"], "url", "ssh://"),
        (["capture", "ssh://me:secret@box/x", "--as", "x"], "url", "password"),
        (["capture", "ssh://box", "--as", "x"], "url", "no directory"),
        (["capture", "", "--as", "x"], "url", "empty"),
        (["capture", "/x", "--as", "x", "--via", "a", "--via-shell", "b"], "url", "--via"),
        (["capture", "/etc/ssl", "--as", "a b"], "name", "a-b"),
        (["capture", "/etc/ssl", "--as", ".hidden"], "name", "hidden"),
        (["capture", "/etc/ssl", "--as", "x", "--label", "novalue"], "options", "K=V"),
        (["capture", "/etc/ssl", "--as", "x", "--timeout", "soon"], "options", "seconds"),
        (["capture", "/etc/ssl", "--as", "x", "--timeout", "-1"], "options", "seconds"),
        (["capture", "/etc/ssl", "--as", "x", "--timeout", "nan"], "options", "seconds"),
        (["capture", "/etc/ssl", "--as", "x", "--limit", "size=1"], "options", "file_bytes"),
        (["capture", "/etc/ssl", "--as", "x", "--limit", "depth=0"], "options", "above 0"),
        (["capture", "/etc/ssl", "--as", "x", "--limit", "depth=1P"], "options", "above 0"),
        (["capture", "/etc/ssl", "--as", "x", "--limit", "silence_s=inf"], "options", "86400"),
        (["capture", "/etc/ssl", "--as", "x", "--exclude-from", "/nonexistent"], "options", "No such file"),
        (["capture", "/etc/ssl", "--as", "x", "--exclude-path", "/abs"], "options", "below the root"),
        (["capture", "/etc/ssl", "--as", "x", "--exclude-path", "a/../b"], "options", "below the root"),
        (["capture", "/etc/ssl", "--as", "x", "--alias", "rel"], "options", "absolute"),
        (["capture", "/etc/ssl", "--as", "x", "--via", "env", "--python", "a;b"], "options", "--python"),
        (["capture", "ssh://b/x", "--as", "x", "--accept-new-host-key", "--host-key-file", "f"], "options", "exclude"),
        (["log", "a@1"], "name", "a-1"),
    ],
)
def test_words_that_are_wrong(place: Place, words: list[str], code: str, says: str) -> None:
    before = store_files(place.store)
    error = expect(place.run(*words, "--json"), 2, code, says)
    assert "secret" not in str(error)
    assert store_files(place.store) == before


def test_how_content_is_compressed_on_its_way(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "store"
    root.mkdir()
    (root / "zeros-but-one").write_bytes(bytes(1 << 19) + b"x")
    words = ("capture", root, "--as", "w", "--json", "--store", store)
    received = {name: run(*words, "--codec", name).object["wire"]["received"] for name in ("none", "zlib", "auto")}
    assert received["none"] > 1 << 19 > 20 * received["zlib"]
    assert run(*words, "--codec", "zlib", "--level", "9").status == 0
    # Files of the library's names that are none, where the sandbox's linker looks first.
    (tmp_path / "lib").mkdir()
    for name in ("libzstd.so.1", "libzstd.so"):
        (tmp_path / "lib" / name).write_bytes(b"no library")
    lacks = run(*words, "--codec", "zstd", "--via", f"env LD_LIBRARY_PATH={tmp_path / 'lib'}")
    expect(lacks, 2, "options", "the sandbox cannot do zstd; it has zlib, none")
    before = store_files(store)
    for wrong in (["--codec", "none", "--level", "3"], ["--codec", "zlib", "--level", "10"]):
        expect(run(*words, *wrong), 2, "options", f"the codec {wrong[1]} has no level {wrong[3]}")
    assert run(*words, "--codec", "lz4").status == run(*words, "--level", "0").status == 2
    assert store_files(store) == before
