"""A sandbox that lies, stalls, floods or dies: the right error, soon, and nothing stored or left running."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from protocol.replay import leaves_a_partial, leaves_nothing, run_prefix
from protocol.stream import Stream, add_file, digest_of, member, message, pack, root_segment, small

from sandlift import errors
from sandlift.deadline import Cancel
from sandlift.errors import SandliftError
from sandlift.limits import Limits
from sandlift.store import Store
from sandlift.transports.base import STDERR_TAIL_BYTES
from sandlift_helper import wire
from sandlift_helper.table import Segment
from support.hostile import MAGIC, Play

IMPATIENT = Limits(silence_s=1)


def stream(data: bytes) -> Play:
    return Play().mark().send(data)


def content_then(*segments: Segment) -> Stream:
    made = Stream().hello().content(b"one", b"two")
    for segment in segments:
        made.manifest(segment)
    return made


def files(*blocks: bytes) -> Segment:
    segment = root_segment()
    for number, block in enumerate(blocks):
        add_file(segment, b"%03d" % number, block)
    return segment


BOTH = files(b"one", b"two")
OTHER_NAME = Stream().hello().run(member(b"one", name=digest_of(b"two")), 1).manifest(files(b"two"))

# what comes -> (error, words of its message)
LIES: dict[str, tuple[bytes, type[SandliftError], str]] = {
    "no hello": (Stream().manifest(BOTH).end().data, errors.RemoteProtocolError, "manifest frame before the hello"),
    "two hellos": (Stream().hello().hello().data, errors.RemoteProtocolError, "hello frame within the stream"),
    "a frame of the host's": (
        Stream().hello().add(wire.CREDIT, message(frames=1)).data,
        errors.RemoteProtocolError,
        "credit frame within the stream",
    ),
    "a request": (Stream().hello().add(wire.REQUEST, b"\x80").data, errors.RemoteProtocolError, "request frame"),
    "an answer of another operation": (
        Stream().hello().add(wire.HAVE, b"\x80").data,
        errors.RemoteProtocolError,
        "answer to the base lacks a field",
    ),
    "another protocol": (Stream().hello(protocol=2).data, errors.RemoteProtocolError, "another protocol"),
    "unknown kind": (Stream().hello().data + b"\xee\0\0\0\0", errors.RemoteProtocolError, "unknown frame kind 238"),
    "oversize": (
        Stream().hello().data + b"\x08\xff\xff\xff\xff",
        errors.RemoteProtocolError,
        "frame of 4294967295 bytes",
    ),
    "a hello that is no map": (wire.frame(wire.HELLO, b"\x01"), errors.RemoteProtocolError, "no msgpack map"),
    "a block that is not its name": (OTHER_NAME.end().data, errors.RemoteProtocolError, "does not hash to its name"),
    "content that is no run": (
        Stream().hello().run(b"x" * 512, 1).manifest(files()).end().data,
        errors.RemoteProtocolError,
        "content that is not allowed",
    ),
    "a segment that does not unpack": (
        Stream().hello().add(wire.MANIFEST, b"\x02\xff\0\0\0junk").data,
        errors.RemoteProtocolError,
        "manifest that is not allowed",
    ),
    "a segment that is no table": (
        Stream().hello().add(wire.MANIFEST, pack(b"junk")).data,
        errors.InvalidManifest,
        "cannot be read",
    ),
    "a block that is named and never sent": (
        content_then(files(b"one", b"two", b"three")).end().data,
        errors.InvalidManifest,
        "was never sent",
    ),
    "a block that is sent and not named": (
        content_then(files(b"one")).end().data,
        errors.InvalidManifest,
        "sent that nothing names",
    ),
    "no manifest at all": (Stream().hello().end().data, errors.InvalidManifest, "has no root"),
    "wrong digest": (content_then(BOTH).end(digest=bytes(32)).data, errors.RemoteProtocolError, "digest at the end"),
    "wrong frames": (content_then(BOTH).end(frames=2).data, errors.RemoteProtocolError, "counts 2 content frames"),
    "wrong blocks": (content_then(BOTH).end(blocks=3).data, errors.RemoteProtocolError, "counts 3 blocks, 2 came"),
    "no count of blocks": (content_then(BOTH).end(blocks=None).data, errors.RemoteProtocolError, "counts -1 blocks"),
    "two ends": (
        (made := content_then(BOTH).end()).data + made.frames[-1],
        errors.RemoteProtocolError,
        "goes on after its end",
    ),
    "a frame after the end": (
        content_then(BOTH).end().data + wire.frame(wire.PROGRESS, b"\x80"),
        errors.RemoteProtocolError,
        "goes on after its end",
    ),
    "more content than credit": (
        Stream().hello().data + Stream().content(b"x").data * 400,
        errors.RemoteProtocolError,
        "credit",
    ),
    "failure of no known code": (Stream().hello().failure("x", "y").data, errors.HelperCrashed, "y"),
    "failure of a restore": (Stream().hello().failure("store-damaged", "y").data, errors.HelperCrashed, "y"),
    "failure of a target": (Stream().hello().failure("target-full", "y").data, errors.HelperCrashed, "y"),
    "failure without words": (Stream().hello().failure("").data, errors.HelperCrashed, "the helper failed"),
    "failure: no root": (Stream().hello().failure("root-missing", "gone").data, errors.RootMissing, "gone"),
    "failure with control characters": (
        Stream().hello().failure("root-missing", "\x1b[2J\r\nx").data,
        errors.RootMissing,
        r"^\\x1b\[2J\nx$",
    ),
    "over a limit": (
        Stream().hello().manifest(files(*[b"%d" % number for number in range(300)])).end().data,
        errors.HostLimit,
        "the limit entries: 300, allowed are 200",
    ),
}


def is_closed(data: bytes) -> bool:
    """Whether there is an end or a failure in it."""
    reader = wire.Reader()
    with contextlib.suppress(wire.FrameError):
        reader.feed(data)
    return reader.closed


@pytest.mark.parametrize("name", LIES)
def test_lies(name: str, store: Store, tmp_path: Path) -> None:
    data, error, says = LIES[name]
    limits = Limits(silence_s=5, entries=200)
    # Where it has not said its last word it stays: what is refused is refused at once.
    play = stream(data) if is_closed(data) else stream(data).stay()
    prefix = play.save(tmp_path / "play")
    began = time.monotonic()
    with leaves_nothing(store), pytest.raises(error, match=says) as caught:
        run_prefix(prefix, store, limits=limits)
    assert type(caught.value) is error
    assert caught.value.exit == error.exit
    assert time.monotonic() - began < 2


def test_the_truth(store: Store, tmp_path: Path) -> None:
    """The far side of these tests is believed when it tells no lie."""
    result = run_prefix(stream(small().data).save(tmp_path / "play"), store)
    assert (result.number, result.counts.files, result.counts.excluded) == (2, 4, 1)
    assert store.verify().is_sound


def test_a_block_may_come_twice_and_frames_in_any_order(store: Store, tmp_path: Path) -> None:
    made = Stream().hello().manifest(BOTH).content(b"two").content(b"one", b"two").content(b"one").end()
    result = run_prefix(stream(made.data).save(tmp_path / "play"), store)
    assert result.counts.files == 2
    assert store.verify().is_sound


def test_words_of_the_helper_are_made_harmless(store: Store, tmp_path: Path) -> None:
    """Text that is no UTF-8, wherever a hello or a failure may hold some."""
    hello = wire.frame(wire.HELLO, b"\x83\xa8protocol\x01\xa6python\xa43\xff.\xc3\xaaexecutable\xa1\xed")
    failure = wire.frame(wire.FAILURE, b"\x83\xa4code\xa1\xff\xa7message\xa5no\xed\xa0\x80\xa6report\xa2\x1b\x9b")
    with leaves_nothing(store), pytest.raises(errors.HelperCrashed) as caught:
        run_prefix(stream(hello + failure).save(tmp_path / "play"), store)
    assert caught.value.message.isprintable()
    assert str(caught.value.context["report"]).isprintable()


# Time.


def within(low_s: float, high_s: float, act: Callable[[], object]) -> None:
    began = time.monotonic()
    act()
    assert low_s <= time.monotonic() - began < high_s


@pytest.mark.parametrize("before", ["nothing", "mark", "hello", "half a frame", "most"])
def test_silence(before: str, store: Store, tmp_path: Path) -> None:
    data = {
        "nothing": b"",
        "mark": b"",
        "hello": Stream().hello().data,
        "half a frame": small().data[:100],
        "most": b"".join(small().frames[:-1]),
    }[before]
    play = Play() if before == "nothing" else stream(data)

    def act() -> None:
        leaves = leaves_a_partial if before == "most" else leaves_nothing
        with leaves(store), pytest.raises(errors.SandboxGone, match="nothing for 1 s") as caught:
            run_prefix(play.stay().save(tmp_path / "play"), store, limits=IMPATIENT)
        assert (caught.value.exit, caught.value.code) == (5, "sandbox-gone")

    within(1.0, 4.0, act)


DRIPS: dict[str, tuple[Play, type[SandliftError], str]] = {
    "noise": (Play().send(b"one moment ..."), errors.HelperStart, "prints, but the helper has not begun within 1 s"),
    "a-mark-in-noise": (Play().false_mark(), errors.HelperStart, "prints, but the helper has not begun within 1 s"),
    "header": (stream(Stream().hello().data), errors.SandboxGone, r"has sent only \d bytes of a frame for 1 s"),
    "manifest": (
        stream(Stream().hello().data + wire.frame_header(wire.MANIFEST, 1 << 20)),
        errors.SandboxGone,
        r"has sent only \d+ bytes of a frame for 1 s",
    ),
    "content": (
        stream(small().data[:400] + wire.frame_header(wire.CONTENT, 1 << 20)),
        errors.SandboxGone,
        r"has sent only \d+ bytes of a frame for 1 s",
    ),
}


# cases: the class 70, a byte a second
@pytest.mark.parametrize("drips", DRIPS)
def test_a_slow_drip_is_no_sign_of_life(drips: str, store: Store, tmp_path: Path) -> None:
    play, error, says = DRIPS[drips]
    data, pause_s = (MAGIC, 0.05) if drips != "header" else (b"\x09\xff\x00\x00", 0.3)

    def act() -> None:
        with leaves_nothing(store), pytest.raises(error, match=says) as caught:
            run_prefix(play.drip(data, pause_s).save(tmp_path / "play"), store, limits=IMPATIENT)
        assert type(caught.value) is error
        assert caught.value.exit == error.exit
        if error is errors.HelperStart:
            assert "silence_s" in caught.value.hint
            assert caught.value.context["noise"]

    within(1.0, 3.0, act)


def test_slow_but_alive(store: Store, tmp_path: Path) -> None:
    """What is long under way arrives in pieces that are no frames; a frame now and then is enough, too."""
    block = bytes(range(256)) * 100
    made = Stream().hello().content(block).manifest(files(block)).progress(files=1).end()
    hello, content, *rest = made.frames
    play = stream(hello)
    for at in range(0, len(content), 8192):
        play.sleep(0.4).send(content[at : at + 8192])
    for frame in rest:
        play.sleep(0.6).send(frame)
    limits = Limits(silence_s=1)
    assert run_prefix(play.save(tmp_path / "play"), store, limits=limits).counts.bytes == len(block)


def test_a_refusal_does_not_wait_for_the_next_word(store: Store, tmp_path: Path) -> None:
    """Blocks are proved beside the reading of the stream, and what is wrong with one is told at once."""
    play = stream(Stream().hello().data + OTHER_NAME.frames[1]).stay()

    def act() -> None:
        with leaves_nothing(store), pytest.raises(errors.RemoteProtocolError, match="does not hash to its name"):
            run_prefix(play.save(tmp_path / "play"), store)

    within(0.0, 2.0, act)


def test_endless_progress_meets_the_deadline(store: Store, tmp_path: Path) -> None:
    play = stream(Stream().hello().data).repeat(Stream().progress(files=1).data * 100)
    with leaves_nothing(store), pytest.raises(errors.DeadlineExceeded):
        run_prefix(play.save(tmp_path / "play"), store, deadline_s=1)


@pytest.mark.parametrize("noise", [b"x" * 4096, MAGIC + bytes(16), MAGIC[:5]], ids=["plain", "marks", "parts of marks"])
def test_endless_noise(noise: bytes, store: Store, tmp_path: Path) -> None:
    with leaves_nothing(store), pytest.raises(errors.HostLimit, match="over 1048576 bytes before the stream") as caught:
        run_prefix(Play().repeat(noise * (4096 // len(noise))).save(tmp_path / "play"), store)
    assert caught.value.context["limit"] == "noise_bytes"


def test_endless_noise_after_the_end(store: Store, tmp_path: Path) -> None:
    with leaves_nothing(store), pytest.raises(errors.HostLimit, match="after the stream"):
        run_prefix(stream(small().data).repeat(b"x" * 4096).save(tmp_path / "play"), store)


def test_a_far_side_that_does_not_end_after_its_end(store: Store, tmp_path: Path) -> None:
    """The end of the stream is the proof; the process is not waited for."""

    def act() -> None:
        assert run_prefix(stream(small().data).sleep(25).save(tmp_path / "play"), store).number == 2

    within(0.0, 6.0, act)
    assert store.verify().is_sound


def test_endless_manifest_meets_its_limit(store: Store, tmp_path: Path) -> None:
    segment = Segment()
    segment.orphans += bytes(32) * 30_000
    frame = Stream().manifest(segment).data
    play = stream(Stream().hello().manifest(root_segment()).data).repeat(frame)
    with leaves_nothing(store), pytest.raises(errors.HostLimit, match="the limit manifest_bytes"):
        run_prefix(play.save(tmp_path / "play"), store, limits=Limits(manifest_bytes=20_000_000))


# cases: kubernetes/kubernetes#58692
def test_a_flood_on_stderr(store: Store, tmp_path: Path) -> None:
    play = Play().complain(50_000_000).mark().send(small().data)
    assert run_prefix(play.save(tmp_path / "play"), store).number == 2
    with leaves_nothing(store), pytest.raises(errors.Truncated, match="the end of stderr") as caught:
        run_prefix(Play().mark().complain(50_000_000).save(tmp_path / "play"), store)
    assert len(str(caught.value.context["stderr"])) <= STDERR_TAIL_BYTES


# Ends.


# cases: kubernetes/kubectl#1361
@pytest.mark.parametrize("status", [0, 1, 97, 137])
@pytest.mark.parametrize("at", ["mark", "hello", "middle", "before the end"])
def test_an_exit_without_an_end(at: str, status: int, store: Store, tmp_path: Path) -> None:
    frames = small().frames
    data = b"".join(frames[: {"mark": 0, "hello": 1, "middle": 6, "before the end": len(frames) - 1}[at]])
    # Once the first block is there, it is kept for the next capture of the same target.
    leaves = leaves_a_partial if at in ("middle", "before the end") else leaves_nothing
    with leaves(store), pytest.raises(errors.Truncated) as caught:
        run_prefix(stream(data).exit(status).save(tmp_path / "play"), store)
    assert (caught.value.exit, caught.value.context["exit_status"]) == (5, status)
    assert ("sandlift salvage demo" in caught.value.hint) is (leaves is leaves_a_partial)
    assert caught.value.context["received_bytes"] == len(MAGIC) + 16 + len(data)


@pytest.mark.parametrize(
    ("status", "error"),
    [(0, errors.HelperStart), (1, errors.HelperStart), (96, errors.PythonOld), (97, errors.NoPython)],
)
def test_an_exit_before_the_stream(status: int, error: type[SandliftError], store: Store, tmp_path: Path) -> None:
    prefix = Play().send(b"Welcome!\n").exit(status).save(tmp_path / "play")
    with leaves_nothing(store), pytest.raises(error) as caught:
        run_prefix(prefix, store)
    assert type(caught.value) is error
    assert caught.value.exit == 6
    if error is errors.HelperStart:
        assert caught.value.message.endswith(f"(exit status {status}): Welcome!")


@pytest.mark.parametrize("after", [0, 3, 100])
def test_death_by_a_signal(after: int, store: Store, tmp_path: Path) -> None:
    with leaves_nothing(store), pytest.raises(errors.Truncated) as caught:
        run_prefix(stream(small().data[:after]).kill().save(tmp_path / "play"), store)
    assert caught.value.context["exit_status"] == 137


def test_an_output_that_is_closed_while_the_process_lives_on(store: Store, tmp_path: Path) -> None:
    def act() -> None:
        with leaves_nothing(store), pytest.raises(errors.Truncated):
            run_prefix(stream(Stream().hello().data).close().sleep(25).save(tmp_path / "play"), store)

    within(0.0, 6.0, act)


def test_a_cancel_before_anything(store: Store, tmp_path: Path) -> None:
    cancel = Cancel()
    cancel.cancel(15)
    with leaves_nothing(store), pytest.raises(errors.Interrupted) as caught:
        run_prefix(stream(small().data).save(tmp_path / "play"), store, cancel=cancel)
    assert caught.value.context["signal"] == 15


def test_a_far_side_that_does_not_read(store: Store, tmp_path: Path) -> None:
    """Its output is all that counts; what the host has to say fits into any pipe."""
    script = tmp_path / "deaf"
    script.write_text("printf 'no stream here'; exec sleep 20\n")

    def act() -> None:
        with leaves_nothing(store), pytest.raises(errors.SandboxGone):
            run_prefix(["sh", str(script)], store, limits=IMPATIENT)

    within(1.0, 4.0, act)
    assert not subprocess.run(["pgrep", "-f", str(script)], capture_output=True, check=False).stdout


def test_a_command_that_is_not_there(store: Store) -> None:
    with leaves_nothing(store), pytest.raises(errors.UsageError, match="cannot be started"):
        run_prefix(["/nonexistent/program"], store)


def test_what_is_kept_of_many_bytes_of_one_block(store: Store, tmp_path: Path) -> None:
    """One block, sent over and over under its own name, is stored no more often than it was allowed to come."""
    block = bytes(range(256)) * 4096
    made = Stream().hello()
    for _ in range(20):
        made.content(block, codec=wire.CODEC_ZSTD)
    made.manifest(files(block)).end()
    assert run_prefix(stream(made.data).save(tmp_path / "play"), store).counts.bytes == len(block)
    assert store.verify().is_sound
