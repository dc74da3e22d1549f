"""Work on a restored tree, done by forked processes that the kernel shuts into it."""

from sandlift_helper.channel import Channel
from sandlift_helper.landlock import confine
from sandlift_helper.target import target_failure
from sandlift_helper.workers import Workers

MYPY = False
if MYPY:
    from collections.abc import Callable


class Confined:
    """Runs work on the tree that is open as *root_fd*; *shown* names it in failures."""

    def __init__(self, channel: Channel, root_fd: int, shown: str) -> None:
        self.channel = channel
        self.root_fd = root_fd
        self._shown = shown

    def once(self, work: "Callable[[], bytes]") -> bytes:
        """Does *work* in one process and returns its result.  Raises Failure."""
        return self.start(work)()

    def start(self, work: "Callable[[], bytes]") -> "Callable[[], bytes]":
        """Begins *work* in one process; what it returns waits for the result.  Raises Failure."""
        workers = Workers(self.channel, 1, self.guarded(lambda send: send(work())))
        return lambda: b"".join(workers.results())

    def guarded(self, job: "Callable[[Callable[[bytes], None]], None]") -> "Callable[[Callable[[bytes], None]], None]":
        """Returns *job* as one that confines itself first, and whose errors of the system are the target's."""

        def run(report: "Callable[[bytes], None]") -> None:
            confine(self.root_fd)
            try:
                job(report)
            except OSError as error:
                raise target_failure(error, self._shown)

        return run
