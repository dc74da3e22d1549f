"""When compressing pays: rates in, codec out; and runs that are compressed already are left as they are."""

from __future__ import annotations

import lzma
import os
import random
import time
import zlib

import pytest

from sandlift_helper import wire
from sandlift_helper.channel import Failure
from sandlift_helper.codec import Packer, available
from sandlift_helper.pace import Pace, SparingPacker, content_packer, scheduled, shrinks, working_codecs

MIB = 1 << 20
WORDS = b"the way in and the way out of a place that is not like any other".split()
TEXT = b" ".join(random.Random(7).choices(WORDS, k=300_000))[:MIB]


def settled(pace: Pace, *, link: float, packs: float, left: float = 0.3, frames: int = 60) -> list[bool]:
    """What is decided for each of so many frames of 1 MiB.

    *link* and *packs* are bytes a second, of a link that is never idle and of one worker's compression.
    """
    decided = []
    for _ in range(frames):
        size = MIB
        decided.append(pace.pays())
        if decided[-1]:
            size = int(left * MIB)
            pace.packed(MIB, size, MIB / packs)
        pace.wrote(size, size / link)
    return decided


@pytest.mark.parametrize(
    ("workers", "link", "packs", "left", "pays"),
    [
        # A modem, a home's line, a gigabit, a pipe; zlib on a core of today.
        (1, 1e5, 70e6, 0.3, True),
        (1, 10e6, 70e6, 0.3, True),
        (1, 110e6, 70e6, 0.3, False),
        (1, 2e9, 70e6, 0.3, False),
        # One worker writes while it does not compress: the gain is small near its own rate.
        (1, 45e6, 70e6, 0.3, False),
        (2, 45e6, 70e6, 0.3, True),
        (2, 200e6, 70e6, 0.3, False),
        (4, 110e6, 70e6, 0.3, True),
        (4, 500e6, 70e6, 0.3, False),
        # A slow processor, and content that shrinks less.
        (2, 10e6, 3e6, 0.3, False),
        (4, 1e6, 70e6, 0.6, True),
        (2, 100e6, 70e6, 0.6, False),
    ],
)
def test_what_pays_in_the_end(workers: int, link: float, packs: float, left: float, pays: bool) -> None:
    decided = settled(Pace(workers), link=link, packs=packs, left=left)
    # What does not pay is tried again now and then.
    assert sum(decided[-40:]) >= 40 if pays else sum(decided[-40:]) <= 2


def test_nothing_is_compressed_before_the_link_is_known() -> None:
    assert not Pace(4).pays()


def test_a_slow_link_is_noticed_with_its_first_frame() -> None:
    assert settled(Pace(2), link=5e6, packs=70e6)[:3] == [False, True, True]


def test_a_link_that_becomes_slow_and_fast_again() -> None:
    pace = Pace(2)
    assert not any(settled(pace, link=1e9, packs=70e6))
    slow = settled(pace, link=5e6, packs=70e6)
    assert slow.index(True) <= 2
    assert all(slow[slow.index(True) :])
    fast = settled(pace, link=1e9, packs=70e6, frames=120)
    assert fast[0]
    assert not fast[-1]


def test_a_few_quick_writes_do_not_make_a_slow_link_fast() -> None:
    """Small frames vanish in the buffers on the way while zlib is at work."""
    pace = Pace(2)
    settled(pace, link=5e6, packs=70e6)
    assert settled(pace, link=1e9, packs=70e6, frames=10) == [True] * 10


def test_near_the_limit_it_does_not_flutter() -> None:
    pace = Pace(1)
    for link in (15e6, 40e6):
        decided = settled(pace, link=link, packs=70e6)
        assert len(set(decided[-30:])) == 1
    # What was begun below the limit goes on a little above it.
    assert decided[-1]
    assert not settled(Pace(1), link=40e6, packs=70e6)[-1]


def test_a_tiny_frame_says_little() -> None:
    pace = Pace(2)
    for _ in range(20):
        pace.wrote(MIB, 0.001)
        pace.wrote(40, 0.00001)
    assert not pace.pays()


def test_that_compression_was_slow_is_forgotten_in_time() -> None:
    pace = Pace(2)
    assert not settled(pace, link=20e6, packs=1e6)[-1]
    assert any(settled(pace, link=20e6, packs=70e6, frames=300))


@pytest.mark.parametrize(("queued", "pays"), [(0, True), (100, True), (1000, False), (6000, False)])
def test_workers_count_by_the_time_that_they_get(queued: int, pays: bool) -> None:
    """Four workers outdo this link; when they queue for one processor they do not."""
    pace = Pace(4)
    for _ in range(20):
        pace.scheduled(1000, queued * 3)
        pace.wrote(MIB, MIB / 80e6)
    assert pace.pays() == pays


def test_a_slow_link_is_slow_however_busy_the_processor_is() -> None:
    pace = Pace(4)
    pace.scheduled(1000, 100_000)
    pace.wrote(MIB, MIB / 2e6)
    assert pace.pays()


def test_the_kernel_tells_how_long_a_process_ran() -> None:
    before = scheduled()
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    after = scheduled()
    assert after == before == (0, 0) or after[0] - before[0] >= 10_000_000


# Packers


def packed(packer: Packer, data: bytes) -> tuple[int, bytes]:
    target = bytearray(len(data) + wire.PACKED_SLACK)
    size = packer.pack(bytearray(data), len(data), target, 0)
    return packer.codec, bytes(target[:size])


def test_what_is_compressed_already_is_left_as_it_is() -> None:
    packer = SparingPacker(1)
    for data in (os.urandom(MIB), lzma.compress(TEXT * 2), os.urandom(100)):
        assert not shrinks(bytearray(data), len(data))
        assert packed(packer, data) == (wire.CODEC_NONE, data)


@pytest.mark.parametrize("data", [TEXT, TEXT[:700], bytes(MIB), bytes(512), bytes(range(256)) * 500])
def test_what_shrinks_is_compressed(data: bytes) -> None:
    assert shrinks(bytearray(data), len(data))
    codec, encoded = packed(SparingPacker(1), data)
    assert codec == wire.CODEC_ZLIB
    assert zlib.decompress(encoded) == data
    assert len(encoded) < len(data)


def test_only_the_run_is_looked_at_and_not_what_an_earlier_one_left_behind_it() -> None:
    noise = os.urandom(5000)
    source = bytearray(noise + TEXT)
    assert not shrinks(source, len(noise))
    assert shrinks(source, len(source))


def test_a_level_is_taken_and_zlib_has_nine() -> None:
    sizes = [len(packed(SparingPacker(level), TEXT)[1]) for level in (1, 9, 22)]
    assert sizes[0] > sizes[1] == sizes[2]


def test_a_packer_with_a_pace_goes_by_what_it_is_told() -> None:
    packer = SparingPacker(1, Pace(2))
    assert packed(packer, TEXT)[0] == wire.CODEC_NONE
    for _ in range(10):
        packer.wrote(MIB, 1.0)
    assert packed(packer, TEXT)[0] == wire.CODEC_ZLIB
    assert packed(packer, os.urandom(MIB))[0] == wire.CODEC_NONE
    for _ in range(300):
        packer.wrote(MIB, 0.0005)
    assert packed(packer, TEXT)[0] == wire.CODEC_NONE


def test_the_time_that_zlib_takes_is_measured() -> None:
    """At a link that a default would call slow, its own slowness counts: level 9 of a worst case."""
    pace = Pace(1)
    pace.wrote(MIB, MIB / 10e6)
    assert pace.pays()
    pace.packed(8 * MIB, 3 * MIB, 8 * MIB / 5e6)
    assert not pace.pays()


# The choice


def test_codecs_that_work_stay_in_the_order_of_the_host() -> None:
    assert working_codecs(["none", "zlib"]) == [wire.CODEC_NONE, wire.CODEC_ZLIB]
    assert working_codecs(["brotli", "zlib", "none"]) == [wire.CODEC_ZLIB, wire.CODEC_NONE]


def test_a_codec_that_is_not_there_is_a_failure_that_says_what_is() -> None:
    with pytest.raises(Failure) as caught:
        working_codecs(["brotli"])
    assert caught.value.code == "options"
    assert caught.value.message == "the sandbox cannot do brotli; it has " + ", ".join(available())


@pytest.mark.parametrize(
    ("codecs", "kind", "paced"),
    [
        ([wire.CODEC_NONE], Packer, False),
        ([wire.CODEC_NONE, wire.CODEC_ZLIB], SparingPacker, True),
        ([wire.CODEC_ZLIB], SparingPacker, False),
        ([wire.CODEC_ZLIB, wire.CODEC_NONE], SparingPacker, False),
    ],
)
def test_which_packer_content_gets(codecs: list[int], kind: type[Packer], paced: bool) -> None:
    packer = content_packer(codecs, 1)
    assert type(packer) is kind
    packer.wrote(MIB, 10.0)
    assert packed(packer, TEXT)[0] == (wire.CODEC_ZLIB if paced else codecs[0])
