"""A seam under the store: every system call that it makes, counted, and the N-th one disturbed."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_CALLS = (
    "open",
    "close",
    "dup",
    "write",
    "pread",
    "fsync",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "chmod",
    "fchmod",
    "stat",
    "fstat",
    "listdir",
    "scandir",
)

Before = Callable[[int, str, tuple[Any, ...], dict[str, Any]], None]


@contextmanager
def watched(before: Before) -> Iterator[None]:
    """Calls *before* with number, name and arguments ahead of each system call of this thread."""
    thread = threading.get_ident()
    count = 0

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if threading.get_ident() == thread:
                count += 1
                before(count, name, args, kwargs)
            return call(*args, **kwargs)

        return wrapped

    originals = {name: getattr(os, name) for name in _CALLS}
    flock = fcntl.flock
    for name, call in originals.items():
        setattr(os, name, wrap(name, call))
    fcntl.flock = wrap("flock", flock)
    try:
        yield
    finally:
        for name, call in originals.items():
            setattr(os, name, call)
        fcntl.flock = flock
