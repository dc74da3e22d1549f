"""The host's side of the stream without any I/O: bytes in, events out, bytes to send as values.

Which kinds may come when is the table `ORDER`.  Whatever the sandbox sends, `Session.receive` returns events
or raises RemoteProtocolError or HostLimit; LocalProtocolError is raised only by what the host itself asks for
out of turn.
"""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from sandlift.errors import HostLimit, LocalProtocolError, RemoteProtocolError
from sandlift.limits import Limits
from sandlift.transports.base import harmless_text
from sandlift_helper import messages, wire

NOISE_KEPT_BYTES = 16 << 10
HAVE_MAX = 1 << 20
"""What a helper may say in one have or want frame: small maps decode to many times their size."""


class State(enum.Enum):
    """How far the stream has come."""

    NOISE = "before the stream"
    GREETED = "before the hello frame"
    OPEN = "within the stream"
    ENDED = "after the end"


# Operation to the kinds that may come after the hello frame, until one of them ends the stream.
_ANY_OPERATION = frozenset((wire.PROGRESS, wire.END, wire.FAILURE))
ORDER: dict[str, frozenset[int]] = {
    "capture": _ANY_OPERATION | {wire.WANT, wire.HAVE, wire.MANIFEST, wire.CONTENT},
    "survey": _ANY_OPERATION | {wire.HAVE},
    "apply": _ANY_OPERATION | {wire.MANIFEST, wire.HAVE},
}


class Hello(NamedTuple):
    """The helper runs."""

    python: str
    executable: str


class Progress(NamedTuple):
    """How far the helper is; counts by name, all of them non-negative."""

    phase: str
    counts: Mapping[str, int]


class ManifestSegment(NamedTuple):
    """A packed segment of the manifest."""

    payload: bytearray


class Content(NamedTuple):
    """A packed run of blocks."""

    payload: bytearray


class Have(NamedTuple):
    """What the helper found: the answer of a survey or to a base, or the codecs of a target."""

    message: Mapping[str, object]


class End(NamedTuple):
    """The operation is done; counts by name."""

    counts: Mapping[str, int]


class Failure(NamedTuple):
    """The helper says that it cannot."""

    code: str
    message: str
    report: str


class Want(NamedTuple):
    """What the helper needs of the base."""

    message: Mapping[str, object]


Event = Hello | Progress | ManifestSegment | Content | Have | Want | End | Failure


class Session:
    """One helper run, seen from the host.

    Feed what the sandbox sends to `receive`, and tell `ended` when its output ends.  `request`, `grant` and
    `heartbeat` return bytes to send, and may be called from another thread than `receive`.
    """

    def __init__(self, operation: str, limits: Limits) -> None:
        self.nonce = os.urandom(wire.NONCE_SIZE)
        self.state = State.NOISE
        self.noise = b""
        """The first bytes of what came before the stream, for people."""
        self._kinds = ORDER[operation]
        self._operation = operation
        self._limits = limits
        self._mark = wire.MAGIC + self.nonce
        self._tail = b""
        self._noise_bytes = 0
        self._reader = wire.Reader()
        self._digest = hashlib.sha256()
        self._granted = 0
        self._frames = 0
        self._requested = False

    # What the host sends.

    def request(self, fields: Mapping[str, object]) -> bytes:
        """Returns the request frame.  Raises LocalProtocolError for a second one."""
        if self._requested:
            raise LocalProtocolError("a session has one request")
        self._requested = True
        message = {**fields, "protocol": wire.PROTOCOL, "operation": self._operation}
        return wire.frame(wire.REQUEST, messages.encode(message))

    def grant(self, frames: int) -> bytes:
        """Returns a credit frame that lets the helper send so many more content frames."""
        if frames < 0:
            raise LocalProtocolError("credit cannot be taken back")
        self._granted += frames
        return wire.frame(wire.CREDIT, messages.encode({"frames": frames}))

    def heartbeat(self) -> bytes:
        """Returns the frame that tells the helper that the host lives."""
        return wire.frame(wire.CREDIT, messages.encode({"frames": 0}))

    # What the sandbox sends.

    def receive(self, data: bytes) -> list[Event]:
        """Returns the events that *data* completes.  Raises RemoteProtocolError, HostLimit."""
        if self.state is State.NOISE:
            data = self._skip_noise(data)
        if not data:
            return []
        try:
            frames = self._reader.feed(data)
        except wire.FrameError as error:
            raise RemoteProtocolError(f"the sandbox's stream is not valid: {error}") from None
        if len(self._reader.trailer) > self._limits.trailer_bytes:
            raise HostLimit(
                f"the sandbox printed over {self._limits.trailer_bytes} bytes after the stream",
                limit="trailer_bytes",
                allowed=self._limits.trailer_bytes,
            )
        return [self._take(kind, payload) for kind, payload in frames]

    def ended(self) -> bool:
        """Says that the sandbox's output has ended; returns whether the stream was complete.

        Raises RemoteProtocolError when a whole frame came right after its end.
        """
        trailer = self._reader.trailer
        room = len(trailer) - wire.HEADER_SIZE
        if room >= 0 and int.from_bytes(trailer[1 : wire.HEADER_SIZE], "little") <= min(
            room, wire.CAPS.get(trailer[0], -1)
        ):
            raise RemoteProtocolError("the sandbox's stream goes on after its end")
        return self.state is State.ENDED

    def _skip_noise(self, data: bytes) -> bytes:
        """Looks for the mark across chunks; returns what follows it, or nothing while it has not come."""
        whole = self._tail + data
        at = whole.find(self._mark)
        noise = whole[: at if at >= 0 else max(0, len(whole) - len(self._mark) + 1)]
        self._noise_bytes += len(noise)
        if len(self.noise) < NOISE_KEPT_BYTES:
            self.noise = (self.noise + noise)[:NOISE_KEPT_BYTES]
        if self._noise_bytes > self._limits.noise_bytes:
            raise HostLimit(
                f"the sandbox printed over {self._limits.noise_bytes} bytes before the stream",
                hint="-v shows what it prints; a shell's start-up files are the usual cause",
                limit="noise_bytes",
                allowed=self._limits.noise_bytes,
                noise=harmless_text(self.noise),
            )
        if at < 0:
            self._tail = whole[len(noise) :]
            return b""
        self._tail = b""
        self.state = State.GREETED
        return whole[at + len(self._mark) :]

    def unfinished_noise(self) -> bytes:
        """Returns all that is kept of the noise when the stream never began."""
        return (self.noise + self._tail)[:NOISE_KEPT_BYTES]

    def _take(self, kind: int, payload: bytearray) -> Event:
        name = wire.KIND_NAMES[kind]
        allowed = frozenset((wire.HELLO,)) if self.state is State.GREETED else self._kinds
        if kind not in allowed:
            raise RemoteProtocolError(f"the sandbox sent a {name} frame {self.state.value}", state=self.state.value)
        self.state = State.OPEN
        if kind == wire.CONTENT:
            return self._take_content(payload)
        if kind == wire.END:
            return self._take_end(payload)
        self._digest.update(wire.frame_header(kind, len(payload)))
        self._digest.update(payload)
        if kind == wire.MANIFEST:
            return ManifestSegment(payload)
        if kind in (wire.HAVE, wire.WANT) and len(payload) > HAVE_MAX:
            raise RemoteProtocolError(f"a {name} frame of {len(payload)} bytes, at most {HAVE_MAX} are allowed")
        message = _decode(name, payload)
        if kind == wire.HELLO:
            if message.get("protocol") != wire.PROTOCOL:
                raise RemoteProtocolError(f"the helper speaks another protocol than {wire.PROTOCOL}")
            return Hello(_text(message, "python"), _text(message, "executable"))
        if kind == wire.PROGRESS:
            return Progress(_text(message, "phase"), _counts(message))
        if kind == wire.HAVE:
            return Have(message)
        if kind == wire.WANT:
            return Want(message)
        self.state = State.ENDED
        return Failure(_text(message, "code"), _text(message, "message"), _text(message, "report"))

    def _take_content(self, payload: bytearray) -> Content:
        self._frames += 1
        if self._frames > self._granted:
            raise RemoteProtocolError("the sandbox sent more content than it was given credit for")
        return Content(payload)

    def _take_end(self, payload: bytearray) -> End:
        message = _decode("end", payload)
        if message.get("digest") != self._digest.digest():
            raise RemoteProtocolError(
                "the digest at the end of the stream does not fit what came before it",
                hint="something between sandbox and host altered the stream",
            )
        counts = _counts(message)
        if self._operation == "capture" and counts.get("frames") != self._frames:
            raise RemoteProtocolError(
                f"the stream's end counts {counts.get('frames')} content frames, {self._frames} came"
            )
        self.state = State.ENDED
        return End(counts)


def _decode(name: str, payload: bytearray) -> Mapping[str, object]:
    # Imported late: a connection is started before anything that takes long to import.
    import msgpack  # type: ignore[import-untyped]

    try:
        message = msgpack.unpackb(payload, raw=False, unicode_errors="surrogateescape", strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise RemoteProtocolError(f"a {name} frame is no msgpack map: {type(error).__name__}") from None
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise RemoteProtocolError(f"a {name} frame is no msgpack map")
    return message


def _text(message: Mapping[str, object], key: str) -> str:
    value = message.get(key, "")
    return value if isinstance(value, str) else ""


def _counts(message: Mapping[str, object]) -> Mapping[str, int]:
    return {key: value for key, value in message.items() if type(value) is int and value >= 0}
