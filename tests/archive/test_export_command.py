"""The command `sandlift export`: where the archive goes, what is said, and how it ends."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import termios
import time
from pathlib import Path

import pytest
from cli.program import PROGRAM, Place, environment, expect, run_on_terminal

from support.needs import find_program, lacking

MIB = 1 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A captured workspace, with a file of 2 MiB, a sparse one, hard links, and things that are left out."""
    made = Place.make(tmp_path_factory.mktemp("place"))
    assert made.run("capture", made.root, "--as", "demo").status == 0
    return made


@pytest.fixture(scope="module")
def archive(place: Place) -> bytes:
    """Its export."""
    done = place.run("export", "demo")
    assert done.status == 0
    return done.stdout


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Another workspace: one file, 48 MiB of noise and a long hole."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "work").mkdir()
    with open(folder / "work" / "data", "wb") as file:
        file.writelines(os.urandom(MIB) for _ in range(48))
        file.truncate(400 * MIB)
    made = Place(root=folder / "work", store=folder / "store")
    assert made.run("capture", made.root, "--as", "large").status == 0
    return made


def test_stdout_is_the_archive_and_stderr_says_what_is_not_in_it(place: Place, archive: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = [member.name for member in opened]
    assert names[0] == "."
    assert {"./src/main.py", "./inside", "./rebased"} < set(names)
    assert not {"./outside", "./fifo"} & set(names)
    done = place.run("export", "demo")
    assert done.err == (
        "sandlift: warning: 2 entries that the capture left out are not in the archive (1 fifo, 1 outside-link)\n"
    )


def test_a_file_appears_whole(place: Place, archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "demo.tar"
    path.write_bytes(b"before")
    done = place.run("export", "demo@1", "-o", path)
    assert done.status == 0
    assert path.read_bytes() == archive
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["demo.tar"]
    assert done.out.startswith("demo@1: 7 files, ")
    assert f" to {path} in " in done.out


def test_json(place: Place, archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "demo.tar"
    done = place.run("export", "demo", "--json", "--output", path)
    assert (done.status, done.err) == (0, "")
    found = done.object
    seconds = found.pop("seconds")
    assert 0 < seconds < 60
    shown = place.run("show", "demo", "--json").object
    assert found == {
        "schema": 1,
        "ref": "demo@1",
        "snapshot": shown["snapshot"],
        "outcome": "complete",
        "file": str(path),
        "bytes": len(archive),
        "counts": {
            "directories": 4,
            "files": 7,
            "links": 2,
            "hard_links": 0,
            "bytes": shown["counts"]["bytes"] + len(b"first file\n"),
            "bits_dropped": 0,
        },
        "skipped": {"fifo": 1, "outside-link": 1},
    }
    by_identity = place.run("export", shown["snapshot"][:12], "--json", "-o", path, "--hardlinks", "keep").object
    assert by_identity["ref"] is None
    assert (by_identity["counts"]["files"], by_identity["counts"]["hard_links"]) == (6, 1)


def test_json_needs_a_file(place: Place) -> None:
    expect(place.run("export", "demo", "--json"), 2, "options", "goes to stdout", "-o FILE")
    expect(place.run("export", "demo", "--json", "-o", "-"), 2, "options", "goes to stdout")


def test_a_terminal_is_refused(place: Place) -> None:
    done = run_on_terminal("export", "demo", env={"SANDLIFT_STORE": str(place.store)}, columns=200)
    assert done.status == 2
    assert done.stdout == (
        b"sandlift: error: an archive is not written to a terminal\r\n"
        b"hint: redirect the output, or name a file with -o FILE\r\n"
    )


@pytest.mark.parametrize("word", ["--gzip", "--zstd"])
def test_compression(place: Place, archive: bytes, word: str) -> None:
    import gzip

    import zstandard

    packed = place.run("export", "demo", word).stdout
    plain = (
        gzip.decompress(packed) if word == "--gzip" else zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    )
    assert plain == archive
    assert len(packed) < len(archive) // 4


def test_paths_and_special_bits_are_passed_on(place: Place) -> None:
    done = place.run("export", "demo", "--path", "src/deep", "--path", "caf\udce9", "--special-bits")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as opened:
        assert opened.getnames() == [".", "./caf\udce9", "./src", "./src/deep", "./src/deep/data"]
    assert done.err == ""


def test_what_is_not_there_leaves_nothing(place: Place, tmp_path: Path) -> None:
    expect(place.run("export", "other", "--json", "-o", tmp_path / "x"), 1, "unknown-ref")
    expect(place.run("export", "demo", "--json", "-o", tmp_path / "x", "--path", "nope"), 1, "unknown-path", "nope")
    expect(place.run("export", "demo", "--json", "-o", tmp_path / "x", "--path", "fifo"), 1, "unknown-path", "(fifo)")
    assert os.listdir(tmp_path) == []
    done = place.run("export", "demo@7")
    assert (done.status, done.stdout) == (1, b"")


def test_places_that_cannot_be_written(place: Place, tmp_path: Path) -> None:
    expect(place.run("export", "demo", "--json", "-o", tmp_path), 1, "target-unusable", "Is a directory")
    expect(place.run("export", "demo", "--json", "-o", tmp_path / "no" / "x"), 1, "target-unusable", "No such file")
    expect(place.run("export", "demo", "--json", "-o", "/dev/full"), 1, "target-full", "No space left")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [PROGRAM, "--store", place.store, "export", "demo"], stdout=full, stderr=subprocess.PIPE, env=environment()
        )
    assert done.returncode == 1
    assert done.stderr.endswith(b"sandlift: error: cannot write the output: No space left on device\n")
    assert os.listdir(tmp_path) == []


def test_devices_and_pipes_are_written_to_and_stay(place: Place, archive: bytes, tmp_path: Path) -> None:
    assert place.run("export", "demo", "-o", "/dev/null").status == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "copy", "wb") as copy, subprocess.Popen(["cat", tmp_path / "pipe"], stdout=copy) as reader:
        assert place.run("export", "demo", "-o", tmp_path / "pipe").status == 0
        assert reader.wait(30) == 0
    assert (tmp_path / "copy").read_bytes() == archive
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_the_target_of_a_link_is_replaced(place: Place, archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink("real/demo.tar", tmp_path / "link")
    assert place.run("export", "demo", "-o", tmp_path / "link").status == 0
    assert os.readlink(tmp_path / "link") == "real/demo.tar"
    assert (tmp_path / "real" / "demo.tar").read_bytes() == archive


def test_an_incomplete_snapshot_is_exported_with_a_warning(place: Place, tmp_path: Path) -> None:
    assert place.run("capture", place.root, "--as", "part", "--limit", "file_bytes=1M").status == 3
    done = place.run("export", "part")
    assert done.status == 0
    assert (
        "warning: part@1 is incomplete: something was lost when it was captured; see sandlift show part@1\n" in done.err
    )
    assert (
        "4 entries that the capture left out are not in the archive (1 fifo, 1 outside-link, 2 too-large)" in done.err
    )
    found = place.run("export", "part", "--json", "-o", tmp_path / "x").object
    assert (found["outcome"], found["skipped"]["too-large"]) == ("incomplete", 2)


def spoil(store: Path) -> None:
    """Make the blocks of a store's packs unreadable."""
    for pack in (store / "packs").glob("*/*"):
        data = bytearray(pack.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 16] = bytes(16)
        pack.write_bytes(data)


def test_damage_is_an_error_and_no_file(place: Place, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(place.store, tmp_path / "store")
    os.chmod(tmp_path / "store", 0o700)
    spoil(tmp_path / "store")
    broken = Place(root=place.root, store=tmp_path / "store")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept.tar").write_bytes(b"before")
    error = expect(
        broken.run("export", "demo", "--json", "-o", tmp_path / "out" / "kept.tar"),
        1,
        "store-damaged",
        "cannot be exported",
    )
    assert error["context"]["path"]  # type: ignore[index]
    assert os.listdir(tmp_path / "out") == ["kept.tar"]
    assert (tmp_path / "out" / "kept.tar").read_bytes() == b"before"
    done = broken.run("export", "demo")
    assert done.status == 1
    assert "no whole archive" in done.err
    assert not done.stdout.endswith(bytes(1024))
    with pytest.raises(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(done.stdout)) as opened:
        opened.getmembers()


def start(place: Place, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [PROGRAM, "--store", str(place.store), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def test_a_reader_that_has_gone_is_no_news(place: Place) -> None:
    process = start(place, "export", "demo")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(512).startswith(b"./")
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(30) == 141
    assert said.count(b"\n") == 1
    assert b"error" not in said
    process.stderr.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_though_nobody_reads(place: Place, number: int, status: int) -> None:
    process = start(place, "export", "demo")
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    waiting = 0
    while waiting < 65536 and time.monotonic() < deadline:
        time.sleep(0.05)
        (waiting,) = struct.unpack("i", fcntl.ioctl(process.stdout, termios.FIONREAD, b"\0" * 4))
    began = time.monotonic()
    process.send_signal(number)
    assert process.wait(30) == status
    assert time.monotonic() - began < 2
    process.communicate()


def test_a_signal_leaves_no_file(large: Place, tmp_path: Path) -> None:
    process = start(large, "export", "large", "--gzip", "-o", str(tmp_path / "large.tar.gz"))
    deadline = time.monotonic() + 30
    while not os.listdir(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert os.listdir(tmp_path) != ["large.tar.gz"]
    process.send_signal(signal.SIGTERM)
    said, complaint = process.communicate(timeout=30)
    assert (process.returncode, said) == (143, b"")
    assert complaint.endswith(b"sandlift: error: interrupted\n")
    assert os.listdir(tmp_path) == []


PEAK = """
import os, resource, subprocess, sys
with open(os.devnull, "wb") as null:
    status = subprocess.run(sys.argv[1:], stdout=null).returncode
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_bytes(place: Place, ref: str) -> int:
    """The most memory that an export took."""
    words = [PROGRAM, "--store", str(place.store), "export", ref]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words], capture_output=True, text=True, check=True, env=environment()
    )
    status, kib = done.stdout.split()
    assert status == "0"
    return int(kib) << 10


def test_memory_does_not_grow_with_content(place: Place, large: Place) -> None:
    assert peak_bytes(large, "large") - peak_bytes(place, "demo") < 16 * MIB


def test_the_archive_goes_through_a_pipe_into_tar(place: Place, tmp_path: Path) -> None:
    """As people write it."""
    if find_program("tar") is None:
        lacking("tar is not installed: apt-get install tar")
    line = f'"{PROGRAM}" --store "{place.store}" export demo --zstd | zstd -dc | tar -xf - -C "{tmp_path}"'
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True)
    assert done.returncode == 0
    assert (tmp_path / "src" / "main.py").read_bytes() == (place.root / "src" / "main.py").read_bytes()
    assert os.readlink(tmp_path / "rebased") == "a.txt"
