"""Each command as a person uses it: what it says, and what it does."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest
from cli.program import Place, run

import sandlift


def test_version_and_help() -> None:
    assert run("--version").out == f"sandlift {sandlift.__version__}\n"
    assert run("--version", "--json").object == {"schema": 1, "version": sandlift.__version__}
    done = run("--help")
    assert done.status == 0
    assert done.err == ""
    listed = re.findall(r"^  ([a-z]+)  ", done.out, re.MULTILINE)
    assert (
        listed
        == "capture doctor restore log show ls cat audit import export verify salvage prune helper completion".split()
    )


def test_no_command_shows_the_help_and_is_an_error() -> None:
    done = run()
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("Usage: sandlift [OPTIONS] COMMAND")


def test_capture_makes_the_store_and_says_in_one_line_what_it_did(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "new" / "store"
    root.mkdir()
    (root / "file").write_bytes(b"x" * 5000)
    done = run("capture", root, "--as", "team/web", "--store", store)
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(r"team/web@1: 1 file, 4\.9 KiB in [0-9.]+ s; nothing left out\n", done.out)
    assert stat.S_IMODE(store.stat().st_mode) == 0o700


def test_capture_tells_what_is_left_out_and_where_to_see_why(own_place: Place) -> None:
    done = own_place.run("capture", own_place.root, "--as", "demo", "--exclude", "*.log")
    assert re.fullmatch(
        r"demo@3: 7 files, 5\.0 MiB in [0-9.]+ s, same as before; 3 left out by policy; why: sandlift show demo@3\n",
        done.out,
    )


def test_capture_without_a_name_proposes_one(tmp_path: Path) -> None:
    root = tmp_path / "My wörk (1)"
    root.mkdir()
    done = run("capture", root, "--store", tmp_path / "store")
    assert done.status == 2
    assert done.err == "sandlift: error: the snapshot needs a name\nhint: for example --as My-work-1\n"
    assert run("capture", ".", "--store", tmp_path / "store", cwd=root).err.endswith("--as My-work-1\n")
    assert not (tmp_path / "store").exists()


def test_the_store_stands_before_or_after_the_command_or_in_the_environment(place: Place, tmp_path: Path) -> None:
    shown = place.run("log", "demo").out
    elsewhere: dict[str, str | None] = {"SANDLIFT_STORE": str(tmp_path)}
    assert run("--store", place.store, "log", "demo").out == shown
    assert run("log", "--store", place.store, "demo", env=elsewhere).out == shown
    assert run("log", "demo", f"--store=file:{place.store}").out == shown
    assert run("--store", tmp_path, "log", "demo", "--store", place.store).out == shown


def test_the_default_store_is_private_and_below_the_home(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    env: dict[str, str | None] = {"HOME": str(tmp_path / "home"), "XDG_DATA_HOME": None, "SANDLIFT_STORE": ""}
    assert run("capture", tmp_path / "w", "--as", "x", env=env).status == 0
    (format_mark,) = (tmp_path / "home").rglob("format")
    assert stat.S_IMODE(format_mark.parent.stat().st_mode) == 0o700


def test_log_lists_newest_first_in_aligned_columns(place: Place) -> None:
    done = place.run("log", "demo")
    heads, newest, oldest = done.out.splitlines()
    assert heads.split() == ["REF", "CREATED", "FILES", "SIZE", "LOST", "SOURCE", "NOTE"]
    assert newest.startswith("demo@2  20")
    assert newest.endswith(f"  local:{place.root}  n=1=2, who=me; a note")
    assert oldest.startswith("demo@1  20")
    assert oldest.index("local:") == newest.index("local:") == heads.index("SOURCE")


def test_log_without_a_name_lists_the_newest_of_every_workspace(own_place: Place) -> None:
    for name in ("other", "demo2"):
        assert own_place.run("capture", own_place.root / "empty", "--as", name).status == 0
    lines = own_place.run("log").out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["demo2@1", "other@1", "demo@2"]


def test_log_of_an_empty_store(tmp_path: Path) -> None:
    run("capture", tmp_path / "missing", "--as", "x", "--store", tmp_path / "store")
    done = run("log", "--store", tmp_path / "store")
    assert (done.status, done.out, done.err) == (0, "", "sandlift: there is no snapshot\n")
    assert run("log", "--store", tmp_path / "store", "--json").objects == []


def test_show_tells_what_is_held_and_what_is_not(place: Place) -> None:
    done = place.run("show", "demo")
    assert (done.status, done.err) == (0, "")
    record, _, left = done.out.partition("\n\n")
    fields = dict(line.split(None, 1) for line in record.splitlines())
    assert fields["ref"] == "demo@2"
    assert fields["outcome"] == "complete"
    assert fields["holds"] == "3 directories, 7 files, 2 links, 5.0 MiB"
    assert fields["missing"] == "3 left out by policy"
    assert fields["rule"] == "*.log (--exclude)"
    assert fields["labels"] == "n=1=2, who=me"
    assert fields["note"] == "a note"
    assert [line.split(None, 2) for line in left.splitlines()] == [
        ["REASON", "KIND", "LEFT OUT"],
        ["fifo", "fifo", "fifo"],
        ["outside-link", "link", "outside -> /etc/passwd"],
        ["pattern", "file", "src.log  *.log (--exclude)"],
    ]


def test_ls_lists_the_subtree_sorted_by_path(place: Place) -> None:
    done = place.run("ls", "demo")
    names = [line[41:] for line in done.out.splitlines()]
    assert names == [
        "a.txt",
        "added",
        "$'caf\\xe9'",
        "empty",
        "inside -> src/main.py",
        "rebased -> a.txt",
        "sparse",
        "src",
        "src/deep",
        "src/deep/data",
        "src/main.py",
        "src/same (hard link of a.txt)",
    ]
    assert done.out.splitlines()[0] == "-rw-r-----       11 B  2017-07-14 02:40  a.txt"
    assert all(len(line) <= 80 for line in done.out.splitlines())


@pytest.mark.parametrize("path", ["src/deep", "./src//deep/", "src/./deep"])
def test_ls_of_a_path_lists_it_and_all_below(place: Place, path: str) -> None:
    done = place.run("ls", "demo", path)
    assert [line[41:] for line in done.out.splitlines()] == ["src/deep", "src/deep/data"]


def test_cat_gives_the_bytes_of_a_file(place: Place) -> None:
    assert place.run("cat", "demo", "a.txt").stdout == b"first file\n"
    assert place.run("cat", "demo", "src/same").stdout == b"first file\n"
    assert place.run("cat", "demo", "src/deep/data").stdout == bytes(range(256)) * 8192 + b"end"
    assert place.run("cat", "demo", "sparse", "--json").stdout == bytes(3 << 20) + b"tail"
    assert place.run("cat", "demo", b"caf\xe9").stdout == b"latin\n"


def test_restore_sets_the_tree_down(place: Place, tmp_path: Path) -> None:
    done = place.run("restore", "demo", tmp_path / "out")
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(
        rf"demo@2 restored to {re.escape(str(tmp_path))}/out: 12 entries in [0-9.]+ s;"
        r" 3 had been left out: sandlift show demo@2\n",
        done.out,
    )
    out = tmp_path / "out"
    assert (out / "a.txt").stat().st_ino == (out / "src" / "same").stat().st_ino
    assert (out / "a.txt").stat().st_mtime_ns == 1_500_000_000_123_456_789
    assert stat.S_IMODE((out / "a.txt").stat().st_mode) == 0o640
    assert os.readlink(out / "rebased") == "a.txt"
    assert sorted(os.listdir(os.fsencode(out))) == [
        *(b"a.txt", b"added", b"caf\xe9", b"empty", b"inside", b"rebased", b"sparse", b"src")
    ]


def test_restore_of_some_paths(place: Place, tmp_path: Path) -> None:
    done = place.run("restore", "demo@1", tmp_path / "out", "--path", "src/deep", "--path", b"caf\xe9")
    assert done.status == 0
    assert sorted(os.listdir(os.fsencode(tmp_path / "out"))) == [b"caf\xe9", b"src"]
    assert os.listdir(tmp_path / "out" / "src") == ["deep"]


def test_verify_reads_everything(place: Place) -> None:
    done = place.run("verify")
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(r"read 2 refs, 2 snapshots, 2 packs, [0-9.]+ [KM]iB: no damage\n", done.out)


def test_doctor_says_what_a_capture_would_find(place: Place) -> None:
    done = place.run("doctor", place.root, "--exclude-path", "src")
    assert (done.status, done.err) == (0, "")
    assert "left out  1 fifo, 1 outside-link, 1 pattern\n" in done.out
    assert done.out.splitlines()[-1] == "a capture would be complete"
    assert re.search(r"^ *3\.0 MiB  sparse$", done.out, re.MULTILINE)


def test_helper_shows_exactly_what_runs() -> None:
    from sandlift import payload

    assert run("helper", "--digest").out == payload.digest() + "\n"
    command = run("helper", "--command", "--json").object["command"]
    assert command == payload.sandbox_argv()
    assert "for p in /opt/py; do" in run("helper", "--command", "--python", "/opt/py").out
    text = run("helper", "--source").out
    assert text.startswith(f"# ==> start\n{payload.START}\n\n# ==> _stage.py\n")
    for source in payload.sources().values():
        assert source.decode().rstrip() in text
    assert run("helper").status == 2


def test_completion_is_a_script_and_its_answers_are_the_commands() -> None:
    import subprocess

    script = run("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, check=False).returncode == 0
    assert "complete -o nosort -F _sandlift_completion sandlift" in script.decode()
    for shell in ("zsh", "fish"):
        script_text = run("completion", shell).out
        assert "_SANDLIFT_COMPLETE" in script_text
        assert run("completion", shell, "--json").object == {"schema": 1, "shell": shell, "script": script_text}
    answered = run(
        env={"_SANDLIFT_COMPLETE": "bash_complete", "COMP_WORDS": "sandlift re", "COMP_CWORD": "1"},
    )
    assert answered.out == "plain,restore\n"
    assert run("completion", "tcsh").status == 2


def test_python_m_sandlift_is_the_same_program() -> None:
    import subprocess

    done = subprocess.run([sys.executable, "-m", "sandlift", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout == f"sandlift {sandlift.__version__}\n"


MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


# cases: pipeshub-ai/pipeshub-ai#2031, hephaestus-build/Hephaestus#903, hephaestus-build/Hephaestus#917
# cases: testcontainers/testcontainers-java#2863, testcontainers/testcontainers-java#4203, mcdonc/klangk#700
def test_memory_does_not_follow_the_size(tmp_path: Path) -> None:
    """The largest of all processes, the helper's too, stays far below what goes through them."""
    root = tmp_path / "w"
    root.mkdir()
    with open(root / "large", "wb") as file:
        file.writelines(os.urandom(1 << 20) for _ in range(320))
    store = ("--store", tmp_path / "store")
    # A small program measures, because a child begins with the size of its parent.
    prefix = [sys.executable, "-I", "-S", "-c", MEASURE]
    for words in (("capture", root, "--as", "w"), ("restore", "w", tmp_path / "out")):
        done = run(*words, *store, prefix=prefix)
        assert done.status == 0
        assert 1 << 10 < int(done.err) < 160 << 10
