"""What a terminal gets, what a closed pipe does, and that no name can do harm."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from cli.program import PROGRAM, Place, environment, run, run_on_terminal

from sandlift.cli import output
from sandlift.cli.progress import Lines, figures
from sandlift.cli.settings import Settings
from sandlift.model import Event

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
NASTY = [
    b"red\x1b[31m",
    b"bell\x07",
    b"line\nbreak",
    b"cr\rover",
    "rtl\u202egnp.exe".encode(),
    b"c1\x9b31m",
    b"del\x7f",
    b"[bold]x",
]


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A workspace whose names, links and note attack whoever looks at them."""
    folder = tmp_path_factory.mktemp("nasty")
    made = Place(root=folder / "w", store=folder / "store")
    made.root.mkdir()
    for name in NASTY:
        path = os.path.join(os.fsencode(made.root), name)
        os.mkdir(path)
        os.mkfifo(path + b"/f" + name)
        os.symlink(b"/out" + name, path + b"/l" + name)
    assert (
        made.run("capture", made.root, "--as", "nasty", "--note", "n\x1b[31m\n", "--label", "k=\x1b]0;x\x07").status
        == 0
    )
    return made


def lines_of(shown: bytes) -> list[str]:
    """What a terminal shows, without the escapes that sandlift itself writes."""
    return [line.rstrip() for line in ESCAPE.sub(b"", shown).decode().replace("\r\n", "\n").split("\n")]


@pytest.mark.parametrize("words", [("ls", "nasty"), ("show", "nasty"), ("log",)], ids=lambda words: words[0])
def test_no_name_reaches_a_terminal_raw(nasty: Place, words: tuple[str, ...]) -> None:
    for shown in (
        run_on_terminal(*words, "--store", nasty.store).stdout.replace(b"\r\n", b"\n"),
        nasty.run(*words).stdout,
    ):
        left = ESCAPE.sub(b"", re.sub(rb"\x1b\[[01]?m", b"", shown)).decode()
        assert b"\x1b[31m" not in shown
        assert all(c.isprintable() or c == "\n" for c in left)
        if words[0] != "log":
            assert "$'red\\e[31m" in "".join(left.split())


@pytest.mark.parametrize("words", [("cat", "nasty"), ("ls", "nasty")], ids=lambda words: words[0])
def test_no_name_in_an_error_reaches_a_terminal_raw(nasty: Place, words: tuple[str, ...]) -> None:
    for name in NASTY:
        done = nasty.run(*words, name + b"/none")
        assert done.status == 1
        assert all(c.isprintable() or c == "\n" for c in done.err)
    assert nasty.run("log", "x\x1b[31m").err.startswith("sandlift: error: 'x\\x1b[31m'")
    assert nasty.run("frob\x1b[31m").err.startswith("sandlift: error: no such command")
    assert "\x1b" not in nasty.run("frob\x1b[31m").err


@pytest.mark.parametrize("name", [*NASTY, b"plain", b" space", b"", b"$'x'", b"it's\\n", b"\xff\xfea", "ünï".encode()])
def test_a_quoted_name_is_safe_and_a_shell_reads_it_back(name: bytes) -> None:
    shown = output.quoted(name)
    assert shown.isprintable()
    if shown.startswith("$'"):
        read = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, env=environment(), check=True)
        assert read.stdout == name
    else:
        assert shown.encode() == name


def test_two_names_never_look_the_same() -> None:
    names = [b"a\n", b"a\\n", b"$'a\\n'", b"\xc3", b"\\xc3", "Ã".encode(), b"a", b"a ", b"", b"''"]
    assert len({output.quoted(name) for name in names}) == len(names)


def test_tables_fit_a_terminal_of_eighty_columns(place: Place) -> None:
    for words in (
        ("log",),
        ("show", "demo"),
        ("ls", "demo"),
        ("doctor", place.root),
        ("verify",),
        ("capture", "--help"),
    ):
        done = run_on_terminal(*words, "--store", place.store)
        assert done.status == 0
        lines = lines_of(done.stdout)
        # The lines of ls and of a record are never folded, so that they can be copied whole.
        limit = 120 if words[0] in ("show", "doctor") else 80
        assert max(map(len, lines)) <= limit, max(lines, key=len)
    shown = lines_of(run_on_terminal("log", "demo", "--store", place.store).stdout)
    assert shown[0].split() == ["REF", "CREATED", "FILES", "SIZE", "LOST", "SOURCE", "NOTE"]
    assert [line.split()[0] for line in shown if line.startswith("demo@")] == ["demo@2", "demo@1"]


# cases: openclaw/openclaw#42273
def test_a_capture_on_a_terminal_shows_its_progress_and_takes_it_back(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    for number in range(8):
        (root / f"{number}").write_bytes(os.urandom(4 << 20))
    # Slow enough for the bar to be drawn on any machine.
    done = run_on_terminal("capture", root, "--as", "w", "--store", tmp_path / "store", "--limit-rate", "16M")
    assert done.status == 0
    assert b"connecting ..." in done.stdout
    assert re.search(r"read .* of 8 files, [0-9.]+ [KM]?i?B of 32.0 MiB", ESCAPE.sub(b"", done.stdout).decode())
    # The cursor is shown again, and the last thing to be seen is the result.
    assert done.stdout.rfind(b"\x1b[?25h") > done.stdout.rfind(b"\x1b[?25l")
    assert lines_of(done.stdout)[-2].endswith("nothing left out")


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(Settings())
    for tenth in range(0, 321, 5):
        event = Event(
            kind="progress",
            phase="read",
            seconds=tenth / 10,
            entries=tenth,
            bytes=tenth << 20,
            total_entries=1000,
            total_bytes=900 << 20,
            rate=float(10 << 20),
        )
        lines(event)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "sandlift: read: 100 of 1,000 files, 100 MiB of 900 MiB, 10.0 MiB/s, 1 min 20 s left, 10.0 s",
        "sandlift: read: 200 of 1,000 files, 200 MiB of 900 MiB, 10.0 MiB/s, 1 min 10 s left, 20.0 s",
        "sandlift: read: 300 of 1,000 files, 300 MiB of 900 MiB, 10.0 MiB/s, 1 min 00 s left, 30.0 s",
    ]


def test_figures_of_a_scan_have_no_rate() -> None:
    event = Event(kind="progress", phase="scan", seconds=1.0, entries=1, bytes=5 << 30, rate=1e9)
    assert figures(event) == ["1 entries", "5.0 GiB"]


def test_a_warning_is_told_with_its_detail_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    event = Event(kind="warning", phase="connect", seconds=0.1, message="odd\x1b", detail="one\ntwo\x1b[31m")
    Lines(Settings())(event)
    assert capsys.readouterr().err == "sandlift: warning: odd\\e (-v shows it)\n"
    settings = Settings()
    settings.verbose = True
    Lines(settings)(event)
    assert capsys.readouterr().err == "sandlift: warning: odd\\e\n  | one\n  | two\\e[31m\n"


@pytest.mark.parametrize(
    "words", ["ls demo", "log", "show demo --json", "cat demo sparse", "--help", "helper --source"]
)
def test_a_closed_pipe_is_silent(place: Place, words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = (
            run(*words.split(), "--store", place.store, stdout=write) if words != "--help" else run(words, stdout=write)
        )
    finally:
        os.close(write)
    assert (done.status, done.err) == (141, "")


def test_a_pipe_that_closes_in_the_middle_is_silent(place: Place) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" cat demo sparse | head -c 5 | wc -c; echo "${PIPESTATUS[0]}"', PROGRAM],
        capture_output=True,
        text=True,
        env=environment(SANDLIFT_STORE=str(place.store)),
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == (["5", "141"], "")


@pytest.mark.parametrize("closing", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_descriptors_do_no_harm(own_place: Place, closing: str) -> None:
    command = f'"$0" capture {own_place.root} --as demo {closing}; "$0" verify'
    done = subprocess.run(
        ["bash", "-c", command, PROGRAM],
        capture_output=True,
        text=True,
        env=environment(SANDLIFT_STORE=str(own_place.store)),
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("read 3 refs")
    assert done.stdout.endswith("no damage\n")


def test_a_full_output_is_an_error(place: Place) -> None:
    with open("/dev/full", "wb") as full:
        done = run("ls", "demo", "--store", place.store, stdout=full)
    assert done.status == 1
    assert done.err == "sandlift: error: cannot write the output: No space left on device\n"


def test_an_output_without_unicode_is_escaped_and_no_error(place: Place, tmp_path: Path) -> None:
    (root := tmp_path / "w").mkdir()
    (root / "ünï").touch()
    assert place.run("capture", root, "--as", "uni").status == 0
    done = place.run("ls", "uni", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert (done.status, done.out.split("  ")[-1]) == (0, "\\xfcn\\xef\n")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 40, "1.0 TiB"),
        (102_400, "100 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert output.size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (59.96, "1 min 00 s"), (3599, "59 min 59 s"), (3700, "1 h 01 min")],
)
def test_times(seconds: float, text: str) -> None:
    assert output.seconds_text(seconds) == text


def test_a_full_output_is_an_error_for_programs_too(place: Place) -> None:
    with open("/dev/full", "wb") as full:
        done = run("ls", "demo", "--json", "--store", place.store, stdout=full)
    assert (done.status, done.err) == (1, "sandlift: error: cannot write the output: No space left on device\n")
