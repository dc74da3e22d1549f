"""The groups that measure what sandlift itself costs: starts, the bundle, memory, and many captures at once."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys

from benchmark import BIN, ROOT, LeftOutError
from benchmark.contest import MIB, Bench, Step, absent
from benchmark.sandbox import SYSTEM_PYTHON

STARTS_A_ROUND = 5
HELPER_STARTS = 11
MANY_TIMEOUT_S = 1_800

# Stands between the program and the interpreter that it starts, and notes the processor time of the latter.
METER = """#!{python} -IS
import os, sys
pid = os.fork()
if not pid:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
_, status, usage = os.wait4(pid, 0)
with open({notes!r}, "a") as file:
    file.write("%.6f\\n" % (usage.ru_utime + usage.ru_stime))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def command_start(bench: Bench, number: int) -> None:
    for turn in range(STARTS_A_ROUND):
        steps = [Step(name="import click", command=[sys.executable, "-c", "import click"])]
        if bench.program is not None:
            version = [str(BIN / "sandlift"), "--version"]
            steps.insert(0, Step(name="sandlift --version", command=version, is_peer=False))
        bench.contest("start", "reference", steps, number * STARTS_A_ROUND + turn)


def helper_start(bench: Bench) -> None:
    """Processor time of a helper that captures an empty directory, above that of an interpreter doing nothing."""
    if bench.program is None:
        return
    python, notes = bench.place / "metered-python", bench.place / "metered"
    python.write_text(METER.format(python=SYSTEM_PYTHON, notes=str(notes)))
    python.chmod(0o755)
    empty = bench.place / "empty"
    empty.mkdir(exist_ok=True)
    store = bench.place / "start-store"
    bare, started = [], []
    for _ in range(HELPER_STARTS):
        absent(notes, store)()
        bench.run([str(python), "-I", "-S", "-c", "0"])
        bench.run(bench.program.capture(store, str(empty), "--python", str(python)))
        times = [float(line) for line in notes.read_text().split()]
        if len(times) != 2:
            raise LeftOutError(f"helper start: {len(times) - 1} helpers ran for a capture, not one")
        bare.append(times[0])
        started.append(times[1])
    for above_s in paired_excess(started, bare):
        bench.figure("helper start", 1000 * above_s)


def paired_excess(subjects: list[float], peers: list[float]) -> list[float]:
    """Each subject's excess over the median of the peers."""
    middle = statistics.median(peers)
    return [subject - middle for subject in subjects]


def bundle(bench: Bench) -> None:
    """The largest compressed bundle of all operations."""
    if bench.program is None:
        return
    from sandlift.payload import bundle as bundle_of
    from sandlift_helper import OPERATIONS

    bench.figure("bundle", max(len(bundle_of(operation)) for operation in OPERATIONS) / 1024)


def memory(bench: Bench) -> None:
    """Peaks at the reference and at one large file; those at many files come with that group."""
    if bench.program is None:
        return
    tree = bench.tree("reference")
    bench.renew()
    store = bench.round_place / "store"
    command = bench.program.capture(store, bench.sandbox.url(tree.path))
    for name in ("reference", "reference unchanged"):
        looked = bench.memory(command)
        bench.figure(f"helper, {name}", looked.helper_bytes / MIB)
        bench.figure(f"host, {name}", looked.host_bytes / MIB)
    looked = bench.memory(bench.program.restore(store, str(bench.round_place / "restored")))
    bench.figure("helper, reference restore", looked.helper_bytes / MIB)
    bench.figure("host, reference restore", looked.host_bytes / MIB)
    bench.renew()
    bulk = bench.tree("bulk")
    # Its blocks compress to a hundredth.
    bench.room(bulk.facts.bytes // 20, "one large file")
    looked = bench.memory(bench.program.capture(store, bench.sandbox.url(bulk.path)))
    bench.figure("helper, bulk", looked.helper_bytes / MIB)
    bench.figure("host, bulk", looked.host_bytes / MIB)
    bench.renew()


def many(bench: Bench) -> None:
    """Many captures at once, by scripts/many, which measures for itself."""
    script = ROOT / "scripts" / "many"
    if bench.program is None:
        return
    if not os.access(script, os.X_OK):
        raise LeftOutError("many captures at once: there is no scripts/many")
    words = [str(script), *(["--captures", "20"] if bench.reference == "quick" else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=MANY_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise LeftOutError(f"many captures at once: after {MANY_TIMEOUT_S} s scripts/many still runs") from error
    found = many_figures(done.stdout)
    if not found:
        raise LeftOutError(f"many captures at once: scripts/many ended with {done.returncode}: {done.stderr[-300:]}")
    for name, value in found.items():
        bench.figure(name, value)


def many_figures(text: str) -> dict[str, float]:
    """What the lines of scripts/many say; nothing unless the comparison is among them."""
    throughput = re.search(r"([\d.]+) x the best of ", text)
    if throughput is None or not float(throughput[1]):
        return {}
    found = {
        "many failures": float(sum(int(count) for count in re.findall(r"(\d+) failures", text))),
        "many slowdown": 1 / float(throughput[1]),
    }
    turn = re.search(r"event loop: (\d+) ms", text)
    if turn is not None:
        found["many event loop"] = float(turn[1])
    return found
