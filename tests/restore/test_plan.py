"""Each clause of the plan, row by row: what is wanted, what is there, what is done or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from restore.planned import (
    FIFO,
    FOREIGN,
    FOREIGN_FILE,
    PATTERN,
    REST,
    STORE,
    STRANGE,
    UNREADABLE,
    UNREADABLE_FILE,
    D,
    F,
    L,
    Tree,
    X,
    digests,
    done,
    listing,
    manifest,
    plan,
    segment,
    want,
)

from sandlift.errors import Conflict
from sandlift.model import RestoreOptions
from sandlift.restoring.plan import Way, candidates, make_plan
from sandlift.restoring.wanted import wanted as restored
from sandlift_helper import table
from sandlift_helper.wire import BLOCK_MAX

A = F(b"a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A snapshot, a target and what the plan says; ``conflict`` is part of its first line."""

    want: Tree
    there: Tree
    does: Mapping[bytes, str] = field(default_factory=dict)
    conflict: str | None = None
    listing: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


MERGE: dict[str, Any] = {"mode": "merge"}

ROWS = {
    # Files.
    "equal": Row(want={b"f": A}, there={b"f": A}),
    "content": Row(want={b"f": A}, there={b"f": F(b"b")}, does={b"f": "replace"}),
    "size": Row(want={b"f": A}, there={b"f": F(b"bb")}, does={b"f": "replace"}),
    "not-hashed": Row(want={b"f": A}, there={b"f": A}, listing={"unhashed": [b"f"]}, does={b"f": "replace"}),
    "empty-needs-no-hash": Row(want={b"f": F()}, there={b"f": F()}, listing={"unhashed": [b"f"]}),
    "mode": Row(want={b"f": A}, there={b"f": F(b"a", 0o600)}, does={b"f": "update"}),
    "time": Row(want={b"f": A}, there={b"f": F(b"a", mtime=5)}, does={b"f": "update"}),
    "owner-is-not-asked-for": Row(want={b"f": A}, there={b"f": F(b"a", owner=5)}),
    "owner": Row(want={b"f": A}, there={b"f": F(b"a", owner=5)}, options={"owner": "keep"}, does={b"f": "update"}),
    "special-bits-are-dropped": Row(want={b"f": F(b"a", 0o4755)}, there={b"f": F(b"a", 0o755)}),
    "special-bits-there": Row(want={b"f": F(b"a", 0o755)}, there={b"f": F(b"a", 0o4755)}, does={b"f": "update"}),
    "special-bits-asked-for": Row(
        want={b"f": F(b"a", 0o4755)},
        there={b"f": F(b"a", 0o755)},
        options={"special_bits": True},
        does={b"f": "update"},
    ),
    "absent": Row(want={b"d/f": A}, there={}, does={b"d": "create", b"d/f": "create"}),
    "a-fifo-is-there": Row(want={b"f": A}, there={b"f": FIFO}, does={b"f": "replace"}),
    "a-link-is-there": Row(want={b"f": A}, there={b"f": L()}, does={b"f": "replace"}),
    "an-unreadable-file-is-there": Row(want={b"f": A}, there={b"f": UNREADABLE_FILE}, does={b"f": "replace"}),
    "positions": Row(
        want={b"f": F(b"\0" * BLOCK_MAX + b"x" * BLOCK_MAX)},
        there={b"f": F(b"x" * BLOCK_MAX + b"\0" * BLOCK_MAX)},
        does={b"f": "replace"},
    ),
    "holes-are-not-unhashed": Row(
        want={b"f": F(b"\0" * 9)}, there={b"f": F(b"123456789")}, listing={"unhashed": [b"f"]}, does={b"f": "replace"}
    ),
    # Hard links.
    "named-elsewhere-equal": Row(want={b"f": A}, there={b"f": A}, listing={"elsewhere": [b"f"]}),
    "named-elsewhere-mode": Row(
        want={b"f": A}, there={b"f": F(b"a", 0o600)}, listing={"elsewhere": [b"f"]}, does={b"f": "replace"}
    ),
    "one-inode-equal": Row(
        want={b"x": F(b"1", inode=7), b"y": F(b"1", inode=7)}, there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)}
    ),
    "one-inode-mode": Row(
        want={b"x": F(b"1", inode=7), b"y": F(b"1", inode=7)},
        there={b"x": F(b"1", 0o600, inode=3), b"y": F(b"1", 0o600, inode=3)},
        does={b"x": "update", b"y": "update"},
    ),
    "one-inode-elsewhere": Row(
        want={b"x": F(b"1", inode=7), b"y": F(b"1", inode=7)},
        there={b"x": F(b"1", 0o600, inode=3), b"y": F(b"1", 0o600, inode=3)},
        listing={"elsewhere": [b"y"]},
        does={b"x": "replace", b"y": "replace"},
    ),
    "two-inodes": Row(
        want={b"x": F(b"1", inode=7), b"y": F(b"1", inode=7)},
        there={b"x": F(b"1"), b"y": F(b"1")},
        does={b"x": "replace", b"y": "replace"},
    ),
    "two-pairs": Row(
        want={b"a": F(b"1", inode=1), b"b": F(b"1", inode=1), b"c": F(b"1", inode=2), b"d": F(b"1", inode=2)},
        there={b"a": F(b"1", inode=1), b"b": F(b"1", inode=2), b"c": F(b"1", inode=1), b"d": F(b"1", inode=2)},
        does={b"a": "replace", b"b": "replace", b"c": "replace", b"d": "replace"},
    ),
    "a-name-is-missing": Row(
        want={b"x": F(b"1", inode=7), b"y": F(b"1", inode=7)},
        there={b"x": F(b"1")},
        does={b"x": "replace", b"y": "create"},
    ),
    "a-name-in-a-new-directory": Row(
        want={b"d/y": F(b"1", inode=7), b"x": F(b"1", inode=7)},
        there={b"x": F(b"1")},
        does={b"d": "create", b"d/y": "create", b"x": "replace"},
    ),
    "wanted-as-two-files": Row(
        want={b"x": F(b"1"), b"y": F(b"1")},
        there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)},
        does={b"x": "replace", b"y": "replace"},
    ),
    "a-third-name-is-another-file": Row(
        want={b"x": F(b"1", inode=7), b"y": F(b"1", inode=7), b"z": F(b"1")},
        there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3), b"z": F(b"1", inode=3)},
        does={b"x": "replace", b"y": "replace", b"z": "replace"},
    ),
    "a-further-name-goes": Row(
        want={b"x": F(b"1")}, there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)}, does={b"y": "remove"}
    ),
    "a-further-name-goes-and-the-mode-differs": Row(
        want={b"x": F(b"1")},
        there={b"x": F(b"1", 0o600, inode=3), b"y": F(b"1", 0o600, inode=3)},
        does={b"x": "replace", b"y": "remove"},
    ),
    "merge-a-further-name-stays": Row(
        want={b"x": F(b"1")}, there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)}, options=MERGE
    ),
    "merge-a-further-name-stays-and-the-mode-differs": Row(
        want={b"x": F(b"1")},
        there={b"x": F(b"1", 0o600, inode=3), b"y": F(b"1", 0o600, inode=3)},
        options=MERGE,
        does={b"x": "replace"},
    ),
    "another-owner-and-a-further-name": Row(
        want={b"x": F(b"1")},
        there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)},
        options={"mode": "merge", "owner": "me"},
        does={b"x": "replace"},
    ),
    "a-further-name-is-a-link-in-the-snapshot": Row(
        want={b"x": F(b"1"), b"y": L(b"x")},
        there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)},
        does={b"y": "replace"},
    ),
    # Links.
    "the-same-link": Row(want={b"l": L()}, there={b"l": L()}),
    "another-text": Row(want={b"l": L()}, there={b"l": L(b"y")}, does={b"l": "replace"}),
    "link-time": Row(want={b"l": L()}, there={b"l": L(mtime=5)}, does={b"l": "update"}),
    "link-owner": Row(want={b"l": L()}, there={b"l": L(owner=5)}, options={"owner": "keep"}, does={b"l": "update"}),
    "link-owner-is-not-asked-for": Row(want={b"l": L()}, there={b"l": L(owner=5)}),
    "link-elsewhere": Row(
        want={b"l": L()}, there={b"l": L(mtime=5)}, listing={"elsewhere": [b"l"]}, does={b"l": "replace"}
    ),
    "a-file-where-a-link-shall-be": Row(want={b"l": L()}, there={b"l": A}, does={b"l": "replace"}),
    # A directory takes part.
    "directory-for-file": Row(want={b"x/f": A}, there={b"x": A}, does={b"x": "replace", b"x/f": "create"}),
    "file-for-directory": Row(want={b"x": A}, there={b"x/f": A}, does={b"x": "replace"}),
    "merge-directory-for-file": Row(
        want={b"x/f": A}, there={b"x": A}, options=MERGE, conflict="x: a file is where a directory shall be"
    ),
    "merge-file-for-directory": Row(
        want={b"x": A}, there={b"x": D()}, options=MERGE, conflict="x: a directory is where a file shall be"
    ),
    "merge-directory-for-fifo": Row(want={b"x": D()}, there={b"x": FIFO}, options=MERGE, conflict="x: a fifo"),
    "merge-file-for-fifo": Row(want={b"x": A}, there={b"x": FIFO}, options=MERGE, does={b"x": "replace"}),
    "directory-mode": Row(want={b"x": D(0o700)}, there={b"x": D()}, does={b"x": "update"}),
    "merge-directory-mode": Row(want={b"x": D(0o700)}, there={b"x": D()}, options=MERGE, does={b"x": "update"}),
    # What is not wanted.
    "goes": Row(
        want={},
        there={b"d/e/f": A, b"p": FIFO},
        does={b"d": "remove", b"d/e": "remove", b"d/e/f": "remove", b"p": "remove"},
    ),
    "merge-stays": Row(want={}, there={b"d/e/f": A, b"p": FIFO}, options=MERGE),
    "whiteout-goes": Row(want={}, there={b"w": X(table.CHAR_DEVICE, table.WHITEOUT)}, does={b"w": "remove"}),
    "the-marker-is-not-ours": Row(want={}, there={b".sandlift-restoring": A}, conflict=".sandlift-restoring: it is"),
    "the-marker-is-not-ours-merge": Row(
        want={}, there={b".sandlift-restoring": FIFO}, options=MERGE, conflict=".sandlift-restoring: it is there"
    ),
    "a-marker-below": Row(
        want={b"d": D()}, there={b"d/.sandlift-restoring": A}, does={b"d/.sandlift-restoring": "remove"}
    ),
    "the-marker-is-wanted": Row(want={b".sandlift-restoring": A}, there={}, conflict=".sandlift-restoring: "),
    "the-marker-is-wanted-merge": Row(
        want={b".sandlift-restoring": A}, there={}, options=MERGE, conflict=".sandlift-restoring: "
    ),
    "the-marker-below": Row(
        want={b"d/.sandlift-restoring": A}, there={b"d": D()}, does={b"d/.sandlift-restoring": "create"}
    ),
    # What the snapshot does not hold.
    "excluded": Row(want={b"x": PATTERN}, there={b"x": A}, does={b"x": "leave"}),
    "excluded-directory": Row(want={b"x": PATTERN}, there={b"x/y/z": A}, does={b"x": "leave"}),
    "excluded-and-absent": Row(want={b"x": PATTERN}, there={}),
    "excluded-is-no-prefix": Row(
        want={b"x": PATTERN}, there={b"x.y": A, b"x-": A}, does={b"x.y": "remove", b"x-": "remove"}
    ),
    "excluded-and-kept": Row(want={b"x": UNREADABLE}, there={b"x/y": A, b"x": D(0o700)}, does={b"x": "leave"}),
    "excluded-and-kept-and-absent": Row(want={b"x": UNREADABLE}, there={}, does={b"x": "create"}),
    "excluded-and-kept-and-no-directory": Row(want={b"x": UNREADABLE}, there={b"x": A}, does={b"x": "leave"}),
    "excluded-and-kept-with-entries": Row(
        want={b"x": X(table.DIRECTORY, table.LIMIT, b"path", D()), b"x/y": A},
        there={b"x": A},
        conflict="x: it is left alone and is no directory",
    ),
    "excluded-and-kept-with-absent-entries": Row(
        want={b"x": X(table.DIRECTORY, table.LIMIT, b"path", D()), b"x/y": A},
        there={b"x/z": A},
        does={b"x": "leave", b"x/y": "create"},
    ),
    "unstable-file": Row(
        want={b"x": X(table.FILE, table.UNSTABLE, b"", A)}, there={b"x": F(b"b")}, does={b"x": "leave"}
    ),
    "unstable-file-in-a-group": Row(
        want={b"x": X(table.FILE, table.UNSTABLE, b"", F(b"1", inode=7)), b"y": F(b"1", inode=7)},
        there={b"x": F(b"1", 0o600, inode=3), b"y": F(b"1", 0o600, inode=3)},
        does={b"x": "leave", b"y": "replace"},
    ),
    "unstable-file-in-a-group-that-is-right": Row(
        want={b"x": X(table.FILE, table.UNSTABLE, b"", F(b"1", inode=7)), b"y": F(b"1", inode=7)},
        there={b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)},
        does={b"x": "leave"},
    ),
    "merge-excluded": Row(want={b"x": PATTERN}, there={b"x": A}, options=MERGE),
    "cut-short": Row(
        want={b"d/a": A, b"d/b": REST},
        there={b"d/a": A, b"d/aa": A, b"d/b": A, b"d/c/x": A, b"e": A},
        does={b"d/aa": "remove", b"d/b": "leave", b"d/c": "leave", b"e": "remove"},
    ),
    "cut-short-at-the-top": Row(
        want={b"b": REST}, there={b"a": A, b"b/x": A, b"c": A}, does={b"a": "remove", b"b": "leave", b"c": "leave"}
    ),
    "no-links": Row(want={b"l": L()}, there={b"l": L(b"y")}, options={"no_links": True}, does={b"l": "leave"}),
    "file-for-a-directory-that-holds-what-is-excluded": Row(
        want={b"x": F(), b"x/y": PATTERN}, there={b"x/y": A}, conflict="x: a file shall be there, but x/y is not in"
    ),
    # Mounts, our own store, and what cannot be read.
    "mount": Row(want={}, there={b"m": FOREIGN}, does={b"m": "leave"}),
    "mount-of-a-file": Row(want={}, there={b"m": FOREIGN_FILE}, does={b"m": "leave"}),
    "mount-below": Row(
        want={},
        there={b"d/e/m": FOREIGN, b"d/f": A},
        does={b"d": "leave", b"d/e": "leave", b"d/e/m": "leave", b"d/f": "remove"},
    ),
    "entered-mount": Row(
        want={}, there={b"d/m/f": A}, listing={"mounts": [b"d/m"]}, does={b"d": "leave", b"d/m": "leave"}
    ),
    "entered-mount-wanted": Row(
        want={b"m/f": F(b"b"), b"m/g": A},
        there={b"m/f": A, b"m/x/y": A},
        listing={"mounts": [b"m"]},
        does={b"m/f": "replace", b"m/g": "create", b"m/x": "leave"},
    ),
    "entered-mount-in-the-way": Row(
        want={b"m": A}, there={b"m": D()}, listing={"mounts": [b"m"]}, conflict="m: a file shall be there, but m cannot"
    ),
    "mount-in-the-way": Row(
        want={b"d": A}, there={b"d/m": FOREIGN}, conflict="d: a file shall be there, but d/m cannot"
    ),
    "directory-on-a-mount-in-the-way": Row(
        want={b"m/x": A}, there={b"m/x/y": A}, listing={"mounts": [b"m"]}, conflict="m/x: a file shall be there"
    ),
    "directory-for-file-on-a-mount": Row(
        want={b"m/x/y": A}, there={b"m/x": A}, listing={"mounts": [b"m"]}, does={b"m/x": "replace", b"m/x/y": "create"}
    ),
    "mount-wanted": Row(want={b"m": D(0o700)}, there={b"m": FOREIGN}, does={b"m": "leave"}),
    "merge-mount-wanted": Row(want={b"m": D(0o700)}, there={b"m": FOREIGN}, options=MERGE),
    "mount-not-entered": Row(
        want={b"m/f": A}, there={b"m": FOREIGN}, conflict="m: something is mounted there, so nobody knows"
    ),
    "merge-mount-not-entered": Row(
        want={b"m/f": A}, there={b"m": FOREIGN}, options=MERGE, conflict="m: something is mounted there, so nobody"
    ),
    "mount-of-a-file-in-the-way": Row(want={b"m": A}, there={b"m": FOREIGN_FILE}, conflict="m: something is mounted"),
    "merge-mount-of-a-file-in-the-way": Row(
        want={b"m": A}, there={b"m": FOREIGN_FILE}, options=MERGE, conflict="m: something is mounted"
    ),
    "file-is-a-mount": Row(want={b"m": A}, there={b"m": A}, listing={"mounts": [b"m"]}),
    "file-is-a-mount-and-differs": Row(
        want={b"m": A}, there={b"m": F(b"b")}, listing={"mounts": [b"m"]}, conflict="m: something is mounted"
    ),
    "directory-for-a-file-that-is-a-mount": Row(
        want={b"m": D()}, there={b"m": A}, listing={"mounts": [b"m"]}, conflict="m: something is mounted"
    ),
    "the-target-is-a-mount": Row(want={}, there={b"f": A}, listing={"mounts": [b""]}, does={b"f": "remove"}),
    "our-store": Row(want={}, there={b"d/s": STORE}, does={b"d": "leave", b"d/s": "leave"}),
    "our-store-in-the-way": Row(want={b"s": A}, there={b"s": STORE}, conflict="s: a file shall be there, but s cannot"),
    "our-store-below": Row(want={b"s/f": A}, there={b"s": STORE}, conflict="s: sandlift's own store is there, so"),
    "unreadable": Row(
        want={}, there={b"d/u": UNREADABLE}, conflict="d/u: it cannot be read, so nobody knows what would be removed"
    ),
    "unreadable-wanted": Row(want={b"u": D()}, there={b"u": UNREADABLE}, conflict="u: it cannot be read"),
    "unreadable-protected": Row(want={b"u": PATTERN}, there={b"u": UNREADABLE}, does={b"u": "leave"}),
    "unreadable-in-the-way": Row(want={b"u": A}, there={b"u": UNREADABLE}, conflict="u: a file shall be there, but u"),
    "merge-unreadable": Row(want={b"u": D(0o700)}, there={b"u": UNREADABLE}, options=MERGE, does={b"u": "update"}),
    "merge-unreadable-below": Row(want={b"u/f": A}, there={b"u": UNREADABLE}, options=MERGE, conflict="u: it cannot"),
    "merge-unreadable-unwanted": Row(want={}, there={b"u": UNREADABLE}, options=MERGE),
    "merge-a-directory-that-changes": Row(
        want={b"u": D(0o700)}, there={b"u": X(table.DIRECTORY, table.UNSTABLE)}, options=MERGE
    ),
    "strange": Row(want={}, there={b"s": STRANGE}, conflict="s: it cannot be read"),
    "strange-in-the-way": Row(want={b"s": A}, there={b"s": STRANGE}, conflict="s: it cannot be read"),
    "merge-strange-in-the-way": Row(want={b"s": A}, there={b"s": STRANGE}, options=MERGE, conflict="s: it cannot"),
    "unreadable-file-goes": Row(want={}, there={b"f": UNREADABLE_FILE}, does={b"f": "remove"}),
    "too-many": Row(want={b"d": D()}, there={b"d/f": REST}, conflict="d: it has more names than are listed"),
    "too-many-at-the-top": Row(want={}, there={b"f": REST}, conflict="the target: it has more names than are listed"),
    "merge-too-many-at-the-top": Row(want={b"g": A}, there={b"f": REST}, options=MERGE, conflict="the target: it has"),
    # A part of the snapshot.
    "scope": Row(
        want={b"d/f": A, b"e": A},
        there={b"d/x": A, b"y": A},
        options={"paths": (b"d",)},
        does={b"d/f": "create", b"d/x": "remove"},
    ),
    "scope-parents": Row(
        want={b"d": D(0o700), b"d/e/f": A},
        there={b"d": D(0o755, 5), b"d/x": A},
        options={"paths": (b"d/e/f",)},
        does={b"d/e": "create", b"d/e/f": "create"},
    ),
    "scope-parent-is-a-file": Row(
        want={b"d/f": A}, there={b"d": A}, options={"paths": (b"d/f",)}, conflict="d: a file is in the way"
    ),
    "merge-scope-parent-is-a-file": Row(
        want={b"d/f": A}, there={b"d": A}, options={"paths": (b"d/f",), "mode": "merge"}, conflict="d: a file is in"
    ),
    "scope-itself-is-a-file": Row(
        want={b"d/f": A}, there={b"d": A}, options={"paths": (b"d",)}, does={b"d": "replace", b"d/f": "create"}
    ),
    "scope-unreadable-elsewhere": Row(
        want={b"d": D(), b"e": D()}, there={b"d": D(), b"e": UNREADABLE, b"f": REST}, options={"paths": (b"d",)}
    ),
    "scope-excluded-elsewhere-and-a-parent": Row(
        want={b"d/e": D(), b"x": PATTERN}, there={b"d/e": D(), b"x": A}, options={"paths": (b"d/e",)}
    ),
    "scope-excluded-elsewhere": Row(
        want={b"d": D(), b"e": PATTERN}, there={b"d": D(), b"e": A}, options={"paths": (b"d",)}
    ),
    # Links, proved on the tree that will be there.
    "merge-passes-an-absolute-link": Row(
        want={b"l": L(b"e/passwd")}, there={b"e": L(b"/etc")}, options=MERGE, conflict="l: the link would leave"
    ),
    "merge-is-an-alias-of-an-absolute-link": Row(
        want={b"l": L(b"e")}, there={b"e": L(b"/etc")}, options=MERGE, conflict="l: the link would leave"
    ),
    "merge-passes-a-link-that-leaves": Row(
        want={b"l": L(b"e/passwd")}, there={b"e": L(b"f/x"), b"f": L(b"../..")}, options=MERGE, conflict="l: the link"
    ),
    "merge-passes-a-link-of-unknown-text": Row(
        want={b"l": L(b"e/x")}, there={b"e": X(table.LINK, table.LIMIT, b"link text")}, options=MERGE, conflict="l: the"
    ),
    "merge-climbs-after-a-link": Row(
        want={b"d/e/l": L(b"../../m/../x"), b"d/e": D()},
        there={b"m": L(b".")},
        options=MERGE,
        conflict="d/e/l: the link would leave",
    ),
    "merge-an-existing-link-would-leave": Row(
        want={b"s": L(b".")},
        there={b"l": L(b"s/../x")},
        options=MERGE,
        conflict="l: the link stays, and would lead out",
    ),
    "merge-an-existing-link-leaves-already": Row(
        want={b"f": A}, there={b"l": L(b"../x"), b"m": L(b"/x")}, options=MERGE, does={b"f": "create"}
    ),
    "merge-an-existing-link-is-replaced": Row(
        want={b"e": D(), b"l": L(b"f/x"), b"f": A},
        there={b"e": D(), b"f": L(b"/etc")},
        options=MERGE,
        does={b"l": "create", b"f": "replace"},
    ),
    "exact-a-link-goes": Row(
        want={b"l": L(b"e/passwd")}, there={b"e": L(b"/etc")}, does={b"l": "create", b"e": "remove"}
    ),
    "exact-a-link-below-what-is-exchanged": Row(
        want={b"l": L(b"d/e/x"), b"d": A}, there={b"d/e": L(b"/etc")}, does={b"l": "create", b"d": "replace"}
    ),
    "exact-a-link-is-left-alone": Row(
        want={b"l": L(b"e/passwd"), b"e": X(table.LINK, table.OUTSIDE_LINK, b"/etc")},
        there={b"e": L(b"/etc")},
        conflict="l: the link would leave",
    ),
    "exact-a-wanted-link-is-left-alone": Row(
        want={b"d": X(table.DIRECTORY, table.LIMIT, b"path", D()), b"d/s": L(b"e/f"), b"l": L(b"d/s/../../x")},
        there={b"d/s": L(b"..")},
        conflict="l: the link would leave",
    ),
    "exact-a-file-is-left-alone-where-a-link-is-wanted": Row(
        want={
            b"d": X(table.DIRECTORY, table.LIMIT, b"path", D()),
            b"d/s": L(b"e/f/g"),
            b"l": L(b"d/s/../../../x"),
        },
        there={b"d/s": A},
        conflict="l: the link would leave",
    ),
    "scope-an-existing-link-is-passed": Row(
        want={b"l": L(b"e/x")}, there={b"e": L(b"/etc")}, options={"paths": (b"l",)}, conflict="l: the link would leave"
    ),
    "merge-passes-what-is-put-back": Row(
        want={b"e": X(table.LINK, table.OUTSIDE_LINK, b"/etc"), b"l": L(b"e/x")},
        there={},
        options={"mode": "merge", "relink": (b"/**",)},
        does={b"e": "create", b"l": "create"},
    ),
    "merge-an-existing-link-passes-what-is-put-back": Row(
        want={b"e": X(table.LINK, table.OUTSIDE_LINK, b"/etc")},
        there={b"l": L(b"e/../x")},
        options={"mode": "merge", "relink": (b"/**",)},
        conflict="l: the link stays",
    ),
    "what-is-put-back-is-there": Row(
        want={b"e": X(table.LINK, table.OUTSIDE_LINK, b"/etc"), b"l": L(b"e/x")},
        there={b"e": L(b"/etc", mtime=9), b"l": L(b"e/x")},
        options={"relink": (b"/**",)},
    ),
    # A target that takes several names for one.
    "folds-siblings": Row(
        want={b"d/A": A, b"d/a": A},
        there={},
        listing={"folds": True},
        conflict="d/a: the target takes this name and d/A for one",
    ),
    "folds-not": Row(want={b"d/A": A, b"d/a": A}, there={b"d": D()}, does={b"d/A": "create", b"d/a": "create"}),
    "folds-composition": Row(
        want={"e\u0301".encode(): A, "\u00e9".encode(): A}, there={}, listing={"folds": True}, conflict="for one"
    ),
    "folds-sharp-s": Row(
        want={b"STRASSE": A}, there={"straße".encode(): A}, listing={"folds": True}, conflict="for one"
    ),
    "folds-an-existing-name": Row(
        want={b"a": A}, there={b"A": A}, listing={"folds": True}, conflict="a: the target takes this name and A for one"
    ),
    "folds-an-existing-name-merge": Row(
        want={b"a": A}, there={b"A": A}, listing={"folds": True}, options=MERGE, conflict="a: the target takes"
    ),
    "folds-parents": Row(
        want={b"a/x": A},
        there={b"b/X": A, b"a": D()},
        listing={"folds": True},
        does={b"a/x": "create", b"b": "remove", b"b/X": "remove"},
    ),
    "folds-no-text": Row(
        want={b"\xff": A, b"\xfe": A}, there={}, listing={"folds": True}, does={b"\xff": "create", b"\xfe": "create"}
    ),
    "folds-links": Row(
        want={b"d/e/l": L(b"../../S/../x"), b"s": L(b".")},
        there={},
        listing={"folds": True},
        conflict="d/e/l: the link would leave",
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_table(row: Row) -> None:
    found = listing(row.there, **row.listing)
    if row.conflict is not None:
        with pytest.raises(Conflict) as caught:
            plan(row.want, found, **row.options)
        assert row.conflict in caught.value.conflicts[0]
        assert caught.value.conflicts[0] in str(caught.value)
        return
    made = plan(row.want, found, **row.options)
    assert done(made) == dict(row.does)
    assert made.in_place
    assert [action.path for action in made.actions] == sorted(row.does, key=table.sort_key)


def test_the_parts_of_a_plan() -> None:
    made = plan(
        {b"d/new/deep/f": A, b"d/f": F(b"b"), b"d/l": L(), b"k": F(b"k"), b"x/y": A, b"e": D(0o700)},
        {b"d/f": A, b"d/l": L(mtime=5), b"k": F(b"k"), b"x": A, b"e": D(), b"o/p/q": A, b"o/s": FIFO},
    )
    assert made.units == (
        (b"d/f", Way.REPLACE),
        (b"d/new", Way.CREATE),
        (b"x", Way.EXCHANGE),
    )
    assert made.build.paths == [b"d/f", b"d/new", b"d/new/deep", b"d/new/deep/f", b"x", b"x/y"]
    assert bytes(made.build.digests) == digests(b"b")[0][0] + 2 * digests(b"a")[0][0]
    # The directory d is set again because its time moves; that is no action.
    assert made.settle.paths == [b"d", b"d/l", b"e"]
    assert made.settle.texts == [b"x"]
    assert list(made.settle.modes) == [0o755, 0o777, 0o700]
    assert made.removals == (
        (b"o/s", table.FIFO),
        (b"o/p/q", table.FILE),
        (b"o/p", table.DIRECTORY),
        (b"o", table.DIRECTORY),
    )
    assert made.local == {digests(b"a")[0][0]}
    assert made.set_root
    counts = made.counts
    # d, k and so on: every wanted entry is counted once, and each that goes.
    assert (counts.created, counts.replaced, counts.updated, counts.kept, counts.removed) == (4, 2, 2, 2, 4)


def test_what_is_below_an_exchanged_directory_counts_as_removed() -> None:
    made = plan({b"x": A}, {b"x/y/z": A, b"x/p": FIFO})
    assert made.removals == ()
    assert made.units == ((b"x", Way.EXCHANGE),)
    assert (made.counts.replaced, made.counts.removed) == (1, 3)
    assert [action.why for action in made.actions] == ["a directory with 3 entries is there"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"mode": "exact"}, True), ({"mode": "merge"}, False), ({"mode": "exact", "paths": (b"f",)}, False)],
    ids=str,
)
def test_whose_the_root_is(options: dict[str, Any], expected: bool) -> None:
    made = plan({b"f": A}, {b"f": A}, root=D(0o700), **options)
    assert made.set_root is expected
    assert done(made) == ({b"": "update"} if expected else {})
    assert (made.build.root.mode if made.build.root else 0) == 0o700


@pytest.mark.parametrize("root", [D(0o755, 9), D(0o1755, 9), D(0o755, 9, 5)], ids=str)
def test_a_root_that_is_right_is_no_action(root: D) -> None:
    assert done(plan({}, {}, root=root)) == {}
    assert done(plan({}, {}, root=root, owner="keep")) == ({b"": "update"} if root.owner else {})


def test_a_new_file_of_a_group_carries_the_blocks() -> None:
    found = listing({b"b": F(b"1", inode=3), b"c": F(b"1", inode=3), b"d": D()}, mounts=[b""])
    made = plan(
        {
            b"a": X(table.FILE, table.UNSTABLE, b"", F(b"1", inode=5)),
            b"b": F(b"1", 0o600, inode=5),
            b"c": F(b"1", 0o600, inode=5),
            b"d": D(),
        },
        listing({b"a": F(b"2"), b"b": F(b"1"), b"c": F(b"1"), b"d": D()}),
    )
    assert made.build.paths == [b"b", b"c"]
    assert list(made.build.groups) == [1, 1]
    assert list(made.build.counts) == [1, 0]
    assert bytes(made.build.digests) == digests(b"1")[0][0]
    assert found.rows.flags == bytearray([table.MOUNT_POINT])


def test_another_owner_is_compared_there() -> None:
    tree: Tree = {b"d/f": A, b"l": L()}
    made = plan(tree, tree, owner="1000:100")
    assert made.settle.paths == [b"d", b"d/f", b"l"]
    assert bytes(made.settle.kinds) == bytes([table.DIRECTORY, table.FILE, table.LINK])
    assert made.actions == ()
    assert (made.counts.updated, made.counts.kept) == (0, 3)
    # A foreign mount is not touched, and neither is a directory on the way to what was asked for.
    assert plan({b"m": D()}, {b"m": FOREIGN}, owner="me").settle.paths == []
    assert plan(tree, tree, owner="me", paths=(b"d/f",)).settle.paths == [b"d/f"]


@pytest.mark.parametrize("mode", ["new", "replace", "exact", "merge"])
def test_nothing_is_there(mode: str) -> None:
    tree: Tree = {b"d/f": A, b"l": L(), b"p": FIFO}
    made = plan(tree, listing({}, absent=True), mode=mode)
    assert not made.in_place
    assert made.set_root
    assert made.build.paths == [b"d", b"d/f", b"l"]
    assert made.build.excluded_paths == []
    assert (made.units, made.settle.paths, made.removals, made.local) == ((), [], (), frozenset())
    assert made.counts.created == 3
    assert done(made) == {b"d": "create", b"d/f": "create", b"l": "create"}


def test_new_into_an_empty_mount_is_in_place() -> None:
    made = plan({b"d/f": A}, listing({}, mounts=[b""]), mode="new")
    assert made.in_place
    assert made.units == ((b"d", Way.CREATE),)
    assert made.set_root
    assert not plan({b"d/f": A}, listing({}), mode="new").in_place
    # What is there was begun by such a restore, which is completed as it stands.
    begun = plan({b"d/f": A, b"x": A}, listing({b"x": A}, mounts=[b""]), mode="new")
    assert begun.in_place
    assert (begun.counts.created, begun.counts.kept, begun.removals) == (2, 1, ())
    with pytest.raises(Conflict, match="cannot be exchanged"):
        plan({b"d/f": A}, listing({}, mounts=[b""]), mode="replace")
    with pytest.raises(Conflict, match="marks a restore in progress"):
        plan({b".sandlift-restoring": A}, listing({}, mounts=[b""]), mode="new")


@pytest.mark.parametrize("mode", ["new", "replace", "exact", "merge"])
def test_names_that_clash_wherever_the_tree_is_built(mode: str) -> None:
    nothing = listing({}, folds=True, absent=True)
    with pytest.raises(Conflict, match="takes this name and d/A for one"):
        plan({b"d/a": A, b"d/A": A}, nothing, mode=mode)
    with pytest.raises(Conflict, match="the link would leave"):
        plan({b"d/e/l": L(b"../../S/../x"), b"s": L(b".")}, nothing, mode=mode)
    assert plan({b"d/e/l": L(b"../../S/x"), b"s": L(b".")}, nothing, mode=mode).counts.created == 4


def test_a_clash_is_told_where_it_is() -> None:
    with pytest.raises(Conflict) as caught:
        plan({b"A/x": A, b"A/y": A}, listing({b"a/x": A, b"a/y": A}, folds=True))
    assert [line.partition(":")[0] for line in caught.value.conflicts] == ["A"]


def test_modes_of_links_mean_nothing() -> None:
    there = listing({b"l": L()})
    there.rows.modes[0] = 0o755
    assert done(plan({b"l": L()}, there)) == {}


def test_replace_tells_what_goes() -> None:
    made = plan({b"f": A}, {b"d/e": F(b"a"), b"p": FIFO}, mode="replace")
    assert not made.in_place
    assert made.set_root
    assert (made.counts.created, made.counts.removed) == (1, 3)
    assert done(made) == {b"": "replace", b"f": "create"}
    assert made.local == {digests(b"a")[0][0]}


LOST = X(table.FILE, table.IO_ERROR)
REPLACE: dict[str, tuple[Tree, Tree, dict[str, Any], str, bool]] = {
    "mount": ({}, {b"d/m": FOREIGN}, {}, "d/m: something is mounted there", False),
    "mount-of-a-file": ({}, {b"d/m": FOREIGN_FILE}, {}, "d/m: something is mounted there", False),
    "mount-point": ({}, {b"m": D()}, {"mounts": [b"m"]}, "m: something is mounted there", False),
    "root": ({}, {b"m": D()}, {"mounts": [b""]}, "the target: it is a mount point", False),
    "our-store": ({}, {b"s": STORE}, {}, "s: sandlift's own store is there", False),
    "unreadable": ({}, {b"u": UNREADABLE}, {}, "u: it cannot be read", False),
    "too-many": ({}, {b"d/f": REST}, {}, "d: it has more names than are listed", False),
    "too-deep": ({}, {b"d": X(table.DIRECTORY, table.LIMIT, b"depth", D())}, {}, "d: it cannot be read", False),
    "incomplete": ({b"x": LOST}, {b"f": A}, {}, "the target: the snapshot is incomplete", True),
    "excluded": ({b"x": PATTERN}, {b"x": A}, {}, "x: the snapshot does not hold it", True),
    "excluded-below": ({b"x": PATTERN}, {b"x/y/z": A}, {}, "x: the snapshot does not hold it", True),
}


@pytest.mark.parametrize("case", REPLACE.values(), ids=REPLACE)
def test_what_replace_would_destroy(case: tuple[Tree, Tree, dict[str, Any], str, bool]) -> None:
    snapshot, there, flags, line, discardable = case
    with pytest.raises(Conflict) as caught:
        plan(snapshot, listing(there, **flags), mode="replace")
    assert caught.value.conflicts[0].startswith(line)
    assert caught.value.hint or line.endswith(("read", "listed"))
    if discardable:
        assert "--discard-excluded" in caught.value.hint
        assert plan(snapshot, listing(there, **flags), mode="replace", discard_excluded=True).counts.removed > 0
    else:
        with pytest.raises(Conflict):
            plan(snapshot, listing(there, **flags), mode="replace", discard_excluded=True)


def test_replace_takes_what_is_excluded_and_not_there() -> None:
    assert plan({b"x": PATTERN}, {b"xy": A, b"w": UNREADABLE_FILE}, mode="replace").counts.removed == 2


def test_all_conflicts_are_gathered() -> None:
    names = [b"%02d" % number for number in range(30)]
    with pytest.raises(Conflict) as caught:
        plan({name: D() for name in names}, dict.fromkeys(names, A), mode="merge")
    assert len(caught.value.conflicts) == 20
    assert "and 29 more" in str(caught.value)
    assert "exact" in caught.value.hint
    with pytest.raises(Conflict) as caught:
        plan({b"a\x1b[31m\n": D()}, {b"a\x1b[31m\n": A}, mode="merge")
    assert "\x1b" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("snapshot", "there"),
    [
        ({b"m/%d/x" % number: A for number in range(9)}, {b"m": FOREIGN}),
        ({b"u/x": A, b"u/y": A}, {b"u": UNREADABLE}),
        ({b"d": X(table.DIRECTORY, table.LIMIT, b"path", D()), b"d/x": A, b"d/y": A}, {b"d": A}),
    ],
    ids=["mount", "unreadable", "no-directory"],
)
def test_a_conflict_is_told_once_for_all_below(snapshot: Tree, there: Tree) -> None:
    with pytest.raises(Conflict) as caught:
        plan(snapshot, there)
    assert len(caught.value.conflicts) == 1


def test_conflicts_of_every_sort_are_told_together() -> None:
    with pytest.raises(Conflict) as caught:
        plan({b"x": D(), b"l": L(b"e/f")}, {b"x": A, b"e": L(b"/etc")}, mode="merge")
    assert [line.partition(":")[0] for line in caught.value.conflicts] == ["x", "l"]


def test_names_of_one_inode_are_updated_together() -> None:
    """Whatever a target claims of one of them."""
    there = listing({b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)})
    there.rows.modes[1] = 0o600
    made = plan({b"x": F(b"1", inode=7), b"y": F(b"1", inode=7)}, there)
    assert done(made) == {b"x": "update", b"y": "update"}
    assert made.settle.paths == [b"x", b"y"]


def test_candidates() -> None:
    rows = segment(
        {
            b"a": F(b"12"),
            b"b": F(b"123"),
            b"c": F(b"34", inode=3),
            b"d": F(b"34", inode=3),
            b"e": F(),
            b"l": L(),
            b"z": D(),
        }
    )
    wanted = want({b"x": F(b"56"), b"e": F(), b"l": L(), b"z": D()})
    assert [rows.paths[row] for row in candidates(wanted, rows)] == [b"a", b"c"]


def test_an_inode_is_hashed_once() -> None:
    """Whichever of its names was hashed, the content is known for all."""
    there: Tree = {b"x": F(b"1", inode=3), b"y": F(b"1", inode=3)}
    assert done(plan(there, listing(there, unhashed=[b"y"]))) == {}
    second = listing(there)
    rows = second.rows
    rows.counts[0], rows.counts[1] = 0, 1
    assert done(plan(there, type(second)(rows=rows, hashed=frozenset({1}), folds=False))) == {}


@pytest.mark.parametrize("mode", ["exact", "replace"])
def test_most_runs_need_only_what_is_left(mode: str) -> None:
    snapshot: Tree = {b"f": A, b"g": A, b"p": PATTERN}
    there = listing({b"f": F(b"b"), b"x": A, b"p": A} if mode == "exact" else {b"f": F(b"b")})
    chosen = RestoreOptions(mode=mode)  # type: ignore[arg-type]
    wanted = want(snapshot, mode=mode)
    brief = make_plan(wanted, there, chosen, all_actions=False)
    whole = make_plan(wanted, there, chosen)
    assert len(whole.actions) > len(brief.actions)
    assert done(brief) == {path: word for path, word in done(whole).items() if word == "leave"}
    assert (brief.units, brief.removals, brief.counts) == (whole.units, whole.removals, whole.counts)


def test_each_path_is_told_of_once() -> None:
    """What is left out of a repository made inert goes at the target; what a snapshot excludes is left there."""
    made = plan({b"l": L()}, {b"l": L(b"y")}, no_links=True)
    assert [(action.action, action.why) for action in made.actions] == [("leave", "links are left out")]
    repository: Tree = {b".git/HEAD": A, b".git/hooks/x": A, b".git/objects": D(), b".git/refs": D()}
    chosen = RestoreOptions(mode="exact", git="inert")
    wanted = restored(manifest(repository), chosen, lambda row: b"a")
    assert [action.path for action in wanted.left] == [b".git/hooks"]
    assert done(make_plan(wanted, listing(repository), chosen)) == {b".git/hooks": "remove", b".git/hooks/x": "remove"}
    assert done(make_plan(wanted, listing({}), chosen))[b".git/hooks"] == "leave"
