"""The fuzz targets in the gate: their seeds, what was found once, a short run of each, and planted bugs."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from fuzz.crashes import CRASHES
from fuzz.mutators import MUTATORS
from fuzz.seeds import MAKERS, seeds
from fuzz.store_targets import store
from fuzz.targets import TARGETS

from support.needs import lacking

pytestmark = pytest.mark.xdist_group("fuzz")

ROOT = Path(__file__).resolve().parents[2]
RUNS = 1500
"""Inputs for each target; the seed is fixed, so it is the same run every time."""
SLOW_RUNS = 400
SLOW = ("archive",)
"""Targets that store and read back what they accept."""
HEADROOM_BYTES = 1 << 30
RUN_TIMEOUT_S = 900


@pytest.fixture(autouse=True, scope="module")
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The store that some targets read lies in a folder of the test, and is closed after it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("fuzz")))
        yield
        store().close()
        store.cache_clear()


@pytest.fixture
def bounded() -> Iterator[None]:
    """Caps the memory that a test may add to that of the process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (wanted, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_every_target_has_seeds_and_a_mutator() -> None:
    assert TARGETS.keys() == MUTATORS.keys() == MAKERS.keys()


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target: str) -> None:
    for data in seeds(target):
        TARGETS[target](data)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", CRASHES)
def test_crashes(name: str) -> None:
    target, data = CRASHES[name]
    TARGETS[target](data)


# --- short runs ---------------------------------------------------------------------------------------------------


def fuzz(output: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("atheris") is None:
        lacking("atheris is not installed: scripts/setup")
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fuzz"), "--output", str(output), *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    inputs: int
    features: int
    features_of_seeds: int
    verdict: str


def rows_of(text: str) -> Mapping[str, Row]:
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in TARGETS and words[-1] in ("ok", "CRASH"):
            found[words[0]] = Row(
                inputs=int(words[1]), features=int(words[4]), features_of_seeds=int(words[5]), verdict=words[-1]
            )
    return found


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Row]:
    found: dict[str, Row] = {}
    for runs, names in ((RUNS, [name for name in TARGETS if name not in SLOW]), (SLOW_RUNS, SLOW)):
        done = fuzz(tmp_path_factory.mktemp("runs"), *names, "--runs", str(runs))
        assert done.returncode == 0, done.stdout + done.stderr
        found |= rows_of(done.stdout)
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run_finds_nothing(short_run: Mapping[str, Row], target: str) -> None:
    row = short_run[target]
    assert (row.inputs, row.verdict) == (SLOW_RUNS if target in SLOW else RUNS, "ok")
    # Only the package is instrumented: what the seeds reach lies in it, and mutation gets further.
    assert 10 < row.features_of_seeds < row.features


def test_targets_are_listed_and_others_are_refused(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--list")
    assert (done.returncode, [line.split()[0] for line in done.stdout.splitlines()]) == (0, list(TARGETS))
    done = fuzz(tmp_path, "reader", "typo", "--runs", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fuzz: no such target: typo. There are reader, ")


# --- planted bugs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One check taken out of a module: the text of it, and what stands there instead."""

    target: str
    module: str
    check: str
    instead: str


PLANTS = {
    "frame-cap": Plant(
        target="reader",
        module="helper/sandlift_helper/wire.py",
        check="if length > cap:",
        instead="if length > cap + 1:",
    ),
    "credit": Plant(
        target="session",
        module="agent/sandlift/session.py",
        check="if self._frames > self._granted:",
        instead="if False:",
    ),
    "digest-of-the-stream": Plant(
        target="session",
        module="agent/sandlift/session.py",
        check='if message.get("digest") != self._digest.digest():',
        instead="if False:",
    ),
    "padding": Plant(
        target="run",
        module="helper/sandlift_helper/members.py",
        check="if run[stop:position] != _ZEROS[: position - stop]:",
        instead="if False:",
    ),
    "outside-links": Plant(
        target="gathering", module="agent/sandlift/validate.py", check="if not inside:", instead="if False:"
    ),
    "hard-link-metadata": Plant(
        target="gathering",
        module="agent/sandlift/validate.py",
        check="if count or _metadata(rows, row) != _metadata(rows, first_of_group[group]):",
        instead="if count:",
    ),
    "block-positions": Plant(
        target="gathering",
        module="agent/sandlift/validate.py",
        check="if position >= 0 and not is_rising_below(places, blocks):",
        instead="if False:",
    ),
    "loops": Plant(
        target="link",
        module="helper/sandlift_helper/links.py",
        check="self.begun[met] == 1 or self.ends[met] == _LOOP:",
        instead="self.begun[met] == 1 and met < 3 or self.ends[met] == _LOOP:",
    ),
    "rules-of-another-directory": Plant(
        target="rules",
        module="helper/sandlift_helper/ignore.py",
        check="if directory != self._directory:",
        instead='if len(directory) != len(self._directory or b""):',
    ),
    "seek-table-sum": Plant(
        target="pack",
        module="agent/sandlift/store/packs.py",
        check="if sum(compressed) + size != self.size_bytes:",
        instead="if False:",
    ),
    "pack-index": Plant(
        target="snapshot",
        module="agent/sandlift/store/snapshots.py",
        check="if count and max(pack_index) >= len(names):",
        instead="if False:",
    ),
    "another-ref": Plant(
        target="ref",
        module="agent/sandlift/store/refs.py",
        check='if stored.text("workspace") != workspace or stored.count("number") != number:',
        instead="if False:",
    ),
}


def batches() -> list[list[str]]:
    """The plants, in as few runs as it takes for each target to meet one in a run."""
    found: list[list[str]] = []
    for name, plant in PLANTS.items():
        batch = next((batch for batch in found if all(PLANTS[other].target != plant.target for other in batch)), None)
        if batch is None:
            found.append(batch := [])
        batch.append(name)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    row: Row
    path: str
    """PYTHONPATH of the spoilt package."""
    crashes: list[Path]
    printed: str


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Finding]:
    found = {}
    for batch in batches():
        top = tmp_path_factory.mktemp("planted")
        for folder in ("agent", "helper"):
            shutil.copytree(ROOT / folder, top / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        for name in batch:
            module, check = top / PLANTS[name].module, PLANTS[name].check
            text = module.read_text()
            assert text.count(check) == 1, f"{PLANTS[name].module} has changed: plant {name} anew"
            module.write_text(text.replace(check, PLANTS[name].instead))
        path = os.pathsep.join((str(top / "agent"), str(top / "helper")))
        names = [PLANTS[name].target for name in batch]
        done = fuzz(top / "out", *names, "--runs", str(RUNS), PYTHONPATH=path)
        rows = rows_of(done.stdout)
        for name, target in zip(batch, names, strict=True):
            crashes = sorted((top / "out" / target).glob("crash-*"))
            found[name] = Finding(row=rows[target], path=path, crashes=crashes, printed=done.stdout)
        assert done.returncode == int(any(row.verdict == "CRASH" for row in rows.values()))
    return found


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(findings: Mapping[str, Finding], name: str) -> None:
    target, finding = PLANTS[name].target, findings[name]
    assert finding.row.verdict == "CRASH", finding.printed
    # The seeds alone do not find it, so it was mutation that did.
    (crash,) = finding.crashes
    assert crash.read_bytes() not in seeds(target)
    assert f"replay: scripts/fuzz {target} --replay {crash}" in finding.printed


def test_a_crash_is_replayed(findings: Mapping[str, Finding], tmp_path: Path) -> None:
    finding = findings["outside-links"]
    spoilt, sound = (
        fuzz(tmp_path, "gathering", "--replay", str(finding.crashes[0]), **environment)
        for environment in ({"PYTHONPATH": finding.path}, {})
    )
    assert (spoilt.returncode, sound.returncode) == (1, 0)
    assert "Broken: a manifest was accepted although the link" in spoilt.stderr
