"""A scan that several processes share.

One process begins; only what it leaves, once it has looked at some names, is dealt out to forked scanners, in
batches of subtrees.  Each batch gives a portion (see `portions`), and these are put together in path order.

The whole is what one process would have found.  What alone depends on all that comes before, the limit of entries,
is left to one process: where a tree turns out to be over it, one walks it again.
"""

import os
import stat

from sandlift_helper.channel import Channel, Token, read_exactly, write_all
from sandlift_helper.portions import Portion, Subtree, decode_subtrees, encode_subtrees
from sandlift_helper.scan import Limits, Scan
from sandlift_helper.workers import WORKERS_MAX, Workers, usable_cores

MYPY = False
if MYPY:
    from collections.abc import Callable

    from sandlift_helper.ignore import Rules
    from sandlift_helper.mounts import Mounts
    from sandlift_helper.portions import Place

    # What a portion found between two places; a number stands for what a subtree will turn out to hold.
    Span = tuple[Portion, Place, Place]
    Item = int | Span

CACHEDIR_TAG = b"CACHEDIR.TAG"
CACHEDIR_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"

# A tree of fewer names is walked by one process: to fork takes as long as to look at some hundred.
FIRST_NAMES = 1000
# How many names a scanner looks at before it leaves the rest of its batch to others.
BATCH_NAMES = 2000
BATCH_SUBTREES_MAX = 64


def shared_scan(
    channel: Channel,
    root_fd: int,
    limits: Limits,
    rules: "Rules | None",
    mounts: "Mounts",
    own: "frozenset[tuple[int, int]]",
    skip_caches: bool,
    leftover: bytes = b"",
) -> Scan:
    """Returns the finished scan of a workspace (see `Scan`), by several processes where that pays.

    It sends progress.  Raises Failure when the root cannot be listed or a scanner dies.
    """
    skip = cache_tag if skip_caches else None
    told = [0, 0]

    def tick(entries: int, size: int) -> None:
        # A second walk begins at nothing.
        told[:] = max(told[0], entries), max(told[1], size)
        channel.progress("scan", entries=told[0], bytes=told[1])

    def portion(tick: "Callable[[int, int], None]" = tick) -> Portion:
        return Portion(root_fd, limits, rules, mounts, own, skip, tick, leftover)

    count = min(WORKERS_MAX, usable_cores())
    if count > 1 and hasattr(os, "fork"):
        first = portion()
        first.walk([Subtree(b"", 0, None)], FIRST_NAMES)
        if len(first.marks) == 1 and first.names <= limits.entries:
            return first
        whole = _Sharing(channel, portion, limits.entries).run(first, count)
        if whole is not None:
            return whole
    scan = Scan(root_fd, limits, rules, mounts, own, skip, tick, leftover)
    scan.run()
    return scan


def cache_tag(names: "list[bytes]", fd: int) -> "bytes | None":
    """Says that a directory is a cache (Cache Directory Tagging Specification 0.6); None of any other directory."""
    if CACHEDIR_TAG not in names:
        return None
    try:
        fd = os.open(CACHEDIR_TAG, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return None
    try:
        tagged = stat.S_ISREG(os.fstat(fd).st_mode) and os.read(fd, 43) == CACHEDIR_SIGNATURE
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"CACHEDIR.TAG (--exclude-caches)" if tagged else None


class _Sharing:
    """Deals subtrees out to scanners, and puts together what they find; ``portion(tick)`` makes an empty portion."""

    def __init__(self, channel: Channel, portion: "Callable[..., Portion]", names_max: int) -> None:
        self._channel = channel
        self._portion = portion
        self._names_max = names_max
        self._whole = portion()
        # What comes next in path order lies on top of both.
        self._order: "list[Item]" = [0]
        self._waiting: "list[tuple[int, Subtree]]" = []
        # What a subtree turned out to hold, by its number; and the numbers of the batches that are under way.
        self._found: "dict[int, list[Item]]" = {}
        self._batches: "dict[int, list[int]]" = {0: [0]}
        self._subtrees = self._dealt = self._entered = self._names = 0

    def run(self, first: Portion, count: int) -> "Portion | None":
        """Returns the whole, to which *first* is the beginning; None when it is one process that must walk."""
        self._take(0, first)
        if self._names > self._names_max:
            return None
        token = Token()
        batches_fd, batches_in = os.pipe()

        def job(report: "Callable[[bytes], None]") -> None:
            os.close(batches_in)
            while True:
                with token:
                    size = int.from_bytes(read_exactly(batches_fd, 4), "little")
                    data = read_exactly(batches_fd, size)
                if not data:
                    return
                number, subtrees = decode_subtrees(data)
                part = self._portion(lambda entries, size: None)
                part.walk(subtrees, BATCH_NAMES)
                report(part.encode(number))

        try:
            workers = Workers(self._channel, count, job)
        except OSError:
            # No more processes can be had here.
            os.close(batches_in)
            return None
        finally:
            os.close(batches_fd)
            token.close()
        self._deal(batches_in, workers.count)
        for result in workers.results():
            if not result:
                continue
            part = self._portion()
            self._take(part.decode(result), part)
            self._deal(batches_in, workers.count)
        return self._whole if self._names <= self._names_max else None

    def _deal(self, fd: int, count: int) -> None:
        """Gives each scanner that has none a batch.  It waits for one, so that this does not block."""
        if self._names > self._names_max:
            self._waiting.clear()
        while self._waiting and len(self._batches) < count:
            # About as many as a scanner can enter; towards the end, something for everybody.
            likely = min(BATCH_NAMES * self._entered // self._names, BATCH_SUBTREES_MAX)
            batch = [self._waiting.pop() for _ in range(1 + min(likely, (len(self._waiting) - 1) // (2 * count)))]
            self._dealt += 1
            self._batches[self._dealt] = [number for number, _ in batch]
            data = encode_subtrees(self._dealt, [subtree for _, subtree in batch])
            write_all(fd, len(data).to_bytes(4, "little") + data)
        if not self._batches:
            os.close(fd)

    def _take(self, batch: int, part: Portion) -> None:
        """Takes what the subtrees of a batch turned out to hold: rows, and further subtrees."""
        self._names += part.names
        numbers = iter(self._batches.pop(batch))
        items: "list[Item]" = []
        left: "list[tuple[int, Subtree]]" = []
        since: "Place" = (0,) * 6
        for place, subtree in part.marks:
            if place != since:
                items.append((part, since, place))
                since = place
            if subtree is None:
                self._entered += len(items) != 1 or not isinstance(items[0], int)
                self._found[next(numbers)] = items
                items = []
            else:
                self._subtrees += 1
                items.append(self._subtrees)
                left.append((self._subtrees, subtree))
        self._waiting += left[::-1]
        self._settle()

    def _settle(self) -> None:
        """Moves what is found into the whole, as far as nothing is missing that comes before."""
        order = self._order
        span: "Span | None" = None
        while order:
            item = order.pop()
            if isinstance(item, int):
                if item not in self._found:
                    order.append(item)
                    break
                order += self._found.pop(item)[::-1]
            elif span and item[0] is span[0] and item[1] == span[2]:
                # Subtrees of a batch often follow one another.
                span = item[0], span[1], item[2]
            else:
                if span:
                    self._whole.take(*span)
                span = item
        if span:
            self._whole.take(*span)
        self._whole.tell()
