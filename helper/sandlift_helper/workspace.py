"""A workspace as a request names it: its root opened, its rules read, its tree walked, its links judged."""

import os

from sandlift_helper import links, table
from sandlift_helper.channel import Channel, Failure
from sandlift_helper.ladder import Ladder, place
from sandlift_helper.marker import read_marker
from sandlift_helper.mounts import Mounts, read_mounts
from sandlift_helper.scan import Scan, identities, read_limits
from sandlift_helper.scanners import shared_scan

MYPY = False
if MYPY:
    from typing import TypeVar

    from sandlift_helper.ignore import Rules
    from sandlift_helper.segments import KeptLink

    Value = TypeVar("Value")

IGNORE_FILE = b".sandliftignore"
IGNORE_FILE_MAX = 1 << 20


class Request:
    """What the host asks for; attributes are the keys of the request map, with the types checked."""

    def __init__(self, message: "dict[str, object]") -> None:
        self._message = message
        self.root = place(self._get("root", bytes), self._get("home", bool))
        self.aliases = self._list("aliases", bytes)
        self.own = self._list("own", bytes)
        self.codecs = self._list("codecs", str)
        self.level = self._get("level", int) if "level" in message else 1
        self.patterns = [(item[0], item[1]) for item in self._list("patterns", list)]
        self.literals = self._list("literals", bytes)
        self.ignore_file = self._get("ignore_file", bool)
        self.exclude_caches = self._get("exclude_caches", bool)
        self.limits = read_limits(self._get("limits", dict))
        self.base = self._get("base", dict)
        self.settle_ms = self._get("settle_ms", int)
        self.trust_ctime = self._get("trust_ctime", bool)

    def _get(self, key: str, kind: "type[Value]") -> "Value":
        value = self._message.get(key)
        if type(value) is not kind:
            raise Failure("protocol", "the request's %s is no %s" % (key, kind.__name__))
        return value

    def _list(self, key: str, kind: "type[Value]") -> "list[Value]":
        values = self._get(key, list)
        if any(type(value) is not kind for value in values):
            raise Failure("protocol", "the request's %s holds something else than %s" % (key, kind.__name__))
        return values


def open_root(root: bytes) -> int:
    """Returns a descriptor of the root; a root that is itself a link is followed.  Raises Failure."""
    shown = os.fsdecode(root)
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Failure("root-missing", "%s does not exist" % shown)
    except NotADirectoryError:
        raise Failure("root-not-directory", "%s is no directory" % shown)
    except OSError as error:
        raise Failure("root-unreadable", "%s cannot be opened: %s" % (shown, error.strerror))


def read_rules(request: Request, root_fd: int) -> "Rules | None":
    """Returns the rules of the request, after those of the ignore file at the root; None where there are none."""
    patterns: "list[tuple[bytes, bytes]]" = []
    if request.ignore_file:
        try:
            fd = os.open(IGNORE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root_fd)
        except OSError:
            pass
        else:
            try:
                from sandlift_helper.ignore import parse_lines

                patterns = parse_lines(_read_text(fd), IGNORE_FILE)
            finally:
                os.close(fd)
    patterns = patterns + request.patterns
    if not patterns and not request.literals:
        return None
    from sandlift_helper.ignore import compile_rules

    try:
        return compile_rules(patterns, request.literals)
    except ValueError as error:
        raise Failure("options", "a path to exclude is not below the root: %s" % error)


def _read_text(fd: int) -> bytes:
    import stat

    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return b""
    pieces: "list[bytes]" = []
    size = 0
    while size <= IGNORE_FILE_MAX:
        piece = os.read(fd, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    raise Failure("options", "%s is over 1 MiB" % os.fsdecode(IGNORE_FILE))


def scan_workspace(channel: Channel, request: Request) -> "tuple[int, Scan, list[KeptLink], Mounts]":
    """Opens the root and walks it.

    Returns the root's descriptor, the finished scan, the links that are kept, and the mounts below the root.
    """
    root_fd = open_root(request.root)
    resolved = os.path.realpath(request.root)
    mounts = read_mounts(resolved)
    scan = shared_scan(
        channel,
        root_fd,
        request.limits,
        read_rules(request, root_fd),
        mounts,
        identities(request.own),
        request.exclude_caches,
        read_marker(root_fd),
    )
    if scan.leftovers:
        # A restore broke off here, so the tree may be partly the old one.
        scan.left.flag(b"", table.UNFINISHED)
        _leave_leftovers(scan, root_fd)
    names = [os.path.join(os.getcwdb(), name) for name in [request.root] + request.aliases]
    return root_fd, scan, judge_links(scan, [links.components(name) for name in names + [resolved]]), mounts


def _leave_leftovers(scan: Scan, root_fd: int) -> None:
    """Adds rows for what a restore that broke off has left."""
    import stat

    ladder = Ladder(root_fd)
    for path in scan.leftovers:
        directory, _, name = path.rpartition(b"/")
        try:
            mode = os.stat(name, dir_fd=ladder.open(directory), follow_symlinks=False).st_mode
        except OSError:
            continue
        scan.left.exclude(path, table.DIRECTORY if stat.S_ISDIR(mode) else table.FILE, table.OWN)
    ladder.close()


def judge_links(scan: Scan, spellings: "list[list[bytes]]") -> "list[KeptLink]":
    """Returns the links that stay inside; adds a row to ``scan.left`` for each other one."""
    inside: "list[KeptLink]" = []
    for path, status, text in scan.links:
        original = b""
        if text.startswith(b"/"):
            rebased = links.rebase(text, path.count(b"/"), spellings)
            if rebased is None:
                scan.left.exclude(path, table.LINK, table.OUTSIDE_LINK, text)
                continue
            if len(rebased) > table.TEXT_MAX:
                scan.left.exclude(path, table.LINK, table.LIMIT, b"link text")
                continue
            original, text = text, rebased
        inside.append((path, status, text, original))
    verdicts = links.judge([link[0] for link in inside], [link[2] for link in inside])
    for link, verdict in zip(inside, verdicts):
        if not verdict:
            scan.left.exclude(link[0], table.LINK, table.OUTSIDE_LINK, link[3] or link[2])
    return [link for link, verdict in zip(inside, verdicts) if verdict]
