"""Codecs of whole captures: by name, by what the sandbox has, and by what the link takes."""

from __future__ import annotations

import os
import random
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.conftest import local, roads_over
from e2e.lift import Lift

from sandlift import content
from sandlift.box import Box, connect
from sandlift.errors import UsageError
from sandlift_helper import wire
from sandlift_helper.codec import load_zstd
from support.needs import lacking
from support.sshd import Sshd
from support.tree import read

MIB = 1 << 20
SIZE = 16 * MIB
# A reader that falls behind its writer: standard output passes at so many bytes a second.
THROTTLE = """\
import subprocess, sys, time
rate, words = int(sys.argv[1]), sys.argv[2:]
child = subprocess.Popen(words, stdout=subprocess.PIPE)
passed, started = 0, time.monotonic()
while True:
    data = child.stdout.read1(65536)
    if not data:
        break
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    passed += len(data)
    time.sleep(max(0.0, started + passed / rate - time.monotonic()))
sys.exit(child.wait())
"""


def texts(folder: Path, size_bytes: int = SIZE) -> None:
    """Files of 100 KiB whose words compress to less than half, all of them different."""
    chance = random.Random(4)
    words = [bytes(chance.choices(range(97, 123), k=chance.randint(2, 9))) for _ in range(3000)]
    folder.mkdir()
    for number in range(size_bytes // 102_400):
        (folder / f"f{number}").write_bytes(b" ".join(chance.choices(words, k=20_000))[:102_400])


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many content frames came by each codec."""
    counted: Counter[int] = Counter()
    prove = content.Prover.prove

    def counting(self: content.Prover, payload: bytes | bytearray) -> content.Run:
        counted[payload[0]] += 1
        return prove(self, payload)

    monkeypatch.setattr(content.Prover, "prove", counting)
    return counted


@pytest.fixture
def no_zstd(tmp_path: Path) -> Path:
    """A folder of libraries from which libzstd cannot be loaded: files of that name that are none come first."""
    folder = tmp_path / "no-zstd"
    folder.mkdir()
    for name in ("libzstd.so.1", "libzstd.so"):
        (folder / name).write_bytes(b"no library")
    return folder


@pytest.fixture
def without_zstd(monkeypatch: pytest.MonkeyPatch, no_zstd: Path) -> None:
    """Sandboxes of this machine have no libzstd."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(no_zstd))


@pytest.fixture
def throttled(place: Path, tmp_path: Path) -> Iterator[Lift]:
    """A workspace behind a link of 3 MB a second."""
    program = tmp_path / "throttle.py"
    program.write_text(THROTTLE)
    prefix = shlex.join([sys.executable, str(program), "3000000"])

    def road(path: Path | str) -> Box:
        return connect(os.fspath(path), via=prefix, python=sys.executable)

    with closing(Lift(place, road)) as lifted:
        yield lifted


@pytest.mark.parametrize("name", ["zstd", "zlib", "none"])
def test_a_codec_by_its_name(lift: Lift, frames: Counter[int], name: str) -> None:
    if name == "zstd" and load_zstd() is None:
        lacking("libzstd is not installed: apt-get install libzstd1")
    texts(lift.root, 3 * MIB)
    taken = lift.capture(codec=name)
    assert set(frames) == {wire.CODEC_NAMES[name]}
    assert lift.restore(taken) == read(lift.root)


def test_what_does_not_compress_is_left_alone_by_zlib(lift: Lift, frames: Counter[int]) -> None:
    lift.root.mkdir()
    (lift.root / "noise").write_bytes(os.urandom(3 * MIB))
    taken = lift.capture(codec="zlib")
    assert set(frames) == {wire.CODEC_NONE}
    assert lift.restore(taken) == read(lift.root)


@pytest.mark.parametrize("codec", ["zstd", "zlib"])
def test_a_higher_level_sends_less(lift: Lift, codec: str) -> None:
    if codec == "zstd" and load_zstd() is None:
        lacking("libzstd is not installed: apt-get install libzstd1")
    texts(lift.root, 3 * MIB)
    quick, small = (lift.capture(codec=codec, level=level).capture.wire.received for level in (1, 9))
    assert small < 0.98 * quick


def test_a_codec_that_the_sandbox_lacks(lift: Lift, without_zstd: None) -> None:
    texts(lift.root, MIB)
    with pytest.raises(UsageError, match="cannot do zstd; it has zlib, none"):
        lift.capture(codec="zstd")
    # The same sandbox without such a wish.
    assert lift.capture().capture.counts.files == len(os.listdir(lift.root))


def test_over_a_pipe_without_libzstd_content_goes_as_it_is(
    lift: Lift, frames: Counter[int], without_zstd: None
) -> None:
    texts(lift.root)
    taken = lift.capture()
    # That a busy machine makes a pipe slow for a frame is no matter.
    assert frames[wire.CODEC_NONE] > frames[wire.CODEC_ZLIB]
    assert frames[wire.CODEC_ZSTD] == 0
    assert lift.restore(taken) == read(lift.root)


def test_over_a_slow_link_without_libzstd_it_is_compressed(
    throttled: Lift, frames: Counter[int], without_zstd: None
) -> None:
    texts(throttled.root)
    taken = throttled.capture()
    # Each worker sends one frame or two before it knows.
    assert frames[wire.CODEC_ZLIB] > frames[wire.CODEC_NONE]
    assert frames[wire.CODEC_ZSTD] == 0
    assert taken.capture.wire.received < 0.8 * SIZE
    throttled.road = local
    assert throttled.restore(taken) == read(throttled.root)


def test_a_link_whose_bytes_are_dear_is_never_measured(place: Path, frames: Counter[int], no_zstd: Path) -> None:
    with Sshd(config=[f"SetEnv LD_LIBRARY_PATH={no_zstd}"]) as server:
        with closing(Lift(place, roads_over(server)["paramiko"])) as lifted:
            texts(lifted.root, 3 * MIB)
            lifted.capture()
    assert set(frames) == {wire.CODEC_ZLIB}
