"""The groups that bring a workspace to the host: the first time, again, changed, and from a sibling."""

from __future__ import annotations

import random
from pathlib import Path
from shlex import quote

from benchmark import LeftOutError
from benchmark.contest import MIB, Bench, Step, absent, replaced
from benchmark.processes import CommandError
from benchmark.records import FULL
from benchmark.sandbox import Traffic, rsync, rsync_traffic, sandlift_traffic
from benchmark.trees import Tree, change_byte, change_some

TREE_ROUNDS = 3


def tar_step(bench: Bench, tree: Tree, *, sparse: bool = False) -> Step:
    """Take everything as a compressed tar: neither hashed nor verified nor stored."""
    place = bench.round_place / f"{tree.role}.tar.zst"
    words = ["tar", "-C", str(tree.path), *(["-S"] if sparse else []), "-c", "."]
    pipeline = f"{bench.sandbox.remote(*words)} | zstd -q -1 > {quote(str(place))}"
    return Step(
        name=FULL,
        command=pipeline,
        prepare=absent(place),
        traffic=lambda _: Traffic(sent=0, received=tar_bytes(bench, place)),
    )


def tar_bytes(bench: Bench, archive: Path) -> int:
    """The size of a compressed archive's content, which is what came over the wire."""
    return int(bench.run(f"zstd -q -dc {quote(str(archive))} | wc -c"))


def rsync_step(bench: Bench, tree: Tree, *, sparse: bool = False) -> Step:
    """Copy everything; rsync makes holes at the destination, but reads and sends them as zeros, so once is enough."""
    copy = bench.round_place / f"{tree.role}-rsync"
    return Step(
        name="rsync -a",
        command=rsync(bench.sandbox, tree.path, copy, *(["-S"] if sparse else [])),
        prepare=absent(copy),
        traffic=rsync_traffic,
        most_rounds=1 if sparse else None,
    )


def capture_step(bench: Bench, tree: Tree, store: Path, *options: str, name: str = "sandlift") -> list[Step]:
    """A first capture into a store that is not there yet; no step where only peers are measured."""
    if bench.program is None:
        return []
    return [
        Step(
            name=name,
            command=bench.program.capture(store, bench.sandbox.url(tree.path), *options),
            prepare=absent(store),
            traffic=sandlift_traffic,
            is_peer=False,
        )
    ]


def first(bench: Bench, number: int) -> None:
    tree = bench.tree("reference")
    bench.room(7 * tree.facts.bytes, "the reference tree")
    steps = capture_step(bench, tree, bench.round_place / "store")
    try:
        options = ("--python", bench.sandbox.without_zstd())
        steps += capture_step(bench, tree, bench.round_place / "store-zlib", *options, name="sandlift, no libzstd")
    except CommandError as error:
        bench.leave_out(f"captures without libzstd: it cannot be hidden from {error}")
    steps += [
        tar_step(bench, tree),
        rsync_step(bench, tree),
        Step(name="ssh true", command=[str(bench.sandbox.ssh), bench.sandbox.account, "true"]),
    ]
    bench.contest("capture", "reference", steps, number)
    absent(bench.round_place / "store-zlib")()


def unchanged(bench: Bench, number: int) -> None:
    """The destinations are those of the first captures."""
    tree = bench.tree("reference")
    _unchanged(bench, tree, "reference", bench.round_place / "store", bench.round_place / f"{tree.role}-rsync", number)
    if bench.program is not None:
        share = bench.last_traffic("unchanged", "reference", "sandlift") / tree.facts.bytes
        bench.figure("unchanged bytes", 100 * share)


def _unchanged(bench: Bench, tree: Tree, role: str, store: Path, copy: Path, number: int) -> None:
    steps = [Step(name="rsync -a", command=rsync(bench.sandbox, tree.path, copy), traffic=rsync_traffic)]
    if bench.program is not None:
        command = bench.program.capture(store, bench.sandbox.url(tree.path))
        steps.insert(0, Step(name="sandlift", command=command, traffic=sandlift_traffic, is_peer=False))
        if "--rehash" in bench.program.flags and role == "reference":
            command = bench.program.capture(store, bench.sandbox.url(tree.path), "--rehash")
            steps.append(Step(name="sandlift --rehash", command=command, traffic=sandlift_traffic, is_peer=False))
    bench.contest("unchanged", role, steps, number)


def changed(bench: Bench, number: int) -> None:
    """One byte in every hundredth file, after a capture and a copy of how it was."""
    tree = bench.copy("reference", "changing")
    place = bench.round_place
    before_copy, before_store = place / "changing-rsync-before", place / "changing-store-before"
    bench.run(rsync(bench.sandbox, tree.path, before_copy))
    copy, store = place / "changing-rsync", place / "changing-store"
    steps = [
        Step(
            name="rsync -a",
            command=rsync(bench.sandbox, tree.path, copy),
            prepare=replaced(copy, before_copy),
            traffic=rsync_traffic,
        )
    ]
    if bench.program is not None:
        bench.settled(tree)
        url = bench.sandbox.url(tree.path)
        bench.run(bench.program.capture(before_store, url))
        command = bench.program.capture(store, url)
        prepare = replaced(store, before_store)
        steps.insert(
            0, Step(name="sandlift", command=command, prepare=prepare, traffic=sandlift_traffic, is_peer=False)
        )
    change_some(tree.path)
    bench.contest("changed", "reference", steps, number)
    absent(before_copy, before_store, copy, store)()


def sibling(bench: Bench, number: int) -> None:
    """The same content elsewhere, never captured from there; the store holds the first workspace."""
    if bench.program is None or "--like" not in bench.program.flags:
        if bench.program is not None:
            bench.leave_out("a sibling's first capture: this sandlift knows no --like")
        return
    reference, tree = bench.tree("reference"), bench.copy("reference", "sibling")
    place = bench.round_place
    before, store = place / "sibling-before", place / "sibling-store"
    bench.run(bench.program.capture(before, bench.sandbox.url(reference.path)))
    command = bench.program.capture(store, bench.sandbox.url(tree.path), "--like", "bench", name="sibling")
    steps = [
        Step(
            name="sandlift --like",
            command=command,
            prepare=replaced(store, before),
            traffic=sandlift_traffic,
            is_peer=False,
        ),
        tar_step(bench, tree),
        Step(
            name="rsync -a --checksum",
            command=rsync(bench.sandbox, tree.path, place / "sibling-rsync", "--checksum"),
            prepare=replaced(place / "sibling-rsync", reference.path),
            traffic=rsync_traffic,
        ),
    ]
    bench.contest("sibling", "reference", steps, number)
    share = bench.last_traffic("sibling", "reference", "sandlift --like") / tree.facts.bytes
    bench.figure("sibling bytes", 100 * share)
    absent(before, store, place / "sibling-rsync", place / f"{tree.role}.tar.zst")()


# On trees of their own


def others(bench: Bench, rounds: int) -> None:
    """First captures and restores of the other kinds of tree."""
    from benchmark.restores import restore_tree

    for role in ("venv", "git", "huge", "sparse"):
        if role == "venv" and bench.reference == "quick":
            bench.leave_out("the venv tree: --quick downloads nothing")
            continue
        try:
            tree = bench.tree(role)
            stored = tree.facts.bytes // (100 if role == "sparse" else 1)
            bench.room(5 * stored, f"the {role} tree")
            sparse = role == "sparse"
            for number in range(min(rounds, TREE_ROUNDS)):
                bench.renew()
                steps = capture_step(bench, tree, bench.round_place / "store")
                steps += [tar_step(bench, tree, sparse=sparse), rsync_step(bench, tree, sparse=sparse)]
                bench.contest("capture", role, steps, number)
                absent(bench.round_place / f"{role}-rsync")()
                restore_tree(bench, tree, number)
        except LeftOutError as reason:
            bench.leave_out(str(reason))
    bench.renew()


def one_byte(bench: Bench, rounds: int) -> None:
    """A huge file in which one byte differs from the last capture: a few blocks travel, and everything is read."""
    tree = bench.tree("huge")
    bench.room(4 * tree.facts.bytes, "one byte of a huge file")
    bench.renew()
    store, copy = bench.round_place / "store", bench.round_place / "rsync"
    bench.run(rsync(bench.sandbox, tree.path, copy))
    steps = [
        Step(
            name="rsync -a",
            command=rsync(bench.sandbox, tree.path, copy),
            traffic=rsync_traffic,
            repeatable=False,
        )
    ]
    if bench.program is not None:
        url = bench.sandbox.url(tree.path)
        bench.run(bench.program.capture(store, url))
        command = bench.program.capture(store, url)
        steps.insert(
            0, Step(name="sandlift", command=command, traffic=sandlift_traffic, repeatable=False, is_peer=False)
        )
    file = tree.path / "mixed.bin"
    chance = random.Random()
    for number in range(min(rounds, TREE_ROUNDS)):
        change_byte(file, chance.randrange(file.stat().st_size))
        bench.contest("one byte", "huge", steps, number)
        if bench.program is not None:
            bench.figure("one byte, received", bench.last_traffic("one byte", "huge", "sandlift") / MIB)
    bench.renew()


def many_files(bench: Bench, rounds: int) -> None:
    """A tree of a million small files: memory of the first capture, then nothing changed."""
    tree = bench.tree("million")
    bench.room(6_000 * tree.facts.files, "the tree of many files")
    bench.renew()
    store, copy = bench.round_place / "store", bench.round_place / "rsync"
    if bench.program is not None:
        bench.settled(tree)
        command = bench.program.capture(store, bench.sandbox.url(tree.path))
        # Where nothing changed, the host has no tables that could be left out of the account.
        for name, table_bytes in (("million", tree.facts.table_bytes), ("million unchanged", 0)):
            memory = bench.memory(command)
            bench.figure(f"helper, {name}", memory.helper_bytes / MIB)
            bench.figure(f"host, {name}", (memory.host_bytes - table_bytes) / MIB)
    bench.run(rsync(bench.sandbox, tree.path, copy))
    for number in range(min(rounds, TREE_ROUNDS)):
        _unchanged(bench, tree, "million", store, copy, number)
        if bench.program is not None:
            moved = bench.last_traffic("unchanged", "million", "sandlift")
            bench.figure("unchanged KiB, million", moved / 1024)
    bench.renew()
