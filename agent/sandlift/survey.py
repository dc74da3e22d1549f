"""A survey, seen from the host: what a capture of a sandbox would find, leave out and lose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sandlift import session
from sandlift.capturing import CaptureSpec, sandbox_request
from sandlift.deadline import Deadline
from sandlift.errors import RemoteProtocolError
from sandlift.helper_run import HelperRun
from sandlift.results import Survey
from sandlift.transports.base import Transport
from sandlift.watch import OnEvent, Watch
from sandlift_helper import table

Kind = TypeVar("Kind")
_LOST = frozenset(name for reason, name in table.REASON_NAMES.items() if reason >= table.LOST)


def survey(transport: Transport, spec: CaptureSpec, *, deadline: Deadline, on_event: OnEvent | None = None) -> Survey:
    """Looks at a workspace without taking anything.  Raises any error that a capture raises before it stores."""
    watch = Watch(on_event)
    watch.progress("connect")
    answer: Mapping[str, object] = {}
    with HelperRun(transport, "survey", limits=spec.limits, deadline=deadline, python=spec.python) as run:
        run.start(lambda: sandbox_request(spec, transport))
        for event in run.events():
            if isinstance(event, session.Have):
                answer = event.message
            elif isinstance(event, session.Progress):
                watch.progress("scan", entries=event.counts.get("entries", 0), bytes=event.counts.get("bytes", 0))
        assert run.hello is not None
        python, noise = run.hello.python, run.session.noise
    watch.end()
    try:
        return _read(answer, spec, python, noise)
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the sandbox's survey is not as it must be: {error}") from None


def _read(answer: Mapping[str, object], spec: CaptureSpec, python: str, noise: bytes) -> Survey:
    reasons = _of(answer, "reasons", dict)
    if not all(name in table.REASON_NAMES.values() and type(count) is int for name, count in reasons.items()):
        raise ValueError("an unknown reason")
    largest = tuple((_is(path, bytes), _is(size, int)) for path, size in _of(answer, "largest", list))
    return Survey(
        target=spec.target.source(),
        python_path=_of(answer, "python", str),
        python_version=python,
        codecs=tuple(_is(name, str) for name in _of(answer, "codecs", list)),
        root=_of(answer, "root", bytes),
        filesystem=_of(answer, "filesystem", bytes).decode("utf-8", "backslashreplace"),
        entries=_of(answer, "entries", int),
        bytes=_of(answer, "bytes", int),
        largest=largest,
        would_exclude={name: count for name, count in reasons.items() if name not in _LOST},
        would_lose={name: count for name, count in reasons.items() if name in _LOST},
        noise=noise,
    )


def _of(answer: Mapping[str, object], key: str, kind: type[Kind]) -> Kind:
    return _is(answer[key], kind)


def _is(value: object, kind: type[Kind]) -> Kind:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
