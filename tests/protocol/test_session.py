"""The host's session: whatever comes, it gives events, or refuses with one of two errors."""

from __future__ import annotations

from collections.abc import Callable

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.stream import Stream, message, root_segment, small

from sandlift.errors import HostLimit, LocalProtocolError, RemoteProtocolError
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.session import (
    HAVE_MAX,
    ORDER,
    Content,
    End,
    Event,
    Failure,
    Have,
    Hello,
    ManifestSegment,
    Progress,
    Session,
    State,
    Want,
)
from sandlift_helper import messages, wire

OPERATIONS = sorted(ORDER)
CREDIT = 100


# Written out, not taken from the table under test: what a peer may send, before and after its hello.
ALLOWED = {
    ("capture", "greeted"): {"hello"},
    ("survey", "greeted"): {"hello"},
    ("apply", "greeted"): {"hello"},
    ("capture", "open"): {"want", "have", "manifest", "content", "progress", "end", "failure"},
    ("survey", "open"): {"have", "progress", "end", "failure"},
    ("apply", "open"): {"have", "manifest", "progress", "end", "failure"},
}
EVENTS = {
    "hello": Hello,
    "manifest": ManifestSegment,
    "content": Content,
    "progress": Progress,
    "have": Have,
    "want": Want,
    "end": End,
    "failure": Failure,
}


def greeted(operation: str = "capture", *, limits: Limits = DEFAULT_LIMITS, credit: int = CREDIT) -> Session:
    """A session that has seen its mark."""
    session = Session(operation, limits)
    session.grant(credit)
    assert session.receive(wire.MAGIC + session.nonce) == []
    return session


def opened(operation: str = "capture", *, credit: int = CREDIT) -> Session:
    """A session that has had its hello."""
    session = greeted(operation, credit=credit)
    session.receive(Stream().hello().data)
    return session


def feed(session: Session, data: bytes, size: int) -> list[Event]:
    return [event for at in range(0, len(data), size) for event in session.receive(data[at : at + size])]


class TestOrder:
    def test_a_whole_capture(self) -> None:
        session = greeted()
        events = session.receive(small().data)
        kinds = [type(event) for event in events]
        assert kinds == [
            Hello,
            Progress,
            ManifestSegment,
            *(Content, ManifestSegment) * 2,
            ManifestSegment,
            *(Content, ManifestSegment),
            Progress,
            End,
        ]
        assert events[0] == Hello("3.6.0", "/p")
        assert events[1] == Progress("scan", {"entries": 3, "bytes": 9})
        assert events[-1] == End({"frames": 3, "blocks": 3})
        assert session.state is State.ENDED
        assert session.ended()

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
    def test_the_same_events_in_pieces(self, size: int) -> None:
        data = small().data
        assert feed(greeted(), data, size) == greeted().receive(data)

    @pytest.mark.parametrize("kind", sorted(wire.CAPS), ids=wire.KIND_NAMES.get)
    @pytest.mark.parametrize(("operation", "state"), sorted(ALLOWED))
    def test_every_state_and_kind(self, operation: str, state: str, kind: int) -> None:
        name = wire.KIND_NAMES[kind]
        stream = Stream().hello()
        session = greeted(operation)
        if state == "open":
            session.receive(stream.data)
        frame = stream.add(kind, message(protocol=1, frames=0)).frames[-1]
        if name == "end":
            frame = stream.end(frames=0).frames[-1]
        if name in ALLOWED[operation, state]:
            (event,) = session.receive(frame)
            assert type(event) is EVENTS[name]
            return
        with pytest.raises(RemoteProtocolError, match=f"sent a {name} frame") as caught:
            session.receive(frame)
        assert caught.value.context["state"] == session.state.value

    @pytest.mark.parametrize("kind", sorted(wire.CAPS), ids=wire.KIND_NAMES.get)
    @pytest.mark.parametrize("split", [False, True])
    def test_no_frame_of_any_kind_after_the_end(self, kind: int, split: bool) -> None:
        stream = Stream().hello()
        session = greeted()
        after = wire.frame(kind, b"\x80")
        end = stream.end().data
        for data in (end, after) if split else (end + after,):
            session.receive(data)
        with pytest.raises(RemoteProtocolError, match="goes on after its end"):
            session.ended()

    def test_a_frame_after_the_end_is_seen_before_noise_too(self) -> None:
        session = greeted()
        session.receive(Stream().hello().end().data + wire.frame(wire.PROGRESS, b"\x80") + b"logout\n")
        with pytest.raises(RemoteProtocolError, match="goes on after its end"):
            session.ended()

    def test_a_failure_closes_too(self) -> None:
        session = opened()
        assert session.receive(
            wire.frame(wire.FAILURE, b"\x83\xa4code\xacroot-missing\xa7message\xa8no\x80 such\xa6report\xa5trace")
        ) == [Failure("root-missing", "no\udc80 such", "trace")]
        assert session.ended()

    def test_an_output_that_stops_is_not_complete(self) -> None:
        session = greeted()
        for frame in small().frames[:-1]:
            session.receive(frame)
            assert not session.ended()


class TestEnd:
    def test_each_frame_but_content_counts_for_the_digest(self) -> None:
        frames = small().frames
        kinds = [frame[0] for frame in frames]
        for at, kind in enumerate(kinds[:-1]):
            if kind in (wire.HELLO, wire.CONTENT):
                continue
            rest = b"".join(frames[:at] + frames[at + 1 :])
            with pytest.raises(RemoteProtocolError, match="digest"):
                greeted().receive(rest)

    def test_frames_that_changed_places_change_the_digest(self) -> None:
        frames = small().frames
        manifests = [at for at, frame in enumerate(frames) if frame[0] == wire.MANIFEST]
        first, second = manifests[1:3]
        frames[first], frames[second] = frames[second], frames[first]
        with pytest.raises(RemoteProtocolError, match="digest"):
            greeted().receive(b"".join(frames))

    @pytest.mark.parametrize("digest", [None, b"", bytes(32), "text", 7])
    def test_a_wrong_digest(self, digest: object) -> None:
        with pytest.raises(RemoteProtocolError, match="digest"):
            greeted().receive(Stream().hello().end(digest=digest).data)

    @pytest.mark.parametrize("frames", [0, 2, -1, None, "1", True, 1.0, [1]])
    def test_a_wrong_count_of_content_frames(self, frames: object) -> None:
        with pytest.raises(RemoteProtocolError, match="content frames"):
            greeted().receive(Stream().hello().content(b"x").end(frames=frames).data)

    def test_a_missing_content_frame(self) -> None:
        frames = small().frames
        frames.remove(next(frame for frame in frames if frame[0] == wire.CONTENT))
        with pytest.raises(RemoteProtocolError, match="content frames"):
            greeted().receive(b"".join(frames))

    def test_a_second_end(self) -> None:
        session = greeted()
        end = Stream().hello().end()
        session.receive(end.data + end.frames[-1])
        with pytest.raises(RemoteProtocolError, match="after its end"):
            session.ended()


class TestCredit:
    def test_as_many_content_frames_as_were_granted(self) -> None:
        frame = Stream().content(b"x").data
        session = opened(credit=3)
        assert len(session.receive(frame * 3)) == 3
        with pytest.raises(RemoteProtocolError, match="credit"):
            session.receive(frame)

    def test_credit_adds_up(self) -> None:
        frame = Stream().content(b"x").data
        session = opened(credit=1)
        assert session.grant(2) == wire.frame(wire.CREDIT, messages.encode({"frames": 2}))
        session.receive(frame * 3)
        with pytest.raises(RemoteProtocolError, match="credit"):
            session.receive(frame)

    def test_no_content_without_credit(self) -> None:
        session = opened(credit=0)
        session.heartbeat()
        with pytest.raises(RemoteProtocolError, match="credit"):
            session.receive(Stream().content(b"x").data)

    def test_credit_is_not_taken_back(self) -> None:
        with pytest.raises(LocalProtocolError):
            Session("capture", DEFAULT_LIMITS).grant(-1)


class TestRequest:
    def test_one_request_with_protocol_and_operation(self) -> None:
        session = Session("survey", DEFAULT_LIMITS)
        frame = session.request({"root": b"/w", "operation": "apply"})
        assert frame[0] == wire.REQUEST
        assert messages.decode(frame[wire.HEADER_SIZE :]) == {"root": b"/w", "operation": "survey", "protocol": 1}
        with pytest.raises(LocalProtocolError):
            session.request({})

    def test_every_session_has_a_nonce_of_its_own(self) -> None:
        nonces = {Session("capture", DEFAULT_LIMITS).nonce for _ in range(20)}
        assert len(nonces) == 20
        assert {len(nonce) for nonce in nonces} == {wire.NONCE_SIZE}


class TestNoise:
    LIMITS = Limits(noise_bytes=1000, trailer_bytes=500)

    @pytest.mark.parametrize("size", [1, 5, 26, 27, 999, 5000])
    @pytest.mark.parametrize("noise", [b"", b"\n", b"hello " * 100, b"\x00sandlift", wire.MAGIC * 30, b"x" * 1000])
    def test_noise_up_to_the_cap_is_skipped(self, noise: bytes, size: int) -> None:
        session = Session("capture", self.LIMITS)
        session.grant(CREDIT)
        events = feed(session, noise + wire.MAGIC + session.nonce + small().data, size)
        assert type(events[-1]) is End
        assert session.noise == noise

    @pytest.mark.parametrize("size", [1, 100, 5000])
    def test_one_byte_more_is_refused(self, size: int) -> None:
        session = Session("capture", self.LIMITS)
        with pytest.raises(HostLimit, match="noise|before the stream") as caught:
            feed(session, b"x" * 1001 + wire.MAGIC + session.nonce + small().data, size)
        assert caught.value.context["limit"] == "noise_bytes"
        assert caught.value.context["allowed"] == 1000

    def test_endless_noise_is_refused_without_a_mark(self) -> None:
        session = Session("capture", self.LIMITS)
        session.receive(b"x" * 1000)
        session.receive(b"x" * (len(wire.MAGIC) + wire.NONCE_SIZE - 1))
        with pytest.raises(HostLimit):
            session.receive(b"x")

    def test_a_mark_split_at_every_byte(self) -> None:
        for cut in range(len(wire.MAGIC) + wire.NONCE_SIZE + 1):
            session = Session("capture", self.LIMITS)
            data = wire.MAGIC + session.nonce
            session.receive(b"banner\n" + data[:cut])
            assert (session.state is State.GREETED) == (cut == len(data))
            session.receive(data[cut:])
            assert session.state is State.GREETED
            assert session.noise == b"banner\n"

    @pytest.mark.parametrize("cut", range(0, 60, 7))
    def test_false_marks_are_noise(self, cut: int) -> None:
        session = Session("capture", self.LIMITS)
        wrong = bytes([session.nonce[0] ^ 1]) + session.nonce[1:]
        # A false mark, a true one whose last byte is wrong, and a beginning right before the true one.
        almost = session.nonce[:-1] + bytes([session.nonce[-1] ^ 1])
        noise = wire.MAGIC + wrong + wire.MAGIC + almost + wire.MAGIC[:5]
        data = noise + wire.MAGIC + session.nonce
        assert session.receive(data[:cut]) == []
        assert session.receive(data[cut:]) == []
        assert session.state is State.GREETED
        assert session.noise == noise

    def test_what_is_kept_of_an_unfinished_start(self) -> None:
        session = Session("capture", DEFAULT_LIMITS)
        session.receive(b"sh: python3: not found\n")
        assert session.unfinished_noise() == b"sh: python3: not found\n"
        assert not session.ended()

    @pytest.mark.parametrize("noise", [b"", b"\n", b"logout\n", b"\x01", b"\x09\xff\xff\xff\xff", b"x" * 500])
    def test_a_trailer_that_is_no_frame_is_noise(self, noise: bytes) -> None:
        session = greeted(limits=self.LIMITS)
        session.receive(Stream().hello().end().data + noise)
        assert session.ended()

    @pytest.mark.parametrize("size", [1, 100, 1000])
    def test_a_longer_trailer_is_refused(self, size: int) -> None:
        session = greeted(limits=self.LIMITS)
        with pytest.raises(HostLimit) as caught:
            feed(session, Stream().hello().end().data + b"x" * 501, size)
        assert caught.value.context["limit"] == "trailer_bytes"

    def test_the_default_trailer_is_64_kibibytes(self) -> None:
        session = greeted()
        session.receive(Stream().hello().end().data)
        session.receive(b"x" * 65536)
        assert session.ended()
        with pytest.raises(HostLimit):
            session.receive(b"x")


MAPS = (wire.HELLO, wire.PROGRESS, wire.HAVE, wire.END, wire.FAILURE)
BAD_MAPS = {
    "empty": b"",
    "no map": b"\x90",
    "text": b"\xa1x",
    "cut off": b"\x81\xa1a",
    "two": b"\x80\x80",
    "number as key": b"\x81\x01\x02",
    "bytes as key": msgpack.packb({b"k": 1}),
    "array as key": b"\x81\x90\x01",
    "nil as key": b"\x81\xc0\x01",
    "never used tag": b"\xc1",
    "map that states four billion": b"\xdf\xff\xff\xff\xff",
    "array that states four billion": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "text that states four billion": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "bad extension": b"\x81\xa1a\xc7\x03\xff123",
    "nested deeply": b"\x81\xa1a" + b"\x91" * 60000 + b"\xc0",
}


class TestMessages:
    @pytest.mark.parametrize("payload", BAD_MAPS.values(), ids=BAD_MAPS.keys())
    @pytest.mark.parametrize("kind", MAPS, ids=wire.KIND_NAMES.get)
    def test_what_is_no_map_is_refused(self, kind: int, payload: bytes) -> None:
        if len(payload) > wire.CAPS[kind]:
            payload = payload[: wire.CAPS[kind]]
        session = greeted() if kind == wire.HELLO else opened("survey")
        with pytest.raises(RemoteProtocolError, match=f"a {wire.KIND_NAMES[kind]} frame is no msgpack map"):
            session.receive(wire.frame(kind, payload))

    def test_a_large_answer_is_refused_before_it_is_decoded(self) -> None:
        at_most = b"\x81\xa1a\xc6" + (HAVE_MAX - 8).to_bytes(4, "big") + bytes(HAVE_MAX - 8)
        assert opened("survey").receive(wire.frame(wire.HAVE, at_most)) == [Have({"a": bytes(HAVE_MAX - 8)})]
        maps = b"\x81\xa1a\xdd" + HAVE_MAX.to_bytes(4, "big") + b"\x80" * HAVE_MAX
        with pytest.raises(RemoteProtocolError, match=f"a have frame of {len(maps)} bytes"):
            opened("survey").receive(wire.frame(wire.HAVE, maps))

    @pytest.mark.parametrize("protocol", [None, 0, 2, "1", b"1", [1], 1 << 63])
    def test_another_protocol_is_refused(self, protocol: object) -> None:
        with pytest.raises(RemoteProtocolError, match="another protocol"):
            greeted().receive(Stream().hello(protocol=protocol).data)

    @pytest.mark.parametrize("value", [None, 1, b"bytes", [], {}, True])
    def test_fields_of_other_types_are_empty(self, value: object) -> None:
        (hello,) = greeted().receive(Stream().hello(python=value, executable=value).data)
        assert hello == Hello("", "")
        (failure,) = opened().receive(wire.frame(wire.FAILURE, message(code=value, message=value, report=value)))
        assert failure == Failure("", "", "")

    def test_counts_are_whole_and_not_negative(self) -> None:
        counts = {"good": 1 << 63, "zero": 0, "below": -1, "half": 0.5, "yes": True, "text": "1", "none": None}
        (progress,) = opened().receive(wire.frame(wire.PROGRESS, message(phase="p", **counts)))
        assert progress == Progress("p", {"good": 1 << 63, "zero": 0})


# Whatever a sandbox sends.

mutations = st.lists(
    st.tuples(
        st.sampled_from(("flip", "cut", "double", "insert", "drop frame", "double frame", "swap frames")),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=3,
)


def mutated(changes: list[tuple[str, int, int, bytes]]) -> bytes:
    frames = small().frames
    for word, place, other, _ in changes:
        at, to = place % len(frames), other % len(frames)
        if word == "drop frame" and len(frames) > 1:
            del frames[at]
        elif word == "double frame":
            frames.insert(to, frames[at])
        elif word == "swap frames":
            frames[at], frames[to] = frames[to], frames[at]
    data = bytearray(b"".join(frames))
    for word, place, other, extra in changes:
        at = place % (len(data) or 1)
        to = min(len(data), at + other % 64)
        if word == "flip" and data:
            data[at] ^= extra[0]
        elif word == "cut":
            del data[at:to]
        elif word == "double":
            data[at:at] = data[at:to]
        elif word == "insert":
            data[at:at] = extra
    return bytes(data)


def assert_refuses_or_takes(make: Callable[[], Session], data: bytes, size: int) -> None:
    """Feeds anything in pieces: events, RemoteProtocolError or HostLimit may come out, and an end only as the last."""
    session = make()
    events: list[Event] = []
    try:
        events = feed(session, data, size)
        session.ended()
    except (RemoteProtocolError, HostLimit) as error:
        assert error.message
    ends = [at for at, event in enumerate(events) if isinstance(event, End | Failure)]
    assert ends in ([], [len(events) - 1])
    assert bool(ends) <= (session.state is State.ENDED)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(OPERATIONS), st.binary(max_size=400), st.integers(1, 100))
def test_random_bytes_after_the_mark(operation: str, data: bytes, size: int) -> None:
    assert_refuses_or_takes(lambda: greeted(operation), data, size)


random_frames = st.lists(
    st.tuples(
        st.sampled_from(sorted(wire.CAPS)),
        st.binary(max_size=30)
        | st.dictionaries(st.text(max_size=8), st.integers(-9, 9) | st.text()).map(msgpack.packb),
    ).filter(lambda pair: len(pair[1]) <= wire.CAPS[pair[0]]),
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(OPERATIONS), random_frames, st.integers(1, 100))
def test_random_frames_after_the_hello(operation: str, frames: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(wire.frame(kind, payload) for kind, payload in frames)
    assert_refuses_or_takes(lambda: opened(operation), data, size)


@settings(max_examples=400, deadline=None)
@given(mutations, st.integers(1, 20000))
def test_mutations_of_a_valid_stream(changes: list[tuple[str, int, int, bytes]], size: int) -> None:
    assert_refuses_or_takes(greeted, mutated(changes), size)


def test_every_single_bit_outside_of_content_is_proved() -> None:
    """A flipped bit anywhere but in content, which the blocks' own hashes prove, is refused or leaves no end."""
    frames = small().frames
    at = 0
    for frame in frames:
        for place in range(len(frame)):
            if frame[0] == wire.CONTENT and place >= wire.HEADER_SIZE:
                continue
            data = bytearray(b"".join(frames))
            data[at + place] ^= 1 << (place % 8)
            session = greeted()
            try:
                session.receive(bytes(data))
                complete = session.ended()
            except RemoteProtocolError:
                continue
            if complete:
                # The end itself is not digested; what it may still say otherwise is its count of blocks.
                assert frame[0] == wire.END
        at += len(frame)


def test_a_root_alone_is_a_capture() -> None:
    events = greeted().receive(Stream().hello().manifest(root_segment()).end().data)
    assert [type(event) for event in events] == [Hello, ManifestSegment, End]
