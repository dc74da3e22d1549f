"""A stream cut off anywhere is never a snapshot."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from protocol.replay import MARK, NONCE, contents, fix_nonce, leaves_a_partial, leaves_nothing, run_file

from sandlift import errors, payload
from sandlift.store import Store
from sandlift_helper import wire

SEED = 20261130


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the real helper sends for a small tree with files of many blocks and of none."""
    from helper.drive import request

    folder = tmp_path_factory.mktemp("transcript")
    chance = random.Random(SEED)
    root = folder / "w"
    for number in range(30):
        path = root / f"d{number % 3}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(number * number * 10))
    (root / "large").write_bytes(chance.randbytes(3 << 20))
    (root / "link").symlink_to("large")
    return record(request(root))


def record(fields: dict[str, object]) -> bytes:
    """The whole output of a helper that was given the constant nonce."""
    import subprocess
    import sys

    from sandlift_helper import messages

    message = messages.encode({**fields, "protocol": wire.PROTOCOL, "operation": "capture"})
    credit = wire.frame(wire.CREDIT, messages.encode({"frames": 1000}))
    process = subprocess.Popen(payload.local_argv(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(payload.opening(NONCE, "capture") + wire.frame(wire.REQUEST, message) + credit)
        process.stdin.flush()
        output = process.stdout.read()
    assert output.startswith(MARK)
    return output


def edges(output: bytes) -> list[int]:
    """Where each frame begins, and the end of the last one."""
    places = [len(MARK)]
    while places[-1] < len(output):
        size = int.from_bytes(output[places[-1] + 1 : places[-1] + 5], "little")
        places.append(places[-1] + wire.HEADER_SIZE + size)
    assert places[-1] == len(output)
    return places


@pytest.fixture
def output(transcript: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The transcript as a file, for a host whose nonce is the one in it."""
    fix_nonce(monkeypatch)
    path = tmp_path / "output"
    path.write_bytes(transcript)
    return path


def test_the_whole_of_it_is_a_snapshot(output: Path, transcript: bytes, store: Store) -> None:
    assert len(edges(transcript)) >= 10
    assert {transcript[place] for place in edges(transcript)[:-1]} >= {
        wire.HELLO,
        wire.MANIFEST,
        wire.CONTENT,
        wire.END,
    }
    assert [transcript[place] for place in edges(transcript)[:-1]].count(wire.CONTENT) >= 4
    assert run_file(output, store).counts.files == 31
    assert store.verify().is_sound


def assert_truncated(output: Path, size: int, store: Store) -> None:
    # Each as if it were the first: what one leaves, the next one would go on from.
    for partial in store.partials():
        store.collect_partial(partial)
    error = errors.Truncated if size >= len(MARK) else errors.HelperStart
    with pytest.raises(error) as caught:
        run_file(output, store, size=size)
    assert type(caught.value) is error, size
    if error is errors.Truncated:
        assert caught.value.context["received_bytes"] == size


def test_cut_at_every_edge_of_a_frame(output: Path, transcript: bytes, store: Store) -> None:
    with leaves_a_partial(store):
        for place in edges(transcript)[:-1]:
            for size in (place - 1, place, place + 1, place + wire.HEADER_SIZE):
                assert_truncated(output, size, store)
        assert_truncated(output, len(transcript) - 1, store)


# cases: kubernetes/kubernetes#60140, kubernetes/kubectl#1103, kubernetes/kubectl#1425
def test_cut_at_random_bytes(output: Path, transcript: bytes, store: Store) -> None:
    chance = random.Random(SEED)
    before = contents(Path(store.location))
    with leaves_a_partial(store):
        assert_truncated(output, len(transcript) - 1, store)
        # Every second cut is near the beginning or the end, where frames are short.
        for number in range(200):
            size = chance.randrange(len(transcript))
            if number % 4 == 1:
                size = chance.randrange(1000)
            elif number % 4 == 3:
                size = len(transcript) - 1 - chance.randrange(1000)
            assert_truncated(output, size, store)
            if number % 20 == 0:
                for partial in store.partials():
                    store.collect_partial(partial)
                assert contents(Path(store.location)) == before
        assert_truncated(output, len(transcript) - 1, store)
    assert [record.number for record in store.log("demo")] == [1]


@pytest.mark.parametrize("size", [0, 1, len(wire.MAGIC), len(MARK) - 1])
def test_cut_before_the_mark_is_no_start(output: Path, size: int, store: Store) -> None:
    with leaves_nothing(store):
        assert_truncated(output, size, store)


def test_a_hole_in_the_middle(output: Path, transcript: bytes, store: Store) -> None:
    """A frame that is lost altogether is seen at the end."""
    places = edges(transcript)
    with leaves_nothing(store):
        for start, end in pairwise(places[1:-1]):
            if transcript[start] == wire.PROGRESS:
                continue
            output.write_bytes(transcript[:start] + transcript[end:])
            with pytest.raises(errors.RemoteProtocolError):
                run_file(output, store)
