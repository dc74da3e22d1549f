"""The library's calls as coroutines: `connect`, `Box`, `capture` and `restore`, with their names and arguments.

    async with sandlift.aio.connect("ssh://me@box/srv/work") as box:
        result = await box.capture(store, "demo")

Each call works in a thread of its own, not in one of the event loop's executor, so as many really run at once as are
begun; `sandlift.box.connect` says what one costs.  The event loop's thread begins them and takes what they
give, and never waits.

Cancelling a task is what a `Cancel` is to the other calls: the coroutine ends with CancelledError once the run has
ended and put everything in order, within about two seconds.  What was committed by then stays committed.  *on_event* is
called in the event loop's thread, in order, and not after the call has returned; what it raises ends the run and is
raised by the call.

A store is the same one as elsewhere.  Opening it touches the disk, so give a function that opens it, or open it before.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial, wraps
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from sandlift import box as calls
from sandlift.deadline import Cancel
from sandlift.errors import Refused

if TYPE_CHECKING:
    from sandlift.model import Event
    from sandlift.targets import Target
    from sandlift.watch import OnEvent

__all__ = ["Box", "capture", "connect", "restore"]

P = ParamSpec("P")
Result = TypeVar("Result")


def _coroutine(call: Callable[P, Result]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """Makes a coroutine of a call that takes ``cancel`` and ``on_event``."""

    @wraps(call)
    async def wrapped(*arguments: P.args, **options: P.kwargs) -> Result:
        return await _run(call, arguments, options)

    return wrapped


def _method(
    call: Callable[Concatenate[calls.Box, P], Result],
) -> Callable[Concatenate[Box, P], Coroutine[Any, Any, Result]]:
    """The same for a call of a box."""

    @wraps(call)
    async def wrapped(self: Box, /, *arguments: P.args, **options: P.kwargs) -> Result:
        return await _run(call, (self._box, *arguments), options)

    return wrapped


class Box:
    """A `sandlift.Box` whose calls are coroutines; an asynchronous context manager."""

    def __init__(self, box: calls.Box) -> None:
        self._box = box

    @property
    def target(self) -> Target:
        """The place, and the root in it."""
        return self._box.target

    capture = _method(calls.Box.capture)
    survey = _method(calls.Box.survey)
    restore = _method(calls.Box.restore)

    async def close(self) -> None:
        """Ends the connection; may be called twice."""
        await _in_thread(self._box.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Connecting:
    """What `connect` returns: to be awaited, or entered with ``async with``."""

    def __init__(self, make: Callable[[], calls.Box]) -> None:
        self._make = make
        self._box: Box | None = None

    def __await__(self) -> Generator[Any, None, Box]:
        return self._connect().__await__()

    async def _connect(self) -> Box:
        # Files are read and modules imported; nothing is connected yet that a cancel would have to end.
        return Box(await _in_thread(self._make))

    async def __aenter__(self) -> Box:
        self._box = await self._connect()
        return self._box

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._box is not None:
            await self._box.close()


def _connecting(call: Callable[P, calls.Box]) -> Callable[P, Connecting]:
    @wraps(call)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> Connecting:
        return Connecting(partial(call, *arguments, **options))

    return wrapped


connect = _connecting(calls.connect)
capture = _coroutine(calls.capture)
restore = _coroutine(calls.restore)


async def _run(call: Callable[..., Result], arguments: tuple[object, ...], options: dict[str, Any]) -> Result:
    """Runs a call that a token can stop, and that tells events."""
    token = Cancel(options.get("cancel"))
    events = None
    options = {**options, "cancel": token}
    if options.get("on_event") is not None:
        events = _Events(asyncio.get_running_loop(), options["on_event"], token)
        options["on_event"] = events.tell
    try:
        result = await _in_thread(partial(call, *arguments, **options), token.cancel)
    except Exception:
        if events is not None and events.failure is not None:
            raise events.failure from None
        raise
    if events is not None and events.failure is not None:
        raise events.failure
    return result


class _Events:
    """Hands a run's events over to the event loop's thread; ``failure`` is what the callback raised."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_event: OnEvent, token: Cancel) -> None:
        self.failure: BaseException | None = None
        self._loop = loop
        self._on_event = on_event
        self._token = token
        self._context = contextvars.copy_context()

    def tell(self, event: Event) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, event, context=self._context)
        except RuntimeError:
            # The loop was closed over the run, so nobody will take what it gives.
            self._token.cancel()

    def _deliver(self, event: Event) -> None:
        if self.failure is None:
            try:
                self._on_event(event)
            except BaseException as error:
                self.failure = error
                self._token.cancel()


async def _in_thread(function: Callable[[], Result], stop: Callable[[], None] | None = None) -> Result:
    """Returns what *function* gives in a thread; a cancel calls *stop*, and is raised once the function has ended."""
    call = _Call(function, asyncio.get_running_loop())
    _STARTER.begin(call)
    cancelled: asyncio.CancelledError | None = None
    while not call.future.done():
        try:
            await asyncio.wait([call.future])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            if stop is not None:
                stop()
    if cancelled is not None:
        # Looked at, so that the loop does not complain of an error that nobody took.
        call.future.exception()
        raise cancelled
    return call.future.result()


class _Call(Generic[Result]):
    """A function that runs in a thread for a future of an event loop."""

    def __init__(self, function: Callable[[], Result], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Result] = loop.create_future()
        self._function = function
        self._loop = loop
        self._context = contextvars.copy_context()

    def run(self) -> None:
        try:
            result = self._context.run(self._function)
        except BaseException as error:
            self.fail(error)
        else:
            self._settle(partial(self.future.set_result, result))

    def fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):
            # A future cannot hold it.
            error = RuntimeError(repr(error))
        self._settle(partial(self.future.set_exception, error))

    def _settle(self, settle: Callable[[], object]) -> None:
        # A loop that was closed meanwhile takes nothing any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle)


class _Starter:
    """Starts a thread for each call, from a thread of its own, which lives as long as there are calls.

    Who starts a thread waits until it runs, which takes long where many others want the interpreter; the event loop
    must not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: SimpleQueue[_Call[Any] | None] | None = None
        self._running = 0

    def begin(self, call: _Call[Any]) -> None:
        """Starts a call's thread soon.  Raises Refused when this machine allows no more threads."""
        with self._lock:
            if self._calls is None:
                waiting: SimpleQueue[_Call[Any] | None] = SimpleQueue()
                try:
                    threading.Thread(target=self._work, args=(waiting,), name="sandlift-starter", daemon=True).start()
                except RuntimeError as error:
                    raise _no_thread(error) from None
                self._calls = waiting
            self._running += 1
            self._calls.put(call)

    def _work(self, waiting: SimpleQueue[_Call[Any] | None]) -> None:
        while (call := waiting.get()) is not None:
            try:
                threading.Thread(target=self._run, args=(call,), name="sandlift-call", daemon=True).start()
            except RuntimeError as error:
                self._end()
                call.fail(_no_thread(error))

    def _run(self, call: _Call[Any]) -> None:
        try:
            call.run()
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running and self._calls is not None:
                self._calls.put(None)
                self._calls = None


def _no_thread(error: RuntimeError) -> Refused:
    return Refused(f"this machine cannot start another thread: {error}", hint="run fewer at once, or raise `ulimit -u`")


_STARTER = _Starter()
