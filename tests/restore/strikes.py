"""Exchanges a name for a link to the victim, or for a pipe, at the N-th system call of a restore or a capture.

strikes.py WORK WHERE FOLDER [STEP]     WORK is capture or a mode of restore; WHERE is what is exchanged: directory,
                                        file and pipe in the tree; target and parent on the way to it; in-staging and
                                        staging beside it.  N is every STEP-th

Calls that only look are counted as well, so every gap between a look and a use is struck in once.  Prints one JSON
line for each N: the call, what was said, and everything that must not be.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from support.attacker import Attacker
from support.crash import Seam, box_at, one_processor
from support.races import Arena, Result
from support.tree import make, remove
from support.world import MODES, Mode

CHANCE = b"\xab"
STAGING = ".t." + 8 * CHANCE.hex() + ".sandlift-new"
FILES = 4

Row = dict[str, object]


class Strikes:
    """One kind of work, struck at each of its calls in one place."""

    def __init__(self, folder: Path, work: str, where: str) -> None:
        self.arena = Arena(folder, FILES)
        self.work, self.where = work, where
        self.bait = self.arena.lair / "bait"
        root = self.arena.workspace if work == "capture" else self.arena.target
        staging = self.arena.place / STAGING
        victim = self.arena.victim
        self.path, self.goal = {
            "directory": (root / "d", victim / "d"),
            "file": (root / "f", victim / "f"),
            "pipe": (root / "f", None),
            "target": (root, victim / "t"),
            "parent": (root.parent, victim),
            "in-staging": (staging / "d", victim / "d"),
            "staging": (staging, victim / "t"),
        }[where]

    def begin(self) -> None:
        """Makes what is worked with, and the bait."""
        if self.work == "capture":
            remove(self.arena.workspace)
            make(self.arena.old, self.arena.workspace)
        else:
            remove(self.arena.folder / "place")
            self.arena.begin(cast(Mode, self.work))
        remove(self.arena.lair)
        self.arena.lair.mkdir()
        if self.goal is None:
            os.mkfifo(self.bait)
        else:
            self.bait.symlink_to(self.goal)

    def once(self, seam: Seam) -> Result:
        """Does the work once."""
        result = Result()
        capture = self.work == "capture"
        with box_at(self.arena.workspace if capture else self.arena.target, seam) as box:
            if capture:
                self.arena.capture(box, result)
            else:
                self.arena.restore(box, cast(Mode, self.work), result)
        result.escapes += self.arena.harm()
        return result

    def rows(self, step: int) -> Iterator[Row]:
        """Strikes at every *step*-th call that follows the opening of what the operator named."""
        self.begin()
        seam = Seam(opens=True, looks=True, chance=CHANCE)
        self.once(seam)
        names = seam.names
        first = seam.resolved
        if self.work == "capture":
            first = next(number for number, name in enumerate(names, 1) if name.startswith("open") and "/w'" in name)
        for number in range(first + 1, len(names) + 1, step):
            self.begin()
            with Attacker(self.path, self.bait) as attacker:
                seam = Seam(what="call", at=number, opens=True, looks=True, chance=CHANCE, ask=attacker.strike)
                result = self.once(seam)
            # A link that is still the bait was never where it could hurt.
            struck = not os.path.lexists(self.bait) or not (self.bait.is_symlink() or self.bait.is_fifo())
            if result.escapes:
                remove(self.arena.victim)
                self.arena.make_victim()
            yield {
                "call": seam.name(number),
                "struck": struck,
                "said": sorted(result.errors),
                "problems": [*result.problems, *(f"escaped: {line}" for line in result.escapes[:4])],
            }


def main(work: str, where: str, folder: str, step: str = "1") -> None:
    assert work in (*MODES, "capture")
    with one_processor():
        strikes = Strikes(Path(folder), work, where)
        with strikes.arena:
            for row in strikes.rows(int(step)):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
