"""A restore, seen from the target: say what is there, take the plan, build what is new, and give it its names.

What is new is built in one or more parts that nothing refers to yet: the whole tree beside the target (see
`staging`), or new parts inside it (see `inplace`).  Order within a part: directories (private), files, hard links,
links, then directories' modes and times from the deepest up.  So links exist only after the last write, and
nothing can be written through one.  All of it is done by forked processes that are confined to the tree.

Frames: the host's request; manifest frames with the listing of a target that is not empty; have, with what the
host must know for its plan; the host's want frames and the rows that it wants, with digests, up to another have;
then from the host manifest frames with the rows to build, manifest frames with the rows that stay and get other
metadata and the paths that go, have frames with where each use of a block is (see `Layout`), and content.  A have
frame without anything in it ends each of the three.
"""

import os
import sys
import time
from array import array

from sandlift_helper import messages, table, wire
from sandlift_helper.channel import Channel, Failure
from sandlift_helper.codec import CodecError, available, unpack_payload
from sandlift_helper.confined import Confined
from sandlift_helper.inplace import InPlace
from sandlift_helper.intake import write_content
from sandlift_helper.ladder import place
from sandlift_helper.marker import read_marker
from sandlift_helper.scan import identities, read_limits
from sandlift_helper.staging import Staging, put_right
from sandlift_helper.target import Target, check_room, target_failure
from sandlift_helper.tree import FINISHED, Tree
from sandlift_helper.writer import Held, Layout, Metadata

MYPY = False
if MYPY:
    from collections.abc import Callable

    from sandlift_helper.listing import Listing

_LOCK_WAIT_S = 0.2

MODES = ("new", "replace", "exact", "merge")


class Request:
    """What the host asks for; attributes are the keys of the request map."""

    def __init__(self, message: "dict[str, object]") -> None:
        root, mode, limits, own = (message.get(key) for key in ("target", "mode", "limits", "own"))
        if not isinstance(root, bytes) or mode not in MODES or not isinstance(limits, dict):
            raise Failure("protocol", "the request names no target, no known mode or no limits")
        self.target = place(root, message.get("home") is True)
        self.mode = mode
        self.dry_run = message.get("dry_run") is True
        self.mask = 0o7777 if message.get("special_bits") is True else 0o777
        self.owner = _owner(message.get("owner"))
        self.own = [path for path in own if isinstance(path, bytes)] if isinstance(own, list) else []
        self.limits = read_limits(limits)


def _owner(text: object) -> "tuple[int, int] | bool | None":
    """Returns what `Metadata` takes for ``keep``, ``UID``, ``UID:GID`` or a user's name.  Raises Failure."""
    if not isinstance(text, str) or not text:
        return None
    if text == "keep":
        return True
    uid, _, gid = text.partition(":")
    if uid.isdigit() and (gid.isdigit() or ":" not in text):
        return int(uid), int(gid) if gid else -1
    import pwd

    try:
        user = pwd.getpwnam(text)
    except KeyError:
        raise Failure("options", "there is no user %s where the target is" % text)
    return user.pw_uid, user.pw_gid


def apply(channel: Channel, message: "dict[str, object]") -> None:
    """Does one restore and ends the stream."""
    request = Request(message)

    def wait() -> None:
        channel.progress("wait")
        channel.poll()
        time.sleep(_LOCK_WAIT_S)

    if not request.dry_run:
        put_right(request.target, wait)
    target = Target(request.target, wait)
    _check_mode(request, target)
    restoring = _Restoring(channel, request, target, wait)
    try:
        restoring.run()
    except BaseException as error:
        channel.kill_children()
        restoring.abandon()
        if isinstance(error, OSError):
            raise target_failure(error, target.shown)
        raise
    finally:
        channel.clean_up = None


def _check_mode(request: Request, target: Target) -> None:
    """Raises Failure when the target's state alone forbids the restore."""
    # What a restore into an empty mount began, the same restore completes.
    begun = target.mounted and read_marker(target.fd)
    if request.mode == "new" and not target.is_empty() and not begun:
        raise Failure("target-not-empty", "%s is not empty" % target.shown)
    if request.mode == "replace" and target.mounted:
        raise Failure(
            "target-unusable",
            "%s is a mount point, which cannot be renamed; the mode exact works in place" % target.shown,
        )
    ids = request.owner
    if ids is not None and os.geteuid() and ids != (os.geteuid(), -1) and ids != (os.geteuid(), os.getegid()):
        raise Failure("target-unusable", "only root can give files to others; here works the user %d" % os.geteuid())


class _Restoring:
    """One restore from the listing to the end."""

    def __init__(self, channel: Channel, request: Request, target: Target, wait: "Callable[[], None]") -> None:
        self._channel = channel
        self._request = request
        self._target = target
        self._wait = wait
        self._staging: "Staging | None" = None
        self._in_place: "InPlace | None" = None
        self._held: "Held | None" = None
        exists = target.fd >= 0
        # An empty mount point takes no rename, so a new tree is built in it.
        self._works_in_place = exists and (
            request.mode in ("exact", "merge") or (request.mode == "new" and target.mounted)
        )
        self._replaces = exists and request.mode == "replace"
        self._leftover = read_marker(target.fd) if self._works_in_place else b""
        self._leftovers: "list[bytes]" = []
        self._lists = exists and (request.mode != "new" or bool(self._leftover))

    def run(self) -> None:
        """Does the restore.  Raises Failure, OSError."""
        self._tell()
        if self._request.dry_run:
            self._channel.end()
            return
        rows = _read_table(self._channel)[0]
        settled = _read_table(self._channel)[0]
        metadata = Metadata(self._request.mask, self._request.owner)
        self._channel.poll()
        if self._works_in_place and not (rows.paths or settled.paths or settled.excluded_paths or self._leftover):
            _read_table(self._channel)
            root_kept = rows.root is not None and not metadata.set_root(rows.root, self._target.fd)
            self._channel.end(root_kept=int(root_kept), built=0, settled=0)
            return
        root_fd = self._prepare(rows, settled)
        confined = Confined(self._channel, root_fd, self._target.shown)
        tree = Tree(root_fd, rows, metadata)
        begun = confined.start(tree.begin)
        layout = Layout(rows, _read_table(self._channel)[1])
        begun()
        refused = write_content(confined, layout, metadata, self._held)
        is_new = self._request.mode == "new"
        keep = self._target.status if is_new and self._staging else None
        copied, more, root_set = FINISHED.unpack(confined.once(lambda: tree.finish(keep, self._in_place)))
        self._channel.poll()
        old = b""
        if self._in_place:
            # From the first name on, a rerun completes: nothing is taken back.
            in_place, self._in_place = self._in_place, None
            self._channel.clean_up = None
            _, last, root_set = FINISHED.unpack(confined.once(lambda: tree.settle(in_place, settled, is_new)))
            more += last
        elif self._staging:
            old = self._staging.publish(self._replaces)
            self._staging = None
        self._channel.end(
            built=len(rows),
            settled=len(settled),
            copied=copied,
            refused=refused + more,
            root_kept=int(not root_set),
            old_kept=int(bool(old)),
        )

    def abandon(self) -> None:
        """Takes back what was not given its name yet."""
        if self._staging:
            self._staging.remove()
        if self._in_place:
            self._in_place.abandon()

    def _tell(self) -> None:
        """Sends what the host must know for its plan."""
        target, request = self._target, self._request
        codec = wire.CODEC_ZLIB if request.mode != "new" else wire.CODEC_NONE
        listing: "Listing | None" = None
        if self._lists:
            # Most targets are empty, and then what scans one need not be compiled.
            from sandlift_helper.listing import Listing

            listing = Listing(
                self._channel, target.fd, target.path, request.limits, identities(request.own), codec, self._leftover
            )
            self._leftovers = listing.leftovers
        told = {
            "codecs": available(),
            "listed": self._lists,
            "exists": target.fd >= 0,
            "in_place": self._works_in_place,
            "folds": target.folds(),
        }
        self._channel.send(wire.HAVE, messages.encode(told))
        if listing is not None:
            known = listing.send_digests()
            self._channel.send(wire.HAVE, messages.encode({}))
            self._held = Held(target.fd, known)

    def _prepare(self, rows: table.Segment, settled: table.Segment) -> int:
        """Makes the place where new parts are built; returns the descriptor of the root that paths are relative to."""
        if not self._works_in_place:
            self._staging = Staging(self._target, self._wait)
            self._channel.clean_up = self._staging.remove
            check_room(self._staging.fd, rows.data_size(), len(rows), self._target.shown)
            self._staging.check_rename(self._replaces)
            return self._staging.fd
        root_fd = self._target.fd
        check_room(root_fd, rows.data_size(), len(rows), self._target.shown)
        os.umask(0o077)
        if self._request.mode == "new":
            # What was there keeps its own mode and time, as an empty directory that is exchanged does.
            rows.root = None
        self._in_place = in_place = InPlace(root_fd, rows, self._leftover, self._target.shown)
        self._channel.clean_up = in_place.abandon
        in_place.remove_leftovers(self._leftovers)
        in_place.begin(settled)
        return root_fd


def _read_table(channel: Channel) -> "tuple[table.Segment, array[int]]":
    """Reads manifest frames, then have frames up to an empty one; returns the rows and the numbers in those."""
    rows, column = table.Segment(), array("Q")
    while True:
        kind, payload = channel.read_frame()
        if kind == wire.CREDIT:
            continue
        if kind not in (wire.MANIFEST, wire.HAVE):
            raise Failure("protocol", "the host sent a %s frame out of turn" % wire.KIND_NAMES.get(kind))
        try:
            decoded = unpack_payload(payload, wire.SEGMENT_MAX)
            if kind == wire.HAVE:
                column.frombytes(decoded)
            else:
                rows.extend(table.decode(decoded))
        except (ValueError, CodecError) as error:
            raise Failure("protocol", "the manifest: %s" % error)
        if kind == wire.HAVE and not len(decoded):
            if sys.byteorder == "big":
                column.byteswap()
            return rows, column
