"""Trees as values for the tests of plans, and a model of what carrying out a plan makes of them.

A tree is a map from path to node; directories on the way are added.  Files with the same ``inode`` are hard links.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sandlift.manifest import Manifest, number_groups
from sandlift.model import RestoreOptions
from sandlift.restoring.plan import Listing, Plan, Way, make_plan
from sandlift.restoring.wanted import Wanted, wanted
from sandlift_helper import table
from sandlift_helper.table import Root, Segment, split_digests
from sandlift_helper.wire import BLOCK_MAX


@dataclass(frozen=True, slots=True)
class D:
    """A directory."""

    mode: int = 0o755
    mtime: int = 1
    owner: int = 0


@dataclass(frozen=True, slots=True)
class F:
    """A file; names with the same inode, if it is not 0, are hard links."""

    content: bytes = b""
    mode: int = 0o644
    mtime: int = 1
    owner: int = 0
    inode: int = 0


@dataclass(frozen=True, slots=True)
class L:
    """A link."""

    text: bytes = b"x"
    mtime: int = 1
    owner: int = 0


@dataclass(frozen=True, slots=True)
class X:
    """What is there and is no entry; *entry* when it is a directory that is kept all the same."""

    kind: int = table.FIFO
    reason: int = table.REASON_FIFO
    detail: bytes = b""
    entry: D | F | None = None


FIFO = X()
PATTERN = X(table.FILE, table.PATTERN, b"*.log (--exclude)")
FOREIGN = X(table.DIRECTORY, table.MOUNT, b"nfs", D())
FOREIGN_FILE = X(table.FILE, table.MOUNT, b"nfs")
STORE = X(table.DIRECTORY, table.OWN)
UNREADABLE = X(table.DIRECTORY, table.UNREADABLE, b"Permission denied", D())
UNREADABLE_FILE = X(table.FILE, table.UNREADABLE, b"Permission denied")
STRANGE = X(table.UNKNOWN, table.IO_ERROR, b"Input/output error")
REST = X(table.UNKNOWN, table.LIMIT, b"entries")

Node = D | F | L | X
Tree = Mapping[bytes, Node]
ROOT = D(mtime=9)


def digests(content: bytes) -> tuple[list[bytes], list[int]]:
    """The digests of a content's blocks that are not zeros, and their positions if there are holes."""
    blocks = [content[at : at + BLOCK_MAX] for at in range(0, len(content), BLOCK_MAX)]
    data = [(index, hashlib.sha256(block).digest()) for index, block in enumerate(blocks) if block.strip(b"\0")]
    sparse = len(data) < len(blocks)
    return [digest for _, digest in data], [index for index, _ in data] if sparse else []


def with_parents(tree: Tree) -> dict[bytes, Node]:
    full = dict(tree)
    for path in tree:
        while path := path.rpartition(b"/")[0]:
            full.setdefault(path, D())
    return full


def segment(tree: Tree, root: D | None = ROOT, unhashed: Iterable[bytes] = ()) -> Segment:
    """The canonical table of a tree."""
    rows = Segment()
    if root is not None:
        rows.root = Root(root.mode, root.mtime, root.owner, root.owner)
    full = with_parents(tree)
    started = set[int]()
    for path in sorted(full, key=table.sort_key):
        node = full[path]
        if isinstance(node, X):
            rows.exclude(path, node.kind, node.reason, node.detail)
            if node.entry is None:
                continue
            node = node.entry
        if isinstance(node, D):
            rows.add(path, table.DIRECTORY, node.mode, node.mtime, node.owner, node.owner)
        elif isinstance(node, L):
            rows.add_link(path, 0o777, node.mtime, node.owner, node.owner, node.text)
        elif isinstance(node, F):
            found, positions = digests(node.content)
            if path in unhashed or (node.inode and node.inode in started):
                found, positions = [], []
            started.add(node.inode)
            meta = node.mode, node.mtime, node.owner, node.owner
            rows.add_file(path, *meta, len(node.content), node.inode, found, positions)
    rows.groups = number_groups(rows.groups)
    return rows


def manifest(tree: Tree, root: D = ROOT) -> Manifest:
    return Manifest(segment(tree, root))


def no_read(row: int) -> bytes:
    raise AssertionError(f"nothing is to be read, but row {row}")


def want(tree: Tree, root: D = ROOT, **options: object) -> Wanted:
    """What is wanted of a snapshot of *tree*."""
    return wanted(manifest(tree, root), RestoreOptions(**options), no_read)  # type: ignore[arg-type]


def listing(
    tree: Tree,
    *,
    root: D = ROOT,
    mounts: Iterable[bytes] = (),
    elsewhere: Iterable[bytes] = (),
    unhashed: Iterable[bytes] = (),
    folds: bool = False,
    absent: bool = False,
) -> Listing:
    """What the helper tells of a target; all files are hashed but those *unhashed*."""
    left_out = set(unhashed)
    rows = segment(tree, root, left_out)
    for path in sorted({*mounts, *elsewhere}, key=table.sort_key):
        rows.flag(path, table.MOUNT_POINT if path in set(mounts) else table.NAMED_ELSEWHERE)
    known = (row for row, kind in enumerate(rows.kinds) if kind == table.FILE and rows.paths[row] not in left_out)
    return Listing(rows=rows, hashed=frozenset(known), folds=folds, absent=absent)


def plan(snapshot: Tree, there: Tree | Listing, *, root: D = ROOT, **options: object) -> Plan:
    """The plan to set down a snapshot where something is, *exact* unless told otherwise."""
    chosen = RestoreOptions(**{"mode": "exact", **options})  # type: ignore[arg-type]
    found = there if isinstance(there, Listing) else listing(there)
    return make_plan(wanted(manifest(snapshot, root), chosen, no_read), found, chosen)


def done(found: Plan) -> dict[bytes, str]:
    """What each action of a plan is, by path."""
    return {action.path: action.action for action in found.actions}


@dataclass(slots=True)
class Inode:
    """Content and metadata, shared by its names."""

    kind: int
    content: bytes = b""
    meta: tuple[int, ...] = ()
    """Mode, time, owner."""
    made: bool = False
    fixed: bool = False
    """Something else has a name of it, so nothing may change."""


@dataclass(slots=True)
class Disk:
    """A target, by path; it refuses what a kernel, or the rules of a restore, would refuse."""

    names: dict[bytes, Inode] = field(default_factory=dict)
    root: tuple[int, ...] = (0o755, 9, 0)
    mounts: frozenset[bytes] = frozenset()
    nodes: dict[bytes, X] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Tree, mounts: Iterable[bytes] = (), elsewhere: Iterable[bytes] = ()) -> Disk:
        disk = cls(mounts=frozenset(mounts))
        inodes = dict[int, Inode]()
        for path, node in with_parents(tree).items():
            if isinstance(node, X):
                disk.nodes[path] = node
                disk.names[path] = Inode(node.kind, meta=(node.entry.mode, node.entry.mtime, 0) if node.entry else ())
            elif isinstance(node, F):
                inode = Inode(table.FILE, node.content, (node.mode, node.mtime, node.owner))
                disk.names[path] = inodes.setdefault(node.inode, inode) if node.inode else inode
            elif isinstance(node, L):
                disk.names[path] = Inode(table.LINK, node.text, (0o777, node.mtime, node.owner))
            else:
                disk.names[path] = Inode(table.DIRECTORY, meta=(node.mode, node.mtime, node.owner))
        for path in elsewhere:
            disk.names[path].fixed = True
        return disk

    def below(self, path: bytes) -> list[bytes]:
        return [name for name in self.names if name.startswith(path + b"/")]

    def stir(self, path: bytes) -> None:
        """The directory of a path has changed."""
        parent = path.rpartition(b"/")[0]
        if parent:
            assert self.names[parent].kind == table.DIRECTORY, f"{parent!r} is no directory"
            self.names[parent].meta = (self.names[parent].meta[0], -1, *self.names[parent].meta[2:])

    def remove(self, path: bytes) -> None:
        assert not self.below(path), f"{path!r} is not empty"
        assert not any(path == top or path.startswith(top + b"/") for top in self.mounts), f"{path!r} is on a mount"
        self.nodes.pop(path, None)
        del self.names[path]
        self.stir(path)

    def carry_out(self, plan: Plan, contents: Mapping[bytes, bytes]) -> int:
        """Does what a plan of a restore in place says; returns how many entries went."""
        assert plan.in_place
        went = len(plan.removals)
        for unit, way in plan.units:
            there = self.names.get(unit)
            went += len(self.below(unit)) if there is not None else 0
            self._take_place(unit, way, there, plan)
        self._build(plan, contents)
        for path, kind in plan.removals:
            assert self.names[path].kind == kind
            self.remove(path)
        self._settle(plan.settle)
        if plan.set_root:
            root = plan.build.root
            assert root is not None
            self.root = root.mode, root.mtime_ns, root.uid
        return went

    def _take_place(self, unit: bytes, way: Way, there: Inode | None, plan: Plan) -> None:
        kind = plan.build.kinds[plan.build.paths.index(unit)]
        assert unit not in self.mounts, "a mount is busy"
        assert unit not in self.nodes or self.nodes[unit].reason != table.MOUNT, "a mount is busy"
        parent = unit.rpartition(b"/")[0]
        assert not parent or self.names[parent].kind == table.DIRECTORY
        if way == Way.CREATE:
            assert there is None
        elif way == Way.REPLACE:
            assert there is not None and table.DIRECTORY not in (kind, there.kind)
        else:
            assert there is not None and table.DIRECTORY in (kind, there.kind)
        if there is not None:
            for path in sorted(self.below(unit), key=len, reverse=True):
                self.remove(path)
            del self.names[unit]
            self.nodes.pop(unit, None)
        self.stir(unit)

    def _build(self, plan: Plan, contents: Mapping[bytes, bytes]) -> None:
        rows = plan.build
        whole = dict[bytes, list[bytes]]()
        tops = [unit for unit, _ in plan.units]
        for path in rows.paths:
            whole[path] = [top for top in tops if path == top or path.startswith(top + b"/")]
        assert all(len(found) == 1 for found in whole.values()), "not below exactly one unit"
        groups = dict[int, Inode]()
        texts = iter(rows.texts)
        for row, (path, kind, (digest, _, count)) in enumerate(
            zip(rows.paths, rows.kinds, rows.contents(), strict=True)
        ):
            meta = rows.modes[row], rows.mtimes_ns[row], rows.uids[row]
            content = next(texts) if kind == table.LINK else b""
            group = rows.groups[row]
            if kind == table.FILE and group not in groups:
                named = list(split_digests(rows.digests[32 * digest : 32 * (digest + count)]))
                content = b"".join(contents[name] for name in named).ljust(rows.sizes[row], b"\0")
                assert len(content) == rows.sizes[row]
            assert path not in self.names
            inode = Inode(kind, content, meta, made=True)
            self.names[path] = groups.setdefault(group, inode) if group else inode

    def _settle(self, rows: Segment) -> None:
        assert not rows.digests and not any(rows.sizes) and not any(rows.groups) and not any(rows.counts)
        assert len(rows.texts) == rows.kinds.count(table.LINK)
        texts = iter(rows.texts)
        settled = [id(self.names[path]) for path in rows.paths]
        for row, (path, kind) in enumerate(zip(rows.paths, rows.kinds, strict=True)):
            inode = self.names[path]
            assert inode.kind == kind and not inode.made and path not in self.nodes
            assert kind != table.LINK or inode.content == next(texts)
            names = [name for name, other in self.names.items() if other is inode]
            assert not inode.fixed and len(names) == settled.count(id(inode)), f"{path!r} has other names"
            inode.meta = rows.modes[row], rows.mtimes_ns[row], rows.uids[row]

    def tree(self) -> dict[bytes, Node]:
        """The tree as a value again, inodes numbered."""
        numbers = {id(inode): number for number, inode in enumerate(self.names.values(), 1)}
        found: dict[bytes, Node] = {}
        for path, inode in self.names.items():
            if path in self.nodes:
                entry = self.nodes[path].entry
                kept = replace(entry, mode=inode.meta[0], mtime=inode.meta[1]) if entry else None
                found[path] = replace(self.nodes[path], entry=kept)
            elif inode.kind == table.FILE:
                mode, mtime, owner = inode.meta
                found[path] = F(inode.content, mode, mtime, owner, numbers[id(inode)])
            elif inode.kind == table.LINK:
                found[path] = L(inode.content, *inode.meta[1:])
            else:
                found[path] = D(*inode.meta)
        return found
