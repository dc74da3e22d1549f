"""Programs that keep a tree of this machine: each reads the directory itself, without a sandbox between.

sandlift does the same here, so that the comparison is one of like with like.  restic encrypts, borg here does not and
compresses with zstd as sandlift does.  What UnixLocal persists stays in memory, neither compressed nor stored, and
its seconds are those of the work, without its imports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from benchmark.contest import SLOW_ROUNDS, Bench, Step, absent, emptied, size_bytes
from benchmark.processes import Command
from benchmark.trees import Tree

UNIX_LOCAL = str(Path(__file__).with_name("unix_local.py"))


def local(bench: Bench, number: int) -> None:
    """Keep the tree, keep it again unchanged, and bring it back."""
    tree = bench.tree("reference")
    place = bench.round_place / "local"
    place.mkdir()
    bench.contest("backup", "reference", keep_steps(bench, tree, place), number)
    for name in ("restic", "borg"):
        if bench.program is not None and (place / name).exists():
            bench.figure(f"store / {name}", size_bytes(place / "store") / size_bytes(place / name))
    bench.contest("backup again", "reference", again_steps(bench, tree, place), number)
    bench.contest("bring back", "reference", back_steps(bench, tree, place), number)
    absent(place)()


def keep_steps(bench: Bench, tree: Tree, place: Path) -> list[Step]:
    restic, borg = ["restic", "-q", "-r", str(place / "restic")], place / "borg"
    steps = [
        Step(
            name="restic backup",
            command=[*restic, "backup", str(tree.path)],
            prepare=made(bench, place / "restic", [*restic, "init"]),
            most_rounds=SLOW_ROUNDS,
        ),
        Step(
            name="borg create",
            command=borg_create(tree, borg, "first"),
            prepare=made(bench, borg, ["borg", "init", "-e", "none", str(borg)]),
            most_rounds=SLOW_ROUNDS,
            needs="borg",
        ),
        Step(
            name="UnixLocal persist",
            command=[sys.executable, UNIX_LOCAL, "persist", str(tree.path), str(place / "persisted.tar")],
            stated=stated_seconds,
            most_rounds=SLOW_ROUNDS,
        ),
    ]
    if bench.program is not None:
        command = bench.program.capture(place / "store", str(tree.path))
        steps.insert(0, Step(name="sandlift", command=command, prepare=absent(place / "store"), is_peer=False))
    return steps


def again_steps(bench: Bench, tree: Tree, place: Path) -> list[Step]:
    restic = ["restic", "-q", "-r", str(place / "restic"), "backup", str(tree.path)]
    steps = [
        Step(name="restic backup", command=restic, most_rounds=SLOW_ROUNDS),
        Step(
            name="borg create",
            command=borg_create(tree, place / "borg", "{now:%s%f}"),
            most_rounds=SLOW_ROUNDS,
            needs="borg",
        ),
    ]
    if bench.program is not None:
        command = bench.program.capture(place / "store", str(tree.path))
        steps.insert(0, Step(name="sandlift", command=command, is_peer=False))
    return steps


def back_steps(bench: Bench, tree: Tree, place: Path) -> list[Step]:
    restic = ["restic", "-q", "-r", str(place / "restic"), "restore", "latest", "--target"]
    extract = f"cd {quote(str(place / 'borg-out'))} && borg extract {quote(str(place / 'borg'))}::first"
    hydrate = [sys.executable, UNIX_LOCAL, "hydrate", str(place / "hydrated"), str(place / "persisted.tar")]
    steps = [
        Step(
            name="restic restore",
            command=[*restic, str(place / "restic-out")],
            prepare=emptied(place / "restic-out"),
            most_rounds=SLOW_ROUNDS,
        ),
        Step(
            name="borg extract",
            command=extract,
            prepare=emptied(place / "borg-out"),
            most_rounds=SLOW_ROUNDS,
            needs="borg",
        ),
        Step(
            name="UnixLocal hydrate",
            command=hydrate,
            prepare=absent(place / "hydrated"),
            stated=stated_seconds,
            most_rounds=SLOW_ROUNDS,
        ),
    ]
    if bench.program is not None:
        command = bench.program.restore(place / "store", str(place / "restored"))
        steps.insert(0, Step(name="sandlift", command=command, prepare=absent(place / "restored"), is_peer=False))
    return steps


def borg_create(tree: Tree, repository: Path, archive: str) -> Command:
    return f"cd {quote(str(tree.path))} && borg create -C zstd,1 {quote(f'{repository}::{archive}')} ."


def made(bench: Bench, repository: Path, initialise: list[str]) -> Callable[[], None]:
    """A preparation: an empty repository."""

    def prepare() -> None:
        absent(repository)()
        bench.run(initialise)

    return prepare


def stated_seconds(output: bytes) -> tuple[float, float]:
    """What the program of `unix_local` says that the work took: seconds, and processor seconds."""
    answer = json.loads(output)
    return float(answer["seconds"]), float(answer["cpu_s"])
