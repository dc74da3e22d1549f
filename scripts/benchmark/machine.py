"""What the machine does beside us: a run that others disturbed is known by the processor time that is not ours.

The kernel counts busy time for all processors together in ticks of 10 ms, so runs of under half a second are not
judged.  Waiting and repeating draw on one allowance of seconds for the whole bench: on a machine that is never
quiet it ends, and what was disturbed says so in the result.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PROCESSORS = os.cpu_count() or 1
FOREIGN_SHARE = 0.08
"""Of all processors' time in a run; what two repeated series differ by is half of it."""
FOREIGN_FLOOR_S = 0.1
JUDGED_FROM_S = 0.5
LOOK_S = 0.25
IDLE_SHARE = 0.10


def busy_ticks(text: str) -> int:
    """The ticks in which any processor worked, from the text of /proc/stat: user, nice, system, interrupts, steal."""
    fields = [int(word) for word in text.split("\n", 1)[0].split()[1:]]
    return sum(fields[:3]) + sum(fields[5:8])


def machine_cpu_s() -> float:
    """Processor seconds that the machine has spent since it was started."""
    return busy_ticks(Path("/proc/stat").read_text()) / TICKS_A_SECOND


def children_of(pid: int) -> list[int]:
    """The living children of a process, of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """The living processes below one, itself not included."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return found


def process_cpu_s(pid: int) -> float:
    """Processor seconds of a process and of what is or was below it; 0.0 when it is gone."""
    ticks = 0
    for index, each in enumerate((pid, *descendants_of(pid))):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything.
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            # Own time; of the first also that of children it has waited for, which hold their children's.
            ticks += sum(int(word) for word in fields[11 : 15 if index == 0 else 13])
    return ticks / TICKS_A_SECOND


def own_cpu_s(server_pid: int) -> float:
    """Processor seconds of this process, its ended children, and everything of the ssh server."""
    times = os.times()
    mine = times.user + times.system + times.children_user + times.children_system
    return mine + process_cpu_s(server_pid)


def is_disturbed(foreign_s: float, wall_s: float, processors: int = PROCESSORS) -> bool:
    """Whether others took so much of the machine that a run of *wall_s* seconds says little."""
    if wall_s < JUDGED_FROM_S:
        return False
    return foreign_s > FOREIGN_FLOOR_S and foreign_s > FOREIGN_SHARE * wall_s * processors


@dataclass(slots=True, kw_only=True)
class Quiet:
    """The allowance for waiting until the machine is idle, and for repeating what was disturbed."""

    allowance_s: float
    longest_wait_s: float
    """Of any one wait, so that a machine which is never quiet does not take all of it at once."""
    sleep: Callable[[float], None] = time.sleep
    read_busy_s: Callable[[], float] = machine_cpu_s

    def wait(self) -> None:
        """Return when others leave the machine alone, or when the allowance is used up."""
        left_s = min(self.allowance_s, self.longest_wait_s)
        while left_s > 0:
            before = self.read_busy_s()
            self.sleep(LOOK_S)
            self.allowance_s -= LOOK_S
            left_s -= LOOK_S
            if (self.read_busy_s() - before) / (LOOK_S * PROCESSORS) < IDLE_SHARE:
                return

    def may_repeat(self, wall_s: float) -> bool:
        """Whether a run of that length may be made again; if so it is paid for."""
        if self.allowance_s < wall_s:
            return False
        self.allowance_s -= wall_s
        return True


def free_memory_bytes() -> int:
    """What the kernel says is available, swap left out."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
