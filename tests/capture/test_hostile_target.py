"""A target that lies: whatever comes back from a restore, the host gives a typed error or goes on unharmed."""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from capture.refusal import stream
from cli.program import run
from protocol.replay import leaves_nothing, run_prefix
from protocol.stream import Stream, add_directory, add_file, message, pack, root_segment, small

from sandlift import errors
from sandlift.box import connect
from sandlift.errors import SandliftError
from sandlift.limits import Limits
from sandlift.model import RestoreOptions
from sandlift.results import Restore
from sandlift.store import Store
from sandlift_helper import table, wire
from sandlift_helper.table import Segment
from support.hostile import Play

MODES = ("new", "exact")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with one snapshot, which no test changes."""
    folder = tmp_path_factory.mktemp("target")
    with Store.open(folder / "store", create=True) as opened:
        run_prefix(stream(small().data).save(folder / "play"), opened)
        yield opened


def restore(play: Play, store: Store, folder: Path, *, mode: Any = "new", **options: Any) -> Restore | SandliftError:
    """Restores to whatever *play* is; returns what the caller gets, and any other exception is a failure."""
    prefix = shlex.join(play.save(folder / "play"))
    limits = options.pop("limits", Limits(silence_s=1))
    with leaves_nothing(store), connect("/w", via=prefix, reuse=False) as box:
        try:
            return box.restore(
                store, "demo", options=RestoreOptions(mode=mode), limits=limits, deadline_s=10, **options
            )
        except SandliftError as error:
            assert error.message
            assert error.message.replace("\n", "").isprintable()
            return error


def have(**fields: object) -> bytes:
    return wire.frame(wire.HAVE, message(**fields))


ABSENT = have(codecs=["zstd"], listed=False, exists=False, folds=False, in_place=False)


def listing(segment: Segment) -> bytes:
    return wire.frame(wire.MANIFEST, pack(table.encode(segment)))


def files(*paths: bytes) -> Segment:
    segment = root_segment()
    for path in paths:
        add_file(segment, path)
    segment.sort()
    return segment


HELLO = Stream().hello().data
LISTED = have(codecs=[], listed=True, exists=True)

# What the target says after its hello; it stays until the host has had enough.
LIES: dict[str, bytes] = {
    "nothing": b"",
    "end-at-once": Stream().hello().end().frames[-1],
    "end-of-a-capture": small().frames[-1],
    "end-with-counts-that-are-none": wire.frame(wire.END, message(created=-1, digest=b"x")),
    "have-empty": have(),
    "have-of-other-types": have(codecs=7, listed="yes", exists=1.5, folds=[], in_place={}),
    "have-of-many-codecs": have(codecs=["zstd"] * 1000 + ["\x1b[2J"], exists=False),
    "have-that-is-no-map": wire.frame(wire.HAVE, b"\x93\x01\x02\x03"),
    "have-of-extension-types": wire.frame(wire.HAVE, b"\x81\xa6codecs\xc7\x04\x05abcd"),
    "have-twice": ABSENT * 2,
    "have-without-end": ABSENT * 500,
    "listed-without-a-listing": LISTED,
    "listing-unasked": listing(files(b"a")),
    "listing-after-the-plan": ABSENT + listing(files(b"a")),
    "listing-that-is-no-table": wire.frame(wire.MANIFEST, pack(b"junk")),
    "listing-that-does-not-unpack": wire.frame(wire.MANIFEST, b"\x02\xff\0\0\0junk"),
    "listing-without-a-root": listing(Segment()) + LISTED,
    "listing-of-dotdot": listing(files(b"../x")) + LISTED,
    "listing-of-an-absolute-path": listing(files(b"/etc/passwd")) + LISTED,
    "listing-of-a-file-under-a-file": listing(files(b"a", b"a/b")) + LISTED,
    "listing-with-control-characters": listing(files(b"\x1b[2J/\x07")) + LISTED,
    "listing-twice": listing(files(b"a")) * 2 + LISTED,
    "content": Stream().content(b"x").data,
    "base": wire.frame(wire.BASE, b""),
    "want": wire.frame(wire.WANT, b""),
    "request": wire.frame(wire.REQUEST, b"\x80"),
    "another-hello": HELLO,
    "unknown-kind": b"\xee\0\0\0\0",
    "oversize": b"\x06\xff\xff\xff\xff",
    "progress-of-other-types": wire.frame(wire.PROGRESS, message(phase=7, files="x", bytes=None, total_bytes=[])),
    "progress-beyond-64-bits": wire.frame(wire.PROGRESS, message(phase="write", files=(1 << 64) - 1, bytes=1 << 63)),
    "progress-of-a-wait": Stream().progress("wait").data * 1000,
    "progress-without-end": Stream().progress("\x1b[2J", files=1).data * 1000,
}


IN_PLACE = [slug for slug in LIES if slug.startswith(("listing", "listed"))]


@pytest.mark.parametrize(("slug", "mode"), [*((slug, "new") for slug in LIES), *((slug, "exact") for slug in IN_PLACE)])
def test_lies(slug: str, mode: str, store: Store, tmp_path: Path) -> None:
    began = time.monotonic()
    found = restore(stream(HELLO + LIES[slug]).stay(), store, tmp_path, mode=mode)
    assert isinstance(found, SandliftError)
    assert found.exit in (4, 5)
    assert found.code in {"protocol", "invalid-manifest", "host-limit", "conflict", "sandbox-gone", "truncated"}
    assert time.monotonic() - began < 6


ENDS: dict[str, dict[str, object]] = {
    "of-nothing": {},
    "of-too-much": {"created": (1 << 64) - 1, "copied": 1 << 63, "refused": 1 << 63},
    "of-other-types": {"created": "many", "copied": None, "refused": 1.5, "root_kept": [], "old_kept": {}},
}


@pytest.mark.parametrize("slug", ENDS)
def test_ends_that_lie(slug: str, store: Store, tmp_path: Path) -> None:
    """An end that comes before all was sent, or that counts something else than the plan, is no success."""
    made = Stream().hello()
    made.frames.append(ABSENT)
    made._digest.update(ABSENT)
    found = restore(stream(made.end(**ENDS[slug]).data).stay(), store, tmp_path)
    assert type(found) is errors.RemoteProtocolError


@pytest.mark.parametrize("code", ["", "x", "\x1b[2J", "root-missing", "internal", "interrupted", "strict-loss"])
def test_failures_of_no_known_code(code: str, store: Store, tmp_path: Path) -> None:
    found = restore(stream(Stream().hello().failure(code, "no\x1b[2J", "why").data), store, tmp_path)
    assert type(found) is errors.HelperCrashed
    assert (found.exit, found.message) == (6, r"no\x1b[2J")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("target-not-empty", errors.TargetNotEmpty),
        ("target-full", errors.TargetFull),
        ("target-unusable", errors.TargetUnusable),
        ("store-damaged", errors.StoreDamaged),
        ("protocol", errors.RemoteProtocolError),
    ],
)
def test_failures_of_known_codes(code: str, error: type[SandliftError], store: Store, tmp_path: Path) -> None:
    found = restore(stream(Stream().hello().failure(code, "no\x1b[2J\x00" + "y" * 100_000).data), store, tmp_path)
    assert type(found) is error
    assert found.message.startswith(r"no\x1b[2J\x00yyy")
    assert len(found.message) <= 1000


def test_times(store: Store, tmp_path: Path) -> None:
    """Silence, a drip, and a target that takes what it is sent byte by byte or not at all."""
    limits = Limits(silence_s=1)
    for play, error in (
        (Play().stay(), errors.SandboxGone),
        (Play().drip(b"x", 0.05), errors.HelperStart),
        (stream(HELLO).stay(), errors.SandboxGone),
        (stream(HELLO + wire.frame_header(wire.HAVE, 4000)).drip(b"x", 0.05), errors.SandboxGone),
        (stream(HELLO + ABSENT).sleep(20), errors.SandboxGone),
    ):
        began = time.monotonic()
        found = restore(play, store, tmp_path, limits=limits)
        assert type(found) is error
        assert 1 <= time.monotonic() - began < 4


# Whatever comes.

PIECES: tuple[bytes, ...] = (*LIES.values(), ABSENT, LISTED, listing(root_segment()), small().frames[1])


def anything(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 4))))
    for _ in range(chance.randrange(3)):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        extra: bytes = msgpack.packb(
            {"codecs": [], "listed": chance.random() < 0.5, "exists": True, "x": chance.random()}
        )
        data += wire.frame(wire.HAVE, extra)
    return bytes(data)


@pytest.mark.parametrize("number", range(12))
def test_anything(number: int, store: Store, tmp_path: Path) -> None:
    chance = random.Random(number)
    for _ in range(3):
        found = restore(stream(HELLO + anything(chance)).exit(0), store, tmp_path, mode=chance.choice(MODES))
        assert isinstance(found, SandliftError)
        assert found.exit in (4, 5, 6)


# As people meet it.


@pytest.mark.parametrize("slug", ["end-at-once", "listing-of-dotdot", "have-of-other-types", "have-without-end"])
def test_the_program_says_what_is_wrong(slug: str, store: Store, tmp_path: Path) -> None:
    prefix = shlex.join(stream(HELLO + LIES[slug]).exit(0).save(tmp_path / "play"))
    done = run("restore", "demo", "/w", "--via", prefix, "--json", "--store", store.location)
    assert done.error["code"] != "internal"
    assert done.status in (4, 5, 6)


def test_what_a_target_says_reaches_a_terminal_harmlessly(store: Store, tmp_path: Path) -> None:
    made = Stream().hello(python="3.6\x1b[2J", executable="\x1b]0;x\x07").progress("\x1b[2J", files=1)
    made.failure("target-full", "\x1b[2J\x9b\u202e", "report\x1b[2J")
    play = Play().send(b"\x1b[2Jbanner\n").mark().send(made.data).complain(10)
    prefix = shlex.join(play.save(tmp_path / "play"))
    done = run("restore", "demo", "/w", "--via", prefix, "-v", "--store", store.location)
    assert (done.status, done.out) == (1, "")
    assert "error: " in done.err
    assert all(line.isprintable() for line in done.err.splitlines())


# The answer of a survey.

ANSWER = {
    "python": "/usr/bin/python3",
    "codecs": ["zstd"],
    "root": b"/w",
    "filesystem": b"ext4",
    "entries": 1,
    "bytes": 1,
    "largest": [[b"a", 1]],
    "reasons": {"fifo": 1},
}
ANSWERS: dict[str, dict[str, object]] = {
    "no-python": {"python": None},
    "codecs-no-texts": {"codecs": [b"zstd"]},
    "root-no-bytes": {"root": "/w"},
    "count-no-number": {"entries": 1.5},
    "count-true": {"bytes": True},
    "largest-of-three": {"largest": [[b"a", 1, 1]]},
    "largest-of-texts": {"largest": ["ab"]},
    "largest-of-numbers": {"largest": [1]},
    "unknown-reason": {"reasons": {"\x1b[2J": 1}},
    "reason-without-number": {"reasons": {"fifo": "1"}},
    "reasons-no-map": {"reasons": [1]},
}


def surveyed(answer: dict[str, object], folder: Path, *words: str) -> Any:
    made = Stream().hello(python="3.6\x1b[2J").add(wire.HAVE, message(**answer))
    prefix = shlex.join(stream(made.end(frames=None, blocks=None).data).save(folder / "play"))
    return run("doctor", "/w", "--via", prefix, *words)


@pytest.mark.parametrize("slug", ANSWERS)
def test_surveys(slug: str, tmp_path: Path) -> None:
    made = Stream().hello().add(wire.HAVE, message(**{**ANSWER, **ANSWERS[slug]})).end(frames=None, blocks=None)
    with connect("/w", via=shlex.join(stream(made.data).save(tmp_path / "play")), reuse=False) as box:
        with pytest.raises(errors.RemoteProtocolError, match="survey is not as it must be") as caught:
            box.survey(deadline_s=10)
    assert caught.value.message.isprintable()


def test_a_survey_is_shown_harmlessly(tmp_path: Path) -> None:
    words: dict[str, object] = {
        "python": "/p\x1b[2J",
        "codecs": ["\x1b[2J"],
        "root": b"/\x1b[2J\n\xff",
        "filesystem": b"\x9b\x1b[2J",
        "entries": (1 << 64) - 1,
        "bytes": (1 << 64) - 1,
        "largest": [[b"\x1b[2J\n", (1 << 64) - 1]],
    }
    done = surveyed({**ANSWER, **words}, tmp_path)
    assert done.status == 0
    assert all(line.isprintable() for line in done.out.splitlines())
    assert surveyed({**ANSWER, **words}, tmp_path, "--json").object["bytes"] == (1 << 64) - 1


def test_nothing_of_a_directory_is_made_here(store: Store, tmp_path: Path) -> None:
    """The paths that a target lists are names, not places of this machine."""
    segment = root_segment()
    add_directory(segment, b"made")
    before = sorted(tmp_path.rglob("*"))
    restore(stream(HELLO + listing(segment) + LISTED).exit(0), store, tmp_path, mode="exact")
    assert [path.name for path in sorted(tmp_path.rglob("*")) if path not in before] == ["play"]
