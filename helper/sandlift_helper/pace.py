"""Which codec the content of a capture gets: what the host prefers, and frame by frame what is worth its time.

zstd is faster than any link.  zlib is not: without libzstd, content goes out as it is unless the link takes
longer for it than zlib does.  Both times are measured as the frames go.
"""

import time

from sandlift_helper import wire
from sandlift_helper.channel import Failure
from sandlift_helper.codec import Packer, available
from sandlift_helper.workers import WORKERS_MAX, usable_cores

# Before zlib was measured: 50 MB/s, to four tenths, with the weight of one run.
_PRIOR_BYTES = float(1 << 20)
_PRIOR_PACK_S = 20e-9 * _PRIOR_BYTES
_PRIOR_PACKED_BYTES = 0.4 * _PRIOR_BYTES

# So much faster must compression be to be begun; once begun, it stays until it is slower.
_GAIN_MIN = 1.25

# What is left of earlier writes in the mean with each frame.  Frames that zlib made small may vanish in buffers
# on the way, which looks like a fast link; so they count for less.
_KEPT_PLAIN = 0.75
_KEPT_PACKED = 0.94
# How fast zlib was is forgotten while it is not used, so that it is tried again: the machine may have been busy.
_KEPT_IDLE = 0.98

# A run whose samples shrink by less than a twentieth is compressed already, or noise.
_SAMPLES = 4
_SAMPLE_BYTES = 4096
_SHRUNK_MAX = 0.95


class Pace:
    """Judges whether compressing pays, from the seconds that bytes took so far; pure.

    *workers* processes compress at once and share one link.  With W the link's bytes a second, P those that
    one worker compresses and R what is left of a byte, a byte takes 1/W as it is, and compressed the longer of
    R/W (the link is busy) and (1/P + R/W) / workers (all workers are).

    Where processes queue for the processor, as they do when the link's own ciphers share it, workers do not add up:
    only as many count as get the time that they ask for.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._write_s = self._written = 0.0
        self._pack_s = self._taken = self._packed = 0.0
        self._ran = self._queued = 0.0
        self._pays = False

    def pays(self) -> bool:
        """Returns whether the next frame should be compressed."""
        gain = 1.0 if self._pays else _GAIN_MIN
        byte_s = self._write_s / max(1.0, self._written)
        taken = self._taken + _PRIOR_BYTES
        left = (self._packed + _PRIOR_PACKED_BYTES) / taken
        packed_s = (self._pack_s + _PRIOR_PACK_S) / taken
        workers = max(1.0, self._workers * (self._ran + 1.0) / (self._ran + self._queued + 1.0))
        self._pays = max(left * byte_s, (packed_s + left * byte_s) / workers) * gain < byte_s
        return self._pays

    def scheduled(self, ran: int, queued: int) -> None:
        """Notes for how long this worker ran and for how long it could have but waited its turn, in nanoseconds."""
        self._ran = self._ran * _KEPT_PLAIN + ran
        self._queued = self._queued * _KEPT_PLAIN + queued

    def packed(self, size: int, packed_size: int, seconds: float) -> None:
        """Notes that a run of *size* bytes was compressed."""
        self._pack_s = self._pack_s * _KEPT_PLAIN + seconds
        self._taken = self._taken * _KEPT_PLAIN + size
        self._packed = self._packed * _KEPT_PLAIN + packed_size

    def wrote(self, size: int, seconds: float) -> None:
        """Notes how long the link took for *size* bytes, however they were encoded."""
        kept = _KEPT_PACKED if self._pays else _KEPT_PLAIN
        self._write_s = self._write_s * kept + seconds
        self._written = self._written * kept + size
        if not self._pays:
            self._pack_s *= _KEPT_IDLE
            self._taken *= _KEPT_IDLE
            self._packed *= _KEPT_IDLE


class SparingPacker(Packer):
    """zlib for the runs that it makes smaller, with *pace* only while that pays; ``codec`` is the last run's."""

    def __init__(self, level: int, pace: "Pace | None" = None) -> None:
        Packer.__init__(self, wire.CODEC_NONE, level)
        self._pace = pace
        self._scheduled = 0, 0

    def pack(self, source: bytearray, size: int, target: bytearray, offset: int) -> int:
        if self._pace is not None:
            (ran, queued), earlier = scheduled(), self._scheduled
            # The first time after a fork, the numbers of another process come before.
            self._pace.scheduled(max(0, ran - earlier[0]), max(0, queued - earlier[1]))
            self._scheduled = ran, queued
        pays = self._pace is None or self._pace.pays()
        self.codec = wire.CODEC_ZLIB if pays and shrinks(source, size) else wire.CODEC_NONE
        started = time.monotonic()
        packed_size = Packer.pack(self, source, size, target, offset)
        if self._pace is not None and self.codec == wire.CODEC_ZLIB:
            self._pace.packed(size, packed_size, time.monotonic() - started)
        return packed_size

    def wrote(self, size: int, seconds: float) -> None:
        if self._pace is not None:
            self._pace.wrote(size, seconds)


def scheduled() -> "tuple[int, int]":
    """Returns the nanoseconds that this process ran and queued for a processor; zeros where that is not told."""
    try:
        # proc(5): time on a processor, time on a run queue, time slices.
        with open("/proc/self/schedstat", "rb") as file:
            ran, queued = file.read().split()[:2]
        return int(ran), int(queued)
    except (OSError, ValueError):
        return 0, 0


def shrinks(source: bytearray, size: int) -> bool:
    """Returns whether samples of the first *size* bytes compress: 0.15 ms a run, where zlib takes 9 to 24 for it."""
    import zlib

    view = memoryview(source)
    starts = range(0, size, max(_SAMPLE_BYTES, size // _SAMPLES))
    sample = b"".join(view[start : min(size, start + _SAMPLE_BYTES)] for start in starts)
    return len(zlib.compress(sample, 1)) < _SHRUNK_MAX * len(sample)


def working_codecs(names: "list[str]") -> "list[int]":
    """Returns the codecs of the host's preference that work here, in its order.  Raises Failure when none does."""
    working = available()
    codecs = [wire.CODEC_NAMES[name] for name in names if name in working]
    if not codecs:
        raise Failure("options", "the sandbox cannot do %s; it has %s" % (" or ".join(names), ", ".join(working)))
    return codecs


def content_packer(codecs: "list[int]", level: int) -> Packer:
    """Returns what packs content: the first of *codecs*; if that is none and zlib follows, zlib where it pays."""
    if codecs[0] == wire.CODEC_ZLIB:
        return SparingPacker(level)
    if codecs[0] == wire.CODEC_NONE and wire.CODEC_ZLIB in codecs:
        return SparingPacker(level, Pace(min(WORKERS_MAX, usable_cores())))
    return Packer(codecs[0], level)
