"""The workspace that an archive's members make: their paths, how they hang together, and which links stay.

**Names.**  A member's name is taken relative to the archive's top: ``x`` and ``./x`` are ``x`` below the root.  Three
spellings of the root itself are taken off, each only if all members agree:

- ``/R/x``, where R is the root (``tar -P``): every name is absolute and below the root;
- ``R/x`` without the first slash, as GNU tar writes it by default: every name is at or below it;
- ``BASENAME(R)/x``, as Docker's archive of a directory has it: every name is at or below it.

The last two are not looked for where a name begins with ``./``, which says that the top is the root.  A prefix can
be stated instead, and ``.`` for none.  A member that is the root sets the root's metadata and must be a directory.
Names with ``..``, absolute names that are not below the root, and archives that mix both are refused.

**Together.**  Each path has one member, whatever its spelling, and lies below directories only.  A directory without
a member is made with mode 0755, owner 0, and the time of the newest entry in it (0 for none).  A hard link names a
regular file that came before it, and has that file's metadata.  What is neither directory, file nor link is left
out as in a capture, and so is a link that leaves the workspace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sandlift.archive.bounds import NAME_BYTES_MAX, ArchiveBounds, over, refusal
from sandlift.archive.members import HARD_LINK, Member
from sandlift.limits import Limits
from sandlift_helper import links, table
from sandlift_helper.table import Segment

IMPLIED_MODE = 0o755

_LINK_MODE = 0o777
# What a row takes beside its names; directories and links get theirs in the end, and are counted before.
_ROW_BYTES = 43
_DIRECTORY, _IMPLIED, _LINK, _SPECIAL = -1, -2, -3, -4
_SPECIALS = {
    table.FIFO: table.REASON_FIFO,
    table.CHAR_DEVICE: table.REASON_CHAR_DEVICE,
    table.BLOCK_DEVICE: table.REASON_BLOCK_DEVICE,
}

Metadata = tuple[int, int, int, int]
"""Mode, time in nanoseconds, owner, group."""


class Tree:
    """Takes an archive's members in order, and gives the table of the workspace in the end.

    *root* is the workspace's absolute name where the archive was made, *aliases* are others of its; *prefix* is what
    all names begin with, or None to find out.
    """

    def __init__(
        self,
        root: bytes,
        aliases: Sequence[bytes],
        prefix: bytes | None,
        limits: Limits,
        bounds: ArchiveBounds,
    ) -> None:
        self.entries = 0
        self.bytes = 0
        self.prefix = b""
        """What was taken off every name; known in the end."""
        self._spellings = [links.components(name) for name in (root, *aliases)]
        self._limits = limits
        self._bounds = bounds
        self._stated = prefix is not None
        self._candidates = _candidates(self._spellings, prefix)
        # A limit is for the path below the root, and what stands before it is only known in the end.
        self._slack = max([len(name) + 1 for name in self._candidates], default=0)
        self._slack_depth = max([name.count(b"/") + 1 for name in self._candidates], default=0)
        self._is_empty = True
        self._has_absolute = self._has_relative = self._has_dotted = False
        # Path -> the row of a file, or one of the states above.
        self._index: dict[bytes, int] = {b"": _IMPLIED}
        self._implied_bytes = 0
        self._directories: dict[bytes, Metadata] = {}
        self._links: list[tuple[bytes, Metadata, bytes]] = []
        self._groups: dict[int, list[int]] = {}
        self._rows = Segment()

    def place(self, member: Member) -> bytes:
        """Returns the path of a member, which is then taken; it is to be added next.

        Raises UnsafeArchive, HostLimit: all that can be judged before the member's content.
        """
        path = self._path(member.name, is_directory=member.kind == table.DIRECTORY)
        limits = self._limits
        if not path and member.kind != table.DIRECTORY:
            raise refusal("the root is no directory", member.name)
        if len(path) > max(limits.path_bytes, NAME_BYTES_MAX) + self._slack:
            raise over("path_bytes", limits.path_bytes, len(path), member.name)
        if path.count(b"/") > limits.depth + self._slack_depth:
            raise over("depth", limits.depth, path.count(b"/"), member.name)
        if member.size_bytes > limits.file_bytes:
            raise over("file_bytes", limits.file_bytes, member.size_bytes, member.name)
        if self.bytes + member.size_bytes > self._bounds.total_bytes:
            raise over("total_bytes", self._bounds.total_bytes, self.bytes + member.size_bytes, member.name)
        self._claim(path, member)
        if self._rows.size_estimate() > limits.manifest_bytes:
            raise over("manifest_bytes", limits.manifest_bytes, self._rows.size_estimate(), member.name)
        return path

    def add(self, path: bytes, member: Member) -> None:
        """Adds a placed member that is no file.  Raises UnsafeArchive, HostLimit."""
        metadata = (member.mode, member.mtime_ns, member.uid, member.gid)
        if member.kind == table.DIRECTORY:
            self._index[path] = _DIRECTORY
            self._directories[path] = metadata
            self._rows.names_size += len(path) + _ROW_BYTES
        elif member.kind == table.LINK:
            allowed = min(self._limits.link_text_bytes, table.TEXT_MAX)
            if len(member.link) > allowed:
                raise over("link_text_bytes", allowed, len(member.link), member.name)
            self._index[path] = _LINK
            # Linux gives every link this mode, whatever a writer recorded.
            self._links.append((path, (_LINK_MODE, *metadata[1:]), member.link))
            self._rows.names_size += len(path) + len(member.link) + _ROW_BYTES
        elif member.kind == HARD_LINK:
            self._add_hard_link(path, member)
        else:
            self._index[path] = _SPECIAL
            reason = _SPECIALS[member.kind]
            if member.kind == table.CHAR_DEVICE and member.device == (0, 0):
                # How overlayfs marks a deleted name.
                reason = table.WHITEOUT
            self._rows.exclude(path, member.kind, reason)

    def add_file(self, path: bytes, member: Member, digests: list[bytes], positions: list[int]) -> None:
        """Adds a placed file, whose data blocks are stored."""
        rows = self._rows
        self._index[path] = len(rows)
        size = member.size_bytes
        self.bytes += size
        is_sparse = len(digests) < table.block_count(size)
        rows.add_file(
            path,
            member.mode,
            member.mtime_ns,
            member.uid,
            member.gid,
            size,
            0,
            digests,
            positions if is_sparse else (),
        )

    def finish(self) -> Segment:
        """Returns the sorted table of the workspace.  Raises UnsafeArchive, HostLimit."""
        if self._is_empty:
            raise refusal("it has no member", hint="an empty workspace has a member for its root at least")
        self._take_off_prefix()
        rows = self._rows
        self._lead_groups()
        self._add_directories()
        self._judge_links()
        rows.sort()
        for paths in (rows.paths, rows.excluded_paths):
            self._check_paths(paths)
        return rows

    def _path(self, name: bytes, *, is_directory: bool) -> bytes:
        """Returns the components of a name joined, without the root's if it is absolute."""
        parts = name.split(b"/")
        if not name:
            raise refusal("a member has an empty name")
        if b".." in parts:
            raise refusal("a name has the component ..", name)
        clean = links.components(name)
        if not is_directory and parts[-1] in (b"", b".") and clean:
            raise refusal("the name of what is no directory ends like a directory's", name)
        if max(map(len, clean), default=0) > NAME_BYTES_MAX:
            raise refusal(f"a component of a name has over {NAME_BYTES_MAX} bytes", name)
        if parts[0]:
            self._has_relative = True
            self._has_dotted |= parts[0] == b"."
        else:
            self._has_absolute = True
            clean = self._below_root(clean, name)
        if self._has_absolute and self._has_relative:
            raise refusal("absolute and relative names are mixed", name)
        path = b"/".join(clean)
        if not self._has_absolute:
            self._narrow(path, name)
        return path

    def _below_root(self, clean: list[bytes], name: bytes) -> list[bytes]:
        for spelling in sorted(self._spellings, key=len, reverse=True):
            if clean[: len(spelling)] == spelling:
                return clean[len(spelling) :]
        raise refusal("an absolute name is not below the root", name)

    def _narrow(self, path: bytes, name: bytes) -> None:
        """Drops the prefixes that this path does not have."""
        kept = [prefix for prefix in self._candidates if path == prefix or path.startswith(prefix + b"/")]
        if self._stated and len(kept) < len(self._candidates):
            raise refusal("a name does not begin with the stated prefix", name)
        self._candidates = kept

    def _claim(self, path: bytes, member: Member) -> None:
        """Takes the path for this member, and its parents for directories."""
        index = self._index
        known = index.get(path)
        if known is not None and not (known == _IMPLIED and member.kind == table.DIRECTORY):
            what = "something below it came before" if known == _IMPLIED else "another member has the same name"
            raise refusal(
                f"{what}, and readers differ about which counts",
                member.name,
                hint="if it was appended to (tar -r, -u) or names one thing twice, make it anew",
            )
        self._is_empty = False
        if path:
            self.entries += 1
        parent = path
        while parent:
            parent = parent.rpartition(b"/")[0]
            state = index.get(parent)
            if state is not None:
                if state not in (_DIRECTORY, _IMPLIED):
                    raise refusal("a member lies below something that is no directory", member.name)
                break
            index[parent] = _IMPLIED
            self.entries += 1
            # A deep name of a few bytes makes many long paths, so they have a budget.
            self._implied_bytes += len(parent)
            if self._implied_bytes > self._bounds.metadata_bytes:
                raise over("metadata_bytes", self._bounds.metadata_bytes, self._implied_bytes, member.name)
        if self.entries > self._limits.entries:
            raise over("entries", self._limits.entries, self.entries, member.name)

    def _add_hard_link(self, path: bytes, member: Member) -> None:
        target = self._path(member.link, is_directory=False)
        if target == path:
            raise refusal("a hard link names itself", member.name)
        first = self._index.get(target)
        if first is None or first == _IMPLIED:
            raise refusal("a hard link names no member that came before it", member.name)
        if first < 0:
            raise refusal(
                "a hard link names something that is no regular file",
                member.name,
                hint="GNU tar's --hard-dereference writes no hard links",
            )
        rows = self._rows
        group = first + 1
        self._index[path] = first
        self._groups.setdefault(first, [first]).append(len(rows))
        rows.groups[first] = group
        rows.add_file(
            path, rows.modes[first], rows.mtimes_ns[first], rows.uids[first], rows.gids[first], rows.sizes[first], group
        )

    def _take_off_prefix(self) -> None:
        """Decides which prefix all names have, and takes it off."""
        if not self._candidates or self._has_absolute or (self._has_dotted and not self._stated):
            return
        prefix = self._candidates[0]
        if self._index.get(prefix) not in (_DIRECTORY, _IMPLIED):
            raise refusal(
                "the archive holds the root alone, which is no directory",
                prefix,
                hint="if it is an entry below the root, say --prefix .",
            )
        self.prefix = prefix
        size = len(prefix) + 1
        rows = self._rows
        rows.paths = [path[size:] for path in rows.paths]
        rows.excluded_paths = [path[size:] for path in rows.excluded_paths]
        self._links = [(path[size:], metadata, text) for path, metadata, text in self._links]
        self._directories = {path[size:]: metadata for path, metadata in self._directories.items()}
        # What is above the prefix is no part of the workspace.
        self._index = {path[size:]: state for path, state in self._index.items() if len(path) + 1 >= size}

    def _lead_groups(self) -> None:
        """Lets the first name of each hard-link group, in the table's order, carry the blocks."""
        paths = self._rows.paths
        for carrier, members in self._groups.items():
            first = min(members, key=lambda row: table.sort_key(paths[row]))
            # Nothing but their names tells them apart.
            paths[carrier], paths[first] = paths[first], paths[carrier]

    def _add_directories(self) -> None:
        """Adds the root and all directories, those without a member too."""
        rows = self._rows
        implied = {path: 0 for path, state in self._index.items() if state == _IMPLIED}
        self._index.clear()
        dated = [zip(rows.paths, rows.mtimes_ns, strict=True)]
        dated.append((path, metadata[1]) for path, metadata in self._directories.items())  # type: ignore[arg-type]
        dated.append((path, metadata[1]) for path, metadata, _ in self._links)  # type: ignore[arg-type]
        for entries in dated:
            _raise_times(implied, entries)
        for path in sorted(implied, key=len, reverse=True):
            _raise_times(implied, ((path, implied[path]),))
        for path, time_ns in implied.items():
            self._directories[path] = (IMPLIED_MODE, time_ns, 0, 0)
        rows.root = table.Root(*self._directories.pop(b""))
        for path, metadata in self._directories.items():
            rows.add(path, table.DIRECTORY, *metadata)

    def _judge_links(self) -> None:
        """Adds the links that stay in the workspace, and rows for those that leave it."""
        rows = self._rows
        inside: list[tuple[bytes, Metadata, bytes, bytes]] = []
        for path, metadata, text in self._links:
            if not text.startswith(b"/"):
                inside.append((path, metadata, text, b""))
                continue
            rebased = links.rebase(text, path.count(b"/"), self._spellings)
            if rebased is None:
                rows.exclude(path, table.LINK, table.OUTSIDE_LINK, text)
            elif len(rebased) > table.TEXT_MAX:
                rows.exclude(path, table.LINK, table.LIMIT, b"link text")
            else:
                inside.append((path, metadata, rebased, text))
        verdicts = links.judge([link[0] for link in inside], [link[2] for link in inside])
        for (path, metadata, text, original), is_kept in zip(inside, verdicts, strict=True):
            if is_kept:
                rows.add_link(path, *metadata, text, original)
            else:
                rows.exclude(path, table.LINK, table.OUTSIDE_LINK, original or text)

    def _check_paths(self, paths: list[bytes]) -> None:
        longest = max(paths, key=len, default=b"")
        allowed = max(self._limits.path_bytes, NAME_BYTES_MAX)
        if len(longest) > allowed:
            raise over("path_bytes", allowed, len(longest), longest)
        deepest = max(paths, key=lambda path: path.count(b"/"), default=b"")
        if deepest.count(b"/") > self._limits.depth:
            raise over("depth", self._limits.depth, deepest.count(b"/"), deepest)


def _candidates(spellings: Sequence[Sequence[bytes]], prefix: bytes | None) -> list[bytes]:
    """Returns what may stand before all names, best first."""
    if prefix is not None:
        stated = b"/".join(links.components(prefix))
        return [stated] if stated else []
    whole = [b"/".join(spelling) for spelling in spellings if spelling]
    return list(dict.fromkeys(whole + [spelling[-1] for spelling in spellings if spelling]))


def _raise_times(implied: dict[bytes, int], entries: Iterable[tuple[bytes, int]]) -> None:
    for path, time_ns in entries:
        if path:
            parent = path.rpartition(b"/")[0]
            if time_ns > implied.get(parent, time_ns):
                implied[parent] = time_ns
