"""Plans carried out on a model of a disk: what they promise, for trees of every kind on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from restore.planned import (
    FIFO,
    FOREIGN,
    FOREIGN_FILE,
    PATTERN,
    STORE,
    D,
    Disk,
    F,
    L,
    Node,
    Tree,
    X,
    digests,
    listing,
    manifest,
    no_read,
    with_parents,
)

from sandlift.errors import Conflict
from sandlift.model import RestoreOptions
from sandlift.restoring.plan import Plan, make_plan
from sandlift.restoring.wanted import Wanted, wanted
from sandlift_helper import links, table

Case = tuple[dict[bytes, Node], dict[bytes, Node], list[bytes], list[bytes]]
CONTENTS = [b"", b"1", b"2", b"33"]
BLOCKS = {digest: content for content in CONTENTS for digest in digests(content)[0]}

PATHS = [b"a", b"b", b"c", b"a/a", b"a/b", b"a/c", b"b/a", b"b/c", b"c/a", b"a/b/a", b"a/b/c", b"b/a/c", b"c/a/b"]
INNER_TEXTS = [b"a", b"../b", b"b/c", b".", b"a/../c"]
ANY_TEXTS = [*INNER_TEXTS, b"/etc", b"../.."]
EXCLUDED = [
    FIFO,
    PATTERN,
    X(table.DIRECTORY, table.PATTERN),
    X(table.DIRECTORY, table.UNREADABLE, b"", D()),
    X(table.FILE, table.IO_ERROR),
]
HELD = [FOREIGN, FOREIGN_FILE, STORE]


def some_node(chance: Random, texts: list[bytes], others: list[X]) -> Node:
    time = chance.choice([1, 1, 2])
    kind = chance.randrange(20)
    if kind < 12:
        inode = chance.choice([0, 0, 1, 2])
        return F(chance.choice(CONTENTS), chance.choice([0o644, 0o644, 0o600]), time, inode=inode)
    if kind < 16:
        return D(chance.choice([0o755, 0o700]), time)
    return L(chance.choice(texts), time) if kind < 18 else chance.choice(others)


def shape(nodes: Mapping[bytes, Node], closed: bool) -> dict[bytes, Node]:
    """A tree out of any nodes: nothing is below what is no directory; names of one inode agree."""
    full = dict[bytes, Node]()
    leaves = set[bytes]()
    inodes = dict[int, F]()
    for path in sorted(nodes, key=table.sort_key):
        parents = [path[:end] for end, byte in enumerate(path) if byte == 47]
        if any(parent in leaves for parent in parents):
            continue
        node = nodes[path]
        if isinstance(node, F) and node.inode:
            node = inodes.setdefault(node.inode, node)
        full[path] = node
        if not isinstance(node, D):
            leaves.add(path)
    full = with_parents(full)
    if closed:
        found = [path for path, node in full.items() if isinstance(node, L)]
        texts = [node.text for node in full.values() if isinstance(node, L)]
        for path, text, inside in zip(found, texts, links.judge(found, texts), strict=True):
            if not inside:
                full[path] = X(table.LINK, table.OUTSIDE_LINK, text)
    return full


def some_case(seed: int) -> Case:
    """A snapshot, a target that has much of it, mount points and files with names elsewhere."""
    chance = Random(seed)
    chosen = chance.sample(PATHS, chance.randint(2, 9))
    snapshot = {path: some_node(chance, INNER_TEXTS, EXCLUDED) for path in chosen}
    mixed = {path: node for path, node in snapshot.items() if chance.random() < 0.7}
    mixed = {path: FIFO if isinstance(node, X) else node for path, node in mixed.items()}
    for path in chance.sample(PATHS, chance.choice([0, 1, 2, 4])):
        mixed[path] = some_node(chance, ANY_TEXTS, [FIFO])
    if chance.random() < 0.2:
        mixed[chance.choice(PATHS)] = chance.choice(HELD)
    target = shape(mixed, closed=False)
    points = [path for path, node in target.items() if isinstance(node, D | F) and chance.random() < 0.04]
    single = {path: node for path, node in target.items() if isinstance(node, F) and path not in points}
    elsewhere = {path for path in single if chance.random() < 0.1}
    inodes = {single[path].inode for path in elsewhere} - {0}
    elsewhere |= {path for path, node in single.items() if node.inode in inodes}
    return shape(snapshot, closed=True), target, points, sorted(elsewhere)


cases = st.integers(0, 1 << 32).map(some_case)


def at_or_below(path: bytes, tops: Any) -> bool:
    return any(path == top or path.startswith(top + b"/") for top in tops)


def only_content(node: Node) -> object:
    """What may not change of what is left alone; a directory's time moves when something is made in it."""
    if isinstance(node, D):
        return type(node), node.mode
    # The model numbers inodes by their order.
    return replace(node, inode=0) if isinstance(node, F) else node


class Checked:
    """One plan, carried out and checked."""

    def __init__(
        self, snapshot: Tree, there: Tree, points: list[bytes], elsewhere: list[bytes], **options: Any
    ) -> None:
        self.options = RestoreOptions(**options)
        self.snapshot = with_parents(snapshot)
        self.wanted: Wanted = wanted(manifest(snapshot), self.options, no_read)
        self.before = Disk.of(there, points, elsewhere)
        self.was = self.before.tree()
        found = listing(there, mounts=points, elsewhere=elsewhere)
        self.plan: Plan = make_plan(self.wanted, found, self.options)
        self.disk = self.before
        foreign = [path for path, node in self.was.items() if isinstance(node, X) and node.reason == table.MOUNT]
        self.mounts = set(points) | set(foreign)
        self.held = self.mounts | {
            path for path, node in self.was.items() if isinstance(node, X) and node.reason == table.OWN
        }
        inodes = {id(inode): (inode, inode.content, inode.meta) for inode in self.disk.names.values()}
        went = self.disk.carry_out(self.plan, BLOCKS)
        assert went == self.plan.counts.removed
        for inode, content, meta in inodes.values():
            assert inode.content == content, "the content of an inode was altered"
            assert not inode.fixed or inode.meta == meta
        self.now = self.disk.tree()
        self.check_counts()
        self.check_local(found.rows.digests)

    def check_counts(self) -> None:
        counts, actions = self.plan.counts, [action.action for action in self.plan.actions if action.path]
        assert counts.created == actions.count("create")
        assert counts.replaced == actions.count("replace")
        assert counts.updated == actions.count("update")
        assert len(self.plan.removals) == actions.count("remove")
        assert counts.created + counts.replaced + counts.updated + counts.kept == len(self.wanted.rows)

    def check_local(self, digests_there: bytearray) -> None:
        there = {bytes(digests_there[at : at + 32]) for at in range(0, len(digests_there), 32)}
        build = bytes(self.plan.build.digests)
        assert self.plan.local == there & {build[at : at + 32] for at in range(0, len(build), 32)}

    def left_alone(self, path: bytes) -> bool:
        """Whether a wanted path stays as it was."""
        if path not in self.was:
            return False
        if self.options.mode == "exact" and at_or_below(path, self.wanted.protected):
            return True
        node = self.was[path]
        in_scope = not self.wanted.scope or at_or_below(path, self.wanted.scope)
        return not in_scope or (isinstance(node, X) and path in self.held)

    def check_wanted(self) -> None:
        """Every wanted entry is there as wanted, or was left alone."""
        rows = self.wanted.rows
        named = dict[int, set[int]]()
        for path, kind, group in zip(rows.paths, rows.kinds, rows.groups, strict=True):
            if self.left_alone(path):
                assert only_content(self.now[path]) == only_content(self.was[path])
                continue
            inode, node = self.disk.names[path], self.snapshot[path]
            assert inode.kind == kind
            if isinstance(node, X):
                assert node.entry is not None
                node = node.entry
            if isinstance(node, D | F):
                assert inode.meta[:2] == (node.mode, node.mtime), path
            if isinstance(node, F | L):
                assert inode.content == (node.content if isinstance(node, F) else node.text)
            if isinstance(node, L):
                assert inode.meta[1] == node.mtime
            if kind == table.FILE:
                named.setdefault(id(inode), set()).add(group or -id(inode) - len(named) - 1)
        assert all(len(groups) == 1 for groups in named.values()), "two wanted files are one"
        for group in set(rows.groups) - {0}:
            members = [path for path, other in zip(rows.paths, rows.groups, strict=True) if other == group]
            inodes: dict[bytes, set[int]] = {}
            for path in members:
                if not self.left_alone(path):
                    # No link crosses a mount.
                    side = max((top for top in self.mounts if at_or_below(path, [top])), key=len, default=b"")
                    inodes.setdefault(side, set()).add(id(self.disk.names[path]))
            assert all(len(found) == 1 for found in inodes.values()), "hard links are not one file"

    def check_again(self) -> None:
        """The same restore again does nothing."""
        mounted = [path for path in self.mounts if path in self.now and not isinstance(self.now[path], X)]
        fixed = [path for path, inode in self.disk.names.items() if inode.fixed]
        root = D(*self.disk.root)
        again = make_plan(
            self.wanted, listing(self.now, root=root, mounts=mounted, elsewhere=set(fixed) - set(mounted)), self.options
        )
        assert {action.action for action in again.actions} <= {"leave"}
        assert again.build.paths == [] and again.removals == () and again.settle.paths == []
        assert again.counts.kept == len(self.wanted.rows)


SETTINGS = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


@SETTINGS
@given(cases, st.sampled_from([(), (), (b"a",), (b"b/c", b"a/b")]))
def test_exact(case: Case, chosen: tuple[bytes, ...]) -> None:
    snapshot, there, points, elsewhere = case
    scope = tuple(path for path in chosen if path in snapshot and not is_left_out(snapshot[path]))
    try:
        checked = Checked(snapshot, there, points, elsewhere, mode="exact", paths=scope)
    except Conflict as conflict:
        assert conflict.conflicts
        return
    checked.check_wanted()
    rows = set(checked.wanted.rows.paths)
    stays = [*checked.held, *checked.wanted.protected]
    for path in checked.now.keys() - rows:
        holds = any(top.startswith(path + b"/") and top in checked.was for top in stays)
        outside = bool(scope) and not at_or_below(path, scope)
        assert at_or_below(path, stays) or holds or outside, f"{path!r} is not wanted"
    for path, node in checked.was.items():
        kept = at_or_below(path, checked.wanted.protected) or (at_or_below(path, checked.mounts) and path not in rows)
        outside = bool(scope) and not at_or_below(path, scope)
        if kept or outside:
            assert only_content(checked.now[path]) == only_content(node)
    for path, _ in checked.plan.removals:
        assert not at_or_below(path, checked.mounts)
        assert not any(top.startswith(path + b"/") for top in checked.mounts)
    checked.check_again()


@SETTINGS
@given(cases)
def test_merge(case: Case) -> None:
    try:
        checked = Checked(*case, mode="merge")
    except Conflict as conflict:
        assert conflict.conflicts
        return
    checked.check_wanted()
    rows = set(checked.wanted.rows.paths)
    assert checked.plan.removals == () and checked.plan.counts.removed == 0
    for path, node in checked.was.items():
        assert path in checked.now, f"{path!r} is lost"
        if path not in rows:
            assert only_content(checked.now[path]) == only_content(node)
    checked.check_again()


def is_left_out(node: Node) -> bool:
    return isinstance(node, X) and node.entry is None


@pytest.mark.parametrize("mode", ["exact", "merge"])
def test_most_pairs_of_trees_have_a_plan(mode: str) -> None:
    """The properties above are of plans, so there must be some of every kind."""
    seen = dict.fromkeys(("planned", "refused", "create", "replace", "update", "remove", "leave", "group"), 0)

    @SETTINGS
    @given(cases)
    def look(case: Case) -> None:
        try:
            plan = Checked(*case, mode=mode).plan
        except Conflict:
            seen["refused"] += 1
            return
        seen["planned"] += 1
        for action in plan.actions:
            seen[action.action] += 1
        seen["group"] += any(plan.build.groups)

    look()
    absent = {"remove", "leave"} if mode == "merge" else set()
    assert {word for word, count in seen.items() if count < 10} == absent, seen
