"""Captures of what a hostile far side sends, into a store of their own: refused and nothing stored, or accepted."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TypeVar

import pytest
from protocol.replay import contents, leaves_nothing, run_prefix

from sandlift.errors import SandliftError
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.results import Capture
from sandlift.store import Store
from sandlift_helper import wire
from support.hostile import Play

Error = TypeVar("Error", bound=SandliftError)

AT_ONCE_S = 3.0
MESSAGE_MAX = 1100
_CLOSING = frozenset((wire.END, wire.FAILURE))


def stream(data: bytes) -> Play:
    """The mark and these bytes."""
    return Play().mark().send(data)


def is_closed(data: bytes) -> bool:
    """Whether there is an end or a failure in it."""
    reader = wire.Reader()
    try:
        reader.feed(data)
    except wire.FrameError:
        return False
    return reader.closed


def refuse(
    play: Play | bytes,
    folder: Path,
    error: type[Error],
    says: str,
    *,
    limits: Limits = DEFAULT_LIMITS,
    within_s: float = AT_ONCE_S,
) -> Error:
    """Captures, and asserts that it is refused with that error in time, and that the new store holds nothing.

    A stream whose last word is not said is refused while the far side lives on.  Returns the error.
    """
    if isinstance(play, bytes):
        play = stream(play) if is_closed(play) else stream(play).stay()
    with Store.open(folder / "refused", create=True) as store:
        began = time.monotonic()
        with leaves_nothing(store), pytest.raises(error) as caught:
            run_prefix(play.save(folder / "play"), store, limits=limits)
        assert time.monotonic() - began < within_s
        # Not even an unfinished file.
        assert set(contents(folder / "refused")) <= {"format", "lock"}
        assert store.workspaces() == []
    found = caught.value
    assert type(found) is error
    assert (found.code, found.exit) == (error.code, error.exit)
    assert re.search(says, found.message), found.message
    assert found.message.isprintable()
    assert len(found.message) < MESSAGE_MAX
    return found


def accept(play: Play | bytes, folder: Path, *, limits: Limits = DEFAULT_LIMITS) -> Capture:
    """Captures, and asserts that it is stored whole and sound."""
    if isinstance(play, bytes):
        play = stream(play)
    with Store.open(folder / "accepted", create=True) as store:
        result = run_prefix(play.save(folder / "play"), store, limits=limits)
        assert store.verify().is_sound
    return result
