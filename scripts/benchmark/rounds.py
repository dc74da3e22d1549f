"""The order of a whole run: rounds of all groups on the reference tree, then each group with rounds of its own."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

from benchmark import BenchError, LeftOutError, note
from benchmark.backups import local
from benchmark.captures import changed, first, many_files, one_byte, others, sibling, unchanged
from benchmark.contest import Bench, destinations
from benchmark.costs import bundle, command_start, helper_start, many, memory
from benchmark.machine import Quiet
from benchmark.report import Result, machine_facts, tree_facts
from benchmark.restores import into, restore
from benchmark.sandbox import Program, started
from benchmark.trees import FULL, QUICK

LONGEST_WAIT_S = 5.0

IN_ROUNDS: dict[str, Callable[[Bench, int], None]] = {
    "capture": first,
    "unchanged": unchanged,
    "changed": changed,
    "sibling": sibling,
    "restore": restore,
    "into": into,
    "backup": local,
    "start": command_start,
}
AFTERWARDS: dict[str, Callable[[Bench, int], None]] = {"trees": others, "huge": one_byte, "million": many_files}
COSTS: dict[str, Callable[[Bench], None]] = {"memory": memory, "helper": helper_start, "many": many}


def measured(options: argparse.Namespace) -> Result:
    """Run what the options ask for.  Raises BenchError when it fails before anything was measured."""
    options.work.mkdir(parents=True, exist_ok=True)
    with destinations(options.destinations, options.loop) as (place, folder, renew), started(place) as sandbox:
        bench = Bench(
            work=options.work.resolve(),
            place=place,
            round_place=folder,
            sandbox=sandbox,
            program=None if options.peers else Program.found(),
            scale=QUICK if options.quick else FULL,
            reference="quick" if options.quick else "npm",
            quiet=Quiet(allowance_s=options.allowance, longest_wait_s=LONGEST_WAIT_S),
            settles=not options.quick,
            renew=renew,
        )
        if bench.program is not None and bench.program.missing:
            bench.leave_out(f"options that this sandlift's capture does not know: {' '.join(bench.program.missing)}")
        ended_early = False
        try:
            groups(bench, options.groups, options.rounds)
        except (BenchError, KeyboardInterrupt) as error:
            if not bench.records:
                raise
            ended_early = True
            bench.leave_out(f"the rest: {str(error) or 'interrupted'}")
        return Result(
            reference=bench.reference,
            rounds=options.rounds,
            machine=machine_facts(),
            trees=tree_facts(bench.trees),
            records=bench.records,
            figures=bench.figures,
            left_out=bench.left_out,
            ended_early=ended_early,
        )


def groups(bench: Bench, wanted: list[str], count: int) -> None:
    """The groups in their order, with *count* rounds each."""
    rounds(bench, [group for group in wanted if group in IN_ROUNDS], count)
    for group in wanted:
        if group in AFTERWARDS:
            note(f"{group}, {count} rounds")
            attempt(bench, partial(AFTERWARDS[group], bench, count))
        elif group in COSTS:
            note(group)
            attempt(bench, partial(COSTS[group], bench))
    if "helper" in wanted:
        bundle(bench)


def rounds(bench: Bench, groups: list[str], count: int) -> None:
    """All groups on the reference tree, one after the other in each round."""
    if not groups:
        return
    bench.settled(bench.tree("reference"))
    for number in range(count):
        note(f"round {number + 1} of {count}")
        bench.renew()
        for group in groups:
            started_s = time.monotonic()
            attempt(bench, partial(IN_ROUNDS[group], bench, number))
            note(f"  {group} {time.monotonic() - started_s:.0f} s")
    bench.renew()


def attempt(bench: Bench, part: Callable[[], None]) -> None:
    """Do a part, or note why it is left out."""
    try:
        part()
    except LeftOutError as reason:
        bench.leave_out(str(reason))
