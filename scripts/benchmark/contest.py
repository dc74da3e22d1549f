"""A contest: several commands with the same work to do, each measured once a round, in turning order."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmark import BenchError, LeftOutError, note
from benchmark.machine import Quiet, free_memory_bytes, is_disturbed, machine_cpu_s, own_cpu_s
from benchmark.processes import Command, CommandError, Memory, Sampler, run
from benchmark.records import Record
from benchmark.sandbox import Program, Sandbox, Traffic
from benchmark.trees import Scale, Tree, copy_of, ready

SLOW_ROUNDS = 2
REPEATS = 3
MIB = 1 << 20
PACKAGES = {"borg": "borgbackup", "restic": "restic borgbackup"}
SPARE_MEMORY_BYTES = 2 << 30
REAPED_S = 0.05
"""The server waits for an ended session's processes a moment after the client has gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One contestant's command, and how its destination is made as it must be before each attempt."""

    name: str
    command: Command
    prepare: Callable[[], None] = lambda: None
    traffic: Callable[[bytes], Traffic] | None = None
    stated: Callable[[bytes], tuple[float, float]] | None = None
    """For a library: the seconds of the work itself, and its processor seconds, which the command prints."""
    most_rounds: int | None = None
    """A slow one runs in the first rounds only."""
    repeatable: bool = True
    needs: str = ""
    """The program that must be installed, where it is not the command's first word."""
    is_peer: bool = True
    """A peer may be missing or refuse the work; then it is left out, and the rest goes on."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run of everything: where things are, and what was measured so far."""

    work: Path
    place: Path
    """A fresh folder of a tmpfs, or of what the user named: what is made once for all rounds."""
    round_place: Path
    """Where each round's destinations are made, and removed after it."""
    sandbox: Sandbox
    program: Program | None
    """None when only peers are measured."""
    scale: Scale
    reference: str
    quiet: Quiet
    settles: bool
    """Whether to wait until no file counts as changed a moment ago."""
    renew: Callable[[], None]
    records: list[Record] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    trees: dict[str, Tree] = field(default_factory=dict)

    def tree(self, role: str) -> Tree:
        """The tree of a role; ``reference`` is the npm workspace or the made-up one.  Raises LeftOutError."""
        if role not in self.trees:
            self.trees[role] = ready(self.work, self.reference if role == "reference" else role, self.scale)
        return self.trees[role]

    def copy(self, role: str, suffix: str) -> Tree:
        """A copy of a tree that may be changed.  Raises LeftOutError."""
        return copy_of(self.tree(role), suffix)

    def settled(self, tree: Tree) -> None:
        """Wait until rows of a tree are trusted, or say that they are not."""
        wait_s = tree.unsettled_s()
        if wait_s > 0 and self.settles:
            note(f"waiting {wait_s:.0f} s until the {tree.role} tree counts as settled")
            time.sleep(wait_s)
        elif wait_s > 0:
            self.leave_out(
                f"trust in unchanged files: the {tree.role} tree changed a moment ago, and nobody waits here"
            )

    def leave_out(self, text: str) -> None:
        if text not in self.left_out:
            self.left_out.append(text)
            note(f"left out: {text}")

    def figure(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)

    def run(self, command: Command) -> bytes:
        """Run what is not measured; returns its stdout."""
        return run(command, env=self.sandbox.environment).stdout

    def room(self, needed_bytes: int, what: str) -> None:
        """Raises LeftOutError unless destinations, which may lie in memory, can take so much."""
        free_bytes = min(shutil.disk_usage(self.round_place).free, free_memory_bytes() - SPARE_MEMORY_BYTES)
        if free_bytes < needed_bytes:
            raise LeftOutError(
                f"{what}: needs {needed_bytes // MIB:,} MiB in {self.round_place.parent}, "
                f"{max(0, free_bytes) // MIB:,} are free"
            )

    def contest(self, group: str, tree: str, steps: Sequence[Step], number: int) -> None:
        """Run each step once, in the order of the round, and again where others disturbed it."""
        for step in steps if number % 2 == 0 else reversed(steps):
            if step.most_rounds is not None and number >= step.most_rounds:
                continue
            program = step.needs or first_word(step.command)
            if step.is_peer and shutil.which(program) is None:
                self.leave_out(f"{step.name}: missing: apt-get install {PACKAGES.get(program, program)}")
                continue
            try:
                self.records.append(self._measured(group, tree, step, number))
            except CommandError as error:
                if not step.is_peer:
                    raise
                self.leave_out(f"{step.name} on the {tree} tree: {str(error)[-300:]}")

    def _measured(self, group: str, tree: str, step: Step, number: int) -> Record:
        for attempt in range(REPEATS):
            step.prepare()
            self.quiet.wait()
            machine_s, own_s = machine_cpu_s(), own_cpu_s(self.sandbox.server_pid)
            started = time.monotonic()
            done = run(step.command, env=self.sandbox.environment)
            time.sleep(REAPED_S)
            spent_s = own_cpu_s(self.sandbox.server_pid) - own_s
            elapsed_s = time.monotonic() - started
            foreign_s = machine_cpu_s() - machine_s - spent_s
            disturbed = is_disturbed(foreign_s, elapsed_s)
            last = attempt == REPEATS - 1 or not step.repeatable
            if not disturbed or last or not self.quiet.may_repeat(elapsed_s):
                break
        traffic = step.traffic(done.stdout) if step.traffic else None
        wall_s, cpu_s = step.stated(done.stdout) if step.stated else (done.wall_s, spent_s)
        return Record(
            group=group,
            tree=tree,
            name=step.name,
            round=number,
            wall_s=wall_s,
            cpu_s=cpu_s,
            sent_bytes=traffic.sent if traffic else None,
            received_bytes=traffic.received if traffic else None,
            disturbed=disturbed,
        )

    def last_traffic(self, group: str, tree: str, name: str) -> int:
        """The bytes that the latest run of a contestant moved."""
        for record in reversed(self.records):
            if (record.group, record.tree, record.name) == (group, tree, name):
                return (record.sent_bytes or 0) + (record.received_bytes or 0)
        raise BenchError(f"{name} did not run in {group}")

    def memory(self, command: Command) -> Memory:
        """Run a command of sandlift for its memory alone: looking costs time, so it is not timed."""
        sampler = Sampler(self.sandbox.server_pid)
        run(command, env=self.sandbox.environment, sampler=sampler)
        return sampler.memory


def first_word(command: Command) -> str:
    """The program that a command starts first."""
    return command.split()[0] if isinstance(command, str) else command[0]


def absent(*paths: Path) -> Callable[[], None]:
    """A preparation: nothing is at these places."""

    def prepare() -> None:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    return prepare


def emptied(*paths: Path) -> Callable[[], None]:
    """A preparation: empty folders are at these places."""

    def prepare() -> None:
        absent(*paths)()
        for path in paths:
            path.mkdir()

    return prepare


def replaced(target: Path, source: Path) -> Callable[[], None]:
    """A preparation: at *target* is a copy of *source*."""

    def prepare() -> None:
        absent(target)()
        run(["cp", "-a", str(source), str(target)])

    return prepare


def size_bytes(folder: Path) -> int:
    """The apparent sizes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# Where destinations lie


@contextlib.contextmanager
def destinations(parent: Path, loop_gib: int) -> Iterator[tuple[Path, Path, Callable[[], None]]]:
    """A fresh folder, the folder of a round in it, and what makes that one anew.

    With *loop_gib* the latter is an ext4 of that size, made anew each time (as root): creating files soon after as
    many were deleted is several times slower on ext4, which would ruin a comparison.
    """
    with tempfile.TemporaryDirectory(prefix="sandlift-bench-", dir=parent) as name:
        place = Path(name)
        folder, image = place / "round", place / "image"
        folder.mkdir()

        def unmount() -> None:
            if folder.is_mount():
                subprocess.run(["umount", str(folder)], check=True, timeout=120)

        def renew() -> None:
            if not loop_gib:
                emptied(folder)()
                return
            unmount()
            with image.open("wb") as file:
                file.truncate(loop_gib << 30)
            run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-i", "8192", str(image)])
            run(["mount", "-o", "loop", str(image), str(folder)])
            shutil.rmtree(folder / "lost+found")

        try:
            renew()
            yield place, folder, renew
        finally:
            unmount()
