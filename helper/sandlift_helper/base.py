"""What the host holds already, and what of it is still true here: the base of a capture, matched against the scan.

An *own* base was captured from this very tree, or set down in it by us.  Its rows of files that match the scan in
every field are kept unread, if they were *settled* when the helper last looked: the change time lay far enough
before the clock that no write could still be under way which leaves it as it is.  A write through a shared mapping
moves it only when the page is written back, within twice the kernel's dirty expiry at most (proc(5),
vm.dirty_expire_centisecs).

Of everything else that the host holds only prefixes of digests are offered.  A prefix says no more than "do not
send this yet": the host gets the full digest, and where an own base did not hold the block, a proof that it is here,
SHA-256(nonce, block).
"""

import os
import sys
import time
from array import array
from hashlib import sha256

from sandlift_helper import messages, table, wire
from sandlift_helper.channel import Channel, Failure
from sandlift_helper.mounts import Mounts
from sandlift_helper.parts import bounds, cut, decode_known, part_digest, starts_of
from sandlift_helper.scan import Scan

MYPY = False
if MYPY:
    from collections.abc import Iterable, Sequence

    from sandlift_helper.scan import Files

    Row = tuple[int, ...]

# File systems whose change times are not the kernel's word, or whose writers are on other machines.
UNTRUSTED_TYPES = frozenset((b"tmpfs", b"ramfs", b"nfs", b"nfs4", b"cifs", b"smb3", b"smbfs", b"9p", b"virtiofs"))
DRIFT_MAX_NS = 10**9
_FIELDS = ("modes", "mtimes_ns", "uids", "gids", "sizes", "ctimes_ns", "inodes")
_NOWHERE = 0xFFFFFFFF


class Clock:
    """The real-time clock against the monotonic one, from the start of a run on."""

    def __init__(self) -> None:
        self.started_ns = int(time.time() * 10**9)
        self._drift_ns = self._drift()

    def _drift(self) -> int:
        return int((time.time() - time.monotonic()) * 10**9)

    def is_steady(self) -> bool:
        """Returns whether nobody has set the clock by more than a second since the start."""
        return abs(self._drift() - self._drift_ns) <= DRIFT_MAX_NS


def settled_before(clock: Clock, settle_ms: int, mounts: Mounts, trust_ctime: bool) -> int:
    """Returns the change time (ns) up to which a file of the root's file system is settled; 0 where none is."""
    kind = mounts.root_type
    if not trust_ctime and (not kind or kind in UNTRUSTED_TYPES or kind.startswith(b"fuse")):
        return 0
    age_ns = settle_ms * 10**6
    try:
        with open("/proc/sys/vm/dirty_expire_centisecs", "rb") as file:
            age_ns = max(age_ns, 2 * int(file.read()) * 10**7) if settle_ms else 0
    except (OSError, ValueError):
        pass
    return clock.started_ns - age_ns


def instance(root_status: os.stat_result, mounts: Mounts) -> bytes:
    """Returns 32 bytes that differ for the same path in another machine, container or boot, or on another mount."""
    names = os.uname()
    parts = [b"%d %d" % (root_status.st_dev, root_status.st_ino), mounts.root_type]
    parts += [os.fsencode(names.nodename), os.fsencode(names.machine)]
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            parts.append(file.read())
    except OSError:
        pass
    return sha256(b"\0".join(parts)).digest()


class Known:
    """Blocks that the host may hold, by the first 8 bytes of their digests.

    *own* need no proof, *like* do.
    """

    def __init__(self, own: "array[int]", like: "array[int]", nonce: bytes) -> None:
        self._own = array("Q", sorted(own))
        self._like = array("Q", sorted(like))
        self._nonce = nonce

    def __len__(self) -> int:
        return len(self._own) + len(self._like)

    def claim(self, digest: bytes, block: memoryview) -> "bytes | None":
        """Returns None for a block that the host does not hold, else what tells that it need not be sent."""
        prefix = int.from_bytes(digest[:8], sys.byteorder)
        if _has(self._own, prefix):
            return b""
        if _has(self._like, prefix):
            summed = sha256(self._nonce)
            summed.update(block)
            return digest[:8] + summed.digest()[: table.PROOF_SIZE]
        return None


def _has(prefixes: "array[int]", prefix: int) -> bool:
    from bisect import bisect_left

    at = bisect_left(prefixes, prefix)
    return at < len(prefixes) and prefixes[at] == prefix


class Base:
    """The base that a request offers, matched against a scan.

    *message* is the request's map ``base``: ``firsts`` (first paths of the parts, each followed by a NUL),
    ``digests`` (of each part), ``instance``, and the number of ``offers``, base frames that hold prefixes.
    """

    def __init__(self, channel: Channel, message: "dict[str, object]") -> None:
        firsts, digests, offers = (message.get(key) for key in ("firsts", "digests", "offers"))
        if not isinstance(firsts, bytes) or not isinstance(digests, bytes) or not isinstance(offers, int):
            raise Failure("protocol", "the request's base has no firsts, digests or offers")
        self._channel = channel
        self._firsts = firsts.split(b"\0")[:-1]
        self._digests = list(table.split_digests(digests))
        self._instance = message.get("instance")
        self._own = array("Q")
        self._like = array("Q")
        for _ in range(offers):
            payload = self._receive()
            (self._like if payload[0] else self._own).frombytes(payload[1:])
        self.same = bytearray()
        self.kept = bytearray()

    def _receive(self) -> memoryview:
        from sandlift_helper.codec import CodecError, unpack_payload

        try:
            return unpack_payload(self._channel.receive(wire.BASE), wire.SEGMENT_MAX)
        except (ValueError, CodecError) as error:
            raise Failure("protocol", "the base: %s" % error)

    def known(self) -> "Known | None":
        """Returns the blocks that are offered so far, or None where there are none."""
        known = Known(self._own, self._like, self._channel.nonce)
        return known if len(known) else None

    def match(self, scan: Scan, others: table.Segment, here: bytes) -> "tuple[list[table.Segment], Sequence[int]]":
        """Matches the base against a scan, whose rows but the files' are *others*, of the instance *here*.

        Returns the parts of *others* that must travel, and the rows of the files that must be read.  ``same`` is
        then a bit for each part of the base, ``kept`` one for each of its files in the parts that are not.
        """
        if not self._firsts:
            return [others], range(len(scan.files.paths))
        files = scan.files
        starts = bounds(files.paths, self._firsts)
        ends = starts[1:] + [len(files.paths)]
        parts = list(cut(others, starts_of(others, self._firsts)))
        trusted = self._instance == here
        differing = [
            not trusted or any(files.elsewhere[start:end]) or part_digest(part, files, start, end) != digest
            for part, start, end, digest in zip(parts, starts, ends, self._digests)
        ]
        self._spread(files, starts, differing)
        self.same = _bits(not differs for differs in differing)
        wanted = [number for number, differs in enumerate(differing) if differs]
        places = self._fetch(files, wanted, starts, ends, trusted)
        read = [row for number in wanted for row in range(starts[number], ends[number]) if places[row] == _NOWHERE]
        return [parts[number] for number in wanted], read

    def _spread(self, files: "Files", starts: "list[int]", differing: "list[bool]") -> None:
        """Makes all parts differ that share a hard-link group with one that does."""
        from bisect import bisect_right

        groups = [{bisect_right(starts, row) - 1 for row in rows} for rows in files.members.values() if len(rows) > 1]
        groups = [numbers for numbers in groups if len(numbers) > 1]
        spreads = bool(groups)
        while spreads:
            spreads = False
            for numbers in groups:
                found = {differing[number] for number in numbers}
                if len(found) > 1:
                    spreads = True
                    for number in numbers:
                        differing[number] = True

    def _fetch(
        self, files: "Files", wanted: "list[int]", starts: "list[int]", ends: "list[int]", trusted: bool
    ) -> "array[int]":
        """Asks for the parts that differ, and compares them; returns the row of the base that each file equals.

        A file of a part that is the same has no place, and is not looked at.
        """
        places = array("I", [_NOWHERE]) * len(files.paths)
        if not wanted:
            return places
        self._channel.send(wire.WANT, messages.encode({"parts": wanted}))
        total = 0
        for number in wanted:
            try:
                rows, prefixes = decode_known(self._receive())
            except ValueError as error:
                raise Failure("protocol", "the base: %s" % error)
            self._own.frombytes(bytes(prefixes))
            if trusted:
                columns = zip(*(getattr(rows, name) for name in _FIELDS))
                place_of = {
                    path: (total + index, fields)
                    for index, (path, fields, settled) in enumerate(zip(rows.paths, columns, rows.settled))
                    if settled
                }
                self._compare(files, starts[number], ends[number], place_of, places)
            total += len(rows)
        self._drop_torn_groups(files, places)
        kept = bytearray(total)
        for place in places:
            if place != _NOWHERE:
                kept[place] = 1
        self.kept = _bits(kept)
        return places

    def _compare(
        self, files: "Files", start: int, end: int, place_of: "dict[bytes, tuple[int, Row]]", places: "array[int]"
    ) -> None:
        columns = zip(*(getattr(files, name)[start:end] for name in _FIELDS))
        for row, (path, fields) in enumerate(zip(files.paths[start:end], columns), start):
            place, known = place_of.get(path, (0, ()))
            if known == fields and not files.elsewhere[row]:
                places[row] = place

    def _drop_torn_groups(self, files: "Files", places: "array[int]") -> None:
        """A hard-link group is kept as a whole or not at all."""
        for rows in files.members.values():
            if any(places[row] == _NOWHERE for row in rows):
                for row in rows:
                    places[row] = _NOWHERE


def _bits(values: "Iterable[object]") -> bytearray:
    """Returns a bit for each of *values*, the first one lowest in the first byte."""
    bits = bytearray()
    for index, value in enumerate(values):
        if not index % 8:
            bits.append(0)
        if value:
            bits[-1] |= 1 << index % 8
    return bits
