"""The groups that set a workspace down again: in a directory, and in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote

from benchmark import LeftOutError
from benchmark.contest import SLOW_ROUNDS, Bench, Step, absent, emptied
from benchmark.sandbox import Traffic, check_equal, sandlift_traffic
from benchmark.trees import Tree

TARFILE = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter='data')"


def archives(bench: Bench, tree: Tree) -> tuple[Path, Path]:
    """The tree as a tar and as a compressed one, made once."""
    tar = bench.place / f"{tree.role}.tar"
    packed = bench.place / f"{tree.role}.tar.zst"
    if not packed.exists():
        bench.run(["tar", "-C", str(tree.path), "-c", "-f", str(tar), "."])
        bench.run(["zstd", "-q", "-1", "-T1", str(tar), "-o", str(packed)])
    return tar, packed


def stored(bench: Bench, tree: Tree) -> Path:
    """A store with the tree in it: that of this round's first capture, or one made now."""
    store = bench.round_place / "store"
    if bench.program is not None and not store.exists():
        bench.run(bench.program.capture(store, bench.sandbox.url(tree.path)))
    return store


def restore(bench: Bench, number: int) -> None:
    tree = bench.tree("reference")
    tar, packed = archives(bench, tree)
    place = bench.round_place
    steps = [
        Step(
            name="tar x",
            command=["tar", "-x", "-f", str(tar), "-C", str(place / "tar")],
            prepare=emptied(place / "tar"),
        ),
        unpack_step(packed, place / "zstd-tar"),
        Step(
            name="tarfile, data filter",
            command=[sys.executable, "-c", TARFILE, str(tar), str(place / "tarfile")],
            prepare=emptied(place / "tarfile"),
            most_rounds=SLOW_ROUNDS,
        ),
    ]
    steps[:0] = restore_step(bench, stored(bench, tree), str(place / "restored"), place / "restored")
    bench.contest("restore", "reference", steps, number)
    if number == 0:
        check_equal(tree.path, place / ("tar" if bench.program is None else "restored"))
    absent(place / "tar", place / "zstd-tar", place / "tarfile", place / "restored")()


def unpack_step(packed: Path, target: Path) -> Step:
    return Step(
        name="zstd -dc | tar x",
        command=f"zstd -q -dc {quote(str(packed))} | tar -x -C {quote(str(target))}",
        prepare=emptied(target),
    )


def restore_step(bench: Bench, store: Path, target: str, place: Path) -> list[Step]:
    """Set the stored tree down in a place where nothing is; no step where only peers are measured."""
    if bench.program is None:
        return []
    return [
        Step(
            name="sandlift",
            command=bench.program.restore(store, target),
            prepare=absent(place),
            traffic=sandlift_traffic,
            is_peer=False,
        )
    ]


def restore_tree(bench: Bench, tree: Tree, number: int) -> None:
    """Of another tree, whose store and archive its first captures have just made."""
    place = bench.round_place
    packed = place / f"{tree.role}.tar.zst"
    if not packed.exists():
        raise LeftOutError(f"restores of the {tree.role} tree: there is no archive of it")
    steps = restore_step(bench, stored(bench, tree), str(place / "restored"), place / "restored")
    bench.contest("restore", tree.role, [*steps, unpack_step(packed, place / "zstd-tar")], number)
    absent(place / "restored", place / "zstd-tar")()


def into(bench: Bench, number: int) -> None:
    tree = bench.tree("reference")
    tar, packed = archives(bench, tree)
    place = bench.round_place
    unpack = bench.sandbox.remote("tar", "-x", "-C", str(place / "ssh-tar"))
    steps = [
        Step(
            name="zstd -dc | ssh tar x",
            command=f"zstd -q -dc {quote(str(packed))} | {unpack}",
            prepare=emptied(place / "ssh-tar"),
            traffic=lambda _: Traffic(sent=tar.stat().st_size, received=0),
        )
    ]
    target = place / "ssh-restored"
    steps[:0] = restore_step(bench, stored(bench, tree), bench.sandbox.url(target), target)
    bench.contest("into", "reference", steps, number)
    if bench.program is not None and number == 0:
        check_equal(tree.path, target)
    absent(place / "ssh-tar", target)()
