"""Runs fuzz targets under atheris, each in a process of its own, and reads what came of it.

The package under test is instrumented as it is imported, once; then each target runs in a fork with a cap on its
address space.  libFuzzer ends the process itself, so all that is known of a run is what it printed and the files
that it left below the output folder::

    TARGET/corpus/       inputs that reached something new; the next run begins with them
    TARGET/crash-...     the input that broke an invariant, also timeout-... and oom-...
    TARGET/log           what libFuzzer printed
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType
from typing import NoReturn

PACKAGES = ["sandlift", "sandlift_helper"]
INPUT_MAX_BYTES = 16 << 10
INPUT_TIMEOUT_S = 20
MEMORY_BYTES = 2 << 30
"""Address space of one target's process; a frame may state 64 MiB, a stored snapshot's window 128 MiB."""
GRACE_S = 60
"""How long a run may take beyond its time, or without one for each thousand inputs, before it is killed."""

_STATE = re.compile(
    r"^#(?P<executions>\d+)\s+(?P<state>\w+)\s+cov: (?P<coverage>\d+) ft: (?P<features>\d+) corp: (?P<corpus>\d+)/",
    re.MULTILINE,
)
_EXECUTED = re.compile(r"^stat::number_of_executed_units: (\d+)$", re.MULTILINE)
_UNCAUGHT = re.compile(r"=== Uncaught Python exception: ===\n(.*?)(?=^==\d+==|^SUMMARY|\Z)", re.MULTILINE | re.DOTALL)
_ARTIFACT = re.compile(r"Test unit written to (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How to run a target: ``runs`` inputs, or ``seconds``, whichever ends first (0: no such end)."""

    runs: int = 0
    seconds: int = 0
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run."""

    target: str
    executions: int
    coverage: int
    """Branches of the package under test that were reached."""
    features: int
    """Branches, by how often each was passed, and values that were compared."""
    features_of_seeds: int
    """The same after nothing but the seeds."""
    corpus: int
    seconds: float
    crash: Path | None
    """The input that broke an invariant."""
    report: str
    """The traceback, or why the process ended; empty when all is well."""


def load() -> ModuleType:
    """Imports atheris, and the targets with the package under test instrumented.  Raises ModuleNotFoundError."""
    import atheris  # type: ignore[import-untyped]

    if any(name.split(".")[0] in PACKAGES for name in sys.modules):
        raise RuntimeError("the package under test is imported already, so it cannot be instrumented")
    out = os.dup(2)
    with open(os.devnull, "w") as quiet:
        os.dup2(quiet.fileno(), 2)  # one line for each module
        try:
            with atheris.instrument_imports(include=PACKAGES):
                from fuzz import seeds, targets

                assert seeds.MAKERS.keys() == targets.TARGETS.keys()
        finally:
            os.dup2(out, 2)
            os.close(out)
    return atheris  # type: ignore[no-any-return]


def fuzz(atheris: ModuleType, target: str, request: Request, output: Path) -> Outcome:
    """Runs one target in a fork and returns what came of it."""
    from fuzz import seeds

    folder = output / target
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_fast_folder()) as scratch:
        first = Path(scratch) / "seeds"
        first.mkdir()
        for number, data in enumerate(seeds.seeds(target)):
            (first / str(number)).write_bytes(data)
        child = os.fork()
        if not child:
            _run(atheris, target, request, folder, Path(scratch))
        status = _wait(child, request)
    text = (folder / "log").read_text("utf-8", "backslashreplace")
    return _read(target, text, status, folder, time.monotonic() - started)


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _wait(child: int, request: Request) -> int:
    limit_s = (request.seconds or GRACE_S * (1 + request.runs // 1000)) + GRACE_S
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def _run(atheris: ModuleType, target: str, request: Request, folder: Path, scratch: Path) -> NoReturn:
    """The forked process: never returns, and prints to the log alone."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        from fuzz.mutators import MUTATORS
        from fuzz.seeds import seeds
        from fuzz.targets import TARGETS

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        tempfile.tempdir = str(scratch)
        mutator, judge = MUTATORS[target], TARGETS[target]
        first = [data for data in seeds(target) if mutator(data, Random(0), bytes) is not None]

        def kept(data: bytes) -> None:
            # Written here, because what libFuzzer does with an exception differs among versions of atheris.
            try:
                judge(data)
            except Exception:
                crash = folder / f"crash-{hashlib.sha256(data).hexdigest()[:16]}"
                crash.write_bytes(data)
                print(f"Test unit written to {crash}", file=sys.stderr, flush=True)
                raise

        def mutate(data: bytes, size_max: int, seed: int) -> bytes:
            random = Random(seed)

            def part(data: bytes) -> bytes:
                return bytes(atheris.Mutate(data, len(data) + 32))

            # Most of a corpus is refused early; what is broken in one place alone teaches more, so seeds come again.
            if random.randrange(3) == 0:
                data = random.choice(first)
            for _ in range(random.choice((1, 1, 1, 2, 4))):
                changed = mutator(data, random, part) if random.randrange(5) else None
                data = part(data) if changed is None else changed
            return data[:size_max]

        options = {
            "runs": request.runs or -1,
            "max_total_time": request.seconds,
            "seed": request.seed,
            "timeout": INPUT_TIMEOUT_S,
            "rss_limit_mb": MEMORY_BYTES >> 20,
            "max_len": INPUT_MAX_BYTES,
            "artifact_prefix": f"{folder}/",
            "print_final_stats": 1,
        }
        words = ["fuzz", *(f"-{name}={value}" for name, value in options.items())]
        atheris.Setup([*words, str(folder / "corpus"), str(scratch / "seeds")], kept, custom_mutator=mutate)
        atheris.Fuzz()
    except SystemExit:
        pass  # a finding, and atheris has printed it
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(99)


def _read(target: str, text: str, status: int, folder: Path, seconds: float) -> Outcome:
    states = [match.groupdict() for match in _STATE.finditer(text)]
    last = states[-1] if states else {}
    of_seeds = next((state["features"] for state in states if state["state"] == "INITED"), 0)
    executed = _EXECUTED.search(text)
    artifact = _ARTIFACT.search(text)
    report = ""
    if status:
        uncaught = _UNCAUGHT.search(text)
        ended = f"the process was ended by signal {-status}" if status < 0 else f"the process ended with {status}"
        report = uncaught[1].strip() if uncaught else f"{ended}; see {folder / 'log'}"
    return Outcome(
        target=target,
        executions=int(executed[1] if executed else last.get("executions", 0)),
        coverage=int(last.get("coverage", 0)),
        features=int(last.get("features", 0)),
        features_of_seeds=int(of_seeds),
        corpus=int(last.get("corpus", 0)),
        seconds=seconds,
        crash=Path(artifact[1]) if artifact else None,
        report=report,
    )


def clear(output: Path, target: str) -> None:
    """Removes the corpus of a target, so that a run with the same seed is the same run."""
    shutil.rmtree(output / target / "corpus", ignore_errors=True)
