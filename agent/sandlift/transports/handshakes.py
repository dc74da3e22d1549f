"""Starts of commands over SSH, so few at once for each server that it does not begin to drop handshakes.

OpenSSH's server takes ten logins at once, drops some of the next ninety by chance and all beyond them
(``MaxStartups 10:30:100``).  So at most ``STARTS_MAX`` of this process are under way at one server, each from before
its handshake to its command's first byte, which is also what keeps a sandbox from starting hundreds of shells and
interpreters at one instant.  Who comes later waits in a queue: the next turn is always that of who has waited
longest, so nobody's start depends on luck.  Other processes may log in there too; what the server drops nevertheless
is tried again, later each time and by chance, so that those who were dropped together do not come back together.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import deque

from sandlift.deadline import Deadline

STARTS_MAX = 8
"""Below the ten at which the server begins to drop; the rest is for others."""
TURN_MAX_S = 30.0
"""A command that says nothing for so long has had time to begin; its turn goes to the next."""
RETRIES_MAX = 5
PAUSE_S = 0.2


def pause_s(tries: int) -> float:
    """How long to wait after so many dropped handshakes, from 1: about 0.2, 0.4, 0.8 seconds and so on."""
    return PAUSE_S * float(2 ** (tries - 1)) * random.uniform(0.5, 1.5)


class Turn:
    """A place in a gate's queue, and then within; ``leave`` gives up either, and may be called twice."""

    __slots__ = ("_arrived", "_gate")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._arrived = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Whether the turn has come, now or within that time."""
        return self._arrived.wait(timeout_s)

    def leave(self) -> None:
        """Lets the next one in."""
        self._gate._leave(self)


class Gate:
    """Lets *width* in at once, in the order in which they came."""

    def __init__(self, width: int = STARTS_MAX) -> None:
        self._lock = threading.Lock()
        self._width = width
        self._inside: set[Turn] = set()
        self._queue: deque[Turn] = deque()

    def queue(self) -> Turn:
        """Takes the last place of the queue."""
        turn = Turn(self)
        with self._lock:
            self._queue.append(turn)
            self._let_in()
        return turn

    def enter(self, deadline: Deadline, doing: str) -> Turn:
        """Waits for a turn.  Raises DeadlineExceeded and Interrupted, which name what one was *doing*."""
        turn = self.queue()
        try:
            while not turn.wait(deadline.slice_s()):
                deadline.check(doing)
        except BaseException:
            turn.leave()
            raise
        return turn

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            if turn in self._inside:
                self._inside.remove(turn)
                self._let_in()
            elif turn in self._queue:
                self._queue.remove(turn)

    def _let_in(self) -> None:
        while self._queue and len(self._inside) < self._width:
            turn = self._queue.popleft()
            self._inside.add(turn)
            turn._arrived.set()


_gates: weakref.WeakValueDictionary[tuple[str, int], Gate] = weakref.WeakValueDictionary()
_gates_lock = threading.Lock()


def gate_of(host: str, port: int) -> Gate:
    """Returns the gate of a server, the same one for as long as anybody holds it."""
    with _gates_lock:
        gate = _gates.get((host, port))
        if gate is None:
            gate = _gates[host, port] = Gate()
        return gate
